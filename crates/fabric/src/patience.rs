//! Bounded waiting.
//!
//! An operation that finds others in its way waits for them for so long in all ([`Patience`]), and no longer than it may take
//! ([`Endpoint::wait_until`]), whatever it waits for and however often. The clock is not read before it waits.

use std::cell::Cell;

use crate::{Endpoint, Nanos};

/// How long one operation waits for others, in all. Its time runs from its first wait on.
#[derive(Debug)]
pub struct Patience {
    allowed: Nanos,
    deadline: Cell<Option<Nanos>>,
}

/// An operation waited for others for as long as it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitedTooLong {
    /// For what.
    pub what: &'static str,
}

impl Patience {
    /// So many nanoseconds.
    pub const fn new(allowed: Nanos) -> Self {
        Self { allowed, deadline: Cell::new(None) }
    }

    /// Until when the operation waits. Its time runs from now on, unless it does already.
    pub fn deadline<E: Endpoint>(&self, ep: &E) -> Nanos {
        let deadline = self.deadline.get().unwrap_or_else(|| ep.wait_until(ep.now(), self.allowed));
        self.deadline.set(Some(deadline));
        deadline
    }

    /// Whether the operation has waited too long. Its time runs from now on, unless it does already.
    pub fn is_over<E: Endpoint>(&self, ep: &E) -> bool {
        ep.now() > self.deadline(ep)
    }

    /// Fails once the operation has waited too long.
    ///
    /// # Errors
    /// [`WaitedTooLong`] for `what`.
    pub fn check<E: Endpoint>(&self, ep: &E, what: &'static str) -> Result<(), WaitedTooLong> {
        match self.is_over(ep) {
            true => Err(WaitedTooLong { what }),
            false => Ok(()),
        }
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
