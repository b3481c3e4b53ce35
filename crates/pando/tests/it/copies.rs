//! Memory servers with copies of each other's memory: one of them ends, and everything goes on.

use std::ops::ControlFlow::Continue;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use pando::{
    Backing, Cluster, Config, Create, Durability, IndexOptions, MemoryServer, MemoryServerConfig,
    MemoryServerId, ServerState,
};

/// Long enough for a machine that does other things too.
const LEASE: Duration = Duration::from_millis(500);

fn start(count: usize) -> Vec<Option<MemoryServer>> {
    let config = MemoryServerConfig::new("127.0.0.1:0").size(64 << 20).lease(LEASE);
    (0..count).map(|_| Some(MemoryServer::start(&config).expect("a free port"))).collect()
}

fn addresses(servers: &[Option<MemoryServer>]) -> Vec<String> {
    servers.iter().flatten().map(|server| server.addr().to_string()).collect()
}

fn key(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

#[test]
fn any_memory_server_may_be_lost() {
    for lost in 0..3 {
        let mut servers = start(3);
        let config = Config::tcp(addresses(&servers)).replicas(2).cache(1 << 20);
        let cluster = Cluster::open(config.clone().create(Create::New)).expect("a pool");
        let index = cluster.create_index("trees", &IndexOptions::integers()).expect("an index");
        let session = index.session().expect("a session");
        for number in 0..20_000 {
            session.put(&key(number), &key(number)).expect("room");
        }
        servers[lost] = None;
        let began = Instant::now();
        for number in 0..20_000 {
            session
                .put(&key(number), &key(number + 1))
                .unwrap_or_else(|error| panic!("{lost}: put {number}: {error}"));
        }
        println!("server {lost} was lost for {:?}", began.elapsed());
        for number in 0..20_000 {
            let found =
                session.get(&key(number)).unwrap_or_else(|error| panic!("{lost}: get {number}: {error}"));
            assert_eq!(found.as_deref(), Some(&key(number + 1)[..]), "{lost}: {number}");
        }
        drop(session);
        drop(index);
        cluster.close().unwrap_or_else(|error| panic!("{lost}: {error}"));
        // One address that answers suffices to find the others.
        let left = addresses(&servers);
        let cluster =
            Cluster::open(Config::tcp([left[0].clone()])).unwrap_or_else(|error| panic!("{lost}: {error}"));
        let index = cluster.open_index("trees").expect("it is there");
        let session = index.session().expect("a session");
        for number in 0..20_000 {
            let found =
                session.get(&key(number)).unwrap_or_else(|error| panic!("{lost}: get {number}: {error}"));
            assert_eq!(found.as_deref(), Some(&key(number + 1)[..]), "{lost}: {number}");
        }
    }
}

/// Ends threads when it is dropped, on a panic too.
struct Stop<'s>(&'s AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

#[test]
fn memory_servers_join_and_are_drained_while_a_compute_server_writes() {
    let mut servers = start(3);
    let config = Config::tcp(addresses(&servers)).replicas(2).cache(1 << 20).durability(Durability::Process);
    let cluster = Cluster::open(config.create(Create::New)).expect("a pool");
    let index = cluster.create_index("trees", &IndexOptions::integers()).expect("an index");
    let is_over = AtomicBool::new(false);
    let admin = |servers: &[Option<MemoryServer>]| {
        let config = Config::tcp(addresses(servers)).create(Create::Never).durability(Durability::Process);
        Cluster::open(config).expect("the pool is there")
    };
    let rounds = thread::scope(|scope| {
        let stop = Stop(&is_over);
        let writing = scope.spawn(|| {
            let session = index.session().expect("a session");
            let mut round = 0;
            while !is_over.load(Relaxed) {
                round += 1;
                for number in 0..20_000 {
                    session.put(&key(number), &key(number + round)).expect("room");
                }
            }
            round
        });
        let following = scope.spawn(|| {
            while !is_over.load(Relaxed) {
                index.follow(&|| true).expect("it moves what is its own");
                thread::sleep(Duration::from_millis(100));
            }
        });
        for round in 0..2 {
            let refused = admin(&servers).add_memory_server(64 << 20).expect_err("none is named");
            assert!(refused.to_string().starts_with("start one more memory server first"), "{refused}");
            servers.extend(start(1));
            let cluster = admin(&servers);
            let added = cluster.add_memory_server(64 << 20).expect("it joins");
            assert_eq!(usize::from(added.0), 3 + round);
            let moved = cluster.spread_indexes(|_| Continue(())).expect("there is room");
            println!("memory server {added} is in use, {moved} nodes moved");
            let left = MemoryServerId(1 + round as u16);
            cluster.drain_memory_server(left, |_| Continue(())).expect("there is room");
            let state = cluster.memory_servers().expect("it answers")[usize::from(left.0)].state;
            assert_eq!(state, ServerState::Drained);
            cluster.close().expect("nothing is open");
        }
        drop(stop);
        following.join().expect("no panic");
        writing.join().expect("no panic")
    });
    // Any one may be lost, also the one that joined.
    servers[3] = None;
    let session = index.session().expect("a session");
    for number in 0..20_000 {
        let found = session.get(&key(number)).expect("a copy is left");
        assert_eq!(found.as_deref(), Some(&key(number + rounds)[..]), "{number}");
    }
    drop(session);
    drop(index);
    cluster.close().expect("nothing is open");
    let report = admin(&servers).check().expect("it answers");
    assert!(report.is_clean(), "{report:?}");
}

/// Starts a memory server of a file, at an address or at any.
fn start_file(directory: &std::path::Path, number: usize, listen: &str) -> MemoryServer {
    let file = Backing::File(directory.join(format!("memory-{number}")));
    let config = MemoryServerConfig::new(listen).size(64 << 20).lease(LEASE).backing(file);
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        match MemoryServer::start(&config) {
            Ok(server) => return server,
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn check(addresses: &[String], values: u64) {
    let cluster = Cluster::open(Config::tcp(addresses)).expect("all servers are back");
    let index = cluster.open_index("trees").expect("it is there");
    let session = index.session().expect("a session");
    for number in 0..2_000 {
        let found = session.get(&key(number)).expect("it is served");
        assert_eq!(found.as_deref(), Some(&key(number + values)[..]), "{number}");
    }
}

#[test]
fn memory_in_files_outlives_all_servers_and_one_that_missed_something_is_filled_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut servers: Vec<Option<MemoryServer>> =
        (0..3).map(|number| Some(start_file(directory.path(), number, "127.0.0.1:0"))).collect();
    let addresses = addresses(&servers);
    let config = Config::tcp(&addresses).replicas(2).cache(1 << 20);
    let cluster = Cluster::open(config.create(Create::New)).expect("a pool");
    let index = cluster.create_index("trees", &IndexOptions::integers()).expect("an index");
    let put = |added: u64| {
        let session = index.session().expect("a session");
        (0..2_000)
            .for_each(|number| session.put(&key(number), &key(number + added)).map(drop).expect("room"));
        drop(session);
        cluster.flush().expect("a copy is left");
    };
    put(1);
    // Server 1 misses changes, and is back before the others end.
    servers[1] = None;
    put(2);
    servers[1] = Some(start_file(directory.path(), 1, &addresses[1]));
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let copies = cluster.copies().expect("it is open").expect("there are copies");
        if copies.lacking().is_empty() && copies.servers.iter().all(|server| server.is_in) {
            break;
        }
        assert!(Instant::now() < until, "{copies:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    put(3);
    drop(index);
    cluster.close().expect("all servers are there");
    // All end, and are back; then server 0 is lost for good.
    servers.iter_mut().for_each(|server| *server = None);
    for (number, address) in addresses.iter().enumerate() {
        servers[number] = Some(start_file(directory.path(), number, address));
    }
    check(&addresses, 3);
    servers[0] = None;
    check(&addresses, 3);
}
