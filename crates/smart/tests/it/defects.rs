//! Every seeded defect is found by few seeds; without defects the same seeds are clean.
//!
//! `cargo test -p pando-smart --features defects --test it defects::`

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::common::Setup;
use crate::common::history::run;
use pando_fabric::defect::with_defect;
use pando_smart::defect::Defect;
use pando_smart::{NodeRoom, SmartConfig, Techniques};

/// Maximum number of seeds.
const SEEDS: u64 = 400;

/// Setup in which a defect is searched.
#[derive(Clone, Copy)]
struct Hunt {
    techniques: Techniques,
    node_room: NodeRoom,
    keys: u64,
    lost_answer_share: f64,
}

const SMART: Hunt =
    Hunt { techniques: Techniques::SMART, node_room: NodeRoom::Full, keys: 40, lost_answer_share: 0.0 };
const LOST: Hunt = Hunt { lost_answer_share: 0.05, ..SMART };
/// Nodes are replaced often.
const GROWING: Hunt = Hunt { node_room: NodeRoom::Exact, ..SMART };
/// Leaves are locked by a table.
const TABLE: Hunt = Hunt { techniques: Techniques::STEPS[2].1, keys: 4, ..SMART };

impl Hunt {
    /// Finds the first of `seeds` seeds with a violation; returns its description.
    fn find(self, defect: Option<Defect>, seeds: u64, change: impl Fn(&mut SmartConfig)) -> Option<String> {
        let setup = Setup { node_room: self.node_room, ..Setup::new(self.techniques) };
        with_defect(defect, || {
            (0..seeds).find_map(|seed| {
                let life = || run(seed, setup, self.keys, self.lost_answer_share, &change);
                let wrong = catch_unwind(AssertUnwindSafe(life));
                let wrong = wrong.unwrap_or_else(|_| Some("it panicked".into()));
                wrong.map(|what| format!("seed {seed}: {what}"))
            })
        })
    }

    fn finds(self, defect: Defect) {
        let found = self.find(Some(defect), SEEDS, |_| {});
        eprintln!("{defect:?}: {}", found.unwrap_or_else(|| panic!("{defect:?} is not found")));
    }
}

#[test]
fn without_a_defect_nothing_is_found() {
    for hunt in [SMART, LOST, GROWING, TABLE, Hunt { keys: 1, ..SMART }] {
        assert_eq!(hunt.find(None, 40, |_| {}), None);
    }
}

#[test]
fn an_unconfirmed_absence_is_found() {
    SMART.finds(Defect::UnconfirmedAbsence);
}

#[test]
fn a_skipped_checksum_is_found() {
    SMART.finds(Defect::SkipChecksum);
}

#[test]
fn late_combining_is_found() {
    Hunt { keys: 4, ..SMART }.finds(Defect::LateCombining);
}

#[test]
fn a_tombstone_for_any_byte_is_found() {
    SMART.finds(Defect::TombstoneForAnyByte);
}

#[test]
fn blocks_that_are_freed_at_once_are_found() {
    SMART.finds(Defect::FreeAtOnce);
}

#[test]
fn a_leaf_that_is_not_looked_at_under_its_lock_is_found() {
    TABLE.finds(Defect::SkipLookUnderLock);
}

#[test]
fn unannounced_growth_is_found() {
    SMART.finds(Defect::UnnoticedGrowth);
}

#[test]
fn a_node_that_is_replaced_without_freezing_it_is_found() {
    GROWING.finds(Defect::SkipFreeze);
}

#[test]
fn a_leaf_that_moves_without_saying_where_is_found() {
    SMART.finds(Defect::NoForwarding);
}

#[test]
fn an_unanswered_swap_that_counts_as_done_is_found() {
    LOST.finds(Defect::UnansweredIsDone);
}

#[test]
fn options_that_are_named_unsound_are_found() {
    let late = Hunt { keys: 1, ..SMART }.find(None, SEEDS, |config| config.late_followers_unsound = true);
    eprintln!("late followers: {}", late.expect("followers that come late are not found"));
    let absent = SMART.find(None, SEEDS, |config| config.cached_absence_unsound = true);
    eprintln!("cached absence: {}", absent.expect("absence by what was cached is not found"));
}
