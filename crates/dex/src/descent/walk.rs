//! The descent that can wait (DEX §7, Algorithm 1): optimistic lock coupling over cached nodes, and children that are not swizzled.
//!
//! A child's version is taken before its parent is validated. A missing child is marked in the mapping table, so
//! that only one worker reads it while the others descend anew. What a stale copy of a shared node leads to is
//! found out by fences (DEX §4).

use pando_cache::defect::Defect;
use pando_cache::{FrameRef, FrameState, IoTicket, Lookup};
use pando_fabric::defect::defect;
use pando_fabric::{Endpoint, GlobalAddr, PageBuf, Work};

use crate::costs::Offer;
use crate::descent::miss::{self, Offloadable};
use crate::descent::optimistic::{self, ResumePoint};
use crate::descent::{prove, refresh};
use crate::error::{Attempt, Retry};
use crate::layout::Layout;
use crate::node::{Node, Target};
use crate::tree::{Ctx, Tree, VersionedNode};

/// Whether a leaf that is read gets a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admit {
    /// As the admission policy says.
    Lazily,
    /// In any case: its structure is about to change.
    Always,
}

/// What becomes of a missing node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Miss {
    pub admit: Admit,
    /// What its memory server might do instead of handing it out.
    pub offer: Offer,
}

impl Miss {
    /// It is READ.
    pub fn fetched(admit: Admit) -> Self {
        Self { admit, offer: Offer::Nothing }
    }
}

/// A leaf that was not admitted: its bytes, and the exclusive right to it.
pub(crate) struct PrivateLeaf<'c> {
    pub page: PageBuf,
    pub ticket: IoTicket<'c>,
}

/// Where a descent ended.
pub(crate) enum Reached<'c> {
    Cached {
        node: VersionedNode<'c>,
        parent: Option<VersionedNode<'c>>,
    },
    Private {
        leaf: PrivateLeaf<'c>,
    },
    /// At a missing node, whose memory server is to do the rest.
    Offloadable(Offloadable<'c>),
}

/// A child that was not swizzled, after [`resolve`].
pub(crate) enum Child<'c> {
    /// And the parent, which changed if another child of it had to go.
    Cached {
        child: VersionedNode<'c>,
        parent: VersionedNode<'c>,
    },
    Private(PrivateLeaf<'c>),
    Offloadable(Offloadable<'c>),
}

/// A child that was not swizzled, after [`locate`].
pub(crate) enum Located<'t> {
    Cached(VersionedNode<'t>),
    /// In no frame, and the right to READ it.
    Missing(IoTicket<'t>),
    /// In no frame, and others leave what is below it to its memory server.
    Offloaded,
}

/// Child word of an inner node that a descent stands at.
#[derive(Clone, Copy)]
pub(crate) struct Slot<'c> {
    pub parent: VersionedNode<'c>,
    /// Index of the child.
    pub index: usize,
    pub addr: GlobalAddr,
}

/// Goes down to the node of `level` (or the root, if that is lower) that covers `key`.
#[inline]
pub(crate) async fn walk<'t, L: Layout, E: Endpoint>(
    tree: &'t Tree<L>,
    ctx: Ctx<'_, E>,
    target: Target<'_, L>,
    level: u8,
    miss: Miss,
) -> Attempt<Reached<'t>> {
    walk_from(tree, ctx, tree.root_node()?, target, level, miss).await
}

/// Goes on down to the leaf of `key` from where the cached path got stuck, or begins anew. The caller is inside the gate
/// now. That node is looked at like any other: whoever finds it at its version finds it as good as from the root, because it
/// covers the key, or did when it was a copy that may be stale, and is still in its frame. (What a stale copy leads to is
/// found out by [`check_covers`] and [`prove_child`](crate::descent::prove::prove_child).)
#[inline]
pub(crate) async fn walk_on<'t, L: Layout, E: Endpoint>(
    tree: &'t Tree<L>,
    ctx: Ctx<'_, E>,
    stuck: ResumePoint<'t>,
    key: L::Key<'_>,
    miss: Miss,
) -> Attempt<Reached<'t>> {
    let from = stuck.map_or_else(|| tree.root_node(), Ok)?;
    walk_from(tree, ctx, from, Target::of(key), 0, miss).await
}

async fn walk_from<'t, L: Layout, E: Endpoint>(
    tree: &'t Tree<L>,
    ctx: Ctx<'_, E>,
    mut node: VersionedNode<'t>,
    target: Target<'_, L>,
    level: u8,
    miss: Miss,
) -> Attempt<Reached<'t>> {
    let mut parent = None;
    let mut inner = optimistic::inner_levels(tree).saturating_sub(tree.node(node).level().into());
    loop {
        ctx.ep.charge(Work::NodeSearch);
        let page = tree.node(node);
        let at = page.level();
        if at <= level {
            ctx.worker.counters().count_descent(inner);
            return Ok(Reached::Cached { node, parent });
        }
        inner += 1;
        let index = page.child_toward(target);
        if let Some(id) = page.child(index).frame() {
            let child = optimistic::enter(tree, node, id)?;
            parent = Some(node);
            node = child;
            continue;
        }
        let slot = slot(tree, node, index)?;
        // Boxed: futures of operations that find everything in its frame are better without.
        match Box::pin(resolve(tree, ctx, slot, target, miss)).await? {
            Child::Cached { child, parent: above } => {
                parent = Some(above);
                node = child;
            }
            Child::Private(leaf) => {
                ctx.ep.charge(Work::NodeSearch);
                ctx.worker.counters().count_descent(inner);
                return Ok(Reached::Private { leaf });
            }
            Child::Offloadable(mut below) => {
                below.from.inner = inner;
                return Ok(Reached::Offloadable(below));
            }
        }
    }
}

/// The place of child `index`, which is not swizzled, as the parent has it at its version.
#[inline]
pub(crate) fn slot<'t, L: Layout>(
    tree: &Tree<L>,
    parent: VersionedNode<'t>,
    index: usize,
) -> Attempt<Slot<'t>> {
    let addr = tree.node(parent).child_addr(index);
    parent.validate()?;
    Ok(Slot { parent, index, addr: addr.ok_or(Retry::Restart)? })
}

/// Finds a child that is not swizzled: in the mapping table, or in remote memory.
#[cold]
#[inline(never)]
pub(crate) async fn resolve<'t, L: Layout, E: Endpoint>(
    tree: &'t Tree<L>,
    ctx: Ctx<'_, E>,
    slot: Slot<'t>,
    target: Target<'_, L>,
    miss: Miss,
) -> Attempt<Child<'t>> {
    match locate(tree, ctx, slot, target).await? {
        Located::Cached(child) => Ok(Child::Cached { child, parent: slot.parent }),
        Located::Missing(ticket) => miss::fetch(tree, ctx, slot, ticket, target, miss).await,
        Located::Offloaded => miss::join_offload(tree, ctx, slot, miss.offer).map(Child::Offloadable),
    }
}

/// Looks for a child that is not swizzled in the mapping table.
pub(crate) async fn locate<'t, L: Layout, E: Endpoint>(
    tree: &'t Tree<L>,
    ctx: Ctx<'_, E>,
    slot: Slot<'t>,
    target: Target<'_, L>,
) -> Attempt<Located<'t>> {
    ctx.ep.charge(Work::TableLookup);
    match tree.cache.table().begin(slot.addr) {
        Lookup::InFlight => Err(Retry::Restart),
        Lookup::Common => Ok(Located::Offloaded),
        Lookup::Frame(id) => {
            let frame = tree.cache.try_frame(id).ok_or(Retry::Restart)?;
            let child = take_cached(tree, ctx, slot, frame)?;
            check_covers(tree, ctx, slot, child, target).await?;
            Ok(Located::Cached(child))
        }
        Lookup::Miss(ticket) => {
            if defect(Defect::StaleParentBelieved) {
                slot.parent.validate()?;
            } else if let Err(retry) = prove::prove_child(tree, slot, target) {
                // Who has the turn is not to wait for a cache that has room for the whole path.
                if !ctx.worker.has_turn() {
                    return Err(retry);
                }
                Box::pin(prove::prove_child_by_reads(tree, ctx, slot, target)).await?;
            }
            Ok(Located::Missing(ticket))
        }
    }
}

/// Uses the frame that the mapping table names for a child, swizzling it if its parent swizzles.
pub(crate) fn take_cached<'t, L: Layout, E: Endpoint>(
    tree: &'t Tree<L>,
    ctx: Ctx<'_, E>,
    slot: Slot<'t>,
    frame: FrameRef<'t>,
) -> Attempt<VersionedNode<'t>> {
    if frame.optimistic()?.state() == FrameState::Cooling {
        ctx.ep.charge(Work::Hold(tree.cache.cooling_resource(slot.addr)));
    }
    let parent = tree.node(slot.parent);
    if tree.swizzles(parent) {
        let parent = Some((slot.parent.frame, slot.parent.version, parent.child_word(slot.index)));
        let version = tree.cache.reheat(ctx.worker, parent, frame, slot.addr)?;
        return Ok(VersionedNode { frame, version });
    }
    let mut version = frame.optimistic()?;
    if !tree.holds(frame, version, slot.addr) {
        return Err(Retry::Restart);
    }
    if version.state() == FrameState::Cooling {
        version = tree.cache.reheat(ctx.worker, None, frame, slot.addr)?;
    }
    // The frame was the child's while the parent still pointed to it.
    slot.parent.validate()?;
    Ok(VersionedNode { frame, version })
}

/// A cached copy of a shared node may be stale; what it leads to is checked by fences (DEX §4).
pub(crate) async fn check_covers<'t, L: Layout, E: Endpoint>(
    tree: &'t Tree<L>,
    ctx: Ctx<'_, E>,
    slot: Slot<'t>,
    child: VersionedNode<'t>,
    target: Target<'_, L>,
) -> Attempt<()> {
    if !tree.node(slot.parent).is_shared() {
        return Ok(());
    }
    let level = tree.node(slot.parent).level().wrapping_sub(1);
    let right = is_right(tree.node(child), level, target);
    child.validate()?;
    if right {
        return Ok(());
    }
    Box::pin(refresh::led_astray(tree, ctx, slot, target)).await
}

/// Whether a node is what its parent promised for the target.
pub(crate) fn is_right<L: Layout>(node: Node<'_, L>, level: u8, target: Target<'_, L>) -> bool {
    node.is_meant(level) && (node.covers(target) || defect(Defect::SkipFenceCheck))
}

/// The cached node of `level` on the way to `key`, and its parent.
pub(crate) async fn walk_to<'t, L: Layout, E: Endpoint>(
    tree: &'t Tree<L>,
    ctx: Ctx<'_, E>,
    key: L::Key<'_>,
    level: u8,
) -> Attempt<(VersionedNode<'t>, Option<VersionedNode<'t>>)> {
    match walk(tree, ctx, Target::of(key), level, Miss::fetched(Admit::Always)).await? {
        Reached::Cached { node, parent } => Ok((node, parent)),
        Reached::Private { .. } | Reached::Offloadable(_) => unreachable!("every page is READ and admitted"),
    }
}

#[cfg(test)]
mod tests;
