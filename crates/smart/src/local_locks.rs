//! Local locks of the nodes that belong to one compute server, in its own memory (P-SMART).
//!
//! A table of words indexed by the hash of a node's address. Nodes that share a word exclude each other
//! needlessly. No operation holds two locks.

use std::sync::atomic::{AtomicBool, Ordering};

use pando_fabric::GlobalAddr;

use crate::layout::mix;

const WORDS: usize = 1 << 12;

pub(crate) struct LocalLocks(Box<[AtomicBool]>);

impl Default for LocalLocks {
    fn default() -> Self {
        Self((0..WORDS).map(|_| AtomicBool::new(false)).collect())
    }
}

/// A lock that is held until this is dropped.
#[must_use = "the lock ends with it"]
pub(crate) struct LocalGuard<'t>(&'t AtomicBool);

impl Drop for LocalGuard<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl LocalLocks {
    /// Locks the node if it is free.
    pub fn try_lock(&self, node: GlobalAddr) -> Option<LocalGuard<'_>> {
        let word = &self.0[mix(node.raw()) as usize % WORDS];
        // Construct it only if locked: dropping it unlocks.
        (!word.swap(true, Ordering::Acquire)).then(|| LocalGuard(word))
    }
}
