//! The thread that persists a log, so that operations that wait for the disk hold up no others.
//!
//! While one call is under way, the next batches gather; all who wait for these share the next call. An operation
//! that blocks its thread makes the call itself if there is none. Without anybody who waits the thread persists the
//! log once in an interval, if there is one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Release};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use pando_log::Log;
use pando_rt::block_on;

use crate::error::{Error, Result};
use crate::place::AnyEndpoint;

/// Ends the thread when it is dropped.
pub(crate) struct Persister {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Persister {
    /// Starts the thread.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] if the host starts no more threads.
    pub fn start(log: Arc<Log>, ep: AnyEndpoint, interval: Option<Duration>) -> Result<Self> {
        let ends = Arc::new(AtomicBool::new(false));
        let (served, told) = (Arc::clone(&log), Arc::clone(&ends));
        let run = move || {
            // Whoever waits fails if this ends, also by a panic.
            let log = Served(served);
            persist_until(&log.0, &ep, interval, &told);
        };
        let thread = thread::Builder::new().name("pando-log".to_owned()).spawn(run);
        let thread =
            thread.map_err(|error| Error::InvalidOption(format!("no thread can be started: {error}")))?;
        let waker = thread.thread().clone();
        log.serve(Box::new(move || waker.unpark()));
        Ok(Self { ends, thread: Some(thread) })
    }
}

impl Drop for Persister {
    fn drop(&mut self) {
        self.ends.store(true, Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic was reported by its thread, and has failed the log.
            let _ = thread.join();
        }
    }
}

struct Served(Arc<Log>);

impl Drop for Served {
    fn drop(&mut self) {
        self.0.give_up();
    }
}

fn persist_until(log: &Log, ep: &AnyEndpoint, interval: Option<Duration>, ends: &AtomicBool) {
    let mut last = Instant::now();
    while !ends.load(Acquire) {
        let left = interval.map(|interval| interval.saturating_sub(last.elapsed()));
        let now = Instant::now();
        let done = if left == Some(Duration::ZERO) {
            block_on(ep, log.persist(ep)).map(|()| true)
        } else if log.is_awaited() {
            block_on(ep, log.persist_for_all(ep))
        } else {
            Ok(false)
        };
        match done {
            Ok(true) => {
                last = now;
                continue;
            }
            // Whoever is at it wakes this thread afterwards.
            Ok(false) => {}
            // Every operation reports it from now on.
            Err(_) => return,
        }
        match left {
            Some(left) => thread::park_timeout(left),
            None => thread::park(),
        }
    }
}
