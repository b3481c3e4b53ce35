//! Misbehaving clients, foreign servers, and a server that stops, while other clients continue.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{AtEnd, DEADLINE, eventually, key, listener};
use pando::remote::wire::{Reply, Request, decode_reply};
use pando::remote::{Client, ClientConfig, RemoteError};
use pando::{Access, Cluster, Config, Create, Error, Index, IndexOptions, MemoryServer, MemoryServerConfig};
use pando_fabric_net::{Destination, LinkId, Protocol, Secret, connect};
use pando_server::{OperationConfig, OperationServer, StartError};

fn index() -> Index {
    let cluster = Cluster::open(Config::embedded().memory(64 << 20)).expect("memory");
    cluster.create_index("x", &IndexOptions::integers()).expect("new")
}

fn serve(config: OperationConfig) -> OperationServer {
    OperationServer::start(listener(), index(), config).expect("a server")
}

/// A client that was accepted and may then send anything.
fn let_in(addr: SocketAddr, link: u64) -> TcpStream {
    let to = Destination { address: addr.to_string().into(), protocol: Protocol::OPERATIONS, number: 0 };
    let id = LinkId { process: 1, link };
    let (stream, _) = connect(&to, id, &Secret::default(), DEADLINE).expect("it is let in");
    stream.set_nonblocking(false).expect("a socket");
    stream.set_read_timeout(Some(DEADLINE)).expect("a socket");
    stream
}

fn say(stream: &mut TcpStream, requests: &[Request<'_>]) {
    let mut bytes = Vec::new();
    requests.iter().for_each(|request| request.encode(&mut bytes));
    stream.write_all(&bytes).expect("they are taken");
}

/// Whether the server closes the connection, after whatever it sends before.
fn is_closed(stream: &mut TcpStream) -> bool {
    let mut sink = [0; 4096];
    loop {
        match stream.read(&mut sink) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() == io::ErrorKind::ConnectionReset,
        }
    }
}

fn refusal(addr: SocketAddr, secret: &str) -> String {
    let config = ClientConfig::new([addr.to_string()]).access(Access::default().secret(secret));
    Client::connect(config).expect_err("it must be refused").to_string()
}

#[test]
fn who_is_not_let_in_is_told_why_in_a_sentence() {
    let server =
        serve(OperationConfig { secret: Secret::new("the right one of all"), ..OperationConfig::default() });
    let addr = server.addr();
    for secret in ["a wrong one of many", ""] {
        assert_eq!(refusal(addr, secret), format!("{addr}: the shared secret is not the same on both sides"));
    }
    eventually("they are counted", || server.counts().connections.refused == 2);
    // A client of another version, from the server's point of view.
    let protocol = Protocol { version: 77, ..Protocol::OPERATIONS };
    let to = Destination { address: addr.to_string().into(), protocol, number: 0 };
    let id = LinkId { process: 1, link: 1 };
    let error =
        connect(&to, id, &Secret::new("the right one of all"), DEADLINE).expect_err("another version");
    assert_eq!(error.to_string(), "it speaks version 3 of the protocol, and this program version 77");
    // A client at a memory server's port, and a memory client at an operation port.
    let memory = MemoryServer::start(&MemoryServerConfig::new("127.0.0.1:0").size(64 << 20)).expect("memory");
    let told = refusal(memory.addr(), "");
    assert_eq!(
        told,
        format!("{}: this is the port of a memory server, not of a compute server", memory.addr())
    );
    let error = Cluster::open(
        Config::tcp([addr.to_string()]).access(Access::default().secret("the right one of all")),
    )
    .expect_err("no memory there");
    let expected = "this is the port of a compute server, not of a memory server";
    assert!(error.to_string().contains(expected), "{error}");
    // No server at the address, an invalid address, and no address.
    let nowhere = listener().local_addr().expect("it had one");
    assert!(refusal(nowhere, "").contains("cannot be reached"));
    assert!(Client::connect(ClientConfig::new(["nowhere"])).is_err());
    let none: [String; 0] = [];
    assert!(Client::connect(ClientConfig::new(none)).expect_err("no address").is_bad_input());
    let bad = OperationConfig { slots: 65, ..OperationConfig::default() };
    let error = OperationServer::start(listener(), index(), bad).expect_err("too many");
    assert!(matches!(error, StartError::InvalidOption(_)), "{error}");
}

#[test]
fn bad_clients_are_closed_and_hurt_nobody() {
    let patience = Duration::from_millis(1500);
    let server = serve(OperationConfig { patience, ..OperationConfig::default() });
    let addr = server.addr();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let verified = scope.spawn(|| {
            let config = ClientConfig::new([addr.to_string()]).access(Access::default().deadline(DEADLINE));
            let session = Client::connect(config).expect("there").open_index("x").expect("served").session();
            let mut count = 0u64;
            while !over.load(Relaxed) || count < 10 {
                let before = count.to_be_bytes();
                count += 1;
                let value = count.to_be_bytes();
                assert_eq!(session.put(&key(1), &value).expect("served"), count > 1);
                let mut batch = session.batch();
                let answers = batch.get(&key(1)).compare_and_swap(&key(1), Some(&before), None).run();
                assert!(answers.into_iter().all(|answer| answer.is_ok()));
                assert_eq!(session.get(&key(1)).expect("served").as_deref(), Some(&value[..]));
            }
        });
        let at_end = AtEnd(&over);
        // No hello, half a hello, nothing. The server closes the connection.
        for said in [&[7u8; 500][..], &b"PandoOps"[..], &[]] {
            let mut stream = TcpStream::connect(addr).expect("it listens");
            stream.write_all(said).expect("they are taken");
            assert!(is_closed(&mut stream), "{said:?}");
        }
        // After the handshake: no index opened, no valid operation, a request that is too long.
        let mut stream = let_in(addr, 1);
        say(&mut stream, &[Request::Get { key: &key(1) }]);
        assert!(is_closed(&mut stream));
        let open = Request::Open { name: "x" };
        for (link, said) in [(2, vec![0u8; 32]), (3, [[5, 0, 0, 0], [255; 4], [0; 4], [0; 4]].concat())] {
            let mut stream = let_in(addr, link);
            say(&mut stream, &[open]);
            stream.write_all(&said).expect("they are taken");
            assert!(is_closed(&mut stream), "client {link}");
        }
        // Half a request, byte by byte, until the server closes the connection.
        let mut slow = let_in(addr, 4);
        say(&mut slow, &[open]);
        let mut half = Vec::new();
        Request::Put { key: &key(2), value: &[9; 8] }.encode(&mut half);
        let begun = Instant::now();
        for byte in &half[..20] {
            if slow.write_all(&[*byte]).is_err() || begun.elapsed() > 4 * patience {
                break;
            }
            thread::sleep(patience / 8);
        }
        assert!(is_closed(&mut slow));
        // A client that sends many requests and never reads.
        let mut deaf = let_in(addr, 5);
        say(&mut deaf, &[open]);
        let mut bytes = Vec::new();
        Request::Routes.encode(&mut bytes);
        let bytes = bytes.repeat(2_000_000);
        // The server stops receiving them, and closes the connection.
        assert!(deaf.write_all(&bytes).is_err(), "nobody takes so much without being listened to");
        drop(at_end);
        verified.join().expect("it was not disturbed");
    });
    eventually("they are gone", || server.counts().connections.connections == 0);
    assert!(server.counts().connections.expelled >= 7, "{:?}", server.counts().connections);
    assert_eq!(server.counts().errors(), 0);
}

#[test]
fn a_full_server_says_so_and_has_room_again() {
    let server = serve(OperationConfig { clients_max: 2, ..OperationConfig::default() });
    let first = (let_in(server.addr(), 1), let_in(server.addr(), 2));
    assert!(refusal(server.addr(), "").contains("as many connections as it takes"));
    drop(first);
    eventually("there is room", || Client::connect(ClientConfig::new([server.addr().to_string()])).is_ok());
}

#[test]
fn requests_of_one_connection_keep_their_order() {
    let server = serve(OperationConfig::default());
    let mut stream = let_in(server.addr(), 1);
    let (at, other) = (key(1), key(2));
    let values: Vec<_> = (0..100u64).map(u64::to_be_bytes).collect();
    let scan = Request::scan(&pando::ScanRange::all());
    let mut requests = vec![Request::Open { name: "x" }];
    for value in &values {
        requests.extend([
            Request::Put { key: &at, value },
            Request::Get { key: &at },
            Request::Get { key: &other },
            Request::Get { key: &at },
            scan,
            Request::Remove { key: &at },
            scan,
        ]);
    }
    say(&mut stream, &requests);
    let (mut bytes, mut taken) = (Vec::new(), 0);
    let mut entries = Vec::new();
    for request in &requests {
        let reply = loop {
            let decoded = decode_reply(&bytes[taken..], request.op(), 1 << 20).expect("an answer");
            if let Some((reply, used)) = decoded {
                taken += used;
                break reply;
            }
            let mut more = [0; 4096];
            let came = stream.read(&mut more).expect("more of it");
            assert!(came > 0, "it is closed");
            bytes.extend_from_slice(&more[..came]);
        };
        match reply {
            Reply::Value(value) => entries.push(value.map(<[u8]>::to_vec)),
            Reply::Page(page) => {
                entries.push(Some(page.entries.map(|(_, value)| value).collect::<Vec<_>>().concat()))
            }
            _ => {}
        }
    }
    let expected = values.iter().flat_map(|value| {
        let value = Some(value.to_vec());
        [value.clone(), None, value.clone(), value, Some(Vec::new())]
    });
    assert!(entries.into_iter().eq(expected));
}

#[test]
fn what_is_late_of_a_lost_connection_is_not_executed() {
    let server = serve(OperationConfig { threads: 2, ..OperationConfig::default() });
    let mut late = let_in(server.addr(), 1);
    say(&mut late, &[Request::Open { name: "x" }]);
    eventually("it is open", || server.counts().done("open") == 1);
    // The same client connects again.
    let mut again = let_in(server.addr(), 1);
    say(&mut late, &[Request::Put { key: &key(1), value: &[1; 8] }]);
    assert!(is_closed(&mut late));
    say(&mut again, &[Request::Open { name: "x" }, Request::Get { key: &key(1) }]);
    eventually("it is answered", || server.counts().done("get") == 1);
    assert_eq!(server.counts().done("put"), 0);
}

/// Relays between clients and a server, and holds back bytes while `holds` is set.
fn relay(to: SocketAddr, holds: Arc<AtomicBool>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = listener.local_addr().expect("it has one");
    thread::spawn(move || {
        while let Ok((client, _)) = listener.accept() {
            let Ok(server) = TcpStream::connect(to) else { continue };
            let clone = |stream: &TcpStream| stream.try_clone().expect("a socket");
            for (mut from, mut into) in [(clone(&client), clone(&server)), (server, client)] {
                let holds = Arc::clone(&holds);
                thread::spawn(move || {
                    let mut bytes = [0; 4096];
                    while let Ok(len @ 1..) = from.read(&mut bytes) {
                        while holds.load(SeqCst) {
                            thread::sleep(Duration::from_millis(1));
                        }
                        if into.write_all(&bytes[..len]).is_err() {
                            break;
                        }
                    }
                    let _ = into.shutdown(std::net::Shutdown::Both);
                });
            }
        }
    });
    addr
}

/// Reads the answers to these requests.
fn hear(stream: &mut TcpStream, requests: &[Request<'_>]) {
    for _ in requests {
        let mut header = [0; 8];
        stream.read_exact(&mut header).expect("an answer");
        let len = u32::from_le_bytes(header[4..].try_into().expect("four bytes"));
        stream.read_exact(&mut vec![0; len as usize]).expect("all of it");
    }
}

#[test]
fn an_operation_that_waits_for_a_memory_server_keeps_no_other_client_waiting() {
    let memory = MemoryServer::start(&MemoryServerConfig::new("127.0.0.1:0").size(64 << 20)).expect("memory");
    let holds = Arc::new(AtomicBool::new(false));
    let at = relay(memory.addr(), Arc::clone(&holds)).to_string();
    let config = || Config::tcp([&at]).access(Access::default().deadline(DEADLINE));
    let cluster = Cluster::open(config().create(Create::New)).expect("it is there");
    let index = cluster.create_index("x", &IndexOptions::integers()).expect("new");
    (0..100).for_each(|i| assert!(!index.integers().expect("of integers").put(i, i).expect("room")));
    drop(index);
    cluster.close().expect("nobody is in the way");
    // Reopen the pool, so that the cache is empty.
    let cluster = Cluster::open(config()).expect("it is there");
    let index = cluster.open_index("x").expect("it is there");
    let server = OperationServer::start(listener(), index, OperationConfig::default()).expect("a server");
    let open = [Request::Open { name: "x" }];
    let mut waits = let_in(server.addr(), 1);
    say(&mut waits, &open);
    hear(&mut waits, &open);
    holds.store(true, SeqCst);
    say(&mut waits, &[Request::Get { key: &key(7) }]);
    thread::sleep(Duration::from_millis(100));

    // Other clients are served as usual meanwhile.
    let begun = Instant::now();
    let mut other = let_in(server.addr(), 2);
    let again = thread::spawn({
        let addr = server.addr();
        move || let_in(addr, 1)
    });
    let pings = [open[0], Request::Ping, Request::Ping];
    for _ in 0..20 {
        say(&mut other, &pings);
        hear(&mut other, &pings);
        thread::sleep(Duration::from_millis(5));
    }
    assert!(begun.elapsed() < DEADLINE / 10, "{:?}", begun.elapsed());
    assert_eq!(server.counts().done("get"), 0, "it waits still");
    assert!(
        !again.is_finished(),
        "a client is not heard while something of its earlier connection is under way"
    );

    holds.store(false, SeqCst);
    let mut again = again.join().expect("it is let in once that is over");
    let requests = [open[0], Request::Get { key: &key(8) }];
    say(&mut again, &requests);
    hear(&mut again, &requests);
    assert_eq!(server.counts().done("get"), 2);
    say(&mut waits, &[Request::Ping]);
    assert!(is_closed(&mut waits), "it goes on by its new connection");
}

#[test]
fn a_server_that_stops_is_an_error_at_the_deadline_and_is_found_again() {
    let server = serve(OperationConfig::default());
    let holds = Arc::new(AtomicBool::new(false));
    let addr = relay(server.addr(), Arc::clone(&holds));
    let deadline = Duration::from_secs(2);
    let config = ClientConfig::new([addr.to_string()]).access(Access::default().deadline(deadline));
    let session = Client::connect(config).expect("there").open_index("x").expect("served").session();
    session.put(&key(1), &[1; 8]).expect("served");
    holds.store(true, SeqCst);
    let begun = Instant::now();
    let error = session.put(&key(1), &[2; 8]).expect_err("nothing comes back");
    assert!(matches!(error, Error::Remote(RemoteError::NoAnswer { .. })), "{error:?}");
    assert!(error.may_have_taken_effect() && begun.elapsed() >= deadline, "{error}");
    assert!(begun.elapsed() < DEADLINE, "{:?}", begun.elapsed());
    // A new connection fails too, and nothing is sent.
    let error = session.get(&key(1)).expect_err("nothing comes back");
    assert!(!error.may_have_taken_effect(), "{error:?}");
    holds.store(false, SeqCst);
    // The late request was executed before this one, or never is.
    eventually("it is found again", || session.put(&key(1), &[3; 8]).is_ok());
    for _ in 0..20 {
        assert_eq!(session.get(&key(1)).expect("served"), Some(vec![3; 8]));
        thread::sleep(Duration::from_millis(1));
    }
    assert!(server.counts().done("put") >= 2);
}
