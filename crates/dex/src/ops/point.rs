//! Operations on one key (DEX §7): look up, store, remove, compare and swap.
//!
//! All changes follow one path: find the leaf, apply a [`Change`] to it under its latch, or to a private copy
//! that is written back at once, and restart if there is no room. A long value is put into the pool before
//! the leaf changes, and its predecessor is freed afterwards. A reader that comes in between finds by the
//! value's hash that it was replaced.

use std::mem;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use pando_cache::defect::Defect;
use pando_fabric::defect::defect;
use pando_fabric::{Endpoint, PageBuf, Resource, WORD, Work, outlined};
use pando_log::defect::OfBackup;
use pando_log::{Appending, Entry, Log, Record};
use pando_pool::{FailedReads, Placement, PoolError, ValueRef};

use crate::change::{Blocked, Change, Expected, Outcome, apply, stored_len, work_of};
use crate::costs::Offer;
use crate::descent::optimistic::{self, ResumePoint};
use crate::descent::walk::{self, Admit, Miss, PrivateLeaf, Reached};
use crate::error::{Attempt, DexError, Result, Retry};
use crate::layout::{Layout, NewValue, Stored};
use crate::node::{Node, Target};
use crate::offload::client;
use crate::ownership::view::Purpose;
use crate::placement::spread;
use crate::recovery::restart::RestartPolicy;
use crate::recovery::{room, unfinished};
use crate::smo::{merge, split};
use crate::tree::journal;
use crate::tree::leftovers::{Logged, Remainder, Unfinished};
use crate::tree::{Ctx, Tree, VersionedNode, gate};

/// Outcome of [`Tree::compare_and_swap`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Swapped {
    Done,
    /// The value found instead of the expected one; `None` if the key is absent.
    Found(Option<Vec<u8>>),
}

impl<L: Layout> Tree<L> {
    /// Appends the value of `key` to `out`; `false` if the key is absent.
    ///
    /// # Errors
    /// A key that the layout or this compute server does not hold; corruption; errors of the fabric.
    #[inline]
    pub async fn get<E: Endpoint>(&self, ctx: Ctx<'_, E>, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        let start = out.len();
        match optimistic::cached_get(self, ctx, self.layout.key(key)?, out).await {
            Ok(found) => Ok(found),
            Err(stuck) => {
                out.truncate(start);
                outlined(Box::pin(self.get_later(ctx, key, stuck, out))).await
            }
        }
    }

    /// [`Tree::get`] whether or not the nodes on the path are cached, from where the cached path ended: from
    /// the root after [`Tree::get_now`].
    ///
    /// # Errors
    /// As for [`Tree::get`].
    #[inline(never)]
    pub async fn get_later<E: Endpoint>(
        &self,
        mut ctx: Ctx<'_, E>,
        key: &[u8],
        mut from: ResumePoint<'_>,
        out: &mut Vec<u8>,
    ) -> Result<bool> {
        let (key, tries) = (self.layout.key(key)?, RestartPolicy::default());
        let (mut failed, mut offer) = (FailedReads::default(), Offer::Lookup);
        let start = out.len();
        loop {
            let attempt = try_get(self, ctx, key, mem::take(&mut from), out, &mut failed, &mut offer);
            match attempt.await {
                Ok(found) => return Ok(found),
                Err(retry) => {
                    out.truncate(start);
                    ctx = tries.again(self, ctx, retry, "a node that others use").await?;
                }
            }
        }
    }

    /// Stores `value` under `key`; returns whether the key was present before.
    ///
    /// # Errors
    /// As for [`Tree::get`]; a value that the layout cannot hold; a full pool. Nothing has changed then.
    pub async fn put<E: Endpoint>(&self, ctx: Ctx<'_, E>, key: &[u8], value: &[u8]) -> Result<bool> {
        Ok(store(self, ctx, key, value, Change::Upsert).await?.existed)
    }

    /// Stores `value` under a key that is absent; `false` without a change if the key is present.
    ///
    /// # Errors
    /// As for [`Tree::put`].
    pub async fn insert<E: Endpoint>(&self, ctx: Ctx<'_, E>, key: &[u8], value: &[u8]) -> Result<bool> {
        Ok(store(self, ctx, key, value, Change::Insert).await?.changed)
    }

    /// Stores `value` under a key that is present; `false` without a change if the key is absent.
    ///
    /// # Errors
    /// As for [`Tree::put`].
    pub async fn update<E: Endpoint>(&self, ctx: Ctx<'_, E>, key: &[u8], value: &[u8]) -> Result<bool> {
        Ok(store(self, ctx, key, value, Change::Update).await?.changed)
    }

    /// Removes `key`; returns whether it was present.
    ///
    /// # Errors
    /// As for [`Tree::get`].
    pub async fn remove<E: Endpoint>(&self, ctx: Ctx<'_, E>, key: &[u8]) -> Result<bool> {
        let mut change = Change::Remove;
        Ok(change_entry(self, ctx, key, &mut change).await?.changed)
    }

    /// Stores `new` (removes the key if it is `None`) if the key's value is `expected` (absent if `None`).
    ///
    /// # Errors
    /// As for [`Tree::put`].
    pub async fn compare_and_swap<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        key: &[u8],
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<Swapped> {
        let wanted = expected.map_or(Expected::Absent, Expected::Bytes);
        loop {
            let outcome = match new {
                None => {
                    change_entry(self, ctx, key, &mut Change::Swap { expected: wanted, new: None }).await?
                }
                Some(new) => {
                    let swap = |new| Change::Swap { expected: wanted, new: Some(new) };
                    store(self, ctx, key, new, swap).await?
                }
            };
            if outcome.changed || (!outcome.existed && expected.is_none() && new.is_none()) {
                return Ok(Swapped::Done);
            }
            let mut found = Vec::new();
            let present = self.get(ctx, key, &mut found).await?;
            let found = present.then_some(found);
            // The value may have become the expected one between the attempt and this lookup. Try again then.
            if found.as_deref() != expected {
                return Ok(Swapped::Found(found));
            }
        }
    }
}

#[inline]
async fn try_get<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    key: L::Key<'_>,
    from: ResumePoint<'_>,
    out: &mut Vec<u8>,
    failed: &mut FailedReads,
    offer: &mut Offer,
) -> Attempt<bool> {
    let read = |page: Node<'_, L>, out: &mut Vec<u8>| match page.find(key) {
        Ok(i) => (true, page.append_value(i, out)),
        Err(_) => (false, None),
    };
    let entered = gate::enter_for(tree, ctx, key, Purpose::Operation)?;
    let miss = Miss { admit: Admit::Lazily, offer: *offer };
    let mut seen = 0;
    let (found, long) = match walk::walk_from(tree, ctx, from, Target::of(key), 0, miss).await? {
        Reached::Cached { node, .. } => {
            let result = read(tree.node(node), out);
            seen = journal::seen(tree, node.frame);
            node.validate()?;
            result
        }
        Reached::Private { leaf, .. } => {
            let result = read(tree.node(&leaf.page), out);
            ctx.ep.recycle(leaf.page);
            result
        }
        Reached::Offloadable(below) => match client::get_below(tree, ctx, below, key, out).await? {
            Some(result) => result,
            None => {
                *offer = Offer::Nothing;
                return Err(Retry::Restart);
            }
        },
    };
    drop(entered);
    ctx.ep.charge(Work::Copy { bytes: out.len() });
    if !journal::may_answer(tree, seen) {
        journal::durable(tree, ctx, seen).await?;
    }
    if let Some(value) = long {
        let read = outlined(Box::pin(read_long(tree, ctx, value, out))).await;
        if matches!(read, Err(Retry::Restart)) {
            failed.note(value)?;
        }
        read?;
    }
    Ok(found)
}

/// Appends a long value. Restarts if the value was replaced meanwhile.
pub(crate) async fn read_long<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    value: ValueRef,
    out: &mut Vec<u8>,
) -> Attempt<()> {
    match tree.pool.append_value(ctx.ep, value, out).await {
        Ok(()) => Ok(()),
        Err(PoolError::ValueChanged { .. }) => Err(Retry::Restart),
        Err(error) => Err(error.into()),
    }
}

/// Stores a value. Puts a long one into the pool first, and frees it if no entry refers to it in the end.
async fn store<'v, L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    key: &[u8],
    value: &'v [u8],
    change: impl FnOnce(Stored<'v>) -> Change<'v>,
) -> Result<Outcome> {
    tree.layout.key(key)?;
    if tree.layout.value_is_inline(value)? {
        return change_entry(tree, ctx, key, &mut change(Stored::Inline(value))).await;
    }
    // Boxed, as a rare path, to keep the futures of other changes small.
    outlined(Box::pin(store_long(tree, ctx, key, value, change(Stored::Inline(value))))).await
}

/// [`store`] for a value that `change` would store inline.
async fn store_long<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    key: &[u8],
    value: &[u8],
    change: Change<'_>,
) -> Result<Outcome> {
    let long = tree.pool.put_value(ctx.ep, Placement::LeastLoaded, value).await?;
    let outcome = match journal::persist_value(tree, ctx, long).await {
        Ok(()) => {
            let new = NewValue { reference: long, bytes: value };
            change_leaf(tree, ctx, key, &mut change.storing(Stored::New(&new))).await
        }
        Err(error) => Err(error),
    };
    let is_stored = match &outcome {
        Ok(outcome) => outcome.changed,
        // An entry may refer to the value. Leak it rather than free it under the entry.
        Err(error) => error.may_have_taken_effect(),
    };
    // An error of the change takes precedence over one of the free.
    let freed = if is_stored { Ok(()) } else { tree.pool.free_value(ctx.ep, long).await };
    let outcome = outcome?;
    freed?;
    answer(tree, ctx, &outcome).await?;
    settle(tree, ctx, key, outcome).await
}

async fn change_entry<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    key: &[u8],
    change: &mut Change<'_>,
) -> Result<Outcome> {
    let outcome = change_leaf(tree, ctx, key, change).await?;
    if !journal::is_durable(tree, outcome.seen) {
        answer(tree, ctx, &outcome).await?;
    }
    if outcome.unlinked.is_none() && !outcome.underfull {
        return Ok(outcome);
    }
    outlined(Box::pin(settle(tree, ctx, key, outcome))).await
}

/// Waits until the log has what the outcome tells of.
///
/// # Errors
/// [`DexError::Settling`], if the change has been made nevertheless.
#[inline]
async fn answer<L: Layout, E: Endpoint>(tree: &Tree<L>, ctx: Ctx<'_, E>, outcome: &Outcome) -> Result<()> {
    match journal::durable(tree, ctx, outcome.seen).await {
        Err(error) if outcome.changed => Err(DexError::Settling(Box::new(error))),
        done => done,
    }
}

/// Makes a change in the leaf of `key`, without the work that follows it.
pub(crate) async fn change_leaf<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    key: &[u8],
    change: &mut Change<'_>,
) -> Result<Outcome> {
    let key = tree.layout.key(key)?;
    let from = match optimistic::cached_leaf_in_turns(tree, ctx, key).await {
        Ok(leaf) => {
            ctx.worker.counters().count_descent(optimistic::inner_levels(tree));
            // Whether there is room now is not awaited, which would cost instructions in each change.
            let changed = room::to_append_now(tree, ctx, key, change)
                .and_then(|appending| change_cached(tree, ctx, leaf, key, change, appending));
            match changed {
                Ok(Ok(outcome)) => return Ok(outcome),
                Ok(Err(_)) | Err(_) => ResumePoint::default(),
            }
        }
        Err(stuck) => stuck,
    };
    outlined(Box::pin(change_anyhow(tree, ctx, key, from, change))).await
}

/// Makes a change, whether or not the nodes on the path are cached, from where the cached path ended.
async fn change_anyhow<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    mut ctx: Ctx<'_, E>,
    key: L::Key<'_>,
    mut from: ResumePoint<'_>,
    change: &mut Change<'_>,
) -> Result<Outcome> {
    let tries = RestartPolicy::default();
    // Changes that a memory server makes are in no log.
    let mut offer = if journal::log_of(tree).is_some() { Offer::Nothing } else { Offer::Change };
    let mut failed = FailedReads::default();
    loop {
        match try_change(tree, ctx, key, mem::take(&mut from), change, &mut offer).await {
            Ok(Ok(outcome)) => return Ok(outcome),
            Ok(Err(Blocked::NoRoom)) => {
                // Boxed, to keep the futures of other changes small.
                outlined(Box::pin(make_room(tree, ctx, key, stored_len(change)))).await?;
                // Other operations may take the room first, but only for a bounded time.
                ctx = tries.pause(tree, ctx, "room in a node").await?;
            }
            Ok(Err(Blocked::Compare(value))) => {
                let seen = journal::clock(tree);
                if !matches_long(tree, ctx, value, change, &mut failed).await? {
                    return Ok(Outcome { existed: true, seen, ..Outcome::default() });
                }
            }
            Err(retry) => ctx = tries.again(tree, ctx, retry, "a node that others use").await?,
        }
    }
}

/// Splits the leaf that has no room for an entry with a value of `value_len` bytes, and its full ancestors.
/// Then spreads the index a little, since each split pays for some of that.
async fn make_room<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    key: L::Key<'_>,
    value_len: usize,
) -> Result<()> {
    split::make_room(tree, ctx, key, value_len).await?;
    match spread::spread_some(tree, ctx).await {
        Err(error @ DexError::Corrupt { .. }) => Err(error),
        // The split is done. A node that cannot be moved yet is moved later.
        _ => Ok(()),
    }
}

/// Does the work that a change leaves: frees an unlinked value, merges an underfull leaf.
///
/// # Errors
/// [`DexError::Settling`]: the change has been made nevertheless.
pub(crate) async fn settle<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    key: &[u8],
    outcome: Outcome,
) -> Result<Outcome> {
    let freed = match outcome.unlinked {
        Some(value) => free_replaced(tree, ctx, value, outcome.seen).await,
        None => Ok(()),
    };
    let merged = match outcome.underfull {
        true => outlined(Box::pin(merge::merge_upward(tree, ctx, tree.layout.key(key)?))).await,
        false => Ok(()),
    };
    let wrap = |error: DexError| match defect(Defect::WrongNothingHappened) {
        true => error,
        false => DexError::Settling(Box::new(error)),
    };
    freed.and(merged).map_err(wrap)?;
    Ok(outcome)
}

/// Frees a value that record `gsn` replaced.
async fn free_replaced<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    value: ValueRef,
    gsn: u64,
) -> Result<()> {
    journal::settled(tree, ctx, gsn).await?;
    Ok(tree.pool.free_value(ctx.ep, value).await?)
}

/// READs the long value of the entry and compares it with the expected bytes. If they are equal, the change
/// expects exactly this value from then on.
async fn matches_long<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    value: ValueRef,
    change: &mut Change<'_>,
    failed: &mut FailedReads,
) -> Result<bool> {
    let Change::Swap { expected, .. } = change else { return Ok(false) };
    let wanted = match *expected {
        Expected::Bytes(bytes) => bytes,
        // The value was replaced after the comparison, so the other change wins.
        Expected::Exactly(_) | Expected::Absent => return Ok(false),
    };
    let mut bytes = Vec::new();
    match tree.pool.get_value(ctx.ep, value, &mut bytes).await {
        Ok(()) if bytes == wanted => *expected = Expected::Exactly(value),
        Ok(()) => return Ok(false),
        // The value was replaced meanwhile. Look at the leaf again.
        Err(PoolError::ValueChanged { .. }) => failed.note(value)?,
        Err(error) => return Err(error.into()),
    }
    Ok(true)
}

async fn try_change<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    key: L::Key<'_>,
    from: ResumePoint<'_>,
    change: &Change<'_>,
    offer: &mut Offer,
) -> Attempt<std::result::Result<Outcome, Blocked>> {
    let room = room::for_entry(tree, ctx, key, change).await?;
    let _entered = gate::enter_for(tree, ctx, key, Purpose::Operation)?;
    let miss = Miss { admit: Admit::Lazily, offer: *offer };
    match walk::walk_from(tree, ctx, from, Target::of(key), 0, miss).await? {
        Reached::Cached { node, .. } => {
            let appending = room.zip(journal::log_of(tree)).map(|(room, log)| log.begin(room));
            change_cached(tree, ctx, node, key, change, appending)
        }
        Reached::Private { leaf, .. } => {
            drop(room);
            change_private(tree, ctx, leaf, key, change).await
        }
        Reached::Offloadable(below) => {
            let changed = client::change_below(tree, ctx, below, key, change).await?;
            changed.ok_or_else(|| {
                *offer = Offer::Nothing;
                Retry::Restart
            })
        }
    }
}

fn change_cached<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    node: VersionedNode<'_>,
    key: L::Key<'_>,
    change: &Change<'_>,
    appending: Option<Appending<'_>>,
) -> Attempt<std::result::Result<Outcome, Blocked>> {
    ctx.ep.charge(Work::Hold(Resource::Frame(node.frame.id().0)));
    let mut guard = node.frame.upgrade(node.version)?;
    let mut result = apply(tree.node_mut(node), key, change);
    ctx.ep.charge(work_of(tree.layout, change, &result));
    match &mut result {
        Ok(outcome) if outcome.changed => {
            if let Some(appending) = appending {
                journal::note_change(tree, ctx, appending, node.frame, key, change, outcome);
            }
            guard.mark_dirty();
            drop(guard);
        }
        result => {
            if let Ok(outcome) = result {
                outcome.seen = journal::seen(tree, node.frame);
            }
            guard.release_unchanged();
        }
    }
    Ok(result)
}

/// Changes a leaf without a frame and writes it back at once. Its ticket keeps other operations away.
async fn change_private<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    leaf: PrivateLeaf<'_>,
    key: L::Key<'_>,
    change: &Change<'_>,
) -> Attempt<std::result::Result<Outcome, Blocked>> {
    let PrivateLeaf { mut page, mut ticket } = leaf;
    let result = apply(tree.node_mut(&page), key, change);
    ctx.ep.charge(work_of(tree.layout, change, &result));
    if let Some(outcome) = result.as_ref().ok().filter(|outcome| outcome.changed) {
        page.set(0, 0);
        if let Some(log) = journal::log_of(tree) {
            outlined(Box::pin(write_logged(
                tree,
                ctx,
                log,
                PrivateLeaf { page, ticket },
                key,
                change,
                outcome,
            )))
            .await?;
            return Ok(result);
        }
        let addr = ticket.keep();
        let remainder = Remainder::under_way(tree, || Unfinished::Written(addr));
        let words = words_to_write(tree, &page, outcome);
        let at = addr.add((words.start * WORD) as u64);
        page.set_window(words.start * WORD..words.end * WORD);
        let written = ctx.ep.write(at, page).await;
        remainder.done();
        ticket = tree.cache.table().kept(addr);
        page = written?;
    }
    ctx.ep.recycle(page);
    drop(ticket);
    Ok(result)
}

/// The words of a changed leaf that are written.
fn words_to_write<L: Layout>(tree: &Tree<L>, page: &PageBuf, outcome: &Outcome) -> Range<usize> {
    let in_place = outcome.in_place.clone().filter(|words| !words.is_empty());
    in_place.filter(|_| !tree.config.whole_leaves).unwrap_or(0..page.len() / WORD)
}

/// Writes a changed leaf without a frame, once the log has the change.
async fn write_logged<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    log: &Log,
    PrivateLeaf { page, ticket }: PrivateLeaf<'_>,
    key: L::Key<'_>,
    change: &Change<'_>,
    outcome: &Outcome,
) -> Attempt<()> {
    let len = match outcome.in_place {
        Some(_) => Entry::stored_len(tree.layout.key_bytes(key).len(), stored_len(change)),
        None => Record::pages_len(1, page.len(), 0),
    };
    let Some(room) = room::for_leaf_now(ctx, log, len).await? else {
        // An operation that has room may wait for this leaf.
        drop(ticket);
        ctx.ep.recycle(page);
        room::wait_for(tree, ctx, log, len).await?;
        return Err(Retry::Restart);
    };
    // The record stays in the log until the leaf is written.
    let hold = log.hold();
    let (appending, key) = (log.begin(room), tree.layout.key_bytes(key));
    let gsn = match outcome.in_place {
        Some(_) => journal::note_entry(ctx.ep, appending, ticket.addr(), key, change),
        None => journal::note_page(ctx.ep, appending, &page, ticket.addr()),
    };
    if !defect(OfBackup::LeafUntapped) {
        journal::tap_change(log, key, change);
    }
    // From here on the leaf must be written in any case.
    let (addr, written) = (ticket.keep(), words_to_write(tree, &page, outcome));
    let words = page.words()[written.clone()].iter().map(|word| word.load(Relaxed)).collect();
    let left = Logged { addr, first: written.start, words, gsn, hold: hold.keep() };
    let remainder = Remainder::under_way(tree, || Unfinished::Logged(left.clone()));
    match unfinished::write_logged(tree, ctx, &left).await {
        Ok(()) => {
            remainder.done();
            ctx.ep.recycle(page);
            log.release(left.hold);
            drop(tree.cache.table().kept(addr));
            Ok(())
        }
        Err(error) => {
            remainder.failed();
            Err(DexError::Settling(Box::new(error)).into())
        }
    }
}

#[cfg(test)]
mod tests;
