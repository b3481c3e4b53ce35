//! The cost that the facade adds to a cached lookup: the same random keys through `Tree::get` and through
//! sessions, alternately.
//!
//! `cargo run --release -p pando --example facade_cost [keys [lookups]]`

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use pando::{BulkOptions, Cluster, Config, IndexOptions};
use pando_cache::{Cache, CacheConfig};
use pando_dex::layout::fixed::FixedLayout;
use pando_dex::{BulkLoad, Ctx, Tree, TreeConfig};
use pando_fabric::Fabric;
use pando_fabric_local::{LocalConfig, LocalFabric};
use pando_pool::{Pool, PoolOptions};
use pando_rt::block_on;

const ROUNDS: usize = 5;

/// Nanoseconds per lookup of keys in a scattered order.
fn time(keys: u64, lookups: u64, mut lookup: impl FnMut(u64) -> bool) -> f64 {
    let start = Instant::now();
    let mut state = 1_u64;
    for _ in 0..lookups {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        assert!(black_box(lookup((state >> 20) % keys)));
    }
    start.elapsed().as_nanos() as f64 / lookups as f64
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let number = |at, default| std::env::args().nth(at).map_or(Ok(default), |number| number.parse());
    let (keys, lookups) = (number(1, 100_000)?, number(2, 4_000_000)?);
    let entries: Vec<_> = (0..keys).map(|n: u64| (n.to_be_bytes(), n.to_be_bytes())).collect();
    let memory = 64 << 20 | (64 * keys).next_power_of_two();

    let fabric = LocalFabric::new(LocalConfig { server_sizes: vec![memory], huge_pages: true })?;
    let ep = fabric.endpoint(1)?;
    let pool = block_on(&ep, Pool::create(&ep, PoolOptions::embedded()))?;
    let layout = FixedLayout::new(1024, 8, 8)?;
    let root = block_on(&ep, Tree::create(&ep, &pool, layout, 1, &[]))?;
    let load = BulkLoad::new(layout, pool.clone(), 1, 3, &[]);
    let slice = block_on(&ep, load.load_slice(&ep, &entries.as_slice(), 0..keys, 1, 0))?;
    block_on(&ep, load.finish(&ep, vec![slice], root))?;
    let cache = Arc::new(Cache::new(&CacheConfig::new(memory, 1024))?);
    let worker = cache.worker();
    let ctx = Ctx { ep: &ep, worker: &worker };
    let tree = block_on(&ep, Tree::open(ctx, cache.clone(), pool, layout, TreeConfig::new(1, root)))?;

    let cluster = Cluster::open(Config::embedded().memory(memory).cache(memory))?;
    let index = cluster.create_index("n", &IndexOptions::integers())?;
    index.bulk_load(&entries[..], &BulkOptions::default())?;
    let session = index.session()?;
    let integers = index.integers()?;

    println!("ns per lookup:   tree    session    integers    in a slot");
    for _ in 0..=ROUNDS {
        let mut value = Vec::with_capacity(8);
        let direct = time(keys, lookups, |n| {
            value.clear();
            block_on(&ep, tree.get(ctx, &n.to_be_bytes(), &mut value)).expect("cached")
        });
        let through = time(keys, lookups, |n| {
            value.clear();
            session.get_into(&n.to_be_bytes(), &mut value).expect("cached")
        });
        let integer = time(keys, lookups, |n| integers.get(n).expect("cached").is_some());
        let slot = session.in_flight(1, |_, session| async move {
            let mut value = Vec::with_capacity(8);
            let start = Instant::now();
            let mut state = 1_u64;
            for _ in 0..lookups {
                state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                value.clear();
                let key = ((state >> 20) % keys).to_be_bytes();
                assert!(black_box(session.get_into(&key, &mut value).await.expect("cached")));
            }
            start.elapsed().as_nanos() as f64 / lookups as f64
        })?;
        println!("               {direct:6.1}     {through:6.1}      {integer:6.1}       {:6.1}", slot[0]);
    }
    Ok(())
}
