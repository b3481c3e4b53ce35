//! All variants on a simulated cluster: many threads of several compute servers with index caches, torn READs
//! and WRITEs, delays, partitioned and not. A seed determines the history; a failure names the seed.
//!
//! `PANDO_SIM_SEEDS=A..B` replays seeds A to B - 1.

use crate::common::history::{History, is_caught, seeds};
use crate::common::{Sizes, variants};
use pando_sherman::{Options, ReadCheck};

#[test]
fn every_variant_agrees_with_its_models() {
    let variants = variants();
    let (mut splits, mut merges) = (0, 0);
    for seed in seeds(60) {
        let (name, options) = &variants[seed as usize % variants.len()];
        for partitioned in [false, true] {
            if partitioned && options.check != ReadCheck::Checksum {
                continue;
            }
            // Shown if the test fails.
            eprintln!("seed {seed}: {name}, partitioned {partitioned}");
            let outcome = History { partitioned, ..History::tiny(seed, *options) }.run();
            splits += outcome.splits;
            merges += outcome.merges;
        }
    }
    assert!(seeds(60).count() < 20 || (splits > 1000 && merges > 100), "{splits} splits, {merges} merges");
}

#[test]
fn long_keys_and_values_agree_with_their_models() {
    for seed in seeds(10) {
        eprintln!("seed {seed}");
        let options = Options::sherman(16 << 10).with_locks(64);
        let sizes = Sizes { key: 8, value: 200, node: 2048 };
        History { sizes, ..History::tiny(seed, options) }.run();
    }
}

#[test]
fn the_same_seed_is_the_same_history() {
    let history = || History::tiny(3, Options::sherman(16 << 10).with_locks(64));
    assert_eq!(history().run(), history().run());
}

/// The published check relies on READs that fetch lines in order. In a cluster where no READ does, it accepts
/// torn nodes, which the two sound checks reject.
#[test]
fn versions_at_both_ends_are_unsound() {
    let ladder = [Options::fg_plus(16 << 10), Options::sherman(16 << 10).with_locks(64)];
    let unsound = ladder.map(|options| options.with_check(ReadCheck::UnsoundEnds));
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let caught = unsound.map(|options| (0..40).find(|&seed| is_caught(&History::rough(seed, options))));
    std::panic::set_hook(hook);
    assert!(caught.iter().all(Option::is_some), "no history was found to be wrong: {caught:?}");
    for options in ladder {
        for check in [ReadCheck::Checksum, ReadCheck::VersionReads] {
            for seed in 0..4 {
                eprintln!("seed {seed}, {check:?}");
                assert!(!is_caught(&History::rough(seed, options.with_check(check))));
            }
        }
    }
}
