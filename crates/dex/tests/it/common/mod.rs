//! A small cluster in this process for tests of the tree.
//!
//! A [`Cluster`] has memory servers, a pool, and one index with a compute server per partition. A [`Client`]
//! is one thread's access to it.
pub mod draw;
pub mod load;
pub mod mortal;
pub mod moving;
pub mod observed;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use pando_cache::{Cache, CacheConfig, CacheWorker};
use pando_dex::audit::{audit, check_blocks};
use pando_dex::layout::Layout;
use pando_dex::layout::fixed::FixedLayout;
use pando_dex::{
    Answers, BulkLoad, Ctx, DexError, KeyRange, ScanRange, Swapped, Tree, TreeConfig, partition_of,
};
use pando_fabric::{DynEndpoint, Endpoint, Fabric};
use pando_fabric_local::{LocalConfig, LocalFabric};
use pando_pool::{Pool, PoolOptions};
use pando_rt::block_on;

use self::observed::Observed;

pub const INDEX: u32 = 7;

/// Keys and values in scan order.
pub type Entries = Vec<(Vec<u8>, Vec<u8>)>;

/// Memory servers, a pool, and one index with a compute server per partition.
pub struct Cluster<L: Layout, F: Fabric = LocalFabric> {
    pub fabric: F,
    pub pool: Pool,
    pub trees: Vec<Tree<L>>,
    pub boundaries: Vec<Vec<u8>>,
}

pub fn fixed_tiny() -> FixedLayout {
    FixedLayout::new(256, 8, 8).unwrap().with_fanout_limit(4)
}

fn local(servers: usize, bytes: u64) -> LocalFabric {
    LocalFabric::new(LocalConfig { server_sizes: vec![bytes; servers], huge_pages: false }).unwrap()
}

impl<L: Layout> Cluster<L> {
    pub fn new(layout: L, servers: usize, boundaries: &[Vec<u8>], cache: impl Fn(&mut CacheConfig)) -> Self {
        Self::loaded(layout, servers, boundaries, &[], 1.0, cache)
    }

    /// A cluster whose index is loaded with `entries`, with leaves of fill `fill`.
    pub fn loaded(
        layout: L,
        servers: usize,
        boundaries: &[Vec<u8>],
        entries: &[(Vec<u8>, Vec<u8>)],
        fill: f64,
        cache: impl Fn(&mut CacheConfig),
    ) -> Self {
        Self::loaded_on(local(servers, 8 << 20), layout, boundaries, entries, fill, cache)
    }

    /// An empty index on memory servers of `bytes` bytes each.
    pub fn loaded_with_room(
        layout: L,
        servers: usize,
        bytes: u64,
        boundaries: &[Vec<u8>],
        cache: impl Fn(&mut CacheConfig),
    ) -> Self {
        Self::loaded_on(local(servers, bytes), layout, boundaries, &[], 1.0, cache)
    }

    /// A client whose READs are pending up to `delay_max` times.
    pub fn observed(&self, seed: u64, delay_max: u64) -> Client<'_, L> {
        self.client_of(Observed::new(self.fabric.endpoint(seed).unwrap(), delay_max))
    }
}

impl<L: Layout, F: Fabric<Endpoint: 'static>> Cluster<L, F> {
    /// [`Cluster::loaded`] on any fabric.
    pub fn loaded_on(
        fabric: F,
        layout: L,
        boundaries: &[Vec<u8>],
        entries: &[(Vec<u8>, Vec<u8>)],
        fill: f64,
        cache: impl Fn(&mut CacheConfig),
    ) -> Self {
        Self::tuned_on(fabric, layout, boundaries, entries, fill, cache, |_| ())
    }

    /// [`Cluster::loaded_on`] with a tree configuration that `tune` changes.
    pub fn tuned_on(
        fabric: F,
        layout: L,
        boundaries: &[Vec<u8>],
        entries: &[(Vec<u8>, Vec<u8>)],
        fill: f64,
        cache: impl Fn(&mut CacheConfig),
        tune: impl Fn(&mut TreeConfig),
    ) -> Self {
        let ep = DynEndpoint::new(fabric.endpoint(1).unwrap());
        let pool = block_on(&ep, Pool::create(&ep, PoolOptions::embedded())).unwrap();
        let root = block_on(&ep, Tree::create(&ep, &pool, layout, INDEX, boundaries)).unwrap();
        if !entries.is_empty() {
            let load = BulkLoad::new(layout, pool.clone(), INDEX, 3, boundaries).leaf_fill(fill);
            let slice = block_on(&ep, load.load_slice(&ep, &entries, 0..entries.len() as u64, 1, 0)).unwrap();
            block_on(&ep, load.finish(&ep, vec![slice], root)).unwrap();
        }
        let open = |range| {
            let mut config = TreeConfig::new(INDEX, root);
            config.range = range;
            config.patience_ns = 2_000_000_000;
            tune(&mut config);
            open(&ep, &pool, layout, &cache, config)
        };
        let trees = KeyRange::from_boundaries(boundaries).into_iter().map(open).collect();
        Self { fabric, pool, trees, boundaries: boundaries.to_vec() }
    }

    /// Adds a compute server without keys, configured like the first one.
    pub fn add_server(&mut self, cache: impl Fn(&mut CacheConfig)) {
        let ep = DynEndpoint::new(self.fabric.endpoint(2).unwrap());
        let mut config = self.trees[0].config().clone();
        config.range = KeyRange::none();
        let tree = open(&ep, &self.pool, self.trees[0].layout(), &cache, config);
        self.trees.push(tree);
    }

    pub fn client(&self, seed: u64) -> Client<'_, L> {
        self.client_of(self.fabric.endpoint(seed).unwrap())
    }

    pub fn client_of(&self, ep: impl Endpoint + 'static) -> Client<'_, L> {
        let workers = self.trees.iter().map(|tree| tree.cache().worker()).collect();
        Client { trees: &self.trees, boundaries: &self.boundaries, ep: DynEndpoint::new(ep), workers }
    }

    /// All violations that an audit finds, including leaks.
    pub fn audit(&self) -> Vec<String> {
        let ep = DynEndpoint::new(self.fabric.endpoint(99).unwrap());
        let trees: Vec<_> = self.trees.iter().collect();
        let report = block_on(&ep, audit(&ep, &trees)).unwrap();
        let mut wrong = report.violations.clone();
        wrong.extend(block_on(&ep, check_blocks(&ep, &self.pool, &mut [report], &[])).unwrap());
        wrong
    }
}

fn open<L: Layout>(
    ep: &DynEndpoint,
    pool: &Pool,
    layout: L,
    cache: &impl Fn(&mut CacheConfig),
    config: TreeConfig,
) -> Tree<L> {
    let mut cache_config = CacheConfig::new(8 * layout.node_size() as u64, layout.node_size());
    cache(&mut cache_config);
    let cache = Arc::new(Cache::new(&cache_config).unwrap());
    let worker = cache.worker();
    let tree =
        block_on(ep, Tree::open(Ctx { ep, worker: &worker }, cache, pool.clone(), layout, config)).unwrap();
    tree.cache().retire(&worker);
    tree
}

/// One thread's access to all compute servers of a cluster.
pub struct Client<'c, L: Layout> {
    pub trees: &'c [Tree<L>],
    pub boundaries: &'c [Vec<u8>],
    pub ep: DynEndpoint,
    pub workers: Vec<CacheWorker>,
}

impl<L: Layout> Client<'_, L> {
    /// The endpoint of a client that [`Cluster::observed`] made.
    pub fn observed(&self) -> &Observed {
        self.ep.as_type()
    }

    fn route(&self, key: &[u8]) -> (&Tree<L>, Ctx<'_, DynEndpoint>) {
        self.server(partition_of(self.boundaries, key))
    }

    pub fn server(&self, i: usize) -> (&Tree<L>, Ctx<'_, DynEndpoint>) {
        (&self.trees[i], Ctx { ep: &self.ep, worker: &self.workers[i] })
    }

    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, DexError> {
        let (tree, ctx) = self.route(key);
        let mut out = Vec::new();
        Ok(block_on(&self.ep, tree.get(ctx, key, &mut out))?.then_some(out))
    }

    /// Looks up keys at one server after the other, in key order.
    pub fn multi_get(&self, keys: &[Vec<u8>]) -> Result<Vec<Option<Vec<u8>>>, DexError> {
        let mut found = vec![None; keys.len()];
        for i in 0..self.trees.len() {
            let own = (0..keys.len()).filter(|&k| partition_of(self.boundaries, &keys[k]) == i);
            let own: Vec<_> = own.collect();
            let wanted: Vec<_> = own.iter().map(|&k| &keys[k]).collect();
            let ((tree, ctx), mut answers) = (self.server(i), Answers::default());
            block_on(&self.ep, tree.multi_get(ctx, &wanted, &mut answers))?;
            own.iter().zip(answers.iter()).for_each(|(&k, value)| found[k] = value.map(<[u8]>::to_vec));
        }
        Ok(found)
    }

    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<bool, DexError> {
        let (tree, ctx) = self.route(key);
        block_on(&self.ep, tree.put(ctx, key, value))
    }

    pub fn insert(&self, key: &[u8], value: &[u8]) -> Result<bool, DexError> {
        let (tree, ctx) = self.route(key);
        block_on(&self.ep, tree.insert(ctx, key, value))
    }

    pub fn update(&self, key: &[u8], value: &[u8]) -> Result<bool, DexError> {
        let (tree, ctx) = self.route(key);
        block_on(&self.ep, tree.update(ctx, key, value))
    }

    pub fn remove(&self, key: &[u8]) -> Result<bool, DexError> {
        let (tree, ctx) = self.route(key);
        block_on(&self.ep, tree.remove(ctx, key))
    }

    pub fn swap(&self, key: &[u8], expected: Option<&[u8]>, new: Option<&[u8]>) -> Result<Swapped, DexError> {
        let (tree, ctx) = self.route(key);
        block_on(&self.ep, tree.compare_and_swap(ctx, key, expected, new))
    }

    /// A scan over all compute servers, in scan order.
    pub fn scan(&self, range: &ScanRange<'_>) -> Result<Entries, DexError> {
        self.scan_and(range, |_| ())
    }

    /// [`Client::scan`], with a call of `meddle` after each entry.
    pub fn scan_and(
        &self,
        range: &ScanRange<'_>,
        mut meddle: impl FnMut(&Entries),
    ) -> Result<Entries, DexError> {
        let mut found = Vec::new();
        let servers = self.trees.len();
        for i in 0..servers {
            let (tree, ctx) = self.server(if range.reverse { servers - 1 - i } else { i });
            let part = ScanRange { limit: range.limit - found.len(), ..*range };
            block_on(
                &self.ep,
                tree.scan(ctx, &part, |key, value| {
                    found.push((key.to_vec(), value.to_vec()));
                    meddle(&found);
                    true
                }),
            )?;
        }
        Ok(found)
    }
}

impl<L: Layout> Drop for Client<'_, L> {
    fn drop(&mut self) {
        for (tree, worker) in self.trees.iter().zip(&self.workers) {
            tree.cache().retire(worker);
        }
    }
}

/// Expected result of a scan.
pub fn model_scan(model: &BTreeMap<Vec<u8>, Vec<u8>>, range: &ScanRange<'_>) -> Entries {
    let own = |bound: Bound<&[u8]>| match bound {
        Bound::Unbounded => Bound::Unbounded,
        Bound::Included(key) => Bound::Included(key.to_vec()),
        Bound::Excluded(key) => Bound::Excluded(key.to_vec()),
    };
    let empty = match (range.low, range.high) {
        (Bound::Included(low), Bound::Included(high)) => low > high,
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
        (Bound::Included(low) | Bound::Excluded(low), Bound::Included(high) | Bound::Excluded(high)) => {
            low >= high
        }
    };
    if empty {
        return Vec::new();
    }
    let entries =
        model.range((own(range.low), own(range.high))).map(|(key, value)| (key.clone(), value.clone()));
    match range.reverse {
        false => entries.take(range.limit).collect(),
        true => entries.rev().take(range.limit).collect(),
    }
}
