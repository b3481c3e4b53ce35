//! Memory servers with copies of each other's memory, as processes: one after the other is killed or stopped, and comes
//! back; compute servers and clients go on, and everything that was answered is there.
//!
//! `COPIES_TIMES` sets how often a server is lost in each test, 6 by default.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::Place;
use crate::common::running::Daemon;
use crate::heirs::{Cluster, await_answers, beside_clients};

/// Number of memory servers.
const SERVERS: usize = 3;
const LEASE: &str = "800ms";
const WAIT: Duration = Duration::from_secs(60);

/// Memory servers of one pool.
pub struct MemoryServers {
    pub place: Arc<Place>,
    pub servers: Vec<Daemon>,
    pub pool: String,
    /// More options of each.
    options: String,
}

impl MemoryServers {
    /// With an index in a pool with two copies.
    fn new() -> Self {
        Self::with(SERVERS, "")
    }

    /// [`MemoryServers::new`] with so many servers, each with these options.
    pub fn with(count: usize, options: &str) -> Self {
        let (place, options) = (Arc::new(Place::new()), options.to_owned());
        let servers: Vec<Daemon> = (0..count).map(|_| memory_server(&place, "HERE", &options)).collect();
        let addresses: Vec<&str> = servers.iter().map(|server| server.address.as_str()).collect();
        let pool = format!("tcp://{}", addresses.join(","));
        place.ok(&format!("create --pool {pool} --replicas 2 --index n --boundaries @ --node-size 512"));
        Self { place, servers, pool, options }
    }

    pub fn cluster(&self) -> Cluster {
        Cluster::of(Arc::clone(&self.place), self.pool.trim_start_matches("tcp://").to_owned())
    }

    /// Waits until all copies are there.
    pub fn wait_for_copies(&self) {
        let begun = Instant::now();
        loop {
            let told = self.place.run(&format!("pool copies --pool {} --json -", self.pool));
            let document: serde_json::Value = serde_json::from_str(&told.stdout).unwrap_or_default();
            let is_whole = |server: &&serde_json::Value| {
                server["in_view"] == true && server["fills"] == serde_json::json!([])
            };
            let whole = document["servers"].as_array().map_or(0, |all| all.iter().filter(is_whole).count());
            if whole == self.servers.len() && document["lacking"] == serde_json::json!([]) {
                return;
            }
            assert!(begun.elapsed() < WAIT, "{told:?}");
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Ends a server with a signal, and starts it again after `meanwhile`.
    pub fn restart<T>(&mut self, number: usize, signal: &str, meanwhile: impl FnOnce() -> T) -> T {
        self.servers[number].process.signal(signal);
        let done = meanwhile();
        let ended = self.servers.remove(number);
        let listen = ended.address.clone();
        match signal {
            "-TERM" => assert_eq!(ended.process.end().status, 0),
            // It is gone before the new one listens.
            _ => drop(ended),
        }
        self.servers.insert(number, memory_server(&self.place, &listen, &self.options));
        done
    }

    /// Stops a server until `done` returns. It goes on then, and must not serve what it missed.
    pub fn stop_while<T>(&self, number: usize, done: impl FnOnce() -> T) -> T {
        let lost = &self.servers[number];
        lost.process.signal("-STOP");
        let result = done();
        lost.process.signal("-CONT");
        result
    }

    /// Ends the compute server. Opened by nobody else, the pool is in order then.
    pub fn stop(&self, server: Daemon) {
        server.process.signal("-TERM");
        let ended = server.process.end();
        assert_eq!(ended.status, 0, "{ended:?}");
        self.place.ok(&format!("put --pool {} --durability process --index n fig 1", self.pool));
        self.place.ok(&format!("check --pool {}", self.pool));
    }
}

fn memory_server(place: &Arc<Place>, listen: &str, options: &str) -> Daemon {
    let arguments =
        format!("memory-server --size 64MiB --listen {listen} --grace 2s --lease {LEASE} {options}");
    Daemon::start(place, &arguments)
}

pub fn times() -> usize {
    std::env::var("COPIES_TIMES").ok().and_then(|text| text.parse().ok()).unwrap_or(6)
}

/// Ends a compute server once a standby is there; returns that, and the time without answers.
fn hand_over(cluster: &Cluster, server: Daemon, signal: &str, answered: &[AtomicU64]) -> (Daemon, Duration) {
    let standby = cluster.compute_server();
    await_answers(answered);
    thread::sleep(Duration::from_millis(300));
    server.process.signal(signal);
    let took = await_answers(answered);
    (standby.join().expect("it takes over"), took)
}

pub fn report(what: &str, mut took: Vec<Duration>, errors: &[String]) {
    took.sort();
    println!(
        "{} times {what} was lost; served again after {:?}, at most {:?}; {} changes failed, the first: {:?}",
        took.len(),
        took[took.len() / 2],
        took[took.len() - 1],
        errors.len(),
        errors.first()
    );
}

#[test]
fn memory_servers_are_lost_one_after_the_other_and_clients_go_on() {
    let mut memory = MemoryServers::new();
    let cluster = memory.cluster();
    let server = cluster.compute_server().join().expect("it starts");
    let mut took = Vec::new();
    let errors = beside_clients(&cluster, |answered| {
        for round in 0..times() {
            await_answers(answered);
            memory.wait_for_copies();
            let number = round % SERVERS;
            if round % 2 == 0 {
                took.push(memory.restart(number, "-KILL", || await_answers(answered)));
            } else {
                took.push(memory.stop_while(number, || await_answers(answered)));
            }
        }
        await_answers(answered);
        memory.wait_for_copies();
    });
    report("a memory server", took, &errors);
    memory.stop(server);
}

#[test]
fn memory_servers_and_compute_servers_are_killed_in_turn() {
    let mut memory = MemoryServers::new();
    let cluster = memory.cluster();
    let mut server = Some(cluster.compute_server().join().expect("it starts"));
    let (mut of_memory, mut of_compute) = (Vec::new(), Vec::new());
    let errors = beside_clients(&cluster, |answered| {
        for round in 0..times() {
            await_answers(answered);
            if round % 2 == 0 {
                // The heir comes while copies are filled.
                memory.wait_for_copies();
                of_memory.push(memory.restart(round / 2 % SERVERS, "-KILL", || await_answers(answered)));
            } else {
                let killed = server.take().expect("there is one");
                let (heir, took) = hand_over(&cluster, killed, "-KILL", answered);
                server = Some(heir);
                of_compute.push(took);
            }
        }
        await_answers(answered);
        memory.wait_for_copies();
    });
    report("a memory server", of_memory, &errors);
    report("the compute server", of_compute, &errors);
    memory.stop(server.expect("there is one"));
}

#[test]
fn all_servers_are_restarted_one_after_the_other_and_no_operation_fails() {
    let mut memory = MemoryServers::new();
    let cluster = memory.cluster();
    let mut server = Some(cluster.compute_server().join().expect("it starts"));
    let mut took = Vec::new();
    let errors = beside_clients(&cluster, |answered| {
        for number in 0..SERVERS {
            memory.wait_for_copies();
            took.push(memory.restart(number, "-TERM", || await_answers(answered)));
        }
        memory.wait_for_copies();
        let ended = server.take().expect("there is one");
        let (next, waited) = hand_over(&cluster, ended, "-TERM", answered);
        server = Some(next);
        took.push(waited);
        await_answers(answered);
    });
    report("a server", took, &errors);
    assert_eq!(errors, Vec::<String>::new());
    memory.stop(server.expect("there is one"));
}

/// What `pando status` says, and its exit status.
#[test]
fn memory_servers_join_and_are_drained_by_command_while_clients_go_on() {
    let mut memory = MemoryServers::new();
    let cluster = memory.cluster();
    let server = cluster.compute_server().join().expect("it starts");
    let errors = beside_clients(&cluster, |answered| {
        for number in SERVERS..SERVERS + 3 {
            let joins = memory_server(&memory.place, "HERE", &memory.options);
            let order = format!("pool add-server --pool {},{}", memory.pool, joins.address);
            memory.servers.push(joins);
            let ordered = {
                let (place, order) = (Arc::clone(&memory.place), order.clone());
                thread::spawn(move || place.run(&order))
            };
            // Others end and come back meanwhile, at last the one that joins.
            let ends = [0, 2, number][number - SERVERS];
            thread::sleep(Duration::from_millis(400 * (number - SERVERS) as u64));
            memory.restart(ends, "-TERM", || await_answers(answered));
            let said = ordered.join().expect("no panic");
            assert_eq!(said.stdout, format!("memory server {number} is in use\n"), "{said:?}");
            memory.place.ok(&format!("pool spread --pool {}", memory.pool));
            memory.place.ok(&format!("pool drain-server {} --pool {}", number - 2, memory.pool));
            await_answers(answered);
            memory.wait_for_copies();
        }
        // A drained part of the pool is still on servers, of which any may be lost.
        for number in SERVERS..memory.servers.len() {
            memory.restart(number, "-TERM", || await_answers(answered));
            memory.wait_for_copies();
        }
    });
    assert_eq!(errors, Vec::<String>::new());
    memory.stop(server);
}

fn status(place: &Place, pool: &str) -> (serde_json::Value, i32) {
    let asked = place.run(&format!("status --pool {pool} --json -"));
    (serde_json::from_str(&asked.stdout).unwrap_or_else(|error| panic!("{error}: {asked:?}")), asked.status)
}

/// Its exit status once it says `what`.
fn wait_for_status(place: &Place, pool: &str, what: impl Fn(&serde_json::Value) -> bool) -> i32 {
    let begun = Instant::now();
    loop {
        match status(place, pool) {
            (document, status) if what(&document) => return status,
            (document, _) => assert!(begun.elapsed() < WAIT, "{document}"),
        }
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn status_tells_which_memory_server_is_lost_what_the_others_do_and_how_far_it_is_filled_again() {
    let mut memory = MemoryServers::with(SERVERS, "--copy-rate 16MiB");
    let (place, pool, cluster) = (Arc::clone(&memory.place), memory.pool.clone(), memory.cluster());
    let server = cluster.compute_server().join().expect("it starts");
    place.ok(&format!("put --pool {pool} --index n fig 1"));
    let text = place.ok(&format!("status --pool {pool}"));
    for said in [
        "64.0 MiB; its lease ends in ",
        "; serves 1; backs up 0\n",
        "(heard ",
        ": all are there\n",
        " in use; owners",
    ] {
        assert!(text.contains(said), "{said} in\n{text}");
    }
    memory.restart(1, "-KILL", || {
        // The others go on, and tell what there is to tell.
        let lost = |document: &serde_json::Value| {
            let servers = &document["memory_servers"];
            servers[1]["reached"] == false
                && servers[2]["member"]["serves"] == serde_json::json!([1, 2])
                && servers[0]["member"]["lease_left_ns"].as_u64() > Some(0)
                && document["copies"]["lacking"] == serde_json::json!([0, 1])
                && document["indexes"][0]["log_used_bytes"].as_u64() > Some(0)
                && document["processes"][0]["silent_ns"].as_u64() < Some(2_000_000_000)
        };
        assert_eq!(wait_for_status(&place, &pool, lost), 1);
    });
    let fills = |document: &serde_json::Value| {
        let member = &document["memory_servers"][1]["member"];
        member["in_view"] == true && member["fills"][0]["whole_bytes"].as_u64() > Some(0)
    };
    assert_eq!(wait_for_status(&place, &pool, fills), 1, "copies are missing");
    let whole = |document: &serde_json::Value| document["copies"]["lacking"] == serde_json::json!([]);
    assert_eq!(wait_for_status(&place, &pool, whole), 0);
    memory.stop(server);
}
