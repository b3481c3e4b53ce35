//! Report of a benchmark, as the JSON that the command line promises.
//!
//! Promised fields keep their names and their order; further fields may follow them. A value that does not
//! apply is null. Figures per operation cover the measured phase only. [`WALL_CLOCK`] lists the fields that
//! differ between runs of a simulated cluster.

use std::time::Duration;

use pando::{OffloadPolicy, SmoCounts};
use pando_sim::Shares;
use serde::Serialize;

use super::driver::Operations;
use super::latency::Latency;
use super::testbed::{Counts, PhaseResult};
use super::{BenchError, BenchSpec, FabricKind, SAMPLED};
use crate::process;
use crate::under_test::Audited;

/// Fields that depend on the speed and state of this machine. On the simulated cluster, all others are a
/// function of the specification and the commit.
pub const WALL_CLOCK: [&str; 4] = ["seconds", "load_seconds", "warmup_seconds", "peak_rss_bytes"];

/// Report of a finished benchmark; serialised, it is the promised object.
#[derive(Clone, Debug, Serialize)]
pub struct BenchReport {
    pub system: &'static str,
    pub fabric: &'static str,
    pub workload: String,
    pub dist: String,
    pub keys: u64,
    pub key_size: usize,
    pub value_size: usize,
    pub node_size: usize,
    pub memory_servers: usize,
    pub compute_servers: usize,
    /// Per compute server, like `cache_bytes`.
    pub threads: usize,
    pub slots: usize,
    pub cache_bytes: u64,
    /// Measured operations.
    pub ops: u64,
    /// Operations that ended with an error or missed a present key, including those of the warm-up.
    pub failed_ops: u64,
    /// Wrong answers, including those of the warm-up, and wrong entries of the final scan. `None`: not
    /// verified.
    pub verify_errors: Option<u64>,
    /// Duration of the measured phase by the clock of this machine.
    pub seconds: f64,
    /// Duration in virtual time, for fabrics with a clock of their own.
    pub virtual_seconds: Option<f64>,
    /// Operations per second, of virtual time if the fabric has its own clock.
    pub throughput_ops: f64,
    pub latency_ns: LatencyFigures,
    pub per_op: PerOp,
    pub cache: CacheFigures,
    pub peak_rss_bytes: Option<u64>,
    pub config_hash: String,
    pub commit: &'static str,

    /// Layout of entries in nodes.
    pub layout: &'static str,
    /// Techniques that are switched on, for systems with such switches.
    pub techniques: Option<Vec<&'static str>>,
    pub fill: f64,
    pub scatter: String,
    pub key_space: String,
    pub seed: u64,
    pub warmup_ops: u64,
    pub load_seconds: f64,
    pub warmup_seconds: f64,
    pub operations: Operations,
    pub smo: SmoFigures,
    pub multi_get: usize,
    /// Entries at the end, counted by the final scan. `None`: not verified.
    pub entries: Option<u64>,
    /// `None`: not audited.
    pub audit_violations: Option<u64>,
    pub tree: Option<TreeFigures>,
    /// Messages of the first failures, wrong answers and violations.
    pub complaints: Vec<String>,
    /// One operation in this many was timed.
    pub timed_one_in: u32,
    /// Cores that execute two-sided calls, per memory server. `None`: there are no such calls.
    pub memory_cores: Option<usize>,
    /// Throughput over time, if requested.
    pub series: Option<SeriesFigures>,
    /// Measured operations by compute server, in the order of their keys. On the simulated cluster these are
    /// estimates from a sample of the keys. `None`: not counted.
    pub loads: Option<Vec<LoadFigures>>,
    /// Busy shares of resources during the measured phase, on the simulated cluster.
    pub resources: Option<ResourceFigures>,
    /// `None` without a balancer.
    pub balance: Option<BalanceFigures>,

    /// Histogram of the timed operations, for plots.
    #[serde(skip)]
    pub latency: Latency,
}

/// Latencies in nanoseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct LatencyFigures {
    pub mean: f64,
    pub p50: u64,
    pub p90: u64,
    pub p99: u64,
    pub p999: u64,
}

/// Mean verbs and payload bytes per operation.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct PerOp {
    pub reads: f64,
    pub writes: f64,
    pub atomics: f64,
    pub two_sided: f64,
    pub bytes_read: f64,
    pub bytes_written: f64,
    pub bytes_total: f64,
}

/// Counters of the caches, summed over the compute servers.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct CacheFigures {
    /// `None` if no leaf was accessed.
    pub hit_ratio_leaf: Option<f64>,
    pub hit_ratio_inner: Option<f64>,
    pub evictions: u64,
    pub admissions: u64,
    pub offloads: u64,
    pub offloads_refused: u64,
    pub coolings: u64,
    pub reheats: u64,
    pub write_backs: u64,
    pub restarts: u64,
}

/// Busy shares of resources in the measured phase, and the resource that limits throughput.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ResourceFigures {
    /// The limiting resource.
    pub limit: &'static str,
    /// Busy share of the busier of the two resources of a NIC, messages and bytes.
    pub nic: f64,
    /// Busy share of the wire in that of the NIC.
    pub payload: f64,
    #[serde(flatten)]
    pub shares: Shares,
}

impl From<Shares> for ResourceFigures {
    fn from(shares: Shares) -> Self {
        let nic = shares.messages.max(shares.bytes);
        Self { limit: shares.limit(), nic, payload: shares.bytes / nic.max(f64::MIN_POSITIVE), shares }
    }
}

/// Structure changes of all compute servers, including those of the warm-up.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct SmoFigures {
    pub splits: u64,
    pub merges: u64,
    pub root_changes: u64,
    pub shared_changes: u64,
    pub refreshes: u64,
}

/// Shape of the index at the end, from the auditor.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct TreeFigures {
    pub entries: u64,
    pub leaves: u64,
    pub inner_nodes: u64,
    pub height: u32,
    pub leaf_fullness: f64,
}

/// Operations of the measured phase by the interval in which they ended.
#[derive(Clone, Debug, Serialize)]
pub struct SeriesFigures {
    pub interval_ns: u64,
    /// By compute server and interval, from the start of the phase on. All lists have the same length.
    pub ops: Vec<Vec<u64>>,
}

/// Load of one compute server.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct LoadFigures {
    /// Operations; a scan counts at each compute server that it reaches.
    pub operations: u64,
    /// Share of the operations of all compute servers, 0 to 1.
    pub share: f64,
}

/// Moves of the balancer.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct BalanceFigures {
    /// Time between two checks of the load.
    pub every_ns: u64,
    /// Boundaries that moved in the measured phase.
    pub moves: u64,
    /// Boundaries that moved during the warm-up.
    pub warmup_moves: u64,
    /// Load of the busiest compute server divided by the mean, in the measured phase.
    pub busiest_over_mean: f64,
}

/// Results of all phases.
pub(crate) struct RunResult {
    pub load_time: Duration,
    pub warmup_time: Duration,
    pub warmup_moves: u64,
    pub measured: PhaseResult,
    /// Failed operations of all phases.
    pub failed_ops: u64,
    pub wrong: u64,
    pub complaints: Vec<String>,
    pub entries: Option<u64>,
    pub smo: SmoCounts,
    pub audit_violations: Option<u64>,
    pub tree: Option<TreeFigures>,
}

impl BenchReport {
    /// # Errors
    /// If the specification is not valid.
    pub(crate) fn new(spec: &BenchSpec, result: RunResult) -> Result<BenchReport, BenchError> {
        let PhaseResult { tally, latency, counts, ns, host_time, series, loads, shares, moves, .. } =
            result.measured;
        let loads = loads.map(|loads| LoadFigures::of(&loads));
        let ops = tally.ops;
        // The clock that operations are timed by.
        let seconds = Duration::from_nanos(ns).as_secs_f64();
        let is_virtual = spec.fabric == FabricKind::Sim;
        Ok(BenchReport {
            system: spec.system.name(),
            fabric: spec.fabric.name(),
            workload: spec.workload.clone(),
            dist: spec.distribution()?.to_string(),
            keys: spec.keys,
            key_size: spec.key_size,
            value_size: spec.value_size,
            node_size: spec.node_size,
            memory_servers: spec.memory_servers,
            compute_servers: spec.compute_servers,
            threads: spec.threads,
            slots: spec.slots,
            cache_bytes: spec.cache_bytes,
            ops,
            failed_ops: result.failed_ops,
            verify_errors: spec.verify.then_some(result.wrong),
            seconds: host_time.map_or(seconds, |time| time.as_secs_f64()),
            virtual_seconds: is_virtual.then_some(seconds),
            throughput_ops: if seconds > 0.0 { ops as f64 / seconds } else { 0.0 },
            latency_ns: LatencyFigures::of(&latency),
            per_op: PerOp::of(&counts, ops),
            cache: CacheFigures::of(&counts),
            peak_rss_bytes: process::peak_rss_bytes(),
            config_hash: spec.config_hash(),
            commit: process::commit(),
            layout: spec.layout_name(),
            techniques: spec.system.techniques(),
            fill: spec.fill,
            scatter: spec.scatter.to_string(),
            key_space: spec.key_space.to_string(),
            seed: spec.seed,
            warmup_ops: spec.warmup,
            load_seconds: result.load_time.as_secs_f64(),
            warmup_seconds: result.warmup_time.as_secs_f64(),
            operations: tally.by_kind,
            smo: SmoFigures::of(result.smo),
            multi_get: spec.multi_get,
            entries: result.entries,
            audit_violations: result.audit_violations,
            tree: result.tree,
            complaints: result.complaints,
            timed_one_in: if is_virtual { 1 } else { SAMPLED },
            memory_cores: match spec.fabric {
                FabricKind::Sim => Some(spec.cluster_model().memory_server.cores),
                _ => (spec.offload != OffloadPolicy::Never).then(|| spec.memory_cores.unwrap_or(1)),
            },
            series: series.zip(spec.interval_ns).map(|(ops, interval_ns)| SeriesFigures { interval_ns, ops }),
            resources: shares.map(ResourceFigures::from),
            balance: spec.balance_every_ns.map(|every_ns| BalanceFigures {
                every_ns,
                moves,
                warmup_moves: result.warmup_moves,
                busiest_over_mean: busiest_over_mean(loads.as_deref().unwrap_or_default()),
            }),
            loads,
            latency,
        })
    }

    /// Whether nothing failed, no answer was wrong and the audit found no violation.
    pub fn is_clean(&self) -> bool {
        self.failed_ops == 0
            && self.verify_errors.unwrap_or(0) == 0
            && self.audit_violations.unwrap_or(0) == 0
    }

    /// The report as one line of JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("numbers and texts can be written as JSON")
    }
}

/// Load of the busiest compute server divided by the mean; 1 without load.
pub(super) fn busiest_over_mean(loads: &[LoadFigures]) -> f64 {
    let operations: Vec<u64> = loads.iter().map(|load| load.operations).collect();
    pando_dex::balancer::busiest_over_mean(&operations, loads.len())
}

impl LoadFigures {
    fn of(loads: &[u64]) -> Vec<LoadFigures> {
        let all: u64 = loads.iter().sum();
        let figures =
            |&operations: &u64| LoadFigures { operations, share: operations as f64 / all.max(1) as f64 };
        loads.iter().map(figures).collect()
    }
}

impl LatencyFigures {
    fn of(latency: &Latency) -> LatencyFigures {
        let at = |quantile| latency.value_at_quantile(quantile);
        LatencyFigures { mean: latency.mean(), p50: at(0.5), p90: at(0.9), p99: at(0.99), p999: at(0.999) }
    }
}

impl PerOp {
    fn of(counts: &Counts, ops: u64) -> PerOp {
        let per_op = |count: u64| count as f64 / ops.max(1) as f64;
        let verbs = &counts.verbs;
        PerOp {
            reads: per_op(verbs.reads),
            writes: per_op(verbs.writes),
            atomics: per_op(verbs.atomics),
            two_sided: per_op(verbs.two_sided),
            bytes_read: per_op(verbs.bytes_read),
            bytes_written: per_op(verbs.bytes_written),
            bytes_total: per_op(verbs.bytes_total()),
        }
    }
}

impl CacheFigures {
    fn of(counts: &Counts) -> CacheFigures {
        let ratio = |misses: u64, accesses: u64| {
            (accesses > 0).then(|| (accesses.saturating_sub(misses)) as f64 / accesses as f64)
        };
        let cache = &counts.cache;
        CacheFigures {
            hit_ratio_leaf: ratio(cache.leaf_misses, cache.leaf_accesses),
            hit_ratio_inner: ratio(cache.inner_misses, cache.inner_accesses),
            evictions: cache.evictions,
            admissions: cache.admissions,
            offloads: cache.offloads,
            offloads_refused: cache.offloads_refused,
            coolings: cache.coolings,
            reheats: cache.reheats,
            write_backs: cache.write_backs,
            restarts: cache.restarts,
        }
    }
}

impl TreeFigures {
    pub(super) fn of(audited: &Audited) -> TreeFigures {
        let Audited { entries, leaves, inner_nodes, height, leaf_fullness, .. } = *audited;
        TreeFigures { entries, leaves, inner_nodes, height, leaf_fullness }
    }
}

impl SmoFigures {
    fn of(smo: SmoCounts) -> SmoFigures {
        SmoFigures {
            splits: smo.splits,
            merges: smo.merges,
            root_changes: smo.root_changes,
            shared_changes: smo.shared_changes,
            refreshes: smo.refreshes,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::bench::driver::Tally;
    use crate::bench::latency;

    /// A report of invented figures.
    pub(crate) fn sample() -> BenchReport {
        BenchReport::new(&BenchSpec::default(), result()).expect("valid")
    }

    /// Like [`sample`], for a simulated run of two virtual seconds that took half a minute on this machine.
    pub(crate) fn simulated_sample() -> BenchReport {
        let mut result = result();
        result.measured.host_time = Some(Duration::from_secs(30));
        result.measured.series = Some(vec![vec![600, 400]]);
        let spec = BenchSpec {
            fabric: FabricKind::Sim,
            interval_ns: Some(1_000_000_000),
            memory_cores: Some(2),
            ..BenchSpec::default()
        };
        BenchReport::new(&spec, result).expect("valid")
    }

    fn result() -> RunResult {
        let mut latency = latency::empty();
        for ns in [180, 190, 200, 220, 250, 400, 2100, 2200, 9000, 120_000] {
            latency.record_n(ns, 1000).expect("in bounds");
        }
        let mut counts = Counts::default();
        counts.verbs.reads = 330;
        counts.verbs.bytes_read = 330 * 1024;
        counts.cache.leaf_accesses = 1000;
        counts.cache.leaf_misses = 330;
        RunResult {
            load_time: Duration::from_millis(1500),
            warmup_time: Duration::from_millis(700),
            warmup_moves: 2,
            measured: PhaseResult {
                tally: Tally {
                    ops: 1000,
                    by_kind: Operations { reads: 1000, ..Operations::default() },
                    ..Tally::default()
                },
                latency,
                counts,
                ns: 2_000_000_000,
                host_time: None,
                shares: None,
                series: None,
                loads: Some(vec![700, 100, 100, 100]),
                moves: 3,
                streams: Vec::new(),
            },
            failed_ops: 0,
            wrong: 0,
            complaints: Vec::new(),
            entries: Some(10_000_000),
            smo: SmoCounts::default(),
            audit_violations: Some(0),
            tree: None,
        }
    }

    #[test]
    fn virtual_time_is_what_throughput_is_about() {
        let report = simulated_sample();
        assert_eq!((report.seconds, report.virtual_seconds, report.throughput_ops), (30.0, Some(2.0), 500.0));
        assert_eq!((report.timed_one_in, report.memory_cores), (1, Some(2)));
        let json: serde_json::Value = serde_json::from_str(&report.to_json()).expect("valid JSON");
        assert_eq!(json["series"]["ops"], serde_json::json!([[600, 400]]));
        assert!(WALL_CLOCK.iter().all(|field| json[field].is_number()), "{json}");
    }

    #[test]
    fn loads_and_what_the_balancer_did_are_said() {
        let spec = BenchSpec { balance_every_ns: Some(50_000_000), ..BenchSpec::default() };
        let report = BenchReport::new(&spec, result()).expect("valid");
        let balance = report.balance.expect("there was a balancer");
        assert_eq!((balance.every_ns, balance.moves, balance.warmup_moves), (50_000_000, 3, 2));
        assert!((balance.busiest_over_mean - 2.8).abs() < 1e-9);
        let shares: Vec<f64> = report.loads.expect("counted").iter().map(|load| load.share).collect();
        assert_eq!(shares, [0.7, 0.1, 0.1, 0.1]);
    }

    #[test]
    fn the_json_keeps_the_promise() {
        let json = sample().to_json();
        let promised = [
            "system",
            "fabric",
            "workload",
            "dist",
            "keys",
            "key_size",
            "value_size",
            "node_size",
            "memory_servers",
            "compute_servers",
            "threads",
            "slots",
            "cache_bytes",
            "ops",
            "failed_ops",
            "verify_errors",
            "seconds",
            "virtual_seconds",
            "throughput_ops",
            "latency_ns",
            "mean",
            "p50",
            "p90",
            "p99",
            "p999",
            "per_op",
            "reads",
            "writes",
            "atomics",
            "two_sided",
            "bytes_read",
            "bytes_written",
            "bytes_total",
            "cache",
            "hit_ratio_leaf",
            "hit_ratio_inner",
            "evictions",
            "admissions",
            "offloads",
            "peak_rss_bytes",
            "config_hash",
            "commit",
        ];
        let mut at = 0;
        for name in promised {
            let field = format!("\"{name}\":");
            at += json[at..]
                .find(&field)
                .unwrap_or_else(|| panic!("{name} is missing or out of order in {json}"));
        }
        assert!(!json.contains('\n'));
        let value: serde_json::Value = serde_json::from_str(&json).expect("valid JSON");
        assert_eq!(value["per_op"]["reads"], 0.33);
        assert_eq!(value["cache"]["hit_ratio_leaf"], 0.67);
        assert!(value["cache"]["hit_ratio_inner"].is_null() && value["virtual_seconds"].is_null());
    }
}
