//! A node as the tree reads and changes it: its words together with the layout that interprets them.
//!
//! Reading is allowed on pages that other threads may be changing (see [`Layout`]): the caller validates the
//! page's version before it uses an answer. Writing requires exclusive access: the page is latched, locked or
//! private. [`Tree::node`](crate::Tree) makes a node of anything that has its words.

use std::ops::{Deref, Range};

use pando_cache::sync::Word;
use pando_cache::{FrameRef, Swip};
use pando_fabric::{GlobalAddr, PageBuf};
use pando_pool::ValueRef;

use crate::layout::{Layout, NodeInit, Side, Stored, Toward, header};

/// Words of a node and their layout; see the module documentation.
#[derive(Clone, Copy)]
pub(crate) struct Node<'p, L> {
    layout: &'p L,
    words: &'p [Word],
}

/// Target of a descent: the node that covers a key, or the node that covers the largest keys below it.
pub(crate) struct Target<'k, L: Layout> {
    pub key: L::Key<'k>,
    pub toward: Toward,
}

impl<L: Layout> Clone for Target<'_, L> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<L: Layout> Copy for Target<'_, L> {}

impl<'k, L: Layout> Target<'k, L> {
    pub fn new(key: L::Key<'k>, toward: Toward) -> Self {
        Self { key, toward }
    }

    /// The node that covers `key`.
    pub fn of(key: L::Key<'k>) -> Self {
        Self::new(key, Toward::Key)
    }

    /// The node that covers the largest keys below `key`.
    pub fn below(key: L::Key<'k>) -> Self {
        Self::new(key, Toward::Below)
    }
}

/// Access to the words of a node.
pub(crate) trait HasWords<'p> {
    fn words_of(self) -> &'p [Word];
}

impl<'p> HasWords<'p> for &'p [Word] {
    #[inline(always)]
    fn words_of(self) -> &'p [Word] {
        self
    }
}

impl<'p> HasWords<'p> for FrameRef<'p> {
    #[inline(always)]
    fn words_of(self) -> &'p [Word] {
        self.words()
    }
}

impl<'p> HasWords<'p> for &'p PageBuf {
    #[inline(always)]
    fn words_of(self) -> &'p [Word] {
        self.words()
    }
}

/// Bounds of a range of keys, low inclusive, high exclusive, in one allocation; `None` is infinite.
pub(crate) struct Bounds {
    bytes: Vec<u8>,
    /// Offset of the high bound.
    middle: usize,
    has_low: bool,
    has_high: bool,
}

/// Room for two bounds of usual length.
const BOUNDS_BYTES: usize = 64;

impl Bounds {
    /// Bounds that the two functions append; each returns whether its bound is finite.
    fn new(low: impl FnOnce(&mut Vec<u8>) -> bool, high: impl FnOnce(&mut Vec<u8>) -> bool) -> Self {
        let mut bytes = Vec::with_capacity(BOUNDS_BYTES);
        let has_low = low(&mut bytes);
        let middle = bytes.len();
        let has_high = high(&mut bytes);
        Self { bytes, middle, has_low, has_high }
    }

    pub fn low(&self) -> Option<&[u8]> {
        self.has_low.then(|| &self.bytes[..self.middle])
    }

    pub fn high(&self) -> Option<&[u8]> {
        self.has_high.then(|| &self.bytes[self.middle..])
    }
}

impl<'p, L: Layout> Node<'p, L> {
    #[inline(always)]
    pub fn new(layout: &'p L, words: &'p [Word]) -> Self {
        Self { layout, words }
    }

    #[inline(always)]
    pub fn layout(self) -> &'p L {
        self.layout
    }

    #[inline(always)]
    pub fn words(self) -> &'p [Word] {
        self.words
    }

    // Header fields.

    #[inline(always)]
    pub fn level(self) -> u8 {
        header::level(self.words)
    }

    /// The node's own address; `None` if the word is not an address.
    #[inline]
    pub fn addr(self) -> Option<GlobalAddr> {
        GlobalAddr::from_raw(self.raw_addr())
    }

    /// The address word, unchecked.
    #[inline]
    pub fn raw_addr(self) -> u64 {
        header::addr(self.words)
    }

    pub fn is_at(self, addr: GlobalAddr) -> bool {
        self.raw_addr() == addr.raw()
    }

    pub fn index_id(self) -> u32 {
        header::index_id(self.words)
    }

    /// Whether its fences cross a boundary, in the view of the compute server that has this copy.
    #[inline(always)]
    pub fn is_shared(self) -> bool {
        header::has(self.words, header::SHARED)
    }

    /// Whether it was ever shared: other compute servers may remember its address, and its first word is a
    /// lock.
    #[inline]
    pub fn was_shared(self) -> bool {
        header::has(self.words, header::WAS_SHARED)
    }

    /// Whether the node has moved elsewhere, and this is its old copy.
    #[inline]
    pub fn is_moved(self) -> bool {
        header::has(self.words, header::MOVED)
    }

    /// Whether it has the level that its parent promised, and is not the old copy of a moved node.
    #[inline]
    pub fn is_meant(self, level: u8) -> bool {
        self.level() == level && !self.is_moved()
    }

    /// Version of the remote lock word at which this copy of a shared node was read.
    pub fn remote_version(self) -> u64 {
        header::get(self.words, header::REMOTE_VERSION)
    }

    /// Whether an insert at `i` would continue a run of rising inserts; see [`header::continues_run`].
    pub fn continues_run(self, i: usize) -> bool {
        header::continues_run(self.words, i)
    }

    /// [`Node::continues_run`] for a run that filled half of the leaf; see [`header::continues_long_run`].
    pub fn continues_long_run(self, i: usize) -> bool {
        header::continues_long_run(self.words, i)
    }

    // Keys.

    /// Number of entries of a leaf, or of separators of an inner node.
    #[inline(always)]
    pub fn count(self) -> usize {
        self.layout.count(self.words)
    }

    /// Whether the target lies between the fences: `key`, or the largest keys below it.
    #[inline]
    pub fn covers(self, Target { key, toward }: Target<'_, L>) -> bool {
        if toward == Toward::Key {
            return self.layout.covers(self.words, key);
        }
        let (key, fences) = (self.layout.key_bytes(key), self.fences());
        fences.low().is_none_or(|low| low < key) && fences.high().is_none_or(|high| key <= high)
    }

    /// The fences of the node, in one allocation, since every page that is READ is checked by them.
    pub fn fences(self) -> Bounds {
        let append = |side| move |out: &mut Vec<u8>| self.layout.append_fence(self.words, side, out);
        Bounds::new(append(Side::Low), append(Side::High))
    }

    /// A fence of the node; `None` if it is infinite.
    pub fn fence(self, side: Side) -> Option<Vec<u8>> {
        let mut key = Vec::new();
        self.append_fence(side, &mut key).then_some(key)
    }

    /// Appends a fence; `false` if it is infinite.
    #[inline]
    pub fn append_fence(self, side: Side, out: &mut Vec<u8>) -> bool {
        self.layout.append_fence(self.words, side, out)
    }

    /// Key of entry or separator `i`.
    pub fn key_at(self, i: usize) -> Vec<u8> {
        let mut key = Vec::new();
        self.append_key(i, &mut key);
        key
    }

    #[inline]
    pub fn append_key(self, i: usize, out: &mut Vec<u8>) {
        self.layout.append_key(self.words, i, out);
    }

    /// First entry of a leaf that is not below `separator`, or the index of `separator` in an inner node.
    pub fn position(self, separator: &[u8]) -> Option<usize> {
        self.layout.position(self.words, separator)
    }

    // Children.

    /// Index of the child on the path to the target.
    #[inline(always)]
    pub fn child_toward(self, Target { key, toward }: Target<'_, L>) -> usize {
        match toward {
            Toward::Key => self.layout.child_index(self.words, key),
            Toward::Below => self.layout.child_index_below(self.words, key),
        }
    }

    #[inline(always)]
    pub fn child_index(self, key: L::Key<'_>) -> usize {
        self.layout.child_index(self.words, key)
    }

    /// Index of the word of child `i` in the node.
    #[inline(always)]
    pub fn child_word(self, i: usize) -> usize {
        self.layout.child_word(self.words, i)
    }

    #[inline(always)]
    pub fn child(self, i: usize) -> Swip {
        Swip::from_raw(header::get(self.words, self.child_word(i)))
    }

    /// Address of child `i`, unless it is swizzled or missing.
    #[inline]
    pub fn child_addr(self, i: usize) -> Option<GlobalAddr> {
        self.child(i).global().filter(|addr| !addr.is_null())
    }

    /// All children; none for a leaf.
    pub fn children(self) -> impl Iterator<Item = Swip> + use<'p, L> {
        (0..self.layout.child_count(self.words)).map(move |i| self.child(i))
    }

    /// Bounds of child `i`, according to the separators around it and the node's fences.
    pub fn bounds_of_child(self, i: usize) -> Bounds {
        let separator = |i: usize, out: &mut Vec<u8>| {
            self.append_key(i, out);
            true
        };
        Bounds::new(
            |out| match i.checked_sub(1) {
                Some(before) => separator(before, out),
                None => self.append_fence(Side::Low, out),
            },
            |out| if i < self.count() { separator(i, out) } else { self.append_fence(Side::High, out) },
        )
    }

    // Entries.

    /// Index of the entry with this key, or the index where it would be inserted.
    #[inline(always)]
    pub fn find(self, key: L::Key<'_>) -> Result<usize, usize> {
        self.layout.find(self.words, key)
    }

    /// Appends the value of entry `i` if it is inline, else returns the reference to it.
    #[inline(always)]
    pub fn append_value(self, i: usize, out: &mut Vec<u8>) -> Option<ValueRef> {
        self.layout.append_value(self.words, i, out)
    }

    /// See [`Layout::place_of`].
    #[inline]
    pub fn place_of(self, i: usize, value: Stored<'_>) -> Option<Range<usize>> {
        self.layout.place_of(self.words, i, value)
    }

    /// Reference to the value of entry `i`, if it is out of line.
    pub fn long_value(self, i: usize) -> Option<ValueRef> {
        self.layout.long_value(self.words, i)
    }

    /// See [`Layout::entry_of_words`].
    #[inline]
    pub fn entry_of_words(self, i: usize) -> Option<([u8; 8], [u8; 8])> {
        self.layout.entry_of_words(self.words, i)
    }

    #[inline(always)]
    pub fn prefetch_value(self, i: usize) {
        self.layout.prefetch_value(self.words, i);
    }

    // Room.

    pub fn fullness(self) -> f64 {
        self.layout.fullness(self.words)
    }

    pub fn has_room(self, key: &[u8], value_len: usize) -> bool {
        self.layout.has_room(self.words, key, value_len)
    }

    pub fn is_underfull(self) -> bool {
        self.layout.is_underfull(self.words)
    }

    pub fn can_merge(self, right: Self, separator: &[u8]) -> bool {
        self.layout.can_merge(self.words, right.words, separator)
    }

    /// See [`Layout::split_point`].
    pub fn split_point(self, key: &[u8], value_len: usize, separator: &mut Vec<u8>) -> Option<usize> {
        self.layout.split_point(self.words, key, value_len, separator)
    }

    pub fn can_split(self, at: usize, separator: &[u8]) -> bool {
        self.layout.can_split(self.words, at, separator)
    }
}

/// A node to which the caller has exclusive access.
#[derive(Clone, Copy)]
pub(crate) struct NodeMut<'p, L>(Node<'p, L>);

impl<'p, L> Deref for NodeMut<'p, L> {
    type Target = Node<'p, L>;

    fn deref(&self) -> &Node<'p, L> {
        &self.0
    }
}

impl<'p, L: Layout> NodeMut<'p, L> {
    pub fn new(layout: &'p L, words: &'p [Word]) -> Self {
        Self(Node::new(layout, words))
    }

    pub fn init(self, init: &NodeInit<'_>) {
        self.layout.init(self.words, init);
    }

    pub fn set_addr(self, addr: GlobalAddr) {
        header::set(self.words, header::ADDR, addr.raw());
    }

    pub fn set_remote_version(self, version: u64) {
        header::set(self.words, header::REMOTE_VERSION, version);
    }

    /// Sets or clears flags of the header.
    pub fn set_flag(self, flag: u64, on: bool) {
        header::set_flag(self.words, flag, on);
    }

    pub fn set_child(self, i: usize, raw: u64) {
        header::set(self.words, self.child_word(i), raw);
    }

    /// Inserts an entry at `i` and records the position, so that rising inserts are recognised; `false`
    /// without a change if there is no room.
    pub fn insert(self, i: usize, key: L::Key<'_>, value: Stored<'_>) -> bool {
        let fits = self.layout.leaf_insert(self.words, i, key, value);
        if fits {
            header::note_insert(self.words, i);
        }
        fits
    }

    /// Replaces the value of entry `i`; `false` without a change if there is no room.
    pub fn replace(self, i: usize, value: Stored<'_>) -> bool {
        self.layout.leaf_replace(self.words, i, value)
    }

    /// Removes entry `i`.
    pub fn remove(self, i: usize) {
        self.layout.leaf_remove(self.words, i);
    }

    /// Inserts separator `i` with the child right of it; `false` without a change if there is no room.
    pub fn inner_insert(self, i: usize, separator: &[u8], right_child: u64) -> bool {
        self.layout.inner_insert(self.words, i, separator, right_child)
    }

    /// Inserts a separator that has room, with the child right of it.
    ///
    /// # Panics
    /// If there is no room.
    pub fn link(self, separator: &[u8], right_child: u64) {
        let key = self.layout.key(separator).expect("a separator is a key that a node held");
        let fits = self.inner_insert(self.child_index(key), separator, right_child);
        assert!(fits, "room for the separator was checked on the same bytes");
    }

    /// Removes separator `i` and the child right of it.
    pub fn inner_remove(self, i: usize) {
        self.layout.inner_remove(self.words, i);
    }

    /// Moves the upper part, from `at` on, to `right`, which becomes the node at `addr`.
    pub fn split_off(self, right: Self, addr: GlobalAddr, at: usize, separator: &[u8]) {
        let high = self.fence(Side::High);
        let (addr, index_id, level) = (addr.raw(), self.index_id(), self.level());
        let (low, high) = (Some(separator), high.as_deref());
        right.init(&NodeInit { addr, index_id, level, low, high });
        self.layout.split(self.words, right.words, at, separator);
    }

    /// Appends the content of `right`, and takes its high fence.
    pub fn merge(self, right: Node<'_, L>, separator: &[u8]) {
        self.layout.merge(self.words, right.words, separator);
    }

    /// Copies everything except latch and address.
    pub fn copy_content(self, from: Node<'_, L>) {
        self.layout.copy_content(from.words, self.words);
    }
}
