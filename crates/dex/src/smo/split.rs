//! Splits of owned nodes (DEX §7, Insert).
//!
//! A node is split when an entry does not fit. Its parent must have room for the separator; if not, the
//! parent is split first. A block of the pool and a frame of the cache are allocated before the first latch,
//! since both may await. Then the parent and the node, which stay pinned, are latched and checked again, and
//! the change happens without an await. Shared nodes are split in [`split_shared`](crate::smo::split_shared).

use pando_cache::{ExclusiveGuard, FrameRef, FrameState, FreeFrame, Lookup, Swip};
use pando_fabric::{Endpoint, GlobalAddr, Work};

use crate::descent::walk::{self};
use crate::error::{Attempt, DexError, Result, Retry};
use crate::layout::{Layout, NodeInit, Side, header};
use crate::node::Target;
use crate::ownership::view::Purpose;
use crate::recovery::restart::RestartPolicy;
use crate::recovery::room;
use crate::smo::cut::{Cut, Pending, Separator, SplitAt, continues_long_run};
use crate::smo::{orphans, redistribute, split_shared};
use crate::tree::journal::{self, Room};
use crate::tree::new_node::{self, NewNode};
use crate::tree::{Ctx, Tree, VersionedNode, count, gate};

/// Result of an attempt to split.
pub(crate) enum Split {
    /// The node was split, or has room by now.
    Done,
    /// The parent has no room for this separator.
    ParentFull(Separator),
}

/// Splits the leaf of `key`, and full nodes above it, to make room for an entry with a value of `value_len`
/// bytes.
pub(crate) async fn make_room<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    key: L::Key<'_>,
    value_len: usize,
) -> Result<()> {
    make_room_from(tree, ctx, key, 0, None, value_len, Purpose::Operation).await
}

/// [`make_room`] from level `start` on; above the leaves, `first` is the separator that needs room.
pub(crate) async fn make_room_from<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    key: L::Key<'_>,
    start: u8,
    first: Option<Separator>,
    value_len: usize,
    purpose: Purpose,
) -> Result<()> {
    let tries = RestartPolicy::default();
    let mut ctx = ctx;
    let (mut level, mut separator) = (start, first.clone());
    loop {
        let pending = match &separator {
            None => Pending { key: tree.layout.key_bytes(key), value_len, rising: false },
            Some(Separator { key, rising }) => Pending { key, value_len: 0, rising: *rising },
        };
        // Half a node is copied, the gap is filled, and the parent changes.
        ctx.ep.charge(Work::Copy { bytes: 2 * tree.layout.node_size() });
        match try_split(tree, ctx, key, level, pending, purpose).await {
            Ok(Split::Done) => return Ok(()),
            Ok(Split::ParentFull(needed)) => {
                level += 1;
                separator = Some(needed);
            }
            Err(retry) => {
                ctx = tries.again(tree, ctx, retry, "a node to split").await?;
                (level, separator) = (start, first.clone());
            }
        }
    }
}

async fn try_split<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    key: L::Key<'_>,
    level: u8,
    pending: Pending<'_>,
    purpose: Purpose,
) -> Attempt<Split> {
    let _entered = gate::enter_for(tree, ctx, key, purpose)?;
    let (node, parent) = walk::walk_to(tree, ctx, key, level).await?;
    let page = tree.node(node);
    let shared = page.is_shared();
    let has_room = page.has_room(pending.key, pending.value_len);
    node.validate()?;
    // A cached copy of a shared node may show room that is taken by now.
    if has_room && !shared {
        return Ok(Split::Done);
    }
    let Some(parent) = parent else {
        return match shared {
            true => split_shared::grow_shared_root(tree, ctx, pending).await,
            false => grow_root(tree, ctx, node, Cut::ForRoom(pending)).await,
        };
    };
    let parent_shared = tree.node(parent).is_shared();
    parent.validate()?;
    match (shared, parent_shared) {
        (true, _) => split_shared::split_shared(tree, ctx, key, node, parent, pending).await,
        (false, true) => {
            split_shared::split_under_shared(tree, ctx, key, node, parent, Cut::ForRoom(pending)).await
        }
        (false, false) => {
            let rising = continues_long_run(page, pending);
            node.validate()?;
            let room = room::for_nodes(tree, ctx).await?;
            if level == 0 && !rising && redistribute::balance(tree, ctx, node, parent, pending, room)? {
                return Ok(Split::Done);
            }
            split_owned(tree, ctx, key, node, parent, Cut::ForRoom(pending)).await
        }
    }
}

/// Split point of the node of `hop` at its version.
fn plan_split<L: Layout>(tree: &Tree<L>, hop: VersionedNode<'_>, cut: Cut<'_>) -> Attempt<SplitAt> {
    let plan = cut.choose(tree.node(hop));
    hop.validate()?;
    let too_small = || DexError::Layout("a node is too small for two entries of this size".into());
    Ok(plan.ok_or_else(too_small)?)
}

async fn split_owned<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    key: L::Key<'_>,
    node: VersionedNode<'_>,
    parent: VersionedNode<'_>,
    cut: Cut<'_>,
) -> Attempt<Split> {
    // 1. Choose the split point and check the parent's room.
    let SplitAt { separator, .. } = plan_split(tree, node, cut)?;
    let room = tree.node(parent).has_room(&separator.key, 0);
    parent.validate()?;
    if !room {
        return Ok(Split::ParentFull(separator));
    }
    // 2. Pin both nodes, and allocate what may await.
    let level = tree.node(node).level();
    let addr = tree.node(node).addr().ok_or(Retry::Restart)?;
    let _pins = (node.frame.pin(node.version)?, parent.frame.pin(parent.version)?);
    let above = tree.node(parent).addr().ok_or(Retry::Restart)?;
    let new = new_node::new_node(tree, ctx, level, new_node::near(tree, level, addr, above)).await?;
    let free = tree.cache.allocate(ctx.worker, ctx.ep, tree.shape()).await?;
    let room = room::for_nodes(tree, ctx).await?;
    // 3. Latch both nodes, and change everything without an await.
    let mut parent_guard = parent.frame.exclusive()?;
    let Ok(mut node_guard) = node.frame.exclusive() else {
        parent_guard.release_unchanged();
        return Err(Retry::Restart);
    };
    match split_pinned(tree, key, [node.frame, parent.frame], free, &new, cut, room) {
        Ok(Split::Done) => {
            new.link();
            node_guard.mark_dirty();
            parent_guard.mark_dirty();
            count(&tree.smo_counters.splits);
            Ok(Split::Done)
        }
        other => {
            node_guard.release_unchanged();
            parent_guard.release_unchanged();
            other
        }
    }
}

/// The latched part of [`split_owned`]. Both nodes are pinned and hence still in their frames. But the frame
/// that was allocated may have been that of another child, and other operations may have changed them.
fn split_pinned<'t, L: Layout>(
    tree: &'t Tree<L>,
    key: L::Key<'_>,
    [node, parent]: [FrameRef<'t>; 2],
    free: FreeFrame<'t>,
    new: &NewNode<'_, L>,
    cut: Cut<'_>,
    room: Room<'_>,
) -> Attempt<Split> {
    let is_child = index_of_child(tree, parent, node, key).is_some();
    let wanted = match cut {
        Cut::ForRoom(pending) => !tree.node(node).has_room(pending.key, pending.value_len),
        Cut::At(_) => true,
    };
    let plan = cut.choose(tree.node(node)).filter(|_| is_child && wanted);
    let SplitAt { at, separator } = plan.ok_or(Retry::Restart)?;
    if !tree.node(parent).has_room(&separator.key, 0) {
        return Ok(Split::ParentFull(separator));
    }
    let separator = separator.key;
    // The new node stays latched until its parent points to it. If it were found without a parent, it would
    // be cooled.
    let (child, _guard) = split_latched(tree, node, free, new.addr(), at, &separator)?;
    link_child(tree, parent, child, &separator);
    journal::note_nodes(tree, room, &[parent, node, child], &[]);
    Ok(Split::Done)
}

/// Index of `node` in a latched parent, if it is the child for `key` and both are owned.
pub(crate) fn index_of_child<L: Layout>(
    tree: &Tree<L>,
    parent: FrameRef<'_>,
    node: FrameRef<'_>,
    key: L::Key<'_>,
) -> Option<usize> {
    let (child, above) = (tree.node(node), tree.node(parent));
    let is_own = !child.is_shared() && !above.is_shared();
    let is_parent = above.level() == child.level() + 1 && above.covers(Target::of(key));
    let index = above.child_index(key);
    (is_own && is_parent && leads_to(above.child(index), node)).then_some(index)
}

/// Links a new hot right neighbour into its latched parent.
fn link_child<L: Layout>(tree: &Tree<L>, parent: FrameRef<'_>, child: FrameRef<'_>, separator: &[u8]) {
    let swip = swip_below(tree, parent, child);
    tree.node_mut(parent).link(separator, swip);
}

/// Child word of a latched parent for a hot child that it gets; sets the child's parent if it swizzles.
fn swip_below<L: Layout>(tree: &Tree<L>, parent: FrameRef<'_>, child: FrameRef<'_>) -> u64 {
    if !tree.swizzles(tree.node(parent)) {
        return child.addr();
    }
    child.set_parent(Some(parent.id()));
    Swip::hot(child.id()).raw()
}

/// Moves the upper part of a latched node, from `at` on, to a new hot and dirty frame. The caller links that
/// frame and then drops its latch.
pub(crate) fn split_latched<'t, L: Layout>(
    tree: &'t Tree<L>,
    left: FrameRef<'t>,
    free: FreeFrame<'t>,
    addr: GlobalAddr,
    at: usize,
    separator: &[u8],
) -> Attempt<(FrameRef<'t>, ExclusiveGuard<'t>)> {
    orphans::count_orphans(tree, tree.node(left))?;
    let Lookup::Miss(ticket) = tree.cache.table().begin(addr) else {
        return Err(Retry::Restart);
    };
    let mut guard = free.latch();
    let right = free.release_to_cache();
    tree.node_mut(left).split_off(tree.node_mut(right), addr, at, separator);
    orphans::adopt_children(tree, right);
    right.set_parent(None);
    guard.set_state(FrameState::Hot);
    guard.mark_dirty();
    ticket.publish(right.id());
    Ok((right, guard))
}

/// Grows a full owned root: its content moves to two new children.
async fn grow_root<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    root: VersionedNode<'_>,
    cut: Cut<'_>,
) -> Attempt<Split> {
    plan_split(tree, root, cut)?;
    let level = tree.node(root).level();
    root.validate()?;
    let addr = tree.node(root).addr().ok_or(Retry::Restart)?;
    let (left, right) = (
        new_node::new_node(tree, ctx, level, addr).await?,
        new_node::new_node(tree, ctx, level, addr).await?,
    );
    let left_free = tree.cache.allocate(ctx.worker, ctx.ep, tree.shape()).await?;
    let right_free = tree.cache.allocate(ctx.worker, ctx.ep, tree.shape()).await?;
    let room = room::for_nodes(tree, ctx).await?;
    let mut root_guard = root.frame.exclusive()?;
    let node = tree.node(root);
    let same = node.level() == level && !node.is_shared();
    let Some(SplitAt { at, separator }) = cut.choose(node).filter(|_| same) else {
        root_guard.release_unchanged();
        return Err(Retry::Restart);
    };
    let separator = separator.key;
    let Lookup::Miss(ticket) = tree.cache.table().begin(left.addr()) else {
        root_guard.release_unchanged();
        return Err(Retry::Restart);
    };
    let mut left_guard = left_free.latch();
    let left_frame = left_free.release_to_cache();
    let copy = tree.node_mut(left_frame);
    copy.copy_content(tree.node(root));
    copy.set_addr(left.addr());
    let (right_frame, right_guard) =
        match split_latched(tree, left_frame, right_free, right.addr(), at, &separator) {
            Ok(right) => right,
            Err(retry) => {
                // The children of the copy still belong to the unchanged root.
                left_guard.mark_clean();
                tree.cache.discard(ctx.worker, left_frame, left_guard);
                root_guard.release_unchanged();
                return Err(retry);
            }
        };
    // The new address is unknown to others, and its lock word is not written yet. Without the flag, the
    // write-back writes it too.
    copy.set_flag(header::WAS_SHARED, false);
    orphans::adopt_children(tree, left_frame);
    left_frame.set_parent(None);
    left_guard.set_state(FrameState::Hot);
    left_guard.mark_dirty();
    ticket.publish(left_frame.id());
    rewrite_root(tree, root.frame, level + 1, left_frame);
    link_child(tree, root.frame, right_frame, &separator);
    journal::note_nodes(tree, room, &[root.frame, left_frame, right_frame], &[]);
    drop((left_guard, right_guard));
    left.link();
    right.link();
    root_guard.mark_dirty();
    count(&tree.smo_counters.root_changes);
    Ok(Split::Done)
}

/// Makes the latched root an inner node of `level` with one child.
fn rewrite_root<L: Layout>(tree: &Tree<L>, root: FrameRef<'_>, level: u8, child: FrameRef<'_>) {
    let node = tree.node_mut(root);
    let init = NodeInit {
        addr: tree.config.root.raw(),
        index_id: tree.config.index_id,
        level,
        low: None,
        high: None,
    };
    let was_shared = node.was_shared();
    node.init(&init);
    node.set_flag(header::WAS_SHARED, was_shared);
    node.set_child(0, swip_below(tree, root, child));
}

/// Splits the leaf that covers `boundary` at exactly that key, so that no leaf spans two partitions. The
/// caller is the only compute server that uses the index at this time, or the leaf's owner, which moves the
/// boundary there.
///
/// # Errors
/// Errors of a split.
pub async fn cut_at<L: Layout, E: Endpoint>(tree: &Tree<L>, ctx: Ctx<'_, E>, boundary: &[u8]) -> Result<()> {
    let key = tree.layout.key(boundary)?;
    let tries = RestartPolicy::default();
    let mut ctx = ctx;
    loop {
        match try_cut(tree, ctx, key).await {
            Ok(Split::Done) => return Ok(()),
            Ok(Split::ParentFull(separator)) => {
                make_room_from(tree, ctx, key, 1, Some(separator), 0, Purpose::Move).await?
            }
            Err(retry) => ctx = tries.again(tree, ctx, retry, "a leaf to cut").await?,
        }
    }
}

async fn try_cut<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    boundary: L::Key<'_>,
) -> Attempt<Split> {
    let (node, parent) = walk::walk_to(tree, ctx, boundary, 0).await?;
    let page = tree.node(node);
    let bytes = tree.layout.key_bytes(boundary);
    let done = page.fence(Side::Low).as_deref() == Some(bytes);
    node.validate()?;
    let cut = Cut::At(bytes);
    let split = match parent {
        _ if done => return Ok(Split::Done),
        None => grow_root(tree, ctx, node, cut).await?,
        Some(parent) => {
            let shared = tree.node(parent).is_shared();
            parent.validate()?;
            match shared {
                true => split_shared::split_under_shared(tree, ctx, boundary, node, parent, cut).await?,
                false => split_owned(tree, ctx, boundary, node, parent, cut).await?,
            }
        }
    };
    match split {
        // The leaf may only have been halved.
        Split::Done => Err(Retry::Restart),
        full => Ok(full),
    }
}

/// Whether a child word leads to the node in a frame.
pub(crate) fn leads_to(swip: Swip, child: FrameRef<'_>) -> bool {
    swip == Swip::hot(child.id()) || swip.raw() == child.addr()
}

#[cfg(test)]
mod tests;
