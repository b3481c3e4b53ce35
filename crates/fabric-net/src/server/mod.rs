//! A memory server on the network: it executes the verbs of clients on a region of this process.
//!
//! It is a [`Server`] whose threads take what came on one connection, execute all whole requests of it, and answer them with one
//! system call; requests of one connection are executed in the order in which they were sent.

mod calls;
mod counters;
mod execute;
mod requests;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pando_fabric::{MAX_SERVERS, RequestHandler};
use pando_fabric_local::ServedRegion;

use crate::handshake::{Protocol, Rejection, Welcomed};
use crate::secret::Secret;
use crate::serve::{Connection, Core, Server, Service, Settings};
use crate::wire::BODY_MAX;
use calls::Callee;
pub use calls::Calls;
use counters::ServerCounters;
pub use counters::ServerCounts;

/// Another way for clients to the memory of a memory server, besides requests over their connections: a device's.
pub trait OtherWay: Send + Sync + std::fmt::Debug {
    /// Makes a way for one client out of what that said, and appends what it needs to know to `reply`. The way lasts as long as
    /// what is returned: once that is dropped, nothing that the client sent over it is executed any more. `calls` executes
    /// those that come this way.
    ///
    /// # Errors
    /// Why there is none, in words.
    fn pair(&self, request: &[u8], calls: Calls, reply: &mut Vec<u8>) -> Result<Box<dyn Send>, String>;
}

/// How a memory server treats its clients.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// What clients must know; empty.
    pub secret: Secret,
    /// Threads that execute verbs and calls, at least 1; 1.
    pub threads: usize,
    /// Connections of clients at the same time; 4096.
    pub clients_max: usize,
    /// Connections at the same time whose handshake is not over; 256. One more closes the oldest of them.
    pub strangers_max: usize,
    /// Bytes that one request may carry or ask for; 4 MiB.
    pub body_max: u32,
    /// How long a client may take to say who it is, to finish a request, or to take an answer; 10 s.
    pub patience: Duration,
    /// How long a thread looks for more work before it sleeps; 50 µs.
    pub busy_poll: Duration,
    /// How long a process counts as alive after it was heard last: links break and are made again, and hosts are busy; 10 s.
    pub grace: Duration,
    /// Says whether a region is still the one that clients knew: to be another one whenever what it held is lost; 0.
    pub incarnation: u64,
    /// Bytes that unfinished requests of all clients may take together, beyond 64 KiB each; 256 MiB.
    pub input_max: usize,
    /// A file in which processes that were given up for dead are kept for the next server of the same memory; none.
    pub fences: Option<PathBuf>,
    /// How one-sided verbs come instead of over connections, which then refuse them; none.
    pub other_way: Option<Arc<dyn OtherWay>>,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            secret: Secret::default(),
            threads: 1,
            clients_max: 4096,
            strangers_max: 256,
            body_max: BODY_MAX,
            patience: Duration::from_secs(10),
            busy_poll: Duration::from_micros(50),
            grace: Duration::from_secs(10),
            incarnation: 0,
            input_max: 256 << 20,
            fences: None,
            other_way: None,
        }
    }
}

/// What all threads of a memory server share.
struct Memory {
    region: ServedRegion,
    callee: Arc<Callee>,
    body_max: u32,
    incarnation: u64,
    other_way: Option<Arc<dyn OtherWay>>,
}

impl Service for Memory {
    const PROTOCOL: Protocol = Protocol::VERBS;
    // Whoever came first does not wait for the others.
    const GATHERS: bool = false;
    /// Bytes of the first request, a PERSIST, that are done.
    type State = u64;
    type Worker = ();
    type Error = io::Error;

    fn worker(&self) -> io::Result<()> {
        Ok(())
    }

    fn welcomed(&self) -> Welcomed {
        Welcomed { region_len: self.region.bytes(), body_max: self.body_max, incarnation: self.incarnation }
    }

    fn check_number(&self, number: u16) -> Result<(), Rejection> {
        let wanted = Self::PROTOCOL.server;
        if usize::from(number) < MAX_SERVERS { Ok(()) } else { Err(Rejection::NotPando { wanted }) }
    }

    fn turn(&self, core: &Core, (): &mut (), connections: &mut [Connection<u64>]) {
        for connection in connections {
            if let Err(end) = self.serve(core, connection) {
                connection.end(end);
            }
        }
    }
}

/// A memory server that runs until it is dropped.
pub struct TcpServer {
    server: Server<Memory>,
}

impl TcpServer {
    /// Serves `region` to whoever connects to `listener`; `handler` executes calls, which are refused without one.
    ///
    /// # Errors
    /// Those of the system when sockets and threads are made.
    pub fn start(
        listener: TcpListener,
        region: ServedRegion,
        handler: Option<Arc<dyn RequestHandler>>,
        config: ServerConfig,
    ) -> io::Result<Self> {
        let ServerConfig { secret, threads, clients_max, strangers_max, body_max, .. } = config;
        let ServerConfig { patience, busy_poll, grace, incarnation, input_max, fences, other_way, .. } =
            config;
        let counters = ServerCounters::default();
        let callee = Arc::new(Callee { region: region.clone(), handler, body_max, counters });
        let memory = Memory { region, callee, body_max, incarnation, other_way };
        let settings = Settings {
            secret,
            threads,
            clients_max,
            strangers_max,
            patience,
            busy_poll,
            grace,
            input_max,
            fences,
        };
        Ok(Self { server: Server::start(listener, memory, settings)? })
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.server.addr()
    }

    /// What it did so far.
    pub fn counts(&self) -> ServerCounts {
        self.server.service().callee.counters.snapshot(self.server.connections())
    }

    /// The same, for somebody who outlives the server.
    pub fn counter(&self) -> impl Fn() -> ServerCounts + Send + Sync + 'static {
        self.server.told(|memory, connections| memory.callee.counters.snapshot(connections))
    }
}

impl std::fmt::Debug for TcpServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let region = &self.server.service().region;
        f.debug_struct("TcpServer").field("addr", &self.addr()).field("region", region).finish()
    }
}
