//! A memory server in another process, which is stopped or killed. Needs an RDMA device (`ci/verbs.sh`).
//!
//! The server is this program, started with an environment variable; it ends with its standard input.

use std::cell::Cell;
use std::fs::{self, DirEntry};
use std::io::{BufRead, BufReader, Read, Write, stdin, stdout};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use pando_fabric::{
    Endpoint, Fabric, FabricError, GlobalAddr, MemoryServerId, Request, RequestHandler, ServerMemory,
};
use pando_fabric_local::{LocalConfig, LocalFabric};
use pando_fabric_net::{ServerConfig, TcpConfig, TcpServer};
use pando_fabric_verbs::{VerbsFabric, VerbsOffer, VerbsOptions};
use pando_rt::{block_on, run_slots};
use rustix::process::{Pid, Signal, kill_process};

const SERVER: MemoryServerId = MemoryServerId(0);
const ROLE: &str = "PANDO_VERBS_SERVES";
const MARK: &str = "it serves at ";

/// A call that takes this many milliseconds.
struct Wait(u16);

impl Request for Wait {
    type Reply = ();
    const OP: u16 = 1;

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0.to_le_bytes());
    }

    fn decode_reply(&self, _: MemoryServerId, _: &[u8]) -> Result<(), FabricError> {
        Ok(())
    }
}

struct Slow;

impl RequestHandler for Slow {
    fn handle(&self, _: &ServerMemory<'_>, _: u16, body: &[u8], _: &mut Vec<u8>) -> Result<(), FabricError> {
        let millis = body.first_chunk().map_or(0, |millis| u16::from_le_bytes(*millis));
        thread::sleep(Duration::from_millis(millis.into()));
        Ok(())
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn the_server_of_the_other_tests() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let local =
        LocalFabric::new(LocalConfig { server_sizes: vec![1 << 20], huge_pages: false }).expect("memory");
    let region = local.served_region(SERVER).expect("the only one");
    let offer = VerbsOffer::new(region.clone(), &VerbsOptions::default(), 1).expect("an RDMA device");
    let config = ServerConfig { other_way: Some(Arc::new(offer)), ..ServerConfig::default() };
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let server = TcpServer::start(listener, region, Some(Arc::new(Slow)), config).expect("a server");
    println!("{MARK}{}", server.addr());
    stdout().flush().expect("somebody reads it");
    let _ = stdin().read_to_end(&mut Vec::new());
}

struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start() -> Self {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--ignored", "--exact", "--nocapture", "processes::the_server_of_the_other_tests"])
            .env(ROLE, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program runs");
        let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let address = lines.find_map(|line| {
            let line = line.expect("text");
            line.split_once(MARK).map(|(_, address)| address.to_owned())
        });
        Self { child, address: address.expect("it serves") }
    }

    fn fabric(&self, options: &VerbsOptions) -> VerbsFabric {
        let deadline = Duration::from_secs(1);
        let config = TcpConfig { deadline, ..TcpConfig::new([&self.address]) };
        VerbsFabric::connect(config, options).expect("it is there")
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id() as i32).expect("it is no 0");
        kill_process(pid, signal).expect("it is there");
    }

    /// Stops the process. A thread may run on for a moment after the signal, so this waits until all have stopped.
    fn stop(&self) {
        self.signal(Signal::STOP);
        let is_stopped = |thread: DirEntry| {
            // One that has just ended has no file any more, and is not listed the next time.
            let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('T'))
        };
        let threads = format!("/proc/{}/task", self.child.id());
        while !fs::read_dir(&threads)
            .expect("it is there")
            .all(|thread| is_stopped(thread.expect("a thread")))
        {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn at(offset: u64) -> GlobalAddr {
    GlobalAddr::new(SERVER, offset)
}

/// READ, WRITE and CAS continue while the server's process is stopped, for longer than any deadline.
#[test]
#[ignore = "needs an RDMA device"]
fn verbs_go_on_while_the_server_is_stopped() {
    let server = Server::start();
    // A software device may pause for longer than the quarter of a second after which a peer counts as dead.
    let fabric = server.fabric(&VerbsOptions { timeout: Some(16), ..VerbsOptions::default() });
    let ep = fabric.endpoint(1).expect("an endpoint");
    block_on(&ep, ep.write_word(at(0), 0)).expect("a WRITE");
    server.stop();
    let until = Instant::now() + Duration::from_secs(4);
    let mut rounds = 0;
    while Instant::now() < until {
        block_on(&ep, async {
            assert_eq!(ep.compare_swap(at(0), rounds, rounds + 1).await?, rounds);
            let page = ep.buffer(1024);
            page.set(5, rounds);
            ep.recycle(ep.write(at(4096), page).await?);
            let page = ep.read(at(4096), ep.buffer(1024)).await?;
            assert_eq!(page.get(5), rounds);
            ep.recycle(page);
            Ok::<_, FabricError>(())
        })
        .expect("nobody needs its process");
        rounds += 1;
    }
    // A reservation needs the server's process.
    let error = block_on(&ep, ep.reserve(at(0), 8)).expect_err("it is stopped");
    assert!(error.is_unreachable(), "{error}");
    server.signal(Signal::CONT);
    assert_eq!(block_on(&ep, ep.read_word(at(0))).expect("a READ"), rounds);
    println!("{rounds} rounds of READ, WRITE and CAS while the server was stopped");
    assert!(rounds > 0);
}

/// One slot loses the connection while others have verbs in flight. These end; later ones wait for a new
/// connection or report that they were not sent. The counter has exactly the additions that succeeded.
#[test]
#[ignore = "needs an RDMA device"]
fn a_lost_connection_leaves_no_verb_in_doubt() {
    let server = Server::start();
    let fabric = server.fabric(&VerbsOptions { timeout: Some(16), ..VerbsOptions::default() });
    let ep = fabric.endpoint(1).expect("an endpoint");
    block_on(&ep, ep.write_word(at(0), 0)).expect("a WRITE");
    let (is_lost, is_healed) = (Cell::new(false), Cell::new(false));
    let slot = async |slot: u32| {
        let (mut done, mut refused) = (0_u64, 0);
        if slot == 0 {
            server.stop();
            let error = ep.reserve(at(0), 8).await.expect_err("it is stopped");
            assert!(error.is_unreachable(), "{error}");
            is_lost.set(true);
            let error = ep.read_word(at(0)).await.expect_err("nobody makes a new connection");
            assert!(!error.may_have_taken_effect(), "{error}");
            server.signal(Signal::CONT);
            is_healed.set(true);
        }
        let mut after_all = 0;
        while after_all < 20 {
            match ep.fetch_add(at(0), 1).await {
                Ok(_) => {
                    done += 1;
                    after_all += u32::from(is_healed.get());
                }
                Err(error) => {
                    assert!(is_lost.get() && !error.may_have_taken_effect(), "{error}");
                    refused += 1;
                    ep.yield_now().await;
                }
            }
        }
        (done, refused)
    };
    let ended = run_slots(&ep, (0..8).map(slot).collect());
    let done: u64 = ended.iter().map(|slot| slot.0).sum();
    let refused: u64 = ended.iter().map(|slot| slot.1).sum();
    println!("{done} atomics around a lost connection, {refused} that were not sent");
    assert_eq!(block_on(&ep, ep.read_word(at(0))).expect("a READ"), done);
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_killed_server_is_an_error_soon() {
    let mut server = Server::start();
    let fabric = server.fabric(&VerbsOptions::default());
    let ep = fabric.endpoint(1).expect("an endpoint");
    block_on(&ep, ep.write_word(at(0), 1)).expect("a WRITE");
    server.child.kill().expect("it is there");
    server.child.wait().expect("it is our child");
    let killed = Instant::now();
    let error = block_on(&ep, ep.fetch_add(at(0), 1)).expect_err("it is gone");
    let after = killed.elapsed();
    println!("kill -9: {error} after {} ms", after.as_millis());
    assert!(error.may_have_taken_effect(), "{error}");
    assert!(after < Duration::from_secs(1), "an error after {after:?}");
    for _ in 0..20 {
        let error = block_on(&ep, ep.read_word(at(0))).expect_err("it is gone");
        assert!(error.is_unreachable(), "{error}");
    }
}

/// A call to a stopped server waits until the deadline; a long call may take up to it.
#[test]
#[ignore = "needs an RDMA device"]
fn a_call_to_a_stopped_server_is_an_error_at_the_deadline() {
    let server = Server::start();
    let fabric = server.fabric(&VerbsOptions { timeout: Some(16), ..VerbsOptions::default() });
    let ep = fabric.endpoint(1).expect("an endpoint");
    block_on(&ep, ep.call(SERVER, &Wait(0))).expect("a call");
    block_on(&ep, ep.call(SERVER, &Wait(500))).expect("a slow call");
    server.stop();
    let stopped = Instant::now();
    let error = block_on(&ep, ep.call(SERVER, &Wait(0))).expect_err("it is stopped");
    let after = stopped.elapsed();
    println!("SIGSTOP: {error} after {} ms", after.as_millis());
    assert!(error.may_have_taken_effect(), "{error}");
    assert!((Duration::from_millis(900)..Duration::from_millis(2500)).contains(&after), "{after:?}");
    server.signal(Signal::CONT);
    // The queue pair failed and is not made again at once; nothing is posted that could be lost.
    let until = Instant::now() + Duration::from_secs(10);
    while let Err(error) = block_on(&ep, ep.call(SERVER, &Wait(0))) {
        assert!(matches!(error, FabricError::NotConnected { .. }) && Instant::now() < until, "{error}");
    }
}

/// The server is killed while it executes a call: the error comes before the deadline, which is a second, and
/// more with a slow device.
#[test]
#[ignore = "needs an RDMA device"]
fn a_call_to_a_server_that_is_killed_meanwhile_is_an_error_soon() {
    let mut server = Server::start();
    let fabric = server.fabric(&VerbsOptions::default());
    let ep = fabric.endpoint(1).expect("an endpoint");
    block_on(&ep, ep.call(SERVER, &Wait(0))).expect("a call");
    let killed = std::thread::scope(|scope| {
        let killing = scope.spawn(|| {
            thread::sleep(Duration::from_millis(200));
            let killed = Instant::now();
            server.child.kill().expect("it is there");
            server.child.wait().expect("it is our child");
            killed
        });
        let error = block_on(&ep, ep.call(SERVER, &Wait(5000))).expect_err("it is gone");
        let killed = killing.join().expect("it does not panic");
        println!("kill -9 during a call: {error} after {} ms", killed.elapsed().as_millis());
        assert!(error.may_have_taken_effect(), "{error}");
        killed
    });
    assert!(killed.elapsed() < Duration::from_secs(1), "an error after {:?}", killed.elapsed());
    let error = block_on(&ep, ep.call(SERVER, &Wait(0))).expect_err("it is gone");
    assert!(error.is_unreachable(), "{error}");
}
