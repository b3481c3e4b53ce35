//! Selective caching: which lists of an Elf on persistent memory have a copy in DRAM (DAPD 2022 §4.2).
//!
//! A [`Cache`] holds copies of DimensionLists in numbered slots and finds them by a hash table in several parts.
//! MonoLists are never cached: each serves one row. A [`Policy`] decides which lists stay; it sees slots and
//! list numbers, never words. All operations of a policy take constant time, but LLA's replacement, which
//! takes logarithmic time. A cache belongs to one searching thread.

mod cache;
mod chain;
mod lfu;
mod lla;
mod lru;
mod naive;
mod table;
mod two_queue;

pub use cache::{Cache, CacheCounters, CacheOptions, Original};
pub use lfu::Lfu;
pub use lla::{Lla, Weights};
pub use lru::Lru;
pub use naive::Naive;
pub use two_queue::TwoQueue;

/// A list, by the word offset of its first entry in the array of its image. The list of level 0 is at 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListId(pub u64);

/// Place of a copy in a cache; numbers of free slots are used again.
pub type Slot = u32;

/// A list that was read, is not cached, and may be.
#[derive(Clone, Copy)]
pub struct Newcomer<'a> {
    pub list: ListId,
    /// Counts the rows below the list, in time proportional to their number.
    pub count_rows: &'a dyn Fn() -> u64,
}

/// Decides which lists a cache holds.
pub trait Policy {
    /// The cached list in `slot` is read.
    fn hit(&mut self, slot: Slot);

    /// Whether a list that is read and not cached is to be cached if there is room. Asked once per reading.
    fn nominates(&mut self, _list: ListId) -> bool {
        true
    }

    /// Drops a list in favour of `newcomer` and returns its slot; `None` refuses the newcomer.
    fn evict(&mut self, newcomer: &Newcomer<'_>) -> Option<Slot>;

    /// `newcomer` is now in `slot`.
    fn insert(&mut self, slot: Slot, newcomer: &Newcomer<'_>);

    /// Takes back the list in a slot, which was evicted for a newcomer that was refused in the end. Only a policy
    /// that refuses some newcomers and evicts lists for others is asked to.
    fn restore(&mut self, _slot: Slot) {}
}

impl<P: Policy + ?Sized> Policy for Box<P> {
    fn hit(&mut self, slot: Slot) {
        (**self).hit(slot);
    }

    fn nominates(&mut self, list: ListId) -> bool {
        (**self).nominates(list)
    }

    fn evict(&mut self, newcomer: &Newcomer<'_>) -> Option<Slot> {
        (**self).evict(newcomer)
    }

    fn insert(&mut self, slot: Slot, newcomer: &Newcomer<'_>) {
        (**self).insert(slot, newcomer);
    }

    fn restore(&mut self, slot: Slot) {
        (**self).restore(slot);
    }
}
