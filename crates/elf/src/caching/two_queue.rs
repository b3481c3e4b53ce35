//! 2Q as the paper uses it (DAPD 2022 §4.2): a list is cached when it is read for the second time.
//!
//! Queue A1 holds the numbers of lists that were read once, queue AM the cached lists. A list in neither enters
//! A1 and is read from persistent memory; one in A1 is copied and moves to AM. Both queues drop what was not
//! used for the longest time. A list that leaves AM is forgotten; it does not return to A1.

use super::chain::{Chain, Links};
use super::lru::Lru;
use super::table::Table;
use super::{ListId, Newcomer, Policy, Slot};

/// Caches a list at its second reading and evicts the least recently read one.
#[derive(Clone, Debug)]
pub struct TwoQueue {
    a1: A1,
    am: Lru,
}

impl TwoQueue {
    /// Remembers up to `lists` lists in A1, at most 2^32 - 2. The paper does not say how many; as many as AM holds
    /// is a start.
    pub fn new(lists: usize) -> Self {
        let a1 = A1 {
            capacity: lists.min(u32::MAX as usize - 1),
            table: Table::new(1),
            lists: Vec::new(),
            free: Vec::new(),
            links: Links::default(),
            order: Chain::default(),
        };
        Self { a1, am: Lru::default() }
    }
}

/// Lists that were read once. A list leaves at its next reading, so the least recently used one is the oldest.
#[derive(Clone, Debug)]
struct A1 {
    capacity: usize,
    /// Place in `lists` of each list in the queue.
    table: Table,
    lists: Vec<ListId>,
    /// Places that are not in use.
    free: Vec<u32>,
    links: Links,
    order: Chain,
}

impl A1 {
    /// Removes `list` and tells whether it was here.
    fn take(&mut self, list: ListId) -> bool {
        let Some(place) = self.table.remove(list) else { return false };
        self.links.remove(&mut self.order, place);
        self.free.push(place);
        true
    }

    fn push(&mut self, list: ListId) {
        let Some(place) = self.vacate() else { return };
        self.lists[place as usize] = list;
        self.table.insert(list, place);
        self.links.push_back(&mut self.order, place);
    }

    /// A place that is not in use, if need be that of the oldest list. There is none without a capacity.
    fn vacate(&mut self) -> Option<u32> {
        if let Some(place) = self.free.pop() {
            return Some(place);
        }
        if self.lists.len() < self.capacity {
            self.lists.push(ListId(0));
            return Some(self.lists.len() as u32 - 1);
        }
        let oldest = self.links.pop_front(&mut self.order)?;
        self.table.remove(self.lists[oldest as usize]);
        Some(oldest)
    }
}

impl Policy for TwoQueue {
    fn hit(&mut self, slot: Slot) {
        self.am.hit(slot);
    }

    fn nominates(&mut self, list: ListId) -> bool {
        let was_read = self.a1.take(list);
        if !was_read {
            self.a1.push(list);
        }
        was_read
    }

    fn evict(&mut self, newcomer: &Newcomer<'_>) -> Option<Slot> {
        self.am.evict(newcomer)
    }

    fn insert(&mut self, slot: Slot, newcomer: &Newcomer<'_>) {
        self.am.insert(slot, newcomer);
    }
}
