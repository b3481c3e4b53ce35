//! Formatting, attaching and detaching; invalid regions; repair.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use crate::support::{Host, Memory, block_on};
use pando_fabric::{GlobalAddr, MemoryServerId};
use pando_pool::{
    AttachMode, AttachOptions, IndexRecord, IndexSpec, Placement, Pool, PoolError, PoolOptions,
};

fn word(server: u16, word: u64) -> GlobalAddr {
    GlobalAddr::new(MemoryServerId(server), word * 8)
}

#[test]
fn regions_that_are_no_whole_pool_are_refused_with_a_reason() {
    let memory = Memory::new(&[1 << 20, 1 << 20]);
    let host = Host::new();
    let attach = |memory: &Arc<Memory>| block_on(Pool::attach(&memory.endpoint(5), host.options(9)));
    assert!(matches!(attach(&memory).err(), Some(PoolError::NotAPool { .. })));
    let ep = memory.endpoint(1);
    let pool = block_on(Pool::create(&ep, PoolOptions::new(host.options(1)))).expect("create");
    block_on(pool.detach(&ep)).expect("detach");

    let cut = memory.cut(1, (1 << 20) - 4096);
    let error = attach(&cut).err().expect("cut short");
    assert!(matches!(error, PoolError::CutShort { server: MemoryServerId(1), .. }));
    assert!(error.to_string().contains("cut short"), "{error}");
    assert!(matches!(attach(&memory.cut(1, 64)).err(), Some(PoolError::NotAPool { .. })));
    let error = attach(&memory.without_last(1)).err().expect("one is missing");
    assert_eq!(error.to_string(), "the pool has 2 memory servers, 1 were named");

    let other = Memory::new(&[1 << 20, 1 << 20]);
    block_on(Pool::create(&other.endpoint(77), PoolOptions::embedded())).expect("create");
    let mixed = memory.cut(0, 1 << 20);
    mixed.copy_region(&other, 1);
    assert!(matches!(attach(&mixed).err(), Some(PoolError::ForeignRegion { .. })));

    let damaged = |at: GlobalAddr, bits| {
        let copy = memory.cut(0, 1 << 20);
        copy.word(at).fetch_xor(bits, SeqCst);
        attach(&copy).err().expect("damaged")
    };
    assert!(matches!(damaged(word(0, 0), 1), PoolError::NotAPool { .. }));
    assert!(matches!(damaged(word(1, 1), 2), PoolError::VersionMismatch { found: 0, .. }));
    assert!(matches!(damaged(word(1, 3), 2), PoolError::DamagedSuperblock { .. }));
    assert!(matches!(damaged(word(1, 16), 1), PoolError::DamagedSuperblock { .. }));
    // The number of servers that joined, which no checksum covers: it must cause neither a wait nor a huge
    // allocation.
    assert!(matches!(damaged(word(0, 456 / 8), 1 << 40), PoolError::DamagedSuperblock { .. }));
    assert!(matches!(damaged(word(0, (4096 + 128 * 64) / 8), 77), PoolError::Corrupt { .. }));
    attach(&memory).expect("whole");
}

#[test]
fn bad_options_and_overwriting_are_refused() {
    let memory = Memory::new(&[1 << 20]);
    let ep = memory.endpoint(1);
    let create = |options| block_on(Pool::create(&ep, options));
    for options in [
        PoolOptions::embedded().chunk_size(1000),
        PoolOptions::embedded().chunk_size(8192),
        PoolOptions::embedded().max_attached(0),
        PoolOptions::embedded().max_attached(1 << 15),
    ] {
        assert!(matches!(create(options).err(), Some(PoolError::InvalidOptions { .. })));
    }
    let too_large = create(PoolOptions::embedded().chunk_size(1 << 20)).err();
    assert!(matches!(too_large, Some(PoolError::RegionTooSmall { .. })));
    let pool = create(PoolOptions::embedded()).expect("create");
    assert!(matches!(create(PoolOptions::embedded()).err(), Some(PoolError::PoolExists)));
    let again = create(PoolOptions::embedded().overwrite(true).chunk_size(32 << 10)).expect("overwrite");
    assert_ne!(again.id(), pool.id());
    assert_eq!(again.chunk_size(MemoryServerId(0)).expect("server"), 32 << 10);
}

#[test]
fn the_table_of_processes_is_bounded_and_reused() {
    let memory = Memory::new(&[1 << 20]);
    let ep = memory.endpoint(1);
    let host = Host::new();
    let first =
        block_on(Pool::create(&ep, PoolOptions::new(host.options(1)).max_attached(2))).expect("create");
    let second = block_on(Pool::attach(&ep, host.options(2))).expect("attach");
    assert_ne!(first.slot(), second.slot());
    assert_eq!(block_on(first.attached(&ep)).expect("table").len(), 2);
    let third = block_on(Pool::attach(&ep, host.options(3))).err();
    assert!(matches!(third, Some(PoolError::AttachTableFull { max: 2 })));
    block_on(first.detach(&ep)).expect("detach");
    block_on(first.detach(&ep)).expect("nothing to do");
    let third = block_on(Pool::attach(&ep, host.options(3))).expect("attach");
    assert_eq!(third.slot(), first.slot());
}

#[test]
fn a_pool_that_was_not_closed_cleanly_is_refused_but_can_be_looked_at() {
    let memory = Memory::new(&[1 << 20]);
    let ep = memory.endpoint(1);
    let host = Host::new();
    let pool = block_on(Pool::create(&ep, PoolOptions::new(host.options(7)))).expect("create");
    block_on(pool.create_index(&ep, spec("kept"))).expect("create");
    let attach = |options: AttachOptions| block_on(Pool::attach(&ep, options));
    host.kill(7);
    let error = attach(host.options(9)).err().expect("refused");
    assert!(matches!(&error, PoolError::NotClosedCleanly { process } if process.pid == 7));
    let text = error.to_string();
    assert!(text.contains("process 7") && text.contains("read-only"), "{text}");

    let looking = attach(host.options(9).mode(AttachMode::ReadOnlyUnclean)).expect("may look");
    // A refused process leaves no trace.
    assert_eq!(block_on(looking.attached(&ep)).expect("table").len(), 1);
    assert_eq!(block_on(looking.list_indexes(&ep)).expect("list")[0].name, "kept");
    let refused = block_on(looking.alloc(&ep, Placement::LeastLoaded, 64));
    assert!(matches!(refused, Err(PoolError::ReadOnly)));
    assert!(matches!(block_on(looking.create_index(&ep, spec("new"))), Err(PoolError::ReadOnly)));
    block_on(looking.detach(&ep)).expect("detach");
}

#[test]
fn while_others_work_on_a_pool_it_takes_more_though_one_of_them_died() {
    let memory = Memory::new(&[1 << 20]);
    let ep = memory.endpoint(1);
    let host = Host::new();
    let first = block_on(Pool::create(&ep, PoolOptions::new(host.options(1)))).expect("create");
    block_on(first.create_index(&ep, spec("kept"))).expect("create");
    block_on(first.claim_partitions(&ep, "kept", &[0])).expect("free");
    let attach = |pid| block_on(Pool::attach(&ep, host.options(pid)));
    let second = attach(2).expect("the first one lives");
    let leaked = block_on(first.alloc(&ep, Placement::LeastLoaded, 64)).expect("room");
    host.kill(1);
    let third = attach(3).expect("the second one lives");
    block_on(second.detach(&ep)).expect("detach");
    let fourth = attach(4).expect("the third one lives");
    let lost = block_on(fourth.claim_partitions(&ep, "kept", &[0])).expect_err("lost");
    assert!(lost.to_string().contains("partition 0 of index \"kept\" is lost: process 1 owned it"), "{lost}");
    assert!(matches!(block_on(fourth.drop_index(&ep, "kept")), Err(PoolError::PartitionLost { .. })));
    let kept = block_on(fourth.claim_partitions(&ep, "kept", &[1])).expect("no owner");
    assert_eq!(block_on(fourth.lost_partition(&ep, &kept)).expect("read"), Some(0));
    // The index is unusable, but a live process owns a part of it.
    let owned = block_on(third.drop_lost_index(&ep, &kept));
    assert!(matches!(owned, Err(PoolError::PartitionOwned { partition: 1, .. })));
    let another = IndexRecord { id: kept.id + 1, ..kept.clone() };
    let another = block_on(fourth.drop_lost_index(&ep, &another));
    assert!(matches!(another, Err(PoolError::UnknownIndex { .. })));
    // It has changed since: it may not be lost.
    let earlier = IndexRecord { version: kept.version - 1, ..kept.clone() };
    let changed = block_on(fourth.drop_lost_index(&ep, &earlier));
    assert!(matches!(changed, Err(PoolError::StaleRecord { .. })));
    block_on(fourth.drop_lost_index(&ep, &kept)).expect("its own, or lost");
    block_on(third.create_own_index(&ep, spec("kept"))).expect("the name is free");
    let making = block_on(fourth.claim_partitions(&ep, "kept", &[1]));
    assert!(matches!(making, Err(PoolError::PartitionOwned { owner, .. }) if owner.pid == 3));
    // Blocks that the dead process may have used are not allocated again.
    let taken: Vec<_> =
        std::iter::from_fn(|| block_on(fourth.alloc(&ep, Placement::LeastLoaded, 64)).ok()).collect();
    assert!(!taken.is_empty() && !taken.contains(&leaked));
    block_on(third.detach(&ep)).expect("detach");
    block_on(fourth.detach(&ep)).expect("detach");
    assert!(matches!(attach(5).err(), Some(PoolError::NotClosedCleanly { process }) if process.pid == 1));
}

#[test]
fn a_server_of_another_pool_is_one_too_many_and_an_empty_one_is_not() {
    let (memory, other) = (Memory::new(&[1 << 20; 3]), Memory::new(&[1 << 20; 3]));
    let host = Host::new();
    let two = memory.without_last(1);
    block_on(Pool::create(&two.endpoint(1), PoolOptions::new(host.options(1)))).expect("create");
    (0..2).for_each(|server| memory.copy_region(&two, server));
    let attach = || block_on(Pool::attach(&memory.endpoint(2), host.options(2)));
    assert_eq!(attach().expect("the third may join").servers(), 2);
    block_on(Pool::create(&other.endpoint(3), PoolOptions::embedded())).expect("create");
    memory.copy_region(&other, 2);
    assert_eq!(attach().err().expect("foreign").to_string(), "the pool has 2 memory servers, 3 were named");
}

#[test]
fn a_reader_sees_what_writers_do_and_leaves_no_trace() {
    let memory = Memory::new(&[1 << 20]);
    let ep = memory.endpoint(1);
    let host = Host::new();
    let writer = block_on(Pool::create(&ep, PoolOptions::new(host.options(1)))).expect("create");
    block_on(writer.create_index(&ep, spec("kept"))).expect("create");
    let read = |pid| block_on(Pool::attach(&ep, host.options(pid).mode(AttachMode::ReadOnly)));
    let before = memory.snapshot();
    let (reader, second) = (read(2).expect("in use"), read(3).expect("readers keep nobody out"));
    assert_eq!(block_on(reader.list_indexes(&ep)).expect("list").len(), 1);
    assert_eq!((reader.slot(), block_on(reader.attached(&ep)).expect("table").len()), (None, 1));
    assert!(matches!(block_on(reader.alloc(&ep, Placement::LeastLoaded, 64)), Err(PoolError::ReadOnly)));
    assert!(matches!(block_on(reader.create_index(&ep, spec("b"))), Err(PoolError::ReadOnly)));
    assert!(matches!(block_on(reader.lock(&ep, word(0, 32), 0)), Err(PoolError::ReadOnly)));
    block_on(reader.usage(&ep)).expect("numbers");
    let value = block_on(writer.put_value(&ep, Placement::LeastLoaded, b"a value")).expect("room");
    let mut bytes = Vec::new();
    block_on(second.get_value(&ep, value, &mut bytes)).expect("unchanged");
    block_on(writer.free_value(&ep, value)).expect("allocated");
    block_on(second.detach(&ep)).expect("detach");
    let mut after = memory.snapshot();
    // The writer changed the bytes of the value.
    let bytes_at = (value.addr.offset() / 8) as usize;
    after[0][bytes_at] = before[0][bytes_at];
    assert_eq!(before, after, "a reader changed something");
    // A killed reader leaves nothing behind.
    host.kill(2);
    block_on(writer.detach(&ep)).expect("detach");
    let clean = read(4).expect("a clean pool");
    assert_eq!(block_on(clean.list_indexes(&ep)).expect("list").len(), 1);
    block_on(Pool::attach(&ep, host.options(5))).expect("clean");
}

#[test]
fn a_reader_is_refused_where_a_writer_is() {
    let memory = Memory::new(&[1 << 20]);
    let ep = memory.endpoint(1);
    let host = Host::new();
    let pool = block_on(Pool::create(&ep, PoolOptions::new(host.options(1)))).expect("create");
    block_on(pool.create_index(&ep, spec("kept"))).expect("create");
    let second = block_on(Pool::attach(&ep, host.options(2))).expect("attach");
    let read = || block_on(Pool::attach(&ep, host.options(9).mode(AttachMode::ReadOnly)));
    // A writer dies with the catalog locked, and another one continues.
    let slot = u64::from(second.slot().expect("attached").0);
    memory.word(word(0, 32)).fetch_or(1 << 63 | slot << 48, SeqCst);
    host.kill(2);
    let reader = read().expect("the first one lives");
    assert_eq!(block_on(reader.list_indexes(&ep)).expect("whole").len(), 1);
    // Whenever it becomes time to look at the holder, a reader does not mind that it died.
    let impatient = host.options(9).mode(AttachMode::ReadOnly).wait_ns_max(16 * 500);
    let impatient = block_on(Pool::attach(&ep, impatient)).expect("the first one lives");
    for _ in 0..10_000 {
        assert_eq!(block_on(impatient.list_indexes(&ep)).expect("whole").len(), 1);
    }
    host.kill(1);
    assert!(matches!(read().err(), Some(PoolError::NotClosedCleanly { .. })));
    let repair = block_on(Pool::attach(&ep, host.options(3).mode(AttachMode::Repair))).expect("alone");
    block_on(repair.rebuild_allocation(&ep, [])).expect("rebuilt");
    assert!(matches!(read().err(), Some(PoolError::BeingRepaired { .. })));
    block_on(repair.detach(&ep)).expect("detach");
    assert_eq!(block_on(read().expect("repaired").list_indexes(&ep)).expect("whole").len(), 1);
}

/// Processes that attach at the same time do not let each other in.
#[test]
fn an_unsettled_process_does_not_vouch_for_others() {
    let memory = Memory::new(&[1 << 20]);
    let ep = memory.endpoint(1);
    let host = Host::new();
    let _killed = block_on(Pool::create(&ep, PoolOptions::new(host.options(1)))).expect("create");
    host.kill(1);
    // Another process, of which only the claim is visible yet.
    let entry = |at: u64| word(0, (4096 + 64 + at) / 8);
    memory.word(entry(8)).store(2, SeqCst);
    memory.word(entry(0)).store(4 | 77 << 8, SeqCst);
    let refused = block_on(Pool::attach(&ep, host.options(3))).err();
    assert!(
        matches!(refused, Some(PoolError::NotClosedCleanly { process }) if process.pid == 1),
        "{refused:?}"
    );
    memory.word(entry(0)).store(2 | 77 << 8, SeqCst);
    block_on(Pool::attach(&ep, host.options(3))).expect("a settled process is alive");
}

/// A pool that was closed, and a process that attaches until the word of its entry is in `state`.
fn attaching_until(
    state: u64,
    and_then: impl FnOnce(&Host, &Arc<Memory>, &mut dyn FnMut() -> Option<PoolError>),
) {
    let memory = Memory::new(&[1 << 20]);
    let ep = memory.endpoint(1);
    let host = Host::new();
    let options = PoolOptions::new(host.options(1)).max_attached(2);
    let pool = block_on(Pool::create(&ep, options)).expect("create");
    block_on(pool.detach(&ep)).expect("detach");
    let slow_ep = memory.endpoint(2);
    slow_ep.always_yield.set(true);
    let mut slow = pin!(Pool::attach(&slow_ep, host.options(2)));
    let mut context = Context::from_waker(Waker::noop());
    while memory.word(word(0, 4096 / 8)).load(SeqCst) & 0xff != state {
        assert!(slow.as_mut().poll(&mut context).is_pending());
    }
    and_then(&host, &memory, &mut || block_on(slow.as_mut()).err());
}

#[test]
fn a_process_that_dies_while_it_attaches_leaves_the_pool_clean() {
    for state in [1, 4] {
        attaching_until(state, |host, memory, goes_on| {
            host.kill(2);
            let ep = memory.endpoint(3);
            for mode in [AttachMode::ReadOnly, AttachMode::ReadWrite, AttachMode::Repair] {
                let start = Instant::now();
                let attached =
                    block_on(Pool::attach(&ep, host.options(3).mode(mode))).expect("nobody worked");
                assert!(start.elapsed() < Duration::from_secs(2), "{mode:?} waited for it");
                if mode == AttachMode::Repair {
                    block_on(attached.rebuild_allocation(&ep, [])).expect("repair");
                }
                block_on(attached.detach(&ep)).expect("detach");
            }
            if state == 4 {
                let told = goes_on().expect("it was taken for dead").to_string();
                assert!(told.ends_with("its own attach entry: others took it for dead"), "{told}");
                assert_eq!(memory.word(word(0, 4096 / 8)).load(SeqCst), 0);
            }
        });
    }
}

#[test]
fn an_entry_that_was_never_completed_is_taken_when_there_is_no_other() {
    attaching_until(1, |host, memory, goes_on| {
        let ep = memory.endpoint(3);
        let attach = |pid| block_on(Pool::attach(&ep, host.options(pid).wait_ns_max(50_000_000)));
        let first = attach(3).expect("there are two entries");
        let start = Instant::now();
        let second = attach(4).expect("the first process does not come");
        assert!(start.elapsed() >= Duration::from_millis(50));
        assert!(matches!(attach(5).err(), Some(PoolError::AttachTableFull { max: 2 })));
        let told = goes_on().expect("its entry is another's").to_string();
        assert!(told.ends_with("its own attach entry: others took it for dead"), "{told}");
        for pool in [first, second] {
            block_on(pool.detach(&ep)).expect("detach");
        }
        block_on(attach(5).expect("clean").detach(&ep)).expect("detach");
    });
}

fn spec(name: &str) -> IndexSpec {
    IndexSpec {
        name: name.to_owned(),
        system: 1,
        node_size: 1024,
        subtree_level: 3,
        root: GlobalAddr::NULL,
        layout: b"8/8".to_vec(),
        boundaries: vec![b"m".to_vec()],
    }
}

#[test]
fn a_repair_keeps_what_is_reachable_and_frees_the_rest() {
    let memory = Memory::new(&[1 << 20, 1 << 20]);
    let ep = memory.endpoint(1);
    let host = Host::new();
    let pool = block_on(Pool::create(&ep, PoolOptions::new(host.options(1)))).expect("create");
    block_on(pool.create_index(&ep, spec("kept"))).expect("create");
    block_on(pool.claim_partitions(&ep, "kept", &[0])).expect("claim");
    let blocks: Vec<_> = (0..100)
        .map(|at| {
            let size = [1024, 64, 4096][at % 3];
            (block_on(pool.alloc(&ep, Placement::LeastLoaded, size)).expect("room"), size)
        })
        .collect();
    let not_in_repair = block_on(pool.rebuild_allocation(&ep, []));
    assert!(matches!(not_in_repair, Err(PoolError::NotInRepair)));
    let repair = |pid| block_on(Pool::attach(&ep, host.options(pid).mode(AttachMode::Repair)));
    assert!(matches!(repair(2).err(), Some(PoolError::InUse { .. })));
    // It dies during a change of the catalog.
    memory.word(GlobalAddr::new(MemoryServerId(0), 256)).fetch_or(1 << 63, SeqCst);
    host.kill(1);
    let repaired = repair(2).expect("alone");
    let other = block_on(Pool::attach(&ep, host.options(3))).err();
    assert!(matches!(other, Some(PoolError::NotClosedCleanly { .. } | PoolError::BeingRepaired { .. })));

    let kept: Vec<_> = blocks.iter().copied().step_by(2).collect();
    let twice = block_on(repaired.rebuild_allocation(&ep, [kept[0], kept[0]]));
    assert!(matches!(twice, Err(PoolError::Corrupt { addr, .. }) if addr == kept[0].0));
    let wrong = block_on(repaired.rebuild_allocation(&ep, [(kept[0].0.add(8), 1024)]));
    assert!(matches!(wrong, Err(PoolError::Corrupt { .. })));
    let mixed = block_on(repaired.rebuild_allocation(&ep, [kept[0], (kept[0].0.add(1024), 512)]));
    assert!(matches!(mixed, Err(PoolError::Corrupt { .. })));
    let report = block_on(repaired.rebuild_allocation(&ep, kept.iter().copied())).expect("rebuilt");
    assert_eq!((report.blocks, report.processes_cleared), (50 + 5, 1));
    block_on(repaired.detach(&ep)).expect("detach");

    let pool = block_on(Pool::attach(&ep, host.options(4))).expect("clean");
    let mut expected = kept.clone();
    block_on(pool.visit_catalog_blocks(&ep, |addr, size| expected.push((addr, size)))).expect("catalog");
    let mut allocated = Vec::new();
    block_on(pool.visit_allocated(&ep, |addr, _| allocated.push(addr))).expect("visit");
    allocated.sort_unstable();
    let mut expected: Vec<_> = expected.into_iter().map(|(addr, _)| addr).collect();
    expected.sort_unstable();
    assert_eq!(allocated, expected);
    assert_eq!(block_on(pool.open_index(&ep, "kept")).expect("kept").owners, [None, None]);
    for (addr, size) in kept {
        block_on(pool.free(&ep, addr, size)).expect("allocated");
    }
}
