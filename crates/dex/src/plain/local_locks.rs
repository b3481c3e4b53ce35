//! Locks of local nodes, in the memory of the compute server that owns them.
//!
//! A table of words, `[version:63][locked:1]`, indexed by the hash of a node's address. Nodes that share a
//! word wait for each other without need. An operation that locks two nodes may meet the word that it holds;
//! so waits for a lock are bounded.

use std::sync::atomic::{AtomicU64, Ordering};

use pando_fabric::GlobalAddr;

const WORDS: usize = 1 << 14;

const LOCKED: u64 = 1;

pub(super) struct LocalLocks(Box<[AtomicU64]>);

impl Default for LocalLocks {
    fn default() -> Self {
        Self((0..WORDS).map(|_| AtomicU64::new(0)).collect())
    }
}

/// A locked word; dropping it unlocks the word with the next version.
#[must_use = "the lock ends with it"]
pub(super) struct LocalGuard<'t>(&'t AtomicU64);

impl Drop for LocalGuard<'_> {
    fn drop(&mut self) {
        // The word goes from locked to the next version.
        self.0.fetch_add(1, Ordering::Release);
    }
}

impl LocalLocks {
    fn word(&self, addr: GlobalAddr) -> &AtomicU64 {
        // Addresses are multiples of a power of two; the upper bits of a product depend on all bits.
        let hash = addr.raw().wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.0[(hash >> (64 - WORDS.trailing_zeros())) as usize]
    }

    /// Version, which changes with every change of the node; `None` while it is locked.
    pub fn version(&self, addr: GlobalAddr) -> Option<u64> {
        let word = self.word(addr).load(Ordering::Acquire);
        (word & LOCKED == 0).then_some(word)
    }

    /// Locks the node if it still has this version.
    pub fn try_lock(&self, addr: GlobalAddr, version: u64) -> Option<LocalGuard<'_>> {
        let word = self.word(addr);
        let locked = word.compare_exchange(version, version | LOCKED, Ordering::Acquire, Ordering::Relaxed);
        // Create the guard only if the word is locked, since dropping it unlocks.
        locked.is_ok().then(|| LocalGuard(word))
    }

    /// Whether both nodes have the same lock word.
    pub fn are_one(&self, a: GlobalAddr, b: GlobalAddr) -> bool {
        std::ptr::eq(self.word(a), self.word(b))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pando_fabric::MemoryServerId;

    #[test]
    fn a_lock_excludes_and_changes_the_version() {
        let locks = LocalLocks::default();
        let addr = GlobalAddr::new(MemoryServerId(1), 4096);
        let version = locks.version(addr).expect("free");
        let guard = locks.try_lock(addr, version).expect("free");
        assert!(locks.version(addr).is_none() && locks.try_lock(addr, version).is_none());
        drop(guard);
        let after = locks.version(addr).expect("free again");
        assert!(after != version && locks.try_lock(addr, version).is_none());
        assert!(locks.try_lock(addr, after).is_some());
    }

    #[test]
    fn neighbours_have_locks_of_their_own() {
        let locks = LocalLocks::default();
        let addr = |i: u64| GlobalAddr::new(MemoryServerId(0), i * 1024);
        let same = (1..1000).filter(|&i| locks.are_one(addr(0), addr(i))).count();
        assert!(same < 3, "{same}");
    }
}
