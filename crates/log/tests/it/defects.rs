//! Each seeded defect is found by random steps within a bounded number of seeds, and nothing is found without one.

use pando_fabric::defect::with_defect;
use pando_log::Persistence;
use pando_log::defect::{Defect, OfCopies, OfLogMoves, OfPower};

use crate::model::{LANES, Model, Step};

const SEEDS: u64 = 2000;

/// Steps of one kind.
type Steps = fn(&mut dyn FnMut(u64) -> u64) -> Vec<Step>;

/// A run with the steps of a seed; the numbers are those of splitmix64.
fn run(steps: Steps, persistence: Persistence, seed: u64) -> Result<(), String> {
    let mut state = seed;
    let mut random = move |below: u64| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % below
    };
    let mut model = Model::new(persistence);
    steps(&mut random).into_iter().chain([Step::PowerCut]).try_for_each(|step| model.step(step))
}

/// Steps of all kinds.
fn any(random: &mut dyn FnMut(u64) -> u64) -> Vec<Step> {
    // Some seeds use one lane only, and some never crash before the end, so that rings go round.
    let (lanes, kinds) = (1 + random(LANES as u64), 18 + 2 * random(2));
    let step = |_| {
        let lane = random(lanes) as usize;
        let (until, bytes) = (random(8) as u32, random(200) as usize);
        match random(kinds) {
            0..=11 => Step::Append { lane, bytes: bytes % 90 },
            12..=14 => Step::Durable { lane },
            15..=16 => Step::Fault { until, bytes },
            17 => Step::Truncate { except: random(20) },
            18 => Step::PowerCut,
            _ => Step::CrashTwice { until, bytes },
        }
    };
    (0..120).map(step).collect()
}

/// Checkpoints that do not end, and heirs that die.
fn cut_checkpoints(random: &mut dyn FnMut(u64) -> u64) -> Vec<Step> {
    let mut steps = Vec::new();
    for _ in 0..8 {
        for _ in 0..random(30) {
            let (lane, bytes) = (random(LANES as u64) as usize, random(90) as usize);
            steps.push(Step::Append { lane, bytes });
        }
        steps.push(Step::Durable { lane: 0 });
        for _ in 0..1 + random(3) {
            steps.push(Step::Append { lane: 0, bytes: 8 });
            steps.push(Step::Fault { until: random(3) as u32, bytes: random(64) as usize });
            steps.push(Step::Truncate { except: random(4) });
        }
        steps.push(Step::CrashTwice { until: random(4) as u32, bytes: random(128) as usize });
    }
    steps
}

/// [`any`], with moves to other blocks.
fn moves(random: &mut dyn FnMut(u64) -> u64) -> Vec<Step> {
    let mut steps = any(random);
    for _ in 0..12 {
        let (at, leaves) = (random(steps.len() as u64) as usize, random(1 << 32) as u32);
        steps.insert(at, Step::Move { leaves });
    }
    steps
}

fn found<D: Copy + pando_fabric::defect::Defect>(
    steps: Steps,
    persistence: Persistence,
    defect: Option<D>,
) -> Option<u64> {
    (0..SEEDS).find(|&seed| with_defect(defect, || run(steps, persistence, seed)).is_err())
}

#[test]
fn nothing_is_found_without_a_defect() {
    for persistence in [Persistence::Never, Persistence::Later, Persistence::BeforeAnswer] {
        assert_eq!(found(any, persistence, None::<Defect>), None, "{persistence:?}");
        assert_eq!(found(cut_checkpoints, persistence, None::<Defect>), None, "{persistence:?}");
        assert_eq!(found(moves, persistence, None::<Defect>), None, "{persistence:?}");
    }
}

#[test]
fn each_defect_is_found() {
    let check = |defect: &dyn std::fmt::Debug, seed: Option<u64>| {
        assert!(seed.is_some(), "{defect:?} is not found by {SEEDS} seeds");
        println!("{defect:?}: seed {}", seed.expect("just checked"));
    };
    for defect in Defect::ALL {
        check(&defect, found(any, Persistence::Never, Some(defect)));
    }
    check(&OfCopies::EndsUnequal, found(any, Persistence::Never, Some(OfCopies::EndsUnequal)));
    let defect = OfCopies::ControlsUnequal;
    check(&defect, found(cut_checkpoints, Persistence::BeforeAnswer, Some(defect)));
    let defect = OfLogMoves::CopyUnpersisted;
    check(&defect, found(moves, Persistence::BeforeAnswer, Some(defect)));
    // The others concern pages and values.
    for defect in [OfPower::AnswerBeforePersist, OfPower::ReuseBeforePersist] {
        check(&defect, found(any, Persistence::BeforeAnswer, Some(defect)));
    }
}
