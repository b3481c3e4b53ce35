//! Old addresses on memory servers that are drained, and may be gone.
//!
//! Only copies of shared nodes lead to where a child was before it moved off a draining server, since an owned node is moved by its
//! owner. Each compute server drops them once it knows that the server is drained. An operation may still have an old
//! address, or may be the first to notice the drain: no answer comes, and it restarts. What its verb did on that server, nobody will
//! read.

use std::sync::atomic::Ordering::Relaxed;

use pando_fabric::Endpoint;

use crate::descent::refresh;
use crate::error::{DexError, Result, Retry};
use crate::layout::Layout;
use crate::recovery::restart::RestartPolicy;
use crate::tree::{Ctx, Tree};

/// Drops all copies that may lead to a memory server which the pool has drained, once for each such server that this process
/// knows of. From then on it asks none of them, unless an operation still has an old address; that finds out and restarts.
///
/// # Errors
/// Errors of verbs and of waits, after which it may be called again.
pub async fn forget_drained<L: Layout, E: Endpoint>(tree: &Tree<L>, ctx: Ctx<'_, E>) -> Result<()> {
    let drained = tree.pool.drained_servers();
    if drained > tree.forgotten.load(Relaxed) {
        forget_old_addresses(tree, ctx).await?;
        tree.forgotten.fetch_max(drained, Relaxed);
    }
    Ok(())
}

async fn forget_old_addresses<L: Layout, E: Endpoint>(tree: &Tree<L>, ctx: Ctx<'_, E>) -> Result<()> {
    refresh::drop_shared_copies(tree, ctx).await?;
    let tries = RestartPolicy::default();
    let mut ctx = ctx;
    loop {
        match refresh::refresh_root(tree, ctx).await {
            Ok(()) => return Ok(()),
            Err(Retry::Failed(error)) => return Err(error),
            Err(retry) => ctx = tries.again(tree, ctx, retry, "the root").await?,
        }
    }
}

/// After an error of an operation that holds nothing: succeeds if the operation was led to a memory server that is drained, and
/// is to be restarted.
///
/// # Errors
/// The error that it was given.
pub(crate) async fn forgive<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    error: DexError,
) -> Result<()> {
    let Some(server) = error.unreached() else { return Err(error) };
    // Others may have drained it a moment ago.
    let is_known = tree.pool.learn(ctx.ep).await.is_ok();
    if !is_known || !tree.pool.has_drained(server) || forget_old_addresses(tree, ctx).await.is_err() {
        return Err(error);
    }
    Ok(())
}
