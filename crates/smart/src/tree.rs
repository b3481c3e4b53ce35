//! The index as the threads of one compute server share it, and how an operation runs.
//!
//! An operation pins the epoch, finds its way, and acts by one compare-and-swap or one WRITE that takes effect if nothing changed
//! meanwhile. Otherwise it starts again from the root, within its patience.

use std::sync::Arc;

use pando_fabric::{Endpoint, FabricError, GlobalAddr, Nanos, Patience};
use pando_pool::{LOOKS_AT_HOLDER, Placement, Pool, PoolError, RemoteLock};

use crate::anchor::Anchor;
use crate::cache::{CacheCounts, RadixCache};
use crate::change::{Outcome, Wanted};
use crate::epoch::Epochs;
use crate::error::{Attempt, Result, Retry, SmartError};
use crate::groups::{Groups, Repeats};
use crate::insert::Block;
use crate::layout::leaf;
use crate::local_locks::LocalLocks;
use crate::options::{CreateOptions, SmartConfig};

/// What lookups of one key share.
pub(crate) type Found = Option<Arc<[u8]>>;

/// An index, as one compute server uses it (SMART §4). Shared by all of its threads.
pub struct Smart {
    pub(crate) pool: Pool,
    pub(crate) config: SmartConfig,
    pub(crate) anchor: Anchor,
    pub(crate) cache: RadixCache,
    pub(crate) epochs: Epochs,
    pub(crate) lookups: Groups<(), Found>,
    pub(crate) changes: Groups<Wanted, Outcome>,
    pub(crate) locks: LocalLocks,
}

/// One attempt of an operation.
pub(crate) struct Op<'o, E> {
    pub ep: &'o E,
    /// What it pinned.
    pub epoch: u64,
    /// Whether it may begin at a cached node.
    pub trusts_cache: bool,
    pub patience: &'o Patience,
}

impl<E: Endpoint> Op<'_, E> {
    /// Lets others run; fails once the operation has waited too long in all.
    pub async fn wait(&self, what: &'static str) -> Result<()> {
        Ok(self.patience.wait(self.ep, what).await?)
    }

    /// To be called on a way that is longer the more others change: fails once the operation takes too long.
    pub fn check(&self, what: &'static str) -> Result<()> {
        Ok(self.patience.check(self.ep, what)?)
    }

    pub fn deadline(&self) -> Nanos {
        self.patience.deadline(self.ep)
    }

    /// Lets others run after an error that says nothing about what was done; `false` if there is no time left to ask again.
    pub async fn asks_again(&self, error: &FabricError) -> bool {
        if !error.is_unreachable()
            || matches!(error, FabricError::Lost(_))
            || self.ep.now() >= self.deadline()
        {
            return false;
        }
        self.ep.yield_now().await;
        true
    }
}

impl Smart {
    /// Makes an empty index in `pool`; the address of its anchor, by which compute servers [open](Smart::open) it.
    ///
    /// # Errors
    /// Impossible options; regions larger than slots can reach; a full pool; errors of the fabric.
    pub async fn create<E: Endpoint>(ep: &E, pool: &Pool, options: &CreateOptions) -> Result<GlobalAddr> {
        Ok(Anchor::create(ep, pool, options).await?.addr)
    }

    /// Uses an index from now on, until [`Smart::close`].
    ///
    /// # Errors
    /// An anchor that is none, or that was made for other techniques; a pool that is only read; too many compute servers; errors of
    /// the fabric.
    pub async fn open<E: Endpoint>(ep: &E, pool: Pool, config: SmartConfig) -> Result<Self> {
        config.check()?;
        let mut anchor = Anchor::open(ep, config.anchor, config.techniques).await?;
        anchor.techniques = config.techniques;
        let waits = (config.patience_ns, config.limbo_bytes, config.look_every);
        let epochs = Epochs::join(ep, &pool, &anchor, waits).await?;
        Ok(Self {
            pool,
            cache: RadixCache::new(config.cache_bytes, config.cache_policy),
            epochs,
            lookups: Groups::new(Repeats::Always),
            changes: Groups::new(Repeats::UntilClosed),
            locks: LocalLocks::default(),
            anchor,
            config,
        })
    }

    /// Ends the use of the index by this compute server. Nothing may be under way. Blocks that were unlinked are freed first, unless
    /// other compute servers do not move on for too long: how many bytes were left behind, which only
    /// [`Pool::rebuild_allocation`] finds again.
    ///
    /// # Errors
    /// Those of the fabric.
    pub async fn close<E: Endpoint>(self, ep: &E) -> Result<u64> {
        self.settle(ep).await?;
        self.epochs.leave(ep, &self.pool).await
    }

    /// Says that nothing is going to be under way here for a while, so that other compute servers need not wait for this one before
    /// they free blocks. The next operation ends that by itself.
    ///
    /// # Errors
    /// Those of the fabric.
    pub async fn park<E: Endpoint>(&self, ep: &E) -> Result<()> {
        self.epochs.park(ep).await
    }

    /// Blocks and their bytes that were given up, since after an error nobody knows whether something leads to them or whether they
    /// are free. What of them is in use for nothing only [`Pool::rebuild_allocation`] finds again.
    pub fn doubtful(&self) -> Vec<(GlobalAddr, u64)> {
        self.epochs.doubtful()
    }

    /// Frees blocks that were unlinked, as far as the other compute servers let it.
    ///
    /// # Errors
    /// Those of the fabric.
    pub async fn reclaim<E: Endpoint>(&self, ep: &E) -> Result<()> {
        self.epochs.reclaim(ep, &self.pool).await.map(drop)
    }

    pub fn config(&self) -> &SmartConfig {
        &self.config
    }

    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    pub fn cache_counts(&self) -> CacheCounts {
        self.cache.counts()
    }

    /// Bytes of the cached nodes, and of the blocks that wait to be freed.
    pub fn bytes_held(&self) -> (u64, u64) {
        (self.cache.bytes(), self.epochs.limbo_bytes())
    }

    pub(crate) fn patience(&self) -> Patience {
        Patience::new(self.config.patience_ns)
    }

    /// Attempts an operation until it comes through.
    pub(crate) async fn run<E: Endpoint, T>(
        &self,
        ep: &E,
        what: &'static str,
        attempt: impl AsyncFnMut(&Op<'_, E>) -> Attempt<T>,
    ) -> Result<T> {
        self.run_within(ep, &self.patience(), what, attempt).await
    }

    /// [`Smart::run`], of an operation that may have waited before.
    pub(crate) async fn run_within<E: Endpoint, T>(
        &self,
        ep: &E,
        patience: &Patience,
        what: &'static str,
        mut attempt: impl AsyncFnMut(&Op<'_, E>) -> Attempt<T>,
    ) -> Result<T> {
        let (mut trusts_cache, mut may_reclaim) = (true, true);
        loop {
            self.try_settle(ep).await;
            let pin = self.epochs.pin(ep, &self.pool).await?;
            let op = Op { ep, epoch: pin.epoch, trusts_cache, patience };
            let attempted = attempt(&op).await;
            pin.end();
            match attempted {
                Ok(done) => return Ok(done),
                Err(Retry::Failed(error)) if error.is_full() && may_reclaim => {
                    may_reclaim = false;
                    if !self.epochs.reclaim(ep, &self.pool).await? {
                        return Err(error);
                    }
                }
                Err(Retry::Failed(error)) => return Err(error),
                Err(Retry::Restart) => {
                    trusts_cache = false;
                    patience.wait(ep, what).await?;
                }
            }
        }
    }

    /// A block, on any memory server: they take turns at random.
    pub(crate) async fn allocate<E: Endpoint>(&self, ep: &E, bytes: u64) -> Result<GlobalAddr> {
        let servers = ep.regions();
        let server = servers[(ep.random() >> 33) as usize % servers.len()].server;
        match self.pool.alloc(ep, Placement::Prefer(server), bytes).await {
            Err(PoolError::UnknownServer { .. }) => {
                Ok(self.pool.alloc(ep, Placement::LeastLoaded, bytes).await?)
            }
            done => Ok(done?),
        }
    }

    /// Frees blocks that nothing leads to.
    pub(crate) async fn discard<E: Endpoint>(&self, ep: &E, blocks: &[Block]) -> Result<()> {
        for &block in blocks {
            self.epochs.discard(ep, &self.pool, block).await?;
        }
        Ok(())
    }

    /// Gives blocks up that something may lead to.
    pub(crate) fn doubt(&self, blocks: &[Block]) {
        blocks.iter().for_each(|&(addr, bytes)| self.epochs.doubt(addr, bytes));
    }

    /// Frees blocks after what they were made for did not come through, unless something may lead to them; why it did not.
    pub(crate) async fn undo<E: Endpoint>(&self, ep: &E, blocks: &[Block], retry: Retry) -> Retry {
        if retry.may_have_taken_effect() {
            self.doubt(blocks);
            return retry;
        }
        match self.discard(ep, blocks).await {
            Ok(()) => retry,
            Err(error) => error.into(),
        }
    }

    /// Takes a lock that protects words which are whole at any time: that of a process that is gone is just taken over.
    pub(crate) async fn lock_word<E: Endpoint>(
        &self,
        op: &Op<'_, E>,
        at: GlobalAddr,
    ) -> Result<RemoteLock<'_>> {
        let deadline = op.deadline();
        loop {
            let next_look = op.ep.now().saturating_add(self.between_looks()).min(deadline);
            match self.pool.lock(op.ep, at, next_look).await {
                Err(PoolError::LockTimedOut { at, holder }) => {
                    self.try_settle(op.ep).await;
                    if self.pool.is_abandoned(op.ep, holder).await?
                        && let Some(lock) = self.pool.take_over(op.ep, at, holder).await?
                    {
                        return Ok(lock);
                    }
                    if op.ep.now() >= deadline {
                        return Err(PoolError::LockTimedOut { at, holder }.into());
                    }
                }
                done => return Ok(done?),
            }
        }
    }

    pub(crate) fn between_looks(&self) -> Nanos {
        self.config.patience_ns / LOOKS_AT_HOLDER
    }

    /// Whether an entry fits into a block.
    pub(crate) fn check_entry(&self, key: &[u8], value: &[u8]) -> Result<()> {
        let max = self.pool.max_block() as usize;
        let fits = leaf::size_for(key.len(), value.len()).is_some_and(|size| size.bytes() as usize <= max);
        match fits {
            true => Ok(()),
            false => {
                let max = max / 9 * 8 - leaf::OVERHEAD_MAX;
                Err(SmartError::EntryTooLong { key: key.len(), value: value.len(), max })
            }
        }
    }

    /// Whether this compute server is asked for the key.
    pub(crate) fn check_own(&self, key: &[u8]) -> Result<()> {
        match &self.config.partition {
            Some(partition) if !partition.contains(key) => Err(SmartError::NotOwned),
            _ => Ok(()),
        }
    }

    /// Whether this compute server may change what lies below `prefix`: not if it is wholly another one's.
    pub(crate) fn may_change(&self, prefix: &[u8]) -> bool {
        self.config.partition.as_ref().is_none_or(|partition| partition.meets_prefix(prefix))
    }

    /// Whether only this compute server changes what lies below `prefix`.
    pub(crate) fn owns_prefix(&self, prefix: &[u8]) -> bool {
        self.config.partition.as_ref().is_some_and(|partition| partition.contains_prefix(prefix))
    }
}
