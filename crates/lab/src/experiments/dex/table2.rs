//! Table 2: verbs and traffic of one operation.
//!
//! It is the only table of the paper with figures for all systems, so results can be compared number by
//! number. Without offloading, READs and traffic follow from the caches alone and do not depend on the
//! network model.

use pando::OffloadPolicy;

use super::super::cell::{ATOMICS, Cell, LEAF_HITS, READS, THROUGHPUT, TRAFFIC, TWO_SIDED, WRITES};
use super::super::plot;
use super::super::{Experiment, Metric, Results, Setting};
use super::{COMMON, peers};
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
              faster, so that both are shown. Every update stores another value here; the code of SMART skips the WRITE \
              of a value that is there already.",
    varied: "workload",
    hundredths: 5,
    metrics: &[READS, WRITES, ATOMICS, TWO_SIDED, TRAFFIC, LEAF_HITS, THROUGHPUT],
    cells,
    figure,
    ..COMMON
};

/// READs, WRITEs, atomics, two-sided calls and bytes per operation.
type Published = [f64; 5];
const WORKLOADS: [&str; 2] = ["read-only", "write-intensive"];
const PAPER: [(&str, [Published; 2]); 5] = [
    (peers::DEX, [[0.33, 0.0, 0.0, 0.0002, 333.9], [0.33, 0.19, 0.0, 0.0001, 524.1]]),
    (peers::SHERMAN, [[3.02, 0.0, 0.0, 0.0, 1064.69], [2.71, 0.99, 0.59, 0.0, 1078.95]]),
    (peers::SMART, [[1.44, 0.0, 0.0, 0.0, 996.99], [1.45, 0.11, 0.11, 0.0, 1002.88]]),
    (peers::P_SHERMAN, [[1.0, 0.0, 0.0, 0.0, 1025.04], [1.02, 0.5, 0.0, 0.0, 1054.39]]),
    (peers::P_SMART, [[1.15, 0.0, 0.0, 0.0, 397.41], [1.16, 0.13, 0.0, 0.0, 404.207]]),
];
const SERIES: &str = peers::DEX;
const NEVER: &str = peers::NEVER;

fn cells(setting: &Setting) -> Vec<Cell> {
    let mut cells = Vec::new();
    for (name, published) in PAPER {
        for (i, workload) in WORKLOADS.into_iter().enumerate() {
            let metrics = [READS, WRITES, ATOMICS, TWO_SIDED, TRAFFIC];
            let paper =
                || metrics.iter().zip(published[i]).map(|(metric, value)| (metric.name, value)).collect();
            let spec = setting.spec_of_share(workload, 0.6);
            if name == SERIES {
                let spec = BenchSpec { offload: OffloadPolicy::Never, ..spec.clone() };
                cells.push(Cell { paper: paper(), ..plot::cell("", NEVER, i as f64, workload, spec) });
            }
            cells.push(Cell { paper: paper(), ..peers::cell("", name, i as f64, workload, spec) });
        }
    }
    cells
}

/// Metrics drawn for each workload, by its index: those that are not 0 for all systems.
const PANELS: [(usize, &[Metric]); 2] = [(0, &[READS, TRAFFIC]), (1, &[READS, WRITES, ATOMICS, TRAFFIC])];

fn figure(results: &Results<'_>) -> Figure {
    let panels = PANELS
        .iter()
        .flat_map(|(workload, metrics)| metrics.iter().map(|metric| panel(results, *workload, metric)));
    plot::figure(
        results,
        panels.collect(),
        "DEX needs 0.33 READs and 334 bytes read-only, a ninth and less of Sherman's and a quarter of SMART's, and no atomics in \
         either workload. SMART's WRITEs are few because its code leaves out those that store the value that is there.",
    )
}

/// Bars of all systems for a workload, by its index: measured values and the paper's.
fn panel(results: &Results<'_>, workload: usize, metric: &Metric) -> Panel {
    let x = workload as f64;
    let names = results.series("");
    let placed = |of: &dyn Fn(&str) -> Option<f64>| {
        let points = names.iter().enumerate().filter_map(|(place, name)| Some((place as f64, of(name)?)));
        points.collect::<Vec<_>>()
    };
    let paper = |name: &str| {
        let points = results.paper_points("", name, metric);
        points.into_iter().find(|point| point.0 == x).map(|point| point.1)
    };
    let series = |name: &str, points, quoted| Series { name: name.to_owned(), points, quoted };
    Panel {
        title: format!("{}: {}", WORKLOADS[workload], metric.title),
        shape: Shape::Bars,
        x: XAxis {
            label: String::new(),
            ticks: XTicks::Names(names.iter().map(|name| (*name).to_owned()).collect()),
        },
        y_label: metric.title.to_owned(),
        y_scale: YScale::Linear,
        series: vec![
            series("here", placed(&|name| results.value("", name, x, metric)), false),
            series("the paper", placed(&paper), true),
        ],
        references: Vec::new(),
    }
}
