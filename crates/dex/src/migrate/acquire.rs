//! Taking keys over, the new owner's half (DEX §8, repartitioning), and taking them back.
//!
//! The former owner has written everything back and left ([`Leaving::finish`](crate::Leaving::finish)). What this
//! compute server knows of the keys may be older than that, and some nodes that it shared become its own:
//!
//! 1. By a new view these nodes are own; attempts that began by the old one are waited for. Until then such a node, when it is
//!    READ, is READ with the optimistic protocol, since one of those attempts may have it locked. Who finds it shared in
//!    a frame, and locks it, sees by the view that it is not, and makes the frame's copy an own one.
//! 2. All copies of shared nodes are dropped, the root's replaced: they may lead to nodes that the former owner freed.
//! 3. Cached nodes below those that are own now are swizzled nowhere. They count as orphans, so that nothing is offloaded above
//!    them before they are.
//! 4. Only then do operations on the new keys begin.

use std::sync::atomic::AtomicBool;

use pando_fabric::{Endpoint, Patience};

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
use crate::tree::{Ctx, Tree, gate};

/// Takes keys over that their former owner has left, or takes them back that this compute server left and that nobody took.
///
/// # Errors
/// Keys that are not beside those of this compute server; [`DexError::Moving`]; [`DexError::TimedOut`]; errors of
/// the fabric. The keys are not this compute server's then, and nodes on their way count as shared as before, so that their
/// former owner may have them back, unless [`is_taking_over`] says otherwise. It may be called again.
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
        // Its operations may have changed nodes as its own, and merged leaves across the boundary.
        let leaving = release::begin_leave(tree, ctx, own).await?;
        if leaving.finish(ctx).await.is_err() {
            gate::update_view(tree, |view| View { nodes: all.clone(), is_growing: true, ..view.clone() });
        }
    }
    Err(error)
}

/// Whether a [`take_over`] failed half-way: nodes count as this compute server's own, while nobody owns their keys, until
/// it is called again and does not fail.
pub fn is_taking_over<L: Layout>(tree: &Tree<L>) -> bool {
    let view = gate::present_view(tree);
    view.nodes != view.keys
}

/// Whether it was these keys that it did not come to own then.
pub(crate) fn is_taking<L: Layout>(tree: &Tree<L>, range: &KeyRange) -> bool {
    let view = gate::present_view(tree);
    view.keys.joined(range).as_ref() == Some(&view.nodes)
}

/// Makes the range, which was `own`, `all`. The caller is the mover.
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
    // Nobody is left who saw a node shared that is own now.
    release::change_view(tree, ctx, View::clone, &AtomicBool::new(false)).await?;
    for (old, new) in [(&own.low, &all.low), (&own.high, &all.high)] {
        if let Some(boundary) = old.as_ref().filter(|_| !own.is_empty() && old != new) {
            note_orphans(tree, ctx, boundary).await?;
        }
    }
    gate::update_view(tree, |_| View { keys: all.clone(), nodes: all.clone(), is_growing: false });
    Ok(())
}

/// Reads the root again, if it is not this compute server's own already.
async fn renew_root<L: Layout, E: Endpoint>(tree: &Tree<L>, ctx: Ctx<'_, E>) -> Result<()> {
    let frame = tree.cache.frame(tree.root);
    let node = tree.node_mut(frame);
    let patience = Patience::new(tree.config.patience_ns);
    while node.is_shared() {
        let (view, page) = (tree.view(ctx), ctx.ep.buffer(tree.layout.node_size()));
        match read::read_node(tree, ctx, tree.config.root, page, &view, true).await {
            Ok(page) => {
                let read = tree.node(&page);
                if let Ok(guard) = frame.exclusive() {
                    let is_current = read.remote_version() >= node.remote_version();
                    if is_current && node.is_shared() {
                        node.copy_content(read);
                        // Others had copies of it: its lock word goes on, even while nobody else uses it.
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
        patience.wait(ctx.ep, "the root").await?;
    }
    Ok(())
}

/// Counts the cached children of the nodes that crossed a boundary, and are own now, as orphans.
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
                let read = ctx.ep.buffer(tree.layout.node_size());
                let read = read::read_node(tree, ctx, addr, read, &view, true).await?;
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
