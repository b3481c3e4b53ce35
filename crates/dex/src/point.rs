//! Operations on one key (DEX §7): look up, store, remove, compare and swap.
//!
//! All changes are one: find the leaf, apply a [`Change`] to it under its latch, or to a private copy that is written
//! back at once, and start again where there is no room. Long values go to the pool before, and come back from it
//! after, the change of the leaf; a reader that comes in between finds by the value's hash that it was replaced.

use pando_cache::sync::Word;
use pando_fabric::Endpoint;
use pando_pool::{FailedReads, Placement, PoolError, ValueRef};

use crate::error::{Attempt, DexError, Result, Retry};
use crate::layout::{Layout, Stored, header};
use crate::tree::{Ctx, Hop, Tree};
use crate::tries::Tries;
use crate::walk::{Admit, PrivateLeaf, Reached, Toward};

/// What to do with the entry of a key.
#[derive(Clone, Copy, Debug)]
enum Change<'v> {
    /// Store the value whether or not the key is present.
    Upsert(Stored<'v>),
    /// Store the value if the key is absent.
    Insert(Stored<'v>),
    /// Store the value if the key is present.
    Update(Stored<'v>),
    Remove,
    /// Store (or remove, if `new` is `None`) if what is there is what was expected.
    Swap {
        expected: Expected<'v>,
        new: Option<Stored<'v>>,
    },
}

#[derive(Clone, Copy, Debug)]
enum Expected<'v> {
    Absent,
    Bytes(&'v [u8]),
    /// A long value that was read and compared already.
    Exactly(ValueRef),
}

/// What became of a change.
#[derive(Debug, Default)]
struct Outcome {
    /// The key was present before.
    existed: bool,
    /// The change was made.
    changed: bool,
    /// A long value that no entry refers to any more.
    unlinked: Option<ValueRef>,
    /// The leaf should be merged with a neighbour.
    underfull: bool,
}

/// Why a change could not be applied to a leaf.
enum Blocked {
    NoRoom,
    /// The value there is long: read and compare it first.
    Compare(ValueRef),
}

/// Outcome of [`Tree::compare_and_swap`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Swapped {
    Done,
    /// What is there instead of the expected value; `None` if the key is absent.
    Found(Option<Vec<u8>>),
}

impl<L: Layout> Tree<L> {
    /// The key prepared for searching, if this compute server owns it.
    #[inline]
    pub(crate) fn own_key<'k>(&self, key: &'k [u8]) -> Result<L::Key<'k>> {
        self.check_owned(key)?;
        self.layout.key(key)
    }

    #[inline]
    fn check_owned(&self, key: &[u8]) -> Result<()> {
        if self.partitioned && !self.config.range.contains(key) {
            return Err(DexError::NotOwned);
        }
        Ok(())
    }

    /// Appends the value of `key` to `out`; `false` if the key is absent.
    ///
    /// # Errors
    /// A key that the layout or this compute server does not hold; corruption; errors of the fabric.
    #[inline]
    pub async fn get<E: Endpoint>(&self, ctx: Ctx<'_, E>, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        let key = self.own_key(key)?;
        let start = out.len();
        if let Some(found) = self.cached_get(ctx, key, out).await {
            return Ok(found);
        }
        out.truncate(start);
        self.get_anyhow(ctx, key, out).await
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
        self.get_anyhow(ctx, self.own_key(key)?, out).await
    }

    /// Looks `key` up wherever the nodes of its way are.
    #[inline(never)]
    async fn get_anyhow<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        key: L::Key<'_>,
        out: &mut Vec<u8>,
    ) -> Result<bool> {
        let tries = Tries::default();
        let mut ctx = ctx;
        let mut failed = FailedReads::default();
        let start = out.len();
        loop {
            match self.try_get(ctx, key, out, &mut failed).await {
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
        out: &mut Vec<u8>,
        failed: &mut FailedReads,
    ) -> Attempt<bool> {
        let read = |page: &[Word], out: &mut Vec<u8>| match self.layout.find(page, key) {
            Ok(i) => (true, self.layout.append_value(page, i, out)),
            Err(_) => (false, None),
        };
        let (found, long) = match self.walk(ctx, key, Toward::Key, 0, Admit::Lazily).await? {
            Reached::Cached { node, .. } => {
                let result = read(node.frame.words(), out);
                node.validate()?;
                result
            }
            Reached::Private { leaf, .. } => {
                let result = read(leaf.page.words(), out);
                ctx.ep.recycle(leaf.page);
                result
            }
        };
        if let Some(value) = long {
            let read = self.read_long(ctx, value, out).await;
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
        self.check_owned(key)?;
        self.layout.key(key)?;
        if self.layout.value_is_inline(value)? {
            return self.change(ctx, key, &mut change(Stored::Inline(value))).await;
        }
        let long = self.pool.put_value(ctx.ep, Placement::LeastLoaded, value).await?;
        let outcome = self.change(ctx, key, &mut change(Stored::Long(long))).await;
        if !outcome.as_ref().is_ok_and(|outcome| outcome.changed) {
            self.pool.free_value(ctx.ep, long).await?;
        }
        outcome
    }

    async fn change<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        key: &[u8],
        change: &mut Change<'_>,
    ) -> Result<Outcome> {
        self.check_owned(key)?;
        let prepared = self.layout.key(key)?;
        let tries = Tries::default();
        let mut ctx = ctx;
        let mut failed = FailedReads::default();
        let outcome = loop {
            match self.try_change(ctx, prepared, change).await {
                Ok(Ok(outcome)) => break outcome,
                Ok(Err(Blocked::NoRoom)) => {
                    self.make_room(ctx, prepared, stored_len(change)).await?;
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
        };
        if let Some(value) = outcome.unlinked {
            self.pool.free_value(ctx.ep, value).await?;
        }
        if outcome.underfull {
            self.merge_upward(ctx, prepared).await?;
        }
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
        change: &Change<'_>,
    ) -> Attempt<std::result::Result<Outcome, Blocked>> {
        if let Some(leaf) = self.cached_leaf_in_turns(ctx, key).await {
            ctx.worker.counters().count_descent(self.inner_levels());
            return self.change_cached(leaf, key, change);
        }
        match self.walk(ctx, key, Toward::Key, 0, Admit::Lazily).await? {
            Reached::Cached { node, .. } => self.change_cached(node, key, change),
            Reached::Private { leaf, .. } => self.change_private(ctx, leaf, key, change).await,
        }
    }

    fn change_cached(
        &self,
        node: Hop<'_>,
        key: L::Key<'_>,
        change: &Change<'_>,
    ) -> Attempt<std::result::Result<Outcome, Blocked>> {
        let mut guard = node.frame.upgrade(node.version)?;
        let result = self.apply(node.frame.words(), key, change);
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
        let PrivateLeaf { mut page, ticket } = leaf;
        let result = self.apply(page.words(), key, change);
        if result.as_ref().is_ok_and(|outcome| outcome.changed) {
            page.set(0, 0);
            page = ctx.ep.write(ticket.addr(), page).await?;
        }
        ctx.ep.recycle(page);
        drop(ticket);
        Ok(result)
    }

    /// Makes the change in a leaf that the caller has for itself.
    fn apply(
        &self,
        page: &[Word],
        key: L::Key<'_>,
        change: &Change<'_>,
    ) -> std::result::Result<Outcome, Blocked> {
        let position = self.layout.find(page, key);
        let existed = position.is_ok();
        let stored = match *change {
            Change::Upsert(value) => Some(value),
            Change::Insert(value) if !existed => Some(value),
            Change::Update(value) if existed => Some(value),
            Change::Remove if existed => None,
            Change::Swap { expected, new } if self.is_expected(page, position, expected)? => new,
            _ => return Ok(Outcome { existed, ..Outcome::default() }),
        };
        let mut outcome = Outcome { existed, changed: true, ..Outcome::default() };
        let Some(value) = stored else {
            let Ok(i) = position else { return Ok(Outcome::default()) };
            outcome.unlinked = self.long_value(page, i);
            self.layout.leaf_remove(page, i);
            outcome.underfull = self.layout.is_underfull(page);
            return Ok(outcome);
        };
        let fits = match position {
            Ok(i) => {
                outcome.unlinked = self.long_value(page, i);
                self.layout.leaf_replace(page, i, value)
            }
            Err(i) => {
                let fits = self.layout.leaf_insert(page, i, key, value);
                if fits {
                    header::note_insert(page, i);
                }
                fits
            }
        };
        if fits { Ok(outcome) } else { Err(Blocked::NoRoom) }
    }

    fn long_value(&self, page: &[Word], i: usize) -> Option<ValueRef> {
        self.layout.long_value(page, i)
    }

    fn is_expected(
        &self,
        page: &[Word],
        position: std::result::Result<usize, usize>,
        expected: Expected<'_>,
    ) -> std::result::Result<bool, Blocked> {
        let Ok(i) = position else { return Ok(matches!(expected, Expected::Absent)) };
        match (expected, self.long_value(page, i)) {
            (Expected::Absent, _) | (Expected::Exactly(_), None) => Ok(false),
            (Expected::Exactly(wanted), Some(found)) => Ok(wanted == found),
            (Expected::Bytes(_), Some(found)) => Err(Blocked::Compare(found)),
            (Expected::Bytes(wanted), None) => {
                let mut bytes = Vec::with_capacity(wanted.len());
                self.layout.append_value(page, i, &mut bytes);
                Ok(bytes == wanted)
            }
        }
    }
}

fn stored_len(change: &Change<'_>) -> usize {
    match change {
        Change::Upsert(value) | Change::Insert(value) | Change::Update(value) => value.stored_len(),
        Change::Remove | Change::Swap { new: None, .. } => 0,
        Change::Swap { new: Some(value), .. } => value.stored_len(),
    }
}
