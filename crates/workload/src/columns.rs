//! Tables of codes for selections on several columns, and conditions on them, from fixed seeds.
//!
//! [`uniform`] is the synthetic set of Jibril et al. (DAPD 2022 §5.2), [`lineitem`] a table like TPC-H's: the same
//! columns, cardinalities and correlations. Conditions are made from a row, as in that paper, or at random over a
//! range of selectivities. A condition is an interval of codes of a column, both ends included.

use crate::Rng;

/// Codes of a table, column by column.
pub type Columns = Vec<Vec<u32>>;

/// A condition on a column: its number, the least and the greatest code.
pub type Condition = (usize, u32, u32);

/// Rows with independent, uniform codes from 0 to `cardinality - 1`.
pub fn uniform(rows: usize, columns: usize, cardinality: u32, seed: u64) -> Columns {
    let mut random = Rng::new(seed);
    let mut column = || (0..rows).map(|_| (random.unit() * f64::from(cardinality)) as u32).collect();
    (0..columns).map(|_| column()).collect()
}

/// A generator of random numbers (splitmix64).
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    pub fn next_u64(&mut self) -> u64 {
        let mixed = crate::mix64(self.0);
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: u32) -> u32 {
        ((u128::from(self.next_u64()) * u128::from(limit)) >> 64) as u32
    }
}

/// Names of the columns of [`lineitem`].
pub const LINEITEM: [&str; 15] = [
    "orderkey",
    "partkey",
    "suppkey",
    "linenumber",
    "quantity",
    "extendedprice",
    "discount",
    "tax",
    "returnflag",
    "linestatus",
    "shipdate",
    "commitdate",
    "receiptdate",
    "shipinstruct",
    "shipmode",
];

/// Days from the first order date to 1994-01-01, 1995-01-01 and 1995-06-17.
pub const YEAR_1994: u32 = 731;
pub const YEAR_1995: u32 = 1_096;
const CURRENT_DATE: u32 = 1_263;

/// The conditions of TPC-H's Q6: discounts are coded from 0.00 = 1, quantities from 1, and dates in days.
pub const Q6: [Condition; 3] = [(6, 6, 8), (4, 1, 23), (10, YEAR_1994, YEAR_1995 - 1)];

/// What a query asks of a column: a code in one of the intervals, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OneOf {
    pub column: usize,
    pub intervals: &'static [(u32, u32)],
}

/// Conditions of a query of TPC-H on [`lineitem`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TpchQuery {
    pub name: &'static str,
    pub conditions: &'static [OneOf],
}

const fn one_of(column: usize, intervals: &'static [(u32, u32)]) -> OneOf {
    OneOf { column, intervals }
}

/// Conditions on lineitem of the queries that have some, with the parameters of the specification's validation. Q12
/// also compares dates of a row with each other, which no interval says. The three quantities of Q19 are one
/// interval together, and of its two ship modes one occurs. Names are coded in alphabetical order.
pub const TPCH: [TpchQuery; 6] = [
    TpchQuery { name: "Q1", conditions: &[one_of(10, &[(0, 2_436)])] },
    TpchQuery {
        name: "Q6",
        conditions: &[one_of(6, &[(6, 8)]), one_of(4, &[(1, 23)]), one_of(10, &[(YEAR_1994, YEAR_1995 - 1)])],
    },
    TpchQuery { name: "Q10", conditions: &[one_of(8, &[(3, 3)])] },
    TpchQuery {
        name: "Q12",
        conditions: &[one_of(14, &[(3, 3), (6, 6)]), one_of(12, &[(YEAR_1994, YEAR_1995 - 1)])],
    },
    TpchQuery { name: "Q14", conditions: &[one_of(10, &[(YEAR_1995 + 243, YEAR_1995 + 272)])] },
    TpchQuery {
        name: "Q19",
        conditions: &[one_of(13, &[(2, 2)]), one_of(14, &[(1, 1)]), one_of(4, &[(1, 30)])],
    },
];

/// A table like lineitem with about four rows per order. Codes count from 1, or from 0 for dates.
pub fn lineitem(rows: usize) -> Columns {
    let mut random = Random(6);
    let scale = |per_million: usize| (rows * per_million / 1_000_000).max(1) as u32;
    let (parts, suppliers) = (scale(33_333), scale(1_667));
    let mut columns: Columns = vec![Vec::with_capacity(rows); LINEITEM.len()];
    let (mut order, mut lines, mut line, mut order_date) = (0, 0, 0, 0);
    for _ in 0..rows {
        if line == lines {
            (order, line, lines, order_date) = (order + 1, 0, 1 + random.below(7), random.below(2_406));
        }
        line += 1;
        let (part, quantity) = (1 + random.below(parts), 1 + random.below(50));
        let supplier = 1 + (part + random.below(4) * (suppliers / 4 + (part - 1) / suppliers)) % suppliers;
        let price = 90_000 + (part / 10) % 20_001 + 100 * (part % 1_000);
        let ship = order_date + 1 + random.below(121);
        let (commit, receipt) = (order_date + 30 + random.below(61), ship + 1 + random.below(30));
        let flag = if receipt <= CURRENT_DATE { 2 * random.below(2) } else { 1 };
        let row = [
            order,
            part,
            supplier,
            line,
            quantity,
            quantity * price,
            1 + random.below(11),
            1 + random.below(9),
            1 + flag,
            1 + u32::from(ship > CURRENT_DATE),
            ship,
            commit,
            receipt,
            1 + random.below(4),
            1 + random.below(7),
        ];
        columns.iter_mut().zip(row).for_each(|(column, code)| column.push(code));
    }
    make_dense(&mut columns[5]);
    columns
}

/// Replaces values by their ranks among the distinct ones, from 1.
fn make_dense(column: &mut [u32]) {
    let mut distinct = column.to_vec();
    distinct.sort_unstable();
    distinct.dedup();
    let rank = |value: u32| distinct.partition_point(|&other| other <= value) as u32;
    column.iter_mut().for_each(|value| *value = rank(*value));
}

/// Kind of a query that is made from a row (DAPD 2022 §5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryKind {
    /// All codes of the row.
    Exact,
    /// An interval on each column that begins at the row's code.
    Range,
    /// The same on every second column, beginning with the first; the paper does not say which are chosen.
    Partial,
}

impl QueryKind {
    /// Conditions made from a row with the given codes. `range_percent` of a column's domain, which ends with its
    /// greatest code, is the width of an interval; intervals are cut at the end of the domain.
    pub fn conditions(self, codes: &[u32], greatest: &[u32], range_percent: u32) -> Vec<Condition> {
        let step = if self == QueryKind::Partial { 2 } else { 1 };
        let condition = |column: usize| {
            let (low, last) = (codes[column], greatest[column]);
            let width = match self {
                QueryKind::Exact => 0,
                _ => ((u64::from(last) + 1) * u64::from(range_percent) / 100) as u32,
            };
            (column, low, low.saturating_add(width).min(last))
        };
        (0..codes.len()).step_by(step).map(condition).collect()
    }
}

/// An interval with a random place and the given share of the codes 1 to `greatest`, at least one code.
pub fn random_interval(random: &mut Random, greatest: u32, share: f64) -> (u32, u32) {
    let width = ((f64::from(greatest) * share) as u32).max(1);
    let low = 1 + random.below(greatest - width.min(greatest) + 1);
    (low, low + width - 1)
}

/// Conditions on `1 + number` columns (modulo all of them), chosen at random, that together admit between 0.001% and
/// all rows of a table with independent columns.
pub fn random_conditions(random: &mut Random, number: usize, greatest: &[u32]) -> Vec<Condition> {
    let width = 1 + number % greatest.len();
    let share = 10_f64.powf(-5.0 * (f64::from(random.below(1_000)) / 1_000.0)).powf(1.0 / width as f64);
    let mut chosen: Vec<usize> = (0..greatest.len()).collect();
    (0..greatest.len()).for_each(|at| chosen.swap(at, random.below(greatest.len() as u32) as usize));
    let condition = |&column: &usize| {
        let (low, high) = random_interval(random, greatest[column], share);
        (column, low, high)
    };
    chosen[..width].iter().map(condition).collect()
}

/// Conditions on the columns of [`Q6`] at random places that together admit about the given share of the rows. Columns
/// with few values come first; the others make up for what these cannot divide.
pub fn conditions_like_q6(random: &mut Random, greatest: &[u32], share: f64) -> Vec<Condition> {
    let mut left = share;
    let condition = |(number, &(column, ..)): (usize, &Condition)| {
        let values = f64::from(greatest[column]);
        let width = (values * left.powf(1.0 / (Q6.len() - number) as f64)).round().clamp(1.0, values);
        left = (left * values / width).min(1.0);
        let (low, high) = random_interval(random, greatest[column], (width + 0.5) / values);
        (column, low, high)
    };
    Q6.iter().enumerate().map(condition).collect()
}

/// Conditions on one to four columns that queries of TPC-H use on lineitem, and those of Q6 at the end. Conditions on
/// one column hold together.
pub fn mixed_workload(greatest: &[u32]) -> Vec<Vec<Condition>> {
    let mut random = Random(7);
    let used = [4, 6, 10, 12, 14, 8];
    let any = |random: &mut Random| {
        let width = 1 + random.below(4);
        let condition = |_| {
            let column = used[random.below(used.len() as u32) as usize];
            let (low, high) = random_interval(random, greatest[column], 0.2);
            (column, low, high)
        };
        (0..width).map(condition).collect()
    };
    (0..20).map(|_| any(&mut random)).chain([Q6.to_vec()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_uniform_set_has_all_codes_and_no_other() {
        let columns = uniform(20_000, 3, 100, 1);
        assert!(columns.iter().all(|column| column.len() == 20_000));
        for column in &columns {
            let seen: std::collections::BTreeSet<u32> = column.iter().copied().collect();
            assert!(seen.len() == 100 && seen.last() == Some(&99));
        }
        assert_ne!(columns[0], columns[1]);
    }

    #[test]
    fn q6_finds_its_share_of_lineitem() {
        let columns = lineitem(100_000);
        let matches = |row: usize| Q6.iter().all(|&(c, low, high)| (low..=high).contains(&columns[c][row]));
        let found = (0..100_000).filter(|&row| matches(row)).count();
        assert!((1_700..2_200).contains(&found), "{found}");
    }

    #[test]
    fn conditions_like_those_of_q6_find_the_wanted_share() {
        let columns = lineitem(100_000);
        let greatest: Vec<u32> = columns.iter().map(|codes| *codes.iter().max().expect("rows")).collect();
        let mut random = Random(3);
        for share in [0.000_1, 0.001, 0.01, 0.1, 0.5] {
            let mut found = 0;
            for _ in 0..20 {
                let conditions = conditions_like_q6(&mut random, &greatest, share);
                let meets =
                    |row: usize| conditions.iter().all(|&(c, l, h)| (l..=h).contains(&columns[c][row]));
                found += (0..100_000).filter(|&row| meets(row)).count();
            }
            let mean = found as f64 / 20.0 / 100_000.0;
            assert!((0.7 * share..1.3 * share).contains(&mean), "{mean} instead of {share}");
        }
    }

    #[test]
    fn conditions_of_tpch_find_about_what_they_find_in_lineitem() {
        let columns = lineitem(100_000);
        // Of 6,001,215 rows at scale factor 1; of Q12 without its comparisons of dates.
        for (query, expected) in TPCH.iter().zip([0.986, 0.019, 0.246, 0.043, 0.0126, 0.021]) {
            let meets = |row: usize| {
                query.conditions.iter().all(|condition| {
                    let code = columns[condition.column][row];
                    condition.intervals.iter().any(|&(low, high)| (low..=high).contains(&code))
                })
            };
            let share = (0..100_000).filter(|&row| meets(row)).count() as f64 / 100_000.0;
            assert!((0.85 * expected..1.15 * expected).contains(&share), "{}: {share}", query.name);
        }
    }

    #[test]
    fn conditions_hold_for_their_row_and_end_with_the_domain() {
        let (codes, greatest) = ([98, 5, 0, 99], [99, 99, 99, 99]);
        let exact = QueryKind::Exact.conditions(&codes, &greatest, 2);
        assert_eq!(exact, [(0, 98, 98), (1, 5, 5), (2, 0, 0), (3, 99, 99)]);
        let range = QueryKind::Range.conditions(&codes, &greatest, 2);
        assert_eq!(range, [(0, 98, 99), (1, 5, 7), (2, 0, 2), (3, 99, 99)]);
        assert_eq!(QueryKind::Partial.conditions(&codes, &greatest, 100), [(0, 98, 99), (2, 0, 99)]);
    }

    #[test]
    fn random_conditions_are_valid_intervals_of_distinct_columns() {
        let (mut random, greatest) = (Random(11), [3, 1, 1_000, 70_000]);
        for number in 0..200 {
            let conditions = random_conditions(&mut random, number, &greatest);
            assert_eq!(conditions.len(), 1 + number % 4);
            let mut columns: Vec<usize> = conditions.iter().map(|&(column, ..)| column).collect();
            columns.sort_unstable();
            columns.dedup();
            assert_eq!(columns.len(), conditions.len());
            assert!(conditions.iter().all(|&(c, low, high)| 1 <= low && low <= high && high <= greatest[c]));
        }
    }
}
