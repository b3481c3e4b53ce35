//! Any steps: appends, WRITEs that arrive in part, truncations, crashes, and crashes of the process that recovers.

use proptest::collection::vec;
use proptest::prelude::*;

use crate::model::{LANES, Model, Step};

fn step() -> impl Strategy<Value = Step> {
    let fault = || (0..8u32, 0..200usize);
    prop_oneof![
        12 => (0..LANES, 0..90usize).prop_map(|(lane, bytes)| Step::Append { lane, bytes }),
        4 => (0..LANES).prop_map(|lane| Step::Durable { lane }),
        2 => fault().prop_map(|(until, bytes)| Step::Fault { until, bytes }),
        1 => (0..20u64).prop_map(|except| Step::Truncate { except }),
        1 => Just(Step::Crash),
        1 => fault().prop_map(|(until, bytes)| Step::CrashTwice { until, bytes }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn what_was_answered_is_in_the_log(steps in vec(step(), 1..120)) {
        let mut model = Model::new();
        for step in steps.into_iter().chain([Step::Crash]) {
            prop_assert_eq!(model.step(step), Ok(()), "{:?}", step);
        }
    }
}
