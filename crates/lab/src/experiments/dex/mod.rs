//! Tables and figures of the DEX paper, with the numbers of its extended version.
//!
//! Each experiment has its cells, the paper's statements, and a figure. Where the paper leaves a workload or
//! a cache size open, the experiment chooses one and says so in its setting.

mod cooling;
mod data;
mod durability;
mod elasticity;
mod local;
mod many_servers;
mod offloading;
mod peers;
mod scaling;
mod sizes;
mod table2;

use pando_workload::Distribution;

use super::cell::{LATENCY, LEAF_HITS, READS, THROUGHPUT, TRAFFIC, TWO_SIDED, WRITES};
use super::claims::{claim, percent, times};
use super::plot;
use super::scale::{PAPER_KEYS, SKEWED};
use super::{Cluster, Experiment, Metric, Place, Setting};

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
    durability::LOG_COSTS,
    many_servers::SCALE,
];

/// Columns of most tables.
const METRICS: &[Metric] = &[THROUGHPUT, READS, WRITES, TWO_SIDED, TRAFFIC, LEAF_HITS, LATENCY];
/// Compute threads of figures over threads: the cores of a socket, then whole servers.
const THREADS: [usize; 6] = [2, 18, 36, 72, 108, 144];
/// Workloads of Table 1 of the paper.
const WORKLOADS: [&str; 5] =
    ["read-only", "read-intensive", "write-intensive", "insert-intensive", "scan-intensive"];
/// Workloads of experiments with two panels.
const PARTS: [&str; 2] = ["read-intensive", "write-intensive"];
const DISTRIBUTIONS: [(&str, Distribution); 2] = [("skewed", SKEWED), ("uniform", Distribution::Uniform)];

/// Fields that most experiments share.
const COMMON: Experiment = Experiment {
    name: "",
    title: "",
    source: "",
    shows: "",
    setting: "",
    varied: "compute threads",
    fitted: &["spinner_ns"],
    estimated: &["hand_over_ns", "dispatch_ns"],
    place: Place::CLUSTER,
    cluster: Some(Cluster::DEX),
    sizes: Setting::describe,
    hundredths: 1,
    records: PAPER_KEYS,
    metrics: METRICS,
    cells: |_| Vec::new(),
    claims: |_| Vec::new(),
    figure: |results| plot::figure(results, Vec::new(), ""),
};
