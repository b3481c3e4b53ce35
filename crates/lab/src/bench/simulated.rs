//! Benchmarks on the simulated cluster: threads, clocks and network are virtual, and the same specification gives the same
//! history.
//!
//! Everything runs on one thread of the host, in the order of virtual time ([`SimFabric::run`]). What is not measured (load,
//! verify, audit) goes through direct endpoints and takes no virtual time. Nothing that happens depends on the host: its
//! clock is looked at for the wall-clock figures of the report only, and the watching thread only says when to stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use pando::{SmoCounts, VerbCounts};
use pando_dex::MemorySide;
use pando_dex::layout::Layout;
use pando_fabric::Endpoint;
use pando_pool::{Pool, PoolOptions};
use pando_rt::block_on;
use pando_sim::{SimConfig, SimEndpoint, SimFabric};
use pando_workload::OpStream;

use super::bed::{Bed, Counts, PhaseOutcome, Stage};
use super::lane::Lane;
use super::load::{Generated, Interruptible, boundaries};
use super::verify::{self, FinalScan};
use super::{BenchError, Length};
use crate::under_test::dex::Dex;
use crate::under_test::local::Local;
use crate::under_test::peers::{PeerTree, Peers};
use crate::under_test::plain::Plain;
use crate::under_test::{Audited, PlacedIndex};

/// An index on a simulated cluster.
pub(crate) struct Simulated<I> {
    fabric: SimFabric,
    /// The threads of all compute servers, those of server 0 first. They are the same in all phases, as each has its core.
    threads: Mutex<Vec<SimEndpoint>>,
    index: I,
    seeds: Seeds,
}

impl<L: Layout> Simulated<Dex<L>> {
    /// A new cluster with DEX on it, loaded.
    pub fn open(stage: &Stage<'_>, layout: L) -> Result<Self, BenchError> {
        Self::placed(stage, |ep, pool, boundaries, source| {
            Ok(block_on(ep, Dex::load(stage.spec, ep, pool, layout, boundaries, source))?)
        })
    }
}

impl<L: Layout> Simulated<Plain<L>> {
    /// A new cluster with a tree without a cache on it, loaded.
    pub fn open_plain(stage: &Stage<'_>, layout: L, partitioned: bool) -> Result<Self, BenchError> {
        Self::placed(stage, |ep, pool, boundaries, source| {
            Ok(block_on(ep, Plain::load(stage.spec, partitioned, ep, pool, layout, boundaries, source))?)
        })
    }
}

impl<L: Layout> Simulated<Local<L>> {
    /// A cluster whose one compute server has a tree of its own, loaded.
    pub fn open_local(stage: &Stage<'_>, layout: L) -> Result<Self, BenchError> {
        Self::placed(stage, |_, _, _, source| Ok(Local::load(stage.spec, layout, source)?))
    }
}

impl<T: PeerTree + Send> Simulated<Peers<T>> {
    /// A new cluster with a peer on it, loaded.
    pub fn open_peers(stage: &Stage<'_>, config: &T::Config) -> Result<Self, BenchError> {
        let simulated = Self::placed(stage, |ep, pool, boundaries, source| {
            block_on(ep, Peers::load(config, stage.spec, ep, pool, boundaries, source))
        })?;
        for (at, bytes) in simulated.index.trees()[0].on_chip() {
            simulated.fabric.set_on_chip(at, bytes)?;
        }
        Ok(simulated)
    }
}

impl<I: PlacedIndex + Send> Simulated<I> {
    /// A new cluster with what `load` puts there.
    fn placed(
        stage: &Stage<'_>,
        load: impl FnOnce(&SimEndpoint, Pool, Vec<Vec<u8>>, &Interruptible<'_>) -> Result<I, BenchError> + Send,
    ) -> Result<Self, BenchError> {
        let spec = stage.spec;
        let fabric = SimFabric::new(&SimConfig {
            regions: vec![spec.memory_server_bytes(); spec.memory_servers],
            compute_servers: spec.compute_servers,
            seed: spec.seed,
            model: spec.cluster_model(),
        })?;
        fabric.set_handler(Arc::new(MemorySide::default()));
        let (seeds, shared) = (Seeds::new(spec.seed), stage.shared);
        let index = stage.watched(|| {
            let ep = &fabric.direct(seeds.next());
            let pool = block_on(ep, Pool::create(ep, PoolOptions::embedded())).map_err(pando::Error::from)?;
            let source = Interruptible::new(Generated::new(shared.keys, shared.values, 1), shared);
            let boundaries = boundaries(&shared.keys, spec.compute_servers);
            load(ep, pool, boundaries, &source)
        })?;
        let thread = |number| fabric.thread(number / spec.threads, seeds.next());
        let threads = Mutex::new((0..spec.total_threads()).map(thread).collect());
        Ok(Self { fabric, threads, index, seeds })
    }
}

impl<I: PlacedIndex> Bed for Simulated<I> {
    fn operations(
        &self,
        stage: &Stage<'_>,
        streams: Vec<OpStream>,
        length: Length,
    ) -> Result<PhaseOutcome, BenchError> {
        let (spec, host_start) = (stage.spec, Instant::now());
        let before = self.index.cache_counts();
        // What was asked before this phase is not wanted.
        self.index.take_loads();
        let usage = self.fabric.usage();
        let tasks: Vec<_> = stage.tasks(streams, length, self.fabric.now()).collect();
        let lanes = stage.watched(|| {
            let threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
            let threads: Vec<&SimEndpoint> = threads.iter().collect();
            let verbs: Vec<VerbCounts> = threads.iter().map(|ep| ep.counters().snapshot()).collect();
            let own: Vec<I::Thread> =
                (0..threads.len()).map(|thread| self.index.begin_thread(thread / spec.threads)).collect();
            let lanes: Vec<Lane<'_>> = tasks.into_iter().map(|task| Lane::new(stage.shared, task)).collect();
            self.fabric.run(&threads, spec.slots as u32, |thread, _| {
                lanes[thread].slot(self.index.client(threads[thread], &own[thread]))
            });
            own.into_iter().for_each(|own| self.index.end_thread(own));
            let verbs = threads.iter().zip(verbs).map(|(ep, before)| ep.counters().snapshot() - before);
            Ok(lanes.into_iter().zip(verbs).map(|(lane, verbs)| lane.finish(verbs)).collect())
        })?;
        let cache = self.index.cache_counts() - before;
        let outcome = stage.outcome(lanes, Counts { cache, ..Counts::default() });
        let loads = self.index.take_loads();
        let shares = Some(self.fabric.usage().since(&usage));
        Ok(PhaseOutcome { host_time: Some(host_start.elapsed()), loads, shares, ..outcome })
    }

    fn final_scans<'s>(
        &self,
        stage: &Stage<'_>,
        mut scans: Vec<FinalScan<'s>>,
    ) -> Result<Vec<FinalScan<'s>>, BenchError> {
        stage.watched(|| {
            let ep = &self.fabric.direct(self.seeds.next());
            let own = self.index.begin_thread(0);
            for scan in &mut scans {
                let client = self.index.client(ep, &own);
                block_on(ep, verify::perform(client, stage.shared, scan))?;
            }
            self.index.end_thread(own);
            Ok(scans)
        })
    }

    fn smo_counts(&self) -> Result<SmoCounts, BenchError> {
        Ok(self.index.smo_counts())
    }

    fn audit(&self) -> Result<Audited, BenchError> {
        let ep = &self.fabric.direct(self.seeds.next());
        block_on(ep, self.index.audit(ep))
    }

    /// The cluster ends with the process's memory of it.
    fn close(self) -> Result<(), BenchError> {
        Ok(())
    }
}

/// Where the endpoints' random numbers start from: asked in the same order, the same ones.
struct Seeds(AtomicU64);

impl Seeds {
    fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }

    fn next(&self) -> u64 {
        // An odd step visits every seed before one comes again.
        self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Relaxed)
    }
}
