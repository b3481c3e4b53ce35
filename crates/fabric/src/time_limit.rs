//! Time limits of operations.
//!
//! An endpoint polls one operation at a time, and keeps its limit meanwhile. Every wait of the operation, for
//! a verb or for a lock, reads the limit from the endpoint
//! ([`Endpoint::wait_until`](crate::Endpoint::wait_until)), so the functions in between need not pass it on.
//! The clock is not read before the first wait.

use std::cell::Cell;

/// Nanoseconds since a fixed moment, of real or of virtual time.
pub type Nanos = u64;

/// Longest time that an operation may take, counted from its first wait.
#[derive(Debug)]
pub struct Limit {
    time: Cell<Time>,
}

impl Limit {
    /// Creates a limit of `allowed` nanoseconds.
    pub const fn new(allowed: Nanos) -> Self {
        Self { time: Cell::new(Time { allowed: Some(allowed), over: None }) }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Time {
    /// `None` without a limit.
    allowed: Option<Nanos>,
    /// Deadline; `None` before the first wait.
    over: Option<Nanos>,
}

/// Limit of the operation that an endpoint is polling, if it has one.
#[derive(Debug, Default)]
pub struct TimeLimit {
    polled: Cell<Time>,
}

impl TimeLimit {
    /// Deadline of the operation, if it has a limit. The first call, at `now`, starts its time.
    #[inline]
    pub fn over(&self, now: Nanos) -> Option<Nanos> {
        let time = self.polled.get();
        let over = time.over.or_else(|| Some(now.saturating_add(time.allowed?)));
        self.polled.set(Time { over, ..time });
        over
    }

    /// Restarts the time of an operation that consists of any number of steps, after one of them, such as an
    /// entry of a scan.
    #[inline]
    pub fn renew(&self) {
        self.polled.set(Time { over: None, ..self.polled.get() });
    }

    /// Installs `limit` until the guard is dropped.
    #[inline]
    pub(crate) fn enter<'e>(&'e self, limit: &'e Limit) -> Polling<'e> {
        let outer = self.polled.replace(limit.time.get());
        Polling { endpoints: self, limit, outer }
    }
}

/// Keeps a limit installed while its operation is polled. Dropping it restores the previous limit, also on a
/// panic.
pub(crate) struct Polling<'e> {
    endpoints: &'e TimeLimit,
    limit: &'e Limit,
    outer: Time,
}

impl Drop for Polling<'_> {
    fn drop(&mut self) {
        self.limit.time.set(self.endpoints.polled.replace(self.outer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_runs_from_the_first_wait_and_again_after_each_step() {
        let limit = TimeLimit::default();
        assert_eq!(limit.over(7), None, "nobody set one");
        limit.polled.set(Time { allowed: Some(100), over: None });
        assert_eq!((limit.over(7), limit.over(50)), (Some(107), Some(107)));
        limit.renew();
        assert_eq!(limit.over(60), Some(160));
        limit.polled.set(Time { allowed: Some(Nanos::MAX), over: None });
        assert_eq!(limit.over(60), Some(Nanos::MAX));
    }
}
