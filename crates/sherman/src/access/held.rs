//! Locks held by an operation, its writes under them, and their release.
//!
//! [`Held::finish`] does all writes, in order, and then releases all locks, in order. So the next holder of a
//! lock finds everything written. With command combination (Sherman §4.5), all verbs to one memory server go
//! in one chain, and the last write goes together with the release of the first lock. Only splits and merges
//! hold several locks; all but the first are tried and never waited for, which rules out deadlock.
//!
//! If that fails, or the operation's future is dropped, the rest goes to the list of unfinished work
//! (`unfinished.rs`): the locks stay closed to others until it is done.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;

use pando_fabric::defect::defect;
use pando_fabric::{Chain, Endpoint, FabricError, GlobalAddr, Nanos, PageBuf, VerbResult, WORD};
use pando_pool::lock::{lock_owner, unlocked_version};
use pando_pool::{AttachSlot, Due, PoolError};

use crate::defect::Defect;
use crate::error::{Attempt, Result, ShermanError};
use crate::lock::{Lock, LockWord, Queues, Turn, Unfinished, Waiter, Woken, Write, node_number};
use crate::options::Release;
use crate::tree::Sherman;
use crate::waiting::Watch;

/// Locks that an operation holds. If dropped, they are left to be released by another operation.
#[must_use = "dropped, the locks stay set until another operation gives them back"]
pub(crate) struct Held<'t> {
    tree: &'t Sherman,
    locks: Vec<Lock>,
    writes: Vec<Write>,
    /// Whether verbs with effects are in flight.
    is_changing: bool,
}

/// Result of trying a lock without waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Got {
    Lock,
    /// The lock word is held already, for another node.
    SameWord,
    Busy,
}

impl Sherman {
    /// Locks the node at `addr`, waiting for other holders. Nodes that belong to this compute server alone
    /// (`is_own`) have no remote lock.
    pub(crate) async fn lock<E: Endpoint>(
        &self,
        ep: &E,
        addr: GlobalAddr,
        is_own: bool,
    ) -> Attempt<Held<'_>> {
        // Unfinished work that cannot be done now may be unrelated, so errors are ignored.
        let _ = self.settle(ep).await;
        let mut held =
            Held { tree: self, locks: Vec::with_capacity(1), writes: Vec::new(), is_changing: false };
        held.enter(ep, addr, is_own).await?;
        if is_own || held.locks[0].word.is_some() {
            return Ok(held);
        }
        let mut watch = Watch::new(self.config.patience_ns);
        while let Some(busy) = held.try_word(ep, 0).await? {
            self.watch(ep, self.lock_addr(addr), busy, &mut watch).await?;
        }
        Ok(held)
    }

    /// Takes over the lock `word` of a dead process; `None` if that process no longer holds it.
    pub(crate) async fn take_over<E: Endpoint>(
        &self,
        ep: &E,
        node: GlobalAddr,
        word: u64,
    ) -> Attempt<Option<Held<'_>>> {
        let locks = vec![Lock { node, queue: None, word: None }];
        let mut held = Held { tree: self, locks, writes: Vec::new(), is_changing: false };
        let is_taken = held.swap_word(ep, 0, word).await? == word;
        Ok(is_taken.then_some(held))
    }

    /// Waits a little for `at`, and checks now and then whether the holder is alive.
    ///
    /// # Errors
    /// [`PoolError::LockTimedOut`], and corruption found on the way.
    pub(crate) async fn watch<E: Endpoint>(
        &self,
        ep: &E,
        at: GlobalAddr,
        word: u64,
        watch: &mut Watch,
    ) -> Attempt<()> {
        let Some(holder) = lock_owner(word) else {
            return match self.is_versioned() {
                true => Ok(()),
                false => {
                    Err(ShermanError::Corrupt { addr: at, reason: "a lock neither free nor taken" }.into())
                }
            };
        };
        if Some(holder) == self.pool.slot() && self.unfinished.any() {
            self.settle(ep).await?;
        } else if watch.is_long(ep, word) {
            // Boxed: it is rare, and keeps the futures of operations small.
            Box::pin(self.look_after(ep, at, word)).await?;
        }
        match watch.is_over(ep) {
            true => Err(PoolError::LockTimedOut { at, holder }.into()),
            false => {
                ep.yield_now().await;
                Ok(())
            }
        }
    }

    fn draw_word<E: Endpoint>(&self, ep: &E, node: GlobalAddr, found: u64) -> Result<LockWord> {
        let owner = self.pool.slot().ok_or(PoolError::ReadOnly)?;
        let number = node_number(node, self.shape.node_size());
        let random = ep.random();
        let nonce = self
            .nonces
            .take(random)
            .ok_or(ShermanError::TimedOut { what: "a lock word that is not in use" })?;
        Ok(LockWord::new(nonce, random, self.lock_addr(node), found, owner, number, self.is_versioned()))
    }

    /// Whether the remote lock is held. Repeats an unanswered READ until `deadline`.
    pub(crate) async fn is_held<E: Endpoint>(
        &self,
        ep: &E,
        word: &LockWord,
        deadline: Nanos,
    ) -> Result<bool> {
        loop {
            match ep.read_word(word.at).await {
                Ok(now) => return Ok(now == word.locked),
                Err(error) if !error.is_unreachable() || ep.now() >= deadline => {
                    return Err(error.into());
                }
                Err(_) => ep.yield_now().await,
            }
        }
    }

    /// Does writes to one memory server and then releases a lock there, in one chain; retries until
    /// `deadline`.
    pub(crate) async fn write_group<E: Endpoint>(
        &self,
        ep: &E,
        writes: &[Write],
        unlock: Option<&LockWord>,
        deadline: Nanos,
    ) -> Result<()> {
        let mut is_in_doubt = false;
        let failed = |error: FabricError, is_in_doubt| match is_in_doubt {
            true => ShermanError::Unfinished(error),
            false => error.into(),
        };
        loop {
            let Err(error) = self.try_write_group(ep, writes, unlock).await else { return Ok(()) };
            is_in_doubt |= error.may_have_taken_effect();
            if !error.is_unreachable() || ep.now() >= deadline {
                return Err(failed(error, is_in_doubt));
            }
            // The unlock is last in the chain: if it took effect, everything did, and others may hold the
            // lock already.
            if let Some(word) = unlock {
                match self.is_held(ep, word, deadline).await {
                    Ok(true) => {}
                    Ok(false) => return Ok(()),
                    Err(_) => return Err(failed(error, true)),
                }
            }
        }
    }

    async fn try_write_group<E: Endpoint>(
        &self,
        ep: &E,
        writes: &[Write],
        unlock: Option<&LockWord>,
    ) -> std::result::Result<(), FabricError> {
        let page = |write: &Write| {
            let page = ep.buffer(write.words.len() * WORD);
            page.words().iter().zip(&write.words).for_each(|(to, &from)| {
                to.store(from, Relaxed);
            });
            page
        };
        match (writes, unlock) {
            ([], Some(word)) => match self.options.release {
                Release::Write => ep.write_word(word.at, word.unlocked).await,
                Release::FetchAdd => ep.fetch_add(word.at, word.release_add()).await.map(drop),
            },
            ([write], None) => ep.write(write.at, page(write)).await.map(|page| ep.recycle(page)),
            _ => {
                let chain =
                    writes.iter().fold(Chain::new(), |chain, write| chain.write(write.at, page(write)));
                let chain = match (unlock, self.options.release) {
                    (None, _) => chain,
                    (Some(word), Release::Write) => chain.write_word(word.at, word.unlocked),
                    (Some(word), Release::FetchAdd) => chain.fetch_add(word.at, word.release_add()),
                };
                for result in ep.submit(chain).await? {
                    if let VerbResult::Buf(page) = result {
                        ep.recycle(page);
                    }
                }
                Ok(())
            }
        }
    }
}

impl<'t> Held<'t> {
    /// Enters the local queue of the node that is locked first, if it has one.
    async fn enter<E: Endpoint>(&mut self, ep: &E, node: GlobalAddr, is_own: bool) -> Result<()> {
        let Some(key) = self.tree.queue_key(node, is_own) else {
            self.locks.push(Lock { node, queue: None, word: None });
            return Ok(());
        };
        ep.charge(Queues::work(key));
        let turn = match self.tree.queues.enter(key, node) {
            None => Turn { word: None },
            Some(waiter) => Waiting { tree: self.tree, key, node, waiter: Some(waiter) }.turn(ep).await?,
        };
        self.locks.push(Lock { node, queue: Some(key), word: turn.word });
        Ok(())
    }

    /// Tries the lock of one more node.
    pub async fn try_add<E: Endpoint>(&mut self, ep: &E, node: GlobalAddr, is_own: bool) -> Result<Got> {
        let tree = self.tree;
        let key = tree.queue_key(node, is_own);
        let at = tree.lock_addr(node);
        if !is_own && self.locks.iter().any(|lock| lock.word.as_ref().is_some_and(|word| word.at == at)) {
            return Ok(Got::SameWord);
        }
        key.into_iter().for_each(|key| ep.charge(Queues::work(key)));
        if key.is_some_and(|key| !tree.queues.try_enter(key)) {
            return Ok(Got::Busy);
        }
        self.locks.push(Lock { node, queue: key, word: None });
        if is_own || self.try_word(ep, self.locks.len() - 1).await?.is_none() {
            return Ok(Got::Lock);
        }
        self.locks.pop();
        if let Some(key) = key {
            tree.queues.leave(key);
        }
        Ok(Got::Busy)
    }

    /// Takes over the lock of one more node if `gone`, a dead process, holds it.
    pub async fn take_over_too<E: Endpoint>(
        &mut self,
        ep: &E,
        node: GlobalAddr,
        gone: AttachSlot,
    ) -> Result<()> {
        let word = ep.read_word(self.tree.lock_addr(node)).await?;
        if lock_owner(word) == Some(gone) {
            self.locks.push(Lock { node, queue: None, word: None });
            if self.swap_word(ep, self.locks.len() - 1, word).await? != word {
                self.locks.pop();
            }
        }
        Ok(())
    }

    /// Tries the remote lock of the `i`-th node; returns the word if it is taken.
    async fn try_word<E: Endpoint>(&mut self, ep: &E, i: usize) -> Result<Option<u64>> {
        let at = self.tree.lock_addr(self.locks[i].node);
        let found = if self.tree.is_versioned() { ep.read_word(at).await? } else { 0 };
        if unlocked_version(found).is_none() {
            return Ok(Some(found));
        }
        let before = self.swap_word(ep, i, found).await?;
        Ok((before != found).then_some(before))
    }

    /// Locks the word of the `i`-th node if it is `found`; returns the word before.
    async fn swap_word<E: Endpoint>(&mut self, ep: &E, i: usize, found: u64) -> Result<u64> {
        let tree = self.tree;
        let word = tree.draw_word(ep, self.locks[i].node, found)?;
        // If dropped from here on, the lock may be held.
        (self.locks[i].word, self.is_changing) = (Some(word.clone()), true);
        let before = match ep.compare_swap(word.at, found, word.locked).await {
            Err(error) if error.may_have_taken_effect() => {
                match tree.is_held(ep, &word, tree.deadline(ep)).await {
                    Ok(true) => Ok(found),
                    Ok(false) => Err(error.into()),
                    Err(error) => {
                        // It is not known whether the lock is held, so it must not be released like a held
                        // one.
                        let locks = vec![Lock { queue: None, ..self.locks[i].clone() }];
                        tree.leave_unfinished(Unfinished { writes: Vec::new(), locks }, Due::Later);
                        Err(error)
                    }
                }
            }
            done => done.map_err(ShermanError::from),
        };
        self.is_changing = false;
        if !matches!(before, Ok(before) if before == found) {
            self.locks[i].word = None;
        }
        before
    }

    /// Adds a write of the words of a window of `page`, which begins at `addr`.
    pub fn write(&mut self, addr: GlobalAddr, page: &PageBuf, window: std::ops::Range<usize>) {
        let words = page.words()[window.start / WORD..window.end / WORD].iter();
        let words = words.map(|word| word.load(Relaxed)).collect();
        self.writes.push(Write { at: addr.add(window.start as u64), words });
    }

    /// Releases locks that were taken over, without changes and with the words that were found.
    pub async fn undo<E: Endpoint>(mut self, ep: &E) -> Result<()> {
        self.writes.clear();
        for word in self.locks.iter_mut().filter_map(|lock| lock.word.as_mut()) {
            word.unlocked = word.found;
        }
        self.finish(ep).await
    }

    /// Does all writes, and releases the locks.
    ///
    /// # Errors
    /// Errors of the verbs; the rest is left.
    pub async fn finish<E: Endpoint>(mut self, ep: &E) -> Result<()> {
        let deadline = self.tree.deadline(ep);
        self.is_changing = true;
        let hands_over = self.hands_over();
        if hands_over && defect(Defect::HandOverReleased) {
            self.tree.write_group(ep, &[], self.first_word(false).as_ref(), deadline).await?;
        }
        if defect(Defect::EarlyUnlock) {
            self.release(ep, hands_over, deadline).await?;
        }
        let mut is_begun = false;
        while !self.writes.is_empty() {
            let end = self.group_end();
            let is_last = end == self.writes.len();
            let unlock = self.first_word(hands_over).filter(|word| is_last && self.combines(word));
            match self.tree.write_group(ep, &self.writes[..end], unlock.as_ref(), deadline).await {
                Ok(()) => {}
                Err(ShermanError::Fabric(error)) if is_begun => return Err(ShermanError::Unfinished(error)),
                Err(error) => {
                    // Writes that did not begin must not be done later.
                    self.is_changing = matches!(error, ShermanError::Unfinished(_));
                    return Err(error);
                }
            }
            is_begun = true;
            self.writes.drain(..end);
            if unlock.is_some() {
                self.leave_first(ep);
            }
        }
        // All writes are done. If a lock cannot be released now, that is left to another operation.
        let _ = self.release(ep, hands_over, deadline).await;
        Ok(())
    }

    /// Releases the locks after all writes.
    async fn release<E: Endpoint>(&mut self, ep: &E, hands_over: bool, deadline: Nanos) -> Result<()> {
        while let Some(Lock { node, queue, word }) = self.locks.first() {
            if let (true, &Some(key), Some(word)) = (hands_over, queue, word)
                && self.tree.queues.hand_over(key, *node, word)
            {
                ep.charge(Queues::work(key));
                self.locks.remove(0);
                continue;
            }
            if let Some(word) = word {
                self.tree.write_group(ep, &[], Some(word), deadline).await?;
            }
            self.leave_first(ep);
        }
        Ok(())
    }

    /// Whether a single lock will be handed over to the next in its queue.
    fn hands_over(&self) -> bool {
        let &[Lock { node, queue: Some(key), word: Some(_) }] = &self.locks[..] else { return false };
        self.tree.queues.hands_over(key, node)
    }

    fn first_word(&self, hands_over: bool) -> Option<LockWord> {
        self.locks.first().and_then(|lock| lock.word.clone()).filter(|_| !hands_over)
    }

    /// Number of writes that go together.
    fn group_end(&self) -> usize {
        match self.tree.options.combine {
            true => {
                let server = self.writes[0].at.server();
                self.writes.iter().take_while(|write| write.at.server() == server).count()
            }
            false => 1,
        }
    }

    /// Whether the release of a lock goes with the last write.
    fn combines(&self, word: &LockWord) -> bool {
        let last = self.writes.last();
        self.tree.options.combine && last.is_some_and(|write| write.at.server() == word.at.server())
    }

    /// Leaves the first lock, whose remote part was released.
    fn leave_first<E: Endpoint>(&mut self, ep: &E) {
        if let Some(key) = self.locks.remove(0).queue {
            ep.charge(Queues::work(key));
            self.tree.queues.leave(key);
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let (locks, writes) = (std::mem::take(&mut self.locks), std::mem::take(&mut self.writes));
        let due = if self.is_changing { Due::Later } else { Due::Now };
        // Writes that no other operation may have seen must not be done later.
        let writes = if self.is_changing { writes } else { Vec::new() };
        self.tree.leave_unfinished(Unfinished { writes, locks }, due);
    }
}

/// A place in a queue.
struct Waiting<'t> {
    tree: &'t Sherman,
    key: GlobalAddr,
    node: GlobalAddr,
    waiter: Option<Arc<Waiter>>,
}

/// Interval at which a waiter checks for unfinished work.
const LOOK_NS: Nanos = 10_000;
/// Name of the wait in errors.
const TURN: &str = "its turn among the threads of its process";

impl Waiting<'_> {
    async fn turn<E: Endpoint>(mut self, ep: &E) -> Result<Turn> {
        let waiter = Arc::clone(self.waiter.as_ref().expect("it waits"));
        let watch = Watch::new(self.tree.config.patience_ns);
        loop {
            // Check after entering the queue: an operation that leaves unfinished work then nudges all
            // waiters.
            let has_unfinished = self.tree.unfinished.any();
            let woken = std::future::poll_fn(|cx| match waiter.poll(cx) {
                Poll::Pending if has_unfinished => Poll::Ready(Woken::Nudged),
                polled => polled,
            });
            match woken.await {
                Woken::Turn(turn) if ep.is_over(ep.now()) => {
                    self.waiter = None;
                    self.pass_on(turn);
                    return Err(ShermanError::TimedOut { what: TURN });
                }
                Woken::Turn(turn) => {
                    self.waiter = None;
                    ep.charge(Queues::work(self.key));
                    return Ok(turn);
                }
                Woken::Nudged if watch.is_over(ep) => return Err(ShermanError::TimedOut { what: TURN }),
                Woken::Nudged => {
                    self.tree.settle(ep).await?;
                    ep.sleep_until(ep.now() + LOOK_NS).await;
                }
            }
        }
    }
}

impl Waiting<'_> {
    /// Passes a turn that its waiter no longer wants to the next one.
    fn pass_on(&self, Turn { word }: Turn) {
        let locks = vec![Lock { node: self.node, queue: Some(self.key), word }];
        self.tree.leave_unfinished(Unfinished { writes: Vec::new(), locks }, Due::Now);
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let Some(waiter) = self.waiter.take() else { return };
        if let Some(turn) = self.tree.queues.cancel(self.key, &waiter) {
            self.pass_on(turn);
        }
    }
}
