//! Operations on one key (DEX §7): look up, store, remove, compare and swap.
//!
//! All changes are one: find the leaf, apply a [`Change`] to it under its latch, or to a private copy that is written
//! back at once, and start again where there is no room. Long values go to the pool before, and come back from it
//! after, the change of the leaf; a reader that comes in between finds by the value's hash that it was replaced.

use pando_cache::defect::Defect;
use pando_fabric::defect::defect;
use pando_fabric::{Endpoint, Resource, Work};
use pando_pool::{FailedReads, Placement, PoolError, ValueRef};

use crate::cached::Stuck;
use crate::change::{Blocked, Change, Expected, Outcome, apply, stored_len, work_of};
use crate::error::{Attempt, DexError, Result, Retry};
use crate::layout::{Layout, Stored};
use crate::node::Node;
use crate::offload::Offer;
use crate::ownership::Purpose;
use crate::tree::{Ctx, Hop, Tree};
use crate::tries::Tries;
use crate::unfinished::Unfinished;
use crate::walk::{Admit, Miss, PrivateLeaf, Reached};

/// Outcome of [`Tree::compare_and_swap`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Swapped {
    Done,
    /// What is there instead of the expected value; `None` if the key is absent.
    Found(Option<Vec<u8>>),
}

impl<L: Layout> Tree<L> {
    /// Appends the value of `key` to `out`; `false` if the key is absent.
    ///
    /// # Errors
    /// A key that the layout or this compute server does not hold; corruption; errors of the fabric.
    #[inline]
    pub async fn get<E: Endpoint>(&self, ctx: Ctx<'_, E>, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        let key = self.layout.key(key)?;
        let start = out.len();
        match self.cached_get(ctx, key, out).await {
            Ok(found) => Ok(found),
            Err(stuck) => {
                out.truncate(start);
                self.get_anyhow(ctx, key, stuck, out).await
            }
        }
    }

    /// [`Tree::get`] after [`Tree::get_now`] gave up: does not look among the cached nodes first once more.
    ///
    /// # Errors
    /// As for [`Tree::get`].
    #[inline]
    pub async fn get_later<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<bool> {
        self.get_anyhow(ctx, self.layout.key(key)?, None, out).await
    }

    /// Looks `key` up wherever the nodes of its way are, beginning where the cached path got stuck.
    #[inline(never)]
    async fn get_anyhow<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        key: L::Key<'_>,
        mut stuck: Stuck<'_>,
        out: &mut Vec<u8>,
    ) -> Result<bool> {
        let tries = Tries::default();
        let mut ctx = ctx;
        let (mut failed, mut offer) = (FailedReads::default(), Offer::Lookup);
        let start = out.len();
        loop {
            match self.try_get(ctx, key, stuck.take(), out, &mut failed, &mut offer).await {
                Ok(found) => return Ok(found),
                Err(retry) => {
                    out.truncate(start);
                    ctx = tries.again(self, ctx, retry, "a node that others use").await?;
                }
            }
        }
    }

    #[inline]
    async fn try_get<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        key: L::Key<'_>,
        stuck: Stuck<'_>,
        out: &mut Vec<u8>,
        failed: &mut FailedReads,
        offer: &mut Offer,
    ) -> Attempt<bool> {
        let read = |page: Node<'_, L>, out: &mut Vec<u8>| match page.find(key) {
            Ok(i) => (true, page.append_value(i, out)),
            Err(_) => (false, None),
        };
        let entered = self.enter_for(ctx, key, Purpose::Operation)?;
        let miss = Miss { admit: Admit::Lazily, offer: *offer };
        let (found, long) = match self.walk_on(ctx, stuck, key, miss).await? {
            Reached::Cached { node, .. } => {
                let result = read(self.node(node), out);
                node.validate()?;
                result
            }
            Reached::Private { leaf, .. } => {
                let result = read(self.node(&leaf.page), out);
                ctx.ep.recycle(leaf.page);
                result
            }
            Reached::Below(below) => match self.get_below(ctx, below, key, out).await? {
                Some(result) => result,
                None => {
                    *offer = Offer::Nothing;
                    return Err(Retry::Restart);
                }
            },
        };
        drop(entered);
        ctx.ep.charge(Work::Copy { bytes: out.len() });
        if let Some(value) = long {
            let read = Box::pin(self.read_long(ctx, value, out)).await;
            if matches!(read, Err(Retry::Restart)) {
                failed.note(value)?;
            }
            read?;
        }
        Ok(found)
    }

    /// Appends a long value. A value that was replaced meanwhile restarts the operation at the leaf.
    pub(crate) async fn read_long<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        value: ValueRef,
        out: &mut Vec<u8>,
    ) -> Attempt<()> {
        match self.pool.append_value(ctx.ep, value, out).await {
            Ok(()) => Ok(()),
            Err(PoolError::ValueChanged { .. }) => Err(Retry::Restart),
            Err(error) => Err(error.into()),
        }
    }

    /// Stores `value` under `key`; says whether the key was present before.
    ///
    /// # Errors
    /// As for [`Tree::get`]; a value that the layout does not hold; a full pool. Nothing changed then.
    pub async fn put<E: Endpoint>(&self, ctx: Ctx<'_, E>, key: &[u8], value: &[u8]) -> Result<bool> {
        Ok(self.store(ctx, key, value, Change::Upsert).await?.existed)
    }

    /// Stores `value` under a key that is absent; `false`, and nothing changes, if it is present.
    ///
    /// # Errors
    /// As for [`Tree::put`].
    pub async fn insert<E: Endpoint>(&self, ctx: Ctx<'_, E>, key: &[u8], value: &[u8]) -> Result<bool> {
        Ok(self.store(ctx, key, value, Change::Insert).await?.changed)
    }

    /// Stores `value` under a key that is present; `false`, and nothing changes, if it is absent.
    ///
    /// # Errors
    /// As for [`Tree::put`].
    pub async fn update<E: Endpoint>(&self, ctx: Ctx<'_, E>, key: &[u8], value: &[u8]) -> Result<bool> {
        Ok(self.store(ctx, key, value, Change::Update).await?.changed)
    }

    /// Removes `key`; says whether it was present.
    ///
    /// # Errors
    /// As for [`Tree::get`].
    pub async fn remove<E: Endpoint>(&self, ctx: Ctx<'_, E>, key: &[u8]) -> Result<bool> {
        let mut change = Change::Remove;
        Ok(self.change(ctx, key, &mut change).await?.changed)
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
                None => self.change(ctx, key, &mut Change::Swap { expected: wanted, new: None }).await?,
                Some(new) => {
                    let swap = |new| Change::Swap { expected: wanted, new: Some(new) };
                    self.store(ctx, key, new, swap).await?
                }
            };
            if outcome.changed || (!outcome.existed && expected.is_none() && new.is_none()) {
                return Ok(Swapped::Done);
            }
            let mut found = Vec::new();
            let present = self.get(ctx, key, &mut found).await?;
            let found = present.then_some(found);
            // Between the attempt and this look the value may have become the expected one: try again then.
            if found.as_deref() != expected {
                return Ok(Swapped::Found(found));
            }
        }
    }

    /// Puts a long value into the pool first, and takes back what ends up in no entry.
    async fn store<'v, E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        key: &[u8],
        value: &'v [u8],
        change: impl FnOnce(Stored<'v>) -> Change<'v>,
    ) -> Result<Outcome> {
        self.layout.key(key)?;
        if self.layout.value_is_inline(value)? {
            return self.change(ctx, key, &mut change(Stored::Inline(value))).await;
        }
        // In a box, like all that few changes do: the futures of the others are better without.
        Box::pin(self.store_long(ctx, key, value, change)).await
    }

    async fn store_long<'v, E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        key: &[u8],
        value: &'v [u8],
        change: impl FnOnce(Stored<'v>) -> Change<'v>,
    ) -> Result<Outcome> {
        let long = self.pool.put_value(ctx.ep, Placement::LeastLoaded, value).await?;
        let outcome = self.change_leaf(ctx, key, &mut change(Stored::Long(long))).await;
        let is_stored = match &outcome {
            Ok(outcome) => outcome.changed,
            // An entry may refer to it: rather leaked than freed under it.
            Err(error) => error.may_have_taken_effect(),
        };
        // What the operation says comes first.
        let freed = if is_stored { Ok(()) } else { self.pool.free_value(ctx.ep, long).await };
        let outcome = outcome?;
        freed?;
        self.settle(ctx, key, outcome).await
    }

    async fn change<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        key: &[u8],
        change: &mut Change<'_>,
    ) -> Result<Outcome> {
        let outcome = self.change_leaf(ctx, key, change).await?;
        if outcome.unlinked.is_none() && !outcome.underfull {
            return Ok(outcome);
        }
        Box::pin(self.settle(ctx, key, outcome)).await
    }

    /// Makes a change in the leaf that it belongs to, and nothing more.
    pub(crate) async fn change_leaf<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        key: &[u8],
        change: &mut Change<'_>,
    ) -> Result<Outcome> {
        let key = self.layout.key(key)?;
        let stuck = match self.cached_leaf_in_turns(ctx, key).await {
            Ok(leaf) => {
                ctx.worker.counters().count_descent(self.inner_levels());
                match self.change_cached(ctx, leaf, key, change) {
                    Ok(Ok(outcome)) => return Ok(outcome),
                    Ok(Err(_)) | Err(_) => None,
                }
            }
            Err(stuck) => stuck,
        };
        Box::pin(self.change_anyhow(ctx, key, stuck, change)).await
    }

    /// Makes a change wherever the nodes of its way are, beginning where the cached path got stuck.
    async fn change_anyhow<E: Endpoint>(
        &self,
        mut ctx: Ctx<'_, E>,
        key: L::Key<'_>,
        mut stuck: Stuck<'_>,
        change: &mut Change<'_>,
    ) -> Result<Outcome> {
        let tries = Tries::default();
        let (mut failed, mut offer) = (FailedReads::default(), Offer::Change);
        loop {
            match self.try_change(ctx, key, stuck.take(), change, &mut offer).await {
                Ok(Ok(outcome)) => return Ok(outcome),
                Ok(Err(Blocked::NoRoom)) => {
                    // In a box, for the futures of the other changes that come here.
                    Box::pin(self.make_room(ctx, key, stored_len(change))).await?;
                    // Others may take the room first, but not for ever.
                    ctx = tries.pause(self, ctx, "room in a node").await?;
                }
                Ok(Err(Blocked::Compare(value))) => {
                    if !self.matches_long(ctx, value, change, &mut failed).await? {
                        return Ok(Outcome { existed: true, ..Outcome::default() });
                    }
                }
                Err(retry) => ctx = tries.again(self, ctx, retry, "a node that others use").await?,
            }
        }
    }

    /// What a change that was made leaves to do.
    ///
    /// # Errors
    /// [`DexError::Settling`]: the change is made all the same.
    pub(crate) async fn settle<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        key: &[u8],
        outcome: Outcome,
    ) -> Result<Outcome> {
        let freed = match outcome.unlinked {
            Some(value) => self.pool.free_value(ctx.ep, value).await.map_err(DexError::from),
            None => Ok(()),
        };
        let merged = match outcome.underfull {
            true => Box::pin(self.merge_upward(ctx, self.layout.key(key)?)).await,
            false => Ok(()),
        };
        let wrap = |error: DexError| match defect(Defect::WrongNothingHappened) {
            true => error,
            false => DexError::Settling(Box::new(error)),
        };
        freed.and(merged).map_err(wrap)?;
        Ok(outcome)
    }

    /// Reads the long value in place and compares it with the expected bytes; from then on expects exactly it.
    async fn matches_long<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        value: ValueRef,
        change: &mut Change<'_>,
        failed: &mut FailedReads,
    ) -> Result<bool> {
        let Change::Swap { expected, .. } = change else { return Ok(false) };
        let wanted = match *expected {
            Expected::Bytes(bytes) => bytes,
            // It was replaced since it was compared; whoever replaced it won.
            Expected::Exactly(_) | Expected::Absent => return Ok(false),
        };
        let mut bytes = Vec::new();
        match self.pool.get_value(ctx.ep, value, &mut bytes).await {
            Ok(()) if bytes == wanted => *expected = Expected::Exactly(value),
            Ok(()) => return Ok(false),
            // Replaced meanwhile: look at the leaf again.
            Err(PoolError::ValueChanged { .. }) => failed.note(value)?,
            Err(error) => return Err(error.into()),
        }
        Ok(true)
    }

    async fn try_change<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        key: L::Key<'_>,
        stuck: Stuck<'_>,
        change: &Change<'_>,
        offer: &mut Offer,
    ) -> Attempt<std::result::Result<Outcome, Blocked>> {
        let _entered = self.enter_for(ctx, key, Purpose::Operation)?;
        let miss = Miss { admit: Admit::Lazily, offer: *offer };
        match self.walk_on(ctx, stuck, key, miss).await? {
            Reached::Cached { node, .. } => self.change_cached(ctx, node, key, change),
            Reached::Private { leaf, .. } => self.change_private(ctx, leaf, key, change).await,
            Reached::Below(below) => {
                let changed = self.change_below(ctx, below, key, change).await?;
                changed.ok_or_else(|| {
                    *offer = Offer::Nothing;
                    Retry::Restart
                })
            }
        }
    }

    fn change_cached<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        node: Hop<'_>,
        key: L::Key<'_>,
        change: &Change<'_>,
    ) -> Attempt<std::result::Result<Outcome, Blocked>> {
        ctx.ep.charge(Work::Hold(Resource::Frame(node.frame.id().0)));
        let mut guard = node.frame.upgrade(node.version)?;
        let result = apply(self.node_mut(node), key, change);
        ctx.ep.charge(work_of(self.layout, change, &result));
        match &result {
            Ok(outcome) if outcome.changed => {
                guard.mark_dirty();
                drop(guard);
            }
            _ => guard.release_unchanged(),
        }
        Ok(result)
    }

    /// A leaf without a frame is written back at once, whole, while its ticket keeps everybody else away.
    async fn change_private<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        leaf: PrivateLeaf<'_>,
        key: L::Key<'_>,
        change: &Change<'_>,
    ) -> Attempt<std::result::Result<Outcome, Blocked>> {
        let PrivateLeaf { mut page, mut ticket } = leaf;
        let result = apply(self.node_mut(&page), key, change);
        ctx.ep.charge(work_of(self.layout, change, &result));
        if result.as_ref().is_ok_and(|outcome| outcome.changed) {
            page.set(0, 0);
            let addr = ticket.keep();
            let remainder = self.under_way(|| Unfinished::Written(addr));
            let written = ctx.ep.write(addr, page).await;
            remainder.done();
            ticket = self.cache.table().kept(addr);
            page = written?;
        }
        ctx.ep.recycle(page);
        drop(ticket);
        Ok(result)
    }
}

#[cfg(test)]
mod tests;
