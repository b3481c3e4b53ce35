//! Hybrid latches: optimistic, shared and exclusive modes on one word (LeanStore; DEX §5.1).
//!
//! ```text
//!  63              16 15       8 7      4 3     2    1       0
//! [     version      |  shared  |  zero  | state |dirty|exclusive]
//! ```
//! An optimistic reader remembers the word without the shared count, reads, and compares. Every release of
//! the exclusive mode that changed the frame increases the version. The dirty flag and the frame's state are
//! in the same word, so a writer touches one cache line for all of it.

use crate::error::Conflict;
use crate::sync::{Ordering, Word, fence, spin_loop};

const EXCLUSIVE: u64 = 1;
const DIRTY: u64 = 1 << 1;
const STATE_SHIFT: u32 = 2;
const STATE: u64 = 0b11 << STATE_SHIFT;
const SHARED_ONE: u64 = 1 << 8;
const SHARED: u64 = 0xff << 8;
const VERSION_ONE: u64 = 1 << 16;

/// Attempts before a waiter reports a [`Conflict`], so that its worker can do other work.
const SPINS: u32 = if cfg!(any(loom, shuttle)) { 1 } else { 200 };

/// Life cycle of a frame.
///
/// `Free` → (filled) → `Hot` ⇄ `Cooling` → (evicted) → `Free`; a node that is merged away goes from `Hot` to `Free`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum FrameState {
    /// Holds no node; in a free list or held by one worker.
    Free = 0,
    /// Holds a node; swizzled in its parent's frame if the parent swizzles.
    Hot = 1,
    /// Holds a clean node that is not swizzled; in the cooling map, and may be evicted at any moment.
    Cooling = 2,
}

/// A latch word as an optimistic reader saw it: never exclusive, shared count masked out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version(u64);

impl Version {
    #[inline]
    pub fn state(self) -> FrameState {
        state_of(self.0)
    }

    #[inline]
    pub fn is_dirty(self) -> bool {
        self.0 & DIRTY != 0
    }
}

#[inline]
fn state_of(word: u64) -> FrameState {
    match (word & STATE) >> STATE_SHIFT {
        0 => FrameState::Free,
        1 => FrameState::Hot,
        _ => FrameState::Cooling,
    }
}

/// The latch in `word`.
#[derive(Clone, Copy, Debug)]
pub struct HybridLatch<'a> {
    word: &'a Word,
}

impl<'a> HybridLatch<'a> {
    #[inline]
    pub fn new(word: &'a Word) -> Self {
        Self { word }
    }

    /// Starts an optimistic read; waits briefly for an exclusive holder.
    #[inline]
    pub fn optimistic(self) -> Result<Version, Conflict> {
        let word = self.word.load(Ordering::Acquire);
        if word & EXCLUSIVE == 0 { Ok(Version(word & !SHARED)) } else { self.optimistic_slow() }
    }

    #[cold]
    fn optimistic_slow(self) -> Result<Version, Conflict> {
        for _ in 0..SPINS {
            spin_loop();
            let word = self.word.load(Ordering::Acquire);
            if word & EXCLUSIVE == 0 {
                return Ok(Version(word & !SHARED));
            }
        }
        Err(Conflict)
    }

    /// Whether everything read since `version` is consistent.
    #[inline]
    pub fn validate(self, version: Version) -> Result<(), Conflict> {
        fence(Ordering::Acquire);
        if self.word.load(Ordering::Relaxed) & !SHARED == version.0 { Ok(()) } else { Err(Conflict) }
    }

    /// Upgrades an optimistic read to the exclusive mode, if nothing changed since and there are no shared
    /// holders.
    #[inline]
    pub fn upgrade(self, version: Version) -> Result<ExclusiveGuard<'a>, Conflict> {
        self.word
            .compare_exchange(version.0, version.0 | EXCLUSIVE, Ordering::Acquire, Ordering::Relaxed)
            .map_err(|_| Conflict)?;
        fence(Ordering::Release);
        Ok(ExclusiveGuard { word: self.word, before: version.0, dirty: version.0 & DIRTY })
    }

    /// Takes the exclusive mode; waits briefly.
    pub fn exclusive(self) -> Result<ExclusiveGuard<'a>, Conflict> {
        for _ in 0..SPINS {
            let word = self.word.load(Ordering::Relaxed);
            if word & (EXCLUSIVE | SHARED) == 0
                && let Ok(guard) = self.upgrade(Version(word))
            {
                return Ok(guard);
            }
            spin_loop();
        }
        Err(Conflict)
    }

    /// Takes the shared mode; waits briefly. For readers that optimism starves.
    pub fn shared(self) -> Result<SharedGuard<'a>, Conflict> {
        for _ in 0..SPINS {
            let word = self.word.load(Ordering::Relaxed);
            if word & EXCLUSIVE == 0
                && word & SHARED != SHARED
                && self
                    .word
                    .compare_exchange(word, word + SHARED_ONE, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
            {
                return Ok(SharedGuard { word: self.word, version: Version(word & !SHARED) });
            }
            spin_loop();
        }
        Err(Conflict)
    }
}

/// Exclusive mode. Dropping the guard increases the version; [`ExclusiveGuard::release_unchanged`] does not.
#[must_use]
#[derive(Debug)]
pub struct ExclusiveGuard<'a> {
    word: &'a Word,
    before: u64,
    dirty: u64,
}

impl ExclusiveGuard<'_> {
    /// Marks the node as different from its remote copy.
    #[inline]
    pub fn mark_dirty(&mut self) {
        self.dirty = DIRTY;
    }

    /// Marks the node as equal to its remote copy.
    pub fn mark_clean(&mut self) {
        self.dirty = 0;
    }

    pub fn is_dirty(&self) -> bool {
        self.dirty != 0
    }

    pub fn state(&self) -> FrameState {
        state_of(self.before)
    }

    pub fn set_state(&mut self, state: FrameState) {
        self.before = (self.before & !STATE) | ((state as u64) << STATE_SHIFT);
    }

    /// Version that an optimistic reader saw before, and sees again after
    /// [`ExclusiveGuard::release_unchanged`] if no mark changed.
    pub fn version_before(&self) -> Version {
        Version(self.before)
    }

    /// Version that an optimistic reader will see once this guard is dropped.
    pub fn version_after(&self) -> Version {
        Version(self.released())
    }

    /// Releases without a new version: for changes that are equivalent for optimistic readers, such as
    /// swizzling.
    pub fn release_unchanged(self) {
        let word = (self.before & !DIRTY) | self.dirty;
        self.word.store(word, Ordering::Release);
        std::mem::forget(self);
    }

    #[inline]
    fn released(&self) -> u64 {
        ((self.before & !DIRTY) | self.dirty).wrapping_add(VERSION_ONE)
    }
}

impl Drop for ExclusiveGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.word.store(self.released(), Ordering::Release);
    }
}

/// Shared mode: excludes writers, not readers.
#[must_use]
#[derive(Debug)]
pub struct SharedGuard<'a> {
    word: &'a Word,
    version: Version,
}

impl SharedGuard<'_> {
    pub fn version(&self) -> Version {
        self.version
    }
}

impl Drop for SharedGuard<'_> {
    fn drop(&mut self) {
        self.word.fetch_sub(SHARED_ONE, Ordering::Release);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_noticed_and_a_swizzle_is_not() {
        let word = Word::new(0);
        let latch = HybridLatch::new(&word);
        let seen = latch.optimistic().unwrap();
        latch.exclusive().unwrap().release_unchanged();
        assert_eq!(latch.validate(seen), Ok(()));
        drop(latch.exclusive().unwrap());
        assert_eq!(latch.validate(seen), Err(Conflict));
        assert_eq!(latch.upgrade(seen).map(drop), Err(Conflict));
    }

    #[test]
    fn shared_holds_off_writers_but_not_readers() {
        let word = Word::new(0);
        let latch = HybridLatch::new(&word);
        let seen = latch.optimistic().unwrap();
        let (one, two) = (latch.shared().unwrap(), latch.shared().unwrap());
        assert_eq!(latch.validate(seen), Ok(()));
        assert!(latch.exclusive().is_err() && latch.upgrade(seen).is_err());
        drop((one, two));
        assert!(latch.upgrade(seen).is_ok());
    }

    #[test]
    fn state_and_dirt_survive_a_release() {
        let word = Word::new(0);
        let latch = HybridLatch::new(&word);
        let mut guard = latch.exclusive().unwrap();
        guard.set_state(FrameState::Hot);
        guard.mark_dirty();
        let after = guard.version_after();
        drop(guard);
        assert_eq!(latch.optimistic(), Ok(after));
        assert!(after.is_dirty() && after.state() == FrameState::Hot);
    }

    #[test]
    fn the_version_wraps_without_touching_the_flags() {
        let word = Word::new(u64::MAX << 16 | (FrameState::Hot as u64) << STATE_SHIFT);
        drop(HybridLatch::new(&word).exclusive().unwrap());
        let version = HybridLatch::new(&word).optimistic().unwrap();
        assert_eq!((version.state(), version.is_dirty()), (FrameState::Hot, false));
    }
}
