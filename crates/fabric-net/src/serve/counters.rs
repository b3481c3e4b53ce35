//! What a server of any protocol counts: bytes and connections.
//!
//! Connections are counted as they come and go; those that were refused or thrown out are counted apart. What was asked for
//! over them is counted by each service.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A moment of the counters of a [`super::Server`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionCounts {
    /// Bytes that came in, and that went out.
    pub bytes_in: u64,
    pub bytes_out: u64,
    /// Connections that are open, whether they have said who they are or not.
    pub connections: u64,
    /// Those of clients, which have.
    pub clients: u64,
    /// Connections that were accepted, ever.
    pub accepted: u64,
    /// Connections that did not know the secret, spoke another version, or came when there were as many clients as may be.
    pub refused: u64,
    /// Connections that were closed because of what they sent, or did not send in time or before too many other strangers came.
    pub expelled: u64,
}

#[derive(Debug, Default)]
pub(super) struct ConnectionCounters {
    pub bytes_in: AtomicU64,
    pub bytes_out: AtomicU64,
    pub connections: AtomicU64,
    pub clients: AtomicU64,
    pub accepted: AtomicU64,
    pub refused: AtomicU64,
    pub expelled: AtomicU64,
}

impl ConnectionCounters {
    /// Counts one more client, unless there are `max`.
    pub fn admit_client(&self, max: usize) -> bool {
        let more = |clients| (clients < max as u64).then_some(clients + 1);
        self.clients.fetch_update(Relaxed, Relaxed, more).is_ok()
    }

    pub fn snapshot(&self) -> ConnectionCounts {
        ConnectionCounts {
            bytes_in: self.bytes_in.load(Relaxed),
            bytes_out: self.bytes_out.load(Relaxed),
            connections: self.connections.load(Relaxed),
            clients: self.clients.load(Relaxed),
            accepted: self.accepted.load(Relaxed),
            refused: self.refused.load(Relaxed),
            expelled: self.expelled.load(Relaxed),
        }
    }
}
