//! Pools on the fabric of this process, and the account of their blocks.

use std::collections::BTreeSet;
use std::sync::Arc;

use pando_elf::{BuildOptions, CodeTable, Elf, LayoutKind, Predicate};
use pando_elf_remote::{ListCacheOptions, ListPolicy, MemorySide, Offloading, Publisher, Reader};
use pando_fabric::{DynEndpoint, Fabric, OffloadPolicy};
use pando_fabric_local::{LocalConfig, LocalFabric};
use pando_pool::{Pool, PoolOptions};
use pando_rt::block_on;

/// A pool on `servers` memory servers of `bytes` bytes that search, and an endpoint.
pub fn pool(servers: usize, bytes: u64) -> (DynEndpoint, Pool) {
    let config = LocalConfig { server_sizes: vec![bytes; servers], huge_pages: false };
    let fabric = LocalFabric::new(config).expect("memory");
    fabric.set_handler(Arc::new(MemorySide::default()), 1).expect("a thread");
    let ep = DynEndpoint::new(fabric.endpoint(1).expect("an endpoint"));
    let pool = block_on(&ep, Pool::create(&ep, PoolOptions::embedded())).expect("a pool");
    (ep, pool)
}

/// Offloading by one of the policies. Many decisions are reversed, so that both ways are taken.
pub fn offloading(number: u64) -> Offloading {
    let policies = [OffloadPolicy::Never, OffloadPolicy::Always, OffloadPolicy::CostAware];
    let policy = policies[number as usize % policies.len()];
    Offloading { contrary: 0.3, ..Offloading::with_policy(policy) }
}

/// A small cache of lists by one of the policies, or none.
pub fn list_cache(number: u64) -> Option<ListCacheOptions> {
    use ListPolicy::{Lfu, Lla, Lru, Naive, TwoQueue};
    let policy = *[Naive, Lru, Lfu, TwoQueue, Lla].get(number as usize % 10)?;
    Some(ListCacheOptions { policy, bytes: 1_000 })
}

pub fn build(table: &CodeTable, order: &[usize], layout: LayoutKind, options: &BuildOptions) -> Elf {
    Elf::build(table, order, layout, options).expect("a small table")
}

/// Checks a predicate with all kinds of results.
pub fn check(ep: &DynEndpoint, reader: &Reader, predicate: &Predicate, expected: &[u64]) {
    block_on(ep, async {
        let count = reader.count(ep, predicate).await.expect("no error");
        assert_eq!(count.value, expected.len() as u64, "{predicate:?}");
        let mut ids = reader.ids::<u32, DynEndpoint>(ep, predicate).await.expect("no error").value;
        ids.sort_unstable();
        assert!(ids.iter().copied().map(u64::from).eq(expected.iter().copied()), "{predicate:?}: {ids:?}");
        let bitmap = reader.bitmap(ep, predicate).await.expect("no error").value;
        assert!(expected.iter().all(|&row| bitmap.contains(row)) && bitmap.count() == count.value);
    });
}

/// Addresses of all allocated blocks.
pub fn allocated(ep: &DynEndpoint, pool: &Pool) -> BTreeSet<u64> {
    let mut all = BTreeSet::new();
    let visited = pool.visit_allocated(ep, |addr, _| {
        all.insert(addr.raw());
    });
    block_on(ep, visited).expect("no error");
    all
}

/// Checks that the image's blocks are allocated, and besides them only `others` and what was given up.
pub fn account(ep: &DynEndpoint, pool: &Pool, publishers: &[&Publisher], others: &BTreeSet<u64>) {
    let image = block_on(ep, publishers[0].blocks(ep)).expect("no error");
    let image: BTreeSet<u64> = image.iter().map(|(addr, _)| addr.raw()).collect();
    let given_up = publishers.iter().flat_map(|publisher| publisher.doubtful());
    let given_up: BTreeSet<u64> = given_up.map(|(addr, _)| addr.raw()).collect();
    let all = allocated(ep, pool);
    assert!(image.is_subset(&all), "blocks of the image are free");
    let lost: Vec<_> = all.iter().filter(|addr| !image.contains(addr) && !others.contains(addr)).collect();
    assert!(lost.iter().all(|addr| given_up.contains(addr)), "{lost:x?} are lost");
}
