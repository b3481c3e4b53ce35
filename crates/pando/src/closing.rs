//! Closing a cluster whose threads may still use it.
//!
//! [`Cluster::close`] fails at once while sessions are open, because one of them may be the caller's own. A
//! program that has told its threads to end needs to wait for them instead, for a bounded time, during which
//! no new session is opened. The wait holds no lock of the cluster, so that the threads can finish their
//! work.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cluster::{Cluster, lock};
use crate::error::{Error, Result};

impl Cluster {
    /// As [`Cluster::close`], but first waits up to `wait` until all open sessions are dropped, and until
    /// moves of keys and exclusive work end. New sessions are refused with [`Error::Busy`] meanwhile. A
    /// session of the calling thread makes the wait futile.
    ///
    /// # Errors
    /// [`Error::SessionsOpen`] or [`Error::Busy`] if an index is still in use afterwards: the cluster stays
    /// open, and sessions can be opened again. Errors of [`Cluster::close`].
    pub fn close_within(&self, wait: Duration) -> Result<()> {
        // Clamp, so that the addition cannot overflow.
        let forever = Duration::from_secs(u32::MAX.into());
        let end = Instant::now() + wait.min(forever);
        loop {
            let indexes: Vec<_> = lock(&self.shared.registry).values().map(Arc::clone).collect();
            let waiting: Vec<_> = indexes.iter().map(|data| data.await_rest(end)).collect();
            let closed = self.close();
            drop(waiting);
            let may_wait = Instant::now() < end;
            match closed {
                // An index was opened meanwhile, or exclusive work has begun.
                Err(Error::SessionsOpen { .. } | Error::Busy { .. }) if may_wait => {}
                done => return done,
            }
        }
    }
}
