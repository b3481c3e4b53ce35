//! Cached children whose parent changes.
//!
//! Swizzled children are told their new parent. Children that are hot but swizzled nowhere are counted as *orphans*: while there
//! are any, paths in the cache are not whole and nothing is offloaded below them (DEX §6.2).

use pando_cache::{FrameRef, Swip};

use crate::error::Attempt;
use crate::layout::Layout;
use crate::node::Node;
use crate::tree::Tree;

/// Counts the hot children of a latched node that are swizzled nowhere as orphans, if it was shared once: they may be
/// about to be those of a node without the flag that says so, below which operations are offloaded.
pub(crate) fn count_orphans<L: Layout>(tree: &Tree<L>, node: Node<'_, L>) -> Attempt<()> {
    if node.level() > 0 && node.was_shared() {
        note_orphans_below(tree, node)?;
    }
    Ok(())
}

/// Counts the hot children of a node that are swizzled nowhere as orphans.
pub(crate) fn note_orphans_below<L: Layout>(tree: &Tree<L>, node: Node<'_, L>) -> Attempt<()> {
    for swip in node.children() {
        // Those that are swizzled have a parent.
        if let Some(child) = swip.global().filter(|child| !child.is_null()) {
            tree.cache.note_orphan(child)?;
        }
    }
    Ok(())
}

/// Tells the swizzled children of a latched node that it is their parent now.
pub(crate) fn adopt_children<L: Layout>(tree: &Tree<L>, node: FrameRef<'_>) {
    for child in tree.node(node).children().filter_map(Swip::frame) {
        tree.cache.frame(child).set_parent(Some(node.id()));
    }
}
