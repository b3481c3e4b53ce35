//! crossbeam's skip list, through the interface that takes a guard.
//!
//! That interface avoids the reference counts of `SkipMap`. Entries never move, so values are atomics that
//! are changed in place, and an update is a lookup and a store.

use crate::{OrderedMap, Session};
use crossbeam_epoch::Guard;
use crossbeam_skiplist::base;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};

type List = base::SkipList<u64, AtomicU64>;

pub struct SkipList(List);

pub struct SkipSession<'a> {
    list: &'a List,
    guard: Guard,
}

impl OrderedMap for SkipList {
    type Session<'a> = SkipSession<'a>;

    fn load(pairs: &[(u64, u64)], _sorted: bool) -> anyhow::Result<Self> {
        let list = List::new(crossbeam_epoch::default_collector().clone());
        let guard = crossbeam_epoch::pin();
        for &(key, value) in pairs {
            list.insert(key, AtomicU64::new(value), &guard).release(&guard);
        }
        drop(guard);
        Ok(SkipList(list))
    }

    fn session(&self, _threads: usize) -> SkipSession<'_> {
        SkipSession { list: &self.0, guard: crossbeam_epoch::pin() }
    }
}

impl Session for SkipSession<'_> {
    fn get(&mut self, key: u64) -> Option<u64> {
        self.list.get(&key, &self.guard).map(|entry| entry.value().load(Ordering::Acquire))
    }

    fn update(&mut self, key: u64, value: u64) -> bool {
        let entry = self.list.get(&key, &self.guard);
        entry.map(|entry| entry.value().store(value, Ordering::Release)).is_some()
    }

    fn scan(&mut self, start: u64, len: usize) -> (usize, u64) {
        let (mut count, mut sum) = (0, 0u64);
        let mut entry = self.list.lower_bound(Bound::Included(&start), &self.guard);
        while let Some(here) = &mut entry {
            sum = sum.wrapping_add(here.value().load(Ordering::Acquire));
            count += 1;
            if count == len || !here.move_next() {
                break;
            }
        }
        (count, sum)
    }

    fn refresh(&mut self) {
        self.guard.repin();
    }
}
