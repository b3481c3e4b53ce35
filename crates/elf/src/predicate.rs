//! Predicates over codes: a conjunction of conditions, each a set of intervals of one column.
//!
//! A [`Predicate`] names columns of the table; a [`Filter`] is the same predicate in the column order of one
//! Elf, ready for searching. Exact match, range and partial match (fact sheet §4) differ only in which
//! columns have a condition and how wide it is. Intervals of a condition are sorted and disjoint.

use std::collections::BTreeMap;

use crate::error::{Error, Result};

/// Codes from `low` to `high`, both included; no code if `low > high`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Interval {
    pub low: u32,
    pub high: u32,
}

impl Interval {
    /// All codes.
    pub const ALL: Self = Self { low: 0, high: u32::MAX };

    /// Codes from `low` to `high`, both included.
    pub fn new(low: u32, high: u32) -> Self {
        Self { low, high }
    }

    /// One code.
    pub fn point(code: u32) -> Self {
        Self { low: code, high: code }
    }

    pub fn contains(self, code: u32) -> bool {
        self.low <= code && code <= self.high
    }
}

/// Sorts intervals, drops empty ones and merges those that overlap or touch.
pub(crate) fn normalize(mut intervals: Vec<Interval>) -> Vec<Interval> {
    intervals.retain(|interval| interval.low <= interval.high);
    intervals.sort_unstable();
    intervals.dedup_by(|next, kept| {
        let touches = kept.high == u32::MAX || next.low <= kept.high + 1;
        if touches {
            kept.high = kept.high.max(next.high);
        }
        touches
    });
    intervals
}

/// Codes that are in both of two normalized sets.
pub(crate) fn intersect(left: &[Interval], right: &[Interval]) -> Vec<Interval> {
    let (mut i, mut j) = (0, 0);
    let mut both = Vec::new();
    while let (Some(a), Some(b)) = (left.get(i), right.get(j)) {
        let common = Interval::new(a.low.max(b.low), a.high.min(b.high));
        if common.low <= common.high {
            both.push(common);
        }
        if a.high < b.high { i += 1 } else { j += 1 }
    }
    both
}

/// A conjunction of conditions on columns, by column number of the table.
///
/// ```
/// use pando_elf::{Interval, Predicate};
/// let predicate = Predicate::all().and(0, [Interval::point(3)]).and(2, [Interval::new(5, 9), Interval::new(1, 2)]);
/// assert!(predicate.matches(|column| [3, 0, 7][column]));
/// assert!(!predicate.matches(|column| [3, 0, 4][column]));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Predicate {
    conditions: BTreeMap<usize, Vec<Interval>>,
}

impl Predicate {
    /// The predicate without conditions, which every row meets.
    pub fn all() -> Self {
        Self::default()
    }

    /// An exact match: each column has one code.
    pub fn exact(codes: &[u32]) -> Self {
        codes
            .iter()
            .enumerate()
            .fold(Self::all(), |all, (column, &code)| all.and(column, [Interval::point(code)]))
    }

    /// Adds a condition: the code of `column` is in one of `intervals`. Without intervals no row matches. A
    /// second condition on a column narrows the first.
    #[must_use]
    pub fn and(mut self, column: usize, intervals: impl IntoIterator<Item = Interval>) -> Self {
        let intervals = normalize(intervals.into_iter().collect());
        let intervals = match self.conditions.get(&column) {
            Some(earlier) => intersect(earlier, &intervals),
            None => intervals,
        };
        self.conditions.insert(column, intervals);
        self
    }

    /// Columns with a condition and their sorted, disjoint intervals, in the order of column numbers.
    pub fn conditions(&self) -> impl Iterator<Item = (usize, &[Interval])> {
        self.conditions.iter().map(|(&column, intervals)| (column, intervals.as_slice()))
    }

    /// Whether a row with the given codes meets all conditions.
    pub fn matches(&self, code: impl Fn(usize) -> u32) -> bool {
        self.conditions().all(|(column, intervals)| contains(intervals, code(column)))
    }
}

/// Whether one of the sorted intervals contains `code`.
#[inline]
pub(crate) fn contains(intervals: &[Interval], code: u32) -> bool {
    if let [only] = intervals {
        return only.contains(code);
    }
    let at = intervals.partition_point(|interval| interval.high < code);
    intervals.get(at).is_some_and(|interval| interval.low <= code)
}

/// A predicate in the column order of one Elf. Level `l` is the column that is `l`-th in that order.
#[derive(Clone, Debug)]
pub struct Filter {
    levels: Vec<Option<Box<[Interval]>>>,
    constrained: Vec<usize>,
    is_empty: bool,
    point: Option<Vec<u32>>,
}

impl Filter {
    /// Translates `predicate` for an Elf whose level `l` is column `order[l]`. Fails if it names a column
    /// that is not in `order`.
    pub fn new(predicate: &Predicate, order: &[usize]) -> Result<Self> {
        let mut levels: Vec<Option<Box<[Interval]>>> = vec![None; order.len()];
        for (column, intervals) in predicate.conditions() {
            let level = order
                .iter()
                .position(|&other| other == column)
                .ok_or(Error::ColumnOutOfRange { column, columns: order.len() })?;
            // A condition that every code meets would only cost time.
            if intervals != [Interval::ALL] {
                levels[level] = Some(intervals.into());
            }
        }
        let constrained: Vec<usize> = (0..levels.len()).filter(|&level| levels[level].is_some()).collect();
        let is_empty = levels.iter().flatten().any(|intervals| intervals.is_empty());
        let point = levels.iter().map(|intervals| match intervals.as_deref() {
            Some(&[Interval { low, high }]) if low == high => Some(low),
            _ => None,
        });
        let point = point.collect();
        Ok(Self { levels, constrained, is_empty, point })
    }

    /// Whether no row can match.
    pub fn is_empty(&self) -> bool {
        self.is_empty
    }

    /// The code of each level if all have a condition that only one code meets.
    pub fn point(&self) -> Option<&[u32]> {
        self.point.as_deref()
    }

    /// Intervals of level `level`, `None` if it has no condition.
    #[inline]
    pub fn level(&self, level: usize) -> Option<&[Interval]> {
        self.levels[level].as_deref()
    }

    /// Whether `code` meets the condition of level `level`.
    #[inline]
    pub fn admits(&self, level: usize, code: u32) -> bool {
        self.level(level).is_none_or(|intervals| contains(intervals, code))
    }

    /// Levels with a condition, from the top.
    #[inline]
    pub fn constrained(&self) -> &[usize] {
        &self.constrained
    }

    /// Levels with a condition that are not above `level`.
    #[inline]
    pub fn constrained_from(&self, level: usize) -> &[usize] {
        &self.constrained[self.constrained.partition_point(|&other| other < level)..]
    }

    /// Number of levels down to the last one with a condition, which is included.
    #[inline]
    pub fn depth(&self) -> usize {
        self.constrained.last().map_or(0, |level| level + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_sorted_merged_and_rid_of_empty_ones() {
        let of = |pairs: &[(u32, u32)]| {
            pairs.iter().map(|&(low, high)| Interval::new(low, high)).collect::<Vec<_>>()
        };
        assert_eq!(normalize(of(&[(7, 9), (1, 3), (4, 4), (6, 5), (8, 12)])), of(&[(1, 4), (7, 12)]));
        assert_eq!(normalize(of(&[(5, u32::MAX), (9, 10)])), of(&[(5, u32::MAX)]));
        assert_eq!(
            intersect(&of(&[(1, 4), (7, 12)]), &of(&[(3, 8), (12, 20)])),
            of(&[(3, 4), (7, 8), (12, 12)])
        );
    }

    #[test]
    fn a_second_condition_narrows_the_first() {
        let predicate = Predicate::all().and(1, [Interval::new(2, 8)]).and(1, [Interval::new(7, 20)]);
        assert_eq!(predicate.conditions().collect::<Vec<_>>(), [(1, [Interval::new(7, 8)].as_slice())]);
        let nothing = predicate.and(1, []);
        assert!(Filter::new(&nothing, &[1, 0]).expect("column 1 exists").is_empty());
    }

    #[test]
    fn a_filter_follows_the_column_order() {
        let predicate = Predicate::all().and(0, [Interval::point(1)]).and(2, [Interval::new(0, u32::MAX)]);
        let filter = Filter::new(&predicate, &[2, 1, 0]).expect("all columns exist");
        assert_eq!((filter.constrained(), filter.depth()), ([2].as_slice(), 3));
        let error = Error::ColumnOutOfRange { column: 2, columns: 2 };
        assert_eq!(Filter::new(&predicate, &[0, 1]).map(|_| ()), Err(error));
    }
}
