//! Formatting, attaching and detaching; regions that are not what they should be; repair.

mod support;

use std::sync::atomic::Ordering::SeqCst;

use pando_fabric::{GlobalAddr, MemoryServerId};
use pando_pool::{AttachMode, AttachOptions, IndexSpec, Placement, Pool, PoolError, PoolOptions};
use support::{Host, Memory, block_on};

fn word(server: u16, word: u64) -> GlobalAddr {
    GlobalAddr::new(MemoryServerId(server), word * 8)
}

#[test]
fn regions_that_are_no_whole_pool_are_refused_with_a_reason() {
    let memory = Memory::new(&[1 << 20, 1 << 20]);
    let host = Host::new();
    let attach =
        |memory: &std::sync::Arc<Memory>| block_on(Pool::attach(&memory.endpoint(5), host.options(9)));
    assert!(matches!(attach(&memory).err(), Some(PoolError::NotAPool { .. })));
    let ep = memory.endpoint(1);
    let pool = block_on(Pool::create(&ep, PoolOptions::new(host.options(1)))).expect("create");
    block_on(pool.detach(&ep)).expect("detach");

    let cut = memory.cut(1, (1 << 20) - 4096);
    let error = attach(&cut).err().expect("cut short");
    assert!(matches!(error, PoolError::CutShort { server: MemoryServerId(1), .. }));
    assert!(error.to_string().contains("cut short"), "{error}");
    assert!(matches!(attach(&memory.cut(1, 64)).err(), Some(PoolError::NotAPool { .. })));
    assert!(matches!(attach(&memory.without_last(1)).err(), Some(PoolError::ForeignRegion { .. })));

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
    assert!(matches!(damaged(word(1, 1), 2), PoolError::VersionMismatch { found: 3, .. }));
    assert!(matches!(damaged(word(1, 3), 2), PoolError::DamagedSuperblock { .. }));
    assert!(matches!(damaged(word(1, 16), 1), PoolError::DamagedSuperblock { .. }));
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
    block_on(fourth.claim_partitions(&ep, "kept", &[1])).expect("nobody's");
    // What the dead process may have handed out is not handed out again.
    let taken: Vec<_> =
        std::iter::from_fn(|| block_on(fourth.alloc(&ep, Placement::LeastLoaded, 64)).ok()).collect();
    assert!(!taken.is_empty() && !taken.contains(&leaked));
    block_on(third.detach(&ep)).expect("detach");
    block_on(fourth.detach(&ep)).expect("detach");
    assert!(matches!(attach(5).err(), Some(PoolError::NotClosedCleanly { process }) if process.pid == 1));
}

/// Processes that come at the same time do not let each other in.
#[test]
fn who_is_only_coming_to_an_unclean_pool_vouches_for_nobody() {
    let memory = Memory::new(&[1 << 20]);
    let ep = memory.endpoint(1);
    let host = Host::new();
    let _killed = block_on(Pool::create(&ep, PoolOptions::new(host.options(1)))).expect("create");
    host.kill(1);
    // Another one, of which no more is to be seen yet than that it comes.
    let entry = |at: u64| word(0, (4096 + 64 + at) / 8);
    memory.word(entry(8)).store(2, SeqCst);
    memory.word(entry(0)).store(4 | 77 << 8, SeqCst);
    let refused = block_on(Pool::attach(&ep, host.options(3))).err();
    assert!(
        matches!(refused, Some(PoolError::NotClosedCleanly { process }) if process.pid == 1),
        "{refused:?}"
    );
    memory.word(entry(0)).store(2 | 77 << 8, SeqCst);
    block_on(Pool::attach(&ep, host.options(3))).expect("there is one at work");
}

#[test]
fn a_process_that_died_while_it_attached_is_noticed() {
    let memory = Memory::new(&[1 << 20]);
    let ep = memory.endpoint(1);
    let host = Host::new();
    let pool = block_on(Pool::create(&ep, PoolOptions::new(host.options(1)))).expect("create");
    block_on(pool.detach(&ep)).expect("detach");
    memory.word(word(0, 4096 / 8)).store(1 | 99 << 8, SeqCst);
    let refused = block_on(Pool::attach(&ep, host.options(2))).err();
    assert!(matches!(refused, Some(PoolError::NotClosedCleanly { .. })));
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
    // It dies within a change of the catalog.
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
    assert_eq!((report.blocks, report.processes_cleared), (50 + 4, 1));
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
