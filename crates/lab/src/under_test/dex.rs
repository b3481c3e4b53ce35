//! DEX on a cluster of the laboratory: one tree and one cache for each compute server (DEX §4, §5).
//!
//! The index is loaded through any endpoint, and used through any: the simulator's direct one to load, verify and audit,
//! those of its threads to measure. A thread has a worker of every compute server's cache, since a scan goes on into the keys
//! of the next one; all else that a driver asks for is its own compute server's.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use pando::{CacheCounts, KeyRange, ScanRange, SmoCounts, SortedSource, VerbCounts};
use pando_cache::{Cache, CacheWorker};
use pando_dex::audit::{audit, check_blocks};
use pando_dex::layout::Layout;
use pando_dex::{
    BulkLoad, Ctx, Detour, DexError, Offloading, Router, Routes, RoutingTable, Tree, TreeConfig,
};
use pando_fabric::{Endpoint, GlobalAddr, Nanos};
use pando_pool::Pool;

use super::{Audited, IndexClient, PlacedIndex};
use crate::bench::{BenchError, BenchSpec};

/// Number of the index in its pool, which holds nothing else.
pub(super) const INDEX: u32 = 1;

/// DEX with all its compute servers.
pub struct Dex<L> {
    pool: Pool,
    routes: Arc<Routes>,
    /// By compute server; those at the end may have no keys at first.
    trees: Vec<Tree<L>>,
    /// Threads that began.
    threads: AtomicU64,
}

impl<L: Layout> Dex<L> {
    /// Loads a new index with sorted entries and opens it for each of the compute servers that `boundaries` divide the
    /// keys among.
    ///
    /// # Errors
    /// A full pool; caches or nodes of impossible sizes; errors of the fabric.
    pub async fn load<E: Endpoint>(
        spec: &BenchSpec,
        ep: &E,
        pool: Pool,
        layout: L,
        boundaries: Vec<Vec<u8>>,
        source: &impl SortedSource,
    ) -> pando::Result<Self> {
        Self::load_with_spares(spec, 0, ep, pool, layout, boundaries, source).await
    }

    /// The same with `spares` more compute servers, which have no keys yet.
    ///
    /// # Errors
    /// As [`Dex::load`].
    pub async fn load_with_spares<E: Endpoint>(
        spec: &BenchSpec,
        spares: usize,
        ep: &E,
        pool: Pool,
        layout: L,
        boundaries: Vec<Vec<u8>>,
        source: &impl SortedSource,
    ) -> pando::Result<Self> {
        let spares = std::iter::repeat_n(KeyRange::none(), spares);
        let caches = KeyRange::from_boundaries(&boundaries).into_iter().chain(spares).map(|range| {
            let cache = Cache::new(&spec.cache.config(spec.cache_bytes, layout.node_size()))?;
            Ok((range, Arc::new(cache)))
        });
        // Before anything is loaded: a cache may be too small.
        let caches: Vec<_> = caches.collect::<pando::Result<_>>()?;
        let root = load_nodes(spec, ep, &pool, layout, &boundaries, source).await?;
        let mut trees = Vec::with_capacity(caches.len());
        for (range, cache) in caches {
            let worker = cache.worker();
            let ctx = Ctx { ep, worker: &worker };
            let config = tree_config(spec, root, range);
            let tree = Tree::open(ctx, Arc::clone(&cache), pool.clone(), layout, config).await;
            cache.retire(&worker);
            trees.push(tree?);
        }
        let routes = Arc::new(Routes::new(RoutingTable::in_order(boundaries)?));
        Ok(Self { pool, routes, trees, threads: AtomicU64::new(spec.seed) })
    }

    /// By compute server.
    pub fn trees(&self) -> &[Tree<L>] {
        &self.trees
    }

    pub fn routes(&self) -> &Arc<Routes> {
        &self.routes
    }
}

/// What a thread has of its own.
pub struct DexThread {
    /// By compute server.
    pub workers: Vec<CacheWorker>,
    pub router: Router,
}

/// Makes the nodes of an index with the records of `source`; where its root is.
pub(super) async fn load_nodes<L: Layout, E: Endpoint>(
    spec: &BenchSpec,
    ep: &E,
    pool: &Pool,
    layout: L,
    boundaries: &[Vec<u8>],
    source: &impl SortedSource,
) -> pando::Result<GlobalAddr> {
    let root = Tree::create(ep, pool, layout, INDEX, boundaries).await?;
    let load = BulkLoad::new(layout, pool.clone(), INDEX, spec.subtree_level, boundaries)
        .leaf_fill(spec.fill)
        .inner_fill(spec.inner_fill);
    // One slice, so that where nodes lie does not depend on how the threads of this machine take turns.
    let slice = load.load_slice(ep, source, 0..source.len(), 1, 0).await?;
    load.finish(ep, vec![slice], root).await?;
    Ok(root)
}

/// How the compute server that owns `range` runs its tree.
fn tree_config(spec: &BenchSpec, root: GlobalAddr, range: KeyRange) -> TreeConfig {
    let offloading = Offloading::with_policy(spec.offload);
    let (read_ahead, subtree_level) = (spec.read_ahead, spec.subtree_level);
    TreeConfig { range, read_ahead, subtree_level, offloading, ..TreeConfig::new(INDEX, root) }
}

impl<L: Layout> PlacedIndex for Dex<L> {
    type Thread = DexThread;
    type Client<'c, E: Endpoint + 'c>
        = DexClient<'c, L, E>
    where
        L: 'c;

    fn begin_thread(&self, _: usize) -> DexThread {
        let router = Router::new(Arc::clone(&self.routes), self.threads.fetch_add(1, Relaxed));
        DexThread { workers: self.trees.iter().map(|tree| tree.cache().worker()).collect(), router }
    }

    fn end_thread(&self, thread: DexThread) {
        self.trees.iter().zip(&thread.workers).for_each(|(tree, worker)| tree.cache().retire(worker));
    }

    fn client<'c, E: Endpoint>(&'c self, ep: &'c E, thread: &'c DexThread) -> DexClient<'c, L, E> {
        DexClient { dex: self, ep, thread }
    }

    fn cache_counts(&self) -> CacheCounts {
        self.trees.iter().map(|tree| tree.cache().counts()).sum()
    }

    fn take_loads(&self) -> Option<Vec<u64>> {
        Some(self.routes.take_load().by_partition(self.routes.table().boundaries()))
    }

    fn smo_counts(&self) -> SmoCounts {
        let counts = self.trees.iter().map(|tree| {
            let [splits, merges, root_changes, shared_changes, refreshes] = tree.smo_counts();
            SmoCounts { splits, merges, root_changes, shared_changes, refreshes }
        });
        counts.sum()
    }

    async fn audit<E: Endpoint>(&self, ep: &E) -> Result<Audited, BenchError> {
        let trees: Vec<_> = self.trees.iter().collect();
        let report = audit(ep, &trees).await.map_err(pando::Error::from)?;
        let mut audited = Audited {
            violations: report.violations.clone(),
            violation_count: report.violation_count,
            entries: report.entries,
            leaves: report.leaves,
            inner_nodes: report.inner_nodes,
            height: report.height,
            leaf_fullness: report.leaf_fullness(),
        };
        let leaks = check_blocks(ep, &self.pool, &mut [report], &[]).await.map_err(pando::Error::from)?;
        audited.violation_count += leaks.len() as u64;
        audited.violations.extend(leaks);
        Ok(audited)
    }
}

/// One thread's access to all compute servers.
pub struct DexClient<'c, L, E> {
    dex: &'c Dex<L>,
    ep: &'c E,
    thread: &'c DexThread,
}

impl<L, E> Clone for DexClient<'_, L, E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<L, E> Copy for DexClient<'_, L, E> {}

impl<'c, L: Layout, E: Endpoint> DexClient<'c, L, E> {
    /// Access to one compute server.
    #[inline]
    pub fn server(&self, number: usize) -> (&'c Tree<L>, Ctx<'c, E>) {
        (&self.dex.trees[number], Ctx { ep: self.ep, worker: &self.thread.workers[number] })
    }

    pub fn router(&self) -> &'c Router {
        &self.thread.router
    }

    /// Performs an operation where the owner of `key` is found.
    #[inline]
    async fn on_owner<T>(
        &self,
        key: &[u8],
        mut op: impl AsyncFnMut(&'c Tree<L>, Ctx<'c, E>) -> Result<T, DexError>,
    ) -> Result<T, DexError> {
        let on = async |server| {
            let (tree, ctx) = self.server(server);
            op(tree, ctx).await
        };
        self.thread.router.routed(self.ep, key, self.patience_ns(), on).await
    }

    fn patience_ns(&self) -> Nanos {
        self.dex.trees[0].config().patience_ns
    }
}

/// Answers by stretches of neighbouring keys that belong to one compute server.
#[derive(Debug, Default)]
pub struct DexAnswers {
    parts: Vec<pando_dex::Answers>,
    /// Where each part begins, in the order of the keys.
    starts: Vec<usize>,
}

impl<L: Layout, E: Endpoint> IndexClient for DexClient<'_, L, E> {
    type Error = DexError;
    type Answers = DexAnswers;

    const CLOCK_IS_FREE: bool = true;

    #[inline]
    async fn get_into(&self, key: &[u8], out: &mut Vec<u8>) -> Result<bool, DexError> {
        self.on_owner(key, async |tree, ctx| tree.get(ctx, key, out).await).await
    }

    #[inline]
    async fn put(&self, key: &[u8], value: &[u8]) -> Result<bool, DexError> {
        self.on_owner(key, async |tree, ctx| tree.put(ctx, key, value).await).await
    }

    #[inline]
    async fn update(&self, key: &[u8], value: &[u8]) -> Result<bool, DexError> {
        self.on_owner(key, async |tree, ctx| tree.update(ctx, key, value).await).await
    }

    #[inline]
    async fn insert(&self, key: &[u8], value: &[u8]) -> Result<bool, DexError> {
        self.on_owner(key, async |tree, ctx| tree.insert(ctx, key, value).await).await
    }

    #[inline]
    async fn remove(&self, key: &[u8]) -> Result<bool, DexError> {
        self.on_owner(key, async |tree, ctx| tree.remove(ctx, key).await).await
    }

    async fn scan(
        &self,
        range: &ScanRange<'_>,
        mut visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<usize, DexError> {
        let scan_of = async |server, part: &ScanRange<'_>| {
            let (tree, ctx) = self.server(server);
            tree.scan_owned(ctx, part, &mut visit).await
        };
        self.thread.router.scanned(self.ep, range, self.patience_ns(), scan_of).await
    }

    async fn multi_get(&self, keys: &[&[u8]], answers: &mut DexAnswers) -> Result<(), DexError> {
        let router = &self.thread.router;
        let mut detour = Detour::new(self.patience_ns());
        loop {
            let table = router.table();
            answers.starts.clear();
            let mut start = 0;
            let mut refused = false;
            for stretch in keys.chunk_by(|a, b| table.partition_of(a) == table.partition_of(b)) {
                let part = answers.starts.len();
                if answers.parts.len() == part {
                    answers.parts.push(pando_dex::Answers::default());
                }
                answers.starts.push(start);
                let (tree, ctx) = self.server(router.route(stretch[0]));
                match tree.multi_get(ctx, stretch, &mut answers.parts[part]).await {
                    Err(DexError::NotOwned) => refused = true,
                    done => done?,
                }
                start += stretch.len();
            }
            if !refused {
                return Ok(());
            }
            // Some keys moved meanwhile: all are looked up again.
            detour.next(self.ep, router).await?;
        }
    }

    fn answer(answers: &DexAnswers, i: usize) -> Option<&[u8]> {
        let part = answers.starts.partition_point(|&start| start <= i) - 1;
        answers.parts[part].get(i - answers.starts[part])
    }

    #[inline]
    async fn pace(&self) {
        self.ep.pace().await;
    }

    #[inline]
    fn now(&self) -> Nanos {
        self.ep.now()
    }

    fn verbs(&self) -> VerbCounts {
        self.ep.counters().snapshot()
    }
}
