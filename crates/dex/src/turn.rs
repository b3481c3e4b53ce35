//! What an operation does that gets no frame of the cache: it lets go of everything and waits for its turn.
//!
//! The cache's side is [`pando_cache::Turn`]. Every loop that restarts an operation keeps an [`OwnTurn`] beside its
//! patience, and goes on with the context that it gives; the turn ends when the operation does, well or badly. Who has it
//! gets frames although others want them, so a cache of 8 frames serves any number of operations, one after the other.

use std::cell::{Cell, OnceCell};

use pando_cache::{CacheError, NoFrame};
use pando_fabric::{Endpoint, Nanos};

use crate::error::{Attempt, Result, Retry};
use crate::layout::Layout;
use crate::tree::{Ctx, Tree};

/// Whether an operation that got no frame was in the way of another, or nothing could be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Crowding {
    GiveWay,
    Crowded,
}

/// Restarts after which an operation on a tight cache takes the turn: what it brought in may be gone each time that it
/// comes back from a verb.
const RESTARTS: u32 = 4;

/// The turn of an operation, from the moment that it needs it until the operation ends.
#[derive(Default)]
pub(crate) struct OwnTurn<'t> {
    turn: OnceCell<pando_cache::Turn<'t>>,
    deadline: Cell<Option<Nanos>>,
    restarts: Cell<u32>,
}

impl<'t> OwnTurn<'t> {
    /// With what the operation starts again, once it may. It holds no pin, ticket or frame meanwhile.
    ///
    /// # Errors
    /// [`CacheError::Exhausted`] after all of the operation's patience.
    #[cold]
    pub async fn wait<'s, L: Layout, E: Endpoint>(
        &'s self,
        tree: &'t Tree<L>,
        ctx: Ctx<'s, E>,
        crowding: Crowding,
    ) -> Result<Ctx<'s, E>> {
        ctx.worker.counters().count_restart();
        let deadline = match self.deadline.get() {
            Some(deadline) => deadline,
            None => ctx.ep.now().saturating_add(tree.config.patience_ns),
        };
        self.deadline.set(Some(deadline));
        loop {
            // Whoever has frames may be another slot of this worker.
            ctx.ep.yield_now().await;
            if ctx.worker.has_turn() {
                // Those who are in the way have verbs under way.
                if ctx.ep.now() < deadline {
                    return Ok(ctx);
                }
            } else if crowding == Crowding::GiveWay && !self.is_starving(tree, ctx) {
                if !tree.cache.turn_is_taken() {
                    return Ok(ctx);
                }
            } else if let Some(turn) = tree.cache.try_turn(ctx.worker) {
                return Ok(Ctx { ep: ctx.ep, worker: self.turn.get_or_init(|| turn).worker() });
            }
            if ctx.ep.now() >= deadline {
                return Err(CacheError::Exhausted { frames: tree.cache.frames() }.into());
            }
        }
    }

    /// With what the operation starts again after something changed under it.
    #[cold]
    pub fn restart<'s, L: Layout, E: Endpoint>(&'s self, tree: &'t Tree<L>, ctx: Ctx<'s, E>) -> Ctx<'s, E> {
        self.restarts.set(self.restarts.get() + 1);
        if self.is_starving(tree, ctx)
            && !ctx.worker.has_turn()
            && let Some(turn) = tree.cache.try_turn(ctx.worker)
        {
            return Ctx { ep: ctx.ep, worker: self.turn.get_or_init(|| turn).worker() };
        }
        ctx
    }

    fn is_starving<L: Layout, E: Endpoint>(&self, tree: &Tree<L>, ctx: Ctx<'_, E>) -> bool {
        self.restarts.get() >= RESTARTS && tree.cache.is_tight(ctx.ep.slots())
    }
}

impl<L: Layout> Tree<L> {
    /// To be asked before a node is pinned over an await.
    pub(crate) fn give_way<E: Endpoint>(&self, ctx: Ctx<'_, E>) -> Attempt<()> {
        Ok(self.cache.give_way(ctx.worker)?)
    }
}

impl From<NoFrame> for Retry {
    fn from(no_frame: NoFrame) -> Self {
        match no_frame {
            NoFrame::GiveWay => Self::Crowded(Crowding::GiveWay),
            NoFrame::Crowded => Self::Crowded(Crowding::Crowded),
            NoFrame::Failed(error) => Self::Failed(error.into()),
        }
    }
}
