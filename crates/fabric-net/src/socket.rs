//! What all connections have in common.
//!
//! They never block, send at once what they are given, and find out by themselves that the other host is gone: the kernel asks
//! after some seconds of silence, and gives up when what was sent is not acknowledged. A peer that is stopped is still there
//! for the kernel; deadlines of verbs find that out.

use std::io;
use std::net::TcpStream;
use std::time::Duration;

use rustix::net::sockopt;

/// Silence after which the kernel asks whether the other host is there, and how often and how long it asks.
const KEEP_IDLE: Duration = Duration::from_secs(5);
const KEEP_INTERVAL: Duration = Duration::from_secs(2);
const KEEP_COUNT: u32 = 3;
/// How long bytes may stay without acknowledgement, in ms.
const USER_TIMEOUT_MS: u32 = 10_000;

/// To be called for each connection before anything else.
pub(crate) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEP_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEP_INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, KEEP_COUNT)?;
    sockopt::set_tcp_user_timeout(stream, USER_TIMEOUT_MS)?;
    Ok(())
}
