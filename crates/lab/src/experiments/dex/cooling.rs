//! Figures 4 and 9: effect of the cooling structure and of leaf admission on throughput.
//!
//! The paper's "single lock that protects the cooling map" is our FIFO queue under a lock: both serialise all
//! coolings and evictions of a compute server.

use pando::OffloadPolicy;

use super::super::cell::{Cell, THROUGHPUT};
use super::super::plot::{self, MOPS, Spacing};
use super::super::results::at;
use super::super::scale::with_threads;
use super::super::{Claim, Experiment, Results, Setting};
use super::{COMMON, PARTS, THREADS, claim, percent, times};
use crate::bench::BenchSpec;
use crate::figure::Figure;

const MAP: &str = "cooling map";
const FIFO: &str = "FIFO queue under one lock";

pub(super) const FIG4: Experiment = Experiment {
    name: "fig4",
    title: "Cooling map against a FIFO queue, over compute threads",
    source: "DEX, Figure 4, §5.2",
    shows: "Whether keeping eviction candidates in many small buckets lets the cache scale, where one queue does not.",
    setting: "144 threads at most, caches of 256 MiB (§8.1), no offloading. The paper names neither workload nor admission. \
              §5.2 speaks of DEX before lazy admission (§5.4) is added to it, and Figure 9 makes the same comparison with \
              every leaf admitted: so here, and beside it with a tenth of the leaves admitted, as DEX is in the end. Then \
              nine of ten misses replace nothing, the queue is asked a tenth as often, and no longer is what limits DEX.",
    estimated: &["hand_over_ns"],
    cells: fig4_cells,
    claims: fig4_claims,
    figure: |results| {
        let says = "with a FIFO queue DEX cannot scale, because every cooling and eviction takes its lock; with the \
                    cooling map it scales.";
        plot::figure(results, plot::throughput_lines(results, Spacing::Numbers), says)
    },
    ..COMMON
};

/// Workload, admission probability and name of each panel.
fn fig4_panels() -> Vec<(&'static str, f64, String)> {
    let mut panels = Vec::new();
    for (admission, name) in [(1.0, "every leaf admitted"), (0.1, "a tenth of the leaves admitted")] {
        panels.extend(PARTS.map(|workload| (workload, admission, format!("{workload}, {name}"))));
    }
    panels
}

fn fig4_cells(setting: &Setting) -> Vec<Cell> {
    let mut cells = Vec::new();
    for (workload, admission, panel) in fig4_panels() {
        for (series, fifo) in [(MAP, false), (FIFO, true)] {
            for threads in THREADS {
                let spec = setting.spec_of_share(workload, 0.4);
                let spec = BenchSpec { offload: OffloadPolicy::Never, ..spec };
                let mut spec = with_threads(spec, setting.threads(threads));
                (spec.cache.fifo, spec.cache.leaf_admission) = (fifo, admission);
                cells.push(plot::cell(&panel, series, threads as f64, threads, spec));
            }
        }
    }
    cells
}

fn fig4_claims(results: &Results<'_>) -> Vec<Claim> {
    let mut claims = Vec::new();
    for (_, admission, panel) in fig4_panels() {
        let says = |paper: &'static str| if admission < 1.0 { "not given" } else { paper };
        for (series, paper) in [(MAP, "scales"), (FIFO, "does not scale")] {
            // Both numbers of threads lie within one compute server; further servers would add their own
            // queues.
            let ours = results.ratio(&panel, at(series, 36.0), at(series, 18.0), &THROUGHPUT);
            let what = format!("{panel}, {series}: throughput of 36 threads over that of 18, on one server");
            claims.push(claim(what, says(paper), times(ours), "§5.2"));
        }
        let ours = results.ratio(&panel, at(MAP, 144.0), at(FIFO, 144.0), &THROUGHPUT);
        let what = format!("{panel}: cooling map over FIFO queue with 144 threads");
        claims.push(claim(what, says("outperforms; 10x in Figure 9"), times(ours), "§5.2"));
    }
    claims
}

const STEPS: [&str; 3] =
    ["single lock, eager admission", "+ cooling map", "+ lazy admission of leaves (10%)"];
/// Cache sizes in MiB.
const SIZES: [u64; 2] = [64, 256];
/// Throughput of the second step divided by that of the first, and of the third by that of the second, by
/// cache size.
const PAPER: [(f64, f64); 2] = [(12.0, 1.25), (10.0, 1.21)];

pub(super) const FIG9: Experiment = Experiment {
    name: "fig9",
    title: "Cooling map and lazy admission, step by step, at two cache sizes",
    source: "DEX, Figure 9, §8.3",
    shows: "What each of the cache's two techniques adds to throughput.",
    setting: "144 threads, no offloading, caches of 64 and 256 MiB (§8.3). The paper names no workload; here \
              write-intensive, as in the ablation beside it. How long the one lock is held was fitted to this figure.",
    varied: "cache of a compute server",
    hundredths: 2,
    cells: fig9_cells,
    claims: fig9_claims,
    figure: fig9_figure,
    ..FIG4
};

fn fig9_cells(setting: &Setting) -> Vec<Cell> {
    let mut cells = Vec::new();
    for (step, series) in STEPS.iter().enumerate() {
        for mib in SIZES {
            let spec = setting.spec_of_share("write-intensive", 0.7);
            let (cache_bytes, offload) = (setting.bytes(mib << 20), OffloadPolicy::Never);
            let mut spec = BenchSpec { cache_bytes, offload, ..spec };
            spec.cache.fifo = step == 0;
            spec.cache.leaf_admission = if step < 2 { 1.0 } else { 0.1 };
            cells.push(plot::cell("", series, mib as f64, format!("{mib} MiB"), spec));
        }
    }
    cells
}

fn fig9_claims(results: &Results<'_>) -> Vec<Claim> {
    let mut claims = Vec::new();
    for (mib, (map, lazy)) in SIZES.into_iter().zip(PAPER) {
        let x = mib as f64;
        let step = |over: usize, under: usize| {
            results.ratio("", at(STEPS[over], x), at(STEPS[under], x), &THROUGHPUT)
        };
        let paper = times(Some(map)).unwrap_or_default();
        claims.push(claim(format_args!("{mib} MiB: cooling map"), paper, times(step(1, 0)), "§8.3"));
        let paper = percent(Some(lazy)).unwrap_or_default();
        claims.push(claim(format_args!("{mib} MiB: lazy admission"), paper, percent(step(2, 1)), "§8.3"));
    }
    claims
}

fn fig9_figure(results: &Results<'_>) -> Figure {
    let mut panel = plot::bars(results, "", &THROUGHPUT, MOPS);
    panel.title = "write-intensive, 144 threads".to_owned();
    let says =
        "the cooling map gives 12x with 64 MiB of cache and 10x with 256; lazy admission adds 25% and 21%.";
    plot::figure(results, vec![panel], says)
}
