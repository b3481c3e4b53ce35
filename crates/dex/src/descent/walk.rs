//! The descent that can wait (DEX §7, Algorithm 1): optimistic lock coupling over cached nodes, and lookups
//! of children that are not swizzled.
//!
//! A child's version is taken before its parent is validated. A missing child is marked in the mapping table,
//! so that one worker READs it while the others restart. Fences show when a stale copy of a shared node led
//! to a wrong child (DEX §4).

use pando_cache::defect::Defect;
use pando_cache::{FrameRef, FrameState, IoTicket, Lookup};
use pando_fabric::defect::defect;
use pando_fabric::{Endpoint, GlobalAddr, PageBuf, Work, outlined};

use crate::costs::Offer;
use crate::descent::miss::{self, Offloadable};
use crate::descent::optimistic::{self, ResumePoint};
use crate::descent::{prove, refresh};
use crate::error::{Attempt, Retry};
use crate::layout::Layout;
use crate::node::{Node, Target};
use crate::tree::{Ctx, Tree, VersionedNode, start};

/// Whether a leaf that was READ gets a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admit {
    /// By the admission policy.
    Lazily,
    /// Always, because the leaf's structure is about to change.
    Always,
}

/// Handling of a missing node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Miss {
    pub admit: Admit,
    /// Work that the node's memory server might do instead of a READ.
    pub offer: Offer,
}

impl Miss {
    /// The node is READ.
    pub fn fetched(admit: Admit) -> Self {
        Self { admit, offer: Offer::Nothing }
    }
}

/// A leaf that was not admitted: its bytes and its ticket, which gives exclusive access.
pub(crate) struct PrivateLeaf<'c> {
    pub page: PageBuf,
    pub ticket: IoTicket<'c>,
}

/// End of a descent.
pub(crate) enum Reached<'c> {
    Cached {
        node: VersionedNode<'c>,
        parent: Option<VersionedNode<'c>>,
    },
    Private {
        leaf: PrivateLeaf<'c>,
    },
    /// A missing node whose memory server executes the rest.
    Offloadable(Offloadable<'c>),
}

/// Result of [`resolve`] for a child that was not swizzled.
pub(crate) enum Child<'c> {
    /// `parent` has a new version if another of its children was evicted.
    Cached {
        child: VersionedNode<'c>,
        parent: VersionedNode<'c>,
    },
    Private(PrivateLeaf<'c>),
    Offloadable(Offloadable<'c>),
}

/// Result of [`locate`] for a child that was not swizzled.
pub(crate) enum Located<'t> {
    Cached(VersionedNode<'t>),
    /// In no frame; the ticket gives the right to READ it.
    Missing(IoTicket<'t>),
    /// In no frame, and other operations are offloaded below it.
    Offloaded,
}

/// Child word of an inner node on the path.
#[derive(Clone, Copy)]
pub(crate) struct Slot<'c> {
    pub parent: VersionedNode<'c>,
    /// Index of the child.
    pub index: usize,
    pub addr: GlobalAddr,
}

/// Descends to the node of `level` (or the root, if that is lower) that covers `target`.
#[inline]
pub(crate) async fn walk<'t, L: Layout, E: Endpoint>(
    tree: &'t Tree<L>,
    ctx: Ctx<'_, E>,
    target: Target<'_, L>,
    level: u8,
    miss: Miss,
) -> Attempt<Reached<'t>> {
    walk_from(tree, ctx, ResumePoint::default(), target, level, miss).await
}

/// [`walk`] from where the cached path to `target` ended. The caller is inside the gate by this time. The
/// resumed node is validated like any other. At its version it is as good as one reached from the root,
/// because it covers the key, or did when it was a copy that may be stale, and is still in its frame.
/// ([`check_covers`] and [`prove_child`](crate::descent::prove::prove_child) find out where a stale copy led.)
#[inline]
pub(crate) async fn walk_from<'t, L: Layout, E: Endpoint>(
    tree: &'t Tree<L>,
    ctx: Ctx<'_, E>,
    from: ResumePoint<'t>,
    target: Target<'_, L>,
    level: u8,
    miss: Miss,
) -> Attempt<Reached<'t>> {
    let mut node = from.0.map_or_else(|| tree.root_node(), Ok)?;
    let mut parent = None;
    let mut inner = optimistic::inner_levels(tree).saturating_sub(tree.node(node).level().into());
    loop {
        optimistic::charge_visit(node, |work| ctx.ep.charge(work));
        let page = tree.node(node);
        let at = page.level();
        if at <= level {
            ctx.worker.counters().count_descent(inner);
            return Ok(Reached::Cached { node, parent });
        }
        inner += 1;
        start::remember(tree, ctx, node);
        let index = page.child_toward(target);
        if let Some(id) = page.child(index).frame() {
            let child = optimistic::enter(tree, node, id)?;
            parent = Some(node);
            node = child;
            continue;
        }
        let slot = slot(tree, node, index)?;
        // Boxed, to keep the futures of operations that find all nodes in frames small.
        match outlined(Box::pin(resolve(tree, ctx, slot, target, miss))).await? {
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

/// Slot of child `index`, which is not swizzled, in the parent at its version.
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

/// Finds a child that is not swizzled, through the mapping table or in remote memory.
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

/// Looks up a child that is not swizzled in the mapping table.
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
                // An operation with the turn must not wait until the cache has room for the whole path.
                if !ctx.worker.has_turn() {
                    return Err(retry);
                }
                outlined(Box::pin(prove::prove_child_by_reads(tree, ctx, slot, target))).await?;
            }
            Ok(Located::Missing(ticket))
        }
    }
}

/// Uses the frame that the mapping table names for a child; swizzles it if its parent swizzles.
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

/// Checks the fences of a child below a shared parent, whose cached copy may be stale (DEX §4).
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
    outlined(Box::pin(refresh::led_astray(tree, ctx, slot, target))).await
}

/// Whether a node has the level and the fences that its parent promised for the target.
pub(crate) fn is_right<L: Layout>(node: Node<'_, L>, level: u8, target: Target<'_, L>) -> bool {
    node.is_meant(level) && (node.covers(target) || defect(Defect::SkipFenceCheck))
}

/// Cached node of `level` on the path to `key`, and its parent.
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
