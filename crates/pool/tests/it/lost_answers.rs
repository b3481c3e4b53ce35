//! Each verb of each operation in turn gets no answer, whether it took effect or not. Metadata stays whole,
//! nothing is allocated twice, the next operation succeeds, and an error that says "not done" is right.

use std::collections::{BTreeMap, BTreeSet};

use crate::support::lost::{self, CHANGES};
use crate::support::{Host, Memory, block_on};
use pando_fabric::{Endpoint, MemoryServerId};
use pando_pool::{Placement, Pool, PoolError, PoolOptions};

#[test]
fn the_catalog_is_whole_after_any_lost_answer() {
    for change in &CHANGES {
        let verbs = lost::each(change.name, |loss| lost::change(change, loss)).expect("whole");
        assert!(verbs > 8, "{} has {verbs} verbs", change.name);
    }
}

#[test]
fn the_catalog_is_whole_though_the_outcome_stays_unknown() {
    for change in &CHANGES {
        lost::each_without_answers(change).expect("whole");
    }
}

#[test]
fn a_server_is_added_once_however_often_that_is_tried() {
    assert!(lost::each("add_server", lost::add_server).expect("whole") > 8);
}

#[test]
fn changes_of_the_membership_survive_lost_answers() {
    assert!(lost::each("membership", lost::membership).expect("whole") > 8);
}

#[test]
fn a_failed_attach_leaves_nothing_and_a_detached_process_is_gone() {
    assert!(lost::each("attach", lost::attach).expect("whole") > 8);
}

#[test]
fn long_values_are_whole_and_share_no_blocks() {
    assert!(lost::each("value", lost::value).expect("whole") > 8);
}

#[test]
fn a_clean_detach_leaves_no_lock_and_owes_no_page() {
    lost::detach_owing().expect("nothing is owed");
}

#[test]
fn a_clean_detach_leaves_the_catalog_to_others() {
    assert!(lost::each("detach", lost::detach).expect("whole") > 8);
}

#[test]
fn a_chunk_that_may_be_given_back_is_others_to_use() {
    assert!(lost::each("release", lost::release).expect("whole") > 8);
}

#[test]
fn a_lock_and_an_unlock_without_an_answer_are_settled() {
    for (n, without_effect) in (0..8).flat_map(|n| [(n, false), (n, true)]) {
        let memory = Memory::new(&[1 << 20]);
        let ep = &memory.endpoint(1);
        ep.without_effect.set(without_effect);
        let pool = block_on(Pool::create(ep, PoolOptions::embedded())).expect("create");
        let at = block_on(pool.alloc(ep, Placement::LeastLoaded, 64)).expect("room");
        block_on(ep.write_word(at, 7)).expect("written");
        let deadline = ep.now() + 1_000_000_000;
        ep.lose(n);
        let locked = block_on(pool.lock(ep, at, deadline));
        // Errors are expected only if the READ before the lock gets no answer, or if an attempt took no
        // effect.
        assert_eq!(locked.is_err(), n == 0 || n == 1 && without_effect, "answer {n}");
        if let Ok(lock) = locked {
            block_on(lock.unlock(ep, deadline)).expect("settled");
        }
        ep.lose_no_more();
        assert!(!pool.has_left_locks(), "answer {n}");
        assert_eq!(block_on(ep.read_word(at)).expect("read") >> 63, 0, "answer {n}: it is locked for ever");
    }
}

#[test]
fn the_lock_of_a_version_without_an_answer_is_known_to_be_taken_or_not() {
    for without_effect in [false, true] {
        let memory = Memory::new(&[1 << 20]);
        let ep = &memory.endpoint(1);
        ep.without_effect.set(without_effect);
        let pool = block_on(Pool::create(ep, PoolOptions::embedded())).expect("create");
        let at = block_on(pool.alloc(ep, Placement::LeastLoaded, 64)).expect("room");
        block_on(ep.write_word(at, 7)).expect("written");
        ep.lose(0);
        let locked = block_on(pool.try_lock_version(ep, at, 7)).expect("the word tells");
        ep.lose_no_more();
        assert_eq!(locked.is_some(), !without_effect);
        let is_locked = block_on(ep.read_word(at)).expect("read") >> 63 == 1;
        assert_eq!(is_locked, !without_effect);
        if let Some(lock) = locked {
            block_on(lock.unlock(ep, ep.now() + 1_000_000_000)).expect("unlocked");
        }
        assert!(!pool.has_left_locks());
        assert_eq!(block_on(ep.read_word(at)).expect("read") >> 63, 0);
    }
}

#[test]
fn blocks_are_handed_out_once_whatever_answer_is_lost() {
    const HERE: Placement = Placement::Server(MemoryServerId(0));
    for (n, without_effect) in (0..60).flat_map(|n| [(n, false), (n, true)]) {
        let memory = Memory::new(&[1 << 20]);
        let (ep, host) = (&memory.endpoint(1), Host::new());
        ep.without_effect.set(without_effect);
        let pool = block_on(Pool::create(ep, PoolOptions::new(host.options(1)))).expect("create");
        let other = block_on(Pool::attach(ep, host.options(2))).expect("attach");
        let theirs: Vec<_> = (0..40).map(|_| block_on(other.alloc(ep, HERE, 2048)).expect("room")).collect();
        let mut blocks = BTreeMap::new();
        ep.lose(n);
        for round in 0..30_u64 {
            match block_on(pool.alloc(ep, HERE, 1024 << (round % 2))) {
                Ok(block) => assert!(blocks.insert(block, 1024 << (round % 2)).is_none(), "answer {n}"),
                Err(error) => assert!(matches!(error, PoolError::Fabric(_)), "{error}"),
            }
            if round % 2 == 0 {
                // A block that may be free is not freed again.
                let freed = block_on(pool.free(ep, theirs[round as usize], 2048));
                assert!(freed.err().is_none_or(|error| error.may_have_taken_effect()), "answer {n}");
            }
        }
        let held: BTreeSet<_> = theirs[30..].iter().copied().collect();
        assert!(blocks.keys().all(|block| !held.contains(block)), "answer {n}");
        for leaving in [&other, &pool] {
            ep.lose(n);
            let left = block_on(leaving.detach(ep));
            ep.lose_no_more();
            if left.is_err() {
                block_on(leaving.detach(ep)).expect("the second try");
            }
            assert_eq!(leaving.stray_frees().0, 0, "answer {n}");
        }
        let pool = block_on(Pool::attach(ep, host.options(3))).expect("clean");
        let mut found = BTreeSet::new();
        block_on(pool.visit_allocated(ep, |addr, _| assert!(found.insert(addr)))).expect("bitmaps");
        assert!(
            blocks.keys().chain(&held).all(|block| found.contains(block)),
            "answer {n}: a block got lost"
        );
        for (block, size) in blocks {
            block_on(pool.free(ep, block, size)).expect("allocated");
        }
    }
}
