//! READs of nodes, with the checks before their bytes are used.
//!
//! A shared node is read by the optimistic protocol (DEX Algorithm 1): version, node, version. Bytes that
//! fail a check may be torn, so they are read again a few times before they count as corrupt.

use pando_fabric::{Endpoint, GlobalAddr, PageBuf, Work};
use pando_pool::lock::{self, Seen};

use crate::error::{Attempt, DexError, Result, Retry};
use crate::layout::digest::own_copy;
use crate::layout::{Layout, header};
use crate::ownership::view::View;
use crate::tree::{Ctx, Tree};

/// Number of times that a torn node is read again before it counts as corrupt.
pub(crate) const TORN_READS: u32 = 16;

/// READs the shared node at `addr` by the optimistic protocol (DEX Algorithm 1), checks that it is a node of
/// this index and keeps its remote version in the page. The caller took `view` before this call.
pub(crate) async fn read_shared<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    addr: GlobalAddr,
    view: &View,
) -> Attempt<PageBuf> {
    let mut torn = 0;
    let mut page = ctx.ep.buffer(tree.layout.node_size());
    loop {
        let (version, read) = match lock::read_optimistic(ctx.ep, addr, page).await? {
            Seen::Whole { version, page } => (version, page),
            Seen::Locked { holder } => {
                tree.suspects.note(addr, holder, tree.pool.slot(), ctx.ep.now());
                return Err(Retry::Restart);
            }
            Seen::Changed => return Err(Retry::Restart),
        };
        ctx.ep.charge(Work::PageCheck);
        match check_node(tree, addr, &read) {
            Ok(()) => {
                read.set(header::REMOTE_VERSION, version);
                mark_shared(tree, view, &read);
                return Ok(read);
            }
            Err(error) if torn == TORN_READS => return Err(error.into()),
            Err(_) => torn += 1,
        }
        ctx.ep.yield_now().await;
        page = read;
    }
}

/// READs the node at `addr` as an owned one and checks that it is a node of this index. A node that was shared
/// may meanwhile be owned by another compute server, which writes it back without its lock. Its bytes may be
/// torn, so they are read again a few times before they count as corrupt.
pub(crate) async fn read_owned<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    addr: GlobalAddr,
) -> Result<PageBuf> {
    let page = read_verified(tree, ctx, addr).await?;
    own_copy(page.words());
    Ok(page)
}

/// [`read_owned`], but the page keeps all bytes of remote memory.
pub(crate) async fn read_verified<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    addr: GlobalAddr,
) -> Result<PageBuf> {
    let mut torn = if tree.view(ctx).is_partitioned() { 0 } else { TORN_READS };
    let mut page = ctx.ep.read(addr, ctx.ep.buffer(tree.layout.node_size())).await?;
    ctx.ep.charge(Work::PageCheck);
    while let Err(error) = check_node(tree, addr, &page) {
        if torn == TORN_READS {
            return Err(error);
        }
        torn += 1;
        ctx.ep.yield_now().await;
        page = ctx.ep.read(addr, page).await?;
    }
    Ok(page)
}

/// Checks bytes that came from remote memory.
pub(crate) fn check_node<L: Layout>(tree: &Tree<L>, addr: GlobalAddr, page: &PageBuf) -> Result<()> {
    let content = tree.node(page);
    let corrupt = |reason| Err(DexError::Corrupt { addr, reason });
    if let Err(reason) = tree.layout.verify(content.words()) {
        return corrupt(reason);
    }
    if !content.is_at(addr) {
        return corrupt("a node that belongs elsewhere");
    }
    if content.index_id() != tree.config.index_id {
        return corrupt("a node of another index");
    }
    Ok(())
}

/// Sets the flag that says whether the node is shared according to `view`.
pub(crate) fn mark_shared<L: Layout>(tree: &Tree<L>, view: &View, page: &PageBuf) {
    let shared = view.is_shared(tree.node(page));
    tree.node_mut(page).set_flag(header::SHARED, shared);
    if shared {
        tree.node_mut(page).set_flag(header::WAS_SHARED, true);
    }
}
