//! A complete move of keys between compute servers: a changed boundary, a server added or removed (DEX §4, §8
//! repartitioning).
//!
//! One of the two may have no keys before the move (a server that is added: a tree opened for
//! [`KeyRange::none`]) or after it (one that is removed). The former owner leaves, the new one takes over,
//! then the new routing table is published. [`release`](crate::migrate::release) and
//! [`acquire`](crate::migrate::acquire) explain why nothing is lost in between. Operations on the moving keys
//! wait in their routers' detours; all others go on.
//!
//! A move that fails midway is undone: the former owner has the keys again, and the table stays. If that
//! fails too, or the future of a move is dropped after the new owner has begun, no compute server owns the
//! keys until the same move is repeated; it resumes there. If the future is dropped before that, the former
//! owner has its keys again at once. An index has one move at a time, so that the published table follows
//! from the one that was read.
//!
//! With logs, the recorded table says whose log has the changes of a key. So the former owner has no keys back that are
//! recorded as those of the new one.

use std::sync::Arc;

use pando_fabric::{Endpoint, Nanos, join_all};

use crate::error::{DexError, Result};
use crate::layout::Layout;
use crate::migrate::acquire;
use crate::migrate::release::{self, Flushed, Leaving};
use crate::ownership::range::KeyRange;
use crate::ownership::routing::{Routes, RoutingTable};
use crate::tree::{Ctx, Tree};

/// Pause between two attempts at a step that failed.
const PAUSE_NS: Nanos = 20_000;

/// A compute server that takes part in a move, with its number in the routing table.
pub struct Party<'t, 'w, L, E> {
    pub server: usize,
    pub tree: &'t Tree<L>,
    pub ctx: Ctx<'w, E>,
}

/// Result of a move.
#[derive(Clone, Debug)]
pub struct Moved {
    pub range: KeyRange,
    pub from: usize,
    pub to: usize,
    pub flushed: Flushed,
    /// Times at which the former owner began to leave, everything was written back, and the new table was
    /// published, by the clock of the former owner's endpoint.
    pub began: Nanos,
    pub written: Nanos,
    pub ended: Nanos,
    pub table: Arc<RoutingTable>,
}

/// Moves the keys of `range` to another compute server. `record` stores a table durably: the new one once
/// leaves end at the new boundary and everything is written back, before the new owner begins, since that may
/// merge leaves across the old boundary; the old one again if the move fails. `flush` calls
/// [`Leaving::flush_share`] from any number of workers, which must not keep what they were given.
///
/// # Errors
/// [`DexError::Routes`] for keys that are not an end of those of `from` or not adjacent to those of `to`;
/// [`DexError::Moving`] during another move; lasting errors of the fabric, after which the keys are where
/// they were. If the new owner can neither take them over nor exclude that it did, no compute server owns
/// them until the same move is repeated.
pub async fn move_keys<'t, L: Layout, E: Endpoint>(
    routes: &Routes,
    from: Party<'t, '_, L, E>,
    to: Party<'t, '_, L, E>,
    range: KeyRange,
    flush: impl AsyncFnOnce(Arc<Leaving<'t, L>>) -> Result<Flushed>,
    mut record: impl AsyncFnMut(&RoutingTable) -> Result<()>,
) -> Result<Moved> {
    let _only = routes.begin_move()?;
    let table = routes.table();
    let new = table.transferred(&range, to.server)?;
    let keep = kept(&table, from.server, &range)?;
    let ep = from.ctx.ep;
    let is_logged = from.tree.config().log.is_some();
    let began = ep.now();
    if acquire::is_taking_over(to.tree) {
        // An earlier move failed where it can only be completed.
        if !acquire::is_taking(to.tree, &range) {
            return Err(DexError::Routes("an earlier move failed half-way and has to be made again first"));
        }
        record(&new).await?;
        insist(&from, async || acquire::take_over(to.tree, to.ctx, range.clone()).await).await?;
        let table =
            routes.transfer(&range, to.server).expect("checked before, and there is one move at a time");
        let (from, to, ended, flushed) = (from.server, to.server, ep.now(), Flushed::default());
        return Ok(Moved { range, from, to, flushed, began, written: began, ended, table });
    }
    if from.tree.range() == keep {
        // An earlier move was dropped midway or failed twice, and the keys were not taken back.
        insist(&from, async || record(&table).await).await?;
        insist(&from, async || acquire::take_over(from.tree, from.ctx, range.clone()).await).await?;
    }
    let leaving = Arc::new(release::begin_leave(from.tree, from.ctx, keep).await?);
    let mut unless_dropped = Unmade { leaving: Some(Arc::clone(&leaving)), to: to.tree };
    let handed_over = async {
        // `finish` writes back the rest.
        let mut flushed = flush(Arc::clone(&leaving)).await.unwrap_or_default();
        flushed += insist(&from, async || leaving.finish(from.ctx).await).await?;
        let written = ep.now();
        if is_logged {
            unless_dropped.disarm();
        }
        record(&new).await?;
        insist(&from, async || acquire::take_over(to.tree, to.ctx, range.clone()).await).await?;
        Ok((flushed, written))
    };
    let handed_over = handed_over.await;
    unless_dropped.disarm();
    let (flushed, written) = match handed_over {
        Ok(done) => done,
        Err(error) if acquire::is_taking_over(to.tree) => return Err(error),
        Err(error) => {
            // If this fails, the new boundary stays recorded. That is harmless without a log: leaves end there too. With
            // one, an heir of the former owner would not be that of the keys.
            let recorded = insist(&from, async || record(&table).await).await;
            if is_logged && recorded.is_err() {
                return Err(error);
            }
            // The keys belong to the former owner again, even if this fails.
            if let Some(leaving) = Arc::into_inner(leaving) {
                let _ = leaving.abandon(from.ctx).await;
            }
            return Err(error);
        }
    };
    drop(leaving);
    let table = routes.transfer(&range, to.server).expect("checked before, and there is one move at a time");
    let (from, to, ended) = (from.server, to.server, ep.now());
    Ok(Moved { range, from, to, flushed, began, written, ended, table })
}

/// Keys that a compute server keeps if it leaves those of `range`.
fn kept(table: &RoutingTable, from: usize, range: &KeyRange) -> Result<KeyRange> {
    let has = |own: &KeyRange| own.contains_range(range.low.as_deref(), range.high.as_deref());
    let own = table.range_of(from).filter(has).ok_or(DexError::Routes(
        "the keys that move are not those of the compute server that should leave them",
    ))?;
    own.without(range).ok_or(DexError::Routes("the keys that move must be an end of the owner's"))
}

/// A move in progress. If it is dropped, the former owner has its keys again, unless the new one has begun to
/// take them over.
struct Unmade<'t, L: Layout> {
    leaving: Option<Arc<Leaving<'t, L>>>,
    to: &'t Tree<L>,
}

impl<L: Layout> Unmade<'_, L> {
    fn disarm(&mut self) {
        self.leaving = None;
    }
}

impl<L: Layout> Drop for Unmade<'_, L> {
    fn drop(&mut self) {
        if let Some(leaving) = self.leaving.take()
            && !acquire::is_taking_over(self.to)
        {
            leaving.take_back();
        }
    }
}

/// Writes back with `workers` concurrent shares on one thread, which overlaps their WRITEs.
///
/// # Errors
/// As [`Leaving::flush_share`].
pub async fn flush_side_by_side<L: Layout, E: Endpoint>(
    leaving: &Leaving<'_, L>,
    ctx: Ctx<'_, E>,
    workers: usize,
) -> Result<Flushed> {
    let mut flushed = Flushed::default();
    for share in join_all((0..workers).map(|_| leaving.flush_share(ctx))).await {
        flushed += share?;
    }
    Ok(flushed)
}

/// Repeats an idempotent step that fails, within the tree's patience.
async fn insist<L: Layout, E: Endpoint, T>(
    party: &Party<'_, '_, L, E>,
    mut step: impl AsyncFnMut() -> Result<T>,
) -> Result<T> {
    let ep = party.ctx.ep;
    let deadline = ep.wait_until(ep.now(), party.tree.config().patience_ns);
    loop {
        match step().await {
            Err(error) if error.may_pass() && ep.now() < deadline => {
                ep.sleep_until(ep.now() + PAUSE_NS).await;
            }
            done => return done,
        }
    }
}
