//! Locks of the standard library or of a model checker (`--cfg shuttle`).
//!
//! Every lock of this room comes from here, so that `ci/shuttle.sh` checks the production code and not a copy
//! of it. A panic of another thread under a lock does not matter: versions are replaced as a whole.

use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;

#[cfg(shuttle)]
pub(super) use shuttle::sync::{Mutex, RwLock};
#[cfg(not(shuttle))]
pub(super) use std::sync::{Mutex, RwLock};

pub(super) fn lock<T>(mutex: &Mutex<T>) -> impl DerefMut<Target = T> + '_ {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn read<T>(lock: &RwLock<T>) -> impl Deref<Target = T> + '_ {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn write<T>(lock: &RwLock<T>) -> impl DerefMut<Target = T> + '_ {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}
