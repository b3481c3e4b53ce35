//! congee: an adaptive radix tree with optimistic lock coupling.
//!
//! It is no B-tree, and hard to beat on dense integers; its figures show by how much. A session pins the
//! epoch once per batch, not per operation.

use crate::{OrderedMap, Session};
use anyhow::anyhow;
use congee::Congee;
use congee::epoch::Guard;

pub struct CongeeMap(Congee<usize, usize>);

pub struct CongeeSession<'a> {
    tree: &'a Congee<usize, usize>,
    guard: Guard,
    /// Records found by scans.
    found: Vec<(usize, usize)>,
}

impl OrderedMap for CongeeMap {
    type Session<'a> = CongeeSession<'a>;

    fn load(pairs: &[(u64, u64)], _sorted: bool) -> anyhow::Result<Self> {
        let tree = Congee::default();
        let guard = tree.pin();
        for &(key, value) in pairs {
            tree.insert(key as usize, value as usize, &guard).map_err(|_| anyhow!("out of memory"))?;
        }
        drop(guard);
        Ok(CongeeMap(tree))
    }

    fn session(&self, _threads: usize) -> CongeeSession<'_> {
        CongeeSession { tree: &self.0, guard: self.0.pin(), found: Vec::new() }
    }
}

impl Session for CongeeSession<'_> {
    fn get(&mut self, key: u64) -> Option<u64> {
        self.tree.get(&(key as usize), &self.guard).map(|value| value as u64)
    }

    fn update(&mut self, key: u64, value: u64) -> bool {
        self.tree.compute_if_present(&(key as usize), |_| Some(value as usize), &self.guard).is_some()
    }

    fn scan(&mut self, start: u64, len: usize) -> (usize, u64) {
        self.found.resize(len, (0, 0));
        let count = self.tree.range(&(start as usize), &usize::MAX, &mut self.found, &self.guard);
        let values = self.found[..count].iter().map(|(_, value)| *value as u64);
        (count, values.fold(0, u64::wrapping_add))
    }

    fn refresh(&mut self) {
        self.guard.repin();
    }
}
