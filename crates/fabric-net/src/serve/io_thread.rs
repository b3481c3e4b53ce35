//! A thread of a server: it sleeps until one of its connections is ready.
//!
//! Ready connections are handed to the service, one by one or all together ([`Service::GATHERS`]). New ones
//! arrive in the inbox. After work the thread polls for more for a moment, since a wake-up takes longer than
//! most requests. Then it sleeps, with a timeout only if a client owes something. It never waits for another
//! thread: a connection that has to is parked and checked again in a moment.

use std::io;
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;

use super::clients::Client;
use super::connection::{Connection, End, Interest};
use super::{Service, Shared};

/// Maximum number of events per wait.
pub(super) const EVENTS: usize = 256;
/// Interval between checks of clients that owe something.
const SWEEP: Duration = Duration::from_millis(100);
/// Interval between checks of parked connections.
const LOOK: Duration = Duration::from_millis(1);
const WAKE: u64 = u64::MAX;

/// Wakes a thread that waits for events.
pub(super) struct Wake(OwnedFd);

impl Wake {
    pub fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?))
    }

    pub fn wake(&self) {
        // The write fails only if the counter is full, and then the thread wakes anyway.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    pub fn fd(&self) -> &OwnedFd {
        &self.0
    }
}

/// An admitted client and its connection.
pub(super) struct Arrival {
    pub stream: TcpStream,
    pub peer: SocketAddr,
    pub client: Client,
}

/// Inbox of a thread for new connections.
pub(super) struct Inbox {
    arrived: Mutex<Vec<Arrival>>,
    pub wake: Wake,
}

impl Inbox {
    pub fn new() -> io::Result<Self> {
        Ok(Self { arrived: Mutex::default(), wake: Wake::new()? })
    }

    pub fn put(&self, arrival: Arrival) {
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner).push(arrival);
        self.wake.wake();
    }

    fn take(&self) -> Vec<Arrival> {
        let _ = rustix::io::read(&self.wake.0, &mut [0; 8]);
        std::mem::take(&mut self.arrived.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Buffer for the events of one wait.
pub(super) type Events = [MaybeUninit<Event>; EVENTS];

/// Waits for an event, or until `wait` has passed; returns the events.
pub(super) fn wait_for_events<'e>(
    epoll: &OwnedFd,
    events: &'e mut Events,
    wait: Option<Duration>,
) -> &'e [Event] {
    let wait =
        wait.map(|wait| Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() });
    match epoll::wait(epoll, events, wait.as_ref()) {
        Ok((events, _)) => events,
        Err(Errno::INTR) => &[],
        Err(error) => {
            tracing::error!("waiting for connections fails: {error}");
            thread::sleep(SWEEP);
            &[]
        }
    }
}

/// Result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// There was an event or a ready connection.
    Active,
    /// There was none.
    Vain,
    /// The thread must end.
    Stop,
}

/// A thread's connections and their event queue.
pub struct IoThread<S: Service> {
    pub(super) shared: Arc<Shared<S>>,
    inboxes: Arc<[Inbox]>,
    /// Index of its inbox.
    number: usize,
    epoll: OwnedFd,
    connections: Vec<Option<Connection<S::State>>>,
    /// Connections that may have requests.
    ready: Vec<usize>,
    /// The same connections while the service has them.
    handed: Vec<Connection<S::State>>,
    /// Connections to hand to the service again.
    again: Vec<usize>,
    /// Connections that wait for another thread.
    parked: Vec<usize>,
    /// Number of connections so far.
    had: u64,
    /// Time until which the thread does not sleep.
    busy_until: Instant,
    next_sweep: Instant,
}

impl<S: Service> IoThread<S> {
    pub(super) fn new(shared: Arc<Shared<S>>, inboxes: Arc<[Inbox]>, number: usize) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, inboxes[number].wake.fd(), EventData::new_u64(WAKE), EventFlags::IN)?;
        Ok(Self {
            shared,
            inboxes,
            number,
            epoll,
            connections: Vec::new(),
            ready: Vec::new(),
            handed: Vec::new(),
            again: Vec::new(),
            parked: Vec::new(),
            had: 0,
            busy_until: Instant::now(),
            next_sweep: Instant::now(),
        })
    }

    /// Receives input and hands it to the service. Sleeps until there is some, unless the service has work in
    /// progress (`is_under_way`).
    pub fn step(&mut self, worker: &mut S::Worker, is_under_way: bool) -> Step {
        if self.shared.core.is_stopping.load(SeqCst) {
            return Step::Stop;
        }
        let now = Instant::now();
        if now >= self.next_sweep {
            self.sweep(now);
            self.next_sweep = now + SWEEP;
        }
        let is_busy = now < self.busy_until || !self.again.is_empty();
        let wait = match () {
            () if is_busy || is_under_way => Some(Duration::ZERO),
            () if !self.parked.is_empty() => Some(LOOK),
            () => self.is_owed().then_some(SWEEP),
        };
        let mut room = [const { MaybeUninit::uninit() }; EVENTS];
        let events = wait_for_events(&self.epoll, &mut room, wait);
        let woken = Instant::now();
        for event in events {
            self.handle(event);
            if !S::GATHERS {
                self.turn(worker);
            }
        }
        self.ready.append(&mut self.again);
        self.ready.append(&mut self.parked);
        let shared = Arc::clone(&self.shared);
        shared.service.add_ready(worker, &mut self.ready);
        let is_active = !events.is_empty() || !self.ready.is_empty();
        self.turn(worker);
        if !events.is_empty() {
            let done = Instant::now();
            let settings = &self.shared.core.settings;
            self.busy_until = done + settings.busy_poll;
            if done - woken > settings.patience / 4 {
                // Input that came meanwhile is read before its clients are considered slow.
                self.next_sweep = done + SWEEP;
            }
        } else if is_busy && self.again.is_empty() && !is_under_way {
            // The peers may need this core to send more.
            thread::yield_now();
        }
        if is_active { Step::Active } else { Step::Vain }
    }

    fn handle(&mut self, event: &Event) {
        let flags = event.flags;
        match event.data.u64() {
            WAKE => {
                for arrival in self.inboxes[self.number].take() {
                    self.admit(arrival);
                }
            }
            number => self.advance(number as usize, flags.intersects(EventFlags::ERR | EventFlags::HUP)),
        }
    }

    fn admit(&mut self, arrival: Arrival) {
        let number = match self.connections.iter().position(Option::is_none) {
            Some(number) => number,
            None => {
                self.connections.push(None);
                self.connections.len() - 1
            }
        };
        let data = EventData::new_u64(number as u64);
        let added = epoll::add(&self.epoll, &arrival.stream, data, EventFlags::IN);
        self.connections[number] = Some(Connection::new(number, self.had, arrival, &self.shared.core));
        self.had += 1;
        if let Err(error) = added {
            self.close(number, &End::Io(error.into()));
        }
    }

    /// Handles an event of a connection: it is readable, writable or closed.
    fn advance(&mut self, number: usize, is_gone: bool) {
        // An earlier event may have closed it.
        let Some(Some(connection)) = self.connections.get_mut(number) else { return };
        match connection.advance(&self.shared.core) {
            // A closed connection without input would report the same event again and again.
            Ok(false) if is_gone => self.close(number, &End::Closed),
            Ok(has_requests) => {
                self.note_interest(number);
                if has_requests {
                    self.ready.push(number);
                }
            }
            Err(end) => self.close(number, &end),
        }
    }

    /// Hands connections that may have requests, or asked to be called again, to the service.
    fn turn(&mut self, worker: &mut S::Worker) {
        let mut ready = std::mem::take(&mut self.ready);
        for number in ready.drain(..) {
            // The connection may be closed or replaced, or be listed twice.
            let may = |connection: &mut Connection<_>| !connection.is_blocked();
            if let Some(connection) = self.connections[number].take_if(may) {
                self.handed.push(connection);
            }
        }
        self.ready = ready;
        if self.handed.is_empty() {
            return;
        }
        let mut handed = std::mem::take(&mut self.handed);
        self.shared.service.turn(&self.shared.core, worker, &mut handed);
        for mut connection in handed.drain(..) {
            let number = connection.number();
            let end = connection.take_end();
            if connection.take_called_again() {
                self.again.push(number);
            }
            if connection.take_parked() {
                self.parked.push(number);
            }
            connection.note_waiting();
            self.connections[number] = Some(connection);
            match end {
                Some(end) => self.close(number, &end),
                None => self.note_interest(number),
            }
        }
        self.handed = handed;
    }

    /// Updates the events that the connection waits for, if they changed.
    fn note_interest(&mut self, number: usize) {
        let Some(connection) = &mut self.connections[number] else { return };
        let flags = match connection.new_interest() {
            None => return,
            Some(Interest::Output) => EventFlags::OUT,
            Some(Interest::Input) => EventFlags::IN,
            Some(Interest::Nothing) => EventFlags::empty(),
        };
        let data = EventData::new_u64(number as u64);
        if let Err(error) = epoll::modify(&self.epoll, connection.stream(), data, flags) {
            self.close(number, &End::Io(error.into()));
        }
    }

    fn close(&mut self, number: usize, end: &End) {
        let Some(connection) = self.connections[number].take() else { return };
        let peer = connection.peer();
        let core = &self.shared.core;
        core.leave(&connection.into_client());
        core.counters.connections.fetch_sub(1, Relaxed);
        match end {
            End::Closed => tracing::debug!(%peer, "connection closed"),
            End::Io(_) => core.client_log.tell(peer, end),
            _ => {
                core.counters.expelled.fetch_add(1, Relaxed);
                core.client_log.tell(peer, end);
            }
        }
    }

    /// Whether the thread must wake up without an event.
    fn is_owed(&self) -> bool {
        self.connections.iter().flatten().any(|connection| connection.is_owed())
    }

    /// Closes connections whose clients took too long, and retries those that wait for memory.
    fn sweep(&mut self, now: Instant) {
        for number in 0..self.connections.len() {
            let patience = self.shared.core.settings.patience;
            let Some(connection) = &self.connections[number] else { continue };
            if connection.is_overdue(now, patience) {
                self.close(number, &End::TooSlow);
            } else if connection.is_starved() {
                self.again.push(number);
            }
        }
    }
}
