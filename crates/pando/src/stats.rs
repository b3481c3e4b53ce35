//! What was counted: verbs, caches, structure changes, memory in use.
//!
//! Counters only grow; what a phase cost is the difference of two moments. Sessions publish theirs now and then, so
//! those that are still open may be some operations behind. Nothing here takes a latch of a cache.

use std::ops::{Add, Sub};
use std::sync::{Arc, Mutex};

use pando_cache::CacheCounts;
use pando_dex::KeyRange;
use pando_fabric::VerbCounts;
use pando_pool::ServerUsage;
use pando_rt::block_on;

use crate::cluster::{Cluster, lock};
use crate::error::Result;

/// What this process did and what the pool holds, as [`Cluster::stats`] saw it.
///
/// Counters run from the opening of the cluster on; take the difference of two moments to measure something.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stats {
    /// Verbs of all sessions so far. Those that are still open may have done up to 64 operations more; see
    /// [`crate::Session::publish`].
    pub verbs: VerbCounts,
    /// Verbs of everything else: opening, bulk loads, flushes, checks.
    pub management: VerbCounts,
    /// The open indexes, in the order of their names.
    pub indexes: Vec<IndexStats>,
    /// The memory servers.
    pub pool: Vec<ServerUsage>,
}

/// What the compute servers of one index did.
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
    /// Those that this process runs, in the order of their keys.
    pub compute_servers: Vec<ComputeServerStats>,
    /// All that this process ran before and that were removed.
    pub former: FormerStats,
}

impl IndexStats {
    /// What part of the operations each of the compute servers performed, 0 to 1, in their order.
    pub fn shares(&self) -> Vec<f64> {
        let all: u64 = self.compute_servers.iter().map(|server| server.operations).sum();
        self.compute_servers.iter().map(|server| server.operations as f64 / all.max(1) as f64).collect()
    }
}

/// What compute servers did that are there no more.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct FormerStats {
    pub operations: u64,
    pub cache: CacheCounts,
    pub smo: SmoCounts,
}

/// What one compute server did.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ComputeServerStats {
    /// Its number, as for [`crate::Index::session_of`].
    pub number: usize,
    /// Its keys.
    pub range: KeyRange,
    /// Operations that sessions had it perform. A scan is one for each compute server that it comes to, and a
    /// [`crate::Session::multi_get`] one for each key. Open sessions may have done up to 64 more with it.
    pub operations: u64,
    pub cache: CacheCounts,
    /// Bytes of its cache: frames and bookkeeping.
    pub cache_bytes: u64,
    /// Nodes that its cache holds at most.
    pub frames: usize,
    pub smo: SmoCounts,
}

/// Structure modification operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SmoCounts {
    pub splits: u64,
    pub merges: u64,
    /// Times that the root became higher or lower.
    pub root_changes: u64,
    /// Changes of nodes that several compute servers share.
    pub shared_changes: u64,
    /// Times that stale copies of shared nodes were read anew.
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
    /// The caches of all compute servers together.
    pub fn cache(&self) -> CacheCounts {
        let former = self.indexes.iter().map(|index| index.former.cache);
        self.compute_servers().map(|server| server.cache).chain(former).sum()
    }

    /// The structure changes of all compute servers together.
    pub fn smo(&self) -> SmoCounts {
        let former = self.indexes.iter().map(|index| index.former.smo);
        self.compute_servers().map(|server| server.smo).chain(former).sum()
    }

    fn compute_servers(&self) -> impl Iterator<Item = &ComputeServerStats> {
        self.indexes.iter().flat_map(|index| &index.compute_servers)
    }
}

/// Verbs of sessions as the cluster knows them.
#[derive(Default)]
pub(crate) struct SessionCounts {
    finished: VerbCounts,
    /// What each open session published last.
    open: Vec<Arc<Mutex<VerbCounts>>>,
    pub management: VerbCounts,
}

impl SessionCounts {
    pub fn begin(&mut self) -> Arc<Mutex<VerbCounts>> {
        let counts = Arc::default();
        self.open.push(Arc::clone(&counts));
        counts
    }

    pub fn end(&mut self, counts: &Arc<Mutex<VerbCounts>>) {
        self.finished = self.finished + *lock(counts);
        self.open.retain(|open| !Arc::ptr_eq(open, counts));
    }

    fn sum(&self) -> VerbCounts {
        self.open.iter().fold(self.finished, |sum, open| sum + *lock(open))
    }
}

impl Cluster {
    /// What was counted so far, and how full the memory servers are.
    ///
    /// # Errors
    /// Those of the fabric; [`crate::Error::Closed`].
    pub fn stats(&self) -> Result<Stats> {
        self.shared.check_open()?;
        let pool = self.shared.with_endpoint(|ep| Ok(block_on(ep, self.shared.pool.usage(ep))?))?;
        let open = lock(&self.shared.registry);
        let indexes = open.values().map(|data| data.stats()).collect::<Result<Vec<_>>>()?;
        drop(open);
        let counts = lock(&self.shared.counts);
        Ok(Stats { verbs: counts.sum(), management: counts.management, indexes, pool })
    }
}
