//! The index as shared by the threads of one compute server, and the execution of operations.
//!
//! An operation pins the epoch, follows the path of its key, and acts by one compare-and-swap or one WRITE,
//! which takes effect if nothing changed meanwhile. Otherwise it restarts from the root, within its time
//! limit.

use std::sync::Arc;

use pando_fabric::{Endpoint, FabricError, GlobalAddr, Nanos, Patience};
use pando_pool::{LOOKS_AT_HOLDER, Order, Placement, Pool, PoolError, RemoteLock};

use crate::anchor::Anchor;
use crate::cache::{CacheCounts, RadixCache};
use crate::epoch::Epochs;
use crate::error::{Attempt, Result, Retry, SmartError};
use crate::groups::{Groups, Repeats};
use crate::layout::leaf;
use crate::local_locks::LocalLocks;
use crate::options::{CreateOptions, SmartConfig};

/// Result shared by lookups of one key.
pub(crate) type Found = Option<Arc<[u8]>>;

/// Kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Put,
    Insert,
    Update,
    Remove,
}

/// A change that a group makes for its members.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub kind: Kind,
    pub value: Arc<[u8]>,
}

/// Effect of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub existed: bool,
    pub changed: bool,
}

/// One compute server's view of an index (SMART §4), shared by all of its threads.
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

/// A block and its size in bytes.
pub(crate) type Block = (GlobalAddr, u64);

/// One attempt of an operation.
pub(crate) struct Op<'o, E> {
    pub ep: &'o E,
    /// The pinned epoch.
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

    /// Called on paths that concurrent changes can lengthen: fails once the operation takes too long.
    pub fn check(&self, what: &'static str) -> Result<()> {
        Ok(self.patience.check(self.ep, what)?)
    }

    pub fn deadline(&self) -> Nanos {
        self.patience.deadline(self.ep)
    }

    /// Lets others run after an error with an unknown outcome; `false` if no time is left for another
    /// attempt.
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
    /// Creates an empty index in `pool`; returns the address of its anchor, by which compute servers
    /// [open](Smart::open) it.
    ///
    /// # Errors
    /// Invalid options; regions beyond the reach of slots; a full pool; errors of the fabric.
    pub async fn create<E: Endpoint>(ep: &E, pool: &Pool, options: &CreateOptions) -> Result<GlobalAddr> {
        Ok(Anchor::create(ep, pool, options).await?.addr)
    }

    /// Opens an index for use until [`Smart::close`].
    ///
    /// # Errors
    /// No valid anchor, or one made for other techniques; a read-only pool; too many compute servers; errors
    /// of the fabric.
    pub async fn open<E: Endpoint>(ep: &E, pool: Pool, config: SmartConfig) -> Result<Self> {
        config.check()?;
        let mut anchor = Anchor::open(ep, config.anchor, config.techniques).await?;
        anchor.techniques = config.techniques;
        let SmartConfig { patience_ns, limbo_bytes, look_every, .. } = config;
        let epochs = Epochs::join(ep, &pool, &anchor, patience_ns, limbo_bytes, look_every).await?;
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

    /// Ends this compute server's use of the index. No operation may be in progress. First frees the unlinked
    /// blocks, unless other compute servers do not advance for too long. Returns the number of bytes left
    /// behind, which only [`Pool::rebuild_allocation`] recovers.
    ///
    /// # Errors
    /// Errors of the fabric.
    pub async fn close<E: Endpoint>(self, ep: &E) -> Result<u64> {
        self.settle(ep).await?;
        self.epochs.leave(ep, &self.pool).await
    }

    /// Marks this compute server as idle for a while, so that others need not wait for it before they free
    /// blocks. The next operation ends that.
    ///
    /// # Errors
    /// Errors of the fabric.
    pub async fn park<E: Endpoint>(&self, ep: &E) -> Result<()> {
        self.epochs.park(ep).await
    }

    /// Blocks, with their sizes in bytes, that were given up: after an error it is not known whether
    /// something leads to them, or whether they are free. Only [`Pool::rebuild_allocation`] recovers unused
    /// ones.
    pub fn doubtful(&self) -> Vec<(GlobalAddr, u64)> {
        self.epochs.doubtful()
    }

    /// Frees unlinked blocks, as far as the other compute servers allow.
    ///
    /// # Errors
    /// Errors of the fabric.
    pub async fn reclaim<E: Endpoint>(&self, ep: &E) -> Result<()> {
        self.epochs.reclaim(ep, &self.pool).await.map(drop)
    }

    /// Finishes due leftovers of this compute server's operations: WRITEs, and locks that were not given
    /// back.
    ///
    /// # Errors
    /// Errors of the verbs; the rest stays left.
    pub async fn settle<E: Endpoint>(&self, ep: &E) -> Result<()> {
        self.pool.give_back_left_locks(ep).await?;
        let Some(mut finishing) = self.epochs.own_writes.begin() else { return Ok(()) };
        while let Some(write) = finishing.next(ep.now(), self.config.patience_ns, Order::Any) {
            if let Err(error) = write.submit(ep).await {
                finishing.failed();
                return Err(error.into());
            }
            finishing.done();
        }
        Ok(())
    }

    /// Runs [`Smart::settle`] if there are leftovers. Errors are ignored: only operations that depend on a
    /// leftover wait for it.
    pub(crate) async fn try_settle<E: Endpoint>(&self, ep: &E) {
        if self.pool.has_left_locks() || self.epochs.own_writes.any() {
            // Boxed: it is rare, and keeps the futures of operations small.
            let _ = Box::pin(self.settle(ep)).await;
        }
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

    /// Repeats an operation until an attempt succeeds.
    pub(crate) async fn run<E: Endpoint, T>(
        &self,
        ep: &E,
        what: &'static str,
        attempt: impl AsyncFnMut(&Op<'_, E>) -> Attempt<T>,
    ) -> Result<T> {
        self.run_within(ep, &self.patience(), what, attempt).await
    }

    /// [`Smart::run`] for an operation that may have waited before.
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

    /// Allocates a block, preferably on a random memory server.
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

    /// Frees blocks to which nothing leads.
    pub(crate) async fn discard<E: Endpoint>(&self, ep: &E, blocks: &[Block]) -> Result<()> {
        for &(addr, bytes) in blocks {
            self.epochs.discard(ep, &self.pool, addr, bytes).await?;
        }
        Ok(())
    }

    /// Gives up blocks to which something may lead.
    pub(crate) fn doubt(&self, blocks: &[Block]) {
        blocks.iter().for_each(|&(addr, bytes)| self.epochs.doubt(addr, bytes));
    }

    /// Frees blocks after a failed attempt, unless something may lead to them; returns the reason of the
    /// failure.
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

    /// Takes a lock whose protected words are always valid, so the lock of a dead process is simply taken
    /// over.
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

    /// Checks that an entry fits into a block.
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

    /// Checks that the key belongs to this compute server.
    pub(crate) fn check_own(&self, key: &[u8]) -> Result<()> {
        match &self.config.partition {
            Some(partition) if !partition.contains(key) => Err(SmartError::NotOwned),
            _ => Ok(()),
        }
    }

    /// Whether this compute server may change what lies below `prefix`: not if all of it belongs to others.
    pub(crate) fn may_change(&self, prefix: &[u8]) -> bool {
        self.config.partition.as_ref().is_none_or(|partition| partition.meets_prefix(prefix))
    }

    /// Whether only this compute server changes what lies below `prefix`.
    pub(crate) fn owns_prefix(&self, prefix: &[u8]) -> bool {
        self.config.partition.as_ref().is_some_and(|partition| partition.contains_prefix(prefix))
    }
}
