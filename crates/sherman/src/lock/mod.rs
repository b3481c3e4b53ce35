//! Locks of nodes: remote ones, in nodes or in tables, with local queues in front.
//!
//! - `word.rs`: lock words; `nonces.rs`: numbers that distinguish the locks of one process.
//! - `queues.rs`: queues of one compute server's threads in front of locks, and hand-over.
//!
//! How operations take and release them is in `access`.

mod nonces;
mod queues;
mod word;

use pando_fabric::GlobalAddr;

pub(crate) use nonces::Nonces;
pub(crate) use queues::{Queues, Turn, Waiter, Woken};
pub(crate) use word::{LockWord, is_for, node_number, nodes_of};

/// One lock: the place in the local queue, or the remote lock, or both.
#[derive(Clone, Debug)]
pub(crate) struct Lock {
    /// The node for which it is held.
    pub node: GlobalAddr,
    pub queue: Option<GlobalAddr>,
    pub word: Option<LockWord>,
}

/// Words to be written.
#[derive(Clone, Debug)]
pub(crate) struct Write {
    pub at: GlobalAddr,
    pub words: Box<[u64]>,
}

/// Leftovers of one operation.
#[derive(Clone, Debug)]
pub(crate) struct Unfinished {
    pub writes: Vec<Write>,
    pub locks: Vec<Lock>,
}
