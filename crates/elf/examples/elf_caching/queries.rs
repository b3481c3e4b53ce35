//! The uniform set and queries on it (DAPD 2022 §5.2).
//!
//! A query is made from a row: an exact match has all its codes; a range starts at each code and is as wide as 2% of
//! the domain, which is 3 codes, or fewer at its end. The paper does not say which columns of a partial match
//! have no condition; here every second one has none, beginning with the second.

use pando_elf::{CodeTable, Filter, Interval, Predicate};
use pando_workload::columns::{self, QueryKind};
use pando_workload::{Rng, Zipf};

pub const COLUMNS: usize = 10;
pub const CARDINALITY: u32 = 100;
const RANGE_PERCENT: u32 = 2;
const THETA: f64 = 0.5;

/// Rows with independent, uniform codes from 0 to 99.
pub fn uniform(rows: usize) -> CodeTable {
    let columns = columns::uniform(rows, COLUMNS, CARDINALITY, 1);
    CodeTable::new(columns).expect("columns of equal length")
}

#[derive(Clone, Copy)]
pub enum Kind {
    Exact,
    Range,
    Partial,
}

impl Kind {
    pub const ALL: [Self; 3] = [Self::Exact, Self::Range, Self::Partial];

    /// Queries to warm up with, and to measure.
    fn numbers(self) -> (usize, usize) {
        match self {
            Self::Exact => (1_000_000, 200_000),
            Self::Range => (10_000, 2_000),
            Self::Partial => (500, 100),
        }
    }
}

pub enum Query {
    /// Codes by level, which is also the column.
    Exact(Vec<u32>),
    Range(Filter),
}

/// Queries of each kind: those to warm up with, then those to measure.
pub struct Queries([Vec<Query>; 3]);

impl Queries {
    pub fn new(table: &CodeTable) -> Self {
        let zipf = Zipf::new(table.rows() as u64, THETA).expect("a table with rows");
        let mut random = Rng::new(2);
        Self(Kind::ALL.map(|kind| {
            let (warm_up, measured) = kind.numbers();
            (0..warm_up + measured).map(|_| query(table, zipf.draw(&mut random) as usize, kind)).collect()
        }))
    }

    pub fn warm_up(&self, kind: Kind) -> &[Query] {
        &self.0[kind as usize][..kind.numbers().0]
    }

    pub fn measured(&self, kind: Kind) -> &[Query] {
        &self.0[kind as usize][kind.numbers().0..]
    }
}

fn query(table: &CodeTable, row: usize, kind: Kind) -> Query {
    let codes: Vec<u32> = (0..COLUMNS).map(|column| table.code(column, row)).collect();
    let kind = match kind {
        Kind::Exact => return Query::Exact(codes),
        Kind::Range => QueryKind::Range,
        Kind::Partial => QueryKind::Partial,
    };
    let conditions = kind.conditions(&codes, &[CARDINALITY - 1; COLUMNS], RANGE_PERCENT);
    let predicate = conditions
        .into_iter()
        .fold(Predicate::all(), |all, (column, low, high)| all.and(column, [Interval::new(low, high)]));
    let order: Vec<usize> = (0..COLUMNS).collect();
    Query::Range(Filter::new(&predicate, &order).expect("known columns"))
}
