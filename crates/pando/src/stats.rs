//! Counters: verbs, caches, structure modifications, memory in use.
//!
//! Counters only grow; the cost of a phase is the difference of two snapshots. Sessions publish theirs every
//! 64 operations, so the counts of open sessions may lag behind. Reading counters takes no latch of a cache.

use std::ops::{Add, Sub};

use pando_cache::CacheCounts;
use pando_dex::KeyRange;
use pando_fabric::VerbCounts;
use pando_pool::ServerUsage;

use crate::copies::Copies;

/// Counts of this process and the state of the pool, as returned by [`crate::Cluster::stats`].
///
/// Counters start when the cluster is opened; the difference of two snapshots measures an interval.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stats {
    /// Verbs of all sessions. Open sessions may have done up to 64 operations that are not counted yet; see
    /// [`crate::Session::publish`].
    pub verbs: VerbCounts,
    /// All other verbs: opening, bulk loads, flushes, checks.
    pub management: VerbCounts,
    /// Open indexes, in the order of their names.
    pub indexes: Vec<IndexStats>,
    /// Usage of the memory servers.
    pub pool: Vec<ServerUsage>,
    /// Which of them has which copies; `None` for a pool without copies.
    pub copies: Option<Copies>,
}

/// Counts of the compute servers of one index.
///
/// ```
/// use pando::{Cluster, Config, IndexOptions};
///
/// let cluster = Cluster::open(Config::embedded().compute_servers(2))?;
/// let index = cluster.create_index("n", &IndexOptions::integers())?;
/// index.integers()?.put(7, 49)?;
/// let stats = cluster.stats()?;
/// assert_eq!(stats.indexes[0].compute_servers[0].operations, 1);
/// assert_eq!(stats.indexes[0].shares(), [1.0, 0.0]);
/// # Ok::<(), pando::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct IndexStats {
    pub name: String,
    /// Compute servers that this process runs, in the order of their keys.
    pub compute_servers: Vec<ComputeServerStats>,
    /// Sum of the compute servers that this process ran earlier and that were removed.
    pub former: FormerStats,
    /// State of its log, if it has one.
    pub log: Option<LogStats>,
}

/// State of the logs of an index: a sum over the compute servers of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogStats {
    /// Number of the last record, counted since the log was made.
    pub records: u64,
    /// Bytes of its blocks, and those in use until the next checkpoint.
    pub bytes: u64,
    pub used_bytes: u64,
}

impl IndexStats {
    /// Share of each compute server in all operations, 0 to 1, in their order.
    pub fn shares(&self) -> Vec<f64> {
        let all: u64 = self.compute_servers.iter().map(|server| server.operations).sum();
        self.compute_servers.iter().map(|server| server.operations as f64 / all.max(1) as f64).collect()
    }
}

/// Counts of compute servers that were removed.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct FormerStats {
    pub operations: u64,
    pub cache: CacheCounts,
    pub smo: SmoCounts,
}

/// Counts of one compute server.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ComputeServerStats {
    /// Number of the compute server, as for [`crate::Index::session_of`].
    pub number: usize,
    /// Keys that it owns.
    pub range: KeyRange,
    /// Operations that it executed for sessions. A scan counts once for each compute server that it visits, a
    /// [`crate::Session::multi_get`] once for each key. Each open session may have executed up to 64 more
    /// that are not counted yet.
    pub operations: u64,
    pub cache: CacheCounts,
    /// Bytes of its cache: frames and bookkeeping.
    pub cache_bytes: u64,
    /// Frames of its cache.
    pub frames: usize,
    pub smo: SmoCounts,
}

/// Structure modification operations (SMOs).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SmoCounts {
    pub splits: u64,
    pub merges: u64,
    /// Changes of the height of the tree.
    pub root_changes: u64,
    /// Changes of shared nodes.
    pub shared_changes: u64,
    /// Refreshes of outdated copies of shared nodes.
    pub refreshes: u64,
}

impl SmoCounts {
    pub(crate) fn of([splits, merges, root_changes, shared_changes, refreshes]: [u64; 5]) -> Self {
        Self { splits, merges, root_changes, shared_changes, refreshes }
    }

    fn zip(self, other: Self, op: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            splits: op(self.splits, other.splits),
            merges: op(self.merges, other.merges),
            root_changes: op(self.root_changes, other.root_changes),
            shared_changes: op(self.shared_changes, other.shared_changes),
            refreshes: op(self.refreshes, other.refreshes),
        }
    }
}

impl Add for SmoCounts {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        self.zip(other, u64::wrapping_add)
    }
}

impl Sub for SmoCounts {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        self.zip(other, u64::wrapping_sub)
    }
}

impl std::iter::Sum for SmoCounts {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::default(), Add::add)
    }
}

impl Stats {
    /// Sum over the caches of all compute servers.
    pub fn cache(&self) -> CacheCounts {
        let former = self.indexes.iter().map(|index| index.former.cache);
        self.compute_servers().map(|server| server.cache).chain(former).sum()
    }

    /// Sum over the structure modifications of all compute servers.
    pub fn smo(&self) -> SmoCounts {
        let former = self.indexes.iter().map(|index| index.former.smo);
        self.compute_servers().map(|server| server.smo).chain(former).sum()
    }

    fn compute_servers(&self) -> impl Iterator<Item = &ComputeServerStats> {
        self.indexes.iter().flat_map(|index| &index.compute_servers)
    }
}
