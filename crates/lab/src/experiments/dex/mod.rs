//! Tables and figures of the DEX paper, by the numbers of its extended version.
//!
//! Each has its cells, what the paper says of them, and a figure. What the paper leaves open (a workload, a cache size) is
//! chosen, and said so in the setting.

mod cooling;
mod data;
mod elasticity;
mod local;
mod offloading;
mod peers;
mod scaling;
mod sizes;
mod table2;

use std::fmt::Display;

use super::cell::{LATENCY, LEAF_HITS, READS, THROUGHPUT, TRAFFIC, TWO_SIDED, WRITES};
use super::{Claim, Experiment, Metric};

pub(super) const EXPERIMENTS: &[Experiment] = &[
    table2::TABLE2,
    cooling::FIG4,
    offloading::FIG5,
    scaling::FIG6,
    scaling::FIG7,
    offloading::FIG8,
    cooling::FIG9,
    elasticity::FIG10,
    local::FIG11,
    sizes::FIG12,
    offloading::FIG13,
    scaling::FIG15,
    data::FIG16,
    data::FIG17,
    sizes::FIG18,
    elasticity::BALANCE,
];

/// The columns of most tables.
const METRICS: &[Metric] = &[THROUGHPUT, READS, WRITES, TWO_SIDED, TRAFFIC, LEAF_HITS, LATENCY];
/// Compute threads of figures over threads: a socket's worth, then whole servers.
const THREADS: [usize; 6] = [2, 18, 36, 72, 108, 144];

fn claim(what: impl Display, paper: impl Display, ours: Option<String>, place: &'static str) -> Claim {
    Claim { what: what.to_string(), paper: paper.to_string(), ours, place }
}

/// A ratio as a factor.
fn times(ratio: Option<f64>) -> Option<String> {
    ratio.map(|ratio| if ratio < 10.0 { format!("{ratio:.2}x") } else { format!("{ratio:.1}x") })
}

/// A ratio as what it adds.
fn percent(ratio: Option<f64>) -> Option<String> {
    ratio.map(|ratio| format!("{:+.0}%", (ratio - 1.0) * 100.0))
}
