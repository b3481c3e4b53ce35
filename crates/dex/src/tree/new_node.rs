//! Blocks for nodes that are not linked yet.
//!
//! A [`NewNode`] that is dropped unlinked frees its block. If a WRITE to it is in flight then, the block
//! rests until the WRITE can no longer take effect.

use std::cell::Cell;
use std::future::Future;

use pando_fabric::{Endpoint, GlobalAddr};
use pando_pool::{Due, Placement};

use crate::error::Attempt;
use crate::layout::Layout;
use crate::tree::leftovers::{Unfinished, free_unlinked_block};
use crate::tree::{Ctx, Tree};

/// A block for a node that is not linked yet; freed when dropped, unless it was linked.
pub(crate) struct NewNode<'t, L: Layout> {
    tree: &'t Tree<L>,
    addr: Option<GlobalAddr>,
    /// A WRITE to it is in flight.
    is_written: Cell<bool>,
}

impl<'t, L: Layout> NewNode<'t, L> {
    /// A node in a block that the caller has allocated.
    pub fn at(tree: &'t Tree<L>, addr: GlobalAddr) -> Self {
        Self { tree, addr: Some(addr), is_written: Cell::new(false) }
    }

    /// Awaits a WRITE to the block. If this is dropped before the WRITE has ended, the block rests.
    pub async fn while_written<T>(&self, write: impl Future<Output = T>) -> T {
        self.is_written.set(true);
        let written = write.await;
        self.is_written.set(false);
        written
    }

    pub fn addr(&self) -> GlobalAddr {
        self.addr.expect("taken only by `link`")
    }

    /// The node is part of the tree from now on.
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

/// Address whose memory server a node of `level`, split off the one at `addr`, should share. Below level M it
/// is the parent's, which has the subtree's server even if the node itself is a stray.
pub(crate) fn near<L: Layout>(tree: &Tree<L>, level: u8, addr: GlobalAddr, parent: GlobalAddr) -> GlobalAddr {
    if level < tree.config.subtree_level { parent } else { addr }
}
