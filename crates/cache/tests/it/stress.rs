//! The toy tree under real threads: for ThreadSanitizer and AddressSanitizer (`ci/sanitizers.sh`), and for
//! processors that reorder more than loom's model. `STRESS_ROUNDS` multiplies the work.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::toy::{LEAVES, Shape, Toy, ToyEndpoint, run_slots};
use pando_cache::{Admission, CacheConfig, CacheWorker, Eviction};
use pando_fabric::Endpoint;

const THREADS: u64 = 3;
const SLOTS: usize = 3;

fn rounds() -> usize {
    let factor = std::env::var("STRESS_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    1_500 * factor
}

async fn operations(toy: &Toy, worker: &CacheWorker, ep: &ToyEndpoint) {
    for _ in 0..rounds() {
        let key = ep.random() as usize % LEAVES;
        match ep.random() % 64 {
            0..=31 => {
                toy.read(worker, ep, key).await;
            }
            32..=51 => toy.increment(worker, ep, key, 0).await,
            52..=55 => toy.increment(worker, ep, key, 1).await,
            56..=58 => toy.pin(worker, ep, key).await,
            59 => {
                toy.cache.flush(worker, ep, Shape).await.expect("it does not fail");
            }
            _ => toy.relocate(worker, ep, key).await,
        }
    }
}

fn check(frames: u64, configure: impl Fn(&mut CacheConfig)) {
    let toy = Arc::new(Toy::new(frames, |config| {
        config.admission = Admission::lazy(0.6);
        configure(config);
    }));
    std::thread::scope(|scope| {
        for seed in 1..=THREADS {
            let toy = &toy;
            scope.spawn(move || {
                let (worker, ep) = (toy.cache.worker(), toy.endpoint(seed));
                let slot =
                    || Box::pin(operations(toy, &worker, &ep)) as Pin<Box<dyn Future<Output = ()> + '_>>;
                run_slots((0..SLOTS).map(|_| slot()).collect());
                toy.cache.retire(&worker);
            });
        }
    });
    toy.check();
}

#[test]
fn path_aware() {
    check(12, |_| {});
}

#[test]
fn random_eviction() {
    check(12, |config| config.eviction = Eviction::Random);
}

#[test]
fn fifo() {
    check(12, |config| config.fifo = true);
}

#[test]
fn without_swizzling() {
    check(12, |config| config.swizzle = false);
}
