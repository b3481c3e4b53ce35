//! Vocabulary of the remote memory fabric.
//!
//! A memory server offers a *region* of bytes, addressed from 0. Compute servers access it with *verbs*:
//! one-sided READ, WRITE, compare-and-swap and fetch-and-add, which need no processor of the memory server,
//! and two-sided calls, which do. This crate defines the interface of the verbs ([`Endpoint`]), their
//! addresses ([`GlobalAddr`]), buffers ([`PageBuf`]), combination ([`Chain`]), counters ([`VerbCounters`])
//! and errors ([`FabricError`]). It does no I/O and starts no threads; the fabrics do.
//!
//! Guarantees of every fabric:
//! - Addresses and lengths of verbs are multiples of 8 bytes; an aligned 8-byte word is never torn.
//! - A READ that races a WRITE may see any mixture of old and new 64-byte lines.
//! - Verbs of one [`Chain`] take effect in order; verbs of different futures do not.
//! - An atomic is atomic against other atomics on the same memory server, not against WRITEs.
#![forbid(unsafe_code)]

mod addr;
mod arena;
mod buf;
mod buffers;
mod chain;
pub mod codec;
#[cfg(feature = "conformance")]
pub mod conformance;
mod counters;
pub mod defect;
mod dynamic;
mod endpoint;
mod error;
mod growing;
mod join;
mod outlined;
mod patience;
mod random;
mod request;
pub mod sectors;
mod state;
mod time_limit;
mod work;

pub use addr::{GlobalAddr, MAX_OFFSET, MAX_SERVERS, MemoryServerId};
pub use arena::{Arena, Registration};
pub use buf::PageBuf;
pub use buffers::Buffers;
pub use chain::{Chain, ChainVerb, VerbResult};
pub use counters::{VerbCounters, VerbCounts};
pub use dynamic::DynEndpoint;
pub use endpoint::{Endpoint, Fabric, RegionInfo, yield_once};
pub use error::{FabricError, Result};
pub use growing::{Growing, LATER_MAX};
pub use join::{join_all, join_at_most};
pub use outlined::{Outlined, outlined};
pub use patience::{Patience, WaitedTooLong, limited};
pub use random::Random;
pub use request::{Handlers, OffloadPolicy, Request, RequestHandler, ServerMemory};
pub use state::EndpointState;
pub use time_limit::{Limit, Nanos, TimeLimit};
pub use work::{Resource, Work};

/// Bytes of a word: the unit of addressing and of atomicity.
pub const WORD: usize = 8;
/// Bytes of a cache line: the unit that racing READs and WRITEs may mix.
pub const LINE: usize = 64;
