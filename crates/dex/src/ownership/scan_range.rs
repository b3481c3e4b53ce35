//! Range of a scan, and its result at one compute server.
//!
//! A scan continues at the next compute server where the keys of one end. Each end of a range is inclusive,
//! exclusive or open, and the scan goes in either direction.

use std::ops::Bound;

use crate::ownership::range::{KeyRange, partition_of};

/// Range, limit and direction of a scan.
#[derive(Clone, Copy, Debug)]
pub struct ScanRange<'k> {
    pub low: Bound<&'k [u8]>,
    pub high: Bound<&'k [u8]>,
    /// Largest number of entries.
    pub limit: usize,
    /// Descending, from the high end.
    pub reverse: bool,
}

impl ScanRange<'_> {
    /// All entries in ascending order.
    pub fn all() -> Self {
        Self { low: Bound::Unbounded, high: Bound::Unbounded, limit: usize::MAX, reverse: false }
    }

    /// Whether a key is not above the high end.
    pub fn below_high(&self, key: &[u8]) -> bool {
        match self.high {
            Bound::Unbounded => true,
            Bound::Included(high) => key <= high,
            Bound::Excluded(high) => key < high,
        }
    }

    /// Whether a key is not below the low end.
    pub fn above_low(&self, key: &[u8]) -> bool {
        match self.low {
            Bound::Unbounded => true,
            Bound::Included(low) => low <= key,
            Bound::Excluded(low) => low < key,
        }
    }

    /// Partition in which the scan begins.
    pub fn first_partition(&self, boundaries: &[Vec<u8>]) -> usize {
        match (self.reverse, if self.reverse { self.high } else { self.low }) {
            (false, Bound::Unbounded) => 0,
            (true, Bound::Unbounded) => boundaries.len(),
            // The keys below it may be in the partition before.
            (true, Bound::Excluded(high)) => {
                boundaries.partition_point(|boundary| boundary.as_slice() < high)
            }
            (_, Bound::Included(key) | Bound::Excluded(key)) => partition_of(boundaries, key),
        }
    }

    /// Whether the first key of the range is in `own`.
    pub fn starts_in(&self, own: &KeyRange) -> bool {
        match (self.reverse, if self.reverse { self.high } else { self.low }) {
            (false, Bound::Unbounded) => own.low.is_none(),
            (true, Bound::Unbounded) => own.high.is_none(),
            (true, Bound::Excluded(high)) => own.contains_below(high),
            (_, Bound::Included(key) | Bound::Excluded(key)) => own.contains(key),
        }
    }

    /// Bound from which a scan continues after a fence between two leaves.
    pub(crate) fn bound_at(&self, fence: &[u8]) -> Bound<Vec<u8>> {
        if self.reverse { Bound::Excluded(fence.to_vec()) } else { Bound::Included(fence.to_vec()) }
    }
}

/// Result of a scan at one compute server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scanned {
    /// Number of entries visited.
    pub entries: usize,
    /// Whether the scan is over: the limit was reached, the visitor stopped it, or the range ended. Otherwise
    /// the compute server's own keys ended first.
    pub complete: bool,
    /// If not complete, where the scan continues at another compute server: the low bound of the rest, or the
    /// high bound if it is descending.
    pub next: Bound<Vec<u8>>,
}

impl Scanned {
    pub(crate) fn end_at(&mut self, next: Bound<Vec<u8>>) {
        (self.complete, self.next) = (false, next);
    }
}

impl ScanRange<'_> {
    /// Whether a scan at a fence between two leaves has reached the end of a compute server's keys.
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
