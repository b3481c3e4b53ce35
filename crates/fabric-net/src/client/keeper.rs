//! What processes that share memory servers need of each other: who is there, and one of them at a time.
//!
//! A thread keeps a connection to memory server 0 alive, so that the server can tell a process that does nothing from one that
//! is gone. A process that is gone is fenced off on all servers before anybody takes what it held: it may be cut off rather
//! than dead, and come back.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use pando_fabric::{Endpoint, FabricError, Limit, MemoryServerId, Result, limited};

use super::{TcpEndpoint, TcpFabric};
use crate::wire::Request;

/// Between two signs of life.
const PAUSE: Duration = Duration::from_secs(1);
/// The same after one that failed, and between two attempts to get the lock.
const PAUSE_SHORT: Duration = Duration::from_millis(20);
/// The server that knows who is there.
const HOME: MemoryServerId = MemoryServerId(0);

/// Shows that this process is alive, until it goes.
pub(super) struct Keeper {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    pub fn start(ep: TcpEndpoint) -> Result<Self> {
        let (stop, stopped) = mpsc::channel::<()>();
        let keep = move || {
            loop {
                // A failure is the next verb's news.
                let pause = if wait_for(&ep, ep.ping(HOME)).is_ok() { PAUSE } else { PAUSE_SHORT };
                if stopped.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        };
        let name = "pando-keeper".to_owned();
        let thread = thread::Builder::new().name(name.clone()).spawn(keep).map_err(|error| {
            FabricError::System { path: name, reason: format!("cannot be started: {error}") }
        })?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // One that panicked said so already.
            let _ = thread.join();
        }
    }
}

/// The lock of all processes that share these memory servers. It goes with this, and with the connection to memory server 0.
pub struct TcpLock {
    _ep: TcpEndpoint,
}

impl std::fmt::Debug for TcpLock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TcpLock")
    }
}

impl TcpFabric {
    fn own_endpoint(&self) -> TcpEndpoint {
        TcpEndpoint::new(std::sync::Arc::clone(&self.shared), 0)
    }

    /// Takes the lock that one process has at a time, waiting for it no longer than `patience`. A process that has it and is not
    /// heard any more is fenced off on all memory servers.
    ///
    /// # Errors
    /// `System` if somebody else holds it all the time, and those of verbs.
    pub fn lock_exclusive(&self, patience: Duration) -> Result<TcpLock> {
        let ep = self.own_endpoint();
        let until = Instant::now() + patience;
        let before = loop {
            match wait_for(&ep, ep.ask_server(HOME, Request::Lock))? {
                0 => {}
                before => break before,
            }
            if Instant::now() >= until {
                let path = format!("tcp://{}", self.shared.servers[0].destination.address);
                let reason = "another process is opening or making the pool, and does not finish".to_owned();
                return Err(FabricError::System { path, reason });
            }
            thread::sleep(PAUSE_SHORT);
        };
        if before > 1 {
            // Who had it was not heard for long, and was fenced off there. The other servers must not hear it either.
            for server in &self.shared.servers[1..] {
                wait_for(&ep, ep.ask_server(server.number, Request::Fence { process: before, link: 0 }))?;
            }
        }
        Ok(TcpLock { _ep: ep })
    }

    /// Whether a process is alive, by the number that its own fabric says ([`TcpFabric::process`]). If it is not, it is
    /// fenced off on all memory servers: nothing of what it may still send is executed. As long as one of them cannot be told,
    /// nobody knows, and it counts as alive. That takes half as long as a verb may: operations wait for the answer.
    pub fn is_alive(&self, process: u64) -> bool {
        if process == self.shared.process {
            return true;
        }
        let ep = self.own_endpoint();
        let is_gone = async {
            if ep.ask_server(HOME, Request::Present { process }).await? != 0 {
                return Ok(false);
            }
            for server in &self.shared.servers {
                ep.ask_server(server.number, Request::Fence { process, link: 0 }).await?;
            }
            Ok(true)
        };
        let limit = Limit::new(self.shared.deadline_ns() / 2);
        !wait_for(&ep, limited(&ep, &limit, is_gone)).unwrap_or(false)
    }
}

/// Drives a future of `ep`, which has no executor here.
pub fn wait_for<T>(ep: &impl Endpoint, future: impl Future<Output = Result<T>>) -> Result<T> {
    let mut future = std::pin::pin!(future);
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    loop {
        if let std::task::Poll::Ready(done) = future.as_mut().poll(&mut cx) {
            return done;
        }
        ep.poll_ready();
        if !ep.idle() {
            thread::sleep(Duration::from_micros(200));
        }
    }
}
