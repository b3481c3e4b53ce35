//! Each seeded defect is found by simulation within a bounded number of seeds.

use pando_fabric::defect::with_defect;
use pando_member::defect::Defect;

use crate::{cluster, register};

const SEEDS: u64 = 1000;

fn found(defect: Defect, run: impl Fn(u64) -> Result<(), String>) -> Option<u64> {
    (0..SEEDS).find(|&seed| match with_defect(Some(defect), || run(seed)) {
        Ok(()) => false,
        Err(error) => {
            println!("{defect:?}: seed {seed}: {error}");
            true
        }
    })
}

#[test]
fn each_defect_is_found_in_a_cluster() {
    let of_acceptors = [Defect::OldAcceptors, Defect::ReplacedCount, Defect::UndecidedAcceptors];
    for defect in Defect::ALL {
        let run = if of_acceptors.contains(&defect) { cluster::run_losses } else { cluster::run };
        let found = found(defect, |seed| run(seed).map(drop));
        println!("{defect:?} {found:?}");
    }
}

#[test]
fn each_defect_of_the_register_is_found_without_a_cluster() {
    for defect in
        [Defect::PromiseIgnored, Defect::AcceptedIgnored, Defect::Minority, Defect::ForgetfulAcceptor]
    {
        assert!(found(defect, |seed| register::run(seed).map(drop)).is_some(), "{defect:?}");
    }
}
