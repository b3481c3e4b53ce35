//! Figures 5, 8 and 13: offloading, and the gain of each of DEX's techniques.
//!
//! All use caches of 1% of the records' bytes (32 MB at the paper's size), so that operations miss often
//! enough for offloading to matter (DEX §8.3).

use pando::OffloadPolicy;

use super::super::cell::{Cell, Metric, READS, THROUGHPUT, TWO_SIDED, WRITES};
use super::super::plot::{self, MOPS, Spacing};
use super::super::results::at;
use super::super::scale::with_threads;
use super::super::{Claim, Experiment, Results, Setting};
use super::{COMMON, DISTRIBUTIONS, PARTS, claim, percent, times};
use crate::bench::{BenchSpec, System};
use crate::figure::{Figure, YScale};

/// One hundredth of the bytes of the paper's records.
const SMALL_CACHE: u64 = 200_000_000 * 16 / 100;

fn small_cache(setting: &Setting, workload: &str, share: f64) -> BenchSpec {
    BenchSpec { cache_bytes: setting.bytes(SMALL_CACHE), ..setting.spec_of_share(workload, share) }
}

/// Threads of Figure 5: up to the paper's 144, and twice as many, which surely saturate the memory servers.
const POLICY_THREADS: [usize; 5] = [18, 36, 72, 144, 288];
const NEVER: &str = "never offload";
const ALWAYS: &str = "always offload";
const COST_AWARE: &str = "cost-aware";

pub(super) const FIG5: Experiment = Experiment {
    name: "fig5",
    title: "Offloading policies over compute threads, cache of 1% of the data",
    source: "DEX, Figure 5, §6",
    shows: "Whether memory servers with few cores can take over what misses, and what happens if they must.",
    setting: "Caches of 1% of the data, 4 cores for offloading per memory server (§6, §8.1). The paper names no workload; \
              here the two skewed ones with updates. Its figure ends at 144 threads; here a point with twice as many is added, \
              on 8 compute servers.",
    hundredths: 2,
    cells: fig5_cells,
    claims: fig5_claims,
    figure: |results| {
        let says = "always offloading cannot scale, because the memory servers' few cores saturate; deciding by cost \
                    profits from offloading and beats both others.";
        plot::figure(results, plot::throughput_lines(results, Spacing::Numbers), says)
    },
    ..COMMON
};

fn fig5_cells(setting: &Setting) -> Vec<Cell> {
    let policies = [
        (NEVER, OffloadPolicy::Never),
        (ALWAYS, OffloadPolicy::Always),
        (COST_AWARE, OffloadPolicy::CostAware),
    ];
    let mut cells = Vec::new();
    for workload in PARTS {
        for (series, offload) in policies {
            for threads in POLICY_THREADS {
                let spec = BenchSpec { offload, ..small_cache(setting, workload, 0.35) };
                let spec = with_threads(spec, setting.threads(threads));
                cells.push(plot::cell(workload, series, threads as f64, threads, spec));
            }
        }
    }
    cells
}

fn fig5_claims(results: &Results<'_>) -> Vec<Claim> {
    let mut claims = Vec::new();
    for workload in PARTS {
        for (over, under) in [(144, 36), (288, 144)] {
            let ours = results.ratio(
                workload,
                at(ALWAYS, f64::from(over)),
                at(ALWAYS, f64::from(under)),
                &THROUGHPUT,
            );
            let what = format!("{workload}: always offload, {over} threads over {under}");
            claims.push(claim(what, "does not scale", times(ours), "§6"));
        }
        let what = format!("{workload}: cost-aware over the better of the others, at the worst place");
        claims.push(claim(what, "outperforms", percent(over_better(results, workload)), "§6"));
        for other in [NEVER, ALWAYS] {
            let ours = results.ratio(workload, at(COST_AWARE, 144.0), at(other, 144.0), &THROUGHPUT);
            let what = format!("{workload}: cost-aware over {other}, 144 threads");
            claims.push(claim(what, "outperforms", percent(ours), "§6"));
        }
    }
    claims
}

/// Throughput of the cost-aware policy divided by that of the better of the two others; the minimum over all
/// threads.
fn over_better(results: &Results<'_>, workload: &str) -> Option<f64> {
    let ratios = POLICY_THREADS.iter().map(|&threads| {
        let of = |series: &str| results.value(workload, series, threads as f64, &THROUGHPUT);
        Some(of(COST_AWARE)? / of(NEVER)?.max(of(ALWAYS)?))
    });
    ratios.collect::<Option<Vec<f64>>>()?.into_iter().min_by(f64::total_cmp)
}

const STEPS: [&str; 4] = ["baseline B+-tree", "+ logical partitioning", "+ caching", "+ offloading"];

pub(super) const FIG8: Experiment = Experiment {
    name: "fig8",
    title: "What each technique adds: partitioning, caching, offloading",
    source: "DEX, Figure 8, §8.3",
    shows: "The way from a B+-tree whose every access is remote to DEX, step by step.",
    setting: "Write-intensive, caches of 1% of the data (§8.3). The baseline reads each node with its version before and \
              after, and changes leaves under remote locks; partitioned, only nodes that cross a boundary need that.",
    // At this size the tree is as high as the paper's: without a cache an operation READs a node of each level.
    hundredths: 20,
    cells: fig8_cells,
    claims: fig8_claims,
    figure: fig8_figure,
    ..FIG5
};

fn fig8_cells(setting: &Setting) -> Vec<Cell> {
    let mut cells = Vec::new();
    for (panel, dist) in DISTRIBUTIONS {
        for (step, series) in STEPS.into_iter().enumerate() {
            for threads in [2, 36, 144] {
                // Without a cache no warm-up is needed, and operations take much longer, so a tenth of them
                // suffices.
                let spec = small_cache(setting, "write-intensive", if step < 2 { 0.1 } else { 0.5 });
                let spec = with_threads(spec, setting.threads(threads));
                let spec = BenchSpec {
                    system: [System::Plain, System::PlainPartitioned, System::Dex, System::Dex][step],
                    offload: if step < 3 { OffloadPolicy::Never } else { OffloadPolicy::CostAware },
                    dist: Some(dist),
                    warmup: if step < 2 { 0 } else { spec.warmup },
                    ..spec
                };
                cells.push(plot::cell(panel, series, threads as f64, threads, spec));
            }
        }
    }
    cells
}

fn fig8_claims(results: &Results<'_>) -> Vec<Claim> {
    let step = |panel: &str, over: usize, threads: f64| {
        results.ratio(panel, at(STEPS[over], threads), at(STEPS[over - 1], threads), &THROUGHPUT)
    };
    let mops = |series: &str| {
        let value = results.value("skewed", series, 2.0, &THROUGHPUT);
        value.map(|value| format!("{value:.3}"))
    };
    let place = "§8.3";
    vec![
        claim("skewed, 2 threads: baseline, million operations/s", "0.04", mops(STEPS[0]), place),
        claim("skewed, 2 threads: with partitioning, million operations/s", "0.096", mops(STEPS[1]), place),
        claim("skewed, 2 threads: partitioning", "2.4x", times(step("skewed", 1, 2.0)), place),
        claim("skewed, 144 threads: caching", "21.2x", times(step("skewed", 2, 144.0)), place),
        claim("uniform, 144 threads: caching", "6.9x", times(step("uniform", 2, 144.0)), place),
        claim("skewed, 144 threads: offloading", "+55%", percent(step("skewed", 3, 144.0)), place),
        claim("uniform, 144 threads: offloading", "+34%", percent(step("uniform", 3, 144.0)), place),
    ]
}

fn fig8_figure(results: &Results<'_>) -> Figure {
    let mut panels = Vec::new();
    for (panel, _) in DISTRIBUTIONS {
        let mut bars = plot::bars(results, panel, &THROUGHPUT, MOPS);
        bars.title = format!("write-intensive, {panel}");
        bars.y_scale = YScale::Log;
        panels.push(bars);
    }
    let says = "partitioning gives 2.4x with two threads; caching 21.2x under skew and 6.9x under uniform keys; offloading \
                55% and 34% more.";
    plot::figure(results, panels, says)
}

pub(super) const FIG13: Experiment = Experiment {
    name: "fig13",
    title: "Throughput and verbs over the cores of memory servers, cache of 1% of the data",
    source: "DEX, Figure 13, §8.4",
    shows: "How offloading makes use of what cores the memory servers have.",
    setting: "144 compute threads, caches of 1% of the data, 1 to 4 cores for offloading on each of 4 memory servers; 0 is \
              without offloading (§8.4).",
    varied: "cores of a memory server",
    cells: fig13_cells,
    claims: fig13_claims,
    figure: fig13_figure,
    ..FIG5
};

fn fig13_cells(setting: &Setting) -> Vec<Cell> {
    let mut cells = Vec::new();
    for workload in PARTS {
        for cores in [0, 1, 2, 4] {
            let spec = small_cache(setting, workload, 1.0);
            let offload = if cores == 0 { OffloadPolicy::Never } else { OffloadPolicy::CostAware };
            let spec = BenchSpec { offload, memory_cores: (cores > 0).then_some(cores), ..spec };
            cells.push(plot::cell("", workload, cores as f64, cores, spec));
        }
    }
    cells
}

/// READs, WRITEs and two-sided calls per operation.
fn verbs(results: &Results<'_>, workload: &str, cores: f64) -> Option<f64> {
    let of = |metric: &Metric| results.value("", workload, cores, metric);
    Some(of(&READS)? + of(&WRITES)? + of(&TWO_SIDED)?)
}

fn fig13_claims(results: &Results<'_>) -> Vec<Claim> {
    let mut claims = Vec::new();
    for (workload, fewer, more) in [(PARTS[0], "-56%", "+40%"), (PARTS[1], "-49%", "+55%")] {
        let most = verbs(results, workload, 4.0).zip(verbs(results, workload, 0.0));
        let ratio = most.map(|(with, without)| with / without);
        let what = format!("{workload}: verbs of an operation, 4 cores over none");
        claims.push(claim(what, fewer, percent(ratio), "§8.4"));
        let ratio = results.ratio("", at(workload, 4.0), at(workload, 0.0), &THROUGHPUT);
        let what = format!("{workload}: throughput, 4 cores over none");
        claims.push(claim(what, more, percent(ratio), "§8.4"));
    }
    claims
}

fn fig13_figure(results: &Results<'_>) -> Figure {
    let mut throughput = plot::lines(results, "", Spacing::Names, &THROUGHPUT, MOPS);
    throughput.title = "throughput".to_owned();
    let mut all_verbs = plot::lines(results, "", Spacing::Names, &READS, "verbs per operation");
    all_verbs.title = "READs, WRITEs and two-sided operations".to_owned();
    let places = results.places("");
    for series in &mut all_verbs.series {
        let counts = places.iter().enumerate();
        let points = counts.filter_map(|(i, place)| Some((i as f64, verbs(results, &series.name, place.0)?)));
        series.points = points.collect();
    }
    let says = "as more cores serve offloaded operations, verbs fall by 56% (read-intensive) and 49% (write-intensive), and \
                throughput rises by 40% and 55%.";
    plot::figure(results, vec![throughput, all_verbs], says)
}
