//! Restarts of an operation, after a conflict or when the cache has no frame for it.
//!
//! An operation without a frame releases everything and waits for its turn ([`pando_cache::Turn`]). Every
//! retry loop keeps one [`RestartPolicy`] and goes on with the context that this returns; the turn ends with
//! the operation, whether or not that succeeds. The operation with the turn gets frames before all others, so
//! a cache of 8 frames serves any number of operations, one after the other.

use std::cell::{Cell, OnceCell};

use pando_cache::CacheError;
use pando_fabric::{Endpoint, outlined};

use crate::error::{Crowding, DexError, Result, Retry};
use crate::layout::Layout;
use crate::recovery::{dead_holders, drained};
use crate::tree::patience::Patience;
use crate::tree::{Ctx, Tree};

/// Number of restarts after which an operation on a tight cache takes the turn: the nodes that it brought in
/// may be evicted whenever it awaits a verb.
const RESTARTS: u32 = 4;

/// State of an operation across its restarts: its deadline, and its turn if it has one.
#[derive(Default)]
pub(crate) struct RestartPolicy<'t> {
    turn: OnceCell<pando_cache::Turn<'t>>,
    patience: Patience,
    /// Number of turns that had ended when the patience started; `None` before that.
    turns_ended: Cell<Option<u64>>,
    restarts: Cell<u32>,
}

impl<'t> RestartPolicy<'t> {
    /// Returns the context for the next attempt after `retry`, once that may begin. The operation holds no
    /// pin, ticket or frame meanwhile.
    ///
    /// # Errors
    /// The error in `retry`; [`DexError::TimedOut`] with `what` the operation waited for, or
    /// [`CacheError::Exhausted`], if no turn of another operation ended within the operation's patience.
    #[cold]
    pub async fn again<'s, L: Layout, E: Endpoint>(
        &'s self,
        tree: &'t Tree<L>,
        ctx: Ctx<'s, E>,
        retry: Retry,
        what: &'static str,
    ) -> Result<Ctx<'s, E>> {
        match retry {
            Retry::Failed(error) => {
                outlined(Box::pin(drained::forgive(tree, ctx, error))).await?;
                ctx.worker.counters().count_restart();
                self.pause(tree, ctx, what).await
            }
            Retry::Crowded(crowding) => {
                ctx.worker.counters().count_restart();
                self.wait_for_frame(tree, ctx, crowding).await
            }
            Retry::Restart => {
                ctx.worker.counters().count_restart();
                self.pause(tree, ctx, what).await
            }
        }
    }

    /// [`RestartPolicy::again`] for an operation that has just cleared its own obstacle.
    #[cold]
    pub async fn pause<'s, L: Layout, E: Endpoint>(
        &'s self,
        tree: &'t Tree<L>,
        ctx: Ctx<'s, E>,
        what: &'static str,
    ) -> Result<Ctx<'s, E>> {
        self.restarts.set(self.restarts.get() + 1);
        if !self.has_patience(tree, ctx) {
            return Err(DexError::TimedOut { what });
        }
        dead_holders::settle_locks(tree, ctx).await?;
        ctx.ep.yield_now().await;
        if self.is_starving(tree, ctx)
            && !ctx.worker.has_turn()
            && let Some(turn) = tree.cache.try_turn(ctx.worker)
        {
            return Ok(self.start(ctx, turn));
        }
        Ok(ctx)
    }

    async fn wait_for_frame<'s, L: Layout, E: Endpoint>(
        &'s self,
        tree: &'t Tree<L>,
        ctx: Ctx<'s, E>,
        crowding: Crowding,
    ) -> Result<Ctx<'s, E>> {
        let exhausted = || CacheError::Exhausted { frames: tree.cache.frames() }.into();
        // Settle first: the ticket of a node, even one kept after a failed call, keeps its parent from being
        // evicted.
        dead_holders::settle_locks(tree, ctx).await?;
        if ctx.worker.has_turn() {
            // The operations in the way have verbs in flight.
            ctx.ep.yield_now().await;
            return if self.has_patience(tree, ctx) { Ok(ctx) } else { Err(exhausted()) };
        }
        self.restarts.set(self.restarts.get() + 1);
        let place = tree.cache.wait_for_turn();
        loop {
            // Another slot of this worker may hold the frames.
            ctx.ep.yield_now().await;
            let wants_turn = crowding == Crowding::Crowded || self.is_starving(tree, ctx);
            if !wants_turn && !tree.cache.turn_is_taken() {
                return Ok(ctx);
            }
            if let Some(turn) = place.try_turn(ctx.worker) {
                return Ok(self.start(ctx, turn));
            }
            if !self.has_patience(tree, ctx) {
                return Err(exhausted());
            }
        }
    }

    /// Context of an operation that goes on with the turn.
    fn start<'s, E: Endpoint>(&'s self, ctx: Ctx<'s, E>, turn: pando_cache::Turn<'t>) -> Ctx<'s, E> {
        self.turns_ended.set(None);
        Ctx { ep: ctx.ep, worker: self.turn.get_or_init(|| turn).worker() }
    }

    /// Whether the operation may try longer. Its patience starts anew whenever the turn of another operation
    /// has ended, since that one made progress, up to the operation's time limit.
    fn has_patience<L: Layout, E: Endpoint>(&self, tree: &Tree<L>, ctx: Ctx<'_, E>) -> bool {
        let ended = tree.cache.turns_ended();
        match self.turns_ended.replace(Some(ended)) {
            Some(seen) if seen == ended => !self.patience.is_over(tree, ctx),
            Some(_) if ctx.ep.is_over(ctx.ep.now()) => false,
            _ => {
                self.patience.start(tree, ctx);
                true
            }
        }
    }

    fn is_starving<L: Layout, E: Endpoint>(&self, tree: &Tree<L>, ctx: Ctx<'_, E>) -> bool {
        self.restarts.get() >= RESTARTS && tree.cache.is_tight(ctx.ep.slots())
    }
}
