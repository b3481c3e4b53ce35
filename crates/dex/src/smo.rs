//! Splits (DEX §7, Insert), and what all structure changes share.
//!
//! A node is split when an entry does not fit. Its parent must have room for the separator; if not, the parent is
//! split first. What is needed of others, an address from the pool and a frame of the cache, is taken before the
//! first latch, since both may await; then parent and node are latched at the versions at which they were looked
//! at, and the change happens at once. Nodes that other compute servers use too are changed in `shared.rs`.

use pando_cache::sync::Word;
use pando_cache::{ExclusiveGuard, FrameRef, FrameState, FreeFrame, Lookup, Swip};
use pando_fabric::{Endpoint, GlobalAddr};
use pando_pool::Placement;

use crate::error::{Attempt, DexError, Result, Retry};
use crate::layout::{Layout, NodeInit, Side, header};
use crate::tree::{Ctx, Hop, Patience, Tree, count};
use crate::walk::{Admit, Reached, Toward};

/// How an attempt to split ended.
pub(crate) enum Split {
    /// The node was split, or has room by now.
    Done,
    /// The parent has no room for this separator.
    ParentFull(Vec<u8>),
}

/// What does not fit: an entry or a separator.
#[derive(Clone, Copy)]
pub(crate) struct Pending<'k> {
    pub key: &'k [u8],
    pub value_len: usize,
}

/// An address for a node that is not linked yet; freed again unless it is.
pub(crate) struct NewNode<'t, L: Layout> {
    tree: &'t Tree<L>,
    addr: Option<GlobalAddr>,
}

impl<L: Layout> NewNode<'_, L> {
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
        if let Some(addr) = self.addr {
            // It came from a chunk of this process, so that it can go back without a verb.
            let freed = self.tree.pool.try_free_local(addr, self.tree.node_bytes());
            debug_assert!(freed, "a fresh block is in a chunk of this process");
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
        Ok(NewNode { tree: self, addr: Some(addr) })
    }

    /// Splits what is too full for an entry of `key` and `value_len` bytes to be stored.
    pub(crate) async fn make_room<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        key: L::Key<'_>,
        value_len: usize,
    ) -> Result<()> {
        self.make_room_from(ctx, key, 0, None, value_len).await
    }

    /// The same from `level` on; above the leaves, for a separator.
    async fn make_room_from<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        key: L::Key<'_>,
        start: u8,
        first: Option<Vec<u8>>,
        value_len: usize,
    ) -> Result<()> {
        let mut patience = Patience::new(self.config.patience_ns);
        let (mut level, mut separator) = (start, first.clone());
        loop {
            let pending = match &separator {
                None => Pending { key: self.layout.key_bytes(key), value_len },
                Some(separator) => Pending { key: separator, value_len: 0 },
            };
            match self.try_split(ctx, key, level, pending).await {
                Ok(Split::Done) => return Ok(()),
                Ok(Split::ParentFull(needed)) => {
                    level += 1;
                    separator = Some(needed);
                }
                Err(Retry::Failed(error)) => return Err(error),
                Err(Retry::Restart) => {
                    patience.wait(ctx.ep, "a node to split").await?;
                    (level, separator) = (start, first.clone());
                }
            }
        }
    }

    /// The cached node of `level` on the way to `key`, and its parent.
    pub(crate) async fn walk_to<'t, E: Endpoint>(
        &'t self,
        ctx: Ctx<'t, E>,
        key: L::Key<'_>,
        level: u8,
    ) -> Attempt<(Hop<'t>, Option<Hop<'t>>)> {
        match self.walk(ctx, key, Toward::Key, level, Admit::Always).await? {
            Reached::Cached { node, parent } => Ok((node, parent)),
            Reached::Private { .. } => unreachable!("every page is admitted"),
        }
    }

    async fn try_split<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        key: L::Key<'_>,
        level: u8,
        pending: Pending<'_>,
    ) -> Attempt<Split> {
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
                false => self.grow_root(ctx, node, self.plan_split(node, pending)?).await,
            };
        };
        let parent_shared = header::has(parent.frame.words(), header::SHARED);
        parent.validate()?;
        match (shared, parent_shared) {
            (true, _) => self.split_shared(ctx, key, node, parent, pending).await,
            (false, true) => self.split_under_shared(ctx, key, node, parent, pending).await,
            (false, false) => self.split_owned(ctx, node, parent, self.plan_split(node, pending)?).await,
        }
    }

    /// Where to split the node of `hop`, as it is at that version.
    pub(crate) fn plan_split(&self, hop: Hop<'_>, pending: Pending<'_>) -> Attempt<(usize, Vec<u8>)> {
        let mut separator = Vec::new();
        let words = hop.frame.words();
        let at = self.choose_split(words, pending, &mut separator);
        hop.validate()?;
        match at {
            Some(at) => Ok((at, separator)),
            None => Err(DexError::Layout("a node is too small for two entries of this size".into()).into()),
        }
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
        self.layout.split_point(words, pending.key, pending.value_len, separator)
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
        node: Hop<'_>,
        parent: Hop<'_>,
        (at, separator): (usize, Vec<u8>),
    ) -> Attempt<Split> {
        let room = self.layout.has_room(parent.frame.words(), &separator, 0);
        parent.validate()?;
        if !room {
            return Ok(Split::ParentFull(separator));
        }
        let level = header::level(node.frame.words());
        let addr = GlobalAddr::from_raw(node.frame.addr()).ok_or(Retry::Restart)?;
        let _pins = (node.frame.pin(node.version)?, parent.frame.pin(parent.version)?);
        let new = self.new_node(ctx, level, addr).await?;
        let free = self.cache.allocate(ctx.worker, ctx.ep, self.layout).await?;
        let mut parent_guard = parent.frame.upgrade(parent.version)?;
        let Ok(mut node_guard) = node.frame.upgrade(node.version) else {
            parent_guard.release_unchanged();
            return Err(Retry::Restart);
        };
        // The new node stays latched until its parent points to it: found without a parent, it would be cooled.
        let (child, _child_guard) = match self.split_latched(node.frame, free, new.addr(), at, &separator) {
            Ok(right) => right,
            Err(retry) => {
                node_guard.release_unchanged();
                parent_guard.release_unchanged();
                return Err(retry);
            }
        };
        new.link();
        self.link_child(parent.frame, child, &separator);
        node_guard.mark_dirty();
        parent_guard.mark_dirty();
        count(&self.smo_counters.splits);
        Ok(Split::Done)
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
    async fn grow_root<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        root: Hop<'_>,
        (at, separator): (usize, Vec<u8>),
    ) -> Attempt<Split> {
        let level = header::level(root.frame.words());
        let addr = GlobalAddr::from_raw(root.frame.addr()).ok_or(Retry::Restart)?;
        let (left, right) = (self.new_node(ctx, level, addr).await?, self.new_node(ctx, level, addr).await?);
        let left_free = self.cache.allocate(ctx.worker, ctx.ep, self.layout).await?;
        let right_free = self.cache.allocate(ctx.worker, ctx.ep, self.layout).await?;
        let mut root_guard = root.frame.upgrade(root.version)?;
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
        self.layout.init(words, &init);
        let swip = if self.swizzles(words) {
            child.set_parent(Some(root.id()));
            Swip::hot(child.id()).raw()
        } else {
            child.addr()
        };
        header::set(words, self.layout.child_word(words, 0), swip);
    }

    /// Splits the leaf that `boundary` falls into at exactly that key, so that no leaf spans two partitions. For an
    /// index that no other compute server uses at this moment.
    ///
    /// # Errors
    /// Those of a split.
    pub async fn cut_at<E: Endpoint>(&self, ctx: Ctx<'_, E>, boundary: &[u8]) -> Result<()> {
        let key = self.layout.key(boundary)?;
        let mut patience = Patience::new(self.config.patience_ns);
        loop {
            match self.try_cut(ctx, key).await {
                Ok(Split::Done) => return Ok(()),
                Ok(Split::ParentFull(separator)) => {
                    self.make_room_from(ctx, key, 1, Some(separator), 0).await?
                }
                Err(Retry::Failed(error)) => return Err(error),
                Err(Retry::Restart) => patience.wait(ctx.ep, "a leaf to cut").await?,
            }
        }
    }

    async fn try_cut<E: Endpoint>(&self, ctx: Ctx<'_, E>, boundary: L::Key<'_>) -> Attempt<Split> {
        let (node, parent) = self.walk_to(ctx, boundary, 0).await?;
        let words = node.frame.words();
        let bytes = self.layout.key_bytes(boundary);
        let mut low = Vec::new();
        let done = self.layout.append_fence(words, Side::Low, &mut low) && low == bytes;
        let at = self.layout.position(words, bytes).ok_or(Retry::Restart)?;
        let possible = self.layout.can_split(words, at, bytes);
        node.validate()?;
        // A boundary may be too long a fence for so full a leaf: halve it first.
        let plan = match possible {
            true => (at, bytes.to_vec()),
            false => self.plan_split(node, Pending { key: bytes, value_len: 0 })?,
        };
        let split = match parent {
            _ if done => return Ok(Split::Done),
            None => self.grow_root(ctx, node, plan).await?,
            Some(parent) => self.split_owned(ctx, node, parent, plan).await?,
        };
        match split {
            Split::Done if !possible => Err(Retry::Restart),
            split => Ok(split),
        }
    }
}
