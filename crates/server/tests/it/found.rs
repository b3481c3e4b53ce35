//! Clients that know only the pool and find its compute servers themselves.

use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

use crate::support::{DEADLINE, key, serve};
use pando::remote::{Client, RemoteError, RemoteIndex, Service};
use pando::{
    Access, Cluster, Config, Create, Error, Index, IndexOptions, OpenOptions, Ownership, PartitionOwner,
};
use pando_server::OperationServer;

/// A pool in files with an index "x" of two partitions, owned by no process.
fn create(path: &Path) {
    let config = Config::at(path).memory_servers(2).memory(64 << 20).create(Create::New);
    let cluster = Cluster::open(config).expect("opens");
    let options = IndexOptions::integers().boundaries(vec![key(100)]);
    cluster.create_index("x", &options.own(Ownership::Partitions(Vec::new()))).expect("new");
    cluster.close().expect("closes");
}

/// A process that serves one of its partitions and announces the port.
struct ComputeServer {
    cluster: Cluster,
    index: Index,
    server: OperationServer,
}

fn compute_server(path: &Path, partition: usize) -> ComputeServer {
    let cluster = Cluster::open(Config::at(path).cache(256 << 10)).expect("attaches");
    let own = OpenOptions::default().own(Ownership::Partitions(vec![partition]));
    let index = cluster.open_index_with("x", &own).expect("opens");
    let server = serve(&index, 1);
    index.announce(&server.addr().to_string()).expect("room");
    ComputeServer { cluster, index, server }
}

fn end(ComputeServer { cluster, index, server }: ComputeServer) {
    drop((server, index));
    cluster.close().expect("nobody uses it");
}

fn config(path: &Path, deadline: Duration) -> Config {
    Config::at(path).access(Access::default().deadline(deadline))
}

fn find(path: &Path) -> RemoteIndex {
    match Client::find(&config(path, DEADLINE), "x").expect("it is served") {
        Service::Remote(index) => index,
        Service::Nobody => panic!("it is served"),
    }
}

#[test]
fn compute_servers_are_found_by_the_pool_and_found_again_when_they_move() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let path = directory.path().join("pools/");
    create(&path);
    assert!(matches!(Client::find(&config(&path, DEADLINE), "x"), Ok(Service::Nobody)));
    let unknown = Client::find(&config(&path, DEADLINE), "y").expect_err("there is none");
    assert!(matches!(unknown, Error::UnknownIndex { .. }), "{unknown}");

    let (low, high) = (compute_server(&path, 0), compute_server(&path, 1));
    let found = find(&path);
    assert_eq!(found.owners().len(), 2);
    let session = found.session();
    for n in [1, 99, 100, 5000] {
        session.put(&key(n), &key(n)).expect("served");
    }
    assert_eq!(session.iter().count(), 4);

    // It returns at another address, because its old port is taken meanwhile.
    let before = high.server.addr();
    end(high);
    let taken = TcpListener::bind(before).expect("free again");
    let high = compute_server(&path, 1);
    assert_ne!(high.server.addr(), before);
    drop(taken);
    assert_eq!(session.get(&key(5000)).expect("found again"), Some(key(5000)));
    assert_eq!(session.iter().inspect(|entry| assert!(entry.is_ok(), "found again")).count(), 4);
    drop(session);
    end(low);
    end(high);
    assert!(Cluster::open(Config::at(&path)).expect("clean").check().expect("alone").is_clean());
}

#[test]
fn whoever_cannot_be_asked_is_named() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let path = directory.path().join("pools/");
    create(&path);
    let ComputeServer { cluster, index, server } = compute_server(&path, 0);
    let address = server.addr().to_string();
    // No process owns the other partition, and the error says why.
    let Service::Remote(found) = Client::find(&config(&path, Duration::from_secs(1)), "x").expect("served")
    else {
        panic!("it is served");
    };
    let error = found.session().get(&key(100)).expect_err("nobody's");
    assert!(matches!(error, Error::Remote(RemoteError::NoOwner { .. })), "{error:?}");
    let nobody = "partition 1 of index \"x\" is nobody's at the moment";
    assert!(error.to_string().ends_with(nobody) && error.to_string().contains(&address), "{error}");

    // Errors of processes that open the pool also name the address.
    let own = |partition| OpenOptions::default().own(Ownership::Partitions(vec![partition]));
    let other = Cluster::open(Config::at(&path)).expect("attaches");
    let owned = other.open_index_with("x", &own(0)).expect_err("owned");
    assert!(owned.to_string().contains(&format!("at {address}")), "{owned}");
    let rest = other.open_index_with("x", &own(1)).expect("free");
    let elsewhere = rest.session().expect("session").get(&key(1)).expect_err("not its own");
    assert!(elsewhere.to_string().contains(&format!("at {address}")), "{elsewhere}");
    drop(rest);

    index.withdraw().expect("no faults");
    let error = Client::find(&config(&path, DEADLINE), "x").expect_err("no port");
    let text = format!("process {}, which has no operation port for it", std::process::id());
    assert!(matches!(error, Error::NotServed { partition: 0, .. }), "{error}");
    assert!(error.to_string().ends_with(&text), "{error}");
    let partitions = other.partitions("x").expect("open");
    assert!(partitions.iter().all(|found| matches!(found.owner, PartitionOwner::Process(_))));
    other.close().expect("closes");
    drop((server, index));
    cluster.close().expect("closes");
}
