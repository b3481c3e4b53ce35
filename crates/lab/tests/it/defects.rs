//! Each seeded defect of the protocols is found within few seeds; without it, the same seeds are clean.
//!
//! `cargo test -p pando-lab --features defects --test it defects::`. Defects that only the death of a process
//! reveals are tested in `crates/sherman/tests/it/left_locks.rs`.

use pando_fabric::defect::{self, with_defect};
use pando_lab::simulate::{FaultSet, SeedReport, Setup, Systems, run_setup};

/// Most seeds that are tried.
const SEEDS: usize = 400;

/// A system, with techniques after a space, and the kinds of faults.
type Case = (&'static str, &'static str);

fn systems(text: &str) -> Systems {
    let (name, with) = text.split_once(' ').unwrap_or((text, ""));
    let with: Vec<_> = with.split_terminator(',').map(str::to_owned).collect();
    Systems::new(name, &with, &[]).expect("a system")
}

/// The configurations of all seeds, in order.
fn setups((system, faults): Case) -> impl Iterator<Item = Setup> {
    let (systems, faults): (_, FaultSet) = (systems(system), faults.parse().expect("a list of faults"));
    (0..).map(move |seed| Setup::draw(seed, &systems, faults))
}

/// The first of these with a violation.
fn first_violation_of<D: defect::Defect>(
    defect: Option<D>,
    mut setups: impl Iterator<Item = Setup>,
) -> Option<SeedReport> {
    with_defect(defect, || {
        setups.find_map(|setup| Some(run_setup(setup)).filter(|it| !it.violations.is_empty()))
    })
}

/// The first seed with a violation.
fn first_violation<D: defect::Defect>(defect: Option<D>, seeds: usize, case: Case) -> Option<SeedReport> {
    first_violation_of(defect, setups(case).take(seeds))
}

#[track_caller]
fn is_found<D: defect::Defect>(defect: D, case: Case) {
    is_found_in(defect, case, setups(case).take(SEEDS));
}

#[track_caller]
fn is_found_in<D: defect::Defect>(defect: D, case: Case, setups: impl Iterator<Item = Setup>) {
    let began = std::time::Instant::now();
    let report =
        first_violation_of(Some(defect), setups).unwrap_or_else(|| panic!("{defect:?} is not found"));
    let first = &report.violations[0];
    eprintln!(
        "{defect:?} in {} ({}): seed {}, {:.1?}, {:?}: {}",
        case.0,
        case.1,
        report.setup.seed,
        began.elapsed(),
        first.kind,
        first.what
    );
    eprint!("{}", first.excerpt);
}

/// Logs of a compute server that dies.
mod heirs {
    use pando_log::defect::{Defect, OfIndex, OfShared};
    use pando_pool::defect::OfReclaim;

    use super::{Case, SEEDS, Setup, first_violation, is_found_in, setups};

    const DEX: Case = ("dex", "kill-compute");

    /// Found in a run in which a compute server dies. Nothing else can show it.
    #[track_caller]
    fn is_found(defect: impl pando_fabric::defect::Defect) {
        is_found_in(defect, DEX, setups(DEX).filter(|setup| setup.deaths() > 0).take(SEEDS));
    }

    /// The same, and others go on.
    #[track_caller]
    fn is_found_by_others(defect: impl pando_fabric::defect::Defect) {
        let dies_beside_others = |setup: &Setup| setup.deaths() > 0 && setup.compute_servers > 1;
        is_found_in(defect, DEX, setups(DEX).filter(dies_beside_others).take(SEEDS));
    }

    #[test]
    fn without_a_defect_nothing_is_found() {
        let report = first_violation(None::<Defect>, 100, ("dex", "kill-compute,lost-answers,cut-off"));
        assert!(report.is_none(), "{report:#?}");
    }

    #[test]
    fn bitmaps_that_are_not_stored_are_found() {
        is_found(OfReclaim::Unstored);
    }

    #[test]
    fn blocks_of_a_log_that_are_not_marked_are_found() {
        is_found(OfReclaim::LogUnmarked);
    }

    #[test]
    fn an_answer_before_the_log_is_found() {
        is_found(Defect::AckBeforeLog);
    }

    #[test]
    fn a_page_before_the_log_is_found() {
        is_found(OfIndex::PageBeforeLog);
    }

    #[test]
    fn a_lookup_before_the_log_is_found() {
        is_found(OfIndex::GetBeforeLog);
    }

    #[test]
    fn a_record_that_is_missing_is_found() {
        is_found(Defect::GapIgnored);
    }

    #[test]
    fn a_shared_node_before_the_log_is_found() {
        is_found_by_others(OfShared::SharedBeforeLog);
    }

    #[test]
    fn a_repair_before_the_heir_is_found() {
        is_found_by_others(OfShared::RepairBeforeHeir);
    }
}

/// Logs of compute servers between which keys move.
mod falls {
    use pando_log::defect::OfMoves;

    use super::is_found;

    #[test]
    fn keys_that_left_without_a_record_are_found() {
        is_found(OfMoves::LeftUnlogged, ("dex", "kill-compute"));
    }
}

mod dex {
    use pando_cache::defect::Defect;

    use super::{first_violation, is_found};

    #[test]
    fn without_a_defect_nothing_is_found() {
        let report = first_violation(None::<Defect>, 60, ("dex", "torn"));
        assert!(report.is_none(), "{report:#?}");
    }

    #[test]
    fn a_skipped_fence_check_is_found() {
        is_found(Defect::SkipFenceCheck, ("dex", "none"));
    }

    #[test]
    fn a_lost_write_back_is_found() {
        is_found(Defect::LostWriteBack, ("dex", "none"));
    }

    #[test]
    fn a_missing_mark_of_io_is_found() {
        is_found(Defect::NoIoMark, ("dex", "none"));
    }

    #[test]
    fn an_early_unlock_is_found() {
        is_found(Defect::EarlyUnlock, ("dex", "torn"));
    }

    #[test]
    fn a_stale_route_is_found() {
        is_found(Defect::StaleRoute, ("dex", "none"));
    }

    #[test]
    fn an_error_that_is_wrong_about_nothing_happened_is_found() {
        is_found(Defect::WrongNothingHappened, ("dex", "stop,kill,disconnect"));
    }

    #[test]
    fn a_missing_version_check_is_found() {
        is_found(Defect::SkipVersionCheck, ("dex", "none"));
    }

    #[test]
    fn an_unchecked_step_of_a_scan_is_found() {
        is_found(Defect::SkipStepCheck, ("dex", "none"));
    }
}

mod sherman {
    use pando_sherman::defect::Defect;

    use super::{first_violation, is_found};

    #[test]
    fn without_a_defect_nothing_is_found() {
        let report = first_violation(None::<Defect>, 60, ("sherman", "torn"));
        assert!(report.is_none(), "{report:#?}");
    }

    #[test]
    fn a_skipped_fence_check_is_found() {
        is_found(Defect::SkipFenceCheck, ("sherman", "none"));
    }

    #[test]
    fn a_skipped_fence_check_under_a_lock_is_found() {
        is_found(Defect::SkipLockedFenceCheck, ("sherman", "none"));
    }

    #[test]
    fn an_early_unlock_is_found() {
        is_found(Defect::EarlyUnlock, ("sherman", "none"));
    }

    #[test]
    fn a_torn_entry_taken_for_absent_is_found() {
        is_found(Defect::TornIsAbsent, ("sherman", "torn"));
    }

    #[test]
    fn a_lock_that_is_released_and_handed_over_is_found() {
        is_found(Defect::HandOverReleased, ("sherman", "none"));
    }

    #[test]
    fn a_high_fence_that_stays_is_found() {
        is_found(Defect::KeepHighFence, ("sherman", "none"));
    }

    #[test]
    fn a_merge_of_a_locked_node_is_found() {
        is_found(Defect::MergeLocked, ("sherman", "none"));
    }

    #[test]
    fn an_unchecked_step_of_a_scan_is_found() {
        is_found(Defect::SkipScanCheck, ("sherman", "none"));
    }
}

mod smart {
    use pando_smart::defect::Defect;

    use super::{first_violation, is_found};

    #[test]
    fn without_a_defect_nothing_is_found() {
        let report = first_violation(None::<Defect>, 60, ("smart", "torn"));
        assert!(report.is_none(), "{report:#?}");
    }

    #[test]
    fn absence_that_is_not_confirmed_is_found() {
        is_found(Defect::UnconfirmedAbsence, ("art lock-free-nodes,in-place-leaves", "none"));
    }

    #[test]
    fn a_skipped_checksum_is_found() {
        is_found(Defect::SkipChecksum, ("smart", "torn"));
    }

    #[test]
    fn late_combining_is_found() {
        is_found(Defect::LateCombining, ("p-smart", "none"));
    }

    #[test]
    fn the_slot_of_another_byte_is_found() {
        is_found(Defect::TombstoneForAnyByte, ("p-smart", "none"));
    }

    #[test]
    fn blocks_that_are_free_at_once_are_found() {
        is_found(Defect::FreeAtOnce, ("smart", "none"));
    }

    #[test]
    fn a_missing_look_under_a_lock_is_found() {
        is_found(Defect::SkipLookUnderLock, ("art lock-free-nodes,in-place-leaves", "none"));
    }

    #[test]
    fn growth_that_nobody_notices_is_found() {
        is_found(Defect::UnnoticedGrowth, ("smart", "none"));
    }

    #[test]
    fn a_node_that_is_not_frozen_is_found() {
        is_found(Defect::SkipFreeze, ("smart", "none"));
    }

    #[test]
    fn a_leaf_that_does_not_say_where_the_new_one_is_is_found() {
        is_found(Defect::NoForwarding, ("smart", "none"));
    }

    #[test]
    fn a_swap_without_an_answer_that_counts_as_done_is_found() {
        is_found(Defect::UnansweredIsDone, ("art lock-free-nodes", "lost-answers"));
    }
}
