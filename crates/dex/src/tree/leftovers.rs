//! Leftovers of operations that failed midway or were cut off, kept until later operations finish them.
//!
//! A future may be dropped at any await. A verb in flight may still take effect, for as long as a verb may
//! take, and a structure change may be complete in one place and not yet in another. So an operation that
//! awaits at such a point holds a [`Remainder`], which adds the missing work to the tree's list if it is
//! dropped. Operations that have to wait finish the list, as does any caller that needs the index at rest.
//!
//! Invariant: until a leftover is finished, the tickets of all nodes that it concerns are kept, so that no
//! operation reads or changes those nodes or gets their blocks.
//!
//! The pool gives back left locks (`pando_pool::RemoteLock`), with the pages to write under them. The cache
//! finishes write-backs that were cut off.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use pando_cache::IoTicket;
use pando_fabric::{GlobalAddr, PageBuf};
use pando_pool::Due;

use crate::layout::{Layout, header};
use crate::tree::Tree;

/// Work that is left over.
#[derive(Clone, Debug)]
pub(crate) enum Unfinished {
    /// A node in no frame is being written; drop its ticket.
    Written(GlobalAddr),
    /// A node in no frame, which the log has, is to be written.
    Logged(Logged),
    /// A memory server is changing the leaf of `key` below `node`; forget copies of the leaf and drop the
    /// share of the node's ticket.
    Called {
        node: GlobalAddr,
        key: Arc<[u8]>,
    },
    /// An unlinked block is being written; free it.
    Block(GlobalAddr),
    Unlinked(Unlinked),
}

/// A node in no frame some words of which, from `first` on, must be written as the log has them. Its ticket is kept.
#[derive(Clone, Debug)]
pub(crate) struct Logged {
    pub addr: GlobalAddr,
    pub first: usize,
    pub words: Arc<[u64]>,
    /// Number of its last record.
    pub gsn: u64,
    /// Keeps the records in the log ([`pando_log::Hold`]).
    pub hold: u64,
}

/// A node that was removed from the tree by a merge or a move. Its ticket is kept.
#[derive(Clone, Debug)]
pub(crate) struct Unlinked {
    pub addr: GlobalAddr,
    /// Shared parent of which it was a child, and the bytes for this compute server's copy of that: an older
    /// copy leads to the node.
    pub parent: Option<(GlobalAddr, Arc<[u64]>)>,
    /// Other compute servers may remember the address, so the old node must be marked as moved.
    pub needs_notice: bool,
    /// Number of the record of its removal: the block is free once the log has that.
    pub gsn: u64,
}

impl Unlinked {
    /// A node whose parent is owned.
    pub fn new(ticket: IoTicket<'_>) -> Self {
        Self { addr: ticket.keep(), parent: None, needs_notice: false, gsn: 0 }
    }

    /// A node that was a child of the shared parent at `parent`, which has these bytes and version by now.
    pub fn below(self, parent: GlobalAddr, page: &PageBuf, version: u64) -> Self {
        let mut words: Vec<_> = page.words().iter().map(|word| word.load(Relaxed)).collect();
        words[header::REMOTE_VERSION] = version;
        Self { parent: Some((parent, words.into())), ..self }
    }

    pub fn logged(self, gsn: u64) -> Self {
        Self { gsn, ..self }
    }

    pub fn needs_notice(self, needs_notice: bool) -> Self {
        Self { needs_notice, ..self }
    }
}

/// Work that becomes a leftover if this is dropped.
#[must_use = "dropped, it is left to later operations"]
pub(crate) struct Remainder<'t, L: Layout, F: FnOnce() -> Unfinished> {
    tree: &'t Tree<L>,
    left: Option<F>,
    due: Due,
}

impl<'t, L: Layout, F: FnOnce() -> Unfinished> Remainder<'t, L, F> {
    /// Leaves `left` over, due at `due`, unless [`Remainder::done`] is called.
    pub fn new(tree: &'t Tree<L>, due: Due, left: F) -> Self {
        Self { tree, left: Some(left), due }
    }

    /// Leaves `left` over if the caller is dropped while a verb is in flight, which may take effect for a
    /// while.
    pub fn under_way(tree: &'t Tree<L>, left: F) -> Self {
        Self::new(tree, Due::Later, left)
    }

    /// Nothing is left over.
    pub fn done(mut self) {
        self.left = None;
    }

    /// The verb in flight has failed. It takes no effect once another verb of this process does, so the
    /// leftover can be finished at once.
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

/// Frees a block that was never linked. It comes from a chunk of this process, so it can be freed without a
/// verb.
pub(crate) fn free_unlinked_block<L: Layout>(tree: &Tree<L>, addr: GlobalAddr) {
    if !tree.pool.try_free_local(addr, tree.node_bytes()) {
        // The server is draining, and the chunk was given back meanwhile.
        tree.left_behind.add(addr, false);
    }
}
