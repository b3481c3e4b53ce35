//! Benchmarks of the facade on this machine: its threads, its clock, its memory.
//!
//! Each thread is a worker of one compute server, with a session of its own. Threads live for one phase; what they carry
//! on (the stream of operations) is handed from phase to phase. Sessions reach all compute servers, because scans go on
//! into the keys of the next one. All other operations of a thread are on keys of its own compute server, unless the
//! benchmark is [routed](super::BenchSpec::is_routed).

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use pando::{
    Balancer, BalancerConfig, BulkOptions, Cluster, ComputeServerStats, Config, Create, Index, IndexOptions,
    MemoryServer, MemoryServerConfig, Session, SmoCounts, Stats,
};
use pando_workload::OpStream;
use tempfile::TempDir;

use super::bed::{Bed, Counts, PhaseOutcome, Stage, joined};
use super::lane::Lane;
use super::load::{Generated, boundaries};
use super::verify::{self, FinalScan};
use super::{BenchError, BenchSpec, FabricKind, Length};
use crate::under_test::{Audited, host_now};

/// Name of the index in the pool.
const INDEX: &str = "bench";

/// An index of the facade.
pub(crate) struct Hosted {
    cluster: Cluster,
    index: Index,
    /// Goes on from phase to phase, if boundaries are to move.
    balancer: Mutex<Balancer>,
    /// The pool is others' too: what was put there is taken out again.
    is_guest: bool,
    _place: Place,
}

/// What goes with the benchmark.
#[derive(Default)]
pub(super) struct Place {
    /// Of the pool, if it has a temporary one.
    _directory: Option<TempDir>,
    /// Those that it started itself.
    _memory_servers: Vec<MemoryServer>,
}

impl Hosted {
    /// A new cluster with a loaded index.
    pub fn open(stage: &Stage<'_>) -> Result<Hosted, BenchError> {
        let spec = stage.spec;
        // So that no pool is made for a benchmark that is refused.
        let config = Config::embedded().cache(spec.cache_bytes).cache_options(spec.cache);
        index_options(spec).check(INDEX, &config)?;
        let (cluster, place) = open_cluster(spec)?;
        match load(stage, &cluster) {
            Ok(index) => {
                let balancer = Mutex::new(Balancer::new(BalancerConfig::default()));
                let is_guest = !stage.spec.addresses.is_empty();
                Ok(Hosted { cluster, index, balancer, is_guest, _place: place })
            }
            Err(error) => {
                // Best effort: the error that led here is the one to report.
                let _ = cluster.close();
                Err(error)
            }
        }
    }

    /// Runs `work` on every thread of the benchmark with a session of its own.
    fn on_all_threads<I: Send, O: Send>(
        &self,
        stage: &Stage<'_>,
        inputs: impl IntoIterator<Item = I, IntoIter: ExactSizeIterator>,
        work: impl Fn(I, &Session) -> Result<O, BenchError> + Sync,
    ) -> Result<Vec<O>, BenchError> {
        on_threads(stage, inputs, |_, input| work(input, &self.index.session()?))
    }

    /// Does `work` while a balancer looks at the load every so often; how many boundaries it moved.
    fn balanced<T>(
        &self,
        every_ns: Option<u64>,
        work: impl FnOnce() -> Result<T, BenchError>,
    ) -> Result<(T, u64), BenchError> {
        let Some(every) = every_ns.map(Duration::from_nanos) else { return Ok((work()?, 0)) };
        thread::scope(|scope| {
            let (ended, end) = channel::<()>();
            let balancing = scope.spawn(move || {
                let mut balancer = self.balancer.lock().unwrap_or_else(PoisonError::into_inner);
                let mut moves = 0;
                while end.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                    moves += self.index.balance(&mut balancer)? as u64;
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

/// Runs `work` on every thread of the benchmark, with its number, pinned if there are cores enough; reports `shared.done`
/// meanwhile. The results are in the order of the threads.
pub(super) fn on_threads<I: Send, O: Send>(
    stage: &Stage<'_>,
    inputs: impl IntoIterator<Item = I, IntoIter: ExactSizeIterator>,
    work: impl Fn(usize, I) -> Result<O, BenchError> + Sync,
) -> Result<Vec<O>, BenchError> {
    stage.shared.done.store(0, Relaxed);
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let inputs = inputs.into_iter();
    let pin = inputs.len() <= cores;
    let (ended, end) = channel::<()>();
    let results: Result<Vec<O>, BenchError> = thread::scope(|scope| {
        let threads = inputs.enumerate().map(|(number, input)| {
            let (work, ended) = (&work, ended.clone());
            scope.spawn(move || {
                // Dropped when the thread ends, in whichever way.
                let _ended = ended;
                if pin {
                    pando::pin_to_core(number);
                }
                work(number, input)
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

/// Operations that each compute server performed between two moments.
fn loads(before: &Stats, after: &Stats) -> Vec<u64> {
    let of = |stats: &Stats| stats.indexes.first().map_or(Vec::new(), |index| index.compute_servers.clone());
    let earlier = of(before);
    let operations = |server: &ComputeServerStats| {
        let earlier = earlier.iter().find(|earlier| earlier.number == server.number);
        server.operations - earlier.map_or(0, |earlier| earlier.operations)
    };
    of(after).iter().map(operations).collect()
}

impl Bed for Hosted {
    fn operations(
        &self,
        stage: &Stage<'_>,
        streams: Vec<OpStream>,
        length: Length,
    ) -> Result<PhaseOutcome, BenchError> {
        let before = self.cluster.stats()?;
        let tasks: Vec<_> = stage.tasks(streams, length, host_now()).collect();
        let (lanes, moves) = self.balanced(stage.spec.balance_every_ns, || {
            self.on_all_threads(stage, tasks, |task, session| {
                let lane = Lane::new(stage.shared, task);
                let before = session.verbs();
                session.in_flight(stage.spec.slots, |_, client| lane.slot(client))?;
                Ok(lane.finish(session.verbs() - before))
            })
        })?;
        let after = self.cluster.stats()?;
        let cache = after.cache() - before.cache();
        let outcome = stage.outcome(lanes, Counts { cache, ..Counts::default() });
        Ok(PhaseOutcome { loads: Some(loads(&before, &after)), moves, ..outcome })
    }

    fn final_scans<'s>(
        &self,
        stage: &Stage<'_>,
        scans: Vec<FinalScan<'s>>,
    ) -> Result<Vec<FinalScan<'s>>, BenchError> {
        self.on_all_threads(stage, scans, |mut scan, session| {
            let scanning = verify::perform(session.futures(), stage.shared, &mut scan);
            pando::block_on(session, scanning)?;
            Ok(scan)
        })
    }

    fn smo_counts(&self) -> Result<SmoCounts, BenchError> {
        Ok(self.cluster.stats()?.smo())
    }

    fn audit(&self) -> Result<Audited, BenchError> {
        let report = match self.cluster.check() {
            // Others have indexes of their own in this pool.
            Err(pando::Error::NotAlone { .. }) if self.is_guest => self.cluster.check_index(INDEX)?,
            report => report?,
        };
        let mut audited = Audited {
            violations: report.violations,
            violation_count: report.violation_count,
            ..Audited::default()
        };
        if let Some(index) = report.indexes.iter().find(|index| index.name == INDEX) {
            audited.entries = index.entries;
            audited.leaves = index.leaves;
            audited.inner_nodes = index.inner_nodes;
            audited.height = index.height;
            audited.leaf_fullness = index.leaf_fullness;
        }
        Ok(audited)
    }

    fn close(self) -> Result<(), BenchError> {
        if self.is_guest {
            self.cluster.drop_index(INDEX)?;
        }
        Ok(self.cluster.close()?)
    }
}

/// Best effort, for runs that end early.
impl Drop for Hosted {
    fn drop(&mut self) {
        let _ = self.cluster.close();
    }
}

/// The cluster, and what goes with it.
pub(super) fn open_cluster(spec: &BenchSpec) -> Result<(Cluster, Place), BenchError> {
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

/// Memory servers in this process, each at a port of its own.
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
