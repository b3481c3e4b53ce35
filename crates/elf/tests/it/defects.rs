//! Seeded defects: the checks of searches, builds, changes and publications must find each of them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use pando_elf::defect::{Defect, Defect as D};
use pando_elf::{
    BuildOptions, CodeTable, Elf, ExternalOptions, LayoutKind, LiveElf, LiveOptions, Predicate, build_linear,
};
use pando_fabric::defect::with_defect;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::model::{brute_force, conditions, order, predicate, search_exact, table};
use crate::{changes, external, parallel, publication};

/// Runs `check` for the same random values each time. It panics if one of them fails.
fn for_all<S: Strategy>(cases: u32, values: S, check: impl Fn(S::Value)) {
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 0, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let checked = runner.run(&values, |value| {
        check(value);
        Ok(())
    });
    checked.expect("each value passes");
}

/// All searches of both layouts, by one to eight threads, against brute force.
fn searches() {
    let values = (table(), prop::collection::vec(any::<u32>(), 16), 1..256_u32, conditions());
    for_all(30, values, |(table, keys, bucket_rows, conditions)| {
        let (order, options) =
            (order(&table, &keys), BuildOptions { bucket_rows, ..BuildOptions::default() });
        let predicate = predicate(&table, &conditions);
        let mut layouts = vec![LayoutKind::Columnar];
        layouts.extend((table.maximum(order[0]) < 100_000).then_some(LayoutKind::Linear));
        for layout in layouts {
            let elf = Elf::build(&table, &order, layout, &options).expect("a small table");
            let elf = elf.with_table(Arc::new(table.clone())).expect("its table");
            parallel::check(&elf, &table, &order, &predicate);
        }
    });
}

fn duplicates() {
    let table = CodeTable::new(vec![vec![1, 2, 1, 1], vec![5, 5, 5, 6]]).expect("two columns");
    let linear = build_linear(&table, &[0, 1], &BuildOptions::default()).expect("a small table");
    let equal = brute_force(&table, &Predicate::exact(&[1, 5]));
    assert_eq!(search_exact(&linear, &[1, 5]), equal);
}

/// Builds in memory and outside of it give the same bytes.
fn builds() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let values = (table(), prop::collection::vec(any::<u32>(), 16));
    for_all(40, values, |(table, keys)| {
        let order = order(&table, &keys);
        let build = BuildOptions { bucket_rows: 5, ..BuildOptions::default() };
        let memory_bytes = external::least_memory(table.width(), 1);
        let options = ExternalOptions { build, memory_bytes, directory: folder.path().to_owned() };
        let built =
            external::build(&table, &order, LayoutKind::Columnar, options, 50).expect("little memory");
        assert!(built == external::in_memory(&table, &order, LayoutKind::Columnar, &build));
    });
    equal_rows_of_many_runs(folder.path());
}

/// Two values in as many runs as the least memory gives.
fn equal_rows_of_many_runs(directory: &std::path::Path) {
    let table = CodeTable::new(vec![(0..20_000).map(|row| row % 2).collect()]).expect("a column");
    let build = BuildOptions::default();
    let memory_bytes = external::least_memory(1, 1);
    let options = ExternalOptions { build, memory_bytes, directory: directory.to_owned() };
    let built = external::build(&table, &[0], LayoutKind::Linear, options, 1_000).expect("little memory");
    assert!(built == external::in_memory(&table, &[0], LayoutKind::Linear, &build));
}

/// Tables that change, against a map.
fn tables_that_change() {
    let rows = prop::collection::vec(changes::row(), 0..100);
    let steps = prop::collection::vec(changes::change(), 0..40);
    let shape = (any::<bool>(), changes::options(), changes::gate());
    let ranges = prop::collection::vec(changes::ranges(), 1..5);
    for_all(60, (rows, steps, shape, ranges), |(first, steps, (is_linear, options, gate), ranges)| {
        let layout = if is_linear { LayoutKind::Linear } else { LayoutKind::Columnar };
        changes::run::<changes::Codes>(&first, steps.clone(), layout, options, gate, &ranges);
        changes::run::<changes::Values>(&first, steps, layout, options, gate, &ranges);
    });
}

/// Rows that a thread deletes while this one merges stay deleted.
fn deletes_beside_merges() {
    const ROWS: u32 = 60_000;
    let table = |rows: u32| CodeTable::new(vec![(0..rows).map(|row| row % 300).collect()]).expect("a column");
    let base = Arc::new(table(ROWS));
    let elf = Elf::build(&base, &[0], LayoutKind::Columnar, &BuildOptions::default()).expect("a table");
    let elf = elf.with_table(base).expect("its table");
    let live = LiveElf::new(elf, LiveOptions::default()).expect("a table");
    std::thread::scope(|scope| {
        let deleting = scope.spawn(|| {
            for id in 0..2_000 {
                live.delete(&[id * 7]).expect("a row");
                std::thread::yield_now();
            }
        });
        while !deleting.is_finished() {
            live.insert(table(3)).expect("three rows");
            live.merge_all().expect("little memory");
        }
    });
    let ids: Vec<u64> =
        live.snapshot().select(&Predicate::all()).expect("no columns").ids().expect("64 bits");
    assert!(ids.iter().all(|id| id % 7 != 0 || *id >= 14_000));
}

/// Each defect, and the check that finds it.
const SEEDED: [(Defect, fn()); Defect::ALL.len()] = [
    (D::ExclusiveBound, parallel::large_tables_are_searched_in_many_tasks),
    (D::FirstInterval, searches),
    (D::LostLeaf, searches),
    (D::FirstDuplicate, duplicates),
    (D::ShiftedStrip, searches),
    (D::KeptResult, searches),
    (D::ThreadOrder, searches),
    (D::DroppedPiece, parallel::large_tables_are_searched_in_many_tasks),
    (D::SharedTooMuch, parallel::large_tables_are_searched_in_many_tasks),
    (D::UnorderedIds, builds),
    (D::RevivedRows, tables_that_change),
    (D::ForgottenDeletes, deletes_beside_merges),
    (D::StaleCodes, tables_that_change),
    (D::EarlyRoot, publication::a_crash_at_any_step_leaves_the_old_image_or_the_new_one),
    (D::OverwrittenImage, publication::a_crash_at_any_step_leaves_the_old_image_or_the_new_one),
    (D::UncheckedImage, publication::bytes_that_do_not_arrive_are_not_published),
];

/// Times that a check may be run until it finds its defect.
const TRIES: u32 = 20;

#[test]
fn checks_pass_without_a_defect() {
    [duplicates, searches, builds, tables_that_change, deletes_beside_merges]
        .iter()
        .for_each(|check| check());
}

#[test]
fn each_defect_is_found() {
    for defect in Defect::ALL {
        let start = Instant::now();
        let (_, check) =
            SEEDED.iter().find(|(seeded, _)| *seeded == defect).expect("each defect has a check");
        // Some show only if threads run at the same time, which a busy machine may not let them at first.
        let is_found = |_| catch_unwind(AssertUnwindSafe(|| with_defect(Some(defect), check))).is_err();
        assert!((0..TRIES).any(is_found), "{defect:?} was not found");
        println!("{defect:?} ({:.2} s)", start.elapsed().as_secs_f64());
    }
}
