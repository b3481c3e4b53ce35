//! Two processes on one pool in files, each with its own compute servers. Both move keys between theirs at
//! the same time, during operations. The boundary between the processes stays.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::support::{create_divided, key, number, sound};
use pando::{Cluster, Config, Durability, Error, Index, OpenOptions, Ownership};

const PATH: &str = "PANDO_TEST_PATH";
/// There if the process keeps logs.
const IS_LOGGED: &str = "PANDO_TEST_IS_LOGGED";
/// Number of keys of both processes; the first process owns those below the middle.
const KEYS: u64 = 8_000;
const MIDDLE: u64 = KEYS / 2;
const ROUNDS: u64 = 25;

fn open(path: &Path, partitions: Vec<usize>, is_logged: bool) -> (Cluster, Index) {
    let durability = if is_logged { Durability::Process } else { Durability::Off };
    let cluster = Cluster::open(Config::at(path).cache(64 << 10).durability(durability)).expect("attaches");
    let own = OpenOptions::default().own(Ownership::Partitions(partitions));
    let index = cluster.open_index_with("x", &own).expect("opens");
    (cluster, index)
}

/// Increments all values of the process again and again until `over`; returns the number of rounds.
fn count_up(index: &Index, base: u64, over: &AtomicBool) -> u64 {
    let session = index.session().expect("session");
    let mut rounds = 0u64;
    while !over.load(Relaxed) || rounds < 2 {
        rounds += 1;
        for n in base..base + MIDDLE {
            let (old, new) = ((rounds - 1).to_be_bytes(), rounds.to_be_bytes());
            let found = session.get(&key(n)).expect("its own");
            assert_eq!(found.as_deref(), Some(&old[..]).filter(|_| rounds > 1), "key {n}");
            assert_eq!(session.put(&key(n), &new).expect("its own"), rounds > 1);
        }
        let (first, last) = (key(base), key(base + MIDDLE - 1));
        let all = session.range(first..=last).map(|entry| entry.expect("its own"));
        assert!(all.map(|(key, _)| number(&key)).eq(base..base + MIDDLE));
    }
    rounds
}

/// Moves the boundary between the process's two compute servers, adds a third one and removes one, again and
/// again.
fn stir(index: &Index, base: u64, mine: usize) {
    let own = |n: u64| key(base + n * MIDDLE / 100);
    for round in 0..ROUNDS {
        index.move_boundary(mine, &own(20 + (round * 37) % 60)).expect("among its own");
        let added = index.add_compute_server(&own(90)).expect("among its own");
        index.move_boundary(mine + 1, &own(95)).expect("among its own");
        index.remove_compute_server(added).expect("there are others");
    }
    index.move_boundary(mine, &own(33)).expect("among its own");
}

/// Counts up during `stir`; returns the number of rounds.
fn work(index: &Index, base: u64, mine: usize) -> u64 {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let counting = scope.spawn(|| count_up(index, base, &over));
        let stirring = scope.spawn(|| stir(index, base, mine)).join();
        over.store(true, Relaxed);
        let rounds = counting.join().expect("all that it saw was right");
        stirring.expect("all moves were made");
        rounds
    })
}

#[test]
fn a_further_process() {
    let Ok(path) = std::env::var(PATH) else { return };
    let is_logged = std::env::var_os(IS_LOGGED).is_some();
    let (cluster, index) = open(Path::new(&path), vec![2, 3], is_logged);
    println!("ready");
    let rounds = work(&index, MIDDLE, 2);
    println!("worked {rounds}");
    // The other process checks what is refused while this one is attached.
    std::io::stdin().read_to_end(&mut Vec::new()).expect("until it is closed");
    cluster.close().expect("closes");
}

#[test]
fn each_of_two_processes_moves_keys_among_its_own_while_both_work() {
    for (tiny, is_logged) in [(true, false), (false, false), (false, true)] {
        let directory = tempfile::tempdir().expect("temporary directory");
        let path = directory.path().join("pool");
        create_divided(&path, &[MIDDLE / 2, MIDDLE, MIDDLE + MIDDLE / 2], tiny).close().expect("closes");
        let exe = std::env::current_exe().expect("own path");
        let mut other = Command::new(exe)
            .args(["--exact", "neighbours::a_further_process", "--nocapture"])
            .env(PATH, &path)
            .envs(is_logged.then_some((IS_LOGGED, "")))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("starts");
        let mut lines = BufReader::new(other.stdout.take().expect("piped")).lines();
        let mut until = |word: &str| {
            let line = lines.by_ref().map(|line| line.expect("text")).find(|line| line.contains(word));
            line.unwrap_or_else(|| panic!("the other process ended before it was {word}"))
        };
        until("ready");
        let (cluster, index) = open(&path, vec![0, 1], is_logged);
        let rounds = work(&index, 0, 0);
        let theirs: u64 = until("worked").rsplit(' ').next().and_then(|n| n.parse().ok()).expect("a number");

        let refused = index.move_boundary(1, &key(MIDDLE + 7)).expect_err("beside the other process");
        let sentence = refused.to_string();
        let process = format!("process {} owns partition 2 of index \"x\"", other.id());
        assert!(
            sentence.starts_with("moving a boundary needs") && sentence.ends_with(&process),
            "{sentence}"
        );
        assert!(matches!(index.add_compute_server(&key(MIDDLE + 7)), Err(Error::OnOtherSide { .. })));
        let boundaries = [33 * MIDDLE / 100, MIDDLE, MIDDLE + 33 * MIDDLE / 100].map(|n| key(n).to_vec());
        assert_eq!(index.info().expect("there").boundaries, boundaries);
        drop(other.stdin.take());
        assert!(other.wait().expect("runs").success());
        cluster.close().expect("closes");

        let cluster = Cluster::open(Config::at(&path)).expect("was closed by both");
        sound(&cluster);
        let index = cluster.open_index("x").expect("there");
        assert_eq!(index.boundaries().expect("open"), boundaries);
        let session = index.session().expect("session");
        let mut expected = 0..KEYS;
        for entry in session.iter() {
            let (found, value) = entry.expect("found");
            let n = number(&found);
            assert_eq!(Some(n), expected.next());
            assert_eq!(value, if n < MIDDLE { rounds } else { theirs }.to_be_bytes(), "key {n}");
        }
        assert!(expected.is_empty());
        drop(session);
        cluster.close().expect("closes");
    }
}
