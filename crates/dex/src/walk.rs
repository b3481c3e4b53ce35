//! The way down (DEX §7, Algorithm 1): optimistic lock coupling over cached nodes, and what happens at a miss.
//!
//! A child's version is taken before its parent is validated. A missing child is marked in the mapping table, so
//! that only one worker reads it while the others descend anew. What a stale copy of a shared node leads to is
//! found out by fences (DEX §4). A single leaf miss ends in one function, the place for other answers than fetching the
//! page.

use pando_cache::defect::Defect;
use pando_cache::{FrameRef, FrameState, FreeFrame, IoTicket, Lookup, Resolved};
use pando_fabric::defect::defect;
use pando_fabric::{Endpoint, GlobalAddr, MemoryServerId, PageBuf, Resource, Work};

use crate::cached::Stuck;
use crate::error::{Attempt, DexError, Retry};
use crate::layout::{Layout, header};
use crate::node::{Node, Target};
use crate::offload::{Below, From, Offer};
use crate::ownership::View;
use crate::tree::{Ctx, Hop, Tree};

/// Whether a leaf that is read gets a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admit {
    /// As the admission policy says.
    Lazily,
    /// In any case: its structure is about to change.
    Always,
}

/// What becomes of a missing node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Miss {
    pub admit: Admit,
    /// What its memory server might do instead of handing it out.
    pub offer: Offer,
}

impl Miss {
    /// It is READ.
    pub fn fetched(admit: Admit) -> Self {
        Self { admit, offer: Offer::Nothing }
    }
}

/// A leaf that was not admitted: its bytes, and the exclusive right to it.
pub(crate) struct PrivateLeaf<'c> {
    pub page: PageBuf,
    pub ticket: IoTicket<'c>,
}

/// Where a descent ended.
pub(crate) enum Reached<'c> {
    Cached {
        node: Hop<'c>,
        parent: Option<Hop<'c>>,
    },
    Private {
        leaf: PrivateLeaf<'c>,
    },
    /// At a missing node, whose memory server is to do the rest.
    Below(Below<'c>),
}

/// A child that was not swizzled, after [`Tree::resolve`].
pub(crate) enum Child<'c> {
    /// And the parent, which changed if another child of it had to go.
    Cached {
        child: Hop<'c>,
        parent: Hop<'c>,
    },
    Private(PrivateLeaf<'c>),
    Below(Below<'c>),
}

/// A child that was not swizzled, after [`Tree::locate`].
pub(crate) enum Located<'t> {
    Cached(Hop<'t>),
    /// In no frame, and the right to READ it.
    Missing(IoTicket<'t>),
    /// In no frame, and others leave what is below it to its memory server.
    Offloaded,
}

/// Child word of an inner node that a descent stands at.
#[derive(Clone, Copy)]
pub(crate) struct Slot<'c> {
    pub parent: Hop<'c>,
    /// Index of the child.
    pub index: usize,
    pub addr: GlobalAddr,
}

impl<L: Layout> Tree<L> {
    /// Goes down to the node of `level` (or the root, if that is lower) that covers `key`.
    #[inline]
    pub(crate) async fn walk<'t, E: Endpoint>(
        &'t self,
        ctx: Ctx<'_, E>,
        target: Target<'_, L>,
        level: u8,
        miss: Miss,
    ) -> Attempt<Reached<'t>> {
        self.walk_from(ctx, self.root_hop()?, target, level, miss).await
    }

    /// Goes on down to the leaf of `key` from where the cached path got stuck, or begins anew. The caller is inside the gate
    /// now. That node is looked at like any other: whoever finds it at its version finds it as good as from the root, because it
    /// covers the key, or did when it was a copy that may be stale, and is still in its frame. (What a stale copy leads to is
    /// found out by [`Tree::check_covers`] and [`Tree::prove_child`].)
    #[inline]
    pub(crate) async fn walk_on<'t, E: Endpoint>(
        &'t self,
        ctx: Ctx<'_, E>,
        stuck: Stuck<'t>,
        key: L::Key<'_>,
        miss: Miss,
    ) -> Attempt<Reached<'t>> {
        let from = stuck.map_or_else(|| self.root_hop(), Ok)?;
        self.walk_from(ctx, from, Target::of(key), 0, miss).await
    }

    async fn walk_from<'t, E: Endpoint>(
        &'t self,
        ctx: Ctx<'_, E>,
        mut node: Hop<'t>,
        target: Target<'_, L>,
        level: u8,
        miss: Miss,
    ) -> Attempt<Reached<'t>> {
        let mut parent = None;
        let mut inner = self.inner_levels().saturating_sub(self.node(node).level().into());
        loop {
            ctx.ep.charge(Work::NodeSearch);
            let page = self.node(node);
            let at = page.level();
            if at <= level {
                ctx.worker.counters().count_descent(inner);
                return Ok(Reached::Cached { node, parent });
            }
            inner += 1;
            let index = page.child_toward(target);
            if let Some(id) = page.child(index).frame() {
                let child = self.enter(node, id)?;
                parent = Some(node);
                node = child;
                continue;
            }
            let slot = self.slot(node, index)?;
            // Boxed: futures of operations that find everything in its frame are better without.
            match Box::pin(self.resolve(ctx, slot, target, miss)).await? {
                Child::Cached { child, parent: above } => {
                    parent = Some(above);
                    node = child;
                }
                Child::Private(leaf) => {
                    ctx.ep.charge(Work::NodeSearch);
                    ctx.worker.counters().count_descent(inner);
                    return Ok(Reached::Private { leaf });
                }
                Child::Below(mut below) => {
                    below.from.inner = inner;
                    return Ok(Reached::Below(below));
                }
            }
        }
    }

    /// The place of child `index`, which is not swizzled, as the parent has it at its version.
    #[inline]
    pub(crate) fn slot<'t>(&self, parent: Hop<'t>, index: usize) -> Attempt<Slot<'t>> {
        let addr = self.node(parent).child_addr(index);
        parent.validate()?;
        Ok(Slot { parent, index, addr: addr.ok_or(Retry::Restart)? })
    }

    /// Finds a child that is not swizzled: in the mapping table, or in remote memory.
    #[cold]
    #[inline(never)]
    pub(crate) async fn resolve<'t, E: Endpoint>(
        &'t self,
        ctx: Ctx<'_, E>,
        slot: Slot<'t>,
        target: Target<'_, L>,
        miss: Miss,
    ) -> Attempt<Child<'t>> {
        match self.locate(ctx, slot, target).await? {
            Located::Cached(child) => Ok(Child::Cached { child, parent: slot.parent }),
            Located::Missing(ticket) => self.fetch(ctx, slot, ticket, target, miss).await,
            Located::Offloaded => self.join_offload(ctx, slot, miss.offer).map(Child::Below),
        }
    }

    /// Looks for a child that is not swizzled in the mapping table.
    pub(crate) async fn locate<'t, E: Endpoint>(
        &'t self,
        ctx: Ctx<'_, E>,
        slot: Slot<'t>,
        target: Target<'_, L>,
    ) -> Attempt<Located<'t>> {
        ctx.ep.charge(Work::TableLookup);
        match self.cache.table().begin(slot.addr) {
            Lookup::InFlight => Err(Retry::Restart),
            Lookup::Common => Ok(Located::Offloaded),
            Lookup::Frame(id) => {
                let frame = self.cache.try_frame(id).ok_or(Retry::Restart)?;
                let child = self.take_cached(ctx, slot, frame)?;
                self.check_covers(ctx, slot, child, target).await?;
                Ok(Located::Cached(child))
            }
            Lookup::Miss(ticket) => {
                if defect(Defect::StaleParentBelieved) {
                    slot.parent.validate()?;
                } else if let Err(retry) = self.prove_child(slot, target) {
                    // Who has the turn is not to wait for a cache that has room for the whole path.
                    if !ctx.worker.has_turn() {
                        return Err(retry);
                    }
                    Box::pin(self.prove_child_by_reads(ctx, slot, target)).await?;
                }
                Ok(Located::Missing(ticket))
            }
        }
    }

    /// Proves that a missing child, whose ticket the caller has, is in the tree: from now on nobody in this compute server can
    /// merge it away, move it or change it, and nobody else ever does.
    ///
    /// A parent of this compute server's own that is unchanged still has the child. A copy of a shared node that is unchanged
    /// proves nothing: it may be stale, and the child may have been freed under the node that has it by now. But whoever frees
    /// a node has come to it from the root by copies that are not stale there, and copies only get newer. So the child is
    /// in the tree if cached copies still lead from the root to that parent, looked at with the ticket in hand.
    pub(crate) fn prove_child(&self, slot: Slot<'_>, target: Target<'_, L>) -> Attempt<()> {
        let parent = slot.parent.frame;
        if self.node(parent).is_shared() {
            let level = self.node(parent).level();
            let mut node = self.root_hop()?;
            while node.frame.id() != parent.id() {
                node = self.cached_child(node, target, level)?;
            }
        }
        Ok(slot.parent.validate()?)
    }

    /// The same below a shared parent by READs, for a cache that has too few frames for the path from the root. No node on that path
    /// is freed meanwhile: it has keys of others, and the caller's, which nobody gets before the caller leaves the gate.
    async fn prove_child_by_reads<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        slot: Slot<'_>,
        target: Target<'_, L>,
    ) -> Attempt<()> {
        slot.parent.validate()?;
        let (parent, lowest) = (slot.parent.frame.addr(), self.node(slot.parent).level());
        let view = self.view(ctx);
        if view.is_growing {
            return Err(Retry::Restart);
        }
        let (mut addr, mut level) = (self.config.root, None);
        loop {
            let page = ctx.ep.buffer(self.layout.node_size());
            let page = self.read_node(ctx, addr, page, &view, true).await?;
            let node = self.node(&page);
            let at = node.level();
            let is_meant =
                at >= lowest && node.is_shared() && self.is_right(node, level.unwrap_or(at), target);
            let child = node.child_addr(node.child_toward(target)).filter(|_| is_meant);
            // What led to the parent may be old, and would lead there again.
            if is_meant {
                self.install(ctx, addr, &page).await?;
            }
            ctx.ep.recycle(page);
            let child = child.ok_or(Retry::Restart)?;
            if at == lowest {
                let is_child = addr.raw() == parent && child == slot.addr;
                return if is_child { Ok(slot.parent.validate()?) } else { Err(Retry::Restart) };
            }
            (addr, level) = (child, Some(at - 1));
        }
    }

    /// The child of a node on the way to `key`, if both are in their frames and the child's level is not below `lowest`.
    fn cached_child<'t>(&'t self, node: Hop<'t>, target: Target<'_, L>, lowest: u8) -> Attempt<Hop<'t>> {
        let page = self.node(node);
        let index = page.child_toward(target);
        let is_above = page.level() > lowest;
        let swip = page.child(index);
        node.validate()?;
        let id = swip.global().map_or(swip.frame(), |addr| self.cache.table().frame_of(addr));
        let frame = id.filter(|_| is_above).and_then(|id| self.cache.try_frame(id)).ok_or(Retry::Restart)?;
        let child = Hop { frame, version: frame.optimistic()? };
        let is_there = swip.global().is_none_or(|addr| self.holds(frame, child.version, addr));
        node.validate()?;
        if is_there { Ok(child) } else { Err(Retry::Restart) }
    }

    /// Uses the frame that the mapping table names for a child, swizzling it if its parent swizzles.
    pub(crate) fn take_cached<'t, E: Endpoint>(
        &'t self,
        ctx: Ctx<'_, E>,
        slot: Slot<'t>,
        frame: FrameRef<'t>,
    ) -> Attempt<Hop<'t>> {
        if frame.optimistic()?.state() == FrameState::Cooling {
            ctx.ep.charge(Work::Hold(self.cache.cooling_resource(slot.addr)));
        }
        let parent = self.node(slot.parent);
        if self.swizzles(parent) {
            let parent = Some((slot.parent.frame, slot.parent.version, parent.child_word(slot.index)));
            let version = self.cache.reheat(ctx.worker, parent, frame, slot.addr)?;
            return Ok(Hop { frame, version });
        }
        let mut version = frame.optimistic()?;
        if !self.holds(frame, version, slot.addr) {
            return Err(Retry::Restart);
        }
        if version.state() == FrameState::Cooling {
            version = self.cache.reheat(ctx.worker, None, frame, slot.addr)?;
        }
        // The frame was the child's while the parent still pointed to it.
        slot.parent.validate()?;
        Ok(Hop { frame, version })
    }

    /// A cached copy of a shared node may be stale; what it leads to is checked by fences (DEX §4).
    pub(crate) async fn check_covers<'t, E: Endpoint>(
        &'t self,
        ctx: Ctx<'_, E>,
        slot: Slot<'t>,
        child: Hop<'t>,
        target: Target<'_, L>,
    ) -> Attempt<()> {
        if !self.node(slot.parent).is_shared() {
            return Ok(());
        }
        let level = self.node(slot.parent).level().wrapping_sub(1);
        let right = self.is_right(self.node(child), level, target);
        child.validate()?;
        if right {
            return Ok(());
        }
        Box::pin(self.led_astray(ctx, slot, target)).await
    }

    /// Begins anew, after a child below a shared parent turned out not to be what the cached copy of that says.
    async fn led_astray<T, E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        slot: Slot<'_>,
        target: Target<'_, L>,
    ) -> Attempt<T> {
        let parent = GlobalAddr::from_raw(slot.parent.frame.addr()).ok_or(Retry::Restart)?;
        slot.parent.validate()?;
        self.refresh(ctx, parent, target).await?;
        Err(Retry::Restart)
    }

    /// Whether a node is what its parent promised for `key`.
    fn is_right(&self, page: Node<'_, L>, level: u8, target: Target<'_, L>) -> bool {
        page.is_meant(level) && (page.covers(target) || defect(Defect::SkipFenceCheck))
    }

    /// READs a missing child and decides what becomes of it. The one place where a single leaf miss ends: fetching
    /// the page, reading part of it, offloading the operation, or answering from elsewhere would be decided here.
    /// Leaves that are known to be missing together come by [`Tree::fetch_many`].
    async fn fetch<'t, E: Endpoint>(
        &'t self,
        ctx: Ctx<'_, E>,
        slot: Slot<'t>,
        ticket: IoTicket<'t>,
        target: Target<'_, L>,
        Miss { admit, offer }: Miss,
    ) -> Attempt<Child<'t>> {
        let above = self.node(slot.parent);
        let level = above.level().wrapping_sub(1);
        let parent_shared = above.is_shared();
        let view = self.view(ctx);
        let child_shared = parent_shared && view.shares_child(above, slot.index);
        self.give_way(ctx)?;
        // The parent stays hot until its child is there.
        let pin = slot.parent.frame.pin(slot.parent.version)?;
        if !parent_shared && !view.is_growing && self.offloads(ctx, slot.addr.server(), level, offer) {
            let from = From { node: slot.addr, level, inner: 0 };
            return Ok(Child::Below(Below { from, ticket: ticket.share(), _pin: pin }));
        }
        ctx.worker.counters().count_miss(level == 0);
        let lazily = level == 0 && admit == Admit::Lazily && !self.cache.has_free(ctx.worker);
        let admitted = !lazily || self.cache.admission().admits(ctx.ep.random());
        let free = match admitted {
            true => Some(self.cache.allocate(ctx.worker, ctx.ep, self.layout).await?),
            false => None,
        };
        let page = ctx.ep.buffer(self.layout.node_size());
        let started = self.costs.start(ctx.ep);
        let page = self.read_child(ctx, slot, page, &view, level, child_shared).await?;
        self.costs.note_read(ctx.ep, slot.addr.server(), started);
        if !self.is_right(self.node(&page), level, target) {
            ctx.ep.recycle(page);
            drop(ticket);
            if !parent_shared {
                return Err(DexError::Corrupt {
                    addr: slot.addr,
                    reason: "a node that its parent does not mean",
                }
                .into());
            }
            return Box::pin(self.led_astray(ctx, slot, target)).await;
        }
        let Some(free) = free else {
            return Ok(Child::Private(PrivateLeaf { page, ticket }));
        };
        ctx.ep.charge(Work::Admit);
        ctx.ep.charge(Work::Hold(Resource::Frame(slot.parent.frame.id().0)));
        let frame = self.cache.frame(free.id());
        let resolved = self.admit_below(free, &page, ticket, slot, target);
        ctx.ep.recycle(page);
        match resolved {
            Resolved::Hot { version, parent } => {
                let parent = Hop { version: parent.unwrap_or(slot.parent.version), ..slot.parent };
                Ok(Child::Cached { child: Hop { frame, version }, parent })
            }
            Resolved::Detached => Err(Retry::Restart),
        }
    }

    /// READs a missing child as what it is by a view: shared below a shared parent if its keys are not all this compute
    /// server's, else own.
    async fn read_child<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        slot: Slot<'_>,
        page: PageBuf,
        view: &View,
        level: u8,
        shared: bool,
    ) -> Attempt<PageBuf> {
        // What is own for a moment only may still be locked by one of this compute server's own attempts.
        let page = self.read_node(ctx, slot.addr, page, view, shared || view.is_growing && level > 0).await?;
        if shared {
            return Ok(page);
        }
        self.node_mut(&page).set_flag(header::SHARED, false);
        let parent_shared = self.node(slot.parent).is_shared();
        match parent_shared && view.is_shared(self.node(&page)) {
            true => self.read_node(ctx, slot.addr, page, view, true).await,
            false => Ok(page),
        }
    }

    /// Leaves what is below a missing node to its memory server as others do, or waits until they are done.
    fn join_offload<'t, E: Endpoint>(
        &'t self,
        ctx: Ctx<'_, E>,
        slot: Slot<'t>,
        offer: Offer,
    ) -> Attempt<Below<'t>> {
        let page = self.node(slot.parent);
        let (level, shared) = (page.level().wrapping_sub(1), page.is_shared());
        let is_growing = self.view(ctx).is_growing;
        if shared || is_growing || !self.offloads(ctx, slot.addr.server(), level, offer) {
            self.cache.table().close(slot.addr);
            return Err(Retry::Restart);
        }
        self.give_way(ctx)?;
        let ticket = self.cache.table().join(slot.addr).ok_or(Retry::Restart)?;
        let pin = slot.parent.frame.pin(slot.parent.version)?;
        Ok(Below { from: From { node: slot.addr, level, inner: 0 }, ticket, _pin: pin })
    }

    /// Whether to leave what is below a missing node of `level`, whose ticket the caller has and whose parent is this compute
    /// server's own and pinned, to the memory server (DEX §6).
    fn offloads<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        server: MemoryServerId,
        level: u8,
        offer: Offer,
    ) -> bool {
        let is_possible = level <= self.config.subtree_level && !self.costs.never();
        // What is done on a server that is being drained would have to be moved away after.
        if offer == Offer::Nothing || !is_possible || !self.pool.is_active(server) {
            return false;
        }
        let unadmitted =
            if self.cache.has_free(ctx.worker) { 0.0 } else { 1.0 - self.cache.admission().share() };
        self.costs.decide(ctx.ep, server, level, offer, unadmitted) && self.cache.paths_are_whole()
    }

    /// Publishes a page that was READ as the child of `slot`, wherever in that parent it stands by now. `key` is one
    /// that leads to the child. The parent may have left its frame: what is there now is checked under its latch.
    pub(crate) fn admit_below(
        &self,
        free: FreeFrame<'_>,
        page: &PageBuf,
        ticket: IoTicket<'_>,
        slot: Slot<'_>,
        target: Target<'_, L>,
    ) -> Resolved {
        let level = self.node(page).level();
        let parent = self.cache.frame(slot.parent.frame.id());
        let still_parent = || {
            let node = self.node(parent);
            let index = node.child_toward(target);
            let is_parent = self.swizzles(node) && node.level() == level + 1 && node.covers(target);
            (is_parent && node.child_addr(index) == Some(slot.addr)).then(|| node.child_word(index))
        };
        let parent = self.swizzles(self.node(parent)).then_some((parent, still_parent));
        free.admit(page, ticket, parent)
    }
}

#[cfg(test)]
mod tests;
