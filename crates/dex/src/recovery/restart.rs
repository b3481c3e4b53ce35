//! How an operation starts again: after something changed under it, or when it gets no frame of the cache.
//!
//! In the second case it lets go of everything and waits for its turn. The cache's side is [`pando_cache::Turn`]. Every
//! loop that restarts an operation keeps its [`RestartPolicy`] and goes on with the context that they give; the turn ends when
//! the operation does, well or badly. Who has it gets frames although others want them, so a cache of 8 frames serves any
//! number of operations, one after the other.

use std::cell::{Cell, OnceCell};

use pando_cache::CacheError;
use pando_fabric::{Endpoint, Nanos};

use crate::error::{Crowding, DexError, Result, Retry};
use crate::layout::Layout;
use crate::recovery::{dead_holders, unfinished};
use crate::tree::{Ctx, Tree};

/// Restarts after which an operation on a tight cache takes the turn: what it brought in may be gone each time that it
/// comes back from a verb.
const RESTARTS: u32 = 4;

/// What an operation that starts again and again keeps: how long it may go on, and its turn once it has it.
#[derive(Default)]
pub(crate) struct RestartPolicy<'t> {
    turn: OnceCell<pando_cache::Turn<'t>>,
    /// Until when it tries, and how many turns had ended when that was set.
    deadline: Cell<Option<(Nanos, u64)>>,
    restarts: Cell<u32>,
    /// It waits for what another operation left, longer than it has patience otherwise.
    waits_for_rest: Cell<bool>,
}

impl<'t> RestartPolicy<'t> {
    /// With what an operation starts again that met `retry`, once it may. It holds no pin, ticket or frame meanwhile.
    ///
    /// # Errors
    /// That of `retry`. [`DexError::TimedOut`] with `what` it waited for, or [`CacheError::Exhausted`], if for all of
    /// the operation's patience nobody's turn ended.
    #[cold]
    pub async fn again<'s, L: Layout, E: Endpoint>(
        &'s self,
        tree: &'t Tree<L>,
        ctx: Ctx<'s, E>,
        retry: Retry,
        what: &'static str,
    ) -> Result<Ctx<'s, E>> {
        match retry {
            Retry::Failed(error) => Err(error),
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

    /// As [`RestartPolicy::again`], for an operation in whose way something was that it has put aside.
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
        // The ticket of a node keeps its parent from being evicted, also one that a call left which failed.
        dead_holders::settle_locks(tree, ctx).await?;
        if ctx.worker.has_turn() {
            // Those who are in the way have verbs under way.
            ctx.ep.yield_now().await;
            return if self.has_patience(tree, ctx) { Ok(ctx) } else { Err(exhausted()) };
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
                return Err(exhausted());
            }
        }
    }

    /// The context of an operation that goes on with its turn.
    fn start<'s, E: Endpoint>(&'s self, ctx: Ctx<'s, E>, turn: pando_cache::Turn<'t>) -> Ctx<'s, E> {
        self.deadline.set(None);
        Ctx { ep: ctx.ep, worker: self.turn.get_or_init(|| turn).worker() }
    }

    /// Whether it may try longer. Its patience begins anew whenever another's turn has ended, which came through, as long as the
    /// operation may take.
    fn has_patience<L: Layout, E: Endpoint>(&self, tree: &Tree<L>, ctx: Ctx<'_, E>) -> bool {
        let (now, ended) = (ctx.ep.now(), tree.cache.turns_ended());
        match self.deadline.get() {
            Some((deadline, seen)) if seen == ended && now < deadline => true,
            Some((_, seen)) if seen == ended && !self.may_wait_for_rest(tree) => false,
            Some(_) if ctx.ep.is_over(now) => false,
            _ => {
                let rest = if self.waits_for_rest.get() { tree.pool.verbs_take() } else { 0 };
                let until = ctx.ep.wait_until(now, tree.config.patience_ns.saturating_add(rest));
                self.deadline.set(Some((until, ended)));
                true
            }
        }
    }

    /// Whether something was left that may rest for longer than the operation has patience. It waits for that once.
    fn may_wait_for_rest<L: Layout>(&self, tree: &Tree<L>) -> bool {
        (unfinished::is_any(tree) || tree.pool.has_left_locks()) && !self.waits_for_rest.replace(true)
    }

    fn is_starving<L: Layout, E: Endpoint>(&self, tree: &Tree<L>, ctx: Ctx<'_, E>) -> bool {
        self.restarts.get() >= RESTARTS && tree.cache.is_tight(ctx.ep.slots())
    }
}
