//! The designs to compare with, on a cluster of the laboratory or of this machine: a view of the index for each compute server.
//!
//! All compute servers share everything, unless keys are divided among them; then a key of another one is served by that one's
//! view, as everywhere in the laboratory. A thread has nothing of its own but its compute server's number. What one design does
//! otherwise than another is behind [`PeerTree`].

use std::cmp::Ordering;
use std::error::Error;
use std::future::Future;
use std::ops::Range;

use pando::{CacheCounts, IndexError, KeyRange, ScanRange, SmoCounts, SortedSource, VerbCounts};
use pando_dex::partition_of;
use pando_fabric::{Endpoint, GlobalAddr, Nanos};
use pando_pool::{Pool, PoolError};

use super::{Audited, IndexClient, PlacedIndex};
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

    /// What of the index is meant to lie in the memory of NICs.
    fn on_chip(&self) -> Blocks {
        Blocks::new()
    }

    fn smo_counts(&self) -> SmoCounts;

    /// Looks at the whole index; every block that it has, those that wait to be freed included.
    fn audit_all<E: Endpoint>(
        trees: &[Self],
        ep: &E,
    ) -> impl Future<Output = Result<(Audited, Blocks), Self::Error>>;

    /// Ends the use of the index by all compute servers; the blocks that are left of it.
    fn close_all<E: Endpoint>(trees: Vec<Self>, ep: &E) -> impl Future<Output = Result<Blocks, Self::Error>>;
}

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

/// What is wrong with the blocks of an index, by the numbers of blocks.
#[derive(Debug, thiserror::Error)]
pub enum BlockFault {
    #[error("{0} blocks of the index are listed twice")]
    Twice(u64),
    #[error("the index has {own} blocks, of which {free} are free")]
    Free { own: u64, free: u64 },
    #[error("{leaked} of {used} blocks belong to nothing")]
    Leaked { used: u64, leaked: u64 },
}

/// Compares the blocks of an index with what was allocated in its pool since `before` blocks were.
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
                // The first error is the one to report.
                let _ = peers.close(ep, true).await;
                Err(error)
            }
        }
    }

    /// By compute server.
    pub fn trees(&self) -> &[T] {
        &self.trees
    }

    /// Ends the use of the index, of which no thread is left. With `frees`, all that it occupies in its pool is freed.
    ///
    /// # Errors
    /// Those of the fabric.
    pub async fn close<E: Endpoint>(self, ep: &E, frees: bool) -> Result<(), BenchError> {
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

impl<T: PeerTree> PlacedIndex for Peers<T> {
    type Thread = usize;
    type Client<'c, E: Endpoint + 'c>
        = PeerClient<'c, T, E>
    where
        T: 'c;

    fn begin_thread(&self, server: usize) -> usize {
        server
    }

    fn end_thread(&self, _: usize) {}

    fn client<'c, E: Endpoint>(&'c self, ep: &'c E, &server: &'c usize) -> PeerClient<'c, T, E> {
        PeerClient { peers: self, ep, server }
    }

    fn cache_counts(&self) -> CacheCounts {
        self.trees.iter().map(T::cache_counts).sum()
    }

    fn smo_counts(&self) -> SmoCounts {
        self.trees.iter().map(T::smo_counts).sum()
    }

    async fn audit<E: Endpoint>(&self, ep: &E) -> Result<Audited, BenchError> {
        let (mut audited, blocks) = T::audit_all(&self.trees, ep).await.map_err(BenchError::index)?;
        let mut faults =
            check_blocks(ep, &self.pool, self.before, blocks).await.map_err(pando::Error::from)?;
        if self.pool.attached(ep).await.map_err(pando::Error::from)?.len() > 1 {
            // Others may have allocated something meanwhile, or freed it.
            faults.retain(|fault| matches!(fault, BlockFault::Twice(_)));
        }
        audited.violation_count += faults.len() as u64;
        audited.violations.extend(faults.iter().map(BlockFault::to_string));
        Ok(audited)
    }
}

/// One thread's access.
pub struct PeerClient<'c, T, E> {
    peers: &'c Peers<T>,
    ep: &'c E,
    server: usize,
}

impl<T, E> Clone for PeerClient<'_, T, E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, E> Copy for PeerClient<'_, T, E> {}

impl<'c, T: PeerTree, E: Endpoint> PeerClient<'c, T, E> {
    fn tree(&self, key: &[u8]) -> &'c T {
        self.peers.tree(self.server, key)
    }
}

impl<T: PeerTree, E: Endpoint> IndexClient for PeerClient<'_, T, E> {
    type Error = T::Error;
    type Answers = Vec<Option<Vec<u8>>>;

    const CLOCK_IS_FREE: bool = true;

    async fn get_into(&self, key: &[u8], out: &mut Vec<u8>) -> Result<bool, T::Error> {
        self.tree(key).get(self.ep, key, out).await
    }

    async fn put(&self, key: &[u8], value: &[u8]) -> Result<bool, T::Error> {
        self.tree(key).put(self.ep, key, value).await
    }

    async fn update(&self, key: &[u8], value: &[u8]) -> Result<bool, T::Error> {
        self.tree(key).update(self.ep, key, value).await
    }

    async fn insert(&self, key: &[u8], value: &[u8]) -> Result<bool, T::Error> {
        self.tree(key).insert(self.ep, key, value).await
    }

    async fn remove(&self, key: &[u8]) -> Result<bool, T::Error> {
        self.tree(key).remove(self.ep, key).await
    }

    /// In descending order, all of the range is read first.
    async fn scan(
        &self,
        range: &ScanRange<'_>,
        mut visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<usize, T::Error> {
        let tree = &self.peers.trees[self.server];
        if !range.reverse {
            return tree.scan(self.ep, range, visit).await;
        }
        let mut entries = Vec::new();
        let all = ScanRange { limit: usize::MAX, ..*range };
        tree.scan(self.ep, &all, |key, value| {
            entries.push((key.to_vec(), value.to_vec()));
            true
        })
        .await?;
        let mut visited = 0;
        for (key, value) in entries.iter().rev().take(range.limit) {
            visited += 1;
            if !visit(key, value) {
                break;
            }
        }
        Ok(visited)
    }

    async fn multi_get(&self, keys: &[&[u8]], answers: &mut Self::Answers) -> Result<(), T::Error> {
        super::get_each(self, keys, answers).await
    }

    fn answer(answers: &Self::Answers, i: usize) -> Option<&[u8]> {
        answers[i].as_deref()
    }

    async fn pace(&self) {
        self.ep.pace().await;
    }

    fn now(&self) -> Nanos {
        self.ep.now()
    }

    fn verbs(&self) -> VerbCounts {
        self.ep.counters().snapshot()
    }
}
