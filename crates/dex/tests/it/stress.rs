//! Several threads with several slots each, on tiny nodes and tiny caches: see [`crate::common::load`].
//!
//! `PANDO_STRESS_ROUNDS=N` repeats every test N times, with other seeds.

use crate::common::load::{Load, key, work};
use crate::common::{Client, Cluster, fixed_tiny};
use pando_cache::{CacheConfig, Eviction};
use pando_dex::layout::Layout;
use pando_dex::layout::slotted::SlottedLayout;

/// Number of keys in most loads.
const KEYS: u64 = 400;

fn rounds() -> u64 {
    std::env::var("PANDO_STRESS_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

fn run<L: Layout>(make: impl Fn() -> Cluster<L>, load: &Load) {
    for round in 0..rounds() {
        let cluster = make();
        std::thread::scope(|scope| {
            for thread in 0..load.threads {
                let cluster = &cluster;
                scope.spawn(move || work_on(cluster, load, round, thread));
            }
        });
        assert_eq!(cluster.audit(), Vec::<String>::new(), "round {round}");
        load.check_shape(&cluster);
    }
}

/// Runs the slots of one thread.
fn work_on<L: Layout>(cluster: &Cluster<L>, load: &Load, round: u64, thread: u64) {
    let seed = 1 + round * 1000 + thread;
    match load.delay_max {
        0 => work_as(&cluster.client(seed), load, thread),
        delay_max => work_as(&cluster.observed(seed, delay_max), load, thread),
    }
}

fn work_as<L: Layout>(client: &Client<'_, L>, load: &Load, thread: u64) {
    let slots = (0..load.slots).map(|slot| work(client, load, thread * load.slots + slot));
    pando_rt::run_slots(&client.ep, slots.collect());
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

/// Runs with the smallest possible number of frames, on trees of moderate height and on a higher one.
fn least_frames(threads: u64, slots: u64, operations: u64) {
    let load = Load { keys: KEYS, fill: false, threads, slots, operations, height: 4, delay_max: 0 };
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
        Load { keys: KEYS, fill: false, threads: 2, slots: 8, operations: 300, height: 4, delay_max: 0 };
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
