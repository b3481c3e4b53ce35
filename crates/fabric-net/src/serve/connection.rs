//! One connection of a client: bytes in, requests executed, bytes out.
//!
//! What came in is kept until a request is whole, what was not taken yet until it is; while much of that waits, no further
//! request is executed. So a connection holds at most one request and a few replies, whatever its client does; what a long
//! request needs is claimed from what there is for all of them.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::Core;
use super::budget::Claim;
use super::clients::Client;
use super::io_thread::Arrival;
use crate::handshake::Rejection;

/// Bytes that are taken from a connection at once.
const INPUT: usize = 64 << 10;
/// Bytes of replies that wait before no further request is executed.
pub const OUTPUT_MAX: usize = 1 << 20;

/// What a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Interest {
    Input,
    Output,
    /// Its input is full, and nothing can be taken from it now.
    Nothing,
}

/// A client's connection, with what a service keeps of it.
pub struct Connection<T> {
    /// Its place among those of its thread.
    number: usize,
    stream: TcpStream,
    peer: SocketAddr,
    client: Client,
    state: T,
    interest: Interest,
    input: Vec<u8>,
    /// What the input is longer than it always may be.
    claim: Claim,
    /// Whether its input is full and there is nothing to claim.
    is_starved: bool,
    /// Bytes of `input` that are filled, and of these that are done with.
    filled: usize,
    taken: usize,
    output: Vec<u8>,
    sent: usize,
    /// Since when the client owes something: the rest of a request, or taking its replies.
    waits_since: Option<Instant>,
    end: Option<End>,
    is_called_again: bool,
    is_parked: bool,
    /// Whether the service works on what came, and the client owes nothing meanwhile.
    is_worked_on: bool,
    /// Which of its thread's connections it is, of all that there ever were.
    serial: u64,
}

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum End {
    #[error("the client closed it")]
    Closed,
    #[error("{0}")]
    Rejected(Rejection),
    /// The same, and it was told so.
    #[error("{0}")]
    Refused(Rejection),
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

impl<T: Default> Connection<T> {
    /// That of a client that was just let in.
    pub(super) fn new((number, serial): (usize, u64), arrival: Arrival, core: &Core) -> Self {
        let Arrival { stream, peer, client } = arrival;
        Self {
            number,
            stream,
            peer,
            client,
            state: T::default(),
            interest: Interest::Input,
            input: vec![0; INPUT],
            claim: core.budget.claim(),
            is_starved: false,
            filled: 0,
            taken: 0,
            output: Vec::new(),
            sent: 0,
            waits_since: None,
            end: None,
            is_called_again: false,
            is_parked: false,
            is_worked_on: false,
            serial,
        }
    }
}

impl<T> Connection<T> {
    /// Its place among those of its thread, which another one has later.
    pub fn number(&self) -> usize {
        self.number
    }

    /// Its number among all that its thread ever had.
    pub fn serial(&self) -> u64 {
        self.serial
    }

    /// Says whether the service works on what came: the client need not be in a hurry then.
    pub fn set_worked_on(&mut self, is_worked_on: bool) {
        self.is_worked_on = is_worked_on;
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

    pub(super) fn into_client(self) -> Client {
        self.client
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

    /// Has the service get the connection again in a moment, when another thread has done what it waits for.
    pub fn park(&mut self) {
        self.is_parked = true;
    }

    pub(super) fn take_parked(&mut self) -> bool {
        std::mem::take(&mut self.is_parked)
    }

    /// Whether what it waits for is another one than before; that.
    pub(super) fn new_interest(&mut self) -> Option<Interest> {
        let interest = match () {
            () if self.is_blocked() => Interest::Output,
            () if self.filled == self.input.len() => Interest::Nothing,
            () => Interest::Input,
        };
        (std::mem::replace(&mut self.interest, interest) != interest).then_some(interest)
    }

    /// Whether its input is full and waits for what others have of the budget.
    pub(super) fn is_starved(&self) -> bool {
        self.is_starved
    }

    pub(super) fn take_end(&mut self) -> Option<End> {
        self.end.take()
    }

    /// Who the client is, what the service keeps of the connection, bytes that were not taken, and where replies go.
    pub fn parts(&mut self) -> (&Client, &mut T, &[u8], &mut Vec<u8>) {
        (&self.client, &mut self.state, &self.input[self.taken..self.filled], &mut self.output)
    }

    /// Who the client is, and what the service keeps of the connection.
    pub fn client(&self) -> (&Client, &T) {
        (&self.client, &self.state)
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

    /// To be called when the socket can be read or written. Whether there may be requests.
    pub(super) fn advance(&mut self, core: &Core) -> Result<bool, End> {
        if self.is_blocked() {
            self.send(core)?;
            return Ok(!self.is_blocked());
        }
        self.receive(core)
    }

    /// Whether anything came.
    fn receive(&mut self, core: &Core) -> Result<bool, End> {
        if self.filled == self.input.len() {
            return Ok(false);
        }
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
        Ok(())
    }

    /// Moves what is left to the front, and lets the buffer grow if it is full, in the end to `needed` bytes. All of them are
    /// claimed at first, so that of two requests that have no room together one has.
    pub fn make_room(&mut self, needed: usize) {
        self.is_starved = false;
        if self.taken == self.filled {
            (self.taken, self.filled) = (0, 0);
            if self.input.len() > INPUT {
                self.input.truncate(INPUT);
                self.input.shrink_to_fit();
                self.claim.resize(0);
            }
        } else if self.input.len() - self.filled < INPUT / 4 {
            self.input.copy_within(self.taken..self.filled, 0);
            (self.filled, self.taken) = (self.filled - self.taken, 0);
        }
        if self.filled == self.input.len() && self.input.len() < needed {
            if self.claim.resize(needed - INPUT) {
                self.input.resize((2 * self.input.len()).min(needed), 0);
            } else {
                self.is_starved = true;
            }
        }
    }

    /// Notes since when the client owes something.
    pub(super) fn note_waiting(&mut self) {
        let owes = self.is_blocked() || (self.taken < self.filled && !self.is_worked_on);
        self.waits_since = owes.then(|| self.waits_since.unwrap_or_else(Instant::now));
    }
}

fn is_temporary(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
