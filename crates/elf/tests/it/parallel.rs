//! Searches by several threads: every result is that of one thread, in the same order.

use std::sync::Arc;

use pando_elf::{
    Bitmap, BuildOptions, CodeTable, Elf, Error, Gate, Interval, Kernel, LayoutKind, Method, Predicate, Width,
};
use proptest::prelude::*;

use crate::model::{brute_force, conditions, in_tree_order, order, predicate, table};

/// Gates that divide whatever they can: walks always, scans always, or as the costs say.
fn gates() -> [Gate; 3] {
    let eager = Gate { divide_ns: 0.0, join_id_ns: 0.0, patience: 0.0, ..Gate::default() };
    [
        Gate { scan_byte_ns: 1e9, ..eager },
        Gate { scan_byte_ns: 0.0, scan_id_ns: 0.0, step_ns: 1e-9, ..eager },
        Gate { scan_byte_ns: 2.0, ..eager },
    ]
}

/// All results of one predicate: ids as found and how, in preorder, ascending, and as a bitmap.
fn results(elf: &Elf, predicate: &Predicate) -> (Method, Vec<u32>, Vec<u64>, Vec<u64>, Bitmap) {
    let selection = elf.select(predicate).expect("the columns exist");
    let mut ids = vec![7_u32];
    let method = selection.ids_into(&mut ids).expect("few rows");
    let bitmap = selection.bitmap().expect("few rows");
    assert_eq!(selection.count(), ids.len() as u64 - 1);
    assert_eq!(bitmap.count(), selection.count());
    let in_tree = selection.tree_ids().expect("64 bits");
    (method, ids, in_tree, selection.sorted_ids().expect("64 bits"), bitmap)
}

pub fn check(elf: &Elf, table: &CodeTable, order: &[usize], predicate: &Predicate) {
    let rows = brute_force(table, predicate);
    let in_order = in_tree_order(table, order, rows.clone());
    for gate in gates() {
        for threads in 1..=8 {
            let elf = elf.clone().with_gate(gate).with_threads(threads);
            let (method, ids, in_tree, sorted, bitmap) = results(&elf, predicate);
            assert_eq!(in_tree, in_order, "{threads} threads");
            assert_eq!(sorted, rows, "{threads} threads");
            let found: Vec<u64> = ids[1..].iter().map(|&id| id.into()).collect();
            assert_eq!(found, if method == Method::Walk { in_order.clone() } else { rows.clone() });
            let mut members = Vec::<u64>::new();
            bitmap.append_to(Kernel::portable(), &mut members);
            assert_eq!(members, rows, "{threads} threads");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_number_of_threads_finds_what_one_finds(
        table in table(),
        keys in prop::collection::vec(any::<u32>(), 16),
        (bucket_rows, wide, with_columns) in (1..256_u32, any::<bool>(), any::<bool>()),
        predicates in prop::collection::vec(conditions(), 1..3),
    ) {
        let order = order(&table, &keys);
        let width = if wide { Width::Wide } else { Width::Auto };
        let options = BuildOptions { bucket_rows, width, threads: 1 };
        let mut layouts = vec![LayoutKind::Columnar];
        layouts.extend((table.maximum(order[0]) < 100_000).then_some(LayoutKind::Linear));
        for layout in layouts {
            let mut elf = Elf::build(&table, &order, layout, &options).expect("a small table");
            if with_columns {
                elf = elf.with_table(Arc::new(table.clone())).expect("columns of the same table");
            }
            for conditions in &predicates {
                check(&elf, &table, &order, &predicate(&table, conditions));
            }
        }
    }
}

/// A table with a column of one value, a skewed one, and two even ones; `rows` rows.
fn large(rows: u32) -> CodeTable {
    let hash = |row: u32, factor: u32| row.wrapping_mul(factor) >> 16;
    let even = |factor: u32, values: u32| (0..rows).map(|row| hash(row, factor) % values).collect();
    let skewed =
        (0..rows).map(|row| if hash(row, 0xc2b2_ae35).is_multiple_of(10) { row % 50 } else { 7 }).collect();
    let columns = vec![vec![1; rows as usize], skewed, even(0x9e37_79b9, 300), even(0x85eb_ca6b, 900)];
    CodeTable::new(columns).expect("columns of equal length")
}

#[test]
pub fn large_tables_are_searched_in_many_tasks() {
    let table = large(200_000);
    let shared = Arc::new(table.clone());
    let predicates = [
        Predicate::all(),
        Predicate::all().and(1, [Interval::point(7)]),
        Predicate::all()
            .and(1, [Interval::new(3, 40)])
            .and(2, [Interval::new(10, 90), Interval::new(200, 299)]),
        Predicate::all().and(2, [Interval::new(10, 200)]),
        Predicate::all().and(3, [Interval::new(100, 800)]),
        Predicate::all().and(3, [Interval::point(1_000)]),
    ];
    for layout in [LayoutKind::Columnar, LayoutKind::Linear] {
        let order = [0, 1, 2, 3];
        let elf = Elf::build(&table, &order, layout, &BuildOptions::default()).expect("a table");
        let elf = elf.with_table(shared.clone()).expect("its columns");
        for predicate in &predicates {
            check(&elf, &table, &order, predicate);
        }
    }
}

#[test]
fn threads_do_not_matter_for_what_is_refused_or_short() {
    let table = large(5_000);
    let elf = Elf::build(&table, &[0, 1, 2, 3], LayoutKind::Columnar, &BuildOptions::default());
    let elf = elf.expect("a table").with_threads(usize::MAX);
    let short = elf.select(&Predicate::all()).expect("no columns").bitmap_into(&mut Bitmap::new(99));
    assert_eq!(short, Err(Error::BitmapTooShort { found: 99, bound: 5_000 }));
    assert_eq!(elf.select(&Predicate::all().and(1, [])).expect("a column").count(), 0);
    let codes = [0, 1, 2, 3].map(|column| table.code(column, 77));
    let exact = elf.select(&Predicate::exact(&codes)).expect("four columns");
    assert_eq!(exact.sorted_ids(), Ok(brute_force(&table, &Predicate::exact(&codes))));
}
