//! An etcd of a test: its own process, with an address of its own and a directory that ends with it; and a cable to it that can
//! be cut.
//!
//! Where no `etcd` is installed, tests that need one say so and are left out; with `CI=true` that is a failure. Tests of
//! several crates include this file.
#![allow(dead_code, reason = "not every test uses all of it")]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Longest time until it answers after a start.
const START: Duration = Duration::from_secs(60);

/// A running etcd of one member. It is killed when this is dropped.
pub struct RealEtcd {
    program: PathBuf,
    directory: TempDir,
    /// A loopback address that no other etcd has: of two that were given one port, one would be taken for the other.
    host: Ipv4Addr,
    client: u16,
    peer: u16,
    child: Option<Child>,
}

impl RealEtcd {
    /// Starts one; `None` if none is installed, and none must be.
    pub fn start() -> Option<Self> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let found =
            std::env::split_paths(&path).map(|folder| folder.join("etcd")).find(|file| file.is_file());
        let Some(program) = found else {
            assert!(
                std::env::var("CI").as_deref() != Ok("true"),
                "CI needs etcd: package etcd-server of Debian"
            );
            println!("skipped: no etcd is installed");
            return None;
        };
        let until = Instant::now() + START;
        loop {
            let directory = tempfile::tempdir().expect("a temporary directory");
            let host = own_host();
            let (client, peer) = (free_port(host), free_port(host));
            let mut etcd = Self { program: program.clone(), directory, host, client, peer, child: None };
            etcd.spawn();
            if etcd.answers(until) {
                return Some(etcd);
            }
            // Another process was faster with a port.
            assert!(Instant::now() < until, "etcd does not start");
        }
    }

    /// `host:port` for clients.
    pub fn endpoint(&self) -> String {
        format!("{}:{}", self.host, self.client)
    }

    fn spawn(&mut self) {
        let (client, peer) =
            (format!("http://{}:{}", self.host, self.client), format!("http://{}:{}", self.host, self.peer));
        let mut command = Command::new(&self.program);
        command.arg("--data-dir").arg(self.directory.path().join("data"));
        command.args(["--name", "it", "--initial-cluster", &format!("it={peer}")]);
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        // It runs on these processors all the same.
        command.env("ETCD_UNSUPPORTED_ARCH", if cfg!(target_arch = "aarch64") { "arm64" } else { "" });
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.child = Some(command.spawn().expect("etcd can be started"));
    }

    /// Waits until it is ready; returns `false` if it has ended instead.
    fn answers(&mut self, until: Instant) -> bool {
        loop {
            if healthy(self.host, self.client).is_ok_and(|answer| answer.contains("\"health\":\"true\"")) {
                return true;
            }
            let ended =
                self.child.as_mut().is_none_or(|child| child.try_wait().is_ok_and(|ended| ended.is_some()));
            if ended || Instant::now() >= until {
                return false;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends it as by `kill -9`.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().and_then(|()| child.wait()).expect("it is a child");
        }
    }

    /// Starts it again with its data, and waits until it answers.
    pub fn restart(&mut self) {
        let until = Instant::now() + START;
        self.spawn();
        while !self.answers(until) {
            assert!(Instant::now() < until, "etcd does not start again");
            self.kill();
            self.spawn();
        }
    }

    /// Sends it a signal, `STOP` or `CONT`.
    pub fn signal(&self, signal: &str) {
        let child = self.child.as_ref().expect("it runs");
        let sent = Command::new("kill").args([&format!("-{signal}"), &child.id().to_string()]).status();
        assert!(sent.expect("there is kill").success());
    }
}

impl Drop for RealEtcd {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// An address of this host that nothing else of this process uses, nor, as a rule, of other test programs.
fn own_host() -> Ipv4Addr {
    static COUNT: AtomicU8 = AtomicU8::new(1);
    let [.., high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 128 | high, low, COUNT.fetch_add(1, Relaxed).max(1))
}

fn free_port(host: Ipv4Addr) -> u16 {
    let listener = TcpListener::bind((host, 0)).expect("a free port");
    listener.local_addr().expect("it is bound").port()
}

fn healthy(host: Ipv4Addr, port: u16) -> std::io::Result<String> {
    let mut stream = TcpStream::connect((host, port))?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    stream.write_all(b"GET /health HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// A cable: what is sent to its end arrives, unless it is cut. Then nothing passes in either direction, and nobody is told.
pub struct Cable {
    end: SocketAddr,
    is_cut: Arc<AtomicBool>,
    is_stopping: Arc<AtomicBool>,
}

impl Cable {
    /// A cable to `host:port`.
    pub fn to(endpoint: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let end = listener.local_addr().expect("it is bound");
        let (is_cut, is_stopping) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (cut, stopping, endpoint) = (Arc::clone(&is_cut), Arc::clone(&is_stopping), endpoint.to_owned());
        thread::spawn(move || {
            for inner in listener.incoming().map_while(Result::ok) {
                if stopping.load(Relaxed) {
                    return;
                }
                let Ok(outer) = TcpStream::connect(&endpoint) else { continue };
                let (to_inner, to_outer) = (inner.try_clone(), outer.try_clone());
                let (Ok(to_inner), Ok(to_outer)) = (to_inner, to_outer) else { continue };
                let (there, back) = (Arc::clone(&cut), Arc::clone(&cut));
                thread::spawn(move || pass(inner, to_outer, &there));
                thread::spawn(move || pass(outer, to_inner, &back));
            }
        });
        Self { end, is_cut, is_stopping }
    }

    /// `host:port` of this end.
    pub fn endpoint(&self) -> String {
        self.end.to_string()
    }

    pub fn cut(&self) {
        self.is_cut.store(true, Relaxed);
    }

    pub fn mend(&self) {
        self.is_cut.store(false, Relaxed);
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        self.is_stopping.store(true, Relaxed);
        // The thread looks when somebody connects.
        drop(TcpStream::connect(self.end));
    }
}

/// Passes bytes on; those that come while the cable is cut are lost, and with them the connection.
fn pass(mut from: TcpStream, mut to: TcpStream, is_cut: &AtomicBool) {
    let mut bytes = [0; 4096];
    let mut is_lost = false;
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        is_lost |= is_cut.load(Relaxed);
        if !is_lost && to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    // The end of a connection does not pass either.
    while is_cut.load(Relaxed) {
        thread::sleep(Duration::from_millis(5));
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
}
