//! What a log of each compute server costs (`docs/durability.md`), and copies of memory servers (`docs/replicas.md`). The
//! paper has no such experiment.
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

const WHOLE: &str = "no log, whole leaves";
const OFF: &str = "no log";
const LOG: &str = "log";
const COPIES: &str = "log, 2 copies";
/// Operations in flight on each thread.
const IN_FLIGHT: [usize; 2] = [1, 4];
const READ_ONLY: &str = "read-only";
const WRITE_INTENSIVE: &str = "write-intensive";
const WORKLOADS: [&str; 3] = [READ_ONLY, WRITE_INTENSIVE, "insert-intensive"];

pub(super) const LOG_COSTS: Experiment = Experiment {
    name: "log",
    title: "What a log and copies cost",
    source: OWN,
    shows: "What it costs that nothing answered or read is lost if a compute server dies, and if a memory server does: verbs, \
            traffic, throughput, latency.",
    setting: "The cells of Table 2, without offloading, and one more workload, with and without a log of each compute server. \
              Eight threads share a lane; four bytes of log for each byte of cache, not persisted. Operations in flight on a \
              lane share batches. With two copies of each memory server, both are written. Of a leaf that is not cached, only \
              the words that changed are written; the first series writes it as a whole, as the paper does.",
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
        let changed = |durability, replicas| {
            let spec = setting.spec_of_share(workload, 0.6);
            let whole_leaves = false;
            BenchSpec { offload: OffloadPolicy::Never, whole_leaves, durability, replicas, ..spec }
        };
        let off = changed(Durability::Off, 1);
        let whole = BenchSpec { whole_leaves: true, ..off.clone() };
        let (log, copies) = (changed(Durability::Process, 1), changed(Durability::Process, 2));
        for (series, spec) in [(WHOLE, whole), (OFF, off), (LOG, log), (COPIES, copies)] {
            for (x, slots) in IN_FLIGHT.into_iter().enumerate() {
                cells.push(plot::cell(
                    workload,
                    series,
                    x as f64,
                    slots,
                    BenchSpec { slots, ..spec.clone() },
                ));
            }
        }
    }
    cells
}

fn claims(results: &Results<'_>) -> Vec<Claim> {
    let place = "issue: durability";
    let mut claims = Vec::new();
    let mut add = |series, workload, x: usize, metric: &Metric, most: &'static str| {
        let ours = results.value(workload, series, x as f64, metric).map(|value| metric.show(value));
        let what = format!("{workload}, {} in flight, {series}: {}", IN_FLIGHT[x], metric.title);
        claims.push(claim(what, most, ours, place));
    };
    let many = IN_FLIGHT.len() - 1;
    for (series, writes, traffic) in
        [(LOG, "at most 0.35", "at most 620"), (COPIES, "at most 0.75", "at most 920")]
    {
        add(series, READ_ONLY, many, &WRITES, "0");
        add(series, WRITE_INTENSIVE, many, &WRITES, writes);
        add(series, WRITE_INTENSIVE, many, &TRAFFIC, traffic);
        add(series, WRITE_INTENSIVE, many, &ATOMICS, "0");
        add(series, WRITE_INTENSIVE, 0, &LATENCY_P50, "at most 4");
    }
    for (workload, series) in WORKLOADS.into_iter().flat_map(|workload| [(workload, LOG), (workload, COPIES)])
    {
        for (x, in_flight) in IN_FLIGHT.into_iter().enumerate() {
            let over = |off| results.ratio(workload, at(series, x as f64), at(off, x as f64), &THROUGHPUT);
            // Of the two without a log, the faster one.
            let ours = over(OFF).zip(over(WHOLE)).map(|(off, whole)| off.min(whole));
            let what =
                format!("{workload}, {in_flight} in flight, {series}: throughput over that without a log");
            claims.push(claim(what, "at least 0.75x", times(ours), place));
        }
    }
    claims
}
