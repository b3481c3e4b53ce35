//! Benchmarks on the simulated cluster: threads, clocks and network are virtual, and equal specifications
//! give equal histories.
//!
//! Everything runs on one thread of the host, in the order of virtual time ([`SimFabric::run`]). Phases that
//! are not measured (load, verify, audit) use direct endpoints and take no virtual time. Nothing depends on
//! the host: its clock only gives the wall-clock figures of the report, and its watching thread only tells
//! when to stop.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use pando::VerbCounts;
use pando_dex::MemorySide;
use pando_pool::{Pool, PoolOptions};
use pando_rt::block_on;
use pando_sim::{SimConfig, SimFabric};
use pando_workload::OpStream;

use super::driver::Driver;
use super::load::{Generated, Interruptible, boundaries};
use super::testbed::{PhaseResult, Stage, Testbed};
use super::verify::{self, FinalScan};
use super::{BenchError, BenchSpec, Length, latency};
use crate::copies::{Copies, SimEndpoint};
use crate::under_test::peers::{PeerTree, Peers};
use crate::under_test::{Audited, Client, EndpointPort, Port, SimPort, SystemCounts, SystemUnderTest};

/// An index on a simulated cluster.
pub(crate) struct Simulated<S> {
    fabric: SimFabric,
    copies: Copies,
    /// Ports of all threads, those of compute server 0 first. All phases use the same ones, since each has
    /// its core.
    threads: Mutex<Vec<SimPort>>,
    system: S,
    seeds: Seeds,
}

/// Opens a new cluster with a loaded peer.
pub(crate) fn open_peers<T: PeerTree + Send>(
    stage: &Stage<'_>,
    config: &T::Config,
) -> Result<Simulated<Peers<T>>, BenchError> {
    let simulated = Simulated::open(stage, |ep, pool, boundaries, source| {
        block_on(ep, Peers::<T>::load(config, stage.spec, ep, pool, boundaries, source))
    })?;
    for (at, bytes) in simulated.system.trees()[0].on_chip() {
        simulated.fabric.set_on_chip(at, bytes)?;
    }
    Ok(simulated)
}

/// Makes a simulated cluster with `servers` compute servers.
pub(crate) fn make_fabric(spec: &BenchSpec, servers: usize) -> Result<SimFabric, BenchError> {
    let fabric = SimFabric::new(&SimConfig {
        regions: vec![spec.memory_server_bytes() * spec.replicas as u64; spec.memory_servers],
        compute_servers: servers,
        seed: spec.seed,
        model: spec.cluster_model(),
    })?;
    fabric.set_handler(Arc::new(MemorySide::default()));
    Ok(fabric)
}

impl<S: SystemUnderTest<SimPort> + Send> Simulated<S> {
    /// Opens a new cluster with the index that `load` makes and loads.
    pub fn open(
        stage: &Stage<'_>,
        load: impl FnOnce(&SimEndpoint, Pool, Vec<Vec<u8>>, &Interruptible<'_>) -> Result<S, BenchError> + Send,
    ) -> Result<Self, BenchError> {
        let Stage { spec, shared, .. } = *stage;
        let fabric = make_fabric(spec, spec.compute_servers)?;
        let (seeds, copies) = (Seeds::new(spec.seed), Copies::new(&fabric, spec.replicas, None));
        let system = stage.watched(|| {
            let ep = &copies.endpoint(fabric.direct(seeds.next()));
            let pool = block_on(ep, Pool::create(ep, PoolOptions::embedded())).map_err(pando::Error::from)?;
            let generated = Generated::new(shared.keys, shared.values, 1);
            let generated = if spec.from_empty { generated.without_records() } else { generated };
            let source = Interruptible::new(generated, shared);
            load(ep, pool, boundaries(&shared.keys, spec.compute_servers), &source)
        })?;
        let thread = |number| {
            let ep = fabric.thread(number / spec.threads, seeds.next());
            EndpointPort::simulated(copies.endpoint(ep))
        };
        let threads = Mutex::new((0..spec.total_threads()).map(thread).collect());
        Ok(Self { fabric, copies, threads, system, seeds })
    }
}

impl<S: SystemUnderTest<SimPort>> Testbed for Simulated<S> {
    fn operations(
        &self,
        stage: &Stage<'_>,
        streams: Vec<OpStream>,
        length: Length,
    ) -> Result<PhaseResult, BenchError> {
        let (spec, system, host_start) = (stage.spec, &self.system, Instant::now());
        let (before, usage) = (system.counts()?, self.fabric.usage());
        let tasks: Vec<_> = stage.tasks(streams, length, self.fabric.now()).collect();
        let (threads, latency) = stage.watched(|| {
            let ports = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
            let endpoints: Vec<_> = ports.iter().map(|port| port.ep.below()).collect();
            let verbs: Vec<VerbCounts> = ports.iter().map(SimPort::verbs).collect();
            let own: Vec<S::Thread> =
                (0..ports.len()).map(|thread| system.begin_thread(thread / spec.threads)).collect();
            let clients = ports.iter().zip(&own).map(|(port, own)| Client { system, port, own });
            let latency = RefCell::new(latency::empty());
            let drivers = clients.zip(tasks);
            let drivers = drivers.map(|(client, task)| Driver::new(stage.shared, client, task, &latency));
            let drivers: Vec<_> = drivers.collect();
            self.fabric.run(&endpoints, spec.slots as u32, |thread, _| drivers[thread].slot());
            let results = drivers.into_iter().zip(ports.iter().zip(verbs));
            let results = results.map(|(driver, (port, before))| driver.finish(port.verbs() - before));
            let results: Vec<_> = results.collect();
            own.into_iter().for_each(|own| system.end_thread(own));
            Ok((results, latency.into_inner()))
        })?;
        let phase = stage.combine(threads, length, latency, [before, system.counts()?]);
        let shares = Some(self.fabric.usage().since(&usage));
        Ok(PhaseResult { host_time: Some(host_start.elapsed()), shares, ..phase })
    }

    fn final_scans<'s>(
        &self,
        stage: &Stage<'_>,
        mut scans: Vec<FinalScan<'s>>,
    ) -> Result<Vec<FinalScan<'s>>, BenchError> {
        stage.watched(|| {
            let (system, port) = (&self.system, &self.direct());
            let own = system.begin_thread(0);
            for scan in &mut scans {
                let client = Client { system, port, own: &own };
                block_on(&port.ep, verify::perform(client, stage.shared, scan))?;
            }
            system.end_thread(own);
            Ok(scans)
        })
    }

    fn counts(&self) -> Result<SystemCounts, BenchError> {
        self.system.counts()
    }

    fn audit(&self) -> Result<Audited, BenchError> {
        self.system.audit(&|| Ok(self.direct()))
    }

    /// Does nothing: the cluster and its memory end with `self`.
    fn close(self) -> Result<(), BenchError> {
        Ok(())
    }
}

impl<S> Simulated<S> {
    /// A port that takes no virtual time.
    fn direct(&self) -> SimPort {
        EndpointPort::simulated(self.copies.endpoint(self.fabric.direct(self.seeds.next())))
    }
}

/// Seeds of the endpoints' random numbers: the same sequence in every run.
struct Seeds(AtomicU64);

impl Seeds {
    fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }

    fn next(&self) -> u64 {
        // An odd step visits every seed before one recurs.
        self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Relaxed)
    }
}
