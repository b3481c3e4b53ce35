//! Stored addresses of the next memory server: they are found by whatever number a server is reached, and a
//! writer that stops or gets no answer leaves the old or the new address.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use crate::support::{Ep, Host, Memory, block_on};
use pando_fabric::{Endpoint, GlobalAddr, MemoryServerId};
use pando_pool::{AttachMode, Pool, PoolError, PoolOptions, next_of_region, place_of_region};

const BYTES: u64 = 1 << 20;
/// Offset of the address in a region.
const NEXT_AT: u64 = 3520;

fn made(servers: usize) -> (Arc<Memory>, Host, Pool) {
    let (memory, host) = (Memory::new(&vec![BYTES; servers]), Host::new());
    let made = block_on(Pool::create(&memory.endpoint(1), PoolOptions::new(host.options(1))));
    (memory, host, made.expect("room"))
}

fn list<const SERVERS: usize>(addresses: [&str; SERVERS]) -> Vec<String> {
    addresses.map(str::to_owned).to_vec()
}

/// The address that each memory server stores, reached as the only one.
fn known(memory: &Arc<Memory>, servers: usize) -> Vec<String> {
    let next = |server| {
        let alone = memory.only(server).endpoint(2);
        let region = alone.regions()[0];
        let place = block_on(place_of_region(&alone, region)).expect("it is there").expect("a pool is in it");
        assert_eq!(place.server, server);
        block_on(next_of_region(&alone, region, place)).expect("it is there").unwrap_or_default()
    };
    (0..servers).map(next).collect()
}

fn set(pool: &Pool, ep: &Ep, addresses: &[String]) {
    block_on(pool.set_addresses(ep, addresses)).expect("they can be reached");
}

#[test]
fn each_memory_server_knows_the_next_one() {
    let (memory, host, pool) = made(3);
    let ep = &memory.endpoint(3);
    assert_eq!(known(&memory, 3), ["", "", ""]);
    set(&pool, ep, &list(["a:1", "b:2", "c:3", "of another pool:4"]));
    assert_eq!(known(&memory, 3), ["b:2", "c:3", "a:1"]);
    let before = (ep.counters().snapshot(), memory.snapshot());
    set(&pool, ep, &list(["a:1", "b:2", "c:3"]));
    let spent = ep.counters().snapshot() - before.0;
    assert_eq!((spent.reads, spent.writes, spent.atomics), (3, 0, 0));
    assert_eq!(memory.snapshot(), before.1);
    // One server moved; one address is invalid; there are fewer addresses than servers.
    set(&pool, ep, &list(["a:1", "moved:7", "c:0"]));
    assert_eq!(known(&memory, 3), ["moved:7", "c:3", "a:1"]);
    set(&pool, ep, &list(["d:1"]));
    assert_eq!(known(&memory, 3), ["moved:7", "c:3", "d:1"]);
    // Other hosts could not use these.
    set(&pool, ep, &list(["127.0.0.1:1", "localhost:2", "[::1]:3"]));
    assert_eq!(known(&memory, 3), ["moved:7", "c:3", "d:1"]);
    let reader = host.options(2).mode(AttachMode::ReadOnly);
    let reader = block_on(Pool::attach(ep, reader)).expect("it is in use");
    assert!(matches!(block_on(reader.set_addresses(ep, &list(["x:1"]))), Err(PoolError::ReadOnly)));
}

#[test]
fn a_pool_of_one_host_is_found_there_until_others_come() {
    let (memory, _, pool) = made(2);
    let ep = &memory.endpoint(3);
    for addresses in
        [["127.0.0.1:1", "127.0.0.1:2"], ["localhost:1", "localhost:3"], ["10.0.0.1:1", "10.0.0.1:3"]]
    {
        set(&pool, ep, &list(addresses));
        assert_eq!(known(&memory, 2), [addresses[1], addresses[0]]);
    }
}

#[test]
fn a_server_that_joins_is_known_once_it_is_told() {
    let (memory, host, pool) = made(2);
    set(&pool, &memory.endpoint(3), &list(["a:1", "b:2"]));
    block_on(pool.detach(&memory.endpoint(3))).expect("it can be reached");
    let larger = Memory::new(&[BYTES; 3]);
    (0..2).for_each(|server| larger.copy_region(&memory, server));
    let ep = &larger.endpoint(4);
    let pool = block_on(Pool::attach(ep, host.options(2))).expect("closed cleanly");
    block_on(pool.add_server(ep, None)).expect("room");
    assert_eq!(known(&larger, 3), ["b:2", "a:1", ""]);
    set(&pool, ep, &list(["a:1", "b:2", "c:3"]));
    assert_eq!(known(&larger, 3), ["b:2", "c:3", "a:1"]);
}

#[test]
fn a_writer_that_stops_leaves_the_old_address_or_the_new_one() {
    let (before, after) = (list(["a:1", "b:2"]), list(["moved from a:11", "moved from b:22"]));
    let mut stops = 0;
    for torn in [0, 1, 2, 3, 20] {
        for verbs in 0.. {
            let (memory, host, pool) = made(2);
            set(&pool, &memory.endpoint(3), &before);
            let ep = &memory.endpoint(4);
            ep.fail_after.set(verbs);
            ep.torn.set(torn);
            let done = block_on(pool.set_addresses(ep, &after)).is_ok();
            let known = known(&memory, 2);
            assert!([&before[1], &after[1]].contains(&&known[0]), "{known:?}");
            assert!([&before[0], &after[0]].contains(&&known[1]), "{known:?}");
            // The next writer completes it.
            host.kill(1);
            set(&pool, &memory.endpoint(5), &after);
            assert_eq!(self::known(&memory, 2), [&after[1][..], &after[0]]);
            stops += u64::from(!done);
            if done {
                break;
            }
        }
    }
    assert!(stops >= 5 * 6, "{stops}");
}

#[test]
fn a_lost_answer_does_no_harm() {
    for without_effect in [false, true] {
        for lost in 0.. {
            let (memory, _, pool) = made(2);
            let ep = &memory.endpoint(3);
            set(&pool, ep, &list(["a:1", "b:2"]));
            ep.without_effect.set(without_effect);
            ep.lose(lost);
            let done = block_on(pool.set_addresses(ep, &list(["c:3", "d:4"])));
            let was_lost = ep.lose_no_more();
            let known = known(&memory, 2);
            match done {
                Ok(()) => assert_eq!(known, ["d:4", "c:3"]),
                // The lost answer was that of a READ.
                Err(_) => assert!(known == ["b:2", "a:1"] || known == ["d:4", "a:1"], "{known:?}"),
            }
            if !was_lost {
                break;
            }
        }
    }
}

#[test]
fn damage_is_no_address_and_is_written_over() {
    let (memory, _, pool) = made(2);
    let ep = &memory.endpoint(3);
    set(&pool, ep, &list(["a:1", "b:2"]));
    for word in 0..71 {
        let at = memory.word(GlobalAddr::new(MemoryServerId(0), NEXT_AT + 8 * word));
        at.fetch_xor(1 << 17, SeqCst);
        let found = known(&memory, 2);
        assert!(["", "b:2"].contains(&&found[0][..]) && found[1] == "a:1", "{word}: {found:?}");
        set(&pool, ep, &list(["a:1", "b:2"]));
        assert_eq!(known(&memory, 2), ["b:2", "a:1"], "{word}");
    }
}
