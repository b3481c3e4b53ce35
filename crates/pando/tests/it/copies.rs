//! Memory servers with copies of each other's memory: one of them ends, and everything goes on.

use std::time::{Duration, Instant};

use pando::{Cluster, Config, Create, IndexOptions, MemoryServer, MemoryServerConfig};

const LEASE: Duration = Duration::from_millis(150);

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
