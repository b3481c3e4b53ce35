//! The whole cache under concurrent access, scheduled by shuttle: threads with several slots each walk,
//! update, pin, flush and move the nodes of a toy tree in a cache that is too small for it.
//!
//! Run with `RUSTFLAGS="--cfg shuttle" cargo test --release -p pando-cache`; `ci/shuttle.sh` does.
//! `SHUTTLE_ITERATIONS` sets the number of schedules per test.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use pando_cache::{Admission, CacheConfig, Eviction};
use pando_fabric::Endpoint;
use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, MaxSteps, Runner};

use crate::toy::{FANOUT, LEAVES, Shape, Toy, run_slots, thread};

#[derive(Clone, Copy)]
struct Mix {
    frames: u64,
    threads: usize,
    slots: usize,
    ops: usize,
    /// Number of leaves in use; fewer leaves mean more contention.
    leaves: usize,
}

const MIX: Mix = Mix { frames: 8, threads: 3, slots: 2, ops: 5, leaves: LEAVES };

async fn operations(toy: &Toy, worker: &pando_cache::CacheWorker, ep: &crate::toy::ToyEndpoint, mix: Mix) {
    for _ in 0..mix.ops {
        let key = ep.random() as usize % mix.leaves * (LEAVES / mix.leaves);
        match ep.random() % 16 {
            0..=5 => toy.increment(worker, ep, key, 0).await,
            6..=7 => toy.increment(worker, ep, key, 1).await,
            8..=11 => {
                toy.read(worker, ep, key).await;
            }
            12 => toy.pin(worker, ep, key).await,
            13 => {
                toy.cache.flush(worker, ep, Shape).await.expect("it does not fail");
            }
            _ => toy.relocate(worker, ep, key).await,
        }
    }
}

fn run_once(mix: Mix, configure: fn(&mut CacheConfig)) {
    let toy = Arc::new(Toy::new(mix.frames, |config| {
        config.admission = Admission::lazy(0.6);
        configure(config);
    }));
    let threads: Vec<_> = (0..mix.threads)
        .map(|_| {
            let toy = Arc::clone(&toy);
            thread::spawn(move || {
                let (worker, ep) = (toy.cache.worker(), toy.endpoint(thread_rng().r#gen()));
                let slot =
                    || Box::pin(operations(&toy, &worker, &ep, mix)) as Pin<Box<dyn Future<Output = ()>>>;
                run_slots((0..mix.slots).map(|_| slot()).collect());
                toy.cache.retire(&worker);
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    toy.check();
}

fn runner(scheduler: impl Scheduler + 'static) -> Runner<impl Scheduler> {
    let mut config = Config::new();
    config.max_steps = MaxSteps::FailAfter(1_000_000);
    config.stack_size = 1 << 18;
    config.silence_warnings = true;
    Runner::new(scheduler, config)
}

fn iterations() -> usize {
    std::env::var("SHUTTLE_ITERATIONS").ok().and_then(|text| text.parse().ok()).unwrap_or(300)
}

/// Half of the schedules are random, half have few changes of priority (PCT).
fn check(mix: Mix, configure: fn(&mut CacheConfig)) {
    let rounds = iterations().div_ceil(2);
    runner(RandomScheduler::new(rounds)).run(move || run_once(mix, configure));
    runner(PctScheduler::new(4, rounds)).run(move || run_once(mix, configure));
}

#[test]
fn path_aware() {
    check(MIX, |_| {});
}

#[test]
fn path_aware_on_one_subtree() {
    check(Mix { leaves: FANOUT, ..MIX }, |_| {});
}

#[test]
fn path_aware_with_more_frames_than_paths() {
    check(Mix { frames: 12, ops: 8, threads: 2, ..MIX }, |_| {});
}

#[test]
fn random_eviction() {
    check(MIX, |config| config.eviction = Eviction::Random);
}

#[test]
fn fifo() {
    check(MIX, |config| config.fifo = true);
}

#[test]
fn without_swizzling() {
    check(MIX, |config| config.swizzle = false);
}

#[test]
fn without_swizzling_and_random_eviction() {
    check(MIX, |config| {
        config.swizzle = false;
        config.eviction = Eviction::Random;
    });
}

#[test]
fn eager_admission_and_a_large_cooling_map() {
    check(MIX, |config| {
        config.admission = Admission::eager();
        config.cooling_share = 0.9;
    });
}
