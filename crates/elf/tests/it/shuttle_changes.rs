//! Inserts, deletes, flushes and merges of one table, scheduled by shuttle: no row is lost, and no deleted
//! row comes back.
//!
//! Run with `RUSTFLAGS="--cfg shuttle" cargo test --release -p pando-elf`; `ci/shuttle.sh` does.

use std::sync::Arc;

use pando_elf::{BuildOptions, CodeTable, Elf, LayoutKind, LiveElf, LiveOptions, Predicate};
use shuttle::thread;

fn iterations() -> usize {
    std::env::var("SHUTTLE_ITERATIONS").ok().and_then(|text| text.parse().ok()).unwrap_or(1000)
}

fn rows(count: u32) -> CodeTable {
    CodeTable::new(vec![(0..count).map(|row| row % 3).collect(), (0..count).collect()]).expect("two columns")
}

fn ids(live: &LiveElf) -> Vec<u64> {
    live.snapshot().select(&Predicate::all()).expect("no columns").sorted_ids().expect("64 bits")
}

#[test]
fn shuttle_deletes_survive_merges_that_run_beside_them() {
    let check = || {
        let table = Arc::new(rows(8));
        let base = Elf::build(&table, &[0, 1], LayoutKind::Columnar, &BuildOptions::default()).expect("rows");
        let options = LiveOptions { buffer_rows: 4, fan_in: 2, ..LiveOptions::default() };
        let live = LiveElf::new(base.with_table(table).expect("its table"), options).expect("a table");
        let live = Arc::new(live);
        let beside = |work: fn(&LiveElf)| {
            let live = live.clone();
            thread::spawn(move || work(&live))
        };
        let threads = [
            beside(|live| {
                live.delete(&[1, 6]).expect("rows of the base");
                assert!(ids(live).iter().all(|id| ![1, 6].contains(id)));
            }),
            beside(|live| {
                let inserted = live.insert(rows(3)).expect("rows that fit");
                let middle = inserted.start + 1;
                assert_eq!(live.delete(&[middle]), Ok(1));
                assert_eq!(ids(live).iter().filter(|&&id| inserted.contains(&id)).count(), 2);
            }),
            beside(|live| {
                live.merge_all().expect("little memory");
            }),
            beside(|live| {
                live.flush().expect("little memory");
                live.merge().expect("little memory");
            }),
        ];
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        let expected = [0, 2, 3, 4, 5, 7, 8, 10];
        assert_eq!(ids(&live), expected);
        live.merge_all().expect("little memory");
        assert_eq!(ids(&live), expected);
    };
    shuttle::check_random(check, iterations());
}
