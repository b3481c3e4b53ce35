//! concurrent-map: a lock-free B+ tree whose writers copy nodes.
//!
//! Each thread has its own handle, as the map requires. A single thread uses the only handle, which spares
//! the map its copies. A handle is made when a session begins and is not measured.

use crate::{OrderedMap, Session};
use concurrent_map::ConcurrentMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

pub struct LockFreeBTree(Mutex<ConcurrentMap<u64, u64>>);

pub enum Handle<'a> {
    Only(MutexGuard<'a, ConcurrentMap<u64, u64>>),
    Own(Box<ConcurrentMap<u64, u64>>),
}

impl OrderedMap for LockFreeBTree {
    type Session<'a> = Handle<'a>;

    fn load(pairs: &[(u64, u64)], _sorted: bool) -> anyhow::Result<Self> {
        let map = ConcurrentMap::default();
        for &(key, value) in pairs {
            map.insert(key, value);
        }
        Ok(LockFreeBTree(Mutex::new(map)))
    }

    fn session(&self, threads: usize) -> Handle<'_> {
        let only = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if threads == 1 { Handle::Only(only) } else { Handle::Own(Box::new(only.clone())) }
    }
}

impl Handle<'_> {
    fn map(&self) -> &ConcurrentMap<u64, u64> {
        match self {
            Handle::Only(map) => map,
            Handle::Own(map) => map,
        }
    }
}

impl Session for Handle<'_> {
    fn get(&mut self, key: u64) -> Option<u64> {
        self.map().get(&key)
    }

    fn update(&mut self, key: u64, value: u64) -> bool {
        self.map().insert(key, value).is_some()
    }

    fn scan(&mut self, start: u64, len: usize) -> (usize, u64) {
        let values = self.map().range(start..).take(len).map(|(_, value)| value);
        values.fold((0, 0), |(count, sum), value| (count + 1, sum.wrapping_add(value)))
    }
}
