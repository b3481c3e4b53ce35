//! All operations of a user in one process, on both layouts and both local fabrics.

use std::ops::Bound;

use crate::support::{everywhere, key, number, sound};
use pando::{Answers, Cluster, Config, Error, IndexOptions, ScanRange, Swapped};

const KEYS: u64 = 3000;

#[test]
fn entries_come_back_until_they_are_removed() {
    everywhere(|cluster, index| {
        let session = index.session().expect("session");
        for n in 0..KEYS {
            assert!(!session.put(&key(n * 7 % KEYS), &key(n)).expect("put"));
        }
        for n in 0..KEYS {
            assert_eq!(session.get(&key(n * 7 % KEYS)).expect("get"), Some(key(n).to_vec()));
        }
        assert!(
            !session.insert(&key(0), &key(9)).expect("insert")
                && session.update(&key(0), &key(9)).expect("update")
        );
        assert!(session.contains(&key(1)).expect("get") && !session.contains(&key(KEYS)).expect("get"));
        let swap = |old: Option<u64>, new: Option<u64>| {
            let (old, new) = (old.map(key), new.map(key));
            let slice = |bytes: &Option<[u8; 8]>| bytes.as_ref().map(|bytes| bytes.to_vec());
            session.compare_and_swap(&key(0), slice(&old).as_deref(), slice(&new).as_deref()).expect("swap")
        };
        assert_eq!(swap(Some(8), None), Swapped::Found(Some(key(9).to_vec())));
        assert_eq!((swap(Some(9), None), swap(None, Some(1))), (Swapped::Done, Swapped::Done));
        drop(session);
        sound(cluster);
        let session = index.session().expect("session");
        for n in (0..KEYS).filter(|n| n % 3 != 0) {
            assert!(session.remove(&key(n)).expect("remove") && !session.remove(&key(n)).expect("remove"));
        }
        assert_eq!(session.iter().count() as u64, KEYS / 3);
    });
}

#[test]
fn scans_cross_the_partitions_in_both_directions() {
    everywhere(|_, index| {
        let session = index.session().expect("session");
        for n in 0..KEYS {
            session.put(&key(20 * n), &key(n)).expect("put");
        }
        let bounds = index.boundaries().expect("open");
        let mut all: Vec<u64> = (0..KEYS).map(|n| 20 * n).collect();
        for bound in &bounds {
            // A scan is most likely to end wrongly at the first key of a partition.
            let n = u64::from(u16::from_be_bytes([bound[0], bound[1]]));
            session.put(&key(n), &key(n)).expect("put");
            all.push(n);
        }
        all.sort_unstable();
        all.dedup();
        let mut cuts = vec![key(20 * 700).to_vec(), key(20 * 700 + 1).to_vec(), vec![], vec![0xff; 8]];
        cuts.extend(bounds);
        for low in &cuts {
            for high in &cuts {
                for (low, high) in [
                    (Bound::Included(low), Bound::Excluded(high)),
                    (Bound::Excluded(low), Bound::Included(high)),
                    (Bound::Unbounded, Bound::Included(high)),
                    (Bound::Excluded(low), Bound::Unbounded),
                ] {
                    let inside = |n: &&u64| {
                        let key = key(**n).to_vec();
                        let above = match low {
                            Bound::Included(low) => *low <= key,
                            Bound::Excluded(low) => *low < key,
                            Bound::Unbounded => true,
                        };
                        above
                            && match high {
                                Bound::Included(high) => key <= *high,
                                Bound::Excluded(high) => key < *high,
                                Bound::Unbounded => true,
                            }
                    };
                    let mut expected: Vec<u64> = all.iter().filter(inside).copied().collect();
                    let found = |range: pando::Range<'_>| -> Vec<u64> {
                        range.map(|entry| number(&entry.expect("scan").0)).collect()
                    };
                    let range = || session.range::<Vec<u8>>((low.cloned(), high.cloned()));
                    assert_eq!(found(range()), expected, "{low:?} {high:?}");
                    expected.reverse();
                    assert_eq!(found(range().reverse()), expected, "{low:?} {high:?}");
                    expected.truncate(1700);
                    assert_eq!(found(range().reverse().limit(1700)), expected);
                }
            }
        }
    });
}

#[test]
fn an_iterator_reads_ahead_no_more_than_a_batch() {
    let cluster = Cluster::open(Config::embedded().cache(16 << 10)).expect("opens");
    let index = cluster.create_index("n", &IndexOptions::integers()).expect("new");
    let entries: Vec<_> = (0..100_000).map(|n: u64| (n.to_be_bytes(), n.to_be_bytes())).collect();
    index.bulk_load(&entries[..], &Default::default()).expect("loads");
    let session = index.session().expect("session");
    let first: Vec<_> = session.iter().take(16).map(|entry| entry.expect("scan").0).collect();
    assert_eq!(first.len(), 16);
    // Three levels of the descent, and at most two leaves of about 54 entries.
    assert!(session.verbs().reads <= 5, "{:?}", session.verbs());
    let before = session.verbs().reads;
    assert_eq!(session.iter().limit(50_000).count(), 50_000);
    assert!(session.verbs().reads > before + 500, "{:?}", session.verbs());
}

#[test]
fn a_scan_ends_when_its_visitor_has_enough() {
    everywhere(|_, index| {
        let session = index.session().expect("session");
        for n in 0..100 {
            session.put(&key(600 * n), &key(n)).expect("put");
        }
        let mut seen = 0;
        let entries = session.scan(&ScanRange::all(), |_, _| {
            seen += 1;
            seen < 60
        });
        assert_eq!((entries.expect("scan"), seen), (60, 60));
    });
}

#[test]
fn many_lookups_at_once_answer_in_order() {
    everywhere(|_, index| {
        let session = index.session().expect("session");
        for n in (0..KEYS).step_by(2) {
            session.put(&key(20 * n), &key(n)).expect("put");
        }
        let asked: Vec<u64> = (0..500).map(|n| n * 7919 % KEYS).collect();
        let keys: Vec<[u8; 8]> = asked.iter().map(|n| key(20 * n)).collect();
        let mut answers = Answers::default();
        for _ in 0..2 {
            session.multi_get(&keys, &mut answers).expect("get");
            assert_eq!(answers.len(), keys.len());
            for (n, answer) in asked.iter().zip(answers.iter()) {
                assert_eq!(answer, (n % 2 == 0).then(|| key(*n)).as_ref().map(|value| &value[..]));
            }
        }
    });
}

#[test]
fn slots_work_side_by_side_and_refuse_blocking_calls() {
    everywhere(|cluster, index| {
        let session = index.session().expect("session");
        let done = session.in_flight(16, |slot, flying| {
            let session = &session;
            async move {
                for n in (u64::from(slot)..KEYS).step_by(16) {
                    flying.put(&key(20 * n), &key(n)).await?;
                    assert_eq!(flying.get(&key(20 * n)).await?, Some(key(n).to_vec()));
                }
                assert!(matches!(session.get(&key(0)), Err(Error::InsideSlot)));
                assert!(matches!(session.in_flight(2, |_, _| async {}), Err(Error::InsideSlot)));
                Ok::<_, Error>(())
            }
        });
        done.expect("slots").into_iter().for_each(|slot| slot.expect("all operations"));
        assert!(matches!(session.in_flight(0, |_, _| async {}), Err(Error::InvalidOption(_))));
        assert_eq!(session.iter().count() as u64, KEYS);
        let verbs = session.verbs();
        session.publish();
        assert_eq!(cluster.stats().expect("open").verbs, verbs);
    });
}

#[test]
fn threads_share_an_index_and_their_counts_are_kept() {
    everywhere(|cluster, index| {
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let index = index.clone();
                scope.spawn(move || {
                    let session = index.session().expect("session");
                    for n in (thread..KEYS).step_by(2) {
                        session.put(&key(20 * n), &key(n)).expect("put");
                    }
                    for n in (thread..KEYS).step_by(2) {
                        assert_eq!(session.get(&key(20 * n)).expect("get"), Some(key(n).to_vec()));
                    }
                });
            }
        });
        assert_eq!(index.session().expect("session").iter().count() as u64, KEYS);
        let stats = cluster.stats().expect("open");
        let cache = stats.cache();
        assert!(cache.leaf_accesses >= 2 * KEYS && stats.smo().splits > 0, "{cache:?}");
        assert_eq!(stats.indexes[0].compute_servers.len(), index.compute_servers().expect("open"));
        // Counts of a later session are added to those of finished ones.
        assert!(cluster.stats().expect("open").verbs.writes >= stats.verbs.writes);
    });
}

#[test]
fn a_session_of_one_compute_server_refuses_keys_of_others() {
    let cluster = Cluster::open(Config::embedded().memory(32 << 20).compute_servers(4)).expect("opens");
    let index = cluster.create_index("n", &IndexOptions::integers().equal_ranges(4, 399)).expect("new");
    for server in 0..4_u64 {
        let session = index.session_of(server as usize).expect("session");
        session.put(&(server * 100).to_be_bytes(), &[0; 8]).expect("put");
        let other = (server + 1) % 4 * 100;
        let refused = session.get(&other.to_be_bytes()).expect_err("not its key");
        assert!(matches!(refused, Error::OtherComputeServer { .. }), "{refused}");
    }
    assert!(index.session_of(4).is_err_and(|error| error.is_bad_input()));
    assert_eq!(index.range_of(1).expect("there").low, Some(100_u64.to_be_bytes().to_vec()));
}

#[test]
fn long_values_go_out_of_line_and_are_freed() {
    let cluster = Cluster::open(Config::embedded().memory(64 << 20)).expect("opens");
    let index = cluster.create_index("values", &IndexOptions::bytes()).expect("new");
    let used =
        || -> u64 { cluster.stats().expect("open").pool.iter().map(|server| server.bytes_allocated).sum() };
    let empty = used();
    let session = index.session().expect("session");
    for n in 0..20_u32 {
        session.put(&n.to_be_bytes(), &vec![n as u8; 100_000 * n as usize]).expect("put");
    }
    for (n, entry) in session.iter().enumerate() {
        assert_eq!(entry.expect("scan").1, vec![n as u8; 100_000 * n]);
    }
    drop(session);
    sound(&cluster);
    let session = index.session().expect("session");
    for n in 0..20_u32 {
        assert!(session.remove(&n.to_be_bytes()).expect("remove"));
    }
    assert_eq!(used(), empty);
    let too_long = session.put(b"k", &vec![0; (16 << 20) + 1]).expect_err("too long");
    assert!(too_long.is_bad_input(), "{too_long}");
}

#[test]
fn a_full_pool_is_an_error_after_which_space_can_be_freed() {
    let cluster = Cluster::open(Config::embedded().memory(1 << 20).cache(64 << 10)).expect("opens");
    let index = cluster.create_index("n", &IndexOptions::integers()).expect("new");
    let session = index.session().expect("session");
    let mut stored = 0_u64;
    let full = loop {
        match session.put(&stored.to_be_bytes(), &stored.to_be_bytes()) {
            Ok(_) => stored += 1,
            Err(error) => break error,
        }
    };
    assert!(full.is_full() && stored > 1000, "{full}");
    for n in 0..stored {
        assert_eq!(session.get(&n.to_be_bytes()).expect("get"), Some(n.to_be_bytes().to_vec()));
    }
    drop(session);
    sound(&cluster);
    let session = index.session().expect("session");
    for n in 0..stored {
        assert!(session.remove(&n.to_be_bytes()).expect("remove"), "{n} of {stored}");
    }
    for n in 0..stored / 2 {
        session.put(&n.to_be_bytes(), &n.to_be_bytes()).expect("there is room again");
    }
    drop(session);
    sound(&cluster);
}

#[test]
fn a_dropped_index_leaves_nothing_behind() {
    everywhere(|cluster, index| {
        let session = index.session().expect("session");
        for n in 0..KEYS {
            session.put(&key(20 * n), &key(n)).expect("put");
        }
        assert!(matches!(cluster.drop_index("index"), Err(Error::SessionsOpen { count: 1, .. })));
        drop(session);
        cluster.drop_index("index").expect("drops");
        assert!(matches!(index.session(), Err(Error::Closed)));
        assert!(cluster.index_names().expect("open").is_empty());
        sound(cluster);
        let again = cluster.create_index("index", &IndexOptions::bytes()).expect("new");
        assert_eq!(again.session().expect("session").iter().count(), 0);
    });
}

#[test]
fn a_closed_cluster_says_so() {
    let cluster = Cluster::open(Config::embedded().memory(16 << 20)).expect("opens");
    let index = cluster.create_index("n", &IndexOptions::bytes()).expect("new");
    let session = index.session().expect("session");
    assert!(matches!(cluster.close(), Err(Error::SessionsOpen { .. })));
    session.put(b"still", b"open").expect("put");
    drop(session);
    cluster.close().expect("closes");
    cluster.close().expect("does nothing");
    assert!(matches!(index.session(), Err(Error::Closed)));
    assert!(matches!(cluster.stats(), Err(Error::Closed)));
    assert!(matches!(cluster.create_index("m", &IndexOptions::bytes()), Err(Error::Closed)));
}
