//! The index cache (Sherman §4.2): copies of inner nodes in a compute server's memory.
//!
//! The cache keeps the top two levels, and as many of the nodes above the leaves as fit. A lock-free skip
//! list finds copies by their upper fence. Copies may be older than the nodes: a reader that a stale copy led
//! to a wrong node sees that from the node's fences, and drops the copy. If the cache is full, it draws two
//! copies at random and evicts the less used one.

use std::ops::Bound;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crossbeam_skiplist::SkipMap;
use pando_fabric::GlobalAddr;

use crate::node::{Fences, Node};
use crate::shape::{Key, Shape};

/// Copy of one inner node.
pub(crate) struct Copy {
    place: Place,
    words: Box<[AtomicU64]>,
    hits: AtomicU32,
    /// Its position among the evictable copies.
    slot: Option<usize>,
}

/// Copies are ordered by level and upper fence.
type Place = (u8, Upper);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Upper {
    Key(Key),
    Infinite,
}

impl Copy {
    pub fn node<'c>(&'c self, shape: &'c Shape) -> Node<'c> {
        Node::new(shape, &self.words)
    }
}

pub(crate) struct IndexCache {
    copies: SkipMap<Place, Arc<Copy>>,
    /// Copies of nodes just above the leaves.
    slots: Box<[Mutex<Option<Arc<Copy>>>]>,
    free: Mutex<Vec<usize>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl IndexCache {
    /// Creates a cache of `bytes` bytes, but for at least two nodes.
    pub fn new(bytes: u64, shape: &Shape) -> Self {
        // A copy, its list entry and its slot.
        let each = shape.node_size() + 2 * size_of::<Copy>() + size_of::<Mutex<Option<Arc<Copy>>>>();
        let count = (bytes / each as u64).max(2) as usize;
        let slots = (0..count).map(|_| Mutex::default()).collect();
        Self { copies: SkipMap::new(), slots, free: Mutex::new((0..count).rev().collect()) }
    }

    /// Finds the copy of the node of `level` whose fences contain the key.
    pub fn find(&self, shape: &Shape, level: u8, key: &Key) -> Option<Arc<Copy>> {
        let entry = self.copies.lower_bound(Bound::Excluded(&(level, Upper::Key(*key))))?;
        let copy = entry.value();
        if copy.place.0 != level || copy.node(shape).is_below(key) {
            return None;
        }
        copy.hits.fetch_add(1, Relaxed);
        Some(Arc::clone(copy))
    }

    /// Stores a copy of a node. Copies of the lowest inner level may evict one another.
    pub fn insert(&self, node: &Node<'_>, random: u64) {
        let level = node.level();
        let place = (level, node.high().map_or(Upper::Infinite, Upper::Key));
        let before = self.copies.get(&place).and_then(|entry| entry.value().slot);
        let slot = (level == 1).then(|| before.unwrap_or_else(|| self.slot(random)));
        let words = node.words().iter().map(|word| AtomicU64::new(word.load(Relaxed))).collect();
        let copy = Arc::new(Copy { place, words, hits: AtomicU32::new(0), slot });
        if let Some(slot) = slot {
            let before = lock(&self.slots[slot]).replace(Arc::clone(&copy));
            // Another copy may have taken that slot meanwhile.
            before.into_iter().filter(|before| before.place != place).for_each(|before| self.remove(&before));
        }
        self.copies.insert(place, copy);
    }

    /// Returns a free slot, or the slot of the less used of two copies.
    fn slot(&self, random: u64) -> usize {
        if let Some(slot) = lock(&self.free).pop() {
            return slot;
        }
        let count = self.slots.len() as u64;
        let drawn = [(random >> 32) % count, (random & 0xffff_ffff) % count].map(|slot| slot as usize);
        let hits = |slot: usize| lock(&self.slots[slot]).as_ref().map_or(0, |copy| copy.hits.load(Relaxed));
        let victim = if hits(drawn[0]) <= hits(drawn[1]) { drawn[0] } else { drawn[1] };
        let copy = lock(&self.slots[victim]).take();
        copy.into_iter().for_each(|copy| self.remove(&copy));
        victim
    }

    /// Drops a stale copy.
    pub fn drop_copy(&self, copy: &Arc<Copy>) {
        self.remove(copy);
        let Some(slot) = copy.slot else { return };
        let mut held = lock(&self.slots[slot]);
        if held.as_ref().is_some_and(|held| Arc::ptr_eq(held, copy)) {
            *held = None;
            drop(held);
            lock(&self.free).push(slot);
        }
    }

    fn remove(&self, copy: &Arc<Copy>) {
        if let Some(entry) = self.copies.get(&copy.place)
            && Arc::ptr_eq(entry.value(), copy)
        {
            entry.remove();
        }
    }

    /// Number of cached nodes just above the leaves.
    pub fn len(&self) -> usize {
        self.slots.len() - lock(&self.free).len()
    }
}

/// Address of the child on the path to `key`, and its fences as far as the node knows them.
pub(crate) fn child_of(node: &Node<'_>, key: &Key) -> Option<(GlobalAddr, Fences)> {
    let i = node.child_index(key);
    node.child(i).map(|child| (child, node.child_fences(i)))
}
