//! One measurement of an experiment, and the metrics that are taken from its report.
//!
//! Reports are read as JSON, by the promised names of their fields. So experiments with their own drivers
//! share the tables, and new fields of a report appear in the files of results without further code.

use serde_json::Value;

use crate::bench::{self, BenchError, BenchSpec, FabricKind, Watch};
use crate::elastic::{self, ElasticSpec};
use crate::elf::{self, ElfSpec};

/// A measurement and its place in the figure.
#[derive(Clone, Debug)]
pub struct Cell {
    /// Panel of the figure, such as the workload; empty if there is only one.
    pub panel: String,
    pub series: String,
    /// Position on the x axis, and its label.
    pub x: f64,
    pub x_name: String,
    pub work: Work,
    /// Values that the paper gives for this cell, by name of the metric.
    pub paper: Vec<(&'static str, f64)>,
}

impl Cell {
    /// Name in sentences and in selections: panel, series and label.
    pub fn name(&self) -> String {
        let parts = [&self.panel, &self.series, &self.x_name].into_iter().filter(|part| !part.is_empty());
        parts.map(String::as_str).collect::<Vec<_>>().join(", ")
    }
}

/// Specification of a cell's measurement.
#[derive(Clone, Debug)]
pub enum Work {
    /// A workload on a configuration.
    Bench(Box<BenchSpec>),
    /// A run whose keys move.
    Elastic(Box<ElasticSpec>),
    /// A measurement of Elf.
    Elf(Box<ElfSpec>),
}

impl From<ElfSpec> for Work {
    fn from(spec: ElfSpec) -> Self {
        Work::Elf(Box::new(spec))
    }
}

impl From<BenchSpec> for Work {
    fn from(spec: BenchSpec) -> Self {
        Work::Bench(Box::new(spec))
    }
}

impl From<ElasticSpec> for Work {
    fn from(spec: ElasticSpec) -> Self {
        Work::Elastic(Box::new(spec))
    }
}

impl Work {
    /// # Errors
    /// Errors that prevent the whole measurement; failures within it are in the report.
    pub(super) fn run(&self, watch: &dyn Watch) -> Result<Value, BenchError> {
        let report = match self {
            Work::Bench(spec) => serde_json::to_value(bench::run(spec, watch)?),
            Work::Elastic(spec) => serde_json::to_value(elastic::run(spec, watch)?),
            Work::Elf(spec) => Ok(elf::run(spec, watch)?),
        };
        Ok(report.expect("a report is made of numbers and texts"))
    }

    /// # Errors
    /// The first impossible setting.
    pub(super) fn validate(&self) -> Result<(), BenchError> {
        match self {
            Work::Bench(spec) => spec.validate(),
            Work::Elastic(spec) => spec.validate(),
            Work::Elf(spec) => spec.validate(),
        }
    }

    /// All settings that determine the result.
    pub(super) fn config(&self) -> Value {
        let (config, hash) = match self {
            Work::Bench(spec) => (serde_json::to_value(spec), spec.config_hash()),
            Work::Elastic(spec) => (serde_json::to_value(spec), spec.bench().config_hash()),
            Work::Elf(spec) => {
                let text = serde_json::to_string(spec).expect("a specification is made of numbers and texts");
                (serde_json::to_value(spec), format!("{:016x}", xxhash_rust::xxh3::xxh3_64(text.as_bytes())))
            }
        };
        let mut config = config.expect("a specification is made of numbers and texts");
        if let Work::Bench(spec) = self {
            // The cluster's model is represented by the hash.
            config["memory_cores"] = spec.memory_cores.into();
        }
        config["config_hash"] = hash.into();
        config
    }

    /// Upper estimate of the memory of the measurement: nodes on the memory servers, caches, checks.
    pub(super) fn memory_bytes(&self) -> u64 {
        match self {
            Work::Bench(spec) => bench_memory_bytes(spec),
            Work::Elastic(spec) => {
                let bench = spec.bench();
                bench_memory_bytes(&BenchSpec { compute_servers: spec.all_servers(), audit: true, ..bench })
            }
            Work::Elf(spec) => spec.memory_bytes(),
        }
    }

    /// Whether several of these can run side by side without affecting each other: their time is virtual.
    pub(super) fn is_timeless(&self) -> bool {
        match self {
            Work::Bench(spec) => spec.fabric == FabricKind::Sim,
            Work::Elastic(_) => true,
            Work::Elf(spec) => spec.is_timeless(),
        }
    }
}

fn bench_memory_bytes(spec: &BenchSpec) -> u64 {
    // Inner nodes and headers add a few percent, frames of the cache a fifth.
    let node_bytes = (spec.key_size + spec.value_size) as f64 * spec.keys as f64 / spec.fill * 1.12;
    let grown = match spec.mix() {
        Ok(mix) if mix.writes() && mix.insert > 0 => 1.3,
        _ => 1.0,
    };
    let caches = spec.compute_servers as f64 * spec.cache_bytes as f64 * 1.2;
    let checks = if spec.verify || spec.audit { spec.keys as f64 * 8.0 } else { 0.0 };
    (node_bytes * grown + caches + checks) as u64 + (100 << 20)
}

/// A figure that is taken from a report.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Metric {
    pub name: &'static str,
    /// Heading of the column.
    pub title: &'static str,
    /// JSON pointer into the report.
    pub pointer: &'static str,
    /// Factor from the report's unit to the column's.
    pub factor: f64,
    /// Digits after the decimal point.
    pub digits: usize,
}

impl Metric {
    pub(super) fn of(&self, report: &Value) -> Option<f64> {
        Some(report.pointer(self.pointer)?.as_f64()? * self.factor)
    }

    pub(super) fn show(&self, value: f64) -> String {
        format!("{value:.*}", self.digits)
    }
}

pub(super) const fn metric(
    name: &'static str,
    title: &'static str,
    pointer: &'static str,
    factor: f64,
    digits: usize,
) -> Metric {
    Metric { name, title, pointer, factor, digits }
}

/// Operations per second.
pub const THROUGHPUT: Metric = metric("throughput", "Mops/s", "/throughput_ops", 1e-6, 2);
pub const READS: Metric = metric("reads", "READs/op", "/per_op/reads", 1.0, 3);
pub const WRITES: Metric = metric("writes", "WRITEs/op", "/per_op/writes", 1.0, 3);
pub(super) const ATOMICS: Metric = metric("atomics", "atomics/op", "/per_op/atomics", 1.0, 3);
pub(super) const TWO_SIDED: Metric = metric("two_sided", "two-sided/op", "/per_op/two_sided", 1.0, 4);
pub(super) const TRAFFIC: Metric = metric("traffic", "bytes/op", "/per_op/bytes_total", 1.0, 1);
pub(super) const LATENCY: Metric = metric("p99", "p99 µs", "/latency_ns/p99", 1e-3, 1);
pub(super) const LATENCY_P50: Metric = metric("p50", "p50 µs", "/latency_ns/p50", 1e-3, 1);
pub(super) const LATENCY_P90: Metric = metric("p90", "p90 µs", "/latency_ns/p90", 1e-3, 1);
pub(super) const LEAF_HITS: Metric = metric("leaf_hits", "leaf hits", "/cache/hit_ratio_leaf", 1.0, 3);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::{Scale, Setting};

    #[test]
    fn figures_are_found_by_the_promised_names() {
        let report = serde_json::json!({"throughput_ops": 2.5e6, "per_op": {"reads": 0.33}, "cache": {}});
        assert_eq!(THROUGHPUT.of(&report), Some(2.5));
        assert_eq!(READS.of(&report).map(|reads| READS.show(reads)), Some("0.330".to_owned()));
        assert_eq!(LEAF_HITS.of(&report), None);
    }

    #[test]
    fn the_papers_cell_needs_about_eight_gigabytes() {
        let spec = Setting::new(Scale::Full, 1).spec("read-only");
        let bytes = Work::from(spec).memory_bytes();
        assert!((8_000_000_000..10_000_000_000).contains(&bytes), "{bytes}");
    }
}
