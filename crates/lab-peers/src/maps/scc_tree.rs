//! scc's TreeIndex: a B+ tree optimised for reads.
//!
//! Splits move entries, so values cannot be atomics that are changed in place; updates use `upsert`. It does
//! not report whether the key was present, so the measurement checks updates afterwards.

use crate::{OrderedMap, Session};
use scc::tree_index::Proximity;
use scc::{Guard, TreeIndex};

pub struct SccTreeIndex(TreeIndex<u64, u64>);

pub struct SccSession<'a> {
    tree: &'a TreeIndex<u64, u64>,
    guard: Guard,
}

impl OrderedMap for SccTreeIndex {
    type Session<'a> = SccSession<'a>;

    fn load(pairs: &[(u64, u64)], _sorted: bool) -> anyhow::Result<Self> {
        let tree = TreeIndex::new();
        for &(key, value) in pairs {
            tree.upsert_sync(key, value);
        }
        Ok(SccTreeIndex(tree))
    }

    fn session(&self, _threads: usize) -> SccSession<'_> {
        SccSession { tree: &self.0, guard: Guard::new() }
    }
}

impl Session for SccSession<'_> {
    fn get(&mut self, key: u64) -> Option<u64> {
        self.tree.peek(&key, &self.guard).copied()
    }

    fn update(&mut self, key: u64, value: u64) -> bool {
        // `upsert` does not report whether the key was present; see the module header.
        self.tree.upsert_sync(key, value);
        true
    }

    fn scan(&mut self, start: u64, len: usize) -> (usize, u64) {
        let add =
            |(count, sum): (usize, u64), (_, value): (&u64, &u64)| (count + 1, sum.wrapping_add(*value));
        // Iterating from an exact position is a fifth faster than a range (measured).
        match self.tree.locate(&start, &self.guard) {
            Proximity::Exact(rest) => rest.get().into_iter().chain(rest).take(len).fold((0, 0), add),
            _ => self.tree.range(start.., &self.guard).take(len).fold((0, 0), add),
        }
    }

    fn refresh(&mut self) {
        self.guard = Guard::new();
    }
}
