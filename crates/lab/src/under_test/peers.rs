//! Peers on a cluster of the laboratory or of this machine: one view of the index for each compute server.
//!
//! All compute servers share all keys, unless keys are divided among them; then the view of the owner
//! performs the operations of a key. The state of a thread is the number of its compute server. [`PeerTree`]
//! hides the differences between the designs.

use std::cmp::Ordering;
use std::error::Error;
use std::future::Future;
use std::ops::Range;

use pando::{CacheCounts, IndexError, KeyRange, ScanRange, SmoCounts, SortedSource};
use pando_dex::partition_of;
use pando_fabric::{Endpoint, GlobalAddr};
use pando_pool::{Pool, PoolError};
use pando_rt::block_on;

use super::{Audited, Client, Connect, EndpointPort, SystemCounts, SystemUnderTest};
use crate::spec::{BenchError, BenchSpec};

/// One compute server's view of an index, shared by its threads.
pub trait PeerTree: Sized + Sync {
    type Error: Error + 'static;
    /// Parameters for making an index, and for its use by each compute server.
    type Config: Sync;

    /// Makes an empty index and opens it for `servers` compute servers; with `ranges`, each owns the keys of
    /// one range.
    fn open_all<E: Endpoint>(
        config: &Self::Config,
        ep: &E,
        pool: &Pool,
        servers: usize,
        ranges: Option<&[KeyRange]>,
    ) -> impl Future<Output = Result<Vec<Self>, Self::Error>>;

    /// Loads sorted entries into the empty index.
    fn load<E: Endpoint>(
        &self,
        spec: &BenchSpec,
        ep: &E,
        entries: impl Iterator<Item = Entry>,
    ) -> impl Future<Output = Result<u64, Self::Error>>;

    fn get<E: Endpoint>(
        &self,
        ep: &E,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> impl Future<Output = Result<bool, Self::Error>>;

    fn put<E: Endpoint>(
        &self,
        ep: &E,
        key: &[u8],
        value: &[u8],
    ) -> impl Future<Output = Result<bool, Self::Error>>;

    fn update<E: Endpoint>(
        &self,
        ep: &E,
        key: &[u8],
        value: &[u8],
    ) -> impl Future<Output = Result<bool, Self::Error>>;

    fn insert<E: Endpoint>(
        &self,
        ep: &E,
        key: &[u8],
        value: &[u8],
    ) -> impl Future<Output = Result<bool, Self::Error>>;

    fn remove<E: Endpoint>(&self, ep: &E, key: &[u8]) -> impl Future<Output = Result<bool, Self::Error>>;

    /// Scans in ascending order, ignoring the direction of the range.
    fn scan<E: Endpoint>(
        &self,
        ep: &E,
        range: &ScanRange<'_>,
        visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> impl Future<Output = Result<usize, Self::Error>>;

    fn cache_counts(&self) -> CacheCounts;

    /// Blocks to place in NIC memory.
    fn on_chip(&self) -> Blocks {
        Blocks::new()
    }

    fn smo_counts(&self) -> SmoCounts;

    /// Audits the whole index. Lists all of its blocks, including those that wait to be freed.
    fn audit_all<E: Endpoint>(
        trees: &[Self],
        ep: &E,
    ) -> impl Future<Output = Result<(Audited, Blocks), Self::Error>>;

    /// Ends the use of the index by all compute servers; returns its remaining blocks.
    fn close_all<E: Endpoint>(trees: Vec<Self>, ep: &E) -> impl Future<Output = Result<Blocks, Self::Error>>;
}

/// The operations that the tree of a peer offers with the same names and signatures.
macro_rules! operations_of {
    ($tree:ty) => {
        async fn get<E: Endpoint>(&self, ep: &E, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
            <$tree>::get(self, ep, key, out).await
        }

        async fn put<E: Endpoint>(&self, ep: &E, key: &[u8], value: &[u8]) -> Result<bool> {
            <$tree>::put(self, ep, key, value).await
        }

        async fn update<E: Endpoint>(&self, ep: &E, key: &[u8], value: &[u8]) -> Result<bool> {
            <$tree>::update(self, ep, key, value).await
        }

        async fn insert<E: Endpoint>(&self, ep: &E, key: &[u8], value: &[u8]) -> Result<bool> {
            <$tree>::insert(self, ep, key, value).await
        }

        async fn remove<E: Endpoint>(&self, ep: &E, key: &[u8]) -> Result<bool> {
            <$tree>::remove(self, ep, key).await
        }
    };
}
pub(super) use operations_of;

/// A key and its value.
pub type Entry = (Vec<u8>, Vec<u8>);
/// Blocks of a pool with their bytes.
pub type Blocks = Vec<(GlobalAddr, u64)>;

/// An index with all its compute servers.
pub struct Peers<T> {
    pool: Pool,
    /// First keys of the second and further compute servers; `None` if all keys are shared.
    boundaries: Option<Vec<Vec<u8>>>,
    /// By compute server.
    trees: Vec<T>,
    /// Blocks of the pool that were allocated before the index was made.
    before: u64,
}

/// Number of allocated blocks of a pool.
pub async fn allocated<E: Endpoint>(ep: &E, pool: &Pool) -> Result<u64, PoolError> {
    Ok(pool.usage(ep).await?.iter().map(|usage| usage.blocks_allocated).sum())
}

/// A mismatch between an index and the allocation of its pool, with numbers of blocks.
#[derive(Debug, thiserror::Error)]
pub enum BlockFault {
    #[error("{0} blocks of the index are listed twice")]
    Twice(u64),
    #[error("the index has {own} blocks, of which {free} are free")]
    Free { own: u64, free: u64 },
    #[error("{leaked} of {used} blocks belong to nothing")]
    Leaked { used: u64, leaked: u64 },
}

/// Compares the blocks of an index with the allocation of its pool, in which `before` blocks are of other
/// use.
///
/// # Errors
/// Errors of the fabric.
pub async fn check_blocks<E: Endpoint>(
    ep: &E,
    pool: &Pool,
    before: u64,
    mut blocks: Blocks,
) -> Result<Vec<BlockFault>, PoolError> {
    let listed = blocks.len() as u64;
    blocks.sort_unstable();
    blocks.dedup();
    let (used, own) = (allocated(ep, pool).await?.saturating_sub(before), blocks.len() as u64);
    let mut faults = Vec::new();
    if listed > own {
        faults.push(BlockFault::Twice(listed - own));
    }
    match used.cmp(&own) {
        Ordering::Less => faults.push(BlockFault::Free { own, free: own - used }),
        Ordering::Equal => {}
        Ordering::Greater => faults.push(BlockFault::Leaked { used, leaked: used - own }),
    }
    Ok(faults)
}

impl<T: PeerTree> Peers<T> {
    /// Loads a new index with sorted entries and opens it for each compute server. If the system divides the
    /// keys, the compute servers own the partitions that `boundaries` define.
    ///
    /// # Errors
    /// A full pool; nodes and keys of impossible sizes; errors of the fabric.
    pub async fn load<E: Endpoint>(
        config: &T::Config,
        spec: &BenchSpec,
        ep: &E,
        pool: Pool,
        boundaries: Vec<Vec<u8>>,
        source: &dyn SortedSource,
    ) -> Result<Self, BenchError> {
        let before = allocated(ep, &pool).await.map_err(pando::Error::from)?;
        let boundaries = spec.system.is_partitioned().then_some(boundaries);
        let ranges = boundaries.as_deref().map(KeyRange::from_boundaries);
        let trees = T::open_all(config, ep, &pool, spec.compute_servers, ranges.as_deref())
            .await
            .map_err(BenchError::index)?;
        let peers = Self { pool, boundaries, trees, before };
        let mut failed = None;
        let entries = Pulled::new(source, &mut failed);
        let loaded = peers.trees[0].load(spec, ep, entries).await.map_err(BenchError::index);
        match failed.map_or(loaded, |error| Err(BenchError::index(error))) {
            Ok(_) => Ok(peers),
            Err(error) => {
                // Best effort: the first error is the one to report.
                let _ = peers.end(ep, true).await;
                Err(error)
            }
        }
    }

    /// By compute server.
    pub fn trees(&self) -> &[T] {
        &self.trees
    }

    async fn end<E: Endpoint>(self, ep: &E, frees: bool) -> Result<(), BenchError> {
        let blocks = T::close_all(self.trees, ep).await.map_err(BenchError::index)?;
        if frees {
            for (at, bytes) in blocks {
                self.pool.free(ep, at, bytes).await.map_err(pando::Error::from)?;
            }
        }
        Ok(())
    }

    fn tree(&self, server: usize, key: &[u8]) -> &T {
        match &self.boundaries {
            Some(boundaries) => &self.trees[partition_of(boundaries, key)],
            None => &self.trees[server],
        }
    }
}

/// Turns a source, which calls a visitor, into an iterator. Fetches a number of entries at a time.
struct Pulled<'s> {
    source: &'s dyn SortedSource,
    next: u64,
    fetched: std::vec::IntoIter<Entry>,
    /// Error of the source, which ends the iteration.
    failed: &'s mut Option<IndexError>,
}

/// Number of entries that are fetched together.
const FETCHED: u64 = 4096;

impl<'s> Pulled<'s> {
    fn new(source: &'s dyn SortedSource, failed: &'s mut Option<IndexError>) -> Self {
        Self { source, next: 0, fetched: Vec::new().into_iter(), failed }
    }

    fn fetch(&mut self, range: Range<u64>) -> Result<Vec<Entry>, IndexError> {
        let mut entries = Vec::with_capacity((range.end - range.start) as usize);
        self.source.visit(range, &mut |key, value| {
            entries.push((key.to_vec(), value.to_vec()));
            Ok(())
        })?;
        Ok(entries)
    }
}

impl Iterator for Pulled<'_> {
    type Item = Entry;

    fn next(&mut self) -> Option<Entry> {
        if self.fetched.as_slice().is_empty() {
            let range = self.next..(self.next + FETCHED).min(self.source.len());
            if range.is_empty() {
                return None;
            }
            self.next = range.end;
            match self.fetch(range) {
                Ok(entries) => self.fetched = entries.into_iter(),
                Err(error) => {
                    *self.failed = Some(error);
                    self.next = u64::MAX - FETCHED;
                }
            }
        }
        self.fetched.next()
    }
}

type At<'c, T, E> = Client<'c, Peers<T>, EndpointPort<E>>;

impl<T: PeerTree, E: Endpoint> SystemUnderTest<EndpointPort<E>> for Peers<T> {
    type Error = T::Error;
    /// Number of the compute server.
    type Thread = usize;

    fn begin_thread(&self, server: usize) -> usize {
        server
    }

    async fn get(at: At<'_, T, E>, key: &[u8], out: &mut Vec<u8>) -> Result<bool, T::Error> {
        at.system.tree(*at.own, key).get(&at.port.ep, key, out).await
    }

    async fn put(at: At<'_, T, E>, key: &[u8], value: &[u8]) -> Result<bool, T::Error> {
        at.system.tree(*at.own, key).put(&at.port.ep, key, value).await
    }

    async fn update(at: At<'_, T, E>, key: &[u8], value: &[u8]) -> Result<bool, T::Error> {
        at.system.tree(*at.own, key).update(&at.port.ep, key, value).await
    }

    async fn scan(
        at: At<'_, T, E>,
        range: &ScanRange<'_>,
        visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<usize, T::Error> {
        at.system.trees[*at.own].scan(&at.port.ep, range, visit).await
    }

    fn counts(&self) -> Result<SystemCounts, BenchError> {
        Ok(SystemCounts {
            cache: self.trees.iter().map(T::cache_counts).sum(),
            smo: self.trees.iter().map(T::smo_counts).sum(),
            loads: None,
        })
    }

    fn audit(&self, connect: &Connect<'_, EndpointPort<E>>) -> Result<Audited, BenchError> {
        let ep = &connect()?.ep;
        let (mut audited, blocks) = block_on(ep, T::audit_all(&self.trees, ep)).map_err(BenchError::index)?;
        let checked = block_on(ep, check_blocks(ep, &self.pool, self.before, blocks));
        let mut faults = checked.map_err(pando::Error::from)?;
        if block_on(ep, self.pool.attached(ep)).map_err(pando::Error::from)?.len() > 1 {
            // Other processes may have allocated or freed blocks in the meantime.
            faults.retain(|fault| matches!(fault, BlockFault::Twice(_)));
        }
        audited.violation_count += faults.len() as u64;
        audited.violations.extend(faults.iter().map(BlockFault::to_string));
        Ok(audited)
    }

    fn close(self, connect: &Connect<'_, EndpointPort<E>>, frees: bool) -> Result<(), BenchError> {
        let ep = &connect()?.ep;
        block_on(ep, self.end(ep, frees))
    }
}
