//! Nodes that move to another memory server while operations run.
//!
//! A node moves where it is cheapest: in its frame. It gets a new address, its parent points there, and both are written
//! back like any other change; nobody reads the old copy any more, whose block is freed. Until that is done whoever still
//! knows the old address finds an I/O mark on it, and descends anew.
//!
//! What moves belongs to this compute server alone and was never shared, so nobody else knows its address. The root never
//! moves.

use pando_cache::{ExclusiveGuard, FrameRef, FrameState, IoTicket, Lookup, Swip};
use pando_fabric::{Endpoint, GlobalAddr, MemoryServerId};
use pando_pool::Placement;

use crate::error::{Attempt, DexError, Result, Retry};
use crate::layout::{Layout, Side, header};
use crate::smo::NewNode;
use crate::tree::{Ctx, Hop, Tree, count};
use crate::tries::Tries;

/// What became of a node that should move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Moved {
    /// It is on the other server, and maybe was before. Its high fence, unless that is infinite.
    There(Option<Vec<u8>>),
    /// It stays: it is the root, others may know its address, or the other server is full. Its high fence.
    Stays(Option<Vec<u8>>),
}

impl Moved {
    pub fn high(&self) -> Option<&[u8]> {
        match self {
            Self::There(high) | Self::Stays(high) => high.as_deref(),
        }
    }
}

impl<L: Layout> Tree<L> {
    /// Moves the node of `level` on the way to `key` to `target`.
    ///
    /// # Errors
    /// Those of operations.
    pub(crate) async fn relocate<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        key: &[u8],
        level: u8,
        target: MemoryServerId,
    ) -> Result<Moved> {
        let key = self.layout.key(key)?;
        let tries = Tries::default();
        let mut ctx = ctx;
        loop {
            match self.try_relocate(ctx, key, level, target).await {
                Ok(moved) => return Ok(moved),
                Err(retry) => ctx = tries.again(self, ctx, retry, "a node to move").await?,
            }
        }
    }

    async fn try_relocate<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        key: L::Key<'_>,
        level: u8,
        target: MemoryServerId,
    ) -> Attempt<Moved> {
        let (node, parent) = self.walk_to(ctx, key, level).await?;
        let words = node.frame.words();
        let mut high = Vec::new();
        let high = self.layout.append_fence(words, Side::High, &mut high).then_some(high);
        let is_fixed = header::has(words, header::SHARED | header::WAS_SHARED);
        let addr = GlobalAddr::from_raw(node.frame.addr()).ok_or(Retry::Restart)?;
        node.validate()?;
        let Some(parent) = parent.filter(|_| !is_fixed) else { return Ok(Moved::Stays(high)) };
        if addr.server() == target {
            return Ok(Moved::There(high));
        }
        let parent_shared = header::has(parent.frame.words(), header::SHARED);
        let _pins = (node.frame.pin(node.version)?, parent.frame.pin(parent.version)?);
        let new = match self.pool.alloc(ctx.ep, Placement::Server(target), self.node_bytes()).await {
            Ok(addr) => NewNode::at(self, addr),
            Err(error) if error.is_full() => return Ok(Moved::Stays(high)),
            Err(error) => return Err(DexError::from(error).into()),
        };
        let old = match parent_shared {
            false => self.relocate_owned(key, (node.frame, parent.frame), addr, new)?,
            true => self.relocate_under_shared(ctx, key, (node.frame, parent), addr, new).await?,
        };
        count(&self.smo_counters.relocations);
        self.pool.free(ctx.ep, addr, self.node_bytes()).await?;
        drop(old);
        Ok(Moved::There(high))
    }

    /// Gives a node and its parent, both pinned, the new address. The ticket of the old one keeps others away from it.
    fn relocate_owned<'t>(
        &'t self,
        key: L::Key<'_>,
        (node, parent): (FrameRef<'t>, FrameRef<'t>),
        addr: GlobalAddr,
        new: NewNode<'_, L>,
    ) -> Attempt<IoTicket<'t>> {
        let mut parent_guard = parent.exclusive()?;
        let above = parent.words();
        let word = self.layout.child_word(above, self.layout.child_index(above, key));
        let swip = header::get(above, word);
        let is_parent = header::level(above) == header::level(node.words()) + 1
            && !header::has(above, header::SHARED)
            && self.layout.covers(above, key)
            && (swip == Swip::hot(node.id()).raw() || swip == addr.raw());
        let latched = match is_parent {
            true => self.latch_to_move(node, addr),
            false => Err(Retry::Restart),
        };
        match latched.and_then(|guard| self.readdress(node, guard, addr, new.addr())) {
            Ok(old) => {
                if swip == addr.raw() {
                    header::set(above, word, new.addr().raw());
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
        (node, parent): (FrameRef<'t>, Hop<'_>),
        addr: GlobalAddr,
        new: NewNode<'_, L>,
    ) -> Attempt<IoTicket<'t>> {
        let parent_addr = GlobalAddr::from_raw(parent.frame.addr()).ok_or(Retry::Restart)?;
        let parent = self.lock_parent(ctx, parent_addr, key, addr, header::level(node.words())).await?;
        let moved =
            self.latch_to_move(node, addr).and_then(|guard| self.readdress(node, guard, addr, new.addr()));
        match moved {
            Ok(old) => {
                let words = parent.words();
                let word = self.layout.child_word(words, self.layout.child_index(words, key));
                header::set(words, word, new.addr().raw());
                new.link();
                match self.write_unlock(ctx, parent).await {
                    Ok(()) => Ok(old),
                    Err(error) => {
                        // Nobody may come by the parent's old bytes to the old copy: better not at all.
                        std::mem::forget(old);
                        Err(error.into())
                    }
                }
            }
            Err(retry) => {
                self.unlock_unchanged(ctx, parent).await?;
                Err(retry)
            }
        }
    }

    /// Latches the pinned frame of a node, if it still is that node and no write-back to its old address is under way.
    fn latch_to_move<'t>(&'t self, node: FrameRef<'t>, addr: GlobalAddr) -> Attempt<ExclusiveGuard<'t>> {
        let guard = node.exclusive()?;
        let is_node = guard.state() == FrameState::Hot
            && node.addr() == addr.raw()
            && !header::has(node.words(), header::SHARED | header::WAS_SHARED);
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
        header::set(node.words(), header::ADDR, new.raw());
        guard.mark_dirty();
        ticket.publish(node.id());
        drop(guard);
        Ok(old)
    }
}
