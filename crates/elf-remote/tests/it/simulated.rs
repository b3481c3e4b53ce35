//! A simulated cluster: publishers replace an Elf while readers query it, with torn READs and WRITEs, delays,
//! memory servers that are slow, stopped or restarted, lost connections and answers. Every answer is that of one
//! published table, and of one that is not older than what was published before the query began.
//!
//! `PANDO_SIM_SEEDS=A..B` replays seeds A to B - 1.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use crate::common::{account, allocated, build};
use crate::model::brute_force;
use crate::setup::{KINDS, Setup, run_slots, seeds, threads};
use pando_elf::{BuildOptions, CodeTable, Elf, Interval, LayoutKind, Predicate};
use pando_elf_remote::{Publisher, ReadOptions, Reader, RemoteError};
use pando_fabric::{DynEndpoint, Endpoint, Nanos, Random, VerbCounts};
use pando_pool::{Pool, PoolError};
use pando_rt::block_on;
use pando_sim::{FaultKind, SimFabric};

const PUBLISHERS: usize = 2;
const THREADS: usize = 5;
const TABLES: usize = 5;
/// Time at which all faults end.
const WELL_AT: Nanos = 2_000_000;

/// Errors that may happen during faults. Any other is a defect.
fn is_excused(error: &RemoteError, kinds: &[FaultKind]) -> bool {
    // Without its memory, a server has no catalog and no pieces.
    kinds.contains(&FaultKind::KillMemory)
        || error.is_unreachable()
        || matches!(
            error,
            RemoteError::Pool(PoolError::LockTimedOut { .. }) | RemoteError::KeptChanging { .. }
        )
}

/// Tables with other numbers of rows, so that answers tell them apart.
fn tables(random: &Random) -> Vec<CodeTable> {
    let make = |number: usize| {
        let rows = 300 + 100 * number;
        let column = |values: u64| (0..rows).map(|_| ((random.next() >> 32) % values) as u32).collect();
        CodeTable::new(vec![column(6), column(30), column(400), column(9)]).expect("even columns")
    };
    (0..TABLES).map(make).collect()
}

fn predicates(random: &Random) -> Vec<Predicate> {
    let mut all = vec![Predicate::all()];
    for _ in 0..6 {
        let mut predicate = Predicate::all();
        for (column, values) in [6, 30, 400, 9].into_iter().enumerate() {
            let (a, b) = ((random.next() >> 40) % values, (random.next() >> 40) % values);
            if random.next() >> 63 == 0 {
                predicate = predicate.and(column, [Interval::new(a.min(b) as u32, a.max(b) as u32)]);
            }
        }
        all.push(predicate);
    }
    all
}

struct Cluster {
    fabric: SimFabric,
    pool: Pool,
    publishers: Vec<Publisher>,
    elfs: Vec<Elf>,
    tables: Vec<CodeTable>,
    predicates: Vec<Predicate>,
    options: ReadOptions,
    /// Kinds of faults that may happen.
    kinds: Vec<FaultKind>,
    /// Table of each version, where that is known.
    versions: RefCell<BTreeMap<u64, usize>>,
    /// Latest version whose publication was acknowledged.
    acknowledged: Cell<u64>,
}

impl Cluster {
    fn new(seed: u64, kinds: &[FaultKind]) -> Self {
        let setup = Setup::new(seed);
        let (ep, pool) = (&setup.ep, setup.pool.clone());
        let publish = setup.publish_options();
        let open = || block_on(ep, Publisher::open(ep, pool.clone(), "elf", publish)).expect("opened");
        let publishers = (0..PUBLISHERS).map(|_| open()).collect();
        let layout = if setup.one_of(&[0, 1]) == 0 { LayoutKind::Linear } else { LayoutKind::Columnar };
        let build_options =
            BuildOptions { bucket_rows: setup.one_of(&[1, 8, 256]) as u32, ..BuildOptions::default() };
        let tables = tables(&setup.random);
        let elfs = tables.iter().map(|table| build(table, &[0, 1, 2, 3], layout, &build_options)).collect();
        let options = setup.read_options();
        setup.plan_faults(kinds, WELL_AT);
        let predicates = predicates(&setup.random);
        let (versions, acknowledged) = (RefCell::default(), Cell::new(0));
        let kinds = kinds.to_vec();
        Self {
            fabric: setup.fabric,
            pool,
            publishers,
            elfs,
            tables,
            predicates,
            options,
            kinds,
            versions,
            acknowledged,
        }
    }

    /// Publishes one table after the other; returns how often that failed.
    async fn publish(&self, number: usize, ep: &DynEndpoint) -> u64 {
        let mut failures = 0;
        while ep.now() < WELL_AT {
            let table = (ep.random() >> 32) as usize % TABLES;
            match self.publishers[number].publish(ep, &self.elfs[table]).await {
                Ok(published) => {
                    let before = self.versions.borrow_mut().insert(published.version, table);
                    assert_eq!(before, None, "two publications have version {}", published.version);
                    self.acknowledged.set(self.acknowledged.get().max(published.version));
                }
                Err(error) => {
                    assert!(is_excused(&error, &self.kinds), "{error}");
                    failures += 1;
                }
            }
            ep.sleep_until(ep.now() + ep.random() % 60_000).await;
        }
        failures
    }

    /// Queries; returns answers by version, and how many failed or began anew.
    async fn query(&self, reader: &Reader, ep: &DynEndpoint) -> (Vec<(u64, usize, Vec<u32>)>, u64, u64) {
        let (mut answers, mut failures, mut restarts) = (Vec::new(), 0, 0);
        while ep.now() < WELL_AT {
            let number = (ep.random() >> 32) as usize % self.predicates.len();
            let acknowledged = self.acknowledged.get();
            match reader.ids::<u32, _>(ep, &self.predicates[number]).await {
                Ok(answer) => {
                    assert!(
                        answer.version >= acknowledged,
                        "{} is older than {acknowledged}",
                        answer.version
                    );
                    restarts += u64::from(answer.cost.restarts);
                    let mut ids = answer.value;
                    ids.sort_unstable();
                    answers.push((answer.version, number, ids));
                }
                Err(RemoteError::NoImage { .. }) if acknowledged == 0 => {}
                Err(error) => {
                    assert!(is_excused(&error, &self.kinds), "{error}");
                    failures += 1;
                }
            }
            ep.sleep_until(ep.now() + ep.random() % 20_000).await;
        }
        (answers, failures, restarts)
    }

    /// Checks that answers of one version are those of one table.
    fn check(&self, answers: &[(u64, usize, Vec<u32>)]) {
        let expected = |table: usize, predicate: usize| {
            let ids = brute_force(&self.tables[table], &self.predicates[predicate]);
            ids.into_iter().map(|id| id as u32).collect::<Vec<_>>()
        };
        let mut may_be: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        for (version, number, ids) in answers {
            let all = || (0..TABLES).collect();
            let tables = self.versions.borrow().get(version).map_or_else(all, |&table| vec![table]);
            let tables = may_be.entry(*version).or_insert(tables);
            tables.retain(|&table| expected(table, *number) == *ids);
            assert!(!tables.is_empty(), "version {version}: {} ids of no table", ids.len());
        }
    }

    fn settle(&self, reader: &Reader, others: &BTreeSet<u64>) {
        // All faults have ended: what was replaced or not published is free, and publishing works.
        let ep = DynEndpoint::new(self.fabric.direct(98));
        let publishers: Vec<_> = self.publishers.iter().collect();
        for publisher in &publishers {
            assert_eq!(block_on(&ep, publisher.settle(&ep, 50_000_000)).expect("no error"), 0);
        }
        block_on(&ep, publishers[0].publish(&ep, &self.elfs[1])).expect("no error");
        assert_eq!(block_on(&ep, publishers[0].settle(&ep, 50_000_000)).expect("no error"), 0);
        account(&ep, &self.pool, &publishers, others);
        let last = block_on(&ep, reader.count(&ep, &Predicate::all())).expect("no error");
        assert_eq!(last.value, self.tables[1].rows() as u64);
    }
}

/// Runs one history; returns failed operations, restarts of queries, answers, and all verbs.
pub fn run(seed: u64, kinds: &[FaultKind]) -> (u64, u64, usize, VerbCounts) {
    let cluster = Cluster::new(seed, kinds);
    let direct = DynEndpoint::new(cluster.fabric.direct(99));
    let others = allocated(&direct, &cluster.pool);
    let readers: Vec<_> = (0..2).map(|_| Reader::new(cluster.pool.clone(), "elf", cluster.options)).collect();
    let threads = threads(&cluster.fabric, THREADS, seed);
    let outputs = run_slots(&cluster.fabric, &threads, |thread, slot| {
        let (cluster, readers, threads) = (&cluster, &readers, &threads);
        async move {
            match (thread < PUBLISHERS, slot) {
                (true, 0) => (Vec::new(), cluster.publish(thread, &threads[thread]).await, 0),
                _ => cluster.query(&readers[thread % 2], &threads[thread]).await,
            }
        }
    });
    let (mut answers, mut failures, mut restarts) = (Vec::new(), 0, 0);
    for (found, failed, again) in outputs.into_iter().flatten() {
        answers.extend(found);
        (failures, restarts) = (failures + failed, restarts + again);
    }
    cluster.check(&answers);
    if !kinds.contains(&FaultKind::KillMemory) {
        cluster.settle(&readers[0], &others);
    }
    (failures, restarts, answers.len(), threads.iter().map(|ep| ep.counters().snapshot()).sum())
}

#[test]
fn answers_are_those_of_one_image_though_it_is_replaced() {
    let (mut restarts, mut answers) = (0, 0);
    for seed in seeds(30) {
        eprintln!("seed {seed}");
        let (_, again, given, _) = run(seed, &[]);
        (restarts, answers) = (restarts + again, answers + given);
    }
    eprintln!("{answers} answers, {restarts} restarts");
    assert!(seeds(30).count() < 30 || restarts > 0, "no query was overtaken");
}

#[test]
fn answers_are_those_of_one_image_under_faults() {
    let (mut failed, mut answers) = (0, 0);
    for seed in seeds(60) {
        eprintln!("seed {seed}");
        let (failures, _, given, _) = run(seed, &KINDS);
        (failed, answers) = (failed + failures, answers + given);
    }
    eprintln!("{answers} answers, {failed} failed operations");
    assert!(seeds(60).count() < 60 || failed > 0, "no fault was noticed");
}

#[test]
fn no_answer_is_wrong_though_memory_is_lost() {
    let mut failed = 0;
    for seed in seeds(20) {
        eprintln!("seed {seed}");
        failed += run(seed, &[FaultKind::KillMemory, FaultKind::Torn, FaultKind::LostAnswers]).0;
    }
    assert!(seeds(20).count() < 20 || failed > 0, "no fault was noticed");
}

#[test]
fn the_same_seed_is_the_same_history() {
    assert_eq!(run(3, &KINDS), run(3, &KINDS));
}
