//! Handling of a missing child (DEX §5, §6): it is READ and admitted, READ and kept private, or the operation
//! below it is offloaded.
//!
//! The caller holds the child's ticket and has proved that the child is in the tree
//! ([`prove`](crate::descent::prove)). The parent stays pinned until the child is there, so that the path to
//! it stays in the cache.

use pando_cache::{CommonTicket, FreeFrame, IoTicket, Pin, Resolved};
use pando_fabric::{Endpoint, GlobalAddr, MemoryServerId, PageBuf, Resource, Work, outlined};

use crate::costs::Offer;
use crate::descent::walk::{self, Admit, Child, Miss, PrivateLeaf, Slot};
use crate::descent::{read, refresh};
use crate::error::{Attempt, DexError, Retry};
use crate::layout::{Layout, header};
use crate::node::Target;
use crate::ownership::view::View;
use crate::tree::{Ctx, Tree, VersionedNode};

/// READs a missing child and admits it or not, or returns it as offloadable. Every miss of a single node ends
/// here. Leaves that are known to be missing together come by
/// [`fetch_many`](crate::descent::fetch_many::fetch_many).
pub(crate) async fn fetch<'t, L: Layout, E: Endpoint>(
    tree: &'t Tree<L>,
    ctx: Ctx<'_, E>,
    slot: Slot<'t>,
    ticket: IoTicket<'t>,
    target: Target<'_, L>,
    Miss { admit, offer }: Miss,
) -> Attempt<Child<'t>> {
    let above = tree.node(slot.parent);
    let level = above.level().wrapping_sub(1);
    let parent_shared = above.is_shared();
    let view = tree.view(ctx);
    let child_shared = parent_shared && view.shares_child(above, slot.index);
    tree.cache.give_way(ctx.worker)?;
    // The parent stays hot until its child is there.
    let pin = slot.parent.frame.pin(slot.parent.version)?;
    if !parent_shared && !view.is_growing && offloads(tree, ctx, slot.addr.server(), level, offer) {
        let from = From { node: slot.addr, level, inner: 0 };
        return Ok(Child::Offloadable(Offloadable { from, ticket: ticket.share(), _pin: pin }));
    }
    ctx.worker.counters().count_miss(level == 0);
    let lazily = level == 0 && admit == Admit::Lazily && !tree.cache.has_free(ctx.worker);
    let admitted = !lazily || tree.cache.admission().admits(ctx.ep.random());
    let free = match admitted {
        true => Some(tree.cache.allocate(ctx.worker, ctx.ep, tree.shape()).await?),
        false => None,
    };
    let started = tree.costs.start(ctx.ep);
    let page = read_child(tree, ctx, slot, &view, level, child_shared).await?;
    tree.costs.note_read(ctx.ep, slot.addr.server(), started);
    if !walk::is_right(tree.node(&page), level, target) {
        ctx.ep.recycle(page);
        drop(ticket);
        if !parent_shared {
            return Err(DexError::Corrupt {
                addr: slot.addr,
                reason: "a node that its parent does not mean",
            }
            .into());
        }
        return outlined(Box::pin(refresh::led_astray(tree, ctx, slot, target))).await;
    }
    let Some(free) = free else {
        return Ok(Child::Private(PrivateLeaf { page, ticket }));
    };
    ctx.ep.charge(Work::Admit);
    ctx.ep.charge(Work::Hold(Resource::Frame(slot.parent.frame.id().0)));
    let frame = tree.cache.frame(free.id());
    let resolved = admit_below(tree, free, &page, ticket, slot, target);
    ctx.ep.recycle(page);
    match resolved {
        Resolved::Hot { version, parent } => {
            let parent = VersionedNode { version: parent.unwrap_or(slot.parent.version), ..slot.parent };
            Ok(Child::Cached { child: VersionedNode { frame, version }, parent })
        }
        Resolved::Detached => Err(Retry::Restart),
    }
}

/// READs a missing child according to `view`: as shared if its parent is shared and its fences cross a
/// boundary, else as owned.
pub(crate) async fn read_child<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    slot: Slot<'_>,
    view: &View,
    level: u8,
    shared: bool,
) -> Attempt<PageBuf> {
    if shared {
        return read::read_shared(tree, ctx, slot.addr, view).await;
    }
    // While the view grows, one of this compute server's own attempts may still hold the lock of an inner
    // node that the view calls owned.
    let page = match view.is_growing && level > 0 {
        true => read::read_shared(tree, ctx, slot.addr, view).await?,
        false => read::read_owned(tree, ctx, slot.addr).await?,
    };
    tree.node_mut(&page).set_flag(header::SHARED, false);
    if tree.node(slot.parent).is_shared() && view.is_shared(tree.node(&page)) {
        ctx.ep.recycle(page);
        return read::read_shared(tree, ctx, slot.addr, view).await;
    }
    Ok(page)
}

/// Joins the operations that are offloaded below a missing node, or restarts until they are done.
pub(crate) fn join_offload<'t, L: Layout, E: Endpoint>(
    tree: &'t Tree<L>,
    ctx: Ctx<'_, E>,
    slot: Slot<'t>,
    offer: Offer,
) -> Attempt<Offloadable<'t>> {
    let page = tree.node(slot.parent);
    let (level, shared) = (page.level().wrapping_sub(1), page.is_shared());
    let is_growing = tree.view(ctx).is_growing;
    if shared || is_growing || !offloads(tree, ctx, slot.addr.server(), level, offer) {
        tree.cache.table().close(slot.addr);
        return Err(Retry::Restart);
    }
    tree.cache.give_way(ctx.worker)?;
    let ticket = tree.cache.table().join(slot.addr).ok_or(Retry::Restart)?;
    let pin = slot.parent.frame.pin(slot.parent.version)?;
    Ok(Offloadable { from: From { node: slot.addr, level, inner: 0 }, ticket, _pin: pin })
}

/// Decides whether to offload the operation below a missing node of `level` (DEX §6). The caller holds the
/// node's ticket; its parent is owned and pinned.
fn offloads<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    server: MemoryServerId,
    level: u8,
    offer: Offer,
) -> bool {
    let is_possible = level <= tree.config.subtree_level && !tree.costs.never();
    // Changes made on a draining server would have to be moved away afterwards.
    if offer == Offer::Nothing || !is_possible || !tree.pool.is_active(server) {
        return false;
    }
    let unadmitted = if tree.cache.has_free(ctx.worker) { 0.0 } else { 1.0 - tree.cache.admission().share() };
    tree.costs.decide(ctx.ep, server, level, offer, unadmitted) && tree.cache.paths_are_whole()
}

/// Admits a page that was READ as the child of `slot`, at its current index in that parent. `target` leads to
/// the child. The parent may have left its frame, so the content of the frame is checked under its latch.
pub(crate) fn admit_below<L: Layout>(
    tree: &Tree<L>,
    free: FreeFrame<'_>,
    page: &PageBuf,
    ticket: IoTicket<'_>,
    slot: Slot<'_>,
    target: Target<'_, L>,
) -> Resolved {
    let level = tree.node(page).level();
    let parent = tree.cache.frame(slot.parent.frame.id());
    let still_parent = || {
        let node = tree.node(parent);
        let index = node.child_toward(target);
        let is_parent = tree.swizzles(node) && node.level() == level + 1 && node.covers(target);
        (is_parent && node.child_addr(index) == Some(slot.addr)).then(|| node.child_word(index))
    };
    let parent = tree.swizzles(tree.node(parent)).then_some((parent, still_parent));
    free.admit(page, ticket, parent)
}

/// A missing node below which the memory server may execute the operation.
pub(crate) struct Offloadable<'t> {
    pub from: From,
    pub ticket: CommonTicket<'t>,
    /// Pin of the node's parent.
    pub _pin: Pin<'t>,
}

/// Node at which the memory server starts its descent.
#[derive(Clone, Copy)]
pub(crate) struct From {
    pub node: GlobalAddr,
    pub level: u8,
    /// Number of inner nodes that the operation has passed.
    pub inner: u64,
}
