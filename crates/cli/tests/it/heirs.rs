//! Compute servers with logs that are killed or stopped, with a standby beside each: clients go on by themselves, and
//! everything that was answered is there.
//!
//! Each thread of clients changes keys of its own: `state`, `state + 1`, .. as their values. After an error the change may have
//! been made or not. `HEIRS_TIMES` sets the number of kills, 6 by default, and `HEIRS_GRACE` how long a
//! memory server waits for a silent process, 1 s by default; the fifth of that for one that was killed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use pando::remote::{Client, RemoteSession, Service};
use pando::{Access, Config, Error};

use crate::common::Place;
use crate::common::running::Daemon;

const THREADS: u64 = 3;
/// Keys of each thread.
const KEYS: u64 = 500;
const WAIT: Duration = Duration::from_secs(60);

/// Memory servers, and an index in their memory.
pub struct Cluster {
    place: Arc<Place>,
    /// Addresses of the memory servers.
    addresses: String,
    /// The memory server, unless the test has its own.
    _memory: Option<Daemon>,
}

impl Cluster {
    fn new(grace: &str) -> Self {
        let place = Arc::new(Place::new());
        let memory = Daemon::memory_server(&place, &format!("--grace {grace}"));
        place.ok(&format!("create --pool {} --index n --boundaries @ --node-size 512", memory.pool()));
        Self { place, addresses: memory.address.clone(), _memory: Some(memory) }
    }

    /// The index in memory servers at these addresses.
    pub fn of(place: Arc<Place>, addresses: String) -> Self {
        Self { place, addresses, _memory: None }
    }

    fn pool(&self) -> String {
        format!("tcp://{}", self.addresses)
    }

    /// Starts a compute server, which stands by if there is one already; its address once it has taken over.
    pub fn compute_server(&self) -> thread::JoinHandle<Daemon> {
        self.compute_server_of("0,1")
    }

    /// [`Cluster::compute_server`] for some of the two partitions.
    fn compute_server_of(&self, partitions: &str) -> thread::JoinHandle<Daemon> {
        let arguments = format!(
            "compute-server --memory {} --index n --listen HERE --cache 64KiB --durability process --standby \
             --partition {partitions}",
            self.addresses
        );
        let place = Arc::clone(&self.place);
        thread::spawn(move || Daemon::start(&place, &arguments))
    }

    fn session(&self) -> RemoteSession {
        let access = Access::default().deadline(Duration::from_secs(20));
        match Client::find(&Config::tcp(self.addresses.split(',')).access(access), "n").expect("it is there")
        {
            Service::Remote(index) => index.session(),
            Service::Nobody => panic!("a compute server has it open"),
        }
    }
}

/// What one thread knows of its keys: the last state that was answered.
struct Known {
    first: u64,
    states: Vec<u64>,
    /// Whether the next state may be there.
    doubtful: Vec<bool>,
}

impl Known {
    fn new(thread: u64) -> Self {
        Self { first: thread * KEYS, states: vec![0; KEYS as usize], doubtful: vec![false; KEYS as usize] }
    }

    fn key(&self, at: usize) -> [u8; 8] {
        // In no order, so that threads meet in leaves.
        (self.first + at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
    }

    /// A change of one key, and a lookup of another. The error of the change.
    fn step(&mut self, session: &RemoteSession, random: u64) -> Result<(), Error> {
        let at = (random >> 20) as usize % self.states.len();
        let state = self.states[at] + 1;
        let put = session.put(&self.key(at), &state.to_le_bytes());
        match &put {
            Ok(_) => (self.states[at], self.doubtful[at]) = (state, false),
            // The same state is put again.
            Err(_) => self.doubtful[at] = true,
        }
        self.look(session, (random >> 40) as usize % self.states.len());
        put.map(drop)
    }

    /// Looks a key up, if that is answered.
    fn look(&mut self, session: &RemoteSession, at: usize) {
        let Ok(found) = session.get(&self.key(at)) else { return };
        let found = found.map_or(0, |value| u64::from_le_bytes(*value.first_chunk().expect("8 bytes")));
        let (state, is_doubtful) = (self.states[at], self.doubtful[at]);
        let is_there = found == state || is_doubtful && found == state + 1;
        assert!(is_there, "key {at} is {found}, not {state}, doubtful: {is_doubtful}");
        // What was read stays.
        (self.states[at], self.doubtful[at]) = (found, is_doubtful && found == state);
    }
}

fn next(state: u64) -> u64 {
    let z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z ^ z >> 27
}

/// Works until told to end; then looks at all keys. Returns the errors of changes.
fn work(session: &RemoteSession, thread: u64, is_over: &AtomicBool, answered: &AtomicU64) -> Vec<String> {
    let (mut known, mut random, mut errors) = (Known::new(thread), thread, Vec::new());
    while !is_over.load(Relaxed) {
        random = next(random);
        match known.step(session, random) {
            Ok(()) => drop(answered.fetch_add(1, Relaxed)),
            Err(error) => errors.push(error.to_string()),
        }
    }
    (0..KEYS as usize).for_each(|at| known.look(session, at));
    errors
}

/// Waits until each thread has been answered some more.
pub fn await_answers(answered: &[AtomicU64]) -> Duration {
    let (begun, before) =
        (Instant::now(), answered.iter().map(|count| count.load(Relaxed)).collect::<Vec<_>>());
    while answered.iter().zip(&before).any(|(count, before)| count.load(Relaxed) < before + 20) {
        assert!(begun.elapsed() < WAIT, "nobody serves the keys");
        thread::sleep(Duration::from_millis(1));
    }
    begun.elapsed()
}

#[test]
fn a_standby_takes_over_what_was_answered_by_a_server_that_is_killed() {
    let times = std::env::var("HEIRS_TIMES").ok().and_then(|text| text.parse().ok()).unwrap_or(6);
    let grace = std::env::var("HEIRS_GRACE").unwrap_or_else(|_| "1s".to_owned());
    let cluster = Cluster::new(&grace);
    let mut server = cluster.compute_server().join().expect("it starts");
    let (is_over, answered): (AtomicBool, [AtomicU64; THREADS as usize]) = Default::default();
    let mut took = Vec::new();
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (cluster, is_over, answered) = (&cluster, &is_over, &answered[thread as usize]);
            scope.spawn(move || work(&cluster.session(), thread, is_over, answered));
        }
        for _ in 0..times {
            let standby = cluster.compute_server();
            await_answers(&answered);
            // Long enough for the standby to be there.
            thread::sleep(Duration::from_millis(300));
            server.process.signal("-KILL");
            took.push(await_answers(&answered));
            server = standby.join().expect("it takes over");
        }
        is_over.store(true, Relaxed);
    });
    took.sort();
    println!(
        "{times} kills, {answered:?} changes; served again after {:?}, at most {:?}",
        took[times / 2],
        took[times - 1]
    );
    let died = server.process.id();
    drop(server);
    // Until it counts as dead.
    thread::sleep(if grace == "1s" { Duration::from_millis(500) } else { Duration::from_secs(10) });
    let status = cluster.place.run(&format!("status --pool {}", cluster.pool()));
    let owner = format!("0: process {died} (DEAD: whoever opens the index next takes it over)");
    assert!(status.stdout.contains(", log ") && status.stdout.contains(&owner), "{status:?}");
    // Opened by nobody else, the pool is in order again.
    let durable = format!("--pool {} --durability process", cluster.pool());
    cluster.place.ok(&format!("put {durable} --index n fig 1"));
    cluster.place.ok(&format!("check --pool {}", cluster.pool()));
}

/// Runs `body` while clients work, and lets them look at all of their keys then. Returns the errors of their changes.
pub fn beside_clients(cluster: &Cluster, body: impl FnOnce(&[AtomicU64])) -> Vec<String> {
    let (is_over, answered): (AtomicBool, [AtomicU64; THREADS as usize]) = Default::default();
    thread::scope(|scope| {
        let clients: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (is_over, answered) = (&is_over, &answered[thread as usize]);
                scope.spawn(move || work(&cluster.session(), thread, is_over, answered))
            })
            .collect();
        body(&answered);
        is_over.store(true, Relaxed);
        clients.into_iter().flat_map(|client| client.join().expect("nothing is lost")).collect()
    })
}

/// Stops the compute servers in order. Opened by nobody else, the pool is in order again.
fn stop<const N: usize>(cluster: &Cluster, servers: [Daemon; N]) {
    for server in servers {
        server.process.signal("-TERM");
        let ended = server.process.end();
        assert_eq!(ended.status, 0, "{ended:?}");
    }
    let pool = cluster.pool();
    cluster.place.ok(&format!("put --pool {pool} --durability process --index n fig 1"));
    cluster.place.ok(&format!("check --pool {pool}"));
}

#[test]
fn each_of_two_compute_servers_has_heirs_while_the_other_goes_on() {
    let cluster = Cluster::new("1s");
    let mut servers =
        ["0", "1"].map(|partition| cluster.compute_server_of(partition).join().expect("it starts"));
    beside_clients(&cluster, |answered| {
        for round in 0..6 {
            let partition = round % 2;
            let standby = cluster.compute_server_of(&partition.to_string());
            await_answers(answered);
            thread::sleep(Duration::from_millis(300));
            servers[partition].process.signal("-KILL");
            await_answers(answered);
            servers[partition] = standby.join().expect("it takes over");
        }
    });
    let pool = cluster.pool();
    // The dead are still attached.
    let status = cluster.place.run(&format!("status --pool {pool}")).stdout;
    for (partition, server) in servers.iter().enumerate() {
        assert!(status.contains(&format!("{partition}: process {}", server.process.id())), "{status}");
    }
    stop(&cluster, servers);
}

/// Boundaries move by command between two processes; in some rounds one of them is killed meanwhile.
#[test]
fn keys_move_between_processes_while_clients_go_on() {
    let cluster = Cluster::new("1s");
    let pool = cluster.pool();
    let mut servers =
        ["0", "1"].map(|partition| cluster.compute_server_of(partition).join().expect("it starts"));
    beside_clients(&cluster, |answered| {
        for (round, to) in ["8", "P", "c", "D", "z", "0"].into_iter().cycle().take(20).enumerate() {
            let order = format!("pool move-boundary --pool {pool} --index n --partition 0 --to {to}");
            if round % 4 != 3 {
                let said = cluster.place.ok(&order);
                assert!(said.contains(&format!("ends at {to}")), "{said}");
                await_answers(answered);
                continue;
            }
            let (partition, after) = (round / 4 % 2, 60 * (round as u64 / 4));
            let standby = cluster.compute_server_of(&partition.to_string());
            thread::sleep(Duration::from_millis(300));
            let place = Arc::clone(&cluster.place);
            let ordered = thread::spawn(move || place.run(&order));
            thread::sleep(Duration::from_millis(after));
            servers[partition].process.signal("-KILL");
            ordered.join().expect("it ends, either way");
            servers[partition] = standby.join().expect("it takes over");
            await_answers(answered);
        }
    });
    stop(&cluster, servers);
}

/// Memory servers join and leave by command, and end as soon as they have left. In some rounds the compute server is killed
/// while they leave, in the others as soon as they have ended. Its heir goes on, and takes over what it had leased.
#[test]
fn memory_servers_join_and_leave_while_clients_go_on() {
    let cluster = Cluster::new("1s");
    let mut server = cluster.compute_server().join().expect("it starts");
    let (pool, mut joined) = (cluster.pool(), Vec::new());
    beside_clients(&cluster, |answered| {
        for round in 1..=6 {
            let joins = Daemon::memory_server(&cluster.place, "--grace 1s");
            cluster.place.ok(&format!("pool add-server --pool {pool},{}", joins.address));
            joined.push(joins);
            cluster.place.ok(&format!("pool spread --pool {pool}"));
            await_answers(answered);
            if round == 1 {
                continue;
            }
            // The one that joined in the round before leaves.
            let order = format!("pool drain-server {} --pool {pool}", round - 1);
            if round % 2 == 0 {
                let standby = cluster.compute_server();
                thread::sleep(Duration::from_millis(300));
                let (place, order) = (Arc::clone(&cluster.place), order.clone());
                let ordered = thread::spawn(move || place.run(&order));
                thread::sleep(Duration::from_millis(40 * round));
                server.process.signal("-KILL");
                ordered.join().expect("it ends, either way");
                server = standby.join().expect("it takes over");
            }
            let said = cluster.place.run(&order);
            let is_drained = |text: &str| text.contains("is drained");
            if !(is_drained(&said.stdout) || is_drained(&said.stderr)) {
                // Clients would go on for ever.
                eprintln!("round {round}: {said:?}");
                std::process::exit(1);
            }
            joined[round as usize - 2].process.signal("-KILL");
            if round % 2 == 1 {
                // Its log may have records of pages that were there.
                server.process.signal("-KILL");
                server = cluster.compute_server().join().expect("it takes over");
            }
            await_answers(answered);
        }
    });
    // Whoever died has left nothing in the attach table, once a compute server has looked.
    let began = Instant::now();
    while let said = cluster.place.run(&format!("status --pool {pool}"))
        && said.status != 0
    {
        assert!(began.elapsed() < WAIT && said.stdout.contains("DEAD"), "{said:?}");
        thread::sleep(Duration::from_millis(100));
    }
    stop(&cluster, [server]);
    let check = |how: &str| cluster.place.ok(&format!("check {how} --pool {pool}"));
    let left = check("").contains("left by processes that died");
    assert_eq!(check("--free").contains("are free now"), left);
    assert!(!check("").contains("left by processes"));
}

#[test]
fn of_several_standbys_one_takes_over_and_the_others_go_on_waiting() {
    let cluster = Cluster::new("1s");
    let mut owner = cluster.compute_server().join().expect("it starts");
    let mut standbys: Vec<_> = (0..8).map(|_| cluster.compute_server()).collect();
    while !standbys.is_empty() {
        thread::sleep(Duration::from_millis(500));
        owner.process.signal("-KILL");
        let killed = Instant::now();
        let heir = loop {
            match standbys.iter().position(thread::JoinHandle::is_finished) {
                Some(heir) => break standbys.swap_remove(heir),
                None => assert!(killed.elapsed() < WAIT, "nobody takes over"),
            }
            thread::sleep(Duration::from_millis(1));
        };
        owner = heir.join().expect("it takes over");
    }
}

#[test]
fn a_stopped_server_answers_nothing_once_its_keys_were_taken_over() {
    let cluster = Cluster::new("1s");
    let stopped = cluster.compute_server().join().expect("it starts");
    let old = Client::connect(pando::remote::ClientConfig::new([&stopped.address])).expect("it serves");
    let old = old.open_index("n").expect("it is there").session();
    old.put(b"fig", b"1").expect("it is alone");
    assert_eq!(old.get(b"fig").expect("it is cached").as_deref(), Some(&b"1"[..]));
    let standby = cluster.compute_server();
    stopped.process.signal("-STOP");
    let _heir = standby.join().expect("it takes over");
    let new = cluster.session();
    assert_eq!(new.get(b"fig").expect("it serves").as_deref(), Some(&b"1"[..]));
    new.put(b"fig", b"2").expect("it serves");
    stopped.process.signal("-CONT");
    for _ in 0..20 {
        assert!(old.get(b"fig").is_err(), "it was taken for dead");
        thread::sleep(Duration::from_millis(20));
    }
    assert!(old.put(b"fig", b"3").is_err());
    assert_eq!(new.get(b"fig").expect("it serves").as_deref(), Some(&b"2"[..]));
}
