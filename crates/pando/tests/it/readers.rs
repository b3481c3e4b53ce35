//! Readers beside each other and beside a writer: [`Config::read_only`]. Their answers are current or
//! refused, and they leave nothing behind.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::support::{key, number, sound};
use pando::{
    Answers, BulkOptions, Cluster, Config, Create, Durability, Error, Index, IndexOptions, ScanRange, Session,
};

const PATH: &str = "PANDO_TEST_READ";
const KEYS: u64 = 600;

/// A closed pool with an index of `KEYS` keys whose values are all 0.
fn pool(directory: &tempfile::TempDir) -> PathBuf {
    let path = directory.path().join("pool");
    let cluster = Cluster::open(Config::at(&path).memory(16 << 20).create(Create::New)).expect("made");
    let index = cluster.create_index("x", &IndexOptions::integers().node_size(256)).expect("made");
    write(&index, 0);
    cluster.close().expect("closes");
    path
}

fn write(index: &Index, round: u64) {
    let session = index.session().expect("session");
    (0..KEYS).for_each(|n| assert!(session.put(&key(n), &key(round)).is_ok()));
}

fn writer(path: &Path) -> (Cluster, Index) {
    let cluster = Cluster::open(Config::at(path).cache(64 << 10)).expect("attaches");
    let index = cluster.open_index("x").expect("opens");
    (cluster, index)
}

fn reading(path: &Path) -> Config {
    Config::at(path).cache(64 << 10).read_only(true)
}

fn opened(path: &Path) -> Index {
    let cluster = Cluster::open(reading(path)).expect("attaches");
    cluster.open_index("x").expect("opens")
}

fn reader(path: &Path) -> Session {
    opened(path).session().expect("session")
}

fn scanned(session: &Session, range: &ScanRange<'_>) -> Result<Vec<(u64, u64)>, Error> {
    let mut entries = Vec::new();
    session.scan(range, |key, value| {
        entries.push((number(key), number(value)));
        true
    })?;
    Ok(entries)
}

#[test]
fn readers_find_nothing_to_redo_in_a_pool_that_was_closed() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let path = pool(&directory);
    for (name, options) in [("numbers", IndexOptions::integers()), ("texts", IndexOptions::bytes())] {
        for round in 0..3 {
            let config = Config::at(&path).durability(Durability::Process);
            let cluster = Cluster::open(config).expect("attaches");
            if round == 0 {
                cluster.create_index(name, &options).expect("made");
            }
            let index = cluster.open_index(name).expect("opens");
            assert!(index.recovery().is_none(), "{name}, round {round}");
            index.session().expect("session").put(&key(round), &key(7)).expect("put");
            cluster.close().expect("closes");
            let reading = Cluster::open(reading(&path)).expect("attaches").open_index(name).expect("at rest");
            let read = reading.session().expect("session").get(&key(round)).expect("reads");
            assert_eq!(read, Some(key(7).to_vec()), "{name}, round {round}");
        }
    }
}

#[test]
fn readers_do_not_exclude_each_other_and_take_no_place() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let path = pool(&directory);
    let (one, two) = (reader(&path), reader(&path));
    let mut entries = one.iter();
    assert_eq!(number(&entries.next().expect("one").expect("reads").0), 0);
    assert_eq!(two.get(&key(7)).expect("reads"), Some(key(0).to_vec()));
    let mut answers = Answers::default();
    two.multi_get(&[key(3), key(KEYS)], &mut answers).expect("reads");
    assert_eq!(answers.iter().collect::<Vec<_>>(), [Some(&key(0)[..]), None]);
    assert_eq!(scanned(&two, &ScanRange { reverse: true, ..ScanRange::all() }).expect("reads").len(), 600);
    assert_eq!(entries.count() as u64, KEYS - 1);
    let cluster = Cluster::open(reading(&path)).expect("attaches");
    assert_eq!(cluster.attached().expect("open"), []);
    sound(&cluster);
}

#[test]
fn what_changes_something_is_refused_to_a_reader() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let path = pool(&directory);
    let cluster = Cluster::open(reading(&path)).expect("attaches");
    let index = cluster.open_index("x").expect("opens");
    let session = index.session().expect("session");
    let refused = [
        session.put(&key(1), &key(1)).map(drop),
        session.remove(&key(1)).map(drop),
        session.compare_and_swap(&key(1), None, None).map(drop),
        cluster.create_index("y", &IndexOptions::integers()).map(drop),
        cluster.drop_index("x"),
        index.announce("host:1"),
        index.bulk_load(&[(key(1), key(1))][..], &BulkOptions::default()).map(drop),
        cluster.add_memory_server(1 << 20).map(drop),
    ];
    for refused in refused {
        let error = refused.expect_err("refused");
        assert!(matches!(error, Error::ReadOnly) && error.is_bad_input(), "{error}");
    }
    assert!(Cluster::open(reading(&path.with_extension("not"))).expect_err("nothing").is_bad_input());
    drop((session, index));
    cluster.close().expect("closes");
    sound(&writer(&path).0);
}

#[test]
fn an_index_that_is_written_to_is_refused_with_its_owner_and_read_when_that_has_gone() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let path = pool(&directory);
    let quick = reading(&path).deadline(Duration::from_millis(40));
    let early = Cluster::open(quick.clone()).expect("attaches").open_index("x").expect("opens");
    let early = early.session().expect("session");
    assert_eq!(early.get(&key(1)).expect("reads"), Some(key(0).to_vec()));
    let (cluster, index) = writer(&path);
    write(&index, 1);
    let late = Cluster::open(quick).expect("attaches");
    let errors = [
        early.get(&key(1)).map(drop),
        early.iter().next().expect("an error").map(drop),
        early.multi_get(&[key(1)], &mut Answers::default()),
        late.open_index("x").map(drop),
    ];
    for error in errors {
        let text = error.expect_err("refused").to_string();
        let process = format!("is open for writing by process {}", std::process::id());
        assert!(text.contains(&process), "{text}");
    }
    drop(index);
    cluster.close().expect("closes");
    assert_eq!(early.get(&key(1)).expect("reads"), Some(key(1).to_vec()));
    let late = late.open_index("x").expect("opens").session().expect("session");
    assert_eq!(late.get(&key(1)).expect("reads"), Some(key(1).to_vec()));

    // A new index of the same name is another index.
    let (cluster, index) = writer(&path);
    drop(index);
    cluster.drop_index("x").expect("dropped");
    assert!(early.get(&key(1)).expect_err("gone").to_string().contains("was dropped"));
    cluster.create_index("x", &IndexOptions::bytes()).expect("made");
    cluster.close().expect("closes");
    assert!(late.get(&key(1)).expect_err("gone").to_string().contains("was dropped"));
}

#[test]
fn readers_see_all_of_what_a_writer_did_or_nothing() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let path = pool(&directory);
    let (stop, rounds_seen) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for index in [opened(&path), opened(&path)] {
            let (stop, rounds_seen) = (&stop, &rounds_seen);
            scope.spawn(move || {
                let session = index.session().expect("session");
                let mut newest = 0;
                while !stop.load(Relaxed) {
                    // One batch: all values are of the same round.
                    let entries = scanned(&session, &ScanRange::all()).expect("reads");
                    let round = entries[0].1;
                    assert!(entries.iter().all(|entry| entry.1 == round), "{entries:?}");
                    let keys: Vec<u64> = entries.iter().map(|entry| entry.0).collect();
                    let expected: Vec<u64> = (0..KEYS + round % 7 * 50).collect();
                    assert!(keys == expected, "{} keys in round {round}", keys.len());
                    assert!(round >= newest, "round {round} after {newest}");
                    if round > newest {
                        rounds_seen.fetch_add(1, Relaxed);
                    }
                    let value = session.get(&key(round % KEYS)).expect("reads").expect("there");
                    newest = number(&value);
                    assert!(newest >= round);
                }
            });
        }
        for round in 1..40 {
            let (cluster, index) = writer(&path);
            write(&index, round);
            let session = index.session().expect("session");
            for n in KEYS..KEYS + 350 {
                let done = match n < KEYS + round % 7 * 50 {
                    true => session.put(&key(n), &key(round)),
                    false => session.remove(&key(n)),
                };
                assert!(done.is_ok());
            }
            drop((session, index));
            cluster.close().expect("closes");
            std::thread::sleep(Duration::from_millis(3));
        }
        stop.store(true, Relaxed);
    });
    assert!(rounds_seen.load(Relaxed) > 10, "{rounds_seen:?}");
    sound(&writer(&path).0);
}

#[test]
fn a_further_reader() {
    let Ok(path) = std::env::var(PATH) else { return };
    let session = reader(Path::new(&path));
    let mut entries = session.iter();
    assert!(entries.next().is_some());
    println!("ready");
    loop {
        std::thread::park();
    }
}

#[test]
fn a_reader_that_is_killed_leaves_the_pool_as_it_was() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let path = pool(&directory);
    let exe = std::env::current_exe().expect("own path");
    let mut command = Command::new(exe);
    command
        .args(["--exact", "readers::a_further_reader", "--nocapture"])
        .env(PATH, &path)
        .stdout(Stdio::piped());
    let mut child = command.spawn().expect("starts");
    crate::support::wait_ready(&mut child);
    // Other processes read and write beside it.
    assert_eq!(reader(&path).iter().count() as u64, KEYS);
    let (cluster, index) = writer(&path);
    write(&index, 1);
    child.kill().expect("runs");
    child.wait().expect("runs");
    cluster.close().expect("closes");
    sound(&writer(&path).0);
}
