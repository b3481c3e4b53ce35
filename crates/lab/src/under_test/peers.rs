//! The designs to compare with, on a cluster of the laboratory or of this machine: a view of the index for each compute server.
//!
//! All compute servers share everything, unless keys are divided among them; then a key of another one is served by that one's
//! view, as everywhere in the laboratory. The state of a thread is its compute server's number. [`PeerTree`] hides the differences
//! between the designs.

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
use crate::bench::{BenchError, BenchSpec};

/// One compute server's view of an index, shared by its threads.
pub trait PeerTree: Sized + Sync {
    type Error: Error + 'static;
    /// How an index is made, and how each compute server uses it.
    type Config: Sync;

    /// Makes an empty index and opens it for each of `servers` compute servers; with `ranges`, each has the keys of one.
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

    /// In ascending order, whatever the range says.
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

    /// Audits the whole index, and lists all of its blocks, including those that wait to be freed.
    fn audit_all<E: Endpoint>(
        trees: &[Self],
        ep: &E,
    ) -> impl Future<Output = Result<(Audited, Blocks), Self::Error>>;

    /// Ends the use of the index by all compute servers; the blocks that are left of it.
    fn close_all<E: Endpoint>(trees: Vec<Self>, ep: &E) -> impl Future<Output = Result<Blocks, Self::Error>>;
}

/// The operations of a peer that its tree offers under the same names.
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
/// Blocks of a pool and their bytes.
pub type Blocks = Vec<(GlobalAddr, u64)>;

/// An index with all its compute servers.
pub struct Peers<T> {
    pool: Pool,
    /// Where the keys of the second compute server begin, and so on; `None` if everything is shared.
    boundaries: Option<Vec<Vec<u8>>>,
    /// By compute server.
    trees: Vec<T>,
    /// Blocks of the pool that were allocated before the index was made.
    before: u64,
}

/// Blocks of a pool that are allocated.
pub async fn allocated<E: Endpoint>(ep: &E, pool: &Pool) -> Result<u64, PoolError> {
    Ok(pool.usage(ep).await?.iter().map(|usage| usage.blocks_allocated).sum())
}

/// A fault in the allocation of an index, with numbers of blocks.
#[derive(Debug, thiserror::Error)]
pub enum BlockFault {
    #[error("{0} blocks of the index are listed twice")]
    Twice(u64),
    #[error("the index has {own} blocks, of which {free} are free")]
    Free { own: u64, free: u64 },
    #[error("{leaked} of {used} blocks belong to nothing")]
    Leaked { used: u64, leaked: u64 },
}

/// Compares the blocks of an index with the allocation of its pool, of which `before` blocks are not the index's.
///
/// # Errors
/// Those of the fabric.
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
    /// Loads a new index with sorted entries and opens it for each of the compute servers that `boundaries` divide the keys among
    /// if the system divides them.
    ///
    /// # Errors
    /// A full pool; nodes and keys of impossible sizes; errors of the fabric.
    pub async fn load<E: Endpoint>(
        config: &T::Config,
        spec: &BenchSpec,
        ep: &E,
        pool: Pool,
        boundaries: Vec<Vec<u8>>,
        source: &impl SortedSource,
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

/// The entries of a source one by one, though it hands them out. They are fetched a few at a time.
struct Pulled<'s, S> {
    source: &'s S,
    next: u64,
    fetched: std::vec::IntoIter<Entry>,
    /// Why there are no more of them.
    failed: &'s mut Option<IndexError>,
}

/// Entries that are fetched together.
const FETCHED: u64 = 4096;

impl<'s, S: SortedSource> Pulled<'s, S> {
    fn new(source: &'s S, failed: &'s mut Option<IndexError>) -> Self {
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

impl<S: SortedSource> Iterator for Pulled<'_, S> {
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
    /// The compute server.
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
            // Others may have allocated something meanwhile, or freed it.
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
