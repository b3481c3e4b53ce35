//! A cluster of processes on this host: start, use, inspection and stop, and the death of one of its parts.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::common::running::send;
use crate::common::up::Up;
use crate::common::{Place, word_list};
use pando::Access;
use pando::remote::{Client, ClientConfig};
use serde_json::Value;

/// Longer than any step here.
const LONG: Duration = Duration::from_secs(120);

fn start(place: &Place, arguments: &str) -> Up {
    Up::start(place, &format!("--memory 64MiB --cache 1MiB {arguments}"))
}

/// A client of the compute servers' operation ports.
fn client(up: &Up, secret: &str) -> Client {
    let config = ClientConfig::new(up.ports()).access(Access::default().secret(secret));
    Client::connect(config).expect("they are there")
}

/// The child processes of `process`.
pub fn children(process: u32) -> Vec<u32> {
    let path = format!("/proc/{process}/task/{process}/children");
    let text = std::fs::read_to_string(path).expect("the kernel tells");
    text.split_whitespace().map(|pid| pid.parse().expect("a number")).collect()
}

/// Waits until all of the processes are gone.
fn wait_until_gone(processes: &[u32]) {
    let until = Instant::now() + LONG;
    while processes.iter().any(|pid| std::path::Path::new(&format!("/proc/{pid}/exe")).exists()) {
        assert!(Instant::now() < until, "some of {processes:?} are still there");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("text");
    answer
}

#[test]
fn a_cluster_comes_up_works_tells_how_it_is_and_stops() {
    let place = Place::new();
    let up = start(&place, "--memory-servers 2 --compute-servers 2 --metrics-port 0 --deadline 9s");
    let (pool, processes) = (up.pool(), children(up.child.id()));
    assert_eq!(processes.len(), 4);
    let has_deadline = |process: &&u32| {
        let told = std::fs::read_to_string(format!("/proc/{process}/cmdline")).expect("it is there");
        told.contains("--deadline\09000000000ns\0")
    };
    assert_eq!(processes.iter().filter(has_deadline).count(), 2, "compute servers are told");
    let status: Value =
        serde_json::from_str(&place.ok(&format!("status --pool {pool} --json -"))).expect("valid");
    assert!((0..2).all(|number| status["memory_servers"][number]["reached"] == true), "{status}");
    let attached: Vec<u64> =
        status["attached"].as_array().expect("a list").iter().filter_map(Value::as_u64).collect();
    assert_eq!(status["indexes"][0]["owners"], serde_json::json!(attached), "both own a partition");
    assert!(
        attached.iter().all(|pid| processes.iter().any(|child| u64::from(*child) == *pid)),
        "{attached:?}"
    );

    // Other processes may have their own indexes beside the compute servers.
    place.write("words.txt", word_list(3_000));
    place.ok(&format!("load words.txt --pool {pool} --index words"));
    let sorted = place.sorted("words.txt");
    assert_eq!(place.ok(&format!("scan --pool {pool} --index words --keys-only")), sorted);
    let bench = place.ok(&format!(
        "bench --pool {pool} --keys 20k --warmup 2k --ops 20k --cache 256KiB --workload ycsb-a,scan-intensive \
         --verify --audit --json -"
    ));
    for line in bench.lines() {
        let report: Value = serde_json::from_str(line).expect("valid");
        assert_eq!([&report["verify_errors"], &report["audit_violations"], &report["failed_ops"]], [0, 0, 0]);
    }
    // Indexes owned by compute servers cannot be changed by others.
    let refused = place.refused(&format!("drop --pool {pool} --index main"), 1);
    assert!(refused.contains("partition 0 of index \"main\" is owned by process"), "{refused}");

    // An operation sent to any port is executed by the key's owner.
    let session = client(&up, "").open_index("main").expect("there").session();
    for key in [&b"aspen"[..], b"\xf0\x9f\x8c\xb3"] {
        assert!(!session.put(key, b"a tree").expect("room"));
        assert_eq!(session.get(key).expect("there").as_deref(), Some(&b"a tree"[..]));
    }
    drop(session);

    let pages: Vec<String> = up.metrics().iter().map(|address| get(address, "/metrics")).collect();
    assert_eq!(pages.len(), 4);
    assert!(pages[..2].iter().all(|page| page.contains("\npando_memory_bytes 67108864\n")), "{pages:?}");
    assert!(pages[0].contains("pando_verbs_served_total{kind=\"read\"} "), "{}", pages[0]);
    assert!(pages[3].contains("{kind=\"put\",result=\"done\"} 1"), "{}", pages[3]);

    up.signal("-TERM");
    let (status, errors) = up.end();
    assert_eq!(status, 0, "{errors}");
    wait_until_gone(&processes);
}

#[test]
fn what_memory_servers_keep_in_files_is_there_the_next_time() {
    let place = Place::new();
    place.write(
        "up.toml",
        "memory_servers = 2\ncompute_servers = 1\nbacking = \"memory\"\nsecret_file = \"secret\"\n\
         operation_secret_file = \"port\"\n",
    );
    place.write_secret("secret", "known to memory servers\n");
    place.write_secret("port", "known to clients alone\n");
    let up = start(&place, "--config up.toml");
    let pool = format!("{} --secret-file secret", up.pool());
    place.write("words.txt", word_list(2_000));
    place.ok(&format!("load words.txt --pool {pool} --index words"));
    let session = client(&up, "known to clients alone").open_index("main").expect("there").session();
    for n in 0..1_000u32 {
        assert!(session.insert(&n.to_le_bytes(), &n.to_be_bytes()).expect("room"));
    }
    drop(session);
    up.signal("-INT");
    let (status, errors) = up.end();
    assert_eq!(status, 0, "{errors}");

    let up = start(&place, "--config up.toml");
    let pool = format!("{} --secret-file secret", up.pool());
    assert_eq!(place.ok(&format!("scan --pool {pool} --index words --keys-only")), place.sorted("words.txt"));
    let session = client(&up, "known to clients alone").open_index("main").expect("there").session();
    for n in 0..1_000u32 {
        assert_eq!(session.get(&n.to_le_bytes()).expect("there").as_deref(), Some(&n.to_be_bytes()[..]));
    }
    drop(session);
    let stranger = place.run(&format!("status --pool {}", up.pool()));
    assert_eq!(stranger.status, 1);
    assert!(
        stranger.stdout.contains("CANNOT BE REACHED") && stranger.stdout.contains("secret"),
        "{stranger:?}"
    );
    up.signal("-INT");
    let (status, errors) = up.end();
    assert_eq!(status, 0, "{errors}");
}

#[test]
fn nothing_is_left_running_when_a_part_or_the_whole_is_killed() {
    let place = Place::new();
    // A memory server is killed.
    let up = start(&place, "");
    let processes = children(up.child.id());
    send("-KILL", processes[0]);
    let (status, errors) = up.end();
    assert_eq!(status, 1);
    assert!(errors.contains("memory server 0 has ended by itself"), "{errors}");
    wait_until_gone(&processes);
    // `pando up` itself is killed: compute servers still write back, and then memory servers end.
    let mut up = start(&place, "");
    let processes = children(up.child.id());
    up.signal("-KILL");
    up.child.wait().expect("it ends");
    wait_until_gone(&processes);
}

#[test]
fn what_cannot_be_is_refused_in_a_sentence() {
    let place = Place::new();
    place.write("wrong.toml", "memory_server = 3\n");
    place.write("empty.toml", "memory = \"many\"\n");
    place.write_secret("secret", "known to memory servers\n");
    place.write_secret("same", "known to memory servers");
    place.write_secret("short", "sesame\n");
    place.write("public", "known to memory servers\n");
    for (arguments, says) in [
        ("up --memory-servers 0", "one memory server at least"),
        ("up --memory-servers 2 --replicas 2", "so none may be lost; name three at least"),
        ("up --config wrong.toml", "unknown field `memory_server`"),
        ("up --config empty.toml", "`many`"),
        ("up --config nowhere.toml", "nowhere.toml"),
        ("up --port 65535 --memory 64MiB", "not as many ports"),
        ("up --secret-file nowhere", "nowhere"),
        ("up --host 0.0.0.0", "without --secret-file everybody who does is let in; --insecure allows it"),
        ("memory-server --listen 0.0.0.0:0", "without --secret-file"),
        ("memory-server --listen [::]:0", "without --secret-file"),
        (
            "compute-server --memory 127.0.0.1:1 --index x --listen 0.0.0.0:0",
            "without --operation-secret-file",
        ),
        ("up --secret-file secret", "the operation port has none"),
        ("up --secret-file secret --operation-secret-file same", "must not know what opens"),
        ("compute-server --memory 127.0.0.1:1 --index x --secret-file secret", "the operation port has none"),
        (
            "compute-server --memory 127.0.0.1:1 --index x --secret-file secret --operation-secret-file same",
            "must not know what opens",
        ),
        ("memory-server --secret-file short", "16 bytes at least"),
        ("memory-server --secret-file public", "others than its owner may read"),
        ("compute-server --memory 127.0.0.1 --index x", "there is no pool"),
        ("memory-server --listen 127.0.0.1:0 --metrics nowhere:0", "metrics port nowhere:0"),
    ] {
        let refused = place.run(arguments);
        assert_eq!(refused.status, 2, "{arguments}: {refused:?}");
        assert!(refused.stderr.contains(says), "{arguments}: {refused:?}");
    }
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("there is one");
    let port = taken.local_addr().expect("it has one").port();
    let refused = place.run(&format!("up --memory 64MiB --port {port}"));
    assert_eq!(refused.status, 1, "{refused:?}");
    assert!(refused.stderr.contains("memory server 0 did not start"), "{refused:?}");
    let nobody = place.run(&format!("status --pool tcp://127.0.0.1:{port}"));
    assert_eq!(nobody.status, 1, "{nobody:?}");
}

#[test]
fn a_compute_server_that_is_killed_has_an_heir_and_a_new_standby() {
    let place = Place::new();
    let up = start(&place, "--durability process --standby");
    let pool = up.pool();
    let compute_servers = || {
        let command =
            |process: &u32| std::fs::read_to_string(format!("/proc/{process}/cmdline")).unwrap_or_default();
        let all = children(up.child.id()).into_iter().map(|process| (process, command(&process)));
        all.filter(|(_, command)| command.contains("compute-server")).collect::<Vec<_>>()
    };
    // The owner, once the standby is attached as well.
    let owner = || {
        let status = place.run(&format!("status --pool {pool}")).stdout;
        let attached = status.lines().find(|line| line.starts_with("attached: ")).unwrap_or_default();
        let there = compute_servers();
        let are_attached = there.iter().all(|(process, _)| attached.contains(&format!("process {process}")));
        let owns = |process: &u32| status.contains(&format!("0: process {process}\n"));
        let owner = there.iter().map(|(process, _)| *process).find(owns);
        owner.filter(|_| there.len() == 2 && are_attached)
    };
    place.ok(&format!("put --pool {pool} fig 0"));
    for round in 1..3 {
        let until = Instant::now() + LONG;
        let owner = loop {
            match owner() {
                Some(owner) => break owner,
                None => assert!(Instant::now() < until, "{:?}", compute_servers()),
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        let standbys = compute_servers().iter().filter(|(_, command)| command.contains("--standby")).count();
        assert_eq!(standbys, round, "each is started as one, but the first");
        place.ok(&format!("put --pool {pool} fig {round}"));
        send("-KILL", owner);
        let found = loop {
            let found = place.run(&format!("get --pool {pool} --deadline 60s fig"));
            // A standby that was about to attach recovers the pool before anybody can read it.
            if found.status == 0 || !found.stderr.contains("was not closed cleanly") {
                break found;
            }
            assert!(Instant::now() < until + LONG, "{found:?}");
        };
        assert_eq!(found.stdout, format!("fig\t{round}\n"), "{found:?}");
    }
    let processes = children(up.child.id());
    up.signal("-INT");
    let (status, errors) = up.end();
    assert!(status == 0 && errors.contains("was killed; a new standby is started"), "{status}: {errors}");
    wait_until_gone(&processes);
}
