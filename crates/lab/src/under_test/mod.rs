//! An index under test, as drivers, checks and experiments use it.
//!
//! [`SystemUnderTest`] is one index of any design with all its compute servers. A thread accesses it by a
//! [`Port`]: an endpoint of a simulated cluster or of this machine, or a session of the facade. A new design
//! only implements [`SystemUnderTest`]. All calls are dispatched statically, so that an operation has only
//! the cost of the index.

pub mod dex;
pub(crate) mod facade;
pub mod local;
pub(crate) mod local_tree;
pub mod peers;
pub mod plain;
mod port;
pub(crate) mod sherman;
pub(crate) mod smart;

pub(crate) use port::{Connect, HostPort, host_now};
pub use port::{EndpointPort, Port, SimPort};

use std::future::Future;

use pando::{BalancerConfig, CacheCounts, ScanRange, SmoCounts};

use crate::spec::BenchError;

/// An index with all its compute servers, shared by all threads of a run. `P` is the port of a thread.
///
/// Keys and values are byte strings; keys are ordered by their bytes. A failed operation may or may not have
/// taken effect. Any thread may use any key; if keys belong to compute servers, the owner performs the
/// operation.
#[allow(async_fn_in_trait, reason = "a future belongs to the thread that made it")]
pub trait SystemUnderTest<P>: Sync + Sized {
    /// Reason of a failed operation, in a sentence.
    type Error: std::error::Error;
    /// State of one thread, such as its parts of the caches.
    type Thread;

    /// Starts a thread of compute server `server`.
    fn begin_thread(&self, server: usize) -> Self::Thread;

    /// Ends a thread.
    fn end_thread(&self, _: Self::Thread) {}

    /// Appends the value of `key` to `out`; `false` if the key is absent.
    fn get(
        at: Client<'_, Self, P>,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> impl Future<Output = Result<bool, Self::Error>>;

    /// Stores a value; `true` if the key was present before.
    fn put(
        at: Client<'_, Self, P>,
        key: &[u8],
        value: &[u8],
    ) -> impl Future<Output = Result<bool, Self::Error>>;

    /// Stores a value under a key that is present; `false`, and nothing changes, if it is absent.
    fn update(
        at: Client<'_, Self, P>,
        key: &[u8],
        value: &[u8],
    ) -> impl Future<Output = Result<bool, Self::Error>>;

    /// Passes the entries of a range to `visit`, in order, until it returns `false`; returns their number.
    fn scan(
        at: Client<'_, Self, P>,
        range: &ScanRange<'_>,
        visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> impl Future<Output = Result<usize, Self::Error>>;

    /// Looks up all of `keys`, by default one after the other. The answers are in the same order.
    async fn multi_get(
        at: Client<'_, Self, P>,
        keys: &[&[u8]],
        answers: &mut Answers,
    ) -> Result<(), Self::Error> {
        let (list, mut value) = (&mut answers.by_key, Vec::new());
        list.reset(keys.len());
        for (i, key) in keys.iter().enumerate() {
            value.clear();
            let found = Self::get(at, key, &mut value).await?;
            list.set(i, found.then_some(&value));
        }
        Ok(())
    }

    /// Counters of all compute servers.
    ///
    /// # Errors
    /// The index is closed.
    fn counts(&self) -> Result<SystemCounts, BenchError>;

    /// Moves boundaries by the load since the last call; returns the number of moves.
    ///
    /// # Errors
    /// Errors of the fabric.
    fn balance(&self, _: &mut Balancer) -> Result<usize, BenchError> {
        Ok(0)
    }

    /// Checks all invariants of the index, and that no block of the pool is leaked. The index must be at
    /// rest.
    ///
    /// # Errors
    /// Errors of the fabric; violations are in the result.
    fn audit(&self, connect: &Connect<'_, P>) -> Result<Audited, BenchError>;

    /// Ends the use of the index after the end of all threads. With `frees`, frees its memory in the pool.
    ///
    /// # Errors
    /// Errors of the fabric.
    fn close(self, _: &Connect<'_, P>, frees: bool) -> Result<(), BenchError> {
        let _ = frees;
        Ok(())
    }
}

/// Moves boundaries by load.
pub type Balancer = pando::Balancer;

/// Makes a balancer with default settings.
pub(crate) fn balancer() -> Balancer {
    Balancer::new(BalancerConfig::default())
}

/// Answers of [`SystemUnderTest::multi_get`], kept for reuse.
#[derive(Default)]
pub struct Answers {
    /// Answers of the facade.
    pub by_session: Option<pando::Answers>,
    /// Answers of all other systems.
    pub by_key: pando_dex::Answers,
}

impl Answers {
    /// Value of the `i`-th key; `None` if it is absent.
    #[inline]
    pub fn get(&self, i: usize) -> Option<&[u8]> {
        match &self.by_session {
            Some(answers) => answers.get(i),
            None => self.by_key.get(i),
        }
    }
}

/// Counters of all compute servers of an index.
#[derive(Clone, Debug, Default)]
pub struct SystemCounts {
    pub cache: CacheCounts,
    pub smo: SmoCounts,
    /// Operations by compute server since the last call, in the order of their keys; `None` if they are not
    /// counted. On the simulated cluster these are estimates from a sample of the keys.
    pub loads: Option<Vec<u64>>,
}

/// Result of an audit.
#[derive(Clone, Debug, Default)]
pub struct Audited {
    /// The first violations, one sentence each.
    pub violations: Vec<String>,
    /// Number of all violations.
    pub violation_count: u64,
    pub entries: u64,
    pub leaves: u64,
    pub inner_nodes: u64,
    /// Number of levels; 1 if the root is a leaf.
    pub height: u32,
    /// Mean used fraction of a leaf's room, 0 to 1.
    pub leaf_fullness: f64,
}

/// One thread's access to an index: the index, the thread's port and the thread's state.
pub(crate) struct Client<'c, S: SystemUnderTest<P>, P> {
    pub system: &'c S,
    pub port: &'c P,
    pub own: &'c S::Thread,
}

impl<S: SystemUnderTest<P>, P> Clone for Client<'_, S, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S: SystemUnderTest<P>, P> Copy for Client<'_, S, P> {}

/// Operations of the index, each within its time limit. Each entry that a scan returns renews the limit.
impl<S: SystemUnderTest<P>, P: Port> Client<'_, S, P> {
    #[inline]
    pub fn get(&self, key: &[u8], out: &mut Vec<u8>) -> impl Future<Output = Result<bool, S::Error>> {
        self.port.limited(S::get(*self, key, out))
    }

    #[inline]
    pub fn put(&self, key: &[u8], value: &[u8]) -> impl Future<Output = Result<bool, S::Error>> {
        self.port.limited(S::put(*self, key, value))
    }

    #[inline]
    pub fn update(&self, key: &[u8], value: &[u8]) -> impl Future<Output = Result<bool, S::Error>> {
        self.port.limited(S::update(*self, key, value))
    }

    #[inline]
    pub fn scan(
        &self,
        range: &ScanRange<'_>,
        mut visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> impl Future<Output = Result<usize, S::Error>> {
        let visit = move |key: &[u8], value: &[u8]| {
            self.port.renew_limit();
            visit(key, value)
        };
        self.port.limited(S::scan(*self, range, visit))
    }

    #[inline]
    pub fn multi_get(
        &self,
        keys: &[&[u8]],
        answers: &mut Answers,
    ) -> impl Future<Output = Result<(), S::Error>> {
        self.port.limited(S::multi_get(*self, keys, answers))
    }
}
