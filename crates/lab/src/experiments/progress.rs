//! Who hears how an experiment is coming along, and can end it.
//!
//! Cells run on several threads; whoever listens is asked from one, the one that called.
//! A flag carries the wish to stop to the cells that are under way, which look at it several times a second.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::bench::{Phase, Watch};

/// Hears how an experiment is coming along, from the thread that started it.
pub trait Progress {
    /// So many cells are done of all.
    fn cells(&self, done: usize, all: usize);
    /// Whether to stop here; asked several times a second.
    fn interrupted(&self) -> bool {
        false
    }
}

/// Nobody listens.
impl Progress for () {
    fn cells(&self, _: usize, _: usize) {}
}

/// Ends the cells that are under way when its flag is raised.
pub(super) struct Quiet<'f>(pub &'f AtomicBool);

impl Watch for Quiet<'_> {
    fn begin(&self, _: Phase, _: u64) {}

    fn advance(&self, _: u64) {}

    fn interrupted(&self) -> bool {
        self.0.load(Relaxed)
    }
}
