//! What an operation does that gets no frame of the cache: it lets go of everything and waits for its turn.
//!
//! The cache's side is [`pando_cache::Turn`]. Every loop that restarts an operation keeps an [`OwnTurn`] beside its
//! patience, and goes on with the context that it gives; the turn ends when the operation does, well or badly. Who has it
//! gets frames although others want them, so a cache of 8 frames serves any number of operations, one after the other.

use std::cell::{Cell, OnceCell};

use pando_cache::{CacheError, NoFrame};
use pando_fabric::{Endpoint, Nanos};

use crate::error::{Attempt, DexError, Result, Retry};
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
    /// Until when it waits, and how many turns had ended when that was set.
    deadline: Cell<Option<(Nanos, u64)>>,
    restarts: Cell<u32>,
}

impl<'t> OwnTurn<'t> {
    /// With what the operation starts again, once it may. It holds no pin, ticket or frame meanwhile.
    ///
    /// # Errors
    /// [`CacheError::Exhausted`] if for all of the operation's patience nobody, with the turn or without, came through.
    #[cold]
    pub async fn wait<'s, L: Layout, E: Endpoint>(
        &'s self,
        tree: &'t Tree<L>,
        ctx: Ctx<'s, E>,
        crowding: Crowding,
    ) -> Result<Ctx<'s, E>> {
        ctx.worker.counters().count_restart();
        if ctx.worker.has_turn() {
            // Those who are in the way have verbs under way.
            ctx.ep.yield_now().await;
            return if self.has_patience(tree, ctx) { Ok(ctx) } else { Err(exhausted(tree)) };
        }
        self.restarts.set(self.restarts.get() + 1);
        let place = tree.cache.wait_for_turn();
        loop {
            // Whoever has frames may be another slot of this worker.
            ctx.ep.yield_now().await;
            let wants_turn = crowding == Crowding::Crowded || self.is_starving(tree, ctx);
            if !wants_turn && !tree.cache.turn_is_taken() {
                return Ok(ctx);
            }
            if let Some(turn) = place.try_turn(ctx.worker) {
                return Ok(self.start(ctx, turn));
            }
            if !self.has_patience(tree, ctx) {
                return Err(exhausted(tree));
            }
        }
    }

    /// The context of an operation that goes on with its turn.
    fn start<'s, E: Endpoint>(&'s self, ctx: Ctx<'s, E>, turn: pando_cache::Turn<'t>) -> Ctx<'s, E> {
        self.deadline.set(None);
        Ctx { ep: ctx.ep, worker: self.turn.get_or_init(|| turn).worker() }
    }

    /// Whether it may wait longer. Its patience begins anew whenever another's turn has ended: that one came through.
    fn has_patience<L: Layout, E: Endpoint>(&self, tree: &Tree<L>, ctx: Ctx<'_, E>) -> bool {
        let (now, ended) = (ctx.ep.now(), tree.cache.turns_ended());
        match self.deadline.get() {
            Some((deadline, seen)) if seen == ended => now < deadline,
            _ => {
                self.deadline.set(Some((now.saturating_add(tree.config.patience_ns), ended)));
                true
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
            return self.start(ctx, turn);
        }
        ctx
    }

    fn is_starving<L: Layout, E: Endpoint>(&self, tree: &Tree<L>, ctx: Ctx<'_, E>) -> bool {
        self.restarts.get() >= RESTARTS && tree.cache.is_tight(ctx.ep.slots())
    }
}

fn exhausted<L: Layout>(tree: &Tree<L>) -> DexError {
    CacheError::Exhausted { frames: tree.cache.frames() }.into()
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
