//! Misbehaving clients, restarted servers, and cut connections.
//!
//! Connections go through a [`Relay`] where a test must hold back or cut data. Misbehaving clients perform a
//! regular handshake and then write arbitrary bytes.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use pando_fabric::{Endpoint, Fabric, FabricError, GlobalAddr, Limit, MemoryServerId, limited};
use pando_fabric_local::{LocalConfig, LocalFabric};
use pando_rt::{Worker, block_on};

use crate::client::connect_raw;
use crate::handshake::{ClientHalf, HELLO, LinkId, Protocol};
use crate::wire::{Op, Request, decode_reply};
use crate::{Calls, OtherWay, Secret, ServerConfig, TcpConfig, TcpEndpoint, TcpFabric, TcpServer};

const SERVER: MemoryServerId = MemoryServerId(0);
const REGION: u64 = 8 << 20;

fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").expect("a port")
}

fn serve_at(listener: TcpListener, config: ServerConfig) -> TcpServer {
    let local = LocalFabric::new(LocalConfig { server_sizes: vec![REGION], huge_pages: false });
    let region = local.expect("memory").served_region(SERVER).expect("the only one");
    TcpServer::start(listener, region, None, config).expect("a server")
}

fn serve(config: ServerConfig) -> TcpServer {
    serve_at(listener(), config)
}

fn fabric(to: SocketAddr, deadline: Duration) -> TcpFabric {
    let config = TcpConfig { deadline, ..TcpConfig::new([to.to_string()]) };
    TcpFabric::connect(config).expect("the server is there")
}

fn at(offset: u64) -> GlobalAddr {
    GlobalAddr::new(SERVER, offset)
}

fn add(ep: &TcpEndpoint, offset: u64) -> Result<u64, FabricError> {
    block_on(ep, ep.fetch_add(at(offset), 1))
}

/// An admitted client that may write any bytes.
fn let_in(server: &TcpServer, link: u64) -> TcpStream {
    let_in_as(server, LinkId { process: 1, link })
}

fn let_in_as(server: &TcpServer, id: LinkId) -> TcpStream {
    let stream = connect_raw(server.addr(), id, &Secret::default()).expect("it is let in");
    stream.set_nonblocking(false).expect("a socket");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a socket");
    stream
}

/// Whether the server closes the connection, whatever it sends before.
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

/// Waits for an effect of other threads.
fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < until, "{what}");
        thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_wrong_secret_is_one_clear_sentence() {
    let server =
        serve(ServerConfig { secret: Secret::new("the right one of all"), ..ServerConfig::default() });
    for secret in ["a wrong one of many", ""] {
        let addresses = [server.addr().to_string()];
        let config = TcpConfig { secret: Secret::new(secret), ..TcpConfig::new(addresses) };
        let error = TcpFabric::connect(config).expect_err("it must be refused").to_string();
        let expected = "the shared secret is not the same on both sides";
        assert_eq!(error, format!("tcp://{}: {expected}", server.addr()));
    }
    eventually("they are counted and closed", || {
        server.counts().refused == 2 && server.counts().connections == 0
    });
}

#[test]
fn another_version_is_told_and_let_go() {
    let server = serve(ServerConfig::default());
    let mut hello: [u8; HELLO] = ClientHalf::new(Protocol::VERBS, 0, LinkId { process: 1, link: 1 })
        .hello()
        .try_into()
        .expect("its size");
    hello[8] = 99;
    let mut stream = TcpStream::connect(server.addr()).expect("it listens");
    stream.write_all(&hello).expect("it is taken");
    let mut challenge = Vec::new();
    stream.read_to_end(&mut challenge).expect("an answer, and the end");
    assert_eq!(challenge.len(), 48, "and no proof");
    assert_eq!((&challenge[..8], challenge[8], challenge[10]), (&b"PandoTCP"[..], 4, 1));
}

#[test]
fn nobody_there_and_something_else_there() {
    let nowhere = listener().local_addr().expect("it had one");
    let error = TcpFabric::connect(TcpConfig::new([nowhere.to_string()])).expect_err("nobody listens");
    assert!(error.to_string().contains("cannot be reached"), "{error}");
    for address in ["", "nowhere", "localhost", "host:port", "localhost:99999"] {
        let error = TcpFabric::connect(TcpConfig::new([address])).expect_err("that is no address");
        assert!(matches!(error, FabricError::Open { .. } | FabricError::System { .. }), "{address}: {error}");
    }
    let listener = listener();
    let other = listener.local_addr().expect("it has one");
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        stream.write_all(&[b'x'; 200]).expect("it is taken");
        is_closed(&mut stream)
    });
    let error = TcpFabric::connect(TcpConfig::new([other.to_string()])).expect_err("it is something else");
    assert!(error.to_string().contains("no memory server of Pando"), "{error}");
    assert!(server.join().expect("no panic"));
}

#[test]
fn strangers_and_bad_clients_are_closed_and_hurt_nobody() {
    let patience = Duration::from_millis(300);
    let server = serve(ServerConfig { patience, ..ServerConfig::default() });
    let fabric = fabric(server.addr(), Duration::from_secs(20));
    let ep = fabric.endpoint(1).expect("an endpoint");
    let mut good = 0;
    let mut check = || {
        assert_eq!(add(&ep, 64).expect("it is served"), good);
        good += 1;
    };
    check();
    // Before the handshake: not a hello, half a hello, nothing.
    for said in [&[7u8; 500][..], &b"PandoTCP"[..], &[]] {
        let mut stream = TcpStream::connect(server.addr()).expect("it listens");
        stream.write_all(said).expect("they are taken");
        check();
        assert!(is_closed(&mut stream));
    }
    // After the handshake: no operation, too much, half a request.
    let mut half = Vec::new();
    Request::Write { offset: 0, bytes: &[1; 64] }.encode(&mut half);
    half.truncate(40);
    let huge = [Op::Write as u8, 0, 0, 0, 255, 255, 255, 255, 0, 0, 0, 0, 0, 0, 0, 0];
    for (link, said) in [(1, &[0u8; 32][..]), (2, &huge), (3, &half)] {
        let mut stream = let_in(&server, link);
        stream.write_all(said).expect("they are taken");
        check();
        assert!(is_closed(&mut stream), "client {link}");
    }
    assert_eq!(block_on(&ep, ep.read_word(at(0))).expect("it is served"), 0, "half a WRITE is none");
    // A client that asks and never reads.
    let mut stream = let_in(&server, 4);
    let mut ask = Vec::new();
    (0..200).for_each(|_| Request::Read { offset: 0, len: 1 << 20 }.encode(&mut ask));
    stream.write_all(&ask).expect("they are taken");
    check();
    eventually("it is closed", || server.counts().connections == 2);
    check();
    assert_eq!(server.counts().expelled, 7, "{:?}", server.counts());
}

#[test]
fn a_full_server_says_so_and_has_room_again() {
    let server = serve(ServerConfig { clients_max: 2, ..ServerConfig::default() });
    let first = (let_in(&server, 1), let_in(&server, 2));
    let error =
        TcpFabric::connect(TcpConfig::new([server.addr().to_string()])).expect_err("there is no room");
    assert!(error.to_string().contains("as many connections as it takes"), "{error}");
    drop(first);
    eventually("there is room", || TcpFabric::connect(TcpConfig::new([server.addr().to_string()])).is_ok());
}

#[test]
fn strangers_do_not_take_the_places_of_clients() {
    let limits = ServerConfig { clients_max: 2, strangers_max: 3, ..ServerConfig::default() };
    let server = serve(limits);
    let silent = || TcpStream::connect(server.addr()).expect("it listens");
    let mut strangers: Vec<TcpStream> = (0..3).map(|_| silent()).collect();
    let first = let_in(&server, 1);
    strangers.extend((0..20).map(|_| silent()));
    let second = let_in(&server, 2);
    // The last two are left: each later stranger displaced the oldest one.
    let kept = strangers.split_off(strangers.len() - 2);
    assert!(strangers.iter_mut().all(is_closed));
    eventually("they are counted", || (server.counts().connections, server.counts().clients) == (4, 2));
    assert_eq!(server.counts().expelled, 21);
    // A client beyond the maximum is told so, and is a stranger until then.
    let id = LinkId { process: 1, link: 3 };
    let told = connect_raw(server.addr(), id, &Secret::default()).expect_err("there is no room");
    assert!(told.to_string().contains("as many connections as it takes"), "{told}");
    drop((first, second, kept));
    eventually("they are gone", || server.counts().connections == 0);
    let_in(&server, 4);
}

#[test]
fn what_is_late_of_a_fenced_connection_is_not_executed() {
    let server = serve(ServerConfig { threads: 2, ..ServerConfig::default() });
    let mut late = let_in(&server, 1);
    let mut fencing = let_in(&server, 2);
    let ask = |stream: &mut TcpStream, request: Request<'_>| {
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        stream.write_all(&bytes).expect("it is taken");
    };
    let answer = |stream: &mut TcpStream, op: Op, len: usize| {
        let mut bytes = vec![0; 8 + len];
        stream.read_exact(&mut bytes).expect("an answer");
        let (body, _) = decode_reply(&bytes, SERVER, op, 64).expect("well-formed").expect("whole");
        body.expect("done").to_vec()
    };
    let number = 5u64.to_le_bytes();
    ask(&mut late, Request::Write { offset: 8, bytes: &number });
    answer(&mut late, Op::Write, 0);
    ask(&mut fencing, Request::Fence { process: 1, link: 1 });
    answer(&mut fencing, Op::Fence, 0);
    ask(&mut late, Request::Write { offset: 8, bytes: &[9; 8] });
    assert!(is_closed(&mut late));
    ask(&mut fencing, Request::Read { offset: 8, len: 8 });
    assert_eq!(answer(&mut fencing, Op::Read, 8), number);
    // A fence of the whole process, sent by itself: the last request that is executed.
    ask(&mut fencing, Request::Fence { process: 1, link: 0 });
    assert!(is_closed(&mut fencing));
    let again = connect_raw(server.addr(), LinkId { process: 1, link: 3 }, &Secret::default());
    assert!(again.expect_err("it is not let in").to_string().contains("given up for dead"));
}

/// Mode of a [`Relay`]: passes data on.
const PASS: u8 = 0;
/// Keeps data until it passes it on again.
const HOLD: u8 = 1;
/// Closes old and new connections.
const CUT: u8 = 2;

/// A relay between clients and a server.
struct Relay {
    addr: SocketAddr,
    mode: Arc<AtomicU8>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl Relay {
    fn new(to: SocketAddr) -> Self {
        let listener = listener();
        let addr = listener.local_addr().expect("it has one");
        let (mode, streams) = (Arc::new(AtomicU8::new(PASS)), Arc::new(Mutex::new(Vec::new())));
        let relay = Self { addr, mode: Arc::clone(&mode), streams: Arc::clone(&streams) };
        thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                if mode.load(SeqCst) == CUT {
                    continue;
                }
                let Ok(server) = TcpStream::connect(to) else { continue };
                for (mut from, mut into) in [(&client, &server), (&server, &client)]
                    .map(|(a, b)| (a.try_clone().expect("a socket"), b.try_clone().expect("a socket")))
                {
                    let mode = Arc::clone(&mode);
                    thread::spawn(move || copy(&mut from, &mut into, &mode));
                }
                streams.lock().expect("no panic").extend([client, server]);
            }
        });
        relay
    }

    fn set(&self, mode: u8) {
        self.mode.store(mode, SeqCst);
        if mode == CUT {
            for stream in self.streams.lock().expect("no panic").drain(..) {
                // It may be closed already.
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
    }
}

fn copy(from: &mut TcpStream, into: &mut TcpStream, mode: &AtomicU8) {
    let mut bytes = [0; 4096];
    while let Ok(len @ 1..) = from.read(&mut bytes) {
        while mode.load(SeqCst) == HOLD {
            thread::sleep(Duration::from_millis(1));
        }
        if into.write_all(&bytes[..len]).is_err() {
            break;
        }
    }
    let _ = into.shutdown(Shutdown::Both);
}

#[test]
fn a_cut_link_is_an_error_and_a_healed_one_goes_on() {
    let server = serve(ServerConfig::default());
    let relay = Relay::new(server.addr());
    let fabric = fabric(relay.addr, Duration::from_secs(20));
    let ep = fabric.endpoint(1).expect("an endpoint");
    for round in 0..3 {
        assert_eq!(add(&ep, 64).expect("the link is whole"), round);
        relay.set(CUT);
        let begun = Instant::now();
        let errors: Vec<_> = (0..20).map(|_| add(&ep, 128).expect_err("the link is cut")).collect();
        assert!(errors.iter().all(FabricError::is_unreachable), "{errors:?}");
        assert!(begun.elapsed() < Duration::from_secs(10), "errors take no deadline");
        relay.set(PASS);
        eventually("it goes on", || block_on(&ep, ep.read_word(at(64))).is_ok());
    }
}

#[test]
fn a_silent_server_is_an_error_at_the_deadline_and_what_it_does_late_changes_nothing() {
    let server = serve(ServerConfig::default());
    let relay = Relay::new(server.addr());
    let deadline = Duration::from_millis(300);
    let fabric = fabric(relay.addr, deadline);
    let ep = fabric.endpoint(1).expect("an endpoint");
    let other = fabric.endpoint(2).expect("an endpoint");
    block_on(&ep, ep.write_word(at(64), 1)).expect("it is served");
    block_on(&other, other.write_word(at(72), 1)).expect("it is served");
    relay.set(HOLD);
    let begun = Instant::now();
    let error = block_on(&ep, ep.write_word(at(64), 2)).expect_err("nothing comes back");
    assert!(matches!(error, FabricError::TimedOut(SERVER)) && error.may_have_taken_effect(), "{error:?}");
    assert!(
        (deadline..deadline + Duration::from_secs(5)).contains(&begun.elapsed()),
        "{:?}",
        begun.elapsed()
    );
    // Another worker continues with the word over its own, idle connection. The held-back verbs must not take
    // effect after that.
    relay.set(PASS);
    eventually("it is served", || block_on(&other, other.write_word(at(64), 3)).is_ok());
    for _ in 0..50 {
        assert_eq!(block_on(&other, other.read_word(at(64))).expect("it is served"), 3);
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_verb_takes_no_longer_than_its_operation_may() {
    let server = serve(ServerConfig::default());
    let relay = Relay::new(server.addr());
    let deadline = Duration::from_secs(8);
    let fabric = fabric(relay.addr, deadline);
    let ep = fabric.endpoint(1).expect("an endpoint");
    block_on(&ep, ep.write_word(at(64), 1)).expect("it is served");
    relay.set(HOLD);
    let limit = Limit::new(Duration::from_millis(100).as_nanos() as u64);
    let begun = Instant::now();
    let error = block_on(&ep, limited(&ep, &limit, ep.read_word(at(64)))).expect_err("nothing comes back");
    assert!(matches!(error, FabricError::TimedOut(SERVER)), "{error:?}");
    // The wait of a limited operation still lasts a quarter of a verb's deadline.
    assert!((deadline / 4..deadline).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    relay.set(PASS);
    eventually("it is served", || block_on(&ep, limited(&ep, &limit, ep.read_word(at(64)))).is_ok());
}

#[test]
fn many_slots_lose_nothing_while_links_are_cut() {
    const SLOTS: usize = 16;
    let server = serve(ServerConfig { threads: 2, ..ServerConfig::default() });
    let relay = Relay::new(server.addr());
    let fabric = fabric(relay.addr, Duration::from_secs(20));
    let ep = &fabric.endpoint(1).expect("an endpoint");
    thread::scope(|scope| {
        let cutting = scope.spawn(|| {
            for _ in 0..10 {
                thread::sleep(Duration::from_millis(20));
                relay.set(CUT);
                thread::sleep(Duration::from_millis(5));
                relay.set(PASS);
            }
        });
        let counts = Worker::new(ep, SLOTS).run(|slot| {
            let cutting = &cutting;
            async move {
                let (mut certain, mut perhaps) = (0, 0);
                while !cutting.is_finished() || certain == 0 {
                    match ep.fetch_add(at(64 + 8 * u64::from(slot)), 1).await {
                        Ok(_) => certain += 1,
                        Err(error) if error.may_have_taken_effect() => perhaps += 1,
                        Err(error) => {
                            assert!(error.is_unreachable(), "{error}");
                            ep.yield_now().await;
                        }
                    }
                }
                (certain, perhaps)
            }
        });
        for (slot, (certain, perhaps)) in counts.into_iter().enumerate() {
            let word = at(64 + 8 * slot as u64);
            let mut counted = 0;
            eventually("the link is whole", || {
                block_on(ep, ep.read_word(word)).map(|word| counted = word).is_ok()
            });
            assert!((certain..=certain + perhaps).contains(&counted), "{certain} {perhaps} {counted}");
        }
    });
}

#[test]
fn a_server_that_lost_its_memory_is_not_used_again() {
    let server = serve(ServerConfig { incarnation: 1, ..ServerConfig::default() });
    let addr = server.addr();
    let fabric = fabric(addr, Duration::from_secs(5));
    let ep = fabric.endpoint(1).expect("an endpoint");
    add(&ep, 64).expect("it is served");
    drop(server);
    assert!(add(&ep, 64).expect_err("it is gone").is_unreachable());
    let _again = serve_at(
        TcpListener::bind(addr).expect("the port is free again"),
        ServerConfig { incarnation: 2, ..ServerConfig::default() },
    );
    eventually("it is found out", || matches!(add(&ep, 64), Err(FabricError::Lost(SERVER))));
    assert!(matches!(add(&ep, 64), Err(FabricError::Lost(SERVER))));
}

#[test]
fn a_verb_whose_future_was_dropped_disturbs_nobody() {
    let server = serve(ServerConfig::default());
    let fabric = fabric(server.addr(), Duration::from_secs(20));
    let ep = fabric.endpoint(1).expect("an endpoint");
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    for _ in 0..100 {
        let mut read = Box::pin(ep.read(at(0), ep.buffer(1024)));
        let mut add = Box::pin(ep.fetch_add(at(64), 1));
        assert!(read.as_mut().poll(&mut cx).is_pending() && add.as_mut().poll(&mut cx).is_pending());
    }
    // The earlier requests were sent, and are answered before this one.
    assert_eq!(block_on(&ep, ep.read_word(at(64))).expect("it is served"), 100);
}

#[test]
fn processes_know_of_each_other_and_exclude_each_other() {
    let server = serve(ServerConfig { grace: Duration::from_millis(200), ..ServerConfig::default() });
    let one = fabric(server.addr(), Duration::from_secs(20));
    let other = fabric(server.addr(), Duration::from_secs(20));
    eventually("they are there", || server.counts().connections == 2);
    assert!(one.is_alive(other.process()) && other.is_alive(one.process()));
    let lock = one.lock_exclusive(Duration::ZERO).expect("nobody has it");
    let error = other.lock_exclusive(Duration::from_millis(50)).expect_err("it is taken");
    assert!(error.to_string().contains("does not finish"), "{error}");
    drop(lock);
    other.lock_exclusive(Duration::from_secs(20)).expect("it is free again");
    // A process stays present for a moment after its end.
    let (gone, ep) = (one.process(), one.endpoint(1).expect("an endpoint"));
    drop(one);
    eventually("it is gone", || !other.is_alive(gone));
    let error = block_on(&ep, ep.read_word(at(0))).expect_err("it is fenced off");
    assert!(error.to_string().contains("given up for dead") || error.is_unreachable(), "{error}");
}

#[test]
fn who_is_fenced_off_stays_so_when_the_server_starts_again() {
    let place = tempfile::tempdir().expect("a directory");
    let config = || ServerConfig { fences: Some(place.path().join("fences")), ..ServerConfig::default() };
    let server = serve(config());
    let mut bytes = Vec::new();
    Request::Fence { process: 2, link: 0 }.encode(&mut bytes);
    let mut fencing = let_in(&server, 1);
    fencing.write_all(&bytes).expect("it is taken");
    fencing.read_exact(&mut [0; 8]).expect("an answer");
    drop((fencing, server));
    let again = serve(config());
    let told = connect_raw(again.addr(), LinkId { process: 2, link: 1 }, &Secret::default());
    assert!(told.expect_err("it is not let in").to_string().contains("given up for dead"));
    let_in(&again, 2);
}

#[test]
fn half_requests_of_all_clients_take_no_more_memory_than_they_may() {
    let (patience, input_max) = (Duration::from_secs(1), 3 << 20);
    let server = serve(ServerConfig { patience, input_max, ..ServerConfig::default() });
    let mut half = Vec::new();
    Request::Write { offset: 0, bytes: &vec![7; 1 << 20] }.encode(&mut half);
    let (last, half) = half.split_last().expect("there are bytes");
    let mut streams: Vec<TcpStream> = (1..=8).map(|link| let_in(&server, link)).collect();
    for stream in &mut streams {
        stream.set_write_timeout(Some(Duration::from_millis(100))).expect("a socket");
        // Of the later requests the server reads no more than a socket buffers.
        let _ = stream.write_all(half);
    }
    let had = || server.counts().bytes_in;
    eventually("some of it is taken", || had() > 5 << 19);
    thread::sleep(Duration::from_millis(150));
    let most = (input_max + 8 * (64 << 10) + 8 * 200) as u64;
    assert!(had() <= most, "{} bytes of {most} were taken", had());
    // The first requests have their memory; the others get it when requests are given up.
    streams[0].write_all(&[*last]).expect("it is there");
    let mut answer = [0; 8];
    streams[0].read_exact(&mut answer).expect("it is answered");
    eventually("the others took too long", || server.counts().connections == 1);
    let mut stream = let_in(&server, 9);
    stream.write_all(&[half, &[*last]].concat()).expect("there is room again");
    stream.read_exact(&mut answer).expect("it is answered");
}

#[test]
fn a_holder_of_the_lock_that_is_not_heard_loses_it_and_all_else() {
    let grace = Duration::from_millis(300);
    let servers = [serve(ServerConfig { grace, ..ServerConfig::default() }), serve(ServerConfig::default())];
    let id = LinkId { process: 77, link: 1 };
    let [mut holder, mut elsewhere] = servers.each_ref().map(|server| let_in_as(server, id));
    let mut ask = Vec::new();
    Request::Lock.encode(&mut ask);
    holder.write_all(&ask).expect("it is taken");
    let mut answer = [0; 16];
    holder.read_exact(&mut answer).expect("an answer");
    assert_eq!(answer[8], 1);
    // The holder is silent from now on.
    let addresses = servers.iter().map(|server| server.addr().to_string());
    let other = TcpFabric::connect(TcpConfig::new(addresses)).expect("they are there");
    let error = other.lock_exclusive(Duration::ZERO).expect_err("it was heard a moment ago");
    assert!(error.to_string().contains("does not finish"), "{error}");
    let begun = Instant::now();
    let _lock = other.lock_exclusive(Duration::from_secs(20)).expect("nobody else is heard");
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    let mut ping = Vec::new();
    Request::Ping.encode(&mut ping);
    for (server, stream) in servers.iter().zip([&mut holder, &mut elsewhere]) {
        // It may be closed already.
        let _ = stream.write_all(&ping);
        assert!(is_closed(stream), "it is fenced off everywhere");
        let again = connect_raw(server.addr(), LinkId { process: 77, link: 3 }, &Secret::default());
        assert!(again.expect_err("it is not let in").to_string().contains("given up for dead"));
    }
}

#[test]
fn a_large_persist_goes_in_pieces_and_is_refused_as_a_whole() {
    let server = serve(ServerConfig::default());
    let fabric = fabric(server.addr(), Duration::from_secs(20));
    let ep = fabric.endpoint(1).expect("an endpoint");
    block_on(&ep, ep.persist(at(0), REGION)).expect("all of it");
    block_on(&ep, ep.persist(at(8), REGION - 8)).expect("most of it");
    let mut stream = let_in(&server, 1);
    let mut ask = Vec::new();
    Request::Persist { offset: 8, len: REGION }.encode(&mut ask);
    Request::Persist { offset: u64::MAX - 7, len: u64::MAX }.encode(&mut ask);
    Request::Ping.encode(&mut ask);
    stream.write_all(&ask).expect("it is taken");
    for (op, is_done) in [(Op::Persist, false), (Op::Persist, false), (Op::Ping, true)] {
        let mut bytes = vec![0; 8];
        stream.read_exact(&mut bytes).expect("an answer");
        let len = u32::from_le_bytes(bytes[4..].try_into().expect("four bytes")) as usize;
        bytes.resize(8 + len, 0);
        stream.read_exact(&mut bytes[8..]).expect("its body");
        let (answer, _) = decode_reply(&bytes, SERVER, op, 1000).expect("well-formed").expect("whole");
        assert_eq!(answer.is_ok(), is_done, "{answer:?}");
    }
}

#[test]
fn a_false_server_gets_no_proof_of_a_client() {
    let listener = listener();
    let addr = listener.local_addr().expect("it has one");
    let taken = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        stream.read_exact(&mut [0; HELLO]).expect("a hello");
        let challenge = [&b"PandoTCP\x04\0\0\0\0\0\0\0"[..], &[5; 32], &[6; 32]].concat();
        stream.write_all(&challenge).expect("it is taken");
        let mut said = Vec::new();
        stream.read_to_end(&mut said).expect("it goes");
        said
    });
    let secret = Secret::new("the right one of all");
    let error = TcpFabric::connect(TcpConfig { secret, ..TcpConfig::new([addr.to_string()]) });
    assert!(error.expect_err("it is false").to_string().contains("secret is not the same"));
    let said = taken.join().expect("no panic");
    assert!(said.iter().all(|byte| *byte == 0), "nothing that depends on the secret: {said:?}");
}

#[test]
fn what_another_host_says_does_not_reach_a_terminal() {
    let error =
        FabricError::Refused { server: SERVER, op: 6, reason: "\x1b]0;owned\x07 a\u{202e}b ü".to_owned() };
    let mut out = Vec::new();
    crate::wire::ReplyEncoder::begin(&mut out, Op::Call).fail(&mut out, &error);
    let (reply, _) = decode_reply(&out, SERVER, Op::Call, 1000).expect("well-formed").expect("whole");
    let said = reply.expect_err("it is refused").to_string();
    assert!(said.contains("\\u{1b}]0;owned\\u{7} a\\u{202e}b ü"), "{said}");
    assert!(!said.contains(['\x1b', '\u{202e}']), "{said}");
}

/// Another way that answers with the reversed request and counts its clients.
#[derive(Debug, Default)]
struct Backwards(Arc<AtomicUsize>);

impl OtherWay for Backwards {
    fn pair(&self, request: &[u8], calls: Calls, reply: &mut Vec<u8>) -> Result<Box<dyn Send>, String> {
        struct Paired(Arc<AtomicUsize>);
        impl Drop for Paired {
            fn drop(&mut self) {
                self.0.fetch_sub(1, SeqCst);
            }
        }
        if request.is_empty() {
            return Err("there is nothing to say".to_owned());
        }
        if let Some(body) = request.strip_prefix(b"call") {
            calls.execute(7, body, reply);
            return Ok(Box::new(()));
        }
        reply.extend(request.iter().rev());
        self.0.fetch_add(1, SeqCst);
        Ok(Box::new(Paired(Arc::clone(&self.0))))
    }
}

#[test]
fn another_way_in_takes_the_place_of_one_sided_verbs_and_lasts_as_long_as_its_connection() {
    let way = Backwards::default();
    let count = Arc::clone(&way.0);
    let server = serve(ServerConfig { other_way: Some(Arc::new(way)), ..ServerConfig::default() });
    let fabric = fabric(server.addr(), Duration::from_secs(20));
    let endpoint = || fabric.endpoint(0).expect("an endpoint");
    let (a, b, c) = (endpoint(), endpoint(), endpoint());
    let error = add(&a, 0).expect_err("it has another way");
    assert!(error.to_string().contains("name its address as verbs://"), "{error}");
    let error = block_on(&a, a.pair(SERVER, b"")).expect_err("it wants to hear something");
    assert!(error.to_string().contains("there is nothing to say"), "{error}");
    let pair = |ep: &TcpEndpoint| block_on(ep, ep.pair(SERVER, b"abc")).expect("it has another way");
    // Calls over the other way are answered and counted like all others.
    let (_, reply) = block_on(&a, a.pair(SERVER, b"callabc")).expect("it has another way");
    let refused = decode_reply(&reply, SERVER, Op::Call, 1000).expect("a reply").expect("it is whole").0;
    assert!(matches!(refused, Err(FabricError::Refused { server: SERVER, op: 7, .. })), "{refused:?}");
    assert_eq!(server.counts().calls, 1);
    let (given_up, said) = pair(&a);
    assert_eq!((said, pair(&b).1), (b"cba".to_vec(), b"cba".to_vec()));
    // It replaces the first one.
    pair(&b);
    assert_eq!(count.load(SeqCst), 2);
    // After a round trip, the other way of a connection that was given up is closed.
    fabric.give_up(SERVER, given_up);
    assert_eq!(fabric.given_up(SERVER), 1);
    block_on(&c, c.ping(SERVER)).expect("it is there");
    assert_eq!(count.load(SeqCst), 1);
    drop(b);
    eventually("the way goes with its connection", || count.load(SeqCst) == 0);
    let (d, counter) = (endpoint(), server.counter());
    pair(&d);
    drop(server);
    assert_eq!(
        count.load(SeqCst),
        0,
        "it goes with the server, also if somebody looks at the counters still"
    );
    assert_eq!(counter().calls, 1);
    let other = serve(ServerConfig::default());
    let ep = self::fabric(other.addr(), Duration::from_secs(20)).endpoint(0).expect("an endpoint");
    let error = block_on(&ep, ep.pair(SERVER, b"abc")).expect_err("it has no other way");
    assert!(error.to_string().contains("it does not offer RDMA"), "{error}");
}

/// A client of another way can tell whether its connection is up, and wait out the pause before the next one
/// instead of getting an error.
#[test]
fn another_way_is_asked_for_again_once_its_connection_is_gone() {
    let way: Arc<dyn OtherWay> = Arc::new(Backwards::default());
    let server = serve(ServerConfig { other_way: Some(way), ..ServerConfig::default() });
    let fabric = fabric(server.addr(), Duration::from_secs(20));
    let ep = fabric.endpoint(0).expect("an endpoint");
    let pair = || block_on(&ep, ep.pair(SERVER, b"abc"));
    assert_eq!(ep.connection(SERVER), None);
    let mut last = None;
    // Only failed connections make the pauses longer.
    for _ in 0..3 {
        block_on(&ep, ep.rest(SERVER));
        let link = pair().expect("it rested for long enough").0;
        assert_eq!(ep.connection(SERVER), Some(link));
        assert_ne!(last.replace(link), Some(link), "the number of a new connection");
        ep.hang_up(SERVER);
        assert_eq!(ep.connection(SERVER), None);
    }
    let unknown = MemoryServerId(7);
    block_on(&ep, ep.rest(unknown));
    assert_eq!(ep.connection(unknown), None);
}
