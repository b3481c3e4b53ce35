//! A shared parent, or a shared node and its parent, locked and checked again.
//!
//! What the caller saw before it took the locks may be stale. If the locked bytes differ, the locks are given
//! back, the copies that led here are refreshed, and the operation restarts.

use pando_fabric::{Endpoint, GlobalAddr, PageBuf};

use crate::descent::refresh;
use crate::error::{Attempt, Result, Retry};
use crate::layout::Layout;
use crate::node::Target;
use crate::shared::locked::{self, LockedNode};
use crate::tree::new_node::NewNode;
use crate::tree::{Ctx, Tree};

/// Locks the shared parent at `addr` and checks that `child` still is its child for `key`. If not, unlocks,
/// refreshes, and restarts.
pub(crate) async fn lock_parent<'t, L: Layout, E: Endpoint>(
    tree: &'t Tree<L>,
    ctx: Ctx<'_, E>,
    addr: GlobalAddr,
    key: L::Key<'_>,
    child: GlobalAddr,
    child_level: u8,
) -> Attempt<LockedNode<'t>> {
    let parent = locked::lock_node(tree, ctx, addr).await?;
    let node = tree.node(&parent);
    let is_parent = node.level() == child_level + 1
        && parent.is_shared
        && !node.is_moved()
        && node.covers(Target::of(key))
        && node.child_addr(node.child_index(key)) == Some(child);
    if is_parent {
        return Ok(parent);
    }
    locked::unlock_seen(tree, ctx, [parent]).await?;
    refresh::refresh(tree, ctx, addr, Target::of(key)).await?;
    Err(Retry::Restart)
}

/// Locks a shared parent, then the shared node of `level` at `addr` below it; returns the node first.
/// Restarts if they are no longer parent and child.
pub(crate) async fn lock_both<'t, L: Layout, E: Endpoint>(
    tree: &'t Tree<L>,
    ctx: Ctx<'_, E>,
    key: L::Key<'_>,
    addr: GlobalAddr,
    level: u8,
    parent_addr: GlobalAddr,
) -> Attempt<[LockedNode<'t>; 2]> {
    let parent = lock_parent(tree, ctx, parent_addr, key, addr, level).await?;
    let node = match locked::lock_node(tree, ctx, addr).await {
        Ok(node) => node,
        Err(retry) => {
            locked::unlock_unchanged(tree, ctx, parent).await?;
            return Err(retry);
        }
    };
    let page = tree.node(&node);
    // A node that is marked as moved must not be changed.
    if node.is_shared && !page.is_moved() && page.covers(Target::of(key)) {
        return Ok([node, parent]);
    }
    locked::unlock_seen(tree, ctx, [node, parent]).await?;
    refresh::refresh(tree, ctx, addr, Target::of(key)).await?;
    Err(Retry::Restart)
}

/// WRITEs a node to which no pointer leads yet, under the locks of two others. Unlocks these, unchanged, if
/// that fails.
pub(crate) async fn write_under<'t, L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    locked: [LockedNode<'t>; 2],
    new: &NewNode<'_, L>,
    page: PageBuf,
) -> Result<[LockedNode<'t>; 2]> {
    match new.while_written(ctx.ep.write(new.addr(), page)).await {
        Ok(page) => {
            ctx.ep.recycle(page);
            Ok(locked)
        }
        Err(error) => {
            for node in locked {
                locked::unlock_unchanged(tree, ctx, node).await?;
            }
            Err(error.into())
        }
    }
}
