//! Bounded waiting.
//!
//! Every operation waits for others for so long in all ([`Patience`]), and no longer than it may take ([`Endpoint::wait_until`]).
//! Who waits for a lock also keeps an eye on it ([`Watch`]): a word that does not change for long may have lost its holder.

use pando_fabric::{Endpoint, Nanos};
use pando_pool::LOOKS_AT_HOLDER;

use crate::error::{Result, ShermanError};

/// Bounded waiting of one operation.
pub(crate) struct Patience {
    patience_ns: Nanos,
    deadline: Option<Nanos>,
}

impl Patience {
    pub fn new(patience_ns: Nanos) -> Self {
        Self { patience_ns, deadline: None }
    }

    /// Lets others run; fails once the operation has waited too long in all.
    pub async fn wait<E: Endpoint>(&mut self, ep: &E, what: &'static str) -> Result<()> {
        let now = ep.now();
        let is_over = match self.deadline {
            Some(deadline) => now > deadline,
            None => {
                self.deadline = Some(ep.wait_until(now, self.patience_ns));
                ep.is_over(now)
            }
        };
        if is_over {
            return Err(ShermanError::TimedOut { what });
        }
        ep.yield_now().await;
        Ok(())
    }
}

/// What one who waits for a lock has seen of it.
pub(crate) struct Watch {
    patience_ns: Nanos,
    deadline: Option<Nanos>,
    word: u64,
    since: Nanos,
}

impl Watch {
    pub fn new(patience_ns: Nanos) -> Self {
        Self { patience_ns, deadline: None, word: 0, since: 0 }
    }

    /// Whether the word has been the same for long, or again since that was last said.
    pub fn is_long<E: Endpoint>(&mut self, ep: &E, word: u64) -> bool {
        let now = ep.now();
        let is_long = self.word == word && now >= self.since + self.patience_ns / LOOKS_AT_HOLDER;
        if self.word != word || is_long {
            (self.word, self.since) = (word, now);
        }
        is_long
    }

    /// Whether it has taken too long since this was first asked.
    pub fn is_over<E: Endpoint>(&mut self, ep: &E) -> bool {
        let now = ep.now();
        now > *self.deadline.get_or_insert_with(|| ep.wait_until(now, self.patience_ns))
    }
}
