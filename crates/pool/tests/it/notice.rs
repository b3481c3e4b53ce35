//! Notices in the attach table: replaced, withdrawn, left behind by dead processes, and not accepted from
//! another process's leftovers.

use crate::support::{Ep, Host, Memory, block_on};
use pando_fabric::GlobalAddr;
use pando_pool::{AttachSlot, Attached, Pool, PoolError, PoolOptions};

fn processes(pool: &Pool, ep: &Ep) -> Vec<Attached> {
    block_on(pool.processes(ep)).expect("no faults")
}

fn notice(pool: &Pool, ep: &Ep, slot: Option<AttachSlot>) -> Vec<u8> {
    let found = processes(pool, ep).into_iter().find(|process| Some(process.slot) == slot);
    found.expect("it is attached").notice
}

fn blocks(pool: &Pool, ep: &Ep) -> Vec<(GlobalAddr, u64)> {
    let mut blocks = Vec::new();
    block_on(pool.visit_notice_blocks(ep, |addr, bytes| blocks.push((addr, bytes)))).expect("no faults");
    blocks
}

fn used(pool: &Pool, ep: &Ep) -> u64 {
    block_on(pool.usage(ep)).expect("no faults").iter().map(|server| server.blocks_allocated).sum()
}

#[test]
fn a_notice_is_seen_by_others_and_goes_with_its_process() {
    let memory = Memory::new(&[2 << 20, 1 << 20]);
    let host = Host::new();
    let (first_ep, second_ep) = (memory.endpoint(1), memory.endpoint(2));
    let first = block_on(Pool::create(&first_ep, PoolOptions::new(host.options(1)))).expect("create");
    let second = block_on(Pool::attach(&second_ep, host.options(2))).expect("attach");
    assert!(processes(&first, &first_ep).iter().all(|process| process.is_alive && process.notice.is_empty()));
    for text in [&b"a"[..], &[7; 100_000], b"memory-0:7100", b"", b"again"] {
        block_on(second.set_notice(&second_ep, text)).expect("room");
        assert_eq!(notice(&first, &first_ep, second.slot()), text);
        assert_eq!(blocks(&first, &first_ep).is_empty(), text.is_empty());
        assert_eq!(blocks(&first, &first_ep).len() as u64, used(&second, &second_ep), "old ones are freed");
    }
    assert_eq!(notice(&first, &first_ep, first.slot()), b"");
    let slot = second.slot();
    block_on(second.detach(&second_ep)).expect("detach");
    assert_eq!((processes(&first, &first_ep).len(), used(&first, &first_ep)), (1, 0));
    // The leftover in the entry does not count for its next process.
    let third = block_on(Pool::attach(&second_ep, host.options(3))).expect("attach");
    assert_eq!((third.slot(), notice(&first, &first_ep, slot)), (slot, Vec::new()));
}

#[test]
fn the_notice_of_a_process_that_died_is_still_accounted_for() {
    let memory = Memory::new(&[2 << 20]);
    let host = Host::new();
    let (first_ep, second_ep) = (memory.endpoint(1), memory.endpoint(2));
    let first = block_on(Pool::create(&first_ep, PoolOptions::new(host.options(1)))).expect("create");
    let second = block_on(Pool::attach(&second_ep, host.options(2))).expect("attach");
    block_on(second.set_notice(&second_ep, b"here")).expect("room");
    host.kill(2);
    let dead = processes(&first, &first_ep).into_iter().find(|process| !process.is_alive).expect("it died");
    assert_eq!((Some(dead.slot), &dead.notice[..]), (second.slot(), &b"here"[..]));
    assert_eq!(blocks(&first, &first_ep).len(), 1);
}

#[test]
fn a_notice_that_cannot_be_set_is_the_old_one_and_costs_nothing() {
    for fail_after in 0..40 {
        let memory = Memory::new(&[2 << 20]);
        let (ep, other) = (memory.endpoint(1), memory.endpoint(2));
        let pool = block_on(Pool::create(&ep, PoolOptions::embedded())).expect("create");
        block_on(pool.set_notice(&ep, b"old")).expect("room");
        ep.fail_after.set(fail_after);
        let done = block_on(pool.set_notice(&ep, b"newer"));
        ep.fail_after.set(u64::MAX);
        let now = notice(&pool, &other, pool.slot());
        match done {
            Ok(()) => assert_eq!(now, b"newer"),
            Err(PoolError::Fabric(_)) => assert!(now == b"old" || now == b"newer", "{now:?}"),
            Err(error) => panic!("{error}"),
        }
        block_on(pool.set_notice(&ep, b"newest")).expect("no faults any more");
        assert_eq!(notice(&pool, &other, pool.slot()), b"newest");
    }
}
