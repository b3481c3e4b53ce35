//! The compute servers that this process runs for one index: a tree for each partition that it owns.
//!
//! The catalog has the owner of each partition. At rest, only a process that owns all partitions changes
//! them, so no other process has a cached node of the index. Changes during use are in
//! `index/repartition.rs`.
//!
//! A compute server has a number while the index is open. The catalog numbers partitions in the order of
//! their keys. When the index is opened, both numbers are the same.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use pando_cache::{Cache, CacheConfig, CacheCounts};
use pando_dex::audit::{Blocks, Report, audit};
use pando_dex::layout::Layout;
use pando_dex::layout::fixed::FixedLayout;
use pando_dex::layout::slotted::SlottedLayout;
use pando_dex::{Ctx, KeyRange, Offloading, Routes, Tree, TreeConfig};
use pando_log::Log;
use pando_pool::IndexRecord;
use pando_rt::block_on;

use crate::error::{Error, Result};
use crate::layout::{ByLayout, NodeLayout, with_layout};
use crate::local::logs::{self, OpenLog};
use crate::local::redo::Recovery;
use crate::options::{CacheOptions, Descriptor};
use crate::place::AnyEndpoint;
use crate::shared::Shared;
use crate::stats::{ComputeServerStats, FormerStats, SmoCounts};

/// Frames of the cache of a tree that is opened for one piece of work.
const PASSING_FRAMES: u64 = 256;

/// The compute servers of an index in this process. Replaced as a whole when compute servers are added or
/// removed, or when the root moves.
#[derive(Clone)]
pub(crate) struct Servers {
    /// The record as of the opening of the index; any process may have changed partitions since.
    pub record: IndexRecord,
    pub descriptor: Descriptor,
    /// The owners of all keys as far as this process knows; those of its own keys are current.
    pub routes: Arc<Routes>,
    pub trees: Trees,
    /// Operations that each compute server executed for sessions, by its number, including removed compute
    /// servers.
    pub loads: Vec<Arc<AtomicU64>>,
    /// What its last owner, which died, had left in the log.
    pub recovery: Option<Recovery>,
    /// Logs by the number of the compute server, if it has one. That of a removed one is there until an added one takes it:
    /// what was written to it may still arrive.
    pub logs: Vec<Option<Arc<OpenLog>>>,
}

/// Trees by the number of the compute server; `None` for one of another process, or a removed one.
pub(crate) type Trees = ByLayout<TreesOf<FixedLayout>, TreesOf<SlottedLayout>>;
pub(crate) type TreesOf<L> = Vec<Option<Arc<Tree<L>>>>;

/// Counts of former compute servers, by number.
#[derive(Default)]
pub(crate) struct Past(Vec<(CacheCounts, SmoCounts)>);

impl Past {
    /// Adds the counts of the compute servers in `before` whose trees are not in `now`.
    pub fn add(&mut self, before: &Servers, now: &Servers) {
        let gone = |server: &ComputeServerStats| !before.has_same_tree(now, server.number);
        for server in before.stats_of_all().into_iter().filter(gone) {
            if self.0.len() <= server.number {
                self.0.resize_with(server.number + 1, Default::default);
            }
            let (cache, smo) = &mut self.0[server.number];
            (*cache, *smo) = (*cache + server.cache, *smo + server.smo);
        }
    }

    /// Adds the counts of earlier trees to the compute servers with the same numbers; returns the counts of
    /// the other ones.
    pub fn add_to(&self, stats: &mut [ComputeServerStats], servers: &Servers) -> FormerStats {
        let mut former = FormerStats::default();
        for (number, &(cache, smo)) in self.0.iter().enumerate() {
            match stats.iter_mut().find(|server| server.number == number) {
                Some(server) => (server.cache, server.smo) = (server.cache + cache, server.smo + smo),
                None => (former.cache, former.smo) = (former.cache + cache, former.smo + smo),
            }
        }
        let all: u64 = servers.loads.iter().map(|load| load.load(Relaxed)).sum();
        former.operations = all.saturating_sub(stats.iter().map(|server| server.operations).sum());
        former
    }
}

impl Servers {
    pub fn node_layout(&self) -> Result<NodeLayout> {
        self.descriptor.node_layout(self.record.node_size as usize)
    }

    /// The logs of the compute servers, if they have any.
    pub fn logs(&self) -> Vec<Arc<Log>> {
        self.open_logs().map(|log| Arc::clone(&log.log)).collect()
    }

    pub fn open_logs(&self) -> impl Iterator<Item = &OpenLog> {
        let running = self.logs.iter().enumerate().filter(|&(number, _)| self.runs(number));
        running.filter_map(|(_, log)| log.as_deref())
    }

    /// The number in the catalog of the log of a compute server that this process runs.
    pub fn log_number(&self, server: usize) -> Option<u16> {
        Some(self.logs.get(server)?.as_ref().filter(|_| self.runs(server))?.number)
    }

    /// First keys of all partitions but the first.
    pub fn boundaries(&self) -> Vec<Vec<u8>> {
        self.routes.table().boundaries().to_vec()
    }

    pub fn range_of(&self, number: usize) -> Result<KeyRange> {
        let table = self.routes.table();
        table.range_of(number).ok_or_else(|| {
            let name = &self.record.name;
            Error::InvalidOption(format!("there is no compute server {number} of index {name:?}"))
        })
    }

    /// The error for a session of a compute server that this process does not run.
    pub fn no_such_server(&self, number: usize) -> Error {
        let mine = self.stats().iter().map(|server| server.number.to_string()).collect::<Vec<_>>();
        let mine = if mine.is_empty() { "none".to_owned() } else { mine.join(", ") };
        let name = &self.record.name;
        Error::InvalidOption(format!(
            "this process does not run compute server {number} of index {name:?}; those that it runs: {mine}"
        ))
    }

    /// Whether this process runs the compute server of this number.
    pub fn runs(&self, number: usize) -> bool {
        with_layout!(&self.trees, |trees| trees.get(number).is_some_and(Option::is_some))
    }

    /// Whether this process runs all compute servers.
    pub fn runs_all(&self) -> bool {
        self.routes.table().owners().iter().all(|&number| self.runs(number))
    }

    fn has_same_tree(&self, other: &Self, number: usize) -> bool {
        let tree = |servers: &Self| {
            with_layout!(&servers.trees, |trees| Some(Arc::as_ptr(trees.get(number)?.as_ref()?).cast::<()>()))
        };
        tree(self).is_some() && tree(self) == tree(other)
    }

    /// Returns a copy with one more compute server, which has no keys yet, and its number.
    pub fn grown(&self, shared: &Shared, ep: &AnyEndpoint) -> Result<(Self, usize)> {
        let mut grown = self.clone();
        let former = (0..self.logs.len()).find(|&number| !self.runs(number) && self.logs[number].is_some());
        let log = match former {
            Some(former) => grown.logs[former].take(),
            None => logs::add_log(shared, ep, &self.record.name)?,
        };
        let number = with_layout!(&mut grown.trees, |trees| {
            let layout = trees.iter().flatten().next().ok_or(Error::Closed)?.layout();
            let mut cache = shared.config.cache_config(layout.node_size());
            let tree =
                open_tree(shared, ep, layout, &self.record, KeyRange::none(), &mut cache, log.as_deref())?;
            trees.push(Some(Arc::new(tree)));
            trees.len() - 1
        });
        grown.loads.push(Arc::default());
        grown.logs.push(log);
        Ok((grown, number))
    }

    /// Returns a copy without compute server `number`, which has no keys.
    pub fn without(&self, number: usize) -> Self {
        let mut fewer = self.clone();
        with_layout!(&mut fewer.trees, |trees| trees[number] = None);
        fewer
    }

    /// Checks that this process runs all compute servers.
    ///
    /// # Errors
    /// [`Error::NotAllOwned`].
    pub fn check_runs_all(&self, what: &'static str) -> Result<()> {
        match self.routes.table().owners().iter().position(|&number| !self.runs(number)) {
            Some(partition) => Err(Error::NotAllOwned { what, index: self.record.name.clone(), partition }),
            None => Ok(()),
        }
    }

    pub fn flush(&self, ep: &AnyEndpoint) -> Result<()> {
        with_layout!(&self.trees, |trees| trees.iter().flatten().try_for_each(|tree| flush_tree(ep, tree)))
    }

    /// Counts of the compute servers that have keys, in the order of their keys.
    pub fn stats(&self) -> Vec<ComputeServerStats> {
        let owners = self.routes.table().owners().to_vec();
        let mut all = self.stats_of_all();
        let place = |server: &ComputeServerStats| owners.iter().position(|&owner| owner == server.number);
        all.retain(|server| place(server).is_some());
        all.sort_by_key(place);
        all
    }

    fn stats_of_all(&self) -> Vec<ComputeServerStats> {
        let table = self.routes.table();
        with_layout!(&self.trees, |trees| {
            let running = trees.iter().zip(&self.loads).enumerate();
            let stats = running.filter_map(|(number, (tree, load))| {
                let tree = tree.as_ref()?;
                let cache = tree.cache();
                Some(ComputeServerStats {
                    number,
                    range: table.range_of(number).unwrap_or_else(KeyRange::none),
                    operations: load.load(Relaxed),
                    cache: cache.counts(),
                    cache_bytes: (cache.frames() * cache.node_size() + cache.overhead_bytes()) as u64,
                    frames: cache.frames(),
                    smo: SmoCounts::of(tree.smo_counts()),
                })
            });
            stats.collect()
        })
    }
}

/// Runs `work` with a temporary worker of the tree's cache.
pub(crate) fn with_ctx<L: Layout, T>(
    ep: &AnyEndpoint,
    tree: &Tree<L>,
    work: impl FnOnce(Ctx<'_, AnyEndpoint>) -> Result<T>,
) -> Result<T> {
    let worker = tree.cache().worker();
    let done = work(Ctx { ep, worker: &worker });
    tree.cache().retire(&worker);
    done
}

pub(super) fn flush_tree<L: Layout>(ep: &AnyEndpoint, tree: &Tree<L>) -> Result<()> {
    with_ctx(ep, tree, |ctx| Ok(block_on(ep, tree.flush(ctx)).map(drop)?))
}

/// Opens the tree of the compute server that owns `range`, with a cache of its own.
pub(super) fn open_tree<L: Layout>(
    shared: &Shared,
    ep: &AnyEndpoint,
    layout: L,
    record: &IndexRecord,
    range: KeyRange,
    cache: &mut CacheConfig,
    log: Option<&OpenLog>,
) -> Result<Tree<L>> {
    cache.bytes = cache.bytes.min(log.map_or(u64::MAX, OpenLog::cache_max));
    let cache = Arc::new(Cache::new(cache)?);
    let mut config = TreeConfig::new(record.id, record.root);
    config.subtree_level = record.subtree_level;
    config.range = range;
    config.patience_ns = shared.config.patience_ns();
    config.read_ahead = shared.config.read_ahead;
    config.whole_leaves = shared.config.whole_leaves;
    config.offloading = Offloading::with_policy(shared.config.offload);
    config.log = log.map(|log| Arc::clone(&log.log));
    let worker = cache.worker();
    let ctx = Ctx { ep, worker: &worker };
    let tree = block_on(ep, Tree::open(ctx, Arc::clone(&cache), shared.pool.clone(), layout, config));
    cache.retire(&worker);
    Ok(tree?)
}

/// Opens the whole index for one piece of work. No process has it open or has dirty nodes of it.
pub(super) fn open_passing<L: Layout>(
    shared: &Shared,
    ep: &AnyEndpoint,
    layout: L,
    record: &IndexRecord,
) -> Result<Tree<L>> {
    let node_size = layout.node_size();
    let mut cache = CacheOptions::default().config(PASSING_FRAMES * node_size as u64, node_size);
    open_tree(shared, ep, layout, record, KeyRange::all(), &mut cache, None)
}

/// Audits an index that no process has open.
pub(crate) fn audit_whole<L: Layout>(
    shared: &Shared,
    ep: &AnyEndpoint,
    layout: L,
    record: &IndexRecord,
) -> Result<Report> {
    let tree = open_passing(shared, ep, layout, record)?;
    Ok(block_on(ep, audit(ep, &[&tree]))?)
}

/// All blocks of the index, to be freed.
///
/// # Errors
/// [`Error::BadIndex`] if the index is damaged.
pub(crate) fn blocks_of<L: Layout>(
    shared: &Shared,
    ep: &AnyEndpoint,
    layout: L,
    record: &IndexRecord,
) -> Result<Blocks> {
    let report = audit_whole(shared, ep, layout, record)?;
    match report.violations.into_iter().next() {
        None => Ok(report.blocks),
        Some(reason) => Err(Error::BadIndex { name: record.name.clone(), reason }),
    }
}

pub(crate) fn free_blocks(shared: &Shared, ep: &AnyEndpoint, blocks: &Blocks) -> Result<()> {
    for (addr, bytes) in blocks.iter() {
        block_on(ep, shared.pool.free(ep, addr, bytes))?;
    }
    Ok(())
}
