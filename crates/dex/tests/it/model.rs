//! Operation sequences against `BTreeMap`.
//!
//! Nodes and caches are tiny, so that structure changes, evictions and refreshes happen all the time.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::common::{Cluster, fixed_tiny, model_scan};
use pando_cache::{Admission, CacheConfig, Eviction};
use pando_dex::layout::Layout;
use pando_dex::layout::slotted::SlottedLayout;
use pando_dex::{ScanRange, Swapped};
use proptest::prelude::*;

/// One operation on small key numbers; [`Shape`] makes keys and values of them.
#[derive(Clone, Debug)]
enum Op {
    Get(u16),
    MultiGet(Vec<u16>),
    Put(u16, u64),
    Insert(u16, u64),
    Update(u16, u64),
    Remove(u16),
    Swap(u16, Option<u64>, Option<u64>),
    Scan { low: Bound<u16>, high: Bound<u16>, limit: usize, reverse: bool },
    Flush,
}

const KEYS: u16 = 300;

fn bound() -> impl Strategy<Value = Bound<u16>> {
    prop_oneof![
        Just(Bound::Unbounded),
        (0..KEYS).prop_map(Bound::Included),
        (0..KEYS).prop_map(Bound::Excluded),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let value = || 0..4_u64;
    prop_oneof![
        4 => (0..KEYS).prop_map(Op::Get),
        1 => proptest::collection::vec(0..KEYS, 0..80).prop_map(Op::MultiGet),
        6 => (0..KEYS, value()).prop_map(|(key, value)| Op::Put(key, value)),
        6 => (0..KEYS, value()).prop_map(|(key, value)| Op::Insert(key, value)),
        2 => (0..KEYS, value()).prop_map(|(key, value)| Op::Update(key, value)),
        8 => (0..KEYS).prop_map(Op::Remove),
        2 => (0..KEYS, proptest::option::of(value()), proptest::option::of(value()))
            .prop_map(|(key, old, new)| Op::Swap(key, old, new)),
        2 => (bound(), bound(), prop_oneof![Just(usize::MAX), 0..40_usize], any::<bool>())
            .prop_map(|(low, high, limit, reverse)| Op::Scan { low, high, limit, reverse }),
        1 => Just(Op::Flush),
    ]
}

/// Keys and values of an index, made of small numbers.
#[derive(Clone, Copy)]
struct Shape {
    key: fn(u16) -> Vec<u8>,
    value: fn(u16, u64) -> Vec<u8>,
}

fn run<L: Layout>(cluster: &Cluster<L>, ops: &[Op], shape: Shape) {
    let client = cluster.client(1);
    let mut model = BTreeMap::new();
    for (i, op) in ops.iter().enumerate() {
        check(&client, &mut model, op, shape);
        if i % 64 == 63 {
            assert_eq!(cluster.audit(), Vec::<String>::new(), "after operation {i}: {op:?}");
        }
    }
    assert_eq!(client.scan(&ScanRange::all()).unwrap(), model_scan(&model, &ScanRange::all()));
    assert_eq!(cluster.audit(), Vec::<String>::new());
}

fn check<L: Layout>(
    client: &crate::common::Client<'_, L>,
    model: &mut BTreeMap<Vec<u8>, Vec<u8>>,
    op: &Op,
    shape: Shape,
) {
    let (key, value) = (shape.key, shape.value);
    match *op {
        Op::MultiGet(ref keys) => {
            let keys: Vec<_> = keys.iter().map(|&k| key(k)).collect();
            let expected: Vec<_> = keys.iter().map(|key| model.get(key).cloned()).collect();
            assert_eq!(client.multi_get(&keys).unwrap(), expected, "{op:?}");
        }
        Op::Get(k) => assert_eq!(client.get(&key(k)).unwrap().as_ref(), model.get(&key(k)), "{op:?}"),
        Op::Put(k, v) => {
            let existed = client.put(&key(k), &value(k, v)).unwrap();
            assert_eq!(existed, model.insert(key(k), value(k, v)).is_some(), "{op:?}");
        }
        Op::Insert(k, v) => {
            let absent = !model.contains_key(&key(k));
            assert_eq!(client.insert(&key(k), &value(k, v)).unwrap(), absent, "{op:?}");
            model.entry(key(k)).or_insert_with(|| value(k, v));
        }
        Op::Update(k, v) => {
            let present = model.contains_key(&key(k));
            assert_eq!(client.update(&key(k), &value(k, v)).unwrap(), present, "{op:?}");
            model.entry(key(k)).and_modify(|old| *old = value(k, v));
        }
        Op::Remove(k) => {
            assert_eq!(client.remove(&key(k)).unwrap(), model.remove(&key(k)).is_some(), "{op:?}");
        }
        Op::Swap(k, old, new) => {
            let (old, new) = (old.map(|v| value(k, v)), new.map(|v| value(k, v)));
            let found = model.get(&key(k)).cloned();
            let swapped = client.swap(&key(k), old.as_deref(), new.as_deref()).unwrap();
            if found == old {
                assert_eq!(swapped, Swapped::Done, "{op:?}");
                match new {
                    Some(new) => drop(model.insert(key(k), new)),
                    None => drop(model.remove(&key(k))),
                }
            } else {
                assert_eq!(swapped, Swapped::Found(found), "{op:?}");
            }
        }
        Op::Scan { low, high, limit, reverse } => {
            let (low, high) = (low.map(key), high.map(key));
            let range = ScanRange {
                low: low.as_ref().map(Vec::as_slice),
                high: high.as_ref().map(Vec::as_slice),
                limit,
                reverse,
            };
            assert_eq!(client.scan(&range).unwrap(), model_scan(model, &range), "{op:?}");
        }
        Op::Flush => {
            for i in 0..client.trees.len() {
                let (tree, ctx) = client.server(i);
                pando_rt::block_on(&client.ep, tree.flush(ctx)).unwrap();
            }
        }
    }
}

fn integers() -> Shape {
    Shape {
        key: |k| (u64::from(k) * 0x0101_0000_0000).to_be_bytes().to_vec(),
        value: |k, v| (u64::from(k) << 32 | v).to_le_bytes().to_vec(),
    }
}

fn frames(n: u64) -> impl Fn(&mut CacheConfig) {
    move |config| config.bytes = n * config.node_size as u64
}

/// Keys of very different lengths, some prefixes of others; values from empty to out of line.
fn strings() -> Shape {
    Shape {
        key: |k| {
            let mut key = k.to_be_bytes().to_vec();
            key[0] = b'a' + key[0] * 3 + (k % 3) as u8;
            key.extend(std::iter::repeat_n((k % 2) as u8 * 0xff, usize::from(k) * 7 % 120));
            key
        },
        value: |k, v| {
            let len = [0, 5, 40, 700][v as usize] + usize::from(k % 3);
            (0..len).map(|i| (i as u64 ^ u64::from(k) ^ v) as u8).collect()
        },
    }
}

fn slotted(entries: usize) -> SlottedLayout {
    SlottedLayout::new(512).unwrap().with_fanout_limit(entries)
}

#[test]
fn lookups_at_once_keep_long_values_and_short_ones_apart() {
    let cluster = Cluster::new(slotted(4), 1, &[], frames(8));
    let (client, mut model) = (cluster.client(1), BTreeMap::new());
    for k in 0..60 {
        check(&client, &mut model, &Op::Put(k, u64::from(k) % 4), strings());
    }
    check(&client, &mut model, &Op::MultiGet((0..70).rev().collect()), strings());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn fixed_tiny_cache(ops in proptest::collection::vec(op(), 1..600)) {
        run(&Cluster::new(fixed_tiny(), 2, &[], frames(8)), &ops, integers());
    }

    #[test]
    fn fixed_large_cache(ops in proptest::collection::vec(op(), 1..600)) {
        run(&Cluster::new(fixed_tiny(), 1, &[], frames(1000)), &ops, integers());
    }

    #[test]
    fn fixed_three_compute_servers(ops in proptest::collection::vec(op(), 1..600)) {
        let boundaries = [(integers().key)(100), (integers().key)(200)];
        run(&Cluster::new(fixed_tiny(), 3, &boundaries, frames(8)), &ops, integers());
    }

    #[test]
    fn slotted_tiny_cache(ops in proptest::collection::vec(op(), 1..600)) {
        run(&Cluster::new(slotted(4), 2, &[], frames(8)), &ops, strings());
    }

    #[test]
    fn slotted_two_compute_servers(ops in proptest::collection::vec(op(), 1..500)) {
        let boundaries = [b"c".to_vec()];
        run(&Cluster::new(slotted(4), 2, &boundaries, frames(8)), &ops, strings());
    }

    #[test]
    fn slotted_five_compute_servers(ops in proptest::collection::vec(op(), 1..400)) {
        let boundaries = [&b"aa"[..], b"b", b"c\xff", b"d\x01"].map(<[u8]>::to_vec);
        run(&Cluster::new(slotted(4), 2, &boundaries, frames(8)), &ops, strings());
    }

    #[test]
    fn fixed_random_eviction(ops in proptest::collection::vec(op(), 1..400)) {
        let cache = |config: &mut CacheConfig| {
            frames(8)(config);
            config.eviction = Eviction::Random;
        };
        run(&Cluster::new(fixed_tiny(), 1, &[], cache), &ops, integers());
    }

    #[test]
    fn fixed_no_swizzling_fifo_eager(ops in proptest::collection::vec(op(), 1..400)) {
        let cache = |config: &mut CacheConfig| {
            frames(8)(config);
            config.swizzle = false;
            config.fifo = true;
            config.admission = Admission::eager();
        };
        run(&Cluster::new(fixed_tiny(), 2, &[], cache), &ops, integers());
    }
}
