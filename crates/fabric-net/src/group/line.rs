//! A connection for messages to one memory server, one at a time, by a thread that waits for the answer.
//!
//! It is made when it is needed, and again after it broke. Servers and clients use it beside the connections for
//! verbs.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use pando_fabric::{FabricError, MemoryServerId};

use crate::connect::{ConnectError, Destination, connect};
use crate::handshake::{LinkId, Protocol, Welcomed, random_nonzero};
use crate::secret::Secret;
use crate::wire::{BODY_MAX, Malformed, Request, decode_reply};

/// Reason why a message has no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LineError {
    #[error("{0}")]
    NotConnected(#[from] ConnectError),
    #[error("{0}")]
    Broken(#[from] io::Error),
    #[error("its answer makes no sense: {0}")]
    Malformed(#[from] Malformed),
    #[error("{0}")]
    Refused(FabricError),
}

/// Numbers of the lines of this process: each connection needs one of its own.
static LINKS: AtomicU64 = AtomicU64::new(1);

/// The connection is made when it is needed, and again after it broke.
pub(crate) struct Line {
    destination: Destination,
    secret: Secret,
    process: u64,
    stream: Option<(TcpStream, Welcomed)>,
}

impl Line {
    /// A line to the memory server `number` at `address`, under a number of a process that no client has.
    pub fn new(number: u16, address: &str, secret: &Secret) -> Self {
        let destination = Destination { address: address.into(), protocol: Protocol::VERBS, number };
        Self { destination, secret: secret.clone(), process: random_nonzero(), stream: None }
    }

    /// Where it leads.
    pub fn destination(&self) -> &Destination {
        &self.destination
    }

    /// Number of the server.
    pub fn server(&self) -> MemoryServerId {
        MemoryServerId(self.destination.number)
    }

    /// The server's welcome; connects if necessary.
    pub fn welcomed(&mut self, patience: Duration) -> Result<Welcomed, ConnectError> {
        if self.stream.is_none() {
            let id = LinkId { process: self.process, link: LINKS.fetch_add(1, Relaxed) };
            let (stream, welcomed) = connect(&self.destination, id, &self.secret, patience)?;
            stream.set_nonblocking(false)?;
            self.stream = Some((stream, welcomed));
        }
        Ok(self.stream.as_ref().expect("it was just made").1)
    }

    /// Sends a message, and returns the answer if it comes within `patience`.
    pub fn ask(&mut self, kind: u16, body: &[u8], patience: Duration) -> Result<Vec<u8>, LineError> {
        self.send(Request::Group { kind, body }, patience)
    }

    /// Has the server fence off a process.
    pub fn fence(&mut self, process: u64, patience: Duration) -> Result<(), LineError> {
        self.send(Request::Fence { process, link: 0 }, patience).map(drop)
    }

    fn send(&mut self, request: Request<'_>, patience: Duration) -> Result<Vec<u8>, LineError> {
        let until = Instant::now() + patience;
        self.welcomed(patience)?;
        let asked = self.exchange(request, until);
        if !matches!(asked, Ok(_) | Err(LineError::Refused(_))) {
            self.stream = None;
        }
        asked
    }

    fn exchange(&mut self, request: Request<'_>, until: Instant) -> Result<Vec<u8>, LineError> {
        let (stream, _) = self.stream.as_mut().expect("it is connected");
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        stream.set_write_timeout(Some(left(until)?))?;
        stream.write_all(&bytes)?;
        let (mut input, mut filled) = (vec![0; 4096], 0);
        loop {
            let server = MemoryServerId(self.destination.number);
            if let Some((reply, _)) = decode_reply(&input[..filled], server, request.op(), BODY_MAX)? {
                return reply.map(<[u8]>::to_vec).map_err(LineError::Refused);
            }
            if filled == input.len() {
                input.resize(2 * filled, 0);
            }
            stream.set_read_timeout(Some(left(until)?))?;
            match stream.read(&mut input[filled..])? {
                0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                more => filled += more,
            }
        }
    }
}

fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}
