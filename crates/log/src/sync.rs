//! Atomics of the standard library or of a model checker (`--cfg shuttle`).
//!
//! The group commit takes every atomic and lock from here, so that `ci/shuttle.sh` checks the production code
//! and not a copy of it.

#[cfg(not(shuttle))]
pub use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU64, Ordering},
};

#[cfg(shuttle)]
pub use shuttle::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU64, Ordering},
};

/// Locks a mutex; a panic of another thread under the lock does not matter.
#[inline]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    match mutex.lock() {
        Ok(guard) => guard,
        Err(poisoned) => poisoned.into_inner(),
    }
}
