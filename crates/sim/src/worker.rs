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
    /// One per memory server.
    pub queue_pairs: Vec<QueuePair>,
}

/// Connection of one thread to one memory server.
#[derive(Default)]
pub(crate) struct QueuePair {
    /// READs and atomics in flight.
    pub outstanding: u32,
    /// Operations that wait for the limit, and those behind them.
    pub waiting: VecDeque<OpId>,
}

impl Worker {
    pub fn new(compute_server: usize, core: u32, servers: usize, now: Nanos) -> Self {
        let queue_pairs = (0..servers).map(|_| QueuePair::default()).collect();
        Self { compute_server, core, free_at: now, queue_pairs, ..Self::default() }
    }

    /// Adds the queue pair of a new memory server.
    pub fn add_server(&mut self) {
        self.queue_pairs.push(QueuePair::default());
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
