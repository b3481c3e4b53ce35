//! Locks in remote memory that this process holds, and those that it could not give back.
//!
//! A [`RemoteLock`] is given back by [`RemoteLock::unlock`] or [`RemoteLock::write_unlock`]. If that fails, or the operation ends
//! without it, since the network was cut for longer than anybody waits or its future was dropped, the lock is *left*: it goes to
//! a list of the process, together with the page that is yet to be written if others could see parts of the change already,
//! and any operation gives it back later ([`Pool::give_back_left_locks`]). Whether it was ever taken may be unknown too;
//! then the version of the word goes on, so that a compare-and-swap that is still under way finds another word.
//! A lock whose version is that of what it protects goes back to the word that was found, unless that was written.
//!
//! A lock of a process that is gone is taken over ([`Pool::take_over`]) by whoever knows how to put right what it protects.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use pando_fabric::{Endpoint, GlobalAddr, Nanos, PageBuf, WORD};

use crate::attach::AttachSlot;
use crate::error::{PoolError, Result};
use crate::leftovers::{Due, Leftovers, Order};
use crate::lock::{self, LockedVersion, Together, lock_owner};
use crate::pool::Pool;

/// How many times in the time that it has a waiter looks whether the holder of a lock still lives.
pub const LOOKS_AT_HOLDER: Nanos = 16;

/// A lock that this process holds. Dropped, it is left.
#[must_use = "dropped, the lock stays set until another operation gives it back"]
pub struct RemoteLock<'p> {
    left: &'p LeftLocks,
    at: GlobalAddr,
    /// What is held, or may be.
    lock: Cell<Option<LockedVersion>>,
    /// What is to be written before the lock is given back.
    owed: RefCell<Option<Owed>>,
    /// A verb that changes the lock word is under way.
    is_changing: Cell<bool>,
    /// Given back without a WRITE, the word is as it was found.
    restores: Cell<bool>,
}

/// Words, and where they are to be written.
#[derive(Clone)]
struct Owed {
    to: GlobalAddr,
    words: Arc<[u64]>,
}

impl<'p> RemoteLock<'p> {
    fn new(left: &'p LeftLocks, at: GlobalAddr) -> Self {
        let (lock, owed) = (Cell::new(None), RefCell::new(None));
        Self { left, at, lock, owed, is_changing: Cell::new(false), restores: Cell::new(false) }
    }

    pub fn at(&self) -> GlobalAddr {
        self.at
    }

    fn held(&self) -> LockedVersion {
        self.lock.get().expect("given back only by who has it as a value")
    }

    /// The version of what the lock protects once it is unlocked.
    pub fn next_version(&self) -> u64 {
        self.held().unlock_word()
    }

    /// If it is left without a WRITE, the word is to be as it was found: its version is that of what it protects, or it was taken
    /// over from somebody who may have left that half changed.
    fn restores(self) -> Self {
        self.restores.set(true);
        self
    }

    /// Whatever happens, `page` is to be written before the lock is given back: others can see parts of the change already.
    pub fn owe(&self, page: &PageBuf) {
        // The lock is the first word of the page.
        let words = page.words()[1..].iter().map(|word| word.load(Relaxed)).collect();
        *self.owed.borrow_mut() = Some(Owed { to: self.at.add(WORD as u64), words });
    }

    /// Gives the lock back, with a new version; tries until `deadline`.
    ///
    /// # Errors
    /// Those of the verbs; the lock is left then.
    pub async fn unlock<E: Endpoint>(self, ep: &E, deadline: Nanos) -> Result<()> {
        debug_assert!(self.owed.borrow().is_none(), "the page is to be written");
        self.is_changing.set(true);
        let unlocked = lock::unlock(ep, self.at, self.held(), deadline).await;
        self.settle(unlocked)
    }

    /// Writes all words of `page` but the first behind the lock word and gives the lock back, in one chain; tries until
    /// `deadline`.
    ///
    /// # Errors
    /// Those of the verbs; the lock is left then, and the page written when it is given back.
    pub async fn write_unlock<E: Endpoint>(self, ep: &E, page: &PageBuf, deadline: Nanos) -> Result<()> {
        self.owe(page);
        self.write_owed(ep, Together::Chain, deadline).await
    }

    /// Writes `words` from `to` on and gives the lock back, in one chain if both are on one memory server; tries until
    /// `deadline`.
    ///
    /// # Errors
    /// Those of the verbs; the lock is left then, and the words written when it is given back.
    pub async fn write_words_unlock<E: Endpoint>(
        self,
        ep: &E,
        to: GlobalAddr,
        words: &[u64],
        deadline: Nanos,
    ) -> Result<()> {
        self.write_words(ep, (to, words), Together::Chain, deadline).await
    }

    /// Writes `words`, which end where the lock is, and gives the lock back by the same WRITE; tries until `deadline`. Others may
    /// see the lock free before all words are there.
    ///
    /// # Errors
    /// Those of the verbs; the lock is left then, and the words written when it is given back.
    pub async fn write_back<E: Endpoint>(self, ep: &E, words: &[u64], deadline: Nanos) -> Result<()> {
        let to = GlobalAddr::new(self.at.server(), self.at.offset() - (words.len() * WORD) as u64);
        self.write_words(ep, (to, words), Together::OneWrite, deadline).await
    }

    async fn write_words<E: Endpoint>(
        self,
        ep: &E,
        (to, words): (GlobalAddr, &[u64]),
        together: Together,
        deadline: Nanos,
    ) -> Result<()> {
        *self.owed.borrow_mut() = Some(Owed { to, words: words.into() });
        self.write_owed(ep, together, deadline).await
    }

    async fn write_owed<E: Endpoint>(self, ep: &E, together: Together, deadline: Nanos) -> Result<()> {
        let Owed { to, words } = self.owed.borrow().clone().expect("just owed");
        self.is_changing.set(true);
        let held = (self.at, self.held());
        let written = lock::write_words_unlock(ep, held, (to, &words), together, deadline).await;
        self.settle(written)
    }

    /// Runs `change` of what the lock protects. Dropped midway, the lock rests until no verb of it can be under way.
    pub(crate) async fn while_changing<T>(&self, change: impl Future<Output = T>) -> T {
        self.is_changing.set(true);
        let changed = change.await;
        self.is_changing.set(false);
        changed
    }

    fn settle(&self, done: Result<()>) -> Result<()> {
        self.is_changing.set(false);
        if done.is_ok() {
            self.lock.set(None);
        }
        done
    }
}

impl Drop for RemoteLock<'_> {
    fn drop(&mut self) {
        if let Some(lock) = self.lock.get() {
            let due = if self.is_changing.get() { Due::Later } else { Due::Now };
            let (owed, restores) = (self.owed.take(), self.restores.get());
            self.left.push(LeftLock { at: self.at, lock, owed, restores }, due);
        }
    }
}

#[derive(Clone)]
pub(crate) struct LeftLock {
    at: GlobalAddr,
    lock: LockedVersion,
    owed: Option<Owed>,
    restores: bool,
}

/// The locks that this process left, in the order in which they are to be given back.
pub(crate) type LeftLocks = Leftovers<LeftLock>;

impl Pool {
    /// Takes the lock at `at`, trying until `deadline` (a moment of [`Endpoint::now`]), at least once.
    ///
    /// # Errors
    /// [`PoolError::LockTimedOut`] with the holder last seen, [`PoolError::ReadOnly`], and those of the verbs.
    pub async fn lock<E: Endpoint>(&self, ep: &E, at: GlobalAddr, deadline: Nanos) -> Result<RemoteLock<'_>> {
        let owner = self.writer_slot()?;
        let lock = RemoteLock::new(&self.inner.left_locks, at);
        lock.is_changing.set(true);
        let locked = lock::lock_noting(ep, at, owner, deadline, &lock.lock).await;
        lock.is_changing.set(false);
        locked.map(|_| lock)
    }

    /// Takes the lock at `at` if it is free and its version is `version`: one compare-and-swap. Left without a
    /// WRITE, it has that version again.
    ///
    /// # Errors
    /// [`PoolError::ReadOnly`] and those of the verb.
    pub async fn try_lock_version<E: Endpoint>(
        &self,
        ep: &E,
        at: GlobalAddr,
        version: u64,
    ) -> Result<Option<RemoteLock<'_>>> {
        let owner = self.writer_slot()?;
        let lock = RemoteLock::new(&self.inner.left_locks, at).restores();
        lock.is_changing.set(true);
        let deadline = self.deadline(ep);
        let locked = lock::try_lock_noting(ep, at, owner, version, &lock.lock, deadline).await;
        lock.is_changing.set(false);
        Ok(locked?.map(|_| lock))
    }

    /// Takes over the lock at `at` from `gone`, a process that is [abandoned](Pool::is_abandoned); `None` if it has it no more.
    /// What the lock protects may be half changed: the lock is still that of `gone` if it is [left](RemoteLock) without a WRITE.
    ///
    /// # Errors
    /// [`PoolError::ReadOnly`] and those of the verbs.
    pub async fn take_over<E: Endpoint>(
        &self,
        ep: &E,
        at: GlobalAddr,
        gone: AttachSlot,
    ) -> Result<Option<RemoteLock<'_>>> {
        let owner = self.writer_slot()?;
        let word = ep.read_word(at).await?;
        if lock_owner(word) != Some(gone) {
            return Ok(None);
        }
        let lock = RemoteLock::new(&self.inner.left_locks, at).restores();
        lock.is_changing.set(true);
        let taken = lock::take_over(ep, at, owner, word, &lock.lock).await;
        lock.is_changing.set(false);
        Ok(taken?.map(|_| {
            self.inner.locks_taken_over.fetch_add(1, Relaxed);
            lock
        }))
    }

    /// Locks of processes that are gone which this one has taken over.
    pub fn locks_taken_over(&self) -> u64 {
        self.inner.locks_taken_over.load(Relaxed)
    }

    /// Whether nobody will give back what the process in place `slot` has locked: it died, or has left. May wait for memory
    /// servers, and makes sure that nothing of a process that is given up takes effect any more.
    ///
    /// # Errors
    /// Those of verbs.
    pub async fn is_abandoned<E: Endpoint>(&self, ep: &E, slot: AttachSlot) -> Result<bool> {
        if Some(slot) == self.slot() || usize::from(slot.0) >= self.inner.max_attached {
            return Ok(false);
        }
        match self.live_process(ep, slot).await {
            Ok(process) => Ok(process.is_none()),
            Err(PoolError::NotClosedCleanly { .. }) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Whether this process left locks that can be given back by [`Pool::give_back_left_locks`].
    #[inline]
    pub fn has_left_locks(&self) -> bool {
        self.inner.left_locks.any()
    }

    /// Gives back the locks that this process left, in order, as far as they are due. Does nothing while another does.
    ///
    /// # Errors
    /// Those of the verbs; what was not given back stays left.
    pub async fn give_back_left_locks<E: Endpoint>(&self, ep: &E) -> Result<()> {
        let Some(mut finishing) = self.inner.left_locks.begin() else { return Ok(()) };
        while let Some(left) = finishing.next(ep.now(), self.verbs_take(), Order::AsLeft) {
            if let Err(error) = self.give_back_one(ep, &left).await {
                finishing.failed();
                return Err(error);
            }
            finishing.done();
        }
        Ok(())
    }

    async fn give_back_one<E: Endpoint>(&self, ep: &E, left: &LeftLock) -> Result<()> {
        let LeftLock { at, lock, ref owed, restores } = *left;
        loop {
            let word = ep.read_word(at).await?;
            if word == lock.locked_word() {
                break;
            }
            let was_taken = word != lock.found_word() || lock_owner(word).is_some();
            if was_taken || restores || ep.compare_swap(at, word, lock.unlock_word()).await? == word {
                return Ok(());
            }
        }
        let deadline = self.deadline(ep);
        let Some(Owed { to, words }) = owed else {
            let word = if restores { lock.found_word() } else { lock.unlock_word() };
            return lock::store_in_place_of(ep, (at, lock), word, deadline).await;
        };
        lock::write_words_unlock(ep, (at, lock), (*to, words), Together::Chain, deadline).await
    }
}
