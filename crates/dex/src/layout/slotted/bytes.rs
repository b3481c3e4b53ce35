//! Bytes of a page at any offset, through its words.
//!
//! Byte `i` of a page is byte `i % 8` of word `i / 8`, lowest first. The reading half returns zeros beyond
//! the end of the page, so that offsets and lengths need not be trusted. Bytes are compared eight at a time,
//! as big-endian integers.

use std::cmp::Ordering;

use pando_cache::sync::Word;

use crate::layout::header::{get, set};

/// A range of bytes of a page.
#[derive(Clone, Copy, Debug, Default)]
pub struct Span {
    pub at: usize,
    pub len: usize,
}

/// The 8 bytes at `at`, the first one highest.
#[inline]
pub fn load_be(page: &[Word], at: usize) -> u64 {
    let (word, shift) = (at / 8, at as u32 % 8 * 8);
    let low = get(page, word) >> shift;
    // Shift in two steps, since a shift by 64 is not allowed.
    let high = get(page, word + 1) << 1 << (63 - shift);
    (low | high).swap_bytes()
}

/// The first `n` bytes of a big-endian word, followed by zeros.
#[inline]
pub fn first_bytes(word: u64, n: usize) -> u64 {
    let dropped = u64::MAX.checked_shr(8 * n.min(8) as u32).unwrap_or(0);
    word & !dropped
}

/// The first 8 bytes of `bytes`, the first one highest, padded with zeros.
#[inline]
pub fn padded_be(bytes: &[u8]) -> u64 {
    if let Some(whole) = bytes.first_chunk::<8>() {
        return u64::from_be_bytes(*whole);
    }
    let len = bytes.len();
    if let (Some(first), Some(last)) = (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        // The two may overlap, and have equal bytes there.
        return u64::from(u32::from_be_bytes(*first)) << 32
            | u64::from(u32::from_be_bytes(*last)) << (64 - 8 * len);
    }
    let byte = |i: usize| u64::from(bytes[i]) << (56 - 8 * i);
    if len == 0 { 0 } else { byte(0) | byte(len / 2) | byte(len - 1) }
}

/// Compares a range of a page with `key`.
#[inline]
pub fn compare(page: &[Word], span: Span, key: &[u8]) -> Ordering {
    let Span { at, len } = span;
    let common = len.min(key.len());
    let mut done = 0;
    while done < common {
        let left = common - done;
        let ours = first_bytes(load_be(page, at + done), left);
        let theirs = first_bytes(padded_be(&key[done..]), left);
        if ours != theirs {
            return ours.cmp(&theirs);
        }
        done += 8;
    }
    len.cmp(&key.len())
}

/// Compares the bytes of two ranges of a page.
pub fn compare_within(page: &[Word], a: Span, b: Span) -> Ordering {
    let common = a.len.min(b.len).min(page.len() * 8);
    let mut done = 0;
    while done < common {
        let left = common - done;
        let ours = first_bytes(load_be(page, a.at + done), left);
        let theirs = first_bytes(load_be(page, b.at + done), left);
        if ours != theirs {
            return ours.cmp(&theirs);
        }
        done += 8;
    }
    a.len.cmp(&b.len)
}

/// Appends the bytes of a range, up to the end of the page.
#[inline]
pub fn read(page: &[Word], span: Span, out: &mut Vec<u8>) {
    let len = span.len.min((page.len() * 8).saturating_sub(span.at));
    let end = out.len() + len;
    for done in (0..len).step_by(8) {
        out.extend_from_slice(&load_be(page, span.at + done).to_be_bytes());
    }
    out.truncate(end);
}

/// Writes `bytes` at `at`; the range must lie inside the page.
pub fn write(page: &[Word], at: usize, bytes: &[u8]) {
    let mut at = at;
    let mut rest = bytes;
    while !rest.is_empty() {
        let offset = at % 8;
        let (chunk, behind) = rest.split_at(rest.len().min(8 - offset));
        let mut word = get(page, at / 8).to_le_bytes();
        word[offset..offset + chunk.len()].copy_from_slice(chunk);
        set(page, at / 8, u64::from_le_bytes(word));
        at += chunk.len();
        rest = behind;
    }
}

/// Length of the common prefix of two strings.
pub fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
