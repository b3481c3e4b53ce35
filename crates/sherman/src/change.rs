//! Lookups and changes of entries (Sherman §4.2, §4.4).
//!
//! A lookup READs a leaf. A change locks the leaf, READs it, and writes one entry, or all of a sorted leaf,
//! together with the release of the lock. The splits and merges that follow are in `split.rs` and `merge.rs`.

use std::cell::Cell;

use pando_fabric::defect::defect;
use pando_fabric::{Endpoint, Work};

use crate::access::{Belongs, Locked};
use crate::defect::Defect;
use crate::error::{Attempt, Result, ShermanError};
use crate::node::{Find, Node};
use crate::shape::{Key, WORD};
use crate::split::Addition;
use crate::tree::Sherman;

/// A change to the entry of a key.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change<'v> {
    Upsert(&'v [u8]),
    Insert(&'v [u8]),
    Update(&'v [u8]),
    Remove,
}

/// Effect of a change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    pub existed: bool,
    pub changed: bool,
    /// Whether the leaf has few entries left.
    pub is_underfull: bool,
}

/// Effect of a change on a leaf.
enum Step {
    /// No effect.
    Leave,
    Store(usize),
    Remove(usize),
    /// The key is new.
    Add,
}

impl Sherman {
    /// Appends the value of `key` to `out`; `false` if the key is absent.
    ///
    /// # Errors
    /// A key of another length; corruption; too long a wait; errors of the fabric.
    pub async fn get<E: Endpoint>(&self, ep: &E, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        let key = self.shape.key(key)?;
        self.patiently(ep, "a leaf", async || self.try_get(ep, &key, out).await).await
    }

    async fn try_get<E: Endpoint>(&self, ep: &E, key: &Key, out: &mut Vec<u8>) -> Attempt<bool> {
        let mut place = self.find(ep, key, 0).await?;
        loop {
            let found = Cell::new(Find::Miss);
            let look = |node: &Node<'_>| {
                let is_here = self.belongs(node, key, Some(0)) == Belongs::Here;
                found.set(if is_here { node.find(key) } else { Find::Miss });
                found.get() != Find::Torn || defect(Defect::TornIsAbsent)
            };
            let page = self.read(ep, place.addr, look).await?;
            let node = self.node(&page);
            if self.is_here(&node, key, 0, &mut place)? {
                let slot = if let Find::Hit(i) = found.get() { Some(i) } else { None };
                if slot.is_none() {
                    self.charge_slots(ep);
                }
                slot.into_iter().for_each(|i| node.append_value(i, out));
                ep.recycle(page);
                return Ok(slot.is_some());
            }
            ep.recycle(page);
        }
    }

    /// Stores a value; returns whether the key was present.
    ///
    /// # Errors
    /// A key or value of another length; [`ShermanError::NotOwned`]; a full pool; corruption; too long a
    /// wait; errors of the fabric. [`ShermanError::may_have_taken_effect`] tells whether the value may be
    /// stored nevertheless.
    pub async fn put<E: Endpoint>(&self, ep: &E, key: &[u8], value: &[u8]) -> Result<bool> {
        self.shape.check_value(value)?;
        Ok(self.change(ep, key, Change::Upsert(value)).await?.existed)
    }

    /// Stores a value under an absent key. Returns `false` and changes nothing if the key is present.
    ///
    /// # Errors
    /// As for [`Sherman::put`].
    pub async fn insert<E: Endpoint>(&self, ep: &E, key: &[u8], value: &[u8]) -> Result<bool> {
        self.shape.check_value(value)?;
        Ok(self.change(ep, key, Change::Insert(value)).await?.changed)
    }

    /// Stores a value under a present key. Returns `false` and changes nothing if the key is absent.
    ///
    /// # Errors
    /// As for [`Sherman::put`].
    pub async fn update<E: Endpoint>(&self, ep: &E, key: &[u8], value: &[u8]) -> Result<bool> {
        self.shape.check_value(value)?;
        Ok(self.change(ep, key, Change::Update(value)).await?.changed)
    }

    /// Removes a key; returns whether it was present.
    ///
    /// # Errors
    /// As for [`Sherman::put`].
    pub async fn remove<E: Endpoint>(&self, ep: &E, key: &[u8]) -> Result<bool> {
        Ok(self.change(ep, key, Change::Remove).await?.changed)
    }

    async fn change<E: Endpoint>(&self, ep: &E, key: &[u8], change: Change<'_>) -> Result<Outcome> {
        let key = self.shape.key(key)?;
        self.check_own(&key)?;
        let outcome =
            self.patiently(ep, "a leaf to change", async || self.try_change(ep, &key, change).await).await?;
        if outcome.is_underfull {
            // Boxed: it is rare, and keeps the futures of operations small. The entry is removed whether or
            // not this succeeds.
            let _ = Box::pin(self.merge_up(ep, &key)).await;
        }
        Ok(outcome)
    }

    async fn try_change<E: Endpoint>(&self, ep: &E, key: &Key, change: Change<'_>) -> Attempt<Outcome> {
        let locked = self.lock_node(ep, key, 0).await?;
        let unlinked = locked.is_unlinked.then(|| (self.node(&locked.page).low(), locked.addr));
        let outcome = self.change_locked(ep, locked, key, change).await?;
        if let Some((Some(low), addr)) = unlinked {
            // The operation that split the node did not link it, or is about to. Linking is optional, so
            // errors are ignored.
            let _ = Box::pin(self.link_up(ep, 1, low, addr)).await;
        }
        Ok(outcome)
    }

    async fn change_locked<E: Endpoint>(
        &self,
        ep: &E,
        locked: Locked<'_>,
        key: &Key,
        change: Change<'_>,
    ) -> Attempt<Outcome> {
        let node = self.node(&locked.page);
        let (step, existed) = step(node.find(key), change, locked.addr)?;
        let changed = !matches!(step, Step::Leave);
        let mut outcome = Outcome { existed, changed, is_underfull: false };
        let slot = match (step, change) {
            (Step::Store(i), Change::Upsert(value) | Change::Update(value)) => {
                node.store_value(i, value);
                i
            }
            (Step::Add, Change::Upsert(value) | Change::Insert(value)) => match node.make_slot(key) {
                Some(i) => {
                    node.store(i, key, value);
                    i
                }
                None => {
                    Box::pin(self.split(ep, locked, Addition::Entry(key, value))).await?;
                    return Ok(outcome);
                }
            },
            (Step::Remove(i), _) => {
                node.remove(i);
                outcome.is_underfull = locked.addr != self.anchor.root && self.is_underfull(&node);
                i
            }
            _ => {
                ep.recycle(locked.page);
                locked.held.finish(ep).await?;
                return Ok(outcome);
            }
        };
        let Locked { mut held, addr, page, .. } = locked;
        let window = match self.shape.is_unsorted() {
            true => self.shape.leaf_window(slot),
            false => {
                ep.charge(Work::PageCheck);
                self.node(&page).seal();
                WORD..page.len()
            }
        };
        ep.charge(Work::Copy { bytes: window.len() });
        held.write(addr, &page, window);
        ep.recycle(page);
        held.finish(ep).await?;
        Ok(outcome)
    }
}

/// Effect of a change on a leaf, and whether the key is present.
fn step(found: Find, change: Change<'_>, addr: pando_fabric::GlobalAddr) -> Result<(Step, bool)> {
    Ok(match (found, change) {
        (Find::Hit(i), Change::Upsert(_) | Change::Update(_)) => (Step::Store(i), true),
        (Find::Hit(i), Change::Remove) => (Step::Remove(i), true),
        (Find::Hit(_), Change::Insert(_)) => (Step::Leave, true),
        (Find::Miss, Change::Upsert(_) | Change::Insert(_)) => (Step::Add, false),
        (Find::Miss, Change::Update(_) | Change::Remove) => (Step::Leave, false),
        (Find::Torn, _) => {
            return Err(ShermanError::Corrupt { addr, reason: "an entry changed while it was locked" });
        }
    })
}
