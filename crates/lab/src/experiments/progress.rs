//! Progress and interruption of an experiment.
//!
//! Cells run on several threads; [`Progress`] is called only on the thread that started the experiment. A
//! flag tells the running cells to stop; they check it several times a second.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::bench::{Phase, Watch};

/// Receives the progress of an experiment, on the thread that started it.
pub trait Progress {
    /// `done` of `all` cells have ended.
    fn cells(&self, done: usize, all: usize);
    /// Whether the experiment must stop; asked several times a second.
    fn interrupted(&self) -> bool {
        false
    }
}

/// Ignores all progress.
impl Progress for () {
    fn cells(&self, _: usize, _: usize) {}
}

/// Ignores the progress of a cell; interrupts it when the flag is set.
pub(super) struct Quiet<'f>(pub &'f AtomicBool);

impl Watch for Quiet<'_> {
    fn begin(&self, _: Phase, _: u64) {}

    fn advance(&self, _: u64) {}

    fn interrupted(&self) -> bool {
        self.0.load(Relaxed)
    }
}
