//! A result that another thread delivers to a future.
//!
//! The thread keeps the promise once; the future is polled until then, and takes the result. One that is dropped
//! before leaves the result to nobody.

use std::sync::PoisonError;
#[cfg(not(shuttle))]
use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, Ordering::Acquire, Ordering::Release},
};
use std::task::{Context, Poll, Waker};

#[cfg(shuttle)]
use shuttle::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, Ordering::Acquire, Ordering::Release},
};

/// A result to come.
pub(crate) struct Promise<T> {
    is_kept: AtomicBool,
    result: Mutex<Option<T>>,
    waker: Mutex<Option<Waker>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T> Default for Promise<T> {
    fn default() -> Self {
        Self { is_kept: AtomicBool::new(false), result: Mutex::new(None), waker: Mutex::new(None) }
    }
}

impl<T> Promise<T> {
    /// Delivers the result and wakes the future that waits for it.
    pub fn keep(&self, result: T) {
        *lock(&self.result) = Some(result);
        self.is_kept.store(true, Release);
        if let Some(waker) = lock(&self.waker).take() {
            waker.wake();
        }
    }

    /// Polls for the result, which is taken once.
    pub fn poll(&self, cx: &mut Context<'_>) -> Poll<T> {
        if !self.is_kept.load(Acquire) {
            *lock(&self.waker) = Some(cx.waker().clone());
            // The result may have arrived before the waker was stored.
            if !self.is_kept.load(Acquire) {
                return Poll::Pending;
            }
        }
        Poll::Ready(lock(&self.result).take().expect("a result is taken once"))
    }
}
