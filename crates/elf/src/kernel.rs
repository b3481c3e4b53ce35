//! Comparison of many codes with the intervals of one condition: one bit per code.
//!
//! A test `low <= code <= high` is one subtraction and one unsigned comparison in the width of the codes.

use crate::codes::{Code, CodeSlice, typed};
use crate::predicate::{Interval, contains};

/// Codes that one word of a mask stands for.
pub const WORD: usize = 64;

/// Intervals up to which every code is compared with each of them; above, they are searched for each code.
const COMPARED_INTERVALS: usize = 8;

/// Whether a comparison replaces a mask or narrows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Combine {
    Replace,
    And,
}

/// The instructions that comparisons use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel {}

impl Kernel {
    /// Chooses the fastest instructions of this processor.
    pub fn detect() -> Self {
        Self {}
    }

    /// Uses no special instructions.
    pub fn portable() -> Self {
        Self {}
    }

    /// Sets bit `i % 64` of `masks[i / 64]` if code `i` is in one of the sorted, disjoint `intervals`; with
    /// [`Combine::And`] only if it was set. Unused bits of the last word become zero.
    pub fn compare(self, codes: CodeSlice<'_>, intervals: &[Interval], masks: &mut [u64], combine: Combine) {
        typed!(codes, codes => portable(codes, intervals, masks, combine));
    }
}

fn portable<C: Code>(codes: &[C], intervals: &[Interval], masks: &mut [u64], combine: Combine) {
    for (chunk, mask) in codes.chunks(WORD).zip(masks) {
        let before = if combine == Combine::And { *mask } else { u64::MAX };
        *mask = if before == 0 { 0 } else { before & mask_of_chunk(chunk, intervals) };
    }
}

/// Mask of at most 64 codes.
#[inline]
fn mask_of_chunk<C: Code>(chunk: &[C], intervals: &[Interval]) -> u64 {
    if intervals.len() > COMPARED_INTERVALS {
        let bit = |code: C| u64::from(contains(intervals, code.get()));
        return chunk.iter().enumerate().fold(0, |mask, (i, &code)| mask | bit(code) << i);
    }
    intervals.iter().fold(0, |mask, &interval| mask | mask_of_interval(chunk, interval))
}

#[inline]
fn mask_of_interval<C: Code>(chunk: &[C], interval: Interval) -> u64 {
    let Some((low, span)) = bounds::<C>(interval) else { return 0 };
    let mut hits = [0_u8; WORD];
    match chunk.as_array::<WORD>() {
        // The fixed length lets the compiler use vector instructions.
        Some(chunk) => {
            hits.iter_mut().zip(chunk).for_each(|(hit, code)| *hit = u8::from(code.offset(low) <= span))
        }
        None => hits.iter_mut().zip(chunk).for_each(|(hit, code)| *hit = u8::from(code.offset(low) <= span)),
    }
    pack(&hits)
}

/// Lower bound and width of an interval in the range of the codes' type; `None` if it lies above that.
fn bounds<C: Code>(interval: Interval) -> Option<(C::Native, C::Native)> {
    let high = interval.high.min(C::MAXIMUM);
    let span = high.checked_sub(interval.low)?;
    Some((C::native(interval.low), C::native(span)))
}

/// Bit `i` of the result is byte `i`, each of which is 0 or 1.
#[inline]
fn pack(hits: &[u8; WORD]) -> u64 {
    // The product moves the lowest bit of byte i to bit 56 + i, and no two terms meet.
    const GATHER: u64 = 0x0102_0408_1020_4080;
    hits.as_chunks::<8>()
        .0
        .iter()
        .enumerate()
        .fold(0, |mask, (i, &eight)| mask | (u64::from_le_bytes(eight).wrapping_mul(GATHER) >> 56) << (8 * i))
}
