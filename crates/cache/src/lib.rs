//! The compute-side page cache (DEX §5).
//!
//! A cache is an arena of *frames*, each as large as one node. A node is found through the *swizzled* pointer
//! in its parent's frame or through the *mapping table* (global address to frame). Pages that were sampled as
//! cold wait in the *cooling map* for eviction or for a second chance.
//!
//! The cache knows the tree only through [`NodeShape`]. Its invariants:
//! - Frames are type-stable: memory is never returned while the cache lives, and a frame's version never
//!   decreases. An optimistic reader that followed a stale reference finds out by the version.
//! - Word 0 of a frame is its [`latch`](HybridLatch), word 1 the global address of its node. The rest is the
//!   node, where a child word is a global address or a swizzled reference to a frame ([`Swip`]).
//! - A hot frame that has a parent is swizzled there, and its parent is hot. A frame without a parent is
//!   found through the table. A cooling frame is clean, is not swizzled, and has no swizzled children.
//! - An address is in the mapping table once: as a frame, or as an I/O mark whose holder alone may read,
//!   write or create that node (DEX §5.4).
//! - Latches are taken from the top of the tree down and never held across an await.

// For helpers that integration tests and unit tests share.
#[cfg(all(test, not(any(loom, shuttle))))]
extern crate self as pando_cache;

mod admission;
mod arena;
mod audit;
mod cache;
mod cooling;
mod cooling_map;
pub mod defect;
mod error;
mod expel;
mod frame;
mod gate;
mod latch;
mod mapping_table;
mod rank;
mod stats;
mod swip;
pub mod sync;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
mod turn;
mod turn_queue;
mod writing;

pub use admission::Admission;
pub use arena::prefetch_line;
pub use cache::{Cache, CacheConfig, CacheWorker, Cooling, Eviction, FreeFrame, Resolved};
pub use cooling_map::{CoolingFifo, CoolingMap};
pub use error::{CacheError, Conflict, NoFrame, Result};
pub use expel::Expelled;
pub use frame::{FrameRef, Mark, NodeShape, Pin};
pub use gate::{Gate, Inside};
pub use latch::{ExclusiveGuard, FrameState, HybridLatch, SharedGuard, Version};
pub use mapping_table::{CommonTicket, IoTicket, Lookup, MappingTable};
pub use rank::Ranker;
pub use stats::{CacheCounters, CacheCounts};
pub use swip::{FrameId, Swip};
pub use turn::{Turn, TurnPlace};
pub use writing::Writing;
