//! A memory server is drained, and another one joins, while several compute servers work on an index of tiny
//! nodes with long values. Every answer is right, no WRITE goes to the drained server, and no block is left
//! there or leaked. In half of the runs the server ends as soon as it is drained, and nobody notices.
//!
//! `PANDO_SIM_SEEDS=A..B` replays seeds A to B - 1.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use crate::common::draw::{Draw, seeds};
use crate::common::{Client, Cluster, INDEX, fixed_tiny};
use pando_cache::{Admission, Cache, CacheConfig, Eviction};
use pando_dex::audit::audit;
use pando_dex::layout::Layout;
use pando_dex::layout::slotted::SlottedLayout;
use pando_dex::{
    BulkLoad, Ctx, KeyRange, MemorySide, OffloadPolicy, Offloading, ScanRange, Tree, TreeConfig, partition_of,
};
use pando_fabric::{DynEndpoint, Endpoint, Fabric, MemoryServerId, Random};
use pando_pool::{AttachOptions, Pool, PoolError, PoolOptions, ProcessIdentity, ServerState};
use pando_rt::block_on;
use pando_sim::{Fault, Faults, Model, SimConfig, SimEndpoint, SimFabric};

const KEYS: u64 = 400;
const SERVER_BYTES: u64 = 8 << 20;

fn key(k: u64) -> Vec<u8> {
    (k << 32).to_be_bytes().to_vec()
}

/// The key and the number of its owner's changes, repeated up to some thousand bytes in layouts with long
/// values.
fn value(layout: impl Layout, k: u64, n: u64) -> Vec<u8> {
    let word = (k << 40 | n).to_le_bytes();
    let words = match layout.holds_long_values() && (k + n).is_multiple_of(3) {
        true => 20 + (k * 31 + n * 7) % 600,
        false => 1,
    };
    word.repeat(words as usize)
}

fn number_of(value: &[u8]) -> u64 {
    let words = value.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")));
    let first = words.clone().next().expect("no value is empty");
    assert!(words.into_iter().all(|word| word == first), "a value of several versions");
    first
}

/// A cluster; if `apart`, each compute server is a process of its own.
fn cluster<L: Layout>(
    fabric: SimFabric,
    layout: L,
    boundaries: &[Vec<u8>],
    level: u8,
    apart: bool,
    cache: impl Fn(&mut CacheConfig),
    tune: impl Fn(&mut TreeConfig),
) -> (Cluster<L, SimFabric>, Vec<Pool>) {
    let ep = DynEndpoint::new(fabric.endpoint(1).expect("an endpoint"));
    let pool = block_on(&ep, Pool::create(&ep, PoolOptions::embedded())).expect("a new pool");
    let root = block_on(&ep, Tree::create(&ep, &pool, layout, INDEX, boundaries)).expect("room");
    let entries: Vec<_> = (0..KEYS).map(|k| (key(k), value(layout, k, 0))).collect();
    let load = BulkLoad::new(layout, pool.clone(), INDEX, level, boundaries).leaf_fill(0.7);
    let slice = block_on(&ep, load.load_slice(&ep, &entries.as_slice(), 0..KEYS, 1, 0)).expect("room");
    block_on(&ep, load.finish(&ep, vec![slice], root)).expect("room");
    let mut pools = Vec::new();
    let trees = KeyRange::from_boundaries(boundaries).into_iter().enumerate().map(|(number, range)| {
        let own = match apart && number > 0 {
            true => {
                let process = ProcessIdentity { pid: number as u32, ..ProcessIdentity::default() };
                let options = AttachOptions::new(process, Arc::new(|_| true));
                block_on(&ep, Pool::attach(&ep, options)).expect("attached")
            }
            false => pool.clone(),
        };
        pools.push(own.clone());
        let mut config = CacheConfig::new(8 * layout.node_size() as u64, layout.node_size());
        cache(&mut config);
        let cache = Arc::new(Cache::new(&config).expect("a possible cache"));
        let worker = cache.worker();
        let mut config = TreeConfig::new(INDEX, root);
        (config.range, config.patience_ns, config.subtree_level) = (range, 2_000_000_000, level);
        tune(&mut config);
        let ctx = Ctx { ep: &ep, worker: &worker };
        let tree = block_on(&ep, Tree::open(ctx, cache, own, layout, config)).expect("it is there");
        tree.cache().retire(&worker);
        tree
    });
    let trees = trees.collect();
    (Cluster { fabric, pool, trees, boundaries: boundaries.to_vec() }, pools)
}

/// Operations of one slot until `is_over`. The slot owns the keys that are `owner` modulo `owners`.
async fn work<L: Layout>(client: &Client<'_, L>, owner: u64, owners: u64, is_over: &Cell<bool>) -> u64 {
    let own: Vec<u64> = (owner..KEYS).step_by(owners as usize).collect();
    let layout = client.trees[0].layout();
    let mut model: BTreeMap<u64, Vec<u8>> = own.iter().map(|&k| (k, value(layout, k, 0))).collect();
    let mut n = 0;
    while n < 40 || !is_over.get() {
        n += 1;
        let random = client.ep.random();
        let k = own[(random >> 8) as usize % own.len()];
        let (tree, ctx) = client.server(partition_of(client.boundaries, &key(k)));
        match random & 7 {
            0..3 => {
                let new = value(layout, k, n);
                let existed = tree.put(ctx, &key(k), &new).await.expect("there is room");
                assert_eq!(existed, model.insert(k, new).is_some(), "put {k}");
            }
            3 => {
                let existed = tree.remove(ctx, &key(k)).await.expect("no error");
                assert_eq!(existed, model.remove(&k).is_some(), "remove {k}");
            }
            4 => scan(tree, ctx, k, &model).await,
            _ => {
                let mut found = Vec::new();
                let is_there = tree.get(ctx, &key(k), &mut found).await.expect("no error");
                assert_eq!(is_there.then_some(found), model.get(&k).cloned(), "get {k}");
            }
        }
        client.ep.pace().await;
    }
    for k in own {
        let (tree, ctx) = client.server(partition_of(client.boundaries, &key(k)));
        let mut found = Vec::new();
        let is_there = tree.get(ctx, &key(k), &mut found).await.expect("no error");
        assert_eq!(is_there.then_some(found), model.get(&k).cloned(), "key {k} at the end");
    }
    n
}

async fn scan<L: Layout>(
    tree: &Tree<L>,
    ctx: Ctx<'_, DynEndpoint>,
    start: u64,
    model: &BTreeMap<u64, Vec<u8>>,
) {
    let low = key(start);
    let range = ScanRange { low: Bound::Included(&low), limit: 30, ..ScanRange::all() };
    let mut found = Vec::new();
    tree.scan(ctx, &range, |key, value| {
        let k = u64::from_be_bytes(key.try_into().expect("eight bytes")) >> 32;
        assert_eq!(number_of(value) >> 40, k, "value of another key");
        assert!(found.last().is_none_or(|&last| last < k), "out of order");
        found.push(k);
        true
    })
    .await
    .expect("no error");
    let end = if found.len() < 30 { u64::MAX } else { found[found.len() - 1] };
    for &k in model.keys().filter(|&&k| k >= start && k <= end && tree.range().contains(&key(k))) {
        assert!(found.contains(&k), "key {k} was there throughout: {found:?}");
    }
}

/// One compute server's part in draining the memory server. Returns the number of nodes and values that it
/// moved.
async fn drain<L: Layout>(
    fabric: &SimFabric,
    client: &Client<'_, L>,
    number: usize,
    server: MemoryServerId,
    joins: bool,
    left: &Cell<usize>,
    ends: Option<&Cell<bool>>,
) -> u64 {
    let (tree, ctx) = client.server(number);
    let pool = tree.pool();
    let begin = ctx.ep.now() + 100_000 + ctx.ep.random() % 400_000;
    while ctx.ep.now() < begin {
        ctx.ep.read_word(pando_fabric::GlobalAddr::new(MemoryServerId(0), 0)).await.expect("it is there");
    }
    if number == 0 {
        if joins {
            fabric.add_memory_server(SERVER_BYTES).expect("memory");
            pool.add_server(ctx.ep, None).await.expect("it joins");
        }
        pool.drain_server(ctx.ep, server).await.expect("it can be drained");
    }
    while pool.server_state(server).expect("known") == ServerState::Active {
        ctx.ep.yield_now().await;
        pool.learn(ctx.ep).await.expect("no error");
    }
    let done = pando_dex::drain(tree, ctx, server, |_| true).await.expect("no error");
    assert_eq!(done.left, 0, "{done:?}");
    left.set(left.get() - 1);
    while left.get() > 0 {
        ctx.ep.read_word(pando_fabric::GlobalAddr::new(MemoryServerId(0), 0)).await.expect("it is there");
    }
    let mut moved = done.nodes + done.values;
    let Some(has_ended) = ends else { return moved };
    while !has_ended.get() {
        // Other operations may have left something there since.
        let done = pando_dex::drain(tree, ctx, server, |_| true).await.expect("no error");
        moved += done.nodes + done.values;
        pool.leave_inactive(ctx.ep).await.expect("no error");
        if number > 0 {
            continue;
        }
        match pool.finish_drain(ctx.ep, server).await {
            Ok(()) => {
                fabric.fail(Fault::Kill { server });
                has_ended.set(true);
            }
            Err(PoolError::NotEmpty { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
    ctx.ep.sleep_until(ctx.ep.now() + 300_000).await;
    moved
}

/// Runs one seed; returns the number of nodes and values that were moved.
fn run<L: Layout>(seed: u64, layout: L) -> u64 {
    let draw = Draw(Random::new(seed));
    let compute_servers = draw.one_of(&[1, 2, 3]);
    let boundaries: Vec<_> = (1..compute_servers).map(|i| key(KEYS * i / compute_servers)).collect();
    let servers = draw.one_of(&[2, 3, 4]);
    let faults = Faults {
        torn_share: draw.one_of(&[0.0, 0.1, 1.0]),
        spike_share: draw.one_of(&[0.0, 0.0, 0.05]),
        spike_ns: 300_000,
        ..Faults::default()
    };
    let fabric = SimFabric::new(&SimConfig {
        regions: vec![SERVER_BYTES; servers],
        compute_servers: compute_servers as usize,
        seed,
        model: Model { faults, ..Model::default() },
    })
    .expect("a sound model");
    fabric.set_handler(Arc::new(MemorySide::default()));
    fabric.fail(Fault::Slow { server: MemoryServerId(0), factor: draw.one_of(&[1, 1, 20]) });
    let frames = draw.one_of(&[8, 12, 24, 64, 1024]);
    let cache = |config: &mut CacheConfig| {
        config.bytes = frames * config.node_size as u64;
        config.admission = Admission::lazy(draw.one_of(&[0.0, 0.1, 1.0]));
        config.eviction = draw.one_of(&[Eviction::PathAware, Eviction::PathAware, Eviction::Random]);
        config.swizzle = draw.one_of(&[true, true, false]);
    };
    let policy = draw.one_of(&[OffloadPolicy::Never, OffloadPolicy::Always, OffloadPolicy::CostAware]);
    let (level, apart) = (draw.one_of(&[1, 2, 3]), draw.one_of(&[false, true]));
    let spread_above = draw.one_of(&[0, 1 << 20]);
    let tune = |config: &mut TreeConfig| {
        config.offloading = Offloading::with_policy(policy);
        config.spread_above = spread_above;
    };
    let (cluster, pools) = cluster(fabric, layout, &boundaries, level, apart, cache, tune);
    let server = MemoryServerId(draw.one_of(&[1, servers as u16 - 1]));
    let [is_over, has_ended] = [false; 2].map(Cell::new);
    let (joins, ends) = (draw.one_of(&[false, true]), draw.one_of(&[None, Some(&has_ended)]));
    // Each compute server has one more thread, which drains.
    let (threads, slots) = (draw.one_of(&[1, 2]) * compute_servers, draw.one_of(&[1, 2, 4]));
    let clients: Vec<_> = (0..threads + compute_servers)
        .map(|number| {
            let of = (number % compute_servers) as usize;
            cluster.client_of(cluster.fabric.thread(of, seed * 1000 + number))
        })
        .collect();
    let endpoints: Vec<_> = clients.iter().map(|client| client.ep.as_type::<SimEndpoint>()).collect();
    let left = Cell::new(compute_servers as usize);
    let moved = cluster.fabric.run(&endpoints, slots, |thread, slot| {
        let (cluster, clients, left, is_over) = (&cluster, &clients, &left, &is_over);
        async move {
            let Some(number) = (thread as u64).checked_sub(threads) else {
                let owner = thread as u64 * u64::from(slots) + u64::from(slot);
                work(&clients[thread], owner, threads * u64::from(slots), is_over).await;
                return 0;
            };
            if slot > 0 {
                return 0;
            }
            let (fabric, client) = (&cluster.fabric, &clients[thread]);
            let moved = drain(fabric, client, number as usize, server, joins, left, ends).await;
            is_over.set(true);
            moved
        }
    });
    drop(endpoints);
    drop(clients);
    check(seed, &cluster, &pools, server);
    moved.into_iter().flatten().sum()
}

/// Checks that nothing is on the drained server, nothing leaked, and all invariants hold.
fn check<L: Layout>(seed: u64, cluster: &Cluster<L, SimFabric>, pools: &[Pool], server: MemoryServerId) {
    let ep = DynEndpoint::new(cluster.fabric.endpoint(99).expect("an endpoint"));
    let early = block_on(&ep, pools[0].readmit_server(&ep, MemoryServerId(77)));
    assert!(matches!(early, Err(PoolError::UnknownServer { .. })), "{early:?}");
    for pool in pools {
        block_on(&ep, pool.leave_inactive(&ep)).expect("no error");
    }
    block_on(&ep, pools[0].finish_drain(&ep, server)).unwrap_or_else(|left| panic!("seed {seed}: {left}"));
    let trees: Vec<_> = cluster.trees.iter().collect();
    let report = block_on(&ep, audit(&ep, &trees)).expect("no error");
    assert_eq!(report.violations, Vec::<String>::new(), "seed {seed}");
    let nodes = report.nodes_per_server.get(usize::from(server.0)).copied().unwrap_or(0);
    assert_eq!(nodes, 0, "seed {seed}");
    for pool in pools {
        block_on(&ep, pool.publish_bitmaps(&ep)).expect("no error");
    }
    assert_eq!(cluster.audit(), Vec::<String>::new(), "seed {seed}");
}

/// A compute server that owns nothing on a memory server need not look: the others drain it, and it ends. What the compute server
/// remembers of it, it finds out and forgets.
#[test]
fn who_owns_nothing_on_a_drained_server_goes_on_without_it() {
    let mut drained = 0;
    for seed in 0..200 {
        let model = Model::default();
        let regions = vec![SERVER_BYTES; 4];
        let fabric =
            SimFabric::new(&SimConfig { regions, compute_servers: 2, seed, model }).expect("a sound model");
        let (layout, boundary) = (fixed_tiny(), KEYS - 1 - seed % 12);
        let frames = |config: &mut CacheConfig| config.bytes = 1024 * config.node_size as u64;
        let level = 1 + (seed % 3) as u8;
        let (cluster, pools) = cluster(fabric, layout, &[key(boundary)], level, true, frames, |_| {});
        let client = cluster.client_of(cluster.fabric.endpoint(seed).expect("an endpoint"));
        let server = MemoryServerId(1 + (seed / 3 % 3) as u16);
        let read = || {
            (boundary..KEYS)
                .for_each(|k| assert_eq!(client.get(&key(k)).expect("no error"), Some(value(layout, k, 0))))
        };
        read();
        let (ep, (tree, ctx)) = (&client.ep, client.server(0));
        block_on(ep, pools[0].drain_server(ep, server)).expect("it can be drained");
        block_on(ep, pando_dex::drain(tree, ctx, server, |_| true)).expect("no error");
        match block_on(ep, pools[0].finish_drain(ep, server)) {
            Ok(()) => drained += 1,
            Err(PoolError::NotEmpty { .. }) => continue,
            Err(error) => panic!("{error}"),
        }
        cluster.fabric.fail(Fault::Kill { server });
        read();
        let (tree, ctx) = client.server(1);
        // Its leaves split, and so does what is above.
        for k in (boundary << 32)..(boundary << 32) + 40 {
            block_on(ep, tree.put(ctx, &k.to_be_bytes(), &value(layout, k, 1))).expect("no error");
        }
        block_on(ep, pando_dex::forget_drained(tree, ctx)).expect("no error");
        // Nor does it owe a lock there.
        block_on(ep, pools[1].detach(ep)).expect("everything was given back");
    }
    assert!(drained > 20, "{drained}");
}

fn run_all<L: Layout>(layout: impl Fn() -> L) {
    let mut moved = 0;
    for seed in seeds(30) {
        // Printed if the test fails.
        eprintln!("seed {seed}");
        moved += run(seed, layout());
    }
    eprintln!("{moved} nodes and values were moved");
    assert!(seeds(30).count() < 20 || moved > 500, "{moved}");
}

#[test]
fn fixed_nodes() {
    run_all(fixed_tiny);
}

#[test]
fn slotted_nodes_with_long_values() {
    run_all(|| SlottedLayout::new(512).expect("possible").with_fanout_limit(4));
}
