//! Left locks: their words after they are given back.

use crate::support::{Memory, block_on};
use pando_fabric::Endpoint;
use pando_pool::{Placement, Pool, PoolOptions};

#[test]
fn a_lock_of_a_version_goes_back_to_it_unless_it_was_written() {
    let memory = Memory::new(&[4 << 20]);
    let ep = memory.endpoint(1);
    block_on(async {
        let pool = Pool::create(&ep, PoolOptions::embedded()).await.expect("created");
        let at = pool.alloc(&ep, Placement::LeastLoaded, 64).await.expect("a block").add(32);
        ep.write_word(at, 77).await.expect("written");
        let lock = pool.try_lock_version(&ep, at, 77).await.expect("no error").expect("free");
        assert!(pool.try_lock_version(&ep, at, 77).await.expect("no error").is_none());
        drop(lock);
        assert!(pool.has_left_locks());
        pool.give_back_left_locks(&ep).await.expect("no error");
        assert_eq!(ep.read_word(at).await.expect("read"), 77);
        // A lock whose version is not that of its data advances.
        drop(pool.lock(&ep, at, 0).await.expect("free"));
        pool.give_back_left_locks(&ep).await.expect("no error");
        assert!(ep.read_word(at).await.expect("read") > 77 && !pool.has_left_locks());
    });
}
