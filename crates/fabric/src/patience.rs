//! Bounded waiting.
//!
//! An operation waits for other operations for a limited total time ([`Patience`]), whatever it waits for and
//! however often, and never beyond its own time limit ([`limited`], [`Endpoint::wait_until`]). The clock is
//! not read before the first wait.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;

use crate::{Endpoint, Limit, Nanos};

/// Total time that one operation waits for others, counted from its first wait.
#[derive(Debug)]
pub struct Patience {
    allowed: Nanos,
    deadline: Cell<Option<Nanos>>,
}

/// Error of an operation that used up its time for waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitedTooLong {
    /// The subject of the wait.
    pub what: &'static str,
}

impl Patience {
    /// Creates a patience of `allowed` nanoseconds.
    pub const fn new(allowed: Nanos) -> Self {
        Self { allowed, deadline: Cell::new(None) }
    }

    /// Latest time that the operation waits until. The first call starts the time.
    pub fn deadline<E: Endpoint>(&self, ep: &E) -> Nanos {
        let deadline = self.deadline.get().unwrap_or_else(|| ep.wait_until(ep.now(), self.allowed));
        self.deadline.set(Some(deadline));
        deadline
    }

    /// Whether the operation has waited too long. The first call starts the time.
    pub fn is_over<E: Endpoint>(&self, ep: &E) -> bool {
        ep.now() > self.deadline(ep)
    }

    /// Fails once the operation has waited too long.
    ///
    /// # Errors
    /// [`WaitedTooLong`] for `what`.
    pub fn check<E: Endpoint>(&self, ep: &E, what: &'static str) -> Result<(), WaitedTooLong> {
        if self.is_over(ep) { Err(WaitedTooLong { what }) } else { Ok(()) }
    }

    /// Lets others run, unless the operation has waited too long.
    ///
    /// # Errors
    /// [`WaitedTooLong`] for `what`.
    pub async fn wait<E: Endpoint>(&self, ep: &E, what: &'static str) -> Result<(), WaitedTooLong> {
        self.check(ep, what)?;
        ep.yield_now().await;
        Ok(())
    }
}

/// Runs `operation` on `ep` within `limit`, if the endpoint keeps limits. The operation ends in time because
/// each of its waits does. Of nested limits the innermost applies. Several operations, one after the other,
/// may share a limit.
#[inline]
pub async fn limited<E: Endpoint, F: Future>(ep: &E, limit: &Limit, operation: F) -> F::Output {
    let mut operation = pin!(operation);
    poll_fn(|cx| {
        let _polling = ep.time_limit().map(|endpoints| endpoints.enter(limit));
        operation.as_mut().poll(cx)
    })
    .await
}
