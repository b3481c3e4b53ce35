//! Tables and figures of the DEX paper, with the numbers of its extended version.
//!
//! Each experiment has its cells, the paper's statements, and a figure. Where the paper leaves a workload or
//! a cache size open, the experiment chooses one and says so in its setting.

mod cooling;
mod data;
mod elasticity;
mod local;
mod offloading;
mod peers;
mod scaling;
mod sizes;
mod table2;

use super::cell::{LATENCY, LEAF_HITS, READS, THROUGHPUT, TRAFFIC, TWO_SIDED, WRITES};
use super::claims::{claim, percent, times};
use super::scale::PAPER_KEYS;
use super::{Experiment, Metric};

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

/// Columns of most tables.
const METRICS: &[Metric] = &[THROUGHPUT, READS, WRITES, TWO_SIDED, TRAFFIC, LEAF_HITS, LATENCY];
/// Compute threads of figures over threads: the cores of a socket, then whole servers.
const THREADS: [usize; 6] = [2, 18, 36, 72, 108, 144];
