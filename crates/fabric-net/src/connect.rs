//! Making a connection, for all protocols: name lookup, connection attempts and handshake within one
//! deadline.
//!
//! This blocks, so an endpoint uses a separate thread. Errors tell permanent causes from passing ones: a
//! wrong secret stays wrong, an absent server may come back.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pando_fabric::FabricError;

use crate::handshake::{
    CHALLENGE, ClientHalf, LinkId, NO_PROOF, PROOF, Protocol, Rejection, WELCOME, Welcomed,
};
use crate::secret::Secret;
use crate::socket;

/// Address and protocol of a server.
#[derive(Clone, Debug)]
pub struct Destination {
    /// `host:port`.
    pub address: Arc<str>,
    pub protocol: Protocol,
    /// Number by which the client knows the server.
    pub number: u16,
}

/// Reason why a connection was not made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    #[error("{0}")]
    Rejected(#[from] Rejection),
    #[error("it is no address of the form host:port")]
    NoAddress,
    #[error("{0}")]
    Io(io::Error),
    #[error("it does not answer")]
    Silent,
    #[error("it hung up; perhaps it is no server of Pando")]
    HungUp,
}

impl From<io::Error> for ConnectError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Self::Silent,
            io::ErrorKind::InvalidInput => Self::NoAddress,
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => Self::HungUp,
            _ => Self::Io(error),
        }
    }
}

impl ConnectError {
    /// Whether every further attempt would fail alike.
    pub fn is_final(&self) -> bool {
        match self {
            Self::Rejected(rejection) => !matches!(rejection, Rejection::Full),
            Self::NoAddress => true,
            Self::Io(_) | Self::Silent | Self::HungUp => false,
        }
    }

    /// The error to report when a server is used for the first time.
    pub(crate) fn when_opening(self, to: &Destination) -> FabricError {
        let path = format!("tcp://{}", to.address);
        match self {
            Self::Rejected(_) | Self::NoAddress => FabricError::Open { path, reason: self.to_string() },
            Self::Io(_) | Self::Silent | Self::HungUp => {
                FabricError::System { path, reason: format!("cannot be reached: {self}") }
            }
        }
    }
}

/// Connects and shakes hands; returns the nonblocking connection and the server's welcome.
///
/// # Errors
/// The permanent error, or the last one within `patience`.
pub fn connect(
    to: &Destination,
    id: LinkId,
    secret: &Secret,
    patience: Duration,
) -> Result<(TcpStream, Welcomed), ConnectError> {
    let until = Instant::now() + patience;
    let mut failed = ConnectError::NoAddress;
    for address in to.address.to_socket_addrs()? {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ConnectError::Silent);
        }
        match TcpStream::connect_timeout(&address, left) {
            Ok(stream) => return shake(stream, to, id, secret, until),
            Err(error) => failed = error.into(),
        }
    }
    Err(failed)
}

fn shake(
    stream: TcpStream,
    to: &Destination,
    id: LinkId,
    secret: &Secret,
    until: Instant,
) -> Result<(TcpStream, Welcomed), ConnectError> {
    let mut stream = Timed { stream, until };
    let half = ClientHalf::new(to.protocol, to.number, id);
    stream.write_all(half.hello())?;
    let mut challenge = [0; CHALLENGE];
    stream.read_exact(&mut challenge)?;
    half.check(&challenge)?;
    let mut proof = [0; PROOF];
    stream.read_exact(&mut proof)?;
    match half.prove(&challenge, &proof, secret) {
        Ok(proof) => stream.write_all(&proof)?,
        Err(rejection) => {
            // For the server's log; a failure makes no difference here.
            let _ = stream.write_all(&NO_PROOF);
            return Err(rejection.into());
        }
    }
    let mut welcome = [0; WELCOME];
    stream.read_exact(&mut welcome)?;
    let welcomed = half.finish(&challenge, &welcome, secret)?;
    socket::prepare(&stream.stream)?;
    Ok((stream.stream, welcomed))
}

/// A stream whose operations block until a deadline at most.
struct Timed {
    stream: TcpStream,
    until: Instant,
}

impl Timed {
    fn left(&self) -> io::Result<Duration> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

impl Read for Timed {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(self.left()?))?;
        self.stream.read(into)
    }
}

impl Write for Timed {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(self.left()?))?;
        self.stream.write(from)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}
