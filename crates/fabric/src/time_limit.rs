//! How long the operation that an endpoint works for may take.
//!
//! One operation is polled at a time on an endpoint, as one slot is. While it is, its limit is the endpoint's: whatever waits
//! below it, be it a verb or a look at what others hold, sees when it must be over ([`Endpoint::wait_until`]) without being
//! told by every function between. The clock is not read before something waits.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;

use crate::{Endpoint, Nanos};

/// How long an operation may take. Its time runs from the first wait on.
#[derive(Debug)]
pub struct Limit {
    time: Cell<Time>,
}

impl Limit {
    /// So many nanoseconds.
    pub const fn new(allowed: Nanos) -> Self {
        Self { time: Cell::new(Time { allowed: Some(allowed), over: None }) }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Time {
    /// `None` without a limit.
    allowed: Option<Nanos>,
    /// When it is over, once something has waited.
    over: Option<Nanos>,
}

/// The limit of the operation that an endpoint works for just now, if it has one.
#[derive(Debug, Default)]
pub struct TimeLimit {
    polled: Cell<Time>,
}

impl TimeLimit {
    /// When the operation must be over, if it has a limit. Its time runs from the first call of this on, which is at `now`.
    #[inline]
    pub fn over(&self, now: Nanos) -> Option<Nanos> {
        let time = self.polled.get();
        let over = time.over.or_else(|| Some(now.saturating_add(time.allowed?)));
        self.polled.set(Time { over, ..time });
        over
    }

    /// The operation has come a step further of which it has any number, such as the entries of a scan: its time begins anew.
    #[inline]
    pub fn renew(&self) {
        self.polled.set(Time { over: None, ..self.polled.get() });
    }
}

/// While it is there, an endpoint works for an operation with a limit. Also a panic puts back what was there before.
struct Polling<'e> {
    endpoints: &'e TimeLimit,
    limit: &'e Limit,
    outer: Time,
}

impl Drop for Polling<'_> {
    fn drop(&mut self) {
        self.limit.time.set(self.endpoints.polled.replace(self.outer));
    }
}

/// Makes `operation`, which works on `ep`, end within `limit` if the endpoint keeps limits: not by itself, but because the waits
/// below it do. Of limits within each other the innermost counts. One limit may be that of several operations, one after the
/// other.
#[inline]
pub async fn limited<E: Endpoint, F: Future>(ep: &E, limit: &Limit, operation: F) -> F::Output {
    let mut operation = pin!(operation);
    poll_fn(|cx| {
        let _polling = ep.time_limit().map(|endpoints| {
            let outer = endpoints.polled.replace(limit.time.get());
            Polling { endpoints, limit, outer }
        });
        operation.as_mut().poll(cx)
    })
    .await
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
