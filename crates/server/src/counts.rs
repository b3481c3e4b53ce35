//! Counts of an operation server: operations by kind, their outcomes and their latencies.
//!
//! Operations are counted when they are answered. Those answered "not owned" are counted separately, since
//! another server executes them. Bytes and connections are counted as for all servers.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use pando::remote::wire::Op;
use pando_fabric_net::serve::ConnectionCounts;

use crate::histogram::{Histogram, Latencies};

/// Outcome of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Done,
    NotOwned,
    Failed,
}

#[derive(Debug, Default)]
struct Kind {
    done: AtomicU64,
    not_owned: AtomicU64,
    failed: AtomicU64,
    latencies: Histogram,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    kinds: [Kind; Op::ALL.len()],
}

/// Counts of one kind of operation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OperationKind {
    /// Name of the kind: `get`, `put`, and so on.
    pub name: &'static str,
    pub done: u64,
    /// Operations refused because another process owns the key.
    pub not_owned: u64,
    pub failed: u64,
    pub latencies: Latencies,
}

/// Counts of an operation server.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OperationCounts {
    pub kinds: Vec<OperationKind>,
    pub connections: ConnectionCounts,
}

impl OperationCounts {
    /// Operations of the kind with this name that were done.
    pub fn done(&self, name: &str) -> u64 {
        self.kinds.iter().find(|kind| kind.name == name).map_or(0, |kind| kind.done)
    }

    /// Operations of all kinds that failed.
    pub fn errors(&self) -> u64 {
        self.kinds.iter().map(|kind| kind.failed).sum()
    }
}

impl Counters {
    pub fn add(&self, op: Op, ended: Ended, took: Duration) {
        let kind = &self.kinds[op as usize - 1];
        let counter = match ended {
            Ended::Done => &kind.done,
            Ended::NotOwned => &kind.not_owned,
            Ended::Failed => &kind.failed,
        };
        counter.fetch_add(1, Relaxed);
        kind.latencies.add(took);
    }

    pub fn snapshot(&self, connections: ConnectionCounts) -> OperationCounts {
        let kind = |(op, kind): (Op, &Kind)| OperationKind {
            name: op.name(),
            done: kind.done.load(Relaxed),
            not_owned: kind.not_owned.load(Relaxed),
            failed: kind.failed.load(Relaxed),
            latencies: kind.latencies.snapshot(),
        };
        OperationCounts { kinds: Op::ALL.into_iter().zip(&self.kinds).map(kind).collect(), connections }
    }
}
