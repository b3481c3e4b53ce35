//! Changes of leaves (SMART §4.2), and of the slots that lead to them.
//!
//! A leaf whose value is updated in place is locked first: by its rear word or by a word of the lock table. A
//! key that belongs to this compute server needs no lock, since the groups of a key allow only one change at
//! a time. Without updates in place, one compare-and-swap turns the rear word from free to dead or moved.

use pando_fabric::defect::defect;
use pando_fabric::{Endpoint, FabricError, GlobalAddr, Resource, Work};
use pando_pool::RemoteLock;

use crate::defect::Defect;
use crate::error::{Attempt, Result, Retry, undecided};
use crate::layout::leaf::{Leaf, Rear};
use crate::layout::mix;
use crate::layout::node::LOCK_AT;
use crate::layout::slot::{LeafSize, Slot};
use crate::tree::{Op, Smart};

/// A slot on the path of a key, and its content as last seen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub at: GlobalAddr,
    pub slot: Slot,
    /// Number of key bytes above the target of the slot.
    pub depth: usize,
    /// The node that contains it, with its branch, and the number of the slot.
    pub node: GlobalAddr,
    pub branch: usize,
    pub number: usize,
    /// Whether this attempt READ it. Otherwise it comes from the cache.
    pub is_fresh: bool,
    /// Whether only this compute server changes the node.
    pub is_own: bool,
}

impl Place {
    /// Content of the slot once its child is gone. A byte keeps its slot; the end slot and the root slot have
    /// no byte.
    pub fn vacated(&self) -> Slot {
        if self.number == 0 { Slot::EMPTY } else { Slot::tombstone(self.slot.byte()) }
    }
}

/// The right to change a leaf.
pub(crate) enum Hold<'t> {
    Rear(RemoteLock<'t>),
    Table(RemoteLock<'t>),
    Own,
}

/// Possible writers of a word that is about to be swapped into a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writer {
    /// Only this operation: the word leads to a block that it made.
    Exclusive,
    /// Other operations may write the same word.
    Shared,
}

impl Smart {
    /// Locks a leaf; returns it as it is then. Restarts if it is no longer the key's leaf.
    pub(crate) async fn hold<E: Endpoint>(
        &self,
        op: &Op<'_, E>,
        place: &Place,
        leaf: Leaf,
        key: &[u8],
    ) -> Attempt<(Hold<'_>, Leaf)> {
        if self.is_own_leaf(key) {
            return match self.is_left(leaf.addr) {
                true => Err(Retry::Restart),
                false => Ok((Hold::Own, leaf)),
            };
        }
        if self.anchor.techniques.has_lock_table() {
            let lock = self.lock_word(op, self.table_lock(leaf.addr)).await?;
            if defect(Defect::SkipLookUnderLock) {
                return Ok((Hold::Table(lock), leaf));
            }
            op.ep.recycle(leaf.into_page());
            return match self.read_leaf(op, place.slot.addr(), place.slot.leaf_size()).await {
                Ok(leaf) if matches!(leaf.rear(), Rear::Free(_)) => Ok((Hold::Table(lock), leaf)),
                other => {
                    lock.unlock(op.ep, op.deadline()).await?;
                    other.and(Err(Retry::Restart))
                }
            };
        }
        let mut leaf = leaf;
        loop {
            leaf = self.settled(op, leaf).await?;
            let version = leaf.version();
            if let Some(lock) = self.pool.try_lock_version(op.ep, leaf.rear_at(), version).await? {
                return Ok((Hold::Rear(lock), leaf));
            }
            leaf = self.read_again(op, leaf).await?;
        }
    }

    pub(crate) fn is_own_leaf(&self, key: &[u8]) -> bool {
        self.config.partition.as_ref().is_some_and(|partition| partition.contains(key))
    }

    /// READs a consistent copy of the leaf at `addr`.
    pub(crate) async fn read_leaf<E: Endpoint>(
        &self,
        op: &Op<'_, E>,
        addr: GlobalAddr,
        size: LeafSize,
    ) -> Attempt<Leaf> {
        loop {
            let page = op.ep.read(addr, op.ep.buffer(size.bytes() as usize)).await?;
            op.ep.charge(Work::PageCheck);
            match Leaf::of(page, addr, self.anchor.tag) {
                Ok(leaf) => return Ok(leaf),
                Err(page) => op.ep.recycle(page),
            }
            op.wait("a leaf to be written").await?;
        }
    }

    async fn read_again<E: Endpoint>(&self, op: &Op<'_, E>, leaf: Leaf) -> Attempt<Leaf> {
        let (addr, size) = (leaf.addr, leaf.size());
        op.ep.recycle(leaf.into_page());
        self.read_leaf(op, addr, size).await
    }

    /// Lock of the table for the leaf at `addr`: on its memory server, if that has a table.
    fn table_lock(&self, addr: GlobalAddr) -> GlobalAddr {
        let tables = &self.anchor.tables;
        let hash = mix(addr.raw());
        let same = tables.iter().find(|table| table.server() == addr.server());
        let table = same.unwrap_or(&tables[hash as usize % tables.len()]);
        table.add((hash >> 20) % self.anchor.table_locks as u64 * 8)
    }

    /// Waits until the lock in the rear word is free. Takes over the lock of a dead process, and writes the
    /// leaf again.
    async fn settled<E: Endpoint>(&self, op: &Op<'_, E>, mut leaf: Leaf) -> Attempt<Leaf> {
        let mut next_look = op.ep.now().saturating_add(self.between_looks());
        loop {
            match leaf.rear() {
                Rear::Free(_) if leaf.settled_version().is_some() => return Ok(leaf),
                Rear::Free(_) => {}
                Rear::Dead | Rear::Moved(_) => return Err(Retry::Restart),
                Rear::Locked(holder) if op.ep.now() >= next_look => {
                    next_look = op.ep.now().saturating_add(self.between_looks());
                    self.try_settle(op.ep).await;
                    if self.pool.is_abandoned(op.ep, holder).await?
                        && let Some(lock) = self.pool.take_over(op.ep, leaf.rear_at(), holder).await?
                    {
                        leaf = self.read_again(op, leaf).await?;
                        self.write_same(op, lock, &leaf).await?;
                    }
                }
                Rear::Locked(_) => {}
            }
            op.wait("a leaf that is being changed").await?;
            leaf = self.read_again(op, leaf).await?;
        }
    }

    /// Releases the lock of a leaf whose value stays the same.
    async fn write_same<E: Endpoint>(&self, op: &Op<'_, E>, lock: RemoteLock<'_>, leaf: &Leaf) -> Result<()> {
        let mut value = Vec::new();
        leaf.append_value(&mut value);
        let tail = leaf.tail(&value, lock.next_version()).expect("the value that it has fits");
        Ok(lock.write_back(op.ep, &tail.words, op.deadline()).await?)
    }

    /// Writes a value into the held leaf and releases it. Returns `false`, with the leaf released, if the
    /// value does not fit.
    pub(crate) async fn write_value<E: Endpoint>(
        &self,
        op: &Op<'_, E>,
        hold: Hold<'_>,
        leaf: &Leaf,
        value: &[u8],
    ) -> Attempt<bool> {
        let version = match &hold {
            Hold::Rear(lock) => lock.next_version(),
            Hold::Table(_) | Hold::Own => (leaf.version() + 1) & ((1 << 48) - 1),
        };
        let Some(mut tail) = leaf.tail(value, version) else {
            match hold {
                Hold::Rear(lock) => self.write_same(op, lock, leaf).await?,
                Hold::Table(lock) => lock.unlock(op.ep, op.deadline()).await?,
                Hold::Own => {}
            }
            return Ok(false);
        };
        match hold {
            Hold::Rear(lock) => {
                let written = lock.write_back(op.ep, &tail.words, op.deadline()).await;
                written.map_err(undecided)?;
            }
            Hold::Table(lock) => {
                tail.words.push(version);
                self.write_unlock(op, lock, tail.at, &tail.words).await?;
            }
            Hold::Own => {
                tail.words.push(version);
                self.write_own(op, leaf.addr, tail.at, &tail.words).await?;
            }
        }
        Ok(true)
    }

    /// Writes words and releases the lock that protects them. After an error this is done when the lock is
    /// given back later.
    pub(crate) async fn write_unlock<E: Endpoint>(
        &self,
        op: &Op<'_, E>,
        lock: RemoteLock<'_>,
        at: GlobalAddr,
        words: &[u64],
    ) -> Result<()> {
        lock.write_words_unlock(op.ep, at, words, op.deadline()).await.map_err(undecided)
    }

    /// Marks a leaf as dead or moved by the rear word `gone`. Restarts if it was so already.
    pub(crate) async fn set_gone<E: Endpoint>(
        &self,
        op: &Op<'_, E>,
        place: &Place,
        leaf: Leaf,
        key: &[u8],
        gone: u64,
    ) -> Attempt<()> {
        if self.is_own_leaf(key) || self.anchor.techniques.has_lock_table() {
            let (hold, leaf) = self.hold(op, place, leaf, key).await?;
            match hold {
                Hold::Table(lock) => self.write_unlock(op, lock, leaf.rear_at(), &[gone]).await?,
                _ => self.write_own(op, leaf.addr, leaf.rear_at(), &[gone]).await?,
            }
            return Ok(());
        }
        let mut leaf = leaf;
        loop {
            leaf = self.settled(op, leaf).await?;
            let (at, version) = (leaf.rear_at(), leaf.version());
            let is_gone = match op.ep.compare_swap(at, version, gone).await {
                Ok(before) => before == version,
                // This word has no other writer, and stays.
                Err(error) if error.may_have_taken_effect() => self.word_behind(op, at, error).await? == gone,
                Err(error) => return Err(error.into()),
            };
            if is_gone {
                op.ep.recycle(leaf.into_page());
                return Ok(());
            }
            leaf = self.read_again(op, leaf).await?;
        }
    }

    /// READs the word at `at` after a change of it failed with `error` and no answer. Returns that error if
    /// the READ fails too.
    async fn word_behind<E: Endpoint>(
        &self,
        op: &Op<'_, E>,
        at: GlobalAddr,
        error: FabricError,
    ) -> Result<u64> {
        loop {
            match op.ep.read_word(at).await {
                Ok(word) => return Ok(word),
                Err(again) if op.asks_again(&again).await => {}
                Err(_) => return Err(error.into()),
            }
        }
    }

    /// Compare-and-swap of a slot. Without an answer, finding a word that has no other writer proves that it
    /// was done. Any other word proves nothing: the swap may have been done, and the slot changed since.
    async fn swap_word<E: Endpoint>(
        &self,
        op: &Op<'_, E>,
        at: GlobalAddr,
        expected: u64,
        new: u64,
        writer: Writer,
    ) -> Result<u64> {
        match op.ep.compare_swap(at, expected, new).await {
            Err(error) if error.may_have_taken_effect() && writer == Writer::Exclusive => {
                let unknown = FabricError::TimedOut(at.server());
                match self.word_behind(op, at, error).await? {
                    word if word == new || defect(Defect::UnansweredIsDone) => Ok(expected),
                    _ => Err(unknown.into()),
                }
            }
            done => Ok(done?),
        }
    }

    /// Records that this operation unlinked a leaf from its slot.
    pub(crate) fn retire_leaf<E>(&self, op: &Op<'_, E>, slot: Slot) {
        self.epochs.retire(slot.addr(), slot.leaf_size().bytes(), op.epoch);
    }

    /// Gives up a leaf if it is not known whether a slot still leads to it.
    pub(crate) fn doubt_leaf(&self, retry: &Retry, slot: Slot) {
        if retry.may_have_taken_effect() {
            self.doubt(&[(slot.addr(), slot.leaf_size().bytes())]);
        }
    }

    /// Stores `new` in a slot if its content is as last seen; otherwise returns its content.
    pub(crate) async fn swap<E: Endpoint>(
        &self,
        op: &Op<'_, E>,
        key: &[u8],
        place: &Place,
        new: Slot,
        writer: Writer,
    ) -> Attempt<std::result::Result<(), Slot>> {
        let seen = place.slot.raw();
        let before = if place.is_own {
            self.swap_own(op, place, new).await?
        } else if self.anchor.techniques.lock_free_nodes {
            self.swap_word(op, place.at, seen, new.raw(), writer).await?
        } else {
            self.swap_locked(op, place, new).await?
        };
        if before != seen {
            return Ok(Err(Slot::from_raw(before)));
        }
        self.cache.note(key, place.node, place.branch, place.number, new);
        Ok(Ok(()))
    }

    async fn swap_own<E: Endpoint>(&self, op: &Op<'_, E>, place: &Place, new: Slot) -> Attempt<u64> {
        let _lock = self.lock_own(op, place.node).await?;
        let before = op.ep.read_word(place.at).await?;
        if before == place.slot.raw() {
            self.write_own(op, place.node, place.at, &[new.raw()]).await?;
        }
        Ok(before)
    }

    pub(crate) async fn lock_own<E: Endpoint>(
        &self,
        op: &Op<'_, E>,
        node: GlobalAddr,
    ) -> Attempt<crate::local_locks::LocalGuard<'_>> {
        loop {
            op.ep.charge(Work::Hold(Resource::Frame(mix(node.raw()) as u32)));
            if let Some(lock) = self.locks.try_lock(node)
                && !self.is_left(node)
            {
                return Ok(lock);
            }
            self.try_settle(op.ep).await;
            op.wait("a node that this compute server changes").await?;
        }
    }

    async fn swap_locked<E: Endpoint>(&self, op: &Op<'_, E>, place: &Place, new: Slot) -> Attempt<u64> {
        let lock = self.lock_word(op, place.node.add(LOCK_AT)).await?;
        let before = match op.ep.read_word(place.at).await {
            Ok(before) => before,
            Err(error) => {
                lock.unlock(op.ep, op.deadline()).await?;
                return Err(error.into());
            }
        };
        if before == place.slot.raw() {
            self.write_unlock(op, lock, place.at, &[new.raw()]).await?;
        } else {
            lock.unlock(op.ep, op.deadline()).await?;
        }
        Ok(before)
    }
}
