//! Nodes whose lock is held by a process that is gone, and what it left half done.
//!
//! Who finds a shared node locked by another process notes it as a *suspect* and starts again. While it does so it looks, now
//! and then, whether that process still lives; the pool makes sure that nothing of one that does not takes effect any more. Then the
//! node is put right and its lock taken over, from the top of the tree down as always, by somebody who holds no other lock:
//!
//! - Its bytes are as before or as after the change that was being made (`locked.rs`), or it is reported as corrupt.
//! - A split and a move of a shared node write its parent first. So the parent tells whether they took effect: if it has a
//!   separator within the node, the node ends there, and the rest stands in its new neighbour; if it has another node in its
//!   place, it was moved there. If neither, nothing happened that anybody could see.
//! - What is one compute server's own by now is never written by anybody else: of such a node the owner only takes the lock over.
//!   So only nodes are put right that cross an end of this compute server's range, by what is in remote memory.
//! - What a process that is gone had for itself, its leaves and the nodes that nobody else used, is lost with its cache.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pando_cache::sync::Word;
use pando_fabric::{Endpoint, GlobalAddr, Nanos, PageBuf};
use pando_pool::{AttachSlot, LOOKS_AT_HOLDER};

use crate::error::{Attempt, DexError, Result, Retry};
use crate::layout::{Layout, Side, header};
use crate::locked::{LockedNode, has_digests, is_whole};
use crate::node::Node;
use crate::tree::{Ctx, Tree};

/// Makes a page that was READ a copy of this compute server's own: without what only remote copies say.
pub(crate) fn own_copy(words: &[Word]) {
    header::set_flag(words, header::SHARED, false);
    if has_digests(words) {
        header::set(words, header::REMOTE_VERSION, 0);
    }
}

/// What became of a node whose change was broken off.
enum Fate {
    /// It was not changed, or the change was all done.
    AsItIs,
    /// Another node has its keys and children.
    Moved,
    /// A new neighbour has those from here on: index and key.
    EndsAt(usize, Vec<u8>),
}

/// A node that is locked for a while.
#[derive(Clone, Copy)]
struct Suspect {
    holder: AttachSlot,
    /// When it was seen first, or last looked after; `None` if the holder is gone.
    since: Option<Nanos>,
}

/// The nodes that were found locked by other processes.
#[derive(Default)]
pub(crate) struct Suspects {
    nodes: Mutex<HashMap<GlobalAddr, Suspect>>,
    /// Whether there are any.
    any: AtomicBool,
}

impl Suspects {
    fn nodes(&self) -> MutexGuard<'_, HashMap<GlobalAddr, Suspect>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody found the node locked.
    pub fn note(&self, addr: GlobalAddr, holder: AttachSlot, own: Option<AttachSlot>, now: Nanos) {
        if Some(holder) == own {
            return;
        }
        let mut nodes = self.nodes();
        let suspect = nodes.entry(addr).or_insert(Suspect { holder, since: Some(now) });
        if suspect.holder != holder {
            *suspect = Suspect { holder, since: Some(now) };
        }
        self.any.store(true, Relaxed);
    }

    /// Its holder is gone.
    pub fn condemn(&self, addr: GlobalAddr, holder: AttachSlot) {
        self.nodes().insert(addr, Suspect { holder, since: None });
        self.any.store(true, Relaxed);
    }

    /// One that is to be looked after, which counts as done.
    fn take_due(&self, now: Nanos, wait: Nanos) -> Option<(GlobalAddr, Suspect)> {
        let mut nodes = self.nodes();
        let is_due = |suspect: &Suspect| suspect.since.is_none_or(|since| now >= since.saturating_add(wait));
        // The same one in each run of a simulation, whatever the order of the map.
        let due = nodes.iter().filter(|(_, suspect)| is_due(suspect)).map(|(&addr, _)| addr).min();
        let taken = due.and_then(|addr| nodes.remove_entry(&addr));
        self.any.store(!nodes.is_empty(), Relaxed);
        taken
    }
}

impl<L: Layout> Tree<L> {
    /// To be called by whoever waits and holds nothing: gives back the locks that this process left, finishes what operations left
    /// half done, and takes over the locks of processes that are gone. What cannot be done now is tried again by the next one.
    ///
    /// # Errors
    /// [`DexError::Corrupt`] if somebody died who was just writing a node.
    #[inline]
    pub(crate) async fn settle_locks<E: Endpoint>(&self, ctx: Ctx<'_, E>) -> Result<()> {
        // Boxed: so rare that futures of operations are better without.
        if self.pool.has_left_locks() {
            let _ = Box::pin(self.pool.give_back_left_locks(ctx.ep)).await;
        }
        if self.is_unfinished() {
            self.cache.end_cut_off(ctx.ep.now());
            let _ = Box::pin(self.finish_some(ctx)).await;
        }
        match self.suspects.any.load(Relaxed) {
            true => Box::pin(self.look_after_suspects(ctx)).await,
            false => Ok(()),
        }
    }

    async fn look_after_suspects<E: Endpoint>(&self, ctx: Ctx<'_, E>) -> Result<()> {
        let wait = self.config.patience_ns / LOOKS_AT_HOLDER;
        while let Some((addr, suspect)) = self.suspects.take_due(ctx.ep.now(), wait) {
            let is_gone = match suspect.since {
                None => Ok(true),
                Some(_) => self.pool.is_abandoned(ctx.ep, suspect.holder).await,
            };
            if !matches!(is_gone, Ok(true)) {
                continue;
            }
            match self.put_right(ctx, addr, suspect.holder).await {
                Ok(()) => {}
                Err(Retry::Failed(error @ DexError::Corrupt { .. })) => return Err(error),
                // Whoever comes upon it still notes it again; what stands above may have to be put right first.
                Err(_) => break,
            }
        }
        Ok(())
    }

    /// Takes over the lock of a node from a process that is gone, and makes the node what its parent says that it is.
    async fn put_right<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        addr: GlobalAddr,
        gone: AttachSlot,
    ) -> Attempt<()> {
        // As long as `gone` has the lock nobody changes the node.
        let page = ctx.ep.buffer(self.layout.node_size());
        let page = self.read_verified(ctx, addr, page).await?;
        let node = self.node(&page);
        if !is_whole(node.words()) {
            // It stays locked.
            let reason = "it was being written by a process that died";
            return Err(DexError::Corrupt { addr, reason }.into());
        }
        let view = self.view(ctx);
        if view.nodes.is_apart_from_node(node) {
            // Others' to put right, or their own. What leads there, to keys that are not there, is old.
            ctx.ep.recycle(page);
            return Ok(self.drop_shared_copies(ctx).await?);
        }
        let is_own = self.has_own_copy(addr) || !view.is_shared(node);
        let is_as_it_is = is_own || addr == self.config.root || node.is_moved();
        let parent = match is_as_it_is {
            true => None,
            false => Some(self.lock_above(ctx, node.level(), node.fence(Side::Low).as_deref()).await?),
        };
        let fate = parent.as_ref().map_or(Ok(Fate::AsItIs), |parent| self.fate_of(addr, &page, parent));
        let put_right = match fate {
            Ok(fate) => self.meet_fate(ctx, addr, page, gone, fate).await,
            Err(retry) => Err(retry),
        };
        if let Some(parent) = parent {
            self.unlock_unchanged(ctx, parent).await?;
        }
        put_right
    }

    /// What the parent of the node at `addr` says of it.
    fn fate_of(&self, addr: GlobalAddr, page: &PageBuf, parent: &LockedNode<'_>) -> Attempt<Fate> {
        let (node, above) = (self.node(page), self.node(parent));
        let index = self.index_at(above, node.fence(Side::Low).as_deref())?;
        if above.child(index).raw() != addr.raw() {
            return Ok(Fate::Moved);
        }
        let end = above.bounds_of_child(index).high().map(<[u8]>::to_vec);
        if end == node.fence(Side::High) {
            return Ok(Fate::AsItIs);
        }
        match end.and_then(|end| Some(Fate::EndsAt(node.position(&end)?, end))) {
            Some(fate) => Ok(fate),
            None => {
                let reason = "its fences are not those that its parent has";
                Err(DexError::Corrupt { addr, reason }.into())
            }
        }
    }

    async fn meet_fate<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        addr: GlobalAddr,
        page: PageBuf,
        gone: AttachSlot,
        fate: Fate,
    ) -> Attempt<()> {
        let Some(lock) = self.pool.take_over(ctx.ep, addr, gone).await? else { return Ok(()) };
        let node = LockedNode::new(lock, page);
        own_copy(node.words());
        match fate {
            Fate::AsItIs => return Ok(self.unlock_unchanged(ctx, node).await?),
            Fate::Moved => self.node_mut(&node).set_flag(header::MOVED, true),
            Fate::EndsAt(at, end) => {
                let right = self.split_page(ctx, &node.page, addr, at, &end);
                ctx.ep.recycle(right);
            }
        }
        self.mark_shared(&self.view(ctx), &node.page);
        Ok(self.write_unlock(ctx, node).await?)
    }

    /// Locks the node above `level` to whose keys `low` belongs, found in remote memory from the root down. `None` is the
    /// lowest of all keys.
    async fn lock_above<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        level: u8,
        low: Option<&[u8]>,
    ) -> Attempt<LockedNode<'_>> {
        let mut addr = self.config.root;
        loop {
            let (view, page) = (self.view(ctx), ctx.ep.buffer(self.layout.node_size()));
            let page = self.read_node(ctx, addr, page, &view, true).await?;
            let (at, next) = (self.node(&page).level(), self.child_at(self.node(&page), low));
            ctx.ep.recycle(page);
            if at <= level {
                return Err(Retry::Restart);
            }
            if at == level + 1 {
                break;
            }
            addr = next?;
        }
        let parent = self.lock_node(ctx, addr).await?;
        let node = self.node(&parent);
        let is_within = node.fence(Side::Low).as_deref() <= low
            && node.fence(Side::High).is_none_or(|high| low.is_none_or(|low| low < &high[..]));
        if node.level() == level + 1 && is_within && !node.is_moved() {
            return Ok(parent);
        }
        self.unlock_unchanged(ctx, parent).await?;
        Err(Retry::Restart)
    }

    /// Where in an inner node the way to `low` goes on.
    fn index_at(&self, node: Node<'_, L>, low: Option<&[u8]>) -> Attempt<usize> {
        Ok(match low {
            None => 0,
            Some(low) => node.child_index(self.layout.key(low)?),
        })
    }

    fn child_at(&self, node: Node<'_, L>, low: Option<&[u8]>) -> Attempt<GlobalAddr> {
        node.child_addr(self.index_at(node, low)?).ok_or(Retry::Restart)
    }
}
