//! The phases of a benchmark, one after the other.
//!
//! Whatever ends them, the cluster is closed, and a temporary pool is removed. Wrong answers and failed operations end
//! nothing: they are counted, and the first ones quoted.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use pando::{BulkOptions, Cluster, Config, Create, Index, IndexOptions};
use pando_workload::Expectation;
use tempfile::TempDir;

use super::drive::{self, Bench};
use super::lane::{Shared, Tally};
use super::load::{Generated, boundaries};
use super::report::{BenchReport, Findings, SmoFigures, TreeFigures};
use super::{BenchError, BenchSpec, FabricKind, Length, Phase, Watch, verify};
use crate::process;

/// Name of the index in the pool.
const INDEX: &str = "bench";
/// Complaints that a report quotes.
const COMPLAINTS_QUOTED: usize = 10;

/// Performs a benchmark from beginning to end.
///
/// # Errors
/// When it cannot be done as asked, the index cannot be opened or loaded, or somebody interrupts it. Operations that
/// fail, wrong answers and violations of the auditor are part of the report.
pub fn run(spec: &BenchSpec, watch: &dyn Watch) -> Result<BenchReport, BenchError> {
    spec.validate()?;
    process::reset_peak_rss();
    let (cluster, _place) = open(spec)?;
    let report = run_on(spec, &cluster, watch);
    match report {
        Ok(report) => {
            cluster.close()?;
            Ok(report)
        }
        Err(error) => {
            // Best effort: the error that led here is the one to report.
            let _ = cluster.close();
            Err(error)
        }
    }
}

/// The cluster, and the temporary place of its pool, if it has one.
fn open(spec: &BenchSpec) -> Result<(Cluster, Option<TempDir>), BenchError> {
    let (config, place) = match (spec.fabric, &spec.pool) {
        (FabricKind::Local, _) => (Config::embedded(), None),
        (FabricKind::Shm, Some(path)) => (Config::at(path).create(Create::New), None),
        (FabricKind::Shm, None) => {
            let place = temporary_place().map_err(BenchError::NoPlace)?;
            (Config::at(place.path()).create(Create::New), Some(place))
        }
    };
    let config = config
        .memory_servers(spec.memory_servers)
        .memory(spec.memory_server_bytes())
        .cache(spec.cache_bytes)
        .cache_options(spec.cache)
        .read_ahead(spec.read_ahead)
        .huge_pages(spec.huge_pages)
        .seed(spec.seed);
    Ok((Cluster::open(config)?, place))
}

fn temporary_place() -> std::io::Result<TempDir> {
    let shared_memory = Path::new("/dev/shm");
    let parent = if shared_memory.is_dir() { PathBuf::from(shared_memory) } else { std::env::temp_dir() };
    tempfile::Builder::new().prefix("pando-bench-").tempdir_in(parent)
}

fn run_on(spec: &BenchSpec, cluster: &Cluster, watch: &dyn Watch) -> Result<BenchReport, BenchError> {
    let workload = spec.workload_spec()?;
    let values = spec.value_codec();
    let shared = Shared {
        keys: workload.keys,
        values,
        expected: spec.verify.then(|| Expectation::new(spec.keys, &values)).transpose()?,
        multi_get: spec.multi_get,
        done: AtomicU64::new(0),
        stop: AtomicBool::new(false),
    };
    let index = create_index(spec, cluster, &shared)?;
    let bench = Bench { spec, cluster, index: &index, shared: &shared, watch };
    let load_time = load(&bench)?;

    let streams = drive::streams(spec, &workload)?;
    watch.begin(Phase::WarmUp, spec.warmup);
    let warmup = bench.operations(streams, Length::Ops(spec.warmup))?;
    watch.begin(Phase::Measure, if let Length::Ops(ops) = spec.length { ops } else { 0 });
    let mut measured = bench.operations(warmup.streams, spec.length)?;
    let mut problems = warmup.tally;
    problems.add(std::mem::take(&mut measured.tally.complaints).into());
    problems.failed += measured.tally.failed;
    problems.wrong += measured.tally.wrong;

    let mut entries = None;
    if let Some(expected) = &shared.expected {
        watch.begin(Phase::Verify, expected.present_count());
        let verified = verify::whole_index(&bench, expected)?;
        entries = Some(verified.entries);
        problems.add(verified.tally);
    }
    // The auditor takes memory of its own.
    drop(shared);
    let smo = smo_figures(cluster)?;
    let mut findings = Findings {
        load_time,
        warmup_time: warmup.time,
        time: measured.time,
        tally: measured.tally,
        counts: measured.counts,
        latency: measured.latency,
        failed_ops: problems.failed,
        wrong: problems.wrong,
        complaints: problems.complaints,
        entries,
        smo,
        audit_violations: None,
        tree: None,
    };
    if spec.audit {
        watch.begin(Phase::Audit, 0);
        audit(cluster, &mut findings)?;
    }
    findings.complaints.truncate(COMPLAINTS_QUOTED);
    BenchReport::new(spec, findings)
}

fn create_index(spec: &BenchSpec, cluster: &Cluster, shared: &Shared) -> Result<Index, BenchError> {
    let options = match spec.is_fixed() {
        true => IndexOptions::fixed(spec.key_size, spec.value_size),
        false => IndexOptions::bytes(),
    };
    let boundaries = boundaries(&shared.keys, spec.compute_servers);
    Ok(cluster.create_index(INDEX, &options.node_size(spec.node_size).boundaries(boundaries))?)
}

fn load(bench: &Bench<'_>) -> Result<Duration, BenchError> {
    let Bench { spec, index, shared, watch, .. } = *bench;
    watch.begin(Phase::Load, spec.keys);
    let start = Instant::now();
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let source = Generated::new(shared.keys, shared.values, threads);
    thread::scope(|scope| {
        let (ended, end) = channel::<()>();
        let loader = scope.spawn(move || {
            let _ended = ended;
            let note = |entries: u64| shared.done.store(entries, Relaxed);
            let options = BulkOptions {
                threads,
                leaf_fill: spec.fill,
                inner_fill: spec.inner_fill,
                progress: Some(&note),
            };
            index.bulk_load(&source, &options)
        });
        bench.watch_until(&end);
        drive::joined(loader)
    })?;
    bench.check_interrupt()?;
    Ok(start.elapsed())
}

fn smo_figures(cluster: &Cluster) -> Result<SmoFigures, BenchError> {
    let smo = cluster.stats()?.smo();
    Ok(SmoFigures {
        splits: smo.splits,
        merges: smo.merges,
        root_changes: smo.root_changes,
        shared_changes: smo.shared_changes,
        refreshes: smo.refreshes,
    })
}

fn audit(cluster: &Cluster, findings: &mut Findings) -> Result<(), BenchError> {
    let report = cluster.check()?;
    findings.audit_violations = Some(report.violation_count);
    findings.complaints.extend(report.violations);
    findings.tree = report.indexes.first().map(|index| TreeFigures {
        entries: index.entries,
        leaves: index.leaves,
        inner_nodes: index.inner_nodes,
        height: index.height,
        leaf_fullness: index.leaf_fullness,
    });
    Ok(())
}

impl From<Vec<String>> for Tally {
    fn from(complaints: Vec<String>) -> Tally {
        Tally { complaints, ..Tally::default() }
    }
}
