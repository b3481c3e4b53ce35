//! Any steps: appends, WRITEs that arrive in part, truncations, moves to other blocks, crashes, losses of power, and both during recovery.

use proptest::collection::vec;
use proptest::prelude::*;

use pando_log::Persistence;

use crate::model::{LANES, Model, Step};

fn step() -> impl Strategy<Value = Step> {
    let fault = || (0..8u32, 0..200usize);
    prop_oneof![
        12 => (0..LANES, 0..90usize).prop_map(|(lane, bytes)| Step::Append { lane, bytes }),
        4 => (0..LANES).prop_map(|lane| Step::Durable { lane }),
        2 => fault().prop_map(|(until, bytes)| Step::Fault { until, bytes }),
        1 => (0..20u64).prop_map(|except| Step::Truncate { except }),
        1 => Just(Step::Crash),
        1 => Just(Step::PowerCut),
        1 => Just(Step::Persist),
        1 => any::<u32>().prop_map(|leaves| Step::Move { leaves }),
        1 => fault().prop_map(|(until, bytes)| Step::CrashTwice { until, bytes }),
    ]
}

fn persistence() -> impl Strategy<Value = Persistence> {
    prop_oneof![Just(Persistence::Never), Just(Persistence::Later), Just(Persistence::BeforeAnswer)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(9000))]

    #[test]
    fn what_was_answered_is_in_the_log(steps in vec(step(), 1..120), persistence in persistence()) {
        let mut model = Model::new(persistence);
        for step in steps.into_iter().chain([Step::PowerCut]) {
            prop_assert_eq!(model.step(step), Ok(()), "{:?}", step);
        }
    }
}
