//! The facade's index as a system under test: the users' interface, on the fabrics of this machine.
//!
//! Time is the host's, and threads run in parallel, so no pacing is needed. Threads access the index by
//! sessions. Each operation is the session's own, inlined.

use std::sync::{Mutex, PoisonError};

use pando::{Cluster, ComputeServerStats, Index, ScanRange, Session};

use super::{Answers, Audited, Balancer, Client, Connect, SystemCounts, SystemUnderTest};
use crate::spec::BenchError;

/// An index of the facade in a cluster.
pub(crate) struct Facade {
    cluster: Cluster,
    index: Index,
    /// The pool is shared with other processes.
    is_guest: bool,
    /// Operations of the compute servers at the last call of `counts`.
    last: Mutex<Vec<ComputeServerStats>>,
}

impl Facade {
    pub fn new(cluster: Cluster, index: Index, is_guest: bool) -> Self {
        Self { cluster, index, is_guest, last: Mutex::default() }
    }
}

type At<'c> = Client<'c, Facade, Session>;

impl SystemUnderTest<Session> for Facade {
    type Error = pando::Error;
    type Thread = ();

    fn begin_thread(&self, _: usize) {}

    #[inline]
    async fn get(at: At<'_>, key: &[u8], out: &mut Vec<u8>) -> pando::Result<bool> {
        at.port.futures().get_into(key, out).await
    }

    #[inline]
    async fn put(at: At<'_>, key: &[u8], value: &[u8]) -> pando::Result<bool> {
        at.port.futures().put(key, value).await
    }

    #[inline]
    async fn update(at: At<'_>, key: &[u8], value: &[u8]) -> pando::Result<bool> {
        at.port.futures().update(key, value).await
    }

    #[inline]
    async fn scan(
        at: At<'_>,
        range: &ScanRange<'_>,
        visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> pando::Result<usize> {
        at.port.futures().scan(range, visit).await
    }

    #[inline]
    async fn multi_get(at: At<'_>, keys: &[&[u8]], answers: &mut Answers) -> pando::Result<()> {
        at.port.futures().multi_get(keys, answers.by_session.get_or_insert_default()).await
    }

    fn counts(&self) -> Result<SystemCounts, BenchError> {
        let stats = self.cluster.stats()?;
        let (cache, smo) = (stats.cache(), stats.smo());
        let servers = stats.indexes.into_iter().next().map_or(Vec::new(), |index| index.compute_servers);
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let loads = servers.iter().map(|server| {
            let earlier = last.iter().find(|earlier| earlier.number == server.number);
            server.operations - earlier.map_or(0, |earlier| earlier.operations)
        });
        let loads = Some(loads.collect());
        *last = servers;
        Ok(SystemCounts { cache, smo, loads })
    }

    fn balance(&self, balancer: &mut Balancer) -> Result<usize, BenchError> {
        Ok(self.index.balance(balancer)?)
    }

    fn audit(&self, _: &Connect<'_, Session>) -> Result<Audited, BenchError> {
        let name = self.index.name();
        let report = match self.cluster.check() {
            // Others have indexes in this pool, so only this one is checked.
            Err(pando::Error::NotAlone { .. }) if self.is_guest => self.cluster.check_index(name)?,
            report => report?,
        };
        let mut audited = Audited {
            violations: report.violations,
            violation_count: report.violation_count,
            ..Audited::default()
        };
        if let Some(index) = report.indexes.iter().find(|index| index.name == name) {
            audited.entries = index.entries;
            audited.leaves = index.leaves;
            audited.inner_nodes = index.inner_nodes;
            audited.height = index.height;
            audited.leaf_fullness = index.leaf_fullness;
        }
        Ok(audited)
    }

    fn close(self, _: &Connect<'_, Session>, frees: bool) -> Result<(), BenchError> {
        if frees {
            self.cluster.drop_index(self.index.name())?;
        }
        Ok(())
    }
}
