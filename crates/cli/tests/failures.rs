//! Memory servers and their clients that are killed or stopped while they work: errors, no hangs, and others go on.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{Place, Ran, ran, word_list};

/// Longer than any deadline here: 5 s for a verb, 10 s for an operation.
const LONG: Duration = Duration::from_secs(100);

/// A memory server, and where it listens.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(place: &Place) -> Server {
        let mut command = place.command(["memory-server", "--listen", "127.0.0.1:0", "--size", "128MiB"]);
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the program runs");
        let mut said = String::new();
        let stdout = child.stdout.as_mut().expect("it is piped");
        BufReader::new(stdout).read_line(&mut said).expect("text");
        let address = said.trim_end().split(" at ").nth(1).expect("it says where it listens").to_owned();
        Server { child, address }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may be stopped, or have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn send(signal: &str, process: u32) {
    let status = Command::new("kill").args([signal, &process.to_string()]).status().expect("there is kill");
    assert!(status.success());
}

/// A benchmark on the pool that goes on until something happens to it.
fn endless(place: &Place, pool: &str) -> Child {
    place.start(&format!(
        "bench --pool {pool} --compute-servers 2 --threads 1 --keys 200k --warmup 1k --ops 1000m --cache 256KiB --workload write-intensive"
    ))
}

/// Waits until a process has done something with the pool.
fn wait_until_busy(place: &Place, pool: &str, index: &str) {
    let until = Instant::now() + LONG;
    while !place.run(&format!("status --pool {pool}")).stdout.contains(&format!("index {index}")) {
        assert!(Instant::now() < until, "there is no index {index}");
        std::thread::sleep(Duration::from_millis(50));
    }
    std::thread::sleep(Duration::from_millis(500));
}

/// The end of a process, which comes in time.
fn end(mut child: Child) -> Ran {
    let until = Instant::now() + LONG;
    while child.try_wait().expect("it is ours").is_none() {
        if Instant::now() > until {
            child.kill().expect("it is ours");
            panic!("it hangs: {:?}", ran(child.wait_with_output().expect("it ends")));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    ran(child.wait_with_output().expect("it ends"))
}

#[test]
fn a_memory_server_that_is_killed_or_stopped_is_an_error_and_no_hang() {
    for signal in ["-KILL", "-STOP"] {
        let place = Place::new();
        let server = Server::start(&place);
        let pool = format!("tcp://{}", server.address);
        let bench = endless(&place, &pool);
        wait_until_busy(&place, &pool, "bench");
        send(signal, server.child.id());
        let ended = end(bench);
        assert_eq!(ended.status, 1, "{signal}: {ended:?}");
        assert!(ended.stderr.contains("memory server 0"), "{signal}: {ended:?}");
        let status = place.run(&format!("status --pool {pool}"));
        assert_eq!(status.status, 1, "{status:?}");
        assert!(status.stdout.contains("CANNOT BE REACHED"), "{status:?}");
        if signal == "-STOP" {
            // What it held is there still.
            send("-CONT", server.child.id());
            let status = place.ok(&format!("status --pool {pool}"));
            assert!(status.contains("index bench"), "{status}");
        }
    }
}

#[test]
fn a_client_that_is_killed_or_stopped_keeps_nobody_from_working() {
    for signal in ["-KILL", "-STOP"] {
        let place = Place::new();
        let server = Server::start(&place);
        let pool = format!("tcp://{}", server.address);
        let bench = endless(&place, &pool);
        wait_until_busy(&place, &pool, "bench");
        // Another one is attached, and waits for rows.
        let fifo = place.path("words.txt");
        assert!(Command::new("mkfifo").arg(&fifo).status().expect("there is mkfifo").success());
        let load = place.start(&format!("load words.txt --pool {pool} --index words --sort-memory 64KiB"));
        let mut feed = std::fs::OpenOptions::new().write(true).open(&fifo).expect("somebody reads");
        let words = word_list(30_000);
        let (first, rest) = words.split_at(words.find('\n').expect("there are lines") + 1);
        feed.write_all(first.as_bytes()).expect("somebody reads");
        send(signal, bench.id());
        feed.write_all(rest.as_bytes()).expect("somebody reads");
        drop(feed);
        let ended = end(load);
        assert_eq!(ended.status, 0, "{signal}: {ended:?}");
        let found = place.ok(&format!("scan --pool {pool} --index words --keys-only --unclean"));
        place.write("all.txt", &words);
        assert_eq!(found, place.sorted("all.txt"), "{signal}");
        let mut bench = bench;
        bench.kill().expect("it is ours");
        bench.wait().expect("it ends");
    }
}
