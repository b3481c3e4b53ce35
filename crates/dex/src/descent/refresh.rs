//! Refresh of stale copies of shared nodes (DEX §4): copies are read again, replaced or dropped.
//!
//! A cached copy is only replaced by a newer one, by the version of the remote lock word. So a child that
//! this compute server merged away does not come back into it.

use pando_cache::sync::Word;
use pando_cache::{Expelled, FrameId, FrameState};
use pando_fabric::{Endpoint, GlobalAddr, PageBuf};

use crate::descent::read;
use crate::descent::walk::Slot;
use crate::error::{Attempt, Result, Retry};
use crate::layout::{Layout, header};
use crate::node::{Node, Target};
use crate::tree::patience::Patience;
use crate::tree::{Ctx, Tree, count};

/// Refreshes the cached copy of a shared parent that named a wrong child, and restarts.
pub(crate) async fn led_astray<L: Layout, T, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    slot: Slot<'_>,
    target: Target<'_, L>,
) -> Attempt<T> {
    let parent = tree.node(slot.parent).addr().ok_or(Retry::Restart)?;
    slot.parent.validate()?;
    refresh(tree, ctx, parent, target).await?;
    Err(Retry::Restart)
}

/// Reads again, from the root down, the cached nodes on the path to `target` that this compute server takes
/// for shared, and the node at `at`, whose copy led to a wrong child. In a small cache `at` may lie below
/// nodes that are in no frame. A node that a split made this server's own may still have such a copy, below
/// nodes that it has owned for longer.
pub(crate) async fn refresh<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    at: GlobalAddr,
    target: Target<'_, L>,
) -> Attempt<()> {
    count(&tree.smo_counters.refreshes);
    let (mut next, mut met) = (Some(tree.config.root), false);
    while let Some(addr) = next {
        met |= addr == at;
        next = refresh_copy(tree, ctx, addr, target).await?;
    }
    if !met {
        refresh_copy(tree, ctx, at, target).await?;
    }
    Ok(())
}

/// Refreshes one node; returns the next node on the path, or `None` if the node is not cached or the next is
/// a leaf.
async fn refresh_copy<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    addr: GlobalAddr,
    target: Target<'_, L>,
) -> Attempt<Option<GlobalAddr>> {
    let Some(id) = tree.cache.table().frame_of(addr) else { return Ok(None) };
    let frame = tree.cache.frame(id);
    let version = frame.optimistic()?;
    if !tree.holds(frame, version, addr) {
        return Err(Retry::Restart);
    }
    if !tree.node(frame).is_shared() {
        let next = child_addr(tree, tree.node(frame), target)?;
        frame.validate(version)?;
        return Ok(next);
    }
    let page = read::read_shared(tree, ctx, addr, &tree.view(ctx)).await?;
    install(tree, ctx, addr, &page).await?;
    let next = child_addr(tree, tree.node(&page), target)?;
    ctx.ep.recycle(page);
    Ok(next)
}

/// Reads the root again, if it is shared. Its copy is never dropped.
pub(crate) async fn refresh_root<L: Layout, E: Endpoint>(tree: &Tree<L>, ctx: Ctx<'_, E>) -> Attempt<()> {
    let addr = tree.config.root;
    if tree.node(tree.cache.frame(tree.root)).is_shared() {
        let page = read::read_shared(tree, ctx, addr, &tree.view(ctx)).await?;
        install(tree, ctx, addr, &page).await?;
        ctx.ep.recycle(page);
    }
    Ok(())
}

/// Address of the child on the path to `target`; `None` if the child is a leaf.
pub(crate) fn child_addr<L: Layout>(
    tree: &Tree<L>,
    node: Node<'_, L>,
    target: Target<'_, L>,
) -> Attempt<Option<GlobalAddr>> {
    if node.level() <= 1 {
        return Ok(None);
    }
    let swip = node.child(node.child_toward(target));
    let raw = match swip.frame() {
        Some(id) => tree.cache.try_frame(id).ok_or(Retry::Restart)?.addr(),
        None => swip.raw(),
    };
    Ok(GlobalAddr::from_raw(raw).filter(|addr| !addr.is_null()))
}

/// Replaces the cached copy of a shared node, if there is one and it is older than `page`.
pub(crate) async fn install<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    addr: GlobalAddr,
    page: &PageBuf,
) -> Result<()> {
    let patience = Patience::default();
    loop {
        let Some(id) = tree.cache.table().frame_of(addr) else { return Ok(()) };
        let frame = tree.cache.frame(id);
        let Ok(guard) = frame.exclusive() else {
            patience.wait(tree, ctx, "the latch of a shared node").await?;
            continue;
        };
        let held = frame.addr() == addr.raw() && guard.state() != FrameState::Free;
        let (copy, page) = (tree.node_mut(frame), tree.node(page));
        let newer = page.remote_version() > copy.remote_version();
        // The copy of a node that this server owns by now is ahead of remote memory.
        if held && newer && copy.is_shared() {
            // A node that was owned when the page was judged may be shared in the current view, because its
            // keys are about to leave. An operation with that view may have locked the node as a shared one
            // since, and relies on this copy being marked as shared.
            let left = tree.view(ctx).is_shared(page);
            copy.copy_content(page);
            // The version of its lock word goes on in either case.
            copy.set_flag(header::WAS_SHARED, true);
            if left {
                copy.set_flag(header::SHARED, true);
            }
            drop(guard);
        } else {
            guard.release_unchanged();
        }
        if held {
            return Ok(());
        }
    }
}

/// Drops all copies of shared nodes except that of the root.
pub(crate) async fn drop_shared_copies<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
) -> Result<()> {
    let is_shared = |words: &[Word]| tree.node(words).is_shared();
    let patience = Patience::default();
    for id in (0..tree.cache.frames() as u32).map(FrameId).filter(|&id| id != tree.root) {
        while tree.cache.expel(ctx.worker, ctx.ep, tree.shape(), id, is_shared).await? == Expelled::Busy {
            patience.wait(tree, ctx, "the copy of a shared node").await?;
        }
    }
    Ok(())
}
