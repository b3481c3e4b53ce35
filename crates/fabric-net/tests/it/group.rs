//! Memory servers as a group, whose memory has copies: one ends, is stopped, or comes back; and clients go on.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pando_fabric::{Endpoint, Fabric, GlobalAddr, MemoryServerId};
use pando_fabric_local::{LocalConfig, LocalFabric};
use pando_fabric_net::{ServerConfig, TcpConfig, TcpEndpoint, TcpFabric, TcpServer};
use pando_replica::Replicated;
use pando_rt::block_on;

const LEASE: Duration = Duration::from_millis(200);

fn serve(incarnation: u64) -> TcpServer {
    let config = LocalConfig { server_sizes: vec![1 << 20], huge_pages: false };
    let region = LocalFabric::new(config).and_then(|local| local.served_region(MemoryServerId(0)));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let config = ServerConfig { incarnation, lease: LEASE, ..ServerConfig::default() };
    TcpServer::start(listener, region.expect("so little memory"), None, config).expect("it starts")
}

/// Servers that are a group with two copies of each volume.
fn group(count: u64) -> (Vec<Option<TcpServer>>, TcpFabric) {
    let servers: Vec<TcpServer> = (1..=count).map(serve).collect();
    let fabric = TcpFabric::connect(TcpConfig::new(servers.iter().map(|server| server.addr().to_string())));
    let fabric = fabric.expect("all are there");
    fabric.form_group(2).expect("enough servers");
    (servers.into_iter().map(Some).collect(), fabric)
}

fn endpoint(fabric: &TcpFabric) -> Replicated<TcpEndpoint> {
    Replicated::new(fabric.endpoint(1).expect("it is connected"), fabric.views().expect("it is a group"))
}

fn word(volume: u16) -> GlobalAddr {
    GlobalAddr::new(MemoryServerId(volume), 64)
}

#[test]
fn a_server_that_ends_is_replaced_in_time() {
    for lost in 0..3 {
        let (mut servers, fabric) = group(3);
        let ep = endpoint(&fabric);
        assert_eq!(ep.regions().iter().map(|region| region.len).collect::<Vec<_>>(), [1 << 19; 3]);
        for volume in 0..3 {
            block_on(&ep, ep.write_word(word(volume), 7 + u64::from(volume))).expect("all are there");
            assert_eq!(
                block_on(&ep, ep.fetch_add(word(volume), 10)).expect("all are there"),
                7 + u64::from(volume)
            );
        }
        servers[lost] = None;
        let began = Instant::now();
        for volume in 0..3 {
            let found = block_on(&ep, ep.read_word(word(volume)));
            assert_eq!(found.expect("another one has a copy"), 17 + u64::from(volume));
            block_on(&ep, ep.write_word(word(volume), 1)).expect("another one has a copy");
        }
        let took = began.elapsed();
        assert!(took < 10 * LEASE, "{took:?}");
        println!("without server {lost} after {took:?}");
        let view = fabric.view().expect("it is a group");
        assert_eq!(view.members().count(), 2);
        // Others find the group by any of its servers.
        let left = servers.iter().flatten().next().expect("two are left").addr().to_string();
        let other = TcpFabric::connect(TcpConfig::new([left])).expect("it answers");
        let ep = endpoint(&other);
        for volume in 0..3 {
            assert_eq!(block_on(&ep, ep.read_word(word(volume))).expect("another one has a copy"), 1);
        }
        drop(Arc::new(ep));
    }
}
