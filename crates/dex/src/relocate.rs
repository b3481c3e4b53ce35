//! Nodes that move to another memory server while operations run.
//!
//! A node moves where it is cheapest: in its frame. It gets a new address, its parent points there, and both are written
//! back like any other change; nobody reads the old copy any more, whose block is freed. Until that is done whoever still
//! knows the old address finds an I/O mark on it, and descends anew.
//!
//! To spread an index, only nodes move that belong to this compute server alone and were never shared, so that nobody else
//! knows their addresses. Off a memory server that is drained the others move too (`shared.rs`); since nothing is ever written
//! there again, a note stays at the old address for whoever remembers it. The root never moves.

use pando_cache::{ExclusiveGuard, FrameRef, FrameState, IoTicket, Lookup};
use pando_fabric::{Endpoint, GlobalAddr, MemoryServerId};
use pando_pool::{Placement, lock};

use crate::error::{Attempt, DexError, Result, Retry};
use crate::layout::{Layout, Side};
use crate::node::Target;
use crate::ownership::Purpose;
use crate::smo::NewNode;
use crate::tree::{Ctx, Hop, Tree, count};
use crate::tries::Tries;
use crate::unfinished::Unlinked;

/// Which node is to move, and where to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Order<'k> {
    /// A key on whose way it stands.
    pub key: &'k [u8],
    pub level: u8,
    pub goal: Goal<'k>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Goal<'k> {
    /// To this memory server.
    To(MemoryServerId),
    /// The same, if this is its high fence.
    ToIfEndsAt(MemoryServerId, Option<&'k [u8]>),
    /// Away from this one, which is being drained: to where its subtree stands.
    Off(MemoryServerId),
}

/// A node that is to move, as it was when it was found.
#[derive(Clone, Copy)]
struct Seen {
    addr: GlobalAddr,
    level: u8,
    shared: bool,
    /// It is or was.
    was_shared: bool,
    /// Its parent is.
    parent_shared: bool,
    /// Others may remember where it was, and no longer look at what comes there.
    needs_notice: bool,
}

/// What became of a node that should move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Moved,
    /// It is where it should be, or is not the one that was meant.
    WasThere,
    /// It is the root, others may know its address, or there is no room.
    Stays,
}

/// The same, and where the node ends.
#[derive(Clone, Debug)]
pub(crate) struct Moved {
    pub fate: Fate,
    pub high: Option<Vec<u8>>,
}

impl<L: Layout> Tree<L> {
    /// Moves a node as `order` says.
    ///
    /// # Errors
    /// Those of operations.
    pub(crate) async fn relocate<E: Endpoint>(&self, ctx: Ctx<'_, E>, order: Order<'_>) -> Result<Moved> {
        let key = self.layout.key(order.key)?;
        let tries = Tries::default();
        let mut ctx = ctx;
        loop {
            match self.try_relocate(ctx, key, order).await {
                Ok(moved) => return Ok(moved),
                Err(retry) => ctx = tries.again(self, ctx, retry, "a node to move").await?,
            }
        }
    }

    async fn try_relocate<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        key: L::Key<'_>,
        order: Order<'_>,
    ) -> Attempt<Moved> {
        let _entered = self.enter_for(ctx, key, Purpose::Operation)?;
        let (node, parent) = self.walk_to(ctx, key, order.level).await?;
        let page = self.node(node);
        let high = page.fence(Side::High);
        let mut seen = Seen {
            addr: page.addr().ok_or(Retry::Restart)?,
            level: page.level(),
            shared: page.is_shared(),
            was_shared: page.is_shared() || page.was_shared(),
            parent_shared: false,
            needs_notice: false,
        };
        node.validate()?;
        let (addr, ended) = (seen.addr, |fate, high| Ok(Moved { fate, high }));
        let is_there = match order.goal {
            Goal::To(target) => addr.server() == target,
            Goal::ToIfEndsAt(target, end) => addr.server() == target || high.as_deref() != end,
            Goal::Off(server) => addr.server() != server,
        };
        let is_drain = matches!(order.goal, Goal::Off(_));
        if is_there || seen.level != order.level {
            return ended(Fate::WasThere, high);
        }
        let Some(parent) = parent.filter(|_| is_drain || !seen.was_shared) else {
            return ended(Fate::Stays, high);
        };
        let above = self.node(parent).addr().ok_or(Retry::Restart)?;
        seen.parent_shared = self.node(parent).is_shared();
        seen.needs_notice = is_drain && !seen.shared && (seen.was_shared || seen.parent_shared);
        self.give_way(ctx)?;
        let _pins = (node.frame.pin(node.version)?, parent.frame.pin(parent.version)?);
        let placement = self.place_of(order.goal, seen.level, above);
        let new = match self.pool.alloc(ctx.ep, placement, self.node_bytes()).await {
            Ok(addr) => NewNode::at(self, addr),
            Err(error) if error.is_full() => return ended(Fate::Stays, high),
            Err(error) => return Err(DexError::from(error).into()),
        };
        let old = self.relocate_pinned(ctx, key, node.frame, parent, seen, new).await?;
        count(&self.smo_counters.relocations);
        match old {
            Some(unlinked) => self.finish_unlinked(ctx, unlinked).await?,
            None => self.free_behind(ctx, addr, false).await?,
        }
        ended(Fate::Moved, high)
    }

    /// Moves a node to `new`, by who uses it and its parent. What is at its old address, unless others look after that.
    async fn relocate_pinned<'t, E: Endpoint>(
        &'t self,
        ctx: Ctx<'_, E>,
        key: L::Key<'_>,
        node: FrameRef<'t>,
        parent: Hop<'t>,
        seen: Seen,
        new: NewNode<'_, L>,
    ) -> Attempt<Option<Unlinked>> {
        let Seen { addr, level, shared, was_shared, parent_shared, .. } = seen;
        if was_shared && !shared {
            // It is written back without its lock word, which goes on from where it is.
            let word = ctx.ep.read_word(addr).await?;
            new.while_written(ctx.ep.write_word(new.addr(), lock::unlock_word(word))).await?;
        }
        match (shared, parent_shared) {
            (true, true) => {
                let above = self.node(parent).addr().ok_or(Retry::Restart)?;
                self.move_shared(ctx, key, addr, level, above, new).await?;
                Ok(None)
            }
            (true, false) => {
                // It is this server's own by now, or its parent is not.
                drop(new);
                self.refresh(ctx, addr, Target::of(key)).await?;
                Err(Retry::Restart)
            }
            (false, false) => {
                let old = self.relocate_owned(key, node, parent.frame, seen, new)?;
                Ok(Some(Unlinked::new(old).needs_notice(seen.needs_notice)))
            }
            (false, true) => self.relocate_under_shared(ctx, key, node, parent, seen, new).await.map(Some),
        }
    }

    /// Where a node below one at `above` goes.
    fn place_of(&self, goal: Goal<'_>, level: u8, above: GlobalAddr) -> Placement {
        match goal {
            Goal::To(target) | Goal::ToIfEndsAt(target, _) => Placement::Server(target),
            Goal::Off(_)
                if level < self.spread_level(self.height()) && self.pool.is_active(above.server()) =>
            {
                Placement::Prefer(above.server())
            }
            Goal::Off(_) => Placement::LeastLoaded,
        }
    }

    /// Gives a node and its parent, both pinned, the new address. The ticket of the old one keeps others away from it.
    fn relocate_owned<'t>(
        &'t self,
        key: L::Key<'_>,
        node: FrameRef<'t>,
        parent: FrameRef<'t>,
        seen: Seen,
        new: NewNode<'_, L>,
    ) -> Attempt<IoTicket<'t>> {
        let addr = seen.addr;
        let mut parent_guard = parent.exclusive()?;
        let index = self.index_of_child(parent, node, key).ok_or(Retry::Restart);
        let moved = index.and_then(|index| {
            let guard = self.latch_to_move(node, seen)?;
            Ok((index, self.readdress(node, guard, addr, new.addr())?))
        });
        match moved {
            Ok((index, old)) => {
                let above = self.node_mut(parent);
                if above.child_addr(index) == Some(addr) {
                    above.set_child(index, new.addr().raw());
                }
                new.link();
                parent_guard.mark_dirty();
                Ok(old)
            }
            Err(retry) => {
                parent_guard.release_unchanged();
                Err(retry)
            }
        }
    }

    /// The same below a shared parent, which is written through.
    async fn relocate_under_shared<'t, E: Endpoint>(
        &'t self,
        ctx: Ctx<'_, E>,
        key: L::Key<'_>,
        node: FrameRef<'t>,
        parent: Hop<'_>,
        seen: Seen,
        new: NewNode<'_, L>,
    ) -> Attempt<Unlinked> {
        let addr = seen.addr;
        let parent_addr = self.node(parent).addr().ok_or(Retry::Restart)?;
        let parent = self.lock_parent(ctx, parent_addr, key, addr, self.node(node).level()).await?;
        let moved =
            self.latch_to_move(node, seen).and_then(|guard| self.readdress(node, guard, addr, new.addr()));
        match moved {
            Ok(old) => {
                let above = self.node_mut(&parent);
                above.set_child(above.child_index(key), new.addr().raw());
                new.link();
                let unlinked = Unlinked::new(old).needs_notice(seen.needs_notice);
                Ok(self.write_unlinked(ctx, parent, unlinked).await?)
            }
            Err(retry) => {
                self.unlock_unchanged(ctx, parent).await?;
                Err(retry)
            }
        }
    }

    /// Latches the pinned frame of a node, if it still is that node and no write-back to its old address is under way.
    fn latch_to_move<'t>(&'t self, node: FrameRef<'t>, seen: Seen) -> Attempt<ExclusiveGuard<'t>> {
        let guard = node.exclusive()?;
        let is_node = guard.state() == FrameState::Hot
            && node.addr() == seen.addr.raw()
            && !self.node(node).is_shared()
            && self.node(node).was_shared() == seen.was_shared;
        if is_node && !node.is_writing() {
            return Ok(guard);
        }
        guard.release_unchanged();
        Err(Retry::Restart)
    }

    /// Gives the latched node its new address; the ticket of the old one.
    fn readdress<'t>(
        &'t self,
        node: FrameRef<'t>,
        mut guard: ExclusiveGuard<'t>,
        addr: GlobalAddr,
        new: GlobalAddr,
    ) -> Attempt<IoTicket<'t>> {
        let table = self.cache.table();
        let Lookup::Miss(ticket) = table.begin(new) else {
            guard.release_unchanged();
            return Err(Retry::Restart);
        };
        let old = table.frame_to_ticket(addr, node.id());
        self.node_mut(node).set_addr(new);
        guard.mark_dirty();
        ticket.publish(node.id());
        drop(guard);
        Ok(old)
    }
}
