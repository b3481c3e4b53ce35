//! Many servers: whether each does as much as one of four. The paper has four (DEX §8.1).
//!
//! Every compute server has as many records and as much cache as in the other experiments, in proportion, and threads
//! use the keys of their own server. So the index grows with the cluster: its levels, its shared upper nodes, and the
//! connections of each NIC.

use pando::OffloadPolicy;

use super::super::cell::{ATOMICS, Cell, LATENCY, READS, THROUGHPUT, TRAFFIC, WRITES};
use super::super::plot::{self, Spacing};
use super::super::results::at;
use super::super::scale::{PAPER_CACHE, PAPER_KEYS, SERVERS as PAPER_SERVERS};
use super::super::{Claim, Experiment, OWN, Results, Scale, Setting};
use super::{COMMON, claim, peers, times};
use crate::bench::{BenchSpec, Length};

/// Compute servers, and as many memory servers.
const SERVERS: [usize; 5] = [PAPER_SERVERS, 16, 64, 256, 1_000];
/// Threads of a compute server.
const THREADS: usize = 10;
const WORKLOADS: [&str; 2] = ["read-only", "write-intensive"];

pub(super) const SCALE: Experiment = Experiment {
    name: "scale",
    title: "Many servers",
    source: OWN,
    shows: "Whether an operation costs as little in a cluster of a thousand servers as in one of four, and what bends the curve.",
    setting: "As many memory servers as compute servers, ten threads on each of these. Records and cache of a compute server do not \
              depend on their number. Zipf 0.99 within the keys of each server, whose threads use only these; boundaries stay.",
    varied: "compute servers",
    metrics: &[THROUGHPUT, READS, WRITES, ATOMICS, TRAFFIC, LATENCY],
    sizes: describe,
    cells,
    claims,
    figure: |results| plot::figure(results, plot::throughput_lines(results, Spacing::Names), ""),
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

fn describe(setting: &Setting) -> String {
    let papers = PAPER_KEYS / PAPER_SERVERS as u64 / 1_000_000;
    let records = crate::units::count(records(setting));
    format!(
        "{records} records on each compute server instead of {papers} million, caches smaller in proportion."
    )
}

fn cells(setting: &Setting) -> Vec<Cell> {
    let records = records(setting);
    let servers = SERVERS.into_iter().filter(|&servers| setting.scale != Scale::Tiny || servers <= 16);
    let mut cells = Vec::new();
    for servers in servers {
        for workload in WORKLOADS {
            let all = servers as u64;
            let spec = setting.spec(workload);
            let cache_bytes = records * PAPER_CACHE * PAPER_SERVERS as u64 / PAPER_KEYS;
            let spec = BenchSpec {
                memory_servers: servers,
                compute_servers: servers,
                threads: THREADS,
                cache_bytes: cache_bytes.max(spec.cache_bytes.min(128 << 10)),
                offload: OffloadPolicy::Never,
                keys: records * all,
                // Each server has records of its own, of which some are hot.
                ranks: None,
                warmup: records * all / 4,
                // Not a number of operations: the slowest of ten thousand threads would decide.
                length: Length::Seconds(2e-3),
                ..spec
            };
            cells.push(plot::cell(workload, peers::DEX, servers as f64, servers, spec));
        }
    }
    cells
}

fn claims(results: &Results<'_>) -> Vec<Claim> {
    let place = "issue: scale";
    let few = PAPER_SERVERS as f64;
    let mut claims = Vec::new();
    for workload in WORKLOADS {
        for (many, servers) in results.places(workload).into_iter().filter(|&(many, _)| many > few) {
            let wanted = if many > 256.0 { "at least 0.8x" } else { "at least 0.9x" };
            let (over, under) = (at(peers::DEX, many), at(peers::DEX, few));
            let ratio = results.ratio(workload, over, under, &THROUGHPUT);
            let what =
                format!("{workload}: throughput of a server among {servers} over one among {PAPER_SERVERS}");
            claims.push(claim(what, wanted, times(ratio.map(|ratio| ratio * few / many)), place));
        }
    }
    claims
}
