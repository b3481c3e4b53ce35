//! Gain of each technique in a simulated cluster: SMART's ablation (§6.3), and the write combining measured
//! by DEX (Table 2).
//!
//! ```text
//! cargo run --release -p pando-smart --example ladder -- [RECORDS] [OPERATIONS] [SLOTS] [WORKLOAD]..
//! ```
//!
//! The ladder: 16 compute servers of 24 threads, 2 memory servers, dense integer keys, Zipf 0.99 scattered by
//! hash, caches that hold all inner nodes; published with 60 M records. `LOAD` inserts new keys among the
//! loaded ones. Combining (`combining`): 4 compute and 4 memory servers of 36 threads each, half lookups and
//! half updates, caches with the published share of the data. Each row has million operations per second in
//! the cluster's time, the factor over the previous step, and verbs per operation.

use pando_fabric::{Endpoint, VerbCounts};
use pando_pool::{Pool, PoolOptions};
use pando_rt::block_on;
use pando_sim::{Model, SimConfig, SimEndpoint, SimFabric};
use pando_smart::{CreateOptions, Smart, SmartConfig, Techniques};
use pando_workload::{
    Distribution, KeyCodec, KeySpace, Lane, OpKind, OpStream, Scatter, WorkloadSpec, loaded_key,
};

type Error = Box<dyn std::error::Error>;

/// Numbers of machines, threads and slots, and the cache size.
#[derive(Clone, Copy)]
struct Shape {
    compute_servers: usize,
    memory_servers: usize,
    threads: usize,
    slots: u32,
    cache_bytes: u64,
}

/// Published factors of the steps of `Techniques::STEPS`, by workload; the others are not published.
const PUBLISHED: [(&str, usize, f64); 5] =
    [("LOAD", 1, 1.5), ("ycsb-b", 2, 1.5), ("ycsb-a", 3, 3.0), ("ycsb-c", 4, 1.1), ("ycsb-a", 5, 1.1)];

/// Million operations per second, and verbs and bytes per operation.
#[derive(Clone, Copy, Default)]
struct Measured {
    speed: f64,
    reads: f64,
    writes: f64,
    atomics: f64,
    bytes: f64,
}

struct Cluster {
    fabric: SimFabric,
    indexes: Vec<Smart>,
    codec: KeyCodec,
    shape: Shape,
}

impl Cluster {
    fn load(records: u64, operations: u64, shape: Shape, techniques: Techniques) -> Result<Self, Error> {
        let codec = KeyCodec::new(KeySpace::Dense, 8, records)?;
        let region = ((records * 80 + operations * 200) / shape.memory_servers as u64 + (64 << 20)) & !4095;
        let config = SimConfig {
            regions: vec![region; shape.memory_servers],
            compute_servers: shape.compute_servers,
            seed: 7,
            model: Model::default(),
        };
        let fabric = SimFabric::new(&config)?;
        let ep = fabric.direct(1);
        let indexes = block_on(&ep, async {
            let pool = Pool::create(&ep, PoolOptions::embedded()).await?;
            let anchor = Smart::create(&ep, &pool, &CreateOptions::new(1, techniques)).await?;
            let mut config = SmartConfig::new(anchor, techniques);
            config.cache_bytes = shape.cache_bytes;
            let mut indexes = Vec::new();
            for _ in 0..shape.compute_servers {
                indexes.push(Smart::open(&ep, pool.clone(), config.clone()).await?);
            }
            let mut keys: Vec<_> = (0..records).map(|record| codec.encode_vec(loaded_key(record))).collect();
            keys.sort_unstable();
            indexes[0].bulk_load(&ep, keys.iter().map(|key| (key, [1; 8]))).await?;
            Ok::<_, Error>(indexes)
        })?;
        Ok(Self { fabric, indexes, codec, shape })
    }

    /// Measures with filled caches.
    fn measure(&self, workload: &str, operations: u64) -> Result<Measured, Error> {
        let Shape { compute_servers, threads, slots, .. } = self.shape;
        let mix = if workload == "LOAD" { "insert-only" } else { workload };
        let spec = WorkloadSpec {
            mix: mix.parse()?,
            distribution: Distribution::Zipf { theta: 0.99 },
            scatter: Scatter::Hash,
            ranks: None,
            keys: self.codec,
        };
        let all = (compute_servers * threads) as u64;
        let endpoints: Vec<_> =
            (0..all).map(|thread| self.fabric.thread(thread as usize / threads, thread)).collect();
        let streams: Result<Vec<_>, _> = (0..all * u64::from(slots))
            .map(|lane| OpStream::new(&spec, 7, Lane::new(lane, all * u64::from(slots))))
            .collect();
        let mut streams = streams?;
        let each = (operations / streams.len() as u64).max(1);
        let mut found = Measured::default();
        // The first round fills the caches.
        for _ in 0..2 {
            let sum = || endpoints.iter().map(|ep| ep.counters().snapshot()).sum::<VerbCounts>();
            let (before, began) = (sum(), self.fabric.now());
            let mut lent = streams.iter_mut();
            let done = self.fabric.run(&endpoints.iter().collect::<Vec<_>>(), slots, |thread, _| {
                let stream = lent.next().expect("one for each slot");
                work(&self.indexes[thread / threads], &endpoints[thread], self.codec, stream, each)
            });
            done.into_iter().flatten().collect::<Result<Vec<_>, _>>()?;
            let (verbs, ns) = (sum() - before, self.fabric.now() - began);
            let operations = (each * all * u64::from(slots)) as f64;
            let per = |count: u64| count as f64 / operations;
            found = Measured {
                speed: operations * 1e3 / ns as f64,
                reads: per(verbs.reads),
                writes: per(verbs.writes),
                atomics: per(verbs.atomics),
                bytes: per(verbs.bytes_total()),
            };
        }
        Ok(found)
    }
}

/// Runs one slot for `operations` operations.
async fn work(
    smart: &Smart,
    ep: &SimEndpoint,
    codec: KeyCodec,
    stream: &mut OpStream,
    operations: u64,
) -> Result<(), pando_smart::SmartError> {
    let (mut key, mut value) = ([0; 8], Vec::new());
    for n in 0..operations {
        let op = stream.next_op();
        codec.encode(op.key_number, &mut key);
        match op.kind {
            OpKind::Read => {
                value.clear();
                smart.get(ep, &key, &mut value).await?;
            }
            _ => drop(smart.put(ep, &key, &n.to_le_bytes()).await?),
        }
        ep.pace().await;
    }
    Ok(())
}

fn print_row(name: &str, workload: &str, factor: Option<(f64, Option<f64>)>, found: Measured) {
    let Measured { speed, reads, writes, atomics, bytes } = found;
    let factor = factor.map_or(String::new(), |(ours, published)| {
        let published = published.map_or(String::new(), |published| format!(" ({published})"));
        format!("{ours:.2}{published}")
    });
    println!(
        "| {name} | {workload} | {speed:.2} | {factor} | {reads:.2} | {writes:.3} | {atomics:.3} | {bytes:.0} |"
    );
}

fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default: u64| arguments.next().map_or(Ok(default), |text| text.parse());
    let (records, operations, slots) = (number(2_000_000)?, number(400_000)?, number(1)? as u32);
    println!("| step | workload | Mop/s | times as many (published) | READs | WRITEs | atomics | bytes |");
    println!("|---|---|---|---|---|---|---|---|");
    let ladder = Shape {
        compute_servers: 16,
        memory_servers: 2,
        threads: 24,
        slots,
        cache_bytes: records * 16 + (64 << 20),
    };
    let named: Vec<String> = arguments.collect();
    let is_wanted = |workload: &str| named.is_empty() || named.iter().any(|name| name == workload);
    for workload in ["LOAD", "ycsb-a", "ycsb-b", "ycsb-c"].into_iter().filter(|workload| is_wanted(workload))
    {
        let mut before = None;
        for (number, (name, techniques)) in Techniques::STEPS.into_iter().enumerate() {
            let cluster = Cluster::load(records, operations, ladder, techniques)?;
            let found = cluster.measure(workload, operations)?;
            let published = PUBLISHED.iter().find(|(of, step, _)| *of == workload && *step == number);
            let factor =
                before.map(|before: f64| (found.speed / before, published.map(|published| published.2)));
            print_row(name, workload, factor, found);
            before = Some(found.speed);
        }
    }
    let combining = Shape {
        compute_servers: 4,
        memory_servers: 4,
        threads: 36,
        slots,
        cache_bytes: (256 << 20) / (200_000_000 / records),
    };
    if !is_wanted("combining") {
        return Ok(());
    }
    for (name, techniques) in &Techniques::STEPS[3..] {
        let cluster = Cluster::load(records, operations, combining, *techniques)?;
        print_row(name, "4 x 36, write-intensive", None, cluster.measure("write-intensive", operations)?);
    }
    Ok(())
}
