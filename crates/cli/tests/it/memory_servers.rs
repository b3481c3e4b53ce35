//! `pando pool`: memory servers of a pool, on disk and elsewhere, are added and drained without loss of data.

use std::thread;
use std::time::{Duration, Instant};

use crate::common::Place;
use crate::common::running::Daemon;
use serde_json::Value;

/// The memory servers from the JSON output.
fn servers(place: &Place) -> Vec<Value> {
    let table = place.ok("pool servers --pool pool --json -");
    let table: Value = serde_json::from_str(&table).expect("one object");
    table["servers"].as_array().expect("a list").clone()
}

fn states(place: &Place) -> Vec<String> {
    servers(place).iter().map(|server| server["state"].as_str().expect("a word").to_owned()).collect()
}

fn allocated(place: &Place, server: usize) -> u64 {
    servers(place)[server]["bytes_allocated"].as_u64().expect("a number")
}

/// A pool of three memory servers with 20,000 words; returns the output of a scan.
fn words(place: &Place) -> String {
    let words: String = (0..20_000).map(|n| format!("word {:05}\n", n * 7 % 20_000)).collect();
    place.write("words.txt", words);
    place.ok("load words.txt --pool pool --index words --memory-servers 3 --pool-size 96MiB");
    place.ok("scan --pool pool --index words")
}

fn sound(place: &Place, scanned: &str) {
    assert!(place.ok("check --pool pool").contains("no violations"));
    assert_eq!(place.ok("scan --pool pool --index words"), scanned);
}

#[test]
fn a_server_is_drained_and_others_join() {
    let place = Place::new();
    let scanned = words(&place);
    // Even a small index is spread over all servers by the load.
    assert_eq!(states(&place), ["active"; 3]);
    assert!((0..3).all(|server| allocated(&place, server) > 100_000), "{:?}", servers(&place));
    let said = place.ok("pool drain-server 1 --pool pool");
    assert!(
        said.starts_with("memory server 1 is drained; ") && said.ends_with("long values moved\n"),
        "{said}"
    );
    assert_eq!((states(&place)[1].as_str(), allocated(&place, 1)), ("drained", 0));
    sound(&place, &scanned);
    let said = place.ok("pool add-server --pool pool --size 16MiB --spread");
    assert!(said.starts_with("memory server 3 is in use; ") && !said.contains(" 0 nodes"), "{said}");
    assert!(allocated(&place, 3) > 0 && servers(&place)[3]["bytes_total"] == 16 << 20);
    sound(&place, &scanned);
    assert_eq!(place.ok("pool add-server --pool pool --again 1"), "memory server 1 is in use\n");
    place.ok("pool spread --pool pool");
    assert!(allocated(&place, 1) > 0, "{:?}", servers(&place));
    sound(&place, &scanned);
    let table = place.ok("pool servers --pool pool");
    assert!(table.lines().count() == 5 && table.contains("state"), "{table}");
}

#[test]
fn what_cannot_be_is_refused_with_one_sentence() {
    let place = Place::new();
    let scanned = words(&place);
    place.ok("load words.txt --pool plain.pando --index words");
    place.ok("pool drain-server 2 --pool pool");
    for (arguments, status, part) in [
        ("pool", 2, "command"),
        ("pool drain-server --pool pool", 2, "required"),
        ("pool drain-server one --pool pool", 2, "one"),
        ("pool drain-server 0 --pool pool", 2, "memory server 0 cannot be drained"),
        ("pool drain-server 0 --pool plain.pando", 2, "memory server 0 cannot be drained"),
        ("pool drain-server 7 --pool pool", 2, "no memory server 7"),
        ("pool drain-server 2 --pool pool", 2, "drained already"),
        ("pool drain-server 1 --pool nowhere", 2, "nowhere"),
        ("pool drain-server 1 --pool local", 2, "only bench can use one"),
        ("pool add-server --pool pool --size much", 2, "`much` is not a size"),
        ("pool add-server --pool pool --size 4KiB", 2, "too small"),
        ("pool add-server --pool pool --size 1MiB --again 1", 2, "--again"),
        ("pool add-server --pool pool --again 9", 2, "no memory server 9"),
        ("pool add-server --pool plain.pando", 2, "one plain file"),
        ("pool servers --pool nowhere", 2, "nowhere"),
    ] {
        let sentence = place.refused(arguments, status);
        assert!(sentence.contains(part), "{arguments}: {sentence}");
    }
    assert_eq!(states(&place), ["active", "active", "drained"]);
    sound(&place, &scanned);
    // A single server has no other to spread to, which is not an error.
    assert_eq!(place.ok("pool spread --pool plain.pando"), "0 nodes moved\n");
}

#[test]
fn a_server_that_the_others_have_no_room_for_stays_draining() {
    let place = Place::new();
    let words: String = (0..40_000).map(|n| format!("{n:05},{n:0200}\n")).collect();
    place.write("long.csv", words);
    place.ok("load long.csv --no-header --pool pool --index words --memory-servers 2 --pool-size 20MiB");
    let scanned = place.ok("scan --pool pool --index words");
    let sentence = place.refused("pool drain-server 1 --pool pool", 1);
    assert!(sentence.contains("still holds"), "{sentence}");
    assert_eq!(states(&place), ["active", "draining"]);
    sound(&place, &scanned);
    place.ok("pool add-server --pool pool");
    place.ok("pool drain-server 1 --pool pool");
    assert_eq!(states(&place), ["active", "drained", "active"]);
    sound(&place, &scanned);
}

/// Who still names the address of a memory server that was drained and switched off can do all that others can, and recover
/// the pool of a compute server that was killed.
#[test]
fn a_drained_memory_server_is_switched_off() {
    let place = Place::new();
    let [first, second] = [(); 2].map(|()| Daemon::memory_server(&place, "--grace 1s"));
    let pool = format!("{},{}", first.pool(), second.address);
    place.write("words.txt", "fig\nplum\npear\n");
    place.ok(&format!("load words.txt --pool {pool} --index words"));
    let said = place.ok(&format!("pool drain-server 1 --pool {pool}"));
    assert!(said.starts_with("memory server 1 is drained and may be switched off"), "{said}");
    drop(second);
    let status = place.ok(&format!("status --pool {pool}"));
    assert!(status.contains("memory server 1: drained, and not there"), "{status}");
    let memory = pool.trim_start_matches("tcp://");
    let serve = format!("compute-server --memory {memory} --index words --listen HERE --durability process");
    let owner = Daemon::start(&place, &serve);
    place.ok(&format!("put --pool ops://{} quince 4", owner.address));
    drop(owner);
    let began = Instant::now();
    let found = loop {
        let found = place.run(&format!("get quince --pool {pool} --durability process"));
        if found.status == 0 || began.elapsed() > Duration::from_secs(20) {
            break found;
        }
        thread::sleep(Duration::from_millis(100));
    };
    assert_eq!(found.stdout, "quince\t4\n", "{found:?}");
    let third = Daemon::memory_server(&place, "");
    let said = place.ok(&format!("pool add-server --pool {pool},{}", third.address));
    assert_eq!(said, "memory server 2 is in use\n");
    assert!(place.ok(&format!("check --pool {}", third.pool())).contains("no violations"));
    // One that is needed is another matter.
    drop(third);
    let sentence = place.refused(&format!("scan --pool {pool}"), 1);
    assert!(sentence.contains("cannot be reached"), "{sentence}");
}
