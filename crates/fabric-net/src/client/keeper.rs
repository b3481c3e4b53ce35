//! Liveness and mutual exclusion of the processes that share memory servers.
//!
//! A thread keeps a connection to memory server 0 alive, or to the one that serves its volume, so that the server can tell an idle process from a
//! dead one. The answers are a *lease*: the server counts this process as alive for so long after a sign of life. A process
//! that was stopped sees that its lease has expired, before it answers by what it has cached. A dead process is fenced off on all servers before others take over its locks and leases: it may
//! be only disconnected, and return.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use pando_fabric::{Endpoint, FabricError, Limit, Result, limited};
use pando_replica::Views;

use super::{Shared, TcpEndpoint, TcpFabric};
use crate::wire::Request;

/// Longest pause between two signs of life.
const PAUSE: Duration = Duration::from_secs(1);
/// Signs of life in the time of a lease, at least.
const PER_LEASE: u32 = 4;
/// Pause after a failed one, and between two attempts to take the lock.
const PAUSE_SHORT: Duration = Duration::from_millis(20);

/// Keeps this process present until it is dropped.
pub(super) struct Keeper {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    pub fn start(shared: Arc<Shared>) -> Result<Self> {
        let (stop, stopped) = mpsc::channel::<()>();
        let ep = TcpEndpoint::new(Arc::clone(&shared), 0);
        let keep = move || {
            loop {
                // The next verb reports a failure.
                let pause =
                    renew_lease(&shared, &ep).map_or(PAUSE_SHORT, |lease| PAUSE.min(lease / PER_LEASE));
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
            // A panic was already reported.
            let _ = thread.join();
        }
    }
}

/// The lock of all processes that share these memory servers. It ends when dropped, and with the connection
/// to memory server 0.
pub struct TcpLock {
    _ep: TcpEndpoint,
}

impl std::fmt::Debug for TcpLock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TcpLock")
    }
}

impl TcpFabric {
    /// An endpoint for control. Its fences belong to the newest view that is known, so that no server of a newer one misses them.
    fn own_endpoint(&self) -> TcpEndpoint {
        let ep = TcpEndpoint::new(Arc::clone(&self.shared), 0);
        if let Some(group) = self.shared.group.get() {
            ep.enter_view(group.newest_epoch());
        }
        ep
    }

    /// Takes the exclusive lock of these memory servers; waits for it for at most `patience`. A holder that
    /// is silent for too long is fenced off on all memory servers.
    ///
    /// # Errors
    /// `System` if another process holds it all the time; errors of verbs.
    pub fn lock_exclusive(&self, patience: Duration) -> Result<TcpLock> {
        let ep = self.own_endpoint();
        let until = Instant::now() + patience;
        let before = loop {
            match wait_for(&ep, ep.ask_server(self.shared.home(), Request::Lock)) {
                Ok(0) => {}
                Ok(before) => break before,
                // Another server of the group may give it soon.
                Err(error) if error.is_unreachable() && self.look_for_views() && Instant::now() < until => {}
                Err(error) => return Err(error),
            }
            if Instant::now() >= until {
                let path = format!("tcp://{}", self.shared.servers[0].destination.address);
                let reason = "another process is opening or making the pool, and does not finish".to_owned();
                return Err(FabricError::System { path, reason });
            }
            thread::sleep(PAUSE_SHORT);
        };
        if before > 1 {
            // That server fenced off the silent holder. Fence it off on the other servers too.
            for server in self.shared.serving() {
                wait_for(&ep, ep.ask_server(server, Request::Fence { process: before, link: 0 }))?;
            }
        }
        Ok(TcpLock { _ep: ep })
    }

    /// Looks for a newer view than the known one. Returns whether the servers are a group, which has views.
    fn look_for_views(&self) -> bool {
        let Some(group) = self.shared.group.get() else { return false };
        group.suspect(group.newest_epoch(), self.shared.home(), self.shared.now());
        true
    }

    /// Whether a process is alive, by its number ([`TcpFabric::process`]). A dead process is first fenced off
    /// on all memory servers, so that none of its late requests is executed. While a server does not confirm
    /// the fence, the process counts as alive. The check takes at most half of a verb's deadline, since
    /// operations wait for it.
    pub fn is_alive(&self, process: u64) -> bool {
        if process == self.shared.process {
            return true;
        }
        let ep = self.own_endpoint();
        let is_gone = async {
            if ep.ask_server(self.shared.home(), Request::Present { process }).await? != 0 {
                return Ok(false);
            }
            for server in self.shared.serving() {
                ep.ask_server(server, Request::Fence { process, link: 0 }).await?;
            }
            Ok(true)
        };
        let limit = Limit::new(self.shared.deadline_ns() / 2);
        !wait_for(&ep, limited(&ep, &limit, is_gone)).unwrap_or(false)
    }
}

/// Gives a sign of life, and renews the lease; returns its time.
fn renew_lease(shared: &Shared, ep: &TcpEndpoint) -> Result<Duration> {
    let (process, asked) = (shared.process, shared.now());
    let lease =
        Duration::from_millis(wait_for(ep, ep.ask_server(shared.home(), Request::Present { process }))?);
    // The server may have counted from any time after the question. Clocks may differ by a few percent.
    shared.leased_until.fetch_max(asked + lease.as_nanos() as u64 / 10 * 9, Relaxed);
    Ok(lease)
}

/// Drives a future of `ep` without an executor.
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
