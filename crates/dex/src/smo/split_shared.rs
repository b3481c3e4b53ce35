//! Splits of shared nodes, and of owned nodes below shared ones (DEX §4, §7).
//!
//! Shared nodes are written through under remote locks, which are taken from the top down. The new right half
//! is written before any pointer leads to it, and the parent before the node. So the parent tells the result
//! of an interrupted split.

use pando_cache::{FrameRef, FrameState, FreeFrame};
use pando_fabric::defect::defect;
use pando_fabric::{Endpoint, GlobalAddr};
use pando_log::defect::OfMoves;

use crate::descent::read;
use crate::error::{Attempt, Retry};
use crate::layout::{Layout, NodeInit};
use crate::recovery::room;
use crate::shared::locked::{self, LockedNode};
use crate::shared::{parent, record};
use crate::smo::cut::{Cut, Pending, Separator, SplitAt};
use crate::smo::split::{self, Split};
use crate::tree::journal::{self, Room};
use crate::tree::new_node::{self, NewNode};
use crate::tree::{Ctx, Tree, VersionedNode, clear, count};

/// Splits an owned node below a shared parent: first in the cache, then the parent is written through. In
/// between, a worker that looks for a key of the new node finds fences that do not cover it, tries to refresh
/// the parent, and waits for its lock.
pub(crate) async fn split_under_shared<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    key: L::Key<'_>,
    node: VersionedNode<'_>,
    parent: VersionedNode<'_>,
    cut: Cut<'_>,
) -> Attempt<Split> {
    let level = tree.node(node).level();
    let addr = tree.node(node).addr().ok_or(Retry::Restart)?;
    let parent_addr = tree.node(parent).addr().ok_or(Retry::Restart)?;
    parent.validate()?;
    let room = room::for_nodes(tree, ctx).await?;
    let _pin = node.frame.pin(node.version)?;
    let new = new_node::new_node(tree, ctx, level, new_node::near(tree, level, addr, parent_addr)).await?;
    let free = tree.cache.allocate(ctx.worker, ctx.ep, tree.shape()).await?;
    // 1. Lock the parent and check that it still is the parent.
    let parent = parent::lock_parent(tree, ctx, parent_addr, key, addr, level).await?;
    // 2. Split the node in the cache, and enter the separator into the parent's bytes.
    let below = Below { frame: node.frame, addr, free, new: &new };
    match split_into_parent(tree, below, &parent, cut, room) {
        Ok(Split::Done) => {
            new.link();
            // 3. WRITE and unlock the parent in one chain.
            locked::write_unlock(tree, ctx, parent).await?;
            count(&tree.smo_counters.splits);
            Ok(Split::Done)
        }
        other => {
            locked::unlock_unchanged(tree, ctx, parent).await?;
            other
        }
    }
}

/// A node below a shared parent, and what its new right neighbour gets.
struct Below<'t, 'n, L: Layout> {
    frame: FrameRef<'t>,
    addr: GlobalAddr,
    free: FreeFrame<'t>,
    new: &'n NewNode<'t, L>,
}

/// The latched part of [`split_under_shared`]: changes the cached node and the locked parent's bytes.
fn split_into_parent<'t, L: Layout>(
    tree: &'t Tree<L>,
    Below { frame, addr, free, new }: Below<'t, '_, L>,
    parent: &LockedNode<'_>,
    cut: Cut<'_>,
    room: Room<'_>,
) -> Attempt<Split> {
    let mut guard = frame.exclusive()?;
    let page = tree.node(frame);
    // The parent's lock keeps the node below it. But the frame may have got another node before the pin was
    // seen.
    let is_node = guard.state() == FrameState::Hot && frame.addr() == addr.raw() && !page.is_shared();
    let Some(SplitAt { at, separator }) = cut.choose(page).filter(|_| is_node) else {
        guard.release_unchanged();
        return Err(Retry::Restart);
    };
    if !tree.node(parent).has_room(&separator.key, 0) {
        guard.release_unchanged();
        return Ok(Split::ParentFull(Separator { rising: false, ..separator }));
    }
    let (right, _right_guard) = match split::split_latched(tree, frame, free, new.addr(), at, &separator.key)
    {
        Ok(right) => right,
        Err(retry) => {
            guard.release_unchanged();
            return Err(retry);
        }
    };
    guard.mark_dirty();
    tree.node_mut(parent).link(&separator.key, new.addr().raw());
    record::note_shared(tree, room, &[frame, right], [parent], &[]);
    Ok(Split::Done)
}

/// Splits a shared node: writes the new right half, the parent and the node through, under both locks.
pub(crate) async fn split_shared<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    key: L::Key<'_>,
    node: VersionedNode<'_>,
    parent: VersionedNode<'_>,
    pending: Pending<'_>,
) -> Attempt<Split> {
    let level = tree.node(node).level();
    let addr = tree.node(node).addr().ok_or(Retry::Restart)?;
    let parent_addr = tree.node(parent).addr().ok_or(Retry::Restart)?;
    node.validate()?;
    parent.validate()?;
    let room = room::for_nodes(tree, ctx).await?;
    // 1. Lock the parent, then the node, and READ both.
    let new = new_node::new_node(tree, ctx, level, new_node::near(tree, level, addr, parent_addr)).await?;
    let [node, parent] = parent::lock_both(tree, ctx, key, addr, level, parent_addr).await?;
    let mut separator = Vec::new();
    let content = tree.node(&node);
    let at = match content.has_room(pending.key, pending.value_len) {
        true => None,
        false => content.split_point(pending.key, pending.value_len, &mut separator),
    };
    let parent_room = at.is_none() || tree.node(&parent).has_room(&separator, 0);
    let Some(at) = at.filter(|_| parent_room) else {
        locked::unlock_seen(tree, ctx, [node, parent]).await?;
        if !parent_room {
            return Ok(Split::ParentFull(Separator { key: separator, rising: false }));
        }
        // Another operation made room meanwhile; this compute server's copy shows it by now.
        return Ok(Split::Done);
    };
    // 2. WRITE the new right half, to which no pointer leads yet.
    let right = locked::split_page(tree, ctx, &node.page, new.addr(), at, &separator);
    tree.node_mut(&parent).link(&separator, new.addr().raw());
    let [node, parent] = parent::write_under(tree, ctx, [node, parent], &new, right).await?;
    if !defect(OfMoves::HalfUnpersisted) {
        journal::persist_first(tree, ctx, new.addr(), tree.layout.node_size()).await?;
    }
    // 3. WRITE and unlock the parent, then the node. From here on the node must be written in any case.
    new.link();
    read::mark_shared(tree, &tree.view(ctx), &node.page);
    node.owe();
    record::note_shared(tree, room, &[], [&parent, &node], &[]);
    locked::write_unlock(tree, ctx, parent).await?;
    locked::write_unlock(tree, ctx, node).await?;
    count(&tree.smo_counters.splits);
    Ok(Split::Done)
}

/// Grows a full shared root: its content moves to two new nodes, and it becomes their parent one level
/// higher.
pub(crate) async fn grow_shared_root<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    pending: Pending<'_>,
) -> Attempt<Split> {
    let addr = tree.config.root;
    let level = tree.node(tree.cache.frame(tree.root)).level();
    let (left, right) = (
        new_node::new_node(tree, ctx, level, addr).await?,
        new_node::new_node(tree, ctx, level, addr).await?,
    );
    let room = room::for_nodes(tree, ctx).await?;
    // 1. Lock the root and check that it is still full.
    let root = locked::lock_node(tree, ctx, addr).await?;
    let node = tree.node(&root);
    let mut separator = Vec::new();
    let is_root = root.is_shared && node.level() == level;
    let has_room = is_root && node.has_room(pending.key, 0);
    let at = match is_root && !has_room {
        true => node.split_point(pending.key, 0, &mut separator),
        false => None,
    };
    let Some(at) = at else {
        // Another operation made room or grew the root meanwhile, so this compute server's copy was stale.
        locked::unlock_seen(tree, ctx, [root]).await?;
        return if has_room { Ok(Split::Done) } else { Err(Retry::Restart) };
    };
    // 2. WRITE both halves, to which no pointer leads yet.
    let left_page = ctx.ep.buffer(tree.layout.node_size());
    clear(&left_page);
    let copy = tree.node_mut(&left_page);
    copy.copy_content(node);
    copy.set_addr(left.addr());
    copy.set_remote_version(0);
    let right_page = locked::split_page(tree, ctx, &left_page, right.addr(), at, &separator);
    for (new, page) in [(&left, left_page), (&right, right_page)] {
        match new.while_written(ctx.ep.write(new.addr(), page)).await {
            Ok(page) => ctx.ep.recycle(page),
            Err(error) => {
                locked::unlock_unchanged(tree, ctx, root).await?;
                return Err(error.into());
            }
        }
    }
    for new in [&left, &right] {
        journal::persist_first(tree, ctx, new.addr(), tree.layout.node_size()).await?;
    }
    // 3. WRITE and unlock the root in one chain.
    raise_root(tree, &root, left.addr(), right.addr(), &separator);
    read::mark_shared(tree, &tree.view(ctx), &root.page);
    left.link();
    right.link();
    record::note_shared(tree, room, &[], [&root], &[]);
    locked::write_unlock(tree, ctx, root).await?;
    count(&tree.smo_counters.root_changes);
    Ok(Split::Done)
}

/// Makes the locked root an inner node of the next level, with two children.
fn raise_root<L: Layout>(
    tree: &Tree<L>,
    root: &LockedNode<'_>,
    left: GlobalAddr,
    right: GlobalAddr,
    separator: &[u8],
) {
    let node = tree.node_mut(root);
    let (level, index_id) = (node.level() + 1, tree.config.index_id);
    node.init(&NodeInit { addr: tree.config.root.raw(), index_id, level, low: None, high: None });
    node.set_child(0, left.raw());
    node.link(separator, right.raw());
}

#[cfg(test)]
mod tests;
