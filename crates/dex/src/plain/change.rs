//! Changes of entries, and splits.
//!
//! A leaf is changed under its lock and written back at once. A leaf that is too full is split first: its
//! parent is locked, then the leaf, and the new right half is written before any pointer leads to it. If the
//! parent has no room for the separator, the parent is split first, and so on up to the root, whose content
//! moves to two new children.

use std::sync::atomic::Ordering::Relaxed;

use pando_fabric::{Endpoint, GlobalAddr, PageBuf, Patience, Work};
use pando_pool::Placement;

use super::Seen;
use crate::change::{Blocked, Change, Outcome, apply};
use crate::error::{Attempt, DexError, Result, Retry};
use crate::layout::{Layout, NodeInit, Side, Stored, header};
use crate::node::NodeMut;
use crate::plain::hold::Held;
use crate::plain::{PlainTree, long_value};
use crate::tree::clear;

/// An entry or a separator that does not fit.
struct Pending {
    key: Vec<u8>,
    value_len: usize,
}

/// Result of an attempt to split.
enum Split {
    /// The node was split, or has room by now.
    Done,
    /// The parent has no room for this separator.
    ParentFull(Vec<u8>),
}

impl<L: Layout> PlainTree<L> {
    /// Stores a value; returns whether the key was present before.
    ///
    /// # Errors
    /// Keys and values that the layout cannot hold in leaves; a full pool; corruption; too long a wait;
    /// errors of the fabric.
    pub async fn put<E: Endpoint>(&self, ep: &E, key: &[u8], value: &[u8]) -> Result<bool> {
        Ok(self.change(ep, key, value, Change::Upsert).await?.existed)
    }

    /// Stores a value under a key that is absent; `false` without a change if the key is present.
    ///
    /// # Errors
    /// Errors of [`PlainTree::put`].
    pub async fn insert<E: Endpoint>(&self, ep: &E, key: &[u8], value: &[u8]) -> Result<bool> {
        Ok(self.change(ep, key, value, Change::Insert).await?.changed)
    }

    /// Stores a value under a key that is present; `false` without a change if the key is absent.
    ///
    /// # Errors
    /// Errors of [`PlainTree::put`].
    pub async fn update<E: Endpoint>(&self, ep: &E, key: &[u8], value: &[u8]) -> Result<bool> {
        Ok(self.change(ep, key, value, Change::Update).await?.changed)
    }

    /// Removes a key; returns whether it was present.
    ///
    /// # Errors
    /// Errors of [`PlainTree::get`].
    pub async fn remove<E: Endpoint>(&self, ep: &E, key: &[u8]) -> Result<bool> {
        Ok(self.change_entry(ep, key, &Change::Remove).await?.changed)
    }

    async fn change<'v, E: Endpoint>(
        &self,
        ep: &E,
        key: &[u8],
        value: &'v [u8],
        change: fn(Stored<'v>) -> Change<'v>,
    ) -> Result<Outcome> {
        if !self.layout.value_is_inline(value)? {
            return Err(long_value());
        }
        self.change_entry(ep, key, &change(Stored::Inline(value))).await
    }

    async fn change_entry<E: Endpoint>(&self, ep: &E, key: &[u8], change: &Change<'_>) -> Result<Outcome> {
        let prepared = self.layout.key(key)?;
        let patience = Patience::new(self.config.patience_ns);
        loop {
            match self.try_change(ep, prepared, change).await {
                Ok(Ok(outcome)) => return Ok(outcome),
                Ok(Err(Blocked::NoRoom)) => {
                    let value_len = crate::change::stored_len(change);
                    self.make_room(ep, Pending { key: key.to_vec(), value_len }).await?;
                }
                Ok(Err(Blocked::Compare(_))) => return Err(long_value()),
                Err(Retry::Failed(error)) => return Err(error),
                Err(_) => patience.wait(ep, "a leaf to change").await?,
            }
        }
    }

    async fn try_change<E: Endpoint>(
        &self,
        ep: &E,
        key: L::Key<'_>,
        change: &Change<'_>,
    ) -> Attempt<std::result::Result<Outcome, Blocked>> {
        let (leaf, parent) = self.find_node(ep, key, 0).await?;
        parent.into_iter().for_each(|parent| ep.recycle(parent.page));
        let held = match self.hold_seen(ep, leaf).await? {
            Ok(held) => held,
            Err(seen) => {
                let held = self.hold_now(ep, &seen).await;
                ep.recycle(seen.page);
                held?
            }
        };
        // The leaf may have been split, or have become an inner node if it is the root.
        if header::level(held.words()) != 0 || !self.layout.covers(held.words(), key) {
            self.release(ep, held).await?;
            return Err(Retry::Restart);
        }
        let result = apply(NodeMut::new(&self.layout, held.words()), key, change);
        ep.charge(crate::change::work_of(self.layout, change, &result));
        match &result {
            Ok(outcome) if outcome.changed => self.write_release(ep, held).await?,
            _ => self.release(ep, held).await?,
        }
        Ok(result)
    }

    /// Splits the leaf of an entry, and full nodes above it, to make room.
    async fn make_room<E: Endpoint>(&self, ep: &E, entry: Pending) -> Result<()> {
        let patience = Patience::new(self.config.patience_ns);
        // From the leaf up, what each level must take in.
        let mut needs = vec![entry];
        while let Some(pending) = needs.last() {
            let level = (needs.len() - 1) as u8;
            match self.try_split(ep, level, pending).await {
                // Retry the level below, which finds its node again: that may have been split meanwhile.
                Ok(Split::Done) => needs.truncate(needs.len() - 1),
                Ok(Split::ParentFull(key)) => needs.push(Pending { key, value_len: 0 }),
                Err(Retry::Failed(error)) => return Err(error),
                Err(_) => patience.wait(ep, "a node to split").await?,
            }
        }
        Ok(())
    }

    async fn try_split<E: Endpoint>(&self, ep: &E, level: u8, pending: &Pending) -> Attempt<Split> {
        let key = self.layout.key(&pending.key)?;
        let (node, parent) = self.find_node(ep, key, level).await?;
        if self.layout.has_room(node.words(), &pending.key, pending.value_len) {
            return Ok(Split::Done);
        }
        ep.charge(Work::Copy { bytes: 2 * self.layout.node_size() });
        let Some(parent) = parent else { return self.grow_root(ep, node, pending).await };
        let (_, separator) = self.split_point(node.words(), pending)?;
        if !self.layout.has_room(parent.words(), &separator, 0) {
            return Ok(Split::ParentFull(separator));
        }
        let right = self.allocate(ep, level, node.addr).await?;
        let Ok(parent) = self.hold_seen(ep, parent).await? else {
            self.free(ep, right).await?;
            return Err(Retry::Restart);
        };
        match self.hold_child(ep, &parent, &node).await {
            Ok(held) => self.split_held(ep, parent, held, right, pending).await,
            Err(retry) => {
                self.release(ep, parent).await?;
                self.free(ep, right).await?;
                Err(retry)
            }
        }
    }

    /// Splits a node that is held together with its parent.
    async fn split_held<E: Endpoint>(
        &self,
        ep: &E,
        parent: Held<'_>,
        node: Held<'_>,
        right: GlobalAddr,
        pending: &Pending,
    ) -> Attempt<Split> {
        let full = !self.layout.has_room(node.words(), &pending.key, pending.value_len);
        // The node may have been changed before it was locked.
        let plan = if full { Some(self.split_point(node.words(), pending)) } else { None };
        let fits = |separator: &[u8]| self.layout.has_room(parent.words(), separator, 0);
        let (at, separator) = match plan {
            Some(Ok((at, separator))) if fits(&separator) => (at, separator),
            other => {
                self.release(ep, node).await?;
                self.release(ep, parent).await?;
                self.free(ep, right).await?;
                return match other {
                    None => Ok(Split::Done),
                    Some(Ok((_, separator))) => Ok(Split::ParentFull(separator)),
                    Some(Err(error)) => Err(error.into()),
                };
            }
        };
        let key = self.layout.key(&pending.key)?;
        let level = header::level(node.words());
        let page = self.new_page(ep, right, level, Some(&separator), fence(self.layout, node.words()));
        self.layout.split(node.words(), page.words(), at, &separator);
        self.mark_remote(&node);
        let index = self.layout.child_index(parent.words(), key);
        let inserted = self.layout.inner_insert(parent.words(), index, &separator, right.raw());
        debug_assert!(inserted, "the parent was seen to have room");
        let [parent, node] = self.write_new(ep, [(right, page)], [parent, node]).await?;
        self.write_release(ep, node).await?;
        self.write_release(ep, parent).await?;
        self.splits.fetch_add(1, Relaxed);
        Ok(Split::Done)
    }

    /// Moves the content of the root into two new nodes, and makes the root their parent.
    async fn grow_root<E: Endpoint>(&self, ep: &E, root: Seen, pending: &Pending) -> Attempt<Split> {
        let (at, separator) = self.split_point(root.words(), pending)?;
        let level = root.level();
        let left = self.allocate(ep, level, root.addr).await?;
        let right = self.allocate(ep, level, root.addr).await?;
        let Ok(held) = self.hold_seen(ep, root).await? else {
            self.free(ep, left).await?;
            self.free(ep, right).await?;
            return Err(Retry::Restart);
        };
        let left_page = self.new_page(ep, left, level, None, None);
        self.layout.copy_content(held.words(), left_page.words());
        header::set_flag(left_page.words(), header::WAS_SHARED, false);
        let right_page = self.new_page(ep, right, level, Some(&separator), None);
        self.layout.split(left_page.words(), right_page.words(), at, &separator);
        let words = held.words();
        words.iter().for_each(|word| word.store(0, Relaxed));
        let init = NodeInit {
            addr: held.addr.raw(),
            index_id: self.config.index_id,
            level: level + 1,
            low: None,
            high: None,
        };
        self.layout.init(words, &init);
        header::set(words, self.layout.child_word(words, 0), left.raw());
        let inserted = self.layout.inner_insert(words, 0, &separator, right.raw());
        debug_assert!(inserted, "an empty node has room");
        let [held] = self.write_new(ep, [(left, left_page), (right, right_page)], [held]).await?;
        self.write_release(ep, held).await?;
        self.splits.fetch_add(1, Relaxed);
        Ok(Split::Done)
    }

    fn split_point(&self, words: &[pando_cache::sync::Word], pending: &Pending) -> Result<(usize, Vec<u8>)> {
        let mut separator = Vec::new();
        let at = self.layout.split_point(words, &pending.key, pending.value_len, &mut separator);
        let too_small = || DexError::Layout("a node is too small for two entries of this size".into());
        Ok((at.ok_or_else(too_small)?, separator))
    }

    async fn allocate<E: Endpoint>(&self, ep: &E, level: u8, near: GlobalAddr) -> Result<GlobalAddr> {
        let placement = match level <= self.config.subtree_level {
            true => Placement::Prefer(near.server()),
            false => Placement::LeastLoaded,
        };
        Ok(self.pool.alloc(ep, placement, self.layout.node_size() as u64).await?)
    }

    async fn free<E: Endpoint>(&self, ep: &E, addr: GlobalAddr) -> Result<()> {
        Ok(self.pool.free(ep, addr, self.layout.node_size() as u64).await?)
    }

    fn new_page<E: Endpoint>(
        &self,
        ep: &E,
        addr: GlobalAddr,
        level: u8,
        low: Option<&[u8]>,
        high: Option<Vec<u8>>,
    ) -> PageBuf {
        let page = ep.buffer(self.layout.node_size());
        clear(&page);
        let (addr, index_id) = (addr.raw(), self.config.index_id);
        self.layout.init(page.words(), &NodeInit { addr, index_id, level, low, high: high.as_deref() });
        page
    }
}

/// The high fence; `None` if it is infinite.
fn fence<L: Layout>(layout: L, words: &[pando_cache::sync::Word]) -> Option<Vec<u8>> {
    let mut high = Vec::new();
    layout.append_fence(words, Side::High, &mut high).then_some(high)
}
