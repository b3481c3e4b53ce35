//! Blocks that nothing leads to, or soon will not, until they are free.
//!
//! A replaced image stays readable for a while, so that queries of it can end. An image that was not published
//! may have WRITEs in flight if its publication was dropped. So blocks rest before they are freed
//! ([`Leftovers`]). Safety does not depend on how long: readers verify every piece, so a query that is overtaken
//! begins anew.
//!
//! A block that may or may not be free, or that may still be used, is *doubtful*, and is never freed. It stays
//! allocated until the allocation of the pool is rebuilt.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pando_fabric::{Endpoint, GlobalAddr};
use pando_pool::{Due, Leftovers, Order, Pool, PoolError, ValueRef};

use crate::error::Result;

/// A block and its size.
pub(crate) type Block = (GlobalAddr, u64);

/// Blocks that are allocated and freed together.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// Values, whose blocks are found when they are freed.
    pub values: Vec<ValueRef>,
    pub blocks: Vec<Block>,
}

impl Batch {
    fn is_empty(&self) -> bool {
        self.values.is_empty() && self.blocks.is_empty()
    }

    /// Takes over everything in `other`.
    pub fn add(&mut self, other: Self) {
        self.values.extend(other.values);
        self.blocks.extend(other.blocks);
    }
}

#[derive(Debug, Default)]
pub(crate) struct Limbo {
    resting: Leftovers<Arc<Mutex<Batch>>>,
    doubtful: Mutex<Vec<Block>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is being written. Dropped, its blocks rest until no WRITE of it can be in flight.
pub(crate) struct Unpublished<'l> {
    limbo: &'l Limbo,
    pub batch: Batch,
}

impl Unpublished<'_> {
    /// Takes the blocks over, to publish them or to leave them to `due`.
    pub fn take(mut self) -> Batch {
        std::mem::take(&mut self.batch)
    }
}

impl Drop for Unpublished<'_> {
    fn drop(&mut self) {
        self.limbo.rest(std::mem::take(&mut self.batch), Due::Later);
    }
}

impl Limbo {
    pub fn begin(&self) -> Unpublished<'_> {
        Unpublished { limbo: self, batch: Batch::default() }
    }

    /// Frees the blocks of `batch` once they are due.
    pub fn rest(&self, batch: Batch, due: Due) {
        if !batch.is_empty() {
            self.resting.push(Arc::new(Mutex::new(batch)), due);
        }
    }

    /// Gives up blocks that may be in use, or free.
    pub fn doubt(&self, batch: Batch) {
        let Batch { values, blocks } = batch;
        let values = values.into_iter().map(|value| (value.addr, value.len));
        lock(&self.doubtful).extend(blocks.into_iter().chain(values));
    }

    /// Number of batches with blocks that are not free yet.
    pub fn resting(&self) -> usize {
        self.resting.count()
    }

    pub fn doubtful(&self) -> Vec<Block> {
        lock(&self.doubtful).clone()
    }

    /// Frees what is due. Does nothing while another call runs.
    pub async fn reclaim<E: Endpoint>(&self, ep: &E, pool: &Pool) -> Result<()> {
        let Some(mut finishing) = self.resting.begin() else { return Ok(()) };
        while let Some(batch) = finishing.next(ep.now(), pool.verbs_take(), Order::Any) {
            match self.free(ep, pool, &batch).await {
                Ok(()) => finishing.done(),
                Err(error) => {
                    finishing.failed();
                    return Err(error.into());
                }
            }
        }
        Ok(())
    }

    async fn free<E: Endpoint>(&self, ep: &E, pool: &Pool, batch: &Mutex<Batch>) -> Result<(), PoolError> {
        loop {
            let Some(value) = lock(batch).values.last().copied() else { break };
            let mut blocks = Vec::new();
            match pool.visit_value_blocks(ep, value, |addr, size| blocks.push((addr, size))).await {
                Err(error @ PoolError::Fabric(_)) => return Err(error),
                // Its list is gone, so its blocks are not known.
                Err(_) => self.doubt(Batch { values: vec![value], blocks: Vec::new() }),
                Ok(()) => lock(batch).blocks.append(&mut blocks),
            }
            lock(batch).values.pop();
        }
        loop {
            let Some(block) = lock(batch).blocks.pop() else { return Ok(()) };
            // Also if the future is dropped here, the block is not freed twice.
            lock(&self.doubtful).push(block);
            let freed = pool.free(ep, block.0, block.1).await;
            let may_be_free = freed.as_ref().is_err_and(PoolError::may_have_taken_effect);
            if !may_be_free {
                lock(&self.doubtful).retain(|other| *other != block);
            }
            match freed {
                Ok(()) => {}
                Err(PoolError::Fabric(error)) if !may_be_free => {
                    lock(batch).blocks.push(block);
                    return Err(error.into());
                }
                Err(error) => return Err(error),
            }
        }
    }
}
