//! Counters of a memory server, for its operators.
//!
//! Verbs are counted where they are executed, for all clients together. Threads add once per batch of
//! requests. Bytes and connections are counted as for all servers.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::serve::ConnectionCounts;

/// Snapshot of the counters of a [`crate::TcpServer`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerCounts {
    pub reads: u64,
    pub writes: u64,
    pub atomics: u64,
    pub calls: u64,
    /// Bytes received and sent.
    pub bytes_in: u64,
    pub bytes_out: u64,
    /// Open connections, including those whose handshake is not complete.
    pub connections: u64,
    pub clients: u64,
    /// Connections accepted so far.
    pub accepted: u64,
    /// Connections with a wrong secret or version, or beyond the maximum number of clients.
    pub refused: u64,
    /// Connections closed because of invalid input, a timeout, or too many later strangers.
    pub expelled: u64,
}

impl ServerCounts {
    /// The counters common to all servers.
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

/// Number of verbs of one batch.
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
