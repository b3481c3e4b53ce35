//! Splits (DEX §7, Insert), and what all structure changes share.
//!
//! A node is split when an entry does not fit. Its parent must have room for the separator; if not, the parent is
//! split first. What is needed of others, an address from the pool and a frame of the cache, is taken before the
//! first latch, since both may await; then parent and node, pinned meanwhile, are latched and looked at again, and
//! the change happens at once. Nodes that other compute servers use too are changed in `shared.rs`.

use std::cell::Cell;
use std::future::Future;

use pando_cache::sync::Word;
use pando_cache::{ExclusiveGuard, FrameRef, FrameState, FreeFrame, Lookup, Swip};
use pando_fabric::{Endpoint, GlobalAddr, Work};
use pando_pool::{Due, Placement};

use crate::error::{Attempt, DexError, Result, Retry};
use crate::layout::{Layout, NodeInit, Side, header};
use crate::ownership::Purpose;
use crate::tree::{Ctx, Hop, Tree, count};
use crate::tries::Tries;
use crate::unfinished::Unfinished;
use crate::walk::{Admit, Miss, Reached, Toward};

/// How an attempt to split ended.
pub(crate) enum Split {
    /// The node was split, or has room by now.
    Done,
    /// The parent has no room for this separator.
    ParentFull(Separator),
}

/// A separator that a parent needs room for.
#[derive(Clone)]
pub(crate) struct Separator {
    pub key: Vec<u8>,
    /// It stands behind rising inserts, so that the next one will come right behind it.
    pub rising: bool,
}

/// Where a node is to be split.
pub(crate) struct SplitAt {
    /// The first entry of the right leaf, or the separator that moves up.
    pub at: usize,
    pub separator: Separator,
}

/// What does not fit: an entry or a separator.
#[derive(Clone, Copy)]
pub(crate) struct Pending<'k> {
    pub key: &'k [u8],
    pub value_len: usize,
    /// See [`Separator::rising`]. Of entries, the leaf knows.
    pub rising: bool,
}

/// Where to split a node.
#[derive(Clone, Copy)]
pub(crate) enum Cut<'k> {
    /// Where it makes room.
    ForRoom(Pending<'k>),
    /// At exactly this key, so that no leaf spans two partitions.
    At(&'k [u8]),
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
        self.make_room_from(ctx, key, (0, None), value_len, Purpose::Operation).await
    }

    /// The same from `level` on; above the leaves, for a separator.
    pub(crate) async fn make_room_from<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        key: L::Key<'_>,
        (start, first): (u8, Option<Separator>),
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
        match self.walk(ctx, key, Toward::Key, level, Miss::fetched(Admit::Always)).await? {
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
        let words = node.frame.words();
        let shared = header::has(words, header::SHARED);
        let has_room = self.layout.has_room(words, pending.key, pending.value_len);
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
        let parent_shared = header::has(parent.frame.words(), header::SHARED);
        parent.validate()?;
        match (shared, parent_shared) {
            (true, _) => self.split_shared(ctx, key, node, parent, pending).await,
            (false, true) => self.split_under_shared(ctx, key, node, parent, Cut::ForRoom(pending)).await,
            (false, false) => {
                let rising = self.is_long_run(words, pending);
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
        let plan = self.choose_cut(hop.frame.words(), cut);
        hop.validate()?;
        let too_small = || DexError::Layout("a node is too small for two entries of this size".into());
        Ok(plan.ok_or_else(too_small)?)
    }

    pub(crate) fn choose_cut(&self, words: &[Word], cut: Cut<'_>) -> Option<SplitAt> {
        let pending = match cut {
            Cut::ForRoom(pending) => pending,
            Cut::At(key) => match self.layout.position(words, key) {
                Some(at) if self.layout.can_split(words, at, key) => {
                    return Some(SplitAt { at, separator: Separator { key: key.to_vec(), rising: false } });
                }
                // It may be too long a fence for so full a leaf: halve that first.
                _ => Pending { key, value_len: 0, rising: false },
            },
        };
        let rising = match header::level(words) {
            0 => self.is_long_run(words, pending),
            _ => pending.rising,
        };
        let mut key = Vec::new();
        let at = self.choose_split(words, pending, &mut key)?;
        Some(SplitAt { at, separator: Separator { key, rising } })
    }

    /// Where to split a node: behind the last of rising inserts, so that these leave full leaves behind wherever they
    /// go, or where the layout says.
    pub(crate) fn choose_split(
        &self,
        words: &[Word],
        pending: Pending<'_>,
        separator: &mut Vec<u8>,
    ) -> Option<usize> {
        if header::level(words) == 0
            && let Some((at, behind_run)) = self.split_behind_run(words, pending.key)
        {
            separator.extend_from_slice(&behind_run);
            return Some(at);
        }
        if header::level(words) > 0
            && pending.rising
            && let Some((at, behind_run)) = self.split_behind_child(words, pending.key)
        {
            separator.extend_from_slice(&behind_run);
            return Some(at);
        }
        self.layout.split_point(words, pending.key, pending.value_len, separator)
    }

    /// Whether the pending entry of a leaf goes on with rising inserts: these fill a leaf of their own.
    fn is_long_run(&self, leaf: &[Word], pending: Pending<'_>) -> bool {
        let at = self.layout.key(pending.key).ok().and_then(|key| self.layout.find(leaf, key).err());
        at.is_some_and(|at| header::continues_long_run(leaf, at))
    }

    /// Splits an inner node right of the child that rising inserts have reached, or before its last child if it is that.
    fn split_behind_child(&self, words: &[Word], separator: &[u8]) -> Option<(usize, Vec<u8>)> {
        let count = self.layout.count(words);
        let at = self.layout.child_index(words, self.layout.key(separator).ok()?).min(count.checked_sub(1)?);
        let mut up = Vec::new();
        self.layout.append_key(words, at, &mut up);
        // A node of two children is not made smaller.
        (count > 2 && self.layout.can_split(words, at, &up)).then_some((at, up))
    }

    fn split_behind_run(&self, words: &[Word], key: &[u8]) -> Option<(usize, Vec<u8>)> {
        let at = self.layout.find(words, self.layout.key(key).ok()?).err()?;
        if at == 0 || !header::continues_run(words, at) {
            return None;
        }
        let key_at = |i| {
            let mut bytes = Vec::new();
            self.layout.append_key(words, i, &mut bytes);
            bytes
        };
        let separator = match at < self.layout.count(words) {
            true => self.layout.separator(key, &key_at(at)),
            false => self.layout.separator(&key_at(at - 1), key),
        };
        self.layout.can_split(words, at, &separator).then_some((at, separator))
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
        let room = self.layout.has_room(parent.frame.words(), &separator.key, 0);
        parent.validate()?;
        if !room {
            return Ok(Split::ParentFull(separator));
        }
        let level = header::level(node.frame.words());
        let addr = GlobalAddr::from_raw(node.frame.addr()).ok_or(Retry::Restart)?;
        let _pins = (node.frame.pin(node.version)?, parent.frame.pin(parent.version)?);
        let above = GlobalAddr::from_raw(parent.frame.addr()).ok_or(Retry::Restart)?;
        let new = self.new_node(ctx, level, self.near(level, addr, above)).await?;
        let free = self.cache.allocate(ctx.worker, ctx.ep, self.layout).await?;
        let mut parent_guard = parent.frame.exclusive()?;
        let Ok(mut node_guard) = node.frame.exclusive() else {
            parent_guard.release_unchanged();
            return Err(Retry::Restart);
        };
        match self.split_pinned(key, (node.frame, parent.frame), free, &new, cut) {
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
        (node, parent): (FrameRef<'t>, FrameRef<'t>),
        free: FreeFrame<'t>,
        new: &NewNode<'_, L>,
        cut: Cut<'_>,
    ) -> Attempt<Split> {
        let (words, above) = (node.words(), parent.words());
        let is_child = self.word_to(parent, node, key).is_some();
        let wanted = match cut {
            Cut::ForRoom(pending) => !self.layout.has_room(words, pending.key, pending.value_len),
            Cut::At(_) => true,
        };
        let plan = self.choose_cut(words, cut).filter(|_| is_child && wanted);
        let SplitAt { at, separator } = plan.ok_or(Retry::Restart)?;
        if !self.layout.has_room(above, &separator.key, 0) {
            return Ok(Split::ParentFull(separator));
        }
        let separator = separator.key;
        // The new node stays latched until its parent points to it: found without a parent, it would be cooled.
        let (child, _guard) = self.split_latched(node, free, new.addr(), at, &separator)?;
        self.link_child(parent, child, &separator);
        Ok(Split::Done)
    }

    /// The word of a latched parent that leads to `node` for `key`, if both are this compute server's own and one does.
    pub(crate) fn word_to(&self, parent: FrameRef<'_>, node: FrameRef<'_>, key: L::Key<'_>) -> Option<usize> {
        let (words, above) = (node.words(), parent.words());
        let is_own = [words, above].iter().all(|words| !header::has(words, header::SHARED));
        let is_parent = header::level(above) == header::level(words) + 1 && self.layout.covers(above, key);
        let word = self.layout.child_word(above, self.layout.child_index(above, key));
        let swip = header::get(above, word);
        let leads = swip == Swip::hot(node.id()).raw() || swip == node.addr();
        (is_own && is_parent && leads).then_some(word)
    }

    /// Enters a new hot right neighbour into its latched parent.
    fn link_child(&self, parent: FrameRef<'_>, child: FrameRef<'_>, separator: &[u8]) {
        let words = parent.words();
        let swip = if self.swizzles(words) {
            child.set_parent(Some(parent.id()));
            Swip::hot(child.id()).raw()
        } else {
            child.addr()
        };
        let i = self.separator_slot(words, separator);
        let fits = self.layout.inner_insert(words, i, separator, swip);
        assert!(fits, "room for the separator was checked at this version");
    }

    /// Where `separator` goes among the separators of an inner node.
    pub(crate) fn separator_slot(&self, words: &[Word], separator: &[u8]) -> usize {
        let key = self.layout.key(separator).expect("a separator is a key that a node held");
        self.layout.child_index(words, key)
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
        self.count_orphans(left.words())?;
        let Lookup::Miss(ticket) = self.cache.table().begin(addr) else {
            return Err(Retry::Restart);
        };
        let mut guard = free.latch();
        let right = free.release_to_cache();
        self.split_words(left.words(), right.words(), addr, at, separator);
        self.adopt_children(right);
        right.set_parent(None);
        guard.set_state(FrameState::Hot);
        guard.mark_dirty();
        ticket.publish(right.id());
        Ok((right, guard))
    }

    /// Makes `right` the node at `addr` with the upper part of `left`, from `at` on.
    pub(crate) fn split_words(
        &self,
        left: &[Word],
        right: &[Word],
        addr: GlobalAddr,
        at: usize,
        separator: &[u8],
    ) {
        let mut high = Vec::new();
        let finite = self.layout.append_fence(left, Side::High, &mut high);
        let init = NodeInit {
            addr: addr.raw(),
            index_id: self.config.index_id,
            level: header::level(left),
            low: Some(separator),
            high: finite.then_some(high.as_slice()),
        };
        self.layout.init(right, &init);
        self.layout.split(left, right, at, separator);
    }

    /// Counts the hot children of a latched node that are swizzled nowhere as orphans, if it was shared once: they may be
    /// about to be those of a node without the flag that says so, below which operations are offloaded.
    pub(crate) fn count_orphans(&self, words: &[Word]) -> Attempt<()> {
        if header::level(words) > 0 && header::has(words, header::WAS_SHARED) {
            self.note_orphans_below(words)?;
        }
        Ok(())
    }

    /// Counts the hot children of a node that are swizzled nowhere as orphans.
    pub(crate) fn note_orphans_below(&self, words: &[Word]) -> Attempt<()> {
        for i in 0..self.layout.child_count(words) {
            let swip = Swip::from_raw(header::get(words, self.layout.child_word(words, i)));
            // Those that are swizzled have a parent.
            if let Some(child) = swip.global().filter(|child| !child.is_null()) {
                self.cache.note_orphan(child)?;
            }
        }
        Ok(())
    }

    /// Tells the swizzled children of a latched node that it is their parent now.
    pub(crate) fn adopt_children(&self, node: FrameRef<'_>) {
        let words = node.words();
        for i in 0..self.layout.child_count(words) {
            let swip = Swip::from_raw(header::get(words, self.layout.child_word(words, i)));
            if let Some(child) = swip.frame() {
                self.cache.frame(child).set_parent(Some(node.id()));
            }
        }
    }

    /// A full root that only this compute server uses: its content moves to two new children.
    async fn grow_root<E: Endpoint>(&self, ctx: Ctx<'_, E>, root: Hop<'_>, cut: Cut<'_>) -> Attempt<Split> {
        self.plan_split(root, cut)?;
        let level = header::level(root.frame.words());
        root.validate()?;
        let addr = GlobalAddr::from_raw(root.frame.addr()).ok_or(Retry::Restart)?;
        let (left, right) = (self.new_node(ctx, level, addr).await?, self.new_node(ctx, level, addr).await?);
        let left_free = self.cache.allocate(ctx.worker, ctx.ep, self.layout).await?;
        let right_free = self.cache.allocate(ctx.worker, ctx.ep, self.layout).await?;
        let mut root_guard = root.frame.exclusive()?;
        let words = root.frame.words();
        let same = header::level(words) == level && !header::has(words, header::SHARED);
        let Some(SplitAt { at, separator }) = self.choose_cut(words, cut).filter(|_| same) else {
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
        self.layout.copy_content(root.frame.words(), left_frame.words());
        header::set(left_frame.words(), header::ADDR, left.addr().raw());
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
        header::set_flag(left_frame.words(), header::WAS_SHARED, false);
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
        let words = root.words();
        let init = NodeInit {
            addr: self.config.root.raw(),
            index_id: self.config.index_id,
            level,
            low: None,
            high: None,
        };
        let was_shared = header::has(words, header::WAS_SHARED);
        self.layout.init(words, &init);
        header::set_flag(words, header::WAS_SHARED, was_shared);
        let swip = if self.swizzles(words) {
            child.set_parent(Some(root.id()));
            Swip::hot(child.id()).raw()
        } else {
            child.addr()
        };
        header::set(words, self.layout.child_word(words, 0), swip);
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
                    let from = (1, Some(separator));
                    self.make_room_from(ctx, key, from, 0, Purpose::Move).await?
                }
                Err(retry) => ctx = tries.again(self, ctx, retry, "a leaf to cut").await?,
            }
        }
    }

    async fn try_cut<E: Endpoint>(&self, ctx: Ctx<'_, E>, boundary: L::Key<'_>) -> Attempt<Split> {
        let (node, parent) = self.walk_to(ctx, boundary, 0).await?;
        let words = node.frame.words();
        let bytes = self.layout.key_bytes(boundary);
        let mut low = Vec::new();
        let done = self.layout.append_fence(words, Side::Low, &mut low) && low == bytes;
        node.validate()?;
        let cut = Cut::At(bytes);
        let split = match parent {
            _ if done => return Ok(Split::Done),
            None => self.grow_root(ctx, node, cut).await?,
            Some(parent) => {
                let shared = header::has(parent.frame.words(), header::SHARED);
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

#[cfg(test)]
mod tests;
