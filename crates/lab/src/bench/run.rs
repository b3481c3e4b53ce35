//! The phases of a benchmark, one after the other, on whatever the specification names.
//!
//! Whatever ends them, the cluster is closed, and a temporary pool is removed. Wrong answers and failed operations end
//! nothing: they are counted, and the first ones quoted.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use pando_dex::layout::Layout;
use pando_dex::layout::fixed::FixedLayout;
use pando_dex::layout::slotted::SlottedLayout;
use pando_sherman::Sherman;
use pando_smart::Smart;
use pando_workload::Expectation;

use super::bed::{Bed, PhaseOutcome, Stage, streams};
use super::hosted::Hosted;
use super::hosted_peers::HostedPeers;
use super::lane::{Shared, Tally};
use super::report::{BenchReport, Findings, TreeFigures};
use super::simulated::Simulated;
use super::{BenchError, BenchSpec, FabricKind, Length, Phase, System, Watch, verify};
use crate::process;
use crate::under_test::peers::Peers;
use crate::under_test::{sherman, smart};

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
    match spec.fabric {
        FabricKind::Local | FabricKind::Shm | FabricKind::Tcp | FabricKind::Verbs => run_hosted(spec, watch),
        FabricKind::Sim => run_simulated(spec, watch),
    }
}

fn run_hosted(spec: &BenchSpec, watch: &dyn Watch) -> Result<BenchReport, BenchError> {
    match spec.system {
        System::Sherman(setup) => {
            run_on(spec, watch, |stage| HostedPeers::<Sherman>::open(stage, &sherman::config(setup, spec)?))
        }
        System::Smart(setup) => {
            run_on(spec, watch, |stage| HostedPeers::<Smart>::open(stage, &smart::config(setup, spec)))
        }
        _ => run_on(spec, watch, Hosted::open),
    }
}

fn run_simulated(spec: &BenchSpec, watch: &dyn Watch) -> Result<BenchReport, BenchError> {
    match spec.system {
        System::Sherman(setup) => run_on(spec, watch, |stage| {
            Simulated::<Peers<Sherman>>::open_peers(stage, &sherman::config(setup, spec)?)
        }),
        System::Smart(setup) => run_on(spec, watch, |stage| {
            Simulated::<Peers<Smart>>::open_peers(stage, &smart::config(setup, spec))
        }),
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

/// Systems whose nodes have one of DEX's layouts, on the simulated cluster.
fn run_laid_out<L: Layout>(
    spec: &BenchSpec,
    watch: &dyn Watch,
    layout: L,
) -> Result<BenchReport, BenchError> {
    match spec.system {
        System::Plain => run_on(spec, watch, |stage| Simulated::open_plain(stage, layout, false)),
        System::PlainPartitioned => run_on(spec, watch, |stage| Simulated::open_plain(stage, layout, true)),
        System::LocalBTree => run_on(spec, watch, |stage| Simulated::open_local(stage, layout)),
        _ => run_on(spec, watch, |stage| Simulated::open(stage, layout)),
    }
}

/// All phases, on the cluster that `open` makes and loads.
fn run_on<B: Bed>(
    spec: &BenchSpec,
    watch: &dyn Watch,
    open: impl FnOnce(&Stage<'_>) -> Result<B, BenchError>,
) -> Result<BenchReport, BenchError> {
    let workload = spec.workload_spec()?;
    let values = spec.value_codec();
    let shared = Shared {
        keys: workload.keys,
        values,
        expected: spec.verify.then(|| Expectation::new(spec.keys, &values)).transpose()?,
        multi_get: spec.multi_get,
        done: AtomicU64::new(0),
        stop: AtomicBool::new(false),
        gave_up: AtomicBool::new(false),
    };
    let stage = Stage { spec, shared: &shared, watch };
    watch.begin(Phase::Load, spec.keys);
    let start = Instant::now();
    let bed = open(&stage)?;
    let load_time = start.elapsed();

    watch.begin(Phase::WarmUp, spec.warmup);
    let warmup = bed.operations(&stage, streams(spec, &workload)?, Length::Ops(spec.warmup))?;
    check_progress(&shared, &warmup)?;
    watch.begin(Phase::Measure, if let Length::Ops(ops) = spec.length { ops } else { 0 });
    let (warmup_time, warmup_moves) = (host_time(&warmup), warmup.moves);
    let mut measured = bed.operations(&stage, warmup.streams, spec.length)?;
    check_progress(&shared, &measured)?;
    let mut problems = warmup.tally;
    problems.add(std::mem::take(&mut measured.tally.complaints).into());
    problems.failed += measured.tally.failed;
    problems.wrong += measured.tally.wrong;

    let mut entries = None;
    if let Some(expected) = &shared.expected {
        watch.begin(Phase::Verify, expected.present_count());
        let verified = verify::whole_index(&bed, &stage, expected)?;
        entries = Some(verified.entries);
        problems.add(verified.tally);
    }
    // The auditor takes memory of its own.
    drop(shared);
    let mut findings = Findings {
        load_time,
        warmup_time,
        warmup_moves,
        measured,
        failed_ops: problems.failed,
        wrong: problems.wrong,
        complaints: problems.complaints,
        entries,
        smo: bed.smo_counts()?,
        audit_violations: None,
        tree: None,
    };
    if spec.audit {
        watch.begin(Phase::Audit, 0);
        audit(&bed, &mut findings)?;
    }
    bed.close()?;
    findings.complaints.truncate(COMPLAINTS_QUOTED);
    BenchReport::new(spec, findings)
}

/// An error if the threads gave up because operations kept failing.
fn check_progress(shared: &Shared, phase: &PhaseOutcome) -> Result<(), BenchError> {
    match shared.gave_up.load(Relaxed) {
        false => Ok(()),
        true => Err(BenchError::KeptFailing(phase.tally.complaints.last().cloned().unwrap_or_default())),
    }
}

/// What a phase took on this machine.
pub(super) fn host_time(phase: &PhaseOutcome) -> Duration {
    phase.host_time.unwrap_or(Duration::from_nanos(phase.ns))
}

fn audit(bed: &impl Bed, findings: &mut Findings) -> Result<(), BenchError> {
    let audited = bed.audit()?;
    findings.audit_violations = Some(audited.violation_count);
    findings.complaints.extend(audited.violations);
    findings.tree = Some(TreeFigures {
        entries: audited.entries,
        leaves: audited.leaves,
        inner_nodes: audited.inner_nodes,
        height: audited.height,
        leaf_fullness: audited.leaf_fullness,
    });
    Ok(())
}

impl From<Vec<String>> for Tally {
    fn from(complaints: Vec<String>) -> Tally {
        Tally { complaints, ..Tally::default() }
    }
}
