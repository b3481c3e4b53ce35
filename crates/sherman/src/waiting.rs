//! Bounded waiting.
//!
//! Every operation has a limited total waiting time ([`Patience`]), and does not restart after it. A waiter
//! for a lock also watches it ([`Watch`]): the holder of a word that stays the same for long may be dead.

use pando_fabric::{Endpoint, Nanos, Patience, WaitedTooLong};
use pando_pool::LOOKS_AT_HOLDER;

/// Lets others run before an operation restarts; fails if its time is over or it waited too long.
///
/// # Errors
/// [`WaitedTooLong`] for `what`.
pub(crate) async fn before_anew<E: Endpoint>(
    ep: &E,
    patience: &Patience,
    what: &'static str,
) -> Result<(), WaitedTooLong> {
    if ep.is_over(ep.now()) {
        return Err(WaitedTooLong { what });
    }
    patience.wait(ep, what).await
}

/// A waiter's observations of a lock.
pub(crate) struct Watch {
    patience: Patience,
    between_looks: Nanos,
    word: u64,
    since: Nanos,
}

impl Watch {
    pub fn new(patience_ns: Nanos) -> Self {
        let between_looks = patience_ns / LOOKS_AT_HOLDER;
        Self { patience: Patience::new(patience_ns), between_looks, word: 0, since: 0 }
    }

    /// Whether the word has been unchanged for long, counted anew after each `true`.
    pub fn is_long<E: Endpoint>(&mut self, ep: &E, word: u64) -> bool {
        let now = ep.now();
        let is_long = self.word == word && now >= self.since + self.between_looks;
        if self.word != word || is_long {
            (self.word, self.since) = (word, now);
        }
        is_long
    }

    /// Whether too much time has passed since the first call.
    pub fn is_over<E: Endpoint>(&self, ep: &E) -> bool {
        self.patience.is_over(ep)
    }
}
