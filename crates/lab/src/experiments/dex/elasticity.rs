//! Figure 10 and load imbalance (DEX §4): throughput over time while keys move between compute servers.
//!
//! The paper names the workload only as "write-intensive" and does not give the part of the keys that moves.
//! Here half of one server's keys move to a new server, or all of them, so that its whole dirty cache is
//! written back.

use serde_json::Value;

use super::super::cell::{Cell, Metric, THROUGHPUT, metric};
use super::super::plot;
use super::super::results::at;
use super::super::{Claim, Experiment, Results, Scale, Setting};
use super::{COMMON, claim, times};
use crate::elastic::{Clients, ElasticSpec, PlannedMove, Spread};
use crate::figure::{Figure, Panel, Reference, Series, Shape, XAxis, XTicks, YScale};

const MOVING: Metric = metric("moving", "move, ms", "/moving_ns", 1e-6, 3);
const WRITTEN: Metric = metric("written", "MiB written back", "/bytes_written", 1.0 / 1_048_576.0, 2);
const OTHERS: Metric = metric("others", "others during / before", "/others_ratio", 1.0, 3);
const SETTLED: Metric = metric("settled", "busiest / mean, settled", "/settled_imbalance", 1.0, 3);

const HALF: &str = "half of a server's keys, 1 flushing thread";
const ALL: &str = "all keys of a server, 1 GiB of cache";
/// Cache sizes in MiB.
const SIZES: [u64; 3] = [256, 512, 1024];
const WORKERS: [usize; 4] = [1, 2, 4, 8];
/// Ends of the cells' runs, as fractions of the longest run. The move begins at one half of that; the rest
/// leaves time for the move and for caches to warm up afterwards.
const SIZES_END: [f64; 3] = [0.7, 0.75, 0.83];
const WORKERS_END: [f64; 4] = [0.9, 0.75, 0.67, 0.63];

pub(super) const FIG10: Experiment = Experiment {
    name: "fig10",
    title: "Repartitioning while the index is used",
    source: "DEX, Figure 10, §8.3",
    shows: "How long it takes to hand keys of one compute server to a new one, what that does to all others, and what more \
            flushing threads give.",
    setting: "Write-intensive, Zipf 0.99, three compute servers with 36 threads each; one hands keys to a fourth. Caches of 256 \
              to 1,024 MiB. The paper moves \"a portion\" of the keys with one flushing thread; the second panel moves all of \
              them, so that the whole dirty cache is written back.",
    varied: "cache, or flushing threads",
    fitted: &[],
    estimated: &[],
    hundredths: 2,
    metrics: &[MOVING, WRITTEN, OTHERS, THROUGHPUT],
    cells: fig10_cells,
    claims: fig10_claims,
    figure: fig10_figure,
    ..COMMON
};

fn base(setting: &Setting, servers: usize, spares: usize, run_ns: u64) -> ElasticSpec {
    let bench = setting.spec("write-intensive");
    ElasticSpec {
        memory_servers: bench.memory_servers,
        compute_servers: servers,
        spare_servers: spares,
        threads: if setting.scale == Scale::Tiny { 1 } else { 36 },
        cache_bytes: bench.cache_bytes,
        subtree_level: bench.subtree_level,
        keys: bench.keys,
        workload: "write-intensive".to_owned(),
        clients: Clients::OfServers,
        spread: Spread::Workload,
        moves: Vec::new(),
        flush_workers: 1,
        balance_every_ns: None,
        run_ns,
        interval_ns: run_ns / 100,
        seed: setting.seed,
    }
}

fn fig10_cells(setting: &Setting) -> Vec<Cell> {
    let run_ns = match setting.scale {
        Scale::Full => 3_000_000_000,
        Scale::Quick => 60_000_000,
        Scale::Tiny => 4_000_000,
    };
    let spec = |mib: u64, workers: usize, part: f64, end: f64| ElasticSpec {
        run_ns: (run_ns as f64 * end) as u64,
        cache_bytes: setting.bytes(mib << 20),
        flush_workers: workers,
        moves: vec![PlannedMove { at_ns: run_ns / 2, from: 1, to: 3, part }],
        ..base(setting, 3, 1, run_ns)
    };
    let sizes = SIZES
        .into_iter()
        .zip(SIZES_END)
        .map(|(mib, end)| plot::cell(HALF, "DEX", mib as f64, format!("{mib} MiB"), spec(mib, 1, 0.5, end)));
    let workers = WORKERS
        .into_iter()
        .zip(WORKERS_END)
        .map(|(n, end)| plot::cell(ALL, "DEX", n as f64, n, spec(1024, n, 1.0, end)));
    sizes.chain(workers).collect()
}

fn fig10_claims(results: &Results<'_>) -> Vec<Claim> {
    let mut claims = Vec::new();
    let ms = |value: Option<f64>| value.map(|value| format!("{value:.2} ms"));
    for mib in SIZES {
        let ours = ms(results.value(HALF, "DEX", mib as f64, &MOVING));
        claims.push(claim(
            format_args!("half of the keys, {mib} MiB of cache: time of the move"),
            "within 2 s",
            ours,
            "§8.3",
        ));
    }
    for workers in WORKERS {
        let ours = ms(results.value(ALL, "DEX", workers as f64, &MOVING));
        let what = format_args!("all keys, 1 GiB of cache, flushing threads: {workers}").to_string();
        claims.push(claim(what, if workers == 1 { "within 2 s" } else { "accelerates" }, ours, "§8.3"));
    }
    let ours = results.value(ALL, "DEX", 1.0, &OTHERS).map(|ratio| format!("{ratio:.2}x"));
    claims.push(claim(
        "throughput of the other servers during the move over before",
        "not given",
        ours,
        "Figure 10",
    ));
    claims
}

/// Throughput over time of each group of servers, in the cell at `x`.
fn over_time(results: &Results<'_>, panel: &str, x: f64, groups: &[(&str, &[usize])]) -> Option<Panel> {
    let outcome =
        results.outcomes.iter().find(|outcome| outcome.cell.panel == panel && outcome.cell.x == x)?;
    let report = outcome.report.as_ref().ok()?;
    let interval_ms = report.get("interval_ns")?.as_f64()? * 1e-6;
    let by_server = report.get("series")?.as_array()?;
    let counts = |server: usize, at: usize| {
        by_server.get(server).and_then(|counts| counts.get(at)).and_then(Value::as_f64).unwrap_or(0.0)
    };
    let intervals = by_server.first()?.as_array()?.len().saturating_sub(1);
    let series = groups.iter().map(|(name, servers)| Series {
        name: (*name).to_owned(),
        points: (0..intervals)
            .map(|at| {
                let ops: f64 = servers.iter().map(|&server| counts(server, at)).sum();
                ((at as f64 + 0.5) * interval_ms, ops / interval_ms * 1e-3)
            })
            .collect(),
        quoted: false,
    });
    let title = format!("{panel}: {}", outcome.cell.x_name);
    Some(time_panel(title, intervals as f64 * interval_ms, plot::MOPS, series.collect()))
}

/// A panel over the virtual time up to `end`, in ms.
fn time_panel(title: String, end: f64, y_label: &str, series: Vec<Series>) -> Panel {
    Panel {
        title,
        shape: Shape::Lines,
        x: XAxis {
            label: "virtual time (ms)".to_owned(),
            ticks: XTicks::Numbers((0..=6).map(|tick| (end * f64::from(tick) / 6.0).round()).collect()),
        },
        y_label: y_label.to_owned(),
        y_scale: YScale::Linear,
        series,
        references: Vec::new(),
    }
}

fn fig10_figure(results: &Results<'_>) -> Figure {
    let groups: &[(&str, &[usize])] =
        &[("the one that gives", &[1]), ("the new one", &[3]), ("the two others", &[0, 2])];
    let sizes = SIZES.iter().filter_map(|&mib| over_time(results, HALF, mib as f64, groups));
    let mut panels: Vec<Panel> = sizes.collect();
    panels.extend(over_time(results, ALL, 1.0, groups));
    panels.push(plot::bars(results, ALL, &MOVING, "time of the move (ms)"));
    let says = "repartitioning takes under 2 s with caches of 256 to 1,024 MiB and one flushing thread, longer with larger \
                caches; afterwards the old and the new server warm up.";
    plot::figure(results, panels, says)
}

const BALANCED: &str = "with the balancer";
const UNBALANCED: &str = "without";

pub(super) const BALANCE: Experiment = Experiment {
    name: "balance",
    title: "A hot spot, and a balancer that moves boundaries",
    source: "DEX, §4 (load imbalance); no figure",
    shows: "Whether boundaries that move by load even out a hot spot, how often they move, and what becomes of that when the hot \
            spot moves on.",
    setting: "Eight compute servers with 8 threads each, half of the operations updates. 90% of them go to 10% of the keys, which lie \
              side by side; the hot spot is at three places, one after the other. Clients choose keys from all and wait for \
              whichever server has them, so that a hot server holds everybody up.",
    varied: "balancer",
    hundredths: 1,
    metrics: &[SETTLED, MOVES, LATE, THROUGHPUT],
    cells: balance_cells,
    claims: balance_claims,
    figure: balance_figure,
    ..FIG10
};

const MOVES: Metric = metric("moves", "moves of boundaries", "/move_count", 1.0, 0);
const LATE: Metric = metric("late", "of these once settled", "/late_moves", 1.0, 0);

fn balance_cells(setting: &Setting) -> Vec<Cell> {
    let run_ns = match setting.scale {
        Scale::Full => 900_000_000,
        Scale::Quick => 90_000_000,
        Scale::Tiny => 6_000_000,
    };
    let cell = |x: f64, series: &str, balance_every_ns| {
        let spread = Spread::HotSpot { share: 0.9, width: 0.1, spots: vec![0.33, 0.71, 0.05] };
        let spec = ElasticSpec {
            threads: if setting.scale == Scale::Tiny { 1 } else { 8 },
            clients: Clients::Routed { per_thread: 4 },
            spread,
            balance_every_ns,
            flush_workers: 4,
            ..base(setting, 8, 0, run_ns)
        };
        plot::cell("", series, x, series, spec)
    };
    vec![cell(0.0, UNBALANCED, None), cell(1.0, BALANCED, Some(run_ns / 90))]
}

fn balance_claims(results: &Results<'_>) -> Vec<Claim> {
    let place = "issue: load skew";
    let settled =
        |series: &str, x: f64| results.value("", series, x, &SETTLED).map(|value| format!("{value:.2}x"));
    let count = |metric| results.value("", BALANCED, 1.0, metric).map(|count| format!("{count:.0}"));
    let (moves, late) = (count(&MOVES), count(&LATE));
    let gain = results.ratio("", at(BALANCED, 1.0), at(UNBALANCED, 0.0), &THROUGHPUT);
    vec![
        claim("busiest server over the mean, without balancer", "not given", settled(UNBALANCED, 0.0), place),
        claim("busiest server over the mean, balanced", "1.3x at most", settled(BALANCED, 1.0), place),
        claim("moves of boundaries for three places of the hot spot, 7 boundaries", "bounded", moves, place),
        claim("of these in the last quarter of the time at a place", "none", late, place),
        claim("throughput with over without", "not given", times(gain), place),
    ]
}

fn balance_figure(results: &Results<'_>) -> Figure {
    let mut panels = Vec::new();
    for (x, series) in [(0.0, UNBALANCED), (1.0, BALANCED)] {
        let all: &[(&str, &[usize])] = &[("all servers", &[0, 1, 2, 3, 4, 5, 6, 7])];
        if let Some(mut panel) = over_time(results, "", x, all) {
            panel.title = format!("throughput, {series}");
            panels.push(panel);
        }
        let find = results.outcomes.iter().find(|outcome| outcome.cell.x == x);
        let Some(Ok(report)) = find.map(|outcome| &outcome.report) else { continue };
        let Some(imbalance) = report.get("imbalance").and_then(Value::as_array) else { continue };
        let interval_ms = report.get("interval_ns").and_then(Value::as_f64).unwrap_or(0.0) * 1e-6;
        let place = |at: usize| (at as f64 + 0.5) * interval_ms;
        let points =
            imbalance.iter().enumerate().filter_map(|(at, value)| Some((place(at), value.as_f64()?)));
        let end = imbalance.len() as f64 * interval_ms;
        let title = format!("load of the busiest server, {series}");
        let series = Series { name: series.to_owned(), points: points.collect(), quoted: false };
        let references = vec![Reference { label: "1.3 times the mean".to_owned(), y: 1.3 }];
        panels.push(Panel { references, ..time_panel(title, end, "busiest server / mean", vec![series]) });
    }
    plot::figure(
        results,
        panels,
        "compute servers repartition when their loads differ; it shows no figure of that.",
    )
}
