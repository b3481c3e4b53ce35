//! Many servers: whether each does as much as one of four. The paper has four (DEX §8.1).
//!
//! Work and data grow with the cluster (weak scaling): every compute server has as many records and as much cache
//! whatever their number, and a measured time instead of a number of operations, since the slowest of ten thousand
//! threads would decide. So the index grows with the cluster: its levels, its shared upper nodes, the routing table, and
//! the connections of each NIC. Each server has popular keys of its own: with one law over all keys, the server with the
//! most popular one would have more and more of the load, which no index can divide.

use pando::OffloadPolicy;
use pando_workload::Distribution;

use super::super::cell::{ATOMICS, Cell, LATENCY, READS, THROUGHPUT, TRAFFIC, WRITES, metric};
use super::super::plot::{self, Spacing};
use super::super::results::at;
use super::super::scale::{PAPER_KEYS, SERVERS as PAPER_SERVERS, SKEWED};
use super::super::{Claim, Experiment, Metric, OWN, Results, Scale, Setting};
use super::{COMMON, claim, times};
use crate::bench::{BenchSpec, Length};
use crate::elastic::{Clients, ElasticSpec, PlannedMove, Spread};
use crate::figure::{Figure, Panel};

/// Compute servers, and as many memory servers.
const SERVERS: [usize; 5] = [PAPER_SERVERS, 16, 64, 256, 1_000];
/// Servers of cells whose keys move, which take more virtual time.
const MOVING_SERVERS: [usize; 3] = [PAPER_SERVERS, 16, 64];
/// From this number of servers on, NICs have more connections than they keep the state of.
const CROWDED: usize = 256;

/// Servers of the largest index that begins empty: its root has to hold all boundaries.
const GROWN_MOST: usize = 16;

const READ_ONLY: &str = "read-only";
const WRITE_INTENSIVE: &str = "write-intensive";
const UNIFORM: &str = "uniform";
const GROWTH: &str = "growth from empty";
const HOT_SPOT: &str = "moving hot spot";
const TAKE_OVER: &str = "new servers take over";

const FEW: &str = "10 threads";
const MANY: &str = "36 threads";
const KEPT: &str = "36 threads, all connections kept";
const BALANCED: &str = "with a balancer";
const UNBALANCED: &str = "without";

/// Connections of a NIC that keeps them all.
const ALL_CONNECTIONS: u64 = 1 << 20;
/// Placement of subtrees: as many to a compute server as in the paper, whose level M is 3.
const SUBTREE_LEVEL: u8 = 1;

const MOVING: Metric = metric("moving", "moves, ms", "/moving_ns", 1e-6, 2);
const LEVELS: Metric = metric("levels", "levels", "/tree/height", 1.0, 0);
const MOVES: Metric = metric("moves", "moves", "/move_count", 1.0, 0);
const MESSAGES: Metric = metric("messages", "busiest NIC, % of messages", "/resources/messages", 100.0, 0);

pub(super) const SCALE: Experiment = Experiment {
    name: "scale",
    title: "Many servers",
    source: OWN,
    shows: "Whether a server of a cluster of a thousand does as much as one of four, and what bends the curve.",
    setting: "As many memory servers as compute servers; a server of each kind shares a NIC. Records and cache of a compute server do \
              not depend on their number. Threads use keys of their own server, by Zipf 0.99 within these or uniformly. Growth \
              begins with an empty index and inserts new keys only. In the last two panels clients choose keys from all and wait \
              for the server that has them: 90% of the operations go to a tenth of the keys, at two places one after the other; or \
              half of the servers have no keys at first and take over half of those of each other one.",
    varied: "servers of each kind",
    metrics: &[THROUGHPUT, READS, WRITES, ATOMICS, TRAFFIC, LATENCY, MESSAGES, LEVELS, MOVES, MOVING],
    sizes: describe,
    cells,
    claims,
    figure,
    estimated: &["connections_cached", "connection_miss_ns", "hand_over_ns"],
    ..COMMON
};

/// Records of a compute server.
fn records(setting: &Setting) -> u64 {
    match setting.scale {
        Scale::Full => 200_000,
        Scale::Quick => 50_000,
        Scale::Tiny => 2_000,
    }
}

/// Cache of a compute server: so much that with ten threads an operation needs about as many READs as with the paper's
/// sizes, a third of one (`table2`). With so few records, caches in proportion to the paper's need twice as many. More
/// threads have more pages in flight, which need frames too.
fn cache_bytes(setting: &Setting, threads: usize) -> u64 {
    records(setting) * 10 + threads as u64 * (12 << 10)
}

fn describe(setting: &Setting) -> String {
    let papers = PAPER_KEYS / PAPER_SERVERS as u64 / 1_000_000;
    let count = crate::units::count(records(setting));
    let [few, many] = [10, 36].map(|threads| crate::units::size(cache_bytes(setting, threads)));
    format!(
        "{count} records on each compute server instead of {papers} million, and caches of {few} with 10 threads, which need about \
         as many READs as the paper's, and of {many} with 36."
    )
}

/// A cell whose keys stay.
fn spec(setting: &Setting, servers: usize, threads: usize, workload: &str) -> BenchSpec {
    let (records, all) = (records(setting), servers as u64);
    let threads = if setting.scale == Scale::Tiny { 2 } else { threads };
    BenchSpec {
        memory_servers: servers,
        compute_servers: servers,
        threads,
        cache_bytes: cache_bytes(setting, threads),
        offload: OffloadPolicy::Never,
        subtree_level: SUBTREE_LEVEL,
        keys: records * all,
        dist: Some(SKEWED),
        ranks: None,
        own_ranks: true,
        warmup: records * all / 16,
        // About as many operations with any number of threads.
        length: Length::Seconds(10e-3 / threads as f64),
        ..setting.spec(workload)
    }
}

/// Sizes of clusters at this scale.
fn sizes(setting: &Setting, all: &[usize]) -> impl Iterator<Item = usize> {
    let most = if setting.scale == Scale::Tiny { 16 } else { usize::MAX };
    all.iter().copied().filter(move |&servers| servers <= most)
}

fn cells(setting: &Setting) -> Vec<Cell> {
    let mut cells = Vec::new();
    for servers in sizes(setting, &SERVERS) {
        let x = servers as f64;
        let mut add =
            |panel: &str, series: &str, spec| cells.push(plot::cell(panel, series, x, servers, spec));
        for workload in [READ_ONLY, WRITE_INTENSIVE] {
            // The audit tells the number of levels; in the largest cluster it takes longer than all else.
            let audit = workload == READ_ONLY && servers <= CROWDED;
            add(workload, FEW, BenchSpec { audit, ..spec(setting, servers, 10, workload) });
            add(workload, MANY, spec(setting, servers, 36, workload));
            if servers >= CROWDED && (servers == CROWDED || workload == READ_ONLY) {
                let mut kept = spec(setting, servers, 36, workload);
                kept.model.network.connections_cached = ALL_CONNECTIONS;
                add(workload, KEPT, kept);
            }
            if servers <= CROWDED {
                let uniform = spec(setting, servers, 10, workload);
                let uniform = BenchSpec { dist: Some(Distribution::Uniform), ..uniform };
                add(&format!("{workload}, {UNIFORM}"), FEW, uniform);
            }
        }
        if servers > GROWN_MOST {
            continue;
        }
        let grown = spec(setting, servers, 10, "insert-only");
        let warmup = grown.warmup / 12;
        add(GROWTH, FEW, BenchSpec { from_empty: true, dist: None, warmup, audit: true, ..grown });
    }
    for servers in sizes(setting, &MOVING_SERVERS) {
        let mut add = |panel: &str, series: &str, spec| {
            cells.push(plot::cell(panel, series, servers as f64, servers, spec));
        };
        add(HOT_SPOT, UNBALANCED, hot_spot(setting, servers, false));
        add(HOT_SPOT, BALANCED, hot_spot(setting, servers, true));
        add(TAKE_OVER, FEW, take_over(setting, servers));
    }
    let order = [READ_ONLY, WRITE_INTENSIVE, GROWTH, HOT_SPOT, TAKE_OVER];
    let place = |cell: &Cell| order.iter().position(|panel| cell.panel.starts_with(panel));
    cells.sort_by(|a, b| (place(a), &a.panel, &a.series).cmp(&(place(b), &b.panel, &b.series)));
    cells
}

/// A cluster whose keys move; clients are routed.
fn moving(setting: &Setting, servers: usize, run_ms: u64) -> ElasticSpec {
    let (threads, run_ms) = if setting.scale == Scale::Tiny { (2, 4) } else { (10, run_ms) };
    let run_ns = run_ms * 1_000_000;
    ElasticSpec {
        memory_servers: servers,
        compute_servers: servers,
        spare_servers: 0,
        threads,
        cache_bytes: cache_bytes(setting, threads),
        subtree_level: SUBTREE_LEVEL,
        keys: records(setting) * servers as u64,
        workload: WRITE_INTENSIVE.to_owned(),
        clients: Clients::Routed { per_thread: 2 },
        spread: Spread::HotSpot { share: 0.0, width: 1.0, spots: vec![0.0] },
        moves: Vec::new(),
        flush_workers: 4,
        balance_every_ns: None,
        run_ns,
        interval_ns: run_ns / 40,
        seed: setting.seed,
    }
}

fn hot_spot(setting: &Setting, servers: usize, is_balanced: bool) -> ElasticSpec {
    let base = moving(setting, servers, 40);
    ElasticSpec {
        spread: Spread::HotSpot { share: 0.9, width: 0.1, spots: vec![0.33, 0.71] },
        balance_every_ns: is_balanced.then_some(base.run_ns / 40),
        ..base
    }
}

/// Each compute server of the first half hands half of its keys to one of the second half.
fn take_over(setting: &Setting, servers: usize) -> ElasticSpec {
    let base = moving(setting, servers, 30);
    let half = servers / 2;
    let step = |from: usize| PlannedMove {
        // All of them are due at a third of the time: one after the other, as fast as they go.
        at_ns: base.run_ns / 3,
        from,
        to: half + from,
        part: 0.5,
    };
    ElasticSpec {
        compute_servers: half,
        spare_servers: servers - half,
        moves: (0..half).map(step).collect(),
        ..base
    }
}

fn claims(results: &Results<'_>) -> Vec<Claim> {
    let place = "issue: scale";
    let few = PAPER_SERVERS as f64;
    let mut claims = Vec::new();
    for panel in results.panels() {
        for series in results.series(panel) {
            for (many, _) in results.points(panel, series, &THROUGHPUT).into_iter().filter(|&(x, _)| x > few)
            {
                let wanted = match many > CROWDED as f64 {
                    _ if [HOT_SPOT, TAKE_OVER].contains(&panel) => "not given",
                    true => "at least 0.8x",
                    false => "at least 0.9x",
                };
                let base = if series == KEPT { MANY } else { series };
                let ratio = results.ratio(panel, at(series, many), at(base, few), &THROUGHPUT);
                let what = format!("{panel}, {series}: a server among {many} over one among {PAPER_SERVERS}");
                claims.push(claim(what, wanted, times(ratio.map(|ratio| ratio * few / many)), place));
            }
        }
    }
    claims
}

/// Throughput of a server over their number.
fn figure(results: &Results<'_>) -> Figure {
    let panel = |name| {
        let label = "throughput of a server (million operations/s)";
        let mut panel: Panel = plot::lines(results, name, Spacing::Names, &THROUGHPUT, label);
        let places = results.places(name);
        for point in panel.series.iter_mut().flat_map(|series| &mut series.points) {
            point.1 /= places.get(point.0 as usize).map_or(1.0, |place| place.0);
        }
        panel
    };
    plot::figure(results, results.panels().into_iter().map(panel).collect(), "")
}
