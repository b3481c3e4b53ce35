//! Three hosts, two of them memory servers, with links that are cut and healed while the third one works.
//!
//! For every kind of cut: nothing hangs, failures tell the reason, no acknowledged change is lost, and work
//! resumes by itself after healing. Hosts are network namespaces (`common/hosts.rs`).

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::hosts::{Cut, Hosts};
use crate::common::running::Daemon;
use crate::common::{Place, Ran, word_list};
use pando::Access;
use pando::remote::{Client, ClientConfig, RemoteIndex};

/// Deadline of an operation for commands and the compute server.
const DEADLINE: Duration = Duration::from_secs(2);
const DEADLINE_ARG: &str = "--deadline 2s";
/// Tolerance for a busy machine, which delays timers and slows every step.
const BUSY: Duration = Duration::from_secs(4);
/// A command waits at most a deadline each for: connections to memory servers, the lock to open the pool, the
/// pool and its catalog, its work, and closing the pool.
const COMMAND: Duration = DEADLINE.saturating_mul(5).saturating_add(BUSY);
/// A benchmark continues while operations fail, for this long after the last success.
const BENCH: Duration = COMMAND.saturating_add(Duration::from_secs(10));
/// Bound for waits without a deadline.
const LONG: Duration = Duration::from_secs(120);
/// Longer than the deadline, shorter than the silence after which a process counts as dead (10 s).
const CUT: Duration = Duration::from_secs(4);
/// Number of concurrent writers, and of keys of each.
const WRITERS: usize = 2;
const KEYS: usize = 300;

/// Two memory servers, each on its own host, and a host for clients.
struct Cluster {
    place: Place,
    _servers: Vec<Daemon>,
    addresses: String,
    // Dropped last.
    hosts: Hosts,
}

impl Cluster {
    fn start() -> Option<Cluster> {
        let (hosts, place) = (Hosts::new(2)?, Place::new());
        let serve = |number| {
            let listen = format!("--listen {}:7100", hosts.address(number));
            hosts.on_server(number, || {
                Daemon::start(&place, &format!("memory-server {listen} --size 128MiB --insecure"))
            })
        };
        let servers: Vec<Daemon> = (0..2).map(serve).collect();
        let addresses = servers.iter().map(|server| server.address.clone()).collect::<Vec<_>>().join(",");
        Some(Cluster { place, _servers: servers, addresses, hosts })
    }

    fn pool(&self) -> String {
        format!("tcp://{}", self.addresses)
    }

    /// Starts a compute server of the words on the host of the calling thread.
    fn compute_server(&self) -> Daemon {
        let what = "--index words --listen HERE --cache 256KiB";
        Daemon::start(
            &self.place,
            &format!("compute-server --memory {} {DEADLINE_ARG} {what}", self.addresses),
        )
    }

    /// Runs a command on the pool, which must end in time.
    fn run(&self, command: &str) -> Ran {
        self.place.start(&format!("{command} --pool {} {DEADLINE_ARG}", self.pool())).end_within(COMMAND)
    }

    fn ok(&self, command: &str) -> String {
        let ran = self.run(command);
        assert_eq!(ran.status, 0, "{command}: {ran:?}");
        ran.stdout
    }

    /// Checks the messages of commands while a memory server is not reachable.
    fn is_missing(&self, server: usize) {
        let status = self.run("status");
        assert_eq!(status.status, 1, "{status:?}");
        let line = status.stdout.lines().find(|line| line.contains("CANNOT BE REACHED")).expect("one cannot");
        assert!(line.contains(&format!("memory server {server} at ")), "{status:?}");
        let get = self.run("get --index words aspen");
        assert_eq!((get.status, get.stderr.lines().count()), (1, 1), "{get:?}");
        assert!(get.stderr.contains(&self.hosts.address(server)), "{get:?}");
    }
}

/// A writer's knowledge of its keys, in their order.
struct Written {
    /// The last acknowledged value, and later values that may or may not be stored.
    values: Vec<(Option<usize>, Vec<usize>)>,
    failed: usize,
    slowest: Duration,
}

impl Written {
    /// Whether a key may have this value; the empty value is the initial one.
    fn may_be(&self, key: usize, value: &[u8]) -> bool {
        let (last, perhaps) = &self.values[key];
        match std::str::from_utf8(value).expect("digits") {
            "" => last.is_none(),
            digits => {
                let value = digits.parse().expect("a number");
                *last == Some(value) || perhaps.contains(&value)
            }
        }
    }
}

/// Changes the values of `keys` in turn until `over` is set, and counts acknowledged changes.
fn write(index: &RemoteIndex, keys: &[&str], over: &AtomicBool, done: &AtomicUsize) -> Written {
    let session = index.session();
    let mut written =
        Written { values: vec![(None, Vec::new()); keys.len()], failed: 0, slowest: Duration::ZERO };
    for value in 1.. {
        if over.load(Relaxed) {
            break;
        }
        let key = value % keys.len();
        let begun = Instant::now();
        let put = session.put(keys[key].as_bytes(), value.to_string().as_bytes());
        written.slowest = written.slowest.max(begun.elapsed());
        match put {
            Ok(_) => {
                written.values[key] = (Some(value), Vec::new());
                done.fetch_add(1, Relaxed);
            }
            Err(error) => {
                written.failed += 1;
                if error.may_have_taken_effect() {
                    written.values[key].1.push(value);
                }
                thread::sleep(Duration::from_millis(5));
            }
        }
    }
    written
}

/// Waits until every writer has had more changes acknowledged.
fn wait_for_progress(done: &[AtomicUsize]) {
    let until = Instant::now() + LONG;
    let before: Vec<usize> = done.iter().map(|done| done.load(Relaxed)).collect();
    while done.iter().zip(&before).any(|(done, before)| done.load(Relaxed) < before + 2 * KEYS) {
        assert!(Instant::now() < until, "writers make no progress: {before:?}, then {done:?}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Cuts and heals the link to a memory server several times while a compute server works for clients.
fn cut_and_heal(how: Cut, server: usize) {
    let Some(cluster) = Cluster::start() else { return };
    let place = &cluster.place;
    place.write("words.txt", word_list(20_000));
    let sorted = place.sorted("words.txt");
    let words: Vec<&str> = sorted.lines().collect();
    cluster.hosts.on_client(|| {
        cluster.ok("load words.txt --index words");
        let compute = cluster.compute_server();
        // The client waits longer than the compute server's deadlines, which must end its operations.
        let access = Access::default().deadline(LONG);
        let client =
            Client::connect(ClientConfig::new([&compute.address]).access(access)).expect("it listens");
        let index = client.open_index("words").expect("it is served");
        let (over, done) = (AtomicBool::new(false), [const { AtomicUsize::new(0) }; WRITERS]);
        let keys =
            |writer| words.iter().copied().skip(writer).step_by(words.len() / KEYS).collect::<Vec<_>>();
        let written: Vec<Written> = thread::scope(|scope| {
            let (index, over) = (&index, &over);
            let start = |(writer, done)| scope.spawn(move || write(index, &keys(writer), over, done));
            let writers: Vec<_> = done.iter().enumerate().map(start).collect();
            // The writers must end even if an assertion fails here.
            let at_end = AtEnd(over);
            for _ in 0..2 {
                wait_for_progress(&done);
                cluster.hosts.cut(server, how);
                let begun = Instant::now();
                cluster.is_missing(server);
                thread::sleep(CUT.saturating_sub(begun.elapsed()));
                cluster.hosts.heal(server, how);
                wait_for_progress(&done);
            }
            drop(at_end);
            writers.into_iter().map(|writer| writer.join().expect("it does not panic")).collect()
        });
        let session = index.session();
        for (writer, written) in written.iter().enumerate() {
            assert!(written.slowest < DEADLINE + BUSY, "{how:?}: an operation took {:?}", written.slowest);
            for (key, word) in keys(writer).iter().enumerate() {
                let value = session.get(word.as_bytes()).expect("all can be reached").expect("it was loaded");
                assert!(
                    written.may_be(key, &value),
                    "{how:?}: {word} is {value:?}, not {:?}",
                    written.values[key]
                );
            }
        }
        assert!(written.iter().any(|written| written.failed > 0), "{how:?}: nobody noticed");
        drop(session);
        compute.process.signal("-TERM");
        let ended = compute.process.end_within(LONG);
        assert_eq!(ended.status, 0, "{how:?}: {ended:?}, {}", Daemon::log_of(place, "compute-server"));
        // The pool itself has the same content.
        assert!(cluster.ok("check").contains("no violations"));
        assert_eq!(cluster.ok("scan --index words --keys-only"), sorted);
        for (writer, written) in written.iter().enumerate() {
            let got = place.feed(
                &format!("get --index words --stdin --pool {} {DEADLINE_ARG}", cluster.pool()),
                &(keys(writer).join("\n") + "\n"),
            );
            let values: Vec<&str> =
                got.stdout.lines().map(|line| line.split_once('\t').map_or("", |(_, value)| value)).collect();
            assert_eq!(values.len(), written.values.len(), "{got:?}");
            assert!((0..values.len()).all(|key| written.may_be(key, values[key].as_bytes())), "{how:?}");
        }
    });
}

/// Sets the flag when dropped.
struct AtEnd<'a>(&'a AtomicBool);

impl Drop for AtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

#[test]
fn an_interface_goes_down_and_up() {
    cut_and_heal(Cut::Down, 0);
}

#[test]
fn a_cable_is_replaced() {
    cut_and_heal(Cut::CableGone, 1);
}

#[test]
fn packets_are_lost_both_ways() {
    cut_and_heal(Cut::Silent, 1);
}

#[test]
fn packets_are_lost_on_the_way_to_a_server() {
    cut_and_heal(Cut::ToServer, 0);
}

#[test]
fn packets_are_lost_on_the_way_from_a_server() {
    cut_and_heal(Cut::FromServer, 1);
}

/// Cuts the link to a memory server permanently in the middle of a verified benchmark.
fn cut_for_good(how: Cut, server: usize) {
    let Some(cluster) = Cluster::start() else { return };
    let place = &cluster.place;
    place.write("words.txt", word_list(20_000));
    let sorted = place.sorted("words.txt");
    cluster.hosts.on_client(|| {
        cluster.ok("load words.txt --index words");
        let bench = place.start(&format!(
            "bench --pool {} {DEADLINE_ARG} --compute-servers 1 --keys 100k --warmup 1k --ops 1000m --cache 256KiB \
             --workload write-intensive --verify",
            cluster.pool()
        ));
        let until = Instant::now() + LONG;
        while !cluster.run("status").stdout.contains("index bench") {
            assert!(Instant::now() < until, "there is no benchmark");
        }
        thread::sleep(Duration::from_millis(500));
        cluster.hosts.cut(server, how);
        let ended = bench.end_within(BENCH);
        assert_eq!(ended.status, 1, "{how:?}: {ended:?}");
        assert!(ended.stderr.contains(&format!("memory server {server}")), "{how:?}: {ended:?}");
        cluster.is_missing(server);
        cluster.hosts.heal(server, how);
        // Its cached changes are lost, and it could not detach. Indexes closed by other processes are intact.
        place.check_unclean(&format!("--pool {} {DEADLINE_ARG}", cluster.pool()));
        assert_eq!(cluster.ok("scan --index words --keys-only --unclean"), sorted);
    });
}

#[test]
fn a_benchmark_ends_when_its_link_is_cut_for_good() {
    cut_for_good(Cut::Silent, 1);
}

#[test]
fn a_benchmark_ends_when_nobody_answers_it_any_more() {
    cut_for_good(Cut::FromServer, 0);
}
