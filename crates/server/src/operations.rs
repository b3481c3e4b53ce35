//! The operation port of a compute server.
//!
//! Each thread has a session of the index and its share of the connections. It takes what came in on all of them, executes it
//! in rounds (`round.rs`), and answers each connection in its order with one system call. Only keys that this process
//! owns are served.
//!
//! A round is executed while the gates of its clients are held. A client that connects anew, under the name of a connection
//! that it lost, closes the gate of that one first, so what is late of it is not executed after what the client asks for then.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use pando::remote::Described;
use pando::remote::wire::{BODY_MAX, REQUEST_HEADER, Request};
use pando::{Index, OwnedKeys, Session};
use pando_fabric_net::serve::{Connection, Core, End, Server, Service, Settings};
use pando_fabric_net::{Protocol, Secret, Welcomed, random_nonzero};

use crate::counts::{Counters, OperationCounts};
use crate::execute::Scope;
use crate::round::{Answered, JOBS_MAX, execute_all, gather};

/// Threads at most.
const THREADS_MAX: usize = 256;
/// Slots of a thread at most: the bits of a word.
const SLOTS_MAX: usize = 64;
/// Rounds after which connections that were quiet so far are looked at.
const ROUNDS_MAX: usize = 64;
/// Requests that a connection may always have in a round.
const SHARE_MIN: usize = 16;

/// How an operation server treats its clients.
#[derive(Clone, Debug)]
pub struct OperationConfig {
    /// What clients must know; empty.
    pub secret: Secret,
    /// Threads that execute operations, 1 to 256; 1. Each has a session.
    pub threads: usize,
    /// Operations that a thread executes side by side, 1 to 64; 64.
    pub slots: usize,
    /// Connections of clients at the same time; 4096.
    pub clients_max: usize,
    /// Connections at the same time whose handshake is not over; 256. One more closes the oldest of them.
    pub strangers_max: usize,
    /// Bytes that one request may carry; 16 MiB and 128 KiB, so that there is room for the longest value and its key.
    pub body_max: u32,
    /// How long a client may take to say who it is, to finish a request, or to take an answer; 10 s.
    pub patience: Duration,
    /// How long a thread looks for more work before it sleeps; 50 µs.
    pub busy_poll: Duration,
}

impl Default for OperationConfig {
    fn default() -> Self {
        Self {
            secret: Secret::default(),
            threads: 1,
            slots: SLOTS_MAX,
            clients_max: 4096,
            strangers_max: 256,
            body_max: BODY_MAX,
            patience: Duration::from_secs(10),
            busy_poll: Duration::from_micros(50),
        }
    }
}

/// Why an operation server does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    #[error("{0}")]
    InvalidOption(String),
    #[error("the operation port cannot be served: {0}")]
    Io(#[from] io::Error),
    #[error(transparent)]
    Index(#[from] pando::Error),
}

/// What all threads share.
struct Operations {
    index: Index,
    described: Described,
    slots: usize,
    body_max: u32,
    incarnation: u64,
    counters: Counters,
}

/// One thread's.
struct Worker {
    session: Session,
    /// As of which version of the routes.
    owned: RefCell<(Option<(u64, u64)>, OwnedKeys)>,
}

/// One connection's.
#[derive(Default)]
struct State {
    is_open: Cell<bool>,
}

type Client = Connection<State>;

impl Service for Operations {
    const PROTOCOL: Protocol = Protocol::OPERATIONS;
    const GATHERS: bool = true;
    type State = State;
    type Worker = Worker;
    type Error = StartError;

    fn worker(&self) -> Result<Worker, StartError> {
        let owned = RefCell::new((None, OwnedKeys { epoch: 0, ranges: Vec::new() }));
        Ok(Worker { session: self.index.session()?, owned })
    }

    fn welcomed(&self) -> Welcomed {
        Welcomed { region_len: 0, body_max: self.body_max, incarnation: self.incarnation }
    }

    fn turn(&self, core: &Core, worker: &mut Worker, connections: &mut [Client]) {
        let since = Instant::now();
        let has_more = (0..ROUNDS_MAX).all(|_| self.round(core, worker, connections, since));
        for connection in connections {
            // Also to who sent nonsense afterwards.
            if let Err(end) = connection.send(core) {
                connection.end(end);
            }
            let is_blocked = connection.is_blocked();
            connection.make_room(if is_blocked { 0 } else { REQUEST_HEADER + self.body_max as usize });
            if has_more && !is_blocked && !connection.input().is_empty() {
                connection.call_again();
            }
        }
    }
}

impl Operations {
    /// Whether a client may ask this on a connection of such a state.
    fn admit(&self, state: &State, request: &Request<'_>) -> Result<(), String> {
        match request {
            Request::Open { name } if *name == self.index.name() => state.is_open.set(true),
            Request::Open { .. } | Request::Describe => {}
            _ if !state.is_open.get() => return Err("it asks before it has opened an index".to_owned()),
            _ => {}
        }
        Ok(())
    }

    /// Executes one round of what is in the connections; whether there was anything to do.
    fn round(&self, core: &Core, worker: &Worker, connections: &mut [Client], since: Instant) -> bool {
        let share = (JOBS_MAX / connections.len().max(1)).max(SHARE_MIN);
        let (mut jobs, mut ends, mut gates) = (Vec::new(), Vec::new(), Vec::new());
        for (place, connection) in connections.iter().enumerate() {
            if connection.is_laden() || connection.has_ended() || connection.input().is_empty() {
                continue;
            }
            let (client, state) = connection.client();
            let Some(gate) = client.gate.pass() else {
                ends.push((place, End::Fenced));
                continue;
            };
            let before = jobs.len();
            let admit = |request: &Request<'_>| self.admit(state, request);
            let gathered = gather(&mut jobs, (place, connection.input()), (self.body_max, share), admit);
            if let Err(wrong) = gathered {
                ends.push((place, End::Malformed(wrong)));
            }
            if jobs.len() > before {
                gates.push(gate);
            }
        }
        let answers = match jobs.is_empty() {
            true => Vec::new(),
            false => {
                worker.look_at_routes(&self.index);
                let owned = worker.owned.borrow();
                let scope = Scope { index: &self.index, described: &self.described, owned: &owned.1 };
                execute_all(&worker.session, scope, &jobs, self.slots, since)
            }
        };
        drop(gates);
        let done: Vec<_> = jobs.iter().map(|job| (job.connection, job.op(), job.used)).collect();
        for ((place, op, used), Answered { reply, ended, took }) in done.into_iter().zip(&answers) {
            let connection = &mut connections[place];
            connection.take(used);
            connection.output().extend_from_slice(reply);
            self.counters.add(op, *ended, *took);
        }
        for (place, end) in ends {
            connections[place].end(end);
        }
        for connection in connections.iter_mut().filter(|connection| connection.is_laden()) {
            if let Err(end) = connection.send(core) {
                connection.end(end);
            }
        }
        !answers.is_empty()
    }
}

impl Worker {
    /// Learns which keys this process owns, if that may have changed.
    fn look_at_routes(&self, index: &Index) {
        let version = index.owned_keys_version();
        let mut owned = self.owned.borrow_mut();
        if owned.0 != Some(version) {
            let none = OwnedKeys { epoch: 0, ranges: Vec::new() };
            *owned = (Some(version), index.owned_keys().unwrap_or(none));
        }
    }
}

/// A port at which other processes have operations executed on an index, until it is dropped.
///
/// As long as it runs it has sessions of the index open: what needs that at rest, such as closing the cluster, is refused.
///
/// ```
/// use std::net::TcpListener;
///
/// use pando::remote::{Client, ClientConfig};
/// use pando::{Cluster, Config, IndexOptions};
/// use pando_server::{OperationConfig, OperationServer};
///
/// let cluster = Cluster::open(Config::embedded())?;
/// let trees = cluster.create_index("trees", &IndexOptions::bytes())?;
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// let server = OperationServer::start(listener, trees, OperationConfig::default())?;
///
/// // Anywhere else.
/// let client = Client::connect(ClientConfig::new([server.addr().to_string()]))?;
/// let session = client.open_index("trees")?.session();
/// session.put(b"aspen", b"Populus tremuloides")?;
/// assert_eq!(session.get(b"aspen")?.as_deref(), Some(&b"Populus tremuloides"[..]));
/// assert_eq!(server.counts().done("put"), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct OperationServer {
    server: Server<Operations>,
}

impl OperationServer {
    /// Serves `index`, as far as this process owns its keys, to whoever connects to `listener`.
    ///
    /// # Errors
    /// [`StartError::InvalidOption`] for what is out of its bounds; those of the system when sockets and threads are made, and of
    /// [`Index::session`].
    pub fn start(listener: TcpListener, index: Index, config: OperationConfig) -> Result<Self, StartError> {
        let OperationConfig {
            secret,
            threads,
            slots,
            clients_max,
            strangers_max,
            body_max,
            patience,
            busy_poll,
        } = config;
        for (what, number, max) in [("threads", threads, THREADS_MAX), ("slots", slots, SLOTS_MAX)] {
            if !(1..=max).contains(&number) {
                let text = format!("{number} {what} of an operation server are not between 1 and {max}");
                return Err(StartError::InvalidOption(text));
            }
        }
        let info = index.info()?;
        let described = Described {
            name: info.name,
            description: info.description,
            node_size: info.node_size as u32,
            subtree_level: info.subtree_level,
        };
        let operations = Operations {
            index,
            described,
            slots,
            body_max,
            incarnation: random_nonzero(),
            counters: Counters::default(),
        };
        let grace = Duration::ZERO;
        let settings = Settings { secret, threads, clients_max, strangers_max, patience, busy_poll, grace };
        Ok(Self { server: Server::start(listener, operations, settings)? })
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.server.addr()
    }

    /// What it did so far.
    pub fn counts(&self) -> OperationCounts {
        self.server.service().counters.snapshot(self.server.connections())
    }

    /// The same, for somebody who outlives the server.
    pub fn counter(&self) -> impl Fn() -> OperationCounts + Send + Sync + 'static {
        self.server.told(|operations, connections| operations.counters.snapshot(connections))
    }

    /// The index that it serves.
    pub fn index(&self) -> &Index {
        &self.server.service().index
    }
}

impl std::fmt::Debug for OperationServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let index = self.index().name();
        f.debug_struct("OperationServer").field("addr", &self.addr()).field("index", &index).finish()
    }
}
