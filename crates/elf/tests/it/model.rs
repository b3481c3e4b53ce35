//! Tables and predicates for property tests, and the answer by brute force.

use pando_elf::{
    CodeTable, ElfLayout, Filter, Interval, NumberSlice, Predicate, Sink, bits, exact, exact_many, range,
};
use proptest::prelude::*;

/// Collects row ids in the order in which they come.
#[derive(Default)]
pub struct Collect(pub Vec<u64>);

impl Sink for Collect {
    fn tid(&mut self, tid: u64) {
        self.0.push(tid);
    }

    fn span(&mut self, tids: NumberSlice<'_>) {
        self.0.extend(tids.iter());
    }

    fn masked(&mut self, tids: NumberSlice<'_>, mask: u64) {
        self.0.extend(bits(mask).map(|i| tids.get(i)));
    }

    fn rows(&mut self, first: u64, mask: u64) {
        self.0.extend(bits(mask).map(|i| first + i as u64));
    }

    fn found(&self) -> u64 {
        self.0.len() as u64
    }

    fn restart(&mut self) {
        self.0.clear();
    }
}

/// Largest codes of columns: few values, many duplicates, gaps (by the multiplier), and wide codes.
fn column() -> impl Strategy<Value = (u32, u32)> {
    prop_oneof![
        Just((0, 1)),
        Just((1, 1)),
        Just((4, 3)),
        Just((12, 1)),
        Just((30, 9)),
        Just((300, 1)),
        Just((60, 1200)),
        Just((700, 3_000_000)),
    ]
}

/// Tables of 1 to 16 columns and 0 to 400 rows. The first column stays below 100,000, since the published
/// layout stores a pointer for each possible value of it.
pub fn table() -> impl Strategy<Value = CodeTable> {
    let rows = prop_oneof![1 => 0..3_usize, 4 => 3..400_usize];
    (prop::collection::vec(column(), 1..=16), rows, any::<u64>()).prop_map(|(columns, rows, seed)| {
        let mut state = seed;
        let mut next = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u32
        };
        let mut draw = |(maximum, factor): (u32, u32)| {
            (0..rows).map(|_| (next() % (maximum + 1)).min(next() % (maximum + 1)) * factor).collect()
        };
        let columns: Vec<Vec<u32>> = columns.into_iter().map(&mut draw).collect();
        CodeTable::new(columns).expect("columns of equal length")
    })
}

/// A column order, by sorting keys; columns with large codes do not come first.
pub fn order(table: &CodeTable, keys: &[u32]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..table.width()).collect();
    order.sort_by_key(|&column| (keys[column % keys.len()].wrapping_mul(column as u32 + 1), column));
    if let Some(small) = order.iter().position(|&column| table.maximum(column) < 100_000) {
        order.swap(0, small);
    }
    order
}

/// What a condition asks for, relative to the codes that occur.
#[derive(Clone, Debug)]
pub enum Condition {
    None,
    All,
    Nothing,
    Null,
    NotNull,
    Inverted,
    /// Intervals between the codes of two rows each, widened by one on some side.
    Between(Vec<(usize, usize, bool)>),
}

pub fn conditions() -> impl Strategy<Value = Vec<Condition>> {
    let between = prop::collection::vec((any::<usize>(), any::<usize>(), any::<bool>()), 1..5);
    let many = prop::collection::vec((any::<usize>(), any::<usize>(), Just(true)), 20..30);
    let one = prop_oneof![
        12 => Just(Condition::None),
        1 => Just(Condition::All),
        1 => Just(Condition::Nothing),
        1 => Just(Condition::Null),
        2 => Just(Condition::NotNull),
        1 => Just(Condition::Inverted),
        10 => between.prop_map(Condition::Between),
        2 => many.prop_map(Condition::Between),
    ];
    prop::collection::vec(one, 16)
}

pub fn predicate(table: &CodeTable, conditions: &[Condition]) -> Predicate {
    let mut predicate = Predicate::all();
    for (column, condition) in conditions.iter().enumerate().take(table.width()) {
        let code = |row: &usize| if table.rows() == 0 { 3 } else { table.code(column, row % table.rows()) };
        let intervals = match condition {
            Condition::None => continue,
            Condition::All => vec![Interval::new(0, u32::MAX)],
            Condition::Nothing => vec![],
            Condition::Null => vec![Interval::point(0)],
            Condition::NotNull => vec![Interval::new(1, u32::MAX)],
            Condition::Inverted => vec![Interval::new(9, 8)],
            Condition::Between(pairs) => pairs
                .iter()
                .map(|(from, to, exact)| {
                    let (a, b) = (code(from), code(to));
                    if *exact {
                        Interval::point(a)
                    } else {
                        Interval::new(a.min(b).saturating_sub(1), a.max(b) + 1)
                    }
                })
                .collect(),
        };
        predicate = predicate.and(column, intervals);
    }
    predicate
}

/// Row ids that match, ascending.
pub fn brute_force(table: &CodeTable, predicate: &Predicate) -> Vec<u64> {
    let row = |row: &usize| predicate.matches(|column| table.code(column, *row));
    (0..table.rows()).filter(row).map(|row| row as u64).collect()
}

/// Row ids in preorder: the lexicographic order of the codes, then of the row ids.
pub fn in_tree_order(table: &CodeTable, order: &[usize], mut rows: Vec<u64>) -> Vec<u64> {
    let key = |row: u64| order.iter().map(|&column| table.code(column, row as usize)).collect::<Vec<_>>();
    rows.sort_by_cached_key(|&row| (key(row), row));
    rows
}

/// Result of a range search without a limit.
pub fn search(layout: &impl ElfLayout, predicate: &Predicate) -> Vec<u64> {
    let filter = Filter::new(predicate, layout.order()).expect("the columns exist");
    let mut found = Collect::default();
    range(layout, &filter, &mut found, |_| true);
    found.0
}

/// Result of an exact match for the codes of a row, given by column.
pub fn search_exact(layout: &impl ElfLayout, codes: &[u32]) -> Vec<u64> {
    let codes: Vec<u32> = layout.order().iter().map(|&column| codes[column]).collect();
    let mut found = Collect::default();
    exact(layout, &codes, &mut found);
    found.0
}

/// Results of exact matches for the codes of many rows at once, given by column.
pub fn search_exact_many(layout: &impl ElfLayout, queries: &[Vec<u32>]) -> Vec<Vec<u64>> {
    let by_level = |codes: &Vec<u32>| layout.order().iter().map(|&column| codes[column]).collect();
    let by_level: Vec<Vec<u32>> = queries.iter().map(by_level).collect();
    let (mut found, mut results) = (Collect::default(), Vec::new());
    let queries = by_level.iter().map(Vec::as_slice);
    exact_many(layout, queries, &mut found, |found| results.push(std::mem::take(&mut found.0)));
    results
}
