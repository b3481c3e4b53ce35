//! Turns: how a cache that is crowded with operations lets each of them through.
//!
//! An operation holds few frames at a time: pins on a node and its parent, a frame that it fills. Alone it comes
//! through with the least number of frames, whatever the height of the tree. Many at once may hold all frames, each
//! waiting for one more. An operation that cannot get a frame then lets go of all that it holds and waits for the
//! *turn*, of which a cache has one. While somebody has it, nobody else gets a frame or pins a node, so that what the
//! others hold comes free as their verbs complete.
//!
//! Whoever asks first gets a turn that is free, except that every eighth goes to the one who has waited longest. A thread
//! so serves several of its own operations between two switches of threads, and nobody waits for ever.

use std::collections::VecDeque;

use crate::cache::{Cache, CacheWorker, lock};
use crate::error::NoFrame;
use crate::sync::{AtomicU32, AtomicU64, Mutex, Ordering};

/// Turns in a row that others may take before the one who has waited longest.
const TURNS_BEFORE_OLDEST: u32 = 7;

/// Who has the turn of a cache, and who waits for it.
pub(crate) struct Turns {
    /// Whether somebody has the turn. Changed under the lock of `queue` only.
    taken: AtomicU32,
    queue: Mutex<Queue>,
    /// Turns that ended.
    ended: AtomicU64,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<u64>,
    /// Ticket of the next who waits.
    ticket: u64,
    /// Turns since the one who had waited longest got one.
    since_oldest: u32,
}

impl Turns {
    pub(crate) fn new() -> Self {
        Self { taken: AtomicU32::new(0), queue: Mutex::new(Queue::default()), ended: AtomicU64::new(0) }
    }

    fn is_taken(&self) -> bool {
        self.taken.load(Ordering::Relaxed) != 0
    }

    /// Takes the turn if it is free and not kept for another than the holder of `ticket`.
    fn take(&self, ticket: Option<u64>) -> bool {
        if self.is_taken() {
            return false;
        }
        let mut queue = lock(&self.queue);
        let is_oldest = queue.waiting.front().is_none_or(|&oldest| Some(oldest) == ticket);
        if self.is_taken() || (!is_oldest && queue.since_oldest >= TURNS_BEFORE_OLDEST) {
            return false;
        }
        queue.since_oldest = if is_oldest { 0 } else { queue.since_oldest + 1 };
        // It guards no data: frames change hands through the free list and their latches.
        self.taken.store(1, Ordering::Relaxed);
        true
    }

    fn end(&self) {
        self.ended.fetch_add(1, Ordering::Relaxed);
        let _queue = lock(&self.queue);
        self.taken.store(0, Ordering::Relaxed);
    }
}

/// The right of one operation to be the only one of its cache that gets frames.
#[must_use]
pub struct Turn<'c> {
    cache: &'c Cache,
    worker: CacheWorker,
}

/// A place among those who wait for the turn of a cache. Whoever has one asks again and again, or gives it up.
#[must_use]
pub struct TurnPlace<'c> {
    cache: &'c Cache,
    ticket: u64,
}

impl Cache {
    /// The turn, if nobody has it or is to have it next. The operation goes on with [`Turn::worker`] in place of
    /// `worker`.
    pub fn try_turn(&self, worker: &CacheWorker) -> Option<Turn<'_>> {
        self.turns.take(None).then(|| Turn::new(self, worker))
    }

    /// The last place among those who wait for the turn.
    pub fn wait_for_turn(&self) -> TurnPlace<'_> {
        let mut queue = lock(&self.turns.queue);
        let ticket = queue.ticket;
        queue.ticket += 1;
        queue.waiting.push_back(ticket);
        TurnPlace { cache: self, ticket }
    }

    /// Whether an operation has the turn.
    pub fn turn_is_taken(&self) -> bool {
        self.turns.is_taken()
    }

    /// How many turns have ended: those who wait see by it that the others come through.
    pub fn turns_ended(&self) -> u64 {
        self.turns.ended.load(Ordering::Relaxed)
    }

    /// To be asked before a frame is wanted or a node is pinned over an await.
    ///
    /// # Errors
    /// [`NoFrame::GiveWay`] if another operation has the turn.
    pub fn give_way(&self, worker: &CacheWorker) -> Result<(), NoFrame> {
        if self.turns.is_taken() && !worker.in_turn { Err(NoFrame::GiveWay) } else { Ok(()) }
    }
}

impl<'c> TurnPlace<'c> {
    /// As [`Cache::try_turn`], with the rights of this place.
    pub fn try_turn(&self, worker: &CacheWorker) -> Option<Turn<'c>> {
        self.cache.turns.take(Some(self.ticket)).then(|| Turn::new(self.cache, worker))
    }
}

impl Drop for TurnPlace<'_> {
    fn drop(&mut self) {
        lock(&self.cache.turns.queue).waiting.retain(|&ticket| ticket != self.ticket);
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

    /// The worker that took the turn, as far as this turn is concerned.
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
