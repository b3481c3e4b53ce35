//! An index that grows from nothing spreads over all memory servers, for any order of its keys.
//!
//! `PANDO_GROWTH_KEYS=20000000 cargo test --release -p pando-dex --test it growth:: -- --nocapture
//! --test-threads 1` runs the same tests at any size.

use crate::common::Cluster;
use pando_dex::layout::fixed::FixedLayout;
use pando_fabric::Random;

const SERVERS: usize = 4;

/// Load of the fullest memory server and the mean load, in bytes of blocks in use.
fn fullest_and_mean(cluster: &Cluster<FixedLayout>) -> (f64, f64) {
    let loads = cluster.pool.loads();
    let fullest = loads.iter().map(|&(_, bytes)| bytes).max().expect("there are servers");
    (fullest as f64, loads.iter().map(|&(_, bytes)| bytes as f64).sum::<f64>() / SERVERS as f64)
}

/// Number of keys of a test, unless the environment gives another one.
fn keys(usual: u64) -> u64 {
    let asked = std::env::var("PANDO_GROWTH_KEYS").ok();
    asked.map_or(usual, |keys| keys.parse().expect("PANDO_GROWTH_KEYS is a number"))
}

fn layout() -> FixedLayout {
    FixedLayout::new(1024, 8, 8).expect("possible")
}

fn grow(keys: u64, boundaries: &[Vec<u8>], key_of: impl Fn(u64) -> u64) {
    grow_with(layout(), keys, boundaries, key_of);
}

fn grow_with(layout: FixedLayout, keys: u64, boundaries: &[Vec<u8>], key_of: impl Fn(u64) -> u64) {
    let frames = (keys / 600).max(512);
    let room = (keys * 64).max(64 << 20);
    let cluster =
        Cluster::loaded_with_room(layout, SERVERS, room, boundaries, |config| config.bytes = frames * 1024);
    let client = cluster.client(7);
    for n in 0..keys {
        let key = key_of(n).to_be_bytes();
        assert!(!client.put(&key, &key).expect("there is room"), "key {n} is new");
    }
    for n in 0..keys {
        let key = key_of(n).to_be_bytes();
        assert_eq!(client.get(&key).expect("no error").as_deref(), Some(&key[..]), "key {n}");
    }
    drop(client);
    let (fullest, mean) = fullest_and_mean(&cluster);
    let moved: u64 = cluster.trees.iter().map(|tree| tree.relocations()).sum();
    eprintln!("fullest {:.2} times the mean; {moved} nodes moved", fullest / mean);
    assert!(fullest <= 1.5 * mean, "the fullest server holds {:.2} times the mean", fullest / mean);
    assert_eq!(cluster.audit(), Vec::<String>::new());
}

#[test]
fn keys_that_come_at_random() {
    grow(keys(300_000), &[], |n| Random::new(n).next());
}

#[test]
fn keys_that_rise() {
    grow(keys(400_000), &[], |n| n << 20);
}

#[test]
fn keys_that_fall() {
    grow(keys(300_000), &[], |n| ((1 << 40) - n) << 20);
}

/// A low fanout makes a tree high. Where keys keep arriving, nodes go on growing on the server on which their
/// subtree was before its root moved.
#[test]
fn keys_that_fall_in_a_high_tree() {
    grow_with(layout().with_fanout_limit(8), keys(200_000), &[], |n| ((1 << 40) - n) << 20);
}

#[test]
fn keys_at_random_on_two_compute_servers() {
    grow(keys(300_000), &[(1u64 << 63).to_be_bytes().to_vec()], |n| Random::new(n).next());
}
