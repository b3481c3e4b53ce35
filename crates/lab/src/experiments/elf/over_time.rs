//! Figures 5 to 7: throughput over time from cold caches, for exact match, range and partial match.
//!
//! Compared are no cache, the best dynamic cache, static levels by pointers and by look-ups, and both together. A cell is one run; its throughput is
//! that of the last quarter, when caches are warm, and its report has that of twenty intervals.

use serde_json::Value;

use super::super::cell::metric;
use super::super::claims::{claim, percent};
use super::super::results::at;
use super::super::{Cell, Claim, Experiment, Metric, Results, Setting, plot};
use super::{COMMON, HELD_MB, HITS, UNIFORM, US, best, cell, numbers, part, queries, spec, tables};
use crate::elf::{Base, ElfWork, Kind, PolicyKind, QuerySpec, Store};
use crate::figure::{Figure, Panel, Series, Shape, XAxis, XTicks, YScale};

const NONE: &str = "without a cache";
const DRAM: &str = "all in DRAM";
const STATIC: &str = "static levels";
/// As in the paper.
const HASHED: &str = "static levels, looked up";
const INTERVALS: u64 = 20;
const LAST: Metric = metric("last", "modelled queries/s, warm", "/series/19/qps", 1.0, 0);
const FIRST: Metric = metric("first", "cold", "/series/0/qps", 1.0, 0);
const METRICS: &[Metric] = &[LAST, FIRST, US, HITS, HELD_MB];
/// Static levels of the two tables.
const UNIFORM_LEVELS: [usize; 6] = [1, 2, 3, 4, 5, 6];
const LINEITEM_LEVELS: [usize; 8] = [1, 2, 4, 5, 7, 9, 11, 12];

/// What the paper says of one kind of query.
struct Published {
    kind: Kind,
    panels: [&'static str; 2],
    policy: PolicyKind,
    /// Lists of the dynamic cache, of both tables.
    lists: [f64; 2],
    /// Gain of static levels, of the dynamic cache, in per cent.
    gains: [[&'static str; 2]; 2],
    /// Best number of static levels.
    depths: [&'static str; 2],
    /// Static levels below which the dynamic cache is added, and what that does to the static cache alone.
    combined: [(usize, &'static str); 2],
    /// Overhead over DRAM that remains with the best caching, uniform table.
    remaining: &'static str,
    place: &'static str,
}

const MILLION: f64 = 1_048_576.0;
const EXACT: Published = Published {
    kind: Kind::Exact,
    panels: ["exact match, uniform", "exact match, lineitem"],
    policy: PolicyKind::Lla,
    lists: [MILLION, 65_536.0],
    gains: [["about +30%", "not given"], ["+25%", "+2%"]],
    depths: ["4", "11"],
    combined: [(4, "ahead"), (9, "ahead")],
    remaining: "+150%",
    place: "§5.4, Figure 5",
};
const RANGE: Published = Published {
    kind: Kind::Range,
    panels: ["range 2%, uniform", "range 2%, lineitem"],
    policy: PolicyKind::Naive,
    lists: [4.0 * MILLION; 2],
    gains: [["+50%", "+40%"], ["around +20%", "+30%"]],
    depths: ["4", "not given"],
    combined: [(4, "falls"), (9, "ahead")],
    remaining: "+110%",
    place: "§5.4, Figure 6",
};
const PARTIAL: Published = Published {
    kind: Kind::Partial,
    panels: ["partial match 2%, uniform", "partial match 2%, lineitem"],
    policy: PolicyKind::Naive,
    lists: [4.0 * MILLION; 2],
    gains: [["+40%", "+15%"], ["+7%", "-10%"]],
    depths: ["4", "not given"],
    combined: [(4, "falls"), (9, "falls")],
    remaining: "+140%",
    place: "§5.4, Figure 7",
};

pub(super) const FIG5: Experiment = Experiment {
    name: "elf-fig5",
    title: "Exact match over time",
    source: "DAPD 2022, Figure 5, §5.4",
    shows: "What static and dynamic caches of lists give to exact matches, from cold caches on.",
    setting: "LLA with 1M lists (uniform) and 64K lists (lineitem); static levels from the top. The paper runs up to 100M queries.",
    varied: "static levels",
    metrics: METRICS,
    cells: |setting| cells(setting, &EXACT),
    claims: |results| claims(results, &EXACT),
    figure: |results| {
        let says = "static caching of four levels gives about 30% on the uniform table and LLA up to 25%; on lineitem 11 levels are best \
                    and LLA gives 1 to 2%.";
        figure(results, &EXACT, says)
    },
    ..COMMON
};

pub(super) const FIG6: Experiment = Experiment {
    name: "elf-fig6",
    title: "Ranges over time",
    source: "DAPD 2022, Figure 6, §5.4",
    shows: "What static and dynamic caches of lists give to ranges of 2%.",
    setting: "Naive with 4M lists; static levels from the top.",
    varied: "static levels",
    metrics: METRICS,
    cells: |setting| cells(setting, &RANGE),
    claims: |results| claims(results, &RANGE),
    figure: |results| {
        let says = "static caching gives 50% and 40%, naive about 20% and over 30%; both together are slower than static caching.";
        figure(results, &RANGE, says)
    },
    ..COMMON
};

pub(super) const FIG7: Experiment = Experiment {
    name: "elf-fig7",
    title: "Partial matches over time",
    source: "DAPD 2022, Figure 7, §5.4",
    shows: "What static and dynamic caches of lists give to partial matches of 2%.",
    setting: "Naive with 4M lists; static levels from the top. Which columns are open is not given; here every second one.",
    varied: "static levels",
    metrics: METRICS,
    cells: |setting| cells(setting, &PARTIAL),
    claims: |results| claims(results, &PARTIAL),
    figure: |results| {
        let says =
            "static caching gives 40% and 15%, naive 5 to 10% on the uniform table and -10% on lineitem.";
        figure(results, &PARTIAL, says)
    },
    ..COMMON
};

fn levels(table: &str) -> &'static [usize] {
    if table == UNIFORM { &UNIFORM_LEVELS } else { &LINEITEM_LEVELS }
}

fn run(setting: &Setting, kind: Kind, store: Store) -> QuerySpec {
    let (warm_up, measured) = numbers(setting, kind, 2);
    let queries = (warm_up + measured).max(INTERVALS);
    QuerySpec { warm_up: 0, queries, intervals: INTERVALS, ..queries_of(setting, kind, store) }
}

fn queries_of(setting: &Setting, kind: Kind, store: Store) -> QuerySpec {
    queries(setting, kind, 2, store)
}

/// Name of the series of static levels with the dynamic cache.
fn combined_name(published: &Published, place: usize) -> String {
    format!("static {} + {}", published.combined[place].0, published.policy.name())
}

fn cells(setting: &Setting, published: &Published) -> Vec<Cell> {
    let mut cells = Vec::new();
    for (place, (table, data)) in tables(setting).into_iter().enumerate() {
        let panel = published.panels[place];
        let work = |store| spec(setting, data, ElfWork::Queries(run(setting, published.kind, store)));
        let lists = part(setting, published.lists[place]);
        let persistent = Store::new(Base::Persistent);
        cells.push(cell(panel, NONE, 0.0, "0", work(persistent.clone())));
        cells.push(cell(panel, DRAM, 0.0, "0", work(Store::new(Base::Dram))));
        let dynamic = persistent.with_cache(published.policy, lists);
        cells.push(cell(panel, published.policy.name(), 0.0, "0", work(dynamic)));
        for &depth in levels(table) {
            cells.push(cell(panel, STATIC, depth as f64, depth, work(Store::levels(depth))));
            cells.push(cell(panel, HASHED, depth as f64, depth, work(Store::hashed(depth))));
        }
        let depth = published.combined[place].0;
        let both = Store::levels(depth).with_cache(published.policy, lists);
        let name = combined_name(published, place);
        cells.push(cell(panel, &name, depth as f64, depth, work(both)));
    }
    cells
}

fn claims(results: &Results<'_>, published: &Published) -> Vec<Claim> {
    let mut claims = Vec::new();
    for (place, panel) in published.panels.into_iter().enumerate() {
        let base = results.value(panel, NONE, 0.0, &LAST);
        let over = |value: Option<f64>| value.zip(base).map(|(value, base)| value / base);
        let mut add = |what: String, paper: &str, ours| {
            claims.push(claim(format!("{panel}: {what}"), paper, ours, published.place));
        };
        let statics = best(results, panel, STATIC, &LAST);
        let [static_gain, dynamic_gain] = published.gains.map(|gains| gains[place]);
        for series in [STATIC, HASHED] {
            let found = best(results, panel, series, &LAST);
            add(format!("best {series} over no cache"), static_gain, percent(over(found.map(|best| best.1))));
            let depth = found.map(|best| format!("{:.0}", best.0));
            add(format!("best number of {series}"), published.depths[place], depth);
        }
        let policy = published.policy.name();
        let dynamic = results.value(panel, policy, 0.0, &LAST);
        add(format!("{policy} over no cache, warm"), dynamic_gain, percent(over(dynamic)));
        let (depth, says) = published.combined[place];
        let name = combined_name(published, place);
        let both = results.ratio(panel, at(&name, depth as f64), at(STATIC, depth as f64), &LAST);
        add(format!("{name} over static {depth}"), says, percent(both));
        let remaining = statics.zip(results.value(panel, DRAM, 0.0, &LAST)).map(|(best, dram)| dram / best.1);
        let says = if place == 0 { published.remaining } else { "not given" };
        add("overhead over DRAM that remains with the best static levels".into(), says, percent(remaining));
    }
    claims
}

fn figure(results: &Results<'_>, published: &Published, says: &str) -> Figure {
    let panels =
        published.panels.into_iter().flat_map(|panel| [by_levels(results, panel), over_time(results, panel)]);
    plot::figure(results, panels.flatten().collect(), says)
}

/// Warm throughput by static levels; what has none is drawn at 0.
fn by_levels(results: &Results<'_>, panel: &str) -> Option<Panel> {
    let mut shown = plot::lines(results, panel, plot::Spacing::Names, &LAST, "modelled queries/s, warm");
    shown.title = format!("{panel}: warm");
    (!shown.series.is_empty()).then_some(shown)
}

/// Throughput over the number of queries, of a few runs.
fn over_time(results: &Results<'_>, panel: &str) -> Option<Panel> {
    let shown = |name: &str, x: f64| name != HASHED && (name != STATIC || x == 2.0 || x == 4.0 || x == 11.0);
    let outcomes = results
        .outcomes
        .iter()
        .filter(|outcome| outcome.cell.panel == panel && shown(&outcome.cell.series, outcome.cell.x));
    let mut series = Vec::new();
    let mut end: f64 = 0.0;
    for outcome in outcomes {
        let Ok(report) = &outcome.report else { continue };
        let Some(intervals) = report.get("series").and_then(Value::as_array) else { continue };
        let point =
            |interval: &Value| Some((interval.get("queries")?.as_f64()?, interval.get("qps")?.as_f64()?));
        let points: Vec<(f64, f64)> = intervals.iter().filter_map(point).collect();
        end = points.iter().map(|point| point.0).fold(end, f64::max);
        let cell = &outcome.cell;
        let name =
            if cell.series == STATIC { format!("static {}", cell.x_name) } else { cell.series.clone() };
        series.push(Series { name, points, quoted: false });
    }
    let ticks = (0..=4).map(|tick| end * f64::from(tick) / 4.0).collect();
    (!series.is_empty()).then(|| Panel {
        title: format!("{panel}: over time"),
        shape: Shape::Lines,
        x: XAxis { label: "queries".to_owned(), ticks: XTicks::Numbers(ticks) },
        y_label: "modelled queries/s".to_owned(),
        y_scale: YScale::Linear,
        series,
        references: Vec::new(),
    })
}
