//! The published ablation on the simulated cluster of the Sherman paper (§5.1, Figures 5 and 6): FG, FG+ and
//! each technique.
//!
//! ```text
//! cargo run --release -p pando-sherman --example ladder -- [RECORDS] [MILLISECONDS] [MODEL.toml]
//! ```
//!
//! 8 machines, each a memory server and a compute server of 22 threads; nodes of 1 KiB, 80% full. A third of
//! the stored keys are new. Popularity is that of a billion records: many ranks share one record, and popular
//! records keep their share. Every index cache holds all nodes above the leaves. Operations that end within a
//! window of virtual time are counted.

use std::error::Error;

use pando_fabric::{Endpoint, Nanos, VerbCounts};
use pando_pool::{Pool, PoolOptions};
use pando_rt::block_on;
use pando_sherman::{Config, FILL, Options, Shape, Sherman};
use pando_sim::{Faults, Model, SimConfig, SimEndpoint, SimFabric};
use pando_workload::{Rng, Zipf};

const SERVERS: u64 = 8;
const THREADS: u64 = 22;
const RANKS: u64 = 1_500_000_000;
const CACHE: u64 = 256 << 20;
const WARM_UP: Nanos = 2_000_000;
const INDEX: u32 = 1;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// A workload.
#[derive(Clone, Copy)]
struct Load {
    name: &'static str,
    /// Percentage of writes.
    writes: u64,
    theta: f64,
    /// Published gain of all techniques over FG+.
    published: &'static str,
}

const LOADS: [Load; 4] = [
    Load { name: "write-only, Zipf 0.99", writes: 100, theta: 0.99, published: "24.7" },
    Load {
        name: "write-intensive, Zipf 0.99",
        writes: 50,
        theta: 0.99,
        published: "23.6: steps of 3.37, 3.06, 2.22, 1.03",
    },
    Load { name: "write-only, uniform", writes: 100, theta: 0.0, published: "1.24" },
    Load { name: "write-intensive, uniform", writes: 50, theta: 0.0, published: "1.15" },
];

/// Result of one run.
struct Outcome {
    /// Million operations per second.
    throughput: f64,
    latencies: Vec<Nanos>,
    verbs: VerbCounts,
}

impl Outcome {
    fn percentile(&self, part: f64) -> f64 {
        let at = (self.latencies.len() as f64 * part) as usize;
        self.latencies.get(at).map_or(0.0, |&ns| ns as f64 / 1e3)
    }

    fn per_operation(&self, count: u64) -> f64 {
        count as f64 / self.latencies.len() as f64
    }
}

struct Cluster {
    fabric: SimFabric,
    trees: Vec<Sherman>,
    records: u64,
}

fn key(k: u64) -> [u8; 8] {
    k.to_be_bytes()
}

impl Cluster {
    fn new(options: Options, records: u64, model: &Model) -> Result<Self> {
        let region = (records * 48 / SERVERS + (32 << 20)).next_multiple_of(4096);
        let config = SimConfig {
            regions: vec![region; SERVERS as usize],
            compute_servers: SERVERS as usize,
            seed: 1,
            model: model.clone(),
        };
        let fabric = SimFabric::new(&config)?;
        let ep = fabric.direct(1);
        let pool = block_on(&ep, Pool::create(&ep, PoolOptions::embedded()))?;
        let shape = Shape::new(8, 8, 1024, &options)?;
        let config = Config::new(INDEX, options);
        let at = block_on(&ep, Sherman::create(&ep, &pool, &shape, &config))?;
        let open = |_| block_on(&ep, Sherman::open(&ep, pool.clone(), at, shape, config.clone()));
        let trees = (0..SERVERS).map(open).collect::<std::result::Result<Vec<_>, _>>()?;
        for (at, bytes) in trees[0].lock_tables() {
            fabric.set_on_chip(at, bytes)?;
        }
        // The last of every three consecutive keys is absent.
        let loaded = (0..records).map(|n| key(n / 2 * 3 + n % 2));
        block_on(&ep, trees[0].load(&ep, FILL, loaded.map(|key| (key, [0; 8]))))?;
        for tree in trees.iter().filter(|_| options.index_cache.is_some()) {
            for n in (0..records).step_by(1_000) {
                block_on(&ep, tree.get(&ep, &key(n / 2 * 3), &mut Vec::new()))?;
            }
        }
        Ok(Self { fabric, trees, records })
    }

    fn run(&self, load: Load, length: Nanos) -> Result<Outcome> {
        let zipf = Zipf::new(RANKS, load.theta)?;
        let thread = |n| self.fabric.thread((n % SERVERS) as usize, 1_000 + n);
        let threads: Vec<_> = (0..SERVERS * THREADS).map(thread).collect();
        let begin = self.fabric.now() + WARM_UP;
        let outputs = self.fabric.run(&threads.iter().collect::<Vec<_>>(), 1, |thread, _| {
            let tree = &self.trees[thread % SERVERS as usize];
            self.work(tree, &threads[thread], load, &zipf, begin..begin + length)
        });
        let mut latencies = Vec::new();
        let mut verbs = VerbCounts::default();
        for output in outputs.into_iter().flatten() {
            let (some, counts) = output?;
            latencies.extend(some);
            verbs = [verbs, counts].into_iter().sum();
        }
        latencies.sort_unstable();
        let throughput = latencies.len() as f64 * 1e3 / length as f64;
        Ok(Outcome { throughput, latencies, verbs })
    }

    /// Runs one thread; returns the latencies of operations that ended within the window, and the verbs
    /// meanwhile.
    async fn work(
        &self,
        tree: &Sherman,
        ep: &SimEndpoint,
        load: Load,
        zipf: &Zipf,
        window: std::ops::Range<Nanos>,
    ) -> Result<(Vec<Nanos>, VerbCounts)> {
        let mut rng = Rng::new(ep.random());
        let (mut latencies, mut before, mut out) = (Vec::new(), None, Vec::new());
        while ep.now() < window.end {
            let rank = zipf.draw(&mut rng);
            let k = key(rank.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (self.records / 2 * 3));
            let begin = ep.now();
            if begin >= window.start && before.is_none() {
                before = Some(ep.counters().snapshot());
            }
            match ep.random() % 100 < load.writes {
                true => drop(tree.put(ep, &k, &begin.to_le_bytes()).await?),
                false => {
                    out.clear();
                    tree.get(ep, &k, &mut out).await?;
                }
            }
            if window.contains(&ep.now()) {
                latencies.push(ep.now() - begin);
            }
            ep.pace().await;
        }
        let counts = before.map(|before| ep.counters().snapshot() - before).unwrap_or_default();
        Ok((latencies, counts))
    }
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let records: u64 = arguments.next().map_or(Ok(2_000_000), |text| text.parse())?;
    let milliseconds: u64 = arguments.next().map_or(Ok(20), |text| text.parse())?;
    let model = match arguments.next() {
        Some(file) => Model::from_toml(&std::fs::read_to_string(file)?)?,
        None => Model { faults: Faults { torn_share: 0.0, ..Faults::default() }, ..Model::default() },
    };
    let mut steps = vec![("FG", Options::fg())];
    steps.extend(Options::ladder(CACHE));
    for load in LOADS {
        println!("{} (published: {})", load.name, load.published);
        println!(
            "step            M/s   x step   x FG+  p50 us  p90 us  p99 us   READs WRITEs atomics  bytes"
        );
        let (mut last, mut plus) = (f64::NAN, f64::NAN);
        for &(name, options) in &steps {
            let outcome = Cluster::new(options, records, &model)?.run(load, milliseconds * 1_000_000)?;
            let Outcome { throughput, verbs, .. } = &outcome;
            if name == "FG+" {
                plus = *throughput;
            }
            let [p50, p90, p99] = [0.5, 0.9, 0.99].map(|part| outcome.percentile(part));
            let [reads, writes, atomics, bytes] =
                [verbs.reads, verbs.writes, verbs.atomics, verbs.bytes_read + verbs.bytes_written]
                    .map(|count| outcome.per_operation(count));
            println!(
                "{name:<13} {throughput:6.2}  {:7.2} {:7.2} {p50:7.1} {p90:7.1} {p99:7.0} {reads:7.2} {writes:6.2} {atomics:7.2} {bytes:6.0}",
                throughput / last,
                throughput / plus,
            );
            last = *throughput;
        }
    }
    Ok(())
}
