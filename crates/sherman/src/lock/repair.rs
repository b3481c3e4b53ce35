//! What a process left that died with locks.
//!
//! Who waits for a lock looks, now and then, whether its holder still lives; the pool makes sure that nothing of one that does not takes
//! effect any more. The word says which node it was locked for. It is put right from the top down:
//!
//! - A change of one node was one WRITE: the node is as before it or after it, or its checks do not fit and it is corrupt.
//! - A split that came as far as cutting off the node is done: its new neighbour is found by it, and linked by whoever comes
//!   that way. If it did not, the new neighbour is nowhere in the tree; if it was a node that had been in use before, it
//!   is locked, too, and becomes free again.
//! - A merge wrote the left node, the right one, and the parent, in this order, with all three locked. So the parent comes first: only
//!   who has its lock looks whether one of its children reaches beyond its separator, or is gone, and does what is left to do. The lock of a
//!   child is taken over only while nobody has the lock of its parent.

use std::sync::atomic::Ordering::Relaxed;

use pando_fabric::{Endpoint, GlobalAddr, PageBuf};
use pando_pool::AttachSlot;
use pando_pool::lock::lock_owner;

use super::word::{is_for, nodes_of};
use crate::check::Verdict;
use crate::error::{Attempt, Result, Retry, ShermanError};
use crate::node::Node;
use crate::read::Reader;
use crate::shape::{Key, WORD};
use crate::tree::Sherman;

/// What is left to do about a node whose holder is gone.
#[derive(Default)]
struct Plan {
    /// Nodes that are locked besides, if by the one who is gone.
    locked: Vec<GlobalAddr>,
    /// Nodes as they are to be, in the order in which they are to be written.
    pages: Vec<(GlobalAddr, PageBuf)>,
    /// Nodes that are free by that.
    freed: Vec<GlobalAddr>,
}

impl Sherman {
    /// The lock word at `at` has been locked for long: takes it over if its holder is gone.
    ///
    /// # Errors
    /// [`ShermanError::Corrupt`]. Whatever else goes wrong, whoever waits tries again.
    pub(crate) async fn look_after<E: Endpoint>(&self, ep: &E, at: GlobalAddr, word: u64) -> Result<()> {
        let holder = lock_owner(word).filter(|&holder| Some(holder) != self.pool.slot());
        let Some(holder) = holder else { return Ok(()) };
        if !matches!(self.pool.is_abandoned(ep, holder).await, Ok(true)) {
            return Ok(());
        }
        match self.repair(ep, at, word, holder).await {
            Err(Retry::Failed(error @ ShermanError::Corrupt { .. })) => Err(error),
            _ => Ok(()),
        }
    }

    async fn repair<E: Endpoint>(&self, ep: &E, at: GlobalAddr, word: u64, gone: AttachSlot) -> Attempt<()> {
        let Some((addr, page)) = self.node_of_word(ep, at, word).await? else {
            return Err(ShermanError::Corrupt { addr: at, reason: "a lock of no node" }.into());
        };
        let (level, is_gone) = (self.node(&page).level(), self.node(&page).is_gone());
        let low = self.node(&page).low().unwrap_or(self.shape.lowest_key());
        ep.recycle(page);
        if addr != self.anchor.root && !is_gone && self.is_parent_locked(ep, &low, level, gone).await? {
            return Ok(());
        }
        // Made before anything is locked, so that nobody waits who holds a lock: as long as the word stays the same nothing of
        // it changes.
        let plan = self.plan_repair(ep, addr).await?;
        let Some(mut held) = self.take_over(ep, addr, word).await? else { return Ok(()) };
        for &node in &plan.locked {
            if let Err(error) = held.take_over_too(ep, node, gone).await {
                held.undo(ep).await?;
                return Err(error.into());
            }
        }
        self.counters.repairs.fetch_add(1, Relaxed);
        for (addr, page) in plan.pages {
            held.write(addr, &page, WORD..page.len());
            ep.recycle(page);
        }
        held.finish(ep).await?;
        plan.freed.into_iter().for_each(|addr| self.put_free(addr));
        Ok(())
    }

    /// The node that a word is locked for.
    async fn node_of_word<E: Endpoint>(
        &self,
        ep: &E,
        at: GlobalAddr,
        word: u64,
    ) -> Attempt<Option<(GlobalAddr, PageBuf)>> {
        let region = ep.regions().iter().find(|region| region.server == at.server());
        let region_len = region.map_or(0, |region| region.len);
        for addr in nodes_of(word, at.server(), self.shape.node_size(), region_len) {
            let page = ep.read(addr, ep.buffer(self.shape.node_size())).await?;
            let node = self.node(&page);
            if self.lock_addr(addr) == at && node.verify(addr, self.index()) == Verdict::Whole {
                return Ok(Some((addr, page)));
            }
            ep.recycle(page);
        }
        Ok(None)
    }

    /// Whether somebody has locked the parent of a node. If that is the one who is gone, what it left there is put right first.
    async fn is_parent_locked<E: Endpoint>(
        &self,
        ep: &E,
        low: &Key,
        level: u8,
        gone: AttachSlot,
    ) -> Attempt<bool> {
        let (parent, page) = self.locate(ep, low, level + 1, Reader::Repairer).await?;
        ep.recycle(page);
        let at = self.lock_addr(parent);
        let word = ep.read_word(at).await?;
        let is_for_parent = is_for(word, parent, self.shape.node_size());
        match lock_owner(word) {
            Some(holder) if holder == gone && is_for_parent => {
                Box::pin(self.repair(ep, at, word, gone)).await?;
                Ok(true)
            }
            holder => Ok(holder.is_some() && is_for_parent),
        }
    }

    async fn plan_repair<E: Endpoint>(&self, ep: &E, addr: GlobalAddr) -> Attempt<Plan> {
        let page = self.read_locked(ep, addr).await?;
        let node = self.node(&page);
        if node.is_gone() {
            return Ok(Plan::default());
        }
        if addr != self.anchor.root {
            let low = node.low().unwrap_or(self.shape.lowest_key());
            let (heir, other) = self.locate(ep, &low, node.level(), Reader::Repairer).await?;
            ep.recycle(other);
            if heir != addr {
                // It never came into the tree.
                node.retire(heir.raw());
                node.seal();
                return Ok(Plan { pages: vec![(addr, page)], freed: vec![addr], ..Plan::default() });
            }
        }
        match node.level() {
            0 => Ok(Plan::default()),
            _ => self.plan_merges(ep, addr, page).await,
        }
    }

    /// What is left to do about merges of children of a node.
    async fn plan_merges<E: Endpoint>(&self, ep: &E, addr: GlobalAddr, page: PageBuf) -> Attempt<Plan> {
        let (parent, mut plan, mut at) = (self.node(&page), Plan::default(), 0);
        while at < parent.count() {
            let (left, right) = (child(&parent, at, addr)?, child(&parent, at + 1, addr)?);
            let left_page = self.read_as(ep, left, Reader::Repairer, |_| true).await?;
            let is_merged = self.node(&left_page).high().is_none_or(|high| high > parent.separator(at));
            ep.recycle(left_page);
            if !is_merged {
                at += 1;
                continue;
            }
            let right_page = self.read_as(ep, right, Reader::Repairer, |_| true).await?;
            let node = self.node(&right_page);
            plan.locked.extend([left, right]);
            if node.is_gone() {
                ep.recycle(right_page);
            } else {
                node.retire(left.raw());
                node.seal();
                plan.pages.push((right, right_page));
            }
            parent.remove_child(at);
            plan.freed.push(right);
        }
        if !plan.freed.is_empty() {
            parent.seal();
            plan.pages.push((addr, page));
        }
        Ok(plan)
    }
}

fn child(parent: &Node<'_>, i: usize, addr: GlobalAddr) -> Result<GlobalAddr> {
    parent.child(i).ok_or(ShermanError::Corrupt { addr, reason: "a child without an address" })
}
