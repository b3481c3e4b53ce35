//! What an operation server did, for its operators: operations by kind, how they ended, and how long they took.
//!
//! Operations are counted when they are answered. One that is answered "not owned" is counted apart, since its client has
//! somebody else execute it. Bytes and connections are counted as those of all servers.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use pando::remote::wire::Op;
use pando_fabric_net::serve::ConnectionCounts;

use crate::histogram::{Histogram, Latencies};

/// How an operation ended.
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

/// Operations of one kind so far.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OperationKind {
    /// Its name: `get`, `put`, and so on.
    pub name: &'static str,
    pub done: u64,
    /// Those on keys that another process owns.
    pub not_owned: u64,
    pub failed: u64,
    pub latencies: Latencies,
}

/// What an operation server did so far.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OperationCounts {
    pub kinds: Vec<OperationKind>,
    pub connections: ConnectionCounts,
}

impl OperationCounts {
    /// Operations of a kind that were done, by its name.
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
