//! Bounded waiting.
//!
//! Every operation waits for others for so long in all ([`Patience`]), and begins nothing anew once its time is over.
//! Who waits for a lock also keeps an eye on it ([`Watch`]): a word that does not change for long may have lost its holder.

use pando_fabric::{Endpoint, Nanos, Patience, WaitedTooLong};
use pando_pool::LOOKS_AT_HOLDER;

/// Lets others run before an operation begins anew, unless its time is over, or it waited too long.
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

/// What one who waits for a lock has seen of it.
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

    /// Whether the word has been the same for long, or again since that was last said.
    pub fn is_long<E: Endpoint>(&mut self, ep: &E, word: u64) -> bool {
        let now = ep.now();
        let is_long = self.word == word && now >= self.since + self.between_looks;
        if self.word != word || is_long {
            (self.word, self.since) = (word, now);
        }
        is_long
    }

    /// Whether it has taken too long since this was first asked.
    pub fn is_over<E: Endpoint>(&self, ep: &E) -> bool {
        self.patience.is_over(ep)
    }
}
