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

use pando_cache::{FrameRef, FrameState, FreeFrame};
use pando_fabric::{Endpoint, GlobalAddr, PageBuf, Patience};

use crate::cut::{Cut, Pending, Separator, SplitAt};
use crate::error::{Attempt, Result, Retry};
use crate::layout::{Layout, NodeInit, header};
use crate::locked::LockedNode;
use crate::node::{Node, Target};
use crate::smo::{NewNode, Split};
use crate::tree::{Ctx, Hop, Tree, clear, count};

impl<L: Layout> Tree<L> {
    /// Reads the nodes on the way to `key` of which this server has cached copies that it takes for shared again,
    /// from the root down, as far as they are cached; and the one at `at`, whose copy led astray. In a small cache that may be below
    /// nodes that are in no frame. A node that a split made this server's own may still have such a copy, below nodes that are its
    /// own for longer.
    pub(crate) async fn refresh<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        at: GlobalAddr,
        target: Target<'_, L>,
    ) -> Attempt<()> {
        count(&self.smo_counters.refreshes);
        let (mut next, mut met) = (Some(self.config.root), false);
        while let Some(addr) = next {
            met |= addr == at;
            next = self.refresh_copy(ctx, addr, target).await?;
        }
        if !met {
            self.refresh_copy(ctx, at, target).await?;
        }
        Ok(())
    }

    /// Reads one such node again; where the way to `key` goes on, unless the node is not cached, or a leaf is next.
    async fn refresh_copy<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        addr: GlobalAddr,
        target: Target<'_, L>,
    ) -> Attempt<Option<GlobalAddr>> {
        let Some(id) = self.cache.table().frame_of(addr) else { return Ok(None) };
        let frame = self.cache.frame(id);
        let version = frame.optimistic()?;
        if !self.holds(frame, version, addr) {
            return Err(Retry::Restart);
        }
        if !self.node(frame).is_shared() {
            let next = self.child_addr(self.node(frame), target)?;
            frame.validate(version)?;
            return Ok(next);
        }
        let (view, page) = (self.view(ctx), ctx.ep.buffer(self.layout.node_size()));
        let page = self.read_node(ctx, addr, page, &view, true).await?;
        self.install(ctx, addr, &page).await?;
        let next = self.child_addr(self.node(&page), target)?;
        ctx.ep.recycle(page);
        Ok(next)
    }

    /// Address of the child on the way to `key`; `None` if that is a leaf.
    pub(crate) fn child_addr(&self, node: Node<'_, L>, target: Target<'_, L>) -> Attempt<Option<GlobalAddr>> {
        if node.level() <= 1 {
            return Ok(None);
        }
        let swip = node.child(node.child_toward(target));
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
            let (copy, page) = (self.node_mut(frame), self.node(page));
            let newer = page.remote_version() > copy.remote_version();
            // A copy that is this server's own by now is ahead of remote memory.
            if held && newer && copy.is_shared() {
                // What was this server's own when the page was judged may be about to be left: somebody who saw that may have
                // the node locked as a shared one since, and relies on this copy not to be taken for own.
                let left = self.view(ctx).is_shared(page);
                copy.copy_content(page);
                // Its lock word goes on in any case.
                copy.set_flag(header::WAS_SHARED, true);
                if left {
                    copy.set_flag(header::SHARED, true);
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
        let node = self.node(&parent);
        let is_parent = node.level() == child_level + 1
            && parent.is_shared
            && !node.is_moved()
            && node.covers(Target::of(key))
            && node.child_addr(node.child_index(key)) == Some(child);
        if is_parent {
            return Ok(parent);
        }
        self.unlock_seen(ctx, [parent]).await?;
        self.refresh(ctx, addr, Target::of(key)).await?;
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
        let level = self.node(node).level();
        let addr = self.node(node).addr().ok_or(Retry::Restart)?;
        let parent_addr = self.node(parent).addr().ok_or(Retry::Restart)?;
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
        let page = self.node(frame);
        // The parent's lock keeps the node a child of it, but not this frame the node's until the pin was seen.
        let is_node = guard.state() == FrameState::Hot && frame.addr() == addr.raw() && !page.is_shared();
        let Some(SplitAt { at, separator }) = cut.choose(page).filter(|_| is_node) else {
            guard.release_unchanged();
            return Err(Retry::Restart);
        };
        let result = match self.node(parent).has_room(&separator.key, 0) {
            true => self.split_latched(frame, free, new.addr(), at, &separator.key).map(|_| Split::Done),
            false => Ok(Split::ParentFull(Separator { rising: false, ..separator.clone() })),
        };
        if !matches!(result, Ok(Split::Done)) {
            guard.release_unchanged();
            return result;
        }
        let separator = separator.key;
        guard.mark_dirty();
        self.node_mut(parent).link(&separator, new.addr().raw());
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
        let level = self.node(node).level();
        let addr = self.node(node).addr().ok_or(Retry::Restart)?;
        let parent_addr = self.node(parent).addr().ok_or(Retry::Restart)?;
        node.validate()?;
        parent.validate()?;
        let new = self.new_node(ctx, level, self.near(level, addr, parent_addr)).await?;
        let [node, parent] = self.lock_both(ctx, key, addr, level, parent_addr).await?;
        let mut separator = Vec::new();
        let content = self.node(&node);
        let at = match content.has_room(pending.key, pending.value_len) {
            true => None,
            false => content.split_point(pending.key, pending.value_len, &mut separator),
        };
        let parent_room = at.is_none() || self.node(&parent).has_room(&separator, 0);
        let Some(at) = at.filter(|_| parent_room) else {
            self.unlock_seen(ctx, [node, parent]).await?;
            if !parent_room {
                return Ok(Split::ParentFull(Separator { key: separator, rising: false }));
            }
            // Somebody else made room meanwhile, which this server's copy shows by now.
            return Ok(Split::Done);
        };
        let right = self.split_page(ctx, &node.page, new.addr(), at, &separator);
        self.node_mut(&parent).link(&separator, new.addr().raw());
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
        addr: GlobalAddr,
        level: u8,
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
        let page = self.node(&node);
        // Not what was left behind of a node that moved.
        if node.is_shared && !page.is_moved() && page.covers(Target::of(key)) {
            return Ok([node, parent]);
        }
        self.unlock_seen(ctx, [node, parent]).await?;
        self.refresh(ctx, addr, Target::of(key)).await?;
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
        addr: GlobalAddr,
        level: u8,
        parent_addr: GlobalAddr,
        new: NewNode<'_, L>,
    ) -> Attempt<()> {
        let [node, parent] = self.lock_both(ctx, key, addr, level, parent_addr).await?;
        let copy = ctx.ep.buffer(node.page.len());
        copy.words().iter().zip(node.words()).for_each(|(to, from)| to.store(from.load(Relaxed), Relaxed));
        // Versions go on from where they are.
        copy.set(0, node.next_version());
        copy.set(header::REMOTE_VERSION, node.next_version());
        copy.set(header::ADDR, new.addr().raw());
        let [node, parent] = self.write_under(ctx, [node, parent], &new, copy).await?;
        let above = self.node_mut(&parent);
        above.set_child(above.child_index(key), new.addr().raw());
        new.link();
        self.node_mut(&node).set_flag(header::MOVED, true);
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
        let halves = [left, &right].map(|page| self.node_mut(page));
        self.split_node(halves[0], halves[1], addr, at, separator);
        // Both halves were reached through a node that others remember.
        halves.iter().for_each(|half| half.set_flag(header::WAS_SHARED, true));
        right
    }

    /// A full shared root: its content moves to two new nodes, and the root gets one level higher in place.
    pub(crate) async fn grow_shared_root<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        pending: Pending<'_>,
    ) -> Attempt<Split> {
        let addr = self.config.root;
        let level = self.node(self.cache.frame(self.root)).level();
        let (left, right) = (self.new_node(ctx, level, addr).await?, self.new_node(ctx, level, addr).await?);
        let root = self.lock_node(ctx, addr).await?;
        let node = self.node(&root);
        let mut separator = Vec::new();
        let is_root = root.is_shared && node.level() == level;
        let has_room = is_root && node.has_room(pending.key, 0);
        let at = match is_root && !has_room {
            true => node.split_point(pending.key, 0, &mut separator),
            false => None,
        };
        let Some(at) = at else {
            // Somebody else made room or grew it meanwhile: this server's copy is stale.
            self.unlock_seen(ctx, [root]).await?;
            return if has_room { Ok(Split::Done) } else { Err(Retry::Restart) };
        };
        let left_page = ctx.ep.buffer(self.layout.node_size());
        clear(&left_page);
        let copy = self.node_mut(&left_page);
        copy.copy_content(node);
        copy.set_addr(left.addr());
        copy.set_remote_version(0);
        let right_page = self.split_page(ctx, &left_page, right.addr(), at, &separator);
        for (new, page) in [(&left, left_page), (&right, right_page)] {
            match new.while_written(ctx.ep.write(new.addr(), page)).await {
                Ok(page) => ctx.ep.recycle(page),
                Err(error) => {
                    self.unlock_unchanged(ctx, root).await?;
                    return Err(error.into());
                }
            }
        }
        self.raise_root(&root, left.addr(), right.addr(), &separator);
        self.mark_shared(&self.view(ctx), &root.page);
        left.link();
        right.link();
        self.write_unlock(ctx, root).await?;
        count(&self.smo_counters.root_changes);
        Ok(Split::Done)
    }

    /// Makes the locked root an inner node of the next level, with two children.
    fn raise_root(&self, root: &LockedNode<'_>, left: GlobalAddr, right: GlobalAddr, separator: &[u8]) {
        let node = self.node_mut(root);
        let (level, index_id) = (node.level() + 1, self.config.index_id);
        node.init(&NodeInit { addr: self.config.root.raw(), index_id, level, low: None, high: None });
        node.set_child(0, left.raw());
        node.link(separator, right.raw());
    }
}

#[cfg(test)]
mod tests;
