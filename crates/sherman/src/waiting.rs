//! Bounded waiting.
//!
//! Every operation waits for others for so long in all ([`Patience`]). Who waits for a lock also keeps an eye on it ([`Watch`]): a word
//! that does not change for long may have lost its holder.

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
        match self.deadline {
            None => self.deadline = Some(now.saturating_add(self.patience_ns)),
            Some(deadline) if now > deadline => return Err(ShermanError::TimedOut { what }),
            Some(_) => {}
        }
        ep.yield_now().await;
        Ok(())
    }
}

/// What one who waits for a lock has seen of it.
pub(crate) struct Watch {
    patience_ns: Nanos,
    deadline: Nanos,
    word: u64,
    since: Nanos,
}

impl Watch {
    pub fn new<E: Endpoint>(ep: &E, patience_ns: Nanos) -> Self {
        let since = ep.now();
        Self { patience_ns, deadline: since.saturating_add(patience_ns), word: 0, since }
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

    pub fn is_over<E: Endpoint>(&self, ep: &E) -> bool {
        ep.now() > self.deadline
    }
}
