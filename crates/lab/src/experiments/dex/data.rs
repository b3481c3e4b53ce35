//! Figures 16 and 17: size of keys, and skew of their popularity.
//!
//! Keys of more than eight bytes consist of hashed integers. Nodes stay at 1 KiB and caches at their size, so
//! longer keys make the index larger and the cache relatively smaller.

use pando_workload::Distribution;

use super::super::cell::{Cell, THROUGHPUT};
use super::super::plot::{self, Spacing};
use super::super::results::at;
use super::super::{Claim, Experiment, Results, Setting};
use super::{COMMON, PARTS, WORKLOADS, claim, peers, times};
use crate::bench::BenchSpec;

const SERIES: &str = peers::DEX;
/// Systems that are measured with longer keys.
const LONG_KEYED: [&str; 3] = [peers::DEX, peers::SHERMAN, peers::SMART];

pub(super) const FIG16: Experiment = Experiment {
    name: "fig16",
    title: "Throughput over the size of keys",
    source: "DEX, Figure 16, Appendix C",
    shows: "What longer keys cost: fewer fit a node, the index grows, and the cache does not.",
    setting: "144 threads, Zipf 0.99, 256 MiB of cache per compute server, nodes of 1 KiB; the data grows from 2.98 GiB with keys \
              of 8 B to 13.41 GiB with 64 B.",
    varied: "bytes of a key",
    cells: fig16_cells,
    claims: fig16_claims,
    figure: |results| {
        let says = "throughput drops with the size of keys in all workloads, as the index grows and the cache does not; DEX stays ahead \
                    of SMART. The paper has no Sherman here, whose code takes keys of 8 B only.";
        plot::figure(results, plot::throughput_lines(results, Spacing::Names), says)
    },
    ..COMMON
};

const KEY_SIZES: [usize; 4] = [8, 16, 32, 64];

fn fig16_cells(setting: &Setting) -> Vec<Cell> {
    let mut cells = Vec::new();
    for workload in WORKLOADS {
        for key_size in KEY_SIZES {
            let share = if workload == "scan-intensive" { 0.1 } else { 1.0 };
            let spec = BenchSpec { key_size, ..setting.spec_of_share(workload, share) };
            let cell = |name| peers::cell(workload, name, key_size as f64, key_size, spec.clone());
            cells.extend(LONG_KEYED.map(cell));
        }
    }
    cells
}

fn fig16_claims(results: &Results<'_>) -> Vec<Claim> {
    let claims = WORKLOADS.map(|workload| {
        let ours = results.ratio(workload, at(SERIES, 64.0), at(SERIES, 8.0), &THROUGHPUT);
        let what = format!("{workload}: throughput with keys of 64 B over that with 8 B");
        claim(what, "drops", times(ours), "Appendix C")
    });
    let ahead = WORKLOADS.map(|workload| {
        let ours = results.ratio(workload, at(SERIES, 64.0), at(peers::SMART, 64.0), &THROUGHPUT);
        claim(format_args!("{workload}: DEX over SMART, keys of 64 B"), "ahead", times(ours), "Appendix C")
    });
    claims.into_iter().chain(ahead).collect()
}

pub(super) const FIG17: Experiment = Experiment {
    name: "fig17",
    title: "Throughput over the skew of the workload",
    source: "DEX, Figure 17, Appendix C",
    shows: "What it does for the cache that some keys are more popular than others.",
    setting: "144 threads, 256 MiB of cache per compute server; theta of the Zipf distribution. The paper's values of theta \
              are in its figure only; 0.99 is the default.",
    varied: "theta",
    hundredths: 2,
    cells: fig17_cells,
    claims: fig17_claims,
    figure: |results| {
        let says = "the more skewed the workload, the better DEX performs, because more of the hot paths are cached.";
        plot::figure(results, plot::throughput_lines(results, Spacing::Names), says)
    },
    ..COMMON
};

const THETAS: [f64; 6] = [0.5, 0.6, 0.7, 0.8, 0.9, 0.99];
/// Values of theta at which the peers are measured.
const PEER_THETAS: [f64; 3] = [0.5, 0.8, 0.99];

fn fig17_cells(setting: &Setting) -> Vec<Cell> {
    let mut cells = Vec::new();
    for workload in PARTS {
        for theta in THETAS {
            let spec = BenchSpec {
                dist: Some(Distribution::Zipf { theta }),
                ..setting.spec_of_share(workload, 0.6)
            };
            cells.push(plot::cell(workload, SERIES, theta, theta, spec.clone()));
            if PEER_THETAS.contains(&theta) {
                let cell = |name| peers::cell(workload, name, theta, theta, spec.clone());
                cells.extend(peers::PEERS.map(cell));
            }
        }
    }
    cells
}

fn fig17_claims(results: &Results<'_>) -> Vec<Claim> {
    let claims = PARTS.map(|workload| {
        let ours = results.ratio(workload, at(SERIES, 0.99), at(SERIES, 0.5), &THROUGHPUT);
        let what = format!("{workload}: throughput with theta 0.99 over that with 0.5");
        claim(what, "grows with theta", times(ours), "Appendix C")
    });
    let collapse =
        results.ratio("write-intensive", at(peers::SHERMAN, 0.99), at(peers::SHERMAN, 0.5), &THROUGHPUT);
    let what = "write-intensive: Sherman with theta 0.99 over that with 0.5";
    claims.into_iter().chain([claim(what, "collapses", times(collapse), "Appendix C")]).collect()
}
