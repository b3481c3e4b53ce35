//! Removal of cooling copies of leaves that a memory server changed (DEX §6.2).
//!
//! A copy is removed before the ticket of the missing node above it is returned, so that no operation reaches
//! a copy that is older than remote memory.

use pando_cache::{FrameId, FrameState};
use pando_fabric::{Endpoint, GlobalAddr};

use crate::error::{DexError, Result};
use crate::layout::Layout;
use crate::node::Target;
use crate::tree::patience::Patience;
use crate::tree::{Ctx, Tree};

/// Forgets any cooling copy of the leaf of `key`, after a failed call below `node` that may have changed the
/// leaf. The leaf's address is not known.
pub(crate) async fn forget_copies<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    node: GlobalAddr,
    key: L::Key<'_>,
) -> Result<(), DexError> {
    for id in 0..tree.cache.frames() as u32 {
        let frame = tree.cache.frame(FrameId(id));
        let page = tree.node(frame.words());
        // No operation reaches a leaf below the missing node meanwhile, so the frame keeps its content.
        let is_copy = frame.optimistic().is_ok_and(|version| version.state() == FrameState::Cooling)
            && page.level() == 0
            && page.covers(Target::of(key));
        if let Some(leaf) = GlobalAddr::from_raw(frame.addr()).filter(|_| is_copy) {
            forget_copy(tree, ctx, node, leaf).await?;
        }
    }
    Ok(())
}

/// Forgets the cooling copy of a leaf that the memory server changed, before any operation can reach it.
pub(crate) async fn forget_copy<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    node: GlobalAddr,
    leaf: GlobalAddr,
) -> Result<(), DexError> {
    // The caller holds the ticket of the leaf itself, so there is no copy.
    if leaf == node {
        return Ok(());
    }
    let patience = Patience::default();
    while tree.cache.invalidate(ctx.worker, leaf).is_err() {
        patience.wait(tree, ctx, "the copy of a leaf").await?;
    }
    Ok(())
}
