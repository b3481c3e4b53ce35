//! Blocks that nothing leads to any more are freed, at once or later.
//!
//! At an address that others may remember, a note is left first that the node moved away. What cannot be freed on a memory
//! server that is being drained is tried again before the next flush.

use pando_fabric::{Endpoint, GlobalAddr};
use pando_pool::PoolError;

use crate::error::{DexError, Result};
use crate::layout::{Layout, header};
use crate::tree::{Ctx, Tree};

/// Frees the block of a node that nothing leads to any more. What fails where blocks are not handed out again is tried
/// again by [`free_left_behind`]; elsewhere the block may be somebody else's by then.
///
/// # Errors
/// Those of the pool, if the block may have leaked.
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

/// Frees what could not be freed when it was left.
pub(crate) async fn free_left_behind<L: Layout, E: Endpoint>(tree: &Tree<L>, ctx: Ctx<'_, E>) -> Result<()> {
    loop {
        // Not kept locked over an await.
        let next = tree.left_behind.list().pop();
        let Some((addr, needs_notice)) = next else { return Ok(()) };
        match try_free_behind(tree, ctx, addr, needs_notice).await {
            // A try before this one failed only to say that it had succeeded.
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
        // Nobody writes a node back there any more; only lock words may still change, beside this one.
        let kind_at = addr.add(header::KIND as u64 * 8);
        let kind = ctx.ep.read_word(kind_at).await?;
        ctx.ep.write_word(kind_at, kind | header::MOVED).await?;
    }
    Ok(tree.pool.free(ctx.ep, addr, tree.node_bytes()).await?)
}
