//! Every defect that can be put into the protocols on purpose is found by few seeds; without, the same seeds are clean.
//!
//! `cargo test -p pando-lab --features defects --test defects`

use pando_cache::defect::Defect;
use pando_fabric::defect::with_defect;
use pando_lab::simulate::{FaultSet, SeedReport, Systems, run_seed};

/// Seeds tried at most.
const SEEDS: u64 = 400;

/// The first seed that shows something wrong.
fn first_violation(defect: Option<Defect>, seeds: u64, faults: &str) -> Option<SeedReport> {
    let faults: FaultSet = faults.parse().expect("a list of faults");
    with_defect(defect, || {
        (0..seeds)
            .map(|seed| run_seed(seed, &Systems::dex(), faults))
            .find(|report| !report.violations.is_empty())
    })
}

fn is_found(defect: Defect, faults: &str) {
    let began = std::time::Instant::now();
    let report =
        first_violation(Some(defect), SEEDS, faults).unwrap_or_else(|| panic!("{defect:?} is not found"));
    let first = &report.violations[0];
    eprintln!(
        "{defect:?}: seed {}, {:.1?}, {:?}: {}",
        report.setup.seed,
        began.elapsed(),
        first.kind,
        first.what
    );
    eprint!("{}", first.excerpt);
}

#[test]
fn without_a_defect_nothing_is_found() {
    let report = first_violation(None, 60, "torn");
    assert!(report.is_none(), "{report:#?}");
}

#[test]
fn a_skipped_fence_check_is_found() {
    is_found(Defect::SkipFenceCheck, "none");
}

#[test]
fn a_lost_write_back_is_found() {
    is_found(Defect::LostWriteBack, "none");
}

#[test]
fn a_missing_mark_of_io_is_found() {
    is_found(Defect::NoIoMark, "none");
}

#[test]
fn an_early_unlock_is_found() {
    is_found(Defect::EarlyUnlock, "torn");
}

#[test]
fn a_stale_route_is_found() {
    is_found(Defect::StaleRoute, "none");
}

#[test]
fn a_missing_version_check_is_found() {
    is_found(Defect::SkipVersionCheck, "none");
}

#[test]
fn an_unchecked_step_of_a_scan_is_found() {
    is_found(Defect::SkipStepCheck, "none");
}
