//! Repair of nodes whose lock holder is dead.
//!
//! An operation that finds a shared node locked by another process notes it as a *suspect* and restarts. From
//! time to time it asks the pool whether the holder lives; the pool ensures that no verb of a dead process
//! takes effect any more. Then an operation that holds no other lock repairs the node and takes over its
//! lock, from the top down:
//!
//! - The bytes are those before or after the interrupted change ([`digest`](crate::layout::digest)); else the
//!   node is reported as corrupt.
//! - A split or a move of a shared node writes the parent before the node. So the parent tells whether it
//!   took effect: a separator within the node's fences ends the node there, the rest is in the new neighbour;
//!   another node in its place shows a move. Otherwise no other process has seen any of the change.
//! - An owned node is written by its owner only, which just takes over the lock. So the nodes that are
//!   repaired cross an end of this compute server's range, and are repaired from remote memory.
//! - A process with a log has said there what was to come of the nodes that it had locked (`redo.rs`). So they are left
//!   alone until its heir has redone the log.
//! - Without a log, the leaves and nodes that only the dead process used are lost with its cache.

use std::sync::atomic::Ordering::Relaxed;

use pando_fabric::defect::defect;
use pando_fabric::{Endpoint, GlobalAddr, PageBuf, outlined};
use pando_log::defect::OfShared;
use pando_pool::{AttachSlot, LOOKS_AT_HOLDER, LogPlace};

use crate::descent::{read, refresh};
use crate::error::{Attempt, DexError, Result, Retry};
use crate::layout::digest::{self, is_whole};
use crate::layout::{Layout, Side, header};
use crate::node::Node;
use crate::recovery::unfinished;
use crate::shared::locked::{self, LockedNode};
use crate::tree::{Ctx, Tree};

/// Result of an interrupted change of a node.
enum Fate {
    /// The change never began, or is complete.
    AsItIs,
    /// The node moved: another node has its keys and children.
    Moved,
    /// The node was split at this index and key; a new neighbour has the rest.
    EndsAt(usize, Vec<u8>),
}

/// For an operation that waits and holds nothing: gives back the locks that this process left, finishes its
/// leftovers, and takes over the locks of dead processes. Later calls retry what cannot be done yet.
///
/// # Errors
/// [`DexError::Corrupt`] if a process died while it was writing a node.
#[inline]
pub(crate) async fn settle_locks<L: Layout, E: Endpoint>(tree: &Tree<L>, ctx: Ctx<'_, E>) -> Result<()> {
    // Boxed, as rare paths, to keep the futures of operations small.
    if tree.pool.has_left_locks() {
        let _ = outlined(Box::pin(unfinished::give_back_left_locks(tree, ctx))).await;
    }
    if unfinished::is_any(tree) {
        tree.cache.end_cut_off(ctx.ep.now());
        let _ = outlined(Box::pin(unfinished::finish_some(tree, ctx))).await;
    }
    match tree.suspects.any.load(Relaxed) {
        true => outlined(Box::pin(look_after_suspects(tree, ctx))).await,
        false => Ok(()),
    }
}

async fn look_after_suspects<L: Layout, E: Endpoint>(tree: &Tree<L>, ctx: Ctx<'_, E>) -> Result<()> {
    let wait = tree.config.patience_ns / LOOKS_AT_HOLDER;
    while let Some((addr, suspect)) = tree.suspects.take_due(ctx.ep.now(), wait) {
        let is_gone = match suspect.since {
            None => Ok(true),
            Some(_) => tree.pool.is_abandoned(ctx.ep, suspect.holder).await,
        };
        if !matches!(is_gone, Ok(true)) || !matches!(awaits_heir(tree, ctx, suspect.holder).await, Ok(false))
        {
            continue;
        }
        match put_right(tree, ctx, addr, suspect.holder).await {
            Ok(()) => {}
            Err(Retry::Failed(error @ DexError::Corrupt { .. })) => return Err(error),
            // The next operation that meets the node notes it again. A node above it, perhaps the next suspect, may need
            // repair first.
            Err(_) => {}
        }
    }
    Ok(())
}

/// Whether the log of a dead process is still to be redone. What it had locked is left to its heir until then.
async fn awaits_heir<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    gone: AttachSlot,
) -> Result<bool> {
    if defect(OfShared::RepairBeforeHeir) {
        return Ok(false);
    }
    let is_of = |log: &LogPlace| log.index_id == tree.config.index_id && log.writer == Some(gone);
    Ok(tree.pool.logs(ctx.ep).await?.iter().any(is_of))
}

/// Takes over the lock of a node from a dead process, and makes the node agree with its parent.
async fn put_right<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    addr: GlobalAddr,
    gone: AttachSlot,
) -> Attempt<()> {
    // 1. READ the node. No process changes it as long as `gone` holds the lock.
    let page = read::read_verified(tree, ctx, addr).await?;
    let node = tree.node(&page);
    if !is_whole(node.words()) {
        // The node stays locked.
        let reason = "it was being written by a process that died";
        return Err(DexError::Corrupt { addr, reason }.into());
    }
    // 2. A node of other compute servers is not repaired here. For an owned node, the root or a moved node
    //    the parent has nothing to tell.
    let view = tree.view(ctx);
    if view.nodes.is_apart_from_node(node) {
        // The node belongs to other compute servers, which repair it. The copies that led here are stale.
        ctx.ep.recycle(page);
        refresh::drop_shared_copies(tree, ctx).await?;
        return refresh::refresh_root(tree, ctx).await;
    }
    let is_own = locked::has_own_copy(tree, addr) || !view.is_shared(node);
    let is_as_it_is = is_own || addr == tree.config.root || node.is_moved();
    // 3. Lock the parent, found from the root down in remote memory.
    let parent = match is_as_it_is {
        true => None,
        false => Some(lock_above(tree, ctx, node.level(), node.fence(Side::Low).as_deref()).await?),
    };
    // 4. The parent tells the result of the interrupted change.
    let fate = parent.as_ref().map_or(Ok(Fate::AsItIs), |parent| fate_of(tree, addr, &page, parent));
    // 5. Take the lock over, write the node if necessary, unlock it; then unlock the parent.
    let put_right = match fate {
        Ok(fate) => meet_fate(tree, ctx, addr, page, gone, fate).await,
        Err(retry) => Err(retry),
    };
    if let Some(parent) = parent {
        locked::unlock_unchanged(tree, ctx, parent).await?;
    }
    put_right
}

/// Compares the node at `addr` with what its parent says about it.
fn fate_of<L: Layout>(
    tree: &Tree<L>,
    addr: GlobalAddr,
    page: &PageBuf,
    parent: &LockedNode<'_>,
) -> Attempt<Fate> {
    let (node, above) = (tree.node(page), tree.node(parent));
    let index = index_at(tree, above, node.fence(Side::Low).as_deref())?;
    if above.child(index).raw() != addr.raw() {
        return Ok(Fate::Moved);
    }
    let end = above.bounds_of_child(index).high().map(<[u8]>::to_vec);
    if end == node.fence(Side::High) {
        return Ok(Fate::AsItIs);
    }
    match end.and_then(|end| Some(Fate::EndsAt(node.position(&end)?, end))) {
        Some(fate) => Ok(fate),
        None => {
            let reason = "its fences are not those that its parent has";
            Err(DexError::Corrupt { addr, reason }.into())
        }
    }
}

async fn meet_fate<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    addr: GlobalAddr,
    page: PageBuf,
    gone: AttachSlot,
    fate: Fate,
) -> Attempt<()> {
    let Some(lock) = tree.pool.take_over(ctx.ep, addr, gone).await? else { return Ok(()) };
    let node = LockedNode::new(lock, page);
    digest::own_copy(node.words());
    match fate {
        Fate::AsItIs => return Ok(locked::unlock_unchanged(tree, ctx, node).await?),
        Fate::Moved => tree.node_mut(&node).set_flag(header::MOVED, true),
        Fate::EndsAt(at, end) => {
            let right = locked::split_page(tree, ctx, &node.page, addr, at, &end);
            ctx.ep.recycle(right);
        }
    }
    read::mark_shared(tree, &tree.view(ctx), &node.page);
    Ok(locked::write_unlock(tree, ctx, node).await?)
}

/// Locks the node one level above `level` that covers `low`, found in remote memory from the root down.
/// `None` is below all keys.
async fn lock_above<'t, L: Layout, E: Endpoint>(
    tree: &'t Tree<L>,
    ctx: Ctx<'_, E>,
    level: u8,
    low: Option<&[u8]>,
) -> Attempt<LockedNode<'t>> {
    let mut addr = tree.config.root;
    loop {
        let page = read::read_shared(tree, ctx, addr, &tree.view(ctx)).await?;
        let (at, next) = (tree.node(&page).level(), child_at(tree, tree.node(&page), low));
        ctx.ep.recycle(page);
        if at <= level {
            return Err(Retry::Restart);
        }
        if at == level + 1 {
            break;
        }
        addr = next?;
    }
    let parent = locked::lock_node(tree, ctx, addr).await?;
    let node = tree.node(&parent);
    let is_within = node.fence(Side::Low).as_deref() <= low
        && node.fence(Side::High).is_none_or(|high| low.is_none_or(|low| low < &high[..]));
    if node.level() == level + 1 && is_within && !node.is_moved() {
        return Ok(parent);
    }
    locked::unlock_unchanged(tree, ctx, parent).await?;
    Err(Retry::Restart)
}

/// Index of the child of an inner node that covers `low`.
fn index_at<L: Layout>(tree: &Tree<L>, node: Node<'_, L>, low: Option<&[u8]>) -> Attempt<usize> {
    Ok(match low {
        None => 0,
        Some(low) => node.child_index(tree.layout.key(low)?),
    })
}

fn child_at<L: Layout>(tree: &Tree<L>, node: Node<'_, L>, low: Option<&[u8]>) -> Attempt<GlobalAddr> {
    node.child_addr(index_at(tree, node, low)?).ok_or(Retry::Restart)
}
