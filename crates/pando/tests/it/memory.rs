//! Memory servers that join and leave a pool, through the public interface: on the heap and in files, during
//! operations.

use std::collections::BTreeMap;
use std::ops::ControlFlow::{Break, Continue};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use pando::{
    Access, BulkOptions, Cluster, Config, Create, Durability, Error, FabricError, IndexOptions, MemoryServer,
    MemoryServerConfig, MemoryServerId, OpenOptions, Ownership, PoolError, ServerState,
};

const BYTES: u64 = 32 << 20;
/// Deadline of a process that asks in vain.
const SOON: Duration = Duration::from_millis(500);

fn key(n: u64) -> Vec<u8> {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes().to_vec()
}

fn value(n: u64) -> Vec<u8> {
    n.to_le_bytes().repeat(if n.is_multiple_of(10) { 100 } else { 1 })
}

/// Creates an index of long and short values, and another one of integers, on all memory servers.
fn load(cluster: &Cluster, keys: u64) {
    load_bytes(cluster, "bytes", keys);
    let integers = cluster.create_index("integers", &IndexOptions::integers()).expect("new");
    let session = integers.integers().expect("open");
    (0..keys).for_each(|n| assert!(!session.put(n, n).expect("room")));
}

fn load_bytes(cluster: &Cluster, name: &str, keys: u64) {
    let index = cluster.create_index(name, &IndexOptions::bytes().subtree_level(1)).expect("new");
    let entries: BTreeMap<_, _> = (0..keys).map(|n| (key(n), value(n))).collect();
    let entries: Vec<_> = entries.into_iter().collect();
    index.bulk_load(&entries[..], &BulkOptions::default()).expect("room");
}

fn check(cluster: &Cluster, keys: u64) {
    let session = cluster.open_index("bytes").expect("there").session().expect("open");
    for n in 0..keys {
        assert_eq!(session.get(&key(n)).expect("no error"), Some(value(n)), "{n}");
    }
    drop(session);
    let session = cluster.open_index("integers").expect("there").integers().expect("open");
    for n in 0..keys {
        assert_eq!(session.get(n).expect("no error"), Some(n));
    }
    drop(session);
    let report = cluster.check().expect("at rest");
    assert!(report.is_clean(), "{:?}", report.violations);
}

fn state_of(cluster: &Cluster, server: usize) -> (ServerState, u64) {
    let usage = cluster.memory_servers().expect("no error")[server];
    (usage.state, usage.bytes_allocated)
}

#[test]
fn a_server_is_drained_while_sessions_work() {
    let config = Config::embedded().memory_servers(3).memory(BYTES).compute_servers(2).cache(1 << 20);
    let cluster = Cluster::open(config).expect("memory");
    load(&cluster, 20_000);
    let before = state_of(&cluster, 1);
    assert!(before.0 == ServerState::Active && before.1 > 100_000, "{before:?}");
    let (is_over, index) = (AtomicBool::new(false), cluster.open_index("bytes").expect("there"));
    let (writes, drained) = std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let session = index.session().expect("open");
            let mut n = 0;
            while !is_over.load(Relaxed) || n < 5_000 {
                n += 1;
                let at = n % 20_000;
                assert!(session.put(&key(at), &value(at)).expect("room"), "{at}");
                assert_eq!(
                    session.get(&key(20_000 - at)).expect("no error"),
                    Some(value(20_000 - at)).filter(|_| at > 0)
                );
            }
            n
        });
        let mut seen = 0;
        let drained = cluster.drain_memory_server(MemoryServerId(1), |done| {
            seen = done.nodes + done.values;
            Continue(())
        });
        is_over.store(true, Relaxed);
        let drained = drained.expect("there is room elsewhere");
        assert_eq!(seen, drained.nodes + drained.values);
        (worker.join().expect("every answer was right"), drained)
    });
    assert!(writes >= 5_000 && drained.nodes > 50 && drained.values > 50, "{drained:?}");
    assert_eq!(state_of(&cluster, 1), (ServerState::Drained, 0));
    drop(index);
    check(&cluster, 20_000);
    // It is drained already, and cannot be readmitted while an index is open.
    cluster.drain_memory_server(MemoryServerId(1), |_| Continue(())).expect("nothing to do");
    let again = cluster.readmit_memory_server(MemoryServerId(1));
    assert!(matches!(again, Err(Error::IndexesOpen { .. })), "{again:?}");
}

#[test]
fn a_server_that_joins_takes_over_a_part_of_what_is_there() {
    let cluster = Cluster::open(Config::embedded().memory(BYTES).cache(1 << 20)).expect("memory");
    load(&cluster, 20_000);
    let added = cluster.add_memory_server(BYTES).expect("memory");
    assert_eq!((added, state_of(&cluster, 1)), (MemoryServerId(1), (ServerState::Active, 0)));
    let moved = cluster.spread_indexes(|_| Continue(())).expect("no error");
    let (first, second) = (state_of(&cluster, 0).1, state_of(&cluster, 1).1);
    assert!(moved > 100 && second * 2 > first, "{moved} nodes moved: {first} bytes and {second}");
    check(&cluster, 20_000);
    // Drain it again, so that everything is on the first server.
    cluster.drain_memory_server(added, |_| Continue(())).expect("there is room");
    assert_eq!(state_of(&cluster, 1), (ServerState::Drained, 0));
    check(&cluster, 20_000);
}

#[test]
fn a_drain_that_is_stopped_goes_on_the_next_time() {
    let config = Config::embedded().memory_servers(3).memory(BYTES).cache(1 << 20);
    let cluster = Cluster::open(config).expect("memory");
    load(&cluster, 20_000);
    let before = state_of(&cluster, 1).1;
    let stopped = cluster.drain_memory_server(MemoryServerId(1), |_| Break(())).expect_err("it was stopped");
    assert!(matches!(stopped, Error::Stopped { .. }), "{stopped}");
    let (state, left) = state_of(&cluster, 1);
    assert!(
        state == ServerState::Draining && (1..before).contains(&left),
        "{state:?}, {left} of {before} left"
    );
    check(&cluster, 20_000);
    cluster.drain_memory_server(MemoryServerId(1), |_| Continue(())).expect("there is room");
    assert_eq!(state_of(&cluster, 1), (ServerState::Drained, 0));
    check(&cluster, 20_000);
    cluster.add_memory_server(BYTES).expect("memory");
    let stopped = cluster.spread_indexes(|_| Break(())).expect_err("it was stopped");
    assert!(matches!(stopped, Error::Stopped { .. }), "{stopped}");
    check(&cluster, 20_000);
}

#[test]
fn what_cannot_be_drained_is_refused_with_a_sentence() {
    let cluster = Cluster::open(Config::embedded().memory_servers(2).memory(4 << 20)).expect("memory");
    let home =
        cluster.drain_memory_server(MemoryServerId(0), |_| Continue(())).expect_err("it has the tables");
    assert!(home.is_bad_input() && home.to_string().contains("cannot be drained"), "{home}");
    let unknown =
        cluster.drain_memory_server(MemoryServerId(7), |_| Continue(())).expect_err("there is none");
    assert!(unknown.is_bad_input() && unknown.to_string().contains("no memory server 7"), "{unknown}");
    assert!(cluster.add_memory_server(0).is_err() && cluster.add_memory_server(4096).is_err());
    // Failed additions left nothing behind.
    let left = cluster.memory_servers().expect("no error");
    assert_eq!(left.len(), 2);
    // More entries than one server has room for.
    let index = cluster.create_index("full", &IndexOptions::integers().subtree_level(1)).expect("new");
    let entries: Vec<_> = (0..300_000_u64).map(|n| (n.to_be_bytes(), n.to_be_bytes())).collect();
    index.bulk_load(&entries[..], &BulkOptions::default()).expect("room on both");
    let full =
        cluster.drain_memory_server(MemoryServerId(1), |_| Continue(())).expect_err("too much for one");
    assert!(matches!(full, Error::Pool(PoolError::NotEmpty { .. })), "{full}");
    assert_eq!(state_of(&cluster, 1).0, ServerState::Draining);
    let session = index.integers().expect("open");
    assert!((0..300_000).step_by(97).all(|n| session.get(n).expect("no error") == Some(n)));
    // With another server the drain continues, also while a session is open.
    cluster.add_memory_server(16 << 20).expect("memory");
    cluster.drain_memory_server(MemoryServerId(1), |_| Continue(())).expect("there is room now");
    assert!((0..300_000).step_by(97).all(|n| session.get(n).expect("no error") == Some(n)));
    drop(session);
    assert!(cluster.check().expect("at rest").is_clean());
}

#[test]
fn a_pool_of_files_grows_and_shrinks() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("pool");
    let config = || Config::at(&path).memory_servers(2).memory(BYTES).cache(1 << 20);
    let cluster = Cluster::open(config().create(Create::New)).expect("new");
    load(&cluster, 5_000);
    cluster.close().expect("nothing is open");
    let cluster = Cluster::open(config()).expect("there");
    assert_eq!(cluster.add_memory_server(BYTES).expect("room"), MemoryServerId(2));
    assert!(path.join("server-2.pando").is_file());
    // No index is open: the drain opens all of them.
    let drained = cluster.drain_memory_server(MemoryServerId(1), |_| Continue(())).expect("room elsewhere");
    assert!(drained.nodes > 0, "{drained:?}");
    assert_eq!(state_of(&cluster, 1), (ServerState::Drained, 0));
    check(&cluster, 5_000);
    cluster.close().expect("nothing is open");
    let cluster = Cluster::open(config()).expect("there, with three servers");
    let states: Vec<_> =
        cluster.memory_servers().expect("no error").iter().map(|server| server.state).collect();
    assert_eq!(states, [ServerState::Active, ServerState::Drained, ServerState::Active]);
    check(&cluster, 5_000);
    cluster.close().expect("nothing is open");
    let cluster = Cluster::open(config()).expect("there");
    cluster.readmit_memory_server(MemoryServerId(1)).expect("nobody has an index open");
    assert!(cluster.spread_indexes(|_| Continue(())).expect("no error") > 0);
    assert!(state_of(&cluster, 1).1 > 0);
    check(&cluster, 5_000);
    cluster.close().expect("nothing is open");
}

#[test]
fn two_handles_to_one_pool_of_files_learn_of_each_others_servers() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("pool");
    let config = || Config::at(&path).memory_servers(2).memory(BYTES).cache(1 << 20);
    let first = Cluster::open(config().create(Create::New)).expect("new");
    let second = Cluster::open(config()).expect("there");
    first.add_memory_server(BYTES).expect("room");
    assert_eq!(second.memory_servers().expect("no error").len(), 3);
    // An index of another process has nothing there.
    let index = second.create_index("theirs", &IndexOptions::integers()).expect("new");
    first.drain_memory_server(MemoryServerId(1), |_| Continue(())).expect("it is empty");
    assert_eq!(state_of(&second, 1).0, ServerState::Drained);
    drop(index);
    second.close().expect("nothing is open");
    first.close().expect("nothing is open");
}

#[test]
fn a_pool_of_one_plain_file_stays_one() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("pool.pando");
    let cluster = Cluster::open(Config::at(&path).memory(BYTES).create(Create::New)).expect("new");
    let refused = cluster.add_memory_server(BYTES).expect_err("it has no place for one");
    assert!(
        matches!(&refused, Error::Fabric(FabricError::Open { .. })) && refused.is_bad_input(),
        "{refused}"
    );
    cluster.close().expect("nothing is open");
}

#[test]
fn one_memory_server_elsewhere_finds_the_others() {
    let start = |_| MemoryServer::start(&MemoryServerConfig::new("127.0.0.1:0").size(BYTES)).expect("a port");
    let servers: Vec<MemoryServer> = (0..4).map(start).collect();
    let addresses: Vec<String> = servers.iter().map(|server| server.addr().to_string()).collect();
    let config = |named: &[usize]| Config::tcp(named.iter().map(|&at| &addresses[at][..])).cache(1 << 20);
    let cluster = Cluster::open(config(&[0, 1, 2]).create(Create::New)).expect("new");
    load(&cluster, 200);
    cluster.close().expect("closes");
    for named in [&[0][..], &[1], &[2], &[2, 0], &[1, 0, 2]] {
        for reads in [true, false] {
            let cluster = Cluster::open(config(named).read_only(reads)).expect("it finds the others");
            assert_eq!(cluster.memory_server_addresses(), addresses[..3], "{named:?}");
            check(&cluster, 200);
            cluster.close().expect("closes");
        }
    }
    // A new pool consists of the servers named; servers of other pools are refused.
    for named in [&[1][..], &[3, 1]] {
        let made = Cluster::open(config(named).create(Create::New));
        assert!(made.is_err_and(|error| error.to_string().contains("pool")), "{named:?}");
    }
    let cluster = Cluster::open(config(&[2, 3])).expect("one that may join");
    assert_eq!(cluster.add_memory_server(BYTES).expect("it joins"), MemoryServerId(3));
    cluster.close().expect("closes");
    let cluster = Cluster::open(config(&[1])).expect("it finds the others");
    assert_eq!(cluster.memory_server_addresses(), addresses);
    check(&cluster, 200);
    cluster.close().expect("closes");
}

/// Two owners, each with connections of its own, do what another process wants while they work: they use a memory server that
/// joins, spread over all of them, and leave two, which are switched off at once; with logs, too.
#[test]
fn owners_use_a_server_that_joins_and_leave_one_while_they_work() {
    [Durability::Off, Durability::Process].into_iter().for_each(owners_follow);
}

fn owners_follow(durability: Durability) {
    const KEYS: u64 = 6_000;
    let start = |_| MemoryServer::start(&MemoryServerConfig::new("127.0.0.1:0").size(BYTES)).expect("a port");
    let mut servers: Vec<MemoryServer> = (0..4).map(start).collect();
    let addresses: Vec<String> = servers.iter().map(|server| server.addr().to_string()).collect();
    let config = |named: &[usize]| Config::tcp(named.iter().map(|&at| &addresses[at][..])).cache(1 << 20);
    let cluster = Cluster::open(config(&[0, 1, 2]).create(Create::New)).expect("new");
    let halves = IndexOptions::bytes().subtree_level(1).boundaries(vec![vec![0x80]]);
    cluster.create_index("n", &halves).expect("new");
    cluster.close().expect("closes");
    let owner = |partition: usize| {
        let cluster = Cluster::open(config(&[0]).durability(durability)).expect("it finds the others");
        let own = OpenOptions::default().own(Ownership::Partitions(vec![partition]));
        let index = cluster.open_index_with("n", &own).expect("free");
        (cluster, index)
    };
    let (owners, over) = ([owner(0), owner(1)], AtomicBool::new(false));
    let is_of = |partition: usize, n: u64| partition == usize::from(key(n)[0] >= 0x80);
    // The number of rounds of writes over all keys that an owner has done.
    let work = |partition: usize| {
        let session = owners[partition].1.session().expect("open");
        let mut rounds = 0;
        while rounds < 2 || !over.load(Relaxed) {
            for n in (0..KEYS).filter(|&n| is_of(partition, n)) {
                let before = (rounds > 0).then(|| value(10 * n + (rounds - 1) % 10));
                assert_eq!(session.get(&key(n)).expect("no error"), before, "{n}");
                session.put(&key(n), &value(10 * n + rounds % 10)).expect("room");
            }
            rounds += 1;
        }
        rounds
    };
    std::thread::scope(|scope| {
        for (_, index) in &owners {
            let over = &over;
            scope.spawn(move || {
                while !over.load(Relaxed) {
                    index.follow(&|| true).expect("nothing fails");
                    std::thread::yield_now();
                }
            });
        }
        let workers = [0, 1].map(|partition| scope.spawn(move || work(partition)));
        let asking = Cluster::open(config(&[0, 3])).expect("with the one that may join");
        assert_eq!(asking.add_memory_server(BYTES).expect("it joins"), MemoryServerId(3));
        asking.spread_indexes(|_| Continue(())).expect("they do it");
        asking.drain_memory_server(MemoryServerId(1), |_| Continue(())).expect("they leave it");
        assert_eq!(state_of(&asking, 1), (ServerState::Drained, 0));
        drop(servers.remove(1));
        asking.drain_memory_server(MemoryServerId(2), |_| Continue(())).expect("and the other one");
        drop(servers.remove(1));
        let (state, bytes) = state_of(&asking, 3);
        assert!(state == ServerState::Active && bytes > 0, "{state:?} {bytes}");
        over.store(true, Relaxed);
        workers.into_iter().for_each(|worker| assert!(worker.join().expect("every answer was right") >= 2));
        asking.close().expect("closes");
    });
    for (cluster, index) in owners {
        drop(index);
        assert_eq!(cluster.memory_server_addresses(), addresses);
        cluster.close().expect("closes");
    }
    for named in [&[0][..], &[3], &[0, 1, 2, 3], &[1, 3]] {
        let cluster = Cluster::open(config(named)).expect("without those that are drained");
        let report = cluster.check().expect("at rest");
        assert!(report.is_clean(), "{:?}", report.violations);
        cluster.close().expect("closes");
    }
}

/// A drained memory server is switched off, and the pool grows without it. It comes back with nothing in its memory.
#[test]
fn a_drained_server_may_be_switched_off_and_come_back() {
    let start = |at: &str| MemoryServer::start(&MemoryServerConfig::new(at).size(BYTES)).expect("a port");
    let mut servers: Vec<MemoryServer> = (0..4).map(|_| start("127.0.0.1:0")).collect();
    let addresses: Vec<String> = servers.iter().map(|server| server.addr().to_string()).collect();
    let config = |named: &[usize]| Config::tcp(named.iter().map(|&at| &addresses[at][..])).cache(1 << 20);
    let cluster = Cluster::open(config(&[0, 1, 2]).create(Create::New)).expect("new");
    load(&cluster, 5_000);
    for server in [1, 2] {
        cluster.drain_memory_server(MemoryServerId(server), |_| Continue(())).expect("room elsewhere");
    }
    drop(servers.drain(1..3));
    // Who has it open goes on, and others open it, whatever they name of it.
    check(&cluster, 5_000);
    for named in [&[0][..], &[0, 1, 2], &[0, 2]] {
        let cluster = Cluster::open(config(named)).expect("without those that are drained");
        assert_eq!(cluster.memory_server_addresses(), [&addresses[0], "", ""], "{named:?}");
        cluster.close().expect("closes");
    }
    cluster.close().expect("closes");
    let cluster = Cluster::open(config(&[0, 3])).expect("with one that may join");
    assert_eq!(cluster.add_memory_server(BYTES).expect("it joins"), MemoryServerId(3));
    assert!(cluster.spread_indexes(|_| Continue(())).expect("no error") > 0);
    let again = cluster.readmit_memory_server(MemoryServerId(1)).expect_err("it is not there");
    assert!(matches!(&again, Error::Pool(PoolError::NotThere { .. })), "{again}");
    cluster.close().expect("closes");
    servers.push(start(&addresses[1]));
    let cluster = Cluster::open(config(&[3, 1, 0])).expect("in any order");
    assert_eq!(state_of(&cluster, 1), (ServerState::Drained, 0));
    let again = cluster.readmit_memory_server(MemoryServerId(1)).expect_err("it is not known where it is");
    assert!(matches!(&again, Error::Pool(PoolError::NotThere { .. })), "{again}");
    cluster.close().expect("closes");
    let cluster = Cluster::open(config(&[0, 1, 2, 3])).expect("with an empty one");
    cluster.readmit_memory_server(MemoryServerId(1)).expect("nobody has an index open");
    assert_eq!(state_of(&cluster, 1), (ServerState::Active, 0));
    load_bytes(&cluster, "more", 5_000);
    assert!(state_of(&cluster, 1).1 > 100_000);
    check(&cluster, 5_000);
    cluster.close().expect("closes");
    let cluster = Cluster::open(config(&[3])).expect("it finds the others");
    assert_eq!(cluster.memory_server_addresses(), [&addresses[0], &addresses[1], "", &addresses[3]]);
    check(&cluster, 5_000);
    cluster.close().expect("closes");
}

#[test]
fn the_file_of_a_drained_server_may_be_removed() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("pool");
    let file = |server: usize| path.join(format!("server-{server}.pando"));
    let config = || Config::at(&path).memory_servers(4).memory(BYTES).cache(1 << 20);
    let cluster = Cluster::open(config().create(Create::New)).expect("new");
    load(&cluster, 5_000);
    for server in [1, 3] {
        cluster.drain_memory_server(MemoryServerId(server), |_| Continue(())).expect("room elsewhere");
    }
    cluster.close().expect("closes");
    [1, 3].into_iter().for_each(|server| std::fs::remove_file(file(server)).expect("removed"));
    let cluster = Cluster::open(config()).expect("without those that are drained");
    check(&cluster, 5_000);
    cluster.close().expect("closes");
    let cluster = Cluster::open(config()).expect("without those that are drained");
    assert_eq!(cluster.add_memory_server(BYTES).expect("room"), MemoryServerId(4));
    let again = cluster.readmit_memory_server(MemoryServerId(3)).expect_err("its file is gone");
    assert!(matches!(&again, Error::Pool(PoolError::NotThere { .. })), "{again}");
    cluster.close().expect("closes");
    let cluster = Cluster::open(config().read_only(true)).expect("there");
    check(&cluster, 5_000);
    cluster.close().expect("closes");
    std::fs::rename(file(2), directory.path().join("elsewhere")).expect("renamed");
    let missing = Cluster::open(config()).expect_err("it is in use");
    assert!(missing.to_string().ends_with("server-2.pando: this part of the pool is missing"), "{missing}");
}

#[test]
fn an_owner_that_does_not_look_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = Config::at(folder.path().join("pool")).access(Access::default().deadline(SOON));
    let owner =
        Cluster::open(config.clone().memory_servers(2).memory(BYTES).create(Create::New)).expect("new");
    let index = owner.create_index("n", &IndexOptions::integers().subtree_level(1)).expect("new");
    let entries: Vec<_> = (0..20_000_u64).map(|n| (n.to_be_bytes(), n.to_be_bytes())).collect();
    index.bulk_load(&entries[..], &BulkOptions::default()).expect("room");
    let asking = Cluster::open(config).expect("attached");
    for refused in [
        asking.drain_memory_server(MemoryServerId(1), |_| Continue(())).expect_err("nobody leaves it"),
        asking.spread_indexes(|_| Continue(())).expect_err("nobody answers"),
    ] {
        assert!(matches!(refused, Error::PartitionOwned { partition: 0, .. }), "{refused}");
    }
    assert_eq!(state_of(&asking, 1).0, ServerState::Draining);
    // The wait for it may be stopped.
    let stopped = asking.drain_memory_server(MemoryServerId(1), |_| Break(())).expect_err("it was stopped");
    assert!(matches!(stopped, Error::Stopped { .. }), "{stopped}");
    // It does so once it looks.
    index.follow(&|| true).expect("no error");
    asking.drain_memory_server(MemoryServerId(1), |_| Continue(())).expect("it is empty");
    assert_eq!(state_of(&asking, 1), (ServerState::Drained, 0));
    let session = index.integers().expect("open");
    (0..20_000).for_each(|n| assert_eq!(session.get(n).expect("no error"), Some(n)));
}
