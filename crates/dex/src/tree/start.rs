//! Where the cached path begins: at the root, or at the lowest node below it that covers all keys of the compute
//! server.
//!
//! The more partitions an index has, the more of its upper levels are shared nodes with one useful child for each
//! compute server. These do not swizzle, so each costs a search and a lookup in the mapping table. The cached path
//! therefore begins at a *remembered* shared node, if it is still in its frame and covers the key. Like a child of a
//! stale copy of a shared node it leads to the right leaf or to none: leaves are checked, and a missing node is proved
//! to be in the tree from the root. Attempts that can wait begin at the root, fetch what is missing, and remember the
//! lowest node.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

use pando_cache::{Conflict, FrameId, FrameState};
use pando_fabric::Endpoint;

use crate::layout::Layout;
use crate::node::Target;
use crate::ownership::range::KeyRange;
use crate::tree::{Ctx, Tree, VersionedNode};

const NONE: u32 = u32::MAX;

/// The remembered node: its frame, and its address, which shows whether the frame still has it. The two are not read
/// together; a wrong pair is noticed by the address.
pub(crate) struct Start {
    frame: AtomicU32,
    addr: AtomicU64,
}

impl Default for Start {
    fn default() -> Self {
        Self { frame: AtomicU32::new(NONE), addr: AtomicU64::new(0) }
    }
}

/// The node at which the cached path to `key` begins.
#[inline(always)]
pub(crate) fn cached_start<'t, L: Layout>(
    tree: &'t Tree<L>,
    key: L::Key<'_>,
) -> Result<VersionedNode<'t>, Conflict> {
    match tree.start.frame.load(Relaxed) {
        NONE => tree.root_node(),
        frame => remembered(tree, FrameId(frame), key).map_or_else(|| tree.root_node(), Ok),
    }
}

#[inline(never)]
fn remembered<'t, L: Layout>(
    tree: &'t Tree<L>,
    frame: FrameId,
    key: L::Key<'_>,
) -> Option<VersionedNode<'t>> {
    let frame = tree.cache.try_frame(frame)?;
    let node = VersionedNode { frame, version: frame.optimistic().ok()? };
    // All checks hold as long as the node's version does.
    let is_there = node.version.state() == FrameState::Hot && frame.addr() == tree.start.addr.load(Relaxed);
    let page = tree.node(node);
    (is_there && page.is_shared() && !page.is_moved() && page.covers(Target::of(key))).then_some(node)
}

/// Remembers a node on the way down, if it is shared, lies below the root and covers all keys of the compute server.
pub(crate) fn remember<L: Layout, E: Endpoint>(tree: &Tree<L>, ctx: Ctx<'_, E>, node: VersionedNode<'_>) {
    if node.frame.id() == tree.root || !tree.node(node).is_shared() {
        return;
    }
    let addr = node.frame.addr();
    let is_known =
        tree.start.frame.load(Relaxed) == node.frame.id().0 && tree.start.addr.load(Relaxed) == addr;
    if is_known || !covers_all(tree, node, &tree.view(ctx).keys) || node.validate().is_err() {
        return;
    }
    tree.start.addr.store(addr, Relaxed);
    tree.start.frame.store(node.frame.id().0, Relaxed);
}

fn covers_all<L: Layout>(tree: &Tree<L>, node: VersionedNode<'_>, keys: &KeyRange) -> bool {
    let fences = tree.node(node).fences();
    let low = fences.low().is_none_or(|fence| keys.low.as_deref().is_some_and(|low| fence <= low));
    low && fences.high().is_none_or(|fence| keys.high.as_deref().is_some_and(|high| high <= fence))
}
