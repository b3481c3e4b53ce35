//! DEX: a B+-tree for disaggregated memory.
//!
//! After *DEX: Scalable Range Indexing on Disaggregated Memory*. Nodes live in the memory pool; each compute server
//! has a [`Tree`], a view of the index through its own page cache. The key space is divided among compute servers
//! ([`KeyRange`], §4), so that all nodes but a few inner ones, those whose keys cross a boundary, belong to one
//! compute server and need no synchronisation with others.
//!
//! Invariants, checked by [`audit`]: the fences of children partition the fences of their parent; every key lies in
//! its leaf's fences; levels decrease by one; a clean frame equals its remote copy; no node is leaked or reachable
//! twice; the nodes of a subtree rooted at level M stand on one memory server, unless that was full; each leaf
//! belongs to exactly one compute server.
//!
//! Every single-key operation is linearizable. A scan returns every key that was present throughout it and none that
//! was absent throughout it, in order, each once.
#![forbid(unsafe_code)]

// For what integration tests and unit tests share.
#[cfg(test)]
extern crate self as pando_dex;

pub mod audit;
mod balance;
pub mod balancer;
mod batch;
mod bulk;
mod cached;
mod change;
mod cut;
mod drain;
mod error;
mod fetch_many;
mod hand_over;
pub mod layout;
mod load;
mod locked;
mod merge;
mod node;
mod offload;
mod orphaned;
mod ownership;
mod partition;
pub mod plain;
mod point;
mod read_ahead;
mod relocate;
mod repartition;
mod routing;
mod scan;
mod shared;
mod smo;
mod spread;
mod take_over;
#[cfg(test)]
mod testing;
mod tree;
mod tries;
mod unfinished;
mod walk;

pub use batch::Answers;
pub use bulk::{BulkLoad, SortedSource};
pub use drain::Drained;
pub use error::{DexError, Result};
pub use hand_over::{Flushed, Leaving};
pub use layout::Toward;
pub use load::Load;
pub use offload::{MemorySide, OffloadPolicy, Offloading};
pub use partition::{KeyRange, partition_of};
pub use point::Swapped;
pub use repartition::{Moved, Party, flush_side_by_side, move_keys};
pub use routing::{Detour, Router, Routes, RoutingTable};
pub use scan::{ScanRange, Scanned};
pub use spread::placement_level;
pub use tree::{Ctx, Tree, TreeConfig};
