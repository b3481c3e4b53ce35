//! The index cache (Sherman §4.1): copies of inner nodes in a compute server's memory.
//!
//! Kept are the nodes above the leaves, as many as there is room for, and the top two levels. Copies are found by their upper fence, in
//! a lock-free skip list. They may be older than the nodes: fences tell whoever READs a node by one that it was led astray,
//! and then the copy is dropped. Of two that are drawn at random the one that was used less makes room.

use std::ops::Bound;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crossbeam_skiplist::SkipMap;
use pando_fabric::GlobalAddr;

use crate::node::{Fences, Node};
use crate::shape::{Key, Shape};

/// The copy of one inner node.
pub(crate) struct Copy {
    place: Place,
    words: Box<[AtomicU64]>,
    hits: AtomicU32,
    /// Where it is among those that may make room.
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
    /// Copies of nodes above the leaves.
    slots: Box<[Mutex<Option<Arc<Copy>>>]>,
    free: Mutex<Vec<usize>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl IndexCache {
    /// A cache of so many bytes; at least of two nodes.
    pub fn new(bytes: u64, shape: &Shape) -> Self {
        // A copy, its entry in the list and its slot.
        let each = shape.node_size() + 2 * size_of::<Copy>() + size_of::<Mutex<Option<Arc<Copy>>>>();
        let count = (bytes / each as u64).max(2) as usize;
        let slots = (0..count).map(|_| Mutex::default()).collect();
        Self { copies: SkipMap::new(), slots, free: Mutex::new((0..count).rev().collect()) }
    }

    /// The copy of a node of `level` that has the key between its fences.
    pub fn find(&self, shape: &Shape, level: u8, key: &Key) -> Option<Arc<Copy>> {
        let entry = self.copies.lower_bound(Bound::Excluded(&(level, Upper::Key(*key))))?;
        let copy = entry.value();
        if copy.place.0 != level || copy.node(shape).is_below(key) {
            return None;
        }
        copy.hits.fetch_add(1, Relaxed);
        Some(Arc::clone(copy))
    }

    /// Takes a copy of a node. Those of the lowest inner level may make room for one another.
    pub fn insert(&self, node: &Node<'_>, random: u64) {
        let level = node.level();
        let place = (level, node.high().map_or(Upper::Infinite, Upper::Key));
        let before = self.copies.get(&place).and_then(|entry| entry.value().slot);
        let slot = (level == 1).then(|| before.unwrap_or_else(|| self.slot(random)));
        let words = node.words().iter().map(|word| AtomicU64::new(word.load(Relaxed))).collect();
        let copy = Arc::new(Copy { place, words, hits: AtomicU32::new(0), slot });
        if let Some(slot) = slot {
            let before = lock(&self.slots[slot]).replace(Arc::clone(&copy));
            // Another one may have come to that slot meanwhile.
            before.into_iter().filter(|before| before.place != place).for_each(|before| self.remove(&before));
        }
        self.copies.insert(place, copy);
    }

    /// A slot that is free, or that of the less used of two.
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

    /// Drops a copy that led astray.
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

    /// Copies of nodes above the leaves.
    pub fn len(&self) -> usize {
        self.slots.len() - lock(&self.free).len()
    }
}

/// The address of the child on the way to `key`, and its fences as far as the node knows.
pub(crate) fn child_of(node: &Node<'_>, key: &Key) -> Option<(GlobalAddr, Fences)> {
    let i = node.child_index(key);
    node.child(i).map(|child| (child, node.child_fences(i)))
}
