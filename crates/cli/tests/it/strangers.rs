//! Unauthenticated connections to a memory server and a compute server: random bytes, slow bytes, a wrong
//! secret; and their file descriptors.
//!
//! Meanwhile a benchmark on the same memory server verifies all its reads, and a client of the compute server
//! all its writes. Neither is disturbed, and the logs stay short.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::running::Daemon;
use crate::common::{Place, words};
use pando::Access;
use pando::remote::{Client, ClientConfig};
use serde_json::Value;

const SECRET: &str = "known to clients alone";
/// Longer than any step here.
const LONG: Duration = Duration::from_secs(200);

/// A memory server and a compute server, and their secret in a file.
struct Servers {
    compute: Daemon,
    memory: Daemon,
    place: Place,
}

impl Servers {
    fn start() -> Servers {
        let place = Place::new();
        place.write_secret("secret", "known to memory servers\n");
        place.write_secret("port-secret", format!("{SECRET}\n"));
        let memory = Daemon::memory_server(&place, "--secret-file secret --strangers-max 32");
        place.ok(&format!("create --pool {} --secret-file secret --index trees", memory.pool()));
        let compute = Daemon::start(
            &place,
            &format!(
                "compute-server --memory {} --secret-file secret --operation-secret-file port-secret --listen HERE --index trees --cache 1MiB \
                 --strangers-max 32",
                memory.address
            ),
        );
        Servers { compute, memory, place }
    }

    fn ports(&self) -> [&str; 2] {
        [&self.memory.address, &self.compute.address]
    }

    fn client(&self) -> Client {
        let access = Access::default().secret(SECRET).deadline(LONG);
        Client::connect(ClientConfig::new([&self.compute.address]).access(access)).expect("it is let in")
    }
}

/// Pseudo-random bytes, the same for each seed.
fn noise(seed: u64, count: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    std::iter::repeat_with(next).take(count).collect()
}

/// Connects repeatedly and writes random bytes, some of them after the beginning of a handshake.
fn write_noise(port: &str, over: &AtomicBool, tried: &AtomicU64) {
    for seed in 0.. {
        if over.load(Relaxed) {
            return;
        }
        let Ok(mut stream) = TcpStream::connect(port) else { continue };
        let magic: &[u8] = [&b""[..], b"PandoTCP\x02\0", b"PandoOps\x02\0"][seed as usize % 3];
        let noise = noise(seed, 1 + seed as usize * 7 % 3000);
        // The server closes the connection at the first invalid bytes.
        let _ = stream.write_all(magic).and_then(|()| stream.write_all(&noise));
        tried.fetch_add(1, Relaxed);
        thread::sleep(Duration::from_millis(2));
    }
}

/// Holds as many connections as possible, beyond the limit, and sends a byte of a handshake on each from time
/// to time.
fn drip(port: &str, over: &AtomicBool, tried: &AtomicU64) {
    let mut held: Vec<(TcpStream, usize)> = Vec::new();
    let hello = [&b"PandoTCP\x02\0"[..], &[0; 100]].concat();
    while !over.load(Relaxed) {
        if held.len() < 64
            && let Ok(stream) = TcpStream::connect(port)
        {
            held.push((stream, 0));
            tried.fetch_add(1, Relaxed);
        }
        held.retain_mut(|(stream, said)| {
            *said += 1;
            *said < 40 && stream.write_all(&hello[*said - 1..*said]).is_ok()
        });
        thread::sleep(Duration::from_millis(20));
    }
}

/// Performs handshakes with a wrong secret.
fn guess(port: &str, over: &AtomicBool, tried: &AtomicU64) {
    let access = Access::default().secret("no more than guessed").deadline(LONG);
    while !over.load(Relaxed) {
        let error =
            Client::connect(ClientConfig::new([port]).access(access.clone())).expect_err("it is wrong");
        // At the memory server's port the client learns which kind of server it is.
        let said = error.to_string();
        assert!(said.contains("secret is not the same") || said.contains("of a memory server"), "{said}");
        tried.fetch_add(1, Relaxed);
        thread::sleep(Duration::from_millis(5));
    }
}

/// Sets the flag when dropped.
struct AtEnd<'a>(&'a AtomicBool);

impl Drop for AtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

#[test]
fn strangers_disturb_nobody() {
    let servers = Servers::start();
    let place = &servers.place;
    let (over, tried) = (AtomicBool::new(false), [const { AtomicU64::new(0) }; 6]);
    let begun = Instant::now();
    thread::scope(|scope| {
        let at_end = AtEnd(&over);
        for (number, port) in servers.ports().into_iter().enumerate() {
            for (kind, work) in [write_noise, drip, guess].into_iter().enumerate() {
                let (over, tried) = (&over, &tried[3 * number + kind]);
                scope.spawn(move || work(port, over, tried));
            }
        }
        // All measurements happen concurrently with the strangers.
        let until = begun + LONG;
        while tried.iter().any(|tried| tried.load(Relaxed) < 40) {
            assert!(Instant::now() < until, "strangers do not come: {tried:?}");
            thread::sleep(Duration::from_millis(10));
        }
        let bench = place.start(&format!(
            "bench --pool {} --secret-file secret --keys 20k --warmup 1k --ops 50k --cache 256KiB --compute-servers 2 \
             --workload write-intensive --verify --audit --json -",
            servers.memory.pool()
        ));
        let session = servers.client().open_index("trees").expect("it is served").session();
        for n in 0..3_000u32 {
            let (key, value) = ((n % 500).to_be_bytes(), n.to_be_bytes());
            session.put(&key, &value).expect("nobody is in the way");
            assert_eq!(session.get(&key).expect("nobody is in the way").as_deref(), Some(&value[..]));
        }
        let ended = bench.end_within(LONG);
        assert_eq!(ended.status, 0, "{ended:?}");
        let report: Value = serde_json::from_str(&ended.stdout).expect("valid");
        assert_eq!([&report["verify_errors"], &report["audit_violations"], &report["failed_ops"]], [0, 0, 0]);
        drop(at_end);
    });
    let strangers: u64 = tried.iter().map(|tried| tried.load(Relaxed)).sum();
    for name in ["memory-server", "compute-server"] {
        let log = Daemon::log_of(place, name);
        let lines = log.lines().filter(|line| line.contains("stranger: ")).count() as u64;
        let most = 10 * (begun.elapsed().as_secs() + 2);
        assert!((1..=most.min(strangers)).contains(&lines), "{lines} lines, {most} at most:\n{log}");
        assert!(log.contains("secret is not the same") || log.contains("before were not logged"), "{log}");
        assert!(!log.contains("panicked"), "{log}");
    }
    for server in [servers.compute, servers.memory] {
        server.process.signal("-TERM");
        assert_eq!(server.process.end_within(LONG).status, 0);
    }
}

#[test]
fn strangers_make_room_for_a_client_when_there_are_no_more_descriptors() {
    let servers = Servers::start();
    let place = &servers.place;
    let pool = servers.memory.pool();
    let secrets = "--secret-file secret --operation-secret-file port-secret";
    servers.client().open_index("trees").expect("it is served").session().put(b"aspen", b"1").expect("room");
    // Allows a few more descriptors than are open, fewer than the server found at its start.
    let process = servers.memory.process.id().to_string();
    let open = std::fs::read_dir(format!("/proc/{process}/fd")).expect("it runs").count();
    let status =
        Command::new("prlimit").args(["--pid", &process, &format!("--nofile={0}:{0}", open + 20)]).status();
    assert!(status.expect("there is prlimit").success());
    let strangers: Vec<_> = (0..40).map(|_| TcpStream::connect(servers.ports()[0])).collect();
    let begun = Instant::now();
    let got = place.run(&format!("get --pool {pool} {secrets} --index trees aspen"));
    assert_eq!((got.status, got.stdout.trim()), (0, "aspen\t1"), "{got:?}");
    // The lookup does not wait until strangers time out.
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    let kept = strangers.iter().flatten().filter(|stream| {
        stream.set_read_timeout(Some(Duration::from_millis(1))).expect("a socket");
        (&mut &**stream).read(&mut [0]).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    });
    assert!(kept.count() < 32, "strangers were let stay");
}

#[test]
fn files_are_their_owners_alone() {
    let place = Place::new();
    let create = |options: &str| {
        let without_umask = ["-c", "umask 0; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_pando")];
        let made = Command::new("sh")
            .args(without_umask)
            .args(words(&format!("create --index trees --pool-size 8MiB --pool {options}")))
            .current_dir(place.path(""))
            .output()
            .expect("there is a shell");
        assert!(made.status.success(), "{made:?}");
    };
    create("./one");
    create("./two --memory-servers 2");
    let _server = Daemon::memory_server(&place, "--backing ./memory");
    for name in ["one", "two/server-0.pando", "two/server-1.pando", "memory", "memory.fences"] {
        let file = place.path(name).metadata().unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(file.permissions().mode() & 0o777, 0o600, "{name}");
    }
}

#[test]
fn who_is_not_let_in_is_told_why_in_one_line() {
    let servers = Servers::start();
    let place = &servers.place;
    place.write_secret("wrong", "no more than guessed\n");
    let pool = servers.memory.pool();
    for secret in ["", "--secret-file wrong"] {
        let told = place.refused(&format!("get --pool {pool} --index trees aspen {secret}"), 2);
        assert!(told.contains("the shared secret is not the same on both sides"), "{told}");
    }
    let told = place.refused(&format!("get --pool tcp://{} --index trees aspen", servers.compute.address), 2);
    assert!(told.contains("this is the port of a compute server, not of a memory server"), "{told}");
    // A server of a later version, up to its challenge.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("it has one");
    let later = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        stream.read_exact(&mut [0; 64]).expect("a hello");
        stream.write_all(&[&b"PandoTCP\x63\0\x01\0\0\0\0\0"[..], &[0; 32]].concat()).expect("it is taken");
        stream.read_to_end(&mut Vec::new()).expect("it goes");
    });
    let told = place.refused(&format!("get --pool tcp://{address} --index trees aspen"), 2);
    assert!(told.contains("it speaks version 99 of the protocol, and this program version 4"), "{told}");
    later.join().expect("no panic");
}
