//! What operations left half done whose futures were dropped, or that failed halfway, until later ones finish it.
//!
//! A future may be dropped wherever it awaits. A verb that is under way then may still take effect, for as long as a verb
//! may take; and a change of the tree's shape may be made in one place and not yet in another. So whoever awaits in
//! such a place has a [`Remainder`], which, if it is dropped, puts what is to be done on the list of the tree. Operations
//! that have to wait finish what is on the list; so does whoever needs the index at rest.
//!
//! Invariant: until what was left is finished, the ticket of every node that it is about is kept, so that nobody reads or changes
//! that node, nor gets its block.
//!
//! Locks that were left are the pool's to give back (`pando_pool::RemoteLock`), with the pages that are to be written under
//! them; write-backs that were cut off are the cache's.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use pando_cache::IoTicket;
use pando_fabric::{Endpoint, GlobalAddr, PageBuf, Patience};
use pando_pool::{Due, Order};

use crate::error::Result;
use crate::layout::{Layout, header};
use crate::locked::LockedNode;
use crate::tree::{Ctx, Tree};

/// What is left to be done.
#[derive(Clone, Debug)]
pub(crate) enum Unfinished {
    /// A node in no frame is being written: its ticket is to be dropped.
    Written(GlobalAddr),
    /// A memory server is changing the leaf of a key below a node: copies of the leaf are to be forgotten, and the share of the
    /// node's ticket dropped.
    Called {
        node: GlobalAddr,
        key: Arc<[u8]>,
    },
    /// A block is being written that nothing leads to: it is to be freed.
    Block(GlobalAddr),
    Unlinked(Unlinked),
}

/// A node that was taken out of the tree, merged away or moved. Its ticket is kept.
#[derive(Clone, Debug)]
pub(crate) struct Unlinked {
    pub addr: GlobalAddr,
    /// The shared parent that it was taken out of, and the bytes that this compute server's copy of that is to have: an older
    /// copy leads to the node.
    pub parent: Option<(GlobalAddr, Arc<[u64]>)>,
    /// Others may remember the address, so that a note is to be left there.
    pub needs_notice: bool,
}

impl Unlinked {
    /// A node whose parent is this compute server's own.
    pub fn new(ticket: IoTicket<'_>) -> Self {
        Self { addr: ticket.keep(), parent: None, needs_notice: false }
    }

    /// A node that was below the shared parent at `parent`, which now has these bytes.
    fn below(self, parent: GlobalAddr, page: &PageBuf, version: u64) -> Self {
        let mut words: Vec<_> = page.words().iter().map(|word| word.load(Relaxed)).collect();
        words[header::REMOTE_VERSION] = version;
        Self { parent: Some((parent, words.into())), ..self }
    }

    pub fn needs_notice(self, needs_notice: bool) -> Self {
        Self { needs_notice, ..self }
    }
}

/// What is left to be done if this is dropped.
#[must_use = "dropped, it is left to later operations"]
pub(crate) struct Remainder<'t, L: Layout, F: FnOnce() -> Unfinished> {
    tree: &'t Tree<L>,
    left: Option<F>,
    due: Due,
}

impl<L: Layout, F: FnOnce() -> Unfinished> Remainder<'_, L, F> {
    /// Nothing is left.
    pub fn done(mut self) {
        self.left = None;
    }

    /// What was under way is over: a verb that failed takes no effect once another verb of this process does. So what is left can
    /// be finished at once.
    pub fn failed(mut self) {
        self.due = Due::Now;
    }
}

impl<L: Layout, F: FnOnce() -> Unfinished> Drop for Remainder<'_, L, F> {
    fn drop(&mut self) {
        if let Some(left) = self.left.take() {
            self.tree.unfinished.push(left(), self.due);
        }
    }
}

impl<L: Layout> Tree<L> {
    /// What is left if the caller is dropped while a verb of his is under way.
    pub(crate) fn under_way<F: FnOnce() -> Unfinished>(&self, left: F) -> Remainder<'_, L, F> {
        Remainder { tree: self, left: Some(left), due: Due::Later }
    }

    /// Does what is to be done once a node was taken out of the tree.
    ///
    /// # Errors
    /// Those of the fabric and of latches that are waited for. The rest is left then; a block that could not be freed is lost.
    pub(crate) async fn finish_unlinked<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        unlinked: Unlinked,
    ) -> Result<()> {
        let left = Unfinished::Unlinked(unlinked);
        let remainder = Remainder { tree: self, left: Some(|| left.clone()), due: Due::Now };
        self.prepare(ctx, &left).await?;
        remainder.done();
        self.release(ctx, left).await
    }

    /// Writes the shared parent through, and unlocks it, that a node was taken out of.
    ///
    /// # Errors
    /// Those of [`Tree::write_unlock`]. All that is to be done for the node is left then.
    pub(crate) async fn write_unlinked<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        parent: LockedNode<'_>,
        unlinked: Unlinked,
    ) -> Result<Unlinked> {
        let left = unlinked.clone().below(parent.addr(), &parent.page, parent.next_version());
        let remainder = Remainder { tree: self, left: Some(|| Unfinished::Unlinked(left)), due: Due::Now };
        self.write_unlock(ctx, parent).await?;
        remainder.done();
        Ok(unlinked)
    }

    /// Finishes what was left, as far as it is due.
    ///
    /// # Errors
    /// As for [`Tree::finish_unlinked`].
    pub(crate) async fn finish_some<E: Endpoint>(&self, ctx: Ctx<'_, E>) -> Result<()> {
        let Some(mut finishing) = self.unfinished.begin() else { return Ok(()) };
        while let Some(left) = finishing.next(ctx.ep.now(), self.pool.verbs_take(), Order::Any) {
            if let Err(error) = self.prepare(ctx, &left).await {
                finishing.failed();
                return Err(error);
            }
            // Before a ticket is dropped, which is done once.
            finishing.done();
            self.release(ctx, left).await?;
        }
        Ok(())
    }

    /// Whether verbs of operations that were cut off may still take effect, or their changes are half made.
    pub(crate) fn is_unfinished(&self) -> bool {
        self.unfinished.any() || self.cache.has_cut_off()
    }

    /// Finishes everything that was left, and gives back the locks.
    ///
    /// # Errors
    /// As for [`Tree::finish_unlinked`].
    pub(crate) async fn finish_all<E: Endpoint>(&self, ctx: Ctx<'_, E>) -> Result<()> {
        let patience = Patience::new(self.config.patience_ns.saturating_add(self.pool.verbs_take()));
        let is_done = || !self.is_unfinished() && !self.pool.has_left_locks();
        while !is_done() {
            self.pool.give_back_left_locks(ctx.ep).await?;
            self.cache.end_cut_off(ctx.ep.now());
            self.finish_some(ctx).await?;
            if !is_done() {
                patience.wait(ctx.ep, "what operations that were cut off left").await?;
            }
        }
        Ok(())
    }

    /// What comes before a ticket is dropped; done twice it does no harm.
    async fn prepare<E: Endpoint>(&self, ctx: Ctx<'_, E>, left: &Unfinished) -> Result<()> {
        match left {
            Unfinished::Called { node, key } => self.forget_copies(ctx, *node, self.layout.key(key)?).await,
            Unfinished::Unlinked(Unlinked { parent: Some((parent, words)), .. }) => {
                let page = ctx.ep.buffer(self.layout.node_size());
                words.iter().enumerate().for_each(|(word, &value)| page.set(word, value));
                self.install(ctx, *parent, &page).await?;
                ctx.ep.recycle(page);
                Ok(())
            }
            Unfinished::Unlinked(_) | Unfinished::Written(_) | Unfinished::Block(_) => Ok(()),
        }
    }

    /// Drops the ticket, at once, and frees the block.
    async fn release<E: Endpoint>(&self, ctx: Ctx<'_, E>, left: Unfinished) -> Result<()> {
        match left {
            Unfinished::Written(addr) => drop(self.cache.table().kept(addr)),
            Unfinished::Called { node, .. } => drop(self.cache.table().kept_share(node)),
            Unfinished::Block(addr) => self.free_unlinked_block(addr),
            Unfinished::Unlinked(Unlinked { addr, needs_notice, .. }) => {
                drop(self.cache.table().kept(addr));
                self.free_behind(ctx, addr, needs_notice).await?;
            }
        }
        Ok(())
    }

    /// Frees a block that nothing ever led to. It came from a chunk of this process, so that it can go back without a verb.
    pub(crate) fn free_unlinked_block(&self, addr: GlobalAddr) {
        if !self.pool.try_free_local(addr, self.node_bytes()) {
            // The server is being drained, and the chunk was given back meanwhile.
            self.left_behind.add(addr, false);
        }
    }
}
