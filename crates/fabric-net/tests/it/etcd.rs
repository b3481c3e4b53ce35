//! Memory servers as a group whose register is in etcd: two suffice. One of them ends, or is cut off from etcd; etcd is
//! killed, stopped and cut off; and clients go on.

use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use pando_fabric::Endpoint;
use pando_fabric_net::{OutsideRegister, RegisterAddress, ServerConfig, TcpConfig, TcpFabric, TcpServer};
use pando_rt::block_on;

use crate::group::{LEASE, endpoint, region, set, wait_for_copies, word};
use crate::real_etcd::{Cable, RealEtcd};

/// Enough for all that takes a few leases.
const WAIT: Duration = Duration::from_secs(20);

fn address(endpoint: &str) -> RegisterAddress {
    format!("etcd://{endpoint}/it/trees").parse().expect("an address")
}

fn open(address: &RegisterAddress) -> OutsideRegister {
    OutsideRegister::open(address).expect("it answers")
}

fn serve_at(listen: &str, incarnation: u64, register: Option<OutsideRegister>) -> TcpServer {
    let config = ServerConfig { incarnation, lease: LEASE, register, ..ServerConfig::default() };
    let until = Instant::now() + WAIT;
    let listener = loop {
        match TcpListener::bind(listen) {
            Ok(listener) => break listener,
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
    };
    TcpServer::start(listener, region(), None, config).expect("it starts")
}

fn serve(incarnation: u64, register: &RegisterAddress) -> TcpServer {
    serve_at("127.0.0.1:0", incarnation, Some(open(register)))
}

fn connect(servers: &[&TcpServer]) -> TcpFabric {
    let addresses = servers.iter().map(|server| server.addr().to_string());
    TcpFabric::connect(TcpConfig::new(addresses)).expect("all are there")
}

/// Two servers that are a group with two copies of each volume.
fn pair(register: &RegisterAddress) -> ([Option<TcpServer>; 2], TcpFabric) {
    let _ = tracing_subscriber::fmt().with_test_writer().try_init();
    let servers = [1, 2].map(|incarnation| serve(incarnation, register));
    let fabric = connect(&[&servers[0], &servers[1]]);
    fabric.form_group(2).expect("enough servers");
    (servers.map(Some), fabric)
}

fn epoch(fabric: &TcpFabric) -> u64 {
    fabric.view().expect("it is a group").epoch()
}

fn members(fabric: &TcpFabric) -> usize {
    fabric.view().expect("it is a group").members().count()
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + WAIT;
    while !is_so() {
        assert!(Instant::now() < until, "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Writes larger and larger numbers into a word of each volume, beside `disturb`; all that was written is found again.
/// Returns the longest time of a write and a look at it, and the number of writes.
fn write_while(fabric: &TcpFabric, disturb: impl FnOnce(&AtomicU64)) -> (Duration, u64) {
    let (is_done, written) = (AtomicBool::new(false), AtomicU64::new(0));
    struct Done<'d>(&'d AtomicBool);
    impl Drop for Done<'_> {
        fn drop(&mut self) {
            self.0.store(true, Relaxed);
        }
    }
    thread::scope(|scope| {
        let writing = scope.spawn(|| {
            let (ep, mut longest, mut number) = (endpoint(fabric), Duration::ZERO, 0);
            while !is_done.load(Relaxed) {
                number += 1;
                for volume in 0..2 {
                    let began = Instant::now();
                    set(&ep, word(volume), number);
                    assert_eq!(block_on(&ep, ep.read_word(word(volume))).expect("a copy is left"), number);
                    longest = longest.max(began.elapsed());
                }
                written.store(number, Relaxed);
            }
            longest
        });
        let done = Done(&is_done);
        disturb(&written);
        drop(done);
        let longest = writing.join().expect("no panic");
        let ep = endpoint(fabric);
        let last = written.load(Relaxed);
        for volume in 0..2 {
            assert_eq!(block_on(&ep, ep.read_word(word(volume))).expect("a copy is left"), last);
        }
        (longest, last)
    })
}

/// Waits until more is written.
fn await_writes(written: &AtomicU64) {
    let before = written.load(Relaxed);
    wait_until("nothing more is written", || written.load(Relaxed) > before + 1);
}

#[test]
fn each_of_two_servers_may_be_lost() {
    let Some(etcd) = RealEtcd::start() else { return };
    let register = address(&etcd.endpoint());
    let (mut servers, fabric) = pair(&register);
    let (longest, count) = write_while(&fabric, |written| {
        for (round, next) in (0..4).zip(11..) {
            await_writes(written);
            wait_for_copies(&fabric, None, 2);
            let lost = fabric.view().expect("it is a group").servers()[round % 2].incarnation();
            let listen = servers[round % 2].take().expect("it runs").addr().to_string();
            await_writes(written);
            assert_eq!(members(&fabric), 1);
            servers[round % 2] = Some(serve_at(&listen, next, Some(open(&register))));
            wait_for_copies(&fabric, Some(lost), 2);
        }
    });
    println!("{count} writes, the longest took {longest:?}");
    assert_eq!(fabric.view().expect("it is a group").register(), Some(&*register.to_string()));
}

#[test]
fn an_etcd_that_is_killed_or_stopped_stops_the_servers_and_no_more() {
    let Some(mut etcd) = RealEtcd::start() else { return };
    let (_servers, fabric) = pair(&address(&etcd.endpoint()));
    let (longest, count) = write_while(&fabric, |written| {
        for _ in 0..2 {
            await_writes(written);
            etcd.kill();
            thread::sleep(3 * LEASE);
            // Without a register that answers, no server has a lease.
            let stopped = written.load(Relaxed);
            thread::sleep(LEASE);
            assert!(written.load(Relaxed) <= stopped + 1);
            etcd.restart();
            await_writes(written);
            etcd.signal("STOP");
            thread::sleep(4 * LEASE);
            etcd.signal("CONT");
            await_writes(written);
            wait_for_copies(&fabric, None, 2);
        }
    });
    // Epoch 1 unless a server was slower than its lease.
    println!("epoch {}, {count} writes, the longest took {longest:?}", epoch(&fabric));
}

#[test]
fn an_etcd_that_is_cut_off_stops_the_servers_and_no_more() {
    let Some(etcd) = RealEtcd::start() else { return };
    let cable = Cable::to(&etcd.endpoint());
    let (_servers, fabric) = pair(&address(&cable.endpoint()));
    let (longest, count) = write_while(&fabric, |written| {
        for leases in [1, 3, 5] {
            await_writes(written);
            cable.cut();
            thread::sleep(leases * LEASE);
            cable.mend();
            await_writes(written);
        }
        wait_for_copies(&fabric, None, 2);
    });
    println!("epoch {}, {count} writes, the longest took {longest:?}", epoch(&fabric));
}

#[test]
fn a_server_that_alone_is_cut_off_from_etcd_is_replaced_and_comes_back() {
    let Some(etcd) = RealEtcd::start() else { return };
    let _ = tracing_subscriber::fmt().with_test_writer().try_init();
    let (cable, register) = (Cable::to(&etcd.endpoint()), address(&etcd.endpoint()));
    let near = serve(1, &register);
    let far = serve_at("127.0.0.1:0", 2, Some(open(&register).reached_at([cable.endpoint()])));
    let fabric = connect(&[&near, &far]);
    fabric.form_group(2).expect("enough servers");
    let (longest, count) = write_while(&fabric, |written| {
        await_writes(written);
        cable.cut();
        wait_until("it is not replaced", || members(&fabric) == 1);
        await_writes(written);
        // It is not taken back as long as it cannot serve.
        let (before, without) = (epoch(&fabric), Instant::now());
        while without.elapsed() < 5 * LEASE {
            assert_eq!(epoch(&fabric), before);
            thread::sleep(Duration::from_millis(5));
        }
        cable.mend();
        wait_for_copies(&fabric, Some(2), 2);
        await_writes(written);
    });
    println!("{count} writes, the longest took {longest:?}");
}

#[test]
fn servers_with_different_registers_are_no_group() {
    let Some(etcd) = RealEtcd::start() else { return };
    let register = address(&etcd.endpoint());
    let other: RegisterAddress = format!("etcd://{}/it/ashes", etcd.endpoint()).parse().expect("an address");
    let servers = [serve(1, &register), serve(2, &other)];
    let told = connect(&[&servers[0], &servers[1]]).form_group(2).expect_err("they differ").to_string();
    let (first, second) = (servers[0].addr(), servers[1].addr());
    let expected = format!(
        "tcp: memory servers were started with different registers: {first} has {register}, and {second} has {other}"
    );
    assert_eq!(told, expected);
    // Nor is one that comes back with another one, or with none.
    let (mut pair, fabric) = pair(&register);
    for given in [Some(open(&other)), None] {
        let listen = pair[1].take().expect("it runs").addr().to_string();
        pair[1] = Some(serve_at(&listen, 7, given));
        wait_until("it is not replaced", || members(&fabric) == 1);
        let before = epoch(&fabric);
        thread::sleep(5 * LEASE);
        assert_eq!((epoch(&fabric), members(&fabric)), (before, 1));
    }
    let listen = pair[1].take().expect("it runs").addr().to_string();
    pair[1] = Some(serve_at(&listen, 8, Some(open(&register))));
    wait_for_copies(&fabric, None, 2);
}

#[test]
fn the_view_of_another_pool_is_not_replaced() {
    let Some(etcd) = RealEtcd::start() else { return };
    let register = address(&etcd.endpoint());
    let (servers, fabric) = pair(&register);
    let others = [3, 4].map(|incarnation| serve(incarnation, &register));
    let told = connect(&[&others[0], &others[1]]).form_group(2).expect_err("it has a view").to_string();
    let named =
        servers.each_ref().map(|server| server.as_ref().expect("it runs").addr().to_string()).join(", ");
    let begin =
        format!("tcp: the register {register} has the view of another pool, with memory servers {named}; ");
    assert!(told.starts_with(&begin), "{told}");
    // The servers of the view may form another group.
    fabric.form_group(2).expect("they are the same");
    assert_eq!(epoch(&fabric), 2);
}

#[test]
fn a_server_of_a_file_finds_its_group_in_etcd() {
    let Some(mut etcd) = RealEtcd::start() else { return };
    let register = address(&etcd.endpoint());
    let kept = tempfile::tempdir().expect("a directory");
    let start = |listen: &str, number: u64, register: Option<OutsideRegister>| {
        let acceptor = Some(kept.path().join(format!("{number}.acceptor")));
        let config =
            ServerConfig { incarnation: number, lease: LEASE, register, acceptor, ..ServerConfig::default() };
        let listener = TcpListener::bind(listen).expect("it was free before");
        TcpServer::start(listener, region(), None, config)
    };
    let listen = {
        let servers =
            [1, 2].map(|number| start("127.0.0.1:0", number, Some(open(&register))).expect("it starts"));
        let fabric = connect(&[&servers[0], &servers[1]]);
        fabric.form_group(2).expect("enough servers");
        servers.each_ref().map(|server| server.addr().to_string())
    };
    // One of them suffices, once it has gone on without the other.
    let first = start(&listen[0], 1, Some(open(&register))).expect("it starts");
    let fabric = connect(&[&first]);
    wait_until("it does not go on", || members(&fabric) == 1);
    set(&endpoint(&fabric), word(1), 5);
    // With another register, or none, or one that has lost its data, the other one does not start.
    let other: RegisterAddress = format!("etcd://{}/it/ashes", etcd.endpoint()).parse().expect("an address");
    let refused = |given| start(&listen[1], 2, given).expect_err("it is refused").to_string();
    assert!(
        refused(None).ends_with(&format!("is {register}, and it was started with none outside the servers"))
    );
    assert!(
        refused(Some(open(&other))).ends_with(&format!("is {register}, and it was started with {other}"))
    );
    let second = start(&listen[1], 2, Some(open(&register))).expect("it starts");
    wait_for_copies(&fabric, Some(2), 2);
    drop((first, second));
    etcd.kill();
    let told = OutsideRegister::open(&register).expect_err("it does not answer").to_string();
    assert!(
        told.starts_with(&format!("register: the register {register} does not answer: {} ", etcd.endpoint())),
        "{told}"
    );
}
