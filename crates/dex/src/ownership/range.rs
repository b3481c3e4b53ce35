//! Logical partitions (DEX §4): the key range that one compute server owns.
//!
//! The ranges of an index tile the key space; low ends are inclusive. A node whose fences lie within one
//! range belongs to that compute server alone. One whose fences cross a boundary is *shared* and follows the
//! protocol of [`shared`](crate::shared). A leaf never crosses a boundary. Ranges change while the index is
//! in use: see [`view`](crate::ownership::view).

use std::cmp::Ordering;

use crate::layout::Layout;
use crate::node::{Bounds, Node};

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

    /// Ranges into which `boundaries` (ascending) cut the key space: one more than there are boundaries.
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

    /// An empty range: of a compute server that is being added, or has given all keys away.
    pub fn none() -> Self {
        Self { low: Some(Vec::new()), high: Some(Vec::new()) }
    }

    /// Whether no key is in the range.
    pub fn is_empty(&self) -> bool {
        matches!((&self.low, &self.high), (Some(low), Some(high)) if low >= high)
    }

    #[inline]
    pub fn contains(&self, key: &[u8]) -> bool {
        self.low.as_deref().is_none_or(|low| low <= key) && self.high.as_deref().is_none_or(|high| key < high)
    }

    /// Whether the largest keys below `key` are in this range.
    pub(crate) fn contains_below(&self, key: &[u8]) -> bool {
        self.low.as_deref().is_none_or(|low| low < key) && self.high.as_deref().is_none_or(|high| key <= high)
    }

    /// Whether no key of `[low, high)` is in this range.
    pub fn is_apart_from(&self, low: Option<&[u8]>, high: Option<&[u8]>) -> bool {
        let below = |end: Option<&[u8]>, start: Option<&[u8]>| matches!((end, start), (Some(end), Some(start)) if end <= start);
        self.is_empty() || below(high, self.low.as_deref()) || below(self.high.as_deref(), low)
    }

    /// Union of this range and an adjacent one; `None` if they overlap or keys between them would be missing.
    pub fn joined(&self, other: &Self) -> Option<Self> {
        if self.is_empty() || other.is_empty() {
            return Some(if self.is_empty() { other.clone() } else { self.clone() });
        }
        if self.high.is_some() && self.high == other.low {
            return Some(Self { low: self.low.clone(), high: other.high.clone() });
        }
        (self.low.is_some() && self.low == other.high)
            .then(|| Self { low: other.low.clone(), high: self.high.clone() })
    }

    /// The part of this range outside `kept`. `kept` is empty or shares an end with this range, else the
    /// result is `None`.
    pub fn without(&self, kept: &Self) -> Option<Self> {
        if kept.is_empty() {
            return Some(self.clone());
        }
        match (self.low == kept.low, self.high == kept.high) {
            (true, true) => Some(Self::none()),
            (true, false) => Some(Self { low: kept.high.clone(), high: self.high.clone() }),
            (false, true) => Some(Self { low: self.low.clone(), high: kept.low.clone() }),
            (false, false) => None,
        }
        .filter(|_| self.contains_range(kept.low.as_deref(), kept.high.as_deref()))
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

    /// Whether a node may hold keys outside this range.
    pub(crate) fn is_crossed_by<L: Layout>(&self, node: Node<'_, L>) -> bool {
        !self.is_all() && !self.contains_bounds(&node.fences())
    }

    /// Whether all keys between two bounds are in this range.
    pub(crate) fn contains_bounds(&self, bounds: &Bounds) -> bool {
        self.contains_range(bounds.low(), bounds.high())
    }

    /// Whether no key of a node is in this range.
    pub(crate) fn is_apart_from_node<L: Layout>(&self, node: Node<'_, L>) -> bool {
        let fences = node.fences();
        self.is_apart_from(fences.low(), fences.high())
    }
}

/// Number of the partition that `key` belongs to.
#[inline]
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

    fn range(low: &str, high: &str) -> KeyRange {
        let end = |text: &str| (!text.is_empty()).then(|| text.as_bytes().to_vec());
        KeyRange { low: end(low), high: end(high) }
    }

    #[test]
    fn neighbours_join_and_part_again() {
        let (left, right) = (range("b", "d"), range("d", ""));
        let both = range("b", "");
        assert_eq!((left.joined(&right), right.joined(&left)), (Some(both.clone()), Some(both.clone())));
        assert_eq!((both.without(&left), both.without(&right)), (Some(right.clone()), Some(left.clone())));
        assert_eq!(
            (both.without(&KeyRange::none()), both.joined(&KeyRange::none())),
            (Some(both.clone()), Some(both.clone()))
        );
        assert_eq!(both.without(&both), Some(KeyRange::none()));
        // A gap, an overlap, a hole, and a range that was never part of it.
        assert_eq!((left.joined(&range("e", "")), left.joined(&range("c", ""))), (None, None));
        assert_eq!((both.without(&range("c", "d")), left.without(&range("b", "e"))), (None, None));
    }

    #[test]
    fn what_lies_apart_has_no_key_in_common() {
        let own = range("b", "d");
        for (low, high, apart) in [
            ("", "b", true),
            ("", "c", false),
            ("d", "", true),
            ("c", "", false),
            ("", "", false),
            ("b", "c", false),
        ] {
            let node = range(low, high);
            assert_eq!(own.is_apart_from(node.low.as_deref(), node.high.as_deref()), apart, "{low}..{high}");
            assert!(KeyRange::none().is_apart_from(node.low.as_deref(), node.high.as_deref()));
        }
        assert!(own.contains_below(b"d") && !own.contains_below(b"b") && !own.contains_below(b"e"));
        assert!(KeyRange::none().is_empty() && !own.is_empty() && !KeyRange::none().contains(b""));
    }
}
