//! Experiments of our own: factors over the best scan, column orders, and Elf on disaggregated memory.
//!
//! The first two are measured on this machine. The third counts verbs and bytes; its times are those of the simulated
//! network.

use serde_json::Value;

use super::super::cell::metric;
use super::super::claims::claim;
use super::super::{Cell, Claim, Cluster, Experiment, Metric, OWN, Place, Results, Scale, Setting, plot};
use super::{CARDINALITY, COMMON, cell, spec, uniform};
use crate::elf::{Data, ElfWork, OrderRule};
use crate::figure::{Figure, Panel, Reference, Series, Shape, XAxis, XTicks, YScale};

pub(super) const MACHINE: Place =
    Place { name: "This machine", note: "Measured on one core of this machine." };
pub(super) const OUTPUTS: [&str; 3] = ["count", "ids", "bitmap"];
/// Factor over the best scan that no predicate may exceed.
pub(super) const LIMIT: f64 = 1.3;

const COUNT_MEDIAN: Metric = metric("count_median", "count, median", "/count/median", 1.0, 2);
const COUNT_P99: Metric = metric("count_p99", "count, 99%", "/count/p99", 1.0, 2);
const COUNT_WORST: Metric = metric("count_worst", "count, worst", "/count/worst", 1.0, 2);
const COUNT_WALKED: Metric = metric("count_walked", "count, walked", "/count/walked", 1.0, 2);
const IDS_MEDIAN: Metric = metric("ids_median", "ids, median", "/ids/median", 1.0, 2);
const IDS_P99: Metric = metric("ids_p99", "ids, 99%", "/ids/p99", 1.0, 2);
const IDS_WORST: Metric = metric("ids_worst", "ids, worst", "/ids/worst", 1.0, 2);
const IDS_WALKED: Metric = metric("ids_walked", "ids, walked", "/ids/walked", 1.0, 2);
const BITMAP_MEDIAN: Metric = metric("bitmap_median", "bitmap, median", "/bitmap/median", 1.0, 2);
const BITMAP_P99: Metric = metric("bitmap_p99", "bitmap, 99%", "/bitmap/p99", 1.0, 2);
const BITMAP_WORST: Metric = metric("bitmap_worst", "bitmap, worst", "/bitmap/worst", 1.0, 2);
const BITMAP_WALKED: Metric = metric("bitmap_walked", "bitmap, walked", "/bitmap/walked", 1.0, 2);

/// Rows of lineitem in experiments of this machine, and rounds whose median counts.
pub(super) fn small(setting: &Setting) -> (Data, usize) {
    let (rows, rounds) = match setting.scale {
        Scale::Full => (6_001_215, 9),
        Scale::Quick => (2_000_000, 5),
        Scale::Tiny => (20_000, 1),
    };
    (Data::Lineitem { rows }, rounds)
}

fn own_sizes(setting: &Setting) -> String {
    let (data, rounds) = small(setting);
    format!("{} rows like lineitem; medians of {rounds} rounds.", crate::units::count(data.rows() as u64))
}

pub(super) const SELECTIVITY: Experiment = Experiment {
    name: "elf-selectivity",
    title: "Elf with its gate over the best scan",
    source: OWN,
    shows: "Whether any predicate is much slower than a scan.",
    setting: "1,000 random predicates on 1 to 15 columns that admit 0.001% to 100% of the rows; columnar layout, order for a mixed \
              workload. Elf and scan take turns, and must find the same rows.",
    varied: "",
    estimated: &[],
    place: MACHINE,
    sizes: own_sizes,
    metrics: &[
        COUNT_MEDIAN,
        COUNT_P99,
        COUNT_WORST,
        COUNT_WALKED,
        IDS_MEDIAN,
        IDS_P99,
        IDS_WORST,
        IDS_WALKED,
        BITMAP_MEDIAN,
        BITMAP_P99,
        BITMAP_WORST,
        BITMAP_WALKED,
    ],
    cells: |setting| {
        let (data, rounds) = small(setting);
        let predicates = if setting.scale == Scale::Tiny { 30 } else { 1_000 };
        let work = ElfWork::Selectivity { predicates, rounds };
        // One run measures all outputs; a cell for each would measure them at different times.
        vec![cell("", "all outputs", 0.0, "", spec(setting, data, work))]
    },
    claims: selectivity_claims,
    figure: selectivity_figure,
    ..COMMON
};

fn of_output(results: &Results<'_>, output: &str, field: &str) -> Option<f64> {
    results.outcomes.first()?.report.as_ref().ok()?.get(output)?.get(field)?.as_f64()
}

fn selectivity_claims(results: &Results<'_>) -> Vec<Claim> {
    let mut claims = Vec::new();
    for output in OUTPUTS {
        for (field, name) in
            [("worst", "of the worst predicate"), ("p99", "at 99%"), ("median", "of the median")]
        {
            let ours = of_output(results, output, field).map(|factor| format!("{factor:.2}"));
            let what = format!("{output}: time of Elf over the scan's, {name}");
            claims.push(claim(what, format!("at most {LIMIT}"), ours, "-"));
        }
        let ours = of_output(results, output, "above_limit").map(|count| format!("{count:.0} of 1000"));
        claims.push(claim(format!("{output}: predicates above the limit"), "none", ours, "-"));
    }
    claims
}

fn selectivity_figure(results: &Results<'_>) -> Figure {
    let report = results.outcomes.first().and_then(|outcome| outcome.report.as_ref().ok());
    let numbers = |output: &str, field: &str| -> Option<Vec<f64>> {
        report?.get(output)?.get(field)?.as_array()?.iter().map(Value::as_f64).collect()
    };
    let names = || {
        let shares = numbers("ids", "shares").unwrap_or_default();
        shares.iter().map(|share| format!("{}%", share * 100.0)).collect::<Vec<_>>()
    };
    let series = OUTPUTS.iter().filter_map(|output| {
        let factors = numbers(output, "factors")?;
        let points = factors.into_iter().enumerate().map(|(place, factor)| (place as f64, factor)).collect();
        Some(Series { name: (*output).to_owned(), points, quoted: false })
    });
    let panel = Panel {
        title: String::new(),
        shape: Shape::Lines,
        x: XAxis { label: "share of the predicates".to_owned(), ticks: XTicks::Names(names()) },
        y_label: "time of Elf with gate / time of the scan".to_owned(),
        y_scale: YScale::Log,
        series: series.collect(),
        references: vec![Reference { label: "wanted at most".to_owned(), y: LIMIT }],
    };
    plot::figure(results, if report.is_some() { vec![panel] } else { Vec::new() }, "")
}

const ORDERS: [(OrderRule, &str); 5] = [
    (OrderRule::Ascending, "ascending cardinality"),
    (OrderRule::Descending, "descending"),
    (OrderRule::Table, "as in the table"),
    (OrderRule::ConditionsFirst, "Q6 first"),
    (OrderRule::Advised, "advised"),
];
const Q6_LINEAR: Metric = metric("q6_linear", "Q6, linear, µs", "/linear/q6_us", 1.0, 1);
const Q6_COLUMNAR: Metric = metric("q6_columnar", "Q6, columnar, µs", "/columnar/q6_us", 1.0, 1);
const MIXED_LINEAR: Metric = metric("mixed_linear", "mixed, linear, µs", "/linear/mixed_us", 1.0, 0);
const MIXED_COLUMNAR: Metric = metric("mixed_columnar", "mixed, columnar, µs", "/columnar/mixed_us", 1.0, 0);
const LINEAR_MB: Metric = metric("linear_mb", "linear, MB", "/linear/image_bytes", 1e-6, 1);
const COLUMNAR_MB: Metric = metric("columnar_mb", "columnar, MB", "/columnar/image_bytes", 1e-6, 1);

pub(super) const ORDER: Experiment = Experiment {
    name: "elf-order",
    title: "Column orders",
    source: OWN,
    shows: "What the order of the columns does to size and to walks.",
    setting: "15 columns; ids of Q6's predicate, and the mean of 21 predicates on one to four columns. Walks only, without a table for \
              scans.",
    varied: "order",
    estimated: &[],
    place: MACHINE,
    sizes: own_sizes,
    metrics: &[Q6_LINEAR, Q6_COLUMNAR, MIXED_LINEAR, MIXED_COLUMNAR, LINEAR_MB, COLUMNAR_MB],
    cells: |setting| {
        let (data, rounds) = small(setting);
        let cells = ORDERS.into_iter().enumerate().map(|(place, (rule, name))| {
            let work = ElfWork::Order { rule, rounds };
            cell("", "lineitem", place as f64, name, spec(setting, data, work))
        });
        cells.collect()
    },
    claims: |results| {
        let ratio = |metric: &Metric| {
            let value = |x| results.value("", "lineitem", x, metric);
            value(0.0).zip(value(4.0)).map(|(ascending, advised)| format!("{:.1}x", ascending / advised))
        };
        vec![
            claim(
                "mixed workload, columnar: ascending cardinality over the advised order",
                "ahead",
                ratio(&MIXED_COLUMNAR),
                "-",
            ),
            claim(
                "Q6, columnar: ascending cardinality over the advised order",
                "ahead",
                ratio(&Q6_COLUMNAR),
                "-",
            ),
        ]
    },
    figure: |results| {
        let panels = [(&Q6_LINEAR, "Q6"), (&MIXED_LINEAR, "mixed workload"), (&LINEAR_MB, "size")];
        let columnar = [&Q6_COLUMNAR, &MIXED_COLUMNAR, &COLUMNAR_MB];
        let panels = panels.into_iter().zip(columnar).map(|((linear, title), columnar)| {
            let label = if title == "size" { "image (MB)" } else { "time of a query (µs)" };
            let mut panel = plot::bars(results, "", linear, label);
            title.clone_into(&mut panel.title);
            let other = plot::bars(results, "", columnar, label);
            for (series, name) in panel.series.iter_mut().zip(["linear"]) {
                name.clone_into(&mut series.name);
            }
            panel.series.extend(
                other.series.into_iter().map(|series| Series { name: "columnar".to_owned(), ..series }),
            );
            panel.y_scale = YScale::Log;
            panel
        });
        plot::figure(results, panels.collect(), "")
    },
    ..COMMON
};

const READS: Metric = metric("reads", "READs/query", "/reads", 1.0, 2);
const BYTES: Metric = metric("bytes", "bytes/query", "/bytes", 1.0, 0);
const ROUND_TRIPS: Metric = metric("round_trips", "round trips", "/round_trips", 1.0, 2);
const REMOTE_US: Metric = metric("us", "modelled µs", "/us", 1.0, 1);
const LEVELS: Metric = metric("levels", "levels cached", "/cached_levels", 1.0, 0);
const CACHED_KB: Metric = metric("cached", "kB cached", "/cached_bytes", 1e-3, 1);
const EXACT: &str = "exact match, linear";
const Q6: &str = "Q6, columnar";
/// Bytes that a reader may cache, as fractions of the image.
const SHARES: [(f64, &str); 6] =
    [(0.0, "0"), (1e-5, "0.001%"), (1e-3, "0.1%"), (0.01, "1%"), (0.1, "10%"), (1.0, "100%")];

pub(super) const REMOTE: Experiment = Experiment {
    name: "elf-remote",
    title: "Elf on disaggregated memory by bytes cached",
    source: OWN,
    shows: "How many READs, bytes and round trips a query needs.",
    setting: "Four memory servers; exact matches on the linear layout of the uniform table, ids of Q6 on the columnar layout with its columns \
              first. The catalog is looked at once.",
    varied: "share of the image that may be cached",
    estimated: &[],
    place: Place::CLUSTER,
    cluster: Some(Cluster::DEX),
    sizes: |setting| {
        let (uniform, lineitem) = remote_data(setting);
        format!(
            "{} rows of the uniform table, {} like lineitem.",
            crate::units::count(uniform.rows() as u64),
            crate::units::count(lineitem.rows() as u64)
        )
    },
    metrics: &[READS, BYTES, ROUND_TRIPS, REMOTE_US, LEVELS, CACHED_KB],
    cells: remote_cells,
    claims: remote_claims,
    figure: |results| {
        let panels = results.panels().into_iter().flat_map(|panel| {
            [
                (&READS, "READs of a query"),
                (&BYTES, "bytes of a query"),
                (&REMOTE_US, "modelled time of a query (µs)"),
            ]
            .map(|(metric, label)| {
                let mut shown = plot::lines(results, panel, plot::Spacing::Names, metric, label);
                shown.title = format!("{panel}: {}", metric.title);
                shown
            })
        });
        plot::figure(results, panels.collect(), "")
    },
    ..COMMON
};

fn remote_data(setting: &Setting) -> (Data, Data) {
    let uniform = match uniform(setting, CARDINALITY) {
        // A tenth: a whole pool is in this process besides the image.
        Data::Uniform { rows, columns, cardinality } if setting.scale == Scale::Quick => {
            Data::Uniform { rows: rows / 5, columns, cardinality }
        }
        data => data,
    };
    let rows = if setting.scale == Scale::Tiny { 20_000 } else { 6_001_215 };
    (uniform, Data::Lineitem { rows })
}

fn remote_cells(setting: &Setting) -> Vec<Cell> {
    let (uniform, lineitem) = remote_data(setting);
    let few = setting.scale == Scale::Tiny;
    // The image, its pool and a cache of all of it take three times its size in this process.
    let shares = if setting.scale == Scale::Full { &SHARES[..SHARES.len() - 1] } else { &SHARES };
    let mut cells = Vec::new();
    for (panel, data, exact, queries) in
        [(EXACT, uniform, true, if few { 20 } else { 2_000 }), (Q6, lineitem, false, if few { 2 } else { 5 })]
    {
        // About 30 bytes a row, whatever the layout.
        let image_bytes = data.rows() as f64 * 30.0;
        for &(share, name) in shares {
            let cache_bytes = (image_bytes * share) as u64;
            let work = ElfWork::Remote { cache_bytes, queries, exact };
            cells.push(cell(panel, "Elf", share, name, spec(setting, data, work)));
        }
    }
    cells
}

fn remote_claims(results: &Results<'_>) -> Vec<Claim> {
    let value = |panel, x, metric: &Metric| results.value(panel, "Elf", x, metric);
    let show = |value: Option<f64>| value.map(|value| format!("{value:.1}"));
    vec![
        claim("exact match, 10% cached: READs", "1", show(value(EXACT, 0.1, &READS)), "-"),
        claim("exact match, 10% cached: bytes", "at most 4096", show(value(EXACT, 0.1, &BYTES)), "-"),
        claim("Q6, 10% cached: READs", "at most 250", show(value(Q6, 0.1, &READS)), "-"),
        claim("Q6, 10% cached: bytes", "at most 800000", show(value(Q6, 0.1, &BYTES)), "-"),
        claim("Q6, 10% cached: round trips", "at most 3", show(value(Q6, 0.1, &ROUND_TRIPS)), "-"),
    ]
}
