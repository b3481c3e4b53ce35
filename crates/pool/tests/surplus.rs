//! Chunks that became empty go back to everybody, but for one that is kept for what comes next.

mod support;

use pando_fabric::MemoryServerId;
use pando_pool::{Placement, Pool, PoolOptions};
use support::{Memory, block_on};

#[test]
fn empty_chunks_are_given_back_but_for_one() {
    const HERE: Placement = Placement::Server(MemoryServerId(0));
    let memory = Memory::new(&[4 << 20]);
    let ep = memory.endpoint(1);
    let pool = block_on(Pool::create(&ep, PoolOptions::embedded())).expect("create");
    let chunks_free = || block_on(pool.usage(&ep)).expect("usage")[0].chunks_free;
    let before = chunks_free();
    let mut blocks = Vec::new();
    while before - chunks_free() < 4 {
        blocks.push(block_on(pool.alloc(&ep, HERE, 1024)).expect("room"));
    }
    for block in blocks {
        block_on(pool.free(&ep, block, 1024)).expect("allocated");
    }
    assert_eq!(before - chunks_free(), 1);
}
