//! Memory servers as a group, whose memory has copies: one ends, is stopped, or comes back; and clients go on.

use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use pando_fabric::{Endpoint, Fabric, GlobalAddr, MemoryServerId};
use pando_fabric_local::{LocalConfig, LocalFabric, ServedRegion};
use pando_fabric_net::{ServerConfig, TcpConfig, TcpEndpoint, TcpFabric, TcpServer};
use pando_member::VolumeId;
use pando_replica::Replicated;
use pando_rt::block_on;

/// Long enough for a machine that does other things too: who is silent for so long is taken for lost.
pub const LEASE: Duration = Duration::from_millis(500);

fn serve(incarnation: u64) -> TcpServer {
    serve_at(TcpListener::bind("127.0.0.1:0").expect("a free port"), incarnation)
}

/// Memory of a server.
pub fn region() -> ServedRegion {
    let config = LocalConfig { server_sizes: vec![1 << 20], huge_pages: false };
    let region = LocalFabric::new(config).and_then(|local| local.served_region(MemoryServerId(0)));
    region.expect("so little memory")
}

fn serve_at(listener: TcpListener, incarnation: u64) -> TcpServer {
    let config = ServerConfig { incarnation, lease: LEASE, ..ServerConfig::default() };
    TcpServer::start(listener, region(), None, config).expect("it starts")
}

/// Servers that are a group with two copies of each volume.
fn group(count: u64) -> (Vec<Option<TcpServer>>, TcpFabric) {
    // A test that fails shows what the servers said.
    let _ = tracing_subscriber::fmt().with_test_writer().try_init();
    let servers: Vec<TcpServer> = (1..=count).map(serve).collect();
    let fabric = TcpFabric::connect(TcpConfig::new(servers.iter().map(|server| server.addr().to_string())));
    let fabric = fabric.expect("all are there");
    fabric.form_group(2).expect("enough servers");
    (servers.into_iter().map(Some).collect(), fabric)
}

pub fn endpoint(fabric: &TcpFabric) -> Replicated<TcpEndpoint> {
    Replicated::new(fabric.endpoint(1).expect("it is connected"), fabric.views().expect("it is a group"))
}

pub fn word(volume: u16) -> GlobalAddr {
    GlobalAddr::new(MemoryServerId(volume), 64)
}

/// Writes a word that nobody else writes. Whoever writes one looks at it if the WRITE may have taken effect.
pub fn set(ep: &Replicated<TcpEndpoint>, at: GlobalAddr, value: u64) {
    while let Err(error) = block_on(ep, ep.write_word(at, value)) {
        assert!(error.may_have_taken_effect(), "{error}");
        if block_on(ep, ep.read_word(at)).expect("a copy is left") == value {
            return;
        }
    }
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
            set(&ep, word(volume), 1);
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
    }
}

#[test]
fn when_a_server_leaves_nobody_is_in_doubt_about_an_atomic() {
    for leaves in 0..3 {
        let (mut servers, fabric) = group(3);
        let (is_over, fabric) = (AtomicBool::new(false), &fabric);
        thread::scope(|scope| {
            for thread in 0..4 {
                let is_over = &is_over;
                scope.spawn(move || {
                    let ep = endpoint(fabric);
                    let own = |volume| word(volume).add(8 * thread);
                    let mut added = 0;
                    while !is_over.load(Relaxed) {
                        for volume in 0..3 {
                            let before = block_on(&ep, ep.fetch_add(own(volume), 1));
                            assert_eq!(before.expect("it is known what became of it"), added);
                        }
                        added += 1;
                    }
                });
            }
            thread::sleep(LEASE / 5);
            servers[leaves].as_ref().expect("it runs").leave();
            servers[leaves] = None;
            // The others go on without it.
            thread::sleep(5 * LEASE);
            is_over.store(true, Relaxed);
        });
    }
}

/// Starts a server again at the same address, without its memory.
fn restart(server: &mut Option<TcpServer>, incarnation: u64) {
    let addr = server.as_ref().expect("it runs").addr();
    *server = None;
    let until = Instant::now() + Duration::from_secs(10);
    let listener = loop {
        match TcpListener::bind(addr) {
            Ok(listener) => break listener,
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
    };
    *server = Some(serve_at(listener, incarnation));
}

/// Incarnation of a server in the newest view that is known.
fn incarnation(fabric: &TcpFabric, server: usize) -> u64 {
    fabric.view().expect("it is a group").servers()[server].incarnation()
}

/// Waits until the view has all copies, on so many servers, and no memory of this incarnation.
pub fn wait_for_copies(fabric: &TcpFabric, lost: Option<u64>, servers: usize) {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let view = fabric.view().expect("it is a group");
        let syncing = (0..view.volumes() as u16)
            .map(VolumeId)
            .any(|volume| view.backups(volume).iter().any(|copy| copy.syncing));
        let has_lost = view.servers().iter().any(|server| Some(server.incarnation()) == lost);
        if view.wanting().next().is_none() && !syncing && view.members().count() == servers && !has_lost {
            return;
        }
        assert!(Instant::now() < until, "{view:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Counters that several threads add to, and pages that each of them fills with its own numbers.
struct Load<'l> {
    fabric: &'l TcpFabric,
    stop: AtomicBool,
}

impl Load<'_> {
    /// Page of a thread, whose words all have one number.
    fn page(thread: u64) -> GlobalAddr {
        GlobalAddr::new(MemoryServerId(thread as u16 % 3), 4096 * (1 + thread))
    }

    fn counter(thread: u64) -> GlobalAddr {
        GlobalAddr::new(MemoryServerId(thread as u16 % 3), 128 + 8 * thread)
    }

    /// Works until it is told to stop; returns the last numbers of its page and its counter.
    fn work(&self, thread: u64) -> u64 {
        let ep = endpoint(self.fabric);
        let mut number = 0;
        while !self.stop.load(Relaxed) {
            number += 1;
            let page = ep.buffer(512);
            (0..64).for_each(|word| page.set(word, number));
            block_on(&ep, ep.write(Self::page(thread), page)).expect("a copy is left");
            // Only this thread changes its counter, so a swap of unknown outcome can be looked at.
            let swapped = block_on(&ep, ep.compare_swap(Self::counter(thread), number - 1, number));
            if swapped
                .as_ref()
                .map_or_else(|error| error.may_have_taken_effect(), |before| *before != number - 1)
            {
                set(&ep, Self::counter(thread), number);
            }
            let found = block_on(&ep, ep.read(Self::page(thread), ep.buffer(512))).expect("a copy is left");
            assert!((0..64).all(|word| found.get(word) == number), "thread {thread}, number {number}");
            let found = block_on(&ep, ep.read_word(Self::counter(thread))).expect("a copy is left");
            assert_eq!(found, number, "the counter of thread {thread}");
        }
        number
    }
}

/// Ends the work when it is dropped, on a panic too.
struct Stop<'s>(&'s AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

#[test]
fn servers_come_back_empty_one_after_the_other_while_clients_work() {
    let (mut servers, fabric) = group(3);
    let load = Load { fabric: &fabric, stop: AtomicBool::new(false) };
    let last: Vec<u64> = thread::scope(|scope| {
        let load = &load;
        let working: Vec<_> = (0..3).map(|thread| scope.spawn(move || load.work(thread))).collect();
        let _stop = Stop(&load.stop);
        for (round, next) in (0..6).zip(11..) {
            thread::sleep(LEASE);
            // A server that was slow may have been taken for lost meanwhile.
            wait_for_copies(&fabric, None, 3);
            let lost = incarnation(&fabric, round % 3);
            restart(&mut servers[round % 3], next);
            wait_for_copies(&fabric, Some(lost), 3);
        }
        load.stop.store(true, Relaxed);
        working.into_iter().map(|working| working.join().expect("no panic")).collect()
    });
    println!("{last:?} rounds of the clients");
    let ep = endpoint(&fabric);
    for (thread, number) in (0..).zip(last) {
        assert_eq!(block_on(&ep, ep.read_word(Load::page(thread))).expect("it is there"), number);
        assert_eq!(block_on(&ep, ep.read_word(Load::counter(thread))).expect("it is there"), number);
    }
}

/// Waits until so many volumes are in use.
fn wait_for_volumes(fabric: &TcpFabric, volumes: usize) {
    let until = Instant::now() + Duration::from_secs(20);
    while fabric.view().expect("it is a group").volumes_in_use() < volumes {
        assert!(Instant::now() < until, "{:?}", fabric.view());
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn servers_join_while_clients_work_and_others_are_lost() {
    let (mut servers, fabric) = group(3);
    let load = Load { fabric: &fabric, stop: AtomicBool::new(false) };
    thread::scope(|scope| {
        let load = &load;
        let working: Vec<_> = (0..3).map(|thread| scope.spawn(move || load.work(thread))).collect();
        let stop = Stop(&load.stop);
        // An endpoint that is older than the volume finds it.
        let ep = endpoint(&fabric);
        for (number, next) in (3..6).zip(21..) {
            servers.push(Some(serve(next)));
            let address = servers[number].as_ref().expect("it runs").addr().to_string();
            fabric.join_group(&address).expect("there is room");
            fabric.join_group(&address).expect("it has joined already");
            if number > 3 {
                // One that has copies, or the one that joined before.
                thread::sleep(LEASE / 10 * number as u32);
                restart(&mut servers[(number - 4) * 3], next + 100);
            }
            wait_for_volumes(&fabric, number + 1);
            set(&ep, word(number as u16), 7);
            wait_for_copies(&fabric, None, number + 1);
            let lost = incarnation(&fabric, number);
            restart(&mut servers[number], next + 200);
            assert_eq!(block_on(&ep, ep.read_word(word(number as u16))).expect("another has a copy"), 7);
            wait_for_copies(&fabric, Some(lost), number + 1);
        }
        assert_eq!((ep.regions().len(), fabric.view().expect("it is a group").servers().len()), (6, 6));
        drop(stop);
        assert!(working.into_iter().all(|working| working.join().expect("no panic") > 0));
    });
    let other =
        TcpFabric::connect(TcpConfig::new([servers[5].as_ref().expect("it runs").addr().to_string()]));
    let ep = endpoint(&other.expect("it answers"));
    for volume in 3..6 {
        assert_eq!(block_on(&ep, ep.read_word(word(volume))).expect("it is there"), 7);
    }
}

/// Two servers do not go on without one of them. The third one decides, too, once all copies are in place.
#[test]
fn a_pool_of_two_servers_stands_the_loss_of_one_after_a_third_has_joined() {
    for lost in 0..3 {
        let (mut servers, fabric) = group(2);
        servers.push(Some(serve(11)));
        fabric.join_group(&servers[2].as_ref().expect("it runs").addr().to_string()).expect("there is room");
        wait_for_volumes(&fabric, 3);
        wait_for_copies(&fabric, None, 3);
        let until = Instant::now() + Duration::from_secs(20);
        while fabric.view().expect("it is a group").acceptors().count() < 3 {
            assert!(Instant::now() < until, "{:?}", fabric.view());
            thread::sleep(Duration::from_millis(5));
        }
        let ep = endpoint(&fabric);
        (0..3).for_each(|volume| set(&ep, word(volume), 5));
        servers[lost] = None;
        for volume in 0..3 {
            assert_eq!(block_on(&ep, ep.read_word(word(volume))).expect("another one has a copy"), 5);
            set(&ep, word(volume), 6);
        }
    }
}

#[test]
fn servers_that_do_not_fit_do_not_join() {
    let (_servers, fabric) = group(3);
    let told = |error: pando_fabric::FabricError| error.to_string();
    let (_others, other) = group(2);
    let of_other = other.addresses()[0].clone();
    let refused = told(fabric.join_group(&of_other).expect_err("it is in another group"));
    assert_eq!(refused, format!("tcp: {of_other} has copies of another pool's memory"));
    let member = fabric.addresses()[1].replace("127.0.0.1", "localhost");
    let refused = told(fabric.join_group(&member).expect_err("it is there"));
    assert_eq!(refused, format!("tcp: {member} is in the pool already, under another address"));
    let alone = serve(31);
    let address = alone.addr().to_string();
    let of_none = TcpFabric::connect(TcpConfig::new([address.clone()])).expect("it answers");
    let refused = told(of_none.join_group(&address).expect_err("it is alone"));
    assert_eq!(refused, "tcp: these memory servers have no copies of each other's memory");
    let config = LocalConfig { server_sizes: vec![1 << 19], huge_pages: false };
    let small = LocalFabric::new(config).and_then(|local| local.served_region(MemoryServerId(0)));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let config = ServerConfig { incarnation: 32, ..ServerConfig::default() };
    let small =
        TcpServer::start(listener, small.expect("so little memory"), None, config).expect("it starts");
    let refused = told(fabric.join_group(&small.addr().to_string()).expect_err("it is small"));
    assert!(refused.ends_with("has 524288 bytes of memory, and each server needs 1048576"), "{refused}");
}
