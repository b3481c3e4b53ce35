//! Room in the log, and the checkpoints that make some.
//!
//! An operation reserves room before it takes a latch. If half of the log is in use, it first writes all dirty
//! nodes and truncates the log, unless another operation is at it.

use pando_fabric::defect::defect;
use pando_fabric::{Endpoint, Patience, outlined};
use pando_log::defect::OfMoves;
use pando_log::{Appending, Entry, Log, Record, Reservation, Share, Span, persist_all};

use crate::change::{Change, stored_len};
use crate::error::{Attempt, Result, Retry};
use crate::layout::Layout;
use crate::ownership::range::KeyRange;
use crate::recovery::unfinished;
use crate::tree::journal::{self, Room};
use crate::tree::{Ctx, Tree};

/// Number of nodes in the record of the largest structure change: a node, its new neighbour, their parent.
const NODES_MAX: usize = 3;

/// Locks a lane to append the record of a change of one entry; `None` without a log.
///
/// # Errors
/// [`Retry::Restart`] if there is no room now.
#[inline]
pub(crate) fn to_append_now<'t, L: Layout, E: Endpoint>(
    tree: &'t Tree<L>,
    ctx: Ctx<'_, E>,
    key: L::Key<'_>,
    change: &Change<'_>,
) -> Attempt<Option<Appending<'t>>> {
    let Some(log) = journal::log_of(tree) else { return Ok(None) };
    let appending = log.try_begin(journal::lane_of(ctx, log), entry_len(tree, key, change));
    appending.map(Some).ok_or(Retry::Restart)
}

fn entry_len<L: Layout>(tree: &Tree<L>, key: L::Key<'_>, change: &Change<'_>) -> usize {
    Entry::stored_len(tree.layout.key_bytes(key).len(), stored_len(change))
}

/// Reserves room for the record of a change of one entry.
#[inline]
pub(crate) async fn for_entry<'t, L: Layout, E: Endpoint>(
    tree: &'t Tree<L>,
    ctx: Ctx<'_, E>,
    key: L::Key<'_>,
    change: &Change<'_>,
) -> Result<Room<'t>> {
    let Some(log) = journal::log_of(tree) else { return Ok(None) };
    reserve(tree, ctx, log, entry_len(tree, key, change)).await
}

/// Reserves room for a record of `len` bytes about a leaf without a frame; `None` if there is no room now. The
/// caller holds the leaf's ticket, for which operations with room may wait.
pub(crate) async fn for_leaf_now<'t, E: Endpoint>(
    ctx: Ctx<'_, E>,
    log: &'t Log,
    len: usize,
) -> Result<Room<'t>> {
    Ok(log.reserve(ctx.ep, journal::lane_of(ctx, log), len, Share::Most).await?)
}

/// Waits until there is room for a record of `len` bytes. The caller holds nothing.
pub(crate) async fn wait_for<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    log: &Log,
    len: usize,
) -> Result<()> {
    reserve(tree, ctx, log, len).await.map(drop)
}

/// Reserves room for the images of some nodes and the address of a freed one.
#[inline]
pub(crate) async fn for_nodes<'t, L: Layout, E: Endpoint>(
    tree: &'t Tree<L>,
    ctx: Ctx<'_, E>,
) -> Result<Room<'t>> {
    let Some(log) = journal::log_of(tree) else { return Ok(None) };
    reserve(tree, ctx, log, Record::pages_len(NODES_MAX, tree.layout.node_size(), 1)).await
}

/// Appends that the keys of `range` have left, all of whose changes are in the pages, and waits until the log has that.
pub(crate) async fn note_left<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    range: &KeyRange,
) -> Result<()> {
    let Some(log) = journal::log_of(tree).filter(|_| !defect(OfMoves::LeftUnlogged)) else { return Ok(()) };
    if log.persists() && !defect(OfMoves::PagesUnpersisted) {
        persist_all(ctx.ep).await?;
    }
    let left = Record::Left(Span { low: range.low.as_deref(), high: range.high.as_deref() });
    let gsn = match reserve(tree, ctx, log, left.stored_len()).await? {
        Some(room) => log.append(room, &left),
        None => return Ok(()),
    };
    journal::settled(tree, ctx, gsn).await
}

async fn reserve<'t, L: Layout, E: Endpoint>(
    tree: &'t Tree<L>,
    ctx: Ctx<'_, E>,
    log: &'t Log,
    len: usize,
) -> Result<Room<'t>> {
    match log.try_reserve(journal::lane_of(ctx, log), len) {
        Some(room) => Ok(Some(room)),
        None => outlined(Box::pin(reserve_late(tree, ctx, log, len))).await.map(Some),
    }
}

/// Reserves room in a log that is half full.
async fn reserve_late<'t, L: Layout, E: Endpoint>(
    tree: &'t Tree<L>,
    ctx: Ctx<'_, E>,
    log: &'t Log,
    len: usize,
) -> Result<Reservation<'t>> {
    let patience = Patience::new(tree.config.patience_ns.saturating_add(tree.pool.verbs_take()));
    loop {
        checkpoint(tree, ctx, log).await?;
        if let Some(room) = log.reserve(ctx.ep, journal::lane_of(ctx, log), len, Share::Most).await? {
            return Ok(room);
        }
        // A leaf that a dropped future did not write keeps its record in the log.
        unfinished::finish_some(tree, ctx).await?;
        patience.wait(ctx.ep, "room in the log").await?;
    }
}

/// Writes all dirty nodes and truncates the log; returns the number of nodes written. `None` if another
/// operation is at it.
async fn checkpoint<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    log: &Log,
) -> Result<Option<u64>> {
    let Some(checkpoint) = log.begin_checkpoint() else { return Ok(None) };
    journal::note_moved(tree, ctx, log).await?;
    // The images, too, are needed only until their nodes are written.
    let checkpoint = checkpoint.extended();
    let shape = journal::shape(tree, Share::All);
    let written = tree.cache.flush(ctx.worker, ctx.ep, shape).await?;
    // What is allocated from here on is in records that stay.
    tree.pool.store_bitmaps(ctx.ep).await?;
    checkpoint.end(ctx.ep).await?;
    Ok(Some(written))
}

/// Writes all nodes that are dirty now, and truncates the log if there is one: it is empty if nothing else
/// works on the tree. Returns the number of nodes written.
pub(crate) async fn flush<L: Layout, E: Endpoint>(tree: &Tree<L>, ctx: Ctx<'_, E>) -> Result<u64> {
    let Some(log) = journal::log_of(tree) else {
        return Ok(tree.cache.flush(ctx.worker, ctx.ep, tree.layout).await?);
    };
    let written = checkpoint_in_turn(tree, ctx, log).await?;
    // Nodes that are written append images, too.
    if log.used() == 0 { Ok(written) } else { Ok(written + checkpoint_in_turn(tree, ctx, log).await?) }
}

/// A [`checkpoint`], after the one that is under way.
async fn checkpoint_in_turn<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    log: &Log,
) -> Result<u64> {
    let patience = Patience::new(tree.config.patience_ns);
    loop {
        match checkpoint(tree, ctx, log).await? {
            Some(written) => return Ok(written),
            None => patience.wait(ctx.ep, "a checkpoint").await?,
        }
    }
}
