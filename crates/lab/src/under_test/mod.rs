//! The laboratory's view of an index under test: the one thing that drivers, checks and experiments know of a system.
//!
//! [`IndexClient`] is what a thread does with an index, whichever system it is and whatever carries its verbs: the
//! facade's sessions on the fabrics of this machine ([`pando::AsyncSession`]), a tree on the simulated cluster
//! ([`dex::DexClient`]). [`PlacedIndex`] is a system on a cluster that the laboratory builds itself: it gives clients
//! to threads and is audited. A new system needs both and nothing else. All calls are dispatched statically, so the
//! driver costs an operation nothing that the system does not.

pub mod dex;
mod facade;
pub(crate) mod hosted;
pub mod local;
pub(crate) mod local_tree;
pub mod peers;
pub mod plain;
pub(crate) mod sherman;
pub(crate) mod smart;

pub(crate) use facade::host_now;

use std::future::Future;

use pando::{CacheCounts, ScanRange, SmoCounts, VerbCounts};
use pando_fabric::{Endpoint, Nanos};

use crate::bench::BenchError;

/// One thread's access to an index under test. Copies are the same access; the operations of one may be under way side
/// by side, in the slots of its thread.
///
/// Keys and values are byte strings, keys in the order of their bytes. A failed operation may or may not have happened.
#[allow(async_fn_in_trait, reason = "a client belongs to one thread, and so do its futures")]
pub trait IndexClient: Copy {
    /// Why an operation failed, in a sentence.
    type Error: std::error::Error;
    /// Answers of [`IndexClient::multi_get`], kept for reuse.
    type Answers: Default;

    /// Whether a look at the clock costs nothing, since its time is virtual. Then every operation is timed and every
    /// deadline kept to the operation.
    const CLOCK_IS_FREE: bool;

    /// Appends the value of `key` to `out`; `false` if the key is absent.
    async fn get_into(&self, key: &[u8], out: &mut Vec<u8>) -> Result<bool, Self::Error>;

    /// Stores a value; says whether the key was present before.
    async fn put(&self, key: &[u8], value: &[u8]) -> Result<bool, Self::Error>;

    /// Stores a value under a key that is present; `false`, and nothing changes, if it is absent.
    async fn update(&self, key: &[u8], value: &[u8]) -> Result<bool, Self::Error>;

    /// Stores a value under a key that is absent; `false`, and nothing changes, if it is present.
    async fn insert(&self, key: &[u8], value: &[u8]) -> Result<bool, Self::Error>;

    /// Removes a key; says whether it was present.
    async fn remove(&self, key: &[u8]) -> Result<bool, Self::Error>;

    /// Hands the entries of a range to `visit`, in order, until it returns `false`; how many it was given.
    async fn scan(
        &self,
        range: &ScanRange<'_>,
        visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<usize, Self::Error>;

    /// Looks up all of `keys`; [`IndexClient::answer`] has the values, in their order.
    async fn multi_get(&self, keys: &[&[u8]], answers: &mut Self::Answers) -> Result<(), Self::Error>;

    /// The value of the `i`-th key of a [`IndexClient::multi_get`]; `None` if it is absent.
    fn answer(answers: &Self::Answers, i: usize) -> Option<&[u8]>;

    /// To be awaited after every operation: where time is virtual, a thread whose operations wait for nothing would
    /// run away from the others.
    async fn pace(&self);

    /// Time of the clock that operations are measured by.
    fn now(&self) -> Nanos;

    /// The verbs of this thread so far.
    fn verbs(&self) -> VerbCounts;
}

/// Looks up one key after the other, for systems that do not know how to do better.
async fn get_each<C: IndexClient>(
    client: &C,
    keys: &[&[u8]],
    answers: &mut Vec<Option<Vec<u8>>>,
) -> Result<(), C::Error> {
    answers.clear();
    for key in keys {
        let mut value = Vec::new();
        answers.push(client.get_into(key, &mut value).await?.then_some(value));
    }
    Ok(())
}

/// An index that stands on memory servers of the laboratory's own making, with all its compute servers.
#[allow(async_fn_in_trait, reason = "the futures belong to the thread that made them")]
pub trait PlacedIndex: Sync {
    /// What a thread has of its own besides its endpoint: its share of the caches and the like.
    type Thread;
    type Client<'c, E: Endpoint + 'c>: IndexClient
    where
        Self: 'c;

    /// A thread of compute server `server` begins to use the index.
    fn begin_thread(&self, server: usize) -> Self::Thread;

    /// It does not use the index any more.
    fn end_thread(&self, thread: Self::Thread);

    /// The thread's access to the index. Any key may be asked for; where keys belong to compute servers, those of others are
    /// served as if the thread were one of theirs.
    fn client<'c, E: Endpoint>(&'c self, ep: &'c E, thread: &'c Self::Thread) -> Self::Client<'c, E>;

    /// What the caches of all compute servers counted so far.
    fn cache_counts(&self) -> CacheCounts;

    /// About how many operations went to the keys of each compute server since this was asked before, in the order of their
    /// keys; `None` if nobody counts them.
    fn take_loads(&self) -> Option<Vec<u64>> {
        None
    }

    /// What structure changes there were so far.
    fn smo_counts(&self) -> SmoCounts;

    /// Checks every invariant of the index, and that no block of the pool is leaked. Nothing else may use it meanwhile.
    ///
    /// # Errors
    /// Those of the fabric; everything else that is wrong is in the result.
    fn audit<E: Endpoint>(&self, ep: &E) -> impl Future<Output = Result<Audited, BenchError>>;
}

/// What an audit found.
#[derive(Clone, Debug, Default)]
pub struct Audited {
    /// The first violations, a sentence each.
    pub violations: Vec<String>,
    /// All of them.
    pub violation_count: u64,
    pub entries: u64,
    pub leaves: u64,
    pub inner_nodes: u64,
    /// Levels; 1 if the root is a leaf.
    pub height: u32,
    /// Mean share of a leaf's room that is used, 0 to 1.
    pub leaf_fullness: f64,
}
