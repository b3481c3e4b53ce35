//! Features of sessions beyond single operations: batches, integers by the same names, and closing a cluster
//! that waits for sessions.

use std::collections::BTreeMap;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{everywhere, key};
use pando::{Answer, Cluster, Config, Error, IndexOptions, IntegerAnswer, Swapped};

/// Pseudo-random numbers, the same in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) % end
    }
}

type Model = BTreeMap<[u8; 8], [u8; 8]>;

/// Applies an operation to the model, and returns the expected answer.
fn expected(model: &mut Model, kind: u64, key: [u8; 8], value: [u8; 8], other: Option<[u8; 8]>) -> Answer {
    let before = model.get(&key).copied();
    let is_there = before.is_some();
    let (after, answer) = match kind {
        0 => (before, Answer::Value(before.map(Vec::from))),
        1 => (Some(value), Answer::Was(is_there)),
        2 => (before.or(Some(value)), Answer::Was(!is_there)),
        3 => (before.map(|_| value), Answer::Was(is_there)),
        4 => (None, Answer::Was(is_there)),
        _ if before == other => (Some(value), Answer::Swapped(Swapped::Done)),
        _ => (before, Answer::Swapped(Swapped::Found(before.map(Vec::from)))),
    };
    match after {
        Some(value) => drop(model.insert(key, value)),
        None => drop(model.remove(&key)),
    }
    answer
}

#[test]
fn a_batch_answers_like_one_operation_after_the_other() {
    everywhere(|_, index| {
        let (mut numbers, mut model) = (Numbers(17), Model::new());
        let session = index.session().expect("session");
        let mut batch = session.batch();
        assert!(batch.is_empty() && batch.run().is_empty());
        for len in (0..200).map(|round| 1 + round % 64) {
            let mut answers = Vec::new();
            for _ in 0..len {
                // Few keys, so that a batch has several operations on the same one.
                let (kind, key, value) = (numbers.below(6), key(numbers.below(40)), key(numbers.below(3)));
                let other = model.get(&key).copied().filter(|_| numbers.below(2) == 0);
                match kind {
                    0 => batch.get(&key),
                    1 => batch.put(&key, &value),
                    2 => batch.insert(&key, &value),
                    3 => batch.update(&key, &value),
                    4 => batch.remove(&key),
                    _ => batch.compare_and_swap(&key, other.as_ref().map(|other| &other[..]), Some(&value)),
                };
                answers.push(expected(&mut model, kind, key, value, other));
            }
            assert_eq!(batch.len(), len);
            let ran: Vec<Answer> = batch.run().into_iter().map(|answer| answer.expect("no fault")).collect();
            assert_eq!(ran, answers);
            assert!(batch.is_empty());
        }
        let entries = session.iter().map(|entry| entry.expect("no fault"));
        assert!(entries.eq(model.into_iter().map(|(key, value)| (key.to_vec(), value.to_vec()))));
    });
}

#[test]
fn an_operation_of_a_batch_that_fails_leaves_the_others_alone() {
    let cluster = Cluster::open(Config::embedded().memory(64 << 20)).expect("opens");
    let index = cluster.create_index("n", &IndexOptions::integers()).expect("new");
    let session = index.session().expect("session");
    let mut batch = session.batch();
    batch.put(&key(1), &key(1)).put(b"short", &key(2)).put(&key(3), b"short").put(&key(4), &key(4));
    let answers = batch.run();
    let is_refused = |at: usize| answers[at].as_ref().is_err_and(Error::is_bad_input);
    assert!(answers[0].is_ok() && is_refused(1) && is_refused(2) && answers[3].is_ok(), "{answers:?}");
    assert_eq!(session.iter().count(), 2);
    // Inside a slot it would never end.
    let inside = session.in_flight(1, |_, _| async { session.batch().get(&key(1)).get(&key(4)).run() });
    let inside = inside.expect("one slot").remove(0);
    assert!(
        inside.len() == 2 && inside.iter().all(|one| matches!(one, Err(Error::InsideSlot))),
        "{inside:?}"
    );
}

#[test]
fn integers_have_every_operation_by_the_same_name() {
    let config = Config::embedded().memory(64 << 20).compute_servers(3).cache(64 << 10);
    let cluster = Cluster::open(config).expect("opens");
    let index = cluster.create_index("n", &IndexOptions::integers()).expect("new");
    let session = index.integers().expect("session");
    let spread = |n: u64| n << 48 | n;
    for n in 0..2000 {
        assert!(session.insert(spread(n), n).expect("insert") && session.contains(spread(n)).expect("get"));
    }
    assert!(!session.insert(spread(7), 0).expect("insert") && !session.contains(7).expect("get"));
    assert!(session.update(spread(7), 8).expect("update") && !session.update(7, 8).expect("update"));
    assert_eq!(session.compare_and_swap(spread(7), Some(7), None).expect("swap"), Err(Some(8)));
    assert_eq!(session.compare_and_swap(spread(7), Some(8), Some(7)).expect("swap"), Ok(()));

    let mut values = vec![Some(1)];
    session.multi_get(&[spread(1999), 5, spread(3)], &mut values).expect("get");
    assert_eq!(values, [Some(1999), None, Some(3)]);
    session.multi_get(&[], &mut values).expect("get");
    assert!(values.is_empty());

    let keys = |range: pando::IntegerRange<'_>| -> Vec<u64> {
        range.map(|entry| entry.expect("no fault").1).collect()
    };
    assert_eq!(keys(session.range(spread(3)..spread(6))), [3, 4, 5]);
    assert_eq!(keys(session.range(..=spread(6)).reverse().limit(2)), [6, 5]);
    assert_eq!(keys(session.prefix(spread(6), 16)), [6]);
    assert_eq!(keys(session.prefix(spread(6), 14)), [4, 5, 6, 7]);
    assert_eq!(keys(session.prefix(spread(6), 64)), [6]);
    assert_eq!(keys(session.prefix(spread(6) + 1, 64)), Vec::<u64>::new());
    assert_eq!(session.prefix(spread(6), 0).count(), 2000);
    assert_eq!(session.iter().count(), 2000);
    let mut seen = Vec::new();
    let visit = |_, value| {
        seen.push(value);
        value < 12
    };
    assert_eq!(session.scan(spread(10).., visit).expect("scan"), 3);
    assert_eq!(seen, [10, 11, 12]);

    let mut batch = session.batch();
    batch.get(spread(5)).put(spread(5), 6).update(1, 1).remove(spread(5)).insert(spread(5), 5);
    batch.compare_and_swap(spread(5), None, Some(1));
    let answers: Vec<_> = batch.run().into_iter().map(|answer| answer.expect("no fault")).collect();
    let was = IntegerAnswer::Was;
    let value = IntegerAnswer::Value(Some(5));
    assert_eq!(
        answers,
        [value, was(true), was(false), was(true), was(true), IntegerAnswer::Swapped(Err(Some(5)))]
    );
    assert!(session.remove(spread(1999)).expect("remove"));
    assert!(session.verbs().reads > 0 && session.index().name() == "n");
}

#[test]
fn integers_are_in_flight() {
    let config = Config::embedded().memory(64 << 20).compute_servers(2).cache(64 << 10);
    let cluster = Cluster::open(config).expect("opens");
    let index = cluster.create_index("n", &IndexOptions::integers()).expect("new");
    let session = index.integers().expect("session");
    let done = session.in_flight(8, |slot, session| async move {
        let mut values = Vec::new();
        for n in (u64::from(slot)..4000).step_by(8).map(|n| n << 40 | n) {
            assert!(!session.put(n, n).await? && session.insert(n + 1, 1).await?);
            assert!(session.update(n, n).await? && session.contains(n).await?);
            assert_eq!(session.compare_and_swap(n + 1, Some(1), Some(2)).await?, Ok(()));
            assert!(session.remove(n + 1).await? && session.get(n + 1).await?.is_none());
            // Several of these are in flight at once, each with its own buffers.
            session.multi_get(&[n, n + 1, n], &mut values).await?;
            assert_eq!(values, [Some(n), None, Some(n)]);
            assert_eq!(session.scan(n..=n, |key, value| key == n && value == n).await?, 1);
        }
        Ok::<_, Error>(())
    });
    done.expect("8 slots").into_iter().for_each(|slot| slot.expect("no fault"));
    assert_eq!(session.iter().count(), 4000);
}

#[test]
fn a_cluster_can_wait_for_sessions_before_it_closes() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let config = Config::at(directory.path().join("pool")).memory(64 << 20);
    let cluster = Cluster::open(config.clone().create(pando::Create::New)).expect("opens");
    let index = cluster.create_index("n", &IndexOptions::integers()).expect("new");
    let (opened, is_open) = mpsc::channel();
    let (end, may_end) = mpsc::channel();
    let thread = thread::spawn({
        let index = index.clone();
        move || {
            let session = index.integers().expect("session");
            opened.send(()).expect("somebody waits");
            may_end.recv().expect("somebody tells");
            // The wait leaves time for remaining work.
            thread::sleep(Duration::from_millis(50));
            assert!(!session.put(1, 2).expect("put"));
        }
    });
    is_open.recv().expect("it opens one");
    assert!(matches!(cluster.close(), Err(Error::SessionsOpen { count: 1, .. })));
    let begun = Instant::now();
    let waited = cluster.close_within(Duration::from_millis(20));
    assert!(
        matches!(waited, Err(Error::SessionsOpen { count: 1, .. }))
            && begun.elapsed() >= Duration::from_millis(20)
    );
    // The cluster is still open.
    drop(index.session().expect("session"));

    let closer = thread::spawn({
        let cluster = cluster.clone();
        move || cluster.close_within(Duration::MAX)
    });
    // New sessions are refused during the wait; everything else continues.
    let begun = Instant::now();
    let refused = loop {
        match index.session() {
            Ok(_) => assert!(begun.elapsed() < Duration::from_secs(60), "sessions are still let in"),
            Err(error) => break error,
        }
        thread::yield_now();
    };
    assert!(matches!(refused, Error::Busy { what: "closing the cluster", .. }), "{refused}");
    cluster.stats().expect("it is open");
    end.send(()).expect("it listens");
    closer.join().expect("no panic").expect("closes");
    thread.join().expect("no panic");
    assert!(matches!(index.session(), Err(Error::Closed)));
    let cluster = Cluster::open(config).expect("was closed cleanly");
    let index = cluster.open_index("n").expect("is there");
    assert_eq!(index.integers().expect("session").get(1).expect("get"), Some(2));
}

#[test]
fn what_users_hold_can_be_printed() {
    let cluster = Cluster::open(Config::embedded().memory(64 << 20)).expect("opens");
    let index = cluster.create_index("n", &IndexOptions::integers()).expect("new");
    let session = index.integers().expect("session");
    let text = format!("{:?} {:?} {:?}", session, session.range(..5), session.bytes().batch().get(b"x"));
    for part in
        ["IntegerSession { index: \"n\"", "high: Excluded([0, 0, 0, 0, 0, 0, 0, 5])", "Batch { len: 1"]
    {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn shapes_count_what_is_in_caches_of_this_process() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let config = Config::at(directory.path().join("pool")).memory(64 << 20).create(pando::Create::New);
    let cluster = Cluster::open(config).expect("opens");
    let options = IndexOptions::integers().boundaries(vec![key(300).to_vec()]);
    let session = cluster.create_index("n", &options).expect("new").session().expect("session");
    for n in 0..1000 {
        session.put(&key(n), &key(n)).expect("put");
        if n % 10 == 0 {
            session.remove(&key(n / 2)).expect("remove");
        }
    }
    // Also while a session is open.
    let shape = cluster.shapes().expect("open").remove(0);
    let count = |range: pando::Range<'_>| range.count() as u64;
    let halves = [count(session.range(..key(300))), count(session.range(key(300)..))];
    assert!(halves[0] < 300 && halves[1] > 600);
    assert_eq!((shape.partition_entries, shape.entries), (halves.to_vec(), halves[0] + halves[1]));
}

#[test]
fn keys_and_values_have_the_limits_that_the_readme_says() {
    let cluster = Cluster::open(Config::embedded().memory(128 << 20)).expect("opens");
    let session =
        cluster.create_index("bytes", &IndexOptions::bytes()).expect("new").session().expect("session");
    let (key, value) = (vec![7; 257], vec![7; (16 << 20) + 1]);
    session.put(&key[1..], &value[1..]).expect("as long as can be");
    assert_eq!(session.get(&key[1..]).expect("get").map(|value| value.len()), Some(16 << 20));
    for refused in [session.put(&key, b""), session.put(b"k", &value)] {
        assert!(refused.is_err_and(|error| error.is_bad_input()));
    }
    cluster.create_index("fixed", &IndexOptions::fixed(64, 8)).expect("as long as can be");
    assert!(
        cluster.create_index("longer", &IndexOptions::fixed(65, 8)).is_err_and(|error| error.is_bad_input())
    );
}
