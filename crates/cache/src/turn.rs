//! Turns: progress for every operation when a cache has too few frames for all.
//!
//! An operation holds few frames at a time: pins on a node and its parent, and a frame to fill. Alone it
//! succeeds with the minimum number of frames, at any tree height. Many operations together may hold all
//! frames, each waiting for one more. An operation that gets no frame then releases everything it holds and
//! waits for the *turn*, of which a cache has one. While an operation has the turn, no other gets a frame or
//! pins a node, so the frames of the others come free as their verbs complete.
//!
//! A free turn goes to the first operation that asks, but every eighth goes to the longest waiter. So a
//! thread serves several of its operations between two context switches, and no operation starves.

use std::collections::VecDeque;

use crate::cache::{Cache, CacheWorker, lock};
use crate::error::NoFrame;
use crate::sync::{AtomicU32, AtomicU64, Mutex, Ordering};

/// Turns in a row that may be taken ahead of the longest waiter.
const TURNS_BEFORE_OLDEST: u32 = 7;

/// The turn of a cache, and the operations that wait for it.
pub(crate) struct Turns {
    /// Whether the turn is taken. Changed only under the lock of `queue`.
    taken: AtomicU32,
    queue: Mutex<Queue>,
    /// Number of turns that ended.
    ended: AtomicU64,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<u64>,
    /// Ticket of the next waiter.
    ticket: u64,
    /// Turns since the longest waiter got one.
    since_oldest: u32,
}

impl Turns {
    pub(crate) fn new() -> Self {
        Self { taken: AtomicU32::new(0), queue: Mutex::new(Queue::default()), ended: AtomicU64::new(0) }
    }

    fn is_taken(&self) -> bool {
        self.taken.load(Ordering::Relaxed) != 0
    }

    /// Takes the turn if it is free and not reserved for a ticket other than `ticket`.
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
        // The turn guards no data: frames change hands through the free list and their latches.
        self.taken.store(1, Ordering::Relaxed);
        true
    }

    fn end(&self) {
        self.ended.fetch_add(1, Ordering::Relaxed);
        let _queue = lock(&self.queue);
        self.taken.store(0, Ordering::Relaxed);
    }
}

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

    /// Number of turns that have ended, from which waiters see that others make progress.
    pub fn turns_ended(&self) -> u64 {
        self.turns.ended.load(Ordering::Relaxed)
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
