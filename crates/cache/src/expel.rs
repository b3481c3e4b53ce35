//! Removal of nodes that move to another compute server (DEX §4, repartitioning).
//!
//! Unlike eviction, removal does not depend on temperature: it takes the nodes that the caller selects, hot
//! ones too, bottom up, and writes each back first. The caller ensures that no new operation comes for these
//! nodes. A node still pinned or being written back by an earlier operation is busy and left to the next
//! attempt.

use pando_fabric::{Endpoint, GlobalAddr, Work};

use crate::cache::{Cache, CacheWorker};
use crate::error::{Conflict, Result};
use crate::frame::{FrameRef, NodeShape};
use crate::latch::{FrameState, Version};
use crate::stats::CacheCounters;
use crate::swip::FrameId;
use crate::sync::Word;

/// Outcome of expelling the node of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expelled {
    /// The frame holds no selected node.
    Other,
    /// The frame is free now; `written` tells whether a write-back was needed.
    Gone { written: bool },
    /// The node is in use, or has swizzled children.
    Busy,
}

impl Cache {
    /// Writes back and evicts the node in a frame if `is_meant` selects it by its words.
    ///
    /// # Errors
    /// Errors of the write-back; the node then stays as it is.
    pub async fn expel<E: Endpoint>(
        &self,
        worker: &CacheWorker,
        endpoint: &E,
        shape: impl NodeShape,
        frame: FrameId,
        is_meant: impl Fn(&[Word]) -> bool,
    ) -> Result<Expelled> {
        let frame = self.frame(frame);
        let Ok(version) = frame.optimistic() else { return Ok(Expelled::Busy) };
        if version.state() == FrameState::Free {
            return Ok(Expelled::Other);
        }
        let meant = is_meant(frame.words());
        if frame.validate(version).is_err() {
            return Ok(Expelled::Busy);
        }
        if !meant {
            return Ok(Expelled::Other);
        }
        if is_used(frame, shape) {
            return Ok(Expelled::Busy);
        }
        endpoint.charge(Work::Evict);
        let mut written = false;
        // Held until the node has left its frame.
        let mut claimed = None;
        if version.is_dirty() {
            let Some(writing) = self.claim_write_back(endpoint, frame) else { return Ok(Expelled::Busy) };
            let writing = claimed.insert(writing);
            if !self.write_back(worker, endpoint, shape, writing, version).await? {
                return Ok(Expelled::Busy);
            }
            written = true;
        }
        Ok(match self.take_out(worker, shape, frame, version) {
            Ok(()) => Expelled::Gone { written },
            Err(Conflict) => Expelled::Busy,
        })
    }

    /// Removes a node, which was written back at `version`, from the cache.
    fn take_out(
        &self,
        worker: &CacheWorker,
        shape: impl NodeShape,
        frame: FrameRef<'_>,
        version: Version,
    ) -> Result<(), Conflict> {
        let (mut guard, addr) = self.unswizzle(shape, frame, version, || !is_used(frame, shape))?;
        frame.set_orphan(false);
        let removed = self.table.remove(addr, frame.id());
        debug_assert!(removed, "a frame that holds a node is in the mapping table");
        if guard.state() == FrameState::Cooling {
            self.forget_cooling(addr, frame.id());
        }
        guard.mark_clean();
        guard.set_state(FrameState::Free);
        drop(guard);
        CacheCounters::bump(&worker.counters().evictions, 1);
        self.give_free(worker, frame.id());
        Ok(())
    }

    /// Counts a node as an orphan if it is hot and swizzled nowhere: its parent did not swizzle its children
    /// so far, and is about to.
    ///
    /// # Errors
    /// [`Conflict`] if the node is latched: try again.
    pub fn note_orphan(&self, addr: GlobalAddr) -> Result<(), Conflict> {
        let Some(id) = self.table.frame_of(addr) else { return Ok(()) };
        let frame = self.frame(id);
        let guard = frame.exclusive()?;
        if frame.addr() == addr.raw() && guard.state() == FrameState::Hot && frame.parent().is_none() {
            frame.set_orphan(true);
        }
        guard.release_unchanged();
        Ok(())
    }

    /// Unswizzles all children of a latched node that must not swizzle from now on. They stay hot and are
    /// found through the table.
    pub fn unswizzle_children(&self, frame: FrameRef<'_>, shape: impl NodeShape) {
        self.unswizzle_each(frame, shape, |_| ());
    }
}

/// Whether a node is pinned or has swizzled children.
fn is_used(frame: FrameRef<'_>, shape: impl NodeShape) -> bool {
    frame.is_pinned() || frame.swips(shape).any(|swip| swip.frame().is_some())
}
