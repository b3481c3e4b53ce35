//! Locks in remote memory, and reads that notice a writer (DEX §4, Algorithm 1, lines 1-8).
//!
//! The lock is the first word of what it protects: `[locked:1][owner's attach slot:15][version:48]`. A writer sets the
//! bit by compare-and-swap, writes, and stores the unlocked word with the next version behind its data, in one chain.
//! A reader reads the word, the whole, and the word again, each after the completion of the one before: two equal
//! unlocked words mean that no writer was there in between, whatever the order in which the fabric fetches lines.
//!
//! The version that an unlock will store is chosen with the lock, some random number above the one before, and stands in the
//! locked word already. So whoever lost the answer to a lock or an unlock sees by the word whether the lock is its own, and
//! not that of another thread of its process.

use pando_fabric::{Endpoint, GlobalAddr, Nanos, PageBuf};

use crate::attach::AttachSlot;
use crate::error::{PoolError, Result};

const LOCKED: u64 = 1 << 63;
const VERSION_BITS: u32 = 48;
const VERSION_MASK: u64 = (1 << VERSION_BITS) - 1;

/// A lock that the caller holds, and the version that it found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the lock stays set until its unlock word is written"]
pub struct LockedVersion {
    version: u64,
    next: u64,
    owner: AttachSlot,
}

/// Versions are skipped at random, fewer than so many: 48 bits of them last for billions of changes.
const SKIPPED_MAX: u64 = 1 << 16;

impl LockedVersion {
    fn draw<E: Endpoint>(ep: &E, version: u64, owner: AttachSlot) -> Self {
        let next = version.wrapping_add(1 + (ep.random() >> 32) % SKIPPED_MAX) & VERSION_MASK;
        Self { version, next, owner }
    }

    /// The version of what the lock protects, before any change.
    pub fn version(self) -> u64 {
        self.version
    }

    /// What to store to unlock: the next version.
    pub fn unlock_word(self) -> u64 {
        unlock_word(self.next)
    }

    /// The word as long as the lock is held.
    fn locked_word(self) -> u64 {
        locked_word(self.next, self.owner)
    }
}

/// The unlocked word of version `version` (48 bits of it).
pub fn unlock_word(version: u64) -> u64 {
    version & VERSION_MASK
}

/// Version of an unlocked word; `None` if the word is locked.
pub fn unlocked_version(word: u64) -> Option<u64> {
    (word & LOCKED == 0).then_some(word & VERSION_MASK)
}

/// Who holds a locked word; `None` if the word is unlocked.
pub fn lock_owner(word: u64) -> Option<AttachSlot> {
    (word & LOCKED != 0).then_some(AttachSlot((word >> VERSION_BITS) as u16 & 0x7fff))
}

fn locked_word(version: u64, owner: AttachSlot) -> u64 {
    LOCKED | u64::from(owner.0) << VERSION_BITS | version & VERSION_MASK
}

/// Takes the lock at `at` if it is free: a READ and a compare-and-swap.
///
/// # Errors
/// Those of the verbs.
pub async fn try_lock<E: Endpoint>(
    ep: &E,
    at: GlobalAddr,
    owner: AttachSlot,
) -> Result<Option<LockedVersion>> {
    let word = ep.read_word(at).await?;
    match unlocked_version(word) {
        Some(version) => try_lock_version(ep, at, owner, version).await,
        None => Ok(None),
    }
}

/// Takes the lock at `at` if it is free and its version is `version`: one compare-and-swap.
///
/// # Errors
/// Those of the verb.
pub async fn try_lock_version<E: Endpoint>(
    ep: &E,
    at: GlobalAddr,
    owner: AttachSlot,
    version: u64,
) -> Result<Option<LockedVersion>> {
    let expected = unlock_word(version);
    let locked = LockedVersion::draw(ep, expected, owner);
    let before = ep.compare_swap(at, expected, locked.locked_word()).await?;
    Ok((before == expected).then_some(locked))
}

/// Takes the lock at `at`, trying until `deadline` (a moment of [`Endpoint::now`]), at least once.
///
/// # Errors
/// [`PoolError::LockTimedOut`] with the holder last seen, and those of the verbs.
pub async fn lock<E: Endpoint>(
    ep: &E,
    at: GlobalAddr,
    owner: AttachSlot,
    deadline: Nanos,
) -> Result<LockedVersion> {
    let mut word = ep.read_word(at).await?;
    loop {
        if let Some(version) = unlocked_version(word) {
            let locked = LockedVersion::draw(ep, version, owner);
            match ep.compare_swap(at, word, locked.locked_word()).await {
                Ok(before) if before == word => return Ok(locked),
                Ok(before) => word = before,
                Err(error) if !error.may_have_taken_effect() => return Err(error.into()),
                Err(_) if is_held(ep, at, locked, deadline).await? => return Ok(locked),
                Err(error) => return Err(error.into()),
            }
        }
        if let Some(holder) = lock_owner(word) {
            if ep.now() >= deadline {
                return Err(PoolError::LockTimedOut { at, holder });
            }
            ep.yield_now().await;
            word = ep.read_word(at).await?;
        }
    }
}

/// Unlocks what the caller holds. As long as nobody knows whether that took effect it is done again, until `deadline`.
///
/// # Errors
/// Those of the verbs; the lock may still be set.
pub async fn unlock<E: Endpoint>(ep: &E, at: GlobalAddr, lock: LockedVersion, deadline: Nanos) -> Result<()> {
    loop {
        match ep.write_word(at, lock.unlock_word()).await {
            Ok(()) => return Ok(()),
            Err(error) if !error.may_have_taken_effect() => return Err(error.into()),
            Err(_) if is_held(ep, at, lock, deadline).await? => {}
            Err(_) => return Ok(()),
        }
    }
}

/// Whether a lock that the caller tried to take or to give back is its own, by a READ that is done again until `deadline` if
/// it gets no answer.
///
/// # Errors
/// Those of the READ.
pub async fn is_held<E: Endpoint>(
    ep: &E,
    at: GlobalAddr,
    lock: LockedVersion,
    deadline: Nanos,
) -> Result<bool> {
    loop {
        match ep.read_word(at).await {
            Ok(word) => return Ok(word == lock.locked_word()),
            Err(error) if !error.may_have_taken_effect() || ep.now() >= deadline => return Err(error.into()),
            Err(_) => ep.yield_now().await,
        }
    }
}

/// Reads the window of `buf` from `at` on; the version that all of it has, or `None` if a writer was there, in
/// which case the buffer is recycled.
///
/// # Errors
/// Those of the verbs.
pub async fn read_optimistic<E: Endpoint>(
    ep: &E,
    at: GlobalAddr,
    buf: PageBuf,
) -> Result<Option<(u64, PageBuf)>> {
    let before = ep.read_word(at).await?;
    let Some(version) = unlocked_version(before) else {
        ep.recycle(buf);
        return Ok(None);
    };
    let buf = ep.read(at, buf).await?;
    let after = ep.read_word(at).await?;
    if after != before {
        ep.recycle(buf);
        return Ok(None);
    }
    Ok(Some((version, buf)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_lock_word_come_back() {
        let word = locked_word(VERSION_MASK, AttachSlot(0x7fff));
        assert_eq!((unlocked_version(word), lock_owner(word)), (None, Some(AttachSlot(0x7fff))));
        let locked =
            LockedVersion { version: VERSION_MASK - 1, next: VERSION_MASK, owner: AttachSlot(0x7fff) };
        assert_eq!(locked.locked_word(), word);
        assert_eq!(unlocked_version(locked.unlock_word()), Some(VERSION_MASK));
        assert_eq!(lock_owner(locked.unlock_word()), None);
    }
}
