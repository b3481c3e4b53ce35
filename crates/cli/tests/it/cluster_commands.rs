//! The command line on a running cluster: `pando up`, and every data command beside a verified benchmark.
//! Printed and dumped data is read back byte for byte, and damaged dumps are not restored.

use std::fs::File;
use std::io::Read;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::running::Running;
use crate::common::up::Up;
use crate::common::{Place, ran, word_list};
use pando::{Cluster, Config, Create, IndexOptions};
use serde_json::Value;

fn start(place: &Place, arguments: &str) -> Up {
    Up::start(place, &format!("--memory 256MiB --cache 2MiB {arguments}"))
}

/// The compute servers in the form of `--pool`.
fn ports(up: &Up) -> String {
    format!("ops://{}", up.ports().join(","))
}

fn stop(up: Up) {
    up.signal("-TERM");
    let (status, errors) = up.end();
    assert_eq!(status, 0, "{errors}");
}

/// Runs benchmarks one after the other until the work is done; each must find no error.
fn beside_benches(place: &Place, pool: &str, work: impl FnOnce()) {
    let done = AtomicBool::new(false);
    /// Sets the flag even if the work fails.
    struct Done<'d>(&'d AtomicBool);
    impl Drop for Done<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    std::thread::scope(|scope| {
        let benches = scope.spawn(|| {
            let mut rounds = 0;
            while rounds == 0 || !done.load(Ordering::Relaxed) {
                let report = place.ok(&format!(
                    "bench --pool {pool} --keys 5k --warmup 500 --seconds 1 --cache 256KiB --compute-servers 2 \
                     --workload write-intensive --verify --audit --json -"
                ));
                let report: Value = serde_json::from_str(&report).expect("one object");
                assert_eq!(
                    [&report["verify_errors"], &report["audit_violations"], &report["failed_ops"]],
                    [0, 0, 0],
                    "{report}"
                );
                rounds += 1;
            }
        });
        let until_done = Done(&done);
        work();
        drop(until_done);
        benches.join().expect("nothing is wrong");
    });
}

#[test]
fn every_data_command_works_on_a_running_cluster() {
    let place = Place::new();
    place.write("words.txt", word_list(20_000));
    let sorted = place.sorted("words.txt");
    let words: Vec<&str> = sorted.lines().collect();
    let up = start(&place, "--memory-servers 2 --compute-servers 2");
    let (pool, ports) = (up.pool(), ports(&up));
    beside_benches(&place, &pool, || {
        let said = place.ok(&format!("load words.txt --pool {pool}"));
        assert!(said.starts_with("20,000 rows: ") && !said.contains("rejected"), "{said}");
        for at in [&pool, &ports] {
            read_words(&place, at, &words);
            change_words(&place, at);
        }
        dump_and_restore(&place, &pool, &ports, &sorted);
        look(&place, &pool, words.len());
        kill_a_reader(&place, &pool);
        refusals(&place, &pool, &ports);
    });
    stop(up);
}

#[test]
fn clients_of_compute_servers_need_the_secret_of_those_alone() {
    let place = Place::new();
    place.write_secret("memory-secret", "of the memory servers");
    place.write_secret("secret", "of the operation ports");
    let secrets = "--secret-file memory-secret --operation-secret-file secret";
    let up = start(&place, &format!("--memory-servers 1 --compute-servers 1 {secrets}"));
    let (pool, ports) = (up.pool(), ports(&up));
    place.ok(&format!("put --pool {pool} {secrets} aspen tree"));
    assert_eq!(
        place.ok(&format!("get --pool {ports} --operation-secret-file secret aspen")),
        "aspen\ttree\n"
    );
    for wrong in
        [format!("{ports} --secret-file memory-secret"), format!("{pool} --operation-secret-file secret")]
    {
        let ran = place.run(&format!("get --pool {wrong} aspen"));
        assert!(ran.status != 0 && ran.stdout.is_empty() && ran.stderr.contains("secret"), "{ran:?}");
    }
    stop(up);
}

fn read_words(place: &Place, at: &str, words: &[&str]) {
    assert_eq!(place.ok(&format!("scan --pool {at} --keys-only")), words.join("\n") + "\n");
    let found: Vec<&str> = words.iter().copied().filter(|word| word.starts_with("trem")).collect();
    assert!(found.len() > 5);
    assert_eq!(place.ok(&format!("scan --pool {at} --keys-only --prefix trem")), found.join("\n") + "\n");
    let last: Vec<&str> = words.iter().rev().copied().take(3).collect();
    assert_eq!(
        place.ok(&format!("scan --pool {at} --keys-only --reverse --limit 3")),
        last.join("\n") + "\n"
    );
    let between = format!("scan --pool {at} --keys-only --from {} --to {}", words[7], words[10]);
    assert_eq!(place.ok(&between), words[7..10].join("\n") + "\n");
    let json = place.ok(&format!("scan --pool {at} --limit 1 --output json"));
    let json: Value = serde_json::from_str(&json).expect("an object");
    assert_eq!(json["key"], words[0]);
    let one = place.ok(&format!("get --pool {at} --output raw --keys-only {} {}", words[5], words[3]));
    assert_eq!(one, format!("{}\n{}\n", words[5], words[3]));
    let missing = place.refused(&format!("get --pool {at} no·such·word"), 1);
    assert_eq!(missing, "pando: there is no key `no such word`\n");
}

fn change_words(place: &Place, at: &str) {
    place.ok(&format!("put --pool {at} 0new a·value"));
    place.refused(&format!("put --pool {at} --only-absent 0new other"), 1);
    assert_eq!(place.ok(&format!("get --pool {at} 0new")), "0new\ta value\n");
    let fed = place.feed(&format!("put --pool {at} --stdin"), "0newer\t1\n0newest\t\n");
    assert_eq!(fed.status, 0, "{fed:?}");
    let fed = place.feed(&format!("get --pool {at} --stdin"), "0newer\n0newest\n");
    assert_eq!(fed.stdout, "0newer\t1\n0newest\t\n");
    let gone = place.run(&format!("del --pool {at} 0newest 0never"));
    assert_eq!((gone.status, &*gone.stderr), (0, "1 deleted, 1 were not there\n"));
    let gone = place.run(&format!("del --pool {at} --prefix 0new"));
    assert_eq!((gone.status, &*gone.stderr), (0, "2 deleted\n"));
}

fn dump_and_restore(place: &Place, pool: &str, ports: &str, sorted: &str) {
    let before = place.ok(&format!("scan --pool {pool}"));
    place.ok(&format!("dump words.pandodump --pool {pool}"));
    place.ok(&format!("dump ports.pandodump --pool {ports}"));
    let [by_pool, by_ports] =
        ["words.pandodump", "ports.pandodump"].map(|name| std::fs::read(place.path(name)).expect("there"));
    assert!(by_pool == by_ports, "the ports know all that the catalog knows");
    // A new index beside the served one.
    place.ok(&format!("restore words.pandodump --pool {pool} --index copy"));
    assert_eq!(place.ok(&format!("scan --pool {pool} --index copy")), before);
    place.ok(&format!("drop --pool {pool} --index copy"));
    // The served one, in place and from a pipe.
    let refused = place.refused(&format!("restore words.pandodump --pool {pool}"), 2);
    assert!(refused.contains("index \"main\" has entries; --merge"), "{refused}");
    place.ok(&format!("put --pool {pool} 0beside it"));
    place.ok(&format!("restore words.pandodump --pool {ports} --merge"));
    assert_eq!(place.ok(&format!("get --pool {pool} 0beside")), "0beside\tit\n");
    place.ok(&format!("del --pool {pool} --all"));
    assert_eq!(place.ok(&format!("scan --pool {pool}")), "");
    let input = File::open(place.path("words.pandodump")).expect("there");
    let arguments = ["restore", "-", "--pool", pool];
    let restored = ran(place.command(arguments).stdin(input).output().expect("it runs"));
    assert_eq!(restored.status, 0, "{restored:?}");
    assert_eq!(place.ok(&format!("scan --pool {pool}")), before);
    // As text, into the existing index.
    let loaded = place.feed(&format!("load - --format text --pool {pool}"), &before);
    assert!(loaded.stdout.contains(": 0 inserted, "), "{loaded:?}");
    assert_eq!(place.ok(&format!("scan --pool {pool} --keys-only")), sorted);
}

fn look(place: &Place, pool: &str, words: usize) {
    let stats = place.stats(pool);
    let main = stats["indexes"].as_array().expect("a list").iter().find(|index| index["name"] == "main");
    assert_eq!(main.expect("it is there")["approximate"], true, "{stats}");
    let checked = place.ok(&format!("check --pool {pool}"));
    let words = pando_lab::units::count(words as u64);
    assert!(
        checked.contains(&format!("index main: {words} entries in order, at 2 compute servers")),
        "{checked}"
    );
    assert!(checked.contains("\nno violations as far as can be seen while other processes"), "{checked}");
    place.ok(&format!("status --pool {pool}"));
}

/// Kills a reader in the middle of a scan; it blocks because its output is not read.
fn kill_a_reader(place: &Place, pool: &str) {
    let mut reader = place.start(&format!("scan --pool {pool}"));
    let mut stdout = reader.stdout.take().expect("it is piped");
    stdout.read_exact(&mut [0; 100]).expect("it prints");
    reader.signal("-KILL");
    assert_eq!(reader.end_within(Duration::from_secs(60)).status, -1);
    place.ok(&format!("put --pool {pool} 0after the·kill"));
    assert_eq!(place.ok(&format!("get --pool {pool} 0after")), "0after\tthe kill\n");
    place.ok(&format!("check --pool {pool}"));
}

fn refusals(place: &Place, pool: &str, ports: &str) {
    let address = ports.trim_start_matches("ops://").split(',').next().expect("one");
    for (arguments, status, text) in [
        (format!("get --pool {pool} --index none x"), 2, "there is no index \"none\""),
        (format!("get --pool {ports} --index none x"), 2, "there is no index \"none\""),
        (format!("get --pool tcp://{address} x"), 2, "this is the port of a compute server"),
        (format!("get --pool ops://{} x", &pool[6..]), 2, "this is the port of a memory server"),
        ("get --pool ops://127.0.0.1:1 x".to_owned(), 1, "127.0.0.1:1"),
        ("get --pool ops://127.0.0.1 x".to_owned(), 2, "is no address of a compute server"),
        (format!("check --pool {ports}"), 2, "name its memory servers"),
        (format!("load words.txt --pool {pool} --replace"), 2, "compute servers own it"),
        (format!("drop --pool {pool} --index main"), 1, address),
        (format!("put --pool {pool} {} x", "k".repeat(70_000)), 2, "bytes"),
    ] {
        let said = place.refused(&arguments, status);
        assert!(said.contains(text), "pando {arguments:.200}: {said:.500}");
    }
}

/// Entries with all characters that are special in text, tables and terminals.
fn special() -> Vec<(Vec<u8>, Vec<u8>)> {
    let pieces: [&[u8]; 14] = [
        b"\t",
        b"\n",
        b"\r",
        b"\\",
        b"\\x41",
        b"\0",
        b"",
        b"\xff\xfe",
        b"\xef\xbb\xbf",
        b",",
        b"\"",
        b" ",
        b"a",
        "ü\u{85}".as_bytes(),
    ];
    let mut entries = std::collections::BTreeMap::new();
    for (i, first) in pieces.iter().enumerate() {
        for (j, second) in pieces.iter().enumerate() {
            entries.insert([*first, second].concat(), [pieces[(i + 2 * j) % 14], pieces[i]].concat());
        }
    }
    entries.into_iter().collect()
}

fn entries_of(place: &Place, pool: &str) -> Vec<(Vec<u8>, Vec<u8>)> {
    let cluster = Cluster::open(Config::at(place.path(pool))).expect("opens");
    let index = cluster.open_index("x").expect("it is there");
    let session = index.session().expect("a session");
    let entries = session.iter().collect::<Result<_, _>>().expect("no faults");
    drop((session, index));
    cluster.close().expect("closes");
    entries
}

#[test]
fn what_is_printed_or_dumped_comes_back_byte_for_byte() {
    let place = Place::new();
    let entries = special();
    assert!(entries[0].0.is_empty() && entries.iter().any(|(_, value)| value.is_empty()));
    let cluster = Cluster::open(Config::at(place.path("a.pando")).create(Create::New)).expect("new");
    let index = cluster.create_index("x", &IndexOptions::bytes().node_size(512)).expect("new");
    let session = index.session().expect("a session");
    for (key, value) in &entries {
        assert!(!session.put(key, value).expect("room"));
    }
    drop((session, index));
    cluster.close().expect("closes");

    let text = place.ok("scan --pool a.pando");
    assert_eq!(text.lines().count(), entries.len());
    let loaded = place.feed("load - --format text --pool b.pando --index x", &text);
    assert_eq!(loaded.status, 0, "{loaded:?}");
    assert_eq!(entries_of(&place, "b.pando"), entries);

    place.ok("dump x.pandodump --pool a.pando");
    place.ok("restore x.pandodump --pool c.pando");
    assert_eq!(entries_of(&place, "c.pando"), entries);
    assert_eq!(place.index_stats("c.pando")["node_size"], 512);
    let mut dump = place.command(["dump", "-", "--pool", "a.pando"]);
    let mut dump = Running::start(dump.stdout(Stdio::piped()));
    let pipe = dump.stdout.take().expect("it is piped");
    let arguments = ["restore", "-", "--pool", "d.pando", "--index", "x", "--memory-servers", "2"];
    let restored = ran(place.command(arguments).stdin(pipe).output().expect("it runs"));
    assert_eq!((restored.status, dump.end().status), (0, 0), "{restored:?}");
    assert_eq!(entries_of(&place, "d.pando"), entries);

    // Tables cannot hold empty keys.
    place.ok("put --pool a.pando rest of");
    for (table, pool) in [("x.csv", "e.pando"), ("x.parquet", "f.pando")] {
        place.ok(&format!("dump {table} --pool a.pando"));
        place.ok(&format!("load {table} --pool {pool} --index x --key key:str --max-rejects 1"));
        let mut expected = entries[1..].to_vec();
        expected.push((b"rest".to_vec(), b"of".to_vec()));
        expected.sort();
        assert_eq!(entries_of(&place, pool), expected, "{table}");
    }
}

#[test]
fn a_dump_that_is_not_whole_restores_nothing() {
    let place = Place::new();
    place.write("words.txt", word_list(500));
    place.ok("load words.txt --pool a.pando --index x");
    place.ok("dump x.pandodump --pool a.pando");
    place.ok("create --pool b.pando --index other");
    let whole = std::fs::read(place.path("x.pandodump")).expect("there");
    let mut changed = whole.clone();
    changed[whole.len() / 2] ^= 1;
    for (bytes, said) in [
        (&whole[..0], "it is no dump"),
        (&whole[..whole.len() / 2], "it is cut short"),
        (&whole[..whole.len() - 1], "it is cut short"),
        (&changed[..], "a checksum is wrong"),
        (b"key\tvalue\n", "it is no dump"),
    ] {
        place.write("bad.pandodump", bytes);
        let refused = place.refused("restore bad.pandodump --pool b.pando", 2);
        assert!(refused.contains("bad.pandodump is not restored: ") && refused.contains(said), "{refused}");
        assert_eq!(place.stats("b.pando")["indexes"].as_array().expect("a list").len(), 1);
        // No pool is created for it either.
        place.refused("restore bad.pandodump --pool none.pando", 2);
        assert!(!place.path("none.pando").exists());
    }
    // An index that does not fit is dropped again.
    place.write("more.txt", word_list(60_000));
    place.ok("load more.txt --pool a.pando --index more");
    place.ok("dump more.pandodump --pool a.pando --index more");
    let refused = place.refused("restore more.pandodump --pool small.pando --pool-size 1MiB", 1);
    assert!(refused.contains("was dropped again"), "{refused}");
    assert_eq!(place.stats("small.pando")["indexes"], serde_json::json!([]));
    // A failed dump leaves the old file.
    place.write("x.pandodump", "older");
    place.refused("dump x.pandodump --pool none.pando", 2);
    assert_eq!(std::fs::read(place.path("x.pandodump")).expect("there"), b"older");
}
