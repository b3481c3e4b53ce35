//! Simulated runs: what they find where nothing is wrong and where something is, and that a seed repeats itself.

use std::collections::BTreeSet;
use std::ops::Range;

use pando_lab::simulate::{FaultSet, SeedReport, Setup, Systems, run_seed, run_setup};

fn faults(list: &str) -> FaultSet {
    list.parse().expect("a list of faults")
}

fn is_clean(report: &SeedReport) {
    assert!(report.violations.is_empty(), "{report:#?}");
}

/// A system by its name, with techniques besides.
fn system(name: &str, with: &[&str]) -> Systems {
    let with: Vec<_> = with.iter().map(|technique| (*technique).to_owned()).collect();
    Systems::new(name, &with, &[]).expect("a system")
}

/// A seed as it was found, before there were several processes.
fn in_one_process(seed: u64, list: &str) -> SeedReport {
    run_setup(Setup::draw_one_process(seed, faults(list)))
}

#[test]
fn nothing_is_found_where_nothing_is_wrong() {
    for seed in 0..40 {
        let report = run_seed(seed, &Systems::dex(), faults("torn,spikes,slow"));
        is_clean(&report);
        assert!(report.operations >= 800 && report.failed_operations == 0, "{report:?}");
    }
}

#[test]
fn what_is_told_of_a_pool_is_nothing_of_an_index() {
    let report = run_seed(0, &system("pool", &[]), faults("none"));
    is_clean(&report);
    let told = serde_json::to_value(&report).expect("plain data");
    let setup = &told["setup"];
    assert_eq!((&setup["system"], setup.get("often").is_some()), (&"pool".into(), true), "{setup}");
    assert!(setup.get("cache").is_none() && setup.get("key_style").is_none(), "{setup}");
}

#[test]
fn nothing_is_found_in_any_system() {
    let all = Systems::default();
    let mut names = BTreeSet::new();
    for seed in 0..80 {
        for list in ["torn", "all"] {
            let report = run_seed(seed, &all, faults(list));
            is_clean(&report);
            assert!(
                report.operations >= 800 && (list == "all" || report.failed_operations == 0),
                "{report:?}"
            );
            names.insert(report.setup.system.name());
        }
    }
    for family in ["dex", "fg", "sherman", "art", "smart"] {
        assert!(names.iter().any(|name| name.contains(family)), "{family} in {names:?}");
    }
}

/// What seeds with DEX meant before there were other systems.
#[test]
fn a_seed_of_dex_is_what_it_was() {
    let told = |seed| {
        let Setup { threads, slots, keys, operations, memory_servers, compute_servers, .. } =
            Setup::draw(seed, &Systems::dex(), faults("all"));
        [memory_servers, compute_servers, threads, slots as usize, keys, operations]
    };
    assert_eq!(
        [7, 10, 1247].map(told),
        [[2, 3, 4, 2, 400, 1_600], [2, 2, 12, 1, 40, 800], [2, 3, 12, 2, 12, 800]]
    );
}

#[test]
fn the_same_seed_is_the_same_history() {
    let mut hashes = Vec::new();
    for seed in 0..12 {
        let [one, two] = [0, 1].map(|_| run_seed(seed, &Systems::default(), faults("all")));
        assert_eq!((one.history_hash, one.virtual_ns), (two.history_hash, two.virtual_ns), "seed {seed}");
        hashes.push(one.history_hash);
    }
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), 12, "seeds differ");
    // What goes wrong is part of the history.
    assert!((0..12).any(|seed| run_seed(seed, &Systems::dex(), faults("none")).history_hash
        != run_seed(seed, &Systems::dex(), faults("all")).history_hash));
}

/// A long value was freed although the change that stored it, which got no answer, had been made.
#[test]
fn a_long_value_is_not_freed_under_an_entry() {
    for seed in [1337, 1811, 2079, 2381, 2504] {
        is_clean(&in_one_process(seed, "all"));
    }
}

/// Unlocking a shared node got no answer, and nobody unlocked it again.
#[test]
fn a_lock_is_given_back_although_answers_are_lost() {
    for (seed, list) in
        [(7, "stop"), (69, "stop"), (36, "kill"), (45, "kill"), (66, "kill"), (66, "lost-answers")]
    {
        is_clean(&in_one_process(seed, list));
    }
}

/// A leaf of the former owner, found by what a copy of a shared node said before the boundary moved, stayed in the cache.
#[test]
fn a_merge_looks_for_neighbours_among_own_keys_only() {
    is_clean(&in_one_process(1247, "none"));
}

/// Two neighbours were merged although their parent had been split between them while one was READ.
#[test]
fn a_merge_looks_at_children_that_the_parent_still_has() {
    is_clean(&in_one_process(9647, "none"));
}

/// A split made a node its owner's alone just when its keys were about to be left: another worker, who had it locked as a shared
/// one again, wrote a child into remote memory that the cached copy, taken for own, did not have.
#[test]
fn a_copy_of_a_node_is_not_own_again_while_its_keys_are_being_left() {
    is_clean(&in_one_process(33540, "all"));
}

#[test]
fn a_path_that_is_longer_than_the_cache_is_gone_down() {
    is_clean(&run_seed(227, &Systems::dex(), faults("all")));
}

/// Two moves at once, each of which found room under its locks where its copies showed none, read these again afterwards: the root,
/// which the other had locked by then, for ever.
#[test]
fn moves_of_two_processes_do_not_keep_each_other_from_going_on() {
    is_clean(&run_seed(10, &Systems::dex(), faults("torn,spikes,slow")));
}

#[test]
fn what_is_cut_off_is_done_or_not() {
    let mut failed = 0;
    for name in ["dex", "fg+", "sherman", "p-sherman", "art", "smart", "p-smart"] {
        for seed in 0..20 {
            let report = run_seed(seed, &system(name, &[]), faults("cut-off"));
            is_clean(&report);
            failed += report.failed_operations;
        }
    }
    assert!(failed > 0, "nothing was cut off");
}

/// Keys that were being moved had no owner any more: the future of the move was dropped.
#[test]
fn keys_have_an_owner_after_a_move_that_was_cut_off() {
    for (seed, list) in
        [(50, "cut-off"), (94, "cut-off"), (108, "cut-off"), (135, "cut-off"), (47, "all,cut-off,preempt")]
    {
        is_clean(&run_seed(seed, &Systems::dex(), faults(list)));
    }
}

/// The next operation of the compute server that left a lock, or somebody who makes the move again, never came.
#[test]
fn what_is_cut_off_is_finished_by_whose_it_is() {
    for seed in [24_189, 26_151, 26_152, 30_967, 37_246, 38_031, 39_081] {
        is_clean(&run_seed(seed, &Systems::default(), faults("all,cut-off,preempt")));
    }
}

/// A thread that lost the answer to its lock took that of another thread for its own: both had drawn the same one of 2^16 numbers.
#[test]
fn locks_of_one_process_are_told_apart() {
    is_clean(&run_seed(2_006_977, &Systems::default(), faults("all,cut-off,preempt")));
}

/// A call that failed left the ticket of a node, which keeps its parent from being evicted; who waited for a frame finished nothing
/// that was left. All in caches of 8 frames.
#[test]
fn who_waits_for_a_frame_finishes_what_was_left() {
    for seed in [4_006_334, 4_007_807] {
        is_clean(&run_seed(seed, &Systems::default(), faults("all,cut-off,preempt")));
    }
}

/// A stale copy of a shared node stood below a node that was evicted each time, and was not read again.
#[test]
fn a_stale_copy_is_read_again_wherever_it_is() {
    is_clean(&run_seed(4_008_652, &Systems::default(), faults("all,cut-off,preempt")));
}

/// Compute servers look at everything in the end; the clock of the last one stood where the first had begun, with memory
/// servers busy until that had ended.
#[test]
fn the_last_look_at_everything_does_not_wait_for_the_others() {
    is_clean(&run_seed(2_015_415, &system("art", &[]), faults("none")));
}

/// 3,040 operations on one key, twelve of which may have happened or not: the search needs more than two million steps.
#[test]
fn a_long_history_is_decided() {
    is_clean(&run_seed(6_006_401, &Systems::default(), faults("all,cut-off,preempt")));
}

/// Everything at once, on threads that stand still where they do not wait for anything.
#[test]
fn nothing_is_found_when_threads_are_preempted() {
    let mut different = 0;
    for seed in 0..16 {
        for list in ["preempt", "all,cut-off,preempt"] {
            let report = run_seed(seed, &Systems::default(), faults(list));
            is_clean(&report);
            different += usize::from(report.setup.preemption.is_some());
        }
    }
    assert!(different > 4, "{different} of 32 runs have preemption");
    let [one, two] = [0, 1].map(|_| run_seed(2, &Systems::dex(), faults("all,cut-off,preempt")));
    assert_eq!((one.history_hash, one.virtual_ns), (two.history_hash, two.virtual_ns));
}

#[test]
fn operations_fail_while_servers_do_and_not_otherwise() {
    let failed: u64 =
        (0..12).map(|seed| run_seed(seed, &Systems::dex(), faults("kill")).failed_operations).sum();
    assert!(failed > 0);
}

/// Of combined puts, whoever executed was told that there was nothing before, and the value of the last was stored: often its own.
#[test]
fn the_first_of_combined_puts_comes_first() {
    for seed in [26, 30, 32] {
        is_clean(&run_seed(seed, &system("p-smart", &[]), faults("none")));
    }
}

/// A scan went on with the replacing of a node that was another compute server's own, which that one did without atomics.
#[test]
fn a_scan_leaves_the_nodes_of_other_partitions_alone() {
    for seed in [0, 70, 242, 272] {
        is_clean(&run_seed(seed, &system("p-smart", &[]), faults("torn")));
    }
}

/// As published, and unsound: simulation finds it out.
#[track_caller]
fn is_caught(name: &str, technique: &str, list: &str, mut seeds: Range<u64>) {
    let unsound = system(name, &[technique]);
    let wrong = seeds.find(|&seed| !run_seed(seed, &unsound, faults(list)).violations.is_empty());
    eprintln!("{unsound} --faults {list}: seed {wrong:?}");
    is_clean(&run_seed(wrong.expect("it is unsound"), &system(name, &[]), faults(list)));
}

/// A READ in two parts has to meet a WRITE in two parts, and that of an entry within it: with few hot entries of several lines, and
/// everything torn, one seed in three does.
#[test]
fn versions_at_both_ends_are_caught() {
    for name in ["fg+", "sherman"] {
        let [sound, unsound] = [&[][..], &["unsound-ends"]].map(|with| system(name, with));
        let is_wrong = |seed: u64, systems: &Systems| {
            let mut setup = Setup::draw(seed, systems, faults("torn"));
            if setup.sizes.value < 100 {
                return None;
            }
            (setup.torn_share, setup.threads, setup.slots) = (1.0, 12, 4);
            (setup.keys, setup.operations) = (6, 2_400);
            Some(!run_setup(setup).violations.is_empty())
        };
        let wrong = (0..300).find(|&seed| is_wrong(seed, &unsound) == Some(true));
        eprintln!("{unsound}: seed {wrong:?}");
        assert_eq!(is_wrong(wrong.expect("it is unsound"), &sound), Some(false));
    }
}

#[test]
fn followers_that_come_late_are_caught() {
    is_caught("smart", "unsound-late-followers", "none", 0..300);
}

#[test]
fn absence_by_a_cached_slot_is_caught() {
    is_caught("smart", "unsound-cached-absence", "none", 0..300);
}
