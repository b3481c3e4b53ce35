//! The operation port of a compute server.
//!
//! Each thread has a session of the index and its share of the connections. It receives their requests,
//! executes them in its slots (`flight.rs`), and answers each connection in order with one system call.
//! Receiving continues meanwhile: an operation that waits for a memory server delays no other client. Only
//! keys that this process owns are served.
//!
//! Operations of a client are inside the gate of its connection. If a client reconnects with the link
//! identifier of a lost connection, its new requests are received only after all operations of the lost one
//! have ended. So no late operation is executed after newer ones.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use pando::remote::Described;
use pando::remote::wire::{BODY_MAX, Request, request_len};
use pando::{AsyncSession, Index, OwnedKeys, Session};
use pando_fabric_net::serve::{Connection, Core, End, IoThread, Server, Service, Settings, Step};
use pando_fabric_net::{Protocol, Secret, Welcomed, random_nonzero};

use crate::counts::{Counters, OperationCounts};
use crate::execute::{Scope, execute};
use crate::flight::{Answers, Batch, Flight};
use crate::round::{JOBS_MAX, gather};

/// Largest number of threads.
const THREADS_MAX: usize = 256;
/// Largest number of slots of a thread: the bits of a word.
const SLOTS_MAX: usize = 64;
/// Time for which a thread polls for answers of memory servers before it sleeps until one arrives.
const SPIN: Duration = Duration::from_micros(50);
/// Requests that every connection may have in flight.
const SHARE_MIN: usize = 16;

/// Options of an [`OperationServer`].
#[derive(Clone, Debug)]
pub struct OperationConfig {
    /// Secret that clients must present; none.
    pub secret: Secret,
    /// Threads that execute operations, 1 to 256; 1. Each has a session.
    pub threads: usize,
    /// Operations in flight on a thread, 1 to 64; 64.
    pub slots: usize,
    /// Largest number of simultaneous connections of clients; 4096.
    pub clients_max: usize,
    /// Largest number of simultaneous connections in the handshake; 256. One more closes the oldest of them.
    pub strangers_max: usize,
    /// Bytes that unfinished requests of all clients may take together, beyond 64 KiB each; 256 MiB.
    pub input_max: usize,
    /// Bytes of the longest request body; 16 MiB and 128 KiB, enough for the longest value and its key.
    pub body_max: u32,
    /// Time within which a client must finish the handshake or a request, or take an answer; 10 s.
    pub patience: Duration,
    /// Time for which a thread polls for more work before it sleeps; 50 µs.
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
            input_max: 256 << 20,
            body_max: BODY_MAX,
            patience: Duration::from_secs(10),
            busy_poll: Duration::from_micros(50),
        }
    }
}

/// Failure to start an operation server.
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

/// State shared by all threads.
struct Operations {
    index: Index,
    described: Described,
    slots: usize,
    body_max: u32,
    incarnation: u64,
    /// Whether it counts as owning nothing.
    is_leaving: AtomicBool,
    counters: Counters,
}

/// State of one thread.
struct Worker {
    session: Rc<Session>,
    flight: Rc<Flight>,
    /// Answers of connections that wait for their turn, by the connections' numbers.
    answered: HashMap<u64, Answers>,
    /// Numbers of the connections that have a batch in flight.
    busy: HashSet<u64>,
}

/// The keys that this process owns, as one thread knows them.
struct Owned {
    /// Version of the routes that `keys` was read at.
    version: Cell<Option<(u64, u64)>>,
    keys: RefCell<Rc<OwnedKeys>>,
}

/// State of one connection.
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
        let (session, flight) = (Rc::new(self.index.session()?), Rc::default());
        Ok(Worker { session, flight, answered: HashMap::new(), busy: HashSet::new() })
    }

    fn welcomed(&self) -> Welcomed {
        Welcomed { region_len: 0, body_max: self.body_max, incarnation: self.incarnation }
    }

    fn turn(&self, core: &Core, worker: &mut Worker, connections: &mut [Client]) {
        let since = Instant::now();
        let share = JOBS_MAX / (connections.len() + worker.flight.under_way()).max(1);
        for connection in connections {
            if let Some(answers) = worker.answered.remove(&connection.serial()) {
                worker.busy.remove(&connection.serial());
                self.answer(connection, answers);
            }
            // Also sends answers to a client whose later bytes are malformed.
            if let Err(end) = connection.send(core) {
                connection.end(end);
            }
            if !connection.is_blocked()
                && !connection.has_ended()
                && !worker.busy.contains(&connection.serial())
            {
                self.begin(worker, connection, share.max(SHARE_MIN), since);
            }
            let is_worked_on = worker.busy.contains(&connection.serial());
            connection.set_worked_on(is_worked_on);
            let needed =
                request_len(connection.input()).filter(|_| !is_worked_on && !connection.is_blocked());
            connection.make_room(needed.unwrap_or(0));
        }
        // Drop the answers of closed connections.
        for (serial, _) in worker.answered.drain() {
            worker.busy.remove(&serial);
        }
    }

    fn add_ready(&self, worker: &mut Worker, ready: &mut Vec<usize>) {
        for batch in worker.flight.take_finished() {
            ready.push(batch.number);
            worker.answered.insert(batch.serial, batch.take_answers());
        }
    }

    /// One slot receives requests and sends answers; the others execute.
    fn drive(&self, thread: IoThread<Self>, worker: Worker) {
        let (session, flight) = (Rc::clone(&worker.session), Rc::clone(&worker.flight));
        let none = Rc::new(OwnedKeys { epoch: 0, ranges: Vec::new() });
        let owned = &Owned { version: Cell::new(None), keys: RefCell::new(none) };
        let (flight, desk) = (&*flight, &RefCell::new((thread, worker)));
        let ran = session.in_flight(1 + self.slots.min(SLOTS_MAX - 1), |slot, session| async move {
            if slot == 0 {
                self.attend(desk, session, flight).await;
                return flight.stop();
            }
            let execute = async |request: &Request<'_>, out: &mut Vec<u8>| {
                let keys = owned.now(self);
                execute(
                    session,
                    Scope { index: &self.index, described: &self.described, owned: &keys },
                    request,
                    out,
                )
                .await
            };
            flight.work(self.body_max, execute).await;
        });
        ran.expect("the number of slots was checked, and this is not within one");
    }
}

impl Operations {
    /// Whether the client may send this request in this state of its connection.
    fn admit(&self, state: &State, request: &Request<'_>) -> Result<(), String> {
        match request {
            Request::Open { name } if *name == self.index.name() => state.is_open.set(true),
            Request::Open { .. } | Request::Describe => {}
            _ if !state.is_open.get() => return Err("it asks before it has opened an index".to_owned()),
            _ => {}
        }
        Ok(())
    }

    /// Begins those received requests of a connection that may be executed concurrently.
    fn begin(&self, worker: &mut Worker, connection: &mut Client, share: usize, since: Instant) {
        if connection.input().is_empty() {
            return;
        }
        let (client, state) = connection.client();
        let Some(pass) = client.gate.pass() else { return connection.end(End::Fenced) };
        let admit = |request: &Request<'_>| self.admit(state, request);
        match gather(connection.input(), self.body_max, share, admit) {
            Ok(jobs) if jobs.is_empty() => {}
            Ok(jobs) => {
                let (number, serial) = (connection.number(), connection.serial());
                worker.flight.begin(Batch::new(number, serial, connection.input(), &jobs, pass, since));
                worker.busy.insert(serial);
            }
            Err(wrong) => connection.end(End::Malformed(wrong)),
        }
    }

    /// Moves answers to the output of the connection. Requests that were not begun stay in the input.
    fn answer(&self, connection: &mut Client, answers: Answers) {
        for (op, used, answer) in answers {
            connection.take(used);
            connection.output().extend_from_slice(&answer.reply);
            self.counters.add(op, answer.ended, answer.took);
        }
    }

    /// Receives requests until the server stops. While operations wait for memory servers, it sleeps only for
    /// short times.
    async fn attend(
        &self,
        desk: &RefCell<(IoThread<Self>, Worker)>,
        session: AsyncSession<'_>,
        flight: &Flight,
    ) {
        let mut vain_since: Option<Instant> = None;
        std::future::poll_fn(|cx| {
            let (thread, worker) = &mut *desk.borrow_mut();
            match thread.step(worker, flight.under_way() > 0) {
                Step::Stop => return Poll::Ready(()),
                Step::Active => vain_since = None,
                Step::Vain if flight.under_way() > 0 => {
                    let since = *vain_since.get_or_insert_with(Instant::now);
                    if since.elapsed() < SPIN || !session.sleep_until_answered() {
                        thread::yield_now();
                    }
                }
                Step::Vain => {}
            }
            // This slot runs again after all slots that are ready.
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }
}

impl Owned {
    /// The keys that this process owns now.
    fn now(&self, operations: &Operations) -> Rc<OwnedKeys> {
        let none = || OwnedKeys { epoch: 0, ranges: Vec::new() };
        if operations.is_leaving.load(Relaxed) {
            return Rc::new(none());
        }
        let index = &operations.index;
        let version = index.owned_keys_version();
        if self.version.get() != Some(version) {
            *self.keys.borrow_mut() = Rc::new(index.owned_keys().unwrap_or_else(|_| none()));
            self.version.set(Some(version));
        }
        Rc::clone(&self.keys.borrow())
    }
}

/// A port at which other processes request operations on an index. It serves until it is dropped.
///
/// The server has sessions of the index open. So exclusive work, such as closing the cluster, is refused
/// while it runs.
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
    /// Serves `index` to the clients that connect to `listener`, as far as this process owns its keys.
    ///
    /// # Errors
    /// [`StartError::InvalidOption`] for an option out of its bounds; errors of the system when sockets and
    /// threads are created; errors of [`Index::session`].
    pub fn start(listener: TcpListener, index: Index, config: OperationConfig) -> Result<Self, StartError> {
        let OperationConfig {
            secret,
            threads,
            slots,
            clients_max,
            strangers_max,
            input_max,
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
            log: None,
        };
        let operations = Operations {
            index,
            described,
            slots,
            body_max,
            incarnation: random_nonzero(),
            is_leaving: AtomicBool::new(false),
            counters: Counters::default(),
        };
        let grace = Duration::ZERO;
        let settings = Settings {
            secret,
            threads,
            clients_max,
            strangers_max,
            patience,
            busy_poll,
            grace,
            input_max,
            fences: None,
        };
        Ok(Self { server: Server::start(listener, operations, settings)? })
    }

    /// Address at which it listens.
    pub fn addr(&self) -> SocketAddr {
        self.server.addr()
    }

    /// Refuses what is received from now on, as a server that owns none of the keys, for so long: clients then look for
    /// another server, and none of them has a request here when this one ends.
    pub fn leave(&self, time: Duration) {
        self.server.service().is_leaving.store(true, Relaxed);
        thread::sleep(time);
    }

    /// Counts since the start.
    pub fn counts(&self) -> OperationCounts {
        self.server.service().counters.snapshot(self.server.connections())
    }

    /// A function that returns [`OperationServer::counts`] and may outlive the server.
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
