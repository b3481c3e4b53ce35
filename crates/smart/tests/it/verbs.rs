//! Verbs per operation: exact for single operations, and compared with DEX's measurement of SMART (DEX Table
//! 2: 200 M records of 8 B/8 B, Zipf 0.99, four compute servers with 256 MiB of cache each), in a cell a
//! hundredth of that size.

use std::ops::Bound;

use pando_fabric::{Endpoint, Fabric, VerbCounts};
use pando_fabric_local::{LocalConfig, LocalEndpoint, LocalFabric};
use pando_pool::{Pool, PoolOptions};
use pando_rt::block_on;
use pando_smart::{CreateOptions, Partition, Smart, SmartConfig, Techniques};
use pando_workload::{Rng, Scatter, Zipf};

struct Cell {
    ep: LocalEndpoint,
    smart: Smart,
}

impl Cell {
    /// An index with `records` dense keys, of which this compute server owns one of `parts`, or all
    /// unpartitioned.
    fn new(records: u64, techniques: Techniques, cache_bytes: u64, parts: Option<u64>) -> Self {
        let fabric = LocalFabric::new(LocalConfig {
            server_sizes: vec![(64 << 20) + records * 50; 2],
            huge_pages: false,
        });
        let ep = fabric.expect("regions").endpoint(1).expect("an endpoint");
        let smart = block_on(&ep, async {
            let pool = Pool::create(&ep, PoolOptions::embedded()).await.expect("a pool");
            let options = CreateOptions::new(crate::common::INDEX, techniques);
            let anchor = Smart::create(&ep, &pool, &options).await.expect("created");
            let mut config = SmartConfig::new(anchor, techniques);
            config.cache_bytes = cache_bytes;
            config.partition = parts.map(|parts| Partition {
                low: Bound::Unbounded,
                high: Bound::Excluded((records / parts).to_be_bytes().to_vec()),
            });
            let smart = Smart::open(&ep, pool, config).await.expect("opened");
            let entries = (0..records).map(|k| (k.to_be_bytes(), k.to_le_bytes()));
            assert_eq!(smart.bulk_load(&ep, entries).await.expect("loaded"), records);
            smart
        });
        Self { ep, smart }
    }

    fn cost(&self, operation: impl Future<Output = ()>) -> VerbCounts {
        let before = self.ep.counters().snapshot();
        block_on(&self.ep, operation);
        self.ep.counters().snapshot() - before
    }

    async fn get(&self, k: u64) {
        let mut out = Vec::new();
        assert!(self.smart.get(&self.ep, &k.to_be_bytes(), &mut out).await.expect("no error"));
        assert_eq!(out.len(), 8);
    }
}

fn verbs(counts: VerbCounts) -> (u64, u64, u64) {
    (counts.reads, counts.writes, counts.atomics)
}

#[test]
fn each_technique_saves_its_verbs() {
    let mut found = Vec::new();
    for (name, techniques) in Techniques::STEPS {
        let cell = Cell::new(1000, techniques, 1 << 20, None);
        block_on(&cell.ep, cell.get(7));
        let get = cell.cost(cell.get(7));
        let update = cell.cost(async {
            assert!(cell.smart.update(&cell.ep, &7u64.to_be_bytes(), &[1; 8]).await.expect("no error"));
        });
        let insert = cell.cost(async {
            assert!(cell.smart.insert(&cell.ep, &1000u64.to_be_bytes(), &[1; 8]).await.expect("no error"));
        });
        let remove = cell.cost(async {
            assert!(cell.smart.remove(&cell.ep, &7u64.to_be_bytes()).await.expect("no error"));
        });
        found.push((name, [get, update, insert, remove].map(verbs)));
        assert_eq!(get.bytes_read, 48, "a lookup READs the leaf");
    }
    let expected = [
        ("art", [(1, 0, 0), (3, 3, 2), (3, 3, 1), (3, 2, 2)]),
        ("+lock-free nodes", [(1, 0, 0), (1, 1, 2), (1, 1, 1), (1, 0, 2)]),
        ("+in-place leaves", [(1, 0, 0), (3, 2, 1), (1, 1, 1), (3, 2, 2)]),
        ("+rear locks", [(1, 0, 0), (1, 1, 1), (1, 1, 1), (1, 0, 2)]),
        ("+read delegation", [(1, 0, 0), (1, 1, 1), (1, 1, 1), (1, 0, 2)]),
        ("+write combining", [(1, 0, 0), (1, 1, 1), (1, 1, 1), (1, 0, 2)]),
    ];
    assert_eq!(found, expected, "READs, WRITEs and atomics of a lookup, an update, an insert and a removal");
}

#[test]
fn a_partition_needs_no_remote_synchronisation() {
    let cell = Cell::new(1000, Techniques::SMART, 1 << 20, Some(1));
    block_on(&cell.ep, cell.get(7));
    let update = cell.cost(async {
        assert!(cell.smart.update(&cell.ep, &7u64.to_be_bytes(), &[1; 8]).await.expect("no error"));
    });
    assert_eq!(verbs(update), (1, 1, 0));
}

/// Records of the cell; the larger it is, the less of Zipf's weight misses the cache.
fn records() -> u64 {
    std::env::var("PANDO_SMART_RECORDS").ok().and_then(|text| text.parse().ok()).unwrap_or(2_000_000)
}

/// READs and bytes of lookups with a full cache.
fn lookups(parts: Option<u64>) -> (f64, f64) {
    let records = records();
    let (warmup, lookups) = (records / 7, 300_000);
    let cell = Cell::new(records, Techniques::SMART, (256 << 20) / (200_000_000 / records), parts);
    let (zipf, mut rng) = (Zipf::new(records, 0.99).expect("a distribution"), Rng::new(1));
    let scatter = Scatter::Hash.over(records);
    let own = records / parts.unwrap_or(1);
    let mut draw = || {
        loop {
            let key = scatter.position(zipf.draw(&mut rng));
            if key < own {
                return key;
            }
        }
    };
    (0..warmup).for_each(|_| block_on(&cell.ep, cell.get(draw())));
    let counts = cell.cost(async {
        for _ in 0..lookups {
            cell.get(draw()).await;
        }
    });
    (counts.reads as f64 / lookups as f64, counts.bytes_total() as f64 / lookups as f64)
}

#[test]
fn lookups_cost_what_was_published() {
    let is_near = |found: f64, published: f64| (found / published - 1.0).abs() < 0.1;
    let (reads, bytes) = lookups(None);
    let (own_reads, own_bytes) = lookups(Some(4));
    eprintln!("SMART {reads:.3} READs, {bytes:.0} B; P-SMART {own_reads:.3} READs, {own_bytes:.0} B");
    assert!(is_near(reads, 1.44), "SMART: {reads:.3} READs, {bytes:.0} B");
    assert!(is_near(own_reads, 1.15), "P-SMART: {own_reads:.3} READs, {own_bytes:.0} B");
    // Each READ besides that of the leaf is one of a node with 256 slots.
    assert!((bytes - 48.0 - (reads - 1.0) * 2080.0).abs() < 5.0, "{reads:.3} READs, {bytes:.0} B");
}
