//! The new owner's half of a move of keys (DEX §8, repartitioning): taking keys over, or back.
//!
//! The former owner has written everything back and has left ([`Leaving::finish`](crate::Leaving::finish)).
//! Cached copies of this compute server may be older than that, and some shared nodes become owned:
//!
//! 1. A new view owns these nodes; attempts that began under the old one are waited for. Until then such a
//!    node is READ with the optimistic protocol, since one of those attempts may have it locked. An attempt
//!    that finds it shared in a frame, and locks it, sees by the view that it is owned, and makes the frame's
//!    copy an owned one.
//! 2. All copies of shared nodes are dropped, and the root's is replaced: they may lead to nodes that the
//!    former owner freed.
//! 3. No pointer is swizzled to cached nodes below those that are owned by now. They count as orphans, so
//!    that nothing is offloaded above them.
//! 4. Only then do operations on the new keys begin.

use std::sync::atomic::AtomicBool;

use pando_fabric::Endpoint;

use crate::descent::{read, refresh};
use crate::error::{Attempt, DexError, Result, Retry};
use crate::layout::{Layout, Side, header};
use crate::migrate::release;
use crate::node::Target;
use crate::ownership::range::KeyRange;
use crate::ownership::view::View;
use crate::recovery::dead_holders;
use crate::recovery::restart::RestartPolicy;
use crate::smo::orphans;
use crate::tree::patience::Patience;
use crate::tree::{Ctx, Tree, gate};

/// Takes over keys that their former owner has left, or takes back keys that this compute server left and no
/// other took over.
///
/// # Errors
/// Keys that are not adjacent to those of this compute server; [`DexError::Moving`]; [`DexError::TimedOut`];
/// errors of the fabric. The keys are not owned by this compute server then, and nodes on their path count as
/// shared as before, so that the former owner may take them back, unless [`is_taking_over`] returns `true`.
/// The call may be repeated.
pub async fn take_over<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    range: KeyRange,
) -> Result<()> {
    let mover = gate::mover(tree)?;
    let own = tree.view(ctx).keys.clone();
    if range.is_empty() {
        return Ok(());
    }
    let all = own.joined(&range);
    let all = all.ok_or(DexError::WrongRange("is not beside the keys of the one who takes it over"))?;
    let Err(error) = extend_to(tree, ctx, &own, &all).await else { return Ok(()) };
    drop(mover);
    if is_taking_over(tree) {
        // Operations of this compute server may have changed nodes as owned ones, and merged leaves across
        // the boundary.
        let leaving = release::begin_leave(tree, ctx, own).await?;
        if leaving.finish(ctx).await.is_err() {
            gate::update_view(tree, |view| View { nodes: all.clone(), is_growing: true, ..view.clone() });
        }
    }
    Err(error)
}

/// Whether a [`take_over`] failed midway: nodes count as owned while no compute server owns their keys, until
/// a repeated call succeeds.
pub fn is_taking_over<L: Layout>(tree: &Tree<L>) -> bool {
    let view = gate::present_view(tree);
    view.nodes != view.keys
}

/// Whether the take-over that failed midway was of the keys of `range`.
pub(crate) fn is_taking<L: Layout>(tree: &Tree<L>, range: &KeyRange) -> bool {
    let view = gate::present_view(tree);
    view.keys.joined(range).as_ref() == Some(&view.nodes)
}

/// Extends the range from `own` to `all`. The caller is the mover.
pub(crate) async fn extend_to<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    own: &KeyRange,
    all: &KeyRange,
) -> Result<()> {
    let larger = |view: &View| View { nodes: all.clone(), is_growing: true, ..view.clone() };
    release::change_view(tree, ctx, larger, &AtomicBool::new(false)).await?;
    refresh::drop_shared_copies(tree, ctx).await?;
    renew_root(tree, ctx).await?;
    // Wait for attempts that saw a node as shared that is owned by now.
    release::change_view(tree, ctx, View::clone, &AtomicBool::new(false)).await?;
    for (old, new) in [(&own.low, &all.low), (&own.high, &all.high)] {
        if let Some(boundary) = old.as_ref().filter(|_| !own.is_empty() && old != new) {
            note_orphans(tree, ctx, boundary).await?;
        }
    }
    gate::update_view(tree, |_| View { keys: all.clone(), nodes: all.clone(), is_growing: false });
    Ok(())
}

/// READs the root again, unless it is owned already.
async fn renew_root<L: Layout, E: Endpoint>(tree: &Tree<L>, ctx: Ctx<'_, E>) -> Result<()> {
    let frame = tree.cache.frame(tree.root);
    let node = tree.node_mut(frame);
    let patience = Patience::default();
    while node.is_shared() {
        match read::read_shared(tree, ctx, tree.config.root, &tree.view(ctx)).await {
            Ok(page) => {
                let read = tree.node(&page);
                if let Ok(guard) = frame.exclusive() {
                    let is_current = read.remote_version() >= node.remote_version();
                    if is_current && node.is_shared() {
                        node.copy_content(read);
                        // Other compute servers had copies of the root: the version of its lock word goes on,
                        // even without them.
                        node.set_flag(header::WAS_SHARED, true);
                        drop(guard);
                        ctx.ep.recycle(page);
                        return Ok(());
                    }
                    guard.release_unchanged();
                }
                ctx.ep.recycle(page);
            }
            Err(Retry::Failed(error)) => return Err(error),
            Err(Retry::Restart | Retry::Crowded(_)) => dead_holders::settle_locks(tree, ctx).await?,
        }
        patience.wait(tree, ctx, "the root").await?;
    }
    Ok(())
}

/// Counts the cached children of nodes that crossed a boundary, and are owned by now, as orphans.
async fn note_orphans<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    boundary: &[u8],
) -> Result<()> {
    let key = tree.layout.key(boundary)?;
    let tries = RestartPolicy::default();
    let mut ctx = ctx;
    loop {
        match try_note_orphans(tree, ctx, key).await {
            Ok(()) => return Ok(()),
            Err(retry) => ctx = tries.again(tree, ctx, retry, "a node that was shared").await?,
        }
    }
}

async fn try_note_orphans<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    key: L::Key<'_>,
) -> Attempt<()> {
    let view = tree.view(ctx);
    let (mut above, mut addr) = (tree.config.root, tree.config.root);
    let page = ctx.ep.buffer(tree.layout.node_size());
    loop {
        match tree.cache.table().frame_of(addr) {
            None if tree.cache.table().is_in_flight(addr) => return Err(Retry::Restart),
            None => {
                let read = read::read_shared(tree, ctx, addr, &view).await?;
                tree.node_mut(&page).copy_content(tree.node(&read));
                ctx.ep.recycle(read);
            }
            Some(id) => {
                let frame = tree.cache.frame(id);
                let version = frame.optimistic()?;
                if !tree.holds(frame, version, addr) {
                    return Err(Retry::Restart);
                }
                tree.node_mut(&page).copy_content(tree.node(frame));
                frame.validate(version)?;
            }
        }
        let node = tree.node(&page);
        if !node.covers(Target::of(key)) {
            refresh::refresh(tree, ctx, above, Target::of(key)).await?;
            return Err(Retry::Restart);
        }
        let begins = node.fence(Side::Low).as_deref() == Some(tree.layout.key_bytes(key));
        if begins || node.level() == 0 {
            break;
        }
        if !view.is_shared(node) {
            orphans::note_orphans_below(tree, node)?;
        }
        match refresh::child_addr(tree, node, Target::of(key))? {
            Some(child) => (above, addr) = (addr, child),
            None => break,
        }
    }
    ctx.ep.recycle(page);
    Ok(())
}
