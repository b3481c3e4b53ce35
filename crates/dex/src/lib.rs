//! DEX: a B+-tree for disaggregated memory.
//!
//! After *DEX: Scalable Range Indexing on Disaggregated Memory*. Nodes live in the memory pool; each compute
//! server has a [`Tree`], a view of the index through its own page cache. The key space is divided among
//! compute servers ([`KeyRange`], §4). All nodes except a few inner ones, whose keys cross a boundary, belong
//! to one compute server and need no synchronisation with others.
//!
//! Invariants, checked by [`audit`]: the fences of children partition the fences of their parent; every key
//! lies in its leaf's fences; levels decrease by one; a clean frame equals its remote copy; no node is leaked
//! or reachable twice; the nodes of a subtree rooted at level M lie on one memory server, unless that was
//! full; each leaf belongs to exactly one compute server.
//!
//! Every single-key operation is linearizable. A scan returns each key that was present throughout the scan
//! exactly once, no key that was absent throughout, and all keys in order.
#![forbid(unsafe_code)]

// Lets helpers that unit tests share with integration tests name this crate as those do.
#[cfg(test)]
extern crate self as pando_dex;

pub mod audit;
mod bulk;
mod change;
mod costs;
mod descent;
mod drain;
mod error;
pub mod layout;
mod migrate;
mod node;
mod offload;
mod ops;
mod ownership;
mod placement;
pub mod plain;
mod recovery;
mod redo;
mod shared;
mod smo;
#[cfg(test)]
mod testing;
mod tree;

pub use bulk::{BulkLoad, SortedSource};
pub use costs::Offloading;
pub use descent::optimistic::ResumePoint;
pub use drain::{Drained, drain};
pub use error::{DexError, Result};
pub use layout::Toward;
pub use migrate::acquire::{is_taking_over, take_over};
pub use migrate::release::{Flushed, Leaving, begin_leave};
pub use migrate::transfer::{Moved, Party, flush_side_by_side, move_keys};
pub use offload::MemorySide;
pub use ops::multi_get::Answers;
pub use ops::point::Swapped;
pub use ownership::load::Load;
pub use ownership::range::{KeyRange, partition_of};
pub use ownership::rebalancer as balancer;
pub use ownership::routing::{Detour, Router, Routes, RoutingTable};
pub use ownership::scan_range::{ScanRange, Scanned};
pub use pando_fabric::OffloadPolicy;
pub use placement::spread::{placement_level, spread_all};
pub use recovery::drained::forget_drained;
pub use redo::{Redone, give_back_locks, mark_linked, redo};
pub use smo::split::cut_at;
pub use tree::journal::{LOG_PER_CACHE_BYTE, LOG_SEGMENTS_MIN};
pub use tree::{Ctx, Tree, TreeConfig};
