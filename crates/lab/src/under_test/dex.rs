//! DEX on a cluster of the laboratory: one tree and one cache for each compute server (DEX §4, §5).
//!
//! The index is loaded through any endpoint, and used through any: the simulator's direct one to load, verify and audit,
//! those of its threads to measure. A thread has a worker of every compute server's cache, since a scan goes on into the keys
//! of the next one; all else that a driver asks for is its own compute server's.

use std::ops::Bound;
use std::sync::Arc;

use pando::{CacheCounts, KeyRange, ScanRange, SmoCounts, SortedSource, VerbCounts};
use pando_cache::{Cache, CacheWorker};
use pando_dex::audit::{audit, check_blocks};
use pando_dex::layout::Layout;
use pando_dex::{BulkLoad, Ctx, DexError, Offloading, Tree, TreeConfig, partition_of};
use pando_fabric::{Endpoint, GlobalAddr, Nanos};
use pando_pool::Pool;

use super::{Audited, IndexClient, PlacedIndex};
use crate::bench::BenchSpec;

/// Number of the index in its pool, which holds nothing else.
pub(super) const INDEX: u32 = 1;

/// DEX with all its compute servers.
pub struct Dex<L> {
    pool: Pool,
    boundaries: Vec<Vec<u8>>,
    trees: Vec<Tree<L>>,
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
        let caches = KeyRange::from_boundaries(&boundaries).into_iter().map(|range| {
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
        Ok(Self { pool, boundaries, trees })
    }

    /// By compute server.
    pub fn trees(&self) -> &[Tree<L>] {
        &self.trees
    }
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
    type Thread = Vec<CacheWorker>;
    type Client<'c, E: Endpoint + 'c>
        = DexClient<'c, L, E>
    where
        L: 'c;

    fn begin_thread(&self) -> Vec<CacheWorker> {
        self.trees.iter().map(|tree| tree.cache().worker()).collect()
    }

    fn end_thread(&self, workers: Vec<CacheWorker>) {
        self.trees.iter().zip(&workers).for_each(|(tree, worker)| tree.cache().retire(worker));
    }

    fn client<'c, E: Endpoint>(&'c self, ep: &'c E, workers: &'c Vec<CacheWorker>) -> DexClient<'c, L, E> {
        DexClient { dex: self, ep, workers }
    }

    fn cache_counts(&self) -> CacheCounts {
        self.trees.iter().map(|tree| tree.cache().counts()).sum()
    }

    fn smo_counts(&self) -> SmoCounts {
        let counts = self.trees.iter().map(|tree| {
            let [splits, merges, root_changes, shared_changes, refreshes] = tree.smo_counts();
            SmoCounts { splits, merges, root_changes, shared_changes, refreshes }
        });
        counts.sum()
    }

    async fn audit<E: Endpoint>(&self, ep: &E) -> pando::Result<Audited> {
        let trees: Vec<_> = self.trees.iter().collect();
        let report = audit(ep, &trees).await?;
        let mut audited = Audited {
            violations: report.violations.clone(),
            violation_count: report.violation_count,
            entries: report.entries,
            leaves: report.leaves,
            inner_nodes: report.inner_nodes,
            height: report.height,
            leaf_fullness: report.leaf_fullness(),
        };
        let leaks = check_blocks(ep, &self.pool, &mut [report], &[]).await?;
        audited.violation_count += leaks.len() as u64;
        audited.violations.extend(leaks);
        Ok(audited)
    }
}

/// One thread's access to all compute servers.
pub struct DexClient<'c, L, E> {
    dex: &'c Dex<L>,
    ep: &'c E,
    /// By compute server.
    workers: &'c [CacheWorker],
}

impl<L, E> Clone for DexClient<'_, L, E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<L, E> Copy for DexClient<'_, L, E> {}

impl<'c, L: Layout, E: Endpoint> DexClient<'c, L, E> {
    #[inline]
    fn server_of(&self, key: &[u8]) -> (&'c Tree<L>, Ctx<'c, E>) {
        self.server(partition_of(&self.dex.boundaries, key))
    }

    #[inline]
    fn server(&self, number: usize) -> (&'c Tree<L>, Ctx<'c, E>) {
        (&self.dex.trees[number], Ctx { ep: self.ep, worker: &self.workers[number] })
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
        let (tree, ctx) = self.server_of(key);
        tree.get(ctx, key, out).await
    }

    #[inline]
    async fn put(&self, key: &[u8], value: &[u8]) -> Result<bool, DexError> {
        let (tree, ctx) = self.server_of(key);
        tree.put(ctx, key, value).await
    }

    #[inline]
    async fn update(&self, key: &[u8], value: &[u8]) -> Result<bool, DexError> {
        let (tree, ctx) = self.server_of(key);
        tree.update(ctx, key, value).await
    }

    #[inline]
    async fn insert(&self, key: &[u8], value: &[u8]) -> Result<bool, DexError> {
        let (tree, ctx) = self.server_of(key);
        tree.insert(ctx, key, value).await
    }

    #[inline]
    async fn remove(&self, key: &[u8]) -> Result<bool, DexError> {
        let (tree, ctx) = self.server_of(key);
        tree.remove(ctx, key).await
    }

    async fn scan(
        &self,
        range: &ScanRange<'_>,
        mut visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<usize, DexError> {
        let last = self.dex.trees.len() - 1;
        let (start, open_end) = if range.reverse { (range.high, last) } else { (range.low, 0) };
        let mut number = match start {
            Bound::Unbounded => open_end,
            Bound::Included(key) | Bound::Excluded(key) => partition_of(&self.dex.boundaries, key),
        };
        let mut entries = 0;
        loop {
            let (tree, ctx) = self.server(number);
            let rest = ScanRange { limit: range.limit - entries, ..*range };
            let scanned = tree.scan(ctx, &rest, &mut visit).await?;
            entries += scanned.entries;
            number = match range.reverse {
                _ if scanned.complete => return Ok(entries),
                false if number < last => number + 1,
                true if number > 0 => number - 1,
                _ => return Ok(entries),
            };
        }
    }

    async fn multi_get(&self, keys: &[&[u8]], answers: &mut DexAnswers) -> Result<(), DexError> {
        answers.starts.clear();
        let number_of = |key: &[u8]| partition_of(&self.dex.boundaries, key);
        let mut start = 0;
        for stretch in keys.chunk_by(|a, b| number_of(a) == number_of(b)) {
            let part = answers.starts.len();
            if answers.parts.len() == part {
                answers.parts.push(pando_dex::Answers::default());
            }
            answers.starts.push(start);
            let (tree, ctx) = self.server_of(stretch[0]);
            tree.multi_get(ctx, stretch, &mut answers.parts[part]).await?;
            start += stretch.len();
        }
        Ok(())
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
