//! Atomics of the standard library or of a model checker (`--cfg loom`, `--cfg shuttle`).
//!
//! Every atomic, lock and fence of this crate comes from here, so that `ci/loom.sh` and `ci/shuttle.sh` check
//! the production code and not a copy of it.

#[cfg(loom)]
pub use loom::{
    hint::spin_loop,
    sync::Mutex,
    sync::atomic::{AtomicU32, AtomicU64, Ordering, fence},
};
#[cfg(shuttle)]
pub use shuttle::{
    hint::spin_loop,
    sync::Mutex,
    sync::atomic::{AtomicU32, AtomicU64, Ordering, fence},
};
#[cfg(not(any(loom, shuttle)))]
pub use std::{
    hint::spin_loop,
    sync::Mutex,
    sync::atomic::{AtomicU32, AtomicU64, Ordering, fence},
};

/// A word of a frame.
pub type Word = AtomicU64;

/// Locks a mutex; a panic of another thread under the lock does not matter.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> impl std::ops::DerefMut<Target = T> + '_ {
    match mutex.lock() {
        Ok(guard) => guard,
        Err(poisoned) => poisoned.into_inner(),
    }
}
