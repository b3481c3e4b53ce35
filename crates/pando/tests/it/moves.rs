//! Boundaries move while sessions are open: no entry is lost, sessions learn the boundaries, the pool stores
//! them.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use pando::{
    Balancer, BalancerConfig, Cluster, Config, Create, Durability, Error, IndexOptions, OpenOptions,
    Ownership, ScanRange,
};

fn key(n: u64) -> [u8; 8] {
    n.to_be_bytes()
}

const KEYS: u64 = 4_000;

fn options() -> IndexOptions {
    let boundaries = [KEYS / 4, KEYS / 2, 3 * KEYS / 4].map(|n| key(n).to_vec());
    IndexOptions::integers().boundaries(boundaries.to_vec())
}

#[test]
fn operations_go_on_while_boundaries_move_and_nothing_is_lost() {
    let cluster = Cluster::open(Config::embedded().cache(256 << 10)).expect("there is memory");
    let index = cluster.create_index("n", &options()).expect("new");
    let session = index.integers().expect("open");
    (0..KEYS).for_each(|n| assert!(!session.put(n, n).expect("there is room")));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..3u64 {
            let (index, over) = (&index, &over);
            scope.spawn(move || {
                let session = index.integers().expect("open");
                let mut rounds = 0u64;
                while !over.load(Relaxed) || rounds < 2 {
                    rounds += 1;
                    // Each thread has its own keys, in all partitions.
                    for n in (thread..KEYS).step_by(3) {
                        assert_eq!(session.get(n).expect("found"), Some(n + (rounds - 1) * KEYS), "key {n}");
                        assert!(session.update(n, n + rounds * KEYS).expect("stored"), "key {n}");
                    }
                    let all = index.session().expect("open");
                    let mut last = None;
                    let visit = |key: &[u8], _: &[u8]| {
                        assert!(last.as_deref() < Some(key), "in order");
                        last = Some(key.to_vec());
                        true
                    };
                    assert_eq!(all.scan(&ScanRange::all(), visit).expect("scanned"), KEYS as usize);
                }
            });
        }
        for round in 0..12u64 {
            for boundary in 0..3 {
                let home = KEYS * (boundary as u64 + 1) / 4;
                let to = home + (round * 331) % (KEYS / 4 - 1);
                index.move_boundary(boundary, &key(to)).expect("it moves");
                assert_eq!(index.boundaries().expect("open")[boundary], key(to));
            }
            for boundary in 0..3 {
                let home = KEYS * (boundary as u64 + 1) / 4;
                index.move_boundary(boundary, &key(home)).expect("it moves back");
            }
        }
        over.store(true, Relaxed);
    });
    drop(session);
    let report = cluster.check().expect("checked");
    assert!(report.violations.is_empty(), "{:?}", report.violations);
    cluster.close().expect("closed");
}

#[test]
fn a_pool_is_opened_again_with_the_boundaries_as_they_were_moved() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("pool");
    let config = || Config::at(&path).memory(64 << 20);
    let cluster = Cluster::open(config().create(Create::New)).expect("new");
    let index = cluster.create_index("n", &options()).expect("new");
    let session = index.integers().expect("open");
    (0..KEYS).for_each(|n| assert!(!session.put(n, n).expect("there is room")));
    index.move_boundary(1, &key(KEYS / 4 + 7)).expect("it moves");
    index.move_boundary(0, &key(3)).expect("it moves");
    drop(session);
    let expected = index.boundaries().expect("open");
    cluster.close().expect("closed");

    let cluster = Cluster::open(config()).expect("closed cleanly");
    let index = cluster.open_index("n").expect("there");
    assert_eq!(index.boundaries().expect("open"), expected);
    let session = index.integers().expect("open");
    (0..KEYS).for_each(|n| assert_eq!(session.get(n).expect("found"), Some(n)));
    drop(session);
    assert!(cluster.check().expect("checked").violations.is_empty());
    cluster.close().expect("closed");
}

#[test]
fn what_cannot_be_moved_is_refused_in_a_sentence() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("pool");
    let cluster = Cluster::open(Config::at(&path).memory(64 << 20).create(Create::New)).expect("new");
    let mine = options().own(Ownership::Partitions(vec![0, 1]));
    let index = cluster.create_index("n", &mine).expect("new");
    for (boundary, to) in [(3, 5), (0, KEYS / 2), (1, KEYS / 4), (0, 3 * KEYS)] {
        let refused = index.move_boundary(boundary, &key(to)).expect_err("refused");
        assert!(matches!(refused, Error::InvalidOption(_)), "{refused}");
    }
    let refused = index.move_boundary(1, &key(KEYS / 2 + 5)).expect_err("another's");
    assert!(matches!(refused, Error::OnOtherSide { partition: 2, owner: None, .. }), "{refused}");
    index.move_boundary(0, &key(KEYS / 4 + 5)).expect("both sides are run here");

    // Another process's view of the same pool.
    let other = Cluster::open(Config::at(&path)).expect("attached");
    let theirs = OpenOptions::default().own(Ownership::Partitions(vec![2, 3]));
    let theirs = other.open_index_with("n", &theirs).expect("open");
    assert_eq!(theirs.boundaries().expect("open")[0], key(KEYS / 4 + 5));
    assert!(matches!(theirs.move_boundary(0, &key(5)), Err(Error::OnOtherSide { .. })));
    theirs.move_boundary(2, &key(3 * KEYS / 4 + 1)).expect("both sides are run there");
    let session = theirs.integers().expect("open");
    session.put(3 * KEYS / 4, 1).expect("stored");
    drop(session);
    other.close().expect("closed");
    cluster.close().expect("closed");
}

/// Two handles of a pool stand for two processes: the catalog is all that they have in common.
#[test]
fn keys_move_between_processes_that_follow_the_catalog() {
    for durability in [Durability::Off, Durability::Process] {
        let folder = tempfile::tempdir().expect("a folder");
        let config = Config::at(folder.path().join("pool")).cache(256 << 10).durability(durability);
        let created = Cluster::open(config.clone().memory(64 << 20).create(Create::New)).expect("new");
        let middle = IndexOptions::integers().boundaries(vec![key(KEYS / 2).to_vec()]);
        created.create_index("n", &middle).expect("new");
        created.close().expect("closed");
        let open = |partition: usize| {
            let cluster = Cluster::open(config.clone()).expect("attached");
            let own = OpenOptions::default().own(Ownership::Partitions(vec![partition]));
            let index = cluster.open_index_with("n", &own).expect("free");
            (cluster, index)
        };
        let (lower, upper) = (open(0), open(1));
        let asking = Cluster::open(config.clone()).expect("attached");
        let sessions = [&lower.1, &upper.1].map(|index| index.session().expect("open"));
        let owner = |n: u64, boundary: u64| &sessions[usize::from(n >= boundary)];
        (0..KEYS).for_each(|n| assert!(!owner(n, KEYS / 2).put(&key(n), &key(n)).expect("its own")));
        let (mut boundary, over) = (KEYS / 2, AtomicBool::new(false));
        std::thread::scope(|scope| {
            for (_, index) in [&lower, &upper] {
                let over = &over;
                scope.spawn(move || {
                    while !over.load(Relaxed) {
                        index.follow(&|| true).expect("nothing fails");
                        std::thread::yield_now();
                    }
                });
            }
            for (round, to) in [10, KEYS - 10, KEYS / 3, 1, KEYS / 2 + 1].into_iter().enumerate() {
                asking.ask_to_move_boundary("n", 0, &key(to)).expect("both live");
                // Until the new owner has seen that, and the old one's routes say it.
                let moved = boundary.min(to)..boundary.max(to);
                for n in moved.clone() {
                    while owner(n, to).get(&key(n)).is_err() {}
                }
                boundary = to;
                for n in 0..KEYS {
                    let found = owner(n, boundary).get(&key(n)).expect("its own");
                    assert_eq!(found, Some(key(n + round as u64).to_vec()), "key {n}");
                    assert!(owner(n, boundary).put(&key(n), &key(n + round as u64 + 1)).expect("its own"));
                }
                for n in moved {
                    let refused = sessions[usize::from(n < boundary)].get(&key(n)).expect_err("another's");
                    assert!(matches!(refused, Error::NotOwned { owner: Some(_), .. }), "{refused}");
                }
            }
            over.store(true, Relaxed);
        });
        let refuses = |boundary, to: &[u8], part| {
            let refused = asking.ask_to_move_boundary("n", boundary, to).expect_err(part).to_string();
            assert!(refused.contains(part), "{refused}");
        };
        refuses(1, &key(5), "no boundary 1");
        refuses(0, b"", "between the two boundaries");
        drop(sessions);
        lower.0.close().expect("closed");
        refuses(0, &key(7), "nobody owns partition 0");
        upper.0.close().expect("closed");
        asking.close().expect("closed");
        has_all(&Cluster::open(config).expect("closed by all"), boundary);
    }
}

/// Checks the keys after five rounds.
fn has_all(cluster: &Cluster, boundary: u64) {
    let index = cluster.open_index("n").expect("there");
    assert_eq!(index.boundaries().expect("open"), [key(boundary).to_vec()]);
    let session = index.session().expect("open");
    (0..KEYS).for_each(|n| assert_eq!(session.get(&key(n)).expect("found"), Some(key(n + 5).to_vec())));
    drop(session);
    assert!(cluster.check().expect("checked").is_clean());
}

#[test]
fn a_balancer_evens_out_a_hot_spot() {
    let cluster = Cluster::open(Config::embedded()).expect("there is memory");
    let index = cluster.create_index("n", &options()).expect("new");
    let session = index.integers().expect("open");
    (0..KEYS).for_each(|n| assert!(!session.put(n, n).expect("there is room")));
    let mut balancer = Balancer::new(BalancerConfig::default());
    let mut moved = 0;
    for _ in 0..12 {
        for round in 0..40 {
            (0..KEYS / 10).for_each(|n| assert_eq!(session.get(n).expect("found"), Some(n), "{round}"));
        }
        moved += index.balance(&mut balancer).expect("balanced");
    }
    assert!((2..=9).contains(&moved), "{moved} moves");
    let boundaries = index.boundaries().expect("open");
    assert!(boundaries[1][..] < key(KEYS / 10)[..], "{boundaries:?}");
}
