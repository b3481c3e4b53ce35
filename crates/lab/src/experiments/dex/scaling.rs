//! Figures 6, 7 and 15: throughput over compute threads.
//!
//! Threads fill one compute server before they use the next; each compute server adds its own cache. Skewed
//! keys are Zipf 0.99. The uniform figure also has a larger cache.

use pando::OffloadPolicy;
use pando_workload::Distribution;

use super::super::cell::{Cell, THROUGHPUT};
use super::super::plot::{self, Spacing};
use super::super::results::at;
use super::super::scale::{PAPER_CACHE, SKEWED, with_threads};
use super::super::{Claim, Experiment, Results, Setting};
use super::{COMMON, THREADS, WORKLOADS, claim, peers, percent, times};
use crate::bench::BenchSpec;
use crate::figure::{Figure, Reference};

const SERIES: &str = peers::DEX;
const LARGE_CACHE: &str = "DEX, 512 MiB of cache";
/// DEX over the peers at 144 threads, skewed (§8.2), in the order of [`peers::PEERS`].
const AHEAD: [(&str, [Option<f64>; 4]); 5] = [
    ("read-only", [Some(3.6), Some(9.6), Some(2.5), Some(7.1)]),
    ("read-intensive", [Some(3.4), Some(8.2), Some(2.5), Some(5.3)]),
    ("write-intensive", [Some(9.6), Some(7.0), Some(7.0), Some(4.4)]),
    ("insert-intensive", [None; 4]),
    ("scan-intensive", [Some(2.8), Some(56.3), Some(1.6), Some(48.4)]),
];
/// Throughput of DEX at 144 threads in million operations per second, as read off Figure 6 by others.
const READ_OFF: [(&str, f64); 2] = [("read-only", 60.0), ("write-intensive", 45.0)];

pub(super) const FIG6: Experiment = Experiment {
    name: "fig6",
    title: "Throughput over compute threads, skewed workloads (Zipf 0.99)",
    source: "DEX, Figure 6, §8.2",
    shows: "How the index scales when a few keys are hot.",
    setting: "200 million records of 8 B/8 B; 36 threads and 256 MiB of cache per compute server, up to 4 \
                       of them; 4 memory servers (§8.1, §8.2). Scans ask for 100 records; DEX's READ one leaf after the other (§7), \
                       though Pando's READ up to 8 together.",
    cells: skewed_cells,
    claims: skewed_claims,
    figure: skewed_figure,
    ..COMMON
};

pub(super) const FIG7: Experiment = Experiment {
    name: "fig7",
    title: "Throughput over compute threads, uniform workloads",
    source: "DEX, Figure 7, §8.2",
    shows: "How the index scales when no key is hotter than another: the worst case of a cache.",
    cells: uniform_cells,
    claims: uniform_claims,
    figure: |results| {
        let says = "without skew caching helps less, and DEX performs like a partitioned Sherman; with 512 MiB of \
                    cache it gains about 20%.";
        plot::figure(results, plot::throughput_lines(results, Spacing::Numbers), says)
    },
    ..FIG6
};

pub(super) const FIG15: Experiment = Experiment {
    name: "fig15",
    title: "Throughput over compute threads with 5% inserts, and with inserts only",
    source: "DEX, Figure 15, Appendix B",
    shows: "How the index scales with lookups and a few inserts, and with nothing but inserts of new keys.",
    cells: insert_cells,
    claims: insert_claims,
    figure: |results| {
        let says = "DEX is ahead of the others in all three; under uniform keys caching is less effective.";
        plot::figure(results, plot::throughput_lines(results, Spacing::Numbers), says)
    },
    ..FIG6
};

fn spec(setting: &Setting, workload: &str, dist: Distribution, threads: usize) -> BenchSpec {
    // A scan of 100 records costs as much as a dozen other operations, and uniform keys miss more often:
    // fewer operations suffice.
    let share = match (workload, dist) {
        ("scan-intensive", _) => 0.1,
        (_, Distribution::Uniform) => 0.7,
        _ => 1.0,
    };
    let spec = BenchSpec { dist: Some(dist), ..setting.spec_of_share(workload, share) };
    with_threads(spec, setting.threads(threads))
}

fn skewed_cells(setting: &Setting) -> Vec<Cell> {
    let mut cells = over_workloads(setting, SKEWED);
    cells.extend(WORKLOADS.map(|workload| never_offloading(setting, workload, workload, SKEWED)));
    cells
}

/// A cell of DEX without offloading at 144 threads: the numerator of the paper's ratios.
fn never_offloading(setting: &Setting, panel: &str, workload: &str, dist: Distribution) -> Cell {
    let spec = spec(setting, workload, dist, 144);
    let spec = BenchSpec { offload: OffloadPolicy::Never, ..spec };
    plot::cell(panel, peers::NEVER, 144.0, 144, spec)
}

fn over_workloads(setting: &Setting, dist: Distribution) -> Vec<Cell> {
    let cells = WORKLOADS.iter().flat_map(|workload| {
        THREADS.into_iter().flat_map(move |threads| of_all(setting, workload, workload, dist, threads))
    });
    cells.collect()
}

/// A cell of each system.
fn of_all<'s>(
    setting: &'s Setting,
    panel: &'s str,
    workload: &'s str,
    dist: Distribution,
    threads: usize,
) -> impl Iterator<Item = Cell> + use<'s> {
    peers::at(threads).map(move |name| {
        let spec = spec(setting, workload, dist, threads);
        peers::cell(panel, name, threads as f64, threads, spec)
    })
}

fn uniform_cells(setting: &Setting) -> Vec<Cell> {
    let mut cells = over_workloads(setting, Distribution::Uniform);
    for workload in WORKLOADS {
        let spec = spec(setting, workload, Distribution::Uniform, 144);
        let spec = BenchSpec { cache_bytes: setting.bytes(2 * PAPER_CACHE), ..spec };
        cells.push(plot::cell(workload, LARGE_CACHE, 144.0, 144, spec));
    }
    cells
}

fn insert_cells(setting: &Setting) -> Vec<Cell> {
    let parts = [
        ("read-intensive-2, skewed", "read-intensive-2", SKEWED),
        ("read-intensive-2, uniform", "read-intensive-2", Distribution::Uniform),
        ("insert-only, uniform", "insert-only", Distribution::Uniform),
    ];
    let cells = parts.into_iter().flat_map(|(panel, workload, dist)| {
        THREADS.into_iter().flat_map(move |threads| of_all(setting, panel, workload, dist, threads))
    });
    let never = never_offloading(setting, parts[0].0, parts[0].1, SKEWED);
    cells.chain([never]).collect()
}

fn skewed_claims(results: &Results<'_>) -> Vec<Claim> {
    let mut claims = Vec::new();
    for (workload, mops) in READ_OFF {
        let ours = results.value(workload, SERIES, 144.0, &THROUGHPUT);
        claims.push(claim(
            format_args!("{workload}: million operations a second with 144 threads"),
            format_args!("about {mops:.0}"),
            ours.map(|ours| format!("{ours:.1}")),
            "read off Figure 6",
        ));
    }
    for (workload, published) in AHEAD {
        claims.extend(peers::ratios(
            results,
            workload,
            at(peers::NEVER, 144.0),
            published,
            "§8.2, 144 threads",
        ));
    }
    for workload in WORKLOADS {
        let ours = results.ratio(workload, at(SERIES, 144.0), at(SERIES, 36.0), &THROUGHPUT);
        let what = format_args!("{workload}: throughput of 144 threads over that of 36").to_string();
        claims.push(claim(what, "scales", times(ours), "§8.2"));
    }
    claims
}

fn skewed_figure(results: &Results<'_>) -> Figure {
    let mut panels = plot::throughput_lines(results, Spacing::Numbers);
    for (workload, y) in READ_OFF {
        if let Some(panel) = panels.iter_mut().find(|panel| panel.title == workload) {
            panel.references.push(Reference { label: format!("the paper at 144 threads: about {y:.0}"), y });
        }
    }
    let says = "DEX scales to 144 threads in all five workloads, the others do not; the dashed values of DEX were read off the figure \
                by others.";
    plot::figure(results, panels, says)
}

fn insert_claims(results: &Results<'_>) -> Vec<Claim> {
    let published = [Some(4.0), Some(10.0), Some(2.4), Some(6.1)];
    let place = "Appendix B, 144 threads";
    let mut claims =
        peers::ratios(results, "read-intensive-2, skewed", at(peers::NEVER, 144.0), published, place);
    for panel in ["read-intensive-2, uniform", "insert-only, uniform"] {
        claims.extend(peers::ratios(results, panel, at(SERIES, 144.0), [None; 4], place));
    }
    claims
}

fn uniform_claims(results: &Results<'_>) -> Vec<Claim> {
    let ratios = WORKLOADS
        .map(|workload| peers::ratios(results, workload, at(SERIES, 144.0), [None; 4], "§8.2, 144 threads"));
    let larger = WORKLOADS.map(|workload| {
        let ours = results.ratio(workload, at(LARGE_CACHE, 144.0), at(SERIES, 144.0), &THROUGHPUT);
        let what = format!("{workload}: what 512 MiB of cache instead of 256 add with 144 threads");
        claim(what, "about +20% (workload not named)", percent(ours), "§8.2")
    });
    larger.into_iter().chain(ratios.into_iter().flatten()).collect()
}
