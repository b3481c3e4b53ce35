//! A memory server on the network: it executes the verbs of clients on a region of this process.
//!
//! It is a [`Server`] whose threads execute all complete requests of a connection and answer them with one
//! system call. The requests of a connection are executed in the order of sending.

mod calls;
mod counters;
mod execute;
mod filling;
mod member;
mod outside;
mod refill;
mod requests;
mod rounds;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use pando_fabric::{MAX_SERVERS, RequestHandler};
use pando_fabric_local::ServedRegion;
use pando_member::Terms;

use crate::group::MemberCondition;
use crate::handshake::{Protocol, Rejection, Welcomed};
use crate::secret::Secret;
use crate::serve::{Connection, Core, Server, Service, Settings};
use crate::wire::BODY_MAX;
use calls::Callee;
pub use calls::Calls;
use counters::ServerCounters;
pub use counters::ServerCounts;
use member::Member;
pub use outside::OutsideRegister;
use rounds::{Copying, Rounds};

/// Another way for clients to a memory server's memory, besides their connections: through a device.
pub trait OtherWay: Send + Sync + std::fmt::Debug {
    /// Sets up a way for one client from its `request`, and appends the parameters for the client to `reply`.
    /// The way lasts until the returned value is dropped; after that no verb sent over it is executed.
    /// `calls` executes the calls that come this way.
    ///
    /// # Errors
    /// The reason why there is none, as text.
    /// Why there is none, in words.
    fn pair(&self, request: &[u8], calls: Calls, reply: &mut Vec<u8>) -> Result<Box<dyn Send>, String>;
}

/// Configuration of a memory server.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Secret that clients must know. Default: empty.
    pub secret: Secret,
    /// Threads that execute verbs and calls, at least 1. Default: 1.
    pub threads: usize,
    /// Maximum number of connected clients. Default: 4096.
    pub clients_max: usize,
    /// Maximum number of unfinished handshakes. One more closes the oldest. Default: 256.
    pub strangers_max: usize,
    /// Maximum bytes that one request may carry or ask for. Default: 4 MiB.
    pub body_max: u32,
    /// Longest time for a handshake, for the rest of a request, and for accepting an answer. Default: 10 s.
    pub patience: Duration,
    /// Time for which a thread polls for more work before it sleeps. Default: 50 µs.
    pub busy_poll: Duration,
    /// How long a process counts as alive after its last request: connections break and are made again, and
    /// hosts may be busy. Default: 10 s.
    pub grace: Duration,
    /// Identifies the content of the region: it must change whenever that is lost. Default: 0.
    pub incarnation: u64,
    /// Total bytes of unfinished requests of all clients, beyond 64 KiB each. Default: 256 MiB.
    pub input_max: usize,
    /// File that keeps the processes given up for dead for the next server of the same memory. Default: none.
    pub fences: Option<PathBuf>,
    /// How long this server may serve copies of other servers' memory, and of its own, after it was last in contact with
    /// most of them; and how long one of them may be silent before they go on without it. Default: 1 s.
    pub lease: Duration,
    /// Most bytes in a second that this server READs from others to fill its copies of their memory. Default: 256 MiB.
    pub copy_rate: u64,
    /// File that keeps what this server has promised to its group. Default: none, for memory that ends with it.
    pub acceptor: Option<PathBuf>,
    /// Register outside the servers for the view of the group that this one is to be in. The same for all of its servers.
    /// Default: none, the servers hold it.
    pub register: Option<OutsideRegister>,
    /// Whether this server's memory may be part of a group with copies. Default: yes.
    pub may_have_copies: bool,
    /// Way of one-sided verbs instead of connections, which then refuse them. Default: none.
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
            lease: Duration::from_secs(1),
            copy_rate: 256 << 20,
            acceptor: None,
            register: None,
            may_have_copies: true,
            other_way: None,
        }
    }
}

/// State shared by all threads of a memory server.
struct Memory {
    region: ServedRegion,
    callee: Arc<Callee>,
    body_max: u32,
    other_way: Option<Arc<dyn OtherWay>>,
    member: Arc<Member>,
}

/// State of a connection.
#[derive(Default)]
struct Progress {
    /// Number of bytes already persisted by the PERSIST at the front of the input.
    persisted: u64,
    /// Epoch of the view that it has entered; 0 if none.
    entered: u64,
}

impl Service for Memory {
    const PROTOCOL: Protocol = Protocol::VERBS;
    // Separate execution: the first request need not wait for the others.
    const GATHERS: bool = false;
    type State = Progress;
    type Worker = ();
    type Error = io::Error;

    fn worker(&self) -> io::Result<()> {
        Ok(())
    }

    fn welcomed(&self) -> Welcomed {
        let incarnation = self.member.incarnation();
        Welcomed { region_len: self.region.bytes(), body_max: self.body_max, incarnation }
    }

    fn check_number(&self, number: u16) -> Result<(), Rejection> {
        let wanted = Self::PROTOCOL.server;
        if usize::from(number) < MAX_SERVERS { Ok(()) } else { Err(Rejection::NotPando { wanted }) }
    }

    fn turn(&self, core: &Core, (): &mut (), connections: &mut [Connection<Progress>]) {
        for connection in connections {
            if let Err(end) = self.serve(core, connection) {
                connection.end(end);
            }
        }
    }
}

/// Longest time for the answers of a server that is about to end.
const LEAVE: Duration = Duration::from_millis(250);

/// A running memory server. Dropping it stops it.
pub struct TcpServer {
    server: Server<Memory>,
    _rounds: Rounds,
}

impl TcpServer {
    /// Serves `region` to clients that connect to `listener`. `handler` executes calls; without one they are
    /// refused.
    ///
    /// # Errors
    /// System errors of creating sockets and threads; `InvalidData` if what it kept of its group is damaged, or does not
    /// fit [`ServerConfig::register`].
    pub fn start(
        listener: TcpListener,
        region: ServedRegion,
        handler: Option<Arc<dyn RequestHandler>>,
        config: ServerConfig,
    ) -> io::Result<Self> {
        let ServerConfig { secret, threads, clients_max, strangers_max, body_max, .. } = config;
        let ServerConfig { patience, busy_poll, grace, incarnation, input_max, fences, other_way, .. } =
            config;
        let lease = config.lease.as_nanos() as u64;
        let refusal = match (config.may_have_copies, &other_way) {
            (_, Some(_)) => Some("memory that is reached by RDMA has no copies"),
            (false, _) => Some("the memory of a device has no copies"),
            (true, None) => None,
        };
        let terms = Terms { lease, suspect_after: lease };
        let member = Member::new(incarnation, terms, config.acceptor, config.register, refusal)?;
        let member = Arc::new(member);
        let copying = Copying { region: region.clone(), bytes_per_s: config.copy_rate };
        let rounds = Rounds::start(Arc::clone(&member), secret.clone(), copying)?;
        let counters = ServerCounters::default();
        let callee = Arc::new(Callee { region: region.clone(), handler, body_max, counters });
        let memory = Memory { region, callee, body_max, other_way, member };
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
        Ok(Self { server: Server::start(listener, memory, settings)?, _rounds: rounds })
    }

    /// For a member of a group that is about to be stopped: refuses to change primaries, and gives clients a moment to end
    /// what they have begun. An atomic that is in flight when a server ends may or may not have been executed, and its
    /// operation fails with that; one that was refused is sent to the server that follows.
    pub fn leave(&self) {
        let member = &self.server.service().member;
        if member.leave() {
            thread::sleep(Duration::from_nanos(member.terms.lease / 4).min(LEAVE));
        }
    }

    /// The address it listens at.
    pub fn addr(&self) -> SocketAddr {
        self.server.addr()
    }

    /// Its counters so far.
    pub fn counts(&self) -> ServerCounts {
        self.server.service().callee.counters.snapshot(self.server.connections())
    }

    /// A function that reads the counters; it may outlive the server.
    pub fn counter(&self) -> impl Fn() -> ServerCounts + Send + Sync + 'static {
        self.server.told(|memory, connections| memory.callee.counters.snapshot(connections))
    }

    /// A function that tells how it is in its group, if it is in one; it may outlive the server.
    pub fn member_condition(&self) -> impl Fn() -> Option<MemberCondition> + Send + Sync + 'static {
        self.server.told(|memory, _| memory.member.condition())
    }
}

impl std::fmt::Debug for TcpServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let region = &self.server.service().region;
        f.debug_struct("TcpServer").field("addr", &self.addr()).field("region", region).finish()
    }
}
