//! Simulated runs: correct code has no violations, unsound techniques have some, and seeds are repeatable.

use std::collections::BTreeSet;
use std::ops::Range;

use pando_lab::simulate::{FaultSet, SeedReport, Setup, Systems, run_seed, run_setup};

/// All faults of the time when these seeds found something.
const ALL_BUT_LOSS: &str = "torn,spikes,slow,stop,kill,disconnect,lost-answers,kill-compute,cut-off,preempt";

fn faults(list: &str) -> FaultSet {
    list.parse().expect("a list of faults")
}

fn is_clean(report: &SeedReport) {
    assert!(report.violations.is_empty(), "{report:#?}");
}

/// A system by its name, with further techniques.
fn system(name: &str, with: &[&str]) -> Systems {
    let with: Vec<_> = with.iter().map(|technique| (*technique).to_owned()).collect();
    Systems::new(name, &with, &[]).expect("a system")
}

/// Runs a seed with all compute servers in one process, the configuration in which it was found.
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

/// Seeds of DEX keep their configurations, so that recorded seeds stay valid; unless they have the death of a compute server,
/// which came later.
#[test]
fn a_seed_of_dex_is_what_it_was() {
    let told = |seed| {
        let Setup { threads, slots, keys, operations, memory_servers, compute_servers, .. } =
            Setup::draw(seed, &Systems::dex(), faults("torn,spikes,slow,stop,kill,disconnect,lost-answers"));
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
    // Faults are part of the history.
    assert!((0..12).any(|seed| run_seed(seed, &Systems::dex(), faults("none")).history_hash
        != run_seed(seed, &Systems::dex(), faults("all")).history_hash));
}

/// These seeds detect a free of a long value whose entry was stored by a change without an answer.
#[test]
fn a_long_value_is_not_freed_under_an_entry() {
    for seed in [1337, 1811, 2079, 2381, 2504] {
        is_clean(&in_one_process(seed, "all"));
    }
}

/// These seeds detect a shared node that stays locked after its unlock got no answer.
#[test]
fn a_lock_is_given_back_although_answers_are_lost() {
    for (seed, list) in
        [(7, "stop"), (69, "stop"), (36, "kill"), (45, "kill"), (66, "kill"), (66, "lost-answers")]
    {
        is_clean(&in_one_process(seed, list));
    }
}

/// This seed detects a leaf of the former owner that stays in the cache. A copy of a shared node from before
/// the move of the boundary leads to it.
#[test]
fn a_merge_looks_for_neighbours_among_own_keys_only() {
    is_clean(&in_one_process(1247, "none"));
}

/// This seed detects a merge of two neighbours whose parent was split between them during a READ.
#[test]
fn a_merge_looks_at_children_that_the_parent_still_has() {
    is_clean(&in_one_process(9647, "none"));
}

/// This seed detects a lost child of a node that a split makes owned while its keys are about to leave:
/// another worker, which holds its lock as of a shared node, writes a child to remote memory, and the cached
/// copy lacks it.
#[test]
fn a_copy_of_a_node_is_not_own_again_while_its_keys_are_being_left() {
    is_clean(&in_one_process(33540, "torn,spikes,slow,stop,kill,disconnect,lost-answers"));
}

#[test]
fn a_path_that_is_longer_than_the_cache_is_gone_down() {
    is_clean(&run_seed(227, &Systems::dex(), faults("torn,spikes,slow,stop,kill,disconnect,lost-answers")));
}

/// This seed detects an endless wait of two concurrent moves. Each finds room under its locks where its
/// copies show none, and then reads again the root, which the other has locked.
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

/// These seeds detect keys without an owner after the future of their move was dropped.
#[test]
fn keys_have_an_owner_after_a_move_that_was_cut_off() {
    for (seed, list) in
        [(50, "cut-off"), (94, "cut-off"), (108, "cut-off"), (135, "cut-off"), (47, "all,cut-off,preempt")]
    {
        is_clean(&run_seed(seed, &Systems::dex(), faults(list)));
    }
}

/// These seeds detect leftovers that are never finished: of a lock whose compute server has no further
/// operation, or of a move that is not repeated.
#[test]
fn what_is_cut_off_is_finished_by_whose_it_is() {
    for seed in [24_189, 26_151, 26_152, 30_967, 37_246, 38_031, 39_081] {
        is_clean(&run_seed(seed, &Systems::default(), faults(ALL_BUT_LOSS)));
    }
}

/// This seed detects a thread that lost the answer to its lock and takes another thread's lock for its own,
/// because both drew the same of 2^16 versions.
#[test]
fn locks_of_one_process_are_told_apart() {
    is_clean(&run_seed(2_006_977, &Systems::default(), faults(ALL_BUT_LOSS)));
}

/// These seeds, with caches of 8 frames, detect waits for a frame that do not finish leftovers. A failed call
/// leaves the I/O ticket of a node, which prevents the eviction of its parent.
#[test]
fn who_waits_for_a_frame_finishes_what_was_left() {
    for seed in [4_006_334, 4_007_807] {
        is_clean(&run_seed(seed, &Systems::default(), faults(ALL_BUT_LOSS)));
    }
}

/// This seed detects a stale copy of a shared node that is not refreshed because a node above it is evicted
/// each time.
#[test]
fn a_stale_copy_is_read_again_wherever_it_is() {
    is_clean(&run_seed(4_008_652, &Systems::default(), faults(ALL_BUT_LOSS)));
}

/// This seed detects a final check whose compute servers start at the same virtual time: the last one waits
/// for memory servers that are busy with the checks of the others.
#[test]
fn the_last_look_at_everything_does_not_wait_for_the_others() {
    is_clean(&run_seed(2_015_415, &system("art", &[]), faults("none")));
}

/// This seed detects a READ that, sent again to another copy, brings back a buffer without the words beside its window.
#[test]
fn a_lookup_across_the_loss_of_a_memory_server_finds_the_whole_node() {
    is_clean(&run_seed(20_679, &system("p-smart", &[]), faults("torn,spikes,kill-memory")));
}

/// These seeds detect a lock whose release counts as unknown although another copy has executed it.
#[test]
fn a_lock_is_given_back_although_a_memory_server_is_lost() {
    for seed in [137, 225] {
        is_clean(&run_seed(seed, &Systems::default(), faults("torn,spikes,kill-memory")));
    }
}

/// These seeds detect an atomic, or a release, that counts as without effect because a copy could not be asked, although the primary has
/// executed it. A lock stays set then, or a change appears that was said to have failed.
#[test]
fn a_copy_that_cannot_be_asked_does_not_say_what_others_did() {
    for seed in [13_001_982, 13_005_071, 13_009_245, 13_011_390, 13_014_025, 13_014_680] {
        is_clean(&run_seed(seed, &Systems::default(), faults("all")));
    }
}

/// Operations of this seed saw an atomic at a primary that was lost before its backups had it.
#[test]
fn what_was_seen_of_a_lost_memory_server_may_be_undone() {
    is_clean(&run_seed(13_006_606, &Systems::default(), faults("all")));
}

/// This seed detects a copy of the root that leads to a node of others for good, which a dead process had locked.
#[test]
fn the_root_is_read_again_if_it_leads_to_what_a_dead_process_had_locked() {
    is_clean(&run_seed(3_274, &Systems::dex(), faults("lost-answers,kill-compute,kill-memory")));
}

/// A history of 3,040 operations on one key, of which twelve have an unknown outcome: the search needs more
/// than two million steps.
#[test]
fn a_long_history_is_decided() {
    is_clean(&run_seed(6_006_401, &Systems::default(), faults(ALL_BUT_LOSS)));
}

/// All faults at once, on threads that are preempted while they compute.
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
    let [one, two] = [0, 1].map(|_| run_seed(2, &Systems::dex(), faults(ALL_BUT_LOSS)));
    assert_eq!((one.history_hash, one.virtual_ns), (two.history_hash, two.virtual_ns));
}

#[test]
fn operations_fail_while_servers_do_and_not_otherwise() {
    let failed: u64 =
        (0..12).map(|seed| run_seed(seed, &Systems::dex(), faults("kill")).failed_operations).sum();
    assert!(failed > 0);
}

/// These seeds detect combined puts in which the executing operation answers that the key was absent,
/// although its own value is the last.
#[test]
fn the_first_of_combined_puts_comes_first() {
    for seed in [26, 30, 32] {
        is_clean(&run_seed(seed, &system("p-smart", &[]), faults("none")));
    }
}

/// These seeds detect a scan that continues the replacement of a node owned by another compute server, which
/// replaces it without atomics.
#[test]
fn a_scan_leaves_the_nodes_of_other_partitions_alone() {
    for seed in [0, 70, 242, 272] {
        is_clean(&run_seed(seed, &system("p-smart", &[]), faults("torn")));
    }
}

/// Checks that the simulation finds a technique that is unsound as published.
#[track_caller]
fn is_caught(name: &str, technique: &str, list: &str, mut seeds: Range<u64>) {
    let unsound = system(name, &[technique]);
    let wrong = seeds.find(|&seed| !run_seed(seed, &unsound, faults(list)).violations.is_empty());
    eprintln!("{unsound} --faults {list}: seed {wrong:?}");
    is_clean(&run_seed(wrong.expect("it is unsound"), &system(name, &[]), faults(list)));
}

/// A torn READ must meet a torn WRITE, of a node and of an entry in it. With few hot entries of several lines
/// and all READs torn, one seed in three does.
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
