//! Allocation and freeing by one process and by several.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::SeqCst;

use crate::support::{Ep, Host, Memory, block_on};
use pando_fabric::{Endpoint, GlobalAddr, MemoryServerId};
use pando_pool::{AttachMode, Placement, Pool, PoolError, PoolOptions};

const SERVER: MemoryServerId = MemoryServerId(0);
const HERE: Placement = Placement::Server(SERVER);

fn fill(pool: &Pool, ep: &Ep, size: u64) -> Vec<GlobalAddr> {
    let mut blocks = Vec::new();
    loop {
        match block_on(pool.alloc(ep, HERE, size)) {
            Ok(block) => blocks.push(block),
            Err(PoolError::PoolFull { server: SERVER, size: asked }) if asked == size => return blocks,
            Err(error) => panic!("{error}"),
        }
    }
}

fn free_all(pool: &Pool, ep: &Ep, blocks: impl IntoIterator<Item = GlobalAddr>, size: u64) {
    for block in blocks {
        block_on(pool.free(ep, block, size)).expect("allocated");
    }
}

fn allocated(pool: &Pool, ep: &Ep) -> BTreeMap<GlobalAddr, u64> {
    let mut blocks = BTreeMap::new();
    block_on(pool.visit_allocated(ep, |addr, size| assert!(blocks.insert(addr, size).is_none())))
        .expect("visit");
    blocks
}

fn chunks_free(pool: &Pool, ep: &Ep) -> (u64, u64, u64) {
    let usage = block_on(pool.usage(ep)).expect("usage")[0];
    (usage.chunks_free, usage.chunks_total, usage.bytes_allocated)
}

#[test]
fn a_full_pool_is_an_error_and_freed_space_is_used_again() {
    let memory = Memory::new(&[1 << 20]);
    let ep = memory.endpoint(1);
    let host = Host::new();
    let pool = block_on(Pool::create(&ep, PoolOptions::new(host.options(1)))).expect("create");
    let mut blocks = fill(&pool, &ep, 1024);
    let total = blocks.len();
    assert!(total * 1024 > (1 << 20) * 9 / 10, "{total} blocks of 1 KiB in 1 MiB");
    assert_eq!(blocks.iter().collect::<BTreeSet<_>>().len(), total);
    assert!(blocks.iter().all(|block| block.offset() % 1024 == 0));

    let half: Vec<_> = blocks.iter().copied().step_by(2).collect();
    free_all(&pool, &ep, half.iter().copied(), 1024);
    assert_eq!(fill(&pool, &ep, 1024).len(), half.len());
    free_all(&pool, &ep, half, 1024);
    blocks = blocks.into_iter().skip(1).step_by(2).collect();

    block_on(pool.detach(&ep)).expect("detach");
    assert!(matches!(block_on(pool.alloc(&ep, HERE, 64)), Err(PoolError::Detached)));
    let pool = block_on(Pool::attach(&ep, host.options(2))).expect("attach");
    assert_eq!(allocated(&pool, &ep).into_keys().collect::<Vec<_>>(), {
        blocks.sort_unstable();
        blocks.clone()
    });
    blocks.extend(fill(&pool, &ep, 1024));
    assert_eq!(blocks.len(), total);
    free_all(&pool, &ep, blocks, 1024);
    block_on(pool.detach(&ep)).expect("detach");
    let pool = block_on(Pool::attach(&ep, host.options(3))).expect("attach");
    let (free, all, bytes) = chunks_free(&pool, &ep);
    assert_eq!((free, bytes), (all, 0));
}

#[test]
fn an_empty_chunk_serves_another_size() {
    let memory = Memory::new(&[1 << 20]);
    let ep = memory.endpoint(1);
    let pool = block_on(Pool::create(&ep, PoolOptions::embedded())).expect("create");
    for size in [64, 1024, 80, 16 << 10, 512, 7000] {
        let blocks = fill(&pool, &ep, size);
        assert!(blocks.len() as u64 * size > (1 << 20) * 3 / 4, "{} of {size}", blocks.len());
        free_all(&pool, &ep, blocks, size);
    }
    let too_large = block_on(pool.alloc(&ep, HERE, (16 << 10) + 1));
    assert!(matches!(too_large, Err(PoolError::BlockTooLarge { max: 16384, .. })));
}

#[test]
fn a_chunk_that_became_empty_is_given_back_while_another_has_room() {
    let memory = Memory::new(&[1 << 20]);
    let ep = memory.endpoint(1);
    let host = Host::new();
    let pool = block_on(Pool::create(&ep, PoolOptions::new(host.options(1)))).expect("create");
    let other = block_on(Pool::attach(&ep, host.options(2))).expect("attach");
    let blocks: Vec<_> = (0..32).map(|_| block_on(pool.alloc(&ep, HERE, 1024)).expect("room")).collect();
    assert_eq!(block_on(other.usage(&ep)).expect("usage")[0].chunks_leased_by_others, 2);
    free_all(&pool, &ep, blocks, 1024);
    assert_eq!(
        block_on(other.usage(&ep)).expect("usage")[0].chunks_leased_by_others,
        1,
        "one is kept for later"
    );
}

#[test]
fn wrong_frees_are_errors_that_name_the_address() {
    let memory = Memory::new(&[1 << 20]);
    let (ep, other_ep) = (memory.endpoint(1), memory.endpoint(2));
    let host = Host::new();
    let pool = block_on(Pool::create(&ep, PoolOptions::new(host.options(1)))).expect("create");
    let other = block_on(Pool::attach(&other_ep, host.options(2))).expect("attach");
    let block = block_on(pool.alloc(&ep, HERE, 1024)).expect("room");
    let also = block_on(pool.alloc(&ep, HERE, 1024)).expect("room");
    for (ep, pool) in [(&ep, &pool), (&other_ep, &other)] {
        for (addr, size) in [
            (block.add(64), 1024),
            (block, 512),
            (block, 1 << 30),
            (GlobalAddr::new(SERVER, 64), 64),
            (GlobalAddr::new(MemoryServerId(7), block.offset()), 1024),
            (GlobalAddr::new(SERVER, 1 << 40), 1024),
        ] {
            let error = block_on(pool.free(ep, addr, size)).expect_err("no block");
            assert!(matches!(error, PoolError::InvalidFree { addr: named, .. } if named == addr), "{error}");
            assert!(!pool.try_free_local(addr, size));
        }
    }
    let double = |result| matches!(result, Err(PoolError::DoubleFree { addr }) if addr == block);
    block_on(other.free(&other_ep, block, 1024)).expect("allocated");
    assert!(double(block_on(other.free(&other_ep, block, 1024))));
    assert!(pool.try_free_local(also, 1024) && !pool.try_free_local(also, 1024));
    assert_eq!(chunks_free(&pool, &ep).2, 0);
    assert!(double(block_on(pool.free(&ep, block, 1024))));
    // With two processes, only the chunk's owner may see the second free of a block.
    block_on(other.free(&other_ep, block, 1024)).expect("not seen");
    assert_eq!((chunks_free(&pool, &ep).2, pool.stray_frees()), (0, (1, Some(block))));
    block_on(pool.detach(&ep)).expect("detach");
    assert!(double(block_on(other.free(&other_ep, block, 1024))));
}

#[test]
fn blocks_freed_by_another_process_come_back() {
    let memory = Memory::new(&[1 << 20]);
    let (a_ep, b_ep) = (memory.endpoint(1), memory.endpoint(2));
    let host = Host::new();
    let a = block_on(Pool::create(&a_ep, PoolOptions::new(host.options(1)))).expect("create");
    let b = block_on(Pool::attach(&b_ep, host.options(2))).expect("attach");
    let blocks = fill(&a, &a_ep, 1024);
    assert!(matches!(block_on(b.alloc(&b_ep, HERE, 1024)), Err(PoolError::PoolFull { .. })));
    let (freed, kept): (Vec<_>, Vec<_>) = blocks.iter().enumerate().partition(|(at, _)| at % 3 == 0);
    free_all(&b, &b_ep, freed.iter().map(|&(_, &block)| block), 1024);
    let visible = allocated(&a, &a_ep).into_keys().collect::<BTreeSet<_>>();
    assert_eq!(visible, kept.iter().map(|&(_, &block)| block).collect());
    a.publish_of(&a_ep);
    assert_eq!(allocated(&b, &b_ep).len(), kept.len());

    let again = fill(&a, &a_ep, 1024);
    assert_eq!(again.len(), freed.len());
    block_on(a.detach(&a_ep)).expect("detach");
    // A process that frees a block in an unleased chunk adopts the chunk.
    free_all(&b, &b_ep, blocks.iter().copied(), 1024);
    assert_eq!(fill(&b, &b_ep, 512).len(), blocks.len() * 2);
    assert_eq!(b.stray_frees().0, 0);
}

trait Publish {
    fn publish_of(&self, ep: &Ep);
}

impl Publish for Pool {
    fn publish_of(&self, ep: &Ep) {
        block_on(self.publish_bitmaps(ep)).expect("publish");
    }
}

#[test]
fn placement_balances_and_falls_back() {
    let memory = Memory::new(&[1 << 20, 1 << 20, 2 << 20]);
    let ep = memory.endpoint(1);
    let pool = block_on(Pool::create(&ep, PoolOptions::embedded())).expect("create");
    let mut per_server = [0_u64; 3];
    while let Ok(block) = block_on(pool.alloc(&ep, Placement::LeastLoaded, 4096)) {
        per_server[block.server().0 as usize] += 1;
        assert!(per_server[2].abs_diff(per_server[0] * 2) < 16, "{per_server:?}");
    }
    assert!(per_server.iter().sum::<u64>() > 4 * 256 * 9 / 10, "{per_server:?}");
    assert!(matches!(block_on(pool.alloc(&ep, HERE, 4096)), Err(PoolError::PoolFull { .. })));

    let memory = Memory::new(&[1 << 20, 1 << 20]);
    let ep = memory.endpoint(1);
    let pool = block_on(Pool::create(&ep, PoolOptions::embedded())).expect("create");
    let full = fill(&pool, &ep, 1024);
    let next = block_on(pool.alloc(&ep, Placement::Prefer(SERVER), 1024)).expect("room elsewhere");
    assert_eq!((next.server().0, pool.least_loaded().0), (1, 1));
    free_all(&pool, &ep, full, 1024);
    assert_eq!(pool.least_loaded(), SERVER);
    assert_eq!(pool.try_alloc(MemoryServerId(9), 64), None);
    let unknown = block_on(pool.alloc(&ep, Placement::Server(MemoryServerId(9)), 64));
    assert!(matches!(unknown, Err(PoolError::UnknownServer { servers: 2, .. })));
}

#[test]
fn runs_are_consecutive_and_their_rest_goes_back() {
    let memory = Memory::new(&[1 << 20]);
    let ep = memory.endpoint(1);
    let pool = block_on(Pool::create(&ep, PoolOptions::embedded())).expect("create");
    let mut run = block_on(pool.lease_run(&ep, SERVER, 1000, 10)).expect("room");
    assert_eq!((run.left(), run.block_size()), (10, 1024));
    let taken: Vec<_> = run.by_ref().take(4).collect();
    assert!(taken.windows(2).all(|pair| pair[1].offset() - pair[0].offset() == 1024));
    block_on(pool.return_run(&ep, run)).expect("allocated");
    assert_eq!(chunks_free(&pool, &ep).2, 4096);
    let mut blocks = taken;
    while let Ok(run) = block_on(pool.lease_run(&ep, SERVER, 1024, 1000)) {
        blocks.extend(run);
    }
    assert_eq!(blocks.iter().collect::<BTreeSet<_>>().len(), blocks.len());
    assert_eq!(chunks_free(&pool, &ep), (0, blocks.len() as u64 / 16, blocks.len() as u64 * 1024));
    free_all(&pool, &ep, blocks, 1000);
    assert_eq!(chunks_free(&pool, &ep).2, 0);
}

#[test]
fn no_memory_behind_a_chunk_is_an_error_without_a_leak() {
    let memory = Memory::new(&[1 << 20]);
    let ep = memory.endpoint(1);
    let pool = block_on(Pool::create(&ep, PoolOptions::embedded())).expect("create");
    memory.reservable.store(40_000, SeqCst);
    let mut blocks = Vec::new();
    let error = loop {
        match block_on(pool.alloc(&ep, HERE, 1024)) {
            Ok(block) => blocks.push(block),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, PoolError::NoSpace { size: 1024, .. }), "{error}");
    assert_eq!(blocks.len(), 32);
    let (free, all, _) = chunks_free(&pool, &ep);
    assert_eq!(free, all - 2);
    free_all(&pool, &ep, blocks, 1024);
    memory.reservable.store(u64::MAX, SeqCst);
    assert_eq!(fill(&pool, &ep, 1024).len() as u64, all * 16);
}

#[test]
fn any_verb_may_fail_and_nothing_leaks() {
    for failing in 0..40 {
        let memory = Memory::new(&[1 << 20]);
        let (ep, other_ep) = (memory.endpoint(1), memory.endpoint(2));
        let host = Host::new();
        let pool = block_on(Pool::create(&ep, PoolOptions::new(host.options(1)))).expect("create");
        let other = block_on(Pool::attach(&other_ep, host.options(2))).expect("attach");
        let theirs = fill(&other, &other_ep, 2048);
        free_all(&other, &other_ep, theirs[32..].iter().copied(), 2048);
        block_on(other.detach(&other_ep)).expect("detach");

        // Each round has one failing verb, and continues after it.
        ep.fail_after.set(failing);
        let mut blocks = Vec::new();
        for _ in 0..40 {
            match block_on(pool.alloc(&ep, HERE, 1024)) {
                Ok(block) => blocks.push(block),
                Err(PoolError::Fabric(_)) => ep.fail_after.set(u64::MAX),
                Err(error) => panic!("{error}"),
            }
        }
        ep.fail_after.set(failing);
        for block in theirs[..32].iter().copied() {
            if block_on(pool.free(&ep, block, 2048)).is_err() {
                ep.fail_after.set(u64::MAX);
                block_on(pool.free(&ep, block, 2048)).expect("still allocated");
            }
        }
        ep.fail_after.set(failing);
        while block_on(pool.detach(&ep)).is_err() {
            ep.fail_after.set(u64::MAX);
        }
        ep.fail_after.set(u64::MAX);
        let pool = block_on(Pool::attach(&ep, host.options(3))).expect("clean");
        assert_eq!(
            allocated(&pool, &ep).into_keys().collect::<BTreeSet<_>>(),
            blocks.iter().copied().collect()
        );
        assert_eq!(chunks_free(&pool, &ep).2, blocks.len() as u64 * 1024);
    }
}

#[test]
fn threads_of_two_processes_share_a_pool() {
    let memory = Memory::new(&[1 << 20, 1 << 20]);
    let ep = memory.endpoint(99);
    let host = Host::new();
    let first = block_on(Pool::create(&ep, PoolOptions::new(host.options(1)))).expect("create");
    let second = block_on(Pool::attach(&ep, host.options(2))).expect("attach");
    // Blocks travel through one shared bag, so that many are freed by a process that did not allocate them.
    let bag = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let pool = if worker % 2 == 0 { &first } else { &second };
            let (memory, bag) = (&memory, &bag);
            scope.spawn(move || {
                let ep = memory.endpoint(worker + 1);
                for round in 0..6_000_u64 {
                    let size = [64, 1024, 80, 4096][(ep.random() % 4) as usize];
                    if ep.random() % 2 == 0 || round < 100 {
                        match block_on(pool.alloc(&ep, Placement::LeastLoaded, size)) {
                            Ok(block) => {
                                memory.word(block).store(block.raw(), SeqCst);
                                bag.lock().expect("no panic").push((block, size));
                            }
                            Err(error) => assert!(error.is_full(), "{error}"),
                        }
                    } else {
                        let taken = {
                            let mut bag = bag.lock().expect("no panic");
                            let len = bag.len().max(1) as u64;
                            let at = (ep.random() % len) as usize;
                            (at < bag.len()).then(|| bag.swap_remove(at))
                        };
                        if let Some((block, size)) = taken {
                            assert_eq!(memory.word(block).swap(0, SeqCst), block.raw());
                            block_on(pool.free(&ep, block, size)).expect("allocated");
                        }
                    }
                }
            });
        }
    });
    let left: BTreeMap<_, _> = bag.into_inner().expect("no panic").into_iter().collect();
    assert_eq!((first.stray_frees().0, second.stray_frees().0), (0, 0));
    block_on(first.detach(&ep)).expect("detach");
    block_on(second.detach(&ep)).expect("detach");
    let pool = block_on(Pool::attach(&ep, host.options(3))).expect("attach");
    assert_eq!(allocated(&pool, &ep), left);
    for (block, size) in left {
        block_on(pool.free(&ep, block, size)).expect("allocated");
    }
    block_on(pool.detach(&ep)).expect("detach");
    let looking = host.options(4).mode(AttachMode::ReadOnlyUnclean);
    let pool = block_on(Pool::attach(&ep, looking)).expect("attach");
    for usage in block_on(pool.usage(&ep)).expect("usage") {
        assert_eq!((usage.chunks_free, usage.bytes_allocated), (usage.chunks_total, 0));
    }
}
