//! `pando pool partitions`: boundaries, entries and owners, also while another process owns partitions.

use crate::common::running::Daemon;
use crate::common::{Place, word_list};
use pando::{Cluster, Config, OpenOptions, Ownership};
use serde_json::{Value, json};

fn partitions(place: &Place) -> Vec<Value> {
    let table = place.ok("pool partitions --pool pool --index words --json -");
    let table: Value = serde_json::from_str(&table).expect("one object");
    table["indexes"][0]["partitions"].as_array().expect("a list").clone()
}

#[test]
fn boundaries_entries_and_owners_are_shown_also_while_they_change() {
    let place = Place::new();
    place.write("words.txt", word_list(3_000));
    let sorted = place.sorted("words.txt");
    let sorted: Vec<&str> = sorted.lines().collect();
    let [third, half] = [3, 2].map(|part| sorted[sorted.len() / part]);
    place.ok(&format!("create --pool pool --index words --boundaries={third},{half}"));
    place.ok("load words.txt --pool pool --index words");
    let found = partitions(&place);
    let part = |number: usize| &found[number];
    assert_eq!(found.len(), 3);
    assert_eq!([&part(0)["from"], &part(0)["to"]], [&Value::Null, &json!(third)]);
    assert_eq!([&part(2)["from"], &part(2)["to"]], [&json!(half), &Value::Null]);
    let entries: Vec<u64> = found.iter().map(|of| of["entries"].as_u64().expect("counted")).collect();
    let expected = [sorted.len() / 3, sorted.len() / 2 - sorted.len() / 3, sorted.len() - sorted.len() / 2];
    assert_eq!(entries, expected.map(|count| count as u64));
    assert!(found.iter().all(|of| of["owner"].is_null() && of["counted"] == "all"));

    let cluster = Cluster::open(Config::at(place.path("pool"))).expect("attaches");
    let own = OpenOptions::default().own(Ownership::Partitions(vec![0, 1]));
    let index = cluster.open_index_with("words", &own).expect("nobody's");
    let quarter = sorted[sorted.len() / 4];
    index.add_compute_server(quarter.as_bytes()).expect("its own");
    let found = partitions(&place);
    assert_eq!((found.len(), &found[1]["from"]), (4, &json!(quarter)));
    let owners: Vec<_> = found.iter().map(|of| of["owner"].as_u64()).collect();
    let here = Some(u64::from(std::process::id()));
    assert_eq!(owners, [here, here, here, None]);
    let table = place.ok("pool partitions --pool pool");
    let process = format!("process {}", std::process::id());
    assert!(table.starts_with("index words\n") && table.contains("nobody"), "{table}");
    assert_eq!((table.lines().count(), table.matches(&process).count()), (7, 3), "{table}");
    // The command cannot see this process's cache and marks the counts.
    assert_eq!(table.matches('*').count(), 4, "{table}");
    assert!(
        table.ends_with("* as written back by the owner, whose cache may hold later changes\n"),
        "{table}"
    );
    let counted: Vec<&Value> = found.iter().map(|of| &of["counted"]).collect();
    assert_eq!(counted, ["written back", "written back", "written back", "all"]);
    cluster.close().expect("closes");
    assert!(!place.ok("pool partitions --pool pool").contains('*'));
}

#[test]
fn a_boundary_is_moved_and_everything_stays() {
    let place = Place::new();
    place.write("words.txt", word_list(2_000));
    place.ok("create --pool pool --index words --boundaries=h,p");
    place.ok("load words.txt --pool pool --index words");
    let scanned = place.ok("scan --pool pool --index words");
    let said = place.ok("pool move-boundary --pool pool --index words --partition 1 --to=t");
    assert_eq!(said, "partition 1 of index words ends at t, where partition 2 begins\n");
    let found = partitions(&place);
    assert_eq!([&found[1]["from"], &found[1]["to"], &found[2]["from"]], ["h", "t", "t"]);
    let before_t = scanned.lines().filter(|line| *line >= "h" && *line < "t").count() as u64;
    assert_eq!(found[1]["entries"], before_t);
    place.ok("pool move-boundary --pool pool --index words --partition 0 --to c");
    assert_eq!(partitions(&place)[0]["to"], "c");
    // A boundary may be moved to its present place.
    place.ok("pool move-boundary --pool pool --index words --partition 0 --to c");
    for (arguments, status, part) in [
        ("--index words --partition 2 --to z", 2, "no partition comes after partition 2"),
        ("--index words --partition 0 --to t", 2, "between the two boundaries"),
        ("--index words --partition 0 --to u", 2, "between the two boundaries"),
        ("--index words --partition 18446744073709551615 --to u", 2, "no partition comes after"),
        ("--index birds --partition 0 --to u", 2, "no index \"birds\""),
        ("--index words --partition 0", 2, "--to"),
    ] {
        let sentence = place.refused(&format!("pool move-boundary --pool pool {arguments}"), status);
        assert!(sentence.contains(part), "{arguments}: {sentence}");
    }
    assert!(place.ok("check --pool pool").contains("no violations"));
    assert_eq!(place.ok("scan --pool pool --index words"), scanned);
}

#[test]
fn boundaries_of_composite_keys_and_numbers_are_moved() {
    let place = Place::new();
    place.write(
        "items.csv",
        (0..3000).map(|n| format!("{},{},{n}\n", n / 3 - 500, n % 3)).collect::<String>(),
    );
    place.ok("create --pool pool --index items --columns int,int --boundaries=0");
    place.ok("load items.csv --no-header --pool pool --index items --key 1:int,2:int");
    place.ok("pool move-boundary --pool pool --index items --partition 0 --to=-100,1");
    let table = place.ok("pool partitions --pool pool");
    assert!(table.contains("-100,1") && table.contains("1,201") && table.contains("1,799"), "{table}");
    assert!(place.ok("check --pool pool").contains("no violations"));
}

/// A compute server finds a pool in files by its plain name. Commands let it do with its partitions what they want.
#[test]
fn a_running_compute_server_does_with_its_partitions_what_commands_want() {
    let place = Place::new();
    place.write("words.txt", word_list(500));
    place.ok("create --pool grove.pando --memory-servers 2 --pool-size 64MiB --index words --boundaries=h,p");
    place.ok("load words.txt --pool grove.pando --index words");
    let daemon = Daemon::start(
        &place,
        "compute-server --memory grove.pando --index words --partition 0,1 --listen HERE",
    );
    // It moves its own boundaries itself.
    place.ok("pool move-boundary --pool grove.pando --index words --partition 0 --to k");
    let sentence =
        place.refused("pool move-boundary --pool grove.pando --index words --partition 1 --to t", 1);
    assert!(sentence.contains("does not move: nobody owns partition 2"), "{sentence}");
    // Entries are counted in the owner's cache too.
    let counted = |partition: usize, table: &str| {
        let table: Value = serde_json::from_str(table).expect("one object");
        let found = &table["indexes"][0]["partitions"][partition];
        (found["entries"].as_u64().expect("counted"), found["counted"].clone())
    };
    let table = || place.ok("pool partitions --pool grove.pando --json -");
    let (before, _) = counted(0, &table());
    place.ok(&format!("put --pool ops://{} --index words aaaaa a", daemon.address));
    assert_eq!(counted(0, &table()), (before + 1, json!("all")));
    assert_eq!(counted(2, &table()).1, "all");
    assert!(!place.ok("pool partitions --pool grove.pando").contains('*'));
    let unclean = place.ok("pool partitions --pool grove.pando --unclean --json -");
    assert_eq!(counted(0, &unclean), (before, json!("written back")));
    // It and this command, which takes the partition that nobody owns, leave a server and use another.
    place.ok("pool add-server --pool grove.pando");
    place.ok("pool spread --pool grove.pando");
    assert!(place.ok("pool drain-server 1 --pool grove.pando").starts_with("memory server 1 is drained"));
    let servers = place.ok("pool servers --pool grove.pando");
    assert_eq!(["active", "drained"].map(|state| servers.matches(state).count()), [2, 1], "{servers}");
    assert_eq!(counted(0, &table()), (before + 1, json!("all")));
    daemon.process.signal("-TERM");
    let ended = daemon.process.end();
    assert_eq!(ended.status, 0, "{ended:?}");
    place.ok("pool move-boundary --pool grove.pando --index words --partition 0 --to m");
    place.ok("pool spread --pool grove.pando");
    assert!(place.ok("check --pool grove.pando").contains("no violations"));
}

/// Ctrl-C ends a command that waits for an owner, at once; the next command goes on where it stopped.
#[test]
fn a_drain_that_waits_for_an_owner_is_interrupted() {
    let place = Place::new();
    place.write("words.txt", word_list(5000));
    place.ok("load words.txt --pool grove.pando --index words --memory-servers 2 --pool-size 64MiB");
    let daemon = Daemon::start(&place, "compute-server --memory grove.pando --index words --listen HERE");
    daemon.process.signal("-STOP");
    let drain = place.start("pool drain-server 1 --pool grove.pando");
    while !place.ok("pool servers --pool grove.pando").contains("draining") {
        std::thread::yield_now();
    }
    drain.signal("-INT");
    let ended = drain.end();
    assert!(ended.status == 1 && ended.stderr.contains("interrupted: draining a memory server"), "{ended:?}");
    daemon.process.signal("-CONT");
    place.ok("pool drain-server 1 --pool grove.pando");
    daemon.process.signal("-TERM");
    assert_eq!(daemon.process.end().status, 0);
    assert!(place.ok("check --pool grove.pando").contains("no violations"));
}

/// A compute server with a log is killed after it has left a memory server, log and all.
#[test]
fn an_owner_with_a_log_leaves_a_memory_server_and_is_killed() {
    let place = Place::new();
    let create =
        "create --pool grove.pando --memory-servers 2 --pool-size 128MiB --index words --boundaries=h";
    place.ok(&format!("{create} --durability process"));
    let server = "compute-server --memory grove.pando --index words --partition 0 --cache 1MiB --listen HERE";
    let daemon = Daemon::start(&place, &format!("{server} --durability process"));
    let put = |word: &str| {
        place.ok(&format!("put --pool ops://{} --index words {word} {}", daemon.address, word.repeat(200)));
    };
    ["alder", "birch", "fig"].into_iter().for_each(put);
    place.ok("pool add-server --pool grove.pando");
    place.ok("pool spread --pool grove.pando");
    // This command takes the partition that nobody owns.
    assert!(place.ok("pool drain-server 1 --pool grove.pando").starts_with("memory server 1 is drained"));
    let servers = place.ok("pool servers --pool grove.pando");
    assert_eq!(["active", "drained"].map(|state| servers.matches(state).count()), [2, 1], "{servers}");
    put("cedar");
    let used = place.ok("status --pool grove.pando");
    daemon.process.signal("-KILL");
    daemon.process.end();
    let found = place.run("scan --pool grove.pando --index words --durability process");
    let words: Vec<_> = found.stdout.lines().filter_map(|line| line.split(&[' ', '\t'][..]).next()).collect();
    assert_eq!(words, ["alder", "birch", "cedar", "fig"], "{found:?} {used}");
    assert!(place.ok("check --pool grove.pando").contains("no violations"));
}

#[test]
fn an_index_that_is_dropped_meanwhile_is_left_out() {
    let place = Place::new();
    let server = Daemon::memory_server(&place, "");
    let pool = server.pool();
    place.ok(&format!("create --pool {pool} --index kept"));
    std::thread::scope(|scope| {
        let looks = ["pool partitions", "stats"].map(|look| {
            let (place, pool) = (&place, &pool);
            scope.spawn(move || {
                for _ in 0..40 {
                    let told = place.ok(&format!("{look} --pool {pool}"));
                    assert!(told.contains("kept"), "{look}: {told}");
                }
            })
        });
        while !looks.iter().all(|look| look.is_finished()) {
            place.ok(&format!("create --pool {pool} --index brief --boundaries=h,p"));
            place.ok(&format!("drop --pool {pool} --index brief"));
        }
    });
}
