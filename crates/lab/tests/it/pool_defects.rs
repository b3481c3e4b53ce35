//! Each seeded defect of the pool is found by `simulate --system pool` within seconds; without it, the same
//! seeds are clean.
//!
//! `cargo test -p pando-lab --features defects --test it pool_defects:: -- --nocapture` shows seeds and
//! times.

use std::ops::Range;
use std::time::Instant;

use pando_fabric::defect::{self, with_defect};
use pando_lab::simulate::{FaultSet, SeedReport, Systems, run_seed};
use pando_pool::defect::Defect;

/// Most seeds that are tried.
const SEEDS: u64 = 600;

fn first_violation<D: defect::Defect>(
    defect: Option<D>,
    mut seeds: Range<u64>,
    faults: &str,
) -> Option<SeedReport> {
    let systems = Systems::new("pool", &[], &[]).expect("it is known");
    let faults: FaultSet = faults.parse().expect("a list of faults");
    with_defect(defect, || {
        seeds.find_map(|seed| {
            Some(run_seed(seed, &systems, faults)).filter(|report| !report.violations.is_empty())
        })
    })
}

#[track_caller]
fn is_found<D: defect::Defect>(defect: D, faults: &str, first: u64) {
    let began = Instant::now();
    let report = first_violation(Some(defect), first..first + SEEDS, faults);
    let report = report.unwrap_or_else(|| panic!("{defect:?} is not found"));
    let (seed, first) = (report.setup.seed, &report.violations[0]);
    eprintln!("{defect:?} ({faults}): seed {seed}, {:.1?}, {}", began.elapsed(), first.what);
    eprint!("{}", first.excerpt);
}

#[test]
fn without_a_defect_nothing_is_found() {
    for faults in ["none", "all"] {
        let report = first_violation(None::<Defect>, 0..30, faults);
        assert!(report.is_none(), "{report:#?}");
    }
}

#[test]
fn blocks_that_the_catalog_may_lead_to_and_are_freed_are_found() {
    is_found(Defect::FreeLinked, "lost-answers", 0);
}

#[test]
fn a_server_that_is_formatted_twice_is_found() {
    // One seed in about 700 finds it.
    is_found(Defect::FormatJoined, "all", 1100);
}

#[test]
fn a_process_that_leaves_and_owes_something_is_found() {
    is_found(Defect::DetachOwing, "none", 0);
}

#[test]
fn nodes_that_a_root_may_lead_to_and_are_freed_are_found() {
    is_found(Defect::FreeLoaded, "lost-answers", 0);
}
