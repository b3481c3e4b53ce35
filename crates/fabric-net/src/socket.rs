//! Options common to all connections.
//!
//! Connections never block, send data at once, and detect the loss of the other host: the kernel probes after
//! some seconds of silence, and gives up if data stays unacknowledged. A stopped peer is still present for
//! the kernel; the deadlines of verbs detect it.

use std::io;
use std::net::TcpStream;
use std::time::Duration;

use rustix::net::sockopt;

/// Silence after which the kernel probes the other host, and interval and number of the probes.
const KEEP_IDLE: Duration = Duration::from_secs(5);
const KEEP_INTERVAL: Duration = Duration::from_secs(2);
const KEEP_COUNT: u32 = 3;
/// Longest time without acknowledgement of sent data, in ms.
const USER_TIMEOUT_MS: u32 = 10_000;

/// Sets the options. Must be called first for each connection.
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
