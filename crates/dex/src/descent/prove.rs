//! Proofs that a missing child is still in the tree, made with its ticket in hand.
//!
//! A parent of this compute server's own that is unchanged still has the child. An unchanged copy of a shared parent proves
//! nothing, because it may be stale: cached copies must lead from the root to it, or READs do where the cache is too small.

use pando_fabric::Endpoint;

use crate::descent::walk::{self, Slot};
use crate::descent::{read, refresh};
use crate::error::{Attempt, Retry};
use crate::layout::Layout;
use crate::node::Target;
use crate::tree::{Ctx, Tree, VersionedNode};

/// Proves that a missing child, whose ticket the caller has, is in the tree: from now on nobody in this compute server can
/// merge it away, move it or change it, and nobody else ever does.
///
/// A parent of this compute server's own that is unchanged still has the child. A copy of a shared node that is unchanged
/// proves nothing: it may be stale, and the child may have been freed under the node that has it by now. But whoever frees
/// a node has come to it from the root by copies that are not stale there, and copies only get newer. So the child is
/// in the tree if cached copies still lead from the root to that parent, looked at with the ticket in hand.
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

/// The same below a shared parent by READs, for a cache that has too few frames for the path from the root. No node on that path
/// is freed meanwhile: it has keys of others, and the caller's, which nobody gets before the caller leaves the gate.
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
        let page = ctx.ep.buffer(tree.layout.node_size());
        let page = read::read_node(tree, ctx, addr, page, &view, true).await?;
        let node = tree.node(&page);
        let at = node.level();
        let is_meant = at >= lowest && node.is_shared() && walk::is_right(node, level.unwrap_or(at), target);
        let child = node.child_addr(node.child_toward(target)).filter(|_| is_meant);
        // What led to the parent may be old, and would lead there again.
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

/// The child of a node on the way to `key`, if both are in their frames and the child's level is not below `lowest`.
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
