//! Several processes whose verbs interleave in thousands of random but repeatable ways.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::Ordering::SeqCst;

use crate::support::{Ep, Host, Memory, block_on, interleave};
use pando_fabric::{Chain, Endpoint, GlobalAddr, MemoryServerId, PageBuf};
use pando_pool::{AttachOptions, IndexSpec, Placement, Pool, PoolError, PoolOptions, lock, lock::Seen};

const HERE: Placement = Placement::Server(MemoryServerId(0));
const SIZE: u64 = 2048;

type Task<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// A process that waits long enough for others even on a busy machine.
fn patient(host: &Host, pid: u32) -> AttachOptions {
    host.options(pid).wait_ns_max(60_000_000_000)
}

/// Everything is free, and nothing was freed twice.
fn assert_empty(ep: &Ep, host: &Host, seed: u64) {
    let pool = block_on(Pool::attach(ep, patient(host, 9))).expect("clean");
    let usage = block_on(pool.usage(ep)).expect("usage")[0];
    assert_eq!((usage.bytes_allocated, usage.chunks_free), (0, usage.chunks_total), "seed {seed}");
}

async fn free_all(pool: &Pool, ep: &Ep, blocks: &[GlobalAddr]) {
    for &block in blocks {
        pool.free(ep, block, SIZE).await.expect("allocated");
    }
}

async fn come_and_go(pool: &Pool, ep: &Ep, rounds: u64) {
    for _ in 0..rounds {
        let mut blocks = Vec::new();
        for _ in 0..ep.random() % 12 {
            blocks.push(pool.alloc(ep, HERE, SIZE).await.expect("room"));
        }
        free_all(pool, ep, &blocks).await;
    }
    pool.detach(ep).await.expect("detach");
}

#[test]
fn frees_that_race_with_a_release_are_not_lost() {
    for seed in 1..3000 {
        let memory = Memory::new(&[1 << 20]);
        let (ep, host) = (memory.endpoint(seed), Host::new());
        let options = PoolOptions::new(patient(&host, 1)).chunk_size(16 << 10).max_attached(4);
        let owner = block_on(Pool::create(&ep, options)).expect("create");
        let freer = block_on(Pool::attach(&ep, patient(&host, 2))).expect("attach");
        let third = block_on(Pool::attach(&ep, patient(&host, 3))).expect("attach");
        let blocks: Vec<_> = (0..1 + ep.random() % 20)
            .map(|_| block_on(owner.alloc(&ep, HERE, SIZE)).expect("room"))
            .collect();
        let (left, right) = blocks.split_at(blocks.len() / 2);
        ep.always_yield.set(true);
        let tasks: Vec<Task<'_>> = vec![
            Box::pin(async { owner.detach(&ep).await.expect("detach") }),
            Box::pin(free_all(&freer, &ep, left)),
            Box::pin(free_all(&freer, &ep, right)),
            Box::pin(come_and_go(&third, &ep, seed % 4)),
        ];
        interleave(&ep, tasks);
        ep.always_yield.set(false);
        // A free that went unnoticed would stay allocated for ever.
        let usage = block_on(freer.usage(&ep)).expect("usage")[0];
        assert_eq!(usage.bytes_allocated, 0, "seed {seed}");
        block_on(freer.detach(&ep)).expect("detach");
        for pool in [&owner, &freer, &third] {
            assert_eq!(pool.stray_frees().0, 0, "seed {seed}");
        }
        assert_empty(&ep, &host, seed);
    }
}

#[test]
fn a_small_pool_is_never_full_too_early() {
    for seed in 1..500 {
        let memory = Memory::new(&[128 << 10]);
        let (ep, host) = (memory.endpoint(seed), Host::new());
        let options = PoolOptions::new(patient(&host, 1)).chunk_size(16 << 10).max_attached(4);
        let pool = block_on(Pool::create(&ep, options)).expect("create");
        let room = block_on(pool.usage(&ep)).expect("usage")[0].chunks_total * 8;
        let (seen, ep) = (RefCell::new(BTreeSet::new()), &ep);
        let (pool, seen) = (&pool, &seen);
        ep.always_yield.set(true);
        // Four workers allocate exactly as many blocks as there are; all succeed although they lease at once.
        let worker = |worker: u64| async move {
            for _ in 0..room / 4 + u64::from(worker < room % 4) {
                let block = pool.alloc(ep, HERE, SIZE).await.expect("room for all");
                assert!(seen.borrow_mut().insert(block));
                // All of them should find the last chunk used up at the same time.
                ep.yield_now().await;
            }
        };
        interleave(ep, (0..4).map(|number| Box::pin(worker(number)) as Task<'_>).collect());
        ep.always_yield.set(false);
        let full = block_on(pool.alloc(ep, HERE, SIZE));
        assert!(matches!(full, Err(PoolError::PoolFull { .. })));
    }
}

fn spec(name: &str, partitions: u32) -> IndexSpec {
    IndexSpec {
        name: name.to_owned(),
        system: 1,
        node_size: 1024,
        subtree_level: 3,
        root: GlobalAddr::NULL,
        layout: Vec::new(),
        boundaries: (1..partitions).map(|at| at.to_be_bytes().to_vec()).collect(),
    }
}

async fn use_catalog(pool: &Pool, ep: &Ep, own: &str) {
    let mine = pool.slot();
    for round in 1..4 {
        pool.create_index(ep, spec(own, round)).await.expect("room");
        match pool.claim_partitions(ep, "shared", &[0]).await {
            Ok(record) => {
                assert_eq!(record.owners[0], mine);
                assert_eq!(pool.open_index(ep, "shared").await.expect("known").owners[0], mine);
                pool.release_partitions(ep, "shared", &[0]).await.expect("own");
            }
            Err(PoolError::PartitionOwned { partition: 0, .. }) => {}
            Err(error) => panic!("{error}"),
        }
        let names: BTreeSet<_> =
            pool.list_indexes(ep).await.expect("list").into_iter().map(|record| record.name).collect();
        assert!(names.contains(own) && names.contains("shared"));
        let dropped = pool.drop_index(ep, own).await.expect("known");
        assert_eq!(dropped.boundaries, spec(own, round).boundaries);
    }
    pool.detach(ep).await.expect("detach");
}

#[test]
fn the_catalog_stays_whole() {
    for seed in 1..300 {
        let memory = Memory::new(&[512 << 10]);
        let (ep, host) = (memory.endpoint(seed), Host::new());
        let endless = |pid| patient(&host, pid).wait_ns_max(u64::MAX);
        let first =
            block_on(Pool::create(&ep, PoolOptions::new(endless(1)).max_attached(4))).expect("create");
        let second = block_on(Pool::attach(&ep, endless(2))).expect("attach");
        block_on(first.create_index(&ep, spec("shared", 3))).expect("room");
        ep.always_yield.set(true);
        let tasks: Vec<Task<'_>> =
            vec![Box::pin(use_catalog(&first, &ep, "one")), Box::pin(use_catalog(&second, &ep, "two"))];
        interleave(&ep, tasks);
        ep.always_yield.set(false);
        let pool = block_on(Pool::attach(&ep, patient(&host, 3))).expect("clean");
        let (mut catalog, mut allocated) = (BTreeSet::new(), BTreeSet::new());
        block_on(pool.visit_catalog_blocks(&ep, |addr, _| assert!(catalog.insert(addr)))).expect("catalog");
        block_on(pool.visit_allocated(&ep, |addr, _| assert!(allocated.insert(addr)))).expect("visit");
        assert_eq!(catalog, allocated, "seed {seed}");
        assert_eq!(block_on(pool.open_index(&ep, "shared")).expect("known").owners, [None; 3]);
    }
}

#[test]
fn an_optimistic_read_is_whole_or_refused() {
    const LEN: usize = 64;
    for seed in 1..500 {
        let memory = Memory::new(&[128 << 10]);
        let (ep, host) = (memory.endpoint(seed), Host::new());
        let pool = block_on(Pool::create(&ep, PoolOptions::new(patient(&host, 1)))).expect("create");
        let node = block_on(pool.alloc(&ep, HERE, LEN as u64)).expect("room");
        block_on(ep.write(node, PageBuf::zeroed(LEN))).expect("write");
        let (slot, ep) = (pool.slot().expect("attached"), &ep);
        ep.always_yield.set(true);
        let write = || async move {
            for _ in 0..5 {
                let locked = lock::lock(ep, node, slot, u64::MAX).await.expect("in time");
                let body = ep.buffer(LEN - 8);
                body.words().iter().for_each(|word| word.store(locked.unlock_word(), SeqCst));
                let chain = Chain::new().write(node.add(8), body).write_word(node, locked.unlock_word());
                ep.submit(chain).await.expect("write");
            }
        };
        let read = async move {
            for _ in 0..20 {
                let read = lock::read_optimistic(ep, node, ep.buffer(LEN)).await.expect("read");
                let Seen::Whole { version, page: buf } = read else { continue };
                assert!(buf.words().iter().all(|word| word.load(SeqCst) == version), "seed {seed}");
            }
        };
        interleave(ep, vec![Box::pin(write()), Box::pin(write()), Box::pin(read)]);
        ep.always_yield.set(false);
        assert!(block_on(lock::try_lock(ep, node, slot)).expect("verb").expect("free").version() >= 10);
    }
}
