//! Rate-limited log of closed connections.
//!
//! Any peer may connect as often as it likes, and any client may send invalid requests. Neither may fill a
//! disk: a connection gets one line, and all connections of a kind together a few lines per second. The next
//! line reports the number of omitted ones.

use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Maximum number of lines per period.
const LINES: u32 = 10;
const WHILE: Duration = Duration::from_secs(1);

pub(super) struct LimitedLog {
    /// Kind of the connections.
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
    /// Whether a line may be written now; returns the number of lines omitted before it.
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

    /// Logs the end of a connection.
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
