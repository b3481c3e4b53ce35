//! DEX on a cluster of the laboratory: one tree and one cache for each compute server (DEX §4, §5).
//!
//! The index is loaded and used through any endpoint: the simulator's direct one to load, verify and audit,
//! those of its threads to measure. A thread has a worker of each compute server's cache, since a scan
//! continues into the keys of the next server. All other operations of a driver use the thread's own compute
//! server.

use std::cell::OnceCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use pando::{Durability, KeyRange, ScanRange, SmoCounts, SortedSource};
use pando_cache::{Cache, CacheConfig, CacheWorker};
use pando_dex::audit::{audit, check_blocks};
use pando_dex::layout::Layout;
use pando_dex::{
    BulkLoad, Ctx, Detour, DexError, LOG_PER_CACHE_BYTE, LOG_SEGMENTS_MIN, Offloading, Router, Routes,
    RoutingTable, Tree, TreeConfig,
};
use pando_fabric::{Endpoint, GlobalAddr, Nanos};
use pando_log::{Blocks, Contents, Log, Options as LogOptions, Shape as LogShape};
use pando_pool::{Placement, Pool};
use pando_rt::block_on;

use super::{Answers, Audited, Client, Connect, SimPort, SystemCounts, SystemUnderTest};
use crate::copies::SimEndpoint;
use crate::spec::{BenchError, BenchSpec};

/// Number of the index in its pool; it is the only one.
pub(super) const INDEX: u32 = 1;

/// Threads that share a lane of the log. Records of a lane share WRITEs: with a lane for each of 36 threads an update costs
/// half a WRITE more, because the next one comes later than the answer (experiment `log`).
const THREADS_OF_LANE: usize = 8;

/// DEX with all its compute servers.
pub struct Dex<L> {
    pool: Pool,
    routes: Arc<Routes>,
    /// By compute server; the last ones may have no keys at the start.
    trees: Vec<Tree<L>>,
    /// Number of the next thread.
    threads: AtomicU64,
}

/// Parameters for making an index: its nodes, and a tree with its own cache for each compute server.
pub(crate) struct Assembly<'a, L> {
    pub pool: &'a Pool,
    /// By compute server, if each is a process of its own.
    pub pools: &'a [Pool],
    pub layout: L,
    /// First keys of the second and further compute servers.
    pub boundaries: &'a [Vec<u8>],
    /// Number of compute servers without keys at the start.
    pub spares: usize,
    pub cache: CacheConfig,
    /// Settings of all trees. Root and range are filled in.
    pub tree: TreeConfig,
    /// Fullness of leaves and inner nodes after the load, up to 1.
    pub leaf_fill: f64,
    pub inner_fill: f64,
    /// Shape of each tree's log, if there are logs, and the longest time of a verb.
    pub log: Option<LogShape>,
    pub verbs_take_ns: Nanos,
}

impl<'a, L: Layout> Assembly<'a, L> {
    /// An index without spare compute servers, with nodes that are 90% full.
    pub fn new(
        pool: &'a Pool,
        layout: L,
        boundaries: &'a [Vec<u8>],
        cache: CacheConfig,
        tree: TreeConfig,
    ) -> Self {
        let (leaf_fill, inner_fill) = (0.9, 0.9);
        let (log, verbs_take_ns) = (None, 0);
        let (pools, spares) = (&[][..], 0);
        Self {
            pool,
            pools,
            layout,
            boundaries,
            spares,
            cache,
            tree,
            leaf_fill,
            inner_fill,
            log,
            verbs_take_ns,
        }
    }

    /// The index of a benchmark.
    pub fn of(spec: &BenchSpec, pool: &'a Pool, layout: L, boundaries: &'a [Vec<u8>]) -> Self {
        let tree = TreeConfig {
            read_ahead: spec.read_ahead,
            whole_leaves: spec.whole_leaves,
            subtree_level: spec.subtree_level,
            offloading: Offloading::with_policy(spec.offload),
            ..TreeConfig::new(INDEX, GlobalAddr::NULL)
        };
        let cache = spec.cache.config(spec.cache_bytes, layout.node_size());
        let assembly = Self::new(pool, layout, boundaries, cache, tree);
        let log =
            (spec.durability != Durability::Off).then(|| shape_of_log(spec, pool, assembly.cache.bytes));
        Self { leaf_fill: spec.fill, inner_fill: spec.inner_fill, log, ..assembly }
    }

    /// Makes the nodes with the records of `source`, which may be empty. Returns the address of the root.
    ///
    /// # Errors
    /// A full pool; nodes of impossible sizes; errors of the fabric.
    pub async fn load<E: Endpoint>(&self, ep: &E, source: &dyn SortedSource) -> Result<GlobalAddr, DexError> {
        let Self { pool, layout, boundaries, tree, .. } = self;
        // The load makes leaves that end at the boundaries, and as many levels above them as these need.
        let cuts: &[_] = if source.is_empty() { boundaries } else { &[] };
        let root = Tree::create(ep, pool, *layout, tree.index_id, cuts).await?;
        if !source.is_empty() {
            let pool = Pool::clone(pool);
            let load = BulkLoad::new(*layout, pool, tree.index_id, tree.subtree_level, boundaries)
                .leaf_fill(self.leaf_fill)
                .inner_fill(self.inner_fill);
            // A single slice, so that the place of a node does not depend on the scheduling of host threads.
            let slice = load.load_slice(ep, source, 0..source.len(), 1, 0).await?;
            load.finish(ep, vec![slice], root).await?;
        }
        Ok(root)
    }

    /// Makes the nodes and opens a tree for each compute server, those without keys last.
    ///
    /// # Errors
    /// Those of [`Assembly::load`], and caches of impossible sizes.
    pub async fn trees<E: Endpoint>(
        &self,
        ep: &E,
        source: &dyn SortedSource,
    ) -> Result<Vec<Tree<L>>, DexError> {
        let spares = std::iter::repeat_n(KeyRange::none(), self.spares);
        let ranges = KeyRange::from_boundaries(self.boundaries).into_iter().chain(spares);
        // Make the caches before the load, since they may be too small.
        let caches = ranges.map(|range| Ok((range, Arc::new(Cache::new(&self.cache)?))));
        let caches: Vec<_> = caches.collect::<Result<_, DexError>>()?;
        let root = self.load(ep, source).await?;
        let mut trees = Vec::with_capacity(caches.len());
        for (range, cache) in caches {
            let worker = cache.worker();
            let ctx = Ctx { ep, worker: &worker };
            let log = self.log(ep).await?;
            let config = TreeConfig { range, root, log, ..self.tree.clone() };
            let pool = self.pools.get(trees.len()).unwrap_or(self.pool).clone();
            let tree = Tree::open(ctx, Arc::clone(&cache), pool, self.layout, config).await;
            cache.retire(&worker);
            trees.push(tree?);
        }
        Ok(trees)
    }

    /// A new log for a tree.
    async fn log<E: Endpoint>(&self, ep: &E) -> Result<Option<Arc<Log>>, DexError> {
        let Some(shape) = self.log else { return Ok(None) };
        let alloc = async |bytes| self.pool.alloc(ep, Placement::LeastLoaded, bytes).await;
        let blocks = Blocks::gather(shape, alloc).await?;
        let space = Log::create(ep, self.tree.index_id, blocks).await?;
        let contents = Contents::read(ep, space).await?;
        let (patience_ns, verbs_take_ns) = (self.tree.patience_ns, self.verbs_take_ns);
        let options = LogOptions { patience_ns, verbs_take_ns, ..LogOptions::default() };
        Ok(Some(Arc::new(Log::resume(ep, contents, options).await?)))
    }
}

/// Shape of the log of a compute server in a benchmark.
fn shape_of_log(spec: &BenchSpec, pool: &Pool, cache_bytes: u64) -> LogShape {
    let (lanes, segment_bytes) = (spec.threads.div_ceil(THREADS_OF_LANE), pool.max_block());
    let bytes = cache_bytes.saturating_mul(LOG_PER_CACHE_BYTE);
    let segments = (bytes / segment_bytes / lanes as u64).max(LOG_SEGMENTS_MIN) as usize;
    LogShape { lanes, segments, segment_bytes }
}

impl<L: Layout> Dex<L> {
    /// Loads a new index with sorted entries. Opens it for each compute server of the partitions that
    /// `boundaries` define, and for `spares` more without keys.
    ///
    /// # Errors
    /// A full pool; caches or nodes of impossible sizes; errors of the fabric.
    pub async fn load<E: Endpoint>(
        spec: &BenchSpec,
        spares: usize,
        ep: &E,
        pool: Pool,
        layout: L,
        boundaries: Vec<Vec<u8>>,
        source: &dyn SortedSource,
    ) -> pando::Result<Self> {
        let assembly = Assembly { spares, ..Assembly::of(spec, &pool, layout, &boundaries) };
        let trees = assembly.trees(ep, source).await?;
        let routes = Arc::new(Routes::new(RoutingTable::in_order(boundaries)?));
        Ok(Self { pool, routes, trees, threads: AtomicU64::new(spec.seed) })
    }

    /// By compute server.
    pub fn trees(&self) -> &[Tree<L>] {
        &self.trees
    }
}

/// State of one thread.
pub struct DexThread {
    /// Worker of the thread's own compute server.
    own: OnceCell<CacheWorker>,
    server: usize,
    /// Workers of the others, by compute server. The list is made when a thread first continues on another server:
    /// in a large cluster most threads never do.
    others: OnceCell<Box<[OnceCell<CacheWorker>]>>,
    pub router: Router,
}

impl DexThread {
    /// The worker of a compute server's cache; made at its first use.
    fn worker<L: Layout>(&self, trees: &[Tree<L>], number: usize) -> &CacheWorker {
        let place = match number == self.server {
            true => &self.own,
            false => &self.others.get_or_init(|| trees.iter().map(|_| OnceCell::new()).collect())[number],
        };
        place.get_or_init(|| trees[number].cache().worker())
    }
}

impl<L: Layout> Dex<L> {
    fn patience_ns(&self) -> Nanos {
        self.trees[0].config().patience_ns
    }
}

type At<'c, L> = Client<'c, Dex<L>, SimPort>;

impl<'c, L: Layout> At<'c, L> {
    /// Access to one compute server.
    pub fn server(self, number: usize) -> (&'c Tree<L>, Ctx<'c, SimEndpoint>) {
        let tree = &self.system.trees[number];
        let worker = self.own.worker(&self.system.trees, number);
        (tree, Ctx { ep: &self.port.ep, worker })
    }

    /// Performs an operation at the owner of `key`.
    async fn on_owner<T>(
        self,
        key: &[u8],
        mut op: impl AsyncFnMut(&'c Tree<L>, Ctx<'c, SimEndpoint>) -> Result<T, DexError>,
    ) -> Result<T, DexError> {
        let on = async |number| {
            let (tree, ctx) = self.server(number);
            op(tree, ctx).await
        };
        self.own.router.routed(&self.port.ep, key, self.system.patience_ns(), on).await
    }
}

impl<L: Layout> SystemUnderTest<SimPort> for Dex<L> {
    type Error = DexError;
    type Thread = DexThread;

    fn begin_thread(&self, server: usize) -> DexThread {
        let router = Router::new(Arc::clone(&self.routes), self.threads.fetch_add(1, Relaxed));
        DexThread { own: OnceCell::new(), server, others: OnceCell::new(), router }
    }

    fn end_thread(&self, thread: DexThread) {
        let DexThread { own, server, others, .. } = thread;
        let others = others.get().into_iter().flatten().enumerate();
        for (number, worker) in others.chain(std::iter::once((server, &own))) {
            worker.get().into_iter().for_each(|worker| self.trees[number].cache().retire(worker));
        }
    }

    async fn get(at: At<'_, L>, key: &[u8], out: &mut Vec<u8>) -> Result<bool, DexError> {
        at.on_owner(key, async |tree, ctx| tree.get(ctx, key, out).await).await
    }

    async fn put(at: At<'_, L>, key: &[u8], value: &[u8]) -> Result<bool, DexError> {
        at.on_owner(key, async |tree, ctx| tree.put(ctx, key, value).await).await
    }

    async fn update(at: At<'_, L>, key: &[u8], value: &[u8]) -> Result<bool, DexError> {
        at.on_owner(key, async |tree, ctx| tree.update(ctx, key, value).await).await
    }

    async fn scan(
        at: At<'_, L>,
        range: &ScanRange<'_>,
        mut visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<usize, DexError> {
        let scan_of = async |number, part: &ScanRange<'_>| {
            let (tree, ctx) = at.server(number);
            tree.scan_owned(ctx, part, &mut visit).await
        };
        at.own.router.scanned(&at.port.ep, range, at.system.patience_ns(), scan_of).await
    }

    /// Looks up neighbouring keys of one compute server together.
    async fn multi_get(at: At<'_, L>, keys: &[&[u8]], answers: &mut Answers) -> Result<(), DexError> {
        let (router, mut part) = (&at.own.router, pando_dex::Answers::default());
        let mut detour = Detour::new(at.system.patience_ns());
        loop {
            let table = router.table();
            answers.by_key.reset(keys.len());
            let (mut start, mut refused) = (0, false);
            for stretch in keys.chunk_by(|a, b| table.partition_of(a) == table.partition_of(b)) {
                let (tree, ctx) = at.server(router.route(stretch[0]));
                match tree.multi_get(ctx, stretch, &mut part).await {
                    Err(DexError::NotOwned) => refused = true,
                    done => {
                        done?;
                        (start..).zip(part.iter()).for_each(|(i, value)| answers.by_key.set(i, value));
                    }
                }
                start += stretch.len();
            }
            if !refused {
                return Ok(());
            }
            // Some keys have moved: look up all of them again.
            detour.next(&at.port.ep, router).await?;
        }
    }

    fn counts(&self) -> Result<SystemCounts, BenchError> {
        let smo = self.trees.iter().map(|tree| {
            let [splits, merges, root_changes, shared_changes, refreshes] = tree.smo_counts();
            SmoCounts { splits, merges, root_changes, shared_changes, refreshes }
        });
        Ok(SystemCounts {
            cache: self.trees.iter().map(|tree| tree.cache().counts()).sum(),
            smo: smo.sum(),
            loads: Some(self.routes.take_load().by_partition(self.routes.table().boundaries())),
        })
    }

    fn audit(&self, connect: &Connect<'_, SimPort>) -> Result<Audited, BenchError> {
        let ep = &connect()?.ep;
        let trees: Vec<_> = self.trees.iter().collect();
        let report = block_on(ep, audit(ep, &trees)).map_err(pando::Error::from)?;
        let mut audited = Audited {
            violations: report.violations.clone(),
            violation_count: report.violation_count,
            entries: report.entries,
            leaves: report.leaves,
            inner_nodes: report.inner_nodes,
            height: report.height,
            leaf_fullness: report.leaf_fullness(),
        };
        let logs = self.trees.iter().filter_map(|tree| tree.config().log.as_ref());
        let others: Vec<_> = logs.flat_map(|log| log.space().blocks().collect::<Vec<_>>()).collect();
        let leaks =
            block_on(ep, check_blocks(ep, &self.pool, &mut [report], &others)).map_err(pando::Error::from)?;
        audited.violation_count += leaks.len() as u64;
        audited.violations.extend(leaks);
        Ok(audited)
    }
}
