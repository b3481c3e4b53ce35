//! Operations of slots on a tree that other slots use too, and the checks of their results.
//!
//! Every slot owns a share of the keys and keeps a model of them; all slots read and scan all keys.

use std::collections::BTreeMap;

use pando_dex::layout::Layout;
use pando_dex::{Answers, Ctx, ScanRange, Swapped, Tree, partition_of};
use pando_fabric::{DynEndpoint, Endpoint, Fabric};

use super::{Client, Cluster};

pub fn key(k: u64) -> Vec<u8> {
    (k << 32).to_be_bytes().to_vec()
}

/// Value of a key: the key, and a number that increases with each change by its owner.
fn value(k: u64, n: u64) -> Vec<u8> {
    (k << 40 | n).to_le_bytes().to_vec()
}

#[derive(Clone, Copy)]
pub struct Load {
    pub keys: u64,
    /// Whether all keys are present when the operations begin.
    pub fill: bool,
    pub threads: u64,
    pub slots: u64,
    pub operations: u64,
    /// Least number of levels of the tree at the end.
    pub height: u32,
    /// READs are pending between 1 and this many times; 0 is never.
    pub delay_max: u64,
}

impl Load {
    /// Checks that the tree is high enough, and that nodes were split and merged.
    pub fn check_shape<L: Layout, F: Fabric>(&self, cluster: &Cluster<L, F>) {
        let height = cluster.trees.iter().map(|tree| tree.height()).max();
        assert!(height >= Some(self.height), "{height:?}");
        let smos = cluster.trees.iter().map(|tree| tree.smo_counts());
        let [splits, merges] = smos.fold([0; 2], |sum, counts| [sum[0] + counts[0], sum[1] + counts[1]]);
        assert!(splits > 10 && merges > 0, "{splits} splits, {merges} merges");
    }
}

/// All operations of one slot. The slot owns the keys that are `owner` modulo the number of slots.
pub async fn work<L: Layout>(client: &Client<'_, L>, load: &Load, owner: u64) {
    let owners = load.threads * load.slots;
    let mut model = BTreeMap::new();
    let own = (owner..load.keys).step_by(owners as usize).filter(|_| load.fill);
    let mut own: Vec<_> = own.map(|k| (client.ep.random(), k)).collect();
    own.sort_unstable();
    for (_, k) in own {
        let (tree, ctx) = place(client, k);
        assert!(tree.insert(ctx, &key(k), &value(k, 0)).await.unwrap(), "insert {k}");
        model.insert(k, value(k, 0));
    }
    for n in 0..load.operations {
        step(client, load, &mut model, owner, n).await;
    }
    for k in (owner..load.keys).step_by(owners as usize) {
        assert_eq!(get(client, k).await, model.get(&k).cloned(), "key {k} at the end");
    }
}

fn place<'c, L: Layout>(client: &'c Client<'_, L>, k: u64) -> (&'c Tree<L>, Ctx<'c, DynEndpoint>) {
    client.server(partition_of(client.boundaries, &key(k)))
}

async fn get<L: Layout>(client: &Client<'_, L>, k: u64) -> Option<Vec<u8>> {
    let (tree, ctx) = place(client, k);
    let mut out = Vec::new();
    tree.get(ctx, &key(k), &mut out).await.unwrap().then_some(out)
}

async fn step<L: Layout>(
    client: &Client<'_, L>,
    load: &Load,
    model: &mut BTreeMap<u64, Vec<u8>>,
    owner: u64,
    n: u64,
) {
    let random = client.ep.random();
    let (any, owners) = (random % load.keys, load.threads * load.slots);
    let own = any / owners * owners + owner;
    let (tree, ctx) = place(client, own);
    match random >> 32 & 31 {
        0..6 if own < load.keys => {
            let existed = tree.put(ctx, &key(own), &value(own, n)).await.unwrap();
            assert_eq!(existed, model.insert(own, value(own, n)).is_some(), "put {own}");
        }
        6..8 if own < load.keys => {
            let inserted = tree.insert(ctx, &key(own), &value(own, n)).await.unwrap();
            assert_eq!(inserted, !model.contains_key(&own), "insert {own}");
            model.entry(own).or_insert_with(|| value(own, n));
        }
        8..10 if own < load.keys => {
            let (found, new) = (model.get(&own).cloned(), value(own, n));
            let swapped = tree.compare_and_swap(ctx, &key(own), found.as_deref(), Some(&new)).await.unwrap();
            assert_eq!(swapped, Swapped::Done, "swap {own}");
            model.insert(own, new);
        }
        10..16 if own < load.keys => {
            let existed = tree.remove(ctx, &key(own)).await.unwrap();
            assert_eq!(existed, model.remove(&own).is_some(), "remove {own}");
        }
        16..20 if own < load.keys => {
            assert_eq!(get(client, own).await, model.get(&own).cloned(), "get {own}");
        }
        20..22 => scan(client, model, any).await,
        22 => drop(tree.flush(ctx).await.unwrap()),
        23 if own < load.keys => multi_get(client, load, model, own).await,
        _ => {
            if let Some(found) = get(client, any).await {
                let word = u64::from_le_bytes(found.try_into().unwrap());
                assert_eq!(word >> 40, any, "value of another key");
            }
        }
    }
}

/// Scans from a key to the end of its compute server's keys and back. The keys of this slot do not change
/// meanwhile, so the scan must return all of them.
async fn scan<L: Layout>(client: &Client<'_, L>, model: &BTreeMap<u64, Vec<u8>>, start: u64) {
    let (tree, ctx) = place(client, start);
    let low = key(start);
    let limit = if start.is_multiple_of(3) { 200 } else { 30 };
    for reverse in [false, true] {
        let in_order = |a: u64, b: u64| if reverse { a > b } else { a < b };
        let mut found: Vec<u64> = Vec::new();
        let range = ScanRange { low: std::ops::Bound::Included(&low), limit, reverse, ..ScanRange::all() };
        tree.scan(ctx, &range, |key, value| {
            let k = u64::from_be_bytes(key.try_into().unwrap()) >> 32;
            let word = u64::from_le_bytes(value.try_into().unwrap());
            assert_eq!(word >> 40, k, "value of another key");
            assert!(key >= low.as_slice(), "below the start");
            assert!(found.last().is_none_or(|&last| in_order(last, k)), "out of order");
            if let Some(own) = model.get(&k) {
                assert_eq!(value, own.as_slice(), "an old value of key {k}");
            }
            found.push(k);
            true
        })
        .await
        .unwrap();
        let reached = |k: u64| found.len() < limit || found.last().is_some_and(|&last| !in_order(last, k));
        for &k in model.keys().filter(|&&k| k >= start && tree.config().range.contains(&key(k))) {
            assert!(!reached(k) || found.contains(&k), "key {k} was there throughout: {found:?}");
        }
    }
}

/// Looks up keys of this slot together with neighbouring keys.
async fn multi_get<L: Layout>(client: &Client<'_, L>, load: &Load, model: &BTreeMap<u64, Vec<u8>>, own: u64) {
    let owners = load.threads * load.slots;
    let (tree, ctx) = place(client, own);
    let keys: Vec<u64> = (0..20)
        .map(|i| (own + i * 7 / 4 * owners + i % 2) % load.keys)
        .filter(|&k| tree.config().range.contains(&key(k)))
        .collect();
    let mut answers = Answers::default();
    tree.multi_get(ctx, &keys.iter().map(|&k| key(k)).collect::<Vec<_>>(), &mut answers).await.unwrap();
    for (&k, found) in keys.iter().zip(answers.iter()) {
        if k % owners == own % owners {
            assert_eq!(found, model.get(&k).map(Vec::as_slice), "key {k}");
        } else if let Some(found) = found {
            assert_eq!(u64::from_le_bytes(found.try_into().unwrap()) >> 40, k, "value of another key");
        }
    }
}
