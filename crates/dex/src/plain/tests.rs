//! Splits whose verbs fail.
//!
//! A WRITE of a new node fails before anything refers to the node, so the operation must leave no lock:
//! the same operation succeeds afterwards.

use pando_fabric::Fabric;
use pando_fabric_local::{LocalConfig, LocalFabric};
use pando_pool::{Pool, PoolOptions};
use pando_rt::block_on;

use super::{PlainConfig, PlainTree};
use crate::Tree;
use crate::testing::{Fate, Scripted, Verb, fixed, key, value};

#[test]
fn a_split_that_cannot_write_the_new_node_leaves_nothing_locked() {
    let config = LocalConfig { server_sizes: vec![8 << 20], huge_pages: false };
    let fabric = LocalFabric::new(config).expect("a fabric");
    let ep = Scripted::new(fabric.endpoint(3).expect("an endpoint"));
    let pool = block_on(&ep, Pool::create(&ep, PoolOptions::embedded())).expect("a pool");
    let root = block_on(&ep, Tree::create(&ep, &pool, fixed(), 1, &[])).expect("created");
    let config = PlainConfig { patience_ns: 50_000_000, ..PlainConfig::new(1, root) };
    let tree = PlainTree::new(pool, fixed(), config);
    let mut failed = 0;
    for k in 0..200 {
        let put = || block_on(&ep, tree.put(&ep, &key(k), &value(k)));
        ep.follow(|verb, _| if verb == Verb::Write { Fate::NotSent } else { Fate::Done });
        let first = put();
        ep.follow_none();
        if first.is_err() {
            failed += 1;
            assert!(!put().expect("nothing is locked"));
        }
    }
    assert!(failed > 30 && tree.splits() > 30, "{failed} puts failed, {} splits", tree.splits());
    let mut found = Vec::new();
    for k in 0..200 {
        found.clear();
        assert!(block_on(&ep, tree.get(&ep, &key(k), &mut found)).expect("no error"), "{k}");
        assert_eq!(found, value(k));
    }
}
