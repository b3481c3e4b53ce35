//! Figures of the paper on selective caching (Jibril et al., DAPD 2022), and experiments of our own on Elf.
//!
//! There is no persistent memory here: its times are those of a model (`pando_sim::memory`), and each column says
//! whether it is modelled or measured. Smaller scales keep the shape of the tree: as many full levels, by
//! fewer values of each column, and processor caches that are smaller in proportion. The paper's figures
//! are not published as numbers; its values are those of the text.

mod caches;
mod memory;
mod offload;
mod over_time;
mod own;
mod parallel;
mod peers;

use pando_sim::memory::MemoryModel;

use super::cell::metric;
use super::plot::{self, cell};
use super::{Experiment, Metric, Place, Results, Scale, Setting};
use crate::elf::{Data, ElfSpec, ElfWork, Kind, QuerySpec, Store};

pub(super) const EXPERIMENTS: &[Experiment] = &[
    memory::FIG3,
    memory::HYBRID,
    caches::FIG4,
    over_time::FIG5,
    over_time::FIG6,
    over_time::FIG7,
    parallel::FIG8,
    own::SELECTIVITY,
    own::ORDER,
    own::REMOTE,
    offload::OFFLOAD,
    peers::PEERS,
];

const QPS: Metric = metric("qps", "modelled queries/s", "/qps", 1.0, 0);
const US: Metric = metric("us", "modelled µs/query", "/us_per_query", 1.0, 2);
const MEASURED_US: Metric =
    metric("measured_us", "measured µs/query, here", "/measured_us_per_query", 1.0, 2);
const HELD_MB: Metric = metric("held", "MB in DRAM", "/held_bytes", 1e-6, 2);
const HITS: Metric = metric("hits", "hits of the cache", "/hit_ratio", 1.0, 3);

/// Rows of the paper's tables.
const UNIFORM_ROWS: f64 = 1e8;
const LINEITEM_ROWS: f64 = 6e7;
/// Columns of the uniform table, and values of each.
const COLUMNS: usize = 10;
const CARDINALITY: u32 = 100;

const UNIFORM: &str = "uniform";
const LINEITEM: &str = "lineitem";

/// Parameters of the model that are estimates and affect everything here.
const ESTIMATED: &[&str] = &["overlapping", "run_ahead_lines", "page_bytes", "walk_cycles"];

/// Fields that the experiments share.
const COMMON: Experiment = Experiment {
    name: "",
    title: "",
    source: "",
    shows: "",
    setting: "",
    varied: "",
    fitted: &[],
    estimated: ESTIMATED,
    place: Place {
        name: "A model of the paper's machine",
        note: "Times of persistent memory are modelled; there is none here.",
    },
    cluster: None,
    sizes: describe,
    hundredths: 1,
    records: 100_000_000,
    metrics: &[US],
    cells: |_| Vec::new(),
    claims: |_| Vec::new(),
    figure: |results| plot::figure(results, Vec::new(), ""),
};

/// Rows here as a fraction of the paper's.
fn factor(setting: &Setting) -> f64 {
    match setting.scale {
        Scale::Full => 1.0,
        Scale::Quick => 0.1,
        Scale::Tiny => 2e-4,
    }
}

/// A number that is smaller in proportion, at least 1.
fn part(setting: &Setting, papers: f64) -> usize {
    ((papers * factor(setting)) as usize).max(1)
}

/// Values of a column here for a number of values in the paper: four columns have as many prefixes as there are rows
/// in both.
fn values(setting: &Setting, papers: u32) -> u32 {
    ((f64::from(papers) * factor(setting).powf(0.25)).round() as u32).max(2)
}

fn uniform(setting: &Setting, cardinality: u32) -> Data {
    let rows = part(setting, UNIFORM_ROWS);
    Data::Uniform { rows, columns: COLUMNS, cardinality: values(setting, cardinality) }
}

fn lineitem(setting: &Setting) -> Data {
    Data::Lineitem { rows: part(setting, LINEITEM_ROWS) }
}

/// Both tables with their names.
fn tables(setting: &Setting) -> [(&'static str, Data); 2] {
    [(UNIFORM, uniform(setting, CARDINALITY)), (LINEITEM, lineitem(setting))]
}

fn describe(setting: &Setting) -> String {
    match setting.scale {
        Scale::Full => "The paper's numbers of rows.".to_owned(),
        _ => format!(
            "{} rows of the uniform table instead of 100 million, with {} values in a column instead of 100, and {} of lineitem \
             instead of 60 million; processor caches and dynamic caches smaller in proportion.",
            crate::units::count(part(setting, UNIFORM_ROWS) as u64),
            values(setting, CARDINALITY),
            crate::units::count(part(setting, LINEITEM_ROWS) as u64),
        ),
    }
}

fn model(setting: &Setting) -> MemoryModel {
    let model = MemoryModel::default();
    if setting.scale == Scale::Full { model } else { model.scaled(factor(setting)) }
}

fn spec(setting: &Setting, data: Data, work: ElfWork) -> ElfSpec {
    ElfSpec::new(data, work, model(setting), setting.seed)
}

/// Numbers of queries: to warm up, and measured.
fn numbers(setting: &Setting, kind: Kind, range_percent: u32) -> (u64, u64) {
    let (warm_up, queries) = match (kind, range_percent) {
        (Kind::Exact, _) => (10_000_000, 1_000_000),
        (Kind::Range, ..50) => (10_000, 2_000),
        (Kind::Range, _) => (5, 20),
        (Kind::Partial, ..50) => (300, 200),
        (Kind::Partial, _) => (2, 8),
    };
    match setting.scale {
        Scale::Full => (warm_up, queries),
        Scale::Quick if kind == Kind::Exact => (warm_up / 10, queries / 5),
        Scale::Quick => (warm_up, queries),
        Scale::Tiny => (warm_up.min(50), queries.min(20)),
    }
}

fn queries(setting: &Setting, kind: Kind, range_percent: u32, store: Store) -> QuerySpec {
    let (warm_up, queries) = numbers(setting, kind, range_percent);
    QuerySpec { kind, range_percent, store, warm_up, queries, intervals: 0 }
}

/// The greatest value of a metric in a series, and its x.
fn best(results: &Results<'_>, panel: &str, series: &str, metric: &Metric) -> Option<(f64, f64)> {
    results.points(panel, series, metric).into_iter().max_by(|a, b| a.1.total_cmp(&b.1))
}
