//! List of blocks to free later.
//!
//! An unlinked block comes here if freeing it failed, or needs a verb where the caller cannot wait.
//! [`free`](crate::recovery::free) takes blocks off the list, at the latest before a flush.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pando_fabric::GlobalAddr;

/// Unlinked blocks that are not freed yet. The flag says that other compute servers may remember the block,
/// so that it must be marked as moved first.
#[derive(Debug, Default)]
pub(crate) struct LeftBehind(Mutex<Vec<(GlobalAddr, bool)>>);

impl LeftBehind {
    pub fn list(&self) -> MutexGuard<'_, Vec<(GlobalAddr, bool)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn add(&self, addr: GlobalAddr, needs_notice: bool) {
        self.list().push((addr, needs_notice));
    }
}
