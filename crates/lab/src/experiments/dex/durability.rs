//! What a log of each compute server costs (`docs/durability.md`). The paper has no such experiment.
//!
//! Operations in flight share batches of the log, so their number decides how many WRITEs it adds. The cells of
//! [`PUBLISHED`] are those of Table 2.

use pando::{Durability, OffloadPolicy};

use super::super::cell::{ATOMICS, Cell, LATENCY, LATENCY_P50, READS, THROUGHPUT, TRAFFIC, WRITES};
use super::super::plot;
use super::super::results::at;
use super::super::{Claim, Experiment, Results, Setting};
use super::{COMMON, PARTS, claim, times};
use crate::bench::BenchSpec;

const OFF: &str = "no log";
const LOG: &str = "log";
/// Operations in flight on each thread.
const IN_FLIGHT: [usize; 3] = [1, 4, 16];
/// Workloads of Table 2 of the paper, and two more.
const PUBLISHED: [&str; 2] = ["read-only", PARTS[1]];
const WORKLOADS: [&str; 4] = [PUBLISHED[0], PARTS[0], PUBLISHED[1], "insert-intensive"];

pub(super) const LOG_COSTS: Experiment = Experiment {
    name: "log",
    title: "What a log costs",
    source: "docs/durability.md; no figure of the paper",
    shows: "What it costs that nothing answered or read is lost if a compute server dies: verbs, traffic, throughput, latency.",
    setting: "The cells of Table 2, without offloading, and two more workloads, with and without a log of each compute server. \
              A lane for each thread, four bytes of log for each byte of cache, one copy, not persisted. Operations in flight \
              on a thread share batches of the log.",
    varied: "operations in flight on each thread",
    hundredths: 2,
    metrics: &[READS, WRITES, ATOMICS, TRAFFIC, THROUGHPUT, LATENCY_P50, LATENCY],
    cells,
    claims,
    figure: |results| {
        let bars = |panel, metric, label| plot::bars(results, panel, metric, label);
        let panels = results.panels();
        let writes = panels.iter().map(|panel| bars(panel, &WRITES, "WRITEs of an operation"));
        plot::figure(
            results,
            writes.chain(panels.iter().map(|panel| bars(panel, &THROUGHPUT, plot::MOPS))).collect(),
            "",
        )
    },
    ..COMMON
};

fn cells(setting: &Setting) -> Vec<Cell> {
    let mut cells = Vec::new();
    for workload in WORKLOADS {
        for (series, durability) in [(OFF, Durability::Off), (LOG, Durability::Process)] {
            for (x, slots) in IN_FLIGHT.into_iter().enumerate() {
                let spec = setting.spec_of_share(workload, 0.6);
                let spec = BenchSpec { offload: OffloadPolicy::Never, durability, slots, ..spec };
                cells.push(plot::cell(workload, series, x as f64, slots, spec));
            }
        }
    }
    cells
}

fn claims(results: &Results<'_>) -> Vec<Claim> {
    let place = "issue: durability";
    let x = (IN_FLIGHT.len() - 1) as f64;
    let many = IN_FLIGHT[IN_FLIGHT.len() - 1];
    let of = |workload, metric: &_| results.value(workload, LOG, x, metric);
    let mut claims = Vec::new();
    for (metric, most) in [(WRITES, "0.35 at most"), (TRAFFIC, "620 at most"), (ATOMICS, "0")] {
        let what = format!("{}, {many} in flight: {}", PUBLISHED[1], metric.title);
        let ours = of(PUBLISHED[1], &metric).map(|value| metric.show(value));
        claims.push(claim(what, most, ours, place));
    }
    let ours = of(PUBLISHED[0], &WRITES).map(|value| WRITES.show(value));
    claims.push(claim(format!("{}: WRITEs/op", PUBLISHED[0]), "0", ours, place));
    for workload in WORKLOADS {
        let ours = results.ratio(workload, at(LOG, x), at(OFF, x), &THROUGHPUT);
        let what = format!("{workload}, {many} in flight: throughput with a log over that without");
        claims.push(claim(what, "0.75x at least, with two copies", times(ours), place));
    }
    claims
}
