//! A table like TPC-H's lineitem, as codes: the same columns, cardinalities and correlations, from a fixed seed.

use pando_elf::CodeTable;

pub const NAMES: [&str; 15] = [
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

/// A generator of random numbers (splitmix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, limit: u32) -> u32 {
        ((u128::from(self.next()) * u128::from(limit)) >> 64) as u32
    }
}

/// The table with about four rows per order. Codes count from 1, or from 0 for dates.
pub fn table(rows: usize) -> CodeTable {
    let mut random = Random(6);
    let scale = |per_million: usize| (rows * per_million / 1_000_000).max(1) as u32;
    let (parts, suppliers) = (scale(33_333), scale(1_667));
    let mut columns: Vec<Vec<u32>> = vec![Vec::with_capacity(rows); NAMES.len()];
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
    CodeTable::new(columns).expect("columns of equal length")
}

/// Replaces values by their ranks among the distinct ones, from 1.
fn make_dense(column: &mut [u32]) {
    let mut distinct = column.to_vec();
    distinct.sort_unstable();
    distinct.dedup();
    let rank = |value: u32| distinct.partition_point(|&other| other <= value) as u32;
    column.iter_mut().for_each(|value| *value = rank(*value));
}
