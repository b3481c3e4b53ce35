//! A server of any protocol of Pando: a bounded number of threads that share the connections, and one that
//! accepts them.
//!
//! The common parts are here: accepting and distributing connections, the handshake, buffers, and protection
//! against stalling. A connection that sends half a request, does not accept answers, or does not complete
//! its handshake is closed after [`Settings::patience`], one that sends an invalid request at once.
//! *Strangers*, whose handshake is not complete, are counted apart from clients. A server without work
//! sleeps. A [`Service`] defines the requests and executes them.

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
pub use clients::{Client, Clients, Gate, HeardProcess, Locked, Pass};
pub use connection::{Connection, End, OUTPUT_MAX};
use counters::ConnectionCounters;
pub use counters::ConnectionCounts;
use descriptors::make_room;
use doorman::Doorman;
use fences::Fences;
use io_thread::{Inbox, Wake};
pub use io_thread::{IoThread, Step};
use lines::LimitedLog;

/// Configuration of a server.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Secret that clients must know.
    pub secret: Secret,
    /// Number of threads, at least 1.
    pub threads: usize,
    /// Maximum number of connected clients.
    pub clients_max: usize,
    /// Maximum number of strangers (connections whose handshake is not complete). One more closes the oldest.
    /// They never take the place of a client.
    pub strangers_max: usize,
    /// Longest time for a handshake, for the rest of a request, and for accepting an answer.
    pub patience: Duration,
    /// Time for which a thread polls for more work before it sleeps.
    pub busy_poll: Duration,
    /// How long a process counts as alive after its last request.
    pub grace: Duration,
    /// Total bytes of unfinished requests of all clients, beyond 64 KiB each.
    pub input_max: usize,
    /// File that keeps the processes given up for dead for the next server; without one they are forgotten at
    /// the end.
    pub fences: Option<PathBuf>,
}

/// The protocol-specific part of a server.
pub trait Service: Send + Sync + Sized + 'static {
    const PROTOCOL: Protocol;
    /// Whether the input of all ready connections is executed together, instead of connection by connection.
    const GATHERS: bool;
    /// State of one connection.
    type State: Default + Send;
    /// State of one thread, created on it.
    type Worker;
    type Error: From<io::Error> + Send + 'static;

    /// Creates the state of a thread.
    ///
    /// # Errors
    /// Errors for which the server does not start.
    fn worker(&self) -> Result<Self::Worker, Self::Error>;

    /// Parameters sent to an admitted client.
    fn welcomed(&self) -> Welcomed;

    /// Checks the number by which a client knows this server.
    ///
    /// # Errors
    /// The reason why no client with this number is admitted.
    fn check_number(&self, number: u16) -> Result<(), Rejection> {
        let _ = number;
        Ok(())
    }

    /// Takes requests from admitted connections that may have some, executes them, and writes and sends the
    /// replies. If complete requests remain on a connection that is not blocked, the service [calls it
    /// again](Connection::call_again).
    fn turn(&self, core: &Core, worker: &mut Self::Worker, connections: &mut [Connection<Self::State>]);

    /// Adds the numbers of connections that must be handled although no input came.
    fn add_ready(&self, worker: &mut Self::Worker, ready: &mut Vec<usize>) {
        let _ = (worker, ready);
    }

    /// Runs a thread by steps until it must stop. A service with work in progress between turns overrides
    /// this.
    fn drive(&self, mut thread: IoThread<Self>, mut worker: Self::Worker) {
        while thread.step(&mut worker, false) != Step::Stop {}
    }
}

/// State shared by all threads of a server, of any protocol.
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
    /// Makes a stranger with a valid proof a client.
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

    /// Must be called when the connection of a client is closed.
    fn leave(&self, client: &Client) {
        self.clients.leave(client);
        self.counters.clients.fetch_sub(1, Relaxed);
    }
}

struct Shared<S> {
    core: Core,
    service: S,
}

/// A running server. Dropping it stops it.
pub struct Server<S: Service> {
    addr: SocketAddr,
    shared: Arc<Shared<S>>,
    inboxes: Arc<[Inbox]>,
    /// Wakes the accepting thread.
    door: Arc<Wake>,
    threads: Vec<JoinHandle<()>>,
}

impl<S: Service> Server<S> {
    /// Serves connections to `listener`.
    ///
    /// # Errors
    /// System errors of creating sockets and threads, and errors of [`Service::worker`].
    pub fn start(listener: TcpListener, service: S, settings: Settings) -> Result<Self, S::Error> {
        settings.secret.check().map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let clients_max = make_room(settings.clients_max, settings.strangers_max)?;
        let settings = Settings { clients_max, ..settings };
        // Derive the key now, since that takes a moment and would delay the first client.
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
                    // The starter may have given up, and then tells this thread to stop.
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
        // The channel closes when every thread has reported or panicked.
        starting.into_iter().collect::<Result<(), _>>()?;
        let (shared, inboxes) = (Arc::clone(&server.shared), Arc::clone(&server.inboxes));
        let doorman = Doorman::new(shared, inboxes, &server.door, listener)?;
        server.threads.push(thread::Builder::new().name("pando-door".to_owned()).spawn(|| doorman.run())?);
        Ok(server)
    }

    /// The address it listens at.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub fn service(&self) -> &S {
        &self.shared.service
    }

    pub fn connections(&self) -> ConnectionCounts {
        self.shared.core.counters.snapshot()
    }

    /// A function that computes `tell` of the service and its connections; it may outlive the server.
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
    /// Closes all connections. Unanswered requests may or may not have been executed.
    fn drop(&mut self) {
        self.shared.core.is_stopping.store(true, SeqCst);
        self.door.wake();
        for inbox in &*self.inboxes {
            inbox.wake.wake();
        }
        for thread in self.threads.drain(..) {
            // A panic was already reported.
            let _ = thread.join();
        }
        // The shared state may outlive the server for its counters; other ways must end now.
        self.shared.core.clients.close();
    }
}
