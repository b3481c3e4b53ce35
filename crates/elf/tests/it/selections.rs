//! Selections through the gate: every kind of result, by walk or scan, is what brute force gives.

use std::sync::Arc;

use pando_elf::{
    Bitmap, BuildOptions, CodeTable, Columnar, Elf, ElfLayout, Error, Filter, Gate, Interval, Kernel,
    LayoutKind, Method, NumberSlice, Predicate, Region, Sink, Width, build_columnar, range,
};
use proptest::prelude::*;

use crate::model::{Collect, brute_force, conditions, in_tree_order, order, predicate, table};

/// Gates that walk always, scan always, or decide.
fn gate() -> impl Strategy<Value = Gate> {
    let usual = Gate::default();
    prop_oneof![
        Just(usual),
        Just(Gate { scan_byte_ns: 1e9, ..usual }),
        Just(Gate { scan_byte_ns: 0.0, scan_id_ns: 0.0, ..usual }),
        Just(Gate { scan_byte_ns: 2.0, patience: 0.01, ..usual }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn all_results_agree_with_brute_force(
        table in table(),
        keys in prop::collection::vec(any::<u32>(), 16),
        (bucket_rows, wide, with_columns) in (1..256_u32, any::<bool>(), any::<bool>()),
        gate in gate(),
        predicates in prop::collection::vec(conditions(), 1..5),
        kernel in prop::sample::select(Kernel::all()),
    ) {
        let order = order(&table, &keys);
        let width = if wide { Width::Wide } else { Width::Auto };
        let options = BuildOptions { bucket_rows, width, threads: 1 };
        let mut layouts = vec![LayoutKind::Columnar];
        layouts.extend((table.maximum(order[0]) < 100_000).then_some(LayoutKind::Linear));
        for layout in layouts {
            let mut elf = Elf::build(&table, &order, layout, &options).expect("a small table");
            elf = elf.with_gate(gate).with_kernel(kernel);
            if with_columns {
                elf = elf.with_table(Arc::new(table.clone())).expect("columns of the same table");
            }
            for conditions in &predicates {
                check(&elf, &table, &order, &predicate(&table, conditions));
            }
        }
    }

    #[test]
    fn a_region_is_what_a_walk_visits_at_most(
        table in table(),
        keys in prop::collection::vec(any::<u32>(), 16),
        bucket_rows in 1..20_u32,
        conditions in conditions(),
    ) {
        let order = order(&table, &keys);
        let options = BuildOptions { bucket_rows, ..BuildOptions::default() };
        let columnar = build_columnar(&table, &order, &options).expect("a small table");
        let predicate = predicate(&table, &conditions);
        let filter = Filter::new(&predicate, &order).expect("the columns exist");
        let region = Region::of(&columnar, &filter);
        let mut found = Collect::default();
        let mut outside = 0;
        let (_, work) = range(&columnar, &filter, &mut found, |work| {
            let has_passed_a_leaf = work.compared + work.found > 0;
            let is_inside = region.extents.iter().any(|extent| extent.start < work.position && work.position <= extent.end);
            outside += u32::from(has_passed_a_leaf && !is_inside);
            true
        });
        prop_assert_eq!(outside, 0);
        prop_assert!(found.0.len() as u64 <= region.rows());
        prop_assert!(work.compared <= region.rows());
        prop_assert!(columnar.least_work(&filter).compared <= work.compared);
        prop_assert_eq!(found.0.len(), brute_force(&table, &predicate).len());
        let open = Region::of(&columnar, &Filter::new(&Predicate::all(), &order).expect("no columns"));
        prop_assert_eq!(open.rows(), table.rows() as u64);
    }
}

fn check(elf: &Elf, table: &CodeTable, order: &[usize], predicate: &Predicate) {
    let rows = brute_force(table, predicate);
    let selection = elf.select(predicate).expect("the columns exist");
    assert_eq!(selection.count(), rows.len() as u64);
    let in_order = in_tree_order(table, order, rows.clone());
    assert_eq!(selection.tree_ids::<u64>(), Ok(in_order.clone()));
    let mut ids = vec![99_u32];
    let method = selection.ids_into(&mut ids).expect("few rows");
    let expected = if method == Method::Walk { &in_order } else { &rows };
    let spans = selection.spans();
    assert_eq!((spans.len(), spans.is_empty()), (rows.len() as u64, rows.is_empty()));
    let found: Vec<u64> = spans.iter().collect();
    assert!(found == in_order || found == rows, "{found:?} is neither {in_order:?} nor {rows:?}");
    assert_eq!(ids[1..].iter().map(|&id| u64::from(id)).collect::<Vec<_>>(), *expected);
    assert_eq!(selection.sorted_ids::<u64>(), Ok(rows.clone()));
    assert_eq!(selection.sorted_ids::<u32>().expect("few rows").len(), rows.len());
    let mut bitmap = selection.bitmap().expect("few rows");
    assert_eq!((bitmap.count(), bitmap.len()), (rows.len() as u64, table.rows() as u64));
    selection.bitmap_into(&mut bitmap).expect("a bitmap of the right size");
    let mut members = Vec::<u64>::new();
    bitmap.append_to(Kernel::portable(), &mut members);
    assert_eq!(members, rows);
    assert!((0..table.rows() as u64).all(|row| bitmap.contains(row) == rows.binary_search(&row).is_ok()));
}

/// A table with two columns of small numbers, of `rows` rows.
fn large(rows: u32) -> CodeTable {
    let hash = |row: u32, factor: u32| row.wrapping_mul(factor) >> 20;
    let column = |factor: u32, values: u32| (0..rows).map(|row| hash(row, factor) % values).collect();
    CodeTable::new(vec![column(0x9e37_79b9, 40), column(0x85eb_ca6b, 900), column(0xc2b2_ae35, 7)])
        .expect("columns of equal length")
}

#[test]
fn the_gate_walks_where_it_pays_and_scans_elsewhere() {
    let table = large(200_000);
    let elf =
        Elf::build(&table, &[0, 1, 2], LayoutKind::Columnar, &BuildOptions::default()).expect("a table");
    let elf = elf.with_table(Arc::new(table.clone())).expect("its columns");
    let method = |predicate: Predicate| {
        let selection = elf.select(&predicate).expect("the columns exist");
        assert_eq!(selection.count(), brute_force(&table, &predicate).len() as u64);
        selection.ids_into(&mut Vec::<u32>::new()).expect("few rows")
    };
    assert_eq!(
        method(Predicate::all().and(0, [Interval::new(3, 5)]).and(1, [Interval::new(9, 20)])),
        Method::Walk
    );
    assert_eq!(method(Predicate::all().and(0, [Interval::point(3)])), Method::Walk);
    let scanned = Predicate::all().and(2, [Interval::point(3)]);
    assert_eq!(method(scanned), Method::Scan);
}

#[test]
fn what_does_not_fit_is_refused() {
    let table = large(100);
    let elf = Elf::build(&table, &[2, 1, 0], LayoutKind::Linear, &BuildOptions::default()).expect("a table");
    let error = elf.select(&Predicate::all().and(3, [])).map(|_| ()).map_err(|error| error.to_string());
    assert_eq!(error, Err("there is no column number 3: the table has 3, counted from 0".into()));
    let foreign = elf.clone().with_table(Arc::new(large(90))).map(|_| ());
    let expected = "the table beside the Elf is another one: it has 3 columns of 90 rows instead of 3 columns of 100 rows";
    assert_eq!(foreign.map_err(|error| error.to_string()), Err(expected.into()));
    let arity = elf.exact_into(&[1, 2], &mut Vec::<u32>::new());
    assert_eq!(arity, Err(Error::WrongArity { values: 2, columns: 3 }));
    let short = elf.select(&Predicate::all()).expect("no columns").bitmap_into(&mut Bitmap::new(99));
    assert_eq!(short, Err(Error::BitmapTooShort { found: 99, bound: 100 }));
}

#[test]
fn an_opened_image_answers_like_the_built_one() {
    let table = large(5_000);
    for layout in [LayoutKind::Linear, LayoutKind::Columnar] {
        let built = Elf::build(&table, &[2, 1, 0], layout, &BuildOptions::default()).expect("a table");
        let opened = Elf::open(built.bytes().to_vec()).expect("a whole image");
        check(&opened, &table, &[2, 1, 0], &Predicate::all().and(1, [Interval::new(100, 300)]));
        let codes = [0, 1, 2].map(|column| table.code(column, 77));
        let mut ids = Vec::<u64>::new();
        opened.exact_into(&codes, &mut ids).expect("three codes");
        assert_eq!(ids, brute_force(&table, &Predicate::exact(&codes)));
    }
    let columnar = Columnar::open(Vec::new()).map(|_| ());
    assert_eq!(columnar, Err(Error::ShortHeader { bytes: 0 }));
}

#[test]
fn a_bitmap_that_is_fetched_ahead_has_the_same_rows() {
    let rows = 20_000_000_u32;
    let ids: Vec<u32> = (0..1_000_u32).map(|i| i.wrapping_mul(0x9e37_79b9) % rows).collect();
    let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    let slice = NumberSlice::open(&bytes, 4).expect("whole numbers");
    for end in [0, 1, 127, 128, 129, ids.len()] {
        let (mut together, mut one_by_one) = (Bitmap::new(rows.into()), Bitmap::new(rows.into()));
        together.span(slice.slice(0..end));
        ids[..end].iter().for_each(|&id| one_by_one.tid(id.into()));
        assert_eq!(together, one_by_one);
    }
}
