//! Merges (DEX §7, Delete): an underfull node and a neighbour under the same parent become one, and the block
//! of the other is freed. A root with one child takes that child's content, and the tree gets one level
//! lower.
//!
//! Merging is optional. If it is obstructed (by a neighbour of another compute server or on another memory
//! server, a pin, a write-back in progress), the node stays small, and the next removal tries again.

use pando_cache::{ExclusiveGuard, FrameRef, FrameState, IoTicket, Version};
use pando_fabric::{Endpoint, GlobalAddr, Work};

use crate::descent::walk::{self, Admit, Child, Miss};
use crate::error::{Attempt, DexError, Result, Retry};
use crate::layout::{Layout, header};
use crate::node::{Node, Target};
use crate::ownership::view::{Purpose, View};
use crate::recovery::restart::RestartPolicy;
use crate::recovery::{room, unfinished};
use crate::shared::{locked, parent, record};
use crate::smo::orphans;
use crate::smo::split::leads_to;
use crate::tree::journal::{self, Room};
use crate::tree::leftovers::Unlinked;
use crate::tree::{Ctx, Tree, VersionedNode, count, gate};

/// Restarts after which a merge is left to the next removal.
const ATTEMPTS: usize = 8;

/// Result of an attempt to merge.
enum Merge {
    /// The parent lost a separator, so it is tried next.
    Done,
    /// Nothing to do, or not now.
    Skipped,
}

/// Two neighbours in their frames, their parent, and the index of the separator between them.
pub(crate) struct Neighbours<'t> {
    pub parent: VersionedNode<'t>,
    pub left: VersionedNode<'t>,
    pub right: VersionedNode<'t>,
    pub separator: usize,
}

/// Merges the leaf of `key` if it is underfull, then its parent, and so on up.
pub(crate) async fn merge_upward<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    key: L::Key<'_>,
) -> Result<()> {
    let tries = RestartPolicy::default();
    let mut ctx = ctx;
    let mut level = 0;
    let mut attempts = 0;
    loop {
        match try_merge(tree, ctx, key, level).await {
            Ok(Merge::Done) => {
                ctx.ep.charge(Work::Copy { bytes: 2 * tree.layout.node_size() });
                level += 1;
                attempts = 0;
            }
            Ok(Merge::Skipped) | Err(Retry::Failed(DexError::NotOwned)) => return Ok(()),
            Err(Retry::Restart) if attempts == ATTEMPTS => return Ok(()),
            Err(retry) => {
                attempts += usize::from(matches!(retry, Retry::Restart));
                ctx = tries.again(tree, ctx, retry, "two nodes to merge").await?;
            }
        }
    }
}

async fn try_merge<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    key: L::Key<'_>,
    level: u8,
) -> Attempt<Merge> {
    let _entered = gate::enter_for(tree, ctx, key, Purpose::Operation)?;
    let (node, parent) = walk::walk_to(tree, ctx, key, level).await?;
    let page = tree.node(node);
    let (underfull, shared) = (page.is_underfull(), page.is_shared());
    let (at, lonely) = (page.level(), page.count() == 0);
    node.validate()?;
    let Some(parent) = parent else {
        return match !shared && lonely && at > 0 {
            true => shrink_root(tree, ctx, node, key).await,
            false => Ok(Merge::Skipped),
        };
    };
    if !underfull || shared {
        return Ok(Merge::Skipped);
    }
    let pins = (node.frame.pin(node.version)?, parent.frame.pin(parent.version)?);
    let Some(pair) = neighbours(tree, ctx, node, parent, key).await? else {
        return Ok(Merge::Skipped);
    };
    let parent = pair.parent;
    if !may_merge(tree, &tree.view(ctx), &pair, parent, level)? {
        return Ok(Merge::Skipped);
    }
    drop(pins);
    if tree.node(parent).is_shared() {
        merge_under_shared(tree, ctx, key, pair, parent).await
    } else {
        merge_owned(tree, ctx, pair, parent).await
    }
}

/// Pairs the node with a neighbour below `parent`, the right one if there is one. Brings the neighbour into
/// the cache.
async fn neighbours<'t, L: Layout, E: Endpoint>(
    tree: &'t Tree<L>,
    ctx: Ctx<'_, E>,
    node: VersionedNode<'t>,
    parent: VersionedNode<'t>,
    key: L::Key<'_>,
) -> Attempt<Option<Neighbours<'t>>> {
    let page = tree.node(parent);
    let (index, count) = (page.child_index(key), page.count());
    // A node beyond a boundary belongs to another compute server, and its remote copy may be stale. So may
    // what a shared parent says of keys that this compute server is about to own.
    let view = tree.view(ctx);
    let own = &view.keys;
    if own.is_empty() {
        return Ok(None);
    }
    let right = (index < count)
        .then(|| page.key_at(index))
        .filter(|separator| own.high.as_ref().is_none_or(|high| separator < high));
    let left = (index > 0)
        .then(|| page.key_at(index - 1))
        .filter(|separator| own.low.as_ref().is_none_or(|low| separator > low));
    parent.validate()?;
    let to_right = right.is_some();
    let Some(bytes) = right.or(left) else { return Ok(None) };
    let separator = if to_right { index } else { index - 1 };
    // The right neighbour covers the separator, the left one the keys just below it.
    let bound = tree.layout.key(&bytes)?;
    let (other, parent) = match to_right {
        true => child_of(tree, ctx, parent, separator + 1, Target::of(bound)).await?,
        false => child_of(tree, ctx, parent, separator, Target::below(bound)).await?,
    };
    let (left, right) = if to_right { (node, other) } else { (other, node) };
    let leads_to = |i: usize, child: VersionedNode<'_>| leads_to(page.child(i), child.frame);
    // If the parent was split between the two meanwhile, the old word still lies behind its last child.
    let is_there = separator < page.count();
    let neighbours = is_there && leads_to(separator, left) && leads_to(separator + 1, right);
    node.validate()?;
    parent.validate()?;
    match neighbours {
        true => Ok(Some(Neighbours { parent, left, right, separator })),
        false => Err(Retry::Restart),
    }
}

/// Child `index` of a pinned node, which covers `target`, brought into the cache; and the node at its version
/// by then.
async fn child_of<'t, L: Layout, E: Endpoint>(
    tree: &'t Tree<L>,
    ctx: Ctx<'_, E>,
    parent: VersionedNode<'t>,
    index: usize,
    target: Target<'_, L>,
) -> Attempt<(VersionedNode<'t>, VersionedNode<'t>)> {
    if let Some(id) = tree.node(parent).child(index).frame() {
        let frame = tree.cache.try_frame(id).ok_or(Retry::Restart)?;
        let version = frame.optimistic()?;
        parent.validate()?;
        return Ok((VersionedNode { frame, version }, parent));
    }
    match walk::resolve(tree, ctx, walk::slot(tree, parent, index)?, target, Miss::fetched(Admit::Always))
        .await?
    {
        Child::Cached { child, parent } => Ok((child, parent)),
        Child::Private(_) | Child::Offloadable(_) => unreachable!("every page is READ and admitted"),
    }
}

/// Whether the two may become one, according to their versions.
fn may_merge<L: Layout>(
    tree: &Tree<L>,
    view: &View,
    pair: &Neighbours<'_>,
    parent: VersionedNode<'_>,
    level: u8,
) -> Attempt<bool> {
    let (left, right) = (tree.node(pair.left), tree.node(pair.right));
    let separator = tree.node(parent).key_at(pair.separator);
    let shared = left.is_shared() || right.is_shared();
    let remembered = view.is_partitioned() && right.was_shared();
    let one_level = left.level() == level && right.level() == level;
    let server = |node: Node<'_, L>| node.addr().map(GlobalAddr::server);
    // The nodes of a subtree below level M lie on one memory server, so its parts cannot move to another one.
    let together = level != tree.config.subtree_level || server(left) == server(right);
    let owned = !view.nodes.is_crossed_by(left) && !view.nodes.is_crossed_by(right);
    let fits = left.can_merge(right, &separator);
    pair.left.validate()?;
    pair.right.validate()?;
    parent.validate()?;
    Ok(fits && one_level && together && owned && !shared && !remembered)
}

async fn merge_owned<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    pair: Neighbours<'_>,
    parent: VersionedNode<'_>,
) -> Attempt<Merge> {
    let room = room::for_nodes(tree, ctx).await?;
    let (freed, gsn) = merge_below(tree, ctx, &pair, parent, room)?;
    count(&tree.smo_counters.merges);
    unfinished::finish_unlinked(tree, ctx, Unlinked::new(freed).logged(gsn)).await?;
    Ok(Merge::Done)
}

/// The latched part of [`merge_owned`].
fn merge_below<'t, L: Layout, E: Endpoint>(
    tree: &'t Tree<L>,
    ctx: Ctx<'_, E>,
    pair: &Neighbours<'t>,
    parent: VersionedNode<'_>,
    room: Room<'_>,
) -> Attempt<(IoTicket<'t>, u64)> {
    let mut parent_guard = parent.frame.upgrade(parent.version)?;
    let separator = tree.node(parent).key_at(pair.separator);
    match merge_latched(tree, ctx, pair, &separator) {
        Ok((freed, _left_guard)) => {
            tree.node_mut(parent).inner_remove(pair.separator);
            let gsn = journal::note_nodes(tree, room, &[parent.frame, pair.left.frame], &[freed.addr()]);
            parent_guard.mark_dirty();
            Ok((freed, gsn))
        }
        Err(retry) => {
            parent_guard.release_unchanged();
            Err(retry)
        }
    }
}

/// Moves the content of the right node to the left one, whose latch it returns, and frees its frame. The
/// parent is latched or locked.
fn merge_latched<'t, L: Layout, E: Endpoint>(
    tree: &'t Tree<L>,
    ctx: Ctx<'_, E>,
    pair: &Neighbours<'t>,
    separator: &[u8],
) -> Attempt<(IoTicket<'t>, ExclusiveGuard<'t>)> {
    let (left, right) = (pair.left.frame, pair.right.frame);
    let mut left_guard = left.upgrade(pair.left.version)?;
    let right_guard = match latch_unused(tree, right, pair.right.version) {
        Ok(guard) => guard,
        Err(retry) => {
            left_guard.release_unchanged();
            return Err(retry);
        }
    };
    let addr = GlobalAddr::from_raw(right.addr()).expect("a frame's own address is not swizzled");
    tree.node_mut(left).merge(tree.node(right), separator);
    orphans::adopt_children(tree, left);
    let ticket = tree.cache.table().frame_to_ticket(addr, right.id());
    tree.cache.discard(ctx.worker, right, right_guard);
    left_guard.mark_dirty();
    Ok((ticket, left_guard))
}

/// Latches the frame of a node that is about to be removed, if it is neither pinned nor being written back.
/// Counts as orphans the children that only the node's flag accounts for, since another node gets them.
fn latch_unused<'t, L: Layout>(
    tree: &Tree<L>,
    frame: FrameRef<'t>,
    version: Version,
) -> Attempt<ExclusiveGuard<'t>> {
    let guard = frame.upgrade(version)?;
    let is_unused = guard.state() == FrameState::Hot && !frame.is_pinned() && !frame.is_writing();
    let counted =
        if is_unused { orphans::count_orphans(tree, tree.node(frame)) } else { Err(Retry::Restart) };
    match counted {
        Ok(()) => Ok(guard),
        Err(retry) => {
            guard.release_unchanged();
            Err(retry)
        }
    }
}

/// Merges two owned nodes below a shared parent: first in the cache, then the parent is written through. In
/// between, the I/O mark of the right node keeps away operations that still know it.
async fn merge_under_shared<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    key: L::Key<'_>,
    pair: Neighbours<'_>,
    parent: VersionedNode<'_>,
) -> Attempt<Merge> {
    let addr_of = |hop: VersionedNode<'_>| tree.node(hop).addr().ok_or(Retry::Restart);
    let (left, right) = (addr_of(pair.left)?, addr_of(pair.right)?);
    let level = tree.node(pair.left).level();
    let parent_addr = addr_of(parent)?;
    let room = room::for_nodes(tree, ctx).await?;
    // The parent stays cached, so that its copy is replaced below. Another worker could READ an old copy
    // while this one waits for the lock, and admit it after that; it would still lead to the freed node.
    let _parent_pin = parent.frame.pin(parent.version)?;
    pair.left.validate()?;
    pair.right.validate()?;
    parent.validate()?;
    // 1. Lock the parent, by the child that covers the key, and check that both still are neighbours there.
    let child = if tree.node(pair.left).covers(Target::of(key)) { left } else { right };
    let parent = parent::lock_parent(tree, ctx, parent_addr, key, child, level).await?;
    let above = tree.node(&parent);
    let is_child = |i, child: GlobalAddr| above.child(i).raw() == child.raw();
    let at = (0..above.count()).find(|&i| is_child(i, left) && is_child(i + 1, right));
    let Some(at) = at else {
        locked::unlock_unchanged(tree, ctx, parent).await?;
        return Err(Retry::Restart);
    };
    // 2. Merge in the cache. The ticket of the right node keeps operations away from it.
    let separator = above.key_at(at);
    let merged = merge_latched(tree, ctx, &pair, &separator).map(|(ticket, _left_guard)| {
        tree.node_mut(&parent).inner_remove(at);
        let gsn = record::note_shared(tree, room, &[pair.left.frame], [&parent], &[right]);
        Unlinked::new(ticket).logged(gsn)
    });
    let unlinked = match merged {
        Ok(unlinked) => unlinked,
        Err(retry) => {
            locked::unlock_unchanged(tree, ctx, parent).await?;
            return Err(retry);
        }
    };
    // 3. WRITE and unlock the parent in one chain, and only then drop the ticket and free the block.
    count(&tree.smo_counters.merges);
    let unlinked = unfinished::write_unlinked(tree, ctx, parent, unlinked).await?;
    unfinished::finish_unlinked(tree, ctx, unlinked).await?;
    Ok(Merge::Done)
}

/// Moves the content of a root's only child into the root.
async fn shrink_root<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    root: VersionedNode<'_>,
    key: L::Key<'_>,
) -> Attempt<Merge> {
    let level = tree.node(root).level();
    let (child, parent) = walk::walk_to(tree, ctx, key, level - 1).await?;
    if parent.map(|parent| parent.frame.id()) != Some(root.frame.id()) {
        return Err(Retry::Restart);
    }
    let room = room::for_nodes(tree, ctx).await?;
    let (freed, gsn) = absorb_child(tree, ctx, root, child, room)?;
    count(&tree.smo_counters.root_changes);
    unfinished::finish_unlinked(tree, ctx, Unlinked::new(freed).logged(gsn)).await?;
    Ok(Merge::Done)
}

/// The latched part of [`shrink_root`].
fn absorb_child<'t, L: Layout, E: Endpoint>(
    tree: &'t Tree<L>,
    ctx: Ctx<'_, E>,
    root: VersionedNode<'_>,
    child: VersionedNode<'_>,
    room: Room<'_>,
) -> Attempt<(IoTicket<'t>, u64)> {
    let mut root_guard = root.frame.upgrade(root.version)?;
    let child_guard = match latch_unused(tree, child.frame, child.version) {
        Ok(guard) => guard,
        Err(retry) => {
            root_guard.release_unchanged();
            return Err(retry);
        }
    };
    let addr = GlobalAddr::from_raw(child.frame.addr()).expect("a frame's own address is not swizzled");
    let was_shared = tree.node(root).was_shared();
    tree.node_mut(root).copy_content(tree.node(child));
    tree.node_mut(root).set_flag(header::WAS_SHARED, was_shared);
    orphans::adopt_children(tree, root.frame);
    let ticket = tree.cache.table().frame_to_ticket(addr, child.frame.id());
    tree.cache.discard(ctx.worker, child.frame, child_guard);
    let gsn = journal::note_nodes(tree, room, &[root.frame], &[addr]);
    root_guard.mark_dirty();
    Ok((ticket, gsn))
}

#[cfg(test)]
mod tests;
