//! Removal of nodes that move to another compute server (DEX §4, repartitioning).
//!
//! Unlike eviction, removal does not depend on temperature: it takes the nodes that the caller selects, hot
//! ones too, bottom up, and writes each back first. The caller ensures that no new operation comes for these
//! nodes. A node still pinned or being written back by an earlier operation is busy and left to the next
//! attempt.

use pando_fabric::{Endpoint, GlobalAddr, Work};

use crate::cache::{Cache, CacheWorker};
use crate::cooling::release_untouched;
use crate::error::{Conflict, Result};
use crate::frame::{FrameRef, NodeShape};
use crate::latch::{FrameState, Version};
use crate::stats::CacheCounters;
use crate::swip::{FrameId, Swip};
use crate::sync::{Ordering, Word};

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
        if frame.is_pinned() || self.has_swizzled_child(frame, shape) {
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
        let parent = self.latch_parent(frame, shape)?;
        let mut guard = match frame.upgrade(version) {
            Ok(guard) => guard,
            Err(conflict) => {
                release_untouched(parent);
                return Err(conflict);
            }
        };
        let addr = GlobalAddr::from_raw(frame.addr()).expect("a frame's own address is not swizzled");
        if frame.is_pinned() || self.has_swizzled_child(frame, shape) {
            guard.release_unchanged();
            release_untouched(parent);
            return Err(Conflict);
        }
        if let Some((parent_guard, parent, slot)) = parent {
            parent.words()[slot].store(Swip::addr(addr).raw(), Ordering::Relaxed);
            drop(parent_guard);
            frame.set_parent(None);
        }
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

    fn has_swizzled_child(&self, frame: FrameRef<'_>, shape: impl NodeShape) -> bool {
        let words = frame.words();
        (0..shape.child_count(words)).any(|i| {
            let swip = Swip::from_raw(words[shape.child_word(words, i)].load(Ordering::Relaxed));
            swip.frame().is_some()
        })
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
        for i in 0..shape.child_count(frame.words()) {
            let word = &frame.words()[shape.child_word(frame.words(), i)];
            if let Some(child) = Swip::from_raw(word.load(Ordering::Relaxed)).frame() {
                let child = self.frame(child);
                word.store(child.addr(), Ordering::Relaxed);
                child.set_parent(None);
            }
        }
    }
}
