//! Random sequences of operations compared with a `BTreeMap`, including everything that a user may do to a
//! cluster: sessions, closing and reopening, other numbers of compute servers, bulk loads, checks.

use std::collections::BTreeMap;
use std::path::Path;

use crate::support::{key, layouts, number, sound};
use pando::{BulkOptions, Cluster, Config, Create, Index, IndexOptions};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    Put(u64, u64),
    Insert(u64, u64),
    Update(u64, u64),
    Remove(u64),
    Swap(u64, Option<u64>, Option<u64>),
    Range {
        low: u64,
        high: u64,
        limit: usize,
        reverse: bool,
    },
    Flush,
    Check,
    /// Closes the pool and opens it with this many compute servers.
    Reopen(Option<usize>),
    /// Removes everything and loads these keys.
    Reload(Vec<u64>),
}

const KEYS: u64 = 200;

fn op() -> impl Strategy<Value = Op> {
    let keys = || 0..KEYS;
    let value = || 0..4_u64;
    prop_oneof![
        12 => (keys(), value()).prop_map(|(key, value)| Op::Put(key, value)),
        12 => (keys(), value()).prop_map(|(key, value)| Op::Insert(key, value)),
        4 => (keys(), value()).prop_map(|(key, value)| Op::Update(key, value)),
        16 => keys().prop_map(Op::Remove),
        4 => (keys(), proptest::option::of(value()), proptest::option::of(value()))
            .prop_map(|(key, old, new)| Op::Swap(key, old, new)),
        4 => (keys(), keys(), 0..100_usize, any::<bool>())
            .prop_map(|(low, high, limit, reverse)| Op::Range { low, high: high.max(low), limit, reverse }),
        1 => Just(Op::Flush),
        1 => Just(Op::Check),
        1 => proptest::option::of(1..5_usize).prop_map(Op::Reopen),
        1 => proptest::collection::vec(keys(), 0..150).prop_map(Op::Reload),
    ]
}

type Model = BTreeMap<u64, u64>;

/// Spreads keys over the key space, so that every compute server has some.
fn spread(n: u64) -> [u8; 8] {
    key(n * 300)
}

/// Frames of each cache: the minimum.
const FRAMES: u64 = 8;

fn open(path: &Path, servers: Option<usize>, options: &IndexOptions, node_size: usize) -> (Cluster, Index) {
    let config = Config::at(path).memory_servers(2).memory(8 << 20).create(Create::IfMissing);
    let mut config = config.cache(FRAMES * node_size as u64);
    if let Some(servers) = servers {
        config = config.compute_servers(servers);
    }
    let cluster = Cluster::open(config).expect("opens");
    let index = cluster.open_or_create_index("x", options).expect("opens");
    (cluster, index)
}

fn run(options: &IndexOptions, node_size: usize, ops: &[Op]) {
    let directory = tempfile::tempdir().expect("temporary directory");
    let path = directory.path().join("pool");
    let (mut cluster, mut index) = open(&path, Some(2), options, node_size);
    let mut model = Model::new();
    for op in ops {
        match op {
            Op::Check => sound(&cluster),
            Op::Flush => cluster.flush().expect("flushes"),
            Op::Reopen(servers) => {
                cluster.close().expect("closes");
                (cluster, index) = open(&path, *servers, options, node_size);
            }
            Op::Reload(keys) => reload(&index, &mut model, keys),
            op => operate(&index, &mut model, op),
        }
    }
    let session = index.session().expect("session");
    let found = session.iter().map(|entry| entry.expect("scan"));
    let found: Model = found.map(|(key, value)| (number(&key) / 300, number(&value))).collect();
    assert_eq!(found, model);
    drop(session);
    sound(&cluster);
}

fn reload(index: &Index, model: &mut Model, keys: &[u64]) {
    let session = index.session().expect("session");
    for n in model.keys() {
        assert!(session.remove(&spread(*n)).expect("remove"));
    }
    drop(session);
    *model = keys.iter().map(|n| (*n, n + 1)).collect();
    let entries = keys.iter().map(|n| (spread(*n), key(n + 1))).collect();
    let loaded = index.bulk_load_unsorted(entries, &BulkOptions::default()).expect("loads");
    assert_eq!(loaded.entries, model.len() as u64);
}

fn operate(index: &Index, model: &mut Model, op: &Op) {
    let session = index.session().expect("session");
    let before = |n: &u64, model: &Model| model.get(n).copied();
    match op {
        Op::Put(n, v) => {
            let existed = session.put(&spread(*n), &key(*v)).expect("put");
            assert_eq!(existed, model.insert(*n, *v).is_some(), "{op:?}");
        }
        Op::Insert(n, v) => {
            let absent = before(n, model).is_none();
            assert_eq!(session.insert(&spread(*n), &key(*v)).expect("insert"), absent, "{op:?}");
            model.entry(*n).or_insert(*v);
        }
        Op::Update(n, v) => {
            let present = before(n, model).is_some();
            assert_eq!(session.update(&spread(*n), &key(*v)).expect("update"), present, "{op:?}");
            model.entry(*n).and_modify(|old| *old = *v);
        }
        Op::Remove(n) => {
            let existed = session.remove(&spread(*n)).expect("remove");
            assert_eq!(existed, model.remove(n).is_some(), "{op:?}");
        }
        Op::Swap(n, old, new) => {
            let (expected, stored) = (old.map(key), new.map(key));
            let slice = |bytes: &Option<[u8; 8]>| bytes.as_ref().map(|bytes| bytes.to_vec());
            let swapped = session
                .compare_and_swap(&spread(*n), slice(&expected).as_deref(), slice(&stored).as_deref())
                .expect("swap");
            let done = swapped == pando::Swapped::Done;
            assert_eq!(done, before(n, model) == *old, "{op:?}");
            match (done, new) {
                (true, Some(new)) => drop(model.insert(*n, *new)),
                (true, None) => drop(model.remove(n)),
                (false, _) => {}
            }
        }
        Op::Range { low, high, limit, reverse } => {
            let range = session.range(spread(*low)..spread(*high)).limit(*limit);
            let range = if *reverse { range.reverse() } else { range };
            let found: Vec<_> = range.map(|entry| number(&entry.expect("scan").0) / 300).collect();
            let mut expected: Vec<u64> = model.range(*low..*high).map(|(n, _)| *n).collect();
            if *reverse {
                expected.reverse();
            }
            expected.truncate(*limit);
            assert_eq!(found, expected, "{op:?}");
        }
        Op::Flush | Op::Check | Op::Reopen(_) | Op::Reload(_) => unreachable!("not operations of a session"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn a_cluster_is_a_sorted_map(shape in 0..4_usize, ops in proptest::collection::vec(op(), 1..400)) {
        let node_size = [1024, 256, 1024, 512][shape];
        run(&layouts()[shape].1, node_size, &ops);
    }
}
