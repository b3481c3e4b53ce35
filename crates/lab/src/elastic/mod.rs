//! An index on a simulated cluster whose keys move between compute servers in use (DEX §8.3, Figure 10).
//!
//! A run measures the throughput of each compute server over virtual time and has no phases. At time 0 the
//! threads start with cold caches. Keys move at planned times, flushed by a number of threads, or a balancer
//! moves boundaries by load. Routers send operations to compute servers, as for real clients. Counts and the
//! auditor show that no operation is lost.
//!
//! There are two kinds of clients ([`Clients`]). In the paper's experiments each compute server's threads
//! draw keys of their own server. Routed clients share all compute servers, so a hot server delays all of
//! them.

mod clients;
mod movers;
mod report;
mod run;

use serde::Serialize;

use crate::bench::BenchError;

pub use report::{ElasticReport, MoveFigures};
pub use run::run;

/// Source of the operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Clients {
    /// Each thread draws keys that its compute server owns.
    OfServers,
    /// Clients that draw from all keys and wait for the owner of each; `per_thread` of them for each thread.
    Routed { per_thread: usize },
}

/// Distribution of operations over the keys.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Spread {
    /// As in the workload.
    Workload,
    /// A `share` of operations goes to a stretch of `width` of all records, which starts at each of `spots`
    /// for an equal part of the run. All are fractions.
    HotSpot { share: f64, width: f64, spots: Vec<f64> },
}

/// Planned move of keys.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PlannedMove {
    pub at_ns: u64,
    pub from: usize,
    pub to: usize,
    /// Fraction of the keys of `from` that moves: the upper ones.
    pub part: f64,
}

/// Specification of a run. Its fields are as in [`BenchSpec`](crate::bench::BenchSpec), whose defaults apply
/// to all settings that are missing here.
#[derive(Clone, Debug, Serialize)]
pub struct ElasticSpec {
    pub memory_servers: usize,
    /// Compute servers with keys at the start, and those without.
    pub compute_servers: usize,
    pub spare_servers: usize,
    /// Per compute server.
    pub threads: usize,
    pub cache_bytes: u64,
    pub subtree_level: u8,
    pub keys: u64,
    pub workload: String,
    pub clients: Clients,
    pub spread: Spread,
    pub moves: Vec<PlannedMove>,
    /// Threads that write back on the compute server that keys leave.
    pub flush_workers: usize,
    /// Time between two checks of the load by a balancer; `None` without one.
    pub balance_every_ns: Option<u64>,
    pub run_ns: u64,
    pub interval_ns: u64,
    pub seed: u64,
}

impl ElasticSpec {
    pub fn all_servers(&self) -> usize {
        self.compute_servers + self.spare_servers
    }

    /// # Errors
    /// The first impossible setting.
    pub fn validate(&self) -> Result<(), BenchError> {
        let invalid = |sentence: &str| Err(BenchError::Invalid(sentence.to_owned()));
        if !(1..=64).contains(&self.flush_workers) {
            return invalid("the number of flushing threads must be from 1 to 64");
        }
        if self.interval_ns == 0 || self.run_ns / self.interval_ns.max(1) > 1 << 20 {
            return invalid("the intervals of a series must not be so short");
        }
        if self.balance_every_ns == Some(0) {
            return invalid("a balancer needs time between two looks at the load");
        }
        if self.balance_every_ns.is_some() && !self.moves.is_empty() {
            return invalid("boundaries move by a plan or by a balancer, not by both");
        }
        let servers = self.all_servers();
        let is_possible = |step: &PlannedMove| {
            step.from != step.to
                && step.from < servers
                && step.to < servers
                && step.part > 0.0
                && step.part <= 1.0
        };
        if !self.moves.iter().all(is_possible) || !self.moves.is_sorted_by_key(|step| step.at_ns) {
            return invalid(
                "moves need two compute servers and a part of the keys, in the order of their times",
            );
        }
        if let Spread::HotSpot { share, width, spots } = &self.spread {
            let is_part = |part: &f64| (0.0..=1.0).contains(part);
            if spots.is_empty()
                || !is_part(share)
                || !is_part(width)
                || *width == 0.0
                || !spots.iter().all(is_part)
            {
                return invalid("a hot spot needs a share, a width and places, all from 0 to 1");
            }
        }
        self.bench().validate()
    }

    /// The benchmark specification of the same cluster and index.
    pub(crate) fn bench(&self) -> crate::bench::BenchSpec {
        crate::bench::BenchSpec {
            fabric: crate::bench::FabricKind::Sim,
            memory_servers: self.memory_servers,
            compute_servers: self.compute_servers,
            threads: self.threads,
            cache_bytes: self.cache_bytes,
            subtree_level: self.subtree_level,
            keys: self.keys,
            workload: self.workload.clone(),
            verify: false,
            seed: self.seed,
            ..crate::bench::BenchSpec::default()
        }
    }
}
