//! The queue for the turn of a cache.
//!
//! A free turn goes to the first operation that asks, but every eighth goes to the longest waiter. So a
//! thread serves several of its operations between two context switches, and no operation starves.

use std::collections::VecDeque;

use crate::sync::{AtomicU32, AtomicU64, Mutex, Ordering, lock};

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
    pub fn new() -> Self {
        Self { taken: AtomicU32::new(0), queue: Mutex::new(Queue::default()), ended: AtomicU64::new(0) }
    }

    pub fn is_taken(&self) -> bool {
        self.taken.load(Ordering::Relaxed) != 0
    }

    /// Takes the turn if it is free and not reserved for a ticket other than `ticket`.
    pub fn take(&self, ticket: Option<u64>) -> bool {
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

    pub fn end(&self) {
        self.ended.fetch_add(1, Ordering::Relaxed);
        let _queue = lock(&self.queue);
        self.taken.store(0, Ordering::Relaxed);
    }

    pub fn ended(&self) -> u64 {
        self.ended.load(Ordering::Relaxed)
    }

    /// Joins the end of the queue; returns the ticket.
    pub fn join(&self) -> u64 {
        let mut queue = lock(&self.queue);
        let ticket = queue.ticket;
        queue.ticket += 1;
        queue.waiting.push_back(ticket);
        ticket
    }

    pub fn leave(&self, ticket: u64) {
        lock(&self.queue).waiting.retain(|&waiting| waiting != ticket);
    }
}
