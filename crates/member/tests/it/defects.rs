//! Each seeded defect is found by simulation within a bounded number of seeds.

use pando_fabric::defect::with_defect;
use pando_member::defect::Defect;

use crate::register::Acceptors;
use crate::{cluster, register};

const SEEDS: u64 = 4000;

fn found(defect: Defect, run: impl Fn(u64) -> Result<(), String>) -> Option<u64> {
    (0..SEEDS).find(|&seed| match with_defect(Some(defect), || run(seed)) {
        Ok(()) => false,
        Err(error) => {
            println!("{defect:?}: seed {seed}: {error}");
            true
        }
    })
}

/// Defects of the rules for acceptors that change.
const OF_ACCEPTORS: [Defect; 3] =
    [Defect::OldAcceptors, Defect::UndecidedAcceptors, Defect::ResizedUndecided];

#[test]
fn each_defect_is_found_in_a_cluster() {
    for defect in Defect::ALL.into_iter().filter(|defect| !OF_ACCEPTORS.contains(defect)) {
        assert!(found(defect, |seed| cluster::run(seed).map(drop)).is_some(), "{defect:?}");
    }
}

#[test]
fn each_defect_of_the_register_is_found_without_a_cluster() {
    for defect in
        [Defect::PromiseIgnored, Defect::AcceptedIgnored, Defect::Minority, Defect::ForgetfulAcceptor]
    {
        assert!(found(defect, |seed| register::run(seed, Acceptors::Stay).map(drop)).is_some(), "{defect:?}");
    }
    let defect = Defect::OldAcceptors;
    assert!(found(defect, |_| register::promise_of_a_replaced_acceptor()).is_some(), "{defect:?}");
    let defect = Defect::ResizedUndecided;
    assert!(found(defect, |_| register::undecided_values_that_name_fewer()).is_some(), "{defect:?}");
    let defect = Defect::UndecidedAcceptors;
    assert!(found(defect, |_| register::acceptor_of_an_undecided_value()).is_some(), "{defect:?}");
}
