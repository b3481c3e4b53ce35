//! Seeded defects: the simulated clusters and the checks of damage must find each of them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use pando_elf_remote::defect::{Defect, Defect as D};
use pando_fabric::defect::with_defect;

use crate::setup::KINDS;
use crate::{local, simulated, simulated_tables, table_failures, unanswered};

/// Each defect, and the check that finds it.
const SEEDED: [(Defect, fn()); 8] = [
    (D::UnverifiedPiece, local::damage_of_any_block_is_found),
    (D::UnconfirmedVersion, images),
    (D::UnconfirmedCall, images),
    (D::LostTree, changing_tables),
    (D::StaleDeletes, changing_tables),
    (D::ForgottenDeletes, changing_tables),
    (D::LostBlocks, table_failures::an_answer_of_a_change_is_lost),
    (D::EarlyFree, unanswered::an_answer_is_lost_and_all_verbs_fail_behind_it),
];

fn images() {
    (0..40).for_each(|seed| {
        simulated::run(seed, if seed % 2 == 0 { &[] } else { &KINDS });
    });
}

fn changing_tables() {
    (0..60).for_each(|seed| {
        simulated_tables::run(seed, if seed % 2 == 0 { &[] } else { &KINDS });
    });
}

#[test]
fn each_defect_is_found() {
    for defect in Defect::ALL {
        let start = Instant::now();
        let (_, check) =
            SEEDED.iter().find(|(seeded, _)| *seeded == defect).expect("each defect has a check");
        let found = catch_unwind(AssertUnwindSafe(|| with_defect(Some(defect), check)));
        println!("{defect:?}: found {}, {:.2} s", found.is_err(), start.elapsed().as_secs_f64());
        assert!(found.is_err(), "{defect:?} was not found");
    }
}
