//! Nodes whose lock is held by a process that is gone, and what it left half done.
//!
//! Who finds a shared node locked by another process notes it as a *suspect* and starts again. While it does so it looks, now
//! and then, whether that process still lives; the pool makes sure that nothing of one that does not takes effect any more. Then the
//! node is put right and its lock taken over, from the top of the tree down as always, by somebody who holds no other lock:
//!
//! - Its bytes are as before or as after the change that was being made ([`digest`](crate::layout::digest)), or it is reported as corrupt.
//! - A split and a move of a shared node write its parent first. So the parent tells whether they took effect: if it has a
//!   separator within the node, the node ends there, and the rest stands in its new neighbour; if it has another node in its
//!   place, it was moved there. If neither, nothing happened that anybody could see.
//! - What is one compute server's own by now is never written by anybody else: of such a node the owner only takes the lock over.
//!   So only nodes are put right that cross an end of this compute server's range, by what is in remote memory.
//! - What a process that is gone had for itself, its leaves and the nodes that nobody else used, is lost with its cache.

use std::sync::atomic::Ordering::Relaxed;

use pando_fabric::{Endpoint, GlobalAddr, PageBuf};
use pando_pool::{AttachSlot, LOOKS_AT_HOLDER};

use crate::descent::{read, refresh};
use crate::error::{Attempt, DexError, Result, Retry};
use crate::layout::digest::{self, is_whole};
use crate::layout::{Layout, Side, header};
use crate::node::Node;
use crate::recovery::unfinished;
use crate::shared::locked::{self, LockedNode};
use crate::tree::{Ctx, Tree};

/// What became of a node whose change was broken off.
enum Fate {
    /// It was not changed, or the change was all done.
    AsItIs,
    /// Another node has its keys and children.
    Moved,
    /// A new neighbour has those from here on: index and key.
    EndsAt(usize, Vec<u8>),
}

/// To be called by whoever waits and holds nothing: gives back the locks that this process left, finishes what operations left
/// half done, and takes over the locks of processes that are gone. What cannot be done now is tried again by the next one.
///
/// # Errors
/// [`DexError::Corrupt`] if somebody died who was just writing a node.
#[inline]
pub(crate) async fn settle_locks<L: Layout, E: Endpoint>(tree: &Tree<L>, ctx: Ctx<'_, E>) -> Result<()> {
    // Boxed: so rare that futures of operations are better without.
    if tree.pool.has_left_locks() {
        let _ = Box::pin(tree.pool.give_back_left_locks(ctx.ep)).await;
    }
    if unfinished::is_any(tree) {
        tree.cache.end_cut_off(ctx.ep.now());
        let _ = Box::pin(unfinished::finish_some(tree, ctx)).await;
    }
    match tree.suspects.any.load(Relaxed) {
        true => Box::pin(look_after_suspects(tree, ctx)).await,
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
        if !matches!(is_gone, Ok(true)) {
            continue;
        }
        match put_right(tree, ctx, addr, suspect.holder).await {
            Ok(()) => {}
            Err(Retry::Failed(error @ DexError::Corrupt { .. })) => return Err(error),
            // Whoever comes upon it still notes it again; what stands above may have to be put right first.
            Err(_) => break,
        }
    }
    Ok(())
}

/// Takes over the lock of a node from a process that is gone, and makes the node what its parent says that it is.
async fn put_right<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    addr: GlobalAddr,
    gone: AttachSlot,
) -> Attempt<()> {
    // As long as `gone` has the lock nobody changes the node.
    let page = ctx.ep.buffer(tree.layout.node_size());
    let page = read::read_verified(tree, ctx, addr, page).await?;
    let node = tree.node(&page);
    if !is_whole(node.words()) {
        // It stays locked.
        let reason = "it was being written by a process that died";
        return Err(DexError::Corrupt { addr, reason }.into());
    }
    let view = tree.view(ctx);
    if view.nodes.is_apart_from_node(node) {
        // Others' to put right, or their own. What leads there, to keys that are not there, is old.
        ctx.ep.recycle(page);
        return Ok(refresh::drop_shared_copies(tree, ctx).await?);
    }
    let is_own = locked::has_own_copy(tree, addr) || !view.is_shared(node);
    let is_as_it_is = is_own || addr == tree.config.root || node.is_moved();
    let parent = match is_as_it_is {
        true => None,
        false => Some(lock_above(tree, ctx, node.level(), node.fence(Side::Low).as_deref()).await?),
    };
    let fate = parent.as_ref().map_or(Ok(Fate::AsItIs), |parent| fate_of(tree, addr, &page, parent));
    let put_right = match fate {
        Ok(fate) => meet_fate(tree, ctx, addr, page, gone, fate).await,
        Err(retry) => Err(retry),
    };
    if let Some(parent) = parent {
        locked::unlock_unchanged(tree, ctx, parent).await?;
    }
    put_right
}

/// What the parent of the node at `addr` says of it.
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

/// Locks the node above `level` to whose keys `low` belongs, found in remote memory from the root down. `None` is the
/// lowest of all keys.
async fn lock_above<'t, L: Layout, E: Endpoint>(
    tree: &'t Tree<L>,
    ctx: Ctx<'_, E>,
    level: u8,
    low: Option<&[u8]>,
) -> Attempt<LockedNode<'t>> {
    let mut addr = tree.config.root;
    loop {
        let (view, page) = (tree.view(ctx), ctx.ep.buffer(tree.layout.node_size()));
        let page = read::read_node(tree, ctx, addr, page, &view, true).await?;
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

/// Where in an inner node the way to `low` goes on.
fn index_at<L: Layout>(tree: &Tree<L>, node: Node<'_, L>, low: Option<&[u8]>) -> Attempt<usize> {
    Ok(match low {
        None => 0,
        Some(low) => node.child_index(tree.layout.key(low)?),
    })
}

fn child_at<L: Layout>(tree: &Tree<L>, node: Node<'_, L>, low: Option<&[u8]>) -> Attempt<GlobalAddr> {
    node.child_addr(index_at(tree, node, low)?).ok_or(Retry::Restart)
}
