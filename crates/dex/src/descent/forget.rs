//! Cooling copies of leaves that a memory server changed (DEX §6.2).
//!
//! They are forgotten before the ticket of the missing node above them is given back, so that nothing comes to a copy that is
//! older than remote memory.

use pando_cache::{FrameId, FrameState};
use pando_fabric::{Endpoint, GlobalAddr, Patience};

use crate::error::{DexError, Result};
use crate::layout::Layout;
use crate::node::Target;
use crate::tree::{Ctx, Tree};

/// Forgets a cooling copy of the leaf of `key` below a node, whichever that is: the call failed, and may have changed it.
pub(crate) async fn forget_copies<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    node: GlobalAddr,
    key: L::Key<'_>,
) -> Result<(), DexError> {
    for id in 0..tree.cache.frames() as u32 {
        let frame = tree.cache.frame(FrameId(id));
        let page = tree.node(frame.words());
        // Nobody comes to a leaf below the missing node meanwhile, so that what is there stays as it is.
        let is_copy = frame.optimistic().is_ok_and(|version| version.state() == FrameState::Cooling)
            && page.level() == 0
            && page.covers(Target::of(key));
        if let Some(leaf) = GlobalAddr::from_raw(frame.addr()).filter(|_| is_copy) {
            forget_copy(tree, ctx, node, leaf).await?;
        }
    }
    Ok(())
}

/// Forgets a cooling copy of the leaf that the memory server changed, before anybody can come to it again.
pub(crate) async fn forget_copy<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    node: GlobalAddr,
    leaf: GlobalAddr,
) -> Result<(), DexError> {
    // The ticket of the leaf itself is the caller's, so there is no copy.
    if leaf == node {
        return Ok(());
    }
    let patience = Patience::new(tree.config.patience_ns);
    while tree.cache.invalidate(ctx.worker, leaf).is_err() {
        patience.wait(ctx.ep, "the copy of a leaf").await?;
    }
    Ok(())
}
