//! Backups in an object store: those of the tests for directories, and what only objects have.

use std::time::{Duration, Instant};

use pando::backup::{self, Backup, BackupError, BackupOptions, Destination};
use pando::{Cluster, Config, IndexOptions};

use crate::backup::{during_changes, error_of, is_of_one_moment, restored};
use crate::fake_s3::FakeS3;

/// Backups below a prefix of the bucket.
fn destination(store: &FakeS3) -> Destination {
    destination_at(store, "s3://bucket/of/pando")
}

fn destination_at(store: &FakeS3, url: &str) -> Destination {
    let options = store.options();
    let options: Vec<_> = options.iter().map(|(name, value)| (*name, value.as_str())).collect();
    Destination::in_object_store(url, &options).expect("a place")
}

/// A pool with an index of `entries` entries of 1,000 bytes.
fn cluster(entries: u64) -> Cluster {
    let cluster = Cluster::open(Config::embedded().memory(64 << 20).huge_pages(false)).expect("opens");
    let session = cluster.create_index("birds", &IndexOptions::bytes()).expect("new").session();
    let session = session.expect("a session");
    for n in 0..entries {
        let value: Vec<u8> = n.to_le_bytes().iter().copied().cycle().take(1_000).collect();
        session.put(&n.to_be_bytes(), &value).expect("there is room");
    }
    drop(session);
    cluster
}

fn back_up(cluster: &Cluster, to: &Destination) -> pando::Result<Backup> {
    cluster.backup(to, &BackupOptions::default())
}

/// What is in the bucket of a backup.
fn objects_of(store: &FakeS3, made: &Backup) -> Vec<String> {
    let prefix = format!("of/pando/{}/", made.id);
    store.with_objects(|objects| {
        objects.keys().filter_map(|key| key.strip_prefix(&prefix)).map(str::to_owned).collect()
    })
}

#[test]
fn a_backup_during_changes_has_the_state_of_one_moment() {
    let store = FakeS3::start();
    let to = destination(&store);
    // Few bytes of changes in memory, so that runs of them are objects as well.
    during_changes(1 << 20, 1, 1, &|work| work(), &|_| to.clone(), |backups, made| {
        is_of_one_moment(backups, made);
        assert_eq!(objects_of(&store, made), ["index-0", "index-1", "manifest"], "and no scans and runs");
    });
}

#[test]
fn a_large_index_is_sent_in_parts_and_read_again_although_requests_fail() {
    let store = FakeS3::start();
    store.fail_every(3);
    let (cluster, to) = (cluster(30_000), destination_at(&store, "s3://bucket"));
    let made = back_up(&cluster, &to).expect("it is made");
    assert_eq!(store.uploads(), [1, 0]);
    assert_eq!(backup::verify(&to, None, None).expect("it is whole"), made);
    let found = &restored(&to, &made.id)["birds"];
    assert_eq!(found.len(), 30_000);
    assert!(found.iter().all(|(key, value)| key.iter().rev().eq(&value[..8]) && value.len() == 1_000));
    assert!(backup::list(&to).expect("it is there").iter().all(|listed| listed.backup.is_ok()));
}

#[test]
fn a_store_that_refuses_at_any_request_leaves_no_complete_backup() {
    let store = FakeS3::start();
    let (cluster, to) = (cluster(9_500), destination(&store));
    let mut refused = 0;
    loop {
        store.refuse_from(refused);
        let made = back_up(&cluster, &to);
        store.refuse_from(u64::MAX);
        let complete =
            || backup::list(&to).map_or(0, |all| all.iter().filter(|it| it.backup.is_ok()).count());
        if made.is_ok() {
            assert_eq!(complete(), 1);
            break;
        }
        let error = error_of(made);
        assert!(matches!(error, BackupError::File { .. }), "{error}");
        assert!(!error.to_string().contains('\n'), "one sentence: {error}");
        assert_eq!(complete(), 0, "{refused} requests were served");
        refused += 1;
    }
    assert!(refused > 4, "a beginning, two parts, an end, the manifest");
    store.refuse_from(0);
    let error = error_of(backup::verify(&to, None, None));
    assert!(matches!(error, BackupError::File { action: "read", .. }), "{error}");
}

#[test]
fn damage_is_found_with_its_object() {
    let store = FakeS3::start();
    let (cluster, to) = (cluster(50), destination(&store));
    let made = back_up(&cluster, &to).expect("it is made");
    let key = format!("of/pando/{}/index-0", made.id);
    let verify = || error_of(backup::verify(&to, None, None));
    let whole = store.with_objects(|objects| objects[&key].clone());
    for at in (0..whole.len()).step_by(997) {
        store.with_objects(|objects| objects.get_mut(&key).expect("it is there")[at] ^= 1);
        let error = verify();
        assert!(matches!(&error, BackupError::Damaged { path, .. } if path.ends_with("index-0")), "{error}");
        store.with_objects(|objects| objects.insert(key.clone(), whole.clone()));
    }
    for len in [0, 11, whole.len() - 1] {
        store.with_objects(|objects| objects.insert(key.clone(), whole[..len].to_vec()));
        let error = verify();
        assert!(matches!(&error, BackupError::Damaged { .. }), "{error}");
    }
    store.with_objects(|objects| objects.remove(&key));
    assert!(matches!(verify(), BackupError::File { action: "read", .. }));
    store.with_objects(|objects| objects.retain(|key, _| !key.ends_with("manifest")));
    store.with_objects(|objects| objects.insert(key, whole));
    assert!(matches!(verify(), BackupError::Incomplete { .. }));
    store.with_objects(|objects| objects.clear());
    assert!(matches!(verify(), BackupError::NoBackup { .. }));
}

#[test]
fn a_place_that_makes_no_sense_is_refused_and_one_that_is_not_there_soon() {
    for url in ["s3://", "s3:///prefix", "gs://bucket/x", "http://bucket"] {
        let error = url.parse::<Destination>().expect_err("no place");
        assert!(!error.to_string().contains('\n') && error.to_string().contains(url), "{error}");
    }
    let error =
        Destination::in_object_store("s3://bucket", &[("aws_flavour", "vanilla")]).expect_err("unknown");
    assert!(error.to_string().contains("aws_flavour"), "{error}");

    let mut options = FakeS3::start().options();
    options[0].1 = "http://127.0.0.1:9".to_owned();
    let options: Vec<_> = options.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let nowhere = Destination::in_object_store("s3://bucket", &options).expect("nothing is sent");
    let began = Instant::now();
    let error = error_of(back_up(&cluster(5), &nowhere));
    assert!(matches!(error, BackupError::File { .. }), "{error}");
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
}
