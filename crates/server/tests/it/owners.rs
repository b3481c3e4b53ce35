//! An index that two processes own together, each with an operation port, used by clients: interleaved
//! partitions, and a process that ends, returns, or is replaced.

use std::net::TcpListener;
use std::path::Path;
use std::thread;
use std::time::Duration;

use crate::support::{
    Draw, Model, config, connect, eventually, key, look_around, operate, operate_at_once, serve,
};
use pando::remote::{Client, RemoteError, RemoteIndex};
use pando::{Access, Cluster, Config, Create, Error, Index, IndexOptions, OpenOptions, Ownership};
use pando_server::{OperationConfig, OperationServer};

/// Keys are numbers below this.
const KEYS: u64 = 60_000;

/// A pool in files with an index "x" of four partitions, owned by no process.
fn create(path: &Path) {
    let config = Config::at(path).memory_servers(2).memory(64 << 20).create(Create::New);
    let cluster = Cluster::open(config).expect("opens");
    let boundaries = (1..4).map(|n| key(n * KEYS / 4)).collect();
    let options = IndexOptions::integers().boundaries(boundaries).own(Ownership::Partitions(Vec::new()));
    cluster.create_index("x", &options).expect("new");
    cluster.close().expect("closes");
}

/// Opens some of its partitions in one process.
fn open(path: &Path, partitions: Vec<usize>) -> (Cluster, Index) {
    let cluster = Cluster::open(Config::at(path).cache(256 << 10)).expect("attaches");
    let own = OpenOptions::default().own(Ownership::Partitions(partitions));
    let index = cluster.open_index_with("x", &own).expect("opens");
    (cluster, index)
}

fn close(cluster: &Cluster, index: Index, server: OperationServer) {
    drop((server, index));
    cluster.close().expect("nobody uses it");
}

fn exercise(remote: &RemoteIndex, seed: u64, rounds: u64) -> Model {
    let session = remote.session();
    let (mut model, mut draw) = (Model::new(), Draw(seed + 1));
    let keys: Vec<_> = (0..150).map(|n| key(n * (KEYS / 150) + seed)).collect();
    for round in 0..rounds {
        let at = keys[draw.below(150) as usize].clone();
        operate(&session, &mut model, &mut draw, &at, &round.to_le_bytes());
        if round % 10 == 0 {
            operate_at_once(&session, &mut model, &mut draw, &keys, &round.to_le_bytes());
            if seed == 0 {
                look_around(&session, &model, &mut draw, &keys);
            }
        }
    }
    model
}

#[test]
fn two_processes_are_one_index() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let path = directory.path().join("pools/");
    create(&path);
    // Their partitions alternate, so that a scan goes back and forth.
    let (low, low_index) = open(&path, vec![0, 2]);
    let (high, high_index) = open(&path, vec![1, 3]);
    let servers = [serve(&low_index, 1), serve(&high_index, 2)];
    let remote = connect(&[servers[0].addr(), servers[1].addr()]).open_index("x").expect("it is served");
    assert_eq!(remote.owners().len(), 4);
    let model = exercise(&remote, 0, 800);
    assert!(remote.session().iter().map(|entry| entry.expect("served")).eq(model.clone()));
    assert!(servers.iter().all(|server| server.counts().done("put") > 0 && server.counts().done("scan") > 0));
    // A client that knows only one port finds no owner of the other keys.
    let half = Client::connect(
        config(&[servers[0].addr()]).access(Access::default().deadline(Duration::from_secs(2))),
    );
    let session = half.expect("it is there").open_index("x").expect("it is served").session();
    session.get(&key(1)).expect("its own");
    let error = session.get(&key(KEYS / 4)).expect_err("nobody's that is known");
    assert!(matches!(error, Error::Remote(RemoteError::NoOwner { .. })), "{error:?}");
    drop(session);
    // Several clients, each with its own keys.
    let models: Vec<Model> = thread::scope(|scope| {
        let clients: Vec<_> = (1..4)
            .map(|seed| {
                scope.spawn({
                    let remote = remote.clone();
                    move || exercise(&remote, seed, 300)
                })
            })
            .collect();
        clients.into_iter().map(|client| client.join().expect("all that it saw was right")).collect()
    });
    let all: Model = models.into_iter().flatten().chain(model).collect();
    assert!(remote.session().iter().map(|entry| entry.expect("served")).eq(all.clone()));
    let [first, second] = servers;
    close(&low, low_index, first);
    close(&high, high_index, second);
    let cluster = Cluster::open(Config::at(&path)).expect("closed by both");
    let session = cluster.open_index("x").expect("opens").session().expect("session");
    assert!(session.iter().map(|entry| entry.expect("its own")).eq(all));
    drop(session);
    assert!(cluster.check().expect("at rest").is_clean());
}

#[test]
fn a_server_that_comes_back_at_its_port_is_found_again() {
    let cluster = Cluster::open(Config::embedded().memory(64 << 20)).expect("memory");
    let index = cluster.create_index("x", &IndexOptions::integers()).expect("new");
    let server = serve(&index, 1);
    let addr = server.addr();
    let session = connect(&[addr]).open_index("x").expect("it is served").session();
    session.put(&key(1), &key(1)).expect("served");
    drop(server);
    thread::sleep(Duration::from_millis(5));
    let error = session.put(&key(2), &key(2)).expect_err("nobody is there");
    assert!(matches!(&error, Error::Remote(error) if error.is_unreachable()), "{error:?}");
    assert!(!error.may_have_taken_effect(), "an idle connection was found closed: {error}");
    let listener = TcpListener::bind(addr).expect("the port is free again");
    let again = OperationServer::start(listener, index, OperationConfig::default()).expect("a server");
    eventually("it is found", || session.get(&key(1)).is_ok_and(|value| value == Some(key(1))));
    assert_eq!(session.get(&key(2)).expect("served"), None);
    drop(again);
}

#[test]
fn keys_that_another_process_took_over_are_found_there() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let path = directory.path().join("pools/");
    create(&path);
    let (low, low_index) = open(&path, vec![0, 1]);
    let (high, high_index) = open(&path, vec![2, 3]);
    let (first, second) = (serve(&low_index, 1), serve(&high_index, 1));
    // The address of a third server, which starts later.
    let later = crate::support::listener();
    let addrs = [first.addr(), second.addr(), later.local_addr().expect("it has one")];
    drop(later);
    let remote = connect(&addrs).open_index("x").expect("it is served");
    let session = remote.session();
    for n in 0..100 {
        session.put(&key(n * 600), &key(n)).expect("served");
    }
    close(&high, high_index, second);
    let error = session.get(&key(KEYS - 1)).expect_err("nobody has it");
    assert!(matches!(&error, Error::Remote(error) if error.is_unreachable()), "{error:?}");
    let (third, third_index) = open(&path, vec![2, 3]);
    let listener = TcpListener::bind(addrs[2]).expect("the port is free again");
    let server =
        OperationServer::start(listener, third_index.clone(), OperationConfig::default()).expect("a server");
    eventually("it is found", || session.get(&key(59_400)).is_ok_and(|value| value == Some(key(99))));
    assert_eq!(session.iter().filter(|entry| entry.is_ok()).count(), 100);
    close(&low, low_index, first);
    close(&third, third_index, server);
}
