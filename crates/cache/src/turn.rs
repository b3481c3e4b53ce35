//! Turns: progress for every operation when a cache has too few frames for all.
//!
//! An operation holds few frames at a time: pins on a node and its parent, and a frame to fill. Alone it
//! succeeds with the minimum number of frames, at any tree height. Many operations together may hold all
//! frames, each waiting for one more. An operation that gets no frame then releases everything it holds and
//! waits for the *turn*, of which a cache has one. While an operation has the turn, no other gets a frame or
//! pins a node, so the frames of the others come free as their verbs complete.

use crate::cache::{Cache, CacheWorker};
use crate::error::NoFrame;

/// Right of one operation to be the only one of its cache that gets frames.
#[must_use]
pub struct Turn<'c> {
    cache: &'c Cache,
    worker: CacheWorker,
}

/// A place in the queue for the turn of a cache. Its holder polls, or gives the place up by dropping it.
#[must_use]
pub struct TurnPlace<'c> {
    cache: &'c Cache,
    ticket: u64,
}

impl Cache {
    /// Takes the turn, if it is free and not reserved for a waiter. The operation continues with
    /// [`Turn::worker`] instead of `worker`.
    pub fn try_turn(&self, worker: &CacheWorker) -> Option<Turn<'_>> {
        self.turns.take(None).then(|| Turn::new(self, worker))
    }

    /// Joins the end of the queue for the turn.
    pub fn wait_for_turn(&self) -> TurnPlace<'_> {
        TurnPlace { cache: self, ticket: self.turns.join() }
    }

    /// Whether an operation has the turn.
    pub fn turn_is_taken(&self) -> bool {
        self.turns.is_taken()
    }

    /// Number of turns that have ended, from which waiters see that others make progress.
    pub fn turns_ended(&self) -> u64 {
        self.turns.ended()
    }

    /// Must be called before taking a frame or pinning a node across an await.
    ///
    /// # Errors
    /// [`NoFrame::GiveWay`] if another operation has the turn.
    pub fn give_way(&self, worker: &CacheWorker) -> Result<(), NoFrame> {
        if self.turns.is_taken() && !worker.in_turn { Err(NoFrame::GiveWay) } else { Ok(()) }
    }
}

impl<'c> TurnPlace<'c> {
    /// As [`Cache::try_turn`], with the priority of this place.
    pub fn try_turn(&self, worker: &CacheWorker) -> Option<Turn<'c>> {
        self.cache.turns.take(Some(self.ticket)).then(|| Turn::new(self.cache, worker))
    }
}

impl Drop for TurnPlace<'_> {
    fn drop(&mut self) {
        self.cache.turns.leave(self.ticket);
    }
}

impl CacheWorker {
    /// Whether this is the [`Turn::worker`] of a turn.
    pub fn has_turn(&self) -> bool {
        self.in_turn
    }
}

impl<'c> Turn<'c> {
    fn new(cache: &'c Cache, worker: &CacheWorker) -> Self {
        Self { cache, worker: worker.for_turn() }
    }

    /// The worker that took the turn, for use during the turn.
    pub fn worker(&self) -> &CacheWorker {
        &self.worker
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.cache.retire(&self.worker);
        self.cache.turns.end();
    }
}
