//! A simulated cluster with faults: torn READs and WRITEs, delays, memory servers that are slow, stopped or
//! restarted, lost connections and answers. Acknowledged changes are present, refused ones are not, and
//! unknown ones may be either; in the end everything works again and all blocks are accounted for.
//!
//! `PANDO_SIM_SEEDS=A..B` replays seeds A to B - 1.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, Range};

use crate::common::history::History;
use crate::common::{Setup, Shape, account, number_of, value};
use pando_fabric::{Endpoint, Nanos, Random};
use pando_pool::{Pool, PoolError, PoolOptions};
use pando_rt::block_on;
use pando_sim::{FaultBounds, FaultKind, FaultPlan, Faults, Model, SimConfig, SimEndpoint, SimFabric};
use pando_smart::{NodeRoom, Partition, Smart, SmartConfig, SmartError, Techniques};

const KINDS: [FaultKind; 7] = FaultKind::PASSING;
const SERVERS: usize = 2;
const THREADS: usize = 4;
const SLOTS: u64 = 3;
const KEYS: u64 = 120;
const PATIENCE_NS: Nanos = 3_000_000;
/// Time at which all faults end.
const WELL_AT: Nanos = 2_000_000;

fn seeds(usually: u64) -> Range<u64> {
    let Ok(text) = std::env::var("PANDO_SIM_SEEDS") else { return 0..usually };
    let (first, end) = text.split_once("..").expect("PANDO_SIM_SEEDS=A..B");
    first.parse().expect("a number")..end.parse().expect("a number")
}

/// Errors that may happen during faults. Any other is a defect.
fn is_excused(error: &SmartError) -> bool {
    match error {
        SmartError::Fabric(error) | SmartError::Pool(PoolError::Fabric(error)) => error.is_unreachable(),
        SmartError::Undecided(error) => is_excused(error),
        SmartError::TimedOut { .. } | SmartError::Combined => true,
        SmartError::Pool(PoolError::LockTimedOut { .. }) => true,
        _ => false,
    }
}

struct Cluster {
    fabric: SimFabric,
    indexes: Vec<Smart>,
    threads: Vec<SimEndpoint>,
}

impl Cluster {
    fn new(seed: u64, techniques: Techniques, is_partitioned: bool) -> Self {
        let random = Random::new(seed);
        let faults = Faults { timeout_ns: 100_000, ..Faults::default() };
        let model = Model { faults: faults.clone(), ..Model::default() };
        let config = SimConfig { regions: vec![8 << 20; 2], compute_servers: SERVERS, seed, model };
        let fabric = SimFabric::new(&config).expect("a sound model");
        let ep = fabric.direct(seed);
        let pool = block_on(&ep, Pool::create(&ep, PoolOptions::embedded())).expect("a pool");
        let node_room = if seed.is_multiple_of(2) { NodeRoom::Full } else { NodeRoom::Exact };
        let cache_bytes = [0, 8 << 10, 1 << 20][(random.next() >> 32) as usize % 3];
        let setup = Setup { node_room, cache_bytes, ..Setup::new(techniques) };
        let mut config = block_on(&ep, setup.create(&ep, &pool));
        config.patience_ns = PATIENCE_NS;
        let middle = (KEYS / 2).to_be_bytes().to_vec();
        let parts = [
            Partition { low: Bound::Unbounded, high: Bound::Excluded(middle.clone()) },
            Partition { low: Bound::Included(middle), high: Bound::Unbounded },
        ];
        let open = |part: &Partition| {
            let config = SmartConfig { partition: is_partitioned.then(|| part.clone()), ..config.clone() };
            block_on(&ep, Smart::open(&ep, pool.clone(), config)).expect("opened")
        };
        let indexes = parts.iter().map(open).collect();
        let bounds = FaultBounds {
            compute_servers: SERVERS,
            memory_servers: 2,
            from: 20_000,
            until: WELL_AT,
            faults: 1 + (random.next() >> 32) as usize % 6,
            usual: faults,
        };
        let kinds: Vec<_> = KINDS.into_iter().filter(|_| random.next() >> 63 == 0).collect();
        fabric.plan(&FaultPlan::draw(random.next(), &kinds, &bounds));
        let threads =
            (0..THREADS).map(|thread| fabric.thread(thread % SERVERS, seed * 10 + thread as u64)).collect();
        Self { fabric, indexes, threads }
    }

    fn run<F: Future>(&self, make: impl FnMut(usize, u32) -> F) -> Vec<F::Output> {
        let outputs = self.fabric.run(&self.threads.iter().collect::<Vec<_>>(), SLOTS as u32, make);
        outputs.into_iter().flatten().collect()
    }

    fn of(&self, thread: usize) -> (&Smart, &SimEndpoint) {
        (&self.indexes[thread % SERVERS], &self.threads[thread])
    }

    /// All faults have ended: leftovers are finished, and every block is in use, waits to be freed, or was
    /// given up with an unknown state.
    fn check(&self) {
        let ep = self.fabric.direct(99);
        block_on(&ep, async {
            for smart in &self.indexes {
                smart.settle(&ep).await.expect("no error");
                smart.reclaim(&ep).await.expect("no error");
            }
        });
        let audit = block_on(&ep, self.indexes[0].audit(&ep)).expect("no error");
        let wrong: Vec<_> = audit.violations.iter().filter(|what| !what.contains("frozen")).collect();
        assert!(wrong.is_empty(), "{wrong:?}");
        let given_up = self.indexes.iter().flat_map(|smart| smart.doubtful());
        let given_up: BTreeSet<_> = given_up.map(|(at, _)| at.raw()).collect();
        let leaked = account(&ep, &self.indexes.iter().collect::<Vec<_>>(), &audit);
        assert!(leaked.is_subset(&given_up), "leaked {leaked:x?}, but given up {given_up:x?}");
    }
}

/// Possible contents of a key: the numbers of values, or `None`.
type May = BTreeSet<Option<u64>>;

/// A slot with its own keys.
struct Owner<'c> {
    smart: &'c Smart,
    ep: &'c SimEndpoint,
    shape: Shape,
    may: BTreeMap<u64, May>,
    failures: u64,
}

impl Owner<'_> {
    /// Notes the result of a change to `wanted`; returns whether it was done, if known.
    fn note(&mut self, k: u64, wanted: Option<u64>, done: Result<bool, SmartError>) -> Option<bool> {
        let may = self.may.get_mut(&k).expect("an own key");
        match done {
            Ok(true) => *may = May::from([wanted]),
            Ok(false) => {}
            Err(error) => {
                assert!(is_excused(&error), "{error}");
                self.failures += 1;
                if error.may_have_taken_effect() {
                    may.insert(wanted);
                }
                return None;
            }
        }
        done.ok()
    }

    async fn operate(&mut self, k: u64, n: u64) {
        let (key, new) = (self.shape.key(k), value(k, n));
        let (smart, ep) = (self.smart, self.ep);
        let before = self.may[&k].clone();
        let (may_be_there, may_be_absent) = (before.iter().any(Option::is_some), before.contains(&None));
        match ep.random() >> 40 & 7 {
            0 | 1 => {
                let mut existed = false;
                let put = smart.put(ep, &key, &new).await.map(|found| {
                    existed = found;
                    true
                });
                if self.note(k, Some(n), put).is_some() {
                    assert!(
                        if existed { may_be_there } else { may_be_absent },
                        "put {k}: {existed}, {before:?}"
                    );
                }
            }
            2 => {
                let inserted = smart.insert(ep, &key, &new).await;
                if let Some(inserted) = self.note(k, Some(n), inserted) {
                    assert!(if inserted { may_be_absent } else { may_be_there }, "insert {k}, {before:?}");
                }
            }
            3 => {
                let updated = smart.update(ep, &key, &new).await;
                if let Some(updated) = self.note(k, Some(n), updated) {
                    assert!(if updated { may_be_there } else { may_be_absent }, "update {k}, {before:?}");
                }
            }
            4 => {
                let removed = smart.remove(ep, &key).await;
                if let Some(removed) = self.note(k, None, removed) {
                    assert!(if removed { may_be_there } else { may_be_absent }, "remove {k}, {before:?}");
                }
            }
            5 if k.is_multiple_of(4) => {
                let bounds = (Bound::Included(key.as_slice()), Bound::Unbounded);
                let scanned = smart.scan(ep, bounds, 9, |key, found| {
                    let k = u64::from_le_bytes(found[..8].try_into().expect("8 bytes"));
                    assert_eq!(self.shape.key(k), key);
                    true
                });
                scanned.await.inspect_err(|error| assert!(is_excused(error), "{error}")).ok();
            }
            _ => {
                let mut out = Vec::new();
                match smart.get(ep, &key, &mut out).await {
                    Ok(found) => {
                        let found = found.then(|| number_of(k, &out));
                        assert!(before.contains(&found), "get {k}: {found:?}, but {before:?}");
                    }
                    Err(error) => {
                        assert!(is_excused(&error), "{error}");
                        self.failures += 1;
                    }
                }
            }
        }
    }
}

/// Every slot owns a share of the keys; returns the number of failed operations.
fn run_owners(seed: u64, techniques: Techniques, is_partitioned: bool) -> u64 {
    let cluster = Cluster::new(seed, techniques, is_partitioned);
    let shape = match is_partitioned {
        true => Shape::Dense,
        false => [Shape::Dense, Shape::Sparse, Shape::Strings][seed as usize % 3],
    };
    let owners = THREADS as u64 * SLOTS;
    let owned = cluster.run(|thread, slot| {
        let (smart, ep) = cluster.of(thread);
        // A compute server has a range of keys: its partition, if the index is partitioned.
        let row = KEYS / SERVERS as u64;
        let member = (thread / SERVERS) as u64 * SLOTS + u64::from(slot);
        let members = owners / SERVERS as u64;
        let first = (thread % SERVERS) as u64 * row;
        async move {
            let own: Vec<u64> = (first + member..first + row).step_by(members as usize).collect();
            let may = own.iter().map(|&k| (k, May::from([None]))).collect();
            let mut owner = Owner { smart, ep, shape, may, failures: 0 };
            let mut n = 0;
            while ep.now() < WELL_AT {
                n += 1;
                let k = own[(ep.random() >> 20) as usize % own.len()];
                owner.operate(k, n).await;
                ep.sleep_until(ep.now() + ep.random() % 20_000).await;
            }
            (thread % SERVERS, owner.may, owner.failures)
        }
    });
    cluster.check();
    let ep = cluster.fabric.thread(0, 1);
    let mut failed = 0;
    for (server, mut may, failures) in owned {
        failed += failures;
        let smart = &cluster.indexes[server];
        for (&k, before) in &mut may {
            let (key, mut out) = (shape.key(k), Vec::new());
            let found = block_on(&ep, smart.get(&ep, &key, &mut out)).expect("no error");
            let found = found.then(|| number_of(k, &out));
            assert!(before.contains(&found), "key {k} at the end: {found:?}, but {before:?}");
            let existed = block_on(&ep, smart.put(&ep, &key, &value(k, 5))).expect("no error");
            assert_eq!(existed, found.is_some());
        }
    }
    for k in 0..KEYS {
        let smart = &cluster.indexes[(k >= KEYS / 2) as usize];
        assert!(block_on(&ep, smart.remove(&ep, &shape.key(k))).expect("no error"), "{k}");
    }
    cluster.check();
    failed
}

/// All slots work on a few keys.
fn run_shared(seed: u64, techniques: Techniques) {
    let cluster = Cluster::new(seed, techniques, false);
    let history = History::new(1 + seed % 4 * 3);
    cluster.run(|thread, slot| {
        let ((smart, ep), history) = (cluster.of(thread), &history);
        async move {
            let mut n = 0;
            while ep.now() < WELL_AT {
                n += 1;
                let number = (thread as u64 * SLOTS + u64::from(slot)) * 1_000_000 + n * 11 + 1;
                history.operate(smart, ep, number, is_excused).await;
                ep.sleep_until(ep.now() + ep.random() % 20_000).await;
            }
        }
    });
    assert_eq!(history.violation(), None, "seed {seed}");
    cluster.check();
}

#[test]
fn nothing_acknowledged_is_lost() {
    let mut failed = 0;
    for seed in seeds(30) {
        for (name, techniques) in Techniques::STEPS {
            eprintln!("seed {seed}, {name}");
            failed += run_owners(seed, techniques, false);
        }
    }
    eprintln!("{failed} operations failed");
    assert!(seeds(30).count() < 30 || failed > 0, "no fault was noticed");
}

#[test]
fn nothing_acknowledged_is_lost_with_partitions() {
    for seed in seeds(30) {
        for (name, techniques) in Techniques::STEPS {
            eprintln!("seed {seed}, {name}");
            run_owners(seed, techniques, true);
        }
    }
}

#[test]
fn shared_keys_are_linearizable() {
    for seed in seeds(30) {
        for (name, techniques) in Techniques::STEPS {
            eprintln!("seed {seed}, {name}");
            run_shared(seed, techniques);
        }
    }
}
