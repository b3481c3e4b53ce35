//! Runs the phases of a benchmark on the cluster that the specification names.
//!
//! The cluster is closed and a temporary pool removed however the phases end. Wrong answers and failed
//! operations are counted and the first ones quoted; they do not end a run.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use pando_dex::layout::Layout;
use pando_dex::layout::fixed::FixedLayout;
use pando_dex::layout::slotted::SlottedLayout;
use pando_rt::block_on;
use pando_sherman::Sherman;
use pando_smart::Smart;

use super::driver::Shared;
use super::report::{BenchReport, RunResult, TreeFigures};
use super::simulated::{self, Simulated};
use super::testbed::{PhaseResult, Stage, Testbed, streams};
use super::{BenchError, BenchSpec, FabricKind, Length, Phase, System, Watch, hosted, verify};
use crate::process;
use crate::under_test::dex::Dex;
use crate::under_test::local::Local;
use crate::under_test::plain::Plain;
use crate::under_test::{sherman, smart};

/// Number of complaints that a report quotes.
const COMPLAINTS_QUOTED: usize = 10;

/// Runs a benchmark from start to end.
///
/// # Errors
/// Impossible settings, an index that cannot be opened or loaded, and an interrupt. Failed operations, wrong
/// answers and violations of the auditor are part of the report.
pub fn run(spec: &BenchSpec, watch: &dyn Watch) -> Result<BenchReport, BenchError> {
    spec.validate()?;
    process::reset_peak_rss();
    match spec.fabric {
        FabricKind::Local | FabricKind::Shm | FabricKind::Tcp | FabricKind::Verbs => run_hosted(spec, watch),
        FabricKind::Sim => run_simulated(spec, watch),
    }
}

fn run_hosted(spec: &BenchSpec, watch: &dyn Watch) -> Result<BenchReport, BenchError> {
    match spec.system {
        System::Sherman(setup) => {
            run_on(spec, watch, |stage| hosted::open_peers::<Sherman>(stage, &sherman::config(setup, spec)?))
        }
        System::Smart(setup) => {
            run_on(spec, watch, |stage| hosted::open_peers::<Smart>(stage, &smart::config(setup, spec)))
        }
        _ => run_on(spec, watch, hosted::open_facade),
    }
}

fn run_simulated(spec: &BenchSpec, watch: &dyn Watch) -> Result<BenchReport, BenchError> {
    match spec.system {
        System::Sherman(setup) => run_on(spec, watch, |stage| {
            simulated::open_peers::<Sherman>(stage, &sherman::config(setup, spec)?)
        }),
        System::Smart(setup) => {
            run_on(spec, watch, |stage| simulated::open_peers::<Smart>(stage, &smart::config(setup, spec)))
        }
        _ if spec.is_fixed() => {
            let layout = FixedLayout::new(spec.node_size, spec.key_size, spec.value_size);
            run_laid_out(spec, watch, layout.map_err(pando::Error::from)?)
        }
        _ => {
            let layout = SlottedLayout::new(spec.node_size).map_err(pando::Error::from)?;
            run_laid_out(spec, watch, layout)
        }
    }
}

/// Runs a system whose nodes have one of DEX's layouts on the simulated cluster.
fn run_laid_out<L: Layout>(
    spec: &BenchSpec,
    watch: &dyn Watch,
    layout: L,
) -> Result<BenchReport, BenchError> {
    let partitioned = spec.system == System::PlainPartitioned;
    match spec.system {
        System::Plain | System::PlainPartitioned => run_on(spec, watch, |stage| {
            Simulated::open(stage, |ep, pool, boundaries, source| {
                Ok(block_on(ep, Plain::load(spec, partitioned, ep, pool, layout, boundaries, source))?)
            })
        }),
        System::LocalBTree => run_on(spec, watch, |stage| {
            Simulated::open(stage, |_, _, _, source| Ok(Local::load(spec, layout, source)?))
        }),
        _ => run_on(spec, watch, |stage| {
            Simulated::open(stage, |ep, pool, boundaries, source| {
                Ok(block_on(ep, Dex::load(spec, 0, ep, pool, layout, boundaries, source))?)
            })
        }),
    }
}

/// Runs all phases on the cluster that `open` makes and loads.
fn run_on<T: Testbed>(
    spec: &BenchSpec,
    watch: &dyn Watch,
    open: impl FnOnce(&Stage<'_>) -> Result<T, BenchError>,
) -> Result<BenchReport, BenchError> {
    let shared = Shared::new(spec)?;
    watch.begin(Phase::Load, spec.keys);
    let start = Instant::now();
    let testbed = open(&Stage { spec, shared: &shared, watch })?;
    let result = phases(&testbed, spec, watch, shared, start.elapsed());
    let closed = testbed.close();
    let mut result = result?;
    closed?;
    result.complaints.truncate(COMPLAINTS_QUOTED);
    BenchReport::new(spec, result)
}

fn phases(
    testbed: &impl Testbed,
    spec: &BenchSpec,
    watch: &dyn Watch,
    shared: Shared,
    load_time: Duration,
) -> Result<RunResult, BenchError> {
    let stage = Stage { spec, shared: &shared, watch };
    watch.begin(Phase::WarmUp, spec.warmup);
    let streams = streams(spec, &spec.workload_spec()?)?;
    let warmup = testbed.operations(&stage, streams, Length::Ops(spec.warmup))?;
    check_progress(&shared, &warmup)?;
    watch.begin(Phase::Measure, if let Length::Ops(ops) = spec.length { ops } else { 0 });
    let (warmup_time, warmup_moves) = (host_time(&warmup), warmup.moves);
    let mut measured = testbed.operations(&stage, warmup.streams, spec.length)?;
    check_progress(&shared, &measured)?;
    let mut problems = warmup.tally;
    problems.complaints.append(&mut measured.tally.complaints);
    problems.failed += measured.tally.failed;
    problems.wrong += measured.tally.wrong;

    let mut entries = None;
    if let Some(expected) = &shared.expected {
        watch.begin(Phase::Verify, expected.present_count());
        let verified = verify::whole_index(testbed, &stage, expected)?;
        entries = Some(verified.entries);
        problems.add(&verified.tally);
    }
    // The auditor needs the memory.
    drop(shared);
    let mut result = RunResult {
        load_time,
        warmup_time,
        warmup_moves,
        measured,
        failed_ops: problems.failed,
        wrong: problems.wrong,
        complaints: problems.complaints,
        entries,
        smo: testbed.counts()?.smo,
        audit_violations: None,
        tree: None,
    };
    if spec.audit {
        watch.begin(Phase::Audit, 0);
        let audited = testbed.audit()?;
        result.audit_violations = Some(audited.violation_count);
        result.tree = Some(TreeFigures::of(&audited));
        result.complaints.extend(audited.violations);
    }
    Ok(result)
}

/// Returns an error if the threads gave up because operations kept failing.
fn check_progress(shared: &Shared, phase: &PhaseResult) -> Result<(), BenchError> {
    match shared.gave_up.load(Relaxed) {
        false => Ok(()),
        true => Err(BenchError::KeptFailing(phase.tally.complaints.last().cloned().unwrap_or_default())),
    }
}

/// Duration of a phase on this machine.
fn host_time(phase: &PhaseResult) -> Duration {
    phase.host_time.unwrap_or(Duration::from_nanos(phase.ns))
}
