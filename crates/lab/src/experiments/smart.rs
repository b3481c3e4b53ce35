//! Figures of the SMART paper (§6.2, §6.3): YCSB against Sherman and ART, and the steps from ART to SMART.
//!
//! There are sixteen compute servers with 24 clients each, and two memory servers. The paper's string keys
//! are addresses of 32 B; here they are 32 B of hashed integers, which have no long common prefixes.

use pando_workload::KeySpace;

use super::cell::{ATOMICS, Cell, LATENCY, LATENCY_P50, READS, THROUGHPUT, TRAFFIC, WRITES};
use super::claims::{claim, times};
use super::plot::{self, MOPS};
use super::results::at;
use super::{Claim, Cluster, Experiment, Metric, Place, Results, Setting};
use crate::bench::{BenchSpec, Design, System};

pub(super) const EXPERIMENTS: &[Experiment] = &[YCSB, FACTORS];

/// Records of the paper.
const RECORDS: u64 = 60_000_000;
const COMPUTE_SERVERS: usize = 16;
const MEMORY_SERVERS: usize = 2;
const CLIENTS: usize = 24;
/// Cache of a compute server, in bytes.
const CACHE: u64 = 600_000_000;
/// Operations in flight of each client in the paper.
const SLOTS: usize = 2;
const METRICS: &[Metric] = &[THROUGHPUT, LATENCY_P50, LATENCY, READS, WRITES, ATOMICS, TRAFFIC];
const SETTING: &str = "60 million records with values of 8 B and keys of 8 or 32 B, Zipf 0.99; 16 compute servers of 24 clients with 600 MB of \
                       cache and 2 operations in flight, 2 memory servers (SMART §6.1).";

/// The paper's names of the workloads, and ours.
const MIXES: [(&str, &str); 6] = [
    ("LOAD", "insert-only"),
    ("A", "ycsb-a"),
    ("B", "ycsb-b"),
    ("C", "ycsb-c"),
    ("D", "ycsb-d"),
    ("E", "ycsb-e"),
];
const KEYS: [(&str, usize); 2] = [("integer keys", 8), ("string keys", 32)];
const SMART: &str = "SMART";
const SHERMAN: &str = "Sherman";
const ART: &str = "ART";

fn spec(setting: &Setting, system: System, workload: &str, key_size: usize) -> BenchSpec {
    // In a radix tree, a scan costs as much as fifty other operations.
    let share = if workload == "ycsb-e" { 0.02 } else { 0.6 };
    BenchSpec {
        memory_servers: MEMORY_SERVERS,
        compute_servers: COMPUTE_SERVERS,
        threads: setting.threads(CLIENTS),
        slots: setting.slots.unwrap_or(SLOTS),
        cache_bytes: setting.bytes(CACHE),
        key_space: KeySpace::Random64,
        key_size,
        // B-link trees keep all inner nodes in their caches.
        inner_fill: BenchSpec::default().inner_fill,
        ..setting.spec_of_share(workload, share)
    }
    .on_system(system)
}

const YCSB: Experiment = Experiment {
    name: "smart-ycsb",
    title: "YCSB on radix trees and a B-link tree",
    source: "SMART, Figure 11, §6.2",
    shows: "What a radix tree gains where values are small and leaves are large, and loses at ranges.",
    setting: SETTING,
    varied: "workload",
    fitted: &["spinner_ns"],
    estimated: &["hand_over_ns", "on_chip_conflict_ns"],
    place: Place::CLUSTER,
    cluster: Some(Cluster::SMART),
    sizes: Setting::describe,
    hundredths: 1,
    records: RECORDS,
    metrics: METRICS,
    cells: ycsb_cells,
    claims: ycsb_claims,
    figure: |results| {
        let panels = KEYS.map(|(panel, _)| plot::bars(results, panel, &THROUGHPUT, MOPS));
        let says =
            "up to 6.1 times as fast as Sherman in write-intensive workloads, and 2.8 times read-only.";
        plot::figure(results, panels.into(), says)
    },
};

fn ycsb_cells(setting: &Setting) -> Vec<Cell> {
    let systems = [(SHERMAN, System::sherman()), (ART, System::peer(Design::Art)), (SMART, System::smart())];
    let mut cells = Vec::new();
    for (panel, key_size) in KEYS {
        for (name, system) in systems {
            for (i, (mix, workload)) in MIXES.into_iter().enumerate() {
                let spec = spec(setting, system, workload, key_size);
                cells.push(plot::cell(panel, name, i as f64, mix, spec));
            }
        }
    }
    cells
}

fn ycsb_claims(results: &Results<'_>) -> Vec<Claim> {
    let mut claims = Vec::new();
    for (panel, _) in KEYS {
        for (i, (mix, _)) in MIXES.into_iter().enumerate() {
            let published = match mix {
                "A" => "up to 6.1x (write-intensive)",
                "C" => "2.8x",
                _ => "not given",
            };
            let ours = results.ratio(panel, at(SMART, i as f64), at(SHERMAN, i as f64), &THROUGHPUT);
            claims.push(claim(
                format_args!("{panel}, {mix}: SMART over Sherman"),
                published,
                times(ours),
                "§6.2",
            ));
        }
    }
    claims
}

/// The techniques in the order of the ablation: name, switch, workload of the paper's measurement, and gain
/// there.
const STEPS: [(&str, &str, &str, &str); 5] = [
    ("+nodes", "lock-free-nodes", "LOAD", "1.5x"),
    ("+leaves", "in-place-leaves", "B", "1.5x"),
    ("+rear", "rear-locks", "A", "3.0x"),
    ("+RD", "read-delegation", "C", "1.1x"),
    ("+WC", "write-combining", "A", "1.1x"),
];

/// ART with the first `number` techniques.
fn step(number: usize) -> System {
    STEPS[..number].iter().fold(System::peer(Design::Art), |system, (_, technique, ..)| {
        system.with(technique, true).expect("a technique of SMART")
    })
}

const FACTORS: Experiment = Experiment {
    name: "smart-factors",
    title: "From ART to SMART",
    source: "SMART, Figure 15, §6.3",
    shows: "What each technique adds, in the workloads that it is meant for.",
    varied: "techniques",
    cells: factor_cells,
    claims: factor_claims,
    figure: |results| {
        let panels = results.panels().into_iter().map(|panel| plot::bars(results, panel, &THROUGHPUT, MOPS));
        let says = "lock-free nodes give 1.5x at LOAD, in-place leaves 1.5x at B, rear locks 3.0x at A, read delegation 1.1x at \
                    C, write combining 1.1x at A.";
        plot::figure(results, panels.collect(), says)
    },
    ..YCSB
};

const HERE: &str = "here";

fn factor_cells(setting: &Setting) -> Vec<Cell> {
    let mut cells = Vec::new();
    for (panel, workload) in &MIXES[..4] {
        for number in 0..=STEPS.len() {
            let name = if number == 0 { ART } else { STEPS[number - 1].0 };
            let spec = spec(setting, step(number), workload, 8);
            cells.push(plot::cell(panel, HERE, number as f64, name, spec));
        }
    }
    cells
}

fn factor_claims(results: &Results<'_>) -> Vec<Claim> {
    let claims = STEPS.iter().enumerate().map(|(i, (_, technique, panel, published))| {
        let ours = results.ratio(panel, at(HERE, (i + 1) as f64), at(HERE, i as f64), &THROUGHPUT);
        claim(format_args!("{panel}: {technique} over the step before"), published, times(ours), "§6.3")
    });
    claims.collect()
}
