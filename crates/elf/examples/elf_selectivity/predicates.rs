//! Predicates on the table like lineitem: that of Q6, those of a mixed workload, and intervals at random places.

use pando_elf::{CodeTable, Interval, Predicate};

use crate::lineitem::{Random, YEAR_1994, YEAR_1995};

const QUANTITY: usize = 4;
const DISCOUNT: usize = 6;
const SHIPDATE: usize = 10;
/// Columns of Q6 in the order of their cardinality.
pub const Q6: [usize; 3] = [DISCOUNT, QUANTITY, SHIPDATE];

/// The predicate of Q6 on the given columns.
pub fn q6([discount, quantity, shipdate]: [usize; 3]) -> Predicate {
    // Discounts are coded from 0.00 = 1, quantities from 1, and dates in days.
    Predicate::all()
        .and(discount, [Interval::new(6, 8)])
        .and(quantity, [Interval::new(1, 23)])
        .and(shipdate, [Interval::new(YEAR_1994, YEAR_1995 - 1)])
}

/// Predicates on one to four columns that queries of TPC-H use.
pub fn mixed_workload(table: &CodeTable) -> Vec<Predicate> {
    let mut random = Random(7);
    let used = [QUANTITY, DISCOUNT, SHIPDATE, 12, 14, 8];
    let any = |random: &mut Random| {
        let width = 1 + random.below(4) as usize;
        (0..width).fold(Predicate::all(), |all, _| {
            let column = used[random.below(used.len() as u32) as usize];
            all.and(column, [interval(random, table.maximum(column), 0.2)])
        })
    };
    (0..20).map(|_| any(&mut random)).chain([q6(Q6)]).collect()
}

/// An interval with a random place and the given share of the codes, at least one code.
pub fn interval(random: &mut Random, maximum: u32, share: f64) -> Interval {
    let width = ((f64::from(maximum) * share) as u32).max(1);
    let low = 1 + random.below(maximum - width.min(maximum) + 1);
    Interval::new(low, low + width - 1)
}
