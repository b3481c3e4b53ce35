//! The conformance suite over TCP, on this host.
//!
//! Each memory server runs in this process with its own region; some are down in one way or another. The
//! suite runs with one and with several server threads, and once with a limit so small that all transfers are
//! split.

use std::net::TcpListener;
use std::pin::Pin;
use std::time::Duration;

use pando_fabric::MemoryServerId;
use pando_fabric::conformance::{self, Echo, Options};
use pando_fabric_local::{LocalConfig, LocalFabric};
use pando_fabric_net::{Secret, ServerConfig, TcpConfig, TcpEndpoint, TcpFabric, TcpServer};

fn block_on(endpoint: &TcpEndpoint, future: Pin<&mut dyn Future<Output = ()>>) {
    pando_rt::block_on(endpoint, future);
}

fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").expect("a port")
}

fn serve(bytes: u64, echo: bool, config: ServerConfig) -> TcpServer {
    let local =
        LocalFabric::new(LocalConfig { server_sizes: vec![bytes], huge_pages: false }).expect("memory");
    let region = local.served_region(MemoryServerId(0)).expect("the only one");
    TcpServer::start(listener(), region, echo.then(Echo::handler), config).expect("a server")
}

fn connect(servers: &[TcpServer], secret: Secret) -> TcpFabric {
    let addresses = servers.iter().map(|server| server.addr().to_string());
    let config = TcpConfig { secret, deadline: Duration::from_secs(20), ..TcpConfig::new(addresses) };
    TcpFabric::connect(config).expect("the servers are there")
}

#[test]
fn several_servers_with_and_without_calls() {
    for (threads, echo) in [(1, false), (3, true)] {
        let secret = Secret::new("known to us alone");
        let config = ServerConfig { threads, secret: secret.clone(), ..ServerConfig::default() };
        let servers: Vec<_> =
            [2 << 20, 1 << 20, (1 << 20) + 4096].map(|bytes| serve(bytes, echo, config.clone())).into();
        let fabric = connect(&servers, secret);
        conformance::run_all(&fabric, &block_on, Options { echo, rounds: 2_000, ..Options::default() });
        let counts = servers[0].counts();
        assert!(counts.reads > 0 && counts.writes > 0 && counts.atomics > 0, "{counts:?}");
        assert_eq!((counts.refused, counts.expelled), (0, 0));
    }
}

#[test]
fn a_server_that_takes_little_at_once() {
    let config = ServerConfig { body_max: 2056, ..ServerConfig::default() };
    // The suite's calls exceed that limit.
    let servers = [serve(1 << 20, false, config)];
    let fabric = connect(&servers, Secret::default());
    conformance::run_all(&fabric, &block_on, Options { rounds: 500, ..Options::default() });
}

#[test]
fn a_server_that_went_away() {
    let mut servers: Vec<_> = (0..2).map(|_| serve(1 << 20, true, ServerConfig::default())).collect();
    let fabric = connect(&servers, Secret::default());
    drop(servers.pop());
    let down = Some(MemoryServerId(1));
    conformance::run_all(&fabric, &block_on, Options { echo: true, down, rounds: 200, ..Options::default() });
}
