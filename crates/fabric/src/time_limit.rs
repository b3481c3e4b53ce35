//! Time limits of operations.
//!
//! An endpoint polls one operation at a time. Meanwhile the operation's limit is the endpoint's: every wait below it, for a
//! verb or for a lock, sees when it must end ([`Endpoint::wait_until`](crate::Endpoint::wait_until)), and the functions between
//! need not pass it on. The clock is not read before something waits.

use std::cell::Cell;

/// Nanoseconds since some fixed moment, of real or of virtual time.
pub type Nanos = u64;

/// Longest time that an operation may take, from its first wait on.
#[derive(Debug)]
pub struct Limit {
    time: Cell<Time>,
}

impl Limit {
    /// A limit of `allowed` nanoseconds.
    pub const fn new(allowed: Nanos) -> Self {
        Self { time: Cell::new(Time { allowed: Some(allowed), over: None }) }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Time {
    /// `None` without a limit.
    allowed: Option<Nanos>,
    /// When the time is up, once something has waited.
    over: Option<Nanos>,
}

/// Limit of the operation that an endpoint is polling, if it has one.
#[derive(Debug, Default)]
pub struct TimeLimit {
    polled: Cell<Time>,
}

impl TimeLimit {
    /// When the operation must end, if it has a limit. Its time starts with the first call, which is at `now`.
    #[inline]
    pub fn over(&self, now: Nanos) -> Option<Nanos> {
        let time = self.polled.get();
        let over = time.over.or_else(|| Some(now.saturating_add(time.allowed?)));
        self.polled.set(Time { over, ..time });
        over
    }

    /// Starts the time of the operation anew, after one of any number of steps, such as an entry of a scan.
    #[inline]
    pub fn renew(&self) {
        self.polled.set(Time { over: None, ..self.polled.get() });
    }

    /// Puts `limit` in place for as long as the guard lives.
    #[inline]
    pub(crate) fn enter<'e>(&'e self, limit: &'e Limit) -> Polling<'e> {
        let outer = self.polled.replace(limit.time.get());
        Polling { endpoints: self, limit, outer }
    }
}

/// Keeps a limit in place while its operation is polled. Dropping it restores the limit before, after a panic too.
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
