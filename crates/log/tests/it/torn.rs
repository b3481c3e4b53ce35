//! The last batch, or the last control block, is cut at each byte.

use crate::model::{LANES, Model, Step};

/// Bytes of a batch of one record of 3 + 50 bytes, and one more.
const BATCH: usize = 32 + 16 + 8 + 3 + 50 + 3 + 1;

#[test]
fn a_batch_that_is_cut_at_any_byte_takes_nothing_else_with_it() {
    for bytes in 0..=BATCH {
        let mut model = Model::new(pando_log::Persistence::Never);
        for i in 0..7 {
            model.step(Step::Append { lane: i % LANES, bytes: 20 }).expect("it fits");
            model.step(Step::Durable { lane: i % LANES }).expect("it is written");
        }
        for step in [
            Step::Append { lane: 1, bytes: 50 },
            Step::Fault { until: 0, bytes },
            Step::Durable { lane: 1 },
            Step::Crash,
            Step::Append { lane: 1, bytes: 50 },
            Step::Durable { lane: 0 },
            Step::Crash,
        ] {
            model.step(step).unwrap_or_else(|error| panic!("cut at byte {bytes}, {step:?}: {error}"));
        }
    }
}

#[test]
fn a_control_block_that_is_cut_at_any_byte_leaves_the_one_before() {
    for (bytes, until) in (0..=64).flat_map(|bytes| (0..LANES as u32).map(move |until| (bytes, until))) {
        let mut model = Model::new(pando_log::Persistence::Never);
        for i in 0..9 {
            model.step(Step::Append { lane: i % LANES, bytes: 20 }).expect("it fits");
        }
        for step in [
            Step::Durable { lane: 0 },
            Step::Fault { until, bytes },
            Step::Truncate { except: 3 },
            Step::CrashTwice { until, bytes },
        ] {
            model
                .step(step)
                .unwrap_or_else(|error| panic!("control {until} cut at byte {bytes}, {step:?}: {error}"));
        }
    }
}

#[test]
fn rings_go_round_many_times() {
    let mut model = Model::new(pando_log::Persistence::Never);
    for i in 0..4000 {
        model.step(Step::Append { lane: i % 7 % LANES, bytes: i % 90 }).expect("a full ring waits");
        if i % 5 == 0 {
            model.step(Step::Durable { lane: 0 }).expect("it is written");
        }
        if i % 501 == 0 {
            model.step(Step::Crash).expect("nothing is lost");
        }
    }
}
