//! Byte-string keys and values of any length (DEX §3, with the prefix truncation and key heads of Bayer and
//! Unterauer's and Graefe's B-trees): slots that grow up, a heap that grows down.
//!
//! ```text
//! word 0   header   word 3  [heap start:16][garbage:16][index id:32]
//!                        4  [low fence at:16][length:16][high fence at:16][length:16]
//!                        5  [0:48][prefix length:16]
//!                        6  inner: leftmost child
//!      8   slots    A  [head:32][tail at:16][suffix length:16]
//!                   B  leaf: [value at:16][long:1][value length:15][head, continued:32]   inner: right child
//!          gap
//!          heap     low fence, high fence without the prefix, tails of keys, values
//! ```
//! The *prefix* is what the two fences have in common. All keys begin with it, so no entry stores it; it is
//! read from the low fence. The rest of a key is its *suffix*. The first bytes of the suffix, 8 in a leaf and
//! 4 in an inner node, are the *head* in the slot, a big-endian integer padded with zeros; the rest is the
//! *tail* in the heap. So most comparisons touch slots only. With equal heads the tails decide, then the
//! lengths. Offsets count bytes from the front of the page; an empty range is at 0.
//!
//! Keys have at most a quarter of a node. Values up to [`SlottedLayout::max_inline`] are in the leaf: an
//! eighth of a node, or less where the longest key and value would not fit beside the longest fences (56
//! bytes in 512). A longer value is a [`ValueRef`] in the leaf, which fits by the same rule. An entry takes
//! 16 bytes and its tail and value.

mod bytes;
mod edit;
mod node;
mod plan;
mod verify;

use std::ops::{Range, RangeInclusive};

use pando_cache::NodeShape;
use pando_cache::sync::Word;
use pando_fabric::WORD;
use pando_pool::ValueRef;

use self::edit::{Payload, with_payload};
use self::node::{HEADER, LEFTMOST, Node, SLOT, entry_size, slot_word};
use self::plan::{Merged, SplitPlan};
use super::header::{self, Format, HIGH_INFINITE};
use super::{FANOUT_MIN, Layout, LayoutId, NodeInit, Side, Stored, Toward};
use crate::error::{DexError, Result};

/// Possible sizes of a node in bytes.
pub const NODE_SIZES: RangeInclusive<usize> = 512..=8192;
/// Length of the longest value, inline or not, in bytes.
const MAX_VALUE: usize = pando_pool::MAX_VALUE as usize;

/// Layout of nodes with `node_bytes` bytes; see the module documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlottedLayout {
    node_bytes: usize,
    limit: usize,
}

impl SlottedLayout {
    /// # Errors
    /// [`DexError::Layout`] if `node_size` is not one of [`NODE_SIZES`] that is a power of two.
    pub fn new(node_size: usize) -> Result<Self> {
        if !node_size.is_power_of_two() || !NODE_SIZES.contains(&node_size) {
            let (least, most) = NODE_SIZES.into_inner();
            return Err(DexError::Layout(format!(
                "a node size of {node_size} bytes for keys of any length is not a power of two from {least} to {most}"
            )));
        }
        Ok(Self { node_bytes: node_size, limit: usize::MAX })
    }

    /// Limits nodes to `entries` entries or separators, so that small trees become tall. For tests and
    /// experiments.
    ///
    /// # Panics
    /// If `entries` is below 3.
    pub fn with_fanout_limit(mut self, entries: usize) -> Self {
        assert!(entries >= FANOUT_MIN, "a fanout of {entries} cannot be split");
        self.limit = self.limit.min(entries);
        self
    }

    /// Length of the longest key in bytes.
    pub fn max_key(&self) -> usize {
        self.node_bytes / 4
    }

    /// Length of the longest inline value in bytes.
    pub fn max_inline(&self) -> usize {
        // One entry beside two fences, all with the longest key: 64 + 2 keys + 16 + (key - 8) + value.
        (self.node_bytes / 8).min(self.node_bytes / 4 - HEADER - 8)
    }

    pub(self) fn node_bytes(&self) -> usize {
        self.node_bytes
    }

    /// Bytes available to fences, slots and the rest of the heap.
    fn capacity(&self) -> usize {
        self.node_bytes - HEADER
    }

    fn fence_fits(&self, fence: &Option<&[u8]>) -> bool {
        fence.is_none_or(|fence| fence.len() <= self.max_key())
    }
}

impl NodeShape for SlottedLayout {
    #[inline]
    fn child_count(&self, page: &[Word]) -> usize {
        if header::level(page) == 0 { 0 } else { self.count(page) + 1 }
    }

    #[inline]
    fn child_word(&self, _page: &[Word], i: usize) -> usize {
        if i == 0 { LEFTMOST } else { slot_word(i) - 1 }
    }

    #[inline]
    fn swizzles(&self, page: &[Word]) -> bool {
        !header::has(page, header::SHARED)
    }

    fn leaves_first_word(&self, page: &[Word]) -> bool {
        header::has(page, header::WAS_SHARED)
    }
}

impl Layout for SlottedLayout {
    type Key<'k> = &'k [u8];

    #[inline]
    fn key<'k>(&self, bytes: &'k [u8]) -> Result<&'k [u8]> {
        let max = self.max_key();
        if bytes.len() > max {
            return Err(DexError::KeyTooLong { len: bytes.len(), max });
        }
        Ok(bytes)
    }

    fn key_bytes<'k>(&self, key: &'k [u8]) -> &'k [u8]
    where
        'k: 'k,
    {
        key
    }

    fn value_is_inline(&self, value: &[u8]) -> Result<bool> {
        if value.len() > MAX_VALUE {
            return Err(DexError::ValueTooLong { len: value.len(), max: MAX_VALUE });
        }
        Ok(value.len() <= self.max_inline())
    }

    fn id(&self) -> LayoutId {
        LayoutId {
            format: Format::Slotted as u8,
            node_size: self.node_bytes as u32,
            key_len: 0,
            value_len: 0,
            limit: u32::try_from(self.limit).unwrap_or(u32::MAX),
        }
    }

    fn node_size(&self) -> usize {
        self.node_bytes
    }

    fn scan_start(&self, bound: &[u8], toward: Toward) -> (Vec<u8>, Toward) {
        let key = bound[..bound.len().min(self.max_key())].to_vec();
        // In a descending scan from a bound longer than any key, the key that the bound begins with comes
        // first.
        (key, if bound.len() > self.max_key() { Toward::Key } else { toward })
    }

    fn lowest_key(&self) -> Vec<u8> {
        Vec::new()
    }

    fn highest_key(&self) -> Vec<u8> {
        vec![0xff; self.max_key()]
    }

    #[inline]
    fn prefetch_bytes(&self) -> usize {
        // With short keys, slots are about half of a full node.
        self.node_bytes / 2
    }

    #[inline]
    fn covers(&self, page: &[Word], key: &[u8]) -> bool {
        Node::open(page).covers(key)
    }

    #[inline]
    fn child_index(&self, page: &[Word], key: &[u8]) -> usize {
        Node::open(page).search(key).map_or_else(|i| i, |i| i + 1)
    }

    fn child_index_below(&self, page: &[Word], key: &[u8]) -> usize {
        Node::open(page).search(key).unwrap_or_else(|i| i)
    }

    #[inline]
    fn find(&self, page: &[Word], key: &[u8]) -> std::result::Result<usize, usize> {
        Node::open(page).search(key)
    }

    #[inline]
    fn count(&self, page: &[Word]) -> usize {
        Node::open(page).count
    }

    fn append_key(&self, page: &[Word], i: usize, out: &mut Vec<u8>) {
        Node::open(page).append_key(i, out);
    }

    #[inline]
    fn append_value(&self, page: &[Word], i: usize, out: &mut Vec<u8>) -> Option<ValueRef> {
        let node = Node::open(page);
        let value = node.value(i);
        if value.long {
            return node.reference(value.span);
        }
        bytes::read(page, value.span, out);
        None
    }

    #[inline]
    fn place_of(&self, page: &[Word], i: usize, value: Stored<'_>) -> Option<Range<usize>> {
        let old = Node::open(page).value(i);
        let is_inline = matches!(value, Stored::Inline(_));
        let fits = old.long != is_inline && old.span.len == value.stored_len() && old.span.len > 0;
        let (from, to) = (old.span.at, old.span.at + old.span.len);
        fits.then(|| from / WORD..to.div_ceil(WORD))
    }

    fn holds_long_values(&self) -> bool {
        true
    }

    fn long_value(&self, page: &[Word], i: usize) -> Option<ValueRef> {
        let node = Node::open(page);
        let value = node.value(i);
        if value.long { node.reference(value.span) } else { None }
    }

    fn append_fence(&self, page: &[Word], side: Side, out: &mut Vec<u8>) -> bool {
        Node::open(page).append_fence(side, out)
    }

    fn separator(&self, before: &[u8], after: &[u8]) -> Vec<u8> {
        after[..after.len().min(bytes::common_prefix(before, after) + 1)].to_vec()
    }

    fn verify(&self, page: &[Word]) -> std::result::Result<(), &'static str> {
        verify::verify(self, page)
    }

    fn fullness(&self, page: &[Word]) -> f64 {
        let node = Node::open(page);
        let room = self.capacity().saturating_sub(node.fence_bytes()).max(1);
        let bytes = room.saturating_sub(node.free()) as f64 / room as f64;
        bytes.max(node.count as f64 / self.limit as f64)
    }

    fn max_entries(&self) -> usize {
        // A short suffix lies in its slot, and an empty value takes no bytes.
        (self.capacity() / SLOT).min(self.limit)
    }

    fn max_children(&self) -> usize {
        (self.capacity() / SLOT).min(self.limit) + 1
    }

    fn has_room(&self, page: &[Word], key: &[u8], value_len: usize) -> bool {
        let node = Node::open(page);
        match node.search(key) {
            Ok(i) if node.leaf => value_len <= node.free() + node.value_len(i),
            _ => {
                let size = entry_size(key.len(), node.prefix, node.head_bytes(), value_len);
                node.count < self.limit && size <= node.free()
            }
        }
    }

    fn is_underfull(&self, page: &[Word]) -> bool {
        let node = Node::open(page);
        let room = self.capacity().saturating_sub(node.fence_bytes());
        room.saturating_sub(node.free()) <= room / 4 && node.count <= self.limit / 4
    }

    fn can_merge(&self, left: &[Word], right: &[Word], separator: &[u8]) -> bool {
        let (left, right) = (Node::open(left), Node::open(right));
        let merged = Merged::new(left, right, separator);
        let Some(room) = self.capacity().checked_sub(merged.fences) else {
            return false;
        };
        if left.count.min(right.count) == 0 {
            return merged.content <= room && merged.count <= self.limit;
        }
        merged.content <= room / 4 * 3 && merged.count <= self.limit.saturating_mul(3) / 4
    }

    fn split_point(
        &self,
        page: &[Word],
        key: &[u8],
        value_len: usize,
        separator: &mut Vec<u8>,
    ) -> Option<usize> {
        let node = Node::open(page);
        // Rising inserts at the right end of the tree leave full nodes behind, not half-full ones.
        let appends = header::has(page, HIGH_INFINITE) && node.search(key) == Err(node.count);
        let (at, found) =
            SplitPlan::new(node, key, value_len, self.capacity(), self.limit).choose(appends)?;
        separator.extend_from_slice(&found);
        Some(at)
    }

    // For a separator that `split_point` did not choose. It becomes a fence of both halves and may be long. A
    // leaf with one entry can be split anywhere.
    fn can_split(&self, page: &[Word], at: usize, separator: &[u8]) -> bool {
        let node = Node::open(page);
        let fences = [edit::fence(node, Side::Low), Some(separator.to_vec()), edit::fence(node, Side::High)];
        let behind = if node.leaf { at } else { at + 1 };
        let left = plan::part(node, 0..at.min(node.count), &fences[0], &fences[1]);
        let right = plan::part(node, behind..node.count, &fences[1], &fences[2]);
        left.max(right) <= self.capacity()
    }

    fn fences_take_room(&self) -> bool {
        true
    }

    fn position(&self, page: &[Word], separator: &[u8]) -> Option<usize> {
        match self.find(page, separator) {
            Ok(i) => Some(i),
            Err(i) => (header::level(page) == 0).then_some(i),
        }
    }

    fn init(&self, page: &[Word], init: &NodeInit<'_>) {
        assert!(self.fence_fits(&init.low) && self.fence_fits(&init.high), "fences are keys");
        header::init(page, Format::Slotted, init.addr, init.index_id, init.level);
        edit::restart(page, init.low, init.high);
    }

    #[inline]
    fn leaf_insert(&self, page: &[Word], i: usize, key: &[u8], value: Stored<'_>) -> bool {
        with_payload(value, |payload| edit::insert(page, i, key, payload, self.limit))
    }

    #[inline]
    fn leaf_replace(&self, page: &[Word], i: usize, value: Stored<'_>) -> bool {
        with_payload(value, |payload| match payload {
            Payload::Value { bytes, long } => edit::replace(page, i, bytes, long),
            Payload::Child(_) => unreachable!("a value is no child"),
        })
    }

    fn leaf_remove(&self, page: &[Word], i: usize) {
        edit::remove(page, i);
    }

    fn inner_insert(&self, page: &[Word], i: usize, separator: &[u8], right_child: u64) -> bool {
        edit::insert(page, i, separator, Payload::Child(right_child), self.limit)
    }

    fn inner_remove(&self, page: &[Word], i: usize) {
        edit::remove(page, i);
    }

    fn split(&self, page: &[Word], right: &[Word], at: usize, separator: &[u8]) {
        edit::split(page, right, at, separator);
    }

    fn merge(&self, left: &[Word], right: &[Word], separator: &[u8]) {
        edit::merge(left, right, separator);
    }

    fn set_fences(&self, page: &[Word], low: Option<&[u8]>, high: Option<&[u8]>) -> bool {
        if !self.fence_fits(&low) || !self.fence_fits(&high) {
            return false;
        }
        let (low, high) = (low.map(<[u8]>::to_vec), high.map(<[u8]>::to_vec));
        let old = edit::snapshot(page);
        let node = Node::open(&old);
        if plan::part(node, 0..node.count, &low, &high) > self.capacity() {
            return false;
        }
        edit::refence(page, node, &low, &high);
        true
    }
}
