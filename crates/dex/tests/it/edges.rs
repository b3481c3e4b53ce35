//! Edge cases of the tree: damaged long values, long values in batches, an index that cannot be created, and
//! orphans after splits of shared nodes.

use crate::common::load::key;
use crate::common::{Cluster, INDEX, fixed_tiny};
use pando_dex::layout::slotted::SlottedLayout;
use pando_dex::{DexError, ScanRange, Tree};
use pando_fabric::{DynEndpoint, Endpoint, Fabric, GlobalAddr, MemoryServerId, Random};
use pando_pool::PoolError;
use pando_rt::block_on;

fn cluster() -> Cluster<SlottedLayout> {
    Cluster::new(SlottedLayout::new(512).expect("a node size"), 1, &[], |_| {})
}

/// Addresses at which `word` lies in the memory of the only server.
fn places_of(cluster: &Cluster<SlottedLayout>, word: u64) -> Vec<GlobalAddr> {
    let ep = DynEndpoint::new(cluster.fabric.endpoint(5).expect("an endpoint"));
    let words = (0..cluster.fabric.regions()[0].len / 8).map(|at| GlobalAddr::new(MemoryServerId(0), at * 8));
    words.filter(|&at| block_on(&ep, ep.read_word(at)).expect("a READ") == word).collect()
}

fn flip(cluster: &Cluster<SlottedLayout>, at: GlobalAddr) {
    let ep = DynEndpoint::new(cluster.fabric.endpoint(5).expect("an endpoint"));
    let word = block_on(&ep, ep.read_word(at)).expect("a READ");
    block_on(&ep, ep.write_word(at, word ^ 1 << 17)).expect("a WRITE");
}

#[test]
fn a_flipped_bit_in_a_long_value_is_an_error_that_names_its_address() {
    // The damage is in a single block; in a piece of several; in the list of the pieces.
    for (len, in_list) in [(3_000, false), (300_000, false), (300_000, true)] {
        let cluster = cluster();
        let client = cluster.client(1);
        let value = vec![0xab; len];
        client.put(b"long", &value).expect("room");
        client.put(b"other", b"short").expect("room");
        let word = if in_list { len as u64 } else { u64::from_le_bytes([0xab; 8]) };
        let at = *places_of(&cluster, word).first().expect("the value was stored");
        flip(&cluster, at);
        let refused = |result: Result<(), DexError>| match result {
            Err(error @ DexError::Pool(PoolError::Corrupt { addr, .. })) => {
                assert_eq!(addr.server(), MemoryServerId(0));
                assert!(error.to_string().contains(&addr.to_string()), "{error}");
            }
            other => panic!("{len} bytes, in the list: {in_list}: {other:?}"),
        };
        refused(client.get(b"long").map(drop));
        refused(client.scan(&ScanRange { limit: 9, ..ScanRange::all() }).map(drop));
        refused(client.swap(b"long", Some(&value), Some(b"new")).map(drop));
        assert_eq!(client.get(b"other").expect("sound").as_deref(), Some(&b"short"[..]));
        // The error was immediate and is not permanent: after the bit is flipped back, the value is intact.
        flip(&cluster, at);
        assert_eq!(client.get(b"long").expect("sound again"), Some(value));
        assert_eq!(cluster.audit(), [""; 0]);
    }
}

#[test]
fn long_values_are_appended_to_what_is_there() {
    let cluster = cluster();
    let client = cluster.client(1);
    let values: Vec<Vec<u8>> = (1..=4u8).map(|n| vec![n; 1_000 * usize::from(n)]).collect();
    for (n, value) in values.iter().enumerate() {
        client.put(&[n as u8], value).expect("room");
    }
    let (tree, ctx) = client.server(0);
    let mut out = b"before ".to_vec();
    for n in 0..4 {
        assert!(block_on(ctx.ep, tree.get(ctx, &[n], &mut out)).expect("sound"));
    }
    assert_eq!(out, [b"before ".to_vec(), values.concat()].concat());
    let keys: Vec<[u8; 1]> = (0..5).map(|n| [n]).collect();
    let mut answers = pando_dex::Answers::default();
    block_on(ctx.ep, tree.multi_get(ctx, &keys, &mut answers)).expect("sound");
    for n in 0..5 {
        assert_eq!(answers.get(n), values.get(n).map(Vec::as_slice), "key {n}");
    }
}

#[test]
fn an_index_whose_boundaries_do_not_fit_leaves_nothing_behind() {
    let cluster = cluster();
    let ep = DynEndpoint::new(cluster.fabric.endpoint(3).expect("an endpoint"));
    let layout = SlottedLayout::new(512).expect("a node size");
    let boundaries: Vec<Vec<u8>> = (0..40u8).map(|n| vec![n; 60]).collect();
    let allocated = || {
        let usage = block_on(&ep, cluster.pool.usage(&ep)).expect("usage");
        usage.iter().map(|server| server.blocks_allocated).sum::<u64>()
    };
    let before = allocated();
    let refused = block_on(&ep, Tree::create(&ep, &cluster.pool, layout, INDEX + 1, &boundaries));
    assert!(matches!(refused, Err(DexError::Layout(_))), "{refused:?}");
    assert_eq!(allocated(), before, "nodes leaked");
    let made = block_on(&ep, Tree::create(&ep, &cluster.pool, layout, INDEX + 1, &boundaries[..2]));
    assert!(made.is_ok() && allocated() == before + 4, "a root and three leaves: {made:?}");
}

/// Leaves cached below a shared node are not swizzled. If a split gives them an owned parent that never was
/// shared, operations on them may be offloaded, so they must be counted as orphans. The audit checks that
/// after each change.
#[test]
fn hot_leaves_are_counted_when_their_parents_are_split_off_a_shared_node() {
    for seed in 0..12 {
        let cluster = Cluster::new(fixed_tiny(), 1, &[key(500)], |config| config.bytes = 1 << 20);
        let client = cluster.client(seed);
        let random = Random::new(seed);
        for _ in 0..300 {
            let n = 480 + random.next() % 520;
            client.put(&key(n), &n.to_be_bytes()).expect("room");
            for tree in &cluster.trees {
                assert_eq!(pando_dex::audit::audit_cache(tree), [""; 0], "seed {seed}, key {n}");
            }
        }
        assert_eq!(cluster.audit(), [""; 0]);
    }
}
