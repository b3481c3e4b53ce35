//! Locks in remote memory, and reads that detect a writer (DEX §4, Algorithm 1, lines 1-8).
//!
//! The lock is the first word of its data: `[locked:1][owner's attach slot:15][version:48]`. A writer sets
//! the bit by compare-and-swap, writes, and stores the unlocked word with the next version behind its data,
//! in one chain. A reader reads the word, all of the data, and the word again, each after the completion of
//! the one before. Two equal unlocked words mean that no writer intervened, in whatever order the fabric
//! fetches lines.
//!
//! The lock draws the version that its unlock will store, a random number above the old one, and puts it into
//! the locked word already. So after a lost answer to a lock or an unlock, the word tells whether the lock is
//! the caller's own, and not that of another thread of its process. Locks that are not given back are
//! described in `held.rs`.

use std::cell::Cell;
use std::sync::Arc;

use pando_fabric::{Chain, Endpoint, FabricError, GlobalAddr, Nanos, PageBuf, VerbResult, WORD};

use crate::error::{PoolError, Result};
use crate::leftovers::Leftovers;
use crate::process::AttachSlot;

const LOCKED: u64 = 1 << 63;
const VERSION_BITS: u32 = 48;
const VERSION_MASK: u64 = (1 << VERSION_BITS) - 1;

/// A lock that the caller holds, and the version that it found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the lock stays set until its unlock word is written"]
pub struct LockedVersion {
    /// The word before the lock was taken.
    found: u64,
    next: u64,
    owner: AttachSlot,
}

/// Bound of the random step between versions. Two threads of a process rarely draw the same version, and none
/// recurs within 2^16 changes, or later except by chance.
const SKIPPED_MAX: u64 = 1 << 32;

impl LockedVersion {
    fn draw<E: Endpoint>(ep: &E, found: u64, owner: AttachSlot) -> Self {
        let version = found & VERSION_MASK;
        let next = version.wrapping_add(1 + (ep.random() >> 32) % SKIPPED_MAX) & VERSION_MASK;
        Self { found, next, owner }
    }

    /// Version of the data before any change.
    pub fn version(self) -> u64 {
        self.found & VERSION_MASK
    }

    /// Word that unlocks: the next version.
    pub fn unlock_word(self) -> u64 {
        unlock_word(self.next)
    }

    /// Word while the lock is held.
    pub(crate) fn locked_word(self) -> u64 {
        locked_word(self.next, self.owner)
    }

    /// Word before the lock was taken: free, or locked by the process from which it was taken over.
    pub(crate) fn found_word(self) -> u64 {
        self.found
    }
}

/// What must have happened before words are written. It lives until they are.
pub trait Awaited: Send + Sync {
    fn has_happened(&self) -> bool;

    /// Whether the words must be persisted before the lock is given back: it tells whether they were written.
    fn persists(&self) -> bool {
        false
    }
}

/// Words and their destination.
#[derive(Clone)]
pub(crate) struct Owed {
    pub to: GlobalAddr,
    pub words: Arc<[u64]>,
    pub after: Option<Arc<dyn Awaited>>,
}

/// A lock that its operation did not give back.
#[derive(Clone)]
pub(crate) struct LeftLock {
    pub at: GlobalAddr,
    pub lock: LockedVersion,
    pub owed: Option<Owed>,
    pub restores: bool,
}

impl LeftLock {
    /// Whether what its page had to wait for has happened.
    pub fn may_be_given_back(&self) -> bool {
        self.owed.as_ref().and_then(|owed| owed.after.as_ref()).is_none_or(|after| after.has_happened())
    }
}

/// Locks that this process left, in the order in which they are given back.
pub(crate) type LeftLocks = Leftovers<LeftLock>;

/// Unlocked word with the low 48 bits of `version`.
pub fn unlock_word(version: u64) -> u64 {
    version & VERSION_MASK
}

/// Version of an unlocked word; `None` if the word is locked.
pub fn unlocked_version(word: u64) -> Option<u64> {
    (word & LOCKED == 0).then_some(word & VERSION_MASK)
}

/// Holder of a locked word; `None` if the word is unlocked.
pub fn lock_owner(word: u64) -> Option<AttachSlot> {
    (word & LOCKED != 0).then_some(AttachSlot((word >> VERSION_BITS) as u16 & 0x7fff))
}

fn locked_word(version: u64, owner: AttachSlot) -> u64 {
    LOCKED | u64::from(owner.0) << VERSION_BITS | version & VERSION_MASK
}

/// Takes the lock at `at` if it is free: a READ and a compare-and-swap.
///
/// # Errors
/// Errors of the verbs.
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

/// Takes the lock at `at` if it is free and has version `version`: one compare-and-swap.
///
/// # Errors
/// Errors of the verb.
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

/// Takes the lock at `at`; retries until `deadline` (a time of [`Endpoint::now`]), but tries at least once.
///
/// # Errors
/// [`PoolError::LockTimedOut`] with the last holder seen; errors of the verbs.
pub async fn lock<E: Endpoint>(
    ep: &E,
    at: GlobalAddr,
    owner: AttachSlot,
    deadline: Nanos,
) -> Result<LockedVersion> {
    lock_noting(ep, at, owner, deadline, &Cell::new(None)).await
}

/// [`lock`]; while the outcome is not known, `trying` holds the lock that may have been taken, also after an
/// error or if the future is dropped.
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

/// [`try_lock_version`]; while the outcome is not known, `trying` holds the lock that may have been taken,
/// also after an error or if the future is dropped.
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

/// A lock that the caller holds, and its address.
#[derive(Clone, Copy)]
pub(crate) struct Held {
    pub at: GlobalAddr,
    pub lock: LockedVersion,
}

/// Repeats `attempt`, which gives back the lock, while it is not known whether it took effect, until
/// `deadline`.
async fn until_settled<E: Endpoint, T>(
    ep: &E,
    held: Held,
    deadline: Nanos,
    attempt: impl AsyncFn() -> std::result::Result<T, FabricError>,
) -> Result<()> {
    loop {
        match attempt().await {
            Ok(_) => return Ok(()),
            Err(error) if !error.is_unreachable() => return Err(error.into()),
            Err(_) if !is_held(ep, held.at, held.lock, deadline).await? => return Ok(()),
            Err(error) if ep.now() >= deadline => return Err(error.into()),
            Err(_) => {}
        }
    }
}

/// Gives back a lock that the caller holds. Repeats that while it is not known whether it took effect, until
/// `deadline`.
///
/// # Errors
/// Errors of the verbs; the lock may still be set.
pub async fn unlock<E: Endpoint>(ep: &E, at: GlobalAddr, lock: LockedVersion, deadline: Nanos) -> Result<()> {
    store_in_place_of(ep, Held { at, lock }, lock.unlock_word(), deadline).await
}

/// Stores `word` in place of a lock that the caller holds. Repeats that while it is not known whether it took
/// effect, until `deadline`.
///
/// # Errors
/// Errors of the verbs; the lock may still be set.
pub(crate) async fn store_in_place_of<E: Endpoint>(
    ep: &E,
    held: Held,
    word: u64,
    deadline: Nanos,
) -> Result<()> {
    until_settled(ep, held, deadline, async || ep.write_word(held.at, word).await).await
}

/// Takes over the lock of a dead process, whose locked word is `word`; `None` if the word has changed. The
/// protected data may be half changed.
///
/// # Errors
/// Errors of the verb.
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

/// How words are written together with the unlock word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Together {
    /// By two WRITEs of one chain, in this order, unless the words are persisted in between.
    Chain,
    /// By one WRITE: the words end at the lock word. Some of them may land after it.
    OneWrite,
}

/// Writes what is owed, and unlocks. Repeats that while it is not known whether it took effect, until
/// `deadline`.
///
/// # Errors
/// Errors of the verbs; the lock may still be set, and only some of the words written. Each says that it may have taken effect: what is
/// owed is written later, when the lock is given back.
pub(crate) async fn write_words_unlock<E: Endpoint>(
    ep: &E,
    held: Held,
    owed: &Owed,
    together: Together,
    deadline: Nanos,
) -> Result<()> {
    let attempt = async || try_write_words_unlock(ep, held, owed, together).await;
    until_settled(ep, held, deadline, attempt).await.map_err(|error| match error {
        PoolError::Fabric(error) => error.as_unknown().into(),
        error => error,
    })
}

async fn try_write_words_unlock<E: Endpoint>(
    ep: &E,
    Held { at, lock }: Held,
    Owed { to, words, after }: &Owed,
    together: Together,
) -> std::result::Result<(), FabricError> {
    let is_one = together == Together::OneWrite;
    let buf = ep.buffer((words.len() + usize::from(is_one)) * WORD);
    words.iter().enumerate().for_each(|(word, &value)| buf.set(word, value));
    let buf = match together {
        Together::OneWrite => {
            debug_assert_eq!(to.add((words.len() * WORD) as u64), at, "the words end where the lock is");
            buf.set(words.len(), lock.unlock_word());
            Some(ep.write_unlocking(*to, buf).await?)
        }
        _ if after.as_ref().is_some_and(|after| after.persists()) => {
            let buf = ep.write(*to, buf).await?;
            ep.persist(*to, (words.len() * WORD) as u64).await?;
            ep.write_word(at, lock.unlock_word()).await?;
            Some(buf)
        }
        Together::Chain if to.server() == at.server() => {
            let chain = Chain::new().write(*to, buf).write_word(at, lock.unlock_word());
            match ep.submit(chain).await?.swap_remove(0) {
                VerbResult::Buf(buf) => Some(buf),
                _ => None,
            }
        }
        Together::Chain => {
            let buf = ep.write(*to, buf).await?;
            ep.write_word(at, lock.unlock_word()).await?;
            Some(buf)
        }
    };
    buf.into_iter().for_each(|buf| ep.recycle(buf));
    Ok(())
}

/// Whether the caller holds the lock that it tried to take or to give back. Repeats an unanswered READ until
/// `deadline`.
///
/// # Errors
/// Errors of the READ.
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

/// Result of an optimistic read.
#[derive(Debug)]
pub enum Seen {
    /// All of the data at one version.
    Whole { version: u64, page: PageBuf },
    /// A writer holds the lock.
    Locked { holder: AttachSlot },
    /// A writer intervened.
    Changed,
}

/// Reads the window of `buf` from `at` on; recycles `buf` if a writer intervened.
///
/// # Errors
/// Errors of the verbs.
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
