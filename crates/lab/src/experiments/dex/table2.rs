//! Table 2: verbs and traffic of one operation.
//!
//! The one table of the paper with figures for DEX, so the one place where ours can be compared number by number. Reads
//! and traffic follow from the cache alone: they need no model of a network to be right.

use pando::OffloadPolicy;

use super::super::cell::{ATOMICS, Cell, LEAF_HITS, READS, THROUGHPUT, TRAFFIC, TWO_SIDED, WRITES};
use super::super::plot;
use super::super::{Experiment, Metric, Results, Setting};
use crate::bench::BenchSpec;
use crate::figure::{Figure, Panel, Series, Shape, XAxis, XTicks, YScale};

pub(super) const TABLE2: Experiment = Experiment {
    name: "table2",
    title: "Verbs and traffic of one operation",
    source: "DEX, Table 2",
    shows: "What an operation costs on the network: verbs by kind, and payload both ways.",
    setting: "200 million records of 8 B/8 B, Zipf 0.99, 4 compute servers with 36 threads and 256 MiB of cache each, \
              4 memory servers, nodes of 1 KiB (§8.1). Leaves are loaded half full, as the authors' code does; hot keys \
              are scattered by hashing. The authors' code never offloads at leaves; ours does where it is expected to be \
              faster, so that both are shown.",
    varied: "workload",
    hundredths: 5,
    metrics: &[READS, WRITES, ATOMICS, TWO_SIDED, TRAFFIC, LEAF_HITS, THROUGHPUT],
    cells,
    claims: |_| Vec::new(),
    figure,
};

/// Reads, writes, atomics, two-sided operations and bytes per operation of DEX.
const PAPER: [(&str, [f64; 5]); 2] =
    [("read-only", [0.33, 0.0, 0.0, 0.0002, 333.9]), ("write-intensive", [0.33, 0.19, 0.0, 0.0001, 524.1])];
const VERBS: [Metric; 4] = [READS, WRITES, ATOMICS, TWO_SIDED];
const SERIES: &str = "DEX";
const NEVER: &str = "DEX, never offloading";

fn cells(setting: &Setting) -> Vec<Cell> {
    let mut cells = Vec::new();
    for (series, offload) in [(SERIES, OffloadPolicy::CostAware), (NEVER, OffloadPolicy::Never)] {
        for (i, (workload, values)) in PAPER.iter().enumerate() {
            let spec = BenchSpec { offload, ..setting.spec_of_share(workload, 0.6) };
            let metrics = [READS, WRITES, ATOMICS, TWO_SIDED, TRAFFIC];
            let paper = metrics.iter().zip(values).map(|(metric, value)| (metric.name, *value)).collect();
            cells.push(Cell { paper, ..plot::cell("", series, (i as f64, workload), spec) });
        }
    }
    cells
}

fn figure(results: &Results<'_>) -> Figure {
    let places = results.places("");
    let mut panels: Vec<Panel> = places.iter().map(|(x, workload)| verbs(results, *x, workload)).collect();
    let names: Vec<String> = places.iter().map(|(_, workload)| (*workload).to_owned()).collect();
    let of_place = |of: &dyn Fn(f64) -> Option<f64>| {
        let points = places.iter().enumerate().filter_map(|(i, (x, _))| Some((i as f64, of(*x)?)));
        points.collect::<Vec<_>>()
    };
    panels.push(panel("traffic", names, "bytes of payload per operation", &|source| match source {
        Source::Here(series) => of_place(&|x| results.value("", series, x, &TRAFFIC)),
        Source::Paper => of_place(&|x| paper_value(results, x, &TRAFFIC)),
    }));
    plot::figure(
        results,
        panels,
        "0.33 READs and 334 bytes read-only; 0.33 READs, 0.19 WRITEs and 524 bytes write-intensive; no atomics, and hardly \
         anything is offloaded.",
    )
}

/// Whose figures.
enum Source {
    Here(&'static str),
    Paper,
}

/// The verbs of one workload, ours and the paper's.
fn verbs(results: &Results<'_>, x: f64, workload: &str) -> Panel {
    let names = ["READs", "WRITEs", "atomics", "two-sided"].map(str::to_owned).to_vec();
    let of_verbs = |of: &dyn Fn(&Metric) -> Option<f64>| {
        let points = VERBS.iter().enumerate().filter_map(|(i, metric)| Some((i as f64, of(metric)?)));
        points.collect::<Vec<_>>()
    };
    panel(workload, names, "verbs per operation", &|source| match source {
        Source::Here(series) => of_verbs(&|metric| results.value("", series, x, metric)),
        Source::Paper => of_verbs(&|metric| paper_value(results, x, metric)),
    })
}

fn paper_value(results: &Results<'_>, x: f64, metric: &Metric) -> Option<f64> {
    results.paper_points("", SERIES, metric).into_iter().find(|point| point.0 == x).map(|point| point.1)
}

/// Bars of both our configurations and of the paper, at each of `names`.
fn panel(
    title: &str,
    names: Vec<String>,
    y_label: &str,
    points: &dyn Fn(Source) -> Vec<(f64, f64)>,
) -> Panel {
    let series = |name: &str, source: Source, quoted: bool| Series {
        name: name.to_owned(),
        points: points(source),
        quoted,
    };
    Panel {
        title: title.to_owned(),
        shape: Shape::Bars,
        x: XAxis { label: String::new(), ticks: XTicks::Names(names) },
        y_label: y_label.to_owned(),
        y_scale: YScale::Linear,
        series: vec![
            series("here", Source::Here(SERIES), false),
            series("here, never offloading", Source::Here(NEVER), false),
            series("the paper", Source::Paper, true),
        ],
        references: Vec::new(),
    }
}
