//! What a scan asks for, and how it ended at one compute server.
//!
//! A scan goes on at the next compute server where the keys of one end. Both ends of a range may be inclusive, exclusive or
//! open, and the scan may go either way.

use std::ops::Bound;

use crate::ownership::range::{KeyRange, partition_of};

/// What to scan.
#[derive(Clone, Copy, Debug)]
pub struct ScanRange<'k> {
    pub low: Bound<&'k [u8]>,
    pub high: Bound<&'k [u8]>,
    /// Entries at most.
    pub limit: usize,
    /// From the high end down.
    pub reverse: bool,
}

impl ScanRange<'_> {
    /// All entries in ascending order.
    pub fn all() -> Self {
        Self { low: Bound::Unbounded, high: Bound::Unbounded, limit: usize::MAX, reverse: false }
    }

    /// Whether a key is not beyond the high end.
    pub fn below_high(&self, key: &[u8]) -> bool {
        match self.high {
            Bound::Unbounded => true,
            Bound::Included(high) => key <= high,
            Bound::Excluded(high) => key < high,
        }
    }

    /// Whether a key is not before the low end.
    pub fn above_low(&self, key: &[u8]) -> bool {
        match self.low {
            Bound::Unbounded => true,
            Bound::Included(low) => low <= key,
            Bound::Excluded(low) => low < key,
        }
    }

    /// The partition that the scan begins in.
    pub fn first_partition(&self, boundaries: &[Vec<u8>]) -> usize {
        match (self.reverse, if self.reverse { self.high } else { self.low }) {
            (false, Bound::Unbounded) => 0,
            (true, Bound::Unbounded) => boundaries.len(),
            // The keys below it may be in another one.
            (true, Bound::Excluded(high)) => {
                boundaries.partition_point(|boundary| boundary.as_slice() < high)
            }
            (_, Bound::Included(key) | Bound::Excluded(key)) => partition_of(boundaries, key),
        }
    }

    /// Whether the first key of the range is one of `own`.
    pub fn starts_in(&self, own: &KeyRange) -> bool {
        match (self.reverse, if self.reverse { self.high } else { self.low }) {
            (false, Bound::Unbounded) => own.low.is_none(),
            (true, Bound::Unbounded) => own.high.is_none(),
            (true, Bound::Excluded(high)) => own.contains_below(high),
            (_, Bound::Included(key) | Bound::Excluded(key)) => own.contains(key),
        }
    }

    /// Where a scan goes on that came to a fence between two leaves.
    pub(crate) fn bound_at(&self, fence: &[u8]) -> Bound<Vec<u8>> {
        if self.reverse { Bound::Excluded(fence.to_vec()) } else { Bound::Included(fence.to_vec()) }
    }
}

/// How a scan of one compute server's keys ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scanned {
    /// Entries handed out.
    pub entries: usize,
    /// The limit was reached, the visitor had enough, or the range ended; otherwise the compute server's own key
    /// range ended first.
    pub complete: bool,
    /// Where the scan goes on at another compute server, if it is not complete: the low bound of what is left, or the high
    /// bound if it is descending.
    pub next: Bound<Vec<u8>>,
}

impl Scanned {
    pub(crate) fn end_at(&mut self, next: Bound<Vec<u8>>) {
        (self.complete, self.next) = (false, next);
    }
}

impl ScanRange<'_> {
    /// Whether a scan that came to a fence between two leaves has come to the end of a compute server's keys.
    pub(crate) fn is_end_of(&self, own: &KeyRange, fence: &[u8]) -> bool {
        own.is_empty()
            || match self.reverse {
                false => own.high.as_deref().is_some_and(|end| fence >= end),
                true => own.low.as_deref().is_some_and(|end| fence <= end),
            }
    }

    /// Whether no key of the range is beyond a fence between two leaves.
    pub(crate) fn is_past(&self, fence: &[u8]) -> bool {
        match (self.reverse, self.low, self.high) {
            (false, _, Bound::Unbounded) | (true, Bound::Unbounded, _) => false,
            (false, _, Bound::Included(high)) => fence > high,
            (false, _, Bound::Excluded(high)) => fence >= high,
            (true, Bound::Included(low) | Bound::Excluded(low), _) => fence <= low,
        }
    }
}
