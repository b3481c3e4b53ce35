//! Threads as the cluster sees them: which of their slots are ready, when they can be polled, and their queue pairs.
//!
//! A thread is polled when it has a ready slot and is done with what it computed before. A queue pair has so many READs and
//! atomics outstanding; more wait for one to complete.

use std::collections::VecDeque;

use pando_fabric::Nanos;

use crate::op::OpId;

/// One thread of a compute server.
#[derive(Default)]
pub(crate) struct Worker {
    pub compute_server: usize,
    /// Its number among the threads of its server.
    pub core: u32,
    pub ready: u64,
    /// Its number in [`SimFabric::run`](crate::SimFabric::run), which polls its slots. If it is in none, whoever drives it
    /// looks at the bits.
    pub thread: Option<u32>,
    pub is_scheduled: bool,
    /// The slot that goes on before all others.
    next: Option<u32>,
    last: u32,
    pub free_at: Nanos,
    /// How long it has computed, or waited for others of its server.
    pub computed: Nanos,
    /// How long it has waited for others of its server.
    pub contended: Nanos,
    /// One for each memory server.
    pub queue_pairs: Vec<QueuePair>,
}

/// The way from one thread to one memory server.
#[derive(Default)]
pub(crate) struct QueuePair {
    /// READs and atomics that are not answered yet.
    pub outstanding: u32,
    /// Operations that wait until there are fewer, and those behind them.
    pub waiting: VecDeque<OpId>,
}

impl Worker {
    pub fn new(compute_server: usize, core: u32, servers: usize, now: Nanos) -> Self {
        let queue_pairs = (0..servers).map(|_| QueuePair::default()).collect();
        Self { compute_server, core, free_at: now, queue_pairs, ..Self::default() }
    }

    /// A memory server joined.
    pub fn add_server(&mut self) {
        self.queue_pairs.push(QueuePair::default());
    }

    /// Begins or ends to be a thread of a run.
    pub fn drive(&mut self, thread: Option<u32>, now: Nanos) {
        (self.thread, self.free_at) = (thread, now);
        (self.ready, self.is_scheduled, self.next, self.last) = (0, false, None, u64::BITS - 1);
    }

    /// Takes one ready slot: the one that goes on, or the next after the last one.
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

    /// It polled a slot until `free_at`, and these became ready meanwhile; `next` goes on first.
    #[inline]
    pub fn polled(&mut self, free_at: Nanos, ready: u64, next: Option<u32>) {
        self.free_at = free_at;
        self.ready |= ready | next.map_or(0, |slot| 1 << slot);
        self.next = next;
    }
}
