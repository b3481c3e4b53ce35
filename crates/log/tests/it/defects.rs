//! Each seeded defect is found by random steps within a bounded number of seeds, and nothing is found without one.

use pando_fabric::defect::with_defect;
use pando_log::Persistence;
use pando_log::defect::{Defect, OfCopies, OfPower};

use crate::model::{LANES, Model, Step};

const SEEDS: u64 = 2000;

/// Random steps of a seed; the numbers are those of splitmix64.
fn run(persistence: Persistence, seed: u64) -> Result<(), String> {
    let mut state = seed;
    let mut random = move |below: u64| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % below
    };
    // Some seeds use one lane only, and some never crash before the end, so that rings go round.
    let (lanes, kinds) = (1 + random(LANES as u64), 18 + 2 * random(2));
    let mut model = Model::new(persistence);
    for _ in 0..120 {
        let lane = random(lanes) as usize;
        let (until, bytes) = (random(8) as u32, random(200) as usize);
        model.step(match random(kinds) {
            0..=11 => Step::Append { lane, bytes: bytes % 90 },
            12..=14 => Step::Durable { lane },
            15..=16 => Step::Fault { until, bytes },
            17 => Step::Truncate { except: random(20) },
            18 => Step::PowerCut,
            _ => Step::CrashTwice { until, bytes },
        })?;
    }
    model.step(Step::PowerCut)
}

fn found<D: Copy + pando_fabric::defect::Defect>(persistence: Persistence, defect: Option<D>) -> Option<u64> {
    (0..SEEDS).find(|&seed| with_defect(defect, || run(persistence, seed)).is_err())
}

#[test]
fn nothing_is_found_without_a_defect() {
    for persistence in [Persistence::Never, Persistence::Later, Persistence::BeforeAnswer] {
        assert_eq!(found(persistence, None::<Defect>), None, "{persistence:?}");
    }
}

#[test]
fn each_defect_is_found() {
    let check = |defect: &dyn std::fmt::Debug, seed: Option<u64>| {
        assert!(seed.is_some(), "{defect:?} is not found by {SEEDS} seeds");
        println!("{defect:?}: seed {}", seed.expect("just checked"));
    };
    for defect in Defect::ALL {
        check(&defect, found(Persistence::Never, Some(defect)));
    }
    check(&OfCopies::EndsUnequal, found(Persistence::Never, Some(OfCopies::EndsUnequal)));
    // The others concern pages and values.
    for defect in [OfPower::AnswerBeforePersist, OfPower::ReuseBeforePersist] {
        check(&defect, found(Persistence::BeforeAnswer, Some(defect)));
    }
}
