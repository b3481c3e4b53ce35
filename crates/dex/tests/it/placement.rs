//! Placement by a bulk load: every memory server gets about the same amount, however small the index is.
//!
//! Every node lies on the memory server of its subtree.

use crate::common::{Cluster, INDEX};
use pando_dex::audit::audit;
use pando_dex::layout::fixed::FixedLayout;
use pando_dex::{BulkLoad, Ctx, Tree, TreeConfig};
use pando_fabric::{DynEndpoint, Fabric};
use pando_rt::block_on;

/// Number of nodes on each of `servers` after a load of `entries` with this M.
fn loaded(entries: u64, servers: usize, subtree_level: u8) -> Vec<u64> {
    let layout = FixedLayout::new(1024, 8, 8).expect("possible");
    let cluster = Cluster::new(layout, servers, &[], |config| config.bytes = 64 << 10);
    let ep = DynEndpoint::new(cluster.fabric.endpoint(3).expect("an endpoint"));
    let entries: Vec<_> = (0..entries).map(|n| (n.to_be_bytes(), n.to_be_bytes())).collect();
    let index = INDEX + 1;
    let root = block_on(&ep, Tree::create(&ep, &cluster.pool, layout, index, &[])).expect("room");
    let load = BulkLoad::new(layout, cluster.pool.clone(), index, subtree_level, &[]);
    let all = 0..entries.len() as u64;
    let slice = block_on(&ep, load.load_slice(&ep, &entries.as_slice(), all, 1, 0)).expect("room");
    block_on(&ep, load.finish(&ep, vec![slice], root)).expect("room");
    let cache = std::sync::Arc::new(
        pando_cache::Cache::new(&pando_cache::CacheConfig::new(64 << 10, 1024)).expect("a possible cache"),
    );
    let worker = cache.worker();
    let mut config = TreeConfig::new(index, root);
    config.subtree_level = subtree_level;
    let ctx = Ctx { ep: &ep, worker: &worker };
    let tree = block_on(&ep, Tree::open(ctx, cache.clone(), cluster.pool.clone(), layout, config))
        .expect("it is there");
    let report = block_on(&ep, audit(&ep, &[&tree])).expect("no error");
    assert_eq!((report.violations, report.strays), (Vec::new(), 0));
    cache.retire(&worker);
    let mut nodes = report.nodes_per_server;
    nodes.resize(servers, 0);
    nodes
}

#[test]
fn small_indexes_are_on_all_servers() {
    for (entries, servers) in [(2_000, 2), (20_000, 4), (100_000, 3), (300_000, 4)] {
        for subtree_level in [1, 2, 3] {
            let nodes = loaded(entries, servers, subtree_level);
            let most = *nodes.iter().max().expect("there are servers") as f64;
            let mean = nodes.iter().sum::<u64>() as f64 / servers as f64;
            assert!(most <= 1.5 * mean, "{entries} entries, M = {subtree_level}: {nodes:?}");
        }
    }
}

#[test]
fn one_server_has_everything() {
    assert_eq!(loaded(2_000, 1, 3).len(), 1);
}
