//! masstree: a trie of B+ trees over byte strings.
//!
//! An 8-byte key takes one layer, so the map is a single B+ tree here. Keys are stored in big-endian, so that
//! they sort as numbers. A session holds one guard per batch of operations.

use crate::{OrderedMap, Session};
use masstree::{MassTree, RangeBound};

pub struct Masstree(MassTree<u64>);

pub struct MasstreeSession<'a> {
    tree: &'a MassTree<u64>,
    guard: seize::LocalGuard<'a>,
}

impl OrderedMap for Masstree {
    type Session<'a> = MasstreeSession<'a>;

    fn load(pairs: &[(u64, u64)], _sorted: bool) -> anyhow::Result<Self> {
        let tree = MassTree::new();
        let guard = tree.guard();
        for &(key, value) in pairs {
            tree.insert_with_guard(&key.to_be_bytes(), value, &guard);
        }
        drop(guard);
        Ok(Masstree(tree))
    }

    fn session(&self, _threads: usize) -> MasstreeSession<'_> {
        MasstreeSession { tree: &self.0, guard: self.0.guard() }
    }
}

impl Session for MasstreeSession<'_> {
    fn get(&mut self, key: u64) -> Option<u64> {
        self.tree.get_with_guard(&key.to_be_bytes(), &self.guard)
    }

    fn update(&mut self, key: u64, value: u64) -> bool {
        self.tree.insert_with_guard(&key.to_be_bytes(), value, &self.guard).is_some()
    }

    fn scan(&mut self, start: u64, len: usize) -> (usize, u64) {
        let (mut count, mut sum) = (0, 0u64);
        let add = |value: u64| {
            count += 1;
            sum = sum.wrapping_add(value);
            count < len
        };
        self.tree.scan_values(
            RangeBound::Included(&start.to_be_bytes()),
            RangeBound::Unbounded,
            add,
            &self.guard,
        );
        (count, sum)
    }

    fn refresh(&mut self) {
        self.guard = self.tree.guard();
    }
}
