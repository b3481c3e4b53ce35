//! Splits (DEX §7, Insert), and what all structure changes share.
//!
//! A node is split when an entry does not fit. Its parent must have room for the separator; if not, the parent is
//! split first. What is needed of others, an address from the pool and a frame of the cache, is taken before the
//! first latch, since both may await; then parent and node, pinned meanwhile, are latched and looked at again, and
//! the change happens at once. Nodes that other compute servers use too are changed in `shared.rs`.

use std::cell::Cell;
use std::future::Future;

use pando_cache::{ExclusiveGuard, FrameRef, FrameState, FreeFrame, Lookup, Swip};
use pando_fabric::{Endpoint, GlobalAddr, Work};
use pando_pool::{Due, Placement};

use crate::cut::{Cut, Pending, Separator, SplitAt, continues_long_run};
use crate::error::{Attempt, DexError, Result, Retry};
use crate::layout::{Layout, NodeInit, Side, header};
use crate::node::{Node, NodeMut, Target};
use crate::ownership::Purpose;
use crate::tree::{Ctx, Hop, Tree, count};
use crate::tries::Tries;
use crate::unfinished::Unfinished;
use crate::walk::{Admit, Miss, Reached};

/// How an attempt to split ended.
pub(crate) enum Split {
    /// The node was split, or has room by now.
    Done,
    /// The parent has no room for this separator.
    ParentFull(Separator),
}

/// An address for a node that is not linked yet; freed again unless it is.
pub(crate) struct NewNode<'t, L: Layout> {
    tree: &'t Tree<L>,
    addr: Option<GlobalAddr>,
    /// A WRITE to it is under way.
    is_written: Cell<bool>,
}

impl<'t, L: Layout> NewNode<'t, L> {
    /// One at an address that was allocated for it.
    pub fn at(tree: &'t Tree<L>, addr: GlobalAddr) -> Self {
        Self { tree, addr: Some(addr), is_written: Cell::new(false) }
    }

    /// Waits for a WRITE to it: dropped before that has ended, the block rests.
    pub async fn while_written<T>(&self, write: impl Future<Output = T>) -> T {
        self.is_written.set(true);
        let written = write.await;
        self.is_written.set(false);
        written
    }

    pub fn addr(&self) -> GlobalAddr {
        self.addr.expect("taken only by `link`")
    }

    /// The node is part of the tree now.
    pub fn link(mut self) {
        self.addr = None;
    }
}

impl<L: Layout> Drop for NewNode<'_, L> {
    fn drop(&mut self) {
        match self.addr {
            Some(addr) if self.is_written.get() => {
                self.tree.unfinished.push(Unfinished::Block(addr), Due::Later);
            }
            Some(addr) => self.tree.free_unlinked_block(addr),
            None => {}
        }
    }
}

impl<L: Layout> Tree<L> {
    pub(crate) async fn new_node<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        level: u8,
        near: GlobalAddr,
    ) -> Attempt<NewNode<'_, L>> {
        let placement = match level <= self.config.subtree_level {
            true => Placement::Prefer(near.server()),
            false => Placement::LeastLoaded,
        };
        let addr = self.pool.alloc(ctx.ep, placement, self.node_bytes()).await?;
        Ok(NewNode::at(self, addr))
    }

    /// What a node of `level` that is split off one at `addr` should stand beside: the parent says where its subtree is,
    /// whatever became of the node.
    pub(crate) fn near(&self, level: u8, addr: GlobalAddr, parent: GlobalAddr) -> GlobalAddr {
        if level < self.config.subtree_level { parent } else { addr }
    }

    /// Splits what is too full for an entry of `key` and `value_len` bytes to be stored.
    pub(crate) async fn make_room<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        key: L::Key<'_>,
        value_len: usize,
    ) -> Result<()> {
        self.make_room_from(ctx, key, 0, None, value_len, Purpose::Operation).await
    }

    /// The same from `level` on; above the leaves, for a separator.
    pub(crate) async fn make_room_from<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        key: L::Key<'_>,
        start: u8,
        first: Option<Separator>,
        value_len: usize,
        purpose: Purpose,
    ) -> Result<()> {
        let tries = Tries::default();
        let mut ctx = ctx;
        let (mut level, mut separator) = (start, first.clone());
        loop {
            let pending = match &separator {
                None => Pending { key: self.layout.key_bytes(key), value_len, rising: false },
                Some(Separator { key, rising }) => Pending { key, value_len: 0, rising: *rising },
            };
            // Half a node is copied, the room that it leaves filled, and the parent changed.
            ctx.ep.charge(Work::Copy { bytes: 2 * self.layout.node_size() });
            match self.try_split(ctx, key, level, pending, purpose).await {
                Ok(Split::Done) => {
                    return match self.spread_some(ctx).await {
                        Err(error @ DexError::Corrupt { .. }) => Err(error),
                        // The split is done; that no node could be moved now is nobody's failure.
                        _ => Ok(()),
                    };
                }
                Ok(Split::ParentFull(needed)) => {
                    level += 1;
                    separator = Some(needed);
                }
                Err(retry) => {
                    ctx = tries.again(self, ctx, retry, "a node to split").await?;
                    (level, separator) = (start, first.clone());
                }
            }
        }
    }

    /// The cached node of `level` on the way to `key`, and its parent.
    pub(crate) async fn walk_to<'t, E: Endpoint>(
        &'t self,
        ctx: Ctx<'_, E>,
        key: L::Key<'_>,
        level: u8,
    ) -> Attempt<(Hop<'t>, Option<Hop<'t>>)> {
        match self.walk(ctx, Target::of(key), level, Miss::fetched(Admit::Always)).await? {
            Reached::Cached { node, parent } => Ok((node, parent)),
            Reached::Private { .. } | Reached::Below(_) => unreachable!("every page is READ and admitted"),
        }
    }

    async fn try_split<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        key: L::Key<'_>,
        level: u8,
        pending: Pending<'_>,
        purpose: Purpose,
    ) -> Attempt<Split> {
        let _entered = self.enter_for(ctx, key, purpose)?;
        let (node, parent) = self.walk_to(ctx, key, level).await?;
        let page = self.node(node);
        let shared = page.is_shared();
        let has_room = page.has_room(pending.key, pending.value_len);
        node.validate()?;
        // A cached copy of a shared node may show room that is long taken.
        if has_room && !shared {
            return Ok(Split::Done);
        }
        let Some(parent) = parent else {
            return match shared {
                true => self.grow_shared_root(ctx, pending).await,
                false => self.grow_root(ctx, node, Cut::ForRoom(pending)).await,
            };
        };
        let parent_shared = self.node(parent).is_shared();
        parent.validate()?;
        match (shared, parent_shared) {
            (true, _) => self.split_shared(ctx, key, node, parent, pending).await,
            (false, true) => self.split_under_shared(ctx, key, node, parent, Cut::ForRoom(pending)).await,
            (false, false) => {
                let rising = continues_long_run(page, pending);
                node.validate()?;
                if level == 0 && !rising && self.balance(ctx, node, parent, pending)? {
                    return Ok(Split::Done);
                }
                self.split_owned(ctx, key, node, parent, Cut::ForRoom(pending)).await
            }
        }
    }

    /// Where to split the node of `hop`, as it is at that version.
    fn plan_split(&self, hop: Hop<'_>, cut: Cut<'_>) -> Attempt<SplitAt> {
        let plan = cut.choose(self.node(hop));
        hop.validate()?;
        let too_small = || DexError::Layout("a node is too small for two entries of this size".into());
        Ok(plan.ok_or_else(too_small)?)
    }

    async fn split_owned<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        key: L::Key<'_>,
        node: Hop<'_>,
        parent: Hop<'_>,
        cut: Cut<'_>,
    ) -> Attempt<Split> {
        let SplitAt { separator, .. } = self.plan_split(node, cut)?;
        let room = self.node(parent).has_room(&separator.key, 0);
        parent.validate()?;
        if !room {
            return Ok(Split::ParentFull(separator));
        }
        let level = self.node(node).level();
        let addr = self.node(node).addr().ok_or(Retry::Restart)?;
        let _pins = (node.frame.pin(node.version)?, parent.frame.pin(parent.version)?);
        let above = self.node(parent).addr().ok_or(Retry::Restart)?;
        let new = self.new_node(ctx, level, self.near(level, addr, above)).await?;
        let free = self.cache.allocate(ctx.worker, ctx.ep, self.layout).await?;
        let mut parent_guard = parent.frame.exclusive()?;
        let Ok(mut node_guard) = node.frame.exclusive() else {
            parent_guard.release_unchanged();
            return Err(Retry::Restart);
        };
        match self.split_pinned(key, node.frame, parent.frame, free, &new, cut) {
            Ok(Split::Done) => {
                new.link();
                node_guard.mark_dirty();
                parent_guard.mark_dirty();
                count(&self.smo_counters.splits);
                Ok(Split::Done)
            }
            other => {
                node_guard.release_unchanged();
                parent_guard.release_unchanged();
                other
            }
        }
    }

    /// The latched part of [`Tree::split_owned`]. Pinned, the two are still in their frames, but the frame that was
    /// waited for may have been that of another child, and others may have changed them too.
    fn split_pinned<'t>(
        &'t self,
        key: L::Key<'_>,
        node: FrameRef<'t>,
        parent: FrameRef<'t>,
        free: FreeFrame<'t>,
        new: &NewNode<'_, L>,
        cut: Cut<'_>,
    ) -> Attempt<Split> {
        let is_child = self.index_of_child(parent, node, key).is_some();
        let wanted = match cut {
            Cut::ForRoom(pending) => !self.node(node).has_room(pending.key, pending.value_len),
            Cut::At(_) => true,
        };
        let plan = cut.choose(self.node(node)).filter(|_| is_child && wanted);
        let SplitAt { at, separator } = plan.ok_or(Retry::Restart)?;
        if !self.node(parent).has_room(&separator.key, 0) {
            return Ok(Split::ParentFull(separator));
        }
        let separator = separator.key;
        // The new node stays latched until its parent points to it: found without a parent, it would be cooled.
        let (child, _guard) = self.split_latched(node, free, new.addr(), at, &separator)?;
        self.link_child(parent, child, &separator);
        Ok(Split::Done)
    }

    /// The index of `node` among the children of a latched parent, if it is the one for `key` and both are this compute
    /// server's own.
    pub(crate) fn index_of_child(
        &self,
        parent: FrameRef<'_>,
        node: FrameRef<'_>,
        key: L::Key<'_>,
    ) -> Option<usize> {
        let (child, above) = (self.node(node), self.node(parent));
        let is_own = !child.is_shared() && !above.is_shared();
        let is_parent = above.level() == child.level() + 1 && above.covers(Target::of(key));
        let index = above.child_index(key);
        (is_own && is_parent && leads_to(above.child(index), node)).then_some(index)
    }

    /// Enters a new hot right neighbour into its latched parent.
    fn link_child(&self, parent: FrameRef<'_>, child: FrameRef<'_>, separator: &[u8]) {
        let swip = self.swip_below(parent, child);
        self.node_mut(parent).link(separator, swip);
    }

    /// What a latched parent says of a hot child that it gets.
    fn swip_below(&self, parent: FrameRef<'_>, child: FrameRef<'_>) -> u64 {
        if !self.swizzles(self.node(parent)) {
            return child.addr();
        }
        child.set_parent(Some(parent.id()));
        Swip::hot(child.id()).raw()
    }

    /// Moves the upper part of a latched node, from `at` on, to a new hot and dirty frame that is not linked yet, and
    /// that the caller unlatches when it is.
    pub(crate) fn split_latched<'t>(
        &'t self,
        left: FrameRef<'t>,
        free: FreeFrame<'t>,
        addr: GlobalAddr,
        at: usize,
        separator: &[u8],
    ) -> Attempt<(FrameRef<'t>, ExclusiveGuard<'t>)> {
        self.count_orphans(self.node(left))?;
        let Lookup::Miss(ticket) = self.cache.table().begin(addr) else {
            return Err(Retry::Restart);
        };
        let mut guard = free.latch();
        let right = free.release_to_cache();
        self.split_node(self.node_mut(left), self.node_mut(right), addr, at, separator);
        self.adopt_children(right);
        right.set_parent(None);
        guard.set_state(FrameState::Hot);
        guard.mark_dirty();
        ticket.publish(right.id());
        Ok((right, guard))
    }

    /// Makes `right` the node at `addr` with the upper part of `left`, from `at` on.
    pub(crate) fn split_node(
        &self,
        left: NodeMut<'_, L>,
        right: NodeMut<'_, L>,
        addr: GlobalAddr,
        at: usize,
        separator: &[u8],
    ) {
        let high = left.fence(Side::High);
        let init = NodeInit {
            addr: addr.raw(),
            index_id: self.config.index_id,
            level: left.level(),
            low: Some(separator),
            high: high.as_deref(),
        };
        right.init(&init);
        left.split(right, at, separator);
    }

    /// Counts the hot children of a latched node that are swizzled nowhere as orphans, if it was shared once: they may be
    /// about to be those of a node without the flag that says so, below which operations are offloaded.
    pub(crate) fn count_orphans(&self, node: Node<'_, L>) -> Attempt<()> {
        if node.level() > 0 && node.was_shared() {
            self.note_orphans_below(node)?;
        }
        Ok(())
    }

    /// Counts the hot children of a node that are swizzled nowhere as orphans.
    pub(crate) fn note_orphans_below(&self, node: Node<'_, L>) -> Attempt<()> {
        for swip in node.children() {
            // Those that are swizzled have a parent.
            if let Some(child) = swip.global().filter(|child| !child.is_null()) {
                self.cache.note_orphan(child)?;
            }
        }
        Ok(())
    }

    /// Tells the swizzled children of a latched node that it is their parent now.
    pub(crate) fn adopt_children(&self, node: FrameRef<'_>) {
        for child in self.node(node).children().filter_map(Swip::frame) {
            self.cache.frame(child).set_parent(Some(node.id()));
        }
    }

    /// A full root that only this compute server uses: its content moves to two new children.
    async fn grow_root<E: Endpoint>(&self, ctx: Ctx<'_, E>, root: Hop<'_>, cut: Cut<'_>) -> Attempt<Split> {
        self.plan_split(root, cut)?;
        let level = self.node(root).level();
        root.validate()?;
        let addr = self.node(root).addr().ok_or(Retry::Restart)?;
        let (left, right) = (self.new_node(ctx, level, addr).await?, self.new_node(ctx, level, addr).await?);
        let left_free = self.cache.allocate(ctx.worker, ctx.ep, self.layout).await?;
        let right_free = self.cache.allocate(ctx.worker, ctx.ep, self.layout).await?;
        let mut root_guard = root.frame.exclusive()?;
        let node = self.node(root);
        let same = node.level() == level && !node.is_shared();
        let Some(SplitAt { at, separator }) = cut.choose(node).filter(|_| same) else {
            root_guard.release_unchanged();
            return Err(Retry::Restart);
        };
        let separator = separator.key;
        let Lookup::Miss(ticket) = self.cache.table().begin(left.addr()) else {
            root_guard.release_unchanged();
            return Err(Retry::Restart);
        };
        let mut left_guard = left_free.latch();
        let left_frame = left_free.release_to_cache();
        let copy = self.node_mut(left_frame);
        copy.copy_content(self.node(root));
        copy.set_addr(left.addr());
        let (right_frame, right_guard) =
            match self.split_latched(left_frame, right_free, right.addr(), at, &separator) {
                Ok(right) => right,
                Err(retry) => {
                    // The children of the copy still belong to the root, which is unchanged.
                    left_guard.mark_clean();
                    self.cache.discard(ctx.worker, left_frame, left_guard);
                    root_guard.release_unchanged();
                    return Err(retry);
                }
            };
        // Nobody knows this address: its lock word is yet to be written.
        copy.set_flag(header::WAS_SHARED, false);
        self.adopt_children(left_frame);
        left_frame.set_parent(None);
        left_guard.set_state(FrameState::Hot);
        left_guard.mark_dirty();
        ticket.publish(left_frame.id());
        self.rewrite_root(root.frame, level + 1, left_frame);
        self.link_child(root.frame, right_frame, &separator);
        drop((left_guard, right_guard));
        left.link();
        right.link();
        root_guard.mark_dirty();
        count(&self.smo_counters.root_changes);
        Ok(Split::Done)
    }

    /// Makes the latched root an inner node of `level` with one child.
    fn rewrite_root(&self, root: FrameRef<'_>, level: u8, child: FrameRef<'_>) {
        let node = self.node_mut(root);
        let init = NodeInit {
            addr: self.config.root.raw(),
            index_id: self.config.index_id,
            level,
            low: None,
            high: None,
        };
        let was_shared = node.was_shared();
        node.init(&init);
        node.set_flag(header::WAS_SHARED, was_shared);
        node.set_child(0, self.swip_below(root, child));
    }

    /// Splits the leaf that `boundary` falls into at exactly that key, so that no leaf spans two partitions. For an
    /// index that no other compute server uses at this moment, or for its owner who moves the boundary there.
    ///
    /// # Errors
    /// Those of a split.
    pub async fn cut_at<E: Endpoint>(&self, ctx: Ctx<'_, E>, boundary: &[u8]) -> Result<()> {
        let key = self.layout.key(boundary)?;
        let tries = Tries::default();
        let mut ctx = ctx;
        loop {
            match self.try_cut(ctx, key).await {
                Ok(Split::Done) => return Ok(()),
                Ok(Split::ParentFull(separator)) => {
                    self.make_room_from(ctx, key, 1, Some(separator), 0, Purpose::Move).await?
                }
                Err(retry) => ctx = tries.again(self, ctx, retry, "a leaf to cut").await?,
            }
        }
    }

    async fn try_cut<E: Endpoint>(&self, ctx: Ctx<'_, E>, boundary: L::Key<'_>) -> Attempt<Split> {
        let (node, parent) = self.walk_to(ctx, boundary, 0).await?;
        let page = self.node(node);
        let bytes = self.layout.key_bytes(boundary);
        let done = page.fence(Side::Low).as_deref() == Some(bytes);
        node.validate()?;
        let cut = Cut::At(bytes);
        let split = match parent {
            _ if done => return Ok(Split::Done),
            None => self.grow_root(ctx, node, cut).await?,
            Some(parent) => {
                let shared = self.node(parent).is_shared();
                parent.validate()?;
                match shared {
                    true => self.split_under_shared(ctx, boundary, node, parent, cut).await?,
                    false => self.split_owned(ctx, boundary, node, parent, cut).await?,
                }
            }
        };
        match split {
            // It may have been halved only.
            Split::Done => Err(Retry::Restart),
            full => Ok(full),
        }
    }
}

/// Whether a child word leads to the node in a frame.
pub(crate) fn leads_to(swip: Swip, child: FrameRef<'_>) -> bool {
    swip == Swip::hot(child.id()) || swip.raw() == child.addr()
}

#[cfg(test)]
mod tests;
