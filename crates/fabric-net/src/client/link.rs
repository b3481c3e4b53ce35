//! An endpoint's connection to one memory server: requests to send, bytes sent, replies awaited.
//!
//! Requests are written into one buffer. Each turn sends as much of it as the kernel accepts, so all requests
//! of a worker's slots between two turns need one system call. Replies come in the order of the requests. A
//! separate thread makes the connection when it is first needed, and again after it broke, with a pause that
//! doubles each time.
//!
//! When the connection breaks, a verb that was not sent completely has had no effect. A completely sent verb
//! may have had one: its server learns of the broken connection ([`crate::wire::Request::Fence`]) before it
//! executes any later request of this process.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread;

use pando_fabric::{FabricError, Nanos};

use super::verbs::{Verbs, answer};
use super::{Entered, Server, Shared};
use crate::connect::{ConnectError, connect};
use crate::group::kind;
use crate::handshake::{LinkId, Rejection, Welcomed};
use crate::wire::{Malformed, Op, REPLY_HEADER, Request, decode_reply};

/// Initial size of the input buffer in bytes.
const INPUT: usize = 256 << 10;
/// Bounds of the pause between attempts to connect.
const PAUSE_MIN_NS: Nanos = 10_000_000;
const PAUSE_MAX_NS: Nanos = 1_000_000_000;

type Connected = Result<(TcpStream, Welcomed), ConnectError>;

enum State {
    /// Not needed yet.
    Idle,
    Connecting(Receiver<Connected>),
    Up(TcpStream),
    /// The connection broke. It is not made again before a given time, or until another connection to this
    /// server has been made.
    Down {
        until: Nanos,
        made: usize,
        reason: String,
    },
    /// The content of the server's memory is gone.
    Lost,
}

/// Purpose of a request.
#[derive(Clone, Copy)]
pub(super) enum Whose {
    /// A verb, by its entry.
    Verb(u32),
    /// A fence: the first this many broken connections are fenced off once it is answered.
    Fences(usize),
    /// The connection enters a view. If that is refused, so are the verbs behind it.
    Enters,
}

/// Time after which an unused connection is looked at before it is used.
const RESTED: Nanos = 1_000_000;

/// A request without a reply yet.
struct Waiting {
    whose: Whose,
    op: Op,
    /// Position of its end in the output since the connection was begun.
    end: u64,
    deadline: Nanos,
}

pub(super) struct Link {
    /// Index of its server.
    server: usize,
    id: LinkId,
    state: State,
    pause: Nanos,
    output: Vec<u8>,
    /// Number of bytes of `output` that were given to the kernel.
    sent: usize,
    /// Number of bytes of output before the current content of `output`.
    sent_before: u64,
    waiting: VecDeque<Waiting>,
    input: Vec<u8>,
    filled: usize,
    /// Number of the server's broken connections that were announced over this one.
    fenced: usize,
    /// Epoch of the view that this connection has entered; 0 if none.
    entered: u64,
    /// Time of the last request, and whether none was in flight for [`RESTED`] before it.
    used: Nanos,
    has_rested: bool,
}

/// Ways in which a connection breaks.
enum Broken {
    TimedOut,
    Unreachable,
    NotConnected(String),
    Lost,
}

impl Link {
    pub fn new(server: usize, shared: &Shared) -> Self {
        Self {
            server,
            id: shared.new_link(),
            state: State::Idle,
            pause: PAUSE_MIN_NS,
            output: Vec::new(),
            sent: 0,
            sent_before: 0,
            waiting: VecDeque::new(),
            input: Vec::new(),
            filled: 0,
            fenced: 0,
            entered: 0,
            used: 0,
            has_rested: false,
        }
    }

    fn server<'s>(&self, shared: &'s Shared) -> &'s Server {
        &shared.servers[self.server]
    }

    /// Whether any request awaits its reply.
    pub fn is_busy(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Number of the connection, if it is up.
    pub fn number(&self) -> Option<u64> {
        matches!(self.state, State::Up(_)).then_some(self.id.link)
    }

    /// Whether the connection broke so recently that it is not made again yet.
    pub fn is_resting(&self, shared: &Shared, now: Nanos) -> bool {
        matches!(self.state, State::Down { until, made, .. } if now < until && made == self.server(shared).made())
    }

    /// The socket, and whether there is unsent output, if a reply is awaited.
    pub fn waits_on(&self) -> Option<(&TcpStream, bool)> {
        match &self.state {
            State::Up(stream) if self.is_busy() => Some((stream, self.sent < self.output.len())),
            _ => None,
        }
    }

    /// Prepares the connection for a request.
    ///
    /// # Errors
    /// `NotConnected` if it broke recently, `Lost`.
    #[inline]
    pub fn prepare(
        &mut self,
        shared: &Arc<Shared>,
        now: Nanos,
        view: Option<&Entered>,
    ) -> Result<(), FabricError> {
        if !matches!(self.state, State::Up(_)) {
            self.begin_connecting(shared, now)?;
        }
        self.has_rested |= !self.is_busy() && now > self.used + RESTED;
        self.used = now;
        let server = self.server(shared);
        if let Some(broken) = server.broken_since(self.fenced) {
            let process = shared.process;
            for link in broken {
                self.fenced += 1;
                let whose = Whose::Fences(self.fenced);
                let encode = |out: &mut Vec<u8>| Request::Fence { process, link }.encode(out);
                self.push(whose, Op::Fence, now + shared.deadline_ns(), encode);
            }
        }
        if let Some(view) = view.filter(|view| view.epoch != self.entered) {
            self.entered = view.epoch;
            let encode =
                |out: &mut Vec<u8>| Request::Group { kind: kind::ENTER, body: &view.bytes }.encode(out);
            self.push(Whose::Enters, Op::Group, now + shared.deadline_ns(), encode);
        }
        Ok(())
    }

    fn begin_connecting(&mut self, shared: &Arc<Shared>, now: Nanos) -> Result<(), FabricError> {
        let server = self.server(shared).number;
        match &self.state {
            State::Up(_) | State::Connecting(_) => return Ok(()),
            State::Lost => return Err(FabricError::Lost(server)),
            State::Down { reason, .. } if self.is_resting(shared, now) => {
                return Err(FabricError::NotConnected { server, reason: reason.clone() });
            }
            State::Idle | State::Down { .. } => {}
        }
        self.id = shared.new_link();
        (self.fenced, self.entered) = (self.server(shared).fenced(), 0);
        let (sender, receiver) = mpsc::channel();
        let (for_thread, id, place) = (Arc::clone(shared), self.id, self.server);
        let connecting = move || {
            let destination = &for_thread.servers[place].destination;
            // The receiver may be gone.
            let _ = sender.send(connect(destination, id, &for_thread.secret, for_thread.deadline));
        };
        match thread::Builder::new().name("pando-connect".to_owned()).spawn(connecting) {
            Ok(_) => {
                self.state = State::Connecting(receiver);
                Ok(())
            }
            Err(error) => {
                let reason = format!("a thread cannot be started: {error}");
                Err(FabricError::NotConnected { server, reason })
            }
        }
    }

    /// Adds a request, which `encode` writes; the next turn sends it.
    #[inline]
    pub fn push(&mut self, whose: Whose, op: Op, deadline: Nanos, encode: impl FnOnce(&mut Vec<u8>)) {
        encode(&mut self.output);
        let end = self.sent_before + self.output.len() as u64;
        self.waiting.push_back(Waiting { whose, op, end, deadline });
    }

    /// Sends and receives without waiting; returns the bits of slots whose verbs ended.
    pub fn turn(&mut self, shared: &Arc<Shared>, verbs: &mut Verbs) -> u64 {
        let mut ready = 0;
        let broken = match self.exchange(shared, verbs, &mut ready) {
            // If replies came and none is incomplete, the clock need not be read.
            Ok(true) if self.filled == 0 => None,
            Ok(_) => {
                let now = shared.now();
                let is_late = self.waiting.iter().any(|waiting| waiting.deadline <= now);
                is_late.then_some(Broken::TimedOut)
            }
            Err(broken) => Some(broken),
        };
        if let Some(broken) = broken {
            ready |= self.break_off(&broken, shared, verbs);
        }
        ready
    }

    /// Returns whether data came or the connection came up.
    fn exchange(&mut self, shared: &Arc<Shared>, verbs: &mut Verbs, ready: &mut u64) -> Result<bool, Broken> {
        if let State::Connecting(receiver) = &self.state {
            return match receiver.try_recv() {
                Err(TryRecvError::Empty) => Ok(false),
                Err(TryRecvError::Disconnected) => {
                    Err(Broken::NotConnected("its thread panicked".to_owned()))
                }
                Ok(Err(error)) => {
                    if matches!(error, ConnectError::Rejected(Rejection::Fenced)) {
                        shared.is_given_up.store(true, Relaxed);
                    }
                    Err(Broken::NotConnected(error.to_string()))
                }
                Ok(Ok((stream, welcomed))) => {
                    self.come_up(stream, welcomed, shared)?;
                    Ok(true)
                }
            };
        }
        if std::mem::take(&mut self.has_rested) {
            // The server may have closed the connection meanwhile: then the request is not sent, and nobody is in doubt about it.
            self.receive()?;
        }
        self.send()?;
        let came = self.receive()?;
        if came {
            self.take_replies(shared, verbs, ready).map_err(|malformed| {
                tracing::warn!(server = %self.server, "a reply makes no sense: {malformed}");
                Broken::Unreachable
            })?;
            self.pause = PAUSE_MIN_NS;
        }
        Ok(came)
    }

    fn come_up(&mut self, stream: TcpStream, welcomed: Welcomed, shared: &Shared) -> Result<(), Broken> {
        let server = self.server(shared);
        // Of a group, the view says which memory is meant.
        let group = shared.group.get().map(|group| group.view().incarnation(server.number));
        if group.is_some_and(|incarnation| incarnation != Some(welcomed.incarnation)) {
            let reason = "its memory is not the one in the view of the memory servers".to_owned();
            return Err(Broken::NotConnected(reason));
        }
        if group.is_none() && welcomed.incarnation != server.incarnation
            || welcomed.region_len < server.region_len
        {
            return Err(Broken::Lost);
        }
        if welcomed.body_max < server.body_max {
            return Err(Broken::NotConnected("it takes less at once than it did".to_owned()));
        }
        self.input.resize(INPUT, 0);
        self.filled = 0;
        self.state = State::Up(stream);
        server.made.fetch_add(1, Relaxed);
        Ok(())
    }

    fn send(&mut self) -> Result<(), Broken> {
        let State::Up(stream) = &mut self.state else { return Ok(()) };
        while self.sent < self.output.len() {
            match stream.write(&self.output[self.sent..]) {
                Ok(more) => self.sent += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(_) => return Err(Broken::Unreachable),
            }
        }
        self.sent_before += self.output.len() as u64;
        self.output.clear();
        self.sent = 0;
        Ok(())
    }

    fn receive(&mut self) -> Result<bool, Broken> {
        let State::Up(stream) = &mut self.state else { return Ok(false) };
        match stream.read(&mut self.input[self.filled..]) {
            Ok(0) => Err(Broken::Unreachable),
            Ok(more) => {
                self.filled += more;
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(_) => Err(Broken::Unreachable),
        }
    }

    fn take_replies(&mut self, shared: &Shared, verbs: &mut Verbs, ready: &mut u64) -> Result<(), Malformed> {
        let Server { number, body_max, .. } = shared.servers[self.server];
        let mut taken = 0;
        while let Some(first) = self.waiting.front() {
            let bytes = &self.input[taken..self.filled];
            let Some((reply, used)) = decode_reply(bytes, number, first.op, body_max)? else { break };
            match first.whose {
                Whose::Verb(verb) => *ready |= answer(verbs, verb, reply)?,
                Whose::Enters => {}
                Whose::Fences(count) => {
                    reply.map_err(|_| Malformed::WrongReply)?;
                    shared.servers[self.server].add_fenced(count);
                }
            }
            self.waiting.pop_front();
            taken += used;
        }
        if self.waiting.is_empty() && taken < self.filled {
            return Err(Malformed::WrongReply);
        }
        self.input.copy_within(taken..self.filled, 0);
        self.filled -= taken;
        // The whole buffer is one incomplete reply, whose length was checked against the limit.
        if self.filled == self.input.len() {
            self.input.resize((2 * self.filled).min(REPLY_HEADER + body_max as usize), 0);
        }
        Ok(())
    }

    /// Whether all of a request was given to the kernel.
    fn is_sent(&self, waiting: &Waiting) -> bool {
        matches!(self.state, State::Up(_)) && waiting.end <= self.sent_before + self.sent as u64
    }

    /// Must be called before the connection is closed: requests in flight must not take effect after later
    /// ones.
    pub fn close(&mut self, shared: &Shared) {
        if self.waiting.iter().any(|waiting| waiting.op.may_change() && self.is_sent(waiting)) {
            self.server(shared).add_broken(self.id.link);
        }
    }

    /// Closes the connection if it is up or being made; returns the bits of slots whose verbs ended.
    pub fn hang_up(&mut self, shared: &Shared, verbs: &mut Verbs) -> u64 {
        match self.state {
            State::Up(_) | State::Connecting(_) => self.break_off(&Broken::Unreachable, shared, verbs),
            State::Idle | State::Down { .. } | State::Lost => 0,
        }
    }

    /// Closes the connection and ends all its verbs.
    #[cold]
    fn break_off(&mut self, how: &Broken, shared: &Shared, verbs: &mut Verbs) -> u64 {
        self.close(shared);
        let server = self.server(shared);
        let reason = match how {
            Broken::TimedOut => "it did not answer in time".to_owned(),
            Broken::Unreachable => "the connection to it broke".to_owned(),
            Broken::NotConnected(reason) => reason.clone(),
            Broken::Lost => "it was started anew".to_owned(),
        };
        tracing::warn!(address = %server.destination.address, "memory server {}: {reason}", server.number);
        let mut ready = 0;
        for waiting in std::mem::take(&mut self.waiting) {
            let Whose::Verb(verb) = waiting.whose else { continue };
            let number = server.number;
            let error = match how {
                Broken::Lost => FabricError::Lost(number),
                _ if !self.is_sent(&waiting) => {
                    FabricError::NotConnected { server: number, reason: reason.clone() }
                }
                Broken::TimedOut => FabricError::TimedOut(number),
                Broken::Unreachable | Broken::NotConnected(_) => FabricError::ServerUnreachable(number),
            };
            ready |= verbs.end(verb, |_| Err(error));
        }
        self.output = Vec::new();
        (self.sent, self.sent_before, self.filled) = (0, 0, 0);
        self.state = match how {
            Broken::Lost => State::Lost,
            _ => State::Down { until: shared.now() + self.pause, made: server.made(), reason },
        };
        self.pause = (2 * self.pause).min(PAUSE_MAX_NS);
        ready
    }
}
