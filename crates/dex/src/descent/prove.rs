//! Proofs that a missing child is still in the tree, made while its ticket is held.
//!
//! An unchanged owned parent still has the child. An unchanged copy of a shared parent proves nothing,
//! because it may be stale: cached copies must lead from the root to that parent, or READs where the cache is
//! too small.

use pando_fabric::Endpoint;

use crate::descent::walk::{self, Slot};
use crate::descent::{read, refresh};
use crate::error::{Attempt, Retry};
use crate::layout::Layout;
use crate::node::Target;
use crate::tree::{Ctx, Tree, VersionedNode};

/// Proves that a missing child, whose ticket the caller holds, is in the tree. From then on no other
/// operation of this compute server can merge, move or change it; other compute servers never do.
///
/// An owned parent that is unchanged still has the child. A copy of a shared parent that is unchanged proves
/// nothing: it may be stale, and the child may have moved to another parent and been freed under that. But
/// the operation that freed a node reached it from the root through copies that are not stale there, and
/// copies only get newer. So the child is in the tree if cached copies lead from the root to that parent
/// after the ticket was taken.
pub(crate) fn prove_child<L: Layout>(tree: &Tree<L>, slot: Slot<'_>, target: Target<'_, L>) -> Attempt<()> {
    let parent = slot.parent.frame;
    if tree.node(parent).is_shared() {
        let level = tree.node(parent).level();
        let mut node = tree.root_node()?;
        while node.frame.id() != parent.id() {
            node = cached_child(tree, node, target, level)?;
        }
    }
    Ok(slot.parent.validate()?)
}

/// [`prove_child`] below a shared parent by READs, for a cache with too few frames for the path from the
/// root. No node on that path is freed meanwhile: it covers keys of other compute servers, and the caller's
/// key, which no other server gets before the caller leaves the gate.
pub(crate) async fn prove_child_by_reads<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    slot: Slot<'_>,
    target: Target<'_, L>,
) -> Attempt<()> {
    slot.parent.validate()?;
    let (parent, lowest) = (slot.parent.frame.addr(), tree.node(slot.parent).level());
    let view = tree.view(ctx);
    if view.is_growing {
        return Err(Retry::Restart);
    }
    let (mut addr, mut level) = (tree.config.root, None);
    loop {
        let page = read::read_shared(tree, ctx, addr, &view).await?;
        let node = tree.node(&page);
        let at = node.level();
        let is_meant = at >= lowest && node.is_shared() && walk::is_right(node, level.unwrap_or(at), target);
        let child = node.child_addr(node.child_toward(target)).filter(|_| is_meant);
        // Replace the cached copies on the path: a stale one would lead to the same parent again.
        if is_meant {
            refresh::install(tree, ctx, addr, &page).await?;
        }
        ctx.ep.recycle(page);
        let child = child.ok_or(Retry::Restart)?;
        if at == lowest {
            let is_child = addr.raw() == parent && child == slot.addr;
            return if is_child { Ok(slot.parent.validate()?) } else { Err(Retry::Restart) };
        }
        (addr, level) = (child, Some(at - 1));
    }
}

/// Child of a node on the path to `target`, if both are in their frames and the node is above level `lowest`.
fn cached_child<'t, L: Layout>(
    tree: &'t Tree<L>,
    node: VersionedNode<'t>,
    target: Target<'_, L>,
    lowest: u8,
) -> Attempt<VersionedNode<'t>> {
    let page = tree.node(node);
    let index = page.child_toward(target);
    let is_above = page.level() > lowest;
    let swip = page.child(index);
    node.validate()?;
    let id = swip.global().map_or(swip.frame(), |addr| tree.cache.table().frame_of(addr));
    let frame = id.filter(|_| is_above).and_then(|id| tree.cache.try_frame(id)).ok_or(Retry::Restart)?;
    let child = VersionedNode { frame, version: frame.optimistic()? };
    let is_there = swip.global().is_none_or(|addr| tree.holds(frame, child.version, addr));
    node.validate()?;
    if is_there { Ok(child) } else { Err(Retry::Restart) }
}
