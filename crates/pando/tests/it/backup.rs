//! Backups of pools at rest and of pools in use, damage of their files, restores into pools of other shapes.
//!
//! While operations run, each thread numbers its changes. A state of one moment has the first changes of each thread and no
//! others, and of two indexes that a thread changes in turn, the second has no change that the first has not.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;

use pando::backup::{self, Backup, BackupError, BackupOptions, Destination, RestoreOptions};
use pando::{BulkOptions, Cluster, Config, Create, Durability, Error, Index, IndexOptions, Session};

use crate::support::sound;

type Entries = BTreeMap<Vec<u8>, Vec<u8>>;

fn entries_of(index: &Index) -> Entries {
    let session = index.session().expect("a session");
    session.iter().map(|entry| entry.expect("readable")).collect()
}

fn logged(path: &Path, cache: u64, durability: Durability) -> Cluster {
    Cluster::open(config(path, cache).durability(durability)).expect("opens")
}

fn config(path: &Path, cache: u64) -> Config {
    Config::at(path).memory(64 << 20).cache(cache).create(Create::IfMissing).huge_pages(false)
}

/// Restores a backup into a new pool of several servers, and returns the entries of each index.
pub fn restored(backups: impl Into<Destination>, id: &str) -> BTreeMap<String, Entries> {
    let config = Config::embedded().memory_servers(3).memory(32 << 20).compute_servers(2).cache(1 << 20);
    let cluster = Cluster::open(config).expect("opens");
    let options = RestoreOptions { id: Some(id), ..RestoreOptions::default() };
    let backup = backup::restore(backups, &cluster, &options).expect("restored");
    let entries = |name: &String| entries_of(&cluster.open_index(name).expect("it was restored"));
    let found: BTreeMap<_, _> = cluster
        .index_names()
        .expect("names")
        .into_iter()
        .map(|name| (name.clone(), entries(&name)))
        .collect();
    for index in &backup.indexes {
        assert_eq!(found[&index.name].len() as u64, index.entries);
    }
    sound(&cluster);
    found
}

const THREADS: u64 = 3;
/// Keys of a thread in each index.
const KEYS: u64 = 3_000;

/// Key of change `n` of a thread.
fn key_of(thread: u64, n: u64) -> [u8; 8] {
    // In no order, so that threads meet in leaves.
    (thread + n % KEYS * THREADS).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

/// Value of change `n`; `None` if it removes the key.
fn value_of(is_long: bool, n: u64) -> Option<Vec<u8>> {
    let len = match is_long {
        true if n.is_multiple_of(5) => 1_200,
        true => 8 + n as usize % 4 * 10,
        false => 8,
    };
    (n % 7 != 3).then(|| n.to_le_bytes().iter().copied().cycle().take(len).collect())
}

/// Key of a thread's number of changes.
fn count_key(thread: u64) -> [u8; 8] {
    (THREADS * KEYS + thread).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

/// Makes change `n` and counts it.
fn change(session: &Session, is_long: bool, thread: u64, n: u64) {
    let key = key_of(thread, n);
    match value_of(is_long, n) {
        Some(value) => session.put(&key, &value),
        None => session.remove(&key),
    }
    .expect("there is room");
    session.put(&count_key(thread), &(n + 1).to_le_bytes()).expect("there is room");
}

/// State of a thread's keys after its first `changes` changes.
fn state(is_long: bool, thread: u64, changes: u64) -> Entries {
    let last = changes.saturating_sub(KEYS)..changes;
    last.filter_map(|n| Some((key_of(thread, n).to_vec(), value_of(is_long, n)?))).collect()
}

/// Numbers of changes after which a thread's keys are as in `entries`.
fn moments(is_long: bool, thread: u64, entries: &Entries) -> Vec<u64> {
    let keys: BTreeSet<Vec<u8>> = (0..KEYS).map(|n| key_of(thread, n).to_vec()).collect();
    let mine = entries.iter().filter(|(key, _)| keys.contains(*key));
    let mine: Entries = mine.map(|(key, value)| (key.clone(), value.clone())).collect();
    let counted = entries.get(&count_key(thread)[..]);
    let counted = counted.map_or(0, |count| u64::from_le_bytes(*count.first_chunk().expect("8 bytes")));
    // The last change may not be counted yet.
    (counted..counted + 2).filter(|&changes| state(is_long, thread, changes) == mine).collect()
}

/// Tells all threads to stop when it is dropped, also by a panic.
struct Stop<'s>(&'s AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Threads that change both indexes in turn, while backups are made; calls `check` with each backup. `wrap` runs the work of
/// each thread.
pub fn during_changes(
    cache: u64,
    compute_servers: usize,
    changes_memory: u64,
    wrap: &(dyn Fn(&mut dyn FnMut()) + Sync),
    place: &dyn Fn(&Path) -> Destination,
    check: impl Fn(&Destination, &Backup),
) {
    let directory = tempfile::tempdir().expect("temporary directory");
    let config = config(&directory.path().join("pool"), cache).durability(Durability::Process);
    let cluster = Cluster::open(config.compute_servers(compute_servers)).expect("opens");
    let first = cluster.create_index("first", &IndexOptions::integers()).expect("new");
    let second = cluster.create_index("second", &IndexOptions::bytes()).expect("new");
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let path = directory.path().join("backups");
    let backups = place(&path);
    let changes = |thread| {
        let _stop = Stop(&stop);
        let [first, second] = [&first, &second].map(|index| index.session().expect("a session"));
        for n in (0..).take_while(|_| !stop.load(Relaxed)) {
            change(&first, false, thread, n);
            change(&second, true, thread, n);
            done.fetch_add(1, Relaxed);
        }
    };
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let changes = &changes;
            scope.spawn(move || wrap(&mut || changes(thread)));
        }
        if compute_servers > 1 {
            scope.spawn(|| move_keys(&first, &stop));
        }
        let _stop = Stop(&stop);
        wrap(&mut || {
            for round in 1..4 {
                while done.load(Relaxed) < round * THREADS * KEYS {
                    assert!(!stop.load(Relaxed), "a thread failed");
                    thread::yield_now();
                }
                let options = BackupOptions { changes_memory, ..BackupOptions::default() };
                let made = cluster.backup(&backups, &options).expect("it is made");
                check(&backups, &made);
                if let Ok(files) = std::fs::read_dir(path.join(&made.id)) {
                    assert_eq!(files.count(), 3, "two indexes and a manifest");
                }
            }
        });
    });
    assert_eq!(backup::list(&backups).expect("there are some").len(), 3);
    cluster.close().expect("closes");
}

/// Moves a boundary, and lets a compute server come and go.
fn move_keys(index: &Index, stop: &AtomicBool) {
    for n in (1u64..).take_while(|_| !stop.load(Relaxed)) {
        let low = (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 1) + 1;
        index.move_boundary(0, &low.to_be_bytes()).expect("it moves");
        let added = index.add_compute_server(&(3u64 << 62).to_be_bytes()).expect("there is room");
        index.remove_compute_server(added).expect("there are others");
    }
}

/// Checks that a backup has the state of one moment.
pub fn is_of_one_moment(backups: &Destination, made: &Backup) {
    assert_eq!(&backup::verify(backups, Some(&made.id), None).expect("it is whole"), made);
    let found = restored(backups, &made.id);
    for thread in 0..THREADS {
        let first = moments(false, thread, &found["first"]);
        let second = moments(true, thread, &found["second"]);
        assert!(!first.is_empty() && !second.is_empty(), "thread {thread}: {first:?}, {second:?}");
        let follows = |first: &u64| second.iter().any(|second| (*second..=second + 1).contains(first));
        assert!(first.iter().any(follows), "thread {thread}: {first:?}, {second:?}");
    }
}

/// What tests of directories tell [`during_changes`].
fn a_directory(path: &Path) -> Destination {
    path.into()
}

#[test]
fn a_backup_during_changes_has_the_state_of_one_moment() {
    during_changes(8 << 20, 1, 64 << 20, &|work| work(), &a_directory, is_of_one_moment);
}

#[test]
fn so_does_one_with_leaves_outside_of_the_cache_and_changes_in_files() {
    during_changes(128 << 10, 1, 0, &|work| work(), &a_directory, is_of_one_moment);
}

#[test]
fn so_does_one_of_several_compute_servers_between_which_keys_move() {
    during_changes(128 << 10, 2, 64 << 10, &|work| work(), &a_directory, is_of_one_moment);
}

#[cfg(feature = "defects")]
mod defects {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use pando_fabric::defect::with_defect;
    use pando_log::defect::OfBackup;

    #[test]
    fn each_defect_of_backups_is_found() {
        for defect in OfBackup::ALL {
            let wrap = |work: &mut dyn FnMut()| with_defect(Some(defect), work);
            let run = || {
                super::during_changes(
                    128 << 10,
                    1,
                    64 << 20,
                    &wrap,
                    &|path| path.into(),
                    super::is_of_one_moment,
                )
            };
            let found = (0..20).find(|_| catch_unwind(AssertUnwindSafe(run)).is_err());
            println!("{defect:?}: run {found:?}");
            assert!(found.is_some(), "{defect:?} is not found");
        }
    }
}

/// An index of each kind, and what it has.
fn filled(cluster: &Cluster) -> BTreeMap<String, Entries> {
    let mut all = BTreeMap::new();
    let boundaries = vec![5_000u64.to_be_bytes().to_vec()];
    let fixed = IndexOptions::integers().node_size(512).boundaries(boundaries).description("numbers");
    for (name, options, count) in [
        ("fixed", fixed, 9_000u64),
        ("bytes", IndexOptions::bytes(), 2_000),
        ("none", IndexOptions::bytes(), 0),
    ] {
        let entry = |n: u64| {
            let len = match name {
                "bytes" if n.is_multiple_of(100) => 40_000,
                "bytes" => n as usize % 30,
                _ => 8,
            };
            (n.to_be_bytes().to_vec(), n.to_le_bytes().iter().copied().cycle().take(len).collect())
        };
        let entries: Entries = (0..count).map(entry).collect();
        let index = cluster.create_index(name, &options).expect("new");
        let sorted: Vec<_> = entries.iter().collect();
        index.bulk_load(&sorted[..], &BulkOptions::default()).expect("loads");
        all.insert(name.to_owned(), entries);
    }
    all
}

#[test]
fn indexes_at_rest_come_back_in_pools_of_other_shapes() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let backups = directory.path().join("backups");
    for (place, config) in crate::support::configs(directory.path()) {
        println!("{place}");
        let cluster = Cluster::open(config).expect("opens");
        let all = filled(&cluster);
        let index = cluster.open_index("fixed").expect("it is there");
        let session = index.session().expect("a session");
        let refused = cluster.backup(&backups, &BackupOptions::default());
        assert!(matches!(refused, Err(Error::SessionsOpen { .. })), "{refused:?}");
        drop(session);
        let made = cluster.backup(&backups, &BackupOptions::default()).expect("it is made");
        let counted =
            made.indexes.iter().map(|index| (index.name.clone(), index.entries)).collect::<Vec<_>>();
        let expected =
            all.iter().map(|(name, entries)| (name.clone(), entries.len() as u64)).collect::<Vec<_>>();
        assert_eq!(counted, expected);
        assert_eq!(restored(&backups, &made.id), all);
        let listed = backup::list(&backups).expect("there are some");
        assert!(listed.iter().any(|listed| listed.backup.as_ref().is_ok_and(|found| *found == made)));
        cluster.close().expect("closes");
    }
}

#[test]
fn a_pool_that_is_open_for_reading_is_backed_up_and_restored_with_a_log() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let (pool, backups) = (directory.path().join("pool"), directory.path().join("backups"));
    let cluster = Cluster::open(Config::at(&pool).memory(64 << 20).create(Create::New)).expect("opens");
    let all = filled(&cluster);
    let reading = || Cluster::open(Config::at(&pool).read_only(true)).expect("opens");
    let refused = reading().backup(&backups, &BackupOptions::default());
    assert!(matches!(refused, Err(Error::OpenForWriting { .. })), "{refused:?}");
    cluster.close().expect("closes");
    reading().backup(&backups, &BackupOptions::default()).expect("it is made");

    let logged = logged(&directory.path().join("logged"), 1 << 20, Durability::Process);
    let options = RestoreOptions { index: Some("bytes"), name: Some("copy"), ..RestoreOptions::default() };
    backup::restore(&backups, &logged, &options).expect("restored");
    assert_eq!(logged.index_names().expect("names"), ["copy"]);
    assert_eq!(entries_of(&logged.open_index("copy").expect("it is there")), all["bytes"]);
    backup::restore(&backups, &logged, &RestoreOptions::default()).expect("restored");
    let info = logged.index_info("fixed").expect("it is there");
    assert_eq!((info.node_size, &info.description[..], info.boundaries.len()), (512, &b"numbers"[..], 1));
    assert_eq!(entries_of(&logged.open_index("fixed").expect("it is there")), all["fixed"]);
    logged.close().expect("closes");
}

#[test]
fn an_index_that_is_there_is_refused_before_anything_is_changed() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let cluster = Cluster::open(Config::embedded().memory(64 << 20)).expect("opens");
    filled(&cluster);
    cluster.backup(directory.path(), &BackupOptions::default()).expect("it is made");
    let other = Cluster::open(Config::embedded().memory(64 << 20)).expect("opens");
    // The last one of the backup.
    other.create_index("none", &IndexOptions::bytes()).expect("new");
    let restore = |options: &RestoreOptions<'_>| backup::restore(directory.path(), &other, options);
    let refused = restore(&RestoreOptions::default());
    assert!(matches!(refused, Err(Error::IndexExists { .. })), "{refused:?}");
    assert_eq!(other.index_names().expect("names"), ["none"]);
    let unknown = restore(&RestoreOptions { index: Some("some"), ..RestoreOptions::default() });
    let unknown = unknown.expect_err("there is none").to_string();
    assert!(unknown.contains("has no index \"some\"; it has bytes, fixed, none"), "{unknown}");
    let unnamed = restore(&RestoreOptions { name: Some("some"), ..RestoreOptions::default() });
    assert!(matches!(unnamed, Err(Error::InvalidOption(_))), "{unnamed:?}");
    let small = Cluster::open(Config::embedded().memory(1 << 20)).expect("opens");
    let full = backup::restore(directory.path(), &small, &RestoreOptions::default());
    assert!(full.as_ref().is_err_and(Error::is_full), "{full:?}");
    assert!(small.index_names().expect("names").is_empty());
    sound(&small);
}

/// A small backup of two indexes; returns its id.
fn small(backups: &Path) -> String {
    let cluster = Cluster::open(Config::embedded().memory(16 << 20)).expect("opens");
    let fixed =
        cluster.create_index("fixed", &IndexOptions::integers()).expect("new").integers().expect("open");
    (0..5).for_each(|n| assert!(!fixed.put(n, 2 * n).expect("there is room")));
    drop(fixed);
    cluster.create_index("none", &IndexOptions::bytes().boundaries(vec![b"m".to_vec()])).expect("new");
    cluster.backup(backups, &BackupOptions::default()).expect("it is made").id
}

pub fn error_of<T: std::fmt::Debug>(result: pando::Result<T>) -> BackupError {
    match result.expect_err("it is refused") {
        Error::Backup(error) => *error,
        other => panic!("{other}"),
    }
}

#[test]
fn each_changed_or_missing_byte_is_found() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let id = small(directory.path());
    backup::verify(directory.path(), None, None).expect("it is whole");
    let verify = || error_of(backup::verify(directory.path(), Some(&id), None));
    for name in ["index-0", "index-1", "manifest"] {
        let path = directory.path().join(&id).join(name);
        let good = std::fs::read(&path).expect("it is there");
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            std::fs::write(&path, &bad).expect("it can be written");
            let error = verify();
            let is_version = matches!(error, BackupError::OtherVersion { .. }) && (8..12).contains(&at);
            assert!(is_version || matches!(error, BackupError::Damaged { .. }), "{name}, byte {at}: {error}");
            assert!(error.to_string().contains(path.to_str().expect("text")), "{error}");
            std::fs::write(&path, &good[..at]).expect("it can be written");
            assert!(matches!(verify(), BackupError::Damaged { .. }), "{name}, {at} bytes");
        }
        std::fs::write(&path, [&good[..], b"x"].concat()).expect("it can be written");
        assert!(matches!(verify(), BackupError::Damaged { .. }), "{name} is longer");
        std::fs::write(&path, good).expect("it can be written");
    }
    // A damaged backup is not restored.
    let path = directory.path().join(&id).join("index-1");
    std::fs::write(&path, b"").expect("it can be written");
    let cluster = Cluster::open(Config::embedded().memory(16 << 20)).expect("opens");
    let refused = error_of(backup::restore(directory.path(), &cluster, &RestoreOptions::default()));
    assert!(matches!(refused, BackupError::Damaged { offset: 0, .. }), "{refused}");
    assert!(cluster.index_names().expect("names").is_empty());
    std::fs::remove_file(&path).expect("it is there");
    assert!(matches!(verify(), BackupError::File { .. }));
}

#[test]
fn an_incomplete_backup_is_known_as_such() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let none = |path: &Path| matches!(error_of(backup::list(path)), BackupError::NoBackup { .. });
    assert!(none(directory.path()) && none(&directory.path().join("missing")));
    let (whole, part) = (small(directory.path()), small(directory.path()));
    std::fs::remove_file(directory.path().join(&part).join("manifest")).expect("it is there");
    std::fs::create_dir(directory.path().join("something else")).expect("a directory");
    let listed = backup::list(directory.path()).expect("there are two");
    assert_eq!(listed.len(), 2);
    for listed in listed {
        let is_incomplete = matches!(listed.backup, Err(BackupError::Incomplete { .. }));
        assert_eq!(is_incomplete, listed.id == part);
    }
    let refused = error_of(backup::verify(directory.path(), Some(&part), None));
    assert!(matches!(refused, BackupError::Incomplete { .. }), "{refused}");
    let unknown = error_of(backup::verify(directory.path(), Some("x"), None));
    assert!(matches!(unknown, BackupError::Unknown { .. }), "{unknown}");
    assert_eq!(backup::verify(directory.path(), None, None).expect("one is whole").id, whole);
}

#[test]
fn elf_tables_are_left_out_on_request_only() {
    use pando::elf::{Column, ColumnType, ElfBuild, ElfOptions, Schema};
    let directory = tempfile::tempdir().expect("temporary directory");
    let cluster = Cluster::open(Config::embedded().memory(64 << 20)).expect("opens");
    let schema = Schema::new(vec![Column::new("n", ColumnType::Integer)]).expect("a schema");
    let build = ElfBuild::new(schema, &ElfOptions::default()).expect("a build");
    cluster.create_elf("table", &build.finish().expect("a table")).expect("new");
    let refused = error_of(cluster.backup(directory.path(), &BackupOptions::default()));
    assert!(matches!(refused, BackupError::Tables { .. }), "{refused}");
    let options = BackupOptions { without_tables: true, ..BackupOptions::default() };
    let made = cluster.backup(directory.path(), &options).expect("it is made");
    assert_eq!((made.tables_left_out, made.indexes.len()), (vec!["table".to_owned()], 0));
}

#[test]
fn a_second_backup_at_the_same_time_is_refused_and_a_failed_one_leaves_nothing() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let (backups, others) = (directory.path().join("backups"), directory.path().join("others"));
    let cluster = logged(&directory.path().join("pool"), 1 << 20, Durability::Immediate);
    let index = cluster.create_index("n", &IndexOptions::integers()).expect("new");
    let entries: Vec<_> = (0..2_000u64).map(|n| (n.to_be_bytes(), n.to_be_bytes())).collect();
    index.bulk_load(&entries[..], &BulkOptions::default()).expect("loads");
    let second = |_: u64| {
        let refused = error_of(cluster.backup(&others, &BackupOptions::default()));
        assert!(matches!(refused, BackupError::UnderWay { .. }), "{refused}");
    };
    let options = BackupOptions { progress: Some(&second), ..BackupOptions::default() };
    cluster.backup(&backups, &options).expect("it is made");
    assert_eq!(std::fs::read_dir(&others).expect("it was created").count(), 0);
    let session = index.integers().expect("a session");
    session.put(7, 8).expect("there is room");
    let made = cluster.backup(&others, &BackupOptions::default()).expect("the tap is closed again");
    assert_eq!(restored(&others, &made.id)["n"][&7u64.to_be_bytes()[..]], 8u64.to_be_bytes());
    let file = directory.path().join("file");
    std::fs::write(&file, b"").expect("it can be written");
    let refused = error_of(cluster.backup(&file, &BackupOptions::default()));
    assert!(matches!(refused, BackupError::File { .. }), "{refused}");
}
