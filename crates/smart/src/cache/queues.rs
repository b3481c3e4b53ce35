//! Which cached nodes go when there is no room for another one.
//!
//! As published there is one queue for all, first in first out, and one budget: what DEX measured to take half of a
//! processor's time (DEX §8.2). `Scalable` cuts both into shares, found by the hash of a node's address, and lets a node that
//! was used since it was last looked at go through its queue once more.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use pando_fabric::{Endpoint, Resource, Work};
use std::sync::atomic::Ordering::Relaxed;

use super::Unit;
use crate::layout::mix;
use crate::options::CachePolicy;

/// Queues of a scalable cache, each of at least so many bytes.
const QUEUES: usize = 64;
const QUEUE_BYTES_MIN: u64 = 64 << 10;
/// Units that get a second chance before one must go.
const CHANCES: usize = 16;

#[derive(Default)]
struct Queue {
    /// Those that were replaced or forgotten are dead, and stay until they come to the front.
    units: VecDeque<Weak<Unit>>,
    /// Of the units that are in the index.
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

    fn charge<E: Endpoint>(&self, ep: &E, number: usize) {
        ep.charge(Work::Hold(match self.policy {
            CachePolicy::Fifo => Resource::FifoQueue,
            CachePolicy::Scalable => Resource::CoolingBucket(number as u32),
        }));
    }

    /// A unit is in the index now, in the place of `before`. While there are too many, `evict` takes others out of the index and says
    /// whether they were in it.
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
        self.charge(ep, number);
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
                self.charge(ep, number);
            }
        }
    }

    /// A unit is out of the index.
    pub fn forget(&self, unit: &Unit) {
        let mut queue = self.queue(self.number(unit));
        queue.bytes = queue.bytes.saturating_sub(unit.bytes());
    }
}
