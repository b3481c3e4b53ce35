//! Long values and the remote lock.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use crate::support::{Ep, Host, Memory, block_on};
use pando_fabric::{Chain, Endpoint, GlobalAddr, MemoryServerId};
use pando_pool::{MAX_VALUE, Placement, Pool, PoolError, PoolOptions, ValueRef, lock};

const SERVER: Placement = Placement::Server(MemoryServerId(0));

fn bytes_of(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_mul(seed | 1).wrapping_mul(0x9e37_79b9) >> 13) as u8).collect()
}

fn allocated(pool: &Pool, ep: &Ep) -> u64 {
    block_on(pool.usage(ep)).expect("usage").iter().map(|usage| usage.bytes_allocated).sum()
}

#[test]
fn values_of_any_length_come_back_and_leave_nothing() {
    // A small chunk limits blocks to 16 KiB, a large one does not; 16 MiB is the maximum.
    for (region, chunk) in [(20 << 20, 16 << 10), (40 << 20, 1 << 20)] {
        let memory = Memory::new(&[region]);
        let ep = memory.endpoint(1);
        let pool = block_on(Pool::create(&ep, PoolOptions::embedded().chunk_size(chunk))).expect("create");
        let block = chunk.min(64 << 10) as usize;
        let lengths =
            [0, 1, 7, 8, 9, 4000, block - 1, block, block + 1, 3 * block, 1_000_003, MAX_VALUE as usize];
        for len in lengths {
            let bytes = bytes_of(len, len as u64);
            let value = block_on(pool.put_value(&ep, SERVER, &bytes)).expect("room");
            assert_eq!(ValueRef::from_words(value.to_words()), Some(value));
            let mut out = b"old".to_vec();
            block_on(pool.get_value(&ep, value, &mut out)).expect("unchanged");
            assert!(out == bytes, "{len} bytes");
            let mut visited = 0;
            block_on(pool.visit_value_blocks(&ep, value, |_, size| visited += size)).expect("unchanged");
            assert!(visited >= len as u64 && visited <= allocated(&pool, &ep));
            block_on(pool.free_value(&ep, value)).expect("allocated");
            assert_eq!(allocated(&pool, &ep), 0, "{len} bytes");
        }
        let too_long = block_on(pool.put_value(&ep, SERVER, &vec![0; MAX_VALUE as usize + 1]));
        assert!(matches!(too_long, Err(PoolError::ValueTooLong { .. })));
    }
}

#[test]
fn a_value_takes_few_verbs() {
    let memory = Memory::new(&[8 << 20]);
    let ep = memory.endpoint(1);
    let pool = block_on(Pool::create(&ep, PoolOptions::embedded())).expect("create");
    let value = block_on(pool.put_value(&ep, SERVER, &bytes_of(5000, 1))).expect("room");
    let before = ep.counters().snapshot();
    block_on(pool.get_value(&ep, value, &mut Vec::new())).expect("unchanged");
    let cost = ep.counters().snapshot() - before;
    assert_eq!((cost.reads, cost.bytes_read, cost.writes, cost.atomics), (1, 5000, 0, 0));
}

#[test]
fn a_failure_midway_leaves_nothing_allocated() {
    let memory = Memory::new(&[2 << 20]);
    let ep = memory.endpoint(1);
    let pool = block_on(Pool::create(&ep, PoolOptions::embedded())).expect("create");
    let full = block_on(pool.put_value(&ep, SERVER, &bytes_of(4 << 20, 1))).expect_err("no room");
    assert!(full.is_full(), "{full}");
    assert_eq!(allocated(&pool, &ep), 0);
    let bytes = bytes_of(300_000, 2);
    for failing in 0.. {
        ep.fail_after.set(failing);
        let put = block_on(pool.put_value(&ep, SERVER, &bytes));
        ep.fail_after.set(u64::MAX);
        match put {
            Ok(value) => {
                block_on(pool.free_value(&ep, value)).expect("allocated");
                assert!(failing > 10);
                break;
            }
            Err(error) => assert!(matches!(error, PoolError::Fabric(_)), "{error}"),
        }
        assert_eq!(allocated(&pool, &ep), 0, "after {failing} verbs");
    }
    block_on(pool.detach(&ep)).expect("no lease was left behind");
}

#[test]
fn garbage_references_are_errors() {
    let memory = Memory::new(&[1 << 20, 1 << 20]);
    let ep = memory.endpoint(1);
    let pool = block_on(Pool::create(&ep, PoolOptions::embedded())).expect("create");
    let value = block_on(pool.put_value(&ep, SERVER, &bytes_of(100_000, 1))).expect("room");
    assert_eq!(ValueRef::from_words([1 << 63, 8, 0]), None);
    assert_eq!(ValueRef::from_words([4096, MAX_VALUE + 1, 0]), None);
    assert_eq!((ValueRef::from_words([4096, 0, 0]), ValueRef::from_words([0, 8, 0])), (None, None));
    let fails = |value| {
        let read = block_on(pool.get_value(&ep, value, &mut Vec::new())).expect_err("no value");
        assert!(matches!(read, PoolError::ValueChanged { .. } | PoolError::Corrupt { .. }), "{read}");
        read
    };
    for addr in [8, 4096, value.addr.raw() + 8, 1 << 40, 9 << 48 | 4096, 1 << 48] {
        let addr = GlobalAddr::from_raw(addr).expect("not swizzled");
        fails(ValueRef { addr, ..value });
        assert!(block_on(pool.free_value(&ep, ValueRef { addr, ..value })).is_err());
    }
    for len in [1, 50_000, 99_999, 100_001, MAX_VALUE, MAX_VALUE + 1, u64::MAX] {
        fails(ValueRef { len, ..value });
    }
    assert!(matches!(fails(ValueRef { hash: 0, ..value }), PoolError::ValueChanged { .. }));
    // Addresses in a list are checked even if its checksum is right by chance or malice.
    let list = memory.word(value.addr.add(16));
    list.fetch_xor(1 << 40, SeqCst);
    fails(value);
    list.fetch_xor(1 << 40, SeqCst);
    block_on(pool.get_value(&ep, value, &mut Vec::new())).expect("mended");
}

#[test]
fn a_reader_notices_that_a_value_was_freed_and_its_space_used_again() {
    let memory = Memory::new(&[1 << 20]);
    let ep = memory.endpoint(1);
    let host = Host::new();
    let pool = block_on(Pool::create(&ep, PoolOptions::new(host.options(1)))).expect("create");
    let current =
        std::sync::Mutex::new(block_on(pool.put_value(&ep, SERVER, &bytes_of(40_000, 0))).expect("room"));
    let (stop, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for reader in 0..2 {
            let (memory, pool, current, stop, reads) = (&memory, &pool, &current, &stop, &reads);
            scope.spawn(move || {
                let (ep, mut out) = (memory.endpoint(reader + 5), Vec::new());
                while !stop.load(SeqCst) || reads.load(SeqCst) == 0 {
                    let value = *current.lock().expect("no panic");
                    match block_on(pool.get_value(&ep, value, &mut out)) {
                        Ok(()) => {
                            let seed = u64::from(out[0]);
                            assert!(out[1..] == bytes_of(value.len as usize, seed)[1..]);
                            reads.fetch_add(1, SeqCst);
                        }
                        Err(PoolError::ValueChanged { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
        for round in 0..400_u64 {
            let mut bytes = bytes_of(30_000 + (round as usize * 977) % 30_000, round % 256);
            bytes[0] = round as u8;
            let value = block_on(pool.put_value(&ep, SERVER, &bytes)).expect("room");
            let old = std::mem::replace(&mut *current.lock().expect("no panic"), value);
            block_on(pool.free_value(&ep, old)).expect("allocated");
        }
        stop.store(true, SeqCst);
    });
}

#[test]
fn a_lock_excludes_writers_and_optimistic_readers_see_them() {
    let memory = Memory::new(&[1 << 20]);
    let ep = memory.endpoint(1);
    let host = Host::new();
    let pool = block_on(Pool::create(&ep, PoolOptions::new(host.options(1)))).expect("create");
    let slot = pool.slot().expect("attached");
    let node = block_on(pool.alloc(&ep, SERVER, 512)).expect("room");
    block_on(ep.write(node, pando_fabric::PageBuf::zeroed(512))).expect("write");
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for writer in 0..2 {
            let (memory, done) = (&memory, &done);
            scope.spawn(move || {
                let ep = memory.endpoint(writer + 5);
                for _ in 0..300 {
                    let locked = block_on(lock::lock(&ep, node, slot, u64::MAX)).expect("in time");
                    let body = ep.buffer(504);
                    let count = block_on(ep.read_word(node.add(8))).expect("read") + 1;
                    body.words().iter().for_each(|word| word.store(locked.unlock_word(), SeqCst));
                    body.set(0, count);
                    let chain = Chain::new().write(node.add(8), body).write_word(node, locked.unlock_word());
                    block_on(ep.submit(chain)).expect("write");
                }
                done.fetch_add(1, SeqCst);
            });
        }
        let (memory, done) = (&memory, &done);
        scope.spawn(move || {
            let (ep, mut last) = (memory.endpoint(9), 0);
            while done.load(SeqCst) < 2 {
                let lock::Seen::Whole { version, page: buf } =
                    block_on(lock::read_optimistic(&ep, node, ep.buffer(512))).expect("read")
                else {
                    continue;
                };
                assert!((2..64).all(|word| buf.get(word) == version), "torn");
                assert!(version >= last);
                last = version;
            }
        });
    });
    let held = block_on(lock::try_lock(&ep, node, slot)).expect("verb").expect("free");
    // No writer overwrote another's count.
    assert_eq!(block_on(ep.read_word(node.add(8))).expect("read"), 600);
    assert!(held.version() >= 600);
    assert_eq!(block_on(lock::try_lock(&ep, node, slot)).expect("verb"), None);
    let seen = block_on(lock::read_optimistic(&ep, node, ep.buffer(512))).expect("verb");
    assert!(matches!(seen, lock::Seen::Locked { holder } if holder == slot));
    let late = block_on(lock::lock(&ep, node, slot, 0));
    assert!(matches!(late, Err(PoolError::LockTimedOut { at, holder }) if at == node && holder == slot));
    block_on(ep.write_word(node, held.unlock_word())).expect("write");
    assert_eq!(block_on(lock::try_lock_version(&ep, node, slot, held.version())).expect("verb"), None);
    assert!(block_on(lock::try_lock_version(&ep, node, slot, held.unlock_word())).expect("verb").is_some());
}
