//! Changes of a slotted page, to which the caller has exclusive access.
//!
//! The heap grows down towards the slots. Removed bytes are counted as garbage until the page is compacted;
//! an insert does that if the gap is too small, but large enough with the garbage. A page with new fences,
//! and hence another prefix, is rewritten from a copy.

use std::ops::Range;

use pando_cache::sync::Word;

use super::bytes::{self, Span};
use super::node::{FENCES, LEFTMOST, LONG, Node, PREFIX, ValueAt, entry_size, slot_word};
use crate::layout::header::{self, HIGH_INFINITE, LOW_INFINITE, get, set};
use crate::layout::{NewValue, Side, Stored};

/// Value or child of a key.
#[derive(Clone, Copy)]
pub enum Payload<'v> {
    Value { bytes: &'v [u8], long: bool },
    Child(u64),
}

impl Payload<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Value { bytes, .. } => bytes.len(),
            Self::Child(_) => 0,
        }
    }
}

/// Calls `f` with the bytes of a value as stored in a leaf.
#[inline]
pub fn with_payload<R>(value: Stored<'_>, f: impl FnOnce(Payload<'_>) -> R) -> R {
    match value {
        Stored::Inline(bytes) => f(Payload::Value { bytes, long: false }),
        Stored::Long(reference) | Stored::New(&NewValue { reference, .. }) => {
            let mut bytes = [0; 24];
            for (chunk, word) in bytes.chunks_exact_mut(8).zip(reference.to_words()) {
                chunk.copy_from_slice(&word.to_le_bytes());
            }
            f(Payload::Value { bytes: &bytes, long: true })
        }
    }
}

fn set_heap(page: &[Word], start: usize, garbage: usize) {
    let kept = get(page, header::IDS) & 0xffff_ffff;
    set(page, header::IDS, kept | ((start as u64) << 48) | ((garbage as u64) << 32));
}

/// Puts `bytes` into the gap, which must have room for them; returns their offset, 0 for no bytes.
fn alloc(page: &[Word], bytes: &[u8]) -> usize {
    if bytes.is_empty() {
        return 0;
    }
    let (start, garbage) = Node::open(page).heap();
    let at = start - bytes.len();
    bytes::write(page, at, bytes);
    set_heap(page, at, garbage);
    at
}

fn release(page: &[Word], span: Span) {
    let Span { at, len } = span;
    let (start, garbage) = Node::open(page).heap();
    if len > 0 && at == start {
        set_heap(page, start + len, garbage);
    } else {
        set_heap(page, start, garbage + len);
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

fn value_word(at: usize, len: usize, long: bool) -> u64 {
    ((at as u64) << 48) | ((len as u64) << 32) | if long { LONG } else { 0 }
}

/// Inserts an entry or separator at `i`; `false` if there is no room or there are `limit` already.
pub fn insert(page: &[Word], i: usize, key: &[u8], payload: Payload<'_>, limit: usize) -> bool {
    let node = Node::open(page);
    let need = entry_size(key.len(), node.prefix, node.head_bytes(), payload.len());
    if node.count >= limit || node.free() < need {
        return false;
    }
    if node.gap() < need {
        compact(page);
    }
    let slot = slot_word(i);
    shift(page, slot, slot + 2, 2 * (node.count - i));
    let suffix = key.get(node.prefix..).unwrap_or_default();
    let head = node.head_of(suffix);
    let at = alloc(page, suffix.get(node.head_bytes()..).unwrap_or_default());
    set(page, slot, head >> 32 << 32 | (at as u64) << 16 | suffix.len() as u64);
    let second = match payload {
        Payload::Child(child) => child,
        Payload::Value { bytes, long } => {
            value_word(alloc(page, bytes), bytes.len(), long) | head & 0xffff_ffff
        }
    };
    set(page, slot + 1, second);
    header::set_count(page, node.count + 1);
    true
}

/// Removes entry or separator `i`, and the child right of the separator.
pub fn remove(page: &[Word], i: usize) {
    let node = Node::open(page);
    release(page, node.suffix(i).tail);
    if node.leaf {
        release(page, node.value(i).span);
    }
    let slot = slot_word(i);
    shift(page, slot + 2, slot, 2 * (node.count - i - 1));
    header::set_count(page, node.count - 1);
}

/// Replaces the value of leaf entry `i`; `false` without a change if there is no room.
pub fn replace(page: &[Word], i: usize, bytes: &[u8], long: bool) -> bool {
    let node = Node::open(page);
    let old = node.value(i).span;
    if bytes.len() > node.free() + old.len {
        return false;
    }
    let set_value = |at: usize| {
        let head = get(page, slot_word(i) + 1) & 0xffff_ffff;
        set(page, slot_word(i) + 1, value_word(at, bytes.len(), long) | head);
    };
    if bytes.len() <= old.len && !bytes.is_empty() {
        // Keep the end of the old value, so that the freed part may lie at the edge of the heap.
        let freed = old.len - bytes.len();
        let kept = old.at + freed;
        bytes::write(page, kept, bytes);
        release(page, Span { at: old.at, len: freed });
        set_value(kept);
        return true;
    }
    release(page, old);
    if Node::open(page).gap() < bytes.len() {
        set(page, slot_word(i) + 1, get(page, slot_word(i) + 1) & 0xffff_ffff);
        compact(page);
    }
    set_value(alloc(page, bytes));
    true
}

/// Copy of a page from which it is rewritten.
pub fn snapshot(page: &[Word]) -> Vec<Word> {
    (0..page.len()).map(|i| Word::new(get(page, i))).collect()
}

/// Makes a page empty, with these fences.
pub fn restart(page: &[Word], low: Option<&[u8]>, high: Option<&[u8]>) {
    let prefix = match (low, high) {
        (Some(low), Some(high)) => bytes::common_prefix(low, high),
        _ => 0,
    };
    header::set_count(page, 0);
    header::set_flag(page, LOW_INFINITE, low.is_none());
    header::set_flag(page, HIGH_INFINITE, high.is_none());
    set_heap(page, page.len() * 8, 0);
    let (low, high) = (low.unwrap_or_default(), &high.unwrap_or_default()[prefix..]);
    let (low_at, high_at) = (alloc(page, low), alloc(page, high));
    let fences = [low_at, low.len(), high_at, high.len()];
    set(page, FENCES, fences.iter().fold(0, |word, &part| word << 16 | part as u64));
    set(page, PREFIX, prefix as u64);
}

/// Appends entries of another page.
///
/// # Panics
/// If they do not fit; the caller has checked the room.
pub fn append(page: &[Word], from: Node<'_>, range: Range<usize>) {
    let (mut key, mut value) = (Vec::new(), Vec::new());
    for i in range {
        key.clear();
        value.clear();
        from.append_key(i, &mut key);
        let payload = if from.leaf {
            let ValueAt { span, long } = from.value(i);
            bytes::read(from.page, span, &mut value);
            Payload::Value { bytes: &value, long }
        } else {
            Payload::Child(from.right_child(i))
        };
        append_one(page, &key, payload);
    }
}

fn append_one(page: &[Word], key: &[u8], payload: Payload<'_>) {
    let fits = insert(page, header::raw_count(page), key, payload, usize::MAX);
    assert!(fits, "room for what moves was found before");
}

/// Rewrites a page without garbage.
fn compact(page: &[Word]) {
    let old = snapshot(page);
    let node = Node::open(&old);
    refence(page, node, &fence(node, Side::Low), &fence(node, Side::High));
}

/// Bytes of a fence; `None` if it is infinite.
pub fn fence(node: Node<'_>, side: Side) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    node.append_fence(side, &mut bytes).then_some(bytes)
}

/// Rewrites a page from its copy `old`, with other fences.
pub fn refence(page: &[Word], old: Node<'_>, low: &Option<Vec<u8>>, high: &Option<Vec<u8>>) {
    restart(page, low.as_deref(), high.as_deref());
    append(page, old, 0..old.count);
}

/// See [`crate::layout::Layout::split`].
pub fn split(page: &[Word], right: &[Word], at: usize, separator: &[u8]) {
    let old = snapshot(page);
    let node = Node::open(&old);
    restart(page, fence(node, Side::Low).as_deref(), Some(separator));
    append(page, node, 0..at);
    if node.leaf {
        append(right, node, at..node.count);
    } else {
        set(right, LEFTMOST, node.right_child(at));
        append(right, node, at + 1..node.count);
    }
}

/// See [`crate::layout::Layout::merge`].
pub fn merge(left: &[Word], right: &[Word], separator: &[u8]) {
    let old = snapshot(left);
    let (node, right) = (Node::open(&old), Node::open(right));
    refence(left, node, &fence(node, Side::Low), &fence(right, Side::High));
    if !node.leaf {
        append_one(left, separator, Payload::Child(get(right.page, LEFTMOST)));
    }
    append(left, right, 0..right.count);
}
