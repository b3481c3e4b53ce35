//! Read access to a slotted page: its slots, heads, fences and values.
//!
//! A [`Node`] is opened on words that may be torn or garbage. It trusts only the length of the page: every
//! count is limited to the capacity of the page, and bytes beyond its end are zeros.

use std::cmp::Ordering;
use std::hint::select_unpredictable;
use std::ops::Range;

use pando_cache::sync::Word;
use pando_pool::ValueRef;

use super::bytes::{self, Span};
use crate::layout::Side;
use crate::layout::header::{self, HIGH_INFINITE, LOW_INFINITE, get};

pub const FENCES: usize = 4;
pub const PREFIX: usize = 5;
pub const LEFTMOST: usize = 6;
/// Size of a slot in bytes.
pub const SLOT: usize = 16;
/// Size of the header in bytes.
pub const HEADER: usize = header::WORDS * 8;
/// Flag in word B of a leaf: the value is out of line.
pub const LONG: u64 = 1 << 47;
const LOW_HALF: u64 = 0xffff_ffff;

/// First word of slot `i`.
#[inline]
pub fn slot_word(i: usize) -> usize {
    header::WORDS + 2 * i
}

#[inline]
fn field(word: u64, shift: u32) -> usize {
    (word >> shift) as u16 as usize
}

/// Bytes of an entry in a node whose keys omit `prefix` bytes and have `head_bytes` in the slot.
#[inline]
pub fn entry_size(key_len: usize, prefix: usize, head_bytes: usize, value_len: usize) -> usize {
    SLOT + key_len.saturating_sub(prefix + head_bytes) + value_len
}

/// A key without the prefix: the bytes in the slot, as a padded big-endian word, and the rest in the heap.
#[derive(Clone, Copy, Debug)]
pub struct Suffix {
    pub head: u64,
    /// Length of the whole suffix.
    pub len: usize,
    pub tail: Span,
}

/// Place of a value in a leaf.
#[derive(Clone, Copy, Debug)]
pub struct ValueAt {
    pub span: Span,
    pub long: bool,
}

/// A page, opened for reading.
#[derive(Clone, Copy)]
pub struct Node<'p> {
    pub page: &'p [Word],
    pub count: usize,
    pub prefix: usize,
    pub leaf: bool,
    /// Bits of word B that belong to the head.
    second_mask: u64,
}

impl<'p> Node<'p> {
    #[inline]
    pub fn open(page: &'p [Word]) -> Self {
        let leaf = header::level(page) == 0;
        let slots = page.len().saturating_sub(header::WORDS) / 2;
        Self {
            page,
            count: header::raw_count(page).min(slots),
            prefix: field(get(page, PREFIX), 0),
            leaf,
            second_mask: if leaf { LOW_HALF } else { 0 },
        }
    }

    /// Number of suffix bytes in the slot.
    #[inline]
    pub fn head_bytes(&self) -> usize {
        if self.leaf { 8 } else { 4 }
    }

    #[inline]
    pub fn slots(&self) -> &'p [[Word; 2]] {
        self.page.get(header::WORDS..slot_word(self.count)).unwrap_or_default().as_chunks().0
    }

    #[inline]
    fn head(&self, slot: &[Word; 2]) -> u64 {
        let second = slot[1].load(std::sync::atomic::Ordering::Relaxed);
        slot[0].load(std::sync::atomic::Ordering::Relaxed) & !LOW_HALF | second & self.second_mask
    }

    /// Head of a suffix: the padded bytes that its slot would contain.
    #[inline]
    pub fn head_of(&self, suffix: &[u8]) -> u64 {
        bytes::padded_be(suffix) & (!LOW_HALF | self.second_mask)
    }

    #[inline]
    pub fn suffix(&self, i: usize) -> Suffix {
        let (a, b) = (get(self.page, slot_word(i)), get(self.page, slot_word(i) + 1));
        let len = field(a, 0);
        let tail = Span { at: field(a, 16), len: len.saturating_sub(self.head_bytes()) };
        Suffix { head: a & !LOW_HALF | b & self.second_mask, len, tail }
    }

    /// The suffix that lies as a whole at a range of the heap.
    pub fn suffix_at(&self, span: Span) -> Suffix {
        let Span { at, len } = span;
        let head = bytes::first_bytes(bytes::load_be(self.page, at), len.min(self.head_bytes()));
        let tail = Span { at: at + self.head_bytes(), len: len.saturating_sub(self.head_bytes()) };
        Suffix { head, len, tail }
    }

    pub fn compare(&self, a: Suffix, b: Suffix) -> Ordering {
        a.head
            .cmp(&b.head)
            .then_with(|| bytes::compare_within(self.page, a.tail, b.tail))
            .then_with(|| a.len.cmp(&b.len))
    }

    /// Length of key `i` with its prefix.
    #[inline]
    pub fn key_len(&self, i: usize) -> usize {
        self.prefix + field(get(self.page, slot_word(i)), 0)
    }

    #[inline]
    pub fn value(&self, i: usize) -> ValueAt {
        let word = get(self.page, slot_word(i) + 1);
        let span = Span { at: field(word, 48), len: field(word, 32) & 0x7fff };
        ValueAt { span, long: word & LONG != 0 }
    }

    /// Length of value `i` in this node; 0 for a separator.
    #[inline]
    pub fn value_len(&self, i: usize) -> usize {
        if self.leaf { self.value(i).span.len } else { 0 }
    }

    /// Reference to a long value at a range of the heap.
    pub fn reference(&self, span: Span) -> Option<ValueRef> {
        let word = |i: usize| bytes::load_be(self.page, span.at + 8 * i).swap_bytes();
        ValueRef::from_words([word(0), word(1), word(2)])
    }

    /// The child right of separator `i`.
    pub fn right_child(&self, i: usize) -> u64 {
        get(self.page, slot_word(i) + 1)
    }

    /// The low fence, or the high fence without the prefix; `None` is infinite.
    #[inline]
    pub fn fence(&self, side: Side) -> Option<Span> {
        let word = get(self.page, FENCES);
        let (flag, shift) = if side == Side::Low { (LOW_INFINITE, 48) } else { (HIGH_INFINITE, 16) };
        (!header::has(self.page, flag)).then(|| Span { at: field(word, shift), len: field(word, shift - 16) })
    }

    /// Bytes of the fences in the heap.
    pub fn fence_bytes(&self) -> usize {
        [Side::Low, Side::High].iter().map(|&side| self.fence(side).map_or(0, |span| span.len)).sum()
    }

    /// The common prefix of all keys, which the low fence begins with.
    #[inline]
    fn prefix_span(&self) -> Span {
        Span { at: field(get(self.page, FENCES), 48), len: self.prefix }
    }

    /// Appends the common prefix of all keys.
    #[inline]
    fn append_prefix(&self, out: &mut Vec<u8>) {
        if self.prefix > 0 {
            bytes::read(self.page, self.prefix_span(), out);
        }
    }

    pub fn append_fence(&self, side: Side, out: &mut Vec<u8>) -> bool {
        let Some(span) = self.fence(side) else {
            return false;
        };
        if side == Side::High {
            self.append_prefix(out);
        }
        bytes::read(self.page, span, out);
        true
    }

    #[inline]
    pub fn append_key(&self, i: usize, out: &mut Vec<u8>) {
        let suffix = self.suffix(i);
        self.append_prefix(out);
        out.extend_from_slice(&suffix.head.to_be_bytes()[..suffix.len.min(self.head_bytes())]);
        bytes::read(self.page, suffix.tail, out);
    }

    /// Order of the first bytes of `key` relative to the prefix.
    #[inline]
    fn prefix_order(&self, key: &[u8]) -> Ordering {
        if self.prefix == 0 {
            return Ordering::Equal;
        }
        bytes::compare(self.page, self.prefix_span(), &key[..key.len().min(self.prefix)]).reverse()
    }

    #[inline]
    pub fn covers(&self, key: &[u8]) -> bool {
        let above_low = self.fence(Side::Low).is_none_or(|low| bytes::compare(self.page, low, key).is_le());
        above_low
            && self.fence(Side::High).is_none_or(|high| {
                let suffix = key.get(self.prefix..).unwrap_or_default();
                self.prefix_order(key).is_eq() && bytes::compare(self.page, high, suffix).is_gt()
            })
    }

    /// Index of the entry or separator with this key, or the index where it would be inserted.
    #[inline]
    pub fn search(&self, key: &[u8]) -> Result<usize, usize> {
        match self.prefix_order(key) {
            Ordering::Less => return Err(0),
            Ordering::Greater => return Err(self.count),
            Ordering::Equal => {}
        }
        let suffix = key.get(self.prefix..).unwrap_or_default();
        let wanted = self.head_of(suffix);
        let slots = self.slots();
        let first = branchless(slots, |slot| self.head(slot) < wanted);
        let has_head = |i: usize| slots.get(i).is_some_and(|slot| self.head(slot) == wanted);
        if !has_head(first) {
            return Err(first);
        }
        let mut end = first + 1;
        if has_head(end) {
            end += branchless(&slots[end..], |slot| self.head(slot) <= wanted);
        }
        self.search_tails(first, end, suffix)
    }

    /// Searches slots that have the head of `suffix`.
    #[inline]
    fn search_tails(&self, first: usize, end: usize, suffix: &[u8]) -> Result<usize, usize> {
        let tail = suffix.get(self.head_bytes()..).unwrap_or_default();
        let (mut low, mut high) = (first, end);
        while low < high {
            let middle = low.midpoint(high);
            let found = self.suffix(middle);
            let order = bytes::compare(self.page, found.tail, tail);
            match order.then(found.len.cmp(&suffix.len())) {
                Ordering::Less => low = middle + 1,
                Ordering::Equal => return Ok(middle),
                Ordering::Greater => high = middle,
            }
        }
        Err(low)
    }

    /// Lowest offset of the heap, and number of its bytes that are garbage.
    #[inline]
    pub fn heap(&self) -> (usize, usize) {
        let word = get(self.page, header::IDS);
        (field(word, 48), field(word, 32))
    }

    /// Bytes between slots and heap.
    #[inline]
    pub fn gap(&self) -> usize {
        self.heap().0.saturating_sub(HEADER + SLOT * self.count)
    }

    /// Bytes available to an insert, after compaction if necessary.
    #[inline]
    pub fn free(&self) -> usize {
        self.gap() + self.heap().1
    }

    /// Bytes of some entries in a node with another prefix.
    pub fn content_with(&self, entries: Range<usize>, prefix: usize) -> usize {
        let head_bytes = self.head_bytes();
        entries.map(|i| entry_size(self.key_len(i), prefix, head_bytes, self.value_len(i))).sum()
    }
}

/// Branchless binary search: the number of leading slots for which `below` holds.
#[inline]
fn branchless(slots: &[[Word; 2]], below: impl Fn(&[Word; 2]) -> bool) -> usize {
    let mut base = 0;
    let mut rest = slots.len();
    while rest > 1 {
        let half = rest / 2;
        base = select_unpredictable(below(&slots[base + half]), base + half, base);
        rest -= half;
    }
    slots.get(base).map_or(0, |slot| base + usize::from(below(slot)))
}
