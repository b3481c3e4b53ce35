//! One connection of a client: bytes in, requests executed, bytes out.
//!
//! Input is kept until a request is complete, and output until it is sent. While much output waits, no
//! further request is executed. So a connection holds at most one request and a few replies, whatever its
//! client does. A long request claims its memory from a budget of all connections.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::Core;
use super::budget::Claim;
use super::clients::Client;
use super::io_thread::Arrival;
use crate::handshake::Rejection;

/// Initial size of the input buffer in bytes.
const INPUT: usize = 64 << 10;
/// Bytes of waiting replies above which no further request is executed.
pub const OUTPUT_MAX: usize = 1 << 20;

/// Readiness that a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Interest {
    Input,
    Output,
    /// Its input is full and cannot be processed yet.
    Nothing,
}

/// A client's connection, with the state that a service keeps for it.
pub struct Connection<T> {
    /// Index among the connections of its thread.
    number: usize,
    stream: TcpStream,
    peer: SocketAddr,
    client: Client,
    state: T,
    interest: Interest,
    input: Vec<u8>,
    /// Claim for the part of the input buffer beyond its initial size.
    claim: Claim,
    /// Whether the input is full and the budget has too little left.
    is_starved: bool,
    /// Number of filled bytes of `input`, and of processed ones among them.
    filled: usize,
    taken: usize,
    output: Vec<u8>,
    sent: usize,
    /// Time since which the client owes the rest of a request, or the acceptance of its replies.
    waits_since: Option<Instant>,
    end: Option<End>,
    is_called_again: bool,
    is_parked: bool,
    /// Whether the service is working on the input, so that the client owes nothing.
    is_worked_on: bool,
    /// Number of the connection among all that its thread ever had.
    serial: u64,
}

/// Reason for the end of a connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum End {
    #[error("the client closed it")]
    Closed,
    #[error("{0}")]
    Rejected(Rejection),
    /// Rejected, and the client was told so.
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
    /// Creates the connection of a client that was just admitted.
    pub(super) fn new(number: usize, serial: u64, arrival: Arrival, core: &Core) -> Self {
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
    /// Index among the connections of its thread; it is reused.
    pub fn number(&self) -> usize {
        self.number
    }

    /// Number among all connections that its thread ever had.
    pub fn serial(&self) -> u64 {
        self.serial
    }

    /// Sets whether the service is working on the input, so that the client owes nothing.
    pub fn set_worked_on(&mut self, is_worked_on: bool) {
        self.is_worked_on = is_worked_on;
    }

    pub(super) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    pub(super) fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Whether replies are waiting to be sent. A turn that ends so waits until the client accepts them; no
    /// input is read until then.
    pub fn is_blocked(&self) -> bool {
        self.sent < self.output.len()
    }

    /// Whether so much output waits that no further request may be executed.
    pub fn is_laden(&self) -> bool {
        self.output.len() > OUTPUT_MAX
    }

    pub(super) fn into_client(self) -> Client {
        self.client
    }

    /// Whether there is any output.
    pub fn has_output(&self) -> bool {
        !self.output.is_empty()
    }

    /// Whether the client owes input or the acceptance of replies.
    pub(super) fn is_owed(&self) -> bool {
        self.waits_since.is_some()
    }

    /// Whether the client has owed something for longer than `patience`.
    pub(super) fn is_overdue(&self, now: Instant, patience: Duration) -> bool {
        self.waits_since.is_some_and(|since| now.saturating_duration_since(since) > patience)
    }

    /// Closes the connection at the end of the turn.
    pub fn end(&mut self, end: End) {
        self.end.get_or_insert(end);
    }

    pub fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    /// Gives the connection to the service again, after the others had their turn.
    pub fn call_again(&mut self) {
        self.is_called_again = true;
    }

    pub(super) fn take_called_again(&mut self) -> bool {
        std::mem::take(&mut self.is_called_again)
    }

    /// Gives the connection to the service again in a moment, when another thread may have finished.
    pub fn park(&mut self) {
        self.is_parked = true;
    }

    pub(super) fn take_parked(&mut self) -> bool {
        std::mem::take(&mut self.is_parked)
    }

    /// The readiness that the connection waits for, if it has changed.
    pub(super) fn new_interest(&mut self) -> Option<Interest> {
        let interest = match () {
            () if self.is_blocked() => Interest::Output,
            () if self.filled == self.input.len() => Interest::Nothing,
            () => Interest::Input,
        };
        (std::mem::replace(&mut self.interest, interest) != interest).then_some(interest)
    }

    /// Whether the input is full and waits for the budget.
    pub(super) fn is_starved(&self) -> bool {
        self.is_starved
    }

    pub(super) fn take_end(&mut self) -> Option<End> {
        self.end.take()
    }

    /// The client, the state of the service, the unprocessed input, and the output.
    pub fn parts(&mut self) -> (&Client, &mut T, &[u8], &mut Vec<u8>) {
        (&self.client, &mut self.state, &self.input[self.taken..self.filled], &mut self.output)
    }

    /// The client and the state of the service.
    pub fn client(&self) -> (&Client, &T) {
        (&self.client, &self.state)
    }

    /// The output, to which replies are appended.
    pub fn output(&mut self) -> &mut Vec<u8> {
        &mut self.output
    }

    /// The unprocessed input.
    pub fn input(&self) -> &[u8] {
        &self.input[self.taken..self.filled]
    }

    /// Marks the first `bytes` of the unprocessed input as processed.
    pub fn take(&mut self, bytes: usize) {
        self.taken += bytes;
        debug_assert!(self.taken <= self.filled);
    }

    /// Must be called when the socket is readable or writable. Returns whether there may be requests.
    pub(super) fn advance(&mut self, core: &Core) -> Result<bool, End> {
        if self.is_blocked() {
            self.send(core)?;
            return Ok(!self.is_blocked());
        }
        self.receive(core)
    }

    /// Returns whether input came.
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

    /// Sends as much output as the client accepts.
    ///
    /// # Errors
    /// The end of the connection.
    pub fn send(&mut self, core: &Core) -> Result<(), End> {
        while self.sent < self.output.len() {
            match self.stream.write(&self.output[self.sent..]) {
                Ok(more) => {
                    self.sent += more;
                    core.counters.bytes_out.fetch_add(more as u64, Relaxed);
                    // The client owed only the acceptance of replies.
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

    /// Moves unprocessed input to the front, and grows a full buffer, finally to `needed` bytes. All of them
    /// are claimed at first, so that of two requests that do not fit together one gets its memory.
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

    /// Records since when the client owes something.
    pub(super) fn note_waiting(&mut self) {
        let owes = self.is_blocked() || (self.taken < self.filled && !self.is_worked_on);
        self.waits_since = owes.then(|| self.waits_since.unwrap_or_else(Instant::now));
    }
}

fn is_temporary(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
