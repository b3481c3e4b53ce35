//! The cache of a compute server: snapshots of inner nodes, found by the bytes of a key (SMART §4.4).
//!
//! `RadixCache` tells where the descent of a key may begin: at the deepest cached node on its path. A cached
//! slot may be stale, which its child reveals; entries missing from a cached node may exist by now. So a
//! cached node only ever shortens the path. Leaves are not cached.
//!
//! `queues.rs` decides about eviction; `index.rs` finds nodes.

mod index;
mod queues;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use pando_fabric::{Endpoint, GlobalAddr, Work};

use crate::epoch::is_recent;
use crate::layout::node::{Node, has_byte};
use crate::layout::slot::Slot;
use crate::options::CachePolicy;
use index::Index;
use queues::Queues;

/// A snapshot of an inner node.
pub(crate) struct Unit {
    pub addr: GlobalAddr,
    /// The common bytes of all keys below; as many as the branch of the node.
    path: Box<[u8]>,
    class: u8,
    /// Epoch pinned by the operation that READ it.
    epoch: u64,
    /// The end slot, then the others.
    slots: Box<[AtomicU64]>,
    /// Whether it was used since eviction last considered it.
    is_used: AtomicU64,
}

/// Bytes of a unit besides path and slots, including its share of the index.
const UNIT_BYTES: usize = 96;

impl Unit {
    fn new(path: &[u8], node: &Node, epoch: u64) -> Self {
        Self {
            addr: node.addr,
            path: path.into(),
            class: node.header.class(),
            epoch,
            slots: node.slots().map(|(_, slot)| AtomicU64::new(slot.raw())).collect(),
            is_used: AtomicU64::new(0),
        }
    }

    fn bytes(&self) -> u64 {
        (UNIT_BYTES + self.path.len() + self.slots.len() * 8) as u64
    }

    fn slot(&self, number: usize) -> Slot {
        Slot::from_raw(self.slots[number].load(Relaxed))
    }

    /// The slot on the path of `key`, if it leads anywhere.
    fn find(&self, key: &[u8]) -> Option<(usize, Slot)> {
        let Some(&byte) = key.get(self.path.len()) else {
            return Some((0, self.slot(0))).filter(|(_, slot)| slot.is_taken());
        };
        let guess = usize::from(byte) + 1;
        let found = match self.slots.len() > guess && has_byte(self.slot(guess), byte) {
            true => Some(guess),
            false => (1..self.slots.len()).find(|&number| has_byte(self.slot(number), byte)),
        };
        found.map(|number| (number, self.slot(number))).filter(|(_, slot)| slot.is_taken())
    }
}

/// Starting point of a descent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hit {
    /// A node on the path of the key.
    pub node: GlobalAddr,
    pub class: u8,
    pub branch: usize,
    /// Number and content of its slot on that path, if the snapshot has one.
    pub slot: Option<(usize, Slot)>,
}

/// Counters of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounts {
    pub admissions: u64,
    pub evictions: u64,
    /// Descents that began at a cached node.
    pub hits: u64,
    /// Descents that began at the root.
    pub misses: u64,
    /// Number of times a child revealed that the cached slot leading to it was stale.
    pub stale: u64,
}

#[derive(Default)]
struct Counters {
    admissions: AtomicU64,
    evictions: AtomicU64,
    hits: AtomicU64,
    misses: AtomicU64,
    stale: AtomicU64,
}

pub(crate) struct RadixCache {
    index: Index,
    queues: Queues,
    bytes_max: u64,
    counters: Counters,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

impl RadixCache {
    pub fn new(bytes_max: u64, policy: CachePolicy) -> Self {
        Self {
            index: Index::default(),
            queues: Queues::new(bytes_max, policy),
            bytes_max,
            counters: Counters::default(),
        }
    }

    pub fn counts(&self) -> CacheCounts {
        let Counters { admissions, evictions, hits, misses, stale } = &self.counters;
        let [admissions, evictions, hits, misses, stale] =
            [admissions, evictions, hits, misses, stale].map(|counter| counter.load(Relaxed));
        CacheCounts { admissions, evictions, hits, misses, stale }
    }

    /// Bytes in use.
    pub fn bytes(&self) -> u64 {
        self.queues.bytes()
    }

    /// The deepest cached node on the path of `key`, for an operation that pinned `epoch`.
    pub fn find<E: Endpoint>(&self, ep: &E, key: &[u8], epoch: u64) -> Option<Hit> {
        let mut hit = None;
        let levels = self.index.walk(key, |unit| {
            if is_recent(unit.epoch, epoch) {
                let (node, class, branch) = (unit.addr, unit.class, unit.path.len());
                hit = Some(Hit { node, class, branch, slot: unit.find(key) });
                if unit.is_used.load(Relaxed) == 0 {
                    unit.is_used.store(1, Relaxed);
                }
            }
        });
        for _ in 0..levels.min(1 << 10) {
            ep.charge(Work::NodeSearch);
        }
        count(if hit.is_some() { &self.counters.hits } else { &self.counters.misses });
        hit
    }

    /// Caches a node that was just READ on the path of a key that begins with `path`.
    pub fn admit<E: Endpoint>(&self, ep: &E, path: &[u8], node: &Node, epoch: u64) {
        if self.bytes_max == 0 || node.slots().any(|(_, slot)| slot.is_frozen()) {
            return;
        }
        let unit = Arc::new(Unit::new(path, node, epoch));
        if unit.bytes() > self.bytes_max {
            return;
        }
        count(&self.counters.admissions);
        ep.charge(Work::Admit);
        let before = self.index.put(&unit);
        self.queues.push(ep, unit, before.as_deref(), |old| {
            let was_current = self.index.remove(old);
            if was_current {
                count(&self.counters.evictions);
                ep.charge(Work::Evict);
            }
            was_current
        });
    }

    /// Records this compute server's change of a slot of `node`, whose branch is byte `branch` of `key`.
    pub fn note(&self, key: &[u8], node: GlobalAddr, branch: usize, number: usize, slot: Slot) {
        self.with_unit(key, node, branch, |unit| match unit.slots.get(number) {
            Some(word) => {
                word.store(slot.raw(), Relaxed);
                true
            }
            None => false,
        });
    }

    /// Drops a node whose slot was found stale by its child, or which is being replaced.
    pub fn forget(&self, key: &[u8], node: GlobalAddr, branch: usize) {
        count(&self.counters.stale);
        self.with_unit(key, node, branch, |_| false);
    }

    /// The slots in the snapshot of a node.
    pub fn slots_of(&self, key: &[u8], node: GlobalAddr, branch: usize) -> Option<Vec<Slot>> {
        let unit = self.index.get(key.get(..branch)?).filter(|unit| unit.addr == node)?;
        Some((0..unit.slots.len()).map(|number| unit.slot(number)).collect())
    }

    /// Passes the unit of a node to `keep`, and drops it unless that returns true.
    fn with_unit(&self, key: &[u8], node: GlobalAddr, branch: usize, keep: impl FnOnce(&Unit) -> bool) {
        let Some(path) = key.get(..branch) else { return };
        let Some(unit) = self.index.get(path).filter(|unit| unit.addr == node) else { return };
        if !keep(&unit) && self.index.remove(&unit) {
            self.queues.forget(&unit);
        }
    }
}
