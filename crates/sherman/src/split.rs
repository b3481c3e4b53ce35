//! Splits (Sherman §4.4, §4.5).
//!
//! Only the node that is split is locked. Its upper half goes to a new right neighbour, which is written
//! before the node is cut off. With command combination both writes and the release of the lock go in one
//! chain, if they are on one memory server. From then on the new node is reachable through its left
//! neighbour, so its separator may reach the parent later, or never: an operation that passes a node unknown
//! to its parent adds the separator then. It is added only while the node is in its level, under the lock of
//! the parent, without which no node is merged.
//!
//! The root does not move: its content goes to two new nodes.

use std::cmp::Ordering;
use std::sync::atomic::Ordering::Relaxed;

use pando_fabric::defect::defect;
use pando_fabric::{Endpoint, GlobalAddr, PageBuf, Work};

use crate::access::{Got, Held, Locked, Reader};
use crate::defect::Defect;
use crate::error::{Attempt, Result, Retry, ShermanError};
use crate::node::{Init, Node};
use crate::shape::{Key, WORD};
use crate::tree::Sherman;

/// An addition for which a node has no room.
#[derive(Clone, Copy)]
pub(crate) enum Addition<'a> {
    Entry(&'a Key, &'a [u8]),
    /// A child and the separator to its left.
    Child(&'a Key, GlobalAddr),
}

impl Addition<'_> {
    fn key(&self) -> &Key {
        match self {
            Self::Entry(key, _) | Self::Child(key, _) => key,
        }
    }

    /// Adds it to a node that has room.
    fn add_to(&self, node: &Node<'_>) {
        match self {
            Self::Entry(key, value) => {
                let slot = node.make_slot(key).expect("half a leaf has room");
                node.store(slot, key, value);
            }
            Self::Child(separator, child) => {
                let is_added = node.insert_child(separator, *child);
                assert!(is_added, "half an inner node has room");
            }
        }
    }
}

/// A node that is about to be written.
struct NewNode {
    pub addr: GlobalAddr,
    pub page: PageBuf,
    /// Version before the first seal.
    pub version: u16,
    /// Whether it was a node before and is locked; other operations may still reach it.
    pub is_reused: bool,
}

impl NewNode {
    /// Bytes to write: all, or all but the lock of a reused node.
    pub fn window(&self) -> std::ops::Range<usize> {
        (if self.is_reused { WORD } else { 0 })..self.page.len()
    }
}

/// Whether a node is in its level.
enum InLevel {
    Yes,
    No,
    /// Unknown: this node must be read, but another operation holds its lock.
    Busy(GlobalAddr),
}

impl Sherman {
    /// Splits a full node, adds what had no room, and links the new node above.
    pub(crate) async fn split<E: Endpoint>(
        &self,
        ep: &E,
        locked: Locked<'_>,
        addition: Addition<'_>,
    ) -> Attempt<()> {
        let level = self.node(&locked.page).level();
        if let Some((separator, right)) = self.split_node(ep, locked, addition).await? {
            // The addition is done. If linking fails, the new node is still reachable through its left
            // neighbour.
            let _ = self.link_up(ep, level + 1, separator, right).await;
        }
        Ok(())
    }

    /// Splits one node; returns the separator for its parent, and the new node. A root returns `None`.
    async fn split_node<E: Endpoint>(
        &self,
        ep: &E,
        mut locked: Locked<'_>,
        addition: Addition<'_>,
    ) -> Attempt<Option<(Key, GlobalAddr)>> {
        ep.charge(Work::Copy { bytes: 2 * self.shape.node_size() });
        if locked.addr == self.anchor.root {
            self.grow(ep, locked, addition).await?;
            return Ok(None);
        }
        let new = match self.new_node(ep, &mut locked.held, locked.is_own).await {
            Ok(new) => new,
            Err(retry) => {
                locked.held.finish(ep).await?;
                return Err(retry);
            }
        };
        let (left, right) = (self.node(&locked.page), self.node(&new.page));
        let separator = left.split_into(&right, &self.init(&new));
        let half = if addition.key() < &separator { &left } else { &right };
        addition.add_to(half);
        left.seal();
        right.seal();
        let Locked { mut held, addr, page, .. } = locked;
        if defect(Defect::SiblingLast) {
            held.write(addr, &page, WORD..page.len());
        }
        held.write(new.addr, &new.page, new.window());
        held.write(addr, &page, WORD..page.len());
        ep.recycle(page);
        let (finished, right) = (held.finish(ep).await, new.addr);
        self.settle_new(ep, [new], finished).await?;
        Ok(Some((separator, right)))
    }

    /// Provides a node to split a held one into. Operations may still reach a reused node by outdated
    /// pointers, so it is locked too until everything is written.
    async fn new_node<E: Endpoint>(&self, ep: &E, held: &mut Held<'_>, is_own: bool) -> Attempt<NewNode> {
        // It is not known yet which kind of node a part of a shared one will be.
        let may_reuse = self.own.is_none() || is_own;
        let candidates = if may_reuse { self.free_nodes() } else { 0 };
        for _ in 0..candidates {
            let Some(addr) = self.pop_free() else { break };
            if held.try_add(ep, addr, is_own).await? == Got::Lock {
                let page = self.read_locked(ep, addr).await?;
                let node = self.node(&page);
                if !node.is_gone() {
                    return Err(
                        ShermanError::Corrupt { addr, reason: "a node that is in use was free" }.into()
                    );
                }
                let version = node.version();
                return Ok(NewNode { addr, page, version, is_reused: true });
            }
            self.put_free(addr);
        }
        let addr = self.alloc(ep).await?;
        Ok(NewNode { addr, page: ep.buffer(self.shape.node_size()), version: 0, is_reused: false })
    }

    /// Gives back a new node that is not needed.
    async fn drop_new<E: Endpoint>(&self, ep: &E, new: NewNode) -> Result<()> {
        match new.is_reused {
            true => self.put_free(new.addr),
            false => self.pool.free(ep, new.addr, self.shape.node_size() as u64).await?,
        }
        ep.recycle(new.page);
        Ok(())
    }

    /// Settles new nodes after the writes: keeps them if they were or may have been written, and frees them
    /// otherwise.
    async fn settle_new<E: Endpoint, const N: usize>(
        &self,
        ep: &E,
        new: [NewNode; N],
        finished: Result<()>,
    ) -> Result<()> {
        let is_refused = |error: &ShermanError| !error.may_have_taken_effect();
        if finished.as_ref().is_err_and(is_refused) {
            for new in new {
                self.drop_new(ep, new).await?;
            }
            return finished;
        }
        new.into_iter().for_each(|new| ep.recycle(new.page));
        self.counters.splits.fetch_add(1, Relaxed);
        finished
    }

    fn init(&self, new: &NewNode) -> Init {
        let (addr, index, version) = (new.addr, self.index(), new.version);
        Init { addr, index, level: 0, low: None, high: None, sibling: None, version }
    }

    /// Moves the content of a full root into two new nodes, and makes it their parent.
    async fn grow<E: Endpoint>(&self, ep: &E, mut locked: Locked<'_>, addition: Addition<'_>) -> Attempt<()> {
        let (left, right) = match self.two_new_nodes(ep, &mut locked).await {
            Ok(both) => both,
            Err(retry) => {
                locked.held.finish(ep).await?;
                return Err(retry);
            }
        };
        let (root, left_node) = (self.node(&locked.page), self.node(&left.page));
        let right_node = self.node(&right.page);
        left_node.copy_content(&root, left.addr, left.version);
        let separator = left_node.split_into(&right_node, &self.init(&right));
        addition.add_to(if addition.key() < &separator { &left_node } else { &right_node });
        let (level, version) = (root.level() + 1, root.version());
        root.init(&Init { level, version, addr: locked.addr, ..self.init(&left) });
        root.set_leftmost(left.addr);
        root.insert_child(&separator, right.addr);
        [&root, &left_node, &right_node].into_iter().for_each(Node::seal);
        let Locked { mut held, addr, page, .. } = locked;
        held.write(left.addr, &left.page, left.window());
        held.write(right.addr, &right.page, right.window());
        held.write(addr, &page, WORD..page.len());
        let finished = held.finish(ep).await;
        self.settle_new(ep, [left, right], finished).await?;
        self.note_root(&self.node(&page), addr);
        self.cache_node(ep, &self.node(&page));
        ep.recycle(page);
        Ok(())
    }

    async fn two_new_nodes<E: Endpoint>(
        &self,
        ep: &E,
        locked: &mut Locked<'_>,
    ) -> Attempt<(NewNode, NewNode)> {
        let left = self.new_node(ep, &mut locked.held, locked.is_own).await?;
        match self.new_node(ep, &mut locked.held, locked.is_own).await {
            Ok(right) => Ok((left, right)),
            Err(retry) => {
                self.drop_new(ep, left).await?;
                Err(retry)
            }
        }
    }

    /// Adds a separator and the node to its right to the parent, and splits full nodes up to the root.
    pub(crate) async fn link_up<E: Endpoint>(
        &self,
        ep: &E,
        mut level: u8,
        mut separator: Key,
        mut child: GlobalAddr,
    ) -> Result<()> {
        loop {
            let linked =
                self.patiently(ep, "a parent", async || self.link(ep, level, &separator, child).await);
            match linked.await? {
                None => return Ok(()),
                Some((above, right)) => (level, separator, child) = (level + 1, above, right),
            }
        }
    }

    /// Adds the separator to one node; if that is split, returns the addition for the level above.
    async fn link<E: Endpoint>(
        &self,
        ep: &E,
        level: u8,
        separator: &Key,
        child: GlobalAddr,
    ) -> Attempt<Option<(Key, GlobalAddr)>> {
        let locked = self.lock_node(ep, separator, level).await?;
        let parent = self.node(&locked.page);
        // Covers the leftmost child too, which has no separator here.
        let is_known = parent.child_fences(parent.child_index(separator)).low == Some(*separator);
        // If no key of the parent belongs to this compute server, the owner of its keys will reach the new
        // node and link it.
        let is_ours = self.may_change(parent.fences());
        let found = match is_known || !is_ours {
            true => Ok(InLevel::No),
            false => self.is_in_level(ep, &locked, child, separator).await,
        };
        if !matches!(found, Ok(InLevel::Yes)) {
            self.cache_node(ep, &parent);
            ep.recycle(locked.page);
            locked.held.finish(ep).await?;
            let InLevel::Busy(node) = found? else { return Ok(None) };
            // This operation holds no lock now, so it may wait.
            ep.recycle(self.read(ep, node, |_| true).await?);
            return Err(Retry::Restart);
        }
        if !parent.insert_child(separator, child) {
            return self.split_node(ep, locked, Addition::Child(separator, child)).await;
        }
        parent.seal();
        let Locked { mut held, addr, page, .. } = locked;
        held.write(addr, &page, WORD..page.len());
        held.finish(ep).await?;
        self.cache_node(ep, &self.node(&page));
        ep.recycle(page);
        Ok(None)
    }

    /// Whether the node is in its level, from the separator on, to the right of a child of its locked parent.
    /// It may have been merged, and be about to be reused elsewhere. While the parent is locked, it stays in
    /// place.
    async fn is_in_level<E: Endpoint>(
        &self,
        ep: &E,
        locked: &Locked<'_>,
        addr: GlobalAddr,
        low: &Key,
    ) -> Attempt<InLevel> {
        let parent = self.node(&locked.page);
        let mut next = parent.child(parent.child_index(low));
        while let Some(left) = next {
            let page = match self.read_as(ep, left, Reader::Holder(locked.addr), |_| true).await {
                Err(Retry::Restart) => return Ok(InLevel::Busy(left)),
                read => read?,
            };
            let node = self.node(&page);
            let (high, sibling) = (node.high(), node.sibling());
            ep.recycle(page);
            match high.map(|high| high.cmp(low)) {
                Some(Ordering::Less) => next = sibling,
                Some(Ordering::Equal) if sibling == Some(addr) => return Ok(InLevel::Yes),
                _ => return Ok(InLevel::No),
            }
        }
        Ok(InLevel::No)
    }
}
