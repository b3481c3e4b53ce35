//! Memory servers that join or leave a pool: when processes learn of it, what remains, and what is refused.

use std::sync::Arc;

use pando_fabric::{Endpoint, Fabric, GlobalAddr, MemoryServerId};
use pando_fabric_local::{LocalConfig, LocalEndpoint, LocalFabric};
use pando_pool::{
    AttachOptions, IndexSpec, Placement, Pool, PoolError, PoolOptions, ProcessIdentity, ServerState,
};
use pando_rt::block_on;

const BYTES: u64 = 1 << 20;

fn fabric(servers: usize) -> LocalFabric {
    LocalFabric::new(LocalConfig { server_sizes: vec![BYTES; servers], huge_pages: false }).expect("memory")
}

fn pool_of(ep: &LocalEndpoint) -> Pool {
    block_on(ep, Pool::create(ep, PoolOptions::embedded())).expect("a new pool")
}

/// Another process that is attached to the same pool.
fn other(ep: &LocalEndpoint, pid: u32) -> Pool {
    let identity = ProcessIdentity { pid, ..ProcessIdentity::default() };
    block_on(ep, Pool::attach(ep, AttachOptions::new(identity, Arc::new(|_| true)))).expect("attached")
}

fn on(server: u16) -> Placement {
    Placement::Server(MemoryServerId(server))
}

#[test]
fn a_server_joins_and_all_processes_learn_of_it() {
    let fabric = fabric(1);
    let ep = &fabric.endpoint(1).expect("an endpoint");
    let (pool, second) = (pool_of(ep), other(ep, 2));
    assert!(matches!(block_on(ep, pool.add_server(ep, None)), Err(PoolError::NoRegion { .. })));
    assert_eq!(fabric.add_server(BYTES).expect("memory"), MemoryServerId(1));
    assert_eq!(block_on(ep, pool.add_server(ep, None)).expect("joined"), MemoryServerId(1));
    assert_eq!((pool.servers(), second.servers()), (2, 1));
    let block = block_on(ep, pool.alloc(ep, on(1), 1024)).expect("room");
    // A process that meets the address learns of the server.
    block_on(ep, second.free(ep, block, 1024)).expect("a block of the pool");
    assert_eq!(second.servers(), 2);
    // An endpoint and an attachment made later see it from the start.
    let late = other(&fabric.endpoint(2).expect("an endpoint"), 3);
    assert_eq!(late.servers(), 2);
    let usage = block_on(ep, pool.usage(ep)).expect("no error");
    assert!(usage.iter().all(|server| server.state == ServerState::Active && server.bytes_allocated == 0));
}

#[test]
fn a_process_that_leases_learns_of_a_server_that_joined() {
    let fabric = fabric(1);
    let ep = &fabric.endpoint(1).expect("an endpoint");
    let (pool, second) = (pool_of(ep), other(ep, 2));
    fabric.add_server(BYTES).expect("memory");
    block_on(ep, pool.add_server(ep, None)).expect("joined");
    let mut servers = std::collections::BTreeSet::new();
    for _ in 0..100 {
        servers.insert(block_on(ep, second.alloc(ep, Placement::LeastLoaded, 4096)).expect("room").server());
    }
    assert_eq!(servers.len(), 2);
}

#[test]
fn nothing_new_goes_to_a_draining_server_and_it_ends_drained() {
    let fabric = fabric(3);
    let ep = &fabric.endpoint(1).expect("an endpoint");
    let (pool, second) = (pool_of(ep), other(ep, 2));
    let server = MemoryServerId(1);
    let own: Vec<_> = (0..40).map(|_| block_on(ep, pool.alloc(ep, on(1), 1024)).expect("room")).collect();
    let theirs = block_on(ep, second.alloc(ep, on(1), 2048)).expect("room");
    assert!(matches!(block_on(ep, pool.finish_drain(ep, server)), Err(PoolError::NotDraining { .. })));
    block_on(ep, pool.drain_server(ep, server)).expect("it can be drained");
    assert_eq!(pool.server_state(server).expect("known"), ServerState::Draining);
    assert!(matches!(block_on(ep, pool.alloc(ep, on(1), 1024)), Err(PoolError::Draining { .. })));
    assert!(matches!(block_on(ep, pool.lease_run(ep, server, 1024, 8)), Err(PoolError::Draining { .. })));
    assert_eq!(pool.try_alloc(server, 1024), None);
    assert!(pool.loads().iter().all(|&(of, _)| of != server));
    for _ in 0..200 {
        let placement = Placement::Prefer(server);
        assert_ne!(block_on(ep, pool.alloc(ep, placement, 1024)).expect("room elsewhere").server(), server);
    }
    // The other process has a lease there, but can get no further one.
    let left = block_on(ep, pool.finish_drain(ep, server));
    assert!(matches!(left, Err(PoolError::NotEmpty { leased: 1, .. })), "{left:?}");
    for _ in 0..3 * BYTES / 16384 {
        let _ = block_on(ep, second.alloc(ep, on(1), 16384));
    }
    assert_eq!(second.server_state(server).expect("known"), ServerState::Draining);
    for addr in own {
        block_on(ep, pool.free(ep, addr, 1024)).expect("allocated");
    }
    let left = block_on(ep, pool.finish_drain(ep, server));
    assert!(matches!(left, Err(PoolError::NotEmpty { leased: 0, bytes: 2048, .. })), "{left:?}");
    block_on(ep, second.free(ep, theirs, 2048)).expect("allocated");
    block_on(ep, second.leave_inactive(ep)).expect("no error");
    block_on(ep, pool.finish_drain(ep, server)).expect("nothing is left");
    assert_eq!(pool.server_state(server).expect("known"), ServerState::Drained);
    // The state outlives the processes, and can be reverted.
    block_on(ep, pool.detach(ep)).expect("detached");
    block_on(ep, second.detach(ep)).expect("detached");
    let again = other(ep, 3);
    assert_eq!(again.server_state(server).expect("known"), ServerState::Drained);
    block_on(ep, again.readmit_server(ep, server)).expect("it was drained");
    block_on(ep, again.alloc(ep, on(1), 1024)).expect("room");
}

/// A server with smaller chunks than the others is drained and loses its memory. Long values are cut by the largest block that
/// each server had, so that must not change.
#[test]
fn long_values_stay_readable_when_a_drained_server_has_lost_its_memory() {
    let config = LocalConfig { server_sizes: vec![8 * BYTES, BYTES], huge_pages: false };
    let fabric = LocalFabric::new(config).expect("memory");
    let ep = &fabric.endpoint(1).expect("an endpoint");
    let (pool, server) = (pool_of(ep), MemoryServerId(1));
    let (largest, bytes) = (pool.max_block(), (0..50_000_u32).map(|i| i as u8).collect::<Vec<u8>>());
    assert!(largest < pool.chunk_size(MemoryServerId(0)).expect("known"), "{largest}");
    let value = block_on(ep, pool.put_value(ep, on(0), &bytes)).expect("room");
    let is_whole = |pool: &Pool| {
        let mut found = Vec::new();
        block_on(ep, pool.get_value(ep, value, &mut found)).expect("it is there");
        found == bytes && pool.max_block() == largest
    };
    block_on(ep, pool.drain_server(ep, server)).expect("it can be drained");
    block_on(ep, pool.finish_drain(ep, server)).expect("nothing is there");
    block_on(ep, pool.detach(ep)).expect("detached");
    // Its superblock is gone.
    block_on(ep, ep.write_word(GlobalAddr::new(server, 0), 0)).expect("memory");
    let again = other(ep, 2);
    assert!(is_whole(&again));
    assert!(matches!(block_on(ep, again.alloc(ep, on(1), 1024)), Err(PoolError::Draining { .. })));
    block_on(ep, again.readmit_server(ep, server)).expect("it is formatted");
    let block = block_on(ep, again.alloc(ep, on(1), 1024)).expect("room");
    block_on(ep, again.free(ep, block, 1024)).expect("allocated");
    assert!(is_whole(&again));
    block_on(ep, again.detach(ep)).expect("detached");
    assert!(is_whole(&other(ep, 3)));
}

#[test]
fn a_chunk_leased_while_the_server_begins_to_drain_is_given_back() {
    let fabric = fabric(2);
    let ep = &fabric.endpoint(1).expect("an endpoint");
    let (pool, second) = (pool_of(ep), other(ep, 2));
    block_on(ep, pool.drain_server(ep, MemoryServerId(1))).expect("it can be drained");
    // The second process does not know of the drain, leases a chunk, and then learns of it.
    assert!(second.is_active(MemoryServerId(1)));
    let refused = block_on(ep, second.alloc(ep, on(1), 1024));
    assert!(matches!(refused, Err(PoolError::Draining { .. })), "{refused:?}");
    block_on(ep, pool.finish_drain(ep, MemoryServerId(1))).expect("no lease is left");
}

#[test]
fn the_home_server_and_unknown_ones_are_refused() {
    let fabric = fabric(2);
    let ep = &fabric.endpoint(1).expect("an endpoint");
    let pool = pool_of(ep);
    let drained = |server| block_on(ep, pool.drain_server(ep, MemoryServerId(server)));
    assert!(matches!(drained(0), Err(PoolError::HomeServer)));
    assert!(matches!(drained(2), Err(PoolError::UnknownServer { servers: 2, .. })));
    // A region that holds another pool.
    let foreign =
        LocalFabric::new(LocalConfig { server_sizes: vec![BYTES; 3], huge_pages: false }).expect("memory");
    let far = &foreign.endpoint(9).expect("an endpoint");
    pool_of(far);
    fabric.add_server(BYTES).expect("memory");
    for word in 0..32 {
        let at = GlobalAddr::new(MemoryServerId(2), word * 8);
        block_on(ep, ep.write_word(at, block_on(far, far.read_word(at)).expect("a word"))).expect("a word");
    }
    assert!(matches!(block_on(ep, pool.add_server(ep, None)), Err(PoolError::PoolExists)));
    block_on(ep, ep.write_word(GlobalAddr::new(MemoryServerId(2), 0), 0)).expect("a word");
    // Chunks of an invalid size.
    let small = block_on(ep, pool.add_server(ep, Some(1 << 10)));
    assert!(matches!(small, Err(PoolError::InvalidOptions { .. })), "{small:?}");
    block_on(ep, pool.add_server(ep, None)).expect("the region is still there to be used");
}

#[test]
fn the_catalog_leaves_a_server_too() {
    let fabric = fabric(2);
    let ep = &fabric.endpoint(1).expect("an endpoint");
    let pool = pool_of(ep);
    // Server 0 is full, so the catalog grows on server 1.
    let mut filling = Vec::new();
    while let Ok(addr) = block_on(ep, pool.alloc(ep, on(0), 4096)) {
        filling.push(addr);
    }
    for n in 0..70 {
        let spec = IndexSpec {
            name: format!("index {n}"),
            system: 1,
            node_size: 1024,
            subtree_level: 3,
            root: GlobalAddr::NULL,
            layout: vec![],
            boundaries: vec![vec![n]],
        };
        block_on(ep, pool.create_index(ep, spec)).expect("room on server 1");
    }
    let mut there = 0;
    let count = |addr: GlobalAddr, _| there += u64::from(addr.server().0 == 1);
    block_on(ep, pool.visit_catalog_blocks(ep, count)).expect("a sound catalog");
    assert!(there > 200, "{there} blocks of the catalog on server 1");
    for addr in filling {
        block_on(ep, pool.free(ep, addr, 4096)).expect("allocated");
    }
    block_on(ep, pool.drain_server(ep, MemoryServerId(1))).expect("it can be drained");
    block_on(ep, pool.finish_drain(ep, MemoryServerId(1))).expect("only the catalog was there");
    let records = block_on(ep, pool.list_indexes(ep)).expect("a sound catalog");
    assert_eq!(records.len(), 70);
    for record in records {
        let n: u8 = record.name["index ".len()..].parse().expect("a number");
        assert_eq!(record.boundaries, vec![vec![n]]);
    }
}
