//! Compute servers are added and removed and boundaries move, while threads execute all kinds of operations.
//! Each thread has its own keys and knows their values.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::support::sound;
use pando::{
    Answers, AsyncSession, Cluster, Config, Create, Durability, Error, Index, IndexOptions, OpenOptions,
    Ownership, ScanRange, Session, Swapped,
};

/// Number of keys of all workers.
const KEYS: u64 = 6_000;
/// Workers with their own keys: a third of them are blocking threads, the others are slots of two threads.
const LANES: u64 = 6;

fn key(n: u64) -> [u8; 8] {
    n.to_be_bytes()
}

/// A small generator of pseudo-random numbers, for repeatable choices.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) % bound
    }
}

/// The operations, blocking or asynchronous.
#[allow(async_fn_in_trait, reason = "a session belongs to one thread")]
trait Does {
    async fn get(&self, key: &[u8]) -> Option<Vec<u8>>;
    async fn put(&self, key: &[u8], value: &[u8]) -> bool;
    async fn insert(&self, key: &[u8], value: &[u8]) -> bool;
    async fn update(&self, key: &[u8], value: &[u8]) -> bool;
    async fn remove(&self, key: &[u8]) -> bool;
    async fn swap(&self, key: &[u8], expected: Option<&[u8]>, new: Option<&[u8]>) -> Swapped;
    async fn multi_get(&self, keys: &[[u8; 8]], answers: &mut Answers);
    async fn scan(&self, range: &ScanRange<'_>, visit: &mut dyn FnMut(&[u8], &[u8]) -> bool);
}

macro_rules! does {
    ($of:ty $(, $wait:ident)?) => {
        impl Does for $of {
            async fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
                <$of>::get(self, key)$(.$wait)?.expect("got")
            }
            async fn put(&self, key: &[u8], value: &[u8]) -> bool {
                <$of>::put(self, key, value)$(.$wait)?.expect("put")
            }
            async fn insert(&self, key: &[u8], value: &[u8]) -> bool {
                <$of>::insert(self, key, value)$(.$wait)?.expect("inserted")
            }
            async fn update(&self, key: &[u8], value: &[u8]) -> bool {
                <$of>::update(self, key, value)$(.$wait)?.expect("updated")
            }
            async fn remove(&self, key: &[u8]) -> bool {
                <$of>::remove(self, key)$(.$wait)?.expect("removed")
            }
            async fn swap(&self, key: &[u8], expected: Option<&[u8]>, new: Option<&[u8]>) -> Swapped {
                <$of>::compare_and_swap(self, key, expected, new)$(.$wait)?.expect("swapped")
            }
            async fn multi_get(&self, keys: &[[u8; 8]], answers: &mut Answers) {
                <$of>::multi_get(self, keys, answers)$(.$wait)?.expect("got");
            }
            async fn scan(&self, range: &ScanRange<'_>, visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) {
                <$of>::scan(self, range, visit)$(.$wait)?.expect("scanned");
            }
        }
    };
}
does!(Session);
does!(AsyncSession<'_>, await);

type Model = BTreeMap<u64, Vec<u8>>;

/// One checked operation on keys of `lane`.
async fn step(does: &impl Does, lane: u64, model: &mut Model, dice: &mut Dice) {
    let n = dice.below(KEYS / LANES) * LANES + lane;
    let (key, value) = (key(n), dice.below(1 << 30).to_be_bytes());
    let was = model.get(&n).cloned();
    match dice.below(10) {
        0 | 1 => assert_eq!(does.get(&key).await, was, "key {n}"),
        2 => assert_eq!(does.put(&key, &value).await, model.insert(n, value.to_vec()).is_some(), "key {n}"),
        3 | 4 => {
            assert_eq!(does.insert(&key, &value).await, was.is_none(), "key {n}");
            model.entry(n).or_insert(value.to_vec());
        }
        5 => {
            assert_eq!(does.update(&key, &value).await, was.is_some(), "key {n}");
            model.entry(n).and_modify(|old| *old = value.to_vec());
        }
        6 => assert_eq!(does.remove(&key).await, model.remove(&n).is_some(), "key {n}"),
        7 => {
            let swapped = does.swap(&key, was.as_deref(), Some(&value)).await;
            assert!(matches!(swapped, Swapped::Done), "key {n}: {swapped:?}");
            model.insert(n, value.to_vec());
        }
        8 => many(does, n, lane, model, dice).await,
        _ => scan(does, n, lane, model, dice).await,
    }
}

async fn many(does: &impl Does, n: u64, lane: u64, model: &Model, dice: &mut Dice) {
    let numbers: Vec<u64> = (0..20).map(|i| (n + LANES * (i * dice.below(90))) % KEYS).collect();
    assert!(numbers.iter().all(|n| n % LANES == lane));
    let mut answers = Answers::default();
    does.multi_get(&numbers.iter().map(|&n| key(n)).collect::<Vec<_>>(), &mut answers).await;
    for (answer, n) in answers.iter().zip(&numbers) {
        assert_eq!(answer, model.get(n).map(Vec::as_slice), "key {n}");
    }
}

/// A scan must return the lane's own keys as the model has them, and keys of other lanes in order.
async fn scan(does: &impl Does, n: u64, lane: u64, model: &Model, dice: &mut Dice) {
    let (low, high, reverse) = (n, (n + 1 + dice.below(KEYS / 2)).min(KEYS), dice.below(2) == 0);
    let (from, to) = (key(low), key(high));
    let range =
        ScanRange { low: Bound::Included(&from), high: Bound::Excluded(&to), limit: usize::MAX, reverse };
    let (mut last, mut own) = (None, Vec::new());
    does.scan(&range, &mut |key, value| {
        let at = u64::from_be_bytes(key.try_into().expect("8 bytes"));
        assert!(last.is_none_or(|last| (last < at) != reverse), "{at} after {last:?}");
        last = Some(at);
        if at % LANES == lane {
            own.push((at, value.to_vec()));
        }
        true
    })
    .await;
    if reverse {
        own.reverse();
    }
    let expected: Vec<_> = model.range(low..high).map(|(&n, value)| (n, value.clone())).collect();
    assert_eq!(own, expected, "{low}..{high}");
}

/// Runs a future of blocking operations, which is ready at once.
fn blocking<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => panic!("a blocking call has ended when it returns"),
    }
}

/// Executes operations on the lanes' keys until `over`; returns their final model.
fn work(index: &Index, lanes: std::ops::Range<u64>, over: &AtomicBool) -> Model {
    let session = index.session().expect("open");
    if lanes.end - lanes.start == 1 {
        let (mut model, mut dice) = (Model::new(), Dice(lanes.start));
        while !over.load(Relaxed) {
            blocking(step(&session, lanes.start, &mut model, &mut dice));
        }
        return model;
    }
    let slots = (lanes.end - lanes.start) as usize;
    let models = session.in_flight(slots, |slot, session| {
        let lane = lanes.start + u64::from(slot);
        async move {
            let (mut model, mut dice) = (Model::new(), Dice(lane));
            while !over.load(Relaxed) {
                step(&session, lane, &mut model, &mut dice).await;
            }
            model
        }
    });
    models.expect("slots").into_iter().flatten().collect()
}

/// Adds, removes and moves at random; returns how often each.
fn stir(index: &Index, cluster: &Cluster, rounds: u64) -> [usize; 3] {
    let (mut dice, mut done) = (Dice(rounds), [0; 3]);
    for _ in 0..rounds {
        let to = key(dice.below(KEYS));
        let count = index.compute_servers().expect("open");
        let stirred = match dice.below(3) {
            0 if count < 7 => {
                let added = index.add_compute_server(&to);
                added.map(|number| {
                    assert_eq!(index.range_of(number).expect("new").low.as_deref(), Some(&to[..]))
                })
            }
            1 if count > 1 => {
                let servers = &cluster.stats().expect("counted").indexes[0].compute_servers;
                let number = servers[dice.below(count as u64) as usize].number;
                let removed = index.remove_compute_server(number);
                assert!(index.range_of(number).is_err() && index.session_of(number).is_err());
                removed
            }
            2 if count > 1 => index.move_boundary(dice.below(count as u64 - 1) as usize, &to),
            _ => continue,
        };
        let after = index.compute_servers().expect("open");
        match stirred {
            Ok(()) => done[usize::from(after <= count) + usize::from(after == count)] += 1,
            // The key begins a partition, or is not between the adjacent boundaries.
            Err(error) => assert!(matches!(error, Error::InvalidOption(_)) && after == count, "{error}"),
        }
    }
    done
}

fn everything_goes_on(config: Config, options: &IndexOptions, rounds: u64) -> (Cluster, Index, Model) {
    let cluster = Cluster::open(config).expect("opens");
    let index = cluster.create_index("index", options).expect("new");
    let over = AtomicBool::new(false);
    let (model, done) = std::thread::scope(|scope| {
        let threads = [0..1, 1..2, 2..4, 4..6].map(|lanes| {
            let (index, over) = (&index, &over);
            scope.spawn(move || work(index, lanes, over))
        });
        let stirred = scope.spawn(|| stir(&index, &cluster, rounds)).join();
        over.store(true, Relaxed);
        let models = threads.map(|thread| thread.join().expect("all that it saw was right"));
        (models.into_iter().flatten().collect::<Model>(), stirred.expect("all that was asked for was done"))
    });
    assert!(
        done.iter().all(|&times| times > 3),
        "{done:?} compute servers added and removed, boundaries moved"
    );
    holds(&index, &model);
    sound(&cluster);
    (cluster, index, model)
}

fn holds(index: &Index, model: &Model) {
    let session = index.session().expect("open");
    let found: Vec<_> = session.iter().map(|entry| entry.expect("found")).collect();
    let expected: Vec<_> = model.iter().map(|(&n, value)| (key(n).to_vec(), value.clone())).collect();
    assert!(found == expected, "{} entries in place of {}", found.len(), expected.len());
}

/// Keys and values of constant sizes in small nodes, and of any length in larger nodes.
fn shapes() -> [IndexOptions; 2] {
    [IndexOptions::integers().node_size(256).fanout_limit(5), IndexOptions::bytes().node_size(512)]
}

#[test]
fn everything_goes_on_in_memory_while_compute_servers_come_and_go() {
    for options in shapes() {
        let config = Config::embedded().memory_servers(2).memory(64 << 20).cache(64 << 10);
        let (cluster, ..) = everything_goes_on(config, &options, 300);
        cluster.close().expect("closes");
    }
}

#[test]
fn everything_goes_on_in_files_and_is_there_when_they_are_opened_again() {
    let logged = [Durability::Off, Durability::Process];
    for (options, durability) in
        shapes().into_iter().flat_map(|options| logged.map(|logged| (options.clone(), logged)))
    {
        let folder = tempfile::tempdir().expect("a folder");
        let config = Config::at(folder.path().join("pool")).memory(64 << 20).cache(64 << 10);
        let config = config.durability(durability);
        let (cluster, index, model) = everything_goes_on(config.clone().create(Create::New), &options, 300);
        let boundaries = index.boundaries().expect("open");
        assert_eq!(index.info().expect("there").boundaries, boundaries);
        cluster.close().expect("closes");

        let cluster = Cluster::open(config).expect("was closed cleanly");
        let index = cluster.open_index("index").expect("there");
        assert_eq!(index.boundaries().expect("open"), boundaries);
        holds(&index, &model);
        sound(&cluster);
        cluster.close().expect("closes");
    }
}

#[test]
fn numbers_stay_and_statistics_say_who_does_what() {
    let cluster = Cluster::open(Config::embedded().compute_servers(2).cache(1 << 20)).expect("opens");
    let index = cluster.create_index("index", &IndexOptions::integers()).expect("new");
    let half = 1 << 63;
    let (session, of_second) = (index.session().expect("open"), index.session_of(1).expect("there"));
    (0..640).for_each(|n| assert!(!session.put(&key(half + n), &key(n)).expect("room")));
    session.publish();
    let stats = || cluster.stats().expect("counted").indexes.remove(0);
    assert_eq!(stats().compute_servers.iter().map(|server| server.operations).collect::<Vec<_>>(), [0, 640]);
    assert_eq!(stats().shares(), [0.0, 1.0]);

    let third = index.add_compute_server(&key(half + 320)).expect("added");
    assert_eq!((third, index.compute_servers().expect("open")), (2, 3));
    let of_third = index.session_of(third).expect("there");
    assert_eq!(of_third.get(&key(half + 320)).expect("its own"), Some(key(320).to_vec()));
    let refused = of_second.get(&key(half + 320)).expect_err("another's by now");
    assert!(matches!(refused, Error::OtherComputeServer { belongs_to: 2, session_of: 1 }), "{refused}");
    let mut answers = Answers::default();
    let keys: Vec<_> = (310..330).map(|n| key(half + n)).collect();
    session.multi_get(&keys, &mut answers).expect("routed anew");
    assert!(answers.iter().zip(310..).all(|(found, n)| found == Some(&key(n)[..])));
    session.publish();
    of_third.publish();
    let operations: Vec<_> = stats().compute_servers.iter().map(|server| server.operations).collect();
    assert_eq!(operations[0], 0);
    assert!((650..=660).contains(&operations[1]) && operations[2] == 11, "{operations:?}");

    // Remove the middle one: its keys go to the one below, its counts to the former ones.
    let before = cluster.stats().expect("counted");
    index.remove_compute_server(1).expect("removed");
    let numbers: Vec<_> = stats().compute_servers.iter().map(|server| server.number).collect();
    assert_eq!(numbers, [0, 2]);
    assert_eq!(stats().former.operations, operations[1]);
    let after = cluster.stats().expect("counted");
    assert!(
        after.cache().leaf_accesses >= before.cache().leaf_accesses
            && after.smo().splits >= before.smo().splits
    );
    assert!(of_second.get(&key(half)).is_err() && index.session_of(1).is_err());
    assert_eq!(session.get(&key(half)).expect("found"), Some(key(0).to_vec()));
    assert_eq!(index.add_compute_server(&key(half)).expect("added"), 3, "numbers are not used again");
}

#[test]
fn what_cannot_be_added_or_removed_is_refused_in_a_sentence() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("pool");
    let config = || Config::at(&path).cache(256 << 10);
    let cluster = Cluster::open(config().memory(64 << 20).create(Create::New)).expect("new");
    let options = IndexOptions::integers().boundaries([10, 20, 30].map(|n| key(n).to_vec()).to_vec());
    let index = cluster.create_index("n", &options.own(Ownership::Partitions(vec![1, 2]))).expect("new");
    let other = Cluster::open(config()).expect("attached");
    let theirs = OpenOptions::default().own(Ownership::Partitions(vec![0]));
    let theirs = other.open_index_with("n", &theirs).expect("open");
    let said = |refused: Result<(), Error>, part: &str| {
        let refused = refused.expect_err(part).to_string();
        assert!(refused.contains(part), "{refused}");
    };
    let add = |from: &[u8]| index.add_compute_server(from).map(drop);
    let process = format!("process {} owns partition 0", std::process::id());
    said(add(&key(5)), &process);
    said(add(&key(35)), "nobody owns partition 3");
    said(add(&key(20)), "not where one begins");
    said(add(b""), "8 bytes");
    said(add(b"short"), "8 bytes");
    said(index.remove_compute_server(0), &process);
    said(index.remove_compute_server(9), "no compute server 9");
    said(theirs.remove_compute_server(0), "owns partition 1");
    // A partition added here shifts the numbers of other processes' partitions in the catalog.
    index.add_compute_server(&key(15)).expect("its own");
    assert_eq!(index.info().expect("there").boundaries.len(), 4);
    let refused = theirs.session().expect("open").get(&key(25)).expect_err("another's");
    assert!(matches!(refused, Error::NotOwned { partition: 3, owner: Some(_), .. }), "{refused}");
    assert!(theirs.move_boundary(0, &key(9)).is_err());
    theirs.add_compute_server(&key(3)).expect("its own");
    let boundaries = [3, 10, 15, 20, 30].map(|n| key(n).to_vec());
    assert_eq!(index.info().expect("there").boundaries, boundaries);
    for number in [2, 1] {
        let removed = index.remove_compute_server(number);
        assert!(removed.is_ok(), "{removed:?}");
    }
    said(index.remove_compute_server(4), "owns partition 0");
    other.close().expect("closes");
    cluster.close().expect("closes");

    let cluster = Cluster::open(config()).expect("closed by both");
    let index = cluster.open_index("n").expect("there");
    assert_eq!(index.boundaries().expect("open"), [3, 10, 30].map(|n| key(n).to_vec()));
    for number in [0, 1, 2] {
        index.remove_compute_server(number).expect("not the last one");
    }
    said(index.remove_compute_server(3), "only one");
    let session = index.session().expect("open");
    assert!(!session.put(&key(1), &key(1)).expect("put"));
    drop(session);
    sound(&cluster);
    cluster.close().expect("closes");
    let looking = Cluster::open(config()).expect("closed");
    looking.close().expect("closes");
    said(index.add_compute_server(&key(5)).map(drop), "closed");
}

#[test]
fn who_cannot_be_given_keys_is_not_there_and_all_is_as_before() {
    let config = Config::embedded().memory(1 << 20).cache(64 << 10);
    let cluster = Cluster::open(config.deadline(Duration::from_millis(50))).expect("opens");
    let index = cluster.create_index("n", &IndexOptions::integers()).expect("new");
    let session = index.session().expect("open");
    let put = |n: u64| session.put(&key(2 * n), &key(n));
    let stored = (0..).find(|&n| put(n).is_err()).expect("the pool is not endless");
    // A leaf would have to be split there, and its other half has no room.
    let refused = index.add_compute_server(&key(stored + 1)).expect_err("full");
    assert!(refused.is_full(), "{refused}");
    assert_eq!((index.compute_servers().expect("open"), index.boundaries().expect("open").len()), (1, 0));
    assert_eq!(index.info().expect("there").boundaries.len(), 0);
    let stats = || cluster.stats().expect("counted").indexes.remove(0);
    assert_eq!(stats().compute_servers.len(), 1);
    let entries = (0..stored).map(|n| (key(2 * n).to_vec(), key(n).to_vec()));
    assert!(session.iter().map(|entry| entry.expect("found")).eq(entries));
    // With some room the addition succeeds, under another number.
    (0..stored / 2).for_each(|n| assert!(session.remove(&key(2 * n)).expect("removed")));
    let added = index.add_compute_server(&key(stored + 1)).expect("there is room again");
    assert!(added > 0 && stats().compute_servers[1].number == added);
    assert!((stored / 2..stored).all(|n| session.get(&key(2 * n)).expect("found") == Some(key(n).to_vec())));
    drop(session);
    sound(&cluster);
}

#[test]
fn a_compute_server_without_room_for_its_log_is_not_added() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = Config::at(folder.path().join("pool")).memory(8 << 20).create(Create::New);
    let cluster = Cluster::open(config.durability(Durability::Process)).expect("opens");
    let index = cluster.create_index("n", &IndexOptions::integers()).expect("new");
    let session = index.session().expect("open");
    session.put(&key(7), &key(7)).expect("room");
    let refused =
        (1..1_000).find_map(|n| index.add_compute_server(&key(n * 10)).err()).expect("a pool has an end");
    let sentence = refused.to_string();
    assert!(refused.is_full() || sentence.contains("a log of"), "{sentence}");
    let count = index.compute_servers().expect("open");
    assert!(count > 2, "{count}: {sentence}");
    (0..count as u64).for_each(|n| assert!(session.put(&key(n * 10 + 3), &key(n)).is_ok()));
    // The log of one that is removed is there for the next.
    index.remove_compute_server(1).expect("removed");
    let added = index.add_compute_server(&key(10)).expect("there is a log");
    assert_eq!((added, session.get(&key(13)).expect("found")), (count, Some(key(1).to_vec())));
    drop(session);
    sound(&cluster);
    cluster.close().expect("closes");
}

#[test]
fn many_compute_servers_have_a_cache_each() {
    let cluster = Cluster::open(Config::embedded().cache(1 << 20)).expect("opens");
    let index = cluster.create_index("n", &IndexOptions::integers()).expect("new");
    let session = index.session().expect("open");
    session.put(&key(7), &key(7)).expect("room");
    for n in 1..40 {
        index.add_compute_server(&key(n * 10)).expect("room");
    }
    assert_eq!(index.compute_servers().expect("open"), 40);
    let stats = cluster.stats().expect("counted").indexes.remove(0);
    assert!(stats.compute_servers.iter().all(|server| server.cache_bytes >= 1 << 19));
    assert_eq!(session.get(&key(7)).expect("found"), Some(key(7).to_vec()));
}
