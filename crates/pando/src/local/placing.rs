//! Moves of nodes between memory servers, by the compute servers that own them.
//!
//! Nothing outside of the process is asked here: who wants a memory server emptied, or the load even, is known from the
//! pool ([`crate::Index::follow`]) or from the caller ([`crate::Cluster::drain_memory_server`]).

use pando_dex::Drained;
use pando_fabric::MemoryServerId;
use pando_rt::block_on;

use super::servers::{Servers, with_ctx};
use crate::error::Result;
use crate::layout::with_layout;
use crate::place::AnyEndpoint;
use crate::shared::Shared;

impl Servers {
    /// Moves all that is on the way to these compute servers' keys off a memory server that the pool drains, and writes it
    /// back; then their logs. `progress` is told what is done so far, and ends it by returning `false`.
    pub fn drain(
        &self,
        shared: &Shared,
        ep: &AnyEndpoint,
        server: MemoryServerId,
        progress: &mut dyn FnMut(Drained) -> bool,
    ) -> Result<Drained> {
        let mut done = Drained::default();
        done.is_complete = true;
        let sum = |before: Drained, more: Drained| {
            let mut sum = before;
            (sum.nodes, sum.values, sum.left) =
                (before.nodes + more.nodes, before.values + more.values, before.left + more.left);
            sum.is_complete = before.is_complete && more.is_complete;
            sum
        };
        with_layout!(&self.trees, |trees| {
            for tree in trees.iter().flatten() {
                let before = done;
                let mut tell = |more| progress(sum(before, more));
                let drained = with_ctx(ep, tree, |ctx| {
                    Ok(block_on(ep, pando_dex::drain(tree, ctx, server, &mut tell))?)
                })?;
                done = sum(before, drained);
            }
        });
        // Moved nodes must be written before the server counts as empty.
        if done.nodes > 0 {
            self.flush(ep)?;
        }
        // The less there is in a log, the less is copied.
        self.open_logs().try_for_each(|log| log.leave(shared, ep, server))?;
        Ok(done)
    }

    /// Forgets old addresses on memory servers that the pool has drained, which may be switched off.
    pub fn forget_drained(&self, ep: &AnyEndpoint) -> Result<()> {
        with_layout!(&self.trees, |trees| {
            for tree in trees.iter().flatten() {
                with_ctx(ep, tree, |ctx| Ok(block_on(ep, pando_dex::forget_drained(tree, ctx))?))?;
            }
        });
        Ok(())
    }

    /// Whether there is nothing of these compute servers on a memory server that the pool drains, for good: not even what a log
    /// would bring back.
    pub fn has_left(
        &self,
        shared: &Shared,
        ep: &AnyEndpoint,
        server: MemoryServerId,
        progress: &mut dyn FnMut(Drained) -> bool,
    ) -> Result<bool> {
        if self.record.root.server() == server || !self.drain(shared, ep, server, progress)?.is_complete {
            return Ok(false);
        }
        self.flush(ep)?;
        Ok(true)
    }

    /// Moves parts of the index from memory servers that hold more than others to those. `progress` is told the nodes that
    /// were moved so far, and ends it by returning `false`.
    pub fn spread(&self, ep: &AnyEndpoint, progress: &mut dyn FnMut(u64) -> bool) -> Result<u64> {
        let mut moved = 0;
        with_layout!(&self.trees, |trees| {
            for tree in trees.iter().flatten() {
                let before = moved;
                let mut tell = |nodes| progress(before + nodes);
                moved +=
                    with_ctx(ep, tree, |ctx| Ok(block_on(ep, pando_dex::spread_all(tree, ctx, &mut tell))?))?;
            }
        });
        Ok(moved)
    }
}
