//! Care of a pool: the auditor, the shape of its indexes, its memory servers, boundaries between processes.
//!
//! All of it concerns all indexes of a pool, whether they are open in this process or not. No other module of
//! this crate depends on it.

mod boundaries;
mod check;
mod memory;
mod roots;
mod shape;

pub use check::{CheckReport, IndexReport};
pub use memory::DrainProgress;
