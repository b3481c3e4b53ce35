//! Nodes that are freed while an operation is on its way to them through a stale copy of a shared node. The
//! operation must not change a freed node, and a freed node must not come back into the cache.
//!
//! One compute server splits a shared node. A worker of another one has entered its old copy and stops there.
//! Meanwhile a second worker learns of the split and merges leaves under their new parent.

use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Waker};

use crate::common::{Client, Cluster, Entries};
use pando_cache::CacheConfig;
use pando_dex::layout::fixed::FixedLayout;
use pando_dex::{Answers, DexError, TreeConfig};
use pando_fabric_local::{LocalConfig, LocalFabric};
use pando_rt::block_on;

const KEYS: u64 = 120;
/// The first key of the second compute server.
const BOUNDARY: u64 = 35;
/// Keys of a full leaf, and separators of a full inner node.
const FANOUT: usize = 5;
/// Largest number of lookups in the mapping table by one operation: there are no more levels below shared
/// nodes.
const LOOKS: u64 = 4;

type Tiny = Cluster<FixedLayout>;

fn key(k: u64) -> Vec<u8> {
    (k << 16).to_be_bytes().to_vec()
}

/// A key right behind key `k`.
fn behind(k: u64) -> Vec<u8> {
    (k << 16 | 1).to_be_bytes().to_vec()
}

fn value(n: u64) -> Vec<u8> {
    n.to_le_bytes().to_vec()
}

fn cluster() -> Rc<Tiny> {
    let layout = FixedLayout::new(256, 8, 8).expect("a layout").with_fanout_limit(FANOUT);
    let entries: Entries = (0..KEYS).map(|k| (key(k), value(k))).collect();
    let cache = |config: &mut CacheConfig| config.bytes = 1000 * 256;
    let fabric = LocalFabric::new(LocalConfig { server_sizes: vec![8 << 20], huge_pages: false });
    // An operation that meets a node which a stopped worker is reading gives up soon.
    let tune = |config: &mut TreeConfig| config.patience_ns = 3_000_000;
    let fabric = fabric.expect("a fabric");
    Rc::new(Cluster::tuned_on(fabric, layout, &[key(BOUNDARY)], &entries, 1.0, cache, tune))
}

/// Result of an operation. Repeats it while it reports that it did nothing because its short patience ran
/// out, which happens on a busy machine.
fn patiently<T>(operation: impl Fn() -> Result<T, DexError>) -> T {
    for _ in 0..200 {
        match operation() {
            Err(DexError::TimedOut { .. }) => {}
            done => return done.expect("no error"),
        }
    }
    panic!("it waits for ever");
}

/// Gives the second compute server copies of the shared nodes, then lets the first one split the lowest of
/// them.
fn make_copies_stale(cluster: &Tiny) {
    let client = cluster.client(1);
    assert!(patiently(|| client.get(&key(BOUNDARY + 1))).is_some());
    for k in (0..BOUNDARY).rev().step_by(FANOUT).take(2) {
        assert!(patiently(|| client.insert(&behind(k), &value(1))));
    }
}

/// Lets another worker of the second compute server reach the split nodes and empty leaves around `k`, as far
/// as it is not obstructed.
fn merge_around(cluster: &Tiny, k: u64) {
    let client = cluster.client(9);
    let far = (k + 2 * FANOUT as u64..KEYS).step_by(FANOUT);
    far.take(6).for_each(|k| {
        let _ = client.insert(&behind(k), &value(2));
    });
    for near in k.saturating_sub(2 * FANOUT as u64).max(BOUNDARY)..k + 2 * FANOUT as u64 {
        if near != k && near < KEYS {
            let _ = client.remove(&key(near));
        }
    }
}

fn put(client: &Client<'_, FixedLayout>, k: u64, n: u64) -> bool {
    patiently(|| client.put(&key(k), &value(n)))
}

#[test]
fn an_update_is_made_in_a_living_node() {
    let mut merges = 0;
    for k in BOUNDARY + 1..KEYS {
        for look in 1..=LOOKS {
            let cluster = cluster();
            make_copies_stale(&cluster);
            let client = cluster.observed(3, 0);
            let other = Rc::clone(&cluster);
            client.observed().preempt(look, move || merge_around(&other, k));
            assert!(put(&client, k, 7), "key {k} was there");
            if client.observed().was_preempted() {
                merges += cluster.trees[1].smo_counts()[1];
                assert_eq!(patiently(|| client.get(&key(k))), Some(value(7)), "key {k}, look {look}");
            }
        }
    }
    assert!(merges > 0, "nothing was merged");
}

#[test]
fn a_batch_brings_no_dead_leaf_back() {
    let mut merges = 0;
    for k in BOUNDARY + 1..KEYS {
        let cluster = cluster();
        make_copies_stale(&cluster);
        let client = cluster.observed(3, 1);
        let (tree, ctx) = client.server(1);
        // The second key is below a node that is READ first, so that the batch waits when it knows the leaf
        // of `k`.
        let far = if k < 3 * KEYS / 4 { KEYS - 1 } else { BOUNDARY + 1 };
        let (keys, mut answers) = ([key(k), key(far)], Answers::default());
        let mut batch = pin!(tree.multi_get(ctx, &keys, &mut answers));
        let mut cx = Context::from_waker(Waker::noop());
        // While nodes are being READ.
        if batch.as_mut().poll(&mut cx).is_pending() {
            merge_around(&cluster, k);
            merges += tree.smo_counts()[1];
            // The batch may run out of patience on a busy machine, without effect.
            let done = block_on(&client.ep, batch);
            assert!(matches!(done, Ok(_) | Err(DexError::TimedOut { .. })), "key {k}: {done:?}");
            assert_eq!(pando_dex::audit::audit_cache(tree), [""; 0], "key {k}");
            // Freed blocks are used again.
            let client = cluster.client(5);
            for near in BOUNDARY..KEYS {
                for i in 1..4 {
                    let key = (near << 16 | i << 1).to_be_bytes();
                    patiently(|| client.put(&key, &value(i)));
                }
            }
            assert!(patiently(|| client.get(&key(k))).is_some());
        }
    }
    assert!(merges > 0, "nothing was merged");
}
