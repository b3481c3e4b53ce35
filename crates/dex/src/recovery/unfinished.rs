//! Completion of leftovers.
//!
//! Each entry of the list is prepared, which is idempotent, and then released, which happens once and drops
//! the ticket that was kept. The kinds of leftovers, and the reasons for them, are in
//! [`leftovers`](crate::tree::leftovers).

use pando_fabric::defect::defect;
use pando_fabric::{Endpoint, Patience, WORD};
use pando_log::defect::OfIndex;
use pando_pool::{Due, Order};

use crate::descent::{forget, refresh};
use crate::error::Result;
use crate::layout::Layout;
use crate::recovery::free;
use crate::shared::locked::{self, LockedNode};
use crate::tree::journal;
use crate::tree::leftovers::{Logged, Remainder, Unfinished, Unlinked, free_unlinked_block};
use crate::tree::{Ctx, Tree};

/// Whether verbs of cut-off operations may still take effect, or changes are incomplete.
pub(crate) fn is_any<L: Layout>(tree: &Tree<L>) -> bool {
    tree.unfinished.any() || tree.cache.has_cut_off()
}

/// Completes the removal of a node from the tree.
///
/// # Errors
/// Errors of the fabric and of waits for latches. The rest is then left over; a block that could not be freed
/// has leaked.
pub(crate) async fn finish_unlinked<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    unlinked: Unlinked,
) -> Result<()> {
    let left = Unfinished::Unlinked(unlinked);
    let remainder = Remainder::new(tree, Due::Now, || left.clone());
    prepare(tree, ctx, &left).await?;
    remainder.done();
    release(tree, ctx, left).await
}

/// Writes through and unlocks the shared parent that a node was removed from.
///
/// # Errors
/// Errors of [`locked::write_unlock`]. The removal of the node is then left over.
pub(crate) async fn write_unlinked<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    parent: LockedNode<'_>,
    unlinked: Unlinked,
) -> Result<Unlinked> {
    let left = unlinked.clone().below(parent.addr(), &parent.page, parent.next_version());
    let remainder = Remainder::new(tree, Due::Now, || Unfinished::Unlinked(left));
    locked::write_unlock(tree, ctx, parent).await?;
    remainder.done();
    Ok(unlinked)
}

/// Finishes the leftovers that are due.
///
/// # Errors
/// As for [`finish_unlinked`].
pub(crate) async fn finish_some<L: Layout, E: Endpoint>(tree: &Tree<L>, ctx: Ctx<'_, E>) -> Result<()> {
    let Some(mut finishing) = tree.unfinished.begin() else { return Ok(()) };
    while let Some(left) = finishing.next(ctx.ep.now(), tree.pool.verbs_take(), Order::Any) {
        if let Err(error) = prepare(tree, ctx, &left).await {
            finishing.failed();
            return Err(error);
        }
        // Mark it first: `release` drops a ticket, which must happen once.
        finishing.done();
        release(tree, ctx, left).await?;
    }
    Ok(())
}

/// Finishes all leftovers and gives back all left locks.
///
/// # Errors
/// As for [`finish_unlinked`].
pub(crate) async fn finish_all<L: Layout, E: Endpoint>(tree: &Tree<L>, ctx: Ctx<'_, E>) -> Result<()> {
    let patience = Patience::new(tree.config.patience_ns.saturating_add(tree.pool.verbs_take()));
    let is_done = || !is_any(tree) && !tree.pool.has_left_locks_due();
    loop {
        give_back_left_locks(tree, ctx).await?;
        if is_done() {
            return Ok(());
        }
        tree.cache.end_cut_off(ctx.ep.now());
        finish_some(tree, ctx).await?;
        if !is_done() {
            patience.wait(ctx.ep, "what operations that were cut off left").await?;
        }
    }
}

/// Gives back the locks that this process left. Those of pages with records wait for these, so the log comes first.
///
/// # Errors
/// Errors of the log and of verbs; remaining locks stay left.
pub(crate) async fn give_back_left_locks<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
) -> Result<()> {
    if !tree.pool.has_left_locks() {
        return Ok(());
    }
    journal::settled(tree, ctx, journal::clock(tree)).await?;
    Ok(tree.pool.give_back_left_locks(ctx.ep).await?)
}

/// First step, before the ticket is dropped; idempotent.
async fn prepare<L: Layout, E: Endpoint>(tree: &Tree<L>, ctx: Ctx<'_, E>, left: &Unfinished) -> Result<()> {
    match left {
        Unfinished::Called { node, key } => {
            forget::forget_copies(tree, ctx, *node, tree.layout.key(key)?).await
        }
        Unfinished::Logged(logged) => write_logged(tree, ctx, logged).await,
        Unfinished::Unlinked(Unlinked { parent: Some((parent, words)), gsn, .. }) => {
            journal::settled(tree, ctx, *gsn).await?;
            let page = ctx.ep.buffer(tree.layout.node_size());
            words.iter().enumerate().for_each(|(word, &value)| page.set(word, value));
            refresh::install(tree, ctx, *parent, &page).await?;
            ctx.ep.recycle(page);
            Ok(())
        }
        Unfinished::Unlinked(Unlinked { gsn, .. }) => journal::settled(tree, ctx, *gsn).await,
        Unfinished::Written(_) | Unfinished::Block(_) => Ok(()),
    }
}

/// Writes words of a node in no frame once the log has them. If this process dies meanwhile, its heir writes the node.
pub(crate) async fn write_logged<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    logged: &Logged,
) -> Result<()> {
    if !defect(OfIndex::PageBeforeLog) {
        journal::settled(tree, ctx, logged.gsn).await?;
    }
    let mut page = ctx.ep.buffer(tree.layout.node_size());
    logged.words.iter().enumerate().for_each(|(word, &value)| page.set(word, value));
    page.set_window(0..logged.words.len() * WORD);
    let at = logged.addr.add((logged.first * WORD) as u64);
    ctx.ep.recycle(ctx.ep.write_unread(at, page).await?);
    Ok(())
}

/// Second step: drops the ticket and frees the block.
async fn release<L: Layout, E: Endpoint>(tree: &Tree<L>, ctx: Ctx<'_, E>, left: Unfinished) -> Result<()> {
    match left {
        Unfinished::Written(addr) => drop(tree.cache.table().kept(addr)),
        Unfinished::Logged(Logged { addr, hold, .. }) => {
            journal::log_of(tree).into_iter().for_each(|log| log.release(hold));
            drop(tree.cache.table().kept(addr));
        }
        Unfinished::Called { node, .. } => drop(tree.cache.table().kept_share(node)),
        Unfinished::Block(addr) => free_unlinked_block(tree, addr),
        Unfinished::Unlinked(Unlinked { addr, needs_notice, .. }) => {
            drop(tree.cache.table().kept(addr));
            free::free_behind(tree, ctx, addr, needs_notice).await?;
        }
    }
    Ok(())
}
