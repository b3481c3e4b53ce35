//! Nodes that several compute servers use (DEX §4, §7): refreshed when stale, changed under a remote lock.
//!
//! A shared node is an inner node whose fences cross a partition boundary. Its remote copy is always up to date;
//! cached copies may be stale, hold no swizzled pointers, and are found out by the fences of what they lead to. A
//! cached copy only ever gets newer, by the version of the remote lock word, so that a child that this compute server
//! merged away does not come back into it.
//!
//! Remote locks are taken from the top down. No shared node is freed while several compute servers run.

use std::sync::atomic::Ordering::Relaxed;

use pando_cache::defect::{Defect, defect};
use pando_cache::sync::Word;
use pando_cache::{FrameRef, FrameState, FreeFrame, Swip};
use pando_fabric::{Chain, Endpoint, FabricError, GlobalAddr, Nanos, PageBuf, VerbResult};
use pando_pool::lock::{self, LockedVersion};

use crate::error::{Attempt, DexError, Result, Retry};
use crate::layout::{Layout, NodeInit, header};
use crate::smo::{NewNode, Pending, Separator, Split};
use crate::tree::{Ctx, Hop, Patience, Tree, clear, count};
use crate::walk::Toward;

/// A shared node that this worker has locked, as it is in remote memory.
pub(crate) struct LockedNode {
    addr: GlobalAddr,
    lock: LockedVersion,
    pub page: PageBuf,
}

impl LockedNode {
    pub fn words(&self) -> &[Word] {
        self.page.words()
    }
}

impl<L: Layout> Tree<L> {
    /// Reads the nodes on the way to `key` of which this server has cached copies that it takes for shared again,
    /// from the root down. A node that a split made this server's own may still have such a copy, below nodes that
    /// are its own for longer.
    pub(crate) async fn refresh<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        key: L::Key<'_>,
        toward: Toward,
    ) -> Attempt<()> {
        count(&self.smo_counters.refreshes);
        let mut addr = self.config.root;
        while let Some(id) = self.cache.table().frame_of(addr) {
            let frame = self.cache.frame(id);
            let version = frame.optimistic()?;
            if !self.holds(frame, version, addr) {
                return Err(Retry::Restart);
            }
            let shared = header::has(frame.words(), header::SHARED);
            let next = match shared {
                false => self.child_addr(frame.words(), key, toward)?,
                true => {
                    let page = ctx.ep.buffer(self.layout.node_size());
                    let page = self.read_node(ctx, addr, page, true).await?;
                    self.install(ctx, addr, &page).await?;
                    let next = self.child_addr(page.words(), key, toward)?;
                    ctx.ep.recycle(page);
                    next
                }
            };
            if !shared {
                frame.validate(version)?;
            }
            match next {
                Some(child) => addr = child,
                None => break,
            }
        }
        Ok(())
    }

    /// Address of the child on the way to `key`; `None` if that is a leaf.
    fn child_addr(&self, words: &[Word], key: L::Key<'_>, toward: Toward) -> Attempt<Option<GlobalAddr>> {
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
    async fn install<E: Endpoint>(&self, ctx: Ctx<'_, E>, addr: GlobalAddr, page: &PageBuf) -> Result<()> {
        let mut patience = Patience::new(self.config.patience_ns);
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
                for (to, from) in words.iter().zip(page.words()).skip(2) {
                    to.store(from.load(Relaxed), Relaxed);
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

    /// Takes the remote lock of a shared node and reads it.
    pub(crate) async fn lock_node<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        addr: GlobalAddr,
    ) -> Attempt<LockedNode> {
        let Some(owner) = self.pool.slot() else {
            return Err(DexError::Layout("a pool that is only read cannot be changed".into()).into());
        };
        let lock = lock::lock(ctx.ep, addr, owner, self.deadline(ctx)).await?;
        let page = ctx.ep.buffer(self.layout.node_size());
        match self.read_checked(ctx, addr, page).await {
            Ok(page) => Ok(LockedNode { addr, lock, page }),
            Err(error) => {
                lock::unlock(ctx.ep, addr, lock, self.deadline(ctx)).await?;
                Err(error.into())
            }
        }
    }

    pub(crate) async fn unlock_unchanged<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        node: LockedNode,
    ) -> Result<()> {
        lock::unlock(ctx.ep, node.addr, node.lock, self.deadline(ctx)).await?;
        ctx.ep.recycle(node.page);
        Ok(())
    }

    /// Until when an operation that begins to wait now waits for others.
    fn deadline<E: Endpoint>(&self, ctx: Ctx<'_, E>) -> Nanos {
        ctx.ep.now().saturating_add(self.config.patience_ns)
    }

    /// Unlocks nodes that were not changed because this server's copies of them turned out to be stale: what was read
    /// under the locks becomes those copies. A refresh might never find a node unlocked, if others lock it as often and
    /// as fruitlessly. All are unlocked before the latch of a copy is waited for.
    async fn unlock_seen<E: Endpoint, const N: usize>(
        &self,
        ctx: Ctx<'_, E>,
        nodes: [LockedNode; N],
    ) -> Result<()> {
        for node in &nodes {
            lock::unlock(ctx.ep, node.addr, node.lock, self.deadline(ctx)).await?;
        }
        for LockedNode { addr, lock, page } in nodes {
            page.set(header::REMOTE_VERSION, lock.unlock_word());
            self.mark_shared(&page);
            self.install(ctx, addr, &page).await?;
            ctx.ep.recycle(page);
        }
        Ok(())
    }

    /// Writes a locked node back, unlocks it in the same chain, and refreshes this server's cached copy.
    pub(crate) async fn write_unlock<E: Endpoint>(&self, ctx: Ctx<'_, E>, node: LockedNode) -> Result<()> {
        let LockedNode { addr, lock, page } = node;
        page.set(header::REMOTE_VERSION, lock.unlock_word());
        if defect(Defect::EarlyUnlock) {
            ctx.ep.write_word(addr, lock.unlock_word()).await?;
        }
        let deadline = self.deadline(ctx);
        // A chain that fails may have taken effect in part. As long as the lock is held, all of it can be done again.
        while let Err(error) = self.write_and_unlock(ctx, addr, lock, &page).await {
            if !error.may_have_taken_effect() {
                return Err(error.into());
            }
            if !lock::is_held(ctx.ep, addr, lock, deadline).await? {
                break;
            }
        }
        self.install(ctx, addr, &page).await?;
        ctx.ep.recycle(page);
        count(&self.smo_counters.shared_changes);
        Ok(())
    }

    async fn write_and_unlock<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        addr: GlobalAddr,
        lock: LockedVersion,
        page: &PageBuf,
    ) -> std::result::Result<(), FabricError> {
        let mut copy = ctx.ep.buffer(page.len());
        copy.words().iter().zip(page.words()).for_each(|(to, from)| to.store(from.load(Relaxed), Relaxed));
        copy.set_window(8..copy.len());
        let chain = Chain::new().write(addr.add(8), copy).write_word(addr, lock.unlock_word());
        if let VerbResult::Buf(copy) = ctx.ep.submit(chain).await?.swap_remove(0) {
            ctx.ep.recycle(copy);
        }
        Ok(())
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
    ) -> Attempt<LockedNode> {
        let parent = self.lock_node(ctx, addr).await?;
        let words = parent.words();
        let index = self.layout.child_index(words, key);
        // If it is shared no more, this server's copy may be ahead of these bytes.
        let is_parent = header::level(words) == child_level + 1
            && header::has(words, header::SHARED)
            && self.layout.covers(words, key)
            && header::get(words, self.layout.child_word(words, index)) == child.raw();
        if is_parent {
            return Ok(parent);
        }
        self.unlock_seen(ctx, [parent]).await?;
        self.refresh(ctx, key, Toward::Key).await?;
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
        pending: Pending<'_>,
    ) -> Attempt<Split> {
        let level = header::level(node.frame.words());
        let addr = GlobalAddr::from_raw(node.frame.addr()).ok_or(Retry::Restart)?;
        let parent_addr = GlobalAddr::from_raw(parent.frame.addr()).ok_or(Retry::Restart)?;
        parent.validate()?;
        let _pin = node.frame.pin(node.version)?;
        let new = self.new_node(ctx, level, self.near(level, addr, parent_addr)).await?;
        let free = self.cache.allocate(ctx.worker, ctx.ep, self.layout).await?;
        let parent = self.lock_parent(ctx, parent_addr, key, addr, level).await?;
        match self.split_into_parent(node.frame, addr, &parent, free, &new, pending) {
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
        parent: &LockedNode,
        free: FreeFrame<'t>,
        new: &NewNode<'_, L>,
        pending: Pending<'_>,
    ) -> Attempt<Split> {
        let mut guard = frame.exclusive()?;
        let words = frame.words();
        let mut separator = Vec::new();
        // The parent's lock keeps the node a child of it, but not this frame the node's until the pin was seen.
        let is_node = guard.state() == FrameState::Hot && frame.addr() == addr.raw();
        let at = self.choose_split(words, pending, &mut separator);
        let result = match at {
            Some(at) if is_node => {
                if self.layout.has_room(parent.words(), &separator, 0) {
                    self.split_latched(frame, free, new.addr(), at, &separator).map(|_| Split::Done)
                } else {
                    Ok(Split::ParentFull(Separator { key: separator.clone(), rising: false }))
                }
            }
            _ => Err(Retry::Restart),
        };
        if !matches!(result, Ok(Split::Done)) {
            guard.release_unchanged();
            return result;
        }
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
        let parent = self.lock_parent(ctx, parent_addr, key, addr, level).await?;
        let node = match self.lock_node(ctx, addr).await {
            Ok(node) => node,
            Err(retry) => {
                self.unlock_unchanged(ctx, parent).await?;
                return Err(retry);
            }
        };
        if !header::has(node.words(), header::SHARED) || !self.layout.covers(node.words(), key) {
            self.unlock_seen(ctx, [node, parent]).await?;
            self.refresh(ctx, key, Toward::Key).await?;
            return Err(Retry::Restart);
        }
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
            // Somebody else made room meanwhile, which this server's copy does not show.
            self.refresh(ctx, key, Toward::Key).await?;
            return Ok(Split::Done);
        };
        let right = self.split_page(ctx, &node.page, new.addr(), at, &separator);
        let slot = self.separator_slot(parent.words(), &separator);
        let fits = self.layout.inner_insert(parent.words(), slot, &separator, new.addr().raw());
        assert!(fits, "room was checked on the same bytes");
        match ctx.ep.write(new.addr(), right).await {
            Ok(right) => ctx.ep.recycle(right),
            Err(error) => {
                self.unlock_unchanged(ctx, node).await?;
                self.unlock_unchanged(ctx, parent).await?;
                return Err(error.into());
            }
        }
        new.link();
        self.mark_shared(&node.page);
        self.write_unlock(ctx, parent).await?;
        self.write_unlock(ctx, node).await?;
        count(&self.smo_counters.splits);
        Ok(Split::Done)
    }

    /// Splits the bytes of a shared node; gives back those of its new right half.
    fn split_page<E: Endpoint>(
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
        let at = match header::level(words) != level || self.layout.has_room(words, pending.key, 0) {
            true => None,
            false => self.layout.split_point(words, pending.key, 0, &mut separator),
        };
        let Some(at) = at else {
            // Somebody else grew it meanwhile: this server's copy is stale.
            self.unlock_seen(ctx, [root]).await?;
            return Err(Retry::Restart);
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
        root: LockedNode,
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
        self.mark_shared(&root.page);
        for (addr, page) in [(left.addr(), left_page), (right.addr(), right_page)] {
            match ctx.ep.write(addr, page).await {
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
