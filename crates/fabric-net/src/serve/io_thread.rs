//! A thread of a server: it sleeps until one of its connections has something to say.
//!
//! Connections that have are handed to the service, one by one or all at once ([`Service::GATHERS`]). New connections come
//! through the inbox; the first thread accepts them and deals them out. After work a thread looks for more for a moment,
//! since waking one up takes longer than most requests; then it sleeps, with an alarm set only if a client owes something.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;

use super::connection::{Connection, End};
use super::{Service, Shared};
use crate::socket;

/// Events that are taken at once.
const EVENTS: usize = 256;
/// How often a thread looks for clients that owe something, if there are any.
const SWEEP: Duration = Duration::from_millis(100);
/// A listener that cannot accept, for lack of file descriptors, is left alone for so long.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const WAKE: u64 = u64::MAX;
const LISTENER: u64 = u64::MAX - 1;

/// Where a thread gets its connections.
pub(super) struct Inbox {
    arrived: Mutex<Vec<(TcpStream, SocketAddr)>>,
    wake: OwnedFd,
}

impl Inbox {
    pub fn new() -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self { arrived: Mutex::default(), wake })
    }

    pub fn wake(&self) {
        // It cannot fail but when the counter is full, and then the thread wakes anyway.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    fn put(&self, stream: TcpStream, peer: SocketAddr) {
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner).push((stream, peer));
        self.wake();
    }

    fn take(&self) -> Vec<(TcpStream, SocketAddr)> {
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        std::mem::take(&mut self.arrived.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

pub(super) struct IoThread<S: Service> {
    shared: Arc<Shared<S>>,
    inboxes: Arc<[Inbox]>,
    /// Its place among the inboxes.
    number: usize,
    listener: Option<TcpListener>,
    /// The inbox of the next connection.
    next_inbox: usize,
    epoll: OwnedFd,
    connections: Vec<Option<Connection<S::State>>>,
    /// Numbers of connections that may have requests.
    ready: Vec<usize>,
    /// Those connections, while they are the service's.
    handed: Vec<Connection<S::State>>,
    /// Those that asked to be called again.
    again: Vec<usize>,
    accepts_again_at: Option<Instant>,
}

impl<S: Service> IoThread<S> {
    pub fn new(
        shared: Arc<Shared<S>>,
        inboxes: Arc<[Inbox]>,
        number: usize,
        listener: Option<TcpListener>,
    ) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &inboxes[number].wake, EventData::new_u64(WAKE), EventFlags::IN)?;
        if let Some(listener) = &listener {
            epoll::add(&epoll, listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
        }
        Ok(Self {
            shared,
            inboxes,
            number,
            listener,
            next_inbox: 0,
            epoll,
            connections: Vec::new(),
            ready: Vec::new(),
            handed: Vec::new(),
            again: Vec::new(),
            accepts_again_at: None,
        })
    }

    pub fn shared(&self) -> &Shared<S> {
        &self.shared
    }

    pub fn run(mut self, mut worker: S::Worker) {
        let mut events = Vec::with_capacity(EVENTS);
        let mut busy_until = Instant::now();
        let mut next_sweep = busy_until;
        while !self.shared.core.is_stopping.load(SeqCst) {
            events.clear();
            let now = Instant::now();
            if now >= next_sweep {
                self.sweep(now);
                next_sweep = now + SWEEP;
            }
            let is_busy = now < busy_until || !self.again.is_empty();
            self.wait(
                &mut events,
                if is_busy { Some(Duration::ZERO) } else { self.is_owed().then_some(SWEEP) },
            );
            let woken = Instant::now();
            for event in &events {
                self.handle(event.data.u64());
                if !S::GATHERS {
                    self.turn(&mut worker);
                }
            }
            self.ready.append(&mut self.again);
            self.turn(&mut worker);
            if !events.is_empty() {
                let done = Instant::now();
                let settings = &self.shared.core.settings;
                busy_until = done + settings.busy_poll;
                if done - woken > settings.patience / 4 {
                    // What clients sent meanwhile is looked at before they are called slow.
                    next_sweep = done + SWEEP;
                }
            } else if is_busy && self.again.is_empty() {
                // Whoever is to send more may need this core for it.
                thread::yield_now();
            }
        }
    }

    /// Sleeps until there is an event or `wait` has passed.
    fn wait(&self, events: &mut Vec<Event>, wait: Option<Duration>) {
        let wait =
            wait.map(|wait| Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() });
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), wait.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => {
                tracing::error!("waiting for connections fails: {error}");
                thread::sleep(ACCEPT_PAUSE);
            }
        }
    }

    fn handle(&mut self, token: u64) {
        match token {
            WAKE => {
                for (stream, peer) in self.inboxes[self.number].take() {
                    self.displace();
                    self.admit(stream, peer);
                }
            }
            LISTENER => self.accept(),
            number => self.advance(number as usize),
        }
    }

    /// Accepts all who wait, and deals them out.
    fn accept(&mut self) {
        let Some(listener) = &self.listener else { return };
        loop {
            match listener.accept() {
                Ok((stream, peer)) => {
                    let counters = &self.shared.core.counters;
                    counters.accepted.fetch_add(1, Relaxed);
                    counters.connections.fetch_add(1, Relaxed);
                    self.inboxes[self.next_inbox].put(stream, peer);
                    self.next_inbox = (self.next_inbox + 1) % self.inboxes.len();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted
                    ) => {}
                Err(error) => {
                    tracing::error!("a connection cannot be accepted: {error}");
                    // It would be told again and again.
                    let _ = epoll::delete(&self.epoll, listener);
                    self.accepts_again_at = Some(Instant::now() + ACCEPT_PAUSE);
                    return;
                }
            }
        }
    }

    /// Makes room for one more stranger: each thread has its share of them.
    fn displace(&mut self) {
        let share = self.shared.core.settings.strangers_max.div_ceil(self.inboxes.len());
        let strangers = || {
            let all = self.connections.iter().flatten();
            all.filter_map(|connection| Some((connection.stranger_since()?, connection.number())))
        };
        if strangers().count() >= share.max(1)
            && let Some((_, oldest)) = strangers().min()
        {
            self.close(oldest, &End::Displaced);
        }
    }

    fn admit(&mut self, stream: TcpStream, peer: SocketAddr) {
        let number = match self.connections.iter().position(Option::is_none) {
            Some(number) => number,
            None => {
                self.connections.push(None);
                self.connections.len() - 1
            }
        };
        let added = socket::prepare(&stream).and_then(|()| {
            Ok(epoll::add(&self.epoll, &stream, EventData::new_u64(number as u64), EventFlags::IN)?)
        });
        self.connections[number] = Some(Connection::new(number, stream, peer));
        if let Err(error) = added {
            self.close(number, &End::Io(error));
        }
    }

    fn advance(&mut self, number: usize) {
        // It may have been closed by an event before this one.
        let Some(Some(connection)) = self.connections.get_mut(number) else { return };
        let was_blocked = connection.is_blocked();
        match connection.advance(&self.shared) {
            Ok(has_requests) => {
                self.note_blocked(number, was_blocked);
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
            let may = |connection: &mut Connection<_>| connection.is_open() && !connection.is_blocked();
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
            connection.note_waiting();
            self.connections[number] = Some(connection);
            match end {
                Some(end) => self.close(number, &end),
                // It was not when its service got it.
                None => self.note_blocked(number, false),
            }
        }
        self.handed = handed;
    }

    /// Waits for the connection to be writable rather than readable, or the other way round, if that is new.
    fn note_blocked(&mut self, number: usize, was_blocked: bool) {
        let Some(connection) = &self.connections[number] else { return };
        let is_blocked = connection.is_blocked();
        if is_blocked == was_blocked {
            return;
        }
        let flags = if is_blocked { EventFlags::OUT } else { EventFlags::IN };
        let data = EventData::new_u64(number as u64);
        if let Err(error) = epoll::modify(&self.epoll, connection.stream(), data, flags) {
            self.close(number, &End::Io(error.into()));
        }
    }

    fn close(&mut self, number: usize, end: &End) {
        let Some(connection) = self.connections[number].take() else { return };
        connection.leave(&self.shared.core);
        let counters = &self.shared.core.counters;
        counters.connections.fetch_sub(1, Relaxed);
        let peer = connection.peer();
        let is_expelled = !matches!(end, End::Closed | End::Io(_));
        if is_expelled {
            counters.expelled.fetch_add(1, Relaxed);
        }
        match end {
            End::Closed => tracing::debug!(%peer, "connection closed"),
            _ if connection.is_refused() => {}
            _ if connection.stranger_since().is_some() => self.shared.core.stranger_log.tell(peer, end),
            _ if is_expelled => tracing::warn!(%peer, "connection closed: {end}"),
            _ => tracing::info!(%peer, "connection lost: {end}"),
        }
    }

    /// Whether there is something to look at although nothing happens.
    fn is_owed(&self) -> bool {
        self.accepts_again_at.is_some()
            || self.connections.iter().flatten().any(|connection| connection.is_owed())
    }

    /// Closes connections whose clients took too long, and accepts again.
    fn sweep(&mut self, now: Instant) {
        for number in 0..self.connections.len() {
            let patience = self.shared.core.settings.patience;
            if self.connections[number].as_ref().is_some_and(|it| it.is_overdue(now, patience)) {
                self.close(number, &End::TooSlow);
            }
        }
        if self.accepts_again_at.is_some_and(|at| at <= now) {
            self.accepts_again_at = None;
            if let Some(listener) = &self.listener {
                let _ = epoll::add(&self.epoll, listener, EventData::new_u64(LISTENER), EventFlags::IN);
            }
        }
    }
}
