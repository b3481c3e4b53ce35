//! Leaves that are READ together: the numbers of READs and rounds of scans and of lookups of many keys.
//!
//! The results must be right even if other operations change leaves whose copies wait in a scan or a lookup.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use crate::common::{Client, Cluster, Entries, fixed_tiny, model_scan};
use pando_cache::{Admission, CacheConfig};
use pando_dex::layout::Layout;
use pando_dex::layout::fixed::FixedLayout;
use pando_dex::layout::slotted::SlottedLayout;
use pando_dex::{Answers, ScanRange};
use pando_fabric::{DynEndpoint, Endpoint, Fabric};
use proptest::prelude::*;

/// Number of entries in a leaf of 1 KiB.
const LEAF: u64 = 60;
/// Default of the configuration.
const WINDOW: u64 = 8;

fn key(k: u64) -> Vec<u8> {
    (k << 16).to_be_bytes().to_vec()
}

fn value(k: u64, n: u64) -> Vec<u8> {
    (k << 32 | n).to_le_bytes().to_vec()
}

fn entries(n: u64) -> Entries {
    (0..n).map(|k| (key(k), value(k, 0))).collect()
}

fn frames(n: u64) -> impl Fn(&mut CacheConfig) {
    move |config| config.bytes = n * config.node_size as u64
}

/// An index of `n` entries in leaves of `fill * 60` entries, none of which is cached.
fn cold(n: u64, fill: f64, boundaries: &[Vec<u8>]) -> Cluster<FixedLayout> {
    let layout = FixedLayout::new(1024, 8, 8).unwrap();
    Cluster::loaded(layout, 1, boundaries, &entries(n), fill, frames(1000))
}

/// Cost of an operation: READs of leaves, rounds of them, and the largest number of READs outstanding
/// together.
#[derive(Debug, PartialEq, Eq)]
struct Cost {
    leaves: u64,
    rounds: u64,
    together: u64,
}

fn cost<L: Layout, T>(client: &Client<'_, L>, what: impl FnOnce() -> T) -> (Cost, T) {
    let counts = || client.trees.iter().map(|tree| tree.cache().counts()).sum();
    let (before, reads): (pando_cache::CacheCounts, _) = (counts(), client.ep.counters().snapshot().reads);
    client.observed().take();
    let done = what();
    let (together, rounds) = client.observed().take();
    let missed = counts() - before;
    let reads = client.ep.counters().snapshot().reads - reads;
    // A shared inner node is READ with its lock word before and after.
    let inner = reads - missed.leaf_misses;
    let shared = client.trees.len() > 1;
    assert!(
        inner == missed.inner_misses || shared && inner <= 3 * missed.inner_misses,
        "READs that are no misses"
    );
    // Inner nodes are READ one after the other.
    (Cost { leaves: missed.leaf_misses, rounds: rounds - missed.inner_misses, together }, done)
}

fn limited(low: &[u8], limit: u64) -> ScanRange<'_> {
    ScanRange { low: Bound::Included(low), limit: limit as usize, ..ScanRange::all() }
}

#[test]
fn a_cold_scan_reads_the_leaves_that_it_touches_in_fewer_rounds() {
    for fill in [0.5, 1.0] {
        let per_leaf = (LEAF as f64 * fill) as u64;
        for (start, limit) in
            [(0, 100), (29, 100), (30, 1), (31, 60), (59, 61), (7, 500), (1000, 119), (60, 0)]
        {
            for reverse in [false, true] {
                let cluster = cold(3000, fill, &[]);
                let client = cluster.observed(1, 3);
                // Upwards from `start`, or the same entries downwards from the highest one.
                let (low, high) = (key(start), key(start + limit));
                let range = match reverse {
                    false => limited(&low, limit),
                    true => ScanRange {
                        high: Bound::Excluded(&high),
                        limit: limit as usize,
                        reverse,
                        ..ScanRange::all()
                    },
                };
                let (cost, found) = cost(&client, || client.scan(&range).unwrap());
                let mut expected = entries(3000)[start as usize..(start + limit) as usize].to_vec();
                if reverse {
                    expected.reverse();
                }
                assert_eq!(found, expected);
                let touched = match limit {
                    0 => 0,
                    _ => (start + limit - 1) / per_leaf - start / per_leaf + 1,
                };
                assert_eq!(cost.leaves, touched, "{start} {limit} {reverse} at fill {fill}");
                // The first round has as many leaves as are needed if all are full; further rounds have the
                // rest.
                let first = limit.div_ceil(LEAF).min(WINDOW);
                assert_eq!(
                    cost.together,
                    first.max(1).min(touched),
                    "{start} {limit} {reverse} at fill {fill}"
                );
                assert!(cost.rounds <= touched && (touched < 2 || limit <= LEAF || cost.rounds < touched));
            }
        }
    }
}

#[test]
fn full_leaves_of_a_limited_scan_come_in_one_round_and_half_full_ones_in_three() {
    let costs = [1.0, 0.5].map(|fill| {
        let cluster = cold(3000, fill, &[]);
        let client = cluster.observed(1, 3);
        let low = key(600);
        cost(&client, || client.scan(&limited(&low, 100)).unwrap()).0
    });
    assert_eq!(costs[0], Cost { leaves: 2, rounds: 1, together: 2 });
    assert_eq!(costs[1], Cost { leaves: 4, rounds: 3, together: 2 });
}

#[test]
fn a_scan_without_a_limit_reads_a_window_at_a_time() {
    for reverse in [false, true] {
        // 40 leaves under one node.
        let cluster = cold(40 * LEAF, 1.0, &[]);
        let client = cluster.observed(1, 3);
        let all = ScanRange { reverse, ..ScanRange::all() };
        let (first, found) = cost(&client, || client.scan(&all).unwrap());
        assert_eq!(found.len() as u64, 40 * LEAF);
        assert_eq!(first, Cost { leaves: 40, rounds: 40 / WINDOW, together: WINDOW });
        let (again, found) = cost(&client, || client.scan(&all).unwrap());
        assert_eq!(found.len() as u64, 40 * LEAF);
        assert_eq!(again, Cost { leaves: 0, rounds: 0, together: 0 }, "all is cached");
    }
}

#[test]
fn a_scan_up_to_a_bound_reads_nothing_beyond_it() {
    for (low, high, leaves) in [
        (Bound::Unbounded, Bound::Excluded(5 * LEAF), 5),
        (Bound::Unbounded, Bound::Included(5 * LEAF), 6),
        (Bound::Included(2 * LEAF), Bound::Excluded(5 * LEAF + 1), 4),
        (Bound::Excluded(3 * LEAF - 1), Bound::Included(4 * LEAF - 1), 2),
        (Bound::Included(38 * LEAF), Bound::Unbounded, 2),
    ] {
        for reverse in [false, true] {
            let cluster = cold(40 * LEAF, 1.0, &[]);
            let client = cluster.observed(1, 3);
            let (low, high) = (low.map(key), high.map(key));
            let range = ScanRange {
                low: low.as_ref().map(Vec::as_slice),
                high: high.as_ref().map(Vec::as_slice),
                limit: usize::MAX,
                reverse,
            };
            let (cost, found) = cost(&client, || client.scan(&range).unwrap());
            assert_eq!(found, model_scan(&entries(40 * LEAF).into_iter().collect(), &range));
            assert_eq!((cost.leaves, cost.rounds), (leaves, 1), "{range:?}");
        }
    }
}

#[test]
fn leaves_of_other_compute_servers_and_other_parents_are_not_read_ahead() {
    // Three partitions of 24 leaves each; the boundaries lie between leaves.
    let boundaries = [key(24 * LEAF), key(48 * LEAF)];
    let layout = FixedLayout::new(1024, 8, 8).unwrap();
    let all = entries(72 * LEAF);
    let cluster = Cluster::loaded(layout, 2, &boundaries, &all, 1.0, frames(1000));
    let client = cluster.observed(1, 3);
    for (reverse, server) in [(false, 0), (true, 2)] {
        let (tree, ctx) = client.server(server);
        let range = ScanRange { reverse, ..ScanRange::all() };
        let mut found = 0;
        let (cost, _) = cost(&client, || {
            pando_rt::block_on(
                &client.ep,
                tree.scan(ctx, &range, |_, _| {
                    found += 1;
                    true
                }),
            )
            .unwrap()
        });
        assert_eq!((found, cost.leaves), (24 * LEAF, 24));
        assert!(cost.rounds < 24 / 2, "{cost:?}");
    }
    let (rest, found) = cost(&client, || client.scan(&ScanRange::all()).unwrap());
    assert_eq!((rest.leaves, found), (24, all), "only the middle partition was cold");
}

#[test]
fn a_few_frames_allow_two_leaves_at_a_time() {
    let layout = FixedLayout::new(1024, 8, 8).unwrap();
    for admission in [0.0, 0.1, 1.0] {
        let cluster = Cluster::loaded(layout, 1, &[], &entries(40 * LEAF), 1.0, |config| {
            frames(8)(config);
            config.admission = Admission::lazy(admission);
        });
        let client = cluster.observed(1, 3);
        for reverse in [false, true] {
            let range = ScanRange { reverse, ..ScanRange::all() };
            let (cost, found) = cost(&client, || client.scan(&range).unwrap());
            assert_eq!(found.len() as u64, 40 * LEAF);
            assert!(cost.leaves <= 40 && cost.together == 2, "{cost:?}");
        }
        assert_eq!(cluster.audit(), Vec::<String>::new());
    }
}

#[test]
fn lookups_of_many_keys_read_each_missing_leaf_once_and_all_in_one_round() {
    let cluster = cold(3000, 0.5, &[]);
    let client = cluster.observed(1, 3);
    // Two keys in each of ten leaves of 30 entries, and two of another leaf, one of which is absent.
    let mut absent = key(45);
    absent[7] = 1;
    let wanted: Vec<_> =
        (0..10).flat_map(|leaf| [key(90 * leaf), key(90 * leaf + 29)]).chain([key(45), absent]).collect();
    let (first, found) = cost(&client, || client.multi_get(&wanted).unwrap());
    let model: BTreeMap<_, _> = entries(3000).into_iter().collect();
    assert_eq!(found, wanted.iter().map(|key| model.get(key).cloned()).collect::<Vec<_>>());
    assert_eq!(found.iter().filter(|value| value.is_none()).count(), 1);
    assert_eq!(first, Cost { leaves: 11, rounds: 1, together: 11 });
    let (again, _) = cost(&client, || client.multi_get(&wanted).unwrap());
    assert_eq!(again.leaves, 0);
}

#[test]
fn lookups_of_many_keys_do_with_few_frames_and_with_long_values() {
    let layout = SlottedLayout::new(512).unwrap();
    let long = |k: u64| vec![k as u8; [0, 8, 300, 5000][k as usize % 4]];
    let entries: Entries = (0..400).map(|k| (key(k), long(k))).collect();
    let cluster = Cluster::loaded(layout, 1, &[], &entries, 0.9, frames(8));
    let client = cluster.observed(1, 3);
    for round in 0..20_u64 {
        let keys: Vec<_> = (0..100).map(|i| key((i * 7 + round * 31) % 430)).collect();
        let found = client.multi_get(&keys).unwrap();
        for (i, found) in found.into_iter().enumerate() {
            let k = (i as u64 * 7 + round * 31) % 430;
            assert_eq!(found, (k < 400).then(|| long(k)), "key {k}");
        }
    }
    assert_eq!(cluster.audit(), Vec::<String>::new());
}

#[test]
fn scans_that_want_the_same_leaves_from_both_ends_do_not_wait_for_each_other() {
    let layout = FixedLayout::new(1024, 8, 8).unwrap();
    for (n, slots) in [(8, 2), (64, 16)] {
        let cluster = Cluster::loaded(layout, 1, &[], &entries(40 * LEAF), 1.0, frames(n));
        let client = cluster.observed(7, 5);
        let (tree, ctx) = client.server(0);
        let scans = (0..slots).map(|slot| async move {
            let range = ScanRange { reverse: slot % 2 == 1, ..ScanRange::all() };
            let mut found = 0;
            tree.scan(ctx, &range, |_, _| {
                found += 1;
                true
            })
            .await
            .unwrap();
            found
        });
        let found = pando_rt::run_slots(&client.ep, scans.collect());
        assert!(found.into_iter().all(|entries| entries == 40 * LEAF));
        assert_eq!(cluster.audit(), Vec::<String>::new());
    }
}

#[test]
fn a_scan_that_is_given_up_leaves_nothing_behind() {
    let cluster = cold(40 * LEAF, 1.0, &[]);
    let client = cluster.observed(1, 2);
    let (tree, ctx) = client.server(0);
    for polls in 0..8 {
        let range = ScanRange::all();
        let scan = tree.scan(ctx, &range, |_, _| true);
        let mut scan = std::pin::pin!(scan);
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        for _ in 0..polls {
            if scan.as_mut().poll(&mut cx).is_ready() {
                break;
            }
        }
    }
    assert_eq!(client.scan(&ScanRange::all()).unwrap().len() as u64, 40 * LEAF);
    assert_eq!(cluster.audit(), Vec::<String>::new());
}

/// A change of the index during a scan.
#[derive(Clone, Debug)]
struct Meddling {
    /// Number of entries scanned before the change.
    after: usize,
    first: u64,
    keys: u64,
    remove: bool,
}

fn meddling() -> impl Strategy<Value = Meddling> {
    (0..60_usize, 0..300_u64, 1..60_u64, any::<bool>()).prop_map(|(after, first, keys, remove)| Meddling {
        after,
        first,
        keys,
        remove,
    })
}

/// Scans while the visitor changes the index through another client. The scan must return, in order, all keys
/// that were present throughout, and none that was absent throughout.
fn scan_while_meddling(
    cluster: &Cluster<impl Layout>,
    start: &[u64],
    meddlings: &[Meddling],
    range: &ScanRange<'_>,
) {
    let (client, other) = (cluster.observed(1, 3), cluster.client(2));
    let mut present: BTreeSet<u64> = start.iter().copied().collect();
    for &k in start {
        client.put(&key(k), &value(k, 0)).unwrap();
    }
    let (mut throughout, mut ever) = (present.clone(), present.clone());
    let found = client
        .scan_and(range, |found| {
            for meddling in meddlings.iter().filter(|meddling| meddling.after + 1 == found.len()) {
                for k in meddling.first..meddling.first + meddling.keys {
                    if meddling.remove {
                        other.remove(&key(k)).unwrap();
                        present.remove(&k);
                        throughout.remove(&k);
                    } else {
                        other.put(&key(k), &value(k, 1)).unwrap();
                        present.insert(k);
                        ever.insert(k);
                    }
                }
            }
        })
        .unwrap();
    let keys: Vec<u64> =
        found.iter().map(|(key, _)| u64::from_be_bytes(key[..].try_into().unwrap()) >> 16).collect();
    let in_order = |a: u64, b: u64| if range.reverse { a > b } else { a < b };
    assert!(keys.windows(2).all(|pair| in_order(pair[0], pair[1])), "{keys:?}");
    assert!(keys.iter().all(|k| ever.contains(k)), "a key that never was there");
    let model: BTreeMap<_, _> = throughout.iter().map(|&k| (key(k), value(k, 0))).collect();
    let reached = |k: u64| found.len() < range.limit || keys.last().is_some_and(|&last| !in_order(last, k));
    for (missing, _) in model_scan(&model, &ScanRange { limit: usize::MAX, ..*range }) {
        let k = u64::from_be_bytes(missing.try_into().unwrap()) >> 16;
        assert!(!reached(k) || keys.contains(&k), "key {k} was there throughout: {keys:?}");
    }
    drop((client, other));
    assert_eq!(cluster.audit(), Vec::<String>::new());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn leaves_that_change_while_they_wait_in_a_scan(
        start in proptest::collection::btree_set(0..360_u64, 0..300),
        meddlings in proptest::collection::vec(meddling(), 0..8),
        low in 0..200_u64,
        limit in prop_oneof![Just(usize::MAX), 1..200_usize],
        reverse in any::<bool>(),
        frames_of in prop_oneof![Just(12_u64), Just(64), Just(1000)],
        admission in prop_oneof![Just(0.0), Just(0.1), Just(1.0)],
        boundary in proptest::option::of(0..360_u64),
    ) {
        let start: Vec<_> = start.into_iter().collect();
        let boundaries: Vec<_> = boundary.map(key).into_iter().collect();
        let cluster = Cluster::new(fixed_tiny(), 1, &boundaries, |config| {
            frames(frames_of + 4)(config);
            config.admission = Admission::lazy(admission);
        });
        let low = key(low);
        let range = ScanRange { low: Bound::Included(&low), limit, reverse, ..ScanRange::all() };
        scan_while_meddling(&cluster, &start, &meddlings, &range);
    }
}

/// A slotted leaf here has few entries, but could have many.
#[test]
fn slotted_leaves_are_read_ahead_as_far_as_small_entries_would_need() {
    let layout = SlottedLayout::new(1024).unwrap();
    let entries: Entries = (0..2000).map(|k| (key(k), vec![7; 40])).collect();
    let ranges = [usize::MAX, 300, 100, 60, 7];
    let costs = ranges.map(|limit| {
        let cluster = Cluster::loaded(layout, 1, &[], &entries, 1.0, frames(1000));
        let client = cluster.observed(1, 3);
        let low = key(5);
        let (together, found) = cost(&client, || client.scan(&limited(&low, limit as u64)).unwrap());
        assert_eq!(found, entries[5..].iter().take(limit).cloned().collect::<Vec<_>>());
        assert!(together.rounds < together.leaves || limit <= 60, "{together:?}");
        together
    });
    assert!(costs[0].rounds * 4 < costs[0].leaves, "{costs:?}");
}

/// A leaf that is merged between the validation of its parent and the READ must not come into the cache: its
/// block may belong to another node by then.
#[test]
fn leaves_that_vanish_under_a_lookup_of_many_keys_are_not_cached() {
    let mut meddled = 0;
    for polls in 0..20 {
        let cluster = Cluster::loaded(fixed_tiny(), 1, &[], &entries(400), 1.0, frames(1000));
        let (client, other) = (cluster.observed(1, 1), cluster.client(2));
        // The inner nodes above the first leaves are cached, those above the last one are not.
        (0..60).step_by(12).for_each(|k| assert!(client.get(&key(k)).unwrap().is_some()));
        let wanted: Vec<_> = [6, 10, 390].map(key).to_vec();
        let mut answers = Answers::default();
        {
            let (tree, ctx) = client.server(0);
            let mut lookups = std::pin::pin!(tree.multi_get(ctx, &wanted, &mut answers));
            let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
            let mut done = (0..polls).any(|_| lookups.as_mut().poll(&mut cx).is_ready());
            let mut in_flight = Vec::new();
            tree.cache().table().for_each(|addr, frame| in_flight.extend(frame.is_none().then_some(addr)));
            // One of the inner nodes is in flight, so the leaves are not yet. Remove from the right, so that
            // leaves are merged into those to their left.
            if in_flight.len() == 1 {
                meddled += 1;
                for k in (0..20).rev().filter(|k| k % 4 != 2) {
                    other.remove(&key(k)).unwrap();
                }
            }
            while !done {
                done = lookups.as_mut().poll(&mut cx).is_ready();
            }
        }
        let found: Vec<_> = answers.iter().map(|found| found.map(<[u8]>::to_vec)).collect();
        assert_eq!(found, [6, 10, 390].map(|k| Some(value(k, 0))));
        client.scan(&ScanRange::all()).unwrap();
        drop((client, other));
        let ep = DynEndpoint::new(cluster.fabric.endpoint(9).unwrap());
        let report = pando_rt::block_on(&ep, pando_dex::audit::audit(&ep, &[&cluster.trees[0]])).unwrap();
        let mut cached = 0;
        cluster.trees[0].cache().table().for_each(|_, frame| cached += u64::from(frame.is_some()));
        assert_eq!(cached, report.leaves + report.inner_nodes, "after {polls} polls");
        assert_eq!(cluster.audit(), Vec::<String>::new());
    }
    assert!(meddled > 0);
}
