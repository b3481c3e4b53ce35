//! State of spreading an index over its memory servers.
//!
//! Each compute server moves one subtree at a time, and one worker at a time continues the move.
//! [`spread`](crate::placement::spread) decides which subtrees move, and when.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pando_fabric::MemoryServerId;

/// A subtree that is moving.
#[derive(Clone, Debug)]
pub(crate) struct Move {
    /// Key up to which all nodes have moved.
    pub cursor: Vec<u8>,
    /// End of the subtree or of this compute server's keys; `None` is the end of all keys.
    pub end: Option<Vec<u8>>,
    /// Level of its root.
    pub level: u8,
    pub target: MemoryServerId,
}

/// Moves of a compute server.
#[derive(Debug, Default)]
pub(crate) struct Spread(Mutex<State>);

#[derive(Debug, Default)]
pub(crate) struct State {
    pub moving: Option<Move>,
    /// A worker is moving nodes.
    pub is_busy: bool,
    /// Key at which the search for the next subtree begins.
    pub next: Vec<u8>,
    pub splits: u32,
}

impl Spread {
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The right to continue the move; dropping it gives the right back.
pub(crate) struct Busy<'t>(pub &'t Spread);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.state().is_busy = false;
    }
}
