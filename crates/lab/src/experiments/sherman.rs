//! Tables and figures of the Sherman paper (§3, §5): FG's collapse under skew, and the steps from FG+ to
//! Sherman. Sections are those of the version in Communications of the ACM.
//!
//! Eight machines are both memory and compute servers, with 22 threads each. A write stores a value whether
//! the key is present or not. Hot keys recur, so under skew nearly all writes are updates.

use pando_workload::{Distribution, ScanLength};

use super::cell::{ATOMICS, Cell, LATENCY, LATENCY_P50, LATENCY_P90, READS, THROUGHPUT, TRAFFIC, WRITES};
use super::claims::{claim, times};
use super::plot::{self, MOPS, Spacing};
use super::results::at;
use super::scale::SKEWED;
use super::{Claim, Cluster, Experiment, Metric, Place, Results, Setting};
use crate::bench::{BenchSpec, Design, System};
use crate::figure::{Figure, YScale};

pub(super) const EXPERIMENTS: &[Experiment] = &[TABLE1, FIG2, FIG5, FIG6, TABLE3];

/// Records of the paper.
const RECORDS: u64 = 1_000_000_000;
const MACHINES: usize = 8;
const THREADS: usize = 22;
/// Fill of nodes after the paper's load.
const FILL: f64 = 0.8;
const UNIFORM: Distribution = Distribution::Uniform;
const METRICS: &[Metric] = &[THROUGHPUT, LATENCY_P50, LATENCY_P90, LATENCY, READS, WRITES, ATOMICS, TRAFFIC];
const SETTING: &str = "A billion records of 8 B/8 B in nodes of 1 KiB that are 80% full, 8 machines, each a memory server and a compute \
                       server of 22 threads; every node above the leaves in every index cache (Sherman §5.1).";

/// Steps from FG+ to Sherman: the paper's names, and the technique that each step adds.
const STEPS: [(&str, &str); 5] = [
    ("FG+", ""),
    ("+Combine", "combine"),
    ("+On-Chip", "on-chip"),
    ("+Hierar.", "hierarchical"),
    ("+2-Level", "two-level"),
];
const LAST: usize = STEPS.len() - 1;

/// FG+ with the techniques of the steps up to `number`.
fn step(number: usize) -> System {
    let add = |system: System, (_, technique): &(&str, &str)| match *technique {
        "" => system,
        technique => system.with(technique, true).expect("a technique of Sherman"),
    };
    STEPS[..=number].iter().fold(System::peer(Design::FgPlus), add)
}

/// A cell of the paper's cluster.
fn spec(setting: &Setting, system: System, workload: &str, dist: Distribution, share: f64) -> BenchSpec {
    let (warmup, _) = setting.operations(0.3);
    let spec = setting.spec_of_share(workload, share);
    BenchSpec {
        memory_servers: MACHINES,
        compute_servers: MACHINES,
        threads: setting.threads(THREADS),
        // Room for all inner nodes; in the paper, 500 MB just suffice for them.
        cache_bytes: (setting.keys() * 2).max(1 << 20),
        fill: FILL,
        inner_fill: FILL,
        warmup,
        dist: Some(dist),
        ..spec
    }
    .on_system(system)
}

const TABLE1: Experiment = Experiment {
    name: "sherman-table1",
    title: "FG under skew",
    source: "Sherman, Table 1, §3.1",
    shows: "What happens to an index on remote locks when a few keys are written all the time.",
    setting: "A billion records of 8 B/8 B, 8 machines, each a memory server and a compute server of 22 threads. What the paper calls FG \
              here also caches inner nodes (§3.1), so its values stand beside FG+.",
    varied: "workload",
    estimated: &[],
    cells: table1_cells,
    claims: table1_claims,
    figure: |results| {
        let mut throughput = plot::bars(results, "", &THROUGHPUT, MOPS);
        throughput.title = "throughput".to_owned();
        let mut latency = plot::bars(results, "", &LATENCY, "99th percentile of latency (µs)");
        (latency.title, latency.y_scale) = ("latency".to_owned(), YScale::Log);
        let says = "reads hardly notice that keys are skewed; writes fall from 18.7 to 0.34 million a second, and the 99th \
                    percentile rises from 19 µs to 19.9 ms.";
        plot::figure(results, vec![throughput, latency], says)
    },
    ..FIG5
};

const FG: &str = "FG";
const FG_PLUS: &str = "FG+";
/// Throughput in million operations per second, and percentiles 50, 90 and 99 of the latency in µs.
const FG_PAPER: [(&str, &str, Distribution, [f64; 4]); 4] = [
    ("read, uniform", "sherman-read", UNIFORM, [31.8, 4.9, 6.4, 14.9]),
    ("read, skewed", "sherman-read", SKEWED, [32.9, 4.7, 6.2, 15.3]),
    ("write, uniform", "sherman-write", UNIFORM, [18.7, 9.5, 14.3, 19.0]),
    ("write, skewed", "sherman-write", SKEWED, [0.34, 10.0, 68.7, 19_890.0]),
];

fn table1_cells(setting: &Setting) -> Vec<Cell> {
    let mut cells = Vec::new();
    for (i, (name, workload, dist, published)) in FG_PAPER.iter().enumerate() {
        let metrics = [THROUGHPUT, LATENCY_P50, LATENCY_P90, LATENCY];
        let paper = metrics.iter().zip(published).map(|(metric, value)| (metric.name, *value)).collect();
        let of = |design| spec(setting, System::peer(design), workload, *dist, 0.2);
        cells.push(plot::cell("", FG, i as f64, name, of(Design::Fg)));
        cells.push(Cell { paper, ..plot::cell("", FG_PLUS, i as f64, name, of(Design::FgPlus)) });
    }
    cells
}

fn table1_claims(results: &Results<'_>) -> Vec<Claim> {
    let over = |skewed: f64, uniform: f64, metric: &Metric| {
        times(results.ratio("", at(FG_PLUS, skewed), at(FG_PLUS, uniform), metric))
    };
    let place = "Table 1";
    vec![
        claim("read-intensive: throughput skewed over uniform", "1.03x", over(1.0, 0.0, &THROUGHPUT), place),
        claim("write-intensive: throughput skewed over uniform", "0.02x", over(3.0, 2.0, &THROUGHPUT), place),
        claim(
            "write-intensive: 99th percentile skewed over uniform",
            "1047x",
            over(3.0, 2.0, &LATENCY),
            place,
        ),
    ]
}

const FIG2: Experiment = Experiment {
    name: "sherman-fig2",
    title: "Remote locks over the skew of what they lock",
    source: "Sherman, Figure 2, §3.2.2",
    shows: "Why locks are moved onto the chip of the NIC, and queued for at home.",
    setting: "The paper locks one of 10,240 words in host memory with 154 threads; here 176 threads write, by updates of an index, and \
              lock what they write. Nodes of 1 KiB on 8 machines.",
    varied: "theta",
    cells: fig2_cells,
    claims: |results| {
        let claims = [0, 2, 3].map(|number| {
            let (name, _) = STEPS[number];
            let ours = results.ratio("", at(name, 0.99), at(name, 0.0), &THROUGHPUT);
            let paper = if number == 0 { "collapses" } else { "not given" };
            claim(format_args!("{name}: theta 0.99 over uniform"), paper, times(ours), "Figure 2")
        });
        claims.into()
    },
    figure: |results| {
        let says = "locks in host memory collapse as the skew rises: swaps that fail keep the units of the NIC busy, which execute \
                    those of one address one after the other.";
        plot::figure(results, plot::throughput_lines(results, Spacing::Names), says)
    },
    ..FIG5
};

const THETAS: [f64; 5] = [0.0, 0.5, 0.8, 0.9, 0.99];

fn fig2_cells(setting: &Setting) -> Vec<Cell> {
    let cells = [0, 2, 3].into_iter().flat_map(|number| {
        THETAS.map(|theta| {
            let dist = if theta == 0.0 { Distribution::Uniform } else { Distribution::Zipf { theta } };
            let spec = spec(setting, step(number), "write-only", dist, 0.2);
            plot::cell("", STEPS[number].0, theta, theta, spec)
        })
    });
    cells.collect()
}

const FIG5: Experiment = Experiment {
    name: "sherman-fig5",
    title: "From FG+ to Sherman, skewed workloads",
    source: "Sherman, Figure 5, §5.2.1",
    shows: "What each technique adds when a few keys are hot (Zipf 0.99).",
    setting: SETTING,
    varied: "techniques",
    fitted: &["atomics_block", "read_ns"],
    estimated: &["on_chip_conflict_ns"],
    place: Place::CLUSTER,
    cluster: Some(Cluster::SHERMAN),
    sizes: Setting::describe,
    hundredths: 1,
    records: RECORDS,
    metrics: METRICS,
    cells: |setting| ladder_cells(setting, SKEWED),
    claims: fig5_claims,
    figure: |results| {
        let says = "write-intensive, combination gives 3.37x, locks on the chip 3.06x, hierarchical locks 2.22x, two-level versions \
                    1.03x: 23.6x in all, and 24.7x write-only.";
        ladder_figure(results, says)
    },
};

const FIG6: Experiment = Experiment {
    name: "sherman-fig6",
    title: "From FG+ to Sherman, uniform workloads",
    source: "Sherman, Figure 6, §5.2.2",
    shows: "What each technique adds when no key is hotter than another.",
    cells: |setting| ladder_cells(setting, UNIFORM),
    claims: fig6_claims,
    figure: |results| {
        let says = "combination and writes of the size of an entry give 1.24x write-only and 1.15x write-intensive; the locks give \
                    nothing there.";
        ladder_figure(results, says)
    },
    ..FIG5
};

/// Panels, and their workloads on the command line.
const MIXES: [(&str, &str); 3] =
    [("write-only", "write-only"), ("write-intensive", "sherman-write"), ("read-intensive", "sherman-read")];
const LADDER: &str = "here";

fn ladder_cells(setting: &Setting, dist: Distribution) -> Vec<Cell> {
    let cells = MIXES.iter().flat_map(|(panel, workload)| {
        STEPS.iter().enumerate().map(move |(number, (name, _))| {
            let spec = spec(setting, step(number), workload, dist, 0.2);
            plot::cell(panel, LADDER, number as f64, name, spec)
        })
    });
    cells.collect()
}

/// The ratio of two steps.
fn gain(results: &Results<'_>, panel: &str, over: usize, under: usize, metric: &Metric) -> Option<String> {
    times(results.ratio(panel, at(LADDER, over as f64), at(LADDER, under as f64), metric))
}

/// Median and 99th percentile of the latency of FG+ over those of Sherman.
fn latency_claims(
    results: &Results<'_>,
    panel: &str,
    [p50, p99]: [&str; 2],
    place: &'static str,
) -> [Claim; 2] {
    [(&LATENCY_P50, "median", p50), (&LATENCY, "99th percentile", p99)].map(|(metric, name, published)| {
        let what = format!("{panel}: {name} of latency, FG+ over Sherman");
        claim(what, published, gain(results, panel, 0, LAST, metric), place)
    })
}

fn fig5_claims(results: &Results<'_>) -> Vec<Claim> {
    let mut claims = Vec::new();
    for (panel, published) in [("write-only", "24.7x"), ("write-intensive", "23.6x")] {
        let what = format!("{panel}: Sherman over FG+");
        claims.push(claim(what, published, gain(results, panel, LAST, 0, &THROUGHPUT), "§5.2.1"));
    }
    for (number, published) in (1..).zip(["3.37x", "3.06x", "2.22x", "1.03x"]) {
        let what = format!("write-intensive: {} over the step before", STEPS[number].0);
        let ours = gain(results, "write-intensive", number, number - 1, &THROUGHPUT);
        claims.push(claim(what, published, ours, "§5.2.1"));
    }
    for (panel, latencies) in [("write-only", ["1.2x", "35.8x"]), ("write-intensive", ["1.4x", "30.2x"])] {
        claims.extend(latency_claims(results, panel, latencies, "§5.2.1"));
    }
    claims
}

fn fig6_claims(results: &Results<'_>) -> Vec<Claim> {
    let mut claims = Vec::new();
    for (panel, published, latencies) in
        [("write-only", "1.24x", ["1.24x", "2.01x"]), ("write-intensive", "1.15x", ["1.19x", "1.27x"])]
    {
        let what = format!("{panel}: Sherman over FG+");
        claims.push(claim(what, published, gain(results, panel, LAST, 0, &THROUGHPUT), "§5.2.2"));
        claims.extend(latency_claims(results, panel, latencies, "§5.2.2"));
    }
    claims
}

fn ladder_figure(results: &Results<'_>, says: &str) -> Figure {
    let mut panels = Vec::new();
    for (panel, _) in MIXES {
        panels.push(plot::bars(results, panel, &THROUGHPUT, MOPS));
        let mut latency = plot::bars(results, panel, &LATENCY, "99th percentile of latency (µs)");
        latency.title = format!("{panel}: latency");
        panels.push(latency);
    }
    plot::figure(results, panels, says)
}

const TABLE3: Experiment = Experiment {
    name: "sherman-table3",
    title: "Range queries",
    source: "Sherman, Table 3, §5.3",
    shows: "What unsorted leaves cost a range query, and what faster writes give beside them.",
    varied: "records of a range",
    cells: table3_cells,
    claims: table3_claims,
    figure: |results| {
        let panels = ["range-only", "range-write"].map(|panel| plot::bars(results, panel, &THROUGHPUT, MOPS));
        let says = "FG+ and Sherman are alike at ranges only; beside writes Sherman is 1.82 times (100 records) and 1.25 times \
                    (1,000) as fast.";
        plot::figure(results, panels.into(), says)
    },
    ..FIG5
};

/// Million operations per second with 100 and with 1,000 records, for FG+ and then for Sherman.
const RANGES: [(&str, &str, [[f64; 2]; 2]); 2] = [
    ("range-only", "scan-only", [[26.09, 5.77], [25.55, 5.76]]),
    ("range-write", "scan-write", [[7.74, 2.49], [14.08, 3.12]]),
];

fn table3_cells(setting: &Setting) -> Vec<Cell> {
    let mut cells = Vec::new();
    for (panel, workload, published) in RANGES {
        for (system, (name, number)) in [("FG+", 0), ("Sherman", LAST)].into_iter().enumerate() {
            for (i, length) in [100, 1_000].into_iter().enumerate() {
                let spec = BenchSpec {
                    scan_length: Some(ScanLength::Fixed(length)),
                    read_ahead: 32,
                    ..spec(setting, step(number), workload, SKEWED, 0.03)
                };
                let paper = vec![(THROUGHPUT.name, published[system][i])];
                cells.push(Cell { paper, ..plot::cell(panel, name, f64::from(length), length, spec) });
            }
        }
    }
    cells
}

fn table3_claims(results: &Results<'_>) -> Vec<Claim> {
    let mut claims = Vec::new();
    for (panel, _, [plus, sherman]) in RANGES {
        for (i, length) in [100.0, 1_000.0].into_iter().enumerate() {
            let ours = results.ratio(panel, at("Sherman", length), at("FG+", length), &THROUGHPUT);
            let what = format!("{panel}, {length} records: Sherman over FG+");
            claims.push(claim(what, format_args!("{:.2}x", sherman[i] / plus[i]), times(ours), "Table 3"));
        }
    }
    claims
}
