//! The tree without a cache on a simulated cluster: many threads of several compute servers, torn READs and
//! WRITEs, with and without partitions.
//!
//! Every slot owns a share of the keys and checks every answer for them against a model.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::common::load::key;
use crate::common::{INDEX, fixed_tiny};
use pando_dex::layout::Layout;
use pando_dex::layout::slotted::SlottedLayout;
use pando_dex::plain::{PlainConfig, PlainTree};
use pando_dex::{BulkLoad, KeyRange, ScanRange, Tree, partition_of};
use pando_fabric::{DynEndpoint, Endpoint, Random, VerbCounts};
use pando_pool::{Pool, PoolOptions};
use pando_rt::block_on;
use pando_sim::{Faults, Model, SimConfig, SimFabric};

const KEYS: u64 = 400;

struct Plain<L> {
    fabric: SimFabric,
    boundaries: Vec<Vec<u8>>,
    trees: Vec<PlainTree<L>>,
}

fn value(k: u64, n: u64) -> [u8; 8] {
    (k << 40 | n).to_le_bytes()
}

impl<L: Layout> Plain<L> {
    /// A tree in which every second key is loaded, with value 0.
    fn new(seed: u64, layout: L, partitioned: bool, compute_servers: u64, torn_share: f64) -> Self {
        let faults = Faults { torn_share, ..Faults::default() };
        let config = SimConfig {
            regions: vec![8 << 20; 2],
            compute_servers: compute_servers as usize,
            seed,
            model: Model { faults, ..Model::default() },
        };
        let fabric = SimFabric::new(&config).expect("a sound model");
        let boundaries: Vec<_> = (1..compute_servers).map(|i| key(KEYS * i / compute_servers)).collect();
        let ep = DynEndpoint::new(fabric.direct(seed));
        let pool = block_on(&ep, Pool::create(&ep, PoolOptions::embedded())).expect("a pool");
        let root = block_on(&ep, Tree::create(&ep, &pool, layout, INDEX, &boundaries)).expect("created");
        let entries: Vec<_> = (0..KEYS).step_by(2).map(|k| (key(k), value(k, 0).to_vec())).collect();
        let load = BulkLoad::new(layout, pool.clone(), INDEX, 1, &boundaries).leaf_fill(0.7);
        let len = entries.len() as u64;
        let slice = block_on(&ep, load.load_slice(&ep, &entries.as_slice(), 0..len, 1, 0)).expect("loaded");
        block_on(&ep, load.finish(&ep, vec![slice], root)).expect("loaded");
        let trees = KeyRange::from_boundaries(&boundaries).into_iter().map(|range| {
            let config = PlainConfig {
                range,
                partitioned,
                subtree_level: 1,
                patience_ns: 20_000_000,
                ..PlainConfig::new(INDEX, root)
            };
            PlainTree::new(pool.clone(), layout, config)
        });
        Self { fabric, trees: trees.collect(), boundaries }
    }

    fn tree(&self, k: u64) -> &PlainTree<L> {
        &self.trees[partition_of(&self.boundaries, &key(k))]
    }

    async fn get(&self, ep: &DynEndpoint, k: u64) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        self.tree(k).get(ep, &key(k), &mut out).await.expect("no error").then_some(out)
    }

    /// Operations of one slot. The slot owns the keys that are `owner` modulo `owners`.
    async fn work(&self, ep: &DynEndpoint, owner: u64, owners: u64, operations: u64) {
        let loaded = (owner..KEYS).step_by(owners as usize).filter(|k| k % 2 == 0);
        let mut model: BTreeMap<u64, Vec<u8>> = loaded.map(|k| (k, value(k, 0).to_vec())).collect();
        for n in 1..=operations {
            let random = ep.random();
            // A few keys are hot.
            let any = if random & 7 < 3 { random >> 8 & 15 } else { (random >> 8) % KEYS };
            let own = any / owners * owners + owner;
            let (tree, bytes, new) = (self.tree(own), key(own), value(own, n));
            match random >> 32 & 15 {
                0..4 if own < KEYS => {
                    let existed = tree.put(ep, &bytes, &new).await.expect("no error");
                    assert_eq!(existed, model.insert(own, new.to_vec()).is_some(), "put {own}");
                }
                4..6 if own < KEYS => {
                    let inserted = tree.insert(ep, &bytes, &new).await.expect("no error");
                    assert_eq!(inserted, !model.contains_key(&own), "insert {own}");
                    model.entry(own).or_insert(new.to_vec());
                }
                6..8 if own < KEYS => {
                    let updated = tree.update(ep, &bytes, &new).await.expect("no error");
                    assert_eq!(updated, model.contains_key(&own), "update {own}");
                    model.entry(own).and_modify(|value| *value = new.to_vec());
                }
                8 if own < KEYS => {
                    let existed = tree.remove(ep, &bytes).await.expect("no error");
                    assert_eq!(existed, model.remove(&own).is_some(), "remove {own}");
                }
                9 => self.scan(ep, &model, any).await,
                10..13 if own < KEYS => {
                    assert_eq!(self.get(ep, own).await.as_ref(), model.get(&own), "get {own}")
                }
                _ => {
                    if let Some(found) = self.get(ep, any).await {
                        let word = u64::from_le_bytes(found.try_into().expect("8 bytes"));
                        assert_eq!(word >> 40, any, "value of another key");
                    }
                }
            }
            ep.pace().await;
        }
        for k in (owner..KEYS).step_by(owners as usize) {
            assert_eq!(self.get(ep, k).await.as_ref(), model.get(&k), "key {k} at the end");
        }
    }

    /// Scans from a key up to the limit, and checks that the entries are in order, each once, with all of
    /// this slot's.
    async fn scan(&self, ep: &DynEndpoint, model: &BTreeMap<u64, Vec<u8>>, start: u64) {
        let (low, limit) = (key(start), 30);
        let mut found: Vec<u64> = Vec::new();
        let range = ScanRange { low: Bound::Included(&low), limit, ..ScanRange::all() };
        let visited = self.tree(start).scan(ep, &range, |key, value| {
            let k = u64::from_be_bytes(key.try_into().expect("8 bytes")) >> 32;
            assert_eq!(
                u64::from_le_bytes(value.try_into().expect("8 bytes")) >> 40,
                k,
                "another key's value"
            );
            assert!(k >= start && found.last().is_none_or(|&last| last < k), "out of order");
            if let Some(own) = model.get(&k) {
                assert_eq!(value, own.as_slice(), "an old value of key {k}");
            }
            found.push(k);
            true
        });
        assert_eq!(visited.await.expect("no error"), found.len());
        let end = if found.len() < limit { KEYS } else { found[found.len() - 1] };
        for k in model.keys().filter(|&&k| k >= start && k <= end) {
            assert!(found.contains(k), "key {k} was there throughout: {found:?}");
        }
    }
}

/// Runs one history; returns the verbs of all threads, and the number of operations.
fn run<L: Layout>(seed: u64, layout: L, partitioned: bool) -> (VerbCounts, u64) {
    let random = Random::new(seed);
    let draw = |choices: &[u64]| choices[(random.next() >> 33) as usize % choices.len()];
    let compute_servers = draw(&[1, 2, 3]);
    let torn_share = draw(&[0, 1, 10]) as f64 / 10.0;
    let plain = Plain::new(seed, layout, partitioned, compute_servers, torn_share);
    let (threads, slots) = (draw(&[1, 4, 9]), draw(&[1, 3]));
    let owners = threads * slots;
    let operations = 1200 / owners;
    let server = |thread: u64| (thread % compute_servers) as usize;
    let endpoint = |thread| DynEndpoint::new(plain.fabric.thread(server(thread), seed * 100 + thread));
    let endpoints: Vec<_> = (0..threads).map(endpoint).collect();
    let running: Vec<_> = endpoints.iter().map(DynEndpoint::as_type).collect();
    plain.fabric.run(&running, slots as u32, |thread, slot| {
        plain.work(&endpoints[thread], thread as u64 * slots + u64::from(slot), owners, operations)
    });
    let ep = DynEndpoint::new(plain.fabric.direct(99));
    let audit = block_on(&ep, plain.trees[0].audit(&ep)).expect("no error");
    assert_eq!(audit.violations, Vec::<String>::new(), "seed {seed}");
    assert!(audit.height >= 3 && plain.trees.iter().map(PlainTree::splits).sum::<u64>() > 3, "seed {seed}");
    (endpoints.iter().map(|ep| ep.counters().snapshot()).sum(), owners * operations)
}

fn run_all<L: Layout>(layout: impl Fn() -> L) {
    for seed in 0..20 {
        for partitioned in [false, true] {
            // Printed if the test fails.
            eprintln!("seed {seed}, partitioned {partitioned}");
            run(seed, layout(), partitioned);
        }
    }
}

#[test]
fn fixed_nodes() {
    run_all(fixed_tiny);
}

#[test]
fn slotted_nodes() {
    run_all(|| SlottedLayout::new(512).expect("a size of nodes").with_fanout_limit(4));
}

#[test]
fn the_same_seed_is_the_same_history() {
    assert_eq!(run(3, fixed_tiny(), true).0, run(3, fixed_tiny(), true).0);
}

#[test]
fn a_partition_needs_no_remote_synchronisation() {
    let cost = |partitioned: bool| {
        let plain = Plain::new(1, fixed_tiny(), partitioned, 1, 0.0);
        let ep = DynEndpoint::new(plain.fabric.thread(0, 5));
        let mut counts = Vec::new();
        plain
            .fabric
            .run(&[ep.as_type()], 1, |_, _| {
                let (plain, ep) = (&plain, &ep);
                async move {
                    let mut costs = Vec::new();
                    for write in [false, true] {
                        let before = ep.counters().snapshot();
                        match write {
                            true => {
                                let (key, value) = (key(8), value(8, 7));
                                let update = plain.tree(8).update(ep, &key, &value);
                                assert!(update.await.expect("no error"));
                            }
                            false => drop(plain.get(ep, 8).await),
                        }
                        costs.push(ep.counters().snapshot() - before);
                    }
                    costs
                }
            })
            .into_iter()
            .flatten()
            .flatten()
            .for_each(|cost: VerbCounts| counts.push((cost.reads, cost.writes, cost.atomics)));
        counts
    };
    let audit = {
        let plain = Plain::new(1, fixed_tiny(), false, 1, 0.0);
        let ep = DynEndpoint::new(plain.fabric.direct(9));
        block_on(&ep, plain.trees[0].audit(&ep)).expect("no error")
    };
    let levels = u64::from(audit.height);
    assert_eq!(audit.entries, KEYS / 2);
    // Version, node, version; then a compare-and-swap, and a chain of two WRITEs.
    assert_eq!(cost(false), [(3 * levels, 0, 0), (3 * levels, 2, 1)]);
    assert_eq!(cost(true), [(levels, 0, 0), (levels, 1, 0)]);
}
