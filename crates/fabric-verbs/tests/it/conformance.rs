//! The conformance suite over verbs, with memory servers of this process. Needs an RDMA device
//! (`ci/verbs.sh`).
//!
//! Each memory server has its own region and registration. Verbs and short calls use queue pairs, the rest
//! uses connections, so either may detect a dead memory server.

mod calls;

use std::net::TcpListener;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use pando_fabric::conformance::{self, Echo, Options};
use pando_fabric::{
    Chain, Endpoint, Fabric, FabricError, GlobalAddr, MemoryServerId, PageBuf, RequestHandler,
};
use pando_fabric_local::{LocalConfig, LocalFabric};
use pando_fabric_net::{OtherWay, Secret, ServerConfig, TcpConfig, TcpFabric, TcpServer};
use pando_fabric_verbs::{VerbsEndpoint, VerbsFabric, VerbsOffer, VerbsOptions};

const SERVER: MemoryServerId = MemoryServerId(0);

fn block_on(endpoint: &VerbsEndpoint, future: Pin<&mut dyn Future<Output = ()>>) {
    pando_rt::block_on(endpoint, future);
}

fn serve(bytes: u64, echo: bool, by_verbs: bool) -> TcpServer {
    serve_with(bytes, echo.then(Echo::handler), by_verbs)
}

fn serve_with(bytes: u64, handler: Option<Arc<dyn RequestHandler>>, by_verbs: bool) -> TcpServer {
    let local =
        LocalFabric::new(LocalConfig { server_sizes: vec![bytes], huge_pages: false }).expect("memory");
    let region = local.served_region(SERVER).expect("the only one");
    let other_way: Option<Arc<dyn OtherWay>> = by_verbs.then(|| {
        let offer = VerbsOffer::new(region.clone(), &VerbsOptions::default(), 2).expect("an RDMA device");
        Arc::new(offer) as _
    });
    let secret = Secret::new("known to us alone");
    let config = ServerConfig { secret, other_way, grace: Duration::ZERO, ..ServerConfig::default() };
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    TcpServer::start(listener, region, handler, config).expect("a server")
}

fn config(servers: &[TcpServer]) -> TcpConfig {
    let addresses = servers.iter().map(|server| server.addr().to_string());
    let secret = Secret::new("known to us alone");
    TcpConfig { secret, deadline: Duration::from_secs(20), ..TcpConfig::new(addresses) }
}

fn connect(servers: &[TcpServer]) -> VerbsFabric {
    VerbsFabric::connect(config(servers), &VerbsOptions::default()).expect("the servers are there")
}

fn at(offset: u64) -> GlobalAddr {
    GlobalAddr::new(SERVER, offset)
}

#[test]
#[ignore = "needs an RDMA device"]
fn several_servers_with_and_without_calls() {
    for echo in [false, true] {
        let servers: Vec<_> =
            [2 << 20, 1 << 20, (1 << 20) + 4096].map(|bytes| serve(bytes, echo, true)).into();
        let fabric = connect(&servers);
        conformance::run_all(
            &fabric,
            &block_on,
            Options { echo, rounds: 200, threads: 3, ..Options::default() },
        );
        let counts = servers[0].counts();
        assert_eq!((counts.reads, counts.writes, counts.atomics), (0, 0, 0), "the processor took part");
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_server_that_went_away() {
    let mut servers: Vec<_> = (0..2).map(|_| serve(1 << 20, true, true)).collect();
    let fabric = connect(&servers);
    drop(servers.pop());
    let down = Some(MemoryServerId(1));
    conformance::run_all(&fabric, &block_on, Options { echo: true, down, rounds: 50, threads: 2 });
}

/// Unregistered buffers, transfers longer than one piece, and more verbs than a queue pair takes.
#[test]
#[ignore = "needs an RDMA device"]
fn foreign_buffers_and_long_chains() {
    let servers = [serve(4 << 20, false, true)];
    let fabric = connect(&servers);
    let ep = fabric.endpoint(1).expect("an endpoint");
    pando_rt::block_on(&ep, async {
        for len in [8, 1024, 700 << 10] {
            let mine = PageBuf::zeroed(len + 16).with_window(8..len + 8);
            mine.window_words().iter().zip(1..).for_each(|(word, value)| word.store(value, SeqCst));
            let mine = ep.write(at(64), mine).await.expect("a WRITE");
            assert_eq!((mine.window_start(), mine.window_len()), (8, len));
            let read = ep.read(at(64), PageBuf::zeroed(len)).await.expect("a READ");
            assert!(read.words().iter().zip(1..).all(|(word, value)| word.load(SeqCst) == value));
            let chain = Chain::new().write(at(1 << 21), mine).read(at(1 << 21), PageBuf::zeroed(len));
            let mut results = ep.submit(chain).await.expect("a chain");
            let Some(pando_fabric::VerbResult::Buf(read)) = results.pop() else { panic!("a buffer") };
            assert_eq!(read.get(len / 8 - 1), len as u64 / 8);
        }
        let long = (0..1000).fold(Chain::new().write_word(at(0), 0), |chain, _| chain.fetch_add(at(0), 1));
        assert_eq!(ep.submit(long).await.expect("a chain").len(), 1001);
        assert_eq!(ep.read_word(at(0)).await.expect("a READ"), 1000);
    });
}

/// A client of the wrong kind learns from the server which kind it needs.
#[test]
#[ignore = "needs an RDMA device"]
fn the_wrong_way_is_refused() {
    let servers = [serve(1 << 20, false, true)];
    let fabric = TcpFabric::connect(config(&servers)).expect("it is let in");
    let ep = fabric.endpoint(0).expect("an endpoint");
    for refused in [
        pando_rt::block_on(&ep, ep.read_word(at(0))).map(|_| ()),
        pando_rt::block_on(&ep, ep.compare_swap(at(0), 0, 1)).map(|_| ()),
        pando_rt::block_on(&ep, ep.submit(Chain::new().fetch_add(at(0), 1))).map(|_| ()),
    ] {
        let error = refused.expect_err("its memory is reached by RDMA only");
        assert!(error.to_string().contains("name its address as verbs://"), "{error}");
    }
    let servers = [serve(1 << 20, false, false)];
    let refused = VerbsFabric::connect(config(&servers), &VerbsOptions::default());
    let error = refused.expect_err("it offers no RDMA");
    assert!(matches!(&error, FabricError::Open { .. }), "{error:?}");
    assert!(error.to_string().contains("does not offer RDMA"), "{error}");
    let none = VerbsOptions { device: Some("none".to_owned()), ..VerbsOptions::default() };
    let error = VerbsFabric::connect(config(&servers), &none).expect_err("there is no such device");
    assert_eq!(error.to_string(), "verbs: no RDMA device `none` has an active port as was asked for");
}

/// The verbs of a process that was given up for dead have no effect, although its queue pair existed before.
#[test]
#[ignore = "needs an RDMA device"]
fn a_process_that_was_given_up_changes_nothing() {
    let servers = [serve(1 << 20, false, true)];
    let (cut_off, other) = (connect(&servers), connect(&servers));
    let (a, b) = (cut_off.endpoint(1).expect("an endpoint"), other.endpoint(2).expect("an endpoint"));
    pando_rt::block_on(&a, a.write_word(at(0), 1)).expect("a WRITE");
    // This server considers no process alive.
    assert!(!other.control().is_alive(cut_off.control().process()));
    pando_rt::block_on(&b, b.write_word(at(0), 2)).expect("a WRITE");
    let error = pando_rt::block_on(&a, a.write_word(at(0), 3)).expect_err("it was given up");
    assert!(error.is_unreachable(), "{error}");
    let error = pando_rt::block_on(&a, a.compare_swap(at(0), 2, 4)).expect_err("it was given up");
    assert!(error.is_unreachable(), "{error}");
    assert_eq!(pando_rt::block_on(&b, b.read_word(at(0))).expect("a READ"), 2);
}

/// A fenced-off connection ends its queue pair, and later verbs get a new one.
#[test]
#[ignore = "needs an RDMA device"]
fn a_queue_pair_that_was_fenced_off_is_made_again() {
    let servers = [serve(1 << 20, false, true)];
    let fabric = connect(&servers);
    let ep = fabric.endpoint(1).expect("an endpoint");
    let add = || pando_rt::block_on(&ep, ep.fetch_add(at(0), 1));
    assert_eq!(add().expect("an atomic"), 0);
    (1..10).for_each(|link| fabric.control().give_up(SERVER, link));
    let mut failed = 0;
    let before = loop {
        match add() {
            Ok(before) => break before,
            Err(error) => assert!(error.is_unreachable() && failed < 10_000, "{error}"),
        }
        failed += 1;
        std::thread::sleep(Duration::from_millis(2));
    };
    assert!(before <= 1 + failed);
}
