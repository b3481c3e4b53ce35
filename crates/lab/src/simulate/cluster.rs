//! The cluster of one run: memory servers, a pool, one index, a compute server for each partition.
//!
//! It is made and loaded outside of virtual time, by direct endpoints, and audited in the same way when nothing runs on it
//! any more. All compute servers are one attachment of the pool, as in a process that owns all partitions. Where there are
//! several processes each has a routing table of its own, right for its own keys, and moves only these.

use std::sync::Arc;

use pando_cache::{Cache, CacheWorker};
use pando_dex::audit::{audit, check_blocks};
use pando_dex::layout::Layout;
use pando_dex::{
    BulkLoad, Ctx, DexError, KeyRange, MemorySide, Routes, RoutingTable, Tree, TreeConfig, partition_of,
};
use pando_fabric::{Fabric, FabricError};
use pando_pool::{Pool, PoolError, PoolOptions};
use pando_rt::block_on;
use pando_sim::{ModelError, SimConfig, SimEndpoint, SimFabric};

use super::history::Book;
use super::keys::draw_value;
use super::setup::{PATIENCE_NS, Setup, Start, random_of};

/// Number of the index in its pool.
const INDEX: u32 = 7;
/// Bytes of the region of each memory server.
const REGION: u64 = 8 << 20;

/// Why a cluster could not be set up: a defect of the simulator, or of what makes and loads an index.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Fabric(#[from] FabricError),
    #[error(transparent)]
    Pool(#[from] PoolError),
    #[error(transparent)]
    Cache(#[from] pando_cache::CacheError),
    #[error(transparent)]
    Dex(#[from] DexError),
}

/// A simulated cluster with an index.
pub struct Cluster<L: Layout> {
    pub fabric: SimFabric,
    pub pool: Pool,
    /// By compute server; those at the end have no keys at first.
    pub trees: Vec<Tree<L>>,
    /// By process.
    pub routes: Vec<Arc<Routes>>,
    /// Where the keys of the second process begin, and so on; they stay there.
    pub between_processes: Vec<Vec<u8>>,
}

/// Keys at which compute servers' partitions begin: equal shares of the keys of the run.
fn boundaries(setup: &Setup, keys: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let servers = setup.compute_servers;
    (1..servers).map(|server| keys[keys.len() * server / servers].clone()).collect()
}

impl<L: Layout> Cluster<L> {
    /// Sets up the cluster of `setup`; notes in `book` what the index holds.
    pub fn new(setup: &Setup, layout: L, book: &mut Book) -> Result<Self, ClusterError> {
        let fabric = SimFabric::new(&SimConfig {
            regions: vec![REGION; setup.memory_servers],
            compute_servers: setup.all_compute_servers(),
            seed: setup.seed,
            model: setup.model(),
        })?;
        fabric.set_handler(Arc::new(MemorySide::default()));
        let ep = fabric.endpoint(setup.seed)?;
        let pool = block_on(&ep, Pool::create(&ep, PoolOptions::embedded()))?;
        let boundaries = boundaries(setup, &book.keys);
        let root = block_on(&ep, Tree::create(&ep, &pool, layout, INDEX, &boundaries))?;
        let entries = draw_entries(setup, book);
        if !entries.is_empty() {
            let random = random_of(setup.seed, "fill");
            let fill = 0.4 + 0.6 * (random.next() >> 40) as f64 / (1u64 << 24) as f64;
            let load =
                BulkLoad::new(layout, pool.clone(), INDEX, setup.subtree_level, &boundaries).leaf_fill(fill);
            let slice = block_on(&ep, load.load_slice(&ep, &entries[..], 0..entries.len() as u64, 1, 0))?;
            block_on(&ep, load.finish(&ep, vec![slice], root))?;
        }
        let mut trees = Vec::new();
        let spare = std::iter::repeat_n(KeyRange::none(), setup.moves.spare_servers);
        for range in KeyRange::from_boundaries(&boundaries).into_iter().chain(spare) {
            let cache = Arc::new(Cache::new(&setup.cache_config())?);
            let worker = cache.worker();
            let ctx = Ctx { ep: &ep, worker: &worker };
            let mut config = TreeConfig::new(INDEX, root);
            config.range = range;
            config.patience_ns = PATIENCE_NS;
            config.offloading = setup.offloading();
            config.read_ahead = setup.read_ahead;
            config.subtree_level = setup.subtree_level;
            let tree = block_on(&ep, Tree::open(ctx, cache, pool.clone(), layout, config))?;
            tree.cache().retire(&worker);
            trees.push(tree);
        }
        let is_between = |&at: &usize| setup.process_of(at) != setup.process_of(at + 1);
        let between_processes =
            (0..boundaries.len()).filter(is_between).map(|at| boundaries[at].clone()).collect();
        let table = RoutingTable::in_order(boundaries)?;
        let routes = (0..setup.processes).map(|_| Arc::new(Routes::new(table.clone()))).collect();
        Ok(Self { fabric, pool, trees, routes, between_processes })
    }

    /// The process whose compute servers have a key.
    pub fn process_of(&self, key: &[u8]) -> usize {
        partition_of(&self.between_processes, key)
    }

    /// A worker of each compute server's cache, for one thread.
    pub fn workers(&self) -> Vec<CacheWorker> {
        self.trees.iter().map(|tree| tree.cache().worker()).collect()
    }

    /// Everything that an audit says is wrong, leaks included.
    pub fn audit(&self, ep: &SimEndpoint) -> Result<Vec<String>, ClusterError> {
        let trees: Vec<_> = self.trees.iter().collect();
        let report = block_on(ep, audit(ep, &trees))?;
        let mut wrong = report.violations.clone();
        wrong.extend(block_on(ep, check_blocks(ep, &self.pool, &mut [report], &[]))?);
        Ok(wrong)
    }
}

/// The entries that the index begins with.
fn draw_entries(setup: &Setup, book: &mut Book) -> Vec<(Vec<u8>, Vec<u8>)> {
    let random = random_of(setup.seed, "entries");
    let step = match setup.start {
        Start::Empty => return Vec::new(),
        Start::Half => 2,
        Start::Full => 1,
    };
    let mut entries = Vec::new();
    for key in (0..book.keys.len()).step_by(step) {
        let bytes = draw_value(&random, setup.sizes, setup.long_share, book.next_operation());
        book.before[key] = Some(book.value(key as u32, &bytes));
        entries.push((book.keys[key].clone(), bytes));
    }
    entries
}
