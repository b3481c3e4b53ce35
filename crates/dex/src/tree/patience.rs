//! How long an operation waits for others.
//!
//! An operation gives up after `TreeConfig::patience_ns`. What a cut-off operation left rests for as long as a
//! verb may take, which may be longer. So the time starts anew at the end of each rest, whatever the operation
//! waits for: the holder of a lock or a frame may itself wait for the rest. Rests that ended before the
//! operation looks count too, because the wait may have been inside of a step.
//!
//! A leftover rests once, and once more if the operation that was to finish it is cut off. A failure starts no
//! rest. So operations give up although something is left, if nothing is cut off any more; and in any case
//! when their time limit is over.

use std::cell::Cell;

use pando_fabric::{Endpoint, Nanos, WaitedTooLong};

use crate::tree::{Ctx, Tree};

/// Total time that one operation waits for others, counted from its first wait or the end of the last rest.
#[derive(Debug, Default)]
pub(crate) struct Patience(Cell<Option<Nanos>>);

impl Patience {
    /// Starts the time anew.
    pub fn start<L, E: Endpoint>(&self, tree: &Tree<L>, ctx: Ctx<'_, E>) -> Nanos {
        let deadline = ctx.ep.wait_until(ctx.ep.now(), tree.config.patience_ns);
        self.0.set(Some(deadline));
        deadline
    }

    /// Time until which the operation waits, as far as it is known. The first call starts the time.
    pub fn deadline<L, E: Endpoint>(&self, tree: &Tree<L>, ctx: Ctx<'_, E>) -> Nanos {
        self.0.get().unwrap_or_else(|| self.start(tree, ctx))
    }

    /// Whether the operation has waited too long. The first call starts the time.
    pub fn is_over<L, E: Endpoint>(&self, tree: &Tree<L>, ctx: Ctx<'_, E>) -> bool {
        let now = ctx.ep.now();
        if now < self.deadline(tree, ctx) {
            return false;
        }
        let from_rest = rests_until(tree, now).saturating_add(tree.config.patience_ns);
        if from_rest <= now || ctx.ep.is_over(now) {
            return true;
        }
        self.0.set(Some(ctx.ep.wait_until(now, from_rest - now)));
        false
    }

    /// Lets others run, unless the operation has waited too long.
    ///
    /// # Errors
    /// [`WaitedTooLong`] for `what`.
    pub async fn wait<L, E: Endpoint>(
        &self,
        tree: &Tree<L>,
        ctx: Ctx<'_, E>,
        what: &'static str,
    ) -> Result<(), WaitedTooLong> {
        if self.is_over(tree, ctx) {
            return Err(WaitedTooLong { what });
        }
        ctx.ep.yield_now().await;
        Ok(())
    }
}

/// End of the last rest of anything that operations of this process left.
fn rests_until<L>(tree: &Tree<L>, now: Nanos) -> Nanos {
    let verbs_take = tree.pool.verbs_take();
    let of_cache = tree.cache.rests_until(now);
    of_cache.max(tree.unfinished.rests_until(now, verbs_take)).max(tree.pool.left_locks_rest_until(now))
}
