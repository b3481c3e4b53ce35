//! Locks in remote memory, and reads that notice a writer (DEX §4, Algorithm 1, lines 1-8).
//!
//! The lock is the first word of what it protects: `[locked:1][owner's attach slot:15][version:48]`. A writer sets the
//! bit by compare-and-swap, writes, and stores the unlocked word with the next version behind its data, in one chain.
//! A reader reads the word, the whole, and the word again, each after the completion of the one before: two equal
//! unlocked words mean that no writer was there in between, whatever the order in which the fabric fetches lines.
//!
//! The version that an unlock will store is chosen with the lock, some random number above the one before, and stands in the
//! locked word already. So whoever lost the answer to a lock or an unlock sees by the word whether the lock is its own, and
//! not that of another thread of its process. What becomes of locks that nobody gives back is in `held.rs`.

use std::cell::Cell;

use pando_fabric::{Chain, Endpoint, FabricError, GlobalAddr, Nanos, PageBuf, VerbResult, WORD};

use crate::attach::AttachSlot;
use crate::error::{PoolError, Result};

const LOCKED: u64 = 1 << 63;
const VERSION_BITS: u32 = 48;
const VERSION_MASK: u64 = (1 << VERSION_BITS) - 1;

/// A lock that the caller holds, and the version that it found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the lock stays set until its unlock word is written"]
pub struct LockedVersion {
    /// The word as it was before.
    found: u64,
    next: u64,
    owner: AttachSlot,
}

/// Versions are skipped at random, fewer than so many: two threads of a process hardly ever draw the same one, and none comes again within
/// 2^16 changes, nor then but by chance.
const SKIPPED_MAX: u64 = 1 << 32;

impl LockedVersion {
    fn draw<E: Endpoint>(ep: &E, found: u64, owner: AttachSlot) -> Self {
        let version = found & VERSION_MASK;
        let next = version.wrapping_add(1 + (ep.random() >> 32) % SKIPPED_MAX) & VERSION_MASK;
        Self { found, next, owner }
    }

    /// The version of what the lock protects, before any change.
    pub fn version(self) -> u64 {
        self.found & VERSION_MASK
    }

    /// What to store to unlock: the next version.
    pub fn unlock_word(self) -> u64 {
        unlock_word(self.next)
    }

    /// The word as long as the lock is held.
    pub(crate) fn locked_word(self) -> u64 {
        locked_word(self.next, self.owner)
    }

    /// The word as it was before: free, or locked by whom the lock was taken over from.
    pub(crate) fn found_word(self) -> u64 {
        self.found
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
    lock_noting(ep, at, owner, deadline, &Cell::new(None)).await
}

/// [`lock`], with what may have been locked in `trying` for as long as nobody knows: also when this fails, and when its future
/// is dropped.
pub(crate) async fn lock_noting<E: Endpoint>(
    ep: &E,
    at: GlobalAddr,
    owner: AttachSlot,
    deadline: Nanos,
    trying: &Cell<Option<LockedVersion>>,
) -> Result<LockedVersion> {
    let mut word = ep.read_word(at).await?;
    loop {
        if unlocked_version(word).is_some() {
            let locked = LockedVersion::draw(ep, word, owner);
            trying.set(Some(locked));
            match ep.compare_swap(at, word, locked.locked_word()).await {
                Ok(before) if before == word => return Ok(locked),
                Ok(before) => word = before,
                Err(error) if error.may_have_taken_effect() => {
                    if is_held(ep, at, locked, deadline).await? {
                        return Ok(locked);
                    }
                    trying.set(None);
                    return Err(error.into());
                }
                Err(error) => {
                    trying.set(None);
                    return Err(error.into());
                }
            }
            trying.set(None);
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

/// [`try_lock_version`], with what may have been locked in `trying` for as long as nobody knows: also when this fails, and when
/// its future is dropped.
pub(crate) async fn try_lock_noting<E: Endpoint>(
    ep: &E,
    at: GlobalAddr,
    owner: AttachSlot,
    version: u64,
    trying: &Cell<Option<LockedVersion>>,
    deadline: Nanos,
) -> Result<Option<LockedVersion>> {
    let expected = unlock_word(version);
    let locked = LockedVersion::draw(ep, expected, owner);
    trying.set(Some(locked));
    let is_locked = match ep.compare_swap(at, expected, locked.locked_word()).await {
        Ok(before) => before == expected,
        Err(error) if error.may_have_taken_effect() => is_held(ep, at, locked, deadline).await?,
        Err(error) => {
            trying.set(None);
            return Err(error.into());
        }
    };
    if !is_locked {
        trying.set(None);
    }
    Ok(is_locked.then_some(locked))
}

/// Does what gives back the lock at `at`, again for as long as nobody knows whether that took effect, until `deadline`.
async fn until_settled<E: Endpoint, T>(
    ep: &E,
    (at, lock): (GlobalAddr, LockedVersion),
    deadline: Nanos,
    attempt: impl AsyncFn() -> std::result::Result<T, FabricError>,
) -> Result<()> {
    loop {
        match attempt().await {
            Ok(_) => return Ok(()),
            Err(error) if !error.is_unreachable() => return Err(error.into()),
            Err(_) if !is_held(ep, at, lock, deadline).await? => return Ok(()),
            Err(error) if ep.now() >= deadline => return Err(error.into()),
            Err(_) => {}
        }
    }
}

/// Unlocks what the caller holds. As long as nobody knows whether that took effect it is done again, until `deadline`.
///
/// # Errors
/// Those of the verbs; the lock may still be set.
pub async fn unlock<E: Endpoint>(ep: &E, at: GlobalAddr, lock: LockedVersion, deadline: Nanos) -> Result<()> {
    store_in_place_of(ep, (at, lock), lock.unlock_word(), deadline).await
}

/// Stores `word` in place of the lock, which the caller holds. As long as nobody knows whether that took effect it is done again,
/// until `deadline`.
///
/// # Errors
/// Those of the verbs; the lock may still be set.
pub(crate) async fn store_in_place_of<E: Endpoint>(
    ep: &E,
    held: (GlobalAddr, LockedVersion),
    word: u64,
    deadline: Nanos,
) -> Result<()> {
    until_settled(ep, held, deadline, async || ep.write_word(held.0, word).await).await
}

/// Takes over the lock of a process that is gone, whose locked word is `word`; `None` if it is not that any more. What it
/// protects may be half changed.
///
/// # Errors
/// Those of the verb.
pub(crate) async fn take_over<E: Endpoint>(
    ep: &E,
    at: GlobalAddr,
    owner: AttachSlot,
    word: u64,
    trying: &Cell<Option<LockedVersion>>,
) -> Result<Option<LockedVersion>> {
    let locked = LockedVersion::draw(ep, word, owner);
    trying.set(Some(locked));
    let before = ep.compare_swap(at, word, locked.locked_word()).await?;
    if before != word {
        trying.set(None);
    }
    Ok((before == word).then_some(locked))
}

/// How words are written together with the word that unlocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Together {
    /// By two WRITEs of one chain, in this order.
    Chain,
    /// By one WRITE: the words end where the lock is. Some of them may land after it.
    OneWrite,
}

/// Writes `words` from `to` on, and unlocks. As long as nobody knows whether all of that took effect it is done again, until
/// `deadline`.
///
/// # Errors
/// Those of the verbs; the lock may still be set, and the words written in part.
pub(crate) async fn write_words_unlock<E: Endpoint>(
    ep: &E,
    held: (GlobalAddr, LockedVersion),
    write: (GlobalAddr, &[u64]),
    together: Together,
    deadline: Nanos,
) -> Result<()> {
    until_settled(ep, held, deadline, async || try_write_words_unlock(ep, held, write, together).await).await
}

async fn try_write_words_unlock<E: Endpoint>(
    ep: &E,
    (at, lock): (GlobalAddr, LockedVersion),
    (to, words): (GlobalAddr, &[u64]),
    together: Together,
) -> std::result::Result<(), FabricError> {
    let is_one = together == Together::OneWrite;
    let buf = ep.buffer((words.len() + usize::from(is_one)) * WORD);
    words.iter().enumerate().for_each(|(word, &value)| buf.set(word, value));
    let buf = match together {
        Together::OneWrite => {
            debug_assert_eq!(to.add((words.len() * WORD) as u64), at, "the words end where the lock is");
            buf.set(words.len(), lock.unlock_word());
            Some(ep.write(to, buf).await?)
        }
        Together::Chain if to.server() == at.server() => {
            let chain = Chain::new().write(to, buf).write_word(at, lock.unlock_word());
            match ep.submit(chain).await?.swap_remove(0) {
                VerbResult::Buf(buf) => Some(buf),
                _ => None,
            }
        }
        Together::Chain => {
            let buf = ep.write(to, buf).await?;
            ep.write_word(at, lock.unlock_word()).await?;
            Some(buf)
        }
    };
    buf.into_iter().for_each(|buf| ep.recycle(buf));
    Ok(())
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
            Err(error) if !error.is_unreachable() || ep.now() >= deadline => return Err(error.into()),
            Err(_) => ep.yield_now().await,
        }
    }
}

/// What an optimistic read has seen.
#[derive(Debug)]
pub enum Seen {
    /// All of it at one version.
    Whole { version: u64, page: PageBuf },
    /// A writer holds the lock.
    Locked { holder: AttachSlot },
    /// A writer was there meanwhile.
    Changed,
}

/// Reads the window of `buf` from `at` on, which is recycled if a writer was there.
///
/// # Errors
/// Those of the verbs.
pub async fn read_optimistic<E: Endpoint>(ep: &E, at: GlobalAddr, buf: PageBuf) -> Result<Seen> {
    let before = ep.read_word(at).await?;
    if let Some(holder) = lock_owner(before) {
        ep.recycle(buf);
        return Ok(Seen::Locked { holder });
    }
    let page = ep.read(at, buf).await?;
    let after = ep.read_word(at).await?;
    if after != before {
        ep.recycle(page);
        return Ok(Seen::Changed);
    }
    Ok(Seen::Whole { version: before & VERSION_MASK, page })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_lock_word_come_back() {
        let word = locked_word(VERSION_MASK, AttachSlot(0x7fff));
        assert_eq!((unlocked_version(word), lock_owner(word)), (None, Some(AttachSlot(0x7fff))));
        let locked = LockedVersion { found: VERSION_MASK - 1, next: VERSION_MASK, owner: AttachSlot(0x7fff) };
        assert_eq!(locked.locked_word(), word);
        assert_eq!(unlocked_version(locked.unlock_word()), Some(VERSION_MASK));
        assert_eq!(lock_owner(locked.unlock_word()), None);
    }
}
