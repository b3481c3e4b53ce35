//! Consistent READs of nodes, and the search for a node.
//!
//! A descent begins at the lowest cached node above the target level, or at the root. Every node on the path
//! is judged by its own fences: the key belongs to it, or to its right neighbour, or an outdated pointer led
//! the descent astray. A node that is gone names its heir.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use pando_fabric::defect::defect;
use pando_fabric::{Endpoint, GlobalAddr, PageBuf, Patience, Work};
use pando_pool::lock::lock_owner;

use super::Held;
use crate::check::Verdict;
use crate::defect::Defect;
use crate::error::{Attempt, Result, Retry, ShermanError};
use crate::index_cache::{Copy, child_of};
use crate::node::{Fences, Node};
use crate::options::ReadCheck;
use crate::shape::Key;
use crate::tree::{NO_LEVEL, Sherman};
use crate::waiting::{Watch, before_anew};

/// Presumed position of a node.
pub(crate) struct Place {
    pub addr: GlobalAddr,
    /// The cached node that named it.
    pub via: Option<Arc<Copy>>,
    /// Whether it belongs to this compute server, as far as is known.
    pub is_own: bool,
}

/// Place of a key relative to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Belongs {
    Here,
    /// In a right neighbour, or in the heir of a node that is gone.
    There(GlobalAddr),
    /// An outdated pointer led here.
    Astray,
}

/// A locked node with its current contents.
pub(crate) struct Locked<'t> {
    pub held: Held<'t>,
    pub addr: GlobalAddr,
    pub page: PageBuf,
    pub is_own: bool,
    /// Whether it was reached through its left neighbour, to which its parent led: the parent may not link it
    /// yet.
    pub is_unlinked: bool,
}

/// Role of a reader, where readers check lock words.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reader {
    Anyone,
    /// The holder of a node's lock, whose word may serve other nodes too. It waits for no other lock, and
    /// restarts instead.
    Holder(GlobalAddr),
    /// A repairer of dead processes' changes. Nodes locked by them do not change. It waits only for live
    /// holders, and repairs nothing on the way.
    Repairer,
}

impl Sherman {
    /// READs the node at `addr` until it is consistent and `is_whole` agrees.
    pub(crate) async fn read<E: Endpoint>(
        &self,
        ep: &E,
        addr: GlobalAddr,
        is_whole: impl Fn(&Node<'_>) -> bool,
    ) -> Attempt<PageBuf> {
        self.read_as(ep, addr, Reader::Anyone, is_whole).await
    }

    /// The same, in the role `reader`.
    pub(crate) async fn read_as<E: Endpoint>(
        &self,
        ep: &E,
        addr: GlobalAddr,
        reader: Reader,
        is_whole: impl Fn(&Node<'_>) -> bool,
    ) -> Attempt<PageBuf> {
        let mut watch = Watch::new(self.config.patience_ns);
        loop {
            let page = match self.is_versioned() {
                true => self.read_between(ep, addr, reader, &mut watch).await?,
                false => Some(ep.read(addr, ep.buffer(self.shape.node_size())).await?),
            };
            if let Some(page) = page {
                ep.charge(Work::PageCheck);
                let node = self.node(&page);
                if node.verify(addr, self.index()) == Verdict::Whole && is_whole(&node) {
                    ep.charge(Work::NodeSearch);
                    return Ok(page);
                }
                ep.recycle(page);
            }
            if watch.is_over(ep) {
                return Err(match self.is_versioned() {
                    true => ShermanError::TimedOut { what: "a node that others change" }.into(),
                    false => ShermanError::Corrupt { addr, reason: "its checks do not fit" }.into(),
                });
            }
            ep.yield_now().await;
        }
    }

    /// READs a node between two READs of its lock word (DEX §8.1); `None` if a write intervened.
    async fn read_between<E: Endpoint>(
        &self,
        ep: &E,
        addr: GlobalAddr,
        reader: Reader,
        watch: &mut Watch,
    ) -> Attempt<Option<PageBuf>> {
        let at = self.lock_addr(addr);
        let before = ep.read_word(at).await?;
        let is_still = match (lock_owner(before), reader) {
            (None, _) => true,
            (Some(_), Reader::Holder(held)) if self.lock_addr(held) == at => true,
            // The holder of that lock may wait for ours.
            (Some(_), Reader::Holder(_)) if !defect(Defect::WaitHolding) => return Err(Retry::Restart),
            (Some(holder), Reader::Repairer) => self.pool.is_abandoned(ep, holder).await?,
            (Some(_), _) => {
                self.watch(ep, at, before, watch).await?;
                false
            }
        };
        if !is_still {
            return Ok(None);
        }
        let page = ep.read(addr, ep.buffer(self.shape.node_size())).await?;
        if ep.read_word(at).await? == before || defect(Defect::SkipSecondLook) {
            return Ok(Some(page));
        }
        ep.recycle(page);
        Ok(None)
    }

    /// Charges a check of all slots of a leaf, if they have checks: as much as a copy.
    pub(crate) fn charge_slots<E: Endpoint>(&self, ep: &E) {
        if self.shape.is_unsorted() && self.options.check == ReadCheck::Checksum {
            ep.charge(Work::Copy { bytes: self.shape.node_size() });
        }
    }

    /// READs a node that no other operation may change now. Waits for verbs whose futures were dropped.
    pub(crate) async fn read_locked<E: Endpoint>(&self, ep: &E, addr: GlobalAddr) -> Attempt<PageBuf> {
        let watch = Watch::new(self.config.patience_ns);
        loop {
            let page = ep.read(addr, ep.buffer(self.shape.node_size())).await?;
            ep.charge(Work::PageCheck);
            self.charge_slots(ep);
            let node = self.node(&page);
            if node.verify(addr, self.index()) == Verdict::Whole && node.has_whole_slots() {
                return Ok(page);
            }
            if watch.is_over(ep) {
                return Err(ShermanError::Corrupt { addr, reason: "its checks do not fit" }.into());
            }
            ep.recycle(page);
            ep.yield_now().await;
        }
    }

    /// Place of a key relative to the node, presumed to be of `level`.
    pub(crate) fn belongs(&self, node: &Node<'_>, key: &Key, level: Option<u8>) -> Belongs {
        let there = || node.sibling().map_or(Belongs::Astray, Belongs::There);
        match level.is_none_or(|level| node.level() == level) {
            false => Belongs::Astray,
            true if node.is_gone() => there(),
            true if node.is_below(key) => Belongs::Astray,
            true if node.is_beyond(key) => there(),
            true => Belongs::Here,
        }
    }

    /// Whether a key belongs to the node at `place`. If not, `place` becomes the next one to try, or the
    /// operation restarts.
    pub(crate) fn is_here(&self, node: &Node<'_>, key: &Key, level: u8, place: &mut Place) -> Attempt<bool> {
        self.note_root(node, place.addr);
        let belongs = match defect(Defect::SkipFenceCheck) {
            true => Belongs::Here,
            false => self.belongs(node, key, Some(level)),
        };
        if belongs != Belongs::Here {
            self.led_astray(place);
        }
        match belongs {
            Belongs::Here => Ok(true),
            Belongs::There(addr) => {
                place.addr = addr;
                Ok(false)
            }
            Belongs::Astray => Err(Retry::Restart),
        }
    }

    /// Finds the presumed position of the node of `level` on the path to `key`.
    pub(crate) async fn find<E: Endpoint>(&self, ep: &E, key: &Key, level: u8) -> Attempt<Place> {
        self.find_as(ep, key, level, Reader::Anyone).await
    }

    async fn find_as<E: Endpoint>(&self, ep: &E, key: &Key, level: u8, reader: Reader) -> Attempt<Place> {
        let (mut place, mut expected) = self.begin(ep, key, level);
        loop {
            if expected == Some(level) {
                return Ok(place);
            }
            let page = self.read_as(ep, place.addr, reader, |_| true).await?;
            let node = self.node(&page);
            self.note_root(&node, place.addr);
            match self.belongs(&node, key, expected) {
                Belongs::Here if node.level() == level && place.addr == self.anchor.root => {
                    return Ok(self.root_place());
                }
                Belongs::Here if node.level() > level => {
                    self.cache_node(ep, &node);
                    let below = self.child_place(&node, key, place.addr)?;
                    (place, expected) = (below, Some(node.level() - 1));
                }
                Belongs::There(addr) => {
                    self.led_astray(&mut place);
                    place.addr = addr;
                }
                _ => {
                    self.led_astray(&mut place);
                    return Err(Retry::Restart);
                }
            }
            ep.recycle(page);
        }
    }

    /// Finds and reads the node of `level` that covers `key`.
    pub(crate) async fn locate<E: Endpoint>(
        &self,
        ep: &E,
        key: &Key,
        level: u8,
        reader: Reader,
    ) -> Attempt<(GlobalAddr, PageBuf)> {
        let mut place = self.find_as(ep, key, level, reader).await?;
        loop {
            let page = self.read_as(ep, place.addr, reader, |node| node.has_whole_slots()).await?;
            let node = self.node(&page);
            if self.is_here(&node, key, level, &mut place)? {
                return Ok((place.addr, page));
            }
            ep.recycle(page);
        }
    }

    /// Start of a descent, and its level if known.
    fn begin<E: Endpoint>(&self, ep: &E, key: &Key, level: u8) -> (Place, Option<u8>) {
        let root_level = self.root_level.load(Relaxed);
        if root_level == level {
            return (self.root_place(), Some(level));
        }
        if let Some(cache) = self.cache.as_ref().filter(|_| root_level != NO_LEVEL) {
            for above in level + 1..=root_level {
                ep.charge(Work::TableLookup);
                if let Some(copy) = cache.find(&self.shape, above, key) {
                    ep.charge(Work::NodeSearch);
                    if let Some((addr, fences)) = child_of(&copy.node(&self.shape), key) {
                        let place = Place { addr, is_own: self.is_own(fences), via: Some(copy) };
                        return (place, Some(above - 1));
                    }
                }
            }
        }
        (self.root_place(), None)
    }

    fn root_place(&self) -> Place {
        Place { addr: self.anchor.root, via: None, is_own: self.is_own(Fences::default()) }
    }

    fn child_place(&self, node: &Node<'_>, key: &Key, addr: GlobalAddr) -> Result<Place> {
        let child = child_of(node, key);
        let (addr, fences) =
            child.ok_or(ShermanError::Corrupt { addr, reason: "a child without an address" })?;
        Ok(Place { addr, via: None, is_own: self.is_own(fences) })
    }

    /// Records the level of the root, if `node` is the root.
    pub(crate) fn note_root(&self, node: &Node<'_>, addr: GlobalAddr) {
        if addr == self.anchor.root && self.root_level.load(Relaxed) != node.level() {
            self.root_level.store(node.level(), Relaxed);
        }
    }

    /// Caches a copy of an inner node, if its level is cached.
    pub(crate) fn cache_node<E: Endpoint>(&self, ep: &E, node: &Node<'_>) {
        let Some(cache) = &self.cache else { return };
        let (level, root_level) = (node.level(), self.root_level.load(Relaxed));
        if level == 1 || level > 0 && root_level != NO_LEVEL && level + 1 >= root_level {
            ep.charge(Work::Copy { bytes: self.shape.node_size() });
            cache.insert(node, ep.random());
        }
    }

    /// Drops the outdated copy that led to a place.
    pub(crate) fn led_astray(&self, place: &mut Place) {
        if let (Some(cache), Some(via)) = (&self.cache, place.via.take()) {
            cache.drop_copy(&via);
        }
    }

    /// Locks the node of `level` that covers `key`.
    pub(crate) async fn lock_node<E: Endpoint>(&self, ep: &E, key: &Key, level: u8) -> Attempt<Locked<'_>> {
        let mut place = self.find(ep, key, level).await?;
        let (is_cached, mut is_unlinked) = (place.via.is_some(), false);
        loop {
            let Place { addr, is_own, .. } = place;
            let held = self.lock(ep, addr, is_own).await?;
            let page = match self.read_locked(ep, addr).await {
                Ok(page) => page,
                Err(retry) => {
                    held.finish(ep).await?;
                    return Err(retry);
                }
            };
            ep.charge(Work::NodeSearch);
            let node = self.node(&page);
            self.note_root(&node, addr);
            let is_own_now = self.is_own(node.fences());
            match self.belongs(&node, key, Some(level)) {
                _ if defect(Defect::SkipLockedFenceCheck) && node.level() == level && !node.is_gone() => {
                    return Ok(Locked { held, addr, page, is_own, is_unlinked });
                }
                Belongs::Here if is_own == is_own_now => {
                    return Ok(Locked { held, addr, page, is_own, is_unlinked });
                }
                Belongs::Here => place.is_own = is_own_now,
                Belongs::There(next) => {
                    is_unlinked = !is_cached && !node.is_gone();
                    self.led_astray(&mut place);
                    place.addr = next;
                }
                Belongs::Astray => {
                    self.led_astray(&mut place);
                    held.finish(ep).await?;
                    return Err(Retry::Restart);
                }
            }
            ep.recycle(page);
            held.finish(ep).await?;
        }
    }

    /// Repeats an attempt while it must restart and the operation has time left.
    pub(crate) async fn patiently<E: Endpoint, T>(
        &self,
        ep: &E,
        what: &'static str,
        mut attempt: impl AsyncFnMut() -> Attempt<T>,
    ) -> Result<T> {
        let patience = Patience::new(self.config.patience_ns);
        loop {
            match attempt().await {
                Ok(done) => return Ok(done),
                Err(Retry::Failed(error)) => return Err(error),
                Err(Retry::Restart) => before_anew(ep, &patience, what).await?,
            }
        }
    }
}
