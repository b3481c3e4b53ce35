//! Workloads and data: standard benchmark workloads for indexes, and real files to load into one.
//!
//! - Popularity of keys: [`Zipf`], [`HotSpot`], [`Distribution`]; positions of the popular ones: [`Scatter`].
//! - Existing keys and their encoding: [`keys`], [`KeySpace`], [`KeyCodec`].
//! - Operations: [`Mix`] (the named workloads of DEX and YCSB), [`OpStream`].
//! - Tables of codes and conditions on several columns: [`columns`].
//! - Verification: values that identify themselves ([`ValueCodec`]) and the range of values that a concurrent
//!   reader may legally see ([`Expectation`]).
//! - Real data: order-preserving composite keys ([`KeyLayout`]) and readers of CSV, TSV, Parquet and word
//!   lists ([`dataset`]); dumps of an index ([`dump`], [`table`]).
//!
//! Everything is deterministic: a run is a function of its specification and its seed. The crate knows nothing
//! about indexes or fabrics.
#![forbid(unsafe_code)]

pub mod columns;
pub mod dataset;
pub mod dump;
mod error;
mod escape;
mod expectation;
mod hot_spot;
mod key_layout;
pub mod keys;
mod mix;
mod ops;
mod rng;
mod sample;
mod scan_check;
mod scatter;
pub mod table;
mod values;
mod zipf;

pub use error::SpecError;
pub use escape::{escape, escape_into, find_escape, unescape};
pub use expectation::{Expectation, Floor, Violation};
pub use hot_spot::HotSpot;
pub use key_layout::{ColumnKind, KeyColumn, KeyLayout, KeyLayoutError};
pub use keys::{KeyCodec, KeySpace, OwnedRange, is_loaded, loaded_key, new_key};
pub use mix::{InsertKeys, Mix, ScanLength};
pub use ops::{Lane, Op, OpKind, OpStream, WorkloadSpec};
pub use rng::{Rng, mix64, unmix64};
pub use sample::Sample;
pub use scan_check::ScanCheck;
pub use scatter::{Permutation, Scatter, Scatterer};
pub use values::{ValueCodec, ValueError};
pub use zipf::{DEFAULT_THETA, Distribution, Zipf};
