//! A session's connection to one compute server: requests to send, requests sent, and replies awaited.
//!
//! Requests are written into one buffer and sent together; replies arrive in the order of the requests. The
//! connection is made when it is first needed, and again after it broke, under the same link identifier: a
//! server that accepts it executes nothing more that came over the earlier one. So a request sent before an
//! error is executed before the session's next request to this server, or never.
//!
//! When the connection breaks, a request that was not sent completely was not executed. One that was may have
//! been executed, or may still be until the session is connected again.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pando_fabric_net::wire::printable;
use pando_fabric_net::{ConnectError, Destination, LinkId, Secret, connect};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::RemoteError;
use super::wire::{
    Described, Malformed, Op, Opened, REPLY_HEADER, REPLY_MAX, REQUEST_HEADER, Reply, Request, decode_reply,
};

/// Bytes that one read of the socket takes at most, until a longer reply arrives.
const INPUT: usize = 64 << 10;
/// A connection that was idle for this long is checked before it is used, because its server may have ended.
const IDLE: Duration = Duration::from_millis(1);
/// Pauses between attempts to connect.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// A request whose reply is awaited.
struct Waiting {
    /// Identifies the request to the caller.
    tag: usize,
    op: Op,
    /// Bytes requested over this connection up to the end of this request.
    end: u64,
}

/// Receives the answers: the tag of a request, and its reply or error.
pub(super) type Answer<'a> = dyn FnMut(usize, Result<Reply<'_>, RemoteError>) + 'a;

/// Parameters of a connection, the same for all links of a session.
pub(super) struct Dial<'a> {
    pub secret: &'a Secret,
    pub index: &'a str,
    pub patience: Duration,
}

pub(super) struct Link {
    destination: Destination,
    id: LinkId,
    stream: Option<TcpStream>,
    /// After a failed attempt to connect: the time of the next attempt, and the error.
    down: Option<(Instant, RemoteError)>,
    pause: Duration,
    output: Vec<u8>,
    /// Bytes of `output` that the kernel has accepted.
    sent: usize,
    /// Bytes sent before those in `output`.
    sent_before: u64,
    waiting: VecDeque<Waiting>,
    input: Vec<u8>,
    filled: usize,
    body_max: u32,
    /// Time at which something was last sent or received.
    used: Instant,
    /// Time at which the awaited replies are late.
    deadline: Instant,
}

/// Reason why a connection is given up.
struct Broken(&'static str);

impl From<io::Error> for Broken {
    fn from(_: io::Error) -> Self {
        Self("the connection to it broke")
    }
}

impl From<Malformed> for Broken {
    fn from(_: Malformed) -> Self {
        Self("its answer makes no sense")
    }
}

impl Link {
    pub fn new(destination: Destination, id: LinkId) -> Self {
        let now = Instant::now();
        Self {
            destination,
            id,
            stream: None,
            down: None,
            pause: PAUSE_MIN,
            output: Vec::new(),
            sent: 0,
            sent_before: 0,
            waiting: VecDeque::new(),
            input: Vec::new(),
            filled: 0,
            body_max: 0,
            used: now,
            deadline: now,
        }
    }

    pub fn address(&self) -> &Arc<str> {
        &self.destination.address
    }

    /// Prepares for a request. Connects if necessary, and then returns what the server says of the index.
    ///
    /// # Errors
    /// The reason why there is no connection.
    pub fn prepare(&mut self, dial: &Dial<'_>) -> Result<Option<Opened>, RemoteError> {
        if self.waiting.is_empty() && self.stream.is_some() && self.used.elapsed() > IDLE && self.has_ended()
        {
            self.reset();
        }
        if self.stream.is_some() {
            return Ok(None);
        }
        if let Some((until, error)) = &self.down
            && Instant::now() < *until
        {
            return Err(error.clone());
        }
        let opened = self.connect(dial);
        match &opened {
            Ok(_) => (self.down, self.pause) = (None, PAUSE_MIN),
            Err(error) => {
                self.reset();
                self.down = Some((Instant::now() + self.pause, error.clone()));
                self.pause = (2 * self.pause).min(PAUSE_MAX);
            }
        }
        opened.map(Some)
    }

    /// Whether the server closed the connection, or sent something unrequested.
    fn has_ended(&mut self) -> bool {
        let Some(stream) = &mut self.stream else { return true };
        !matches!(stream.read(&mut [0]), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }

    fn connect(&mut self, dial: &Dial<'_>) -> Result<Opened, RemoteError> {
        self.connect_and_ask(dial, Request::Open { name: dial.index }, |reply| match reply {
            Reply::Opened(opened) => opened,
            other => unreachable!("{other:?} was decoded as an answer to Open"),
        })
    }

    /// Connects only to ask which index the server serves.
    ///
    /// # Errors
    /// The reason why there is no connection or no answer.
    pub fn describe(&mut self, dial: &Dial<'_>) -> Result<Described, RemoteError> {
        let described = self.connect_and_ask(dial, Request::Describe, |reply| match reply {
            Reply::Described(described) => described,
            other => unreachable!("{other:?} was decoded as an answer to Describe"),
        });
        self.reset();
        described
    }

    fn connect_and_ask<T>(
        &mut self,
        dial: &Dial<'_>,
        request: Request<'_>,
        take: impl Fn(Reply<'_>) -> T,
    ) -> Result<T, RemoteError> {
        let until = Instant::now() + dial.patience;
        let connected = connect(&self.destination, self.id, dial.secret, dial.patience);
        let (stream, welcomed) = connected.map_err(|error| not_connected(&self.destination, &error))?;
        (self.stream, self.body_max) = (Some(stream), welcomed.body_max);
        self.input.resize(INPUT, 0);
        let mut frame = Vec::new();
        request.encode(&mut frame);
        self.push(0, request.op(), &frame)?;
        let mut answered = None;
        let left = until.saturating_duration_since(Instant::now());
        exchange(std::slice::from_mut(self), left, &mut |_, reply| answered = Some(reply.map(&take)));
        match answered.expect("what is waited for is answered or fails") {
            // No request of the caller was sent.
            Err(RemoteError::NoAnswer { server, reason }) => {
                Err(RemoteError::NotConnected { server, reason: reason.to_owned() })
            }
            done => done,
        }
    }

    /// Adds a request; the next [`exchange`] sends it.
    ///
    /// # Errors
    /// [`RemoteError::TooLong`].
    pub fn push(&mut self, tag: usize, op: Op, frame: &[u8]) -> Result<(), RemoteError> {
        let (len, max) = (frame.len() - REQUEST_HEADER, self.body_max as usize);
        if len > max {
            return Err(RemoteError::TooLong { server: Arc::clone(self.address()), len, max });
        }
        self.output.extend_from_slice(frame);
        let end = self.sent_before + self.output.len() as u64;
        self.waiting.push_back(Waiting { tag, op, end });
        Ok(())
    }

    fn send(&mut self, patience: Duration) -> Result<(), Broken> {
        let Some(stream) = &mut self.stream else { return Ok(()) };
        if self.sent == self.output.len() {
            return Ok(());
        }
        while self.sent < self.output.len() {
            match stream.write(&self.output[self.sent..]) {
                Ok(more) => {
                    self.sent += more;
                    // A server that accepts bytes is alive.
                    self.used = Instant::now();
                    self.deadline = self.used + patience;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        self.sent_before += self.output.len() as u64;
        self.output.clear();
        self.output.shrink_to(INPUT);
        self.sent = 0;
        Ok(())
    }

    /// Receives what has arrived, and passes on the complete replies.
    fn receive(&mut self, patience: Duration, answer: &mut Answer<'_>) -> Result<(), Broken> {
        loop {
            let Some(stream) = &mut self.stream else { return Ok(()) };
            let room = self.input.len() - self.filled;
            let came = match stream.read(&mut self.input[self.filled..]) {
                Ok(0) => return Err(Broken("the connection to it broke")),
                Ok(came) => came,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            self.filled += came;
            self.used = Instant::now();
            self.deadline = self.used + patience;
            self.take_replies(answer)?;
            if came < room {
                return Ok(());
            }
        }
    }

    fn take_replies(&mut self, answer: &mut Answer<'_>) -> Result<(), Broken> {
        let mut taken = 0;
        while let Some(first) = self.waiting.front() {
            let bytes = &self.input[taken..self.filled];
            let Some((reply, used)) = decode_reply(bytes, first.op, REPLY_MAX)? else { break };
            taken += used;
            let tag = first.tag;
            self.waiting.pop_front();
            match reply {
                Reply::Failed { code, may_have_taken_effect, text } => {
                    let (server, text) = (Arc::clone(&self.destination.address), printable(text));
                    answer(tag, Err(RemoteError::Answered { server, code, may_have_taken_effect, text }));
                }
                reply => answer(tag, Ok(reply)),
            }
        }
        if self.waiting.is_empty() && taken < self.filled {
            return Err(Malformed::WrongReply.into());
        }
        self.input.copy_within(taken..self.filled, 0);
        self.filled -= taken;
        if self.filled == 0 && self.input.len() > INPUT {
            self.input.truncate(INPUT);
            self.input.shrink_to_fit();
        } else if self.filled == self.input.len() {
            // One incomplete reply fills the buffer; a reply may be this long.
            self.input.resize((2 * self.filled).min(REPLY_HEADER + REPLY_MAX as usize), 0);
        }
        Ok(())
    }

    /// Closes the connection and forgets the requests.
    fn reset(&mut self) {
        self.stream = None;
        self.waiting.clear();
        self.output = Vec::new();
        (self.sent, self.sent_before, self.filled) = (0, 0, 0);
    }

    /// Closes the connection and fails all requests.
    #[cold]
    fn break_off(&mut self, Broken(reason): Broken, answer: &mut Answer<'_>) {
        let sent = self.sent_before + self.sent as u64;
        let waiting = std::mem::take(&mut self.waiting);
        self.reset();
        for Waiting { tag, end, .. } in waiting {
            let server = Arc::clone(self.address());
            let error = match end <= sent {
                true => RemoteError::NoAnswer { server, reason },
                false => RemoteError::NotConnected { server, reason: reason.to_owned() },
            };
            answer(tag, Err(error));
        }
    }
}

pub(super) fn not_connected(to: &Destination, error: &ConnectError) -> RemoteError {
    let (server, reason) = (Arc::clone(&to.address), error.to_string());
    match error.is_final() {
        true => RemoteError::Rejected { server, reason },
        false => RemoteError::NotConnected { server, reason },
    }
}

/// Sends the requests of all `links`, and waits until each is answered or failed. A server that sends nothing
/// for `patience` has failed.
pub(super) fn exchange(links: &mut [Link], patience: Duration, answer: &mut Answer<'_>) {
    let deadline = Instant::now() + patience;
    for link in links.iter_mut().filter(|link| !link.waiting.is_empty()) {
        link.deadline = deadline;
        if let Err(broken) = link.send(patience) {
            link.break_off(broken, answer);
        }
    }
    loop {
        let mut fds = Vec::new();
        let mut until: Option<Instant> = None;
        for link in links.iter() {
            let Some(stream) = link.stream.as_ref().filter(|_| !link.waiting.is_empty()) else { continue };
            let sends = if link.sent < link.output.len() { PollFlags::OUT } else { PollFlags::empty() };
            fds.push(PollFd::new(stream, PollFlags::IN | sends));
            until = Some(until.map_or(link.deadline, |until| until.min(link.deadline)));
        }
        let Some(until) = until else { return };
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        // A failed `poll` counts as a short wait: the sockets report the errors.
        let came = poll(&mut fds, Some(&left)).is_ok_and(|ready| ready > 0);
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let mut ready = ready.into_iter();
        for link in links.iter_mut().filter(|link| !link.waiting.is_empty() && link.stream.is_some()) {
            let is_ready = ready.next().unwrap_or_default() && came;
            let done = match is_ready {
                true => link.send(patience).and_then(|()| link.receive(patience, answer)),
                false if Instant::now() >= link.deadline => Err(Broken("it did not answer in time")),
                false => Ok(()),
            };
            if let Err(broken) = done {
                link.break_off(broken, answer);
            }
        }
    }
}
