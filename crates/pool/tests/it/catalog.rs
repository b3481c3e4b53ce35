//! The catalog of indexes, by one process and by several.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::SeqCst;

use crate::support::{Ep, Host, Memory, block_on};
use pando_fabric::{Endpoint, GlobalAddr, MemoryServerId};
use pando_pool::{AttachSlot, IndexSpec, Placement, Pool, PoolError, PoolOptions};

/// Address of the catalog lock.
fn lock_at() -> GlobalAddr {
    GlobalAddr::new(MemoryServerId(0), 256)
}

fn spec(name: &str, partitions: usize) -> IndexSpec {
    IndexSpec {
        name: name.to_owned(),
        system: 1,
        node_size: 1024,
        subtree_level: 3,
        root: GlobalAddr::new(MemoryServerId(0), 4096),
        layout: b"slotted".to_vec(),
        boundaries: (1..partitions).map(|at| (at as u32).to_be_bytes().to_vec()).collect(),
    }
}

/// The allocated blocks are exactly those of the catalog.
fn assert_accounted(pool: &Pool, ep: &Ep) {
    let (mut allocated, mut catalog) = (BTreeSet::new(), BTreeSet::new());
    block_on(pool.visit_allocated(ep, |addr, _| assert!(allocated.insert(addr)))).expect("visit");
    block_on(pool.visit_catalog_blocks(ep, |addr, _| assert!(catalog.insert(addr)))).expect("catalog");
    assert_eq!(allocated, catalog);
}

#[test]
fn many_indexes_come_and_go() {
    let memory = Memory::new(&[4 << 20]);
    let ep = memory.endpoint(1);
    let host = Host::new();
    let pool = block_on(Pool::create(&ep, PoolOptions::new(host.options(1)))).expect("create");
    let mut model = BTreeMap::new();
    for number in 0..300 {
        let name = format!("index {number}");
        let record = block_on(pool.create_index(&ep, spec(&name, 1 + number % 5))).expect("room");
        assert_eq!(record.owners, vec![None; 1 + number % 5]);
        model.insert(name, record);
    }
    assert_eq!(model.values().map(|record| record.id).collect::<BTreeSet<_>>().len(), 300);
    for number in (0..300).step_by(2) {
        let name = format!("index {number}");
        assert_eq!(
            block_on(pool.drop_index(&ep, &name)).expect("known"),
            model.remove(&name).expect("known")
        );
        assert!(matches!(block_on(pool.drop_index(&ep, &name)), Err(PoolError::UnknownIndex { .. })));
    }
    assert_accounted(&pool, &ep);
    block_on(pool.detach(&ep)).expect("detach");

    let pool = block_on(Pool::attach(&ep, host.options(2))).expect("attach");
    let listed = block_on(pool.list_indexes(&ep)).expect("list");
    let listed: BTreeMap<_, _> = listed.into_iter().map(|record| (record.name.clone(), record)).collect();
    assert_eq!(listed, model);
    let exists = block_on(pool.create_index(&ep, spec("index 1", 1)));
    assert!(matches!(exists, Err(PoolError::IndexExists { name }) if name == "index 1"));
    let unknown = block_on(pool.open_index(&ep, "index 0")).expect_err("dropped");
    assert_eq!(unknown.to_string(), "there is no index named \"index 0\"");
    assert!(matches!(block_on(pool.create_index(&ep, spec("", 1))), Err(PoolError::InvalidIndex { .. })));
    let before = block_on(pool.usage(&ep)).expect("usage")[0].bytes_allocated;
    for number in (0..300).step_by(2) {
        block_on(pool.create_index(&ep, spec(&format!("index {number}"), 1))).expect("room");
    }
    for number in (0..300).step_by(2) {
        block_on(pool.drop_index(&ep, &format!("index {number}"))).expect("known");
    }
    assert_eq!(block_on(pool.usage(&ep)).expect("usage")[0].bytes_allocated, before);
    assert_accounted(&pool, &ep);
}

#[test]
fn a_stale_record_is_refused() {
    let memory = Memory::new(&[1 << 20]);
    let ep = memory.endpoint(1);
    let pool = block_on(Pool::create(&ep, PoolOptions::embedded())).expect("create");
    let old = block_on(pool.create_index(&ep, spec("an index", 3))).expect("room");
    let mut changed = old.clone();
    changed.root = GlobalAddr::new(MemoryServerId(0), 8192);
    changed.recut((1..2000_u32).map(|at| at.to_be_bytes().repeat(8)).collect(), None);
    changed.logs.reverse();
    let changed = block_on(pool.update_index(&ep, &changed)).expect("unchanged");
    assert_eq!(changed.version, old.version + 1);
    assert_eq!(block_on(pool.open_index(&ep, "an index")).expect("known"), changed);
    assert!(matches!(block_on(pool.update_index(&ep, &old)), Err(PoolError::StaleRecord { .. })));
    assert_accounted(&pool, &ep);
    let other_id = pando_pool::IndexRecord { id: 99, ..changed.clone() };
    assert!(matches!(block_on(pool.update_index(&ep, &other_id)), Err(PoolError::UnknownIndex { .. })));
    let mut fewer = changed;
    fewer.recut(Vec::new(), None);
    block_on(pool.update_index(&ep, &fewer)).expect("unchanged");
    assert_accounted(&pool, &ep);
    let wrong = pando_pool::IndexRecord { owners: vec![None; 2], ..fewer };
    assert!(matches!(block_on(pool.update_index(&ep, &wrong)), Err(PoolError::InvalidIndex { .. })));
}

#[test]
fn a_partition_has_one_owner() {
    let memory = Memory::new(&[1 << 20]);
    let ep = memory.endpoint(1);
    let host = Host::new();
    let first = block_on(Pool::create(&ep, PoolOptions::new(host.options(1)))).expect("create");
    let second = block_on(Pool::attach(&ep, host.options(2))).expect("attach");
    block_on(first.create_index(&ep, spec("shared", 4))).expect("room");
    block_on(first.claim_partitions(&ep, "shared", &[0, 1])).expect("free");
    block_on(first.claim_partitions(&ep, "shared", &[1])).expect("own");
    let error = block_on(second.claim_partitions(&ep, "shared", &[2, 1])).expect_err("owned");
    assert_eq!(error.to_string(), "partition 1 of index \"shared\" is owned by process 1");
    let record = block_on(second.claim_partitions(&ep, "shared", &[2, 3])).expect("free");
    let (one, two) = (first.slot(), second.slot());
    assert_eq!(record.owners, [one, one, two, two]);
    let foreign = block_on(second.release_partitions(&ep, "shared", &[0]));
    assert!(matches!(foreign, Err(PoolError::PartitionOwned { .. })));
    let beyond = block_on(second.claim_partitions(&ep, "shared", &[4]));
    assert!(matches!(beyond, Err(PoolError::InvalidIndex { .. })));
    assert!(matches!(block_on(first.drop_index(&ep, "shared")), Err(PoolError::PartitionOwned { .. })));
    block_on(second.release_partitions(&ep, "shared", &[3])).expect("own");
    assert_eq!(block_on(first.open_index(&ep, "shared")).expect("known").owners, [one, one, two, None]);

    block_on(second.detach(&ep)).expect("detach");
    assert_eq!(block_on(first.open_index(&ep, "shared")).expect("known").owners, [one, one, None, None]);
    block_on(first.claim_partitions(&ep, "shared", &[2])).expect("free again");
    assert_accounted(&first, &ep);
    let third = block_on(Pool::attach(&ep, host.options(3))).expect("attach");
    host.kill(1);
    let dead = block_on(third.claim_partitions(&ep, "shared", &[3, 2]));
    assert!(
        matches!(&dead, Err(PoolError::PartitionLost { partition: 2, owner, .. }) if owner.pid == 1),
        "{dead:?}"
    );
    block_on(third.claim_partitions(&ep, "shared", &[3])).expect("no owner");
}

#[test]
fn the_catalog_works_in_a_full_pool() {
    let memory = Memory::new(&[1 << 20]);
    let ep = memory.endpoint(1);
    let host = Host::new();
    let pool = block_on(Pool::create(&ep, PoolOptions::new(host.options(1)))).expect("create");
    block_on(pool.create_index(&ep, spec("kept", 2))).expect("room");
    for size in [16 << 10, 1280, 1024, 64] {
        while block_on(pool.alloc(&ep, Placement::LeastLoaded, size)).is_ok() {}
    }
    assert!(block_on(pool.create_index(&ep, spec("more", 200))).expect_err("full").is_full());
    let used = block_on(pool.usage(&ep)).expect("usage");
    block_on(pool.claim_partitions(&ep, "kept", &[0, 1])).expect("in place");
    assert_eq!(block_on(pool.open_index(&ep, "kept")).expect("known").owners, [pool.slot(), pool.slot()]);
    assert!(block_on(pool.create_index(&ep, spec("more", 2))).expect_err("full").is_full());
    assert_eq!(block_on(pool.usage(&ep)).expect("usage"), used);
    block_on(pool.release_partitions(&ep, "kept", &[1])).expect("in place");
    block_on(pool.drop_index(&ep, "kept")).expect("nothing needed");
    block_on(pool.create_index(&ep, spec("kept", 2))).expect("room again");
    block_on(pool.detach(&ep)).expect("detach");
}

#[test]
fn a_lock_that_is_not_released_times_out_and_is_taken_over_once_its_holder_died() {
    let memory = Memory::new(&[1 << 20]);
    let ep = memory.endpoint(1);
    let host = Host::new();
    let first = block_on(Pool::create(&ep, PoolOptions::new(host.options(1)))).expect("create");
    let second = block_on(Pool::attach(&ep, host.options(2))).expect("attach");
    block_on(first.create_index(&ep, spec("an index", 1))).expect("room");
    let AttachSlot(slot) = first.slot().expect("attached");
    let lock_as_first = || {
        let free = memory.word(lock_at()).load(SeqCst);
        memory.word(lock_at()).store(free | 1 << 63 | u64::from(slot) << 48, SeqCst);
    };
    lock_as_first();
    let timed_out =
        |error| matches!(error, PoolError::LockTimedOut { holder, .. } if holder == AttachSlot(slot));
    assert!(timed_out(block_on(second.create_index(&ep, spec("other", 1))).expect_err("locked")));
    assert!(timed_out(block_on(second.open_index(&ep, "an index")).expect_err("locked")));
    host.kill(1);
    let looking = host.options(3).mode(pando_pool::AttachMode::ReadOnlyUnclean).wait_ns_max(u64::MAX);
    let looking = block_on(Pool::attach(&ep, looking)).expect("may look");
    block_on(looking.open_index(&ep, "an index")).expect("undamaged");
    assert_eq!(second.locks_taken_over(), 0, "a reader takes no lock over");
    block_on(second.create_index(&ep, spec("other", 1))).expect("taken over");
    lock_as_first();
    block_on(second.open_index(&ep, "an index")).expect("taken over to look");
    assert_eq!(second.locks_taken_over(), 2);
    assert_eq!(block_on(second.list_indexes(&ep)).expect("unlocked").len(), 2);
}

#[test]
fn damage_is_an_error_that_names_the_address() {
    let memory = Memory::new(&[1 << 20]);
    let ep = memory.endpoint(1);
    let pool = block_on(Pool::create(&ep, PoolOptions::embedded())).expect("create");
    block_on(pool.create_index(&ep, spec("an index", 3))).expect("room");
    let mut blocks = vec![(GlobalAddr::new(MemoryServerId(0), 320), 72)];
    block_on(pool.visit_catalog_blocks(&ep, |addr, size| blocks.push((addr, size)))).expect("catalog");
    // The head, a directory, a record, its boundaries, its owners, and the spare.
    assert_eq!(blocks.len(), 6);
    for (number, (addr, size)) in blocks.into_iter().enumerate() {
        let words = size.div_ceil(8);
        let counts = |word| match number {
            0..3 => {
                let (version, copy) = (memory.word(addr).load(SeqCst), (words - 1) / 2);
                word == 0 || (word - 1) / copy == version % 2
            }
            // The padding in the last word of a value does not count.
            3 | 4 => word < size / 8 || size % 8 > 2,
            _ => false,
        };
        for word in 0..words {
            let (at, counts) = (memory.word(addr.add(word * 8)), counts(word));
            at.fetch_xor(0xff << 16, SeqCst);
            match block_on(pool.open_index(&ep, "an index")) {
                Err(PoolError::Corrupt { addr: named, .. }) => assert!(named == addr && counts),
                Ok(_) => assert!(!counts, "word {word} of {addr}"),
                Err(error) => panic!("{error}"),
            }
            at.fetch_xor(0xff << 16, SeqCst);
        }
    }
    block_on(pool.open_index(&ep, "an index")).expect("mended");
}

#[test]
fn readers_see_whole_records_while_several_processes_write() {
    let memory = Memory::new(&[1 << 20]);
    let ep = memory.endpoint(9);
    let host = Host::new();
    let patient = |pid| host.options(pid).wait_ns_max(60_000_000_000);
    let first = block_on(Pool::create(&ep, PoolOptions::new(patient(1)))).expect("create");
    let second = block_on(Pool::attach(&ep, patient(2))).expect("attach");
    block_on(first.create_index(&ep, spec("steady", 2))).expect("room");
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let (memory, pool) = (&memory, [&first, &second][worker % 2]);
            scope.spawn(move || {
                let ep = memory.endpoint(worker as u64 + 1);
                let own = format!("of worker {worker}");
                for round in 0..60 {
                    block_on(pool.create_index(&ep, spec(&own, 1 + round % 7))).expect("room");
                    let mut record = block_on(pool.open_index(&ep, "steady")).expect("known");
                    assert_eq!(record.boundaries.len() as u64 + 1, record.root.offset() / 4096 + 1);
                    let partitions = 1 + (ep.random() % 9) as usize;
                    record.recut(spec("", partitions + 1).boundaries, None);
                    record.root = GlobalAddr::new(MemoryServerId(0), partitions as u64 * 4096);
                    match block_on(pool.update_index(&ep, &record)) {
                        Ok(_) | Err(PoolError::StaleRecord { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                    assert!(block_on(pool.list_indexes(&ep)).expect("list").len() >= 2);
                    block_on(pool.drop_index(&ep, &own)).expect("known");
                }
            });
        }
    });
    block_on(second.detach(&ep)).expect("detach");
    assert_accounted(&first, &ep);
    assert_eq!(first.stray_frees().0, 0);
}
