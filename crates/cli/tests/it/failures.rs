//! Memory servers and clients that are killed or stopped in use: errors, no hangs, and other processes
//! continue.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::running::{Daemon, Running};
use crate::common::{Place, word_list, words};

/// Of what has to do with a memory server that is gone: less than the default, to wait less for it.
const DEADLINE: &str = "--deadline 4s";

/// Longer than any deadline here (10 s per operation where none is given, and several of them until a command gives up), also
/// on a busy machine.
const LONG: Duration = Duration::from_secs(100);

/// Waits until the index exists.
fn wait_until_made(place: &Place, pool: &str, index: &str) {
    let until = Instant::now() + LONG;
    while !place.run(&format!("status --pool {pool}")).stdout.contains(&format!("index {index}")) {
        assert!(Instant::now() < until, "there is no index {index}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Starts an endless benchmark on the pool, or on a pool in files that it creates, and waits until it runs.
fn endless(place: &Place, pool: &str) -> Running {
    let fabric = match pool {
        "servers" => "--fabric shm --memory-servers 2",
        "file" => "--fabric shm --memory-servers 1",
        _ => "",
    };
    let bench = place.start(&format!(
        "bench --pool {pool} {fabric} --compute-servers 2 --threads 1 --keys 200k --warmup 1k --ops 1000m --cache 256KiB {DEADLINE} \
         --workload write-intensive"
    ));
    wait_until_made(place, pool, "bench");
    std::thread::sleep(Duration::from_millis(500));
    bench
}

/// Kills or stops the memory server of a benchmark.
fn memory_server_fails(signal: &str) {
    let place = Place::new();
    let server = Daemon::memory_server(&place, "");
    let pool = server.pool();
    let bench = endless(&place, &pool);
    server.process.signal(signal);
    let ended = bench.end_within(LONG);
    assert_eq!(ended.status, 1, "{signal}: {ended:?}");
    assert!(ended.stderr.contains("memory server 0"), "{signal}: {ended:?}");
    let status = || place.run(&format!("status --pool {pool} {DEADLINE}"));
    let unreachable = status();
    assert_eq!(unreachable.status, 1, "{unreachable:?}");
    assert!(unreachable.stdout.contains("CANNOT BE REACHED"), "{unreachable:?}");
    if signal == "-STOP" {
        // Its memory is still there.
        server.process.signal("-CONT");
        let again = status();
        assert!(again.stdout.contains("index bench"), "{again:?}");
    }
}

#[test]
fn a_memory_server_that_is_killed_is_an_error_and_no_hang() {
    memory_server_fails("-KILL");
}

#[test]
fn a_memory_server_that_is_stopped_is_an_error_and_no_hang() {
    memory_server_fails("-STOP");
}

/// A process that has put rows, and waits for more.
fn puts(place: &Place, pool: &str, index: &str) -> (Running, std::process::ChildStdin) {
    place.ok(&format!("create --pool {pool} --index {index} --durability process"));
    let puts = format!("put --pool {pool} --index {index} --durability process --stdin");
    let mut puts = place.command(words(&puts));
    let mut puts = Running::start(puts.stdin(Stdio::piped()).stderr(Stdio::piped()));
    let mut feed = puts.stdin.take().expect("it is piped");
    // More than it reads ahead.
    (0..20_000).for_each(|row| writeln!(feed, "{row:05}\t{row}").expect("it reads"));
    (puts, feed)
}

/// A process that puts rows is killed, and the next command reads all of them at once: nobody can be the heir of a
/// process that served no clients. Another process may be at work on another index.
fn puts_are_killed(place: &Place, pool: &str, beside: bool) {
    let other = beside.then(|| puts(place, pool, "other"));
    drop(puts(place, pool, "n"));
    let read = || place.run(&format!("get --pool {pool} --index n 00007 --deadline 60s"));
    let (killed, until) = (Instant::now(), Instant::now() + LONG);
    let mut found = read();
    // Memory servers do not know yet that it is gone, or find out just then.
    while found.stderr.contains("is open for writing") || found.stderr.contains("is lost") {
        assert!(Instant::now() < until, "{found:?}");
        found = read();
    }
    assert_eq!((found.status, found.stdout.as_str()), (0, "00007\t7\n"), "{found:?}");
    assert!(found.stderr.starts_with("recovered 1 index "), "{found:?}");
    assert!(killed.elapsed() < Duration::from_secs(50), "it waited for an heir");
    let again = read();
    assert_eq!((again.stdout, again.stderr.as_str()), (found.stdout, ""), "it is clean");
    drop(other);
    if !beside {
        place.ok(&format!("check --pool {pool}"));
    }
}

#[test]
fn a_file_whose_process_was_killed_is_recovered_by_whoever_reads_it() {
    for beside in [false, true] {
        puts_are_killed(&Place::new(), "p.pando", beside);
    }
}

#[test]
fn so_are_memory_servers() {
    let place = Place::new();
    let server = Daemon::memory_server(&place, "--grace 1s");
    puts_are_killed(&place, &server.pool(), true);
}

/// Kills or stops a benchmark on `pool` while another process loads words, all of which must be present at
/// the end.
fn client_fails(place: &Place, pool: &str, signal: &str) {
    let bench = endless(place, pool);
    // Another process is attached and waits for rows.
    let fifo = place.path("words.txt");
    assert!(Command::new("mkfifo").arg(&fifo).status().expect("there is mkfifo").success());
    let load = place.start(&format!("load words.txt --pool {pool} --index words --sort-memory 64KiB"));
    let mut feed = std::fs::OpenOptions::new().write(true).open(&fifo).expect("somebody reads");
    let words = word_list(30_000);
    // Enough rows that some are inserted.
    let (half, _) = words.match_indices('\n').nth(15_000).expect("there are lines");
    let (first, rest) = words.split_at(half + 1);
    let fed = feed.write_all(first.as_bytes()).and_then(|()| {
        wait_until_made(place, pool, "words");
        bench.signal(signal);
        feed.write_all(rest.as_bytes())
    });
    drop(feed);
    let ended = load.end_within(LONG);
    assert!(ended.status == 0 && fed.is_ok(), "{signal} at {pool}: {ended:?}, {fed:?}");
    let found = place.ok(&format!("scan --pool {pool} --index words --keys-only --unclean"));
    place.write("all.txt", &words);
    assert_eq!(found, place.sorted("all.txt"), "{signal}");
    let process = format!("process {}", bench.id());
    drop(bench);
    // The content of its cache is lost.
    place.check_unclean(&format!("--pool {pool}"));
    let status = place.run(&format!("status --pool {pool}"));
    assert_eq!(status.status, 1, "{status:?}");
    for part in
        [format!("{process} (DEAD"), format!("0: LOST with {process}"), "partitions 0: nobody".to_owned()]
    {
        assert!(status.stdout.contains(&part), "{part} is not in {status:?}");
    }
    let json = place.run(&format!("status --pool {pool} --json -"));
    let json: serde_json::Value = serde_json::from_str(&json.stdout).expect("valid JSON");
    assert_eq!(json["dead"], json["attached"]);
    assert_eq!(
        (&json["indexes"][0]["lost"], &json["indexes"][1]["lost"]),
        (&[0, 1].into(), &serde_json::json!([]))
    );
}

/// With a memory server of its own.
fn client_over_tcp_fails(signal: &str) {
    let place = Place::new();
    let server = Daemon::memory_server(&place, "");
    client_fails(&place, &server.pool(), signal);
}

#[test]
fn a_client_over_tcp_that_is_killed_keeps_nobody_from_working() {
    client_over_tcp_fails("-KILL");
}

#[test]
fn a_client_over_tcp_that_is_stopped_keeps_nobody_from_working() {
    client_over_tcp_fails("-STOP");
}

#[test]
fn a_client_of_files_that_is_killed_or_stopped_keeps_nobody_from_working() {
    for signal in ["-KILL", "-STOP"] {
        for pool in ["file", "servers"] {
            client_fails(&Place::new(), pool, signal);
        }
    }
}

#[test]
fn an_index_that_was_lost_is_dropped_or_made_anew_while_others_are_in_use() {
    let place = Place::new();
    let server = Daemon::memory_server(&place, "");
    let pool = server.pool();
    for index in ["lost", "kept"] {
        place.ok(&format!("create --pool {pool} --index {index}"));
    }
    let serve = |index: &str| {
        let listen = "compute-server --listen HERE --cache 1MiB";
        Daemon::start(&place, &format!("{listen} --memory {} --index {index}", server.address))
    };
    let kept = serve("kept");
    place.ok(&format!("put --pool ops://{} --index kept fig 1", kept.address));
    for again in ["drop", "create --replace"] {
        let lost = serve("lost");
        place.ok(&format!("put --pool ops://{} --index lost fig 1", lost.address));
        lost.process.signal("-KILL");
        drop(lost);
        let until = Instant::now() + LONG;
        // It counts as attached until it has been silent for 10 s.
        while place.run(&format!("{again} --pool {pool} --index lost")).status != 0 {
            assert!(Instant::now() < until, "{:?}", place.run(&format!("status --pool {pool}")));
            std::thread::sleep(Duration::from_millis(200));
        }
        if again == "drop" {
            place.ok(&format!("create --pool {pool} --index lost"));
        }
        assert_eq!(place.run(&format!("get --pool {pool} --index lost fig")).status, 1, "it is empty");
        let said = place.refused(&format!("create --pool {pool} --index lost"), 2);
        assert!(said.contains("already"), "{said}");
    }
    assert_eq!(place.ok(&format!("get --pool {pool} --index kept fig")), "fig\t1\n");
    let said = place.refused(&format!("create --pool {pool} --index kept --replace"), 1);
    assert!(said.contains("is owned by process"), "{said}");
}

/// Three memory servers with one pool, and one with another.
fn two_pools(place: &Place) -> [Daemon; 4] {
    let servers = [(); 4].map(|()| Daemon::start(place, "memory-server --listen HERE --size 16MiB"));
    let [a, b, c, other] = servers.each_ref().map(|server| server.address.as_str());
    place.write("fruit.txt", "plum\npear\n");
    place.ok(&format!("load fruit.txt --pool tcp://{a},{b},{c} --index fruit"));
    place.ok(&format!("create --pool tcp://{other} --index other"));
    servers
}

#[test]
fn any_memory_servers_of_a_pool_find_the_others() {
    let place = Place::new();
    let servers = two_pools(&place);
    let [a, b, c, _] = servers.each_ref().map(|server| server.address.as_str());
    let in_order = place.ok(&format!("scan --pool tcp://{a},{b},{c} --index fruit"));
    assert_eq!(in_order, "pear\t2\nplum\t1\n");
    for list in [a, b, c].map(str::to_owned).into_iter().chain([
        format!("{a},{b}"),
        format!("{a},{c}"),
        format!("{c},{b}"),
        format!("{c},{a},{b}"),
        format!("{b},{a},{c}"),
    ]) {
        assert_eq!(place.ok(&format!("scan --pool tcp://{list} --index fruit")), in_order, "{list}");
        place.ok(&format!("put --pool tcp://{list} --index fruit fig 3"));
        assert_eq!(place.ok(&format!("get --pool tcp://{list} --index fruit fig")), "fig\t3\n", "{list}");
        place.ok(&format!("del --pool tcp://{list} --index fruit fig"));
    }
    let status = place.ok(&format!("status --pool tcp://{c}"));
    for (number, server) in [a, b, c].into_iter().enumerate() {
        assert!(status.contains(&format!("memory server {number} at {server}: ")), "{status}");
    }
    let bench = "--keys 2k --warmup 1k --ops 1k --cache 1MiB --workload read-only --json -";
    let bench = place.ok(&format!("bench --pool tcp://{b} {bench}"));
    assert!(bench.contains("\"memory_servers\": 3") || bench.contains("\"memory_servers\":3"), "{bench}");
    // A joining server is named beside one of the pool's; afterwards any of them finds the others.
    let joins = Daemon::start(&place, "memory-server --listen HERE --size 16MiB");
    let joins = joins.address.as_str();
    let added = place.ok(&format!("pool add-server --pool tcp://{b},{joins}"));
    assert_eq!(added, "memory server 3 is in use\n");
    for list in [a, c, joins] {
        place.ok(&format!("load fruit.txt --pool tcp://{list} --index {list}"));
        assert_eq!(place.ok(&format!("scan --pool tcp://{list} --index {list}")), in_order, "{list}");
        assert_eq!(place.stats(&format!("tcp://{list}"))["servers"].as_array().map(Vec::len), Some(4));
    }
    place.ok(&format!("check --pool tcp://{joins}"));
}

#[test]
fn a_wrong_list_of_memory_servers_is_one_sentence_that_says_what_is_wrong() {
    let place = Place::new();
    let servers = two_pools(&place);
    let [a, b, c, other] = servers.each_ref().map(|server| server.address.as_str());
    for (list, said) in [
        (format!("{a},{b},{c},{other}"), format!("{other} is memory server 0 of another pool than {a}")),
        (format!("{a},{other},{c}"), "of another pool than".to_owned()),
        (format!("{a},{b},{c},{b}"), format!("{b} and {b} are the same memory server, 1")),
        (format!("{b},{b}"), format!("{b} and {b} are the same memory server, 1")),
    ] {
        for command in ["scan --index fruit", "put --index fruit fig 3", "load fruit.txt --index fruit"] {
            let sentence = place.refused(&format!("{command} --pool tcp://{list}"), 2);
            assert!(sentence.contains(&said), "{list}: `{said}` is not in `{sentence}`");
        }
    }
    assert_eq!(place.ok(&format!("scan --pool tcp://{a},{b},{c} --index fruit")), "pear\t2\nplum\t1\n");
    place.ok(&format!("check --pool tcp://{a},{b},{c}"));
}

#[test]
fn a_memory_server_that_is_not_where_it_was_is_named_until_all_were_named_again() {
    let place = Place::new();
    let start = |number: usize| {
        let backing = format!("--backing memory-{number} --size 16MiB");
        Daemon::start(&place, &format!("memory-server --listen HERE {backing}"))
    };
    let servers = [0, 1, 2].map(start);
    let [a, b, c] = servers.each_ref().map(|server| server.address.as_str());
    place.write("fruit.txt", "plum\npear\n");
    place.ok(&format!("load fruit.txt --pool tcp://{a},{b},{c} --index fruit"));
    // It accepts connections but does not answer.
    servers[2].process.signal("-STOP");
    let began = Instant::now();
    for (named, missing) in [(a, "memory servers 1, 2 are missing"), (b, "memory server 0 is missing")] {
        let sentence = place.refused(&format!("scan --pool tcp://{named} --index fruit --deadline 2s"), 2);
        assert!(sentence.contains(missing) && sentence.contains(&format!("last at {c}")), "{sentence}");
        assert!(sentence.contains("it does not answer"), "{sentence}");
    }
    assert!(began.elapsed() < LONG);
    servers[2].process.signal("-KILL");
    let sentence = place.refused(&format!("put --pool tcp://{a} --index fruit fig 3"), 2);
    assert!(sentence.contains(&format!("the one after memory server 1, last at {c}: ")), "{sentence}");
    let moved = start(2);
    let moved = moved.address.as_str();
    place.refused(&format!("scan --pool tcp://{a} --index fruit"), 2);
    // It leads to the first server, and that one to the second.
    for list in [format!("{a},{moved}"), format!("{b},{moved}"), moved.to_owned()] {
        let found = place.ok(&format!("scan --pool tcp://{list} --index fruit"));
        assert_eq!(found, "pear\t2\nplum\t1\n", "{list}");
    }
    place.refused(&format!("scan --pool tcp://{b} --index fruit"), 2);
    place.ok(&format!("put --pool tcp://{a},{b},{moved} --index fruit fig 3"));
    for named in [a, b, moved] {
        assert_eq!(place.ok(&format!("get --pool tcp://{named} --index fruit fig")), "fig\t3\n");
    }
}
