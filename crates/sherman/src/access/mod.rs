//! READs and locks of nodes. They belong together: a reader that finds a lock of a dead process repairs what
//! that process left, for which it READs and locks nodes.
//!
//! - `read.rs`: consistent READs of nodes, and the search for a node.
//! - `held.rs`: locks held by an operation, and the order of writes and releases.
//! - `unfinished.rs`: leftovers of operations that failed halfway.
//! - `repair.rs`: locks of dead processes.

mod held;
mod read;
mod repair;
mod unfinished;

pub(crate) use held::{Got, Held};
pub(crate) use read::{Belongs, Locked, Reader};
