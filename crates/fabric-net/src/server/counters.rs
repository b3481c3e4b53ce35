//! What a memory server did, for its operators.
//!
//! Verbs are counted where they are executed, so READs of all clients together. Threads add once per batch of requests.
//! Bytes and connections are counted as those of all servers.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::serve::ConnectionCounts;

/// A moment of the counters of a [`crate::TcpServer`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerCounts {
    pub reads: u64,
    pub writes: u64,
    pub atomics: u64,
    pub calls: u64,
    /// Bytes that came in, and that went out.
    pub bytes_in: u64,
    pub bytes_out: u64,
    /// Connections that are open, whether they have said who they are or not.
    pub connections: u64,
    pub clients: u64,
    /// Connections that were accepted, ever.
    pub accepted: u64,
    /// Connections that did not know the secret, spoke another version, or came when there were too many.
    pub refused: u64,
    /// Connections that were closed because of what they sent, or did not send in time.
    pub expelled: u64,
}

impl ServerCounts {
    /// Those that all servers have.
    pub fn of_connections(&self) -> ConnectionCounts {
        let Self { bytes_in, bytes_out, connections, clients, accepted, refused, expelled, .. } = *self;
        ConnectionCounts { bytes_in, bytes_out, connections, clients, accepted, refused, expelled }
    }
}

#[derive(Debug, Default)]
pub(crate) struct ServerCounters {
    reads: AtomicU64,
    writes: AtomicU64,
    atomics: AtomicU64,
    calls: AtomicU64,
}

/// Verbs of one batch.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Batch {
    pub reads: u64,
    pub writes: u64,
    pub atomics: u64,
    pub calls: u64,
}

impl ServerCounters {
    pub fn add(&self, batch: Batch) {
        let Batch { reads, writes, atomics, calls } = batch;
        let pairs =
            [(&self.reads, reads), (&self.writes, writes), (&self.atomics, atomics), (&self.calls, calls)];
        for (counter, by) in pairs {
            if by > 0 {
                counter.fetch_add(by, Relaxed);
            }
        }
    }

    pub fn snapshot(&self, of_all: ConnectionCounts) -> ServerCounts {
        let ConnectionCounts { bytes_in, bytes_out, connections, clients, accepted, refused, expelled } =
            of_all;
        ServerCounts {
            reads: self.reads.load(Relaxed),
            writes: self.writes.load(Relaxed),
            atomics: self.atomics.load(Relaxed),
            calls: self.calls.load(Relaxed),
            bytes_in,
            bytes_out,
            connections,
            clients,
            accepted,
            refused,
            expelled,
        }
    }
}
