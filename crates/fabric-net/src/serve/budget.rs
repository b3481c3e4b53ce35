//! Bound on the server memory for the long requests of all clients together.
//!
//! Each connection always has a small buffer. A longer request claims the memory beyond it first, and returns
//! it with the claim. A connection without a claim waits, for no longer than a request may take.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Remaining bytes.
#[derive(Clone, Debug)]
pub(super) struct Budget(Arc<AtomicUsize>);

impl Budget {
    pub fn new(bytes: usize) -> Self {
        Self(Arc::new(AtomicUsize::new(bytes)))
    }

    /// An empty claim.
    pub fn claim(&self) -> Claim {
        Claim { budget: self.clone(), bytes: 0 }
    }
}

/// Claimed bytes of a budget, returned on drop.
#[derive(Debug)]
pub(super) struct Claim {
    budget: Budget,
    bytes: usize,
}

impl Claim {
    /// Changes the claim to `bytes`; returns `false` if too few are left. Shrinking always succeeds.
    pub fn resize(&mut self, bytes: usize) -> bool {
        let left = &self.budget.0;
        let is_had = match bytes.checked_sub(self.bytes) {
            Some(more) => left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(more)).is_ok(),
            None => {
                left.fetch_add(self.bytes - bytes, Relaxed);
                true
            }
        };
        if is_had {
            self.bytes = bytes;
        }
        is_had
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.resize(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_had_than_there_is_and_it_comes_back() {
        let budget = Budget::new(100);
        let (mut a, mut b) = (budget.claim(), budget.claim());
        assert!(a.resize(60) && !b.resize(50) && b.resize(40) && !a.resize(61));
        assert!(a.resize(10) && b.resize(90));
        drop(b);
        assert!(a.resize(100));
        drop(a);
        assert_eq!(budget.0.load(Relaxed), 100);
    }
}
