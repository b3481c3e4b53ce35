//! Sherman and FG: B-link trees over one-sided verbs, with a switch for each published technique.
//!
//! Nodes lie on the memory servers. Readers take no locks. Writers lock one node at a time by a remote lock;
//! every node has fences and a right neighbour, which lead concurrent readers on. Sources: *Sherman: A
//! Write-Optimized Distributed B+Tree Index on Disaggregated Memory*, and the fine-grained design of
//! *Designing Distributed Tree-based Index Structures for Fast RDMA-capable Networks* (FG).

#![forbid(unsafe_code)]

mod access;
mod anchor;
mod audit;
mod bulk;
mod change;
mod check;
pub mod defect;
mod error;
mod index_cache;
mod lock;
mod merge;
mod node;
mod options;
mod own;
mod scan;
mod shape;
mod split;
mod tree;
mod waiting;

pub use audit::Audit;
pub use bulk::{FILL, Fill};
pub use error::{Result, ShermanError};
pub use options::{HAND_OVER, LeafFormat, LockPlace, Options, ReadCheck, Release, TABLE_LOCKS};
pub use own::OwnKeys;
pub use scan::ScanRange;
pub use shape::{KEY_MAX, Shape};
pub use tree::{Config, Counts, Sherman};
