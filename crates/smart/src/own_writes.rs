//! WRITEs to nodes and leaves that only this compute server changes (P-SMART, DEX §8.1).
//!
//! Its threads synchronise by local locks and by the groups of keys, so no word in remote memory marks a
//! change in progress. A WRITE that may have landed in part, or may still be in flight, is left: a later
//! operation repeats it, and until then this compute server does not change that node or leaf. Others never
//! do.

use pando_fabric::{Endpoint, GlobalAddr};
use pando_pool::Due;

use crate::epoch::OwnWrite;
use crate::error::{Result, undecided};
use crate::tree::{Op, Smart};

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

impl Smart {
    /// Writes into the node or leaf `of`, which only this compute server changes. A WRITE that may have
    /// landed in part is repeated while there is time, and left after that.
    pub(crate) async fn write_own<E: Endpoint>(
        &self,
        op: &Op<'_, E>,
        of: GlobalAddr,
        at: GlobalAddr,
        words: &[u64],
    ) -> Result<()> {
        let write = OwnWrite { of, at, words: words.into() };
        let mut may_be_there = false;
        let mut writing = Writing { smart: self, write: Some(write.clone()), due: Due::Later };
        loop {
            let Err(error) = write.submit(op.ep).await else {
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
}
