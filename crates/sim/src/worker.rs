//! The cluster's view of threads: their ready slots, the time at which they can be polled, and their queue
//! pairs.
//!
//! A thread is polled when it has a ready slot and has finished its previous computation. A queue pair has a
//! limited number of READs and atomics in flight; further ones wait for a completion.

use std::collections::VecDeque;

use pando_fabric::Nanos;

use crate::op::OpId;

/// One thread of a compute server.
#[derive(Default)]
pub(crate) struct Worker {
    pub compute_server: usize,
    /// Number of the thread within its server.
    pub core: u32,
    pub ready: u64,
    /// Number of the thread in [`SimFabric::run`](crate::SimFabric::run), which polls its slots; `None`
    /// outside of a run, where the executor reads the bits.
    pub thread: Option<u32>,
    pub is_scheduled: bool,
    /// The slot that is polled before all others.
    next: Option<u32>,
    last: u32,
    /// Time at which the current computation ends.
    pub free_at: Nanos,
    /// Total time of computation, including waits for other threads of the server.
    pub computed: Nanos,
    /// Total wait for other threads of the server.
    pub contended: Nanos,
    pub queue_pairs: QueuePairs,
}

/// Connections of one thread to all memory servers. A large cluster has tens of millions of connections, of which a
/// thread uses a few at any moment: only these are stored, and found by looking at all of them.
#[derive(Default)]
pub(crate) struct QueuePairs {
    in_use: Vec<QueuePair>,
}

/// Connection of one thread to one memory server, in use.
struct QueuePair {
    server: usize,
    /// READs and atomics in flight.
    outstanding: u32,
    /// Operations that wait for the limit, and those behind them.
    waiting: VecDeque<OpId>,
}

impl QueuePair {
    /// Whether `credits` more READs and atomics exceed the limit. One operation alone never does.
    fn is_full(&self, credits: u32, limit: u32) -> bool {
        self.outstanding > 0 && self.outstanding + credits > limit && credits > 0
    }
}

impl QueuePairs {
    #[inline]
    fn place(&self, server: usize) -> Option<usize> {
        self.in_use.iter().position(|pair| pair.server == server)
    }

    /// Adds an operation. Returns whether it can be sent; otherwise it waits for the ones before it.
    #[inline]
    pub fn enter(&mut self, server: usize, id: OpId, credits: u32, limit: u32) -> bool {
        let Some(place) = self.place(server) else {
            if credits > 0 {
                self.in_use.push(QueuePair { server, outstanding: credits, waiting: VecDeque::new() });
            }
            return true;
        };
        let pair = &mut self.in_use[place];
        if pair.is_full(credits, limit) || !pair.waiting.is_empty() {
            pair.waiting.push_back(id);
            return false;
        }
        pair.outstanding += credits;
        true
    }

    /// Returns the credits of a completed operation.
    #[inline]
    pub fn give_back(&mut self, server: usize, credits: u32) {
        let Some(place) = self.place(server) else { return };
        let pair = &mut self.in_use[place];
        pair.outstanding -= credits;
        if pair.outstanding == 0 && pair.waiting.is_empty() {
            self.in_use.swap_remove(place);
        }
    }

    /// Takes the first waiting operation if it can be sent. `credits_of` gives the credits of an operation.
    #[inline]
    pub fn take_next(
        &mut self,
        server: usize,
        limit: u32,
        credits_of: impl FnOnce(OpId) -> u32,
    ) -> Option<OpId> {
        let place = self.place(server)?;
        let pair = &mut self.in_use[place];
        let next = *pair.waiting.front()?;
        let credits = credits_of(next);
        if pair.is_full(credits, limit) {
            return None;
        }
        pair.waiting.pop_front();
        pair.outstanding += credits;
        if pair.outstanding == 0 && pair.waiting.is_empty() {
            self.in_use.swap_remove(place);
        }
        Some(next)
    }
}

impl Worker {
    pub fn new(compute_server: usize, core: u32, now: Nanos) -> Self {
        Self { compute_server, core, free_at: now, ..Self::default() }
    }

    /// Makes the worker a thread of a run, or ends that.
    pub fn drive(&mut self, thread: Option<u32>, now: Nanos) {
        (self.thread, self.free_at) = (thread, now);
        (self.ready, self.is_scheduled, self.next, self.last) = (0, false, None, u64::BITS - 1);
    }

    /// Takes one ready slot: the one that must continue, or the next one after the last.
    #[inline]
    pub fn take_slot(&mut self) -> Option<u32> {
        self.is_scheduled = false;
        let slot = match self.next.take() {
            Some(slot) => slot,
            None => {
                let after = self.ready & u64::MAX.checked_shl(self.last + 1).unwrap_or(0);
                let candidates = if after != 0 { after } else { self.ready };
                (candidates != 0).then(|| candidates.trailing_zeros())?
            }
        };
        self.ready &= !(1 << slot);
        self.last = slot;
        Some(slot)
    }

    /// Records a poll that lasted until `free_at` and made the slots `ready` ready; `next` is polled first.
    #[inline]
    pub fn polled(&mut self, free_at: Nanos, ready: u64, next: Option<u32>) {
        self.free_at = free_at;
        self.ready |= ready | next.map_or(0, |slot| 1 << slot);
        self.next = next;
    }
}
