//! All operations of a layout on an arbitrary page, for property tests and the fuzz target.
//!
//! Checked claims: the reading half never panics and stays inside the page; a page that passes `verify` has
//! ascending keys, which are found at their places; the writing half keeps such a page well-formed.

use std::sync::atomic::Ordering::Relaxed;

use pando_cache::sync::Word;
use pando_fabric::{GlobalAddr, MemoryServerId};
use pando_pool::ValueRef;

use super::fixed::FixedLayout;
use super::slotted::SlottedLayout;
use super::{Layout, NodeInit, Side, Stored, header};

/// Address of a child that `verify` accepts.
pub const CHILD: u64 = 1 << 48 | 0x4000;

/// A layout under test.
pub trait Subject: Layout {
    /// A legal key made of arbitrary bytes.
    fn legal_key(&self, raw: &[u8]) -> Vec<u8>;

    /// A legal inline value of about this length.
    fn legal_value(&self, len: usize) -> Vec<u8>;

    /// Whether values may be out of line.
    fn has_long_values(&self) -> bool;

    /// Whether both halves fit if a leaf is split at `key`.
    fn fits_cut(&self, page: &[Word], at: usize, key: &[u8]) -> bool;
}

impl Subject for FixedLayout {
    fn legal_key(&self, raw: &[u8]) -> Vec<u8> {
        let mut key = raw.to_vec();
        key.resize(self.key_len(), 0);
        key
    }

    fn legal_value(&self, len: usize) -> Vec<u8> {
        vec![len as u8; self.value_len()]
    }

    fn has_long_values(&self) -> bool {
        false
    }

    fn fits_cut(&self, _page: &[Word], _at: usize, _key: &[u8]) -> bool {
        true
    }
}

impl Subject for SlottedLayout {
    fn legal_key(&self, raw: &[u8]) -> Vec<u8> {
        raw[..raw.len().min(self.max_key())].to_vec()
    }

    fn legal_value(&self, len: usize) -> Vec<u8> {
        vec![len as u8; len.min(self.max_inline())]
    }

    fn has_long_values(&self) -> bool {
        true
    }

    fn fits_cut(&self, page: &[Word], at: usize, key: &[u8]) -> bool {
        self.can_split(page, at, key)
    }
}

/// A reference as the pool may return it.
pub fn long_value(n: u64) -> ValueRef {
    ValueRef { addr: GlobalAddr::new(MemoryServerId(1), 64 * (n + 1)), len: 1 + n % 1000, hash: n }
}

pub fn blank(layout: &impl Layout) -> Vec<Word> {
    (0..layout.node_size() / 8).map(|_| Word::new(0)).collect()
}

pub fn copy_of(page: &[Word]) -> Vec<Word> {
    page.iter().map(|word| Word::new(word.load(Relaxed))).collect()
}

pub fn key_at(layout: &impl Layout, page: &[Word], i: usize) -> Vec<u8> {
    let mut key = Vec::new();
    layout.append_key(page, i, &mut key);
    key
}

pub fn fence_of(layout: &impl Layout, page: &[Word], side: Side) -> Option<Vec<u8>> {
    let mut fence = Vec::new();
    layout.append_fence(page, side, &mut fence).then_some(fence)
}

pub fn keys_of(layout: &impl Layout, page: &[Word]) -> Vec<Vec<u8>> {
    (0..layout.count(page)).map(|i| key_at(layout, page, i)).collect()
}

/// Calls every reading operation. Whatever the words are, only a panic of the layout itself ends this.
pub fn read_everything<L: Subject>(layout: &L, page: &[Word], probes: &[Vec<u8>]) {
    let bytes = layout.node_size();
    let count = layout.count(page);
    assert!(count <= bytes / 8);
    for i in (0..count).chain([count, 1000, 0xffff]) {
        let mut out = Vec::new();
        layout.append_key(page, i, &mut out);
        layout.append_value(page, i, &mut out);
        layout.long_value(page, i);
        assert!(out.len() <= 4 * bytes, "an absurd key or value");
    }
    for i in 0..layout.child_count(page) {
        assert!(layout.child_word(page, i) < page.len());
    }
    for side in [Side::Low, Side::High] {
        assert!(fence_of(layout, page, side).is_none_or(|fence| fence.len() <= 4 * bytes));
    }
    layout.is_underfull(page);
    for probe in probes {
        let key = layout.legal_key(probe);
        let prepared = layout.key(&key).expect("a legal key");
        layout.covers(page, prepared);
        assert!(layout.child_index(page, prepared) <= count);
        assert!(layout.child_index_below(page, prepared) <= count);
        assert!(layout.find(page, prepared).map_or_else(|i| i <= count, |i| i < count));
        layout.position(page, &key);
        layout.can_merge(page, page, &key);
        layout.fits_cut(page, count / 2, &key);
        for len in [0, 8, layout.legal_value(bytes).len()] {
            layout.has_room(page, &key, len);
            let at = layout.split_point(page, &key, len, &mut Vec::new());
            assert!(at.is_none_or(|at| at <= count));
        }
    }
    if layout.verify(page).is_ok() {
        check_order(layout, page);
    }
}

/// Checks that a page that passed `verify` has its keys in order and inside its fences, and finds them.
pub fn check_order<L: Subject>(layout: &L, page: &[Word]) {
    let keys = keys_of(layout, page);
    assert!(keys.is_sorted_by(|a, b| a < b), "keys out of order");
    for (i, key) in keys.iter().enumerate() {
        let prepared = layout.key(key).expect("a key of a verified page");
        assert!(layout.covers(page, prepared), "key {i} outside the fences");
        assert_eq!(layout.find(page, prepared), Ok(i));
        assert_eq!(
            (layout.child_index_below(page, prepared), layout.child_index(page, prepared)),
            (i, i + 1)
        );
    }
}

/// Splits a verified page for a pending entry; the page keeps the left half, and the right one is returned.
pub fn split<L: Subject>(layout: &L, page: &[Word], key: &[u8], value_len: usize) -> (Vec<u8>, Vec<Word>) {
    let mut separator = Vec::new();
    let at = layout.split_point(page, key, value_len, &mut separator).expect("a full node can be split");
    assert!(layout.fits_cut(page, at, &separator));
    assert_eq!(layout.position(page, &separator), Some(at));
    let right = split_at(layout, page, at, &separator);
    (separator, right)
}

/// Splits a verified page at `separator`; returns the right half.
pub fn split_at<L: Subject>(layout: &L, page: &[Word], at: usize, separator: &[u8]) -> Vec<Word> {
    let (low, high) = (fence_of(layout, page, Side::Low), fence_of(layout, page, Side::High));
    assert!(low.as_ref().is_none_or(|low| low.as_slice() < separator), "not above the low fence");
    assert!(high.as_ref().is_none_or(|high| separator < high.as_slice()), "not below the high fence");
    let right = blank(layout);
    let level = header::level(page);
    let init = NodeInit { addr: CHILD, index_id: 7, level, low: Some(separator), high: high.as_deref() };
    layout.init(&right, &init);
    let mut keys = keys_of(layout, page);
    layout.split(page, &right, at, separator);
    let behind = keys.split_off(at);
    assert_eq!(keys_of(layout, page), keys);
    assert_eq!(keys_of(layout, &right), behind[usize::from(level > 0)..]);
    for half in [page, &right] {
        assert_eq!(layout.verify(half), Ok(()));
    }
    right
}

/// Puts `key` into a verified page that covers it, splits the page and merges it again, removes all entries.
pub fn change_everything<L: Subject>(layout: &L, page: &[Word], raw_key: &[u8], value_len: usize) {
    let key = layout.legal_key(raw_key);
    let prepared = layout.key(&key).expect("a legal key");
    if layout.verify(page).is_err() || !layout.covers(page, prepared) {
        return;
    }
    let value = layout.legal_value(value_len);
    let leaf = header::level(page) == 0;
    // A separator equal to the low fence would leave a child without keys.
    if !leaf && fence_of(layout, page, Side::Low).unwrap_or_default() == key {
        return;
    }
    let room = layout.has_room(page, &key, value.len());
    let stored = match layout.find(page, prepared) {
        Ok(i) if leaf => layout.leaf_replace(page, i, Stored::Inline(&value)),
        Ok(i) => {
            layout.inner_remove(page, i);
            true
        }
        Err(i) if leaf => layout.leaf_insert(page, i, prepared, Stored::Inline(&value)) || !room,
        Err(i) => layout.inner_insert(page, i, &key, CHILD) || !room,
    };
    assert!(stored || !room, "there was room");
    assert_eq!(layout.verify(page), Ok(()));
    if layout.split_point(page, &key, value.len(), &mut Vec::new()).is_some() {
        let whole = keys_of(layout, page);
        let (separator, right) = split(layout, page, &key, value.len());
        if layout.can_merge(page, &right, &separator) {
            layout.merge(page, &right, &separator);
            assert_eq!(keys_of(layout, page), whole);
        }
    }
    layout.set_fences(page, None, None);
    assert_eq!(layout.verify(page), Ok(()));
    while layout.count(page) > 0 {
        if leaf {
            layout.leaf_remove(page, 0)
        } else {
            layout.inner_remove(page, 0)
        }
        assert_eq!(layout.verify(page), Ok(()));
    }
    assert!(layout.is_underfull(page));
}
