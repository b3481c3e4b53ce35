//! Merges (DEX §7, Delete): an underfull node and a neighbour under the same parent become one, and the space of the
//! other is free for reuse. A root with one child takes that child's content and the tree gets one level lower.
//!
//! Merging is optional: where something stands in the way (a neighbour of another compute server, another memory
//! server, a pin, a write-back under way), the node simply stays small, and the next removal tries again.

use pando_cache::{FrameRef, FrameState, IoTicket, Version};
use pando_fabric::{Endpoint, GlobalAddr, Work};

use crate::error::{Attempt, DexError, Result, Retry};
use crate::layout::{Layout, header};
use crate::node::{Node, Target};
use crate::ownership::{Purpose, View};
use crate::smo::leads_to;
use crate::tree::{Ctx, Hop, Tree, count};
use crate::tries::Tries;
use crate::unfinished::Unlinked;
use crate::walk::{Admit, Child, Miss};

/// Times that a merge starts again before it is left to the next removal.
const ATTEMPTS: usize = 8;

/// How an attempt to merge ended.
enum Merge {
    /// The parent lost a separator: look at it next.
    Done,
    /// Nothing to do, or not now.
    Skipped,
}

/// Two neighbours in their frames, their parent, and the index of the separator between them.
pub(crate) struct Neighbours<'t> {
    pub parent: Hop<'t>,
    pub left: Hop<'t>,
    pub right: Hop<'t>,
    pub separator: usize,
}

impl<L: Layout> Tree<L> {
    /// Merges the leaf of `key` if it is underfull, then its parent, and so on up.
    pub(crate) async fn merge_upward<E: Endpoint>(&self, ctx: Ctx<'_, E>, key: L::Key<'_>) -> Result<()> {
        let tries = Tries::default();
        let mut ctx = ctx;
        let mut level = 0;
        let mut attempts = 0;
        loop {
            match self.try_merge(ctx, key, level).await {
                Ok(Merge::Done) => {
                    ctx.ep.charge(Work::Copy { bytes: 2 * self.layout.node_size() });
                    level += 1;
                    attempts = 0;
                }
                Ok(Merge::Skipped) | Err(Retry::Failed(DexError::NotOwned)) => return Ok(()),
                Err(Retry::Restart) if attempts == ATTEMPTS => return Ok(()),
                Err(retry) => {
                    attempts += usize::from(matches!(retry, Retry::Restart));
                    ctx = tries.again(self, ctx, retry, "two nodes to merge").await?;
                }
            }
        }
    }

    async fn try_merge<E: Endpoint>(&self, ctx: Ctx<'_, E>, key: L::Key<'_>, level: u8) -> Attempt<Merge> {
        let _entered = self.enter_for(ctx, key, Purpose::Operation)?;
        let (node, parent) = self.walk_to(ctx, key, level).await?;
        let page = self.node(node);
        let (underfull, shared) = (page.is_underfull(), page.is_shared());
        let (at, lonely) = (page.level(), page.count() == 0);
        node.validate()?;
        let Some(parent) = parent else {
            return match !shared && lonely && at > 0 {
                true => self.shrink_root(ctx, node, key).await,
                false => Ok(Merge::Skipped),
            };
        };
        if !underfull || shared {
            return Ok(Merge::Skipped);
        }
        let pins = (node.frame.pin(node.version)?, parent.frame.pin(parent.version)?);
        let Some(pair) = self.neighbours(ctx, node, parent, key).await? else {
            return Ok(Merge::Skipped);
        };
        let parent = pair.parent;
        if !self.may_merge(&self.view(ctx), &pair, parent, level)? {
            return Ok(Merge::Skipped);
        }
        drop(pins);
        if self.node(parent).is_shared() {
            self.merge_under_shared(ctx, key, pair, parent).await
        } else {
            self.merge_owned(ctx, pair, parent).await
        }
    }

    /// The node and a neighbour below `parent`, the right one if there is one. Brings the neighbour into the cache.
    async fn neighbours<'t, E: Endpoint>(
        &'t self,
        ctx: Ctx<'_, E>,
        node: Hop<'t>,
        parent: Hop<'t>,
        key: L::Key<'_>,
    ) -> Attempt<Option<Neighbours<'t>>> {
        let page = self.node(parent);
        let (index, count) = (page.child_index(key), page.count());
        // Beyond a boundary, nodes are another compute server's, and what remote memory says of them may be old. So may what
        // a shared parent says of keys that are about to be this compute server's.
        let view = self.view(ctx);
        let own = &view.keys;
        if own.is_empty() {
            return Ok(None);
        }
        let right = (index < count)
            .then(|| page.key_at(index))
            .filter(|separator| own.high.as_ref().is_none_or(|high| separator < high));
        let left = (index > 0)
            .then(|| page.key_at(index - 1))
            .filter(|separator| own.low.as_ref().is_none_or(|low| separator > low));
        parent.validate()?;
        let to_right = right.is_some();
        let Some(bytes) = right.or(left) else { return Ok(None) };
        let separator = if to_right { index } else { index - 1 };
        // The neighbour holds the separator if it is the right one, and what is just below it if it is the left one.
        let bound = self.layout.key(&bytes)?;
        let (other, parent) = match to_right {
            true => self.child_of(ctx, parent, separator + 1, Target::of(bound)).await?,
            false => self.child_of(ctx, parent, separator, Target::below(bound)).await?,
        };
        let (left, right) = if to_right { (node, other) } else { (other, node) };
        let leads_to = |i: usize, child: Hop<'_>| leads_to(page.child(i), child.frame);
        // Split between the two meanwhile, the parent still has the old word behind its last child.
        let is_there = separator < page.count();
        let neighbours = is_there && leads_to(separator, left) && leads_to(separator + 1, right);
        node.validate()?;
        parent.validate()?;
        match neighbours {
            true => Ok(Some(Neighbours { parent, left, right, separator })),
            false => Err(Retry::Restart),
        }
    }

    /// Child `index` of a pinned node, to which `key` leads, brought into the cache; and that node as it is by then.
    async fn child_of<'t, E: Endpoint>(
        &'t self,
        ctx: Ctx<'_, E>,
        parent: Hop<'t>,
        index: usize,
        target: Target<'_, L>,
    ) -> Attempt<(Hop<'t>, Hop<'t>)> {
        if let Some(id) = self.node(parent).child(index).frame() {
            let frame = self.cache.try_frame(id).ok_or(Retry::Restart)?;
            let version = frame.optimistic()?;
            parent.validate()?;
            return Ok((Hop { frame, version }, parent));
        }
        match self.resolve(ctx, self.slot(parent, index)?, target, Miss::fetched(Admit::Always)).await? {
            Child::Cached { child, parent } => Ok((child, parent)),
            Child::Private(_) | Child::Below(_) => unreachable!("every page is READ and admitted"),
        }
    }

    /// Whether the two may become one, as they are at their versions.
    fn may_merge(&self, view: &View, pair: &Neighbours<'_>, parent: Hop<'_>, level: u8) -> Attempt<bool> {
        let (left, right) = (self.node(pair.left), self.node(pair.right));
        let separator = self.node(parent).key_at(pair.separator);
        let shared = left.is_shared() || right.is_shared();
        let remembered = view.is_partitioned() && right.was_shared();
        let one_level = left.level() == level && right.level() == level;
        let server = |node: Node<'_, L>| node.addr().map(GlobalAddr::server);
        // A subtree below level M stands on one memory server; its parts cannot go to another one.
        let together = level != self.config.subtree_level || server(left) == server(right);
        let owned = !view.nodes.is_crossed_by(left) && !view.nodes.is_crossed_by(right);
        let fits = left.can_merge(right, &separator);
        pair.left.validate()?;
        pair.right.validate()?;
        parent.validate()?;
        Ok(fits && one_level && together && owned && !shared && !remembered)
    }

    async fn merge_owned<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        pair: Neighbours<'_>,
        parent: Hop<'_>,
    ) -> Attempt<Merge> {
        let freed = self.merge_below(ctx, &pair, parent)?;
        count(&self.smo_counters.merges);
        self.finish_unlinked(ctx, Unlinked::new(freed)).await?;
        Ok(Merge::Done)
    }

    /// The latched part of [`Tree::merge_owned`].
    fn merge_below<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        pair: &Neighbours<'_>,
        parent: Hop<'_>,
    ) -> Attempt<IoTicket<'_>> {
        let mut parent_guard = parent.frame.upgrade(parent.version)?;
        let separator = self.node(parent).key_at(pair.separator);
        match self.merge_latched(ctx, pair, &separator) {
            Ok(freed) => {
                self.node_mut(parent).inner_remove(pair.separator);
                parent_guard.mark_dirty();
                Ok(freed)
            }
            Err(retry) => {
                parent_guard.release_unchanged();
                Err(retry)
            }
        }
    }

    /// Moves the content of the right node to the left one and frees its frame. The parent is latched or locked.
    fn merge_latched<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        pair: &Neighbours<'_>,
        separator: &[u8],
    ) -> Attempt<IoTicket<'_>> {
        let (left, right) = (pair.left.frame, pair.right.frame);
        let mut left_guard = left.upgrade(pair.left.version)?;
        let right_guard = match self.latch_unused(right, pair.right.version) {
            Ok(guard) => guard,
            Err(retry) => {
                left_guard.release_unchanged();
                return Err(retry);
            }
        };
        let addr = GlobalAddr::from_raw(right.addr()).expect("a frame's own address is not swizzled");
        self.node_mut(left).merge(self.node(right), separator);
        self.adopt_children(left);
        let ticket = self.cache.table().frame_to_ticket(addr, right.id());
        self.cache.discard(ctx.worker, right, right_guard);
        left_guard.mark_dirty();
        Ok(ticket)
    }

    /// Latches a frame whose node is about to vanish, if nobody has it pinned and it is not being written back. Children that
    /// nothing but its flag tells of are counted: another node is going to have them.
    fn latch_unused<'t>(
        &self,
        frame: FrameRef<'t>,
        version: Version,
    ) -> Attempt<pando_cache::ExclusiveGuard<'t>> {
        let guard = frame.upgrade(version)?;
        let is_unused = guard.state() == FrameState::Hot && !frame.is_pinned() && !frame.is_writing();
        let counted = if is_unused { self.count_orphans(self.node(frame)) } else { Err(Retry::Restart) };
        match counted {
            Ok(()) => Ok(guard),
            Err(retry) => {
                guard.release_unchanged();
                Err(retry)
            }
        }
    }

    /// Merges two nodes that only this compute server uses below a shared parent: here first, then the parent is
    /// written through. In between, the I/O mark of the right node keeps everybody away who still knows it.
    async fn merge_under_shared<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        key: L::Key<'_>,
        pair: Neighbours<'_>,
        parent: Hop<'_>,
    ) -> Attempt<Merge> {
        let addr_of = |hop: Hop<'_>| self.node(hop).addr().ok_or(Retry::Restart);
        let (left, right) = (addr_of(pair.left)?, addr_of(pair.right)?);
        let level = self.node(pair.left).level();
        let parent_addr = addr_of(parent)?;
        // The parent stays cached, so that its copy is replaced below: an old one, read by another worker while this
        // one waits for the lock and admitted after that, would still lead to the freed node.
        let _parent_pin = parent.frame.pin(parent.version)?;
        pair.left.validate()?;
        pair.right.validate()?;
        parent.validate()?;
        // Which of the two the key is in.
        let child = if self.node(pair.left).covers(Target::of(key)) { left } else { right };
        let parent = self.lock_parent(ctx, parent_addr, key, child, level).await?;
        let above = self.node(&parent);
        let is_child = |i, child: GlobalAddr| above.child(i).raw() == child.raw();
        let at = (0..above.count()).find(|&i| is_child(i, left) && is_child(i + 1, right));
        let Some(at) = at else {
            self.unlock_unchanged(ctx, parent).await?;
            return Err(Retry::Restart);
        };
        let separator = above.key_at(at);
        let ticket = match self.merge_latched(ctx, &pair, &separator) {
            Ok(ticket) => ticket,
            Err(retry) => {
                self.unlock_unchanged(ctx, parent).await?;
                return Err(retry);
            }
        };
        self.node_mut(&parent).inner_remove(at);
        count(&self.smo_counters.merges);
        let unlinked = self.write_unlinked(ctx, parent, Unlinked::new(ticket)).await?;
        self.finish_unlinked(ctx, unlinked).await?;
        Ok(Merge::Done)
    }

    /// A root with a single child takes over its content.
    async fn shrink_root<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        root: Hop<'_>,
        key: L::Key<'_>,
    ) -> Attempt<Merge> {
        let level = self.node(root).level();
        let (child, parent) = self.walk_to(ctx, key, level - 1).await?;
        if parent.map(|parent| parent.frame.id()) != Some(root.frame.id()) {
            return Err(Retry::Restart);
        }
        let freed = self.absorb_child(ctx, root, child)?;
        count(&self.smo_counters.root_changes);
        self.finish_unlinked(ctx, Unlinked::new(freed)).await?;
        Ok(Merge::Done)
    }

    /// The latched part of [`Tree::shrink_root`].
    fn absorb_child<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        root: Hop<'_>,
        child: Hop<'_>,
    ) -> Attempt<IoTicket<'_>> {
        let mut root_guard = root.frame.upgrade(root.version)?;
        let child_guard = match self.latch_unused(child.frame, child.version) {
            Ok(guard) => guard,
            Err(retry) => {
                root_guard.release_unchanged();
                return Err(retry);
            }
        };
        let addr = GlobalAddr::from_raw(child.frame.addr()).expect("a frame's own address is not swizzled");
        let was_shared = self.node(root).was_shared();
        self.node_mut(root).copy_content(self.node(child));
        self.node_mut(root).set_flag(header::WAS_SHARED, was_shared);
        self.adopt_children(root.frame);
        let ticket = self.cache.table().frame_to_ticket(addr, child.frame.id());
        self.cache.discard(ctx.worker, child.frame, child_guard);
        root_guard.mark_dirty();
        Ok(ticket)
    }
}

#[cfg(test)]
mod tests;
