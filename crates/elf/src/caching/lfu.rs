//! Least frequently used: the list that was read least often since it was cached leaves (DAPD 2022 §4.2).
//!
//! Lists with the same number of readings form a group, and groups are chained by that number, so that a reading
//! moves a list to the next group and the first group has the victim: constant time, without a heap. Within
//! a group the list that joined it first leaves first. Counts end with the stay in the cache.

use super::chain::{Chain, Links};
use super::{Newcomer, Policy, Slot};

/// Lists that were read equally often. A group is never empty while it is chained.
#[derive(Clone, Debug)]
struct Group {
    readings: u64,
    members: Chain,
}

/// Evicts the list with the fewest readings.
#[derive(Clone, Debug, Default)]
pub struct Lfu {
    /// Group of each slot.
    group: Vec<u32>,
    members: Links,
    groups: Vec<Group>,
    free: Vec<u32>,
    by_readings: Chain,
    order: Links,
}

impl Lfu {
    /// Moves `slot`, which is in no group, to the one with `readings`, which is `before`'s successor or will be.
    fn join(&mut self, slot: Slot, before: Option<u32>, readings: u64) {
        let next = match before {
            Some(before) => self.order.next(before),
            None => self.by_readings.first(),
        };
        let number = match next.filter(|&next| self.groups[next as usize].readings == readings) {
            Some(next) => next,
            None => self.open(before, readings),
        };
        if self.group.len() <= slot as usize {
            self.group.resize(slot as usize + 1, 0);
        }
        self.group[slot as usize] = number;
        self.members.push_back(&mut self.groups[number as usize].members, slot);
    }

    fn open(&mut self, before: Option<u32>, readings: u64) -> u32 {
        let group = Group { readings, members: Chain::default() };
        let number = self.free.pop().unwrap_or(self.groups.len() as u32);
        match self.groups.get_mut(number as usize) {
            Some(free) => *free = group,
            None => self.groups.push(group),
        }
        self.order.insert_after(&mut self.by_readings, before, number);
        number
    }

    fn close_if_empty(&mut self, number: u32) {
        if self.groups[number as usize].members.is_empty() {
            self.order.remove(&mut self.by_readings, number);
            self.free.push(number);
        }
    }
}

impl Policy for Lfu {
    fn hit(&mut self, slot: Slot) {
        let number = self.group[slot as usize];
        let group = &mut self.groups[number as usize];
        self.members.remove(&mut group.members, slot);
        let readings = group.readings + 1;
        self.join(slot, Some(number), readings);
        self.close_if_empty(number);
    }

    fn evict(&mut self, _newcomer: &Newcomer<'_>) -> Option<Slot> {
        let number = self.by_readings.first()?;
        let slot = self.members.pop_front(&mut self.groups[number as usize].members);
        self.close_if_empty(number);
        slot
    }

    fn insert(&mut self, slot: Slot, _newcomer: &Newcomer<'_>) {
        self.join(slot, None, 1);
    }
}
