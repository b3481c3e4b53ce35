//! Disjunctions of conjunctions over codes: union, intersection, and the form whose row sets do not overlap.
//!
//! A conjunction holds a set of codes for each column with a condition. A set never is empty, and never has
//! all codes of its column. Two conjunctions that differ in one column only are kept as one, so a disjunction
//! stays small; a bound on their number keeps all operations small.

use std::collections::BTreeMap;

use crate::predicate::{Interval, Predicate, intersect, normalize};

/// Codes of each column that has a condition.
type Conjunction = BTreeMap<usize, Vec<Interval>>;

/// Rows that meet at least one conjunction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Disjunction(Vec<Conjunction>);

/// All rows that a table may have.
pub(super) struct Space {
    /// Codes that each column may have.
    pub(super) codes: Vec<Interval>,
    /// Most conjunctions of a disjunction.
    pub(super) conjunctions_max: usize,
}

/// A disjunction, or `None` if it would have too many conjunctions.
type Bounded = Option<Disjunction>;

impl Space {
    /// All rows or none.
    pub(super) fn constant(&self, is_true: bool) -> Disjunction {
        Disjunction(if is_true { vec![Conjunction::new()] } else { Vec::new() })
    }

    /// Rows whose code of `column` is in one of `intervals`.
    pub(super) fn column(&self, column: usize, intervals: Vec<Interval>) -> Disjunction {
        let set = intersect(&normalize(intervals), &[self.codes[column]]);
        if set.is_empty() {
            return self.constant(false);
        }
        let mut conjunction = Conjunction::new();
        self.restrict(&mut conjunction, column, set);
        Disjunction(vec![conjunction])
    }

    /// Rows of any of `terms`.
    pub(super) fn union(&self, terms: Vec<Disjunction>) -> Bounded {
        let mut by_column: BTreeMap<usize, Vec<Interval>> = BTreeMap::new();
        let mut others = Vec::new();
        for conjunction in terms.into_iter().flat_map(|term| term.0) {
            match conjunction.len() {
                1 => conjunction.into_iter().for_each(|(column, set)| {
                    by_column.entry(column).or_default().extend(set);
                }),
                _ => others.push(conjunction),
            }
        }
        let columns = by_column.into_iter().flat_map(|(column, set)| self.column(column, set).0);
        let mut union = Disjunction::default();
        for conjunction in columns.chain(others) {
            self.insert(&mut union, conjunction)?;
        }
        Some(union)
    }

    /// Rows of all `terms`.
    pub(super) fn intersection(&self, terms: Vec<Disjunction>) -> Bounded {
        terms.into_iter().try_fold(self.constant(true), |left, right| {
            let mut both = Disjunction::default();
            for (a, b) in left.0.iter().flat_map(|a| right.0.iter().map(move |b| (a, b))) {
                if let Some(common) = self.common(a, b) {
                    self.insert(&mut both, common)?;
                }
            }
            Some(both)
        })
    }

    /// The same rows as predicates of which no two have a row in common.
    pub(super) fn disjoint(&self, mut rows: Disjunction) -> Option<Vec<Predicate>> {
        // What is taken first is not divided.
        rows.0.sort_by(|a, b| self.share(b).total_cmp(&self.share(a)));
        let mut disjoint = Disjunction::default();
        for conjunction in rows.0 {
            let mut pieces = vec![conjunction];
            for taken in &disjoint.0 {
                pieces = pieces.into_iter().flat_map(|piece| self.difference(piece, taken)).collect();
                if pieces.len() > self.conjunctions_max {
                    return None;
                }
            }
            for piece in pieces {
                self.insert(&mut disjoint, piece)?;
            }
        }
        let predicate = |conjunction: Conjunction| {
            conjunction.into_iter().fold(Predicate::all(), |all, (column, set)| all.and(column, set))
        };
        Some(disjoint.0.into_iter().map(predicate).collect())
    }

    /// Adds the rows of `conjunction`. Fails if there are too many conjunctions then.
    fn insert(&self, rows: &mut Disjunction, mut conjunction: Conjunction) -> Option<()> {
        let mut at = 0;
        while at < rows.0.len() {
            match self.join(&rows.0[at], &conjunction) {
                None => at += 1,
                // What does not join either of two may join both.
                Some(both) => {
                    rows.0.swap_remove(at);
                    (conjunction, at) = (both, 0);
                }
            }
        }
        rows.0.push(conjunction);
        (rows.0.len() <= self.conjunctions_max).then_some(())
    }

    /// One conjunction for the rows of two, if there is one.
    fn join(&self, a: &Conjunction, b: &Conjunction) -> Option<Conjunction> {
        let is_within = |a: &Conjunction, b: &Conjunction| {
            b.iter()
                .all(|(column, set)| a.get(column).is_some_and(|narrow| intersect(narrow, set) == *narrow))
        };
        if is_within(a, b) {
            return Some(b.clone());
        }
        if is_within(b, a) {
            return Some(a.clone());
        }
        let mut differing = a.iter().filter(|(column, set)| b.get(column) != Some(set));
        let (&column, set) = differing.next()?;
        let other = b.get(&column)?;
        if differing.next().is_some() || a.len() != b.len() {
            return None;
        }
        let mut both = a.clone();
        self.restrict(&mut both, column, normalize([set.as_slice(), other].concat()));
        Some(both)
    }

    /// Rows of both, `None` if there are none.
    fn common(&self, a: &Conjunction, b: &Conjunction) -> Option<Conjunction> {
        let mut common = a.clone();
        for (&column, set) in b {
            let set = intersect(self.set(a, column), set);
            if set.is_empty() {
                return None;
            }
            common.insert(column, set);
        }
        Some(common)
    }

    /// Rows of `from` that are not in `taken`, as conjunctions that do not overlap.
    fn difference(&self, from: Conjunction, taken: &Conjunction) -> Vec<Conjunction> {
        let Some(common) = self.common(&from, taken) else { return vec![from] };
        let mut rest = from;
        let mut pieces = Vec::new();
        // A row outside of `taken` belongs to the piece of the first column whose condition it does not meet.
        for (&column, set) in taken {
            let outside = intersect(self.set(&rest, column), &complement(set));
            if !outside.is_empty() {
                let mut piece = rest.clone();
                self.restrict(&mut piece, column, outside);
                pieces.push(piece);
            }
            self.restrict(&mut rest, column, self.set(&common, column).to_vec());
        }
        pieces
    }

    /// Share of all combinations of codes that a conjunction has.
    fn share(&self, conjunction: &Conjunction) -> f64 {
        let count = |set: &[Interval]| -> f64 {
            set.iter().map(|interval| f64::from(interval.high - interval.low) + 1.0).sum()
        };
        conjunction.iter().map(|(&column, set)| count(set) / count(&[self.codes[column]])).product()
    }

    fn set<'a>(&'a self, conjunction: &'a Conjunction, column: usize) -> &'a [Interval] {
        conjunction.get(&column).map_or(std::slice::from_ref(&self.codes[column]), Vec::as_slice)
    }

    /// Replaces the condition on `column` by `set`, which is not empty.
    fn restrict(&self, conjunction: &mut Conjunction, column: usize, set: Vec<Interval>) {
        if set == [self.codes[column]] {
            conjunction.remove(&column);
        } else {
            conjunction.insert(column, set);
        }
    }
}

/// All codes that are not in the normalized `set`.
pub(super) fn complement(set: &[Interval]) -> Vec<Interval> {
    let mut gaps = Vec::with_capacity(set.len() + 1);
    let mut next = Some(0);
    for interval in set {
        match next {
            Some(low) if low < interval.low => gaps.push(Interval::new(low, interval.low - 1)),
            _ => {}
        }
        next = interval.high.checked_add(1);
    }
    gaps.extend(next.map(|low| Interval::new(low, u32::MAX)));
    gaps
}
