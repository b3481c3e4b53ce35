//! Locks of nodes: remote ones, in nodes or in tables, with local queues in front, and what becomes of them when their holder
//! fails.
//!
//! - `word.rs`: lock words, and what they say; `nonces.rs`: what tells those of one process apart.
//! - `queues.rs`: the threads of one compute server in front of a lock, and hand-over.
//! - `held.rs`: locks that an operation holds, and the order of writes and releases.
//! - `unfinished.rs`: what an operation left that failed halfway.
//! - `repair.rs`: what a process left that died.

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
