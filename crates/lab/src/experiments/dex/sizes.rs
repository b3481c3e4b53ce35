//! Figures 12 and 18: size of the cache, and admission of leaves.
//!
//! A cache ratio is the cache of one compute server divided by the bytes of all records, so 256 MiB are about
//! 8% (DEX §8.1). The sweeps use 144 threads (one series 18), whose pages under way take a large share of a
//! small cache.

use super::super::cell::{Cell, THROUGHPUT};
use super::super::plot::{self, MOPS, Spacing};
use super::super::results::at;
use super::super::scale::with_threads;
use super::super::{Claim, Experiment, Results, Setting};
use super::{COMMON, PARTS, claim, peers, percent, times};
use crate::bench::BenchSpec;
use crate::figure::{Figure, Reference, YScale};

const ALL: &str = "DEX, 144 threads";
const SOCKET: &str = "DEX, 18 threads of one server";
/// Cache ratios in percent.
const RATIOS: [u32; 6] = [1, 2, 4, 8, 16, 32];
/// Cache ratios at which the peers are measured.
const PEER_RATIOS: [u32; 3] = [1, 8, 32];
/// Bytes of the paper's 200 million records of 8 B/8 B.
const PAPER_DATA: u64 = 200_000_000 * 16;

pub(super) const FIG12: Experiment = Experiment {
    name: "fig12",
    title: "Throughput over the size of the cache",
    source: "DEX, Figure 12, §8.4",
    shows: "What more cache is good for.",
    setting: "144 threads, Zipf 0.99; the cache of a compute server as a share of the records' 2.98 GiB. 18 threads of one \
              socket beside it, write-intensive.",
    varied: "cache of a compute server / data",
    hundredths: 2,
    cells: fig12_cells,
    claims: fig12_claims,
    figure: |results| {
        let says = "read-intensive throughput grows with the cache; write-intensive throughput grows from 1% to 8% and \
                    falls beyond, where latches of hot nodes become the bottleneck, but not with 18 threads of one \
                    socket.";
        plot::figure(results, plot::throughput_lines(results, Spacing::Names), says)
    },
    ..COMMON
};

fn fig12_cells(setting: &Setting) -> Vec<Cell> {
    let mut cells = Vec::new();
    for (workload, series, threads) in [(PARTS[0], ALL, 144), (PARTS[1], ALL, 144), (PARTS[1], SOCKET, 18)] {
        for ratio in RATIOS {
            let cache_bytes = setting.bytes(PAPER_DATA / 100 * u64::from(ratio));
            let spec = |share| {
                let spec = BenchSpec { cache_bytes, ..setting.spec_of_share(workload, share) };
                with_threads(spec, setting.threads(threads))
            };
            let (x, x_name) = (f64::from(ratio), format!("{ratio}%"));
            if series == ALL && PEER_RATIOS.contains(&ratio) {
                cells.extend(peers::PEERS.map(|name| peers::cell(workload, name, x, &x_name, spec(0.7))));
            }
            // It takes a while until so many threads wait for a hot latch that each hand-over makes more wait.
            cells.push(plot::cell(workload, series, x, x_name, spec(1.5)));
        }
    }
    cells
}

fn fig12_claims(results: &Results<'_>) -> Vec<Claim> {
    let grows = |workload: &str, series: &str, over: f64, under: f64| {
        times(results.ratio(workload, at(series, over), at(series, under), &THROUGHPUT))
    };
    vec![
        claim("read-intensive: 32% of cache over 1%", "grows", grows(PARTS[0], ALL, 32.0, 1.0), "§8.4"),
        claim(
            "read-intensive: Sherman, 32% of cache over 8%",
            "no gain",
            grows(PARTS[0], peers::SHERMAN, 32.0, 8.0),
            "§8.4",
        ),
        claim(
            "read-intensive: SMART, 32% of cache over 8%",
            "no gain like DEX's",
            grows(PARTS[0], peers::SMART, 32.0, 8.0),
            "§8.4",
        ),
        claim("write-intensive: 8% of cache over 1%", "grows", grows(PARTS[1], ALL, 8.0, 1.0), "§8.4"),
        claim("write-intensive: 32% of cache over 8%", "falls", grows(PARTS[1], ALL, 32.0, 8.0), "§8.4"),
        claim(
            "write-intensive, 18 threads: 32% of cache over 8%",
            "scales well",
            grows(PARTS[1], SOCKET, 32.0, 8.0),
            "§8.4",
        ),
    ]
}

/// Cache sizes in MiB.
const SIZES: [u64; 5] = [64, 128, 256, 512, 1024];
/// Admission probabilities in percent.
const PROBABILITIES: [u32; 6] = [1, 5, 10, 20, 50, 100];
const EAGER: f64 = 100.0;

pub(super) const FIG18: Experiment = Experiment {
    name: "fig18",
    title: "Throughput over the probability with which leaves are admitted",
    source: "DEX, Figure 18, Appendix C",
    shows: "How readily leaves should come into a full cache, by the size of the cache.",
    setting: "144 threads, read-intensive, Zipf 0.99, caches of 64 to 1,024 MiB; throughput relative to that of admitting \
              every leaf.",
    varied: "admission probability",
    fitted: &[],
    estimated: &["dispatch_ns"],
    cells: fig18_cells,
    claims: fig18_claims,
    figure: fig18_figure,
    ..COMMON
};

fn size_name(mib: u64) -> String {
    format!("{mib} MiB")
}

fn fig18_cells(setting: &Setting) -> Vec<Cell> {
    let mut cells = Vec::new();
    for mib in SIZES {
        for probability in PROBABILITIES {
            let spec = setting.spec_of_share("read-intensive", 0.7);
            let mut spec = BenchSpec { cache_bytes: setting.bytes(mib << 20), ..spec };
            spec.cache.leaf_admission = f64::from(probability) / 100.0;
            let (x, x_name) = (f64::from(probability), format!("{probability}%"));
            cells.push(plot::cell("", &size_name(mib), x, x_name, spec));
        }
    }
    cells
}

fn fig18_claims(results: &Results<'_>) -> Vec<Claim> {
    let over_eager = |mib: u64, probability: f64| {
        let series = size_name(mib);
        percent(results.ratio("", at(&series, probability), at(&series, EAGER), &THROUGHPUT))
    };
    let place = "Appendix C";
    vec![
        claim("64 MiB: 1% over admitting always", "helps", over_eager(64, 1.0), place),
        claim("128 MiB: 1% over admitting always", "helps", over_eager(128, 1.0), place),
        claim("256 MiB: 10% over admitting always", "helps", over_eager(256, 10.0), place),
        claim("1,024 MiB: 1% over admitting always", "down to -7%", over_eager(1024, 1.0), place),
    ]
}

fn fig18_figure(results: &Results<'_>) -> Figure {
    let mut panel = plot::lines(results, "", Spacing::Names, &THROUGHPUT, MOPS);
    panel.title = "read-intensive, 144 threads".to_owned();
    panel.y_label = "throughput / that of admitting every leaf".to_owned();
    panel.y_scale = YScale::Near;
    let eager_place = PROBABILITIES.len() as f64 - 1.0;
    for series in &mut panel.series {
        let eager = series.points.iter().find(|point| point.0 == eager_place).map(|point| point.1);
        series.points = match eager.filter(|eager| *eager > 0.0) {
            Some(eager) => series.points.iter().map(|&(x, y)| (x, y / eager)).collect(),
            None => Vec::new(),
        };
    }
    panel.references.push(Reference { label: "every leaf admitted".to_owned(), y: 1.0 });
    let says = "with small caches (64 to 128 MiB) a low probability helps; with 256 to 512 MiB a higher one is best; with \
                1,024 MiB lazy admission can cost 7%.";
    plot::figure(results, vec![panel], says)
}
