//! Merges: an underfull node and its neighbour under the same parent become one.
//!
//! Sherman's authors leave merges out: leaves stay, however empty. Here the parent is locked, and the locks
//! of both nodes are tried; if one is taken, the merge is left to a later removal. The left node takes all
//! entries, the right one becomes *gone* and points to its heir, and the parent drops it, in this order,
//! before any of the three locks is released. A node that is gone remains a node of the index and goes to a
//! free list, from which new nodes are made: an operation that follows an outdated pointer to it sees its
//! state. It never returns to the pool while the index exists.

use std::sync::atomic::Ordering::Relaxed;

use pando_fabric::defect::defect;
use pando_fabric::{Endpoint, GlobalAddr, PageBuf, Work};

use crate::access::{Got, Locked};
use crate::defect::Defect;
use crate::error::{Attempt, Result};
use crate::node::Node;
use crate::shape::{Key, WORD};
use crate::tree::Sherman;

/// Neighbours are merged if their contents fit into this fraction of a node.
const FULL: (usize, usize) = (3, 4);
/// A node below this fill is underfull.
const UNDERFULL: (usize, usize) = (1, 4);

/// Two neighbours under a parent.
struct Pair {
    left: GlobalAddr,
    right: GlobalAddr,
    /// Index of the separator between them.
    at: usize,
    separator: Key,
}

impl Sherman {
    fn fill(&self, node: &Node<'_>) -> (usize, usize) {
        match node.level() {
            0 => (node.entries(), self.shape.leaf_max()),
            _ => (node.count(), self.shape.inner_max()),
        }
    }

    /// Whether a node has few enough entries to be merged.
    pub(crate) fn is_underfull(&self, node: &Node<'_>) -> bool {
        let (used, max) = self.fill(node);
        used * UNDERFULL.1 < max * UNDERFULL.0
    }

    /// Merges the leaf of `key` with a neighbour, and then, level by level, the parents that become
    /// underfull.
    pub(crate) async fn merge_up<E: Endpoint>(&self, ep: &E, key: &Key) -> Result<()> {
        let mut level = 0;
        while self.patiently(ep, "a parent", async || self.merge(ep, key, level).await).await? {
            level += 1;
        }
        Ok(())
    }

    /// Merges the node of `level` that covers `key`, if possible; returns whether its parent is underfull
    /// then.
    async fn merge<E: Endpoint>(&self, ep: &E, key: &Key, level: u8) -> Attempt<bool> {
        let mut locked = self.lock_node(ep, key, level + 1).await?;
        let merged = match self.pair(&self.node(&locked.page), key) {
            Some(pair) => self.merge_pair(ep, &mut locked, &pair).await,
            None => Ok(None),
        };
        let Locked { held, addr, page, .. } = locked;
        held.finish(ep).await?;
        let Some(gone) = merged? else {
            ep.recycle(page);
            return Ok(false);
        };
        self.put_free(gone);
        self.counters.merges.fetch_add(1, Relaxed);
        let parent = self.node(&page);
        self.cache_node(ep, &parent);
        let is_underfull = addr != self.anchor.root && self.is_underfull(&parent);
        ep.recycle(page);
        Ok(is_underfull)
    }

    /// The neighbours to merge; under partitioning both must belong to this compute server.
    fn pair(&self, parent: &Node<'_>, key: &Key) -> Option<Pair> {
        let at = parent.child_index(key).min(parent.count().checked_sub(1)?);
        let is_own = |i| self.own.is_none() || self.is_own(parent.child_fences(i));
        let (left, right) = (parent.child(at)?, parent.child(at + 1)?);
        (is_own(at) && is_own(at + 1)).then(|| Pair { left, right, at, separator: parent.separator(at) })
    }

    /// Merges two neighbours under the locked parent; returns the node that is gone. The writes are added to
    /// the lock.
    async fn merge_pair<E: Endpoint>(
        &self,
        ep: &E,
        locked: &mut Locked<'_>,
        pair: &Pair,
    ) -> Attempt<Option<GlobalAddr>> {
        for addr in [pair.left, pair.right] {
            // Two nodes may share one lock word.
            let got = locked.held.try_add(ep, addr, self.own.is_some()).await?;
            if got == Got::Busy && !defect(Defect::MergeLocked) {
                return Ok(None);
            }
        }
        let left = self.read_locked(ep, pair.left).await?;
        let right = self.read_locked(ep, pair.right).await?;
        let gone = self.merge_pages(ep, locked, pair, &left, &right);
        ep.recycle(left);
        ep.recycle(right);
        Ok(gone)
    }

    fn merge_pages<E: Endpoint>(
        &self,
        ep: &E,
        locked: &mut Locked<'_>,
        pair: &Pair,
        left_page: &PageBuf,
        right_page: &PageBuf,
    ) -> Option<GlobalAddr> {
        let (parent, left, right) = (self.node(&locked.page), self.node(left_page), self.node(right_page));
        let are_neighbours = !left.is_gone() && !right.is_gone() && left.sibling() == Some(pair.right);
        let ((in_left, max), (in_right, _)) = (self.fill(&left), self.fill(&right));
        let all = in_left + in_right + usize::from(left.level() > 0);
        if !are_neighbours || left.high() != Some(pair.separator) || all * FULL.1 > max * FULL.0 {
            return None;
        }
        ep.charge(Work::Copy { bytes: self.shape.node_size() });
        let is_merged = left.merge_from(&right, &pair.separator);
        assert!(is_merged, "they fit");
        parent.remove_child(pair.at);
        [&left, &right, &parent].into_iter().for_each(Node::seal);
        locked.held.write(pair.left, left_page, WORD..left_page.len());
        locked.held.write(pair.right, right_page, WORD..right_page.len());
        locked.held.write(locked.addr, &locked.page, WORD..locked.page.len());
        Some(pair.right)
    }
}
