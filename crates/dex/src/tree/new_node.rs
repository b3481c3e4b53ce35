//! Blocks for nodes that nothing leads to yet.
//!
//! A [`NewNode`] is freed again when it is dropped, unless the node was linked. If a WRITE to it is under way then, the block
//! rests until the WRITE can no longer take effect.

use std::cell::Cell;
use std::future::Future;

use pando_fabric::{Endpoint, GlobalAddr};
use pando_pool::{Due, Placement};

use crate::error::Attempt;
use crate::layout::Layout;
use crate::tree::leftovers::{Unfinished, free_unlinked_block};
use crate::tree::{Ctx, Tree};

/// An address for a node that is not linked yet; freed again unless it is.
pub(crate) struct NewNode<'t, L: Layout> {
    tree: &'t Tree<L>,
    addr: Option<GlobalAddr>,
    /// A WRITE to it is under way.
    is_written: Cell<bool>,
}

impl<'t, L: Layout> NewNode<'t, L> {
    /// One at an address that was allocated for it.
    pub fn at(tree: &'t Tree<L>, addr: GlobalAddr) -> Self {
        Self { tree, addr: Some(addr), is_written: Cell::new(false) }
    }

    /// Waits for a WRITE to it: dropped before that has ended, the block rests.
    pub async fn while_written<T>(&self, write: impl Future<Output = T>) -> T {
        self.is_written.set(true);
        let written = write.await;
        self.is_written.set(false);
        written
    }

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
        match self.addr {
            Some(addr) if self.is_written.get() => {
                self.tree.unfinished.push(Unfinished::Block(addr), Due::Later);
            }
            Some(addr) => free_unlinked_block(self.tree, addr),
            None => {}
        }
    }
}

pub(crate) async fn new_node<'t, L: Layout, E: Endpoint>(
    tree: &'t Tree<L>,
    ctx: Ctx<'_, E>,
    level: u8,
    near: GlobalAddr,
) -> Attempt<NewNode<'t, L>> {
    let placement = match level <= tree.config.subtree_level {
        true => Placement::Prefer(near.server()),
        false => Placement::LeastLoaded,
    };
    let addr = tree.pool.alloc(ctx.ep, placement, tree.node_bytes()).await?;
    Ok(NewNode::at(tree, addr))
}

/// What a node of `level` that is split off one at `addr` should stand beside: the parent says where its subtree is,
/// whatever became of the node.
pub(crate) fn near<L: Layout>(tree: &Tree<L>, level: u8, addr: GlobalAddr, parent: GlobalAddr) -> GlobalAddr {
    if level < tree.config.subtree_level { parent } else { addr }
}
