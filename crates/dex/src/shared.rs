//! Nodes that several compute servers use (DEX §4, §7): refreshed when stale, changed under a remote lock.
//!
//! A shared node is an inner node whose fences cross a partition boundary. Its remote copy is always up to date;
//! cached copies may be stale, hold no swizzled pointers, and are found out by the fences of what they lead to. A
//! cached copy only ever gets newer, by the version of the remote lock word, so that a child that this compute server
//! merged away does not come back into it.
//!
//! Remote locks are taken from the top down. No shared node is freed while several compute servers run. Whether a node is
//! shared changes when boundaries move, so whoever has locked one looks again ([`LockedNode::is_shared`]).

use std::sync::atomic::Ordering::Relaxed;

use pando_cache::sync::Word;
use pando_cache::{FrameRef, FrameState, FreeFrame, Swip};
use pando_fabric::{Endpoint, GlobalAddr, PageBuf, Patience};

use crate::error::{Attempt, Result, Retry};
use crate::layout::{Layout, NodeInit, header};
use crate::locked::LockedNode;
use crate::smo::{Cut, NewNode, Pending, Separator, Split, SplitAt};
use crate::tree::{Ctx, Hop, Tree, clear, count};
use crate::walk::Toward;

impl<L: Layout> Tree<L> {
    /// Reads the nodes on the way to `key` of which this server has cached copies that it takes for shared again,
    /// from the root down, as far as they are cached; and the one at `at`, whose copy led astray. In a small cache that may be below
    /// nodes that are in no frame. A node that a split made this server's own may still have such a copy, below nodes that are its
    /// own for longer.
    pub(crate) async fn refresh<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        at: GlobalAddr,
        key: L::Key<'_>,
        toward: Toward,
    ) -> Attempt<()> {
        count(&self.smo_counters.refreshes);
        let (mut next, mut met) = (Some(self.config.root), false);
        while let Some(addr) = next {
            met |= addr == at;
            next = self.refresh_copy(ctx, addr, key, toward).await?;
        }
        if !met {
            self.refresh_copy(ctx, at, key, toward).await?;
        }
        Ok(())
    }

    /// Reads one such node again; where the way to `key` goes on, unless the node is not cached, or a leaf is next.
    async fn refresh_copy<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        addr: GlobalAddr,
        key: L::Key<'_>,
        toward: Toward,
    ) -> Attempt<Option<GlobalAddr>> {
        let Some(id) = self.cache.table().frame_of(addr) else { return Ok(None) };
        let frame = self.cache.frame(id);
        let version = frame.optimistic()?;
        if !self.holds(frame, version, addr) {
            return Err(Retry::Restart);
        }
        if !header::has(frame.words(), header::SHARED) {
            let next = self.child_addr(frame.words(), key, toward)?;
            frame.validate(version)?;
            return Ok(next);
        }
        let (view, page) = (self.view(ctx), ctx.ep.buffer(self.layout.node_size()));
        let page = self.read_node(ctx, addr, page, (&view, true)).await?;
        self.install(ctx, addr, &page).await?;
        let next = self.child_addr(page.words(), key, toward)?;
        ctx.ep.recycle(page);
        Ok(next)
    }

    /// Address of the child on the way to `key`; `None` if that is a leaf.
    pub(crate) fn child_addr(
        &self,
        words: &[Word],
        key: L::Key<'_>,
        toward: Toward,
    ) -> Attempt<Option<GlobalAddr>> {
        if header::level(words) <= 1 {
            return Ok(None);
        }
        let index = self.child_toward(words, key, toward);
        let swip = Swip::from_raw(header::get(words, self.layout.child_word(words, index)));
        let raw = match swip.frame() {
            Some(id) => self.cache.try_frame(id).ok_or(Retry::Restart)?.addr(),
            None => swip.raw(),
        };
        Ok(GlobalAddr::from_raw(raw).filter(|addr| !addr.is_null()))
    }

    /// Replaces the cached copy of a shared node, if there is one and it is older than `page`.
    pub(crate) async fn install<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        addr: GlobalAddr,
        page: &PageBuf,
    ) -> Result<()> {
        let patience = Patience::new(self.config.patience_ns);
        loop {
            let Some(id) = self.cache.table().frame_of(addr) else { return Ok(()) };
            let frame = self.cache.frame(id);
            let Ok(guard) = frame.exclusive() else {
                patience.wait(ctx.ep, "the latch of a shared node").await?;
                continue;
            };
            let held = frame.addr() == addr.raw() && guard.state() != FrameState::Free;
            let words = frame.words();
            let newer = header::get(page.words(), header::REMOTE_VERSION)
                > header::get(words, header::REMOTE_VERSION);
            // A copy that is this server's own by now is ahead of remote memory.
            if held && newer && header::has(words, header::SHARED) {
                // What was this server's own when the page was judged may be about to be left: somebody who saw that may have
                // the node locked as a shared one since, and relies on this copy not to be taken for own.
                let left = self.view(ctx).is_shared(self.layout, page.words());
                self.layout.copy_content(page.words(), words);
                // Its lock word goes on in any case.
                header::set_flag(words, header::WAS_SHARED, true);
                if left {
                    header::set_flag(words, header::SHARED, true);
                }
                drop(guard);
            } else {
                guard.release_unchanged();
            }
            if held {
                return Ok(());
            }
        }
    }

    /// Locks the shared parent at `addr` and checks that `child` still is its child for `key`. If not, unlocks,
    /// refreshes, and restarts.
    pub(crate) async fn lock_parent<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        addr: GlobalAddr,
        key: L::Key<'_>,
        child: GlobalAddr,
        child_level: u8,
    ) -> Attempt<LockedNode<'_>> {
        let parent = self.lock_node(ctx, addr).await?;
        let words = parent.words();
        let index = self.layout.child_index(words, key);
        let is_parent = header::level(words) == child_level + 1
            && parent.is_shared
            && !header::has(words, header::MOVED)
            && self.layout.covers(words, key)
            && header::get(words, self.layout.child_word(words, index)) == child.raw();
        if is_parent {
            return Ok(parent);
        }
        self.unlock_seen(ctx, [parent]).await?;
        self.refresh(ctx, addr, key, Toward::Key).await?;
        Err(Retry::Restart)
    }

    /// Splits a node that only this compute server uses and whose parent is shared: here first, then the parent is
    /// written through. In between, a worker that comes for a key of the new node finds fences that do not fit,
    /// tries to refresh the parent, and waits for its lock.
    pub(crate) async fn split_under_shared<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        key: L::Key<'_>,
        node: Hop<'_>,
        parent: Hop<'_>,
        cut: Cut<'_>,
    ) -> Attempt<Split> {
        let level = header::level(node.frame.words());
        let addr = GlobalAddr::from_raw(node.frame.addr()).ok_or(Retry::Restart)?;
        let parent_addr = GlobalAddr::from_raw(parent.frame.addr()).ok_or(Retry::Restart)?;
        parent.validate()?;
        let _pin = node.frame.pin(node.version)?;
        let new = self.new_node(ctx, level, self.near(level, addr, parent_addr)).await?;
        let free = self.cache.allocate(ctx.worker, ctx.ep, self.layout).await?;
        let parent = self.lock_parent(ctx, parent_addr, key, addr, level).await?;
        match self.split_into_parent(node.frame, addr, &parent, free, &new, cut) {
            Ok(Split::Done) => {
                new.link();
                self.write_unlock(ctx, parent).await?;
                count(&self.smo_counters.splits);
                Ok(Split::Done)
            }
            other => {
                self.unlock_unchanged(ctx, parent).await?;
                other
            }
        }
    }

    /// The latched part of [`Tree::split_under_shared`]: changes the cached node and the locked parent's bytes.
    fn split_into_parent<'t>(
        &'t self,
        frame: FrameRef<'t>,
        addr: GlobalAddr,
        parent: &LockedNode<'_>,
        free: FreeFrame<'t>,
        new: &NewNode<'_, L>,
        cut: Cut<'_>,
    ) -> Attempt<Split> {
        let mut guard = frame.exclusive()?;
        let words = frame.words();
        // The parent's lock keeps the node a child of it, but not this frame the node's until the pin was seen.
        let is_node = guard.state() == FrameState::Hot
            && frame.addr() == addr.raw()
            && !header::has(words, header::SHARED);
        let Some(SplitAt { at, separator }) = self.choose_cut(words, cut).filter(|_| is_node) else {
            guard.release_unchanged();
            return Err(Retry::Restart);
        };
        let result = match self.layout.has_room(parent.words(), &separator.key, 0) {
            true => self.split_latched(frame, free, new.addr(), at, &separator.key).map(|_| Split::Done),
            false => Ok(Split::ParentFull(Separator { rising: false, ..separator.clone() })),
        };
        if !matches!(result, Ok(Split::Done)) {
            guard.release_unchanged();
            return result;
        }
        let separator = separator.key;
        guard.mark_dirty();
        let slot = self.separator_slot(parent.words(), &separator);
        let fits = self.layout.inner_insert(parent.words(), slot, &separator, new.addr().raw());
        assert!(fits, "room was checked on the same bytes");
        result
    }

    /// Splits a shared node: the new right half, the parent and the node are written through, under both locks.
    pub(crate) async fn split_shared<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        key: L::Key<'_>,
        node: Hop<'_>,
        parent: Hop<'_>,
        pending: Pending<'_>,
    ) -> Attempt<Split> {
        let level = header::level(node.frame.words());
        let addr = GlobalAddr::from_raw(node.frame.addr()).ok_or(Retry::Restart)?;
        let parent_addr = GlobalAddr::from_raw(parent.frame.addr()).ok_or(Retry::Restart)?;
        node.validate()?;
        parent.validate()?;
        let new = self.new_node(ctx, level, self.near(level, addr, parent_addr)).await?;
        let [node, parent] = self.lock_both(ctx, key, (addr, level), parent_addr).await?;
        let mut separator = Vec::new();
        let words = node.words();
        let at = match self.layout.has_room(words, pending.key, pending.value_len) {
            true => None,
            false => self.layout.split_point(words, pending.key, pending.value_len, &mut separator),
        };
        let parent_room = at.is_none() || self.layout.has_room(parent.words(), &separator, 0);
        let Some(at) = at.filter(|_| parent_room) else {
            self.unlock_seen(ctx, [node, parent]).await?;
            if !parent_room {
                return Ok(Split::ParentFull(Separator { key: separator, rising: false }));
            }
            // Somebody else made room meanwhile, which this server's copy shows by now.
            return Ok(Split::Done);
        };
        let right = self.split_page(ctx, &node.page, new.addr(), at, &separator);
        let slot = self.separator_slot(parent.words(), &separator);
        let fits = self.layout.inner_insert(parent.words(), slot, &separator, new.addr().raw());
        assert!(fits, "room was checked on the same bytes");
        let [node, parent] = self.write_under(ctx, [node, parent], &new, right).await?;
        new.link();
        self.mark_shared(&self.view(ctx), &node.page);
        node.owe();
        self.write_unlock(ctx, parent).await?;
        self.write_unlock(ctx, node).await?;
        count(&self.smo_counters.splits);
        Ok(Split::Done)
    }

    /// Locks a shared parent, then the shared node of `level` at `addr` below it; the node comes first. Restarts if they are
    /// not that any more.
    async fn lock_both<'t, E: Endpoint>(
        &'t self,
        ctx: Ctx<'_, E>,
        key: L::Key<'_>,
        (addr, level): (GlobalAddr, u8),
        parent_addr: GlobalAddr,
    ) -> Attempt<[LockedNode<'t>; 2]> {
        let parent = self.lock_parent(ctx, parent_addr, key, addr, level).await?;
        let node = match self.lock_node(ctx, addr).await {
            Ok(node) => node,
            Err(retry) => {
                self.unlock_unchanged(ctx, parent).await?;
                return Err(retry);
            }
        };
        let words = node.words();
        // Not what was left behind of a node that moved.
        if node.is_shared && !header::has(words, header::MOVED) && self.layout.covers(words, key) {
            return Ok([node, parent]);
        }
        self.unlock_seen(ctx, [node, parent]).await?;
        self.refresh(ctx, addr, key, Toward::Key).await?;
        Err(Retry::Restart)
    }

    /// Writes a node that nothing leads to yet, on behalf of two that are locked; unlocks these, unchanged, if that fails.
    async fn write_under<'t, E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        locked: [LockedNode<'t>; 2],
        new: &NewNode<'_, L>,
        page: PageBuf,
    ) -> Result<[LockedNode<'t>; 2]> {
        match new.while_written(ctx.ep.write(new.addr(), page)).await {
            Ok(page) => {
                ctx.ep.recycle(page);
                Ok(locked)
            }
            Err(error) => {
                for node in locked {
                    self.unlock_unchanged(ctx, node).await?;
                }
                Err(error.into())
            }
        }
    }

    /// Moves a shared node: the new copy is written first, then the parent with its unlock, then the old copy, which from
    /// then on says that the node is elsewhere. A reader that comes by the parent's new bytes finds the new copy complete; who
    /// remembers the old address finds the node locked, and then moved.
    pub(crate) async fn move_shared<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        key: L::Key<'_>,
        (addr, level): (GlobalAddr, u8),
        parent_addr: GlobalAddr,
        new: NewNode<'_, L>,
    ) -> Attempt<()> {
        let [node, parent] = self.lock_both(ctx, key, (addr, level), parent_addr).await?;
        let copy = ctx.ep.buffer(node.page.len());
        copy.words().iter().zip(node.words()).for_each(|(to, from)| to.store(from.load(Relaxed), Relaxed));
        // Versions go on from where they are.
        copy.set(0, node.next_version());
        copy.set(header::REMOTE_VERSION, node.next_version());
        copy.set(header::ADDR, new.addr().raw());
        let [node, parent] = self.write_under(ctx, [node, parent], &new, copy).await?;
        let word = self.layout.child_word(parent.words(), self.layout.child_index(parent.words(), key));
        header::set(parent.words(), word, new.addr().raw());
        new.link();
        header::set_flag(node.words(), header::MOVED, true);
        node.owe();
        self.write_unlock(ctx, parent).await?;
        Ok(self.write_unlock(ctx, node).await?)
    }

    /// Splits the bytes of a shared node; gives back those of its new right half.
    pub(crate) fn split_page<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        left: &PageBuf,
        addr: GlobalAddr,
        at: usize,
        separator: &[u8],
    ) -> PageBuf {
        let right = ctx.ep.buffer(self.layout.node_size());
        clear(&right);
        self.split_words(left.words(), right.words(), addr, at, separator);
        // Both halves were reached through a node that others remember.
        header::set_flag(right.words(), header::WAS_SHARED, true);
        header::set_flag(left.words(), header::WAS_SHARED, true);
        right
    }

    /// A full shared root: its content moves to two new nodes, and the root gets one level higher in place.
    pub(crate) async fn grow_shared_root<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        pending: Pending<'_>,
    ) -> Attempt<Split> {
        let addr = self.config.root;
        let level = header::level(self.cache.frame(self.root).words());
        let (left, right) = (self.new_node(ctx, level, addr).await?, self.new_node(ctx, level, addr).await?);
        let root = self.lock_node(ctx, addr).await?;
        let words = root.words();
        let mut separator = Vec::new();
        let is_root = root.is_shared && header::level(words) == level;
        let has_room = is_root && self.layout.has_room(words, pending.key, 0);
        let at = match is_root && !has_room {
            true => self.layout.split_point(words, pending.key, 0, &mut separator),
            false => None,
        };
        let Some(at) = at else {
            // Somebody else made room or grew it meanwhile: this server's copy is stale.
            self.unlock_seen(ctx, [root]).await?;
            return if has_room { Ok(Split::Done) } else { Err(Retry::Restart) };
        };
        let left_page = ctx.ep.buffer(self.layout.node_size());
        clear(&left_page);
        self.layout.copy_content(words, left_page.words());
        header::set(left_page.words(), header::ADDR, left.addr().raw());
        header::set(left_page.words(), header::REMOTE_VERSION, 0);
        let right_page = self.split_page(ctx, &left_page, right.addr(), at, &separator);
        self.write_grown_root(ctx, root, (left, left_page), (right, right_page), &separator).await?;
        count(&self.smo_counters.root_changes);
        Ok(Split::Done)
    }

    async fn write_grown_root<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        root: LockedNode<'_>,
        (left, left_page): (NewNode<'_, L>, PageBuf),
        (right, right_page): (NewNode<'_, L>, PageBuf),
        separator: &[u8],
    ) -> Result<()> {
        let words = root.words();
        let level = header::level(words) + 1;
        let index_id = self.config.index_id;
        let init = NodeInit { addr: self.config.root.raw(), index_id, level, low: None, high: None };
        self.layout.init(words, &init);
        header::set(words, self.layout.child_word(words, 0), left.addr().raw());
        let fits = self.layout.inner_insert(words, 0, separator, right.addr().raw());
        assert!(fits, "an empty node holds one separator");
        self.mark_shared(&self.view(ctx), &root.page);
        for (new, page) in [(&left, left_page), (&right, right_page)] {
            match new.while_written(ctx.ep.write(new.addr(), page)).await {
                Ok(page) => ctx.ep.recycle(page),
                Err(error) => {
                    self.unlock_unchanged(ctx, root).await?;
                    return Err(error.into());
                }
            }
        }
        left.link();
        right.link();
        self.write_unlock(ctx, root).await
    }
}

#[cfg(test)]
mod tests;
