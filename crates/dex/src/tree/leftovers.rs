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
use pando_fabric::{GlobalAddr, PageBuf};
use pando_pool::Due;

use crate::layout::{Layout, header};
use crate::tree::Tree;

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
    pub fn below(self, parent: GlobalAddr, page: &PageBuf, version: u64) -> Self {
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

impl<'t, L: Layout, F: FnOnce() -> Unfinished> Remainder<'t, L, F> {
    /// `left` is pushed, due at `due`, unless [`Remainder::done`] is called.
    pub fn new(tree: &'t Tree<L>, due: Due, left: F) -> Self {
        Self { tree, left: Some(left), due }
    }

    /// `left` is pushed if the caller is dropped while a verb is under way, which may take effect for a while.
    pub fn under_way(tree: &'t Tree<L>, left: F) -> Self {
        Self::new(tree, Due::Later, left)
    }

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

/// Frees a block that nothing ever led to. It came from a chunk of this process, so that it can go back without a verb.
pub(crate) fn free_unlinked_block<L: Layout>(tree: &Tree<L>, addr: GlobalAddr) {
    if !tree.pool.try_free_local(addr, tree.node_bytes()) {
        // The server is being drained, and the chunk was given back meanwhile.
        tree.left_behind.add(addr, false);
    }
}
