//! What a server logs of connections that it closes.
//!
//! Anybody may connect as often as he likes, and who is let in may send nonsense as often; neither must be able to fill a disk with
//! that: each connection is worth one line, and all of a kind together some lines a second. How many were left out is said with
//! the next line.

use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Lines in so much time at most.
const LINES: u32 = 10;
const WHILE: Duration = Duration::from_secs(1);

pub(super) struct LimitedLog {
    /// Whose connections they are.
    who: &'static str,
    recent: Mutex<Recent>,
}

#[derive(Default)]
struct Recent {
    since: Option<Instant>,
    lines: u32,
    left_out: u64,
}

impl Recent {
    /// Whether there is to be a line now; how many were left out before it.
    fn admit(&mut self, now: Instant) -> Option<u64> {
        if self.since.is_none_or(|since| now.saturating_duration_since(since) >= WHILE) {
            (self.since, self.lines) = (Some(now), 0);
        }
        if self.lines == LINES {
            self.left_out += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

impl LimitedLog {
    pub fn of(who: &'static str) -> Self {
        Self { who, recent: Mutex::default() }
    }

    /// Says how a connection ended.
    pub fn tell(&self, peer: SocketAddr, end: &dyn Display) {
        let admitted = self.recent.lock().unwrap_or_else(PoisonError::into_inner).admit(Instant::now());
        let who = self.who;
        match admitted {
            Some(0) => tracing::warn!(%peer, "{who}: {end}"),
            Some(left_out) => {
                tracing::warn!(%peer, "{who}: {end}; {left_out} more before were not logged")
            }
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_some_lines_a_second_and_the_rest_is_counted() {
        let (mut recent, now) = (Recent::default(), Instant::now());
        assert!((0..LINES).all(|_| recent.admit(now) == Some(0)));
        assert!((0..1000).all(|_| recent.admit(now + WHILE / 2).is_none()));
        assert_eq!(recent.admit(now + WHILE), Some(1000));
        assert_eq!(recent.admit(now + WHILE), Some(0));
    }
}
