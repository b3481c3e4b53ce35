//! Searches of an image by its memory server: never, always, or where that is expected to take less time.
//!
//! Policies are compared at each share of the rows, and with all shares in turn, where one reader has to tell the
//! queries apart. The claim is that deciding by cost is nowhere much worse than the better of the other two.

use pando_fabric::OffloadPolicy;

use super::super::cell::metric;
use super::super::claims::claim;
use super::super::plot::{self, Spacing};
use super::super::{Cell, Claim, Cluster, Experiment, Metric, OWN, Place, Results, Scale, Setting};
use super::{COMMON, cell, spec};
use crate::elf::{Data, ElfWork, OffloadSpec, OrderRule};
use crate::figure::YScale;

/// Shares of the rows that queries find.
const SHARES: [(f64, &str); 6] =
    [(1e-5, "0.001%"), (1e-4, "0.01%"), (1e-3, "0.1%"), (0.01, "1%"), (0.1, "10%"), (0.5, "50%")];
/// Place of the cells in which all shares take turns.
const MIXED: f64 = 1.0;
/// Factor over the better of the others that deciding by cost may not exceed.
const LIMIT: f64 = 1.1;

const US: Metric = metric("us", "modelled µs/query", "/us", 1.0, 1);
const READS: Metric = metric("reads", "READs/query", "/reads", 1.0, 2);
const CALLS: Metric = metric("calls", "calls/query", "/calls", 1.0, 3);
const BYTES: Metric = metric("bytes", "bytes/query", "/bytes", 1.0, 0);
const ROUND_TRIPS: Metric = metric("round_trips", "round trips", "/round_trips", 1.0, 2);
const CORES: Metric = metric("cores", "busy cores", "/cores_busy", 1.0, 2);

const ORDERS: [(OrderRule, &str); 2] =
    [(OrderRule::ConditionsFirst, "first"), (OrderRule::Ascending, "deep")];
const CACHES: [(bool, &str); 2] = [(true, "cached"), (false, "not cached")];
/// Client threads, and cores of the memory server. One thread keeps no more than one core busy.
const LOADS: [(usize, usize, &str); 3] =
    [(1, 1, "1 thread"), (36, 4, "36 threads, 4 cores"), (36, 1, "36 threads, 1 core")];
const POLICIES: [OffloadPolicy; 3] = [OffloadPolicy::Never, OffloadPolicy::Always, OffloadPolicy::CostAware];

pub(super) const OFFLOAD: Experiment = Experiment {
    name: "elf-offload",
    title: "Searches by memory servers: never, always, by cost",
    source: OWN,
    shows: "What it gives to let the memory server that has an image search it, and whether deciding by cost ever loses much.",
    setting: "Ids by conditions on the three columns of Q6, at random places; columnar layout, on one memory server. The columns come \
              first in the tree, or where their cardinality puts them (deep). The trie is cached, or nothing is. The threads of one \
              compute server share a reader. All policies answer the same queries, and each answer is checked.",
    varied: "share of the rows found",
    estimated: &["dispatch_ns"],
    place: Place::CLUSTER,
    cluster: Some(Cluster::DEX),
    sizes: |setting| {
        let (one, many) = (numbers(setting, 1), numbers(setting, 36));
        format!(
            "{} rows like lineitem. Each thread warms up with {} queries and is measured over {}; with 36 threads {} and {}.",
            crate::units::count(data(setting).rows() as u64),
            one.0,
            one.1,
            many.0,
            many.1,
        )
    },
    metrics: &[US, READS, CALLS, BYTES, ROUND_TRIPS, CORES],
    cells: offload_cells,
    claims: offload_claims,
    figure: |results| {
        let panels = results.panels().into_iter().map(|panel| {
            let mut shown = plot::lines(results, panel, Spacing::Names, &US, "modelled time of a query (µs)");
            shown.y_scale = YScale::Log;
            shown
        });
        let panels = panels.collect();
        plot::figure(results, panels, "")
    },
    ..COMMON
};

fn data(setting: &Setting) -> Data {
    let rows = match setting.scale {
        Scale::Full => 6_001_215,
        Scale::Quick => 200_000,
        Scale::Tiny => 5_000,
    };
    Data::Lineitem { rows }
}

/// Queries of each thread: to warm up, and measured.
fn numbers(setting: &Setting, threads: usize) -> (usize, usize) {
    match (setting.scale, threads) {
        (Scale::Tiny, _) => (4, 4),
        (_, 1) => (400, 400),
        _ => (24, 24),
    }
}

fn offload_cells(setting: &Setting) -> Vec<Cell> {
    let mut cells = Vec::new();
    for (rule, order) in ORDERS {
        for (is_cached, cache) in CACHES {
            for (threads, cores, load) in LOADS {
                let panel = format!("{order}, {cache}, {load}");
                let (warm_up, queries) = numbers(setting, threads);
                let mut add = |x: f64, x_name: &str, shares: Vec<f64>| {
                    for policy in POLICIES {
                        let shares = shares.clone();
                        let offload =
                            OffloadSpec { policy, rule, is_cached, cores, threads, shares, warm_up, queries };
                        let spec = spec(setting, data(setting), ElfWork::Offload(offload));
                        cells.push(cell(&panel, policy.name(), x, x_name, spec));
                    }
                };
                SHARES.iter().for_each(|&(share, name)| add(share, name, vec![share]));
                add(MIXED, "in turn", SHARES.map(|(share, _)| share).to_vec());
            }
        }
    }
    cells
}

/// Times of deciding by cost over the better of the others, with the names of their places.
fn factors<'r>(results: &'r Results<'_>, panel: &str) -> Vec<(f64, &'r str)> {
    let of = |policy: OffloadPolicy, x| results.value(panel, policy.name(), x, &US);
    let factor = |(x, name)| {
        let better = of(OffloadPolicy::Never, x)?.min(of(OffloadPolicy::Always, x)?);
        Some((of(OffloadPolicy::CostAware, x)? / better, name))
    };
    results.places(panel).into_iter().filter_map(factor).collect()
}

fn offload_claims(results: &Results<'_>) -> Vec<Claim> {
    let panels = results.panels();
    let mut all = Vec::new();
    let mut claims = Vec::new();
    for panel in panels {
        let found = factors(results, panel);
        let worst = found.iter().max_by(|a, b| a.0.total_cmp(&b.0));
        let at = worst.map_or(String::new(), |(_, name)| format!(", worst ({name})"));
        let ours = worst.map(|(factor, _)| format!("{factor:.2}"));
        let what = format!("{panel}: by cost over the better of never and always{at}");
        claims.push(claim(what, format!("at most {LIMIT}"), ours, "-"));
        all.extend(found.into_iter().map(|(factor, _)| factor));
    }
    let above = all.iter().filter(|&&factor| factor > LIMIT).count();
    let ours = (!all.is_empty()).then(|| format!("{above} of {}", all.len()));
    claims.push(claim("places above the limit", "none", ours, "-"));
    claims
}
