//! Several processes on one pool. A test starts this binary again for each further process, with its task in
//! the environment.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::support::{create_divided, key, number, sound, wait_ready};
use pando::{Cluster, Config, Create, Error, Index, IndexOptions, OpenOptions, Ownership};

const TASK: &str = "PANDO_TEST_TASK";
const PATH: &str = "PANDO_TEST_PATH";
const KEYS: u64 = 20_000;
const MIDDLE: u64 = KEYS / 2;

fn start(path: &Path, task: &str) -> Child {
    let exe = std::env::current_exe().expect("own path");
    let arguments = ["--exact", "processes::a_further_process", "--nocapture"];
    let mut command = Command::new(exe);
    command.args(arguments).env(TASK, task).env(PATH, path).stdout(Stdio::piped());
    command.spawn().expect("starts")
}

fn half(path: &Path, partition: usize) -> (Cluster, Index) {
    let cluster = Cluster::open(Config::at(path).cache(64 << 10)).expect("attaches");
    let own = OpenOptions::default().own(Ownership::Partitions(vec![partition]));
    let index = cluster.open_index_with("x", &own).expect("opens");
    (cluster, index)
}

#[test]
fn a_further_process() {
    let (Ok(task), Ok(path)) = (std::env::var(TASK), std::env::var(PATH)) else { return };
    let path = Path::new(&path);
    match task.as_str() {
        "insert low" => insert(path, 0),
        "insert high" => insert(path, 1),
        _ => {
            let (_cluster, index) = half(path, 1);
            index.session().expect("session").put(&key(KEYS - 1), &key(0)).expect("put");
            println!("ready");
            loop {
                std::thread::park();
            }
        }
    }
}

/// Inserts the keys of one half by two threads, and removes some of them.
fn insert(path: &Path, partition: usize) {
    let (cluster, index) = half(path, partition);
    let base = partition as u64 * MIDDLE;
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let index = &index;
            scope.spawn(move || {
                let session = index.session().expect("session");
                for n in (base + thread..base + MIDDLE).step_by(2) {
                    assert!(session.insert(&key(n), &key(n)).expect("insert"));
                }
                for n in (base + thread..base + MIDDLE).step_by(10) {
                    assert!(session.remove(&key(n)).expect("remove"));
                }
            });
        }
    });
    cluster.close().expect("closes");
}

fn create(path: &Path, tiny: bool) -> Cluster {
    create_divided(path, &[MIDDLE], tiny)
}

#[test]
fn two_processes_insert_and_split_at_the_same_time() {
    for tiny in [false, true] {
        let directory = tempfile::tempdir().expect("temporary directory");
        let path = directory.path().join("pool");
        create(&path, tiny).close().expect("closes");
        for mut child in [start(&path, "insert low"), start(&path, "insert high")] {
            assert!(child.wait().expect("runs").success());
        }
        let cluster = Cluster::open(Config::at(&path)).expect("was closed by both");
        sound(&cluster);
        let index = cluster.open_index("x").expect("there");
        let session = index.session().expect("session");
        let found: Vec<u64> = session.iter().map(|entry| number(&entry.expect("scan").0)).collect();
        let expected: Vec<u64> = (0..KEYS).filter(|n| n % 10 > 1).collect();
        assert!(found == expected, "{} of {}", found.len(), expected.len());
        drop(session);
        sound(&cluster);
    }
}

#[test]
fn keys_of_another_process_and_work_that_needs_the_pool_alone_are_refused() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let path = directory.path().join("pool");
    create(&path, false).close().expect("closes");
    let mut other = start(&path, "wait");
    wait_ready(&mut other);
    let process = format!("process {}", other.id());
    let refused = |error: Error, text: &str| {
        let error = error.to_string();
        assert!(error.contains(&process) && error.contains(text), "{error}");
    };

    let (cluster, index) = half(&path, 0);
    assert_eq!(cluster.attached().expect("open").len(), 2);
    let session = index.session().expect("session");
    session.put(&key(1), &key(1)).expect("its own");
    refused(session.put(&key(MIDDLE), &key(1)).expect_err("not its own"), "partition 1 of index \"x\"");
    let scanned: Vec<_> = session.iter().collect();
    assert!(scanned[0].is_ok() && scanned.len() == 2);
    refused(scanned.into_iter().next_back().expect("two").expect_err("not its own"), "owns");
    drop(session);
    refused(cluster.check().expect_err("not alone"), "needs the pool alone");
    assert!(matches!(cluster.drop_index("x"), Err(Error::NotAllOwned { partition: 1, .. })));
    cluster.close().expect("closes");

    let cluster = Cluster::open(Config::at(&path).compute_servers(5)).expect("attaches");
    refused(cluster.open_index("x").expect_err("owned"), "partition 1");
    refused(cluster.drop_index("x").expect_err("owned"), "partition 1");
    // Partitions claimed before the refusal were released.
    assert_eq!(cluster.index_info("x").expect("there").owners[0], None);
    cluster.close().expect("closes");

    other.kill().expect("runs");
    other.wait().expect("runs");
    let unclean = Cluster::open(Config::at(&path)).expect_err("unclean");
    assert!(matches!(unclean, Error::NotClosedCleanly { .. }) && !unclean.is_bad_input());
    refused(unclean, "create it anew");

    let looking = Cluster::open(Config::at(&path).read_only_unclean(true)).expect("may look");
    let session = looking.open_index("x").expect("there").session().expect("session");
    assert_eq!(session.get(&key(1)).expect("get"), Some(key(1).to_vec()));
    assert!(matches!(session.put(&key(1), &key(2)), Err(Error::ReadOnly)));
    assert!(matches!(looking.create_index("y", &IndexOptions::bytes()), Err(Error::ReadOnly)));
    drop(session);
    assert_eq!(looking.check().expect("may look").indexes[0].entries, 1);
    looking.close().expect("closes");

    let anew = Cluster::open(Config::at(&path).memory(16 << 20).create(Create::Replace)).expect("made anew");
    assert!(anew.index_names().expect("open").is_empty());
}

#[test]
fn a_process_killed_midway_is_noticed_by_those_who_go_on_and_by_those_who_come() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let path = directory.path().join("pool");
    let cluster = create(&path, false);
    let mut other = start(&path, "wait");
    wait_ready(&mut other);
    other.kill().expect("runs");
    other.wait().expect("runs");
    // While this process has the pool open, others may attach and use the remaining parts.
    assert!(start(&path, "insert low").wait().expect("runs").success());
    let (another, index) = half(&path, 0);
    let session = index.session().expect("session");
    assert_eq!(session.iter().take_while(Result::is_ok).count() as u64, MIDDLE * 8 / 10);
    drop(session);
    another.close().expect("closes");
    let another = Cluster::open(Config::at(&path)).expect("attaches");
    let lost = another.open_index("x").expect_err("one partition is lost");
    assert!(lost.to_string().contains("partition 1 of index \"x\" is lost"), "{lost}");
    another.close().expect("closes");
    // A clean close of this process does not make the pool clean.
    cluster.close().expect("closes");
    assert!(matches!(Cluster::open(Config::at(&path)), Err(Error::NotClosedCleanly { .. })));
}
