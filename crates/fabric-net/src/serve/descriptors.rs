//! File descriptors: raising their limit, and behaviour without free ones.
//!
//! A process starts with a low limit, which it may raise itself. If the limit does not suffice for the
//! configured number of clients, fewer are admitted and the others are told so; otherwise the server could
//! not accept connections at all.

use std::fs::File;
use std::io;
use std::net::TcpListener;

use rustix::process::{Resource, getrlimit, setrlimit};

/// Descriptors kept for other uses: files, memory servers, a page of metrics.
const RESERVE: u64 = 160;

/// Maximum number of clients beside `strangers`, at most `clients`; raises the limit first.
///
/// # Errors
/// If there is room for none.
pub(super) fn make_room(clients: usize, strangers: usize) -> io::Result<usize> {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current < limit.maximum || (limit.current.is_some() && limit.maximum.is_none()) {
        let raised = rustix::process::Rlimit { current: limit.maximum, ..limit };
        // If raising is not allowed, the old limit stays.
        if setrlimit(Resource::Nofile, raised).is_ok() {
            limit = raised;
        }
    }
    fitting(limit.current, clients, strangers)
}

fn fitting(limit: Option<u64>, clients: usize, strangers: usize) -> io::Result<usize> {
    let Some(limit) = limit else { return Ok(clients) };
    let room = limit.saturating_sub(RESERVE + strangers as u64);
    if room >= clients as u64 {
        return Ok(clients);
    }
    let text = format!(
        "this process may have {limit} open files, which is too few for {clients} clients and {strangers} strangers"
    );
    if room == 0 {
        return Err(io::Error::other(format!("{text}; `ulimit -n` raises the limit")));
    }
    tracing::warn!("{text}: {room} clients are let in; `ulimit -n` raises the limit");
    Ok(room as usize)
}

/// A descriptor kept in reserve for the time when there are no others.
pub(super) struct Spare(Option<File>);

impl Spare {
    pub fn new() -> Self {
        Self(File::open("/dev/null").ok())
    }

    /// Accepts and closes the next waiting connection, so that the peer learns of it; returns whether a
    /// descriptor was available.
    pub fn turn_away(&mut self, listener: &TcpListener) -> bool {
        let had = self.0.take().is_some();
        if had {
            // Another thread may have taken the descriptor, or the peer may be gone.
            drop(listener.accept());
        }
        self.0 = File::open("/dev/null").ok();
        had
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_no_more_clients_than_descriptors() {
        assert_eq!(fitting(None, 4096, 256).expect("no limit"), 4096);
        assert_eq!(fitting(Some(20_000), 4096, 256).expect("enough"), 4096);
        assert_eq!(fitting(Some(1024), 4096, 256).expect("some"), 1024 - 256 - RESERVE as usize);
        let error = fitting(Some(300), 4096, 256).expect_err("none").to_string();
        assert!(error.contains("300 open files") && error.contains("ulimit -n"), "{error}");
    }

    #[test]
    fn the_limit_is_raised() {
        make_room(1, 1).expect("room for one");
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
    }
}
