//! A thread of a server: it sleeps until one of its connections has something to say.
//!
//! Connections that have are handed to the service, one by one or all at once ([`Service::GATHERS`]). New ones come through the
//! inbox. After work a thread looks for more for a moment, since waking one up takes longer than most requests; then it
//! sleeps, with an alarm set only if a client owes something. It never waits for another thread: a connection that does is
//! parked, and looked at again in a moment.

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

/// Events that are taken at once.
pub(super) const EVENTS: usize = 256;
/// How often a thread looks for clients that owe something, if there are any.
const SWEEP: Duration = Duration::from_millis(100);
/// Between two looks at connections that are parked.
const LOOK: Duration = Duration::from_millis(1);
const WAKE: u64 = u64::MAX;

/// Wakes a thread that waits for events.
pub(super) struct Wake(OwnedFd);

impl Wake {
    pub fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?))
    }

    pub fn wake(&self) {
        // It cannot fail but when the counter is full, and then the thread wakes anyway.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    pub fn fd(&self) -> &OwnedFd {
        &self.0
    }
}

/// A client that was let in, and its connection.
pub(super) struct Arrival {
    pub stream: TcpStream,
    pub peer: SocketAddr,
    pub client: Client,
}

/// Where a thread gets its connections.
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

/// Room for the events that are taken at once.
pub(super) type Events = [MaybeUninit<Event>; EVENTS];

/// Sleeps until there is an event or `wait` has passed; the events.
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

/// How a step went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Something came.
    Active,
    Vain,
    /// The thread is to end.
    Stop,
}

/// A thread's connections, and where it waits for them.
pub struct IoThread<S: Service> {
    pub(super) shared: Arc<Shared<S>>,
    inboxes: Arc<[Inbox]>,
    /// Its place among the inboxes.
    number: usize,
    epoll: OwnedFd,
    connections: Vec<Option<Connection<S::State>>>,
    /// Numbers of connections that may have requests.
    ready: Vec<usize>,
    /// Those connections, while they are the service's.
    handed: Vec<Connection<S::State>>,
    /// Those that asked to be called again.
    again: Vec<usize>,
    /// Those that wait for another thread.
    parked: Vec<usize>,
    /// Connections that it had so far.
    had: u64,
    /// Until when it does not sleep.
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

    /// Takes what came, and hands it to the service. It sleeps until something comes, unless the service has something under
    /// way that is not to wait for that.
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
                // What clients sent meanwhile is looked at before they are called slow.
                self.next_sweep = done + SWEEP;
            }
        } else if is_busy && self.again.is_empty() && !is_under_way {
            // Whoever is to send more may need this core for it.
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
        self.connections[number] = Some(Connection::new((number, self.had), arrival, &self.shared.core));
        self.had += 1;
        if let Err(error) = added {
            self.close(number, &End::Io(error.into()));
        }
    }

    /// There is something to read or write, or the connection is gone.
    fn advance(&mut self, number: usize, is_gone: bool) {
        // It may have been closed by an event before this one.
        let Some(Some(connection)) = self.connections.get_mut(number) else { return };
        match connection.advance(&self.shared.core) {
            // Nothing could be read of what has ended, and it would be told again and again.
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

    /// Hands to the service what may have requests, and what asked for it again.
    fn turn(&mut self, worker: &mut S::Worker) {
        let mut ready = std::mem::take(&mut self.ready);
        for number in ready.drain(..) {
            // It may be closed by now, or another one, or be there twice.
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

    /// Waits for what the connection waits for, if that is new.
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

    /// Whether there is something to look at although nothing happens.
    fn is_owed(&self) -> bool {
        self.connections.iter().flatten().any(|connection| connection.is_owed())
    }

    /// Closes connections whose clients took too long, and has those looked at that wait for memory.
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
