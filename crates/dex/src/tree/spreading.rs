//! The state of spreading an index over its memory servers.
//!
//! There is one move of a subtree at a time for each compute server, and one worker at a time that goes on with it.
//! Which subtrees move, and when, says [`spread`](crate::placement::spread).

use std::sync::{Mutex, MutexGuard, PoisonError};

use pando_fabric::MemoryServerId;

/// A subtree that moves.
#[derive(Clone, Debug)]
pub(crate) struct Move {
    /// Up to here everything has moved.
    pub cursor: Vec<u8>,
    /// Where the subtree ends, or this compute server's keys do; `None` is the end of all keys.
    pub end: Option<Vec<u8>>,
    /// Level of its root.
    pub level: u8,
    pub target: MemoryServerId,
}

/// What a compute server is moving.
#[derive(Debug, Default)]
pub(crate) struct Spread(Mutex<State>);

#[derive(Debug, Default)]
pub(crate) struct State {
    pub moving: Option<Move>,
    /// Somebody moves nodes just now.
    pub is_busy: bool,
    /// Where to look for the next subtree.
    pub next: Vec<u8>,
    pub splits: u32,
}

impl Spread {
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Somebody may go on with the move when it goes.
pub(crate) struct Busy<'t>(pub &'t Spread);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.state().is_busy = false;
    }
}
