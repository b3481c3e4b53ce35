//! Least recently used: the list whose last reading is longest ago leaves (DAPD 2022 §4.2).
//!
//! Slots are chained in the order of their last reading. Every newcomer is admitted, so a walk over many lists
//! that are read once replaces all others.

use super::chain::{Chain, Links};
use super::{Newcomer, Policy, Slot};

/// Evicts the list that was not read for the longest time.
#[derive(Clone, Debug, Default)]
pub struct Lru {
    links: Links,
    /// From the least to the most recently read one.
    order: Chain,
}

impl Policy for Lru {
    fn hit(&mut self, slot: Slot) {
        self.links.remove(&mut self.order, slot);
        self.links.push_back(&mut self.order, slot);
    }

    fn evict(&mut self, _newcomer: &Newcomer<'_>) -> Option<Slot> {
        self.links.pop_front(&mut self.order)
    }

    fn insert(&mut self, slot: Slot, _newcomer: &Newcomer<'_>) {
        self.links.push_back(&mut self.order, slot);
    }
}
