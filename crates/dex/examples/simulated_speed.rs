//! Speed of simulation: index operations per second of real time, on one core.
//!
//! ```text
//! cargo run --release -p pando-dex --example simulated_speed -- \
//!     [KEYS] [OPERATIONS] [CACHE_SHARE] [THREADS] [WORD]..
//! ```
//!
//! The set-up is that of the DEX paper (§8.1): 4 compute servers of 36 threads with one slot each, 4 memory
//! servers, 1 KiB nodes half full, Zipf 0.99. CACHE_SHARE is the size of all caches relative to the nodes. A
//! WORD is the name of a workload, `fifo` for one queue in place of the cooling map, or `eager` for admission
//! of every leaf. The program also prints the throughput of the cluster in virtual time.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use pando_cache::{Admission, Cache, CacheConfig, CacheWorker};
use pando_dex::layout::fixed::FixedLayout;
use pando_dex::{BulkLoad, Ctx, KeyRange, SortedSource, Tree, TreeConfig};
use pando_fabric::{Endpoint, Fabric};
use pando_pool::{Pool, PoolOptions};
use pando_rt::block_on;
use pando_sim::{Model, SimConfig, SimEndpoint, SimFabric};
use pando_workload::{
    Distribution, KeyCodec, KeySpace, Lane, OpKind, OpStream, Scatter, WorkloadSpec, loaded_key,
};

const COMPUTE_SERVERS: usize = 4;
const MEMORY_SERVERS: usize = 4;
const NODE_SIZE: usize = 1024;
const FILL: f64 = 0.5;
const INDEX: u32 = 1;
/// Low, so that even few keys are spread over all memory servers.
const SUBTREE_LEVEL: u8 = 2;

type Error = Box<dyn std::error::Error>;

struct Records(KeyCodec);

impl SortedSource for Records {
    fn len(&self) -> u64 {
        self.0.records()
    }

    fn visit(
        &self,
        range: Range<u64>,
        each: &mut dyn FnMut(&[u8], &[u8]) -> pando_dex::Result<()>,
    ) -> pando_dex::Result<()> {
        let mut key = [0; 8];
        for record in range {
            self.0.encode(loaded_key(record), &mut key);
            each(&key, &record.to_le_bytes())?;
        }
        Ok(())
    }
}

struct Cluster {
    fabric: SimFabric,
    trees: Vec<Tree<FixedLayout>>,
    codec: KeyCodec,
}

fn load(keys: u64, cache_share: f64, fifo: bool, eager: bool) -> Result<Cluster, Error> {
    let codec = KeyCodec::new(KeySpace::Dense, 8, keys)?;
    let layout = FixedLayout::new(NODE_SIZE, 8, 8)?;
    let per_leaf = 29;
    let nodes_bytes = (keys / per_leaf + 1) * NODE_SIZE as u64 * 11 / 10;
    let region = (nodes_bytes * 3 / 2 / MEMORY_SERVERS as u64 + (64 << 20)).next_multiple_of(4096);
    let config = SimConfig {
        regions: vec![region; MEMORY_SERVERS],
        compute_servers: COMPUTE_SERVERS,
        seed: 7,
        model: Model::default(),
    };
    let fabric = SimFabric::new(&config)?;
    let ep = fabric.endpoint(1)?;
    let boundaries: Vec<Vec<u8>> = (1..COMPUTE_SERVERS as u64)
        .map(|i| codec.encode_vec(loaded_key(keys * i / COMPUTE_SERVERS as u64)))
        .collect();
    let pool = block_on(&ep, Pool::create(&ep, PoolOptions::embedded()))?;
    let root = block_on(&ep, Tree::create(&ep, &pool, layout, INDEX, &boundaries))?;
    let load = BulkLoad::new(layout, pool.clone(), INDEX, SUBTREE_LEVEL, &boundaries).leaf_fill(FILL);
    let slice = block_on(&ep, load.load_slice(&ep, &Records(codec), 0..keys, 2, 0))?;
    block_on(&ep, load.finish(&ep, vec![slice], root))?;
    let mut trees = Vec::new();
    for range in KeyRange::from_boundaries(&boundaries) {
        let bytes = (nodes_bytes as f64 * cache_share / COMPUTE_SERVERS as f64) as u64;
        let mut config = CacheConfig::new(bytes, NODE_SIZE);
        config.fifo = fifo;
        if eager {
            config.admission = Admission::lazy(1.0);
        }
        let cache = Arc::new(Cache::new(&config)?);
        let worker = cache.worker();
        let mut config = TreeConfig::new(INDEX, root);
        config.range = range;
        config.subtree_level = SUBTREE_LEVEL;
        let ctx = Ctx { ep: &ep, worker: &worker };
        trees.push(block_on(&ep, Tree::open(ctx, cache, pool.clone(), layout, config))?);
        if let Some(tree) = trees.last() {
            tree.cache().retire(&worker);
        }
    }
    Ok(Cluster { fabric, trees, codec })
}

/// Processor time of this thread, if the system reports it. Other threads may use the core too.
fn processor_seconds() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let ns: f64 = text.split_whitespace().next()?.parse().ok()?;
    Some(ns / 1e9)
}

/// Runs `operations` operations of one thread, on keys of its compute server.
async fn work(
    cluster: &Cluster,
    ctx: Ctx<'_, SimEndpoint>,
    server: usize,
    stream: &mut OpStream,
    operations: u64,
) -> pando_dex::Result<()> {
    let tree = &cluster.trees[server];
    let (mut key, mut value) = ([0; 8], Vec::new());
    for n in 0..operations {
        let op = stream.next_op();
        cluster.codec.encode(op.key_number, &mut key);
        match op.kind {
            OpKind::Read => {
                value.clear();
                tree.get(ctx, &key, &mut value).await?;
            }
            _ => {
                tree.put(ctx, &key, &n.to_le_bytes()).await?;
            }
        }
        ctx.ep.pace().await;
    }
    Ok(())
}

fn measure(cluster: &Cluster, workload: &str, operations: u64, server_threads: usize) -> Result<(), Error> {
    let spec = WorkloadSpec {
        mix: workload.parse()?,
        distribution: Distribution::Zipf { theta: 0.99 },
        scatter: Scatter::Hash,
        ranks: None,
        keys: cluster.codec,
    };
    let threads: Vec<_> = (0..COMPUTE_SERVERS * server_threads)
        .map(|thread| cluster.fabric.thread(thread / server_threads, thread as u64))
        .collect();
    let endpoints: Vec<_> = threads.iter().collect();
    let workers: Vec<_> =
        (0..endpoints.len()).map(|thread| cluster.trees[thread / server_threads].cache().worker()).collect();
    let streams: Result<Vec<_>, _> = (0..endpoints.len())
        .map(|thread| {
            let owned = cluster.codec.partition((thread / server_threads) as u64, COMPUTE_SERVERS as u64);
            OpStream::new(
                &spec,
                7,
                Lane::new((thread % server_threads) as u64, server_threads as u64).owning(owned),
            )
        })
        .collect();
    let mut streams = streams?;
    // The first phase fills the caches.
    for phase in ["warm-up", workload] {
        let per_thread = operations / endpoints.len() as u64;
        let before = endpoints.iter().map(|ep| ep.counters().snapshot()).sum::<pando_fabric::VerbCounts>();
        let restarts_before = restarts(&workers);
        let (began, virtual_began) = (Instant::now(), cluster.fabric.now());
        let processor_began = processor_seconds();
        let mut lent = streams.iter_mut();
        let outcomes = cluster.fabric.run(&endpoints, 1, |thread, _| {
            let stream = lent.next().expect("one for each thread");
            let ctx = Ctx { ep: endpoints[thread], worker: &workers[thread] };
            work(cluster, ctx, thread / server_threads, stream, per_thread)
        });
        outcomes.into_iter().flatten().collect::<Result<Vec<_>, _>>()?;
        let operations = per_thread * endpoints.len() as u64;
        let elapsed = began.elapsed().as_secs_f64();
        let processor = processor_seconds().zip(processor_began).map(|(now, began)| now - began);
        let (real, virtual_ns) = (processor.unwrap_or(elapsed), cluster.fabric.now() - virtual_began);
        let verbs =
            endpoints.iter().map(|ep| ep.counters().snapshot()).sum::<pando_fabric::VerbCounts>() - before;
        println!(
            "{phase}: {operations} operations in {real:.2} s of a core ({elapsed:.2} s passed), {:.3} million/s; in the \
             cluster {:.2} million/s, {:.3} READs, {:.3} WRITEs, {:.3} restarts each",
            operations as f64 / real / 1e6,
            operations as f64 * 1e3 / virtual_ns as f64,
            verbs.reads as f64 / operations as f64,
            verbs.writes as f64 / operations as f64,
            (restarts(&workers) - restarts_before) as f64 / operations as f64,
        );
    }
    for (worker, thread) in workers.iter().zip(0..) {
        cluster.trees[thread / server_threads].cache().retire(worker);
    }
    Ok(())
}

fn restarts(workers: &[CacheWorker]) -> u64 {
    workers.iter().map(|worker| worker.counters().snapshot().restarts).sum()
}

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = |i: usize, default: &str| arguments.get(i).map_or(default, |text| text).to_owned();
    let (keys, operations) = (argument(0, "5000000").parse()?, argument(1, "5000000").parse()?);
    let (cache_share, server_threads) = (argument(2, "0.146").parse()?, argument(3, "36").parse()?);
    let is_switch = |word: &&str| ["fifo", "eager"].contains(word);
    let (switches, mut workloads): (Vec<&str>, Vec<&str>) =
        arguments.iter().skip(4).map(String::as_str).partition(is_switch);
    if workloads.is_empty() {
        workloads = vec!["read-only", "write-intensive"];
    }
    let began = Instant::now();
    let cluster = load(keys, cache_share, switches.contains(&"fifo"), switches.contains(&"eager"))?;
    println!("{keys} keys loaded in {:.1} s", began.elapsed().as_secs_f64());
    workloads.iter().try_for_each(|workload| measure(&cluster, workload, operations, server_threads))
}
