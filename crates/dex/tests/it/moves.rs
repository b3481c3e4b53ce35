//! Boundaries between compute servers that move while operations run (DEX §8, repartitioning), on a simulated
//! cluster and on threads. Nodes and caches are tiny, and every answer is checked against the possible states
//! of its key.
//!
//! `PANDO_SIM_SEEDS=A..B` replays seeds A to B - 1.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use crate::common::draw::{Draw, seeds};
use crate::common::load::key;
use crate::common::moving::{Book, MovingLoad, move_about, work};
use crate::common::{Client, Cluster, fixed_tiny};
use pando_cache::{Admission, CacheConfig, Eviction};
use pando_dex::layout::Layout;
use pando_dex::layout::slotted::SlottedLayout;
use pando_dex::{
    DexError, KeyRange, MemorySide, OffloadPolicy, Offloading, Party, Routes, RoutingTable, TreeConfig,
    flush_side_by_side, move_keys,
};
use pando_fabric::{Fabric, MemoryServerId, Random};
use pando_sim::{Faults, Model, SimConfig, SimEndpoint, SimFabric};

/// Counts of a run: moves, abandoned moves, refused operations, offloaded operations.
#[derive(Debug, Default, PartialEq)]
struct Happened([u64; 4]);

impl std::ops::AddAssign for Happened {
    fn add_assign(&mut self, other: Self) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, more)| *sum += more);
    }
}

fn happened<L: Layout, F: Fabric>(book: &Book, cluster: &Cluster<L, F>) -> Happened {
    let offloads = cluster.trees.iter().map(|tree| {
        let counts = tree.cache().counts();
        counts.offloads - counts.offloads_refused
    });
    let counts = [&book.moves, &book.abandoned, &book.refused].map(|count| count.load(SeqCst));
    Happened([counts[0], counts[1], counts[2], offloads.sum()])
}

fn run<L: Layout>(seed: u64, layout: L, long_values: bool) -> Happened {
    let draw = Draw(Random::new(seed ^ 0x6d0e5));
    let (servers, keys) = (draw.one_of(&[2, 2, 3, 4]), draw.one_of(&[60, 200, 400]));
    // Further compute servers are added without keys.
    let with_keys = draw.one_of(&[1, servers]);
    let boundaries: Vec<_> = (1..with_keys).map(|i| key(keys * i / with_keys)).collect();
    let faults = Faults { torn_share: draw.one_of(&[0.0, 0.1, 1.0]), ..Faults::default() };
    let config = SimConfig {
        regions: vec![8 << 20; draw.one_of(&[1, 2, 3])],
        compute_servers: servers as usize,
        seed,
        model: Model { faults, ..Model::default() },
    };
    let frames = draw.one_of(&[8, 12, 24, 64, 256, 1024]);
    let (lazy, eviction) = (
        draw.one_of(&[0.0, 0.1, 0.5, 1.0]),
        draw.one_of(&[Eviction::PathAware, Eviction::PathAware, Eviction::Random]),
    );
    let (fifo, swizzle) = (draw.one_of(&[false, false, true]), draw.one_of(&[true, true, false]));
    let cache = |config: &mut CacheConfig| {
        config.bytes = frames * config.node_size as u64;
        config.admission = Admission::lazy(lazy);
        (config.eviction, config.fifo, config.swizzle) = (eviction, fifo, swizzle);
    };
    let (threads, slots) = (draw.one_of(&[1, 2, 6, 12]), draw.one_of(&[1, 2, 4]));
    let (movers, rest) = (draw.one_of(&[1, 1, 2]), draw.one_of(&[1, 100, 1000]));
    let operations = 3_000 / (threads * slots);
    let load = MovingLoad { keys, slots: threads * slots, operations, long_values, rest };
    let offloading = Offloading {
        samples: draw.one_of(&[1, 5]),
        contrary: draw.one_of(&[0.0, 0.3]),
        ..Offloading::with_policy(draw.one_of(&[
            OffloadPolicy::Never,
            OffloadPolicy::Always,
            OffloadPolicy::CostAware,
        ]))
    };
    let spread_above = draw.one_of(&[0, 1 << 20]);
    eprintln!(
        "{servers} servers, {with_keys} with keys of {keys}, {frames} frames, lazy {lazy}, {eviction:?}, fifo {fifo}, swizzle {swizzle}, {threads} x {slots}, {movers} movers rest {rest}, {offloading:?}, spread above {spread_above}, {} memory servers",
        config.regions.len()
    );
    let fabric = SimFabric::new(&config).expect("a sound model");
    fabric.set_handler(Arc::new(MemorySide::default()));
    let tune = |config: &mut TreeConfig| {
        config.offloading = offloading;
        config.spread_above = spread_above;
        config.patience_ns = 50_000_000;
    };
    let mut cluster = Cluster::tuned_on(fabric, layout, &boundaries, &[], 1.0, cache, tune);
    (with_keys..servers).for_each(|_| cluster.add_server(cache));
    let cluster = cluster;
    run_slots(&cluster, &load, threads, slots, movers, seed)
}

/// Runs `threads` threads with `slots` slots each, and `movers` threads that move boundaries, to their ends.
fn run_slots<L: Layout>(
    cluster: &Cluster<L, SimFabric>,
    load: &MovingLoad,
    threads: u64,
    slots: u64,
    movers: u64,
    seed: u64,
) -> Happened {
    let servers = cluster.trees.len();
    let book = Book::new(load, servers);
    let thread = |thread| cluster.fabric.thread(thread as usize % servers, seed * 1000 + thread);
    let clients: Vec<Client<'_, L>> =
        (0..threads + movers).map(|number| cluster.client_of(thread(number))).collect();
    let endpoints: Vec<_> = clients.iter().map(|client| client.ep.as_type::<SimEndpoint>()).collect();
    cluster.fabric.run(&endpoints, slots as u32, |thread, slot| {
        let (client, book) = (&clients[thread], &book);
        async move {
            match thread as u64 {
                thread if thread < threads => {
                    work(client, book, load, thread * slots + u64::from(slot)).await;
                }
                _ if slot == 0 => move_about(client, book, load).await,
                _ => {}
            }
        }
    });
    drop(endpoints);
    drop(clients);
    assert_eq!(cluster.audit(), Vec::<String>::new(), "seed {seed}");
    happened(&book, cluster)
}

fn run_all<L: Layout>(layout: impl Fn() -> L, long_values: bool) {
    let mut all = Happened::default();
    for seed in seeds(12) {
        // Printed if the test fails.
        eprintln!("seed {seed}");
        all += run(seed, layout(), long_values);
    }
    let Happened([moves, abandoned, refused, offloaded]) = all;
    eprintln!(
        "{moves} moves, {abandoned} abandoned; {refused} operations came too late, {offloaded} offloaded"
    );
    assert!(seeds(12).count() < 12 || (moves > 200 && abandoned > 50 && refused > 50));
    assert!(seeds(12).count() < 50 || offloaded > 100);
}

#[test]
fn fixed_nodes() {
    run_all(fixed_tiny, false);
}

#[test]
fn fixed_nodes_of_three_children() {
    run_all(|| fixed_tiny().with_fanout_limit(3), false);
}

#[test]
fn slotted_nodes() {
    run_all(|| SlottedLayout::new(512).unwrap().with_fanout_limit(4), true);
}

#[test]
fn the_same_seed_is_the_same_history() {
    for seed in 0..3 {
        let histories = [0, 1].map(|_| run(seed, fixed_tiny(), false));
        assert_eq!(histories[0], histories[1], "seed {seed}");
    }
}

/// Runs the load on threads of this process.
fn run_on_threads<L: Layout>(mut cluster: Cluster<L>, servers: usize, frames: u64, load: &MovingLoad) {
    let cache = |config: &mut CacheConfig| config.bytes = frames * config.node_size as u64;
    while cluster.trees.len() < servers {
        cluster.add_server(cache);
    }
    let (cluster, threads) = (cluster, 3);
    let slots = load.slots / threads;
    let book = Book::new(load, servers);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (cluster, book) = (&cluster, &book);
            scope.spawn(move || {
                let client = cluster.client(1 + thread);
                let slots = (0..slots).map(|slot| work(&client, book, load, thread * slots + slot));
                pando_rt::run_slots(&client.ep, slots.collect());
            });
        }
        let (cluster, book) = (&cluster, &book);
        scope.spawn(move || {
            let client = cluster.client(77);
            pando_rt::block_on(&client.ep, move_about(&client, book, load));
        });
    });
    assert_eq!(cluster.audit(), Vec::<String>::new());
    let Happened([moves, abandoned, ..]) = happened(&book, &cluster);
    // The number of moves depends on the scheduling of threads.
    assert!(moves > 0, "{moves} moves, {abandoned} abandoned");
}

fn thread_load(rest: u64) -> MovingLoad {
    MovingLoad { keys: 400, slots: 12, operations: 1500, long_values: false, rest }
}

#[test]
fn one_compute_server_becomes_three_on_threads() {
    let cache = |config: &mut CacheConfig| config.bytes = 48 * config.node_size as u64;
    let cluster = Cluster::new(fixed_tiny(), 2, &[], cache);
    run_on_threads(cluster, 3, 48, &thread_load(50));
}

#[test]
fn large_caches_on_threads() {
    let cache = |config: &mut CacheConfig| config.bytes = 2048 * config.node_size as u64;
    let cluster = Cluster::new(fixed_tiny(), 2, &[key(200)], cache);
    run_on_threads(cluster, 2, 2048, &thread_load(500));
}

/// Boundaries: a key of the index, a key that is absent, the lowest key, and one above all keys. Each moves
/// from one compute server to the other and back.
#[test]
fn a_leaf_is_cut_at_exactly_the_boundary() {
    let cache = |config: &mut CacheConfig| config.bytes = 64 * config.node_size as u64;
    let mut cluster = Cluster::new(fixed_tiny(), 2, &[], cache);
    cluster.add_server(cache);
    let client = cluster.client(3);
    let value = |k: u64| k.to_le_bytes();
    for k in (0..200).step_by(2) {
        let (tree, ctx) = client.server(0);
        pando_rt::block_on(&client.ep, tree.put(ctx, &key(k), &value(k))).unwrap();
    }
    for boundary in [50, 51, 0, 300, 198, 197] {
        let boundary = key(boundary);
        let low = KeyRange { low: None, high: Some(boundary.clone()) };
        let high = KeyRange { low: Some(boundary.clone()), high: None };
        keep_only(&client, 0, 1, low.clone());
        assert_eq!((client.server(0).0.range(), client.server(1).0.range()), (low.clone(), high.clone()));
        for k in 0..200 {
            let (owner, other) = if key(k) < boundary { (0, 1) } else { (1, 0) };
            let get = |server| {
                let (tree, ctx) = client.server(server);
                let mut out = Vec::new();
                let found = pando_rt::block_on(&client.ep, tree.get(ctx, &key(k), &mut out));
                found.map(|found| found.then_some(out))
            };
            let expected = (k % 2 == 0).then(|| value(k).to_vec());
            assert_eq!(get(owner).unwrap(), expected, "key {k}");
            assert!(matches!(get(other), Err(DexError::NotOwned)), "key {k}");
        }
        assert_eq!(cluster.audit(), Vec::<String>::new());
        keep_only(&client, 1, 0, KeyRange::none());
        assert!(client.server(1).0.range().is_empty() && client.server(0).0.range().is_all());
        assert_eq!(cluster.audit(), Vec::<String>::new());
    }
}

fn keep_only<L: Layout>(client: &Client<'_, L>, from: usize, to: usize, keep: KeyRange) {
    let (source, ctx) = client.server(from);
    pando_rt::block_on(&client.ep, async {
        let leaving = pando_dex::begin_leave(source, ctx, keep).await.unwrap();
        leaving.flush_share(ctx).await.unwrap();
        leaving.finish(ctx).await.unwrap();
        let goes = leaving.leaves();
        drop(leaving);
        let (target, ctx) = client.server(to);
        pando_dex::take_over(target, ctx, goes).await.unwrap();
    });
}

#[test]
fn a_range_that_is_none_is_refused() {
    let cluster = Cluster::new(fixed_tiny(), 1, &[key(100)], |_| ());
    let client = cluster.client(3);
    let (tree, ctx) = client.server(0);
    let range = |low: Option<u64>, high: Option<u64>| KeyRange { low: low.map(key), high: high.map(key) };
    for wrong in [range(None, None), range(Some(10), Some(20)), range(None, Some(101)), range(Some(1), None)]
    {
        let left = pando_rt::block_on(&client.ep, pando_dex::begin_leave(tree, ctx, wrong.clone()));
        assert!(matches!(left, Err(DexError::WrongRange(_))), "{wrong:?}");
    }
    let short = KeyRange { low: None, high: Some(b"abc".to_vec()) };
    assert!(pando_rt::block_on(&client.ep, pando_dex::begin_leave(tree, ctx, short)).is_err());
    let taken = pando_rt::block_on(&client.ep, pando_dex::take_over(tree, ctx, range(Some(150), None)));
    assert!(matches!(taken, Err(DexError::WrongRange(_))));
    let leaving =
        pando_rt::block_on(&client.ep, pando_dex::begin_leave(tree, ctx, range(None, Some(50)))).unwrap();
    let again = pando_rt::block_on(&client.ep, pando_dex::begin_leave(tree, ctx, range(None, Some(20))));
    assert!(matches!(again, Err(DexError::Moving)));
    pando_rt::block_on(&client.ep, leaving.abandon(ctx)).unwrap();
    assert_eq!(tree.range(), range(None, Some(100)));
    assert_eq!(cluster.audit(), Vec::<String>::new());
}

/// The memory servers do not answer during the release of keys. The release fails, the keys come back, and no
/// entry is lost.
#[test]
fn a_failed_move_is_abandoned() {
    let config =
        SimConfig { regions: vec![8 << 20; 2], compute_servers: 2, seed: 5, model: Model::default() };
    let fabric = SimFabric::new(&config).expect("a sound model");
    let cache = |config: &mut CacheConfig| config.bytes = 256 * config.node_size as u64;
    let tune = |config: &mut TreeConfig| config.patience_ns = 5_000_000;
    let mut cluster = Cluster::tuned_on(fabric, fixed_tiny(), &[], &[], 1.0, cache, tune);
    cluster.add_server(cache);
    let client = cluster.client(3);
    let (tree, ctx) = client.server(0);
    let put = |k: u64, n: u64| pando_rt::block_on(&client.ep, tree.put(ctx, &key(k), &n.to_le_bytes()));
    (0..200).for_each(|k| assert!(!put(k, k).unwrap(), "key {k} is new"));
    let keep = KeyRange { low: None, high: Some(key(77)) };
    for _ in 0..2 {
        let leaving =
            pando_rt::block_on(&client.ep, pando_dex::begin_leave(tree, ctx, keep.clone())).unwrap();
        (0..config.regions.len()).for_each(|i| cluster.fabric.set_down(MemoryServerId(i as u16), true));
        let failed = pando_rt::block_on(&client.ep, leaving.finish(ctx));
        assert!(failed.is_err(), "nobody answers");
        (0..config.regions.len()).for_each(|i| cluster.fabric.set_down(MemoryServerId(i as u16), false));
        pando_rt::block_on(&client.ep, leaving.abandon(ctx)).unwrap();
        assert!(tree.range().is_all());
    }
    (0..200).for_each(|k| assert!(put(k, k + 1).unwrap(), "key {k} is there"));
    pando_rt::block_on(&client.ep, tree.flush(ctx)).unwrap();
    assert_eq!(cluster.audit(), Vec::<String>::new());
}

/// The new owner cannot reach memory while it takes over; the move is repeated once it can.
fn fail_to_take_over(boundaries: &[Vec<u8>], range: KeyRange) {
    let config =
        SimConfig { regions: vec![8 << 20; 2], compute_servers: 2, seed: 5, model: Model::default() };
    let fabric = SimFabric::new(&config).expect("a sound model");
    let cache = |config: &mut CacheConfig| config.bytes = 256 * config.node_size as u64;
    let tune = |config: &mut TreeConfig| config.patience_ns = 5_000_000;
    let mut cluster = Cluster::tuned_on(fabric, fixed_tiny(), boundaries, &[], 1.0, cache, tune);
    if boundaries.is_empty() {
        cluster.add_server(cache);
    }
    let client = cluster.client(3);
    let routes = Routes::new(RoutingTable::in_order(boundaries.to_vec()).expect("sound"));
    let set_down = |down| {
        (0..config.regions.len()).for_each(|i| cluster.fabric.set_down(MemoryServerId(i as u16), down));
    };
    let put = |k: u64, n: u64| {
        let owner = usize::from(cluster.trees[1].range().contains(&key(k)));
        let (tree, ctx) = client.server(owner);
        pando_rt::block_on(&client.ep, tree.put(ctx, &key(k), &n.to_le_bytes()))
    };
    let make_move = |is_broken: bool| {
        let [from, to] = [0, 1].map(|server| {
            let (tree, ctx) = client.server(server);
            Party { server, tree, ctx }
        });
        let record = async |_: &RoutingTable| {
            set_down(is_broken);
            Ok(())
        };
        let (_, ctx) = client.server(0);
        let flush = async |leaving: Arc<_>| flush_side_by_side(&leaving, ctx, 2).await;
        let moved = move_keys(&routes, from, to, range.clone(), flush, record);
        pando_rt::block_on(&client.ep, moved)
    };
    (0..200).for_each(|k| assert!(!put(k, k).unwrap(), "key {k} is new"));
    for _ in 0..2 {
        assert!(make_move(true).is_err(), "nobody answers");
        set_down(false);
        let (from, to) = (cluster.trees[0].range(), cluster.trees[1].range());
        assert!(!to.contains(&key(99)), "it is not the new owner's");
        assert_eq!(from.contains(&key(99)), !pando_dex::is_taking_over(&cluster.trees[1]));
        // Keys that have an owner can be used.
        for k in (0..200).filter(|&k| from.contains(&key(k)) || to.contains(&key(k))) {
            assert!(put(k, k + 1).unwrap(), "key {k} is there");
        }
    }
    make_move(false).expect("all answer");
    assert_eq!(routes.table().owner_of(&key(99)), 1);
    (0..200).for_each(|k| assert!(put(k, k + 2).unwrap(), "key {k} is there"));
    for tree in 0..2 {
        let (tree, ctx) = client.server(tree);
        pando_rt::block_on(&client.ep, tree.flush(ctx)).unwrap();
    }
    assert_eq!(cluster.audit(), Vec::<String>::new());
}

#[test]
fn a_failed_take_over_is_made_good() {
    fail_to_take_over(&[], KeyRange { low: Some(key(77)), high: None });
    let range = KeyRange { low: Some(key(77)), high: Some(key(120)) };
    fail_to_take_over(&[key(120)], range);
}
