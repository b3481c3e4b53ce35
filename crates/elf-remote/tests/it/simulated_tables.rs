//! A simulated cluster: writers insert, delete and merge a table while readers query it, with torn READs and WRITEs,
//! delays, memory servers that are slow, stopped or restarted, lost connections and answers. A batch is seen as a whole
//! or not at all, and an answer has everything that was acknowledged before its query began.
//!
//! `PANDO_SIM_SEEDS=A..B` replays seeds A to B - 1.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use crate::common::allocated;
use crate::setup::{KINDS, Setup, run_slots, seeds, threads};
use crate::tables::{encoded, spec};
use pando_elf::{LayoutKind, Value};
use pando_elf_remote::{
    Condition, ReadOptions, RemoteError, TableOptions, TableReader, TableWriter, audit_table, table_blocks,
};
use pando_fabric::{DynEndpoint, Endpoint, Nanos};
use pando_pool::{Pool, PoolError};
use pando_rt::block_on;
use pando_sim::{FaultKind, SimFabric};

const WRITERS: usize = 2;
const THREADS: usize = 4;
/// Rows of a batch; the first one is deleted later.
const BATCH: usize = 3;
/// Time at which all faults end.
const WELL_AT: Nanos = 3_000_000;

/// Errors that may happen during faults or races. Any other is a defect.
fn is_excused(error: &RemoteError) -> bool {
    error.is_unreachable()
        || matches!(
            error,
            RemoteError::Pool(PoolError::LockTimedOut { .. })
                | RemoteError::KeptChanging { .. }
                | RemoteError::KeptLosing { .. }
                | RemoteError::MergedByOthers
        )
}

/// What is known of a batch: whether its insert and the delete of its first row were acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Known {
    is_inserted: bool,
    is_shortened: bool,
    /// Whether a delete began that may have taken effect.
    may_be_shortened: bool,
}

struct Cluster {
    fabric: SimFabric,
    pool: Pool,
    writers: Vec<TableWriter>,
    options: ReadOptions,
    batches: RefCell<BTreeMap<i64, Known>>,
}

impl Cluster {
    fn new(seed: u64, kinds: &[FaultKind]) -> Self {
        let setup = Setup::new(seed);
        let (ep, pool) = (&setup.ep, setup.pool.clone());
        let publish = setup.publish_options();
        let (join_rows, tree_rows) = (setup.one_of(&[0, 12, 1 << 16]), setup.one_of(&[2, 1 << 16]));
        let changes = TableOptions { join_rows, tree_rows, fan_in: 2, ..TableOptions::default() };
        let writer = || TableWriter::new(pool.clone(), "t", publish, changes).expect("valid options");
        let writers: Vec<_> = (0..WRITERS).map(|_| writer()).collect();
        let layout = if setup.one_of(&[0, 1]) == 0 { LayoutKind::Linear } else { LayoutKind::Columnar };
        let table = spec(layout, setup.one_of(&[1, 4, 256]) as u32);
        block_on(ep, writers[0].create(ep, &table, None, false)).expect("room");
        let options = setup.read_options();
        setup.plan_faults(kinds, WELL_AT);
        Self { fabric: setup.fabric, pool, writers, options, batches: RefCell::default() }
    }

    fn note(&self, batch: i64, change: impl FnOnce(&mut Known)) {
        change(self.batches.borrow_mut().entry(batch).or_default());
    }

    /// Inserts batches, deletes the first row of each, and merges; returns how often that failed.
    async fn change(&self, number: usize, ep: &DynEndpoint) -> u64 {
        let (writer, mut failures) = (&self.writers[number], 0);
        let reader = TableReader::new(self.pool.clone(), "t", self.options);
        let mut excuse = |error: RemoteError| {
            assert!(is_excused(&error), "{error}");
            failures += 1;
        };
        for batch in (number as i64..).step_by(WRITERS) {
            if ep.now() >= WELL_AT {
                break;
            }
            let rows: Vec<_> = (0..BATCH as i32).map(|day| (batch, Some((batch % 5) as u8), day)).collect();
            self.note(batch, |_| ());
            match writer.insert(ep, &encoded(&rows)).await {
                Ok(_) => self.note(batch, |known| known.is_inserted = true),
                Err(error) => excuse(error),
            }
            let first = Condition::sql(format!("n = {batch} and day = date '1970-01-01'"));
            self.note(batch, |known| known.may_be_shortened = true);
            match writer.delete(ep, &reader, &first).await {
                Ok(_) => self.note(batch, |known| known.is_shortened = true),
                Err(error) => excuse(error),
            }
            if (ep.random() >> 32).is_multiple_of(3)
                && let Err(error) = writer.merge(ep, ep.random() >> 63 == 0).await
            {
                excuse(error);
            }
            ep.sleep_until(ep.now() + ep.random() % 60_000).await;
        }
        failures
    }

    /// Queries; returns the number of answers, and how many queries failed.
    async fn query(&self, reader: &TableReader, ep: &DynEndpoint) -> (u64, u64) {
        let (mut answers, mut failures) = (0, 0);
        while ep.now() < WELL_AT {
            let before = self.batches.borrow().clone();
            match reader.rows(ep, &Condition::sql("word in ('w01', 'w03', 'w04')"), &[0, 2]).await {
                Ok(answer) => {
                    let mut seen: BTreeMap<i64, BTreeSet<i32>> = BTreeMap::new();
                    for part in &answer.value {
                        for row in 0..part.ids.len() {
                            let (n, day) = (part.value(0, row), part.value(1, row));
                            let (Ok(Value::Integer(n)), Ok(Value::Date(day))) = (n, day) else {
                                panic!("values of other types")
                            };
                            assert!(seen.entry(n).or_default().insert(day), "a row is found twice");
                        }
                    }
                    self.check(&before, &seen);
                    answers += 1;
                }
                Err(error) => {
                    assert!(is_excused(&error), "{error}");
                    failures += 1;
                }
            }
            ep.sleep_until(ep.now() + ep.random() % 20_000).await;
        }
        (answers, failures)
    }

    /// Checks an answer by what was known before its query began.
    fn check(&self, before: &BTreeMap<i64, Known>, seen: &BTreeMap<i64, BTreeSet<i32>>) {
        for (batch, days) in seen {
            let now = self.batches.borrow()[batch];
            let is_short = !days.contains(&0);
            assert_eq!(days.len(), if is_short { BATCH - 1 } else { BATCH }, "a part of batch {batch}");
            assert!(!is_short || now.may_be_shortened, "batch {batch} lost a row");
            let was = before.get(batch).copied().unwrap_or_default();
            // A delete that was acknowledged found the row if the insert was acknowledged, too.
            assert!(
                is_short || !(was.is_inserted && was.is_shortened),
                "a deleted row of batch {batch} is there"
            );
        }
        let mut asked =
            before.iter().filter(|(batch, known)| known.is_inserted && [1, 3, 4].contains(&(*batch % 5)));
        assert!(asked.all(|(batch, _)| seen.contains_key(batch)), "an acknowledged batch is missing");
    }

    fn settle(&self, others: &BTreeSet<u64>) {
        // All faults have ended: what was replaced or not published is free, and changes work.
        let ep = DynEndpoint::new(self.fabric.direct(98));
        for writer in &self.writers {
            assert_eq!(block_on(&ep, writer.settle(&ep, 50_000_000)).expect("no error"), 0);
        }
        block_on(&ep, self.writers[1].merge(&ep, true)).expect("no error");
        assert_eq!(block_on(&ep, self.writers[1].settle(&ep, 50_000_000)).expect("no error"), 0);
        let record = block_on(&ep, self.pool.open_index(&ep, "t")).expect("it is there");
        let audit = block_on(&ep, audit_table(&ep, &self.pool, &record)).expect("no error");
        assert!(audit.violations.is_empty(), "{:?}", audit.violations);
        let blocks = block_on(&ep, table_blocks(&ep, &self.pool, &record)).expect("no error");
        let table: BTreeSet<u64> = blocks.iter().map(|(addr, _)| addr.raw()).collect();
        let given_up = self.writers.iter().flat_map(|writer| writer.doubtful());
        let given_up: BTreeSet<u64> = given_up.map(|(addr, _)| addr.raw()).collect();
        let all = allocated(&ep, &self.pool);
        assert!(table.is_subset(&all), "blocks of the table are free");
        let is_lost =
            |addr: &&u64| !table.contains(addr) && !others.contains(addr) && !given_up.contains(addr);
        let lost: Vec<_> = all.iter().filter(is_lost).collect();
        assert!(lost.is_empty(), "{lost:x?} are lost");
    }
}

/// Runs one history; returns failed operations and answers.
pub fn run(seed: u64, kinds: &[FaultKind]) -> (u64, u64) {
    let cluster = Cluster::new(seed, kinds);
    let direct = DynEndpoint::new(cluster.fabric.direct(99));
    let others = allocated(&direct, &cluster.pool);
    let readers: Vec<_> =
        (0..2).map(|_| TableReader::new(cluster.pool.clone(), "t", cluster.options)).collect();
    let threads = threads(&cluster.fabric, THREADS, seed);
    let outputs = run_slots(&cluster.fabric, &threads, |thread, slot| {
        let (cluster, readers, threads) = (&cluster, &readers, &threads);
        async move {
            match (thread < WRITERS, slot) {
                (true, 0) => (0, cluster.change(thread, &threads[thread]).await),
                _ => cluster.query(&readers[thread % 2], &threads[thread]).await,
            }
        }
    });
    let (mut answers, mut failures) = (0, 0);
    for (given, failed) in outputs.into_iter().flatten() {
        (answers, failures) = (answers + given, failures + failed);
    }
    cluster.settle(&others);
    (failures, answers)
}

#[test]
fn batches_are_seen_as_a_whole_though_the_table_changes() {
    let answers: u64 = seeds(20)
        .map(|seed| {
            eprintln!("seed {seed}");
            run(seed, &[]).1
        })
        .sum();
    assert!(seeds(20).count() < 20 || answers > 100, "only {answers} answers");
}

#[test]
fn batches_are_seen_as_a_whole_under_faults() {
    let (mut failed, mut answers) = (0, 0);
    for seed in seeds(40) {
        eprintln!("seed {seed}");
        let (failures, given) = run(seed, &KINDS);
        (failed, answers) = (failed + failures, answers + given);
    }
    assert!(seeds(40).count() < 40 || (failed > 0 && answers > 100), "{answers} answers, {failed} failed");
}
