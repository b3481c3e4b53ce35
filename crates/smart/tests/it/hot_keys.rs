//! A few keys shared by all slots, on a simulated cluster; the history is checked for linearizability
//! (`common/history.rs`).

use crate::common::Setup;
use crate::common::history::run;
use pando_smart::{NodeRoom, Techniques};

#[test]
fn lookups_see_what_was_put() {
    for seed in 0..40_u64 {
        for (name, techniques) in Techniques::STEPS {
            eprintln!("seed {seed}, {name}");
            let room = if seed.is_multiple_of(2) { NodeRoom::Full } else { NodeRoom::Exact };
            let setup = Setup { node_room: room, ..Setup::new(techniques) };
            assert_eq!(run(seed, setup, 1 + seed % 4 * 3, 0.0, |_| {}), None, "seed {seed}, {name}");
        }
    }
}

#[test]
fn unsound_shortcuts_are_caught() {
    let late = (0..200).find_map(|seed| {
        run(seed, Setup::new(Techniques::SMART), 1, 0.0, |config| config.late_followers_unsound = true)
    });
    assert!(late.is_some(), "followers that come late");
    let absent = (0..200).find_map(|seed| {
        run(seed, Setup::new(Techniques::SMART), 40, 0.0, |config| config.cached_absence_unsound = true)
    });
    assert!(absent.is_some(), "absence by what was cached");
}
