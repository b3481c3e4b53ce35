//! Every seeded defect is found by few seeds; without defects the same seeds are clean.
//!
//! `cargo test -p pando-sherman --features defects --test it -- defects:: left_locks::`. The defect that shows
//! only when a process dies is in `left_locks.rs`.

use crate::common::history::{History, is_caught};
use crate::common::variants;
use pando_fabric::defect::with_defect;
use pando_sherman::defect::Defect;
use pando_sherman::{Options, ReadCheck};

/// Maximum number of seeds.
const SEEDS: u64 = 400;

/// Histories of a seed: all variants in turn, and two where everything is torn.
fn histories(seed: u64) -> [History; 3] {
    let variants = variants();
    let checks = [ReadCheck::Checksum, ReadCheck::VersionReads];
    let options = Options::sherman(16 << 10).with_locks(64).with_check(checks[seed as usize % 2]);
    let rough = History::rough(seed, options);
    [
        History::tiny(seed, variants[seed as usize % variants.len()].1),
        rough,
        History { is_kept: true, ..rough },
    ]
}

/// The first seed that fails.
fn first_caught(defect: Option<Defect>, seeds: u64) -> Option<u64> {
    with_defect(defect, || (0..seeds).find(|&seed| histories(seed).iter().any(is_caught)))
}

#[track_caller]
fn is_found(defect: Defect) {
    let seed = first_caught(Some(defect), SEEDS);
    eprintln!("{defect:?}: seed {seed:?}");
    assert!(seed.is_some(), "{defect:?} is not found");
}

/// The published check of READs is not a seeded defect, but is found as well.
#[test]
fn versions_at_both_ends_are_found() {
    let options = Options::sherman(16 << 10).with_locks(64).with_check(ReadCheck::UnsoundEnds);
    let seed = (0..SEEDS).find(|&seed| is_caught(&History::rough(seed, options)));
    assert!(seed.is_some(), "no history was found to be wrong");
}

#[test]
fn without_a_defect_nothing_is_found() {
    assert_eq!(first_caught(None, 40), None);
}

#[test]
fn a_skipped_fence_check_is_found() {
    is_found(Defect::SkipFenceCheck);
}

#[test]
fn a_skipped_fence_check_under_a_lock_is_found() {
    is_found(Defect::SkipLockedFenceCheck);
}

#[test]
fn an_early_unlock_is_found() {
    is_found(Defect::EarlyUnlock);
}

#[test]
fn a_torn_entry_taken_for_absent_is_found() {
    is_found(Defect::TornIsAbsent);
}

#[test]
fn a_lock_that_is_given_back_and_handed_over_is_found() {
    is_found(Defect::HandOverReleased);
}

#[test]
fn a_version_that_is_not_looked_at_again_is_found() {
    is_found(Defect::SkipSecondLook);
}

/// Few locks, each shared by many nodes.
#[test]
fn a_wait_for_a_lock_under_a_lock_is_found() {
    let options = Options::sherman(16 << 10).with_locks(4).with_check(ReadCheck::VersionReads);
    let is_stuck = |seed| {
        let rough = History::rough(seed, options);
        [History::tiny(seed, options), rough].iter().any(is_caught)
    };
    let first = |defect| with_defect(defect, || (0..SEEDS / 4).find(|&seed| is_stuck(seed)));
    let seed = first(Some(Defect::WaitHolding));
    eprintln!("{:?}: seed {seed:?}", Defect::WaitHolding);
    assert!(seed.is_some(), "there is no deadlock");
    assert_eq!(first(None), None);
}

#[test]
fn a_fence_that_a_split_forgot_is_found() {
    is_found(Defect::KeepHighFence);
}

#[test]
fn a_merge_of_what_others_have_locked_is_found() {
    is_found(Defect::MergeLocked);
}

#[test]
fn a_scan_that_skips_leaves_is_found() {
    is_found(Defect::SkipScanCheck);
}
