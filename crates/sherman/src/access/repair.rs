//! Repair of nodes whose lock is held by a dead process.
//!
//! A waiter for a lock checks now and then whether its holder is alive; the pool ensures that no verb of a
//! dead process takes effect any more. The lock word names the node for which it was locked. Repairs go from
//! the top down:
//!
//! - A change of one node was one WRITE: the node is in the state before or after, or its checks fail and it
//!   is corrupt.
//! - A split that cut off the node is done: its new neighbour is reachable through it, and is linked by the
//!   next operation that passes. Otherwise the new neighbour is not in the tree; if it is a reused node, it
//!   is locked too, and becomes free again.
//! - A merge wrote the left node, the right one, and the parent, in this order, with all three locked. So the
//!   parent is repaired first: only the holder of its lock checks whether a child reaches beyond its
//!   separator, or is gone, and completes the merge. The lock of a child is taken over only while the parent
//!   is unlocked.

use std::sync::atomic::Ordering::Relaxed;

use pando_fabric::{Endpoint, GlobalAddr, PageBuf};
use pando_pool::AttachSlot;
use pando_pool::lock::lock_owner;

use super::Reader;
use crate::check::Verdict;
use crate::error::{Attempt, Result, Retry, ShermanError};
use crate::lock::{is_for, nodes_of};
use crate::node::Node;
use crate::shape::{Key, WORD};
use crate::tree::Sherman;

/// Steps to repair a node whose holder is dead.
#[derive(Default)]
struct Plan {
    /// Further nodes to lock, if the dead process holds them.
    locked: Vec<GlobalAddr>,
    /// New contents of nodes, in the order of their writes.
    pages: Vec<(GlobalAddr, PageBuf)>,
    /// Nodes that become free.
    freed: Vec<GlobalAddr>,
}

impl Sherman {
    /// Takes over the lock word at `at`, which has been locked for long, if its holder is dead.
    ///
    /// # Errors
    /// [`ShermanError::Corrupt`]. After any other error the waiter tries again.
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
        // Plan before locking, so that no waiting is done under a lock: while the word stays the same, the
        // plan stays valid.
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

    /// Finds the node for which a word is locked.
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

    /// Whether the parent of a node is locked. If the dead process holds it, the parent is repaired first.
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
                // It never became part of the tree.
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

    /// Plans the rest of interrupted merges of a node's children.
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
