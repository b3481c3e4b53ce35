//! WRITEs to nodes and leaves that only this compute server changes (P-SMART, DEX §8.1).
//!
//! Its threads synchronise by local locks and by the groups of keys, so no word in remote memory marks a
//! change in progress. A WRITE that may have landed in part, or may still be in flight, is left: a later
//! operation repeats it, and until then this compute server does not change that node or leaf. Others never
//! do.

use std::sync::Arc;

use pando_fabric::{Endpoint, FabricError, GlobalAddr};
use pando_pool::{Due, Order};

use crate::error::{Result, undecided};
use crate::tree::{Op, Smart};

/// Words, and their position in a node or leaf.
#[derive(Clone, Debug)]
pub(crate) struct OwnWrite {
    /// The node or leaf.
    pub of: GlobalAddr,
    at: GlobalAddr,
    words: Arc<[u64]>,
}

/// A WRITE that is left if this is dropped before it is settled.
struct Writing<'s> {
    smart: &'s Smart,
    write: Option<OwnWrite>,
    due: Due,
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        if let Some(write) = self.write.take() {
            self.smart.epochs.own_writes.push(write, self.due);
        }
    }
}

async fn submit<E: Endpoint>(
    ep: &E,
    OwnWrite { at, words, .. }: &OwnWrite,
) -> std::result::Result<(), FabricError> {
    let page = ep.buffer(words.len() * 8);
    words.iter().enumerate().for_each(|(word, &value)| page.set(word, value));
    ep.recycle(ep.write(*at, page).await?);
    Ok(())
}

impl Smart {
    /// Writes into the node or leaf `of`, which only this compute server changes. A WRITE that may have
    /// landed in part is repeated while there is time, and left after that.
    pub(crate) async fn write_own<E: Endpoint>(
        &self,
        op: &Op<'_, E>,
        of: GlobalAddr,
        (at, words): (GlobalAddr, &[u64]),
    ) -> Result<()> {
        let write = OwnWrite { of, at, words: words.into() };
        let mut may_be_there = false;
        let mut writing = Writing { smart: self, write: Some(write.clone()), due: Due::Later };
        loop {
            let Err(error) = submit(op.ep, &write).await else {
                writing.write = None;
                return Ok(());
            };
            may_be_there |= error.may_have_taken_effect();
            if !may_be_there {
                writing.write = None;
                return Err(error.into());
            }
            writing.due = Due::Now;
            if !op.asks_again(&error).await {
                return Err(undecided(error));
            }
            writing.due = Due::Later;
        }
    }

    /// Whether a WRITE of the node or leaf at `addr` was left.
    pub(crate) fn is_left(&self, addr: GlobalAddr) -> bool {
        self.epochs.own_writes.has(|write| write.of == addr)
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
            if let Err(error) = submit(ep, &write).await {
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
}
