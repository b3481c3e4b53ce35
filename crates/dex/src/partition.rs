//! Logical partitions (DEX §4): the key range that one compute server owns.
//!
//! The ranges of an index tile the key space, low ends inclusive. A node whose fences lie within one range belongs
//! to that compute server alone; one whose fences cross a boundary is *shared* and follows the protocol of
//! `shared.rs`. A leaf never crosses one.

use std::cmp::Ordering;

use crate::layout::{Layout, Side};
use pando_cache::sync::Word;

/// A range of keys, low end inclusive, high end exclusive; `None` is infinite.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyRange {
    pub low: Option<Vec<u8>>,
    pub high: Option<Vec<u8>>,
}

impl KeyRange {
    /// All keys.
    pub fn all() -> Self {
        Self::default()
    }

    /// The ranges that `boundaries` (ascending) cut the key space into: one more than there are boundaries.
    pub fn from_boundaries(boundaries: &[Vec<u8>]) -> Vec<Self> {
        let ends = || boundaries.iter().cloned().map(Some);
        std::iter::once(None)
            .chain(ends())
            .zip(ends().chain(std::iter::once(None)))
            .map(|(low, high)| Self { low, high })
            .collect()
    }

    pub fn is_all(&self) -> bool {
        self.low.is_none() && self.high.is_none()
    }

    #[inline]
    pub fn contains(&self, key: &[u8]) -> bool {
        self.low.as_deref().is_none_or(|low| low <= key) && self.high.as_deref().is_none_or(|high| key < high)
    }

    /// Whether all keys of `[low, high)` are in this range.
    pub fn contains_range(&self, low: Option<&[u8]>, high: Option<&[u8]>) -> bool {
        let low_inside = match (self.low.as_deref(), low) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(ours), Some(theirs)) => ours <= theirs,
        };
        let high_inside = match (self.high.as_deref(), high) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(ours), Some(theirs)) => theirs <= ours,
        };
        low_inside && high_inside
    }

    /// Whether a node with these fences belongs to more than this range, so that other compute servers use it too.
    pub fn is_shared<L: Layout>(&self, layout: L, page: &[Word]) -> bool {
        if self.is_all() {
            return false;
        }
        let fence = |side| {
            let mut key = Vec::new();
            layout.append_fence(page, side, &mut key).then_some(key)
        };
        !self.contains_range(fence(Side::Low).as_deref(), fence(Side::High).as_deref())
    }
}

/// Number of the partition that `key` belongs to.
pub fn partition_of(boundaries: &[Vec<u8>], key: &[u8]) -> usize {
    boundaries.partition_point(|boundary| boundary.as_slice().cmp(key) != Ordering::Greater)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boundaries_tile_the_key_space() {
        let boundaries = vec![b"g".to_vec(), b"p".to_vec()];
        let ranges = KeyRange::from_boundaries(&boundaries);
        assert_eq!(ranges.len(), 3);
        for key in [&b""[..], b"f", b"g", b"ga", b"o\xff", b"p", b"zz"] {
            let owner = partition_of(&boundaries, key);
            for (i, range) in ranges.iter().enumerate() {
                assert_eq!(range.contains(key), i == owner, "{key:?}");
            }
        }
    }

    #[test]
    fn a_range_is_inside_only_if_both_ends_are() {
        let range = KeyRange { low: Some(b"b".to_vec()), high: Some(b"d".to_vec()) };
        assert!(range.contains_range(Some(b"b"), Some(b"d")) && range.contains_range(Some(b"c"), Some(b"d")));
        assert!(!range.contains_range(None, Some(b"c")) && !range.contains_range(Some(b"c"), None));
        assert!(!range.contains_range(Some(b"c"), Some(b"e")) && KeyRange::all().contains_range(None, None));
    }
}
