//! Locks in remote memory that this process holds, and locks that it could not give back.
//!
//! [`RemoteLock::unlock`] or [`RemoteLock::write_unlock`] gives a [`RemoteLock`] back. If that fails, or if
//! the operation ends without it (a long network failure, a dropped future), the lock is *left*: it goes to a
//! list of the process, together with the page that still must be written if others may already see parts of
//! the change. Any later operation gives it back ([`Pool::give_back_left_locks`]). It may also be unknown
//! whether the lock was ever taken; then the version advances, so that a compare-and-swap still in flight
//! fails. A lock whose version is that of its data returns to the word that was found, unless the data was
//! written.
//!
//! [`Pool::take_over`] takes over the lock of a process that is gone, for a caller that can repair the data
//! it protects.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use pando_fabric::{Endpoint, GlobalAddr, Nanos, PageBuf, WORD};

use crate::error::{PoolError, Result};
use crate::leftovers::{Due, Order};
use crate::lock::{self, Awaited, Held, LeftLock, LeftLocks, LockedVersion, Owed, Together, lock_owner};
use crate::pool::Pool;
use crate::process::AttachSlot;

/// Number of times within its waiting time that a waiter checks whether the holder of a lock is alive.
pub const LOOKS_AT_HOLDER: Nanos = 16;

/// A lock that this process holds. Dropping it leaves the lock.
#[must_use = "dropped, the lock stays set until another operation gives it back"]
pub struct RemoteLock<'p> {
    left: &'p LeftLocks,
    at: GlobalAddr,
    /// The lock that is held, or may be.
    lock: Cell<Option<LockedVersion>>,
    /// Words that must be written before the lock is given back.
    owed: RefCell<Option<Owed>>,
    /// Whether a verb that changes the lock word is in flight.
    is_changing: Cell<bool>,
    /// Whether the word returns to what was found if nothing was written.
    restores: Cell<bool>,
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
        self.lock.get().expect("only a consuming method gives it back")
    }

    /// Version of the data after the unlock.
    pub fn next_version(&self) -> u64 {
        self.held().unlock_word()
    }

    /// Makes the word return to what was found if the lock is left without a WRITE. Needed if its version is
    /// that of its data, or if the lock was taken over and the data may be half changed.
    fn restores(self) -> Self {
        self.restores.set(true);
        self
    }

    /// Requires `page` to be written before the lock is given back, in any case: others may already see parts
    /// of the change. If the lock is left, it stays until `after` has happened.
    pub fn owe(&self, page: &PageBuf, after: Option<Arc<dyn Awaited>>) {
        // The lock is the first word of the page.
        let words = page.words()[1..].iter().map(|word| word.load(Relaxed)).collect();
        *self.owed.borrow_mut() = Some(Owed { to: self.at.add(WORD as u64), words, after });
    }

    /// Word while the lock is held.
    pub fn locked_word(&self) -> u64 {
        self.held().locked_word()
    }

    /// Gives the lock back with a new version; retries until `deadline`.
    ///
    /// # Errors
    /// Errors of the verbs; the lock is then left.
    pub async fn unlock<E: Endpoint>(self, ep: &E, deadline: Nanos) -> Result<()> {
        debug_assert!(self.owed.borrow().is_none(), "the page is to be written");
        let unlocked = self.while_changing(lock::unlock(ep, self.at, self.held(), deadline)).await;
        self.settle(unlocked)
    }

    /// Writes all words of `page` but the first behind the lock word and gives the lock back, in one chain;
    /// retries until `deadline`. What the page had to wait for has happened.
    ///
    /// # Errors
    /// Errors of the verbs; the lock is then left, and the page is written when it is given back.
    pub async fn write_unlock<E: Endpoint>(self, ep: &E, page: &PageBuf, deadline: Nanos) -> Result<()> {
        let after = self.owed.borrow_mut().take().and_then(|owed| owed.after);
        self.owe(page, after);
        self.write_owed(ep, Together::Chain, deadline).await
    }

    /// Writes `words` from `to` on and gives the lock back, in one chain if both are on one memory server;
    /// retries until `deadline`.
    ///
    /// # Errors
    /// Errors of the verbs; the lock is then left, and the words are written when it is given back.
    pub async fn write_words_unlock<E: Endpoint>(
        self,
        ep: &E,
        to: GlobalAddr,
        words: &[u64],
        deadline: Nanos,
    ) -> Result<()> {
        self.write_words(ep, Owed { to, words: words.into(), after: None }, Together::Chain, deadline).await
    }

    /// Writes `words`, which end at the lock word, and gives the lock back by the same WRITE; retries until
    /// `deadline`. Others may see the lock free before all words have landed.
    ///
    /// # Errors
    /// Errors of the verbs; the lock is then left, and the words are written when it is given back.
    pub async fn write_back<E: Endpoint>(self, ep: &E, words: &[u64], deadline: Nanos) -> Result<()> {
        let to = GlobalAddr::new(self.at.server(), self.at.offset() - (words.len() * WORD) as u64);
        self.write_words(ep, Owed { to, words: words.into(), after: None }, Together::OneWrite, deadline)
            .await
    }

    async fn write_words<E: Endpoint>(
        self,
        ep: &E,
        owed: Owed,
        together: Together,
        deadline: Nanos,
    ) -> Result<()> {
        *self.owed.borrow_mut() = Some(owed);
        self.write_owed(ep, together, deadline).await
    }

    async fn write_owed<E: Endpoint>(self, ep: &E, together: Together, deadline: Nanos) -> Result<()> {
        let owed = self.owed.borrow().clone().expect("just owed");
        let held = Held { at: self.at, lock: self.held() };
        let write = lock::write_words_unlock(ep, held, &owed, together, deadline);
        self.settle(self.while_changing(write).await)
    }

    /// Runs `change` of the protected data. If its future is dropped, the lock rests until none of its verbs
    /// can be in flight.
    pub(crate) async fn while_changing<T>(&self, change: impl Future<Output = T>) -> T {
        self.is_changing.set(true);
        let changed = change.await;
        self.is_changing.set(false);
        changed
    }

    fn settle(&self, done: Result<()>) -> Result<()> {
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

impl Pool {
    /// Takes the lock at `at`; retries until `deadline` (a time of [`Endpoint::now`]), but tries at least
    /// once.
    ///
    /// # Errors
    /// [`PoolError::LockTimedOut`] with the last holder seen; [`PoolError::ReadOnly`]; errors of the verbs.
    pub async fn lock<E: Endpoint>(&self, ep: &E, at: GlobalAddr, deadline: Nanos) -> Result<RemoteLock<'_>> {
        let owner = self.writer_slot()?;
        let lock = RemoteLock::new(&self.inner.left_locks, at);
        let locked = lock.while_changing(lock::lock_noting(ep, at, owner, deadline, &lock.lock)).await;
        locked.map(|_| lock)
    }

    /// Takes the lock at `at` if it is free and has version `version`: one compare-and-swap. If left without
    /// a WRITE, the lock returns to that version.
    ///
    /// # Errors
    /// [`PoolError::ReadOnly`] and errors of the verb.
    pub async fn try_lock_version<E: Endpoint>(
        &self,
        ep: &E,
        at: GlobalAddr,
        version: u64,
    ) -> Result<Option<RemoteLock<'_>>> {
        let owner = self.writer_slot()?;
        let lock = RemoteLock::new(&self.inner.left_locks, at).restores();
        let deadline = self.deadline(ep);
        let locking = lock::try_lock_noting(ep, at, owner, version, &lock.lock, deadline);
        Ok(lock.while_changing(locking).await?.map(|_| lock))
    }

    /// Takes over the lock at `at` from `gone`, an [abandoned](Pool::is_abandoned) process; `None` if that
    /// process no longer holds it. The protected data may be half changed; if the lock is [left](RemoteLock)
    /// without a WRITE, it belongs to `gone` again.
    ///
    /// # Errors
    /// [`PoolError::ReadOnly`] and errors of the verbs.
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
        let taken = lock.while_changing(lock::take_over(ep, at, owner, word, &lock.lock)).await;
        Ok(taken?.map(|_| {
            self.inner.locks_taken_over.fetch_add(1, Relaxed);
            lock
        }))
    }

    /// Number of locks that this process took over from dead processes.
    pub fn locks_taken_over(&self) -> u64 {
        self.inner.locks_taken_over.load(Relaxed)
    }

    /// Whether the process in attach slot `slot` died or detached, so that it will never give its locks back.
    /// May wait for memory servers, and ensures that no verb of a process that was given up takes effect any
    /// more.
    ///
    /// # Errors
    /// Errors of verbs.
    pub async fn is_abandoned<E: Endpoint>(&self, ep: &E, slot: AttachSlot) -> Result<bool> {
        if Some(slot) == self.slot() {
            return Ok(false);
        }
        match self.live_process(ep, slot).await {
            Ok(process) => Ok(process.is_none()),
            Err(PoolError::NotClosedCleanly { .. }) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Whether this process has left locks for [`Pool::give_back_left_locks`].
    #[inline]
    pub fn has_left_locks(&self) -> bool {
        self.inner.left_locks.any()
    }

    /// Whether there are left locks but those whose pages wait for something.
    pub fn has_left_locks_due(&self) -> bool {
        self.inner.left_locks.has(LeftLock::may_be_given_back)
    }

    /// Time until which left locks rest, or the last one rested.
    pub fn left_locks_rest_until(&self, now: Nanos) -> Nanos {
        self.inner.left_locks.rests_until(now, self.verbs_take())
    }

    /// Gives back the locks that this process left, in order, as far as they are due. Does nothing while
    /// another call runs.
    ///
    /// # Errors
    /// Errors of the verbs; remaining locks stay left.
    pub async fn give_back_left_locks<E: Endpoint>(&self, ep: &E) -> Result<()> {
        let Some(mut finishing) = self.inner.left_locks.begin() else { return Ok(()) };
        let (verbs_take, may) = (self.verbs_take(), LeftLock::may_be_given_back);
        while let Some(left) = finishing.next_of(ep.now(), verbs_take, Order::AsLeft, may) {
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
        if self.has_drained(at.server()) {
            return Ok(());
        }
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
        let held = Held { at, lock };
        let Some(owed) = owed else {
            let word = if restores { lock.found_word() } else { lock.unlock_word() };
            return lock::store_in_place_of(ep, held, word, deadline).await;
        };
        lock::write_words_unlock(ep, held, owed, Together::Chain, deadline).await
    }
}
