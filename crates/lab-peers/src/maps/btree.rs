//! std's `BTreeMap`: not concurrent, so a lock protects it if there is more than one thread.
//!
//! A single thread takes the lock once for all its operations, so it measures the map without a lock. Records
//! are inserted one by one: collecting would fill every node, unlike in a map that grew.

use crate::{OrderedMap, Session};
use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

pub struct StdBTreeMap(RwLock<BTreeMap<u64, u64>>);

/// A single thread takes the lock once; several threads take it for every operation.
pub enum StdSession<'a> {
    Alone(RwLockWriteGuard<'a, BTreeMap<u64, u64>>),
    Shared(&'a RwLock<BTreeMap<u64, u64>>),
}

impl OrderedMap for StdBTreeMap {
    type Session<'a> = StdSession<'a>;

    fn load(pairs: &[(u64, u64)], _sorted: bool) -> anyhow::Result<Self> {
        let mut map = BTreeMap::new();
        for &(key, value) in pairs {
            map.insert(key, value);
        }
        Ok(StdBTreeMap(RwLock::new(map)))
    }

    fn session(&self, threads: usize) -> StdSession<'_> {
        if threads == 1 { StdSession::Alone(write(&self.0)) } else { StdSession::Shared(&self.0) }
    }
}

impl Session for StdSession<'_> {
    fn get(&mut self, key: u64) -> Option<u64> {
        match self {
            StdSession::Alone(map) => map.get(&key).copied(),
            StdSession::Shared(lock) => read(lock).get(&key).copied(),
        }
    }

    fn update(&mut self, key: u64, value: u64) -> bool {
        let replace = |old: &mut u64| *old = value;
        match self {
            StdSession::Alone(map) => map.get_mut(&key).map(replace).is_some(),
            StdSession::Shared(lock) => write(lock).get_mut(&key).map(replace).is_some(),
        }
    }

    fn scan(&mut self, start: u64, len: usize) -> (usize, u64) {
        match self {
            StdSession::Alone(map) => sum(map, start, len),
            StdSession::Shared(lock) => sum(&read(lock), start, len),
        }
    }
}

fn sum(map: &BTreeMap<u64, u64>, start: u64, len: usize) -> (usize, u64) {
    let values = map.range(start..).take(len).map(|(_, value)| *value);
    values.fold((0, 0), |(count, sum), value| (count + 1, sum.wrapping_add(value)))
}

// Poison is ignored: a panic under the lock has already failed the run.
fn read(lock: &RwLock<BTreeMap<u64, u64>>) -> RwLockReadGuard<'_, BTreeMap<u64, u64>> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write(lock: &RwLock<BTreeMap<u64, u64>>) -> RwLockWriteGuard<'_, BTreeMap<u64, u64>> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}
