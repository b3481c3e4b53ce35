//! Keys and values of constant sizes (DEX §3): a header, the keys, then the values or children.
//!
//! ```text
//!          one-word keys          longer keys (w words)
//! word 0   header                 header
//!      4   low fence, high fence  -
//!      8   keys                   low fence [w], high fence [w], keys
//!          values or children     values or children
//! ```
//! A key is stored as big-endian integers, one per 8 bytes, the last one padded with zeros, so that comparing
//! words compares bytes. With 8-byte keys and values, a node of 1 KiB has 60 entries, or 59 separators and 60
//! children.

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use pando_cache::sync::Word;
use pando_cache::{NodeShape, Ranker};
use pando_pool::ValueRef;

use super::header::{self, Format, HIGH_INFINITE, LOW_INFINITE, get, set};
use super::{FANOUT_MIN, Layout, LayoutId, NodeInit, Side, Stored, Toward};
use crate::error::{DexError, Result};

/// Length of the longest key of this layout in bytes.
pub const MAX_KEY: usize = 64;

/// Sizes of keys, values and nodes, and the places that follow from them; see the module documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedLayout {
    key_len: usize,
    value_len: usize,
    /// Sizes of a node, a key and a value in words.
    node_words: usize,
    w: usize,
    vw: usize,
    /// Index of the first word of the keys.
    body: usize,
    leaf_cap: usize,
    inner_cap: usize,
    leaf_values: usize,
    children: usize,
    ranker: Ranker,
}

/// A key prepared for searching: its first word, and all of its bytes.
#[derive(Clone, Copy, Debug)]
pub struct FixedKey<'k> {
    first: u64,
    bytes: &'k [u8],
}

/// Big-endian word `i` of a key, padded with zeros.
#[inline]
fn key_word(bytes: &[u8], i: usize) -> u64 {
    let chunk = bytes.get(8 * i..).unwrap_or_default();
    match chunk.first_chunk::<8>() {
        Some(whole) => u64::from_be_bytes(*whole),
        None => {
            let mut padded = [0; 8];
            padded[..chunk.len()].copy_from_slice(chunk);
            u64::from_be_bytes(padded)
        }
    }
}

impl FixedLayout {
    /// # Errors
    /// [`DexError::Layout`] if a node of `node_size` bytes cannot hold a few entries of these sizes.
    pub fn new(node_size: usize, key_len: usize, value_len: usize) -> Result<Self> {
        let bad = |why: String| Err(DexError::Layout(why));
        if !node_size.is_power_of_two() || !(256..=1 << 16).contains(&node_size) {
            return bad(format!("a node size of {node_size} bytes is not a power of two from 256 to 65536"));
        }
        if !(1..=MAX_KEY).contains(&key_len) {
            return bad(format!("fixed keys have 1 to {MAX_KEY} bytes, not {key_len}"));
        }
        let node_words = node_size / 8;
        let (w, vw) = (key_len.div_ceil(8), value_len.div_ceil(8));
        let body = if w == 1 { header::WORDS } else { header::WORDS + 2 * w };
        let leaf_cap = (node_words - body) / (w + vw);
        let inner_cap = (node_words - body - 1) / (w + 1);
        if leaf_cap.min(inner_cap) < FANOUT_MIN {
            return bad(format!(
                "a node of {node_size} bytes holds only {} entries of {key_len} + {value_len} bytes",
                leaf_cap.min(inner_cap)
            ));
        }
        let layout = Self {
            key_len,
            value_len,
            node_words,
            w,
            vw,
            body,
            leaf_cap,
            inner_cap,
            leaf_values: body + leaf_cap * w,
            children: body + inner_cap * w,
            ranker: Ranker::new(),
        };
        Ok(layout)
    }

    /// Limits nodes to `entries` entries or separators, so that small trees become tall. For tests and
    /// experiments.
    ///
    /// # Panics
    /// If `entries` is below 3.
    pub fn with_fanout_limit(mut self, entries: usize) -> Self {
        assert!(entries >= FANOUT_MIN, "a fanout of {entries} cannot be split");
        self.leaf_cap = self.leaf_cap.min(entries);
        self.inner_cap = self.inner_cap.min(entries);
        self
    }

    pub fn key_len(&self) -> usize {
        self.key_len
    }

    pub fn value_len(&self) -> usize {
        self.value_len
    }

    /// Largest number of entries of a leaf.
    pub fn leaf_capacity(&self) -> usize {
        self.leaf_cap
    }

    /// Largest number of separators of an inner node.
    pub fn inner_capacity(&self) -> usize {
        self.inner_cap
    }

    #[inline]
    fn cap(&self, page: &[Word]) -> usize {
        if header::level(page) == 0 { self.leaf_cap } else { self.inner_cap }
    }

    #[inline]
    fn keys<'p>(&self, page: &'p [Word], count: usize) -> &'p [Word] {
        page.get(self.body..self.body + count * self.w).unwrap_or_default()
    }

    #[inline]
    fn fence_at(&self, side: Side) -> usize {
        let first = if self.w == 1 { 4 } else { header::WORDS };
        if side == Side::Low { first } else { first + self.w }
    }

    /// Compares the key at `word` with `key`.
    #[inline]
    fn compare(&self, page: &[Word], word: usize, key: FixedKey<'_>) -> Ordering {
        let first = get(page, word).cmp(&key.first);
        if self.w == 1 || first != Ordering::Equal {
            return first;
        }
        (1..self.w)
            .map(|i| get(page, word + i).cmp(&key_word(key.bytes, i)))
            .find(|order| order.is_ne())
            .unwrap_or(Ordering::Equal)
    }

    /// Number of keys among the first `count` that are below `key`, or equal to it if `OR_EQUAL`.
    #[inline(always)]
    fn rank<const OR_EQUAL: bool>(&self, page: &[Word], count: usize, key: FixedKey<'_>) -> usize {
        if self.w == 1 {
            return match OR_EQUAL {
                true => self.ranker.up_to(page, self.body, count, key.first),
                false => self.ranker.below(page, self.body, count, key.first),
            };
        }
        let keys = self.keys(page, count);
        let (mut low, mut high) = (0, keys.len() / self.w);
        while low < high {
            let middle = low.midpoint(high);
            let order = self.compare(keys, middle * self.w, key);
            let counts = if OR_EQUAL { order.is_le() } else { order.is_lt() };
            if counts { low = middle + 1 } else { high = middle }
        }
        low
    }

    fn store_key(&self, page: &[Word], word: usize, bytes: &[u8]) {
        for i in 0..self.w {
            set(page, word + i, key_word(bytes, i));
        }
    }

    #[inline]
    fn append_key_at(&self, page: &[Word], word: usize, out: &mut Vec<u8>) {
        let end = out.len() + self.key_len;
        for i in 0..self.w {
            out.extend_from_slice(&get(page, word + i).to_be_bytes());
        }
        out.truncate(end);
    }

    #[inline]
    fn store_value(&self, page: &[Word], i: usize, bytes: &[u8]) {
        let at = self.leaf_values + i * self.vw;
        for (j, chunk) in bytes.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            set(page, at + j, u64::from_le_bytes(word));
        }
    }

    #[inline]
    fn inline<'v>(&self, value: Stored<'v>) -> &'v [u8] {
        match value {
            Stored::Inline(bytes) => bytes,
            Stored::Long(_) | Stored::New(_) => {
                unreachable!("value_is_inline says that all values of this layout are")
            }
        }
    }
}

/// Moves `len` words from `from` to `to` inside a page.
fn shift(page: &[Word], from: usize, to: usize, len: usize) {
    if from < to {
        (0..len).rev().for_each(|i| set(page, to + i, get(page, from + i)));
    } else {
        (0..len).for_each(|i| set(page, to + i, get(page, from + i)));
    }
}

fn copy(from: &[Word], at: usize, to: &[Word], to_at: usize, len: usize) {
    (0..len).for_each(|i| set(to, to_at + i, get(from, at + i)));
}

impl NodeShape for FixedLayout {
    #[inline]
    fn child_count(&self, page: &[Word]) -> usize {
        if header::level(page) == 0 { 0 } else { self.count(page) + 1 }
    }

    #[inline]
    fn child_word(&self, _page: &[Word], i: usize) -> usize {
        self.children + i
    }

    #[inline]
    fn swizzles(&self, page: &[Word]) -> bool {
        !header::has(page, header::SHARED)
    }

    fn leaves_first_word(&self, page: &[Word]) -> bool {
        header::has(page, header::WAS_SHARED)
    }
}

impl Layout for FixedLayout {
    type Key<'k> = FixedKey<'k>;

    #[inline]
    fn key<'k>(&self, bytes: &'k [u8]) -> Result<FixedKey<'k>> {
        if bytes.len() != self.key_len {
            return Err(DexError::WrongKeySize { len: bytes.len(), expected: self.key_len });
        }
        Ok(FixedKey { first: key_word(bytes, 0), bytes })
    }

    #[inline]
    fn key_bytes<'k>(&self, key: FixedKey<'k>) -> &'k [u8]
    where
        'k: 'k,
    {
        key.bytes
    }

    #[inline]
    fn value_is_inline(&self, value: &[u8]) -> Result<bool> {
        if value.len() != self.value_len {
            return Err(DexError::WrongValueSize { len: value.len(), expected: self.value_len });
        }
        Ok(true)
    }

    fn id(&self) -> LayoutId {
        LayoutId {
            format: Format::Fixed as u8,
            node_size: self.node_size() as u32,
            key_len: self.key_len as u32,
            value_len: self.value_len as u32,
            limit: self.leaf_cap.max(self.inner_cap) as u32,
        }
    }

    #[inline]
    fn node_size(&self) -> usize {
        self.node_words * 8
    }

    #[inline]
    fn scan_start(&self, bound: &[u8], toward: Toward) -> (Vec<u8>, Toward) {
        // Leave room for the next fence, which the scan appends.
        let mut key = Vec::with_capacity(bound.len().max(self.key_len) + self.key_len);
        key.extend_from_slice(bound);
        key.resize(self.key_len, 0);
        // In a descending scan from a bound longer than the keys, the key that the bound begins with comes
        // first.
        (key, if bound.len() > self.key_len { Toward::Key } else { toward })
    }

    fn lowest_key(&self) -> Vec<u8> {
        vec![0; self.key_len]
    }

    fn highest_key(&self) -> Vec<u8> {
        vec![0xff; self.key_len]
    }

    #[inline]
    fn prefetch_bytes(&self) -> usize {
        self.leaf_values.max(self.children) * 8
    }

    #[inline]
    fn covers(&self, page: &[Word], key: FixedKey<'_>) -> bool {
        let kind = get(page, header::KIND);
        (kind & LOW_INFINITE != 0 || self.compare(page, self.fence_at(Side::Low), key).is_le())
            && (kind & HIGH_INFINITE != 0 || self.compare(page, self.fence_at(Side::High), key).is_gt())
    }

    #[inline(always)]
    fn child_index(&self, page: &[Word], key: FixedKey<'_>) -> usize {
        self.rank::<true>(page, self.count(page), key)
    }

    fn child_index_below(&self, page: &[Word], key: FixedKey<'_>) -> usize {
        self.rank::<false>(page, self.count(page), key)
    }

    #[inline(always)]
    fn find(&self, page: &[Word], key: FixedKey<'_>) -> std::result::Result<usize, usize> {
        let count = self.count(page);
        let i = self.rank::<false>(page, count, key);
        if i < count && self.compare(page, self.body + i * self.w, key).is_eq() { Ok(i) } else { Err(i) }
    }

    #[inline]
    fn count(&self, page: &[Word]) -> usize {
        header::raw_count(page).min(self.cap(page))
    }

    #[inline]
    fn append_key(&self, page: &[Word], i: usize, out: &mut Vec<u8>) {
        self.append_key_at(page, self.body + i * self.w, out);
    }

    #[inline]
    fn append_value(&self, page: &[Word], i: usize, out: &mut Vec<u8>) -> Option<ValueRef> {
        let at = self.leaf_values + i * self.vw;
        if self.value_len == 8 {
            out.extend_from_slice(&get(page, at).to_le_bytes());
            return None;
        }
        let end = out.len() + self.value_len;
        for j in 0..self.vw {
            out.extend_from_slice(&get(page, at + j).to_le_bytes());
        }
        out.truncate(end);
        None
    }

    #[inline]
    fn prefetch_value(&self, page: &[Word], i: usize) {
        if let Some(word) = page.get(self.leaf_values + i * self.vw) {
            pando_cache::prefetch_line(word);
        }
    }

    #[inline]
    fn place_of(&self, _page: &[Word], i: usize, _value: Stored<'_>) -> Option<Range<usize>> {
        let at = self.leaf_values + i * self.vw;
        Some(at..at + self.vw)
    }

    #[inline]
    fn entry_of_words(&self, page: &[Word], i: usize) -> Option<([u8; 8], [u8; 8])> {
        if self.key_len != 8 || self.value_len != 8 {
            return None;
        }
        Some((get(page, self.body + i).to_be_bytes(), get(page, self.leaf_values + i).to_le_bytes()))
    }

    fn long_value(&self, _page: &[Word], _i: usize) -> Option<ValueRef> {
        None
    }

    #[inline]
    fn append_fence(&self, page: &[Word], side: Side, out: &mut Vec<u8>) -> bool {
        if header::has(page, if side == Side::Low { LOW_INFINITE } else { HIGH_INFINITE }) {
            return false;
        }
        self.append_key_at(page, self.fence_at(side), out);
        true
    }

    fn verify(&self, page: &[Word]) -> std::result::Result<(), &'static str> {
        header::verify(page, Format::Fixed)?;
        let count = header::raw_count(page);
        if count > self.cap(page) {
            return Err("more entries than a node can hold");
        }
        let keys = self.keys(page, count);
        let at = |i: usize| (0..self.w).map(move |j| get(keys, i * self.w + j));
        let in_order = match self.w {
            1 => keys.windows(2).all(|pair| pair[0].load(Relaxed) < pair[1].load(Relaxed)),
            _ => (1..count).all(|i| at(i - 1).lt(at(i))),
        };
        if !in_order {
            return Err("keys out of order");
        }
        let padding = (1_u64 << (8 * (8 * self.w - self.key_len))).wrapping_sub(1);
        if !self.key_len.is_multiple_of(8)
            && (0..count).any(|i| get(keys, i * self.w + self.w - 1) & padding != 0)
        {
            return Err("a key longer than the keys of this index");
        }
        let fence = |side| (0..self.w).map(move |j| get(page, self.fence_at(side) + j));
        if count > 0 && !header::has(page, LOW_INFINITE) && at(0).lt(fence(Side::Low)) {
            return Err("a key below the low fence");
        }
        if count > 0 && !header::has(page, HIGH_INFINITE) && at(count - 1).ge(fence(Side::High)) {
            return Err("a key not below the high fence");
        }
        let children = if header::level(page) == 0 { 0 } else { count + 1 };
        if (0..children)
            .any(|i| get(page, self.children + i) << 16 == 0 || get(page, self.children + i) >> 63 == 1)
        {
            return Err("a child without an address");
        }
        Ok(())
    }

    fn fullness(&self, page: &[Word]) -> f64 {
        self.count(page) as f64 / self.cap(page) as f64
    }

    fn max_entries(&self) -> usize {
        self.leaf_cap
    }

    fn max_children(&self) -> usize {
        self.inner_cap + 1
    }

    fn has_room(&self, page: &[Word], _key: &[u8], _value_len: usize) -> bool {
        self.count(page) < self.cap(page)
    }

    fn is_underfull(&self, page: &[Word]) -> bool {
        self.count(page) <= self.cap(page) / 4
    }

    fn can_merge(&self, left: &[Word], right: &[Word], _separator: &[u8]) -> bool {
        let (a, b) = (self.count(left), self.count(right));
        if header::level(left) > 0 {
            return a + b < self.inner_cap * 3 / 4;
        }
        a + b <= self.leaf_cap * 3 / 4 || (a.min(b) == 0)
    }

    fn split_point(
        &self,
        page: &[Word],
        key: &[u8],
        _value_len: usize,
        separator: &mut Vec<u8>,
    ) -> Option<usize> {
        let count = self.count(page);
        if count < 2 {
            return None;
        }
        let key = FixedKey { first: key_word(key, 0), bytes: key };
        // Rising inserts at the right end of the tree leave full nodes behind, not half-full ones.
        let appends = header::has(page, HIGH_INFINITE) && self.child_index(page, key) == count;
        let at = if appends { (count * 9 / 10).clamp(1, count - 1) } else { count / 2 };
        self.append_key(page, at, separator);
        Some(at)
    }

    fn position(&self, page: &[Word], separator: &[u8]) -> Option<usize> {
        let key = FixedKey { first: key_word(separator, 0), bytes: separator };
        match self.find(page, key) {
            Ok(i) => Some(i),
            Err(i) => (header::level(page) == 0).then_some(i),
        }
    }

    fn init(&self, page: &[Word], init: &NodeInit<'_>) {
        header::init(page, Format::Fixed, init.addr, init.index_id, init.level);
        let fits = self.set_fences(page, init.low, init.high);
        debug_assert!(fits, "fixed fences always fit");
    }

    #[inline]
    fn leaf_insert(&self, page: &[Word], i: usize, key: FixedKey<'_>, value: Stored<'_>) -> bool {
        let count = self.count(page);
        if count >= self.leaf_cap {
            return false;
        }
        let key_at = self.body + i * self.w;
        shift(page, key_at, key_at + self.w, (count - i) * self.w);
        let value_at = self.leaf_values + i * self.vw;
        shift(page, value_at, value_at + self.vw, (count - i) * self.vw);
        self.store_key(page, key_at, key.bytes);
        self.store_value(page, i, self.inline(value));
        header::set_count(page, count + 1);
        true
    }

    #[inline]
    fn leaf_replace(&self, page: &[Word], i: usize, value: Stored<'_>) -> bool {
        self.store_value(page, i, self.inline(value));
        true
    }

    fn leaf_remove(&self, page: &[Word], i: usize) {
        let count = self.count(page);
        let key_at = self.body + i * self.w;
        shift(page, key_at + self.w, key_at, (count - i - 1) * self.w);
        let value_at = self.leaf_values + i * self.vw;
        shift(page, value_at + self.vw, value_at, (count - i - 1) * self.vw);
        header::set_count(page, count - 1);
    }

    fn inner_insert(&self, page: &[Word], i: usize, separator: &[u8], right_child: u64) -> bool {
        let count = self.count(page);
        if count >= self.inner_cap {
            return false;
        }
        let key_at = self.body + i * self.w;
        shift(page, key_at, key_at + self.w, (count - i) * self.w);
        shift(page, self.children + i + 1, self.children + i + 2, count - i);
        self.store_key(page, key_at, separator);
        set(page, self.children + i + 1, right_child);
        header::set_count(page, count + 1);
        true
    }

    fn inner_remove(&self, page: &[Word], i: usize) {
        let count = self.count(page);
        let key_at = self.body + i * self.w;
        shift(page, key_at + self.w, key_at, (count - i - 1) * self.w);
        shift(page, self.children + i + 2, self.children + i + 1, count - i - 1);
        header::set_count(page, count - 1);
    }

    fn split(&self, page: &[Word], right: &[Word], at: usize, separator: &[u8]) {
        let count = self.count(page);
        let leaf = header::level(page) == 0;
        let first = if leaf { at } else { at + 1 };
        copy(page, self.body + first * self.w, right, self.body, (count - first) * self.w);
        if leaf {
            copy(page, self.leaf_values + at * self.vw, right, self.leaf_values, (count - at) * self.vw);
        } else {
            copy(page, self.children + first, right, self.children, count - at);
        }
        header::set_count(right, count - first);
        header::set_count(page, at);
        self.store_key(page, self.fence_at(Side::High), separator);
        header::set_flag(page, HIGH_INFINITE, false);
    }

    fn merge(&self, left: &[Word], right: &[Word], separator: &[u8]) {
        let (a, b) = (self.count(left), self.count(right));
        let total = if header::level(left) == 0 {
            copy(right, self.body, left, self.body + a * self.w, b * self.w);
            copy(right, self.leaf_values, left, self.leaf_values + a * self.vw, b * self.vw);
            a + b
        } else {
            self.store_key(left, self.body + a * self.w, separator);
            copy(right, self.body, left, self.body + (a + 1) * self.w, b * self.w);
            copy(right, self.children, left, self.children + a + 1, b + 1);
            a + b + 1
        };
        copy(right, self.fence_at(Side::High), left, self.fence_at(Side::High), self.w);
        header::set_flag(left, HIGH_INFINITE, header::has(right, HIGH_INFINITE));
        header::set_count(left, total);
    }

    fn set_fences(&self, page: &[Word], low: Option<&[u8]>, high: Option<&[u8]>) -> bool {
        for (side, flag, fence) in [(Side::Low, LOW_INFINITE, low), (Side::High, HIGH_INFINITE, high)] {
            header::set_flag(page, flag, fence.is_none());
            self.store_key(page, self.fence_at(side), fence.unwrap_or_default());
        }
        true
    }
}
