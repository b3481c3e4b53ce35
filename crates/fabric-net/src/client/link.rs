//! An endpoint's connection to one memory server: what is to be sent, what was sent, what is waited for.
//!
//! Requests are written into one buffer, from which each turn sends what the kernel takes, so that all that the slots of a
//! worker ask for between two turns goes out with one system call. Replies come in the order of the requests. The connection
//! is made when it is first needed, by a thread of its own, and again after it broke, after a while that doubles each time.
//!
//! When it breaks, a verb that was not sent whole has had no effect. One that was may have: its server will hear of the broken
//! connection ([`crate::wire::Request::Fence`]) before it executes what anybody in this process sends later.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread;

use pando_fabric::{FabricError, Nanos};

use super::verbs::{Verbs, answer};
use super::{Server, Shared};
use crate::connect::{ConnectError, connect};
use crate::handshake::{LinkId, Welcomed};
use crate::wire::{Malformed, Op, REPLY_HEADER, Request, decode_reply};

/// Bytes that are taken from the kernel at once.
const INPUT: usize = 256 << 10;
/// Pauses between attempts to connect.
const PAUSE_MIN_NS: Nanos = 10_000_000;
const PAUSE_MAX_NS: Nanos = 1_000_000_000;

type Connected = Result<(TcpStream, Welcomed), ConnectError>;

enum State {
    /// Nobody has needed it yet.
    Idle,
    Connecting(Receiver<Connected>),
    Up(TcpStream),
    /// It broke, and is not made again before some moment, or until another connection to this server is made.
    Down {
        until: Nanos,
        made: usize,
        reason: String,
    },
    /// What the server held is gone.
    Lost,
}

/// What a request is for.
#[derive(Clone, Copy)]
pub(super) enum Whose {
    /// The entry of a verb.
    Verb(u32),
    /// The last of so many fences.
    Fences(usize),
}

/// A request whose reply is waited for.
struct Waiting {
    whose: Whose,
    op: Op,
    /// Bytes that were asked for before it and with it, since the connection was begun.
    end: u64,
    deadline: Nanos,
}

pub(super) struct Link {
    /// The place of its server.
    server: usize,
    id: LinkId,
    state: State,
    pause: Nanos,
    output: Vec<u8>,
    /// Bytes of `output` that the kernel has.
    sent: usize,
    /// Bytes that were in `output` before what is in it now.
    sent_before: u64,
    waiting: VecDeque<Waiting>,
    input: Vec<u8>,
    filled: usize,
    /// Broken connections to this server that it has been told of over this one.
    fenced: usize,
}

/// How a connection broke.
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
        }
    }

    fn server<'s>(&self, shared: &'s Shared) -> &'s Server {
        &shared.servers[self.server]
    }

    /// Whether anything is waited for.
    pub fn is_busy(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The number of the connection, if it is there.
    pub fn number(&self) -> Option<u64> {
        matches!(self.state, State::Up(_)).then_some(self.id.link)
    }

    /// Whether it broke so short a time ago that it is not made again yet.
    pub fn is_resting(&self, shared: &Shared, now: Nanos) -> bool {
        matches!(self.state, State::Down { until, made, .. } if now < until && made == self.server(shared).made())
    }

    /// The socket and whether there is something to send, if that is what it waits for.
    pub fn waits_on(&self) -> Option<(&TcpStream, bool)> {
        match &self.state {
            State::Up(stream) if self.is_busy() => Some((stream, self.sent < self.output.len())),
            _ => None,
        }
    }

    /// Makes ready for a request.
    ///
    /// # Errors
    /// `NotConnected` if it broke a moment ago, `Lost`.
    #[inline]
    pub fn prepare(&mut self, shared: &Arc<Shared>, now: Nanos) -> Result<(), FabricError> {
        if !matches!(self.state, State::Up(_)) {
            self.begin_connecting(shared, now)?;
        }
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
        self.fenced = self.server(shared).fenced();
        let (sender, receiver) = mpsc::channel();
        let (for_thread, id, place) = (Arc::clone(shared), self.id, self.server);
        let connecting = move || {
            let destination = &for_thread.servers[place].destination;
            // Nobody may be waiting any more.
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

    /// Adds a request that `encode` writes, to be sent at the next turn.
    #[inline]
    pub fn push(&mut self, whose: Whose, op: Op, deadline: Nanos, encode: impl FnOnce(&mut Vec<u8>)) {
        encode(&mut self.output);
        let end = self.sent_before + self.output.len() as u64;
        self.waiting.push_back(Waiting { whose, op, end, deadline });
    }

    /// Sends and receives what can be without waiting; the bits of slots whose verbs ended.
    pub fn turn(&mut self, shared: &Arc<Shared>, verbs: &mut Verbs) -> u64 {
        let mut ready = 0;
        let broken = match self.exchange(shared, verbs, &mut ready) {
            // Answers came, and none of them is still on its way: there is no need to look at the clock.
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

    /// Whether anything was answered, or the connection made.
    fn exchange(&mut self, shared: &Arc<Shared>, verbs: &mut Verbs, ready: &mut u64) -> Result<bool, Broken> {
        if let State::Connecting(receiver) = &self.state {
            return match receiver.try_recv() {
                Err(TryRecvError::Empty) => Ok(false),
                Err(TryRecvError::Disconnected) => {
                    Err(Broken::NotConnected("its thread panicked".to_owned()))
                }
                Ok(Err(error)) => Err(Broken::NotConnected(error.to_string())),
                Ok(Ok((stream, welcomed))) => {
                    self.come_up(stream, welcomed, self.server(shared))?;
                    Ok(true)
                }
            };
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

    fn come_up(&mut self, stream: TcpStream, welcomed: Welcomed, server: &Server) -> Result<(), Broken> {
        if (welcomed.incarnation, welcomed.region_len) != (server.incarnation, server.region_len) {
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
        // The whole buffer is one reply that has not come to its end. A reply that may be so long was checked for that.
        if self.filled == self.input.len() {
            self.input.resize((2 * self.filled).min(REPLY_HEADER + body_max as usize), 0);
        }
        Ok(())
    }

    /// Whether the server may have all of a request.
    fn is_sent(&self, waiting: &Waiting) -> bool {
        matches!(self.state, State::Up(_)) && waiting.end <= self.sent_before + self.sent as u64
    }

    /// To be called before the connection goes. What is on its way must not change anything after what is sent later.
    pub fn close(&mut self, shared: &Shared) {
        if self.waiting.iter().any(|waiting| waiting.op.may_change() && self.is_sent(waiting)) {
            self.server(shared).add_broken(self.id.link);
        }
    }

    /// Ends the connection if it is there or being made; the bits of slots whose verbs ended.
    pub fn hang_up(&mut self, shared: &Shared, verbs: &mut Verbs) -> u64 {
        match self.state {
            State::Up(_) | State::Connecting(_) => self.break_off(&Broken::Unreachable, shared, verbs),
            State::Idle | State::Down { .. } | State::Lost => 0,
        }
    }

    /// Ends all verbs that wait.
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
