//! Freeing of unlinked blocks, at once or later.
//!
//! If other compute servers may remember the address, the old node is first marked as moved. A block that
//! cannot be freed on a draining memory server is retried before the next flush.

use pando_fabric::{Endpoint, GlobalAddr};
use pando_pool::PoolError;

use crate::error::{DexError, Result};
use crate::layout::{Layout, header};
use crate::tree::{Ctx, Tree};

/// Frees the block of an unlinked node. If that fails on a server that hands out no blocks,
/// [`free_left_behind`] retries it; on any other server a retry could free a block that is in use again.
///
/// # Errors
/// Errors of the pool, if the block may have leaked.
pub(crate) async fn free_behind<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    addr: GlobalAddr,
    needs_notice: bool,
) -> Result<()> {
    match try_free_behind(tree, ctx, addr, needs_notice).await {
        Err(_) if !tree.pool.is_active(addr.server()) => {
            tree.left_behind.add(addr, needs_notice);
            Ok(())
        }
        done => done,
    }
}

/// Frees the blocks that could not be freed before.
pub(crate) async fn free_left_behind<L: Layout, E: Endpoint>(tree: &Tree<L>, ctx: Ctx<'_, E>) -> Result<()> {
    loop {
        // Release the list before the await.
        let next = tree.left_behind.list().pop();
        let Some((addr, needs_notice)) = next else { return Ok(()) };
        match try_free_behind(tree, ctx, addr, needs_notice).await {
            // An earlier attempt freed the block, but its answer was lost.
            Ok(()) | Err(DexError::Pool(PoolError::DoubleFree { .. })) => {}
            Err(error) => {
                if !tree.pool.is_active(addr.server()) {
                    tree.left_behind.add(addr, needs_notice);
                }
                return Err(error);
            }
        }
    }
}

async fn try_free_behind<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    addr: GlobalAddr,
    needs_notice: bool,
) -> Result<()> {
    if needs_notice {
        // No node is written back there any more. Only the lock word may still change, and that is another
        // word.
        let kind_at = addr.add(header::KIND as u64 * 8);
        let kind = ctx.ep.read_word(kind_at).await?;
        ctx.ep.write_word(kind_at, kind | header::MOVED).await?;
    }
    Ok(tree.pool.free(ctx.ep, addr, tree.node_bytes()).await?)
}
