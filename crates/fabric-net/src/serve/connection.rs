//! One connection of a server: bytes in, requests executed, bytes out.
//!
//! It is always in one of three stages: it waits for a hello, for the proof of the secret, or for requests. What came in is
//! kept until a request is whole, what was not taken yet until it is; while much of that waits, no further request is
//! executed. So a connection holds at most one request and a few replies, whatever its client does.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::clients::Client;
use super::{Core, Service, Shared};
use crate::handshake::{HELLO, PROOF, Rejection, ServerHalf};

/// Bytes that are taken from a connection at once.
const INPUT: usize = 64 << 10;
/// Bytes of replies that wait before no further request is executed.
pub const OUTPUT_MAX: usize = 1 << 20;

enum Stage<T> {
    Hello,
    Proof(Box<ServerHalf>),
    Open(Box<(Client, T)>),
    /// It was told why it is refused, and is closed once that is sent.
    Refused,
}

/// A client's connection, with what a service keeps of it.
pub struct Connection<T> {
    /// Its place among those of its thread.
    number: usize,
    stream: TcpStream,
    peer: SocketAddr,
    since: Instant,
    stage: Stage<T>,
    input: Vec<u8>,
    /// Bytes of `input` that are filled, and of these that are done with.
    filled: usize,
    taken: usize,
    output: Vec<u8>,
    sent: usize,
    /// Since when the client owes something: the rest of a request, or taking its replies.
    waits_since: Option<Instant>,
    end: Option<End>,
    is_called_again: bool,
}

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum End {
    #[error("the client closed it")]
    Closed,
    #[error("{0}")]
    Rejected(Rejection),
    #[error("it sent what is no request: {0}")]
    Malformed(String),
    #[error("its client took too long")]
    TooSlow,
    #[error("too many came after it, and it had not said yet who it is")]
    Displaced,
    #[error("its client asked that it be heard no more")]
    Fenced,
    #[error("{0}")]
    Io(io::Error),
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl<T> Connection<T> {
    /// A connection that was just accepted.
    pub(super) fn new(number: usize, stream: TcpStream, peer: SocketAddr) -> Self {
        let now = Instant::now();
        Self {
            number,
            stream,
            peer,
            since: now,
            stage: Stage::Hello,
            input: vec![0; HELLO],
            filled: 0,
            taken: 0,
            output: Vec::new(),
            sent: 0,
            waits_since: Some(now),
            end: None,
            is_called_again: false,
        }
    }

    pub(super) fn number(&self) -> usize {
        self.number
    }

    pub(super) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    pub(super) fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Whether replies were not sent, or not taken. A turn that ends so waits for the client to take them, and nothing is taken
    /// from it until then.
    pub fn is_blocked(&self) -> bool {
        self.sent < self.output.len()
    }

    /// Whether so much waits to be sent that no further request is to be executed.
    pub fn is_laden(&self) -> bool {
        self.output.len() > OUTPUT_MAX
    }

    /// Whether there is anything to send.
    pub fn has_output(&self) -> bool {
        !self.output.is_empty()
    }

    /// Whether its client owes something.
    pub(super) fn is_owed(&self) -> bool {
        self.waits_since.is_some()
    }

    /// Whether its client has owed something for longer than `patience`.
    pub(super) fn is_overdue(&self, now: Instant, patience: Duration) -> bool {
        self.waits_since.is_some_and(|since| now.saturating_duration_since(since) > patience)
    }

    /// Has the connection closed at the end of the turn.
    pub fn end(&mut self, end: End) {
        self.end.get_or_insert(end);
    }

    pub fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    /// Has the service get the connection again, after others had their turn.
    pub fn call_again(&mut self) {
        self.is_called_again = true;
    }

    pub(super) fn take_called_again(&mut self) -> bool {
        std::mem::take(&mut self.is_called_again)
    }

    /// Since when it has been a stranger's, if it is one's.
    pub(super) fn stranger_since(&self) -> Option<Instant> {
        (!self.is_open()).then_some(self.since)
    }

    /// Whether its end was logged already.
    pub(super) fn is_refused(&self) -> bool {
        matches!(self.stage, Stage::Refused)
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self.stage, Stage::Open(_))
    }

    pub(super) fn take_end(&mut self) -> Option<End> {
        self.end.take()
    }

    /// Who the client is, what the service keeps of the connection, bytes that were not taken, and where replies go. For a
    /// connection that a service was given.
    ///
    /// # Panics
    /// Before the handshake is over.
    pub fn parts(&mut self) -> (&Client, &mut T, &[u8], &mut Vec<u8>) {
        let Stage::Open(open) = &mut self.stage else { unreachable!("the handshake is over") };
        let (client, state) = &mut **open;
        (client, state, &self.input[self.taken..self.filled], &mut self.output)
    }

    /// Who the client is, and what the service keeps of the connection. As for [`Connection::parts`].
    ///
    /// # Panics
    /// Before the handshake is over.
    pub fn client(&self) -> (&Client, &T) {
        let Stage::Open(open) = &self.stage else { unreachable!("the handshake is over") };
        (&open.0, &open.1)
    }

    /// Where replies go.
    pub fn output(&mut self) -> &mut Vec<u8> {
        &mut self.output
    }

    /// Bytes that were not taken.
    pub fn input(&self) -> &[u8] {
        &self.input[self.taken..self.filled]
    }

    /// The first `bytes` that were not taken are done with.
    pub fn take(&mut self, bytes: usize) {
        self.taken += bytes;
        debug_assert!(self.taken <= self.filled);
    }

    pub(super) fn leave(&self, core: &Core) {
        if let Stage::Open(open) = &self.stage {
            core.clients.leave(&open.0);
            core.counters.clients.fetch_sub(1, Relaxed);
        }
    }

    /// To be called when the socket can be read or written. Whether there may be requests.
    pub(super) fn advance<S: Service<State = T>>(&mut self, shared: &Shared<S>) -> Result<bool, End>
    where
        T: Default,
    {
        let core = &shared.core;
        if self.is_blocked() {
            self.send(core)?;
            if self.is_blocked() {
                return Ok(false);
            }
        } else if !self.receive(core)? {
            return Ok(false);
        }
        if !matches!(self.stage, Stage::Open(_)) {
            self.shake(shared)?;
            self.send(core)?;
            self.note_waiting();
            return Ok(false);
        }
        Ok(true)
    }

    /// Whether anything came.
    fn receive(&mut self, core: &Core) -> Result<bool, End> {
        match self.stream.read(&mut self.input[self.filled..]) {
            Ok(0) => Err(End::Closed),
            Ok(more) => {
                self.filled += more;
                core.counters.bytes_in.fetch_add(more as u64, Relaxed);
                Ok(true)
            }
            Err(error) if is_temporary(&error) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends what the client takes.
    ///
    /// # Errors
    /// The end of the connection.
    pub fn send(&mut self, core: &Core) -> Result<(), End> {
        while self.sent < self.output.len() {
            match self.stream.write(&self.output[self.sent..]) {
                Ok(more) => {
                    self.sent += more;
                    core.counters.bytes_out.fetch_add(more as u64, Relaxed);
                    // Taking replies is what it owed.
                    self.waits_since = None;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        self.output.clear();
        self.output.shrink_to(OUTPUT_MAX);
        self.sent = 0;
        match self.stage {
            Stage::Refused => Err(End::Closed),
            _ => Ok(()),
        }
    }

    /// Moves what is left to the front, and lets the buffer grow if it is full, in the end to `needed` bytes.
    pub fn make_room(&mut self, needed: usize) {
        if self.taken == self.filled {
            (self.taken, self.filled) = (0, 0);
            if self.input.len() > INPUT {
                self.input.truncate(INPUT);
                self.input.shrink_to_fit();
            }
        } else if self.input.len() - self.filled < INPUT / 4 {
            self.input.copy_within(self.taken..self.filled, 0);
            (self.filled, self.taken) = (self.filled - self.taken, 0);
        }
        if self.filled == self.input.len() && self.input.len() < needed {
            self.input.resize((2 * self.input.len()).min(needed), 0);
        }
    }

    fn shake<S: Service<State = T>>(&mut self, shared: &Shared<S>) -> Result<(), End>
    where
        T: Default,
    {
        let core = &shared.core;
        let said = &self.input[..self.filled];
        match &self.stage {
            Stage::Hello => {
                let Some(hello) = said.first_chunk::<HELLO>() else { return Ok(()) };
                let (half, judged) = ServerHalf::new(S::PROTOCOL, hello);
                if let Err(stranger @ Rejection::NotPando { .. }) = judged {
                    return Err(End::Rejected(stranger));
                }
                self.output.extend_from_slice(half.challenge());
                self.next_stage(judged, Stage::Proof(Box::new(half)), PROOF, core);
            }
            Stage::Proof(half) => {
                let Some(proof) = said.first_chunk::<PROOF>() else { return Ok(()) };
                let secret = &core.settings.secret;
                let client = half
                    .verify(proof, secret)
                    .and_then(|()| shared.service.check_number(half.number()))
                    .and_then(|()| core.admit(half.number(), half.id()));
                let welcomed = client.as_ref().map(|_| shared.service.welcomed());
                self.output
                    .extend_from_slice(&half.welcome(welcomed.map_err(|rejection| *rejection), secret));
                match client {
                    Ok(client) => {
                        self.next_stage(Ok(()), Stage::Open(Box::new((client, T::default()))), INPUT, core);
                    }
                    Err(rejection) => self.next_stage(Err(rejection), Stage::Refused, 0, core),
                }
            }
            Stage::Open(_) | Stage::Refused => {}
        }
        Ok(())
    }

    /// A message of the handshake was taken; the next one has `input` bytes at most.
    fn next_stage(&mut self, judged: Result<(), Rejection>, next: Stage<T>, input: usize, core: &Core) {
        self.stage = match judged {
            Ok(()) => next,
            Err(rejection) => {
                core.counters.refused.fetch_add(1, Relaxed);
                core.stranger_log.tell(self.peer, &rejection);
                Stage::Refused
            }
        };
        (self.filled, self.taken) = (0, 0);
        self.input = vec![0; input];
    }

    /// Notes since when the client owes something.
    pub(super) fn note_waiting(&mut self) {
        let owes = self.is_blocked() || self.taken < self.filled || !matches!(self.stage, Stage::Open(_));
        self.waits_since = owes.then(|| self.waits_since.unwrap_or_else(Instant::now));
    }
}

fn is_temporary(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
