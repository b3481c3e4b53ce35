//! Locks of nodes: remote ones, in nodes or in tables, with local queues in front, and their recovery after a
//! failure of the holder.
//!
//! - `word.rs`: lock words; `nonces.rs`: numbers that distinguish the locks of one process.
//! - `queues.rs`: queues of one compute server's threads in front of locks, and hand-over.
//! - `held.rs`: locks held by an operation, and the order of writes and releases.
//! - `unfinished.rs`: leftovers of operations that failed halfway.
//! - `repair.rs`: locks of dead processes.

mod held;
mod nonces;
mod queues;
mod repair;
mod unfinished;
mod word;

pub(crate) use held::{Got, Held};
pub(crate) use nonces::Nonces;
pub(crate) use queues::Queues;
pub(crate) use unfinished::Unfinished;
pub(crate) use word::{LockWord, node_number};
