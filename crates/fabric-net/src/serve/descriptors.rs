//! File descriptors: as many as the system gives, and what happens when there are no more.
//!
//! A process begins with a low limit, which it may raise itself. If clients may have more connections than there can be
//! descriptors, fewer are let in, and told so, rather than that nobody can be accepted any more.

use std::fs::File;
use std::io;
use std::net::TcpListener;

use rustix::process::{Resource, getrlimit, setrlimit};

/// Descriptors that connections of clients and strangers leave to all else: files, memory servers, a page of metrics.
const RESERVE: u64 = 160;

/// How many clients there may be at a time beside `strangers`, if there are to be `clients`; the limit is raised for it.
///
/// # Errors
/// If there is room for none.
pub(super) fn make_room(clients: usize, strangers: usize) -> io::Result<usize> {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current < limit.maximum || (limit.current.is_some() && limit.maximum.is_none()) {
        let raised = rustix::process::Rlimit { current: limit.maximum, ..limit };
        // If it may not, there are as many as before.
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

/// A descriptor that is kept so that there is one when there are no more.
pub(super) struct Spare(Option<File>);

impl Spare {
    pub fn new() -> Self {
        Self(File::open("/dev/null").ok())
    }

    /// Accepts whoever waits and hangs up, so that he knows; whether there was a descriptor for it.
    pub fn turn_away(&mut self, listener: &TcpListener) -> bool {
        let had = self.0.take().is_some();
        if had {
            // Another thread may have taken the descriptor, or he may have gone.
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
