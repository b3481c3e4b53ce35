//! Queries of an image that one memory server of a simulated cluster has, by READs or by calls to it.
//!
//! The image is columnar, of a table like lineitem, with conditions on the columns of Q6. All policies answer the same
//! predicates, and each answer is compared with that of the Elf in memory. READs, calls and bytes are counted; times
//! are those of the simulated network, with what readers and memory servers compute.

use std::sync::Arc;

use pando_elf::{BuildOptions, Elf, LayoutKind, Predicate};
use pando_elf_remote::{Cost, MemorySide, Offloading, PublishOptions, Publisher, ReadOptions, Reader};
use pando_fabric::{Endpoint, MemoryServerId, Nanos};
use pando_pool::{AttachOptions, Pool, PoolOptions};
use pando_rt::block_on;
use pando_sim::{MemoryServer, Model, SimConfig, SimEndpoint, SimFabric};
use pando_workload::columns::{Random, conditions_like_q6};
use serde_json::{Value, json};

use super::data::{predicate, table};
use super::failed;
use super::orders::order;
use super::spec::{ElfSpec, OffloadSpec};
use crate::bench::{BenchError, Watch};

const NAME: &str = "elf";
/// The first memory server has the catalog, the second one the image.
const MEMORY_SERVERS: usize = 2;
const HOME: MemoryServerId = MemoryServerId(1);
/// Predicates for each share of the rows.
const PREDICATES: usize = 32;

/// A predicate and what it finds.
struct Known {
    predicate: Predicate,
    answer: Digest,
}

/// Number and sum of ids, in whatever order they come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Digest {
    rows: u64,
    sum: u64,
}

impl Digest {
    fn of(ids: &[u32]) -> Self {
        Self { rows: ids.len() as u64, sum: ids.iter().map(|&id| u64::from(id)).sum() }
    }
}

/// What the queries of a phase did.
#[derive(Clone, Copy, Debug, Default)]
struct Done {
    queries: u64,
    rows: u64,
    ns: Nanos,
    cost: Cost,
}

impl Done {
    fn join(mut self, other: Self) -> Self {
        self.queries += other.queries;
        self.rows += other.rows;
        self.ns += other.ns;
        self.cost += other.cost;
        self
    }
}

/// The image, and predicates that find its shares of the rows in turn.
fn prepare(spec: &ElfSpec, offload: &OffloadSpec) -> Result<(Elf, Vec<Known>), BenchError> {
    let table = table(spec.data)?;
    let order = order(&table, offload.rule)?;
    let elf = Elf::build(&table, &order, LayoutKind::Columnar, &BuildOptions::default()).map_err(failed)?;
    let greatest: Vec<u32> = (0..table.width()).map(|column| table.maximum(column)).collect();
    let mut random = Random(spec.seed);
    let shares = offload.shares.iter().cycle().take(PREDICATES * offload.shares.len());
    let known = shares.map(|&share| {
        let predicate = predicate(&conditions_like_q6(&mut random, &greatest, share));
        let ids = elf.select(&predicate).and_then(|found| found.ids::<u32>()).map_err(failed)?;
        Ok(Known { predicate, answer: Digest::of(&ids) })
    });
    let known = known.collect::<Result<_, BenchError>>()?;
    Ok((elf, known))
}

/// A simulated cluster whose second memory server has the image, and a reader of it.
struct Cluster {
    fabric: SimFabric,
    reader: Reader,
    threads: Vec<SimEndpoint>,
}

impl Cluster {
    fn new(spec: &ElfSpec, offload: &OffloadSpec, elf: &Elf) -> Result<Self, BenchError> {
        let bytes = elf.bytes().len() as u64;
        let region = (bytes + bytes / 4 + (64 << 20)).next_multiple_of(2 << 20);
        let memory_server = MemoryServer { cores: offload.cores, ..MemoryServer::default() };
        let model = Model { memory_server, ..Model::default() };
        let regions = vec![region; MEMORY_SERVERS];
        let fabric = SimFabric::new(&SimConfig { regions, compute_servers: 1, seed: spec.seed, model })?;
        fabric.set_handler(Arc::new(MemorySide::default()));
        let direct = fabric.direct(spec.seed);
        let options = PoolOptions::new(AttachOptions::embedded());
        let pool = block_on(&direct, Pool::create(&direct, options)).map_err(BenchError::index)?;
        let options = PublishOptions { home: Some(HOME), ..PublishOptions::default() };
        let opened = Publisher::open(&direct, pool.clone(), NAME, options);
        let publisher = block_on(&direct, opened).map_err(BenchError::index)?;
        block_on(&direct, publisher.publish(&direct, elf)).map_err(BenchError::index)?;
        // The image is not replaced, so the catalog is looked at once.
        let options = ReadOptions {
            cache_bytes: if offload.is_cached { u64::MAX } else { 0 },
            check_age_ns: u64::MAX,
            offloading: Offloading::with_policy(offload.policy),
            ..ReadOptions::default()
        };
        let reader = Reader::new(pool, NAME, options);
        let thread = |number| fabric.thread(0, spec.seed + number as u64);
        let threads = (0..offload.threads).map(thread).collect();
        Ok(Self { fabric, reader, threads })
    }

    /// Lets every thread answer `queries` queries. Thread `t` begins with predicate `t`.
    fn answer(&self, queries: usize, known: &[Known], watch: &dyn Watch) -> Result<Done, BenchError> {
        let threads: Vec<&SimEndpoint> = self.threads.iter().collect();
        let outputs = self.fabric.run(&threads, 1, |thread, _| async move {
            let mut done = Done::default();
            for query in 0..queries {
                if watch.interrupted() {
                    return Err(BenchError::Interrupted);
                }
                let known = &known[(thread + query) % known.len()];
                done = done.join(self.one(&self.threads[thread], known).await?);
            }
            Ok(done)
        });
        outputs.into_iter().flatten().try_fold(Done::default(), |all, done| Ok(all.join(done?)))
    }

    async fn one(&self, ep: &SimEndpoint, known: &Known) -> Result<Done, BenchError> {
        let start = ep.now();
        let answer = self.reader.ids::<u32, _>(ep, &known.predicate).await.map_err(BenchError::index)?;
        let ns = ep.now() - start;
        let found = Digest::of(&answer.value);
        if found != known.answer {
            let expected = known.answer;
            return Err(BenchError::Index(format!("{found:?} was found instead of {expected:?}")));
        }
        Ok(Done { queries: 1, rows: found.rows, ns, cost: answer.cost })
    }
}

pub fn run(spec: &ElfSpec, offload: &OffloadSpec, watch: &dyn Watch) -> Result<Value, BenchError> {
    let (elf, known) = prepare(spec, offload)?;
    let cluster = Cluster::new(spec, offload, &elf)?;
    let cached = block_on(&cluster.threads[0], cluster.reader.cached(&cluster.threads[0]));
    let cached = cached.map_err(BenchError::index)?.value;
    let warm_up = cluster.answer(offload.warm_up, &known, watch)?;
    let before = cluster.fabric.usage();
    let done = cluster.answer(offload.queries, &known, watch)?;
    let shares = cluster.fabric.usage().since(&before);
    let each = |total: u64| total as f64 / done.queries as f64;
    Ok(json!({
        "method": "counted, times modelled",
        "rows": spec.data.rows(),
        "image_bytes": elf.bytes().len(),
        "cached_bytes": cached.bytes,
        "warm_up": warm_up.queries,
        "queries": done.queries,
        "result_rows": each(done.rows),
        "us": each(done.ns) / 1e3,
        "reads": each(done.cost.reads),
        "calls": each(done.cost.calls),
        "bytes": each(done.cost.bytes_read + done.cost.call_bytes),
        "round_trips": each(done.cost.round_trips),
        "cores_busy": shares.cores,
        "resources": { "limit": shares.limit() },
    }))
}
