//! `pando backup`: pools go to files and come back in other shapes; what is not a whole backup is refused in one sentence.

use std::time::Duration;

use pando::backup::{self, RestoreOptions};
use pando::remote::{Client, Service};
use pando::{Cluster, Config};
use serde_json::Value;

use crate::common::running::Daemon;
use crate::common::{Place, word_list};
#[cfg(feature = "object-store")]
use crate::common::{ran, words};

/// A pool with two indexes and a backup of it; returns the id.
fn backed_up(place: &Place) -> String {
    place.write("words.txt", word_list(5_000));
    place.write("sold.csv", "id,line,what\n7,2,pears\n7,1,plums\n");
    place.ok("load words.txt --pool p.pando --index words");
    place.ok("load sold.csv --pool p.pando --index sold --key id:int,line:int");
    let said = place.ok("backup create backups --pool p.pando");
    assert!(said.contains(" entries of 2 indexes (sold, words), ") && said.ends_with(" UTC\n"), "{said}");
    said.strip_prefix("backup ").and_then(|said| said.split(':').next()).expect("an id").to_owned()
}

#[test]
fn a_pool_comes_back_from_its_backup() {
    let place = Place::new();
    let id = backed_up(&place);
    place.ok("del --pool p.pando --index words --all");
    let listed: Value = serde_json::from_str(&place.ok("backup list backups --json -")).expect("valid JSON");
    assert_eq!((&listed[0]["backup"], &listed[0]["state"]), (&id.as_str().into(), &"complete".into()));
    assert_eq!(listed[0]["indexes"][0]["entries"], 2);
    assert!(place.ok("backup list backups").contains(&id));
    assert!(place.ok("backup verify backups").starts_with(&format!("backup {id} is whole: ")));

    let said = place.ok("backup restore backups --pool q.pando/ --memory-servers 3 --pool-size 48MiB");
    assert!(said.starts_with("restored: "), "{said}");
    assert_eq!(place.ok("scan --pool q.pando/ --index words --keys-only"), place.sorted("words.txt"));
    let key = place.ok("get --pool q.pando/ --index sold 7,1");
    assert!(key.starts_with("7,1\tplums"), "{key}");
    place.ok("check --pool q.pando/");
    place.ok("backup restore backups --pool p.pando --index words --as again --durability process");
    assert_eq!(place.ok("scan --pool p.pando --index again --keys-only"), place.sorted("words.txt"));
    place.ok(&format!("backup restore backups --pool r.pando --backup {id} --index sold"));
    assert_eq!(place.stats("r.pando")["indexes"].as_array().map(Vec::len), Some(1));
    place.ok("check --pool p.pando");

    let second = place.ok("backup create backups --pool r.pando");
    assert!(second.contains(" entries of 1 index (sold), "), "{second}");
    assert_eq!(place.ok("backup list backups").lines().count(), 3);
}

#[cfg(feature = "object-store")]
#[test]
fn a_backup_in_an_object_store_comes_back() {
    let (place, store) = (Place::new(), crate::fake_s3::FakeS3::start());
    place.write("words.txt", word_list(5_000));
    place.ok("load words.txt --pool p.pando --index words");
    let environment: Vec<_> =
        store.options().map(|(name, value)| (name.to_ascii_uppercase(), value)).into_iter().collect();
    let run = |arguments: &str| {
        let mut command = place.command(words(arguments));
        ran(command.envs(environment.iter().cloned()).output().expect("it runs"))
    };
    assert_eq!(run("backup list s3://bucket/here").stderr, "pando: there is no backup in s3://bucket/here\n");
    let made = run("backup create s3://bucket/here --pool p.pando");
    assert!(made.status == 0 && made.stdout.contains(" entries of 1 index (words), "), "{made:?}");
    assert_eq!(run("backup list s3://bucket/here/").stdout.lines().count(), 2);
    assert_eq!(run("backup verify s3://bucket/here").status, 0);
    assert_eq!(run("backup restore s3://bucket/here --pool q.pando").status, 0);
    assert_eq!(place.ok("scan --pool q.pando --index words --keys-only"), place.sorted("words.txt"));
    store.refuse_from(0);
    let refused = run("backup create s3://bucket/here --pool p.pando");
    assert_eq!((refused.status, refused.stderr.lines().count()), (1, 1), "{}", refused.stderr);
}

#[cfg(not(feature = "object-store"))]
#[test]
fn an_object_store_needs_a_feature() {
    let refused = Place::new().refused("backup list s3://bucket/here", 2);
    assert!(refused.contains("built with the feature `object-store`"), "{refused}");
    let refused = Place::new().refused("backup list gs://bucket/here", 2);
    assert!(refused.contains("it must be a directory"), "{refused}");
}

#[test]
fn tables_are_not_left_out_silently() {
    let place = Place::new();
    backed_up(&place);
    place.ok("elf build sold.csv --pool p.pando --index sales --columns id,line,what");
    let refused = place.refused("backup create backups --pool p.pando", 2);
    assert!(refused.contains("the pool has sales;") && refused.contains("--without-tables"), "{refused}");
    let made = place.run("backup create backups --pool p.pando --without-tables");
    assert_eq!((made.status, &*made.stderr), (0, "left out: sales\n"));
}

#[test]
fn what_is_no_whole_backup_is_refused_in_one_sentence() {
    let place = Place::new();
    let id = backed_up(&place);
    let refused = |arguments: &str, status, part: &str| {
        let sentence = place.refused(arguments, status);
        assert!(sentence.contains(part), "pando {arguments}: `{part}` is not in `{sentence}`");
    };
    place.write("file", "");
    std::fs::create_dir(place.path("empty")).expect("a directory");
    refused("backup create file --pool p.pando", 1, "Not a directory");
    refused("backup create missing/backups --pool p.pando", 1, "No such file");
    refused("backup create backups --pool none.pando", 2, "none.pando");
    refused("backup list file", 1, "cannot read file: Not a directory");
    refused("backup list empty", 2, "there is no backup in empty");
    refused("backup verify none", 2, "there is no backup in none");
    refused("backup verify backups --backup 7", 2, "there is no backup \"7\" in backups");
    refused("backup restore backups --pool p.pando", 2, "there is an index \"sold\" already");
    refused(
        "backup restore backups --pool q.pando --index fruit",
        2,
        "has no index \"fruit\"; it has sold, words",
    );
    refused("backup restore backups --pool q.pando --as fruit", 2, "--index");
    refused(
        "backup restore backups --pool p.pando --memory-servers 2 --index sold --as s",
        2,
        "--memory-servers",
    );

    let index = place.path(&format!("backups/{id}/index-1"));
    let good = std::fs::read(&index).expect("it is there");
    let mut bad = good.clone();
    bad[100] ^= 1;
    std::fs::write(&index, bad).expect("it can be written");
    for command in ["verify backups", "restore backups --pool q.pando"] {
        refused(
            &format!("backup {command}"),
            2,
            "index-1 is damaged at byte 32: the check of a block is wrong",
        );
    }
    std::fs::write(&index, &good[..good.len() - 1]).expect("it can be written");
    refused("backup verify backups", 2, "it is cut short");
    std::fs::write(&index, &good).expect("it can be written");
    let manifest = place.path(&format!("backups/{id}/manifest"));
    let mut other = std::fs::read(&manifest).expect("it is there");
    other[8] = 2;
    std::fs::write(&manifest, other).expect("it can be written");
    refused("backup verify backups", 2, "is of version 2, and this program reads version 1");
    assert!(place.ok("backup list backups").contains("another version"));
    std::fs::remove_file(&manifest).expect("it is there");
    refused("backup restore backups --pool q.pando", 2, "is incomplete");
    assert!(place.ok("backup list backups").contains("incomplete"));
    assert!(!place.path("q.pando").exists(), "nothing was created");
}

/// Key `n` of those that are put one after the other.
fn numbered(n: u64) -> [u8; 8] {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

#[test]
fn a_compute_server_makes_backups_while_it_serves() {
    let place = Place::new();
    let memory = Daemon::memory_server(&place, "");
    place.ok(&format!("create --pool {} --index n", memory.pool()));
    let options = "--listen HERE --cache 64KiB --durability process --backup-to backups --backup-every 20ms";
    let server =
        Daemon::start(&place, &format!("compute-server --memory {} --index n {options}", memory.address));
    let session = match Client::find(&Config::tcp([memory.address.as_str()]), "n").expect("it is there") {
        Service::Remote(index) => index.session(),
        Service::Nobody => panic!("a compute server has it open"),
    };
    let backups = place.path("backups");
    let whole = || backup::list(&backups).map_or(0, |all| all.iter().filter(|it| it.backup.is_ok()).count());
    let mut put = 0;
    while whole() < 4 || put < 20_000 {
        for n in put..put + 500 {
            session.put(&numbered(n), &n.to_be_bytes()).expect("it serves");
        }
        put += 500;
    }
    drop(session);
    server.process.signal("-TERM");
    let ended = server.process.end_within(Duration::from_secs(30));
    assert_eq!(ended.status, 0, "{}", Daemon::log_of(&place, "compute-server"));
    // One that was under way is gone.
    let listed = backup::list(&backups).expect("there are some");
    let ids = listed.iter().map(|listed| listed.backup.as_ref().expect("it is whole").id.as_str());
    for id in ids
        .collect::<Vec<_>>()
        .split_last()
        .map(|(last, others)| [*last, others[others.len() / 2]])
        .expect("four")
    {
        let cluster = Cluster::open(Config::embedded().memory(32 << 20).huge_pages(false)).expect("opens");
        let options = RestoreOptions { id: Some(id), ..RestoreOptions::default() };
        let entries = backup::restore(&backups, &cluster, &options).expect("restored").entries();
        let session = cluster.open_index("n").expect("it is there").session().expect("a session");
        // Those that were put before one moment.
        for n in 0..put {
            let found = session.get(&numbered(n)).expect("readable");
            assert_eq!(found, (n < entries).then(|| n.to_be_bytes().to_vec()), "{n} of {entries}, {id}");
        }
    }
}

#[test]
fn backups_from_time_to_time_need_a_log_and_an_index_of_their_own() {
    let place = Place::new();
    place.ok("create --pool p.pando --index n");
    let serve = "compute-server --memory p.pando --index n --listen HERE";
    let refused = place.refused(&format!("{serve} --backup-to backups --backup-every 1h"), 2);
    assert!(refused.contains("need a log"), "{refused}");
    place.refused(&format!("{serve} --durability process --backup-every 1h"), 2);
    place.refused(&format!("{serve} --durability process --backup-to backups"), 2);
    place.ok("create --pool p.pando --index m");
    let options = "--durability process --backup-to backups --backup-every 10ms";
    let server = Daemon::start(&place, &format!("{serve} {options}"));
    let told = || Daemon::log_of(&place, "compute-server").contains("the pool has other indexes than n: m");
    while !told() {
        std::thread::sleep(Duration::from_millis(10));
    }
    server.process.signal("-TERM");
    assert_eq!(server.process.end_within(Duration::from_secs(30)).status, 0);
    assert!(!place.path("backups").exists());
}
