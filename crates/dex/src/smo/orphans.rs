//! Cached children that get another parent.
//!
//! Swizzled children learn their new parent. Hot children without a swizzled pointer are counted as
//! *orphans*. While there are orphans, paths in the cache may have gaps, and nothing is offloaded (DEX §6.2).

use pando_cache::{FrameRef, Swip};

use crate::error::Attempt;
use crate::layout::Layout;
use crate::node::Node;
use crate::tree::Tree;

/// Counts the unswizzled hot children of a latched node as orphans, if the node was shared once. They may
/// come below a node without that flag, and operations are offloaded below such nodes.
pub(crate) fn count_orphans<L: Layout>(tree: &Tree<L>, node: Node<'_, L>) -> Attempt<()> {
    if node.level() > 0 && node.was_shared() {
        note_orphans_below(tree, node)?;
    }
    Ok(())
}

/// Counts the unswizzled hot children of a node as orphans.
pub(crate) fn note_orphans_below<L: Layout>(tree: &Tree<L>, node: Node<'_, L>) -> Attempt<()> {
    for swip in node.children() {
        // Swizzled children know their parent.
        if let Some(child) = swip.global().filter(|child| !child.is_null()) {
            tree.cache.note_orphan(child)?;
        }
    }
    Ok(())
}

/// Makes a latched node the parent of its swizzled children.
pub(crate) fn adopt_children<L: Layout>(tree: &Tree<L>, node: FrameRef<'_>) {
    for child in tree.node(node).children().filter_map(Swip::frame) {
        tree.cache.frame(child).set_parent(Some(node.id()));
    }
}
