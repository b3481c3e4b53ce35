//! Moves of nodes to another memory server while operations run.
//!
//! A node moves in its frame, which is cheapest: it gets a new address, its parent points there, and both are
//! written back like any other change. The old copy is not read any more, and its block is freed. Until then
//! an operation that still knows the old address finds an I/O mark on it, and restarts. A log gets both nodes,
//! and the old address as one that is free, in one record.
//!
//! To spread an index, only owned nodes that were never shared are moved, so that no other compute server
//! knows their addresses. From a draining memory server the others move too ([`move_shared`]). Nothing is
//! written there any more, so a mark stays at the old address for compute servers that remember it. The root
//! never moves.

use std::sync::atomic::Ordering::Relaxed;

use pando_cache::{ExclusiveGuard, FrameRef, FrameState, IoTicket, Lookup};
use pando_fabric::defect::defect;
use pando_fabric::{Endpoint, GlobalAddr, MemoryServerId, WORD};
use pando_log::defect::OfMoves;
use pando_pool::{Placement, lock};

use crate::descent::{refresh, walk};
use crate::error::{Attempt, DexError, Result, Retry};
use crate::layout::{Layout, Side, header};
use crate::node::Target;
use crate::ownership::view::Purpose;
use crate::placement::spread;
use crate::recovery::restart::RestartPolicy;
use crate::recovery::{free, room, unfinished};
use crate::shared::{locked, parent, record};
use crate::smo::split;
use crate::tree::journal::{self, Room};
use crate::tree::leftovers::Unlinked;
use crate::tree::new_node::NewNode;
use crate::tree::{Ctx, Tree, VersionedNode, count, gate};

/// Moves a shared node: writes the new copy first, then the parent with its unlock, then the old copy, marked
/// as moved, with its unlock. A reader that follows the parent's new bytes finds the new copy complete. A
/// reader that remembers the old address finds the node locked, and then moved.
pub(crate) async fn move_shared<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    key: L::Key<'_>,
    addr: GlobalAddr,
    level: u8,
    parent_addr: GlobalAddr,
    new: NewNode<'_, L>,
) -> Attempt<()> {
    let room = room::for_nodes(tree, ctx).await?;
    let [node, parent] = parent::lock_both(tree, ctx, key, addr, level, parent_addr).await?;
    let copy = ctx.ep.buffer(node.page.len());
    copy.words().iter().zip(node.words()).for_each(|(to, from)| to.store(from.load(Relaxed), Relaxed));
    // The versions of the copy go on from those of the node.
    copy.set(0, node.next_version());
    copy.set(header::REMOTE_VERSION, node.next_version());
    copy.set(header::ADDR, new.addr().raw());
    // 1. WRITE the new copy, to which no pointer leads yet.
    let [node, parent] = parent::write_under(tree, ctx, [node, parent], &new, copy).await?;
    journal::persist_first(tree, ctx, new.addr(), tree.layout.node_size()).await?;
    // 2. WRITE and unlock the parent, then the old copy with its mark.
    let above = tree.node_mut(&parent);
    above.set_child(above.child_index(key), new.addr().raw());
    new.link();
    tree.node_mut(&node).set_flag(header::MOVED, true);
    node.owe();
    record::note_shared(tree, room, &[], [&parent, &node], &[]);
    locked::write_unlock(tree, ctx, parent).await?;
    Ok(locked::write_unlock(tree, ctx, node).await?)
}

/// The node to move, and its destination.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Order<'k> {
    /// A key whose path contains the node.
    pub key: &'k [u8],
    pub level: u8,
    pub goal: Goal<'k>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Goal<'k> {
    /// To this memory server.
    To(MemoryServerId),
    /// To this memory server, if this is the node's high fence.
    ToIfEndsAt(MemoryServerId, Option<&'k [u8]>),
    /// Away from this draining server, to the server of its subtree.
    Off(MemoryServerId),
}

/// A node to move, as it was found.
#[derive(Clone, Copy)]
struct Seen {
    addr: GlobalAddr,
    level: u8,
    shared: bool,
    /// It is shared or was.
    was_shared: bool,
    /// Its parent is shared.
    parent_shared: bool,
    /// Other compute servers may remember its address, so the old copy must be marked as moved.
    needs_notice: bool,
}

/// Result of an order to move a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Moved,
    /// It is where it should be, or is not the node that was meant.
    WasThere,
    /// It is the root, other compute servers may know its address, or there is no room.
    Stays,
}

/// Result of an order, and the high fence of the node.
#[derive(Clone, Debug)]
pub(crate) struct Moved {
    pub fate: Fate,
    pub high: Option<Vec<u8>>,
}

/// Moves a node according to `order`.
///
/// # Errors
/// Errors of operations.
pub(crate) async fn relocate<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    order: Order<'_>,
) -> Result<Moved> {
    let key = tree.layout.key(order.key)?;
    let tries = RestartPolicy::default();
    let mut ctx = ctx;
    loop {
        match try_relocate(tree, ctx, key, order).await {
            Ok(moved) => return Ok(moved),
            Err(retry) => ctx = tries.again(tree, ctx, retry, "a node to move").await?,
        }
    }
}

async fn try_relocate<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    key: L::Key<'_>,
    order: Order<'_>,
) -> Attempt<Moved> {
    let _entered = gate::enter_for(tree, ctx, key, Purpose::Operation)?;
    let (node, parent) = walk::walk_to(tree, ctx, key, order.level).await?;
    let page = tree.node(node);
    let high = page.fence(Side::High);
    let mut seen = Seen {
        addr: page.addr().ok_or(Retry::Restart)?,
        level: page.level(),
        shared: page.is_shared(),
        was_shared: page.is_shared() || page.was_shared(),
        parent_shared: false,
        needs_notice: false,
    };
    node.validate()?;
    let (addr, ended) = (seen.addr, |fate, high| Ok(Moved { fate, high }));
    let is_there = match order.goal {
        Goal::To(target) => addr.server() == target,
        Goal::ToIfEndsAt(target, end) => addr.server() == target || high.as_deref() != end,
        Goal::Off(server) => addr.server() != server,
    };
    let is_drain = matches!(order.goal, Goal::Off(_));
    if is_there || seen.level != order.level {
        return ended(Fate::WasThere, high);
    }
    let Some(parent) = parent.filter(|_| is_drain || !seen.was_shared) else {
        return ended(Fate::Stays, high);
    };
    let above = tree.node(parent).addr().ok_or(Retry::Restart)?;
    seen.parent_shared = tree.node(parent).is_shared();
    seen.needs_notice = is_drain && !seen.shared && (seen.was_shared || seen.parent_shared);
    tree.cache.give_way(ctx.worker)?;
    let _pins = (node.frame.pin(node.version)?, parent.frame.pin(parent.version)?);
    let placement = place_of(tree, order.goal, seen.level, above);
    let new = match tree.pool.alloc(ctx.ep, placement, tree.node_bytes()).await {
        Ok(addr) => NewNode::at(tree, addr),
        Err(error) if error.is_full() => return ended(Fate::Stays, high),
        Err(error) => return Err(DexError::from(error).into()),
    };
    let old = relocate_pinned(tree, ctx, key, node.frame, parent, seen, new).await?;
    count(&tree.smo_counters.relocations);
    match old {
        Some(unlinked) => unfinished::finish_unlinked(tree, ctx, unlinked).await?,
        None => free::free_behind(tree, ctx, addr, false).await?,
    }
    ended(Fate::Moved, high)
}

/// Moves a node to `new`, by the way that it and its parent require. Returns the old node if its removal must
/// be completed; `None` if only the block must be freed.
async fn relocate_pinned<'t, L: Layout, E: Endpoint>(
    tree: &'t Tree<L>,
    ctx: Ctx<'_, E>,
    key: L::Key<'_>,
    node: FrameRef<'t>,
    parent: VersionedNode<'t>,
    seen: Seen,
    new: NewNode<'_, L>,
) -> Attempt<Option<Unlinked>> {
    let Seen { addr, level, shared, was_shared, parent_shared, .. } = seen;
    if was_shared && !shared {
        // Such a node is written back without its lock word, so the new one continues from the old one.
        let word = ctx.ep.read_word(addr).await?;
        new.while_written(ctx.ep.write_word(new.addr(), lock::unlock_word(word))).await?;
        journal::persist_first(tree, ctx, new.addr(), WORD).await?;
    }
    match (shared, parent_shared) {
        (true, true) => {
            let above = tree.node(parent).addr().ok_or(Retry::Restart)?;
            move_shared(tree, ctx, key, addr, level, above, new).await?;
            Ok(None)
        }
        (true, false) => {
            // The node is owned by now, or its parent is shared by now.
            drop(new);
            refresh::refresh(tree, ctx, addr, Target::of(key)).await?;
            Err(Retry::Restart)
        }
        (false, false) => {
            let room = room::for_nodes(tree, ctx).await?;
            relocate_owned(tree, [node, parent.frame], key, seen, new, room).map(Some)
        }
        (false, true) => relocate_under_shared(tree, ctx, key, node, parent, seen, new).await.map(Some),
    }
}

/// Placement of a node whose parent is at `above`.
fn place_of<L: Layout>(tree: &Tree<L>, goal: Goal<'_>, level: u8, above: GlobalAddr) -> Placement {
    match goal {
        Goal::To(target) | Goal::ToIfEndsAt(target, _) => Placement::Server(target),
        Goal::Off(_)
            if level < spread::spread_level(tree, tree.height()) && tree.pool.is_active(above.server()) =>
        {
            Placement::Prefer(above.server())
        }
        Goal::Off(_) => Placement::LeastLoaded,
    }
}

/// Gives a pinned node the new address, also in its pinned parent. The ticket of the old address keeps
/// operations away.
fn relocate_owned<'t, L: Layout>(
    tree: &'t Tree<L>,
    [node, parent]: [FrameRef<'t>; 2],
    key: L::Key<'_>,
    seen: Seen,
    new: NewNode<'_, L>,
    room: Room<'_>,
) -> Attempt<Unlinked> {
    let addr = seen.addr;
    let mut parent_guard = parent.exclusive()?;
    let index = split::index_of_child(tree, parent, node, key).ok_or(Retry::Restart);
    let moved = index.and_then(|index| {
        let guard = latch_to_move(tree, node, seen)?;
        Ok((index, readdress(tree, node, guard, addr, new.addr())?))
    });
    match moved {
        Ok((index, (old, _guard))) => {
            let above = tree.node_mut(parent);
            if above.child_addr(index) == Some(addr) {
                above.set_child(index, new.addr().raw());
            }
            let gsn = match defect(OfMoves::RelocationUnlogged) {
                true => 0,
                false => journal::note_nodes(tree, room, &[parent, node], &[addr]),
            };
            new.link();
            parent_guard.mark_dirty();
            Ok(Unlinked::new(old).needs_notice(seen.needs_notice).logged(gsn))
        }
        Err(retry) => {
            parent_guard.release_unchanged();
            Err(retry)
        }
    }
}

/// [`relocate_owned`] below a shared parent, which is written through.
async fn relocate_under_shared<'t, L: Layout, E: Endpoint>(
    tree: &'t Tree<L>,
    ctx: Ctx<'_, E>,
    key: L::Key<'_>,
    node: FrameRef<'t>,
    parent: VersionedNode<'_>,
    seen: Seen,
    new: NewNode<'_, L>,
) -> Attempt<Unlinked> {
    let addr = seen.addr;
    let parent_addr = tree.node(parent).addr().ok_or(Retry::Restart)?;
    let room = room::for_nodes(tree, ctx).await?;
    let parent = parent::lock_parent(tree, ctx, parent_addr, key, addr, tree.node(node).level()).await?;
    let moved =
        latch_to_move(tree, node, seen).and_then(|guard| readdress(tree, node, guard, addr, new.addr()));
    match moved {
        Ok((old, guard)) => {
            let above = tree.node_mut(&parent);
            above.set_child(above.child_index(key), new.addr().raw());
            let gsn = record::note_shared(tree, room, &[node], [&parent], &[addr]);
            drop(guard);
            new.link();
            let unlinked = Unlinked::new(old).needs_notice(seen.needs_notice).logged(gsn);
            Ok(unfinished::write_unlinked(tree, ctx, parent, unlinked).await?)
        }
        Err(retry) => {
            locked::unlock_unchanged(tree, ctx, parent).await?;
            Err(retry)
        }
    }
}

/// Latches the pinned frame of a node, if it still has that node and no write-back to the old address is in
/// progress.
fn latch_to_move<'t, L: Layout>(
    tree: &'t Tree<L>,
    node: FrameRef<'t>,
    seen: Seen,
) -> Attempt<ExclusiveGuard<'t>> {
    let guard = node.exclusive()?;
    let is_node = guard.state() == FrameState::Hot
        && node.addr() == seen.addr.raw()
        && !tree.node(node).is_shared()
        && tree.node(node).was_shared() == seen.was_shared;
    if is_node && !node.is_writing() {
        return Ok(guard);
    }
    guard.release_unchanged();
    Err(Retry::Restart)
}

/// Gives the latched node its new address; returns the ticket of the old one, and the latch.
fn readdress<'t, L: Layout>(
    tree: &'t Tree<L>,
    node: FrameRef<'t>,
    mut guard: ExclusiveGuard<'t>,
    addr: GlobalAddr,
    new: GlobalAddr,
) -> Attempt<(IoTicket<'t>, ExclusiveGuard<'t>)> {
    let table = tree.cache.table();
    let Lookup::Miss(ticket) = table.begin(new) else {
        guard.release_unchanged();
        return Err(Retry::Restart);
    };
    let old = table.frame_to_ticket(addr, node.id());
    tree.node_mut(node).set_addr(new);
    guard.mark_dirty();
    ticket.publish(node.id());
    Ok((old, guard))
}
