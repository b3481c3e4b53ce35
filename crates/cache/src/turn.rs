//! Turns: how a cache that is crowded with operations lets each of them through.
//!
//! An operation holds few frames at a time: pins on a node and its parent, a frame that it fills. Alone it comes
//! through with the least number of frames, whatever the height of the tree. Many at once may hold all frames, each
//! waiting for one more. An operation that cannot get a frame then lets go of all that it holds and waits for the
//! *turn*, of which a cache has one. While somebody has it, nobody else gets a frame or pins a node, so that what the
//! others hold comes free as their verbs complete.

use crate::cache::{Cache, CacheWorker};
use crate::error::NoFrame;
use crate::sync::{AtomicU32, Ordering};

/// Whether somebody has the turn of a cache.
pub(crate) struct TurnFlag(AtomicU32);

impl TurnFlag {
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    fn is_taken(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }
}

/// The right of one operation to be the only one of its cache that gets frames.
#[must_use]
pub struct Turn<'c> {
    cache: &'c Cache,
    worker: CacheWorker,
}

impl Cache {
    /// The turn, if nobody has it. The operation goes on with [`Turn::worker`] in place of `worker`.
    pub fn try_turn(&self, worker: &CacheWorker) -> Option<Turn<'_>> {
        let flag = &self.turn.0;
        // It guards no data: frames change hands through the free list and their latches.
        let free = flag.compare_exchange(0, 1, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        // Lazily: a value that is made only to be dropped would end the turn of another.
        free.then(|| Turn { cache: self, worker: worker.for_turn() })
    }

    /// Whether an operation has the turn.
    pub fn turn_is_taken(&self) -> bool {
        self.turn.is_taken()
    }

    /// To be asked before a frame is wanted or a node is pinned over an await.
    ///
    /// # Errors
    /// [`NoFrame::GiveWay`] if another operation has the turn.
    pub fn give_way(&self, worker: &CacheWorker) -> Result<(), NoFrame> {
        if self.turn.is_taken() && !worker.in_turn { Err(NoFrame::GiveWay) } else { Ok(()) }
    }
}

impl CacheWorker {
    /// Whether this is the [`Turn::worker`] of a turn.
    pub fn has_turn(&self) -> bool {
        self.in_turn
    }
}

impl Turn<'_> {
    /// The worker that took the turn, as far as this turn is concerned.
    pub fn worker(&self) -> &CacheWorker {
        &self.worker
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.cache.retire(&self.worker);
        self.cache.turn.0.store(0, Ordering::Relaxed);
    }
}
