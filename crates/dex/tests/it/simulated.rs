//! The tree on a simulated cluster: verbs take time, READs and WRITEs are torn, and the steps of dozens of
//! threads interleave in virtual time. The same seed gives the same history; a failure names the seed.
//!
//! `PANDO_SIM_SEEDS=A..B` replays seeds A to B - 1.

use std::sync::Arc;

use crate::common::draw::{Draw, seeds};
use crate::common::load::{Load, key, work};
use crate::common::{Client, Cluster, fixed_tiny};
use pando_cache::{Admission, CacheConfig, CacheCounts, Eviction};
use pando_dex::layout::Layout;
use pando_dex::layout::slotted::SlottedLayout;
use pando_dex::{MemorySide, OffloadPolicy, Offloading, TreeConfig};
use pando_fabric::{Endpoint, Nanos, Random, VerbCounts};
use pando_sim::{Faults, Model, SimConfig, SimEndpoint, SimFabric};

/// Drawn from a separate stream, so that older seeds still give the histories that once failed.
fn offloading(seed: u64) -> Offloading {
    let draw = Draw(Random::new(seed ^ 0x0ff_10ad));
    let policy = draw.one_of(&[OffloadPolicy::Never, OffloadPolicy::Always, OffloadPolicy::CostAware]);
    let (samples, contrary) = (draw.one_of(&[1, 5, 50]), draw.one_of(&[0.0, 0.01, 0.3]));
    Offloading { samples, contrary, ..Offloading::with_policy(policy) }
}

/// Runs the load of `seed`; returns the virtual time at its end, the verbs of all threads, the counts of the
/// caches, and the number of relocated nodes.
fn run<L: Layout>(seed: u64, layout: L) -> (Nanos, VerbCounts, CacheCounts, u64) {
    let draw = Draw(Random::new(seed));
    let compute_servers = draw.one_of(&[1, 2, 3]);
    let boundaries: Vec<_> = (1..compute_servers).map(|i| key(400 * i / compute_servers)).collect();
    let faults = Faults { torn_share: draw.one_of(&[0.0, 0.1, 1.0]), ..Faults::default() };
    let config = SimConfig {
        regions: vec![8 << 20; draw.one_of(&[1, 2, 3])],
        compute_servers: compute_servers as usize,
        seed,
        model: Model { faults, ..Model::default() },
    };
    let frames = draw.one_of(&[8, 12, 24, 64, 256, 1024]);
    let cache = |config: &mut CacheConfig| {
        config.bytes = frames * config.node_size as u64;
        config.admission = Admission::lazy(draw.one_of(&[0.0, 0.1, 0.5, 1.0]));
        config.eviction = draw.one_of(&[Eviction::PathAware, Eviction::PathAware, Eviction::Random]);
        config.fifo = draw.one_of(&[false, false, true]);
        config.swizzle = draw.one_of(&[true, true, false]);
    };
    let (threads, slots) = (draw.one_of(&[1, 2, 6, 12]), draw.one_of(&[1, 2, 4]));
    let load = Load {
        keys: draw.one_of(&[100, 400]),
        fill: draw.one_of(&[false, true]),
        threads,
        slots,
        operations: 2_400 / (threads * slots),
        height: 2,
        delay_max: 0,
    };
    let offloading = offloading(seed);
    let fabric = SimFabric::new(&config).expect("a sound model");
    fabric.set_handler(Arc::new(MemorySide::default()));
    let spread_above = Draw(Random::new(seed ^ 0x5_12ead)).one_of(&[0, 0, 1 << 20]);
    let tune = |config: &mut TreeConfig| {
        config.offloading = offloading;
        config.spread_above = spread_above;
    };
    let cluster = Cluster::tuned_on(fabric, layout, &boundaries, &[], 1.0, cache, tune);
    let thread =
        |thread| cluster.fabric.thread(thread as usize % compute_servers as usize, seed * 1000 + thread);
    let clients: Vec<Client<'_, L>> = (0..threads).map(|number| cluster.client_of(thread(number))).collect();
    let endpoints: Vec<_> = clients.iter().map(|client| client.ep.as_type::<SimEndpoint>()).collect();
    cluster.fabric.run(&endpoints, slots as u32, |thread, slot| {
        work(&clients[thread], &load, thread as u64 * slots + u64::from(slot))
    });
    let counts = endpoints.iter().map(|ep| ep.counters().snapshot()).sum();
    let end = cluster.fabric.now();
    drop(endpoints);
    drop(clients);
    assert_eq!(cluster.audit(), Vec::<String>::new(), "seed {seed}");
    let caches = cluster.trees.iter().map(|tree| tree.cache().counts()).sum();
    let relocations = cluster.trees.iter().map(|tree| tree.relocations()).sum();
    (end, counts, caches, relocations)
}

fn run_all<L: Layout>(layout: impl Fn() -> L) {
    let (mut finished, mut refused, mut relocated) = (0, 0, 0);
    for seed in seeds(30) {
        // Printed if the test fails.
        eprintln!("seed {seed}");
        let (_, _, caches, relocations) = run(seed, layout());
        relocated += relocations;
        finished += caches.offloads - caches.offloads_refused;
        refused += caches.offloads_refused;
    }
    eprintln!("memory servers finished {finished} operations and refused {refused}");
    eprintln!("{relocated} nodes moved to other memory servers");
    assert!(seeds(30).count() < 20 || (finished > 1000 && refused > 100 && relocated > 100));
}

#[test]
fn fixed_nodes() {
    run_all(fixed_tiny);
}

#[test]
fn fixed_nodes_of_three_children() {
    run_all(|| fixed_tiny().with_fanout_limit(3));
}

#[test]
fn slotted_nodes() {
    run_all(|| SlottedLayout::new(512).unwrap().with_fanout_limit(4));
}

/// Several slots with stale copies of a shared node locked it in turns, so that no refresh found it unlocked.
#[test]
fn stale_copies_of_a_locked_node_are_refreshed() {
    run(17, fixed_tiny());
    run(3, fixed_tiny().with_fanout_limit(3));
    run(19, fixed_tiny());
}

/// The move of a subtree went beyond the boundary, so that a compute server had a leaf of another one in its
/// cache. After that leaf was freed, a new node in its block found the address taken.
#[test]
fn a_move_ends_at_the_boundary() {
    run(135, fixed_tiny().with_fanout_limit(3));
}

#[test]
fn the_same_seed_is_the_same_history() {
    for seed in 0..3 {
        let histories = [0, 1].map(|_| run(seed, fixed_tiny()));
        assert_eq!(histories[0], histories[1], "seed {seed}");
    }
}
