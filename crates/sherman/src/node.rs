//! Nodes as words in a buffer: accessors and changes.
//!
//! A writer holds the node's lock, changes a copy and seals it: version and checks are updated. A reader
//! verifies a node before it uses any of it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use pando_fabric::GlobalAddr;
use pando_fabric::defect::defect;

use crate::check::{Sum, Verdict};
use crate::defect::Defect;
use crate::options::ReadCheck;
use crate::shape::{ADDR, CHECK, Key, LEFTMOST, LOCK, META, SIBLING, Shape};

/// The low fence is infinite.
const LOW_INFINITE: u64 = 1;
const HIGH_INFINITE: u64 = 2;
/// The node is gone; its sibling word points to its heir.
const GONE: u64 = 4;

/// A slot of an unsorted leaf holds an entry.
const OCCUPIED: u64 = 1;

/// Low and high fence; `None` is infinite.
#[derive(Default)]
pub(crate) struct Fences {
    pub low: Option<Key>,
    pub high: Option<Key>,
}

/// A node in a buffer.
#[derive(Clone, Copy)]
pub(crate) struct Node<'p> {
    shape: &'p Shape,
    words: &'p [AtomicU64],
}

/// Properties of a new node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Init {
    pub addr: GlobalAddr,
    pub index: u16,
    pub level: u8,
    pub low: Option<Key>,
    pub high: Option<Key>,
    pub sibling: Option<GlobalAddr>,
    /// Version before the first seal.
    pub version: u16,
}

/// Result of searching a leaf for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Find {
    /// In this slot.
    Hit(usize),
    Miss,
    /// The READ mixed two states.
    Torn,
}

impl<'p> Node<'p> {
    pub fn new(shape: &'p Shape, words: &'p [AtomicU64]) -> Self {
        debug_assert!(words.len() >= shape.node_words());
        Self { shape, words: &words[..shape.node_words()] }
    }

    pub fn words(&self) -> &'p [AtomicU64] {
        self.words
    }

    #[inline]
    fn get(&self, word: usize) -> u64 {
        self.words[word].load(Relaxed)
    }

    #[inline]
    fn set(&self, word: usize, value: u64) {
        self.words[word].store(value, Relaxed);
    }

    /// Turns the words into a new, empty, unsealed node.
    pub fn init(&self, init: &Init) {
        self.words.iter().for_each(|word| word.store(0, Relaxed));
        self.set(ADDR, init.addr.raw());
        let infinite = |fence: Option<Key>, bit| if fence.is_none() { bit } else { 0 };
        let flags = infinite(init.low, LOW_INFINITE) | infinite(init.high, HIGH_INFINITE);
        let meta = u64::from(init.level) << 56 | flags << 48 | u64::from(init.version) << 32;
        self.set(META, meta | u64::from(init.index));
        self.set(SIBLING, init.sibling.map_or(0, GlobalAddr::raw));
        self.store_key(self.shape.low(), init.low.as_ref());
        self.store_key(self.shape.high(), init.high.as_ref());
    }

    fn store_key(&self, at: usize, key: Option<&Key>) {
        if let Some(key) = key {
            key.words().iter().enumerate().for_each(|(i, &word)| self.set(at + i, word));
        }
    }

    fn load_key(&self, at: usize) -> Key {
        Key::from_words((at..at + self.shape.key_words()).map(|word| self.get(word)))
    }

    pub fn addr(&self) -> u64 {
        self.get(ADDR)
    }

    pub fn level(&self) -> u8 {
        (self.get(META) >> 56) as u8
    }

    pub fn index(&self) -> u16 {
        self.get(META) as u16
    }

    fn flags(&self) -> u64 {
        self.get(META) >> 48 & 0xff
    }

    fn set_flags(&self, flags: u64) {
        self.set(META, self.get(META) & !(0xff << 48) | flags << 48);
    }

    pub fn version(&self) -> u16 {
        (self.get(META) >> 32) as u16
    }

    /// Number of entries of a sorted leaf, or of separators of an inner node.
    pub fn count(&self) -> usize {
        usize::from((self.get(META) >> 16) as u16)
    }

    fn set_count(&self, count: usize) {
        self.set(META, self.get(META) & !(0xffff << 16) | (count as u64) << 16);
    }

    pub fn is_gone(&self) -> bool {
        self.flags() & GONE != 0
    }

    pub fn sibling(&self) -> Option<GlobalAddr> {
        GlobalAddr::from_raw(self.get(SIBLING)).filter(|addr| !addr.is_null())
    }

    /// The low fence; `None` is infinite.
    pub fn low(&self) -> Option<Key> {
        (self.flags() & LOW_INFINITE == 0).then(|| self.load_key(self.shape.low()))
    }

    /// The high fence; `None` is infinite.
    pub fn high(&self) -> Option<Key> {
        (self.flags() & HIGH_INFINITE == 0).then(|| self.load_key(self.shape.high()))
    }

    pub fn fences(&self) -> Fences {
        Fences { low: self.low(), high: self.high() }
    }

    /// Whether `key` is below the low fence.
    pub fn is_below(&self, key: &Key) -> bool {
        self.flags() & LOW_INFINITE == 0 && self.compare(self.shape.low(), key).is_gt()
    }

    /// Whether `key` is at or above the high fence, so that the search continues at the sibling.
    pub fn is_beyond(&self, key: &Key) -> bool {
        self.flags() & HIGH_INFINITE == 0 && self.compare(self.shape.high(), key).is_le()
    }

    /// Whether `key` belongs to this node.
    pub fn covers(&self, key: &Key) -> bool {
        !self.is_gone() && !self.is_below(key) && !self.is_beyond(key)
    }

    /// Compares the key at a word with `key`.
    #[inline]
    fn compare(&self, at: usize, key: &Key) -> std::cmp::Ordering {
        let words = self.words[at..].iter().map(|word| word.load(Relaxed));
        words
            .zip(key.words())
            .map(|(word, other)| word.cmp(other))
            .find(|order| order.is_ne())
            .unwrap_or(std::cmp::Ordering::Equal)
    }

    // Inner nodes.

    /// Index of the child on the path to `key`, counted from the leftmost.
    pub fn child_index(&self, key: &Key) -> usize {
        let (mut low, mut high) = (0, self.count());
        while low < high {
            let middle = usize::midpoint(low, high);
            match self.compare(self.shape.separator(middle), key).is_le() {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        low
    }

    pub fn child(&self, i: usize) -> Option<GlobalAddr> {
        GlobalAddr::from_raw(self.get(self.shape.child(i))).filter(|addr| !addr.is_null())
    }

    /// Fences of child `i`, as far as this node knows them.
    pub fn child_fences(&self, i: usize) -> Fences {
        let low = i.checked_sub(1).map_or_else(|| self.low(), |before| Some(self.separator(before)));
        let high = if i < self.count() { Some(self.separator(i)) } else { self.high() };
        Fences { low, high }
    }

    pub fn separator(&self, i: usize) -> Key {
        self.load_key(self.shape.separator(i))
    }

    pub fn set_leftmost(&self, child: GlobalAddr) {
        self.set(LEFTMOST, child.raw());
    }

    pub fn is_full(&self) -> bool {
        self.count() == self.shape.inner_max()
    }

    /// Adds a separator and the child to its right; `false` if there is no room.
    ///
    /// # Panics
    /// If the separator exists already.
    pub fn insert_child(&self, separator: &Key, child: GlobalAddr) -> bool {
        if self.is_full() {
            return false;
        }
        let (at, count) = (self.child_index(separator), self.count());
        assert!(at == 0 || self.separator(at - 1) != *separator, "a separator is added once");
        self.move_words(self.shape.separator(at), self.shape.separator(at + 1), self.shape.separator(count));
        self.store_key(self.shape.separator(at), Some(separator));
        self.set(self.shape.child(at + 1), child.raw());
        self.set_count(count + 1);
        true
    }

    /// Removes separator `i` and the child to its right.
    pub fn remove_child(&self, i: usize) {
        let count = self.count();
        self.move_words(self.shape.separator(i + 1), self.shape.separator(i), self.shape.separator(count));
        self.set_count(count - 1);
    }

    /// Moves the words from `from` up to `end` to `to`.
    fn move_words(&self, from: usize, to: usize, end: usize) {
        let len = end - from;
        if to > from {
            (0..len).rev().for_each(|i| self.set(to + i, self.get(from + i)));
        } else {
            (0..len).for_each(|i| self.set(to + i, self.get(from + i)));
        }
    }
}

// Leaves.
impl<'p> Node<'p> {
    /// Number of slots that may hold entries: all of an unsorted leaf, those in use of a sorted one.
    fn slots(&self) -> usize {
        if self.shape.is_unsorted() { self.shape.leaf_max() } else { self.count() }
    }

    /// Whether the entries are in no particular order.
    pub fn is_unsorted(&self) -> bool {
        self.shape.is_unsorted()
    }

    fn is_occupied(&self, i: usize) -> bool {
        !self.shape.is_unsorted() || self.get(self.shape.leaf_entry(i)) & OCCUPIED != 0
    }

    /// Slots with entries, in no particular order.
    pub fn occupied(&self) -> impl Iterator<Item = usize> {
        let node = *self;
        (0..node.slots()).filter(move |&i| node.is_occupied(i))
    }

    pub fn entries(&self) -> usize {
        self.occupied().count()
    }

    pub fn leaf_key(&self, i: usize) -> Key {
        self.load_key(self.shape.leaf_key(i))
    }

    /// Appends the value of slot `i`.
    pub fn append_value(&self, i: usize, out: &mut Vec<u8>) {
        let end = out.len() + self.shape.value_len();
        let at = self.shape.leaf_value(i);
        let words = at..at + self.shape.value_words();
        words.for_each(|word| out.extend_from_slice(&self.get(word).to_le_bytes()));
        out.truncate(end);
    }

    /// Searches a leaf that [`Node::verify`] found whole for a key.
    pub fn find(&self, key: &Key) -> Find {
        if !self.shape.is_unsorted() {
            return match self.position(key) {
                Ok(i) => Find::Hit(i),
                Err(_) => Find::Miss,
            };
        }
        let first = key.words()[0];
        let is_there = |&i: &usize| {
            let at = self.shape.leaf_key(i);
            self.get(at) == first && self.is_occupied(i) && self.compare(at, key).is_eq()
        };
        match (0..self.slots()).find(is_there) {
            Some(i) if self.slot_verdict(i) == Verdict::Whole => Find::Hit(i),
            Some(_) => Find::Torn,
            None if self.are_slots_whole() => Find::Miss,
            None => Find::Torn,
        }
    }

    /// Position of a key in a sorted leaf, or its insertion point.
    fn position(&self, key: &Key) -> Result<usize, usize> {
        let (mut low, mut high) = (0, self.count());
        while low < high {
            let middle = usize::midpoint(low, high);
            match self.compare(self.shape.leaf_key(middle), key) {
                std::cmp::Ordering::Equal => return Ok(middle),
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        Err(low)
    }

    /// Whether all entries are of one state, as scans require.
    pub fn has_whole_slots(&self) -> bool {
        self.level() > 0 || !self.shape.is_unsorted() || self.are_slots_whole()
    }

    /// Provides a slot for a new entry with this key; `None` if the leaf is full. A sorted leaf makes room.
    pub fn make_slot(&self, key: &Key) -> Option<usize> {
        if self.shape.is_unsorted() {
            return (0..self.slots()).find(|&i| !self.is_occupied(i));
        }
        let count = self.count();
        if count == self.shape.leaf_max() {
            return None;
        }
        let at = self.position(key).unwrap_or_else(|at| at);
        let end = self.shape.leaf_entry(count);
        self.move_words(self.shape.leaf_entry(at), self.shape.leaf_entry(at + 1), end);
        self.set_count(count + 1);
        Some(at)
    }

    /// Stores an entry in slot `i`, and seals the slot.
    pub fn store(&self, i: usize, key: &Key, value: &[u8]) {
        self.store_key(self.shape.leaf_key(i), Some(key));
        self.store_value(i, value);
    }

    /// Stores another value in slot `i`, and seals the slot.
    pub fn store_value(&self, i: usize, value: &[u8]) {
        let at = self.shape.leaf_value(i);
        for (word, chunk) in value.chunks(crate::shape::WORD).enumerate() {
            let mut padded = [0; crate::shape::WORD];
            padded[..chunk.len()].copy_from_slice(chunk);
            self.set(at + word, u64::from_le_bytes(padded));
        }
        self.seal_slot(i, true);
    }

    /// Removes the entry in slot `i`, and seals the slot.
    pub fn remove(&self, i: usize) {
        if self.shape.is_unsorted() {
            return self.seal_slot(i, false);
        }
        let count = self.count();
        self.move_words(self.shape.leaf_entry(i + 1), self.shape.leaf_entry(i), self.shape.leaf_entry(count));
        self.set_count(count - 1);
    }
}

// Checks.
impl<'p> Node<'p> {
    /// Words of slot `i` behind its check.
    fn slot_words(&self, i: usize) -> &'p [AtomicU64] {
        let at = self.shape.leaf_key(i);
        &self.words[at..at + self.shape.key_words() + self.shape.value_words()]
    }

    /// Seed of the slots' checks.
    fn slots_seed(&self) -> u64 {
        self.addr() ^ u64::from(self.version()) << 48
    }

    /// Correct check of a slot.
    #[inline]
    fn slot_check(seed: u64, i: usize, words: &[AtomicU64], is_occupied: bool) -> u64 {
        let sum = Sum::new(seed ^ (i as u64) << 1);
        match is_occupied {
            true => sum.add_all(words).end() | OCCUPIED,
            false => sum.end() & !OCCUPIED,
        }
    }

    /// Whether every slot of an unsorted leaf passes its check.
    fn are_slots_whole(&self) -> bool {
        if self.shape.check() != ReadCheck::Checksum {
            return (0..self.slots()).all(|i| self.slot_verdict(i) == Verdict::Whole);
        }
        let (seed, first) = (self.slots_seed(), self.shape.leaf_entry(0));
        let entries = self.words[first..].chunks_exact(self.shape.leaf_entry_words());
        entries.take(self.slots()).enumerate().all(|(i, entry)| {
            let check = entry[0].load(Relaxed);
            check == Self::slot_check(seed, i, &entry[1..], check & OCCUPIED != 0)
        })
    }

    fn seal_slot(&self, i: usize, is_occupied: bool) {
        if !self.shape.is_unsorted() {
            return;
        }
        let at = self.shape.leaf_entry(i);
        match self.shape.check() {
            ReadCheck::Checksum => {
                let check = Self::slot_check(self.slots_seed(), i, self.slot_words(i), is_occupied);
                self.set(at, check);
            }
            ReadCheck::VersionReads => self.set(at, u64::from(is_occupied)),
            ReadCheck::UnsoundEnds => {
                // The published 4 bits, which wrap around.
                let next = (self.get(at) >> 1).wrapping_add(1) & 0xf;
                self.set(at, next << 1 | u64::from(is_occupied));
                self.set(at + self.shape.leaf_entry_words() - 1, next);
            }
        }
    }

    fn slot_verdict(&self, i: usize) -> Verdict {
        let check = self.get(self.shape.leaf_entry(i));
        match self.shape.check() {
            ReadCheck::Checksum => {
                let is_occupied = check & OCCUPIED != 0;
                let words = self.slot_words(i);
                Verdict::of(check == Self::slot_check(self.slots_seed(), i, words, is_occupied))
            }
            ReadCheck::VersionReads => Verdict::Whole,
            ReadCheck::UnsoundEnds => {
                let rear = self.get(self.shape.leaf_entry(i) + self.shape.leaf_entry_words() - 1);
                Verdict::of(check >> 1 == rear)
            }
        }
    }

    /// Words covered by the node's check: all in use, or the header if slots have checks.
    fn checked_words(&self) -> &'p [AtomicU64] {
        let end = match self.level() {
            0 if self.shape.is_unsorted() => self.shape.leaf_entry(0),
            0 => self.shape.leaf_entry(self.count()),
            _ => self.shape.separator(self.count()),
        };
        &self.words[META..end.min(self.words.len())]
    }

    /// Gives the node its next version and updates its check, and in an unsorted leaf the checks of all
    /// slots.
    pub fn seal(&self) {
        let version = self.version().wrapping_add(1);
        let occupied: Vec<bool> = match self.level() == 0 && self.shape.is_unsorted() {
            true => (0..self.slots()).map(|i| self.is_occupied(i)).collect(),
            false => Vec::new(),
        };
        self.set(META, self.get(META) & !(0xffff << 32) | u64::from(version) << 32);
        occupied.iter().enumerate().for_each(|(i, &is_occupied)| self.seal_slot(i, is_occupied));
        match self.shape.check() {
            ReadCheck::Checksum => self.set(CHECK, self.checksum()),
            ReadCheck::VersionReads => {}
            ReadCheck::UnsoundEnds => {
                self.set(CHECK, u64::from(version & 0xf));
                self.set(self.shape.node_words() - 1, u64::from(version & 0xf));
            }
        }
    }

    /// Whether this is the node of the index at `addr`, and was READ whole. For an unsorted leaf this covers
    /// the header only.
    pub fn verify(&self, addr: GlobalAddr, index: u16) -> Verdict {
        let max = if self.level() == 0 { self.shape.leaf_max() } else { self.shape.inner_max() };
        if self.addr() != addr.raw() || self.index() != index || self.count() > max {
            return Verdict::Torn;
        }
        match self.shape.check() {
            ReadCheck::Checksum => Verdict::of(self.get(CHECK) == self.checksum()),
            ReadCheck::VersionReads => Verdict::Whole,
            ReadCheck::UnsoundEnds => Verdict::of(self.get(CHECK) == self.get(self.shape.node_words() - 1)),
        }
    }

    fn checksum(&self) -> u64 {
        Sum::new(0).add_all(self.checked_words()).end()
    }
}

// Structure changes.
impl<'p> Node<'p> {
    /// Moves the upper half into `right`, a new node, which this initialises; returns the separator. The
    /// caller seals both.
    pub fn split_into(&self, right: &Node<'_>, init: &Init) -> Key {
        let separator =
            if self.level() == 0 { self.split_leaf(right, init) } else { self.split_inner(right, init) };
        self.end_at(&separator, init.addr);
        separator
    }

    /// Sets the high fence to `key`, and the right neighbour to `sibling`. The caller seals the node.
    pub fn end_at(&self, key: &Key, sibling: GlobalAddr) {
        if !defect(Defect::KeepHighFence) {
            self.set_flags(self.flags() & !HIGH_INFINITE);
            self.store_key(self.shape.high(), Some(key));
        }
        self.set(SIBLING, sibling.raw());
    }

    fn right_init(&self, separator: Key, init: &Init) -> Init {
        let (level, index) = (self.level(), self.index());
        Init { level, index, low: Some(separator), high: self.high(), sibling: self.sibling(), ..*init }
    }

    fn split_leaf(&self, right: &Node<'_>, init: &Init) -> Key {
        let mut slots: Vec<(Key, usize)> = self.occupied().map(|i| (self.leaf_key(i), i)).collect();
        slots.sort_unstable();
        let upper = &slots[slots.len() / 2..];
        let separator = upper[0].0;
        right.init(&self.right_init(separator, init));
        for (to, &(key, from)) in upper.iter().enumerate() {
            right.copy_entry(to, &key, self, from);
        }
        if self.shape.is_unsorted() {
            upper.iter().for_each(|&(_, from)| self.remove(from));
        } else {
            right.set_count(upper.len());
            self.set_count(slots.len() - upper.len());
        }
        separator
    }

    fn copy_entry(&self, to: usize, key: &Key, other: &Node<'_>, from: usize) {
        self.store_key(self.shape.leaf_key(to), Some(key));
        for word in 0..self.shape.value_words() {
            self.set(self.shape.leaf_value(to) + word, other.get(self.shape.leaf_value(from) + word));
        }
        self.seal_slot(to, true);
    }

    fn split_inner(&self, right: &Node<'_>, init: &Init) -> Key {
        let (count, middle) = (self.count(), self.count() / 2);
        let separator = self.separator(middle);
        right.init(&self.right_init(separator, init));
        right.set(LEFTMOST, self.get(self.shape.child(middle + 1)));
        let (from, end) = (self.shape.separator(middle + 1), self.shape.separator(count));
        (from..end).enumerate().for_each(|(i, word)| right.set(right.shape.separator(0) + i, self.get(word)));
        right.set_count(count - middle - 1);
        self.set_count(middle);
        separator
    }

    /// Takes over the contents of `right`, its neighbour, with high fence and sibling; `false` if they do not
    /// fit. In an inner node, `separator` goes between the two parts. `right` becomes gone. The caller seals
    /// both.
    pub fn merge_from(&self, right: &Node<'_>, separator: &Key) -> bool {
        let fits = if self.level() == 0 { self.take_leaf(right) } else { self.take_inner(right, separator) };
        if !fits {
            return false;
        }
        let infinite = right.flags() & HIGH_INFINITE;
        self.set_flags(self.flags() & !HIGH_INFINITE | infinite);
        self.store_key(self.shape.high(), right.high().as_ref());
        self.set(SIBLING, right.get(SIBLING));
        right.retire(self.addr());
        true
    }

    /// Turns this into a node that is gone; `heir` is the address of the node with its keys. The caller seals
    /// it.
    pub fn retire(&self, heir: u64) {
        self.words[self.shape.leaf_entry(0)..].iter().for_each(|word| word.store(0, Relaxed));
        self.set_count(0);
        self.set_flags(self.flags() | GONE);
        self.set(SIBLING, heir);
        self.set(LEFTMOST, 0);
    }

    /// Copies another node, except for the words that identify a node, into this new one. The caller seals
    /// it.
    pub fn copy_content(&self, other: &Node<'_>, addr: GlobalAddr, version: u16) {
        self.words.iter().zip(other.words).for_each(|(to, from)| to.store(from.load(Relaxed), Relaxed));
        self.set(LOCK, 0);
        self.set(ADDR, addr.raw());
        self.set(META, self.get(META) & !(0xffff << 32) | u64::from(version) << 32);
    }

    /// Sets the next node of the free list. The caller seals the node.
    pub fn set_next_free(&self, next: u64) {
        self.set(LEFTMOST, next);
    }

    /// Next node of the free list, linked by a word that nodes that are gone do not need otherwise.
    pub fn next_free(&self) -> Option<GlobalAddr> {
        GlobalAddr::from_raw(self.get(LEFTMOST)).filter(|addr| !addr.is_null())
    }

    fn take_leaf(&self, right: &Node<'_>) -> bool {
        if self.entries() + right.entries() > self.shape.leaf_max() {
            return false;
        }
        for from in right.occupied() {
            let key = right.leaf_key(from);
            let to = self.make_slot(&key).expect("there is room for all");
            self.copy_entry(to, &key, right, from);
        }
        true
    }

    fn take_inner(&self, right: &Node<'_>, separator: &Key) -> bool {
        if self.count() + 1 + right.count() > self.shape.inner_max() {
            return false;
        }
        let child = |i| right.child(i).expect("a child has an address");
        self.insert_child(separator, child(0));
        (0..right.count()).for_each(|i| {
            self.insert_child(&right.separator(i), child(i + 1));
        });
        true
    }
}
