//! Closing a cluster whose threads are not done yet.
//!
//! [`Cluster::close`] refuses while sessions are open, at once: it cannot know whether one of them is the caller's own. A
//! program that tells its threads to end wants to wait for them instead, for a bounded time, and without new sessions that
//! come in between. No lock of the cluster is held meanwhile, so that what the threads still do goes on.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cluster::{Cluster, lock};
use crate::error::{Error, Result};

impl Cluster {
    /// As [`Cluster::close`], but waits up to `wait` for open sessions to be dropped, and for moves of keys and the like to
    /// end. New sessions are refused with [`Error::Busy`] meanwhile. A session of the calling thread is waited for in vain.
    ///
    /// # Errors
    /// [`Error::SessionsOpen`], or [`Error::Busy`], if something is still open then: the cluster stays open, and sessions can be
    /// opened again. Those of [`Cluster::close`].
    pub fn close_within(&self, wait: Duration) -> Result<()> {
        // What is longer than the clock goes is for ever.
        let forever = Duration::from_secs(u32::MAX.into());
        let end = Instant::now() + wait.min(forever);
        loop {
            let indexes: Vec<_> = lock(&self.shared.registry).values().map(Arc::clone).collect();
            let waiting: Vec<_> = indexes.iter().map(|data| data.await_rest(end)).collect();
            let closed = self.close();
            drop(waiting);
            let may_wait = Instant::now() < end;
            match closed {
                // An index was opened since, or a piece of work has begun.
                Err(Error::SessionsOpen { .. } | Error::Busy { .. }) if may_wait => {}
                done => return done,
            }
        }
    }
}
