//! A server of any protocol of Pando: a bounded number of threads that share the connections, and one at the door.
//!
//! What is the same for all is here: accepting and dealing out, the handshake, buffers, and that nobody can make a server
//! wait. A connection that sends half a request, takes no answers, or never says who it is, is closed after
//! [`Settings::patience`], and one that sends what is no request at once. Strangers, who have not said who they are, are
//! counted apart from clients. A server without work sleeps. What requests are and what is done about them is the
//! [`Service`]'s.

mod budget;
mod clients;
mod connection;
mod counters;
mod descriptors;
mod doorman;
mod fences;
mod io_thread;
mod lines;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::handshake::{LinkId, Protocol, Rejection, Welcomed};
use crate::secret::Secret;
use budget::Budget;
pub use clients::{Client, Clients, Gate, Locked, Pass};
pub use connection::{Connection, End, OUTPUT_MAX};
use counters::ConnectionCounters;
pub use counters::ConnectionCounts;
use descriptors::make_room;
use doorman::Doorman;
use fences::Fences;
use io_thread::{Inbox, Wake};
pub use io_thread::{IoThread, Step};
use lines::LimitedLog;

/// How a server treats its clients.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What clients must know.
    pub secret: Secret,
    /// At least 1.
    pub threads: usize,
    /// Connections of clients at the same time.
    pub clients_max: usize,
    /// Connections of strangers, whose handshake is not over, at the same time. When there is one more, the one that has been a
    /// stranger for longest is closed. They never take the place of a client.
    pub strangers_max: usize,
    /// How long a client may take to say who it is, to finish a request, or to take an answer.
    pub patience: Duration,
    /// How long a thread looks for more work before it sleeps.
    pub busy_poll: Duration,
    /// How long a process counts as alive after its last connection went.
    pub grace: Duration,
    /// Bytes that unfinished requests of all clients may take together, beyond 64 KiB each.
    pub input_max: usize,
    /// A file with the processes that were given up for dead, to be kept for the next server; without one they are forgotten.
    pub fences: Option<PathBuf>,
}

/// What a server does for its clients.
pub trait Service: Send + Sync + Sized + 'static {
    const PROTOCOL: Protocol;
    /// Whether all that came at once is executed together, rather than what came on each connection by itself.
    const GATHERS: bool;
    /// What belongs to one connection.
    type State: Default + Send;
    /// What belongs to one thread, and is made on it.
    type Worker;
    type Error: From<io::Error> + Send + 'static;

    /// # Errors
    /// Those for which the server does not start.
    fn worker(&self) -> Result<Self::Worker, Self::Error>;

    /// What clients learn when they are let in.
    fn welcomed(&self) -> Welcomed;

    /// # Errors
    /// Why no client that knows this server as `number` is let in.
    fn check_number(&self, number: u16) -> Result<(), Rejection> {
        let _ = number;
        Ok(())
    }

    /// Takes requests out of connections whose handshake is over and that may have some, executes them, and writes and sends
    /// the replies. What is whole and is left, though its connection is not blocked, asks to be
    /// [called again](Connection::call_again).
    fn turn(&self, core: &Core, worker: &mut Self::Worker, connections: &mut [Connection<Self::State>]);

    /// Adds the numbers of connections whose turn it is although nothing came over them.
    fn add_ready(&self, worker: &mut Self::Worker, ready: &mut Vec<usize>) {
        let _ = (worker, ready);
    }

    /// Runs a thread, by steps, until it is to stop. A service that has something under way between turns does both here.
    fn drive(&self, mut thread: IoThread<Self>, mut worker: Self::Worker) {
        while thread.step(&mut worker, false) != Step::Stop {}
    }
}

/// What all threads of a server share, of any protocol.
pub struct Core {
    pub(crate) clients: Clients,
    counters: ConnectionCounters,
    budget: Budget,
    stranger_log: LimitedLog,
    client_log: LimitedLog,
    settings: Settings,
    is_stopping: AtomicBool,
}

impl Core {
    /// Makes a client of a stranger who has shown that he knows the secret.
    fn admit(&self, number: u16, id: LinkId) -> Result<Client, Rejection> {
        if !self.counters.admit_client(self.settings.clients_max) {
            return Err(Rejection::Full);
        }
        let entered = self.clients.enter(number, id);
        if entered.is_err() {
            self.counters.clients.fetch_sub(1, Relaxed);
        }
        entered
    }

    /// To be called when the connection of a client is closed.
    fn leave(&self, client: &Client) {
        self.clients.leave(client);
        self.counters.clients.fetch_sub(1, Relaxed);
    }
}

struct Shared<S> {
    core: Core,
    service: S,
}

/// A server that runs until it is dropped.
pub struct Server<S: Service> {
    addr: SocketAddr,
    shared: Arc<Shared<S>>,
    inboxes: Arc<[Inbox]>,
    /// Wakes the thread at the door.
    door: Arc<Wake>,
    threads: Vec<JoinHandle<()>>,
}

impl<S: Service> Server<S> {
    /// Serves whoever connects to `listener`.
    ///
    /// # Errors
    /// Those of the system when sockets and threads are made, and of [`Service::worker`].
    pub fn start(listener: TcpListener, service: S, settings: Settings) -> Result<Self, S::Error> {
        settings.secret.check().map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let clients_max = make_room(settings.clients_max, settings.strangers_max)?;
        let settings = Settings { clients_max, ..settings };
        // That takes a moment, for which no client is to wait.
        settings.secret.key();
        let fences = settings.fences.as_deref().map(Fences::kept_at).transpose()?.unwrap_or_default();
        let addr = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let inboxes: Arc<[Inbox]> =
            (0..settings.threads.max(1)).map(|_| Inbox::new()).collect::<io::Result<Vec<_>>>()?.into();
        let core = Core {
            clients: Clients::with_fences(settings.grace, fences),
            counters: ConnectionCounters::default(),
            budget: Budget::new(settings.input_max),
            stranger_log: LimitedLog::of("stranger"),
            client_log: LimitedLog::of("connection closed"),
            settings,
            is_stopping: AtomicBool::new(false),
        };
        let shared = Arc::new(Shared { core, service });
        let door = Arc::new(Wake::new()?);
        let mut server = Self { addr, shared, inboxes, door, threads: Vec::new() };
        let (started, starting) = mpsc::channel();
        for number in 0..server.inboxes.len() {
            let (shared, inboxes) = (Arc::clone(&server.shared), Arc::clone(&server.inboxes));
            let thread = IoThread::new(shared, inboxes, number)?;
            let started = started.clone();
            let run = move || match thread.shared.service.worker() {
                Ok(worker) => {
                    // Whoever started this one may have given up by now, and then tells it to stop.
                    let _ = started.send(Ok(()));
                    drop(started);
                    let shared = Arc::clone(&thread.shared);
                    shared.service.drive(thread, worker);
                }
                Err(error) => {
                    let _ = started.send(Err(error));
                }
            };
            server.threads.push(thread::Builder::new().name(format!("pando-io.{number}")).spawn(run)?);
        }
        drop(started);
        // It ends when all have said something, or panicked.
        starting.into_iter().collect::<Result<(), _>>()?;
        let (shared, inboxes) = (Arc::clone(&server.shared), Arc::clone(&server.inboxes));
        let doorman = Doorman::new(shared, inboxes, &server.door, listener)?;
        server.threads.push(thread::Builder::new().name("pando-door".to_owned()).spawn(|| doorman.run())?);
        Ok(server)
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub fn service(&self) -> &S {
        &self.shared.service
    }

    pub fn connections(&self) -> ConnectionCounts {
        self.shared.core.counters.snapshot()
    }

    /// Something that `tell` makes of the service and its connections, for somebody who may outlive the server.
    pub fn told<T, F>(&self, tell: F) -> impl Fn() -> T + Send + Sync + 'static + use<S, T, F>
    where
        T: 'static,
        F: Fn(&S, ConnectionCounts) -> T + Send + Sync + 'static,
    {
        let shared = Arc::clone(&self.shared);
        move || tell(&shared.service, shared.core.counters.snapshot())
    }
}

impl<S: Service> Drop for Server<S> {
    /// Closes all connections; what was not answered may or may not have been executed.
    fn drop(&mut self) {
        self.shared.core.is_stopping.store(true, SeqCst);
        self.door.wake();
        for inbox in &*self.inboxes {
            inbox.wake.wake();
        }
        for thread in self.threads.drain(..) {
            // One that panicked said so already.
            let _ = thread.join();
        }
        // Somebody may keep what is shared, for its counters; other ways in end here all the same.
        self.shared.core.clients.close();
    }
}
