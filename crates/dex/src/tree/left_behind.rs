//! The list of blocks that are to be freed later.
//!
//! A block comes here if nothing leads to it any more but freeing it failed, or would take a verb where none can be waited for.
//! [`free`](crate::recovery::free) takes blocks off the list, at the latest before a flush.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pando_fabric::GlobalAddr;

/// Blocks that nothing leads to any more and that could not be freed at once; and whether others may remember them, so
/// that a note is to be left there first.
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
