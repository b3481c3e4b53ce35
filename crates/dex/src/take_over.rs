//! Taking keys over, the new owner's half (DEX §8, repartitioning), and taking them back.
//!
//! The former owner has written everything back and left ([`Leaving::finish`](crate::Leaving::finish)). What this
//! compute server knows of the keys may be older than that, and some nodes that it shared become its own:
//!
//! 1. By a new view these nodes are own; attempts that began by the old one are waited for. Until then such a node, when it is
//!    READ, is READ with the optimistic protocol, since one of those attempts may have it locked. Who finds it shared in
//!    a frame, and locks it, sees by the view that it is not, and makes the frame's copy an own one.
//! 2. All copies of shared nodes are dropped, the root's replaced: they may lead to nodes that the former owner freed.
//! 3. Cached nodes below those that are own now are swizzled nowhere. They count as orphans, so that nothing is offloaded above
//!    them before they are.
//! 4. Only then do operations on the new keys begin.

use std::sync::atomic::AtomicBool;

use pando_cache::sync::Word;
use pando_cache::{Expelled, FrameId};
use pando_fabric::{Endpoint, Patience};

use crate::error::{Attempt, DexError, Result, Retry};
use crate::layout::{Layout, Side, header};
use crate::node::Target;
use crate::ownership::View;
use crate::partition::KeyRange;
use crate::tree::{Ctx, Tree};
use crate::tries::Tries;

impl<L: Layout> Tree<L> {
    /// Takes keys over that their former owner has left, or takes them back that this compute server left and that nobody took.
    ///
    /// # Errors
    /// Keys that are not beside those of this compute server; [`DexError::Moving`]; [`DexError::TimedOut`]; errors of
    /// the fabric. The keys are not this compute server's then, and nodes on their way count as shared as before, so that their
    /// former owner may have them back, unless [`Tree::is_taking_over`] says otherwise. It may be called again.
    pub async fn take_over<E: Endpoint>(&self, ctx: Ctx<'_, E>, range: KeyRange) -> Result<()> {
        let mover = self.mover()?;
        let own = self.view(ctx).keys.clone();
        if range.is_empty() {
            return Ok(());
        }
        let all = own.joined(&range);
        let all = all.ok_or(DexError::WrongRange("is not beside the keys of the one who takes it over"))?;
        let Err(error) = self.extend_to(ctx, &own, &all).await else { return Ok(()) };
        drop(mover);
        if self.is_taking_over() {
            // Its operations may have changed nodes as its own, and merged leaves across the boundary.
            let leaving = self.begin_leave(ctx, own).await?;
            if leaving.finish(ctx).await.is_err() {
                self.update_view(|view| View { nodes: all.clone(), is_growing: true, ..view.clone() });
            }
        }
        Err(error)
    }

    /// Whether a [`Tree::take_over`] failed half-way: nodes count as this compute server's own, while nobody owns their keys, until
    /// it is called again and does not fail.
    pub fn is_taking_over(&self) -> bool {
        let view = self.present_view();
        view.nodes != view.keys
    }

    /// Whether it was these keys that it did not come to own then.
    pub(crate) fn is_taking(&self, range: &KeyRange) -> bool {
        let view = self.present_view();
        view.keys.joined(range).as_ref() == Some(&view.nodes)
    }

    /// Makes the range, which was `own`, `all`. The caller is the mover.
    pub(crate) async fn extend_to<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        own: &KeyRange,
        all: &KeyRange,
    ) -> Result<()> {
        let larger = |view: &View| View { nodes: all.clone(), is_growing: true, ..view.clone() };
        self.change_view(ctx, larger, &AtomicBool::new(false)).await?;
        self.drop_shared_copies(ctx).await?;
        self.renew_root(ctx).await?;
        // Nobody is left who saw a node shared that is own now.
        self.change_view(ctx, View::clone, &AtomicBool::new(false)).await?;
        for (old, new) in [(&own.low, &all.low), (&own.high, &all.high)] {
            if let Some(boundary) = old.as_ref().filter(|_| !own.is_empty() && old != new) {
                self.note_orphans(ctx, boundary).await?;
            }
        }
        self.update_view(|_| View { keys: all.clone(), nodes: all.clone(), is_growing: false });
        Ok(())
    }

    /// Drops all copies of shared nodes but that of the root.
    pub(crate) async fn drop_shared_copies<E: Endpoint>(&self, ctx: Ctx<'_, E>) -> Result<()> {
        let is_shared = |words: &[Word]| self.node(words).is_shared();
        let patience = Patience::new(self.config.patience_ns);
        for id in (0..self.cache.frames() as u32).map(FrameId).filter(|&id| id != self.root) {
            while self.cache.expel(ctx.worker, ctx.ep, self.layout, id, is_shared).await? == Expelled::Busy {
                patience.wait(ctx.ep, "the copy of a shared node").await?;
            }
        }
        Ok(())
    }

    /// Reads the root again, if it is not this compute server's own already.
    async fn renew_root<E: Endpoint>(&self, ctx: Ctx<'_, E>) -> Result<()> {
        let frame = self.cache.frame(self.root);
        let node = self.node_mut(frame);
        let patience = Patience::new(self.config.patience_ns);
        while node.is_shared() {
            let (view, page) = (self.view(ctx), ctx.ep.buffer(self.layout.node_size()));
            match self.read_node(ctx, self.config.root, page, &view, true).await {
                Ok(page) => {
                    let read = self.node(&page);
                    if let Ok(guard) = frame.exclusive() {
                        let is_current = read.remote_version() >= node.remote_version();
                        if is_current && node.is_shared() {
                            node.copy_content(read);
                            // Others had copies of it: its lock word goes on, even while nobody else uses it.
                            node.set_flag(header::WAS_SHARED, true);
                            drop(guard);
                            ctx.ep.recycle(page);
                            return Ok(());
                        }
                        guard.release_unchanged();
                    }
                    ctx.ep.recycle(page);
                }
                Err(Retry::Failed(error)) => return Err(error),
                Err(Retry::Restart | Retry::Crowded(_)) => self.settle_locks(ctx).await?,
            }
            patience.wait(ctx.ep, "the root").await?;
        }
        Ok(())
    }

    /// Counts the cached children of the nodes that crossed a boundary, and are own now, as orphans.
    async fn note_orphans<E: Endpoint>(&self, ctx: Ctx<'_, E>, boundary: &[u8]) -> Result<()> {
        let key = self.layout.key(boundary)?;
        let tries = Tries::default();
        let mut ctx = ctx;
        loop {
            match self.try_note_orphans(ctx, key).await {
                Ok(()) => return Ok(()),
                Err(retry) => ctx = tries.again(self, ctx, retry, "a node that was shared").await?,
            }
        }
    }

    async fn try_note_orphans<E: Endpoint>(&self, ctx: Ctx<'_, E>, key: L::Key<'_>) -> Attempt<()> {
        let view = self.view(ctx);
        let (mut above, mut addr) = (self.config.root, self.config.root);
        let page = ctx.ep.buffer(self.layout.node_size());
        loop {
            match self.cache.table().frame_of(addr) {
                None if self.cache.table().is_in_flight(addr) => return Err(Retry::Restart),
                None => {
                    let read = ctx.ep.buffer(self.layout.node_size());
                    let read = self.read_node(ctx, addr, read, &view, true).await?;
                    self.node_mut(&page).copy_content(self.node(&read));
                    ctx.ep.recycle(read);
                }
                Some(id) => {
                    let frame = self.cache.frame(id);
                    let version = frame.optimistic()?;
                    if !self.holds(frame, version, addr) {
                        return Err(Retry::Restart);
                    }
                    self.node_mut(&page).copy_content(self.node(frame));
                    frame.validate(version)?;
                }
            }
            let node = self.node(&page);
            if !node.covers(Target::of(key)) {
                self.refresh(ctx, above, Target::of(key)).await?;
                return Err(Retry::Restart);
            }
            let begins = node.fence(Side::Low).as_deref() == Some(self.layout.key_bytes(key));
            if begins || node.level() == 0 {
                break;
            }
            if !view.is_shared(node) {
                self.note_orphans_below(node)?;
            }
            match self.child_addr(node, Target::of(key))? {
                Some(child) => (above, addr) = (addr, child),
                None => break,
            }
        }
        ctx.ep.recycle(page);
        Ok(())
    }
}
