//! Benchmarks on this machine: its threads, its clock, and memory that the facade provides.
//!
//! Each thread is a worker of one compute server and has its own port: a session of the facade, or an
//! endpoint for the other designs. Threads live for one phase; their streams of operations continue from
//! phase to phase. A port reaches all compute servers, since scans continue into the keys of the next one.
//! All other operations of a thread are on keys of its own compute server, unless the benchmark is
//! [routed](super::BenchSpec::is_routed).

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use pando::{BulkOptions, Cluster, Config, Create, Index, IndexOptions, MemoryServer, MemoryServerConfig};
use pando_rt::block_on;
use pando_workload::OpStream;
use tempfile::TempDir;

use super::driver::Driver;
use super::load::{Generated, Interruptible, boundaries};
use super::testbed::{PhaseResult, Stage, Testbed, joined};
use super::verify::{self, FinalScan};
use super::{BenchError, BenchSpec, FabricKind, Length, latency};
use crate::under_test::facade::Facade;
use crate::under_test::peers::{PeerTree, Peers};
use crate::under_test::{
    Audited, Balancer, Client, EndpointPort, HostPort, SystemCounts, SystemUnderTest, balancer, host_now,
};

/// Name of the index in the pool.
const INDEX: &str = "bench";

/// An index in a cluster of the facade. `C` makes a port for the calling thread.
struct Hosted<S, C> {
    cluster: Cluster,
    system: S,
    connect: C,
    /// State of the balancer, kept from phase to phase.
    balancer: Mutex<Balancer>,
    /// The pool belongs to others, so the index is removed from it at the end.
    is_guest: bool,
    _place: Place,
}

/// Resources that live as long as the cluster.
#[derive(Default)]
struct Place {
    /// Directory of a temporary pool.
    _directory: Option<TempDir>,
    /// Memory servers that the benchmark started.
    _memory_servers: Vec<MemoryServer>,
}

/// Opens a new cluster with a loaded index of the facade.
pub(crate) fn open_facade(stage: &Stage<'_>) -> Result<impl Testbed + use<>, BenchError> {
    let spec = stage.spec;
    // Reject impossible options before a pool is made.
    let config = Config::embedded().cache(spec.cache_bytes).cache_options(spec.cache);
    index_options(spec).check(INDEX, &config)?;
    let load = |cluster: &Cluster| {
        let index = load(stage, cluster)?;
        let facade = Facade::new(cluster.clone(), index.clone(), is_guest(spec));
        Ok((facade, move |_: &Cluster| Ok(index.session()?)))
    };
    open(spec, load)
}

/// Opens a new cluster with a loaded index of another design.
pub(crate) fn open_peers<T: PeerTree + Send>(
    stage: &Stage<'_>,
    config: &T::Config,
) -> Result<impl Testbed + use<T>, BenchError> {
    let Stage { spec, shared, .. } = *stage;
    let load = |cluster: &Cluster| {
        let source = Interruptible::new(Generated::new(shared.keys, shared.values, 1), shared);
        let peers = stage.watched(|| {
            let ep = &cluster.endpoint()?;
            let boundaries = boundaries(&shared.keys, spec.compute_servers);
            let pool = cluster.pool().clone();
            block_on(ep, Peers::<T>::load(config, spec, ep, pool, boundaries, &source))
        })?;
        let connect =
            |cluster: &Cluster| Ok(EndpointPort::hosted(cluster.endpoint()?, cluster.operation_ns()));
        Ok((peers, connect))
    };
    open(spec, load)
}

fn open<S, C>(
    spec: &BenchSpec,
    load: impl FnOnce(&Cluster) -> Result<(S, C), BenchError>,
) -> Result<Hosted<S, C>, BenchError> {
    let (cluster, place) = open_cluster(spec)?;
    match load(&cluster) {
        Ok((system, connect)) => {
            let balancer = Mutex::new(balancer());
            Ok(Hosted { cluster, system, connect, balancer, is_guest: is_guest(spec), _place: place })
        }
        Err(error) => {
            // Best effort: the first error is the one to report.
            let _ = cluster.close();
            Err(error)
        }
    }
}

fn is_guest(spec: &BenchSpec) -> bool {
    !spec.addresses.is_empty()
}

impl<S, C> Hosted<S, C> {
    /// Runs `work` on each thread of the benchmark, pinned if there are enough cores, and reports
    /// `shared.done` meanwhile. Results are in the order of the threads.
    fn on_threads<P, I: Send, O: Send>(
        &self,
        stage: &Stage<'_>,
        inputs: Vec<I>,
        work: impl Fn(I, Client<'_, S, P>) -> Result<O, BenchError> + Sync,
    ) -> Result<Vec<O>, BenchError>
    where
        S: SystemUnderTest<P>,
        C: Fn(&Cluster) -> Result<P, BenchError> + Sync,
    {
        stage.shared.done.store(0, Relaxed);
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let (pin, per_server) = (inputs.len() <= cores, stage.spec.threads);
        let (ended, end) = channel::<()>();
        let results: Result<Vec<O>, BenchError> = thread::scope(|scope| {
            let threads = inputs.into_iter().enumerate().map(|(number, input)| {
                let (work, ended) = (&work, ended.clone());
                scope.spawn(move || {
                    // Dropped when the thread ends, also after a panic.
                    let _ended = ended;
                    if pin {
                        pando::pin_to_core(number);
                    }
                    let port = (self.connect)(&self.cluster)?;
                    let own = self.system.begin_thread(number / per_server);
                    let done = work(input, Client { system: &self.system, port: &port, own: &own });
                    self.system.end_thread(own);
                    done
                })
            });
            let threads: Vec<_> = threads.collect();
            drop(ended);
            stage.watch_until(&end);
            threads.into_iter().map(joined).collect()
        });
        stage.check_interrupt()?;
        results
    }

    /// Runs `work` while a balancer checks the load at intervals of `every_ns`. Returns the number of
    /// boundaries that it moved, too.
    fn balanced<P, T>(
        &self,
        every_ns: Option<u64>,
        work: impl FnOnce() -> Result<T, BenchError>,
    ) -> Result<(T, u64), BenchError>
    where
        S: SystemUnderTest<P>,
        C: Sync,
    {
        let Some(every) = every_ns.map(Duration::from_nanos) else { return Ok((work()?, 0)) };
        thread::scope(|scope| {
            let (ended, end) = channel::<()>();
            let (system, balancer) = (&self.system, &self.balancer);
            let balancing = scope.spawn(move || {
                let mut balancer = balancer.lock().unwrap_or_else(PoisonError::into_inner);
                let mut moves = 0;
                while end.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                    moves += system.balance(&mut balancer)? as u64;
                }
                Ok::<_, BenchError>(moves)
            });
            let worked = work();
            drop(ended);
            let moves = joined(balancing);
            Ok((worked?, moves?))
        })
    }
}

impl<P: HostPort, S: SystemUnderTest<P>, C> Testbed for Hosted<S, C>
where
    C: Fn(&Cluster) -> Result<P, BenchError> + Sync,
{
    fn operations(
        &self,
        stage: &Stage<'_>,
        streams: Vec<OpStream>,
        length: Length,
    ) -> Result<PhaseResult, BenchError> {
        let before = self.system.counts()?;
        let tasks: Vec<_> = stage.tasks(streams, length, host_now()).collect();
        let latencies = Mutex::new(latency::empty());
        let (threads, moves) = self.balanced(stage.spec.balance_every_ns, || {
            self.on_threads(stage, tasks, |task, client| {
                let latency = RefCell::new(latency::empty());
                let driver = Driver::new(stage.shared, client, task, &latency);
                let before = client.port.verbs();
                client.port.run_slots(stage.spec.slots, |_| driver.slot())?;
                let result = driver.finish(client.port.verbs() - before);
                let mut all = latencies.lock().unwrap_or_else(PoisonError::into_inner);
                all.add(latency.into_inner()).expect("all histograms have the same bounds");
                Ok(result)
            })
        })?;
        let latencies = latencies.into_inner().unwrap_or_else(PoisonError::into_inner);
        let phase = stage.combine(threads, length, latencies, [before, self.system.counts()?]);
        Ok(PhaseResult { moves, ..phase })
    }

    fn final_scans<'s>(
        &self,
        stage: &Stage<'_>,
        scans: Vec<FinalScan<'s>>,
    ) -> Result<Vec<FinalScan<'s>>, BenchError> {
        self.on_threads(stage, scans, |mut scan, client| {
            client.port.block_on(verify::perform(client, stage.shared, &mut scan))?;
            Ok(scan)
        })
    }

    fn counts(&self) -> Result<SystemCounts, BenchError> {
        self.system.counts()
    }

    fn audit(&self) -> Result<Audited, BenchError> {
        self.system.audit(&|| (self.connect)(&self.cluster))
    }

    fn close(self) -> Result<(), BenchError> {
        let closed = self.system.close(&|| (self.connect)(&self.cluster), self.is_guest);
        self.cluster.close()?;
        closed
    }
}

/// Opens the cluster after starting the memory servers or making the directory that it needs.
fn open_cluster(spec: &BenchSpec) -> Result<(Cluster, Place), BenchError> {
    let (config, place) = match (spec.fabric, &spec.pool) {
        (FabricKind::Shm, Some(path)) => (Config::at(path).create(Create::New), Place::default()),
        (FabricKind::Shm, None) => {
            let directory = temporary_place().map_err(BenchError::NoPlace)?;
            let config = Config::at(directory.path()).create(Create::New);
            (config, Place { _directory: Some(directory), ..Place::default() })
        }
        (FabricKind::Tcp | FabricKind::Verbs, _) if spec.addresses.is_empty() => {
            let servers = start_memory_servers(spec)?;
            let addresses = servers.iter().map(|server| server.addr().to_string()).collect();
            let config = elsewhere(spec, addresses).create(Create::New);
            (config, Place { _memory_servers: servers, ..Place::default() })
        }
        (FabricKind::Tcp | FabricKind::Verbs, _) => {
            let config = elsewhere(spec, spec.addresses.clone());
            (config.create(Create::IfMissing), Place::default())
        }
        (FabricKind::Local | FabricKind::Sim, _) => (Config::embedded(), Place::default()),
    };
    let config = config
        .memory_servers(spec.memory_servers)
        .memory(spec.memory_server_bytes())
        .cache(spec.cache_bytes)
        .cache_options(spec.cache)
        .read_ahead(spec.read_ahead)
        .offload(spec.offload)
        .whole_leaves(spec.whole_leaves)
        .durability(spec.durability)
        .memory_cores(spec.memory_cores.unwrap_or(1))
        .huge_pages(spec.huge_pages)
        .access(spec.access.clone())
        .seed(spec.seed);
    Ok((Cluster::open(config)?, place))
}

fn elsewhere(spec: &BenchSpec, addresses: Vec<String>) -> Config {
    match spec.fabric {
        FabricKind::Verbs => Config::verbs(addresses),
        _ => Config::tcp(addresses),
    }
}

/// Starts memory servers in this process, each on its own port.
fn start_memory_servers(spec: &BenchSpec) -> Result<Vec<MemoryServer>, BenchError> {
    let config = MemoryServerConfig::new("127.0.0.1:0")
        .size(spec.memory_server_bytes())
        .huge_pages(spec.huge_pages)
        .cores(spec.memory_cores.unwrap_or(1));
    let config = match spec.fabric {
        FabricKind::Verbs => config.verbs(spec.access.verbs_options().clone()),
        _ => config,
    };
    let servers = (0..spec.memory_servers).map(|_| MemoryServer::start(&config));
    Ok(servers.collect::<Result<_, _>>()?)
}

fn temporary_place() -> std::io::Result<TempDir> {
    let shared_memory = Path::new("/dev/shm");
    let parent = if shared_memory.is_dir() { PathBuf::from(shared_memory) } else { std::env::temp_dir() };
    tempfile::Builder::new().prefix("pando-bench-").tempdir_in(parent)
}

fn index_options(spec: &BenchSpec) -> IndexOptions {
    let options = match spec.is_fixed() {
        true => IndexOptions::fixed(spec.key_size, spec.value_size),
        false => IndexOptions::bytes(),
    };
    options.node_size(spec.node_size).subtree_level(spec.subtree_level)
}

fn load(stage: &Stage<'_>, cluster: &Cluster) -> Result<Index, BenchError> {
    let Stage { spec, shared, .. } = *stage;
    let boundaries = boundaries(&shared.keys, spec.compute_servers);
    let index = cluster.create_index(INDEX, &index_options(spec).boundaries(boundaries))?;
    stage.watched(|| {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let source = Generated::new(shared.keys, shared.values, threads);
        let note = |entries: u64| shared.done.store(entries, Relaxed);
        let options =
            BulkOptions { threads, leaf_fill: spec.fill, inner_fill: spec.inner_fill, progress: Some(&note) };
        index.bulk_load(&source, &options)?;
        Ok(())
    })?;
    Ok(index)
}
