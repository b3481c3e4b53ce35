//! What a log of each compute server costs (`docs/durability.md`). The paper has no such experiment.
//!
//! Operations in flight share batches of the log, so their number decides how many WRITEs it adds. The read-only and
//! the write-intensive cells are those of Table 2.

use pando::{Durability, OffloadPolicy};

use super::super::cell::{ATOMICS, Cell, LATENCY, LATENCY_P50, READS, THROUGHPUT, TRAFFIC, WRITES};
use super::super::plot;
use super::super::results::at;
use super::super::{Claim, Experiment, Metric, OWN, Results, Setting};
use super::{COMMON, claim, times};
use crate::bench::BenchSpec;

const OFF: &str = "no log";
const LOG: &str = "log";
/// Operations in flight on each thread.
const IN_FLIGHT: [usize; 2] = [1, 4];
const READ_ONLY: &str = "read-only";
const WRITE_INTENSIVE: &str = "write-intensive";
const WORKLOADS: [&str; 3] = [READ_ONLY, WRITE_INTENSIVE, "insert-intensive"];

pub(super) const LOG_COSTS: Experiment = Experiment {
    name: "log",
    title: "What a log costs",
    source: OWN,
    shows: "What it costs that nothing answered or read is lost if a compute server dies: verbs, traffic, throughput, latency.",
    setting: "The cells of Table 2, without offloading, and one more workload, with and without a log of each compute server. \
              Eight threads share a lane; four bytes of log for each byte of cache, one copy, not persisted. Operations in \
              flight on a lane share batches.",
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
    let mut claims = Vec::new();
    let mut add = |workload, x: usize, metric: &Metric, most: &'static str| {
        let ours = results.value(workload, LOG, x as f64, metric).map(|value| metric.show(value));
        let what = format!("{workload}, {} in flight: {} with a log", IN_FLIGHT[x], metric.title);
        claims.push(claim(what, most, ours, place));
    };
    let many = IN_FLIGHT.len() - 1;
    add(READ_ONLY, many, &WRITES, "0");
    add(WRITE_INTENSIVE, many, &WRITES, "at most 0.35");
    add(WRITE_INTENSIVE, many, &TRAFFIC, "at most 620");
    add(WRITE_INTENSIVE, many, &ATOMICS, "0");
    add(WRITE_INTENSIVE, 0, &LATENCY_P50, "at most 4");
    for workload in WORKLOADS {
        for (x, in_flight) in IN_FLIGHT.into_iter().enumerate() {
            let ours = results.ratio(workload, at(LOG, x as f64), at(OFF, x as f64), &THROUGHPUT);
            let what = format!("{workload}, {in_flight} in flight: throughput with a log over that without");
            claims.push(claim(what, "at least 0.75x", times(ours), place));
        }
    }
    claims
}
