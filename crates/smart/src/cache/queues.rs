//! Eviction of cached nodes when the cache is full.
//!
//! As published, there is one FIFO queue and one budget, which DEX measured to take half of a processor's
//! time (DEX §8.2). `Scalable` splits both into shares by the hash of a node's address, and gives a node that
//! was used since its last turn a second chance.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use pando_fabric::{Endpoint, Resource, Work};
use std::sync::atomic::Ordering::Relaxed;

use super::Unit;
use crate::layout::mix;
use crate::options::CachePolicy;

/// Number of queues of a scalable cache, each for at least `QUEUE_BYTES_MIN` bytes.
const QUEUES: usize = 64;
const QUEUE_BYTES_MIN: u64 = 64 << 10;
/// Second chances granted before a unit must be evicted.
const CHANCES: usize = 16;

/// Words that all threads of the published code change: the bytes that are left, and the ends of two queues
/// without locks, of cached nodes and of nodes that were evicted and wait until no reader can have them.
const BYTES: Resource = Resource::Word(0);
const NEWEST: Resource = Resource::Word(1);
const OLDEST: Resource = Resource::Word(2);
const LAST_RETIRED: Resource = Resource::Word(3);
const FIRST_RETIRED: Resource = Resource::Word(4);

/// What the published code does with these words for a node that enters the cache, ...
const ADMISSION: [Work; 3] = [Work::Hold(BYTES), Work::Hold(NEWEST), Work::Observe(BYTES)];
/// ... and for a node that leaves it.
const EVICTION: [Work; 9] = [
    Work::Observe(OLDEST),
    Work::Hold(OLDEST),
    Work::Hold(BYTES),
    Work::Hold(LAST_RETIRED),
    Work::Observe(FIRST_RETIRED),
    Work::Hold(FIRST_RETIRED),
    Work::Observe(NEWEST),
    Work::Observe(OLDEST),
    Work::Observe(BYTES),
];

#[derive(Default)]
struct Queue {
    /// Units that were replaced or forgotten are dead, and stay until they reach the front.
    units: VecDeque<Weak<Unit>>,
    /// Bytes of the units that are in the index.
    bytes: u64,
}

pub(super) struct Queues {
    policy: CachePolicy,
    queues: Box<[Mutex<Queue>]>,
    queue_bytes_max: u64,
}

impl Queues {
    pub fn new(bytes_max: u64, policy: CachePolicy) -> Self {
        let queues = match policy {
            CachePolicy::Fifo => 1,
            CachePolicy::Scalable => (bytes_max / QUEUE_BYTES_MIN).clamp(1, QUEUES as u64),
        };
        let queue_bytes_max = bytes_max / queues;
        Self { policy, queues: (0..queues).map(|_| Mutex::default()).collect(), queue_bytes_max }
    }

    fn number(&self, unit: &Unit) -> usize {
        mix(unit.addr.raw()) as usize % self.queues.len()
    }

    fn queue(&self, number: usize) -> MutexGuard<'_, Queue> {
        self.queues[number].lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn bytes(&self) -> u64 {
        (0..self.queues.len()).map(|number| self.queue(number).bytes).sum()
    }

    fn charge<E: Endpoint>(&self, ep: &E, number: usize, published: &[Work]) {
        match self.policy {
            CachePolicy::Fifo => published.iter().for_each(|&work| ep.charge(work)),
            CachePolicy::Scalable => ep.charge(Work::Hold(Resource::CoolingBucket(number as u32))),
        }
    }

    /// Adds a unit that was just stored in the index in place of `before`. While the queue is too long, calls
    /// `evict`, which removes a unit from the index and returns whether it was there.
    pub fn push<E: Endpoint>(
        &self,
        ep: &E,
        unit: Arc<Unit>,
        before: Option<&Unit>,
        mut evict: impl FnMut(&Unit) -> bool,
    ) {
        if let Some(before) = before {
            self.forget(before);
        }
        let number = self.number(&unit);
        self.charge(ep, number, &ADMISSION);
        let mut queue = self.queue(number);
        queue.bytes += unit.bytes();
        queue.units.push_back(Arc::downgrade(&unit));
        drop(unit);
        let mut chances = if self.policy == CachePolicy::Scalable { CHANCES } else { 0 };
        let is_long = |queue: &Queue| queue.units.len() as u64 * 64 > self.queue_bytes_max.max(1 << 16);
        while queue.bytes > self.queue_bytes_max || is_long(&queue) {
            let Some(oldest) = queue.units.pop_front() else { return };
            let Some(oldest) = oldest.upgrade() else { continue };
            if chances > 0 && oldest.is_used.swap(0, Relaxed) != 0 {
                chances -= 1;
                queue.units.push_back(Arc::downgrade(&oldest));
            } else if evict(&oldest) {
                queue.bytes -= oldest.bytes();
                self.charge(ep, number, &EVICTION);
            }
        }
    }

    /// Accounts for a unit that left the index.
    pub fn forget(&self, unit: &Unit) {
        let mut queue = self.queue(self.number(unit));
        queue.bytes = queue.bytes.saturating_sub(unit.bytes());
    }
}
