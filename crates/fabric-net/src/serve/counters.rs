//! Counters of a server of any protocol: bytes and connections.
//!
//! Connections are counted when they open and close; refused and expelled ones are counted separately.
//! Requests are counted by each service.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Snapshot of the counters of a [`super::Server`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionCounts {
    /// Bytes received and sent.
    pub bytes_in: u64,
    pub bytes_out: u64,
    /// Open connections, including those whose handshake is not complete.
    pub connections: u64,
    /// Open connections of admitted clients.
    pub clients: u64,
    /// Connections accepted so far.
    pub accepted: u64,
    /// Connections with a wrong secret or version, or beyond the maximum number of clients.
    pub refused: u64,
    /// Connections closed because of invalid input, a timeout, or too many later strangers.
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
    /// Counts one more client, unless there are already `max`.
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
