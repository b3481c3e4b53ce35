//! Simulated clusters with random options and faults.
//!
//! Everything is drawn from one sequence, so the order of calls is part of what a seed means.

use std::ops::Range;
use std::sync::Arc;

use crate::common::{list_cache, offloading};
use pando_elf_remote::{MemorySide, PublishOptions, ReadOptions};
use pando_fabric::{DynEndpoint, MemoryServerId, Nanos, Random};
use pando_pool::{AttachOptions, Pool, PoolOptions};
use pando_rt::block_on;
use pando_sim::{FaultBounds, FaultKind, FaultPlan, Faults, Model, SimConfig, SimFabric};

pub const KINDS: [FaultKind; 7] = FaultKind::PASSING;

/// Seeds to run: those of the environment, or the first ones.
pub fn seeds(usually: u64) -> Range<u64> {
    let Ok(text) = std::env::var("PANDO_SIM_SEEDS") else { return 0..usually };
    let (first, end) = text.split_once("..").expect("PANDO_SIM_SEEDS=A..B");
    first.parse().expect("a number")..end.parse().expect("a number")
}

/// Two memory servers and two compute servers, with a pool.
pub struct Setup {
    pub random: Random,
    pub fabric: SimFabric,
    pub ep: DynEndpoint,
    pub pool: Pool,
    faults: Faults,
}

impl Setup {
    pub fn new(seed: u64) -> Self {
        let faults = Faults { timeout_ns: 100_000, ..Faults::default() };
        let model = Model { faults: faults.clone(), ..Model::default() };
        let config = SimConfig { regions: vec![8 << 20; 2], compute_servers: 2, seed, model };
        let fabric = SimFabric::new(&config).expect("a sound model");
        fabric.set_handler(Arc::new(MemorySide::default()));
        let ep = DynEndpoint::new(fabric.direct(seed));
        let attach = AttachOptions::embedded().wait_ns_max(3_000_000).verbs_take_ns(200_000);
        let pool = block_on(&ep, Pool::create(&ep, PoolOptions::new(attach))).expect("a pool");
        Self { random: Random::new(seed), fabric, ep, pool, faults }
    }

    pub fn one_of(&self, choices: &[u64]) -> u64 {
        choices[(self.random.next() >> 32) as usize % choices.len()]
    }

    pub fn publish_options(&self) -> PublishOptions {
        PublishOptions {
            piece_bytes: self.one_of(&[64, 256]) as u32,
            stripe_bytes: self.one_of(&[1 << 10, 1 << 20]),
            home: (self.one_of(&[0, 1]) == 0).then_some(MemoryServerId(1)),
            grace_ns: self.one_of(&[0, 0, 50_000, 1_000_000]),
            attempts_max: 16,
        }
    }

    pub fn read_options(&self) -> ReadOptions {
        ReadOptions {
            cache_bytes: self.one_of(&[0, 500, 1 << 20]),
            round_trip_bytes: self.one_of(&[0, 1_000, 22_000]),
            batch_bytes: self.one_of(&[1, 1 << 20]),
            offloading: offloading(self.one_of(&[0, 1, 2])),
            list_cache: list_cache(self.one_of(&[0, 1, 2, 3, 4, 9])),
            ..ReadOptions::default()
        }
    }

    /// Plans faults of some of `kinds`, all of which end at `well_at`.
    pub fn plan_faults(&self, kinds: &[FaultKind], well_at: Nanos) {
        let bounds = FaultBounds {
            compute_servers: 2,
            memory_servers: 2,
            from: 20_000,
            until: well_at,
            faults: 1 + self.one_of(&[0, 1, 2, 3, 4, 5]) as usize,
            usual: self.faults.clone(),
        };
        let drawn: Vec<_> = kinds.iter().copied().filter(|_| self.random.next() >> 63 == 0).collect();
        self.fabric.plan(&FaultPlan::draw(self.random.next(), &drawn, &bounds));
    }
}

/// Threads of the two compute servers, in turn.
pub fn threads(fabric: &SimFabric, number: usize, seed: u64) -> Vec<DynEndpoint> {
    (0..number).map(|thread| DynEndpoint::new(fabric.thread(thread % 2, seed * 10 + thread as u64))).collect()
}

/// Runs two slots on each thread to their ends; returns their outputs by thread and slot.
pub fn run_slots<F: Future>(
    fabric: &SimFabric,
    threads: &[DynEndpoint],
    make: impl FnMut(usize, u32) -> F,
) -> Vec<Vec<F::Output>> {
    let running: Vec<_> = threads.iter().map(DynEndpoint::as_type).collect();
    fabric.run(&running, 2, make)
}
