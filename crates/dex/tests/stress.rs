//! Several threads with several slots each on tiny nodes and tiny caches. Every thread owns a share of the keys and
//! keeps a model of them; all threads read and scan everything.

mod common;

use std::cell::RefCell;
use std::collections::BTreeMap;

use common::{Cluster, fixed_tiny};
use pando_cache::{CacheConfig, Eviction};
use pando_dex::layout::Layout;
use pando_dex::{Ctx, ScanRange, partition_of};
use pando_fabric::Endpoint;

const KEYS: u64 = 400;

fn key(k: u64) -> Vec<u8> {
    (k << 32).to_be_bytes().to_vec()
}

/// What the entry of a key looks like: the key, and a number that its owner counts up.
fn value(k: u64, n: u64) -> Vec<u8> {
    (k << 40 | n).to_le_bytes().to_vec()
}

struct Load {
    threads: u64,
    slots: u64,
    operations: u64,
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
    }
}

/// Runs the slots of one thread; each slot owns the keys that are its number modulo all slots.
fn work<L: Layout>(cluster: &Cluster<L>, load: &Load, round: u64, thread: u64) {
    let client = cluster.client(1 + round * 1000 + thread);
    let slots = (0..load.slots).map(|slot| {
        let client = &client;
        let owner = thread * load.slots + slot;
        let owners = load.threads * load.slots;
        async move {
            let mut model = BTreeMap::new();
            for n in 0..load.operations {
                step(client, &mut model, owner, owners, n).await;
            }
            for k in (owner..KEYS).step_by(owners as usize) {
                assert_eq!(get(client, k).await, model.get(&k).cloned(), "key {k} at the end");
            }
        }
    });
    pando_rt::run_slots(&client.ep, slots.collect());
}

fn place<'c, L: Layout>(
    client: &'c common::Client<'_, L>,
    k: u64,
) -> (&'c pando_dex::Tree<L>, Ctx<'c, pando_fabric_local::LocalEndpoint>) {
    client.server(partition_of(&client.cluster.boundaries, &key(k)))
}

async fn get<L: Layout>(client: &common::Client<'_, L>, k: u64) -> Option<Vec<u8>> {
    let (tree, ctx) = place(client, k);
    let mut out = Vec::new();
    tree.get(ctx, &key(k), &mut out).await.unwrap().then_some(out)
}

async fn step<L: Layout>(
    client: &common::Client<'_, L>,
    model: &mut BTreeMap<u64, Vec<u8>>,
    owner: u64,
    owners: u64,
    n: u64,
) {
    let random = client.ep.random();
    let any = random % KEYS;
    let own = any / owners * owners + owner;
    let (tree, ctx) = place(client, own);
    match random >> 32 & 15 {
        0..4 if own < KEYS => {
            let existed = tree.put(ctx, &key(own), &value(own, n)).await.unwrap();
            assert_eq!(existed, model.insert(own, value(own, n)).is_some(), "put {own}");
        }
        4..8 if own < KEYS => {
            let existed = tree.remove(ctx, &key(own)).await.unwrap();
            assert_eq!(existed, model.remove(&own).is_some(), "remove {own}");
        }
        8..10 if own < KEYS => assert_eq!(get(client, own).await, model.get(&own).cloned(), "get {own}"),
        10 => scan(client, any).await,
        _ => {
            if let Some(found) = get(client, any).await {
                let word = u64::from_le_bytes(found.try_into().unwrap());
                assert_eq!(word >> 40, any, "value of another key");
            }
        }
    }
}

async fn scan<L: Layout>(client: &common::Client<'_, L>, start: u64) {
    let (tree, ctx) = place(client, start);
    let low = key(start);
    let reverse = RefCell::new(Vec::new());
    for backwards in [false, true] {
        let mut last: Option<Vec<u8>> = None;
        let range = ScanRange {
            low: std::ops::Bound::Included(&low),
            limit: 30,
            reverse: backwards,
            ..ScanRange::all()
        };
        tree.scan(ctx, &range, |key, value| {
            let k = u64::from_be_bytes(key.try_into().unwrap()) >> 32;
            assert_eq!(u64::from_le_bytes(value.try_into().unwrap()) >> 40, k, "value of another key");
            assert!(key >= low.as_slice(), "below the start");
            if let Some(last) = &last {
                assert!(
                    if backwards { key < last.as_slice() } else { key > last.as_slice() },
                    "out of order"
                );
            }
            last = Some(key.to_vec());
            reverse.borrow_mut().push(k);
            true
        })
        .await
        .unwrap();
    }
}

fn frames(n: u64) -> impl Fn(&mut CacheConfig) {
    move |config| config.bytes = n * config.node_size as u64
}

#[test]
fn one_compute_server() {
    let load = Load { threads: 3, slots: 4, operations: 1500 };
    run(|| Cluster::new(fixed_tiny(), 2, &[], frames(64)), &load);
}

#[test]
fn three_compute_servers() {
    let load = Load { threads: 3, slots: 4, operations: 1500 };
    run(|| Cluster::new(fixed_tiny(), 2, &[key(130), key(270)], frames(48)), &load);
}

#[test]
fn everything_cached() {
    let load = Load { threads: 4, slots: 2, operations: 3000 };
    run(|| Cluster::new(fixed_tiny(), 1, &[], frames(4096)), &load);
}

#[test]
fn without_swizzling_by_fifo() {
    let load = Load { threads: 3, slots: 3, operations: 1000 };
    let cache = |config: &mut CacheConfig| {
        frames(64)(config);
        (config.swizzle, config.fifo) = (false, true);
    };
    run(|| Cluster::new(fixed_tiny(), 1, &[key(200)], cache), &load);
}

#[test]
fn random_eviction() {
    let load = Load { threads: 3, slots: 3, operations: 1000 };
    let cache = |config: &mut CacheConfig| {
        frames(64)(config);
        config.eviction = Eviction::Random;
    };
    run(|| Cluster::new(fixed_tiny(), 1, &[key(200)], cache), &load);
}

#[test]
fn eager_admission() {
    let load = Load { threads: 3, slots: 4, operations: 1500 };
    let cache = |config: &mut CacheConfig| {
        frames(64)(config);
        config.admission = pando_cache::Admission::eager();
    };
    run(|| Cluster::new(fixed_tiny(), 2, &[], cache), &load);
}

#[test]
fn leaves_never_admitted() {
    let load = Load { threads: 3, slots: 4, operations: 1500 };
    let cache = |config: &mut CacheConfig| {
        frames(64)(config);
        config.admission = pando_cache::Admission::lazy(0.0);
    };
    run(|| Cluster::new(fixed_tiny(), 2, &[], cache), &load);
}
