//! Searches in both layouts give what brute force gives, in preorder.

use pando_elf::{
    BuildOptions, CodeTable, Elf, Error, LayoutKind, Predicate, Width, build_columnar, build_linear,
};
use proptest::prelude::*;

use crate::model::{
    brute_force, conditions, in_tree_order, order, predicate, search, search_exact, search_exact_many, table,
};

fn options() -> impl Strategy<Value = BuildOptions> {
    let bucket = prop_oneof![Just(1), Just(2), Just(7), Just(64), Just(100), Just(256)];
    (bucket, any::<bool>(), 1..3_usize).prop_map(|(bucket_rows, wide, threads)| BuildOptions {
        bucket_rows,
        width: if wide { Width::Wide } else { Width::Auto },
        threads,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn range_and_partial_match_find_every_row_once(
        table in table(),
        keys in prop::collection::vec(any::<u32>(), 16),
        options in options(),
        predicates in prop::collection::vec(conditions(), 1..6),
    ) {
        let order = order(&table, &keys);
        let linear = (table.maximum(order[0]) < 100_000)
            .then(|| build_linear(&table, &order, &options).expect("a small table"));
        let columnar = build_columnar(&table, &order, &options).expect("a small table");
        for conditions in predicates {
            let predicate = predicate(&table, &conditions);
            let expected = in_tree_order(&table, &order, brute_force(&table, &predicate));
            prop_assert_eq!(&search(&columnar, &predicate), &expected, "columnar, {:?}", predicate);
            if let Some(linear) = &linear {
                prop_assert_eq!(&search(linear, &predicate), &expected, "linear, {:?}", predicate);
            }
        }
    }

    #[test]
    fn exact_match_finds_all_rows_with_the_values(
        table in table(),
        keys in prop::collection::vec(any::<u32>(), 16),
        options in options(),
        rows in prop::collection::vec((any::<usize>(), any::<usize>(), 0..3_u32), 1..40),
    ) {
        let order = order(&table, &keys);
        let linear = (table.maximum(order[0]) < 100_000)
            .then(|| build_linear(&table, &order, &options).expect("a small table"));
        let columnar = build_columnar(&table, &order, &options).expect("a small table");
        let mut queries = Vec::new();
        for (row, column, change) in rows {
            let code = |column: usize| if table.rows() == 0 { 1 } else { table.code(column, row % table.rows()) };
            let mut codes: Vec<u32> = (0..table.width()).map(code).collect();
            codes[column % table.width()] += change;
            queries.push(codes);
        }
        let found = |codes: &Vec<u32>| brute_force(&table, &Predicate::exact(codes));
        let expected: Vec<Vec<u64>> = queries.iter().map(found).collect();
        for (codes, expected) in queries.iter().zip(&expected) {
            prop_assert_eq!(&search_exact(&columnar, codes), expected);
            if let Some(linear) = &linear {
                prop_assert_eq!(&search_exact(linear, codes), expected);
            }
        }
        prop_assert_eq!(&search_exact_many(&columnar, &queries), &expected);
        if let Some(linear) = &linear {
            prop_assert_eq!(&search_exact_many(linear, &queries), &expected);
        }
    }
}

#[test]
fn long_lists_and_buckets_are_searched_for_each_value() {
    // Values with gaps that grow, each of them twice and some of them more often, below one value of the first level.
    let value = |i: u32| i * i / 3 + 2;
    let rows: Vec<u32> = (0..1_000).flat_map(|i| vec![value(i); if i % 50 == 0 { 40 } else { 2 }]).collect();
    let columns = vec![vec![1; rows.len()], rows.clone(), rows.iter().map(|row| row % 7).collect()];
    let table = CodeTable::new(columns).expect("columns of one length");
    for bucket_rows in [1, 256, 10_000] {
        let options = BuildOptions { bucket_rows, ..BuildOptions::default() };
        let linear = build_linear(&table, &[0, 1, 2], &options).expect("a small table");
        let columnar = build_columnar(&table, &[0, 1, 2], &options).expect("a small table");
        let candidates = (0..1_001).flat_map(|i| [value(i), value(i) + 1]);
        let queries: Vec<Vec<u32>> = candidates.map(|code| vec![1, code, code % 7]).collect();
        let expected: Vec<Vec<u64>> = queries
            .iter()
            .map(|codes| (0..rows.len()).filter(|&row| rows[row] == codes[1]).map(|row| row as u64).collect())
            .collect();
        for (codes, expected) in queries.iter().zip(&expected) {
            assert_eq!(&search_exact(&linear, codes), expected, "linear, {codes:?}");
            assert_eq!(&search_exact(&columnar, codes), expected, "columnar, {codes:?}");
        }
        assert_eq!(search_exact_many(&linear, &queries), expected);
        assert_eq!(search_exact_many(&columnar, &queries), expected);
    }
}

#[test]
fn exact_matches_say_how_many_codes_they_need() {
    let table = CodeTable::new(vec![vec![0, 5, 5]; 40]).expect("three rows of 40 columns");
    let order: Vec<usize> = (0..40).rev().collect();
    for layout in [LayoutKind::Linear, LayoutKind::Columnar] {
        let elf = Elf::build(&table, &order, layout, &BuildOptions::default()).expect("a small table");
        let (mut ids, mut ends) = (vec![7_u32], Vec::new());
        elf.exact_into(&[5; 40], &mut ids).expect("40 codes");
        assert_eq!(ids, [7, 1, 2]);
        let wrong = Err(Error::WrongArity { values: 39, columns: 40 });
        assert_eq!(elf.exact_into(&[5; 39], &mut ids), wrong);
        assert_eq!(elf.exact_many_into([vec![5; 40], vec![5; 39]], &mut ids, &mut ends), wrong);
        assert_eq!((ids.len(), ends.len()), (3, 0));
        elf.exact_many_into([[0; 40], [1; 40], [5; 40]], &mut ids, &mut ends).expect("40 codes");
        assert_eq!((ids, ends), (vec![7, 1, 2, 0, 1, 2], vec![4, 4, 6]));
    }
}

/// The example of DAPD 2022, Figure 1 has six rows and four columns; this table has its shape.
fn example() -> CodeTable {
    let rows = [[0, 1, 0, 1], [0, 2, 0, 0], [1, 0, 1, 0], [2, 0, 0, 0], [2, 0, 0, 1], [2, 0, 1, 0]];
    CodeTable::new((0..4).map(|column| rows.map(|row| row[column]).to_vec()).collect()).expect("four columns")
}

#[test]
fn the_linear_layout_is_the_published_one() {
    use pando_elf::ElfLayout;
    const END: u32 = 1 << 31;
    const MONO: u32 = 1 << 31;
    let elf = build_linear(&example(), &[0, 1, 2, 3], &BuildOptions::default()).expect("a small table");
    let words: Vec<u32> = elf.bytes()[64 + 16..]
        .chunks(4)
        .map(|word| u32::from_le_bytes(word.try_into().expect("4 bytes")))
        .collect();
    let expected = [
        [3, 13 | MONO, 17].as_slice(),                         // first list
        &[1, 7 | MONO, 2 | END, 10 | MONO],                    // 0: second column
        &[0, 1, END],                                          // 0, 1: row 0
        &[0, 0, 1 | END],                                      // 0, 2: row 1
        &[0, 1, 0, 2 | END],                                   // 1: row 2
        &[END, 19],                                            // 2: second column
        &[0, 23, 1 | END, 29 | MONO],                          // 2, 0: third column
        &[0, 27 | MONO, 1 | END, 28 | MONO, 3 | END, 4 | END], // 2, 0, 0: fourth column, rows 3 and 4
        &[0, 5 | END],                                         // 2, 0, 1: row 5
    ];
    assert_eq!(words, expected.concat());
}

#[test]
fn deep_trees_need_no_deep_stack() {
    let columns: Vec<Vec<u32>> = (0..5_000).map(|column| vec![0, u32::from(column == 4_999)]).collect();
    let table = CodeTable::new(columns).expect("two rows");
    let order: Vec<usize> = (0..5_000).collect();
    let options = BuildOptions { bucket_rows: 1, ..BuildOptions::default() };
    let predicate = Predicate::all().and(4_999, [pando_elf::Interval::point(1)]);
    assert_eq!(search(&build_linear(&table, &order, &options).expect("two rows"), &predicate), [1]);
    assert_eq!(search(&build_columnar(&table, &order, &options).expect("two rows"), &predicate), [1]);
}
