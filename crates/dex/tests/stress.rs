//! Several threads with several slots each on tiny nodes and tiny caches. Every thread owns a share of the keys and
//! keeps a model of them; all threads read and scan everything.

mod common;

use std::collections::BTreeMap;

use common::{Cluster, fixed_tiny};
use pando_cache::{CacheConfig, Eviction};
use pando_dex::layout::Layout;
use pando_dex::layout::slotted::SlottedLayout;
use pando_dex::{Answers, Ctx, ScanRange, Swapped, partition_of};
use pando_fabric::Endpoint;

/// Keys of most loads.
const KEYS: u64 = 400;

fn key(k: u64) -> Vec<u8> {
    (k << 32).to_be_bytes().to_vec()
}

/// What the entry of a key looks like: the key, and a number that its owner counts up.
fn value(k: u64, n: u64) -> Vec<u8> {
    (k << 40 | n).to_le_bytes().to_vec()
}

#[derive(Clone, Copy)]
struct Load {
    keys: u64,
    /// Whether all of them are there when the operations begin.
    fill: bool,
    threads: u64,
    slots: u64,
    operations: u64,
    /// Levels that the tree has at the end, at least.
    height: u32,
    /// READs are pending up to so many times; 0 is never.
    delay_max: u64,
}

fn rounds() -> u64 {
    std::env::var("PANDO_STRESS_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

fn run<L: Layout>(make: impl Fn() -> Cluster<L>, load: &Load) {
    for round in 0..rounds() {
        let cluster = make();
        std::thread::scope(|scope| {
            for thread in 0..load.threads {
                let cluster = &cluster;
                scope.spawn(move || work(cluster, load, round, thread));
            }
        });
        assert_eq!(cluster.audit(), Vec::<String>::new(), "round {round}");
        load.check_shape(&cluster);
    }
}

impl Load {
    /// The tree is as high as the load wants it, and nodes were split and merged.
    fn check_shape<L: Layout>(&self, cluster: &Cluster<L>) {
        let height = cluster.trees.iter().map(|tree| tree.height()).max();
        assert!(height >= Some(self.height), "{height:?}");
        let smos = cluster.trees.iter().map(|tree| tree.smo_counts());
        let [splits, merges] = smos.fold([0; 2], |sum, counts| [sum[0] + counts[0], sum[1] + counts[1]]);
        assert!(splits > 10 && merges > 0, "{splits} splits, {merges} merges");
    }
}

/// Runs the slots of one thread; each slot owns the keys that are its number modulo all slots.
fn work<L: Layout>(cluster: &Cluster<L>, load: &Load, round: u64, thread: u64) {
    let seed = 1 + round * 1000 + thread;
    match load.delay_max {
        0 => work_as(&cluster.client(seed), load, thread),
        delay_max => work_as(&cluster.observed(seed, delay_max), load, thread),
    }
}

fn work_as<L: Layout, E: Endpoint>(client: &common::Client<'_, L, E>, load: &Load, thread: u64) {
    let slots = (0..load.slots).map(|slot| {
        let owner = thread * load.slots + slot;
        let owners = load.threads * load.slots;
        async move {
            let mut model = BTreeMap::new();
            let own = (owner..load.keys).step_by(owners as usize).filter(|_| load.fill);
            let mut own: Vec<_> = own.map(|k| (client.ep.random(), k)).collect();
            own.sort_unstable();
            for (_, k) in own {
                let (tree, ctx) = place(client, k);
                assert!(tree.insert(ctx, &key(k), &value(k, 0)).await.unwrap(), "insert {k}");
                model.insert(k, value(k, 0));
            }
            for n in 0..load.operations {
                step(client, load, &mut model, owner, n).await;
            }
            for k in (owner..load.keys).step_by(owners as usize) {
                assert_eq!(get(client, k).await, model.get(&k).cloned(), "key {k} at the end");
            }
        }
    });
    pando_rt::run_slots(&client.ep, slots.collect());
}

fn place<'c, L: Layout, E: Endpoint>(
    client: &'c common::Client<'_, L, E>,
    k: u64,
) -> (&'c pando_dex::Tree<L>, Ctx<'c, E>) {
    client.server(partition_of(&client.cluster.boundaries, &key(k)))
}

async fn get<L: Layout, E: Endpoint>(client: &common::Client<'_, L, E>, k: u64) -> Option<Vec<u8>> {
    let (tree, ctx) = place(client, k);
    let mut out = Vec::new();
    tree.get(ctx, &key(k), &mut out).await.unwrap().then_some(out)
}

async fn step<L: Layout, E: Endpoint>(
    client: &common::Client<'_, L, E>,
    load: &Load,
    model: &mut BTreeMap<u64, Vec<u8>>,
    owner: u64,
    n: u64,
) {
    let random = client.ep.random();
    let (any, owners) = (random % load.keys, load.threads * load.slots);
    let own = any / owners * owners + owner;
    let (tree, ctx) = place(client, own);
    match random >> 32 & 31 {
        0..6 if own < load.keys => {
            let existed = tree.put(ctx, &key(own), &value(own, n)).await.unwrap();
            assert_eq!(existed, model.insert(own, value(own, n)).is_some(), "put {own}");
        }
        6..8 if own < load.keys => {
            let inserted = tree.insert(ctx, &key(own), &value(own, n)).await.unwrap();
            assert_eq!(inserted, !model.contains_key(&own), "insert {own}");
            model.entry(own).or_insert_with(|| value(own, n));
        }
        8..10 if own < load.keys => {
            let (found, new) = (model.get(&own).cloned(), value(own, n));
            let swapped = tree.compare_and_swap(ctx, &key(own), found.as_deref(), Some(&new)).await.unwrap();
            assert_eq!(swapped, Swapped::Done, "swap {own}");
            model.insert(own, new);
        }
        10..16 if own < load.keys => {
            let existed = tree.remove(ctx, &key(own)).await.unwrap();
            assert_eq!(existed, model.remove(&own).is_some(), "remove {own}");
        }
        16..20 if own < load.keys => {
            assert_eq!(get(client, own).await, model.get(&own).cloned(), "get {own}");
        }
        20..22 => scan(client, model, any).await,
        22 => drop(tree.flush(ctx).await.unwrap()),
        23 if own < load.keys => multi_get(client, load, model, own).await,
        _ => {
            if let Some(found) = get(client, any).await {
                let word = u64::from_le_bytes(found.try_into().unwrap());
                assert_eq!(word >> 40, any, "value of another key");
            }
        }
    }
}

/// Scans from a key to the end of its compute server's keys and back. What this slot owns does not change meanwhile,
/// so all of it must come.
async fn scan<L: Layout, E: Endpoint>(
    client: &common::Client<'_, L, E>,
    model: &BTreeMap<u64, Vec<u8>>,
    start: u64,
) {
    let (tree, ctx) = place(client, start);
    let low = key(start);
    let limit = if start.is_multiple_of(3) { 200 } else { 30 };
    for reverse in [false, true] {
        let in_order = |a: u64, b: u64| if reverse { a > b } else { a < b };
        let mut found: Vec<u64> = Vec::new();
        let range = ScanRange { low: std::ops::Bound::Included(&low), limit, reverse, ..ScanRange::all() };
        tree.scan(ctx, &range, |key, value| {
            let k = u64::from_be_bytes(key.try_into().unwrap()) >> 32;
            let word = u64::from_le_bytes(value.try_into().unwrap());
            assert_eq!(word >> 40, k, "value of another key");
            assert!(key >= low.as_slice(), "below the start");
            assert!(found.last().is_none_or(|&last| in_order(last, k)), "out of order");
            if let Some(own) = model.get(&k) {
                assert_eq!(value, own.as_slice(), "an old value of key {k}");
            }
            found.push(k);
            true
        })
        .await
        .unwrap();
        let reached = |k: u64| found.len() < limit || found.last().is_some_and(|&last| !in_order(last, k));
        for &k in model.keys().filter(|&&k| k >= start && tree.config().range.contains(&key(k))) {
            assert!(!reached(k) || found.contains(&k), "key {k} was there throughout: {found:?}");
        }
    }
}

/// Looks up keys of this slot and others beside them.
async fn multi_get<L: Layout, E: Endpoint>(
    client: &common::Client<'_, L, E>,
    load: &Load,
    model: &BTreeMap<u64, Vec<u8>>,
    own: u64,
) {
    let owners = load.threads * load.slots;
    let (tree, ctx) = place(client, own);
    let keys: Vec<u64> = (0..20)
        .map(|i| (own + i * 7 / 4 * owners + i % 2) % load.keys)
        .filter(|&k| tree.config().range.contains(&key(k)))
        .collect();
    let mut answers = Answers::default();
    tree.multi_get(ctx, &keys.iter().map(|&k| key(k)).collect::<Vec<_>>(), &mut answers).await.unwrap();
    for (&k, found) in keys.iter().zip(answers.iter()) {
        if k % owners == own % owners {
            assert_eq!(found, model.get(&k).map(Vec::as_slice), "key {k}");
        } else if let Some(found) = found {
            assert_eq!(u64::from_le_bytes(found.try_into().unwrap()) >> 40, k, "value of another key");
        }
    }
}

fn frames(n: u64) -> impl Fn(&mut CacheConfig) {
    move |config| config.bytes = n * config.node_size as u64
}

#[test]
fn one_compute_server() {
    let load =
        Load { keys: KEYS, fill: false, threads: 3, slots: 4, operations: 1500, height: 4, delay_max: 0 };
    run(|| Cluster::new(fixed_tiny(), 2, &[], frames(64)), &load);
}

#[test]
fn three_compute_servers() {
    let load =
        Load { keys: KEYS, fill: false, threads: 3, slots: 4, operations: 1500, height: 4, delay_max: 0 };
    run(|| Cluster::new(fixed_tiny(), 2, &[key(130), key(270)], frames(48)), &load);
}

#[test]
fn everything_cached() {
    let load =
        Load { keys: KEYS, fill: false, threads: 4, slots: 2, operations: 3000, height: 4, delay_max: 0 };
    run(|| Cluster::new(fixed_tiny(), 1, &[], frames(4096)), &load);
}

#[test]
fn without_swizzling_by_fifo() {
    let load =
        Load { keys: KEYS, fill: false, threads: 3, slots: 3, operations: 1000, height: 4, delay_max: 0 };
    let cache = |config: &mut CacheConfig| {
        frames(64)(config);
        (config.swizzle, config.fifo) = (false, true);
    };
    run(|| Cluster::new(fixed_tiny(), 1, &[key(200)], cache), &load);
}

#[test]
fn random_eviction() {
    let load =
        Load { keys: KEYS, fill: false, threads: 3, slots: 3, operations: 1000, height: 4, delay_max: 0 };
    let cache = |config: &mut CacheConfig| {
        frames(64)(config);
        config.eviction = Eviction::Random;
    };
    run(|| Cluster::new(fixed_tiny(), 1, &[key(200)], cache), &load);
}

#[test]
fn eager_admission() {
    let load =
        Load { keys: KEYS, fill: false, threads: 3, slots: 4, operations: 1500, height: 4, delay_max: 0 };
    let cache = |config: &mut CacheConfig| {
        frames(64)(config);
        config.admission = pando_cache::Admission::eager();
    };
    run(|| Cluster::new(fixed_tiny(), 2, &[], cache), &load);
}

#[test]
fn leaves_never_admitted() {
    let load =
        Load { keys: KEYS, fill: false, threads: 3, slots: 4, operations: 1500, height: 4, delay_max: 0 };
    let cache = |config: &mut CacheConfig| {
        frames(64)(config);
        config.admission = pando_cache::Admission::lazy(0.0);
    };
    run(|| Cluster::new(fixed_tiny(), 2, &[], cache), &load);
}

/// As many frames as a cache must have, for trees that are nearly as high, and for one that is higher.
fn least_frames(threads: u64, slots: u64, operations: u64) {
    let load = Load { keys: KEYS, fill: false, threads, slots, operations, height: 5, delay_max: 0 };
    run(|| Cluster::new(fixed_tiny(), 2, &[], frames(8)), &load);
    run(|| Cluster::new(fixed_tiny(), 2, &[key(130), key(270)], frames(8)), &load);
    let slotted = SlottedLayout::new(512).unwrap().with_fanout_limit(4);
    run(|| Cluster::new(slotted, 1, &[], frames(8)), &load);
    let load = Load { keys: 36 * KEYS, fill: true, height: 9, ..load };
    run(|| Cluster::new(fixed_tiny().with_fanout_limit(3), 2, &[], frames(8)), &load);
    run(|| Cluster::new(fixed_tiny().with_fanout_limit(3), 2, &[key(1000)], frames(8)), &load);
}

#[test]
fn least_frames_one_slot() {
    least_frames(1, 1, 3000);
}

#[test]
fn least_frames_sixteen_slots() {
    least_frames(1, 16, 200);
}

#[test]
fn least_frames_four_threads() {
    least_frames(4, 1, 800);
}

#[test]
fn least_frames_four_threads_of_sixteen_slots() {
    least_frames(4, 16, 50);
}

#[test]
fn least_frames_under_other_evictions() {
    let load =
        Load { keys: KEYS, fill: false, threads: 2, slots: 8, operations: 300, height: 5, delay_max: 0 };
    for configure in [
        (|config| config.eviction = Eviction::Random) as fn(&mut CacheConfig),
        |config| (config.swizzle, config.fifo) = (false, true),
        |config| config.admission = pando_cache::Admission::eager(),
        |config| config.admission = pando_cache::Admission::lazy(0.0),
    ] {
        let cache = |config: &mut CacheConfig| {
            frames(8)(config);
            configure(config);
        };
        run(|| Cluster::new(fixed_tiny(), 1, &[key(200)], cache), &load);
    }
}

#[test]
fn reads_that_take_a_while() {
    for (frames_of, admission, boundaries) in [
        (8, 0.1, vec![]),
        (64, 0.0, vec![]),
        (64, 0.1, vec![key(130), key(270)]),
        (256, 1.0, vec![]),
        (400, 0.1, vec![key(200)]),
    ] {
        let load =
            Load { keys: KEYS, fill: false, threads: 3, slots: 4, operations: 600, height: 4, delay_max: 4 };
        let cache = |config: &mut CacheConfig| {
            frames(frames_of)(config);
            config.admission = pando_cache::Admission::lazy(admission);
        };
        run(|| Cluster::new(fixed_tiny(), 2, &boundaries, cache), &load);
    }
}
