//! Locks of shared nodes that their holders do not give back. Three simulated processes, each with a part of
//! the keys, change the nodes that they share, until one of them is killed, or cut off from the memory
//! servers for longer than any operation waits. The other processes go on, and so does the one that was cut
//! off once it is connected again.
//!
//! `PANDO_SIM_SEEDS=A..B` replays seeds A to B - 1.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::draw::{Draw, seeds};
use crate::common::load::key;
use crate::common::{INDEX, fixed_tiny};
use pando_cache::{Cache, CacheConfig, CacheWorker};
use pando_dex::audit::audit;
use pando_dex::layout::Layout;
use pando_dex::layout::slotted::SlottedLayout;
use pando_dex::{Ctx, DexError, KeyRange, ScanRange, Tree, TreeConfig};
use pando_fabric::{DynEndpoint, Endpoint, Fabric, MemoryServerId, Nanos, Random};
use pando_pool::{AttachOptions, Pool, PoolOptions, ProcessIdentity};
use pando_rt::block_on;
use pando_sim::{Fault, FaultPlan, Model, SimConfig, SimFabric};

const PROCESSES: u64 = 3;
const KEYS: u64 = 900;
const SLOTS: u64 = 3;
const PATIENCE: Nanos = 20_000_000;
/// Virtual time from the beginning within which the fault occurs.
const WITHIN: Nanos = 1_500_000;
/// Time after which no verb of a killed process is in flight.
const LATE: Nanos = 1_000_000;
const OPERATIONS: u64 = 260;

/// Fault of the last process.
#[derive(Clone, Copy, PartialEq)]
enum Accident {
    Killed,
    /// Duration.
    CutOff(Nanos),
}

/// One process: its own attachment, and the tree of one compute server.
struct Process<L: Layout> {
    tree: Tree<L>,
    /// Possible values of each key, including those that failed operations may have stored; `None` is absent.
    model: RefCell<BTreeMap<u64, Vec<Option<u64>>>>,
}

struct Run<L: Layout> {
    fabric: SimFabric,
    processes: Vec<Process<L>>,
    boundaries: Vec<Vec<u8>>,
}

impl<L: Layout> Run<L> {
    fn new(seed: u64, layout: L, accident: Accident, at: Nanos) -> Self {
        let draw = Draw(Random::new(seed));
        let config = SimConfig {
            regions: vec![4 << 20; draw.one_of(&[1, 2])],
            compute_servers: PROCESSES as usize,
            seed,
            model: Model::default(),
        };
        let fabric = SimFabric::new(&config).expect("a sound model");
        let ep = DynEndpoint::new(fabric.endpoint(seed).expect("an endpoint"));
        let dead_from = if accident == Accident::Killed { ep.now() + at + LATE } else { Nanos::MAX };
        let direct = fabric.direct_fabric();
        let is_alive = Arc::new(move |process: &ProcessIdentity| {
            let now = direct.endpoint(0).expect("an endpoint").now();
            u64::from(process.pid) != PROCESSES || now < dead_from
        });
        let attach = |number: u64| {
            let process = ProcessIdentity { pid: number as u32 + 1, ..ProcessIdentity::default() };
            AttachOptions::new(process, is_alive.clone()).wait_ns_max(PATIENCE)
        };
        let boundaries: Vec<_> = (1..PROCESSES).map(|i| key(KEYS * i / PROCESSES)).collect();
        let first = block_on(&ep, Pool::create(&ep, PoolOptions::new(attach(0)))).expect("a pool");
        let root = block_on(&ep, Tree::create(&ep, &first, layout, INDEX, &boundaries)).expect("an index");
        let frames = draw.one_of(&[24, 64, 512]);
        let open = |(number, range): (usize, KeyRange)| {
            let pool = match number {
                0 => first.clone(),
                _ => block_on(&ep, Pool::attach(&ep, attach(number as u64))).expect("attach"),
            };
            let mut config = TreeConfig::new(INDEX, root);
            (config.range, config.patience_ns) = (range, PATIENCE);
            let bytes = frames * layout.node_size() as u64;
            let cache = Cache::new(&CacheConfig::new(bytes, layout.node_size())).expect("a cache");
            let cache = Arc::new(cache);
            let worker = cache.worker();
            let ctx = Ctx { ep: &ep, worker: &worker };
            let tree = block_on(&ep, Tree::open(ctx, cache, pool, layout, config)).expect("a tree");
            tree.cache().retire(&worker);
            Process { tree, model: RefCell::default() }
        };
        let ranges = KeyRange::from_boundaries(&boundaries);
        let processes = ranges.into_iter().enumerate().map(open).collect();
        let last = PROCESSES as usize - 1;
        let began = ep.now();
        let servers = (0..fabric.regions().len() as u16).map(MemoryServerId);
        let faults = match accident {
            Accident::Killed => vec![(began + at, Fault::KillCompute { compute_server: last })],
            Accident::CutOff(length) => servers
                .flat_map(|server| {
                    let cut = Fault::Disconnect { compute_server: last, server };
                    let heal = Fault::Reconnect { compute_server: last, server };
                    [(began + at, cut), (began + at + length, heal)]
                })
                .collect(),
        };
        fabric.plan(&FaultPlan { faults });
        Self { fabric, processes, boundaries }
    }

    /// Changes random keys of a process that belong to this slot, at least `OPERATIONS` times and at least
    /// until `until`.
    async fn work(&self, number: usize, ep: &DynEndpoint, worker: &CacheWorker, slot: u64, until: Nanos) {
        let tree = &self.processes[number].tree;
        let ctx = Ctx { ep, worker };
        let (low, high) = (KEYS * number as u64 / PROCESSES, KEYS * (number as u64 + 1) / PROCESSES);
        let mut n = 0;
        while n < OPERATIONS || ep.now() < until {
            n += 1;
            // Shared nodes are split most near the ends of the range.
            let at = ep.random() % (high - low) / SLOTS * SLOTS + slot;
            let at = low + if ep.random().is_multiple_of(2) { at % (24 * SLOTS) } else { at };
            if at >= high {
                continue;
            }
            let is_removal = ep.random().is_multiple_of(4);
            let value = if is_removal { None } else { Some(at << 32 | n) };
            let done = match value {
                None => tree.remove(ctx, &key(at)).await,
                Some(value) => tree.put(ctx, &key(at), &value.to_le_bytes()).await,
            };
            match done {
                Ok(_) => self.note(number, at, value, true),
                Err(DexError::Corrupt { addr, reason }) => panic!("{addr} is corrupt: {reason}"),
                Err(error) => {
                    eprintln!("{}: process {number}, key {at}: {error}", ep.now());
                    self.note(number, at, value, false);
                }
            }
            ep.pace().await;
        }
    }

    /// Records the value of a key, or a possible value.
    fn note(&self, number: usize, at: u64, value: Option<u64>, is_certain: bool) {
        let mut model = self.processes[number].model.borrow_mut();
        let known = model.entry(at).or_insert_with(|| vec![None]);
        match is_certain {
            true => *known = vec![value],
            false => known.push(value),
        }
    }

    /// Checks that all keys of a process have possible values.
    fn check(&self, seed: u64, number: usize, ep: &DynEndpoint) {
        let Process { tree, model } = &self.processes[number];
        let worker = tree.cache().worker();
        let ctx = Ctx { ep, worker: &worker };
        let mut found = BTreeMap::new();
        let entry = |key: &[u8], value: &[u8]| {
            let at = u64::from_be_bytes(key.try_into().expect("8 bytes")) >> 32;
            found.insert(at, u64::from_le_bytes(value.try_into().expect("8 bytes")));
            true
        };
        let scanned = block_on(ep, tree.scan(ctx, &ScanRange::all(), entry));
        scanned.unwrap_or_else(|error| panic!("seed {seed}: process {number} cannot scan: {error}"));
        for (&at, known) in model.borrow().iter() {
            let value = found.remove(&at);
            assert!(known.contains(&value), "seed {seed}: key {at} is {value:?}, not one of {known:?}");
        }
        assert!(found.is_empty(), "seed {seed}: {found:?} were never put");
        tree.cache().retire(&worker);
    }

    /// Runs all processes until the fault of the last one is over, and for a while after.
    fn run(&self, seed: u64, calm: Nanos) {
        let thread =
            |number: usize| DynEndpoint::new(self.fabric.thread(number, seed * 1000 + number as u64));
        let endpoints: Vec<_> = (0..self.processes.len()).map(thread).collect();
        let workers: Vec<_> = self.processes.iter().map(|process| process.tree.cache().worker()).collect();
        let until = endpoints[0].now() + calm;
        let threads: Vec<_> = endpoints.iter().map(DynEndpoint::as_type).collect();
        self.fabric.run_mortals(&threads, SLOTS as u32, |thread, slot| {
            self.work(thread, &endpoints[thread], &workers[thread], slot.into(), until)
        });
        for (process, worker) in self.processes.iter().zip(&workers) {
            process.tree.cache().retire(worker);
        }
    }

    fn tally(&self) -> (u64, u64) {
        let pools = self.processes.iter().map(|process| process.tree.pool());
        let taken_over = pools.map(Pool::locks_taken_over).sum();
        let changes = self.processes.iter().map(|process| process.tree.smo_counts()[3]).sum();
        (taken_over, changes)
    }
}

/// Time of the fault in the run of a seed.
fn moment_of(seed: u64) -> Nanos {
    100_000 + Random::new(seed ^ 0xacc1_de17).next() % WITHIN
}

fn a_process_is_killed<L: Layout>(seed: u64, layout: L) -> (u64, u64) {
    let at = moment_of(seed);
    let run = Run::new(seed, layout, Accident::Killed, at);
    run.run(seed, at + 3 * PATIENCE);
    for survivor in 0..PROCESSES as usize - 1 {
        let ep = DynEndpoint::new(run.fabric.thread(survivor, seed));
        let is_certain = |known: &Vec<_>| known.len() == 1;
        let model = run.processes[survivor].model.borrow();
        assert!(model.values().all(is_certain), "seed {seed}: an operation of process {survivor} failed");
        drop(model);
        run.check(seed, survivor, &ep);
    }
    run.tally()
}

fn a_process_is_cut_off<L: Layout>(seed: u64, layout: L) -> (u64, u64) {
    let (at, length) = (moment_of(seed), 2 * PATIENCE);
    let run = Run::new(seed, layout, Accident::CutOff(length), at);
    run.run(seed, at + length + 2 * PATIENCE);
    for number in 0..PROCESSES as usize {
        run.check(seed, number, &DynEndpoint::new(run.fabric.thread(number, seed)));
    }
    let trees: Vec<_> = run.processes.iter().map(|process| &process.tree).collect();
    let ep = DynEndpoint::new(run.fabric.direct(seed));
    assert!(trees.iter().all(|tree| !tree.pool().has_left_locks()), "seed {seed}: locks are left");
    let report = block_on(&ep, audit(&ep, &trees)).expect("an audit");
    assert_eq!(report.violations, [""; 0], "seed {seed}");
    assert_eq!(run.boundaries.len() + 1, trees.len());
    run.tally()
}

fn run_all(usually: u64, run: impl Fn(u64) -> (u64, u64)) -> (u64, u64) {
    seeds(usually).fold((0, 0), |(taken_over, changes), seed| {
        // Printed if the test fails.
        eprintln!("seed {seed}");
        let (more, further) = run(seed);
        (taken_over + more, changes + further)
    })
}

#[test]
fn what_a_killed_process_had_locked_is_put_right() {
    let (taken_over, changes) = run_all(60, |seed| a_process_is_killed(seed, fixed_tiny()));
    eprintln!("{taken_over} locks were taken over, shared nodes changed {changes} times");
    assert!(seeds(60).count() < 60 || taken_over >= 5, "{taken_over} locks were taken over");
}

#[test]
fn slotted_nodes_of_a_killed_process_are_put_right() {
    let layout = || SlottedLayout::new(512).expect("a node size").with_fanout_limit(4);
    let (taken_over, _) = run_all(60, |seed| a_process_is_killed(seed, layout()));
    assert!(seeds(60).count() < 60 || taken_over >= 5, "{taken_over} locks were taken over");
}

#[test]
fn what_a_process_could_not_give_back_it_gives_back_later() {
    run_all(40, |seed| a_process_is_cut_off(seed, fixed_tiny()));
}
