//! Creating an index, opening it for a compute server, and flushing it.
//!
//! The root never moves and stays in its frame as long as the cache lives, so every descent can begin there
//! without a lookup.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use pando_cache::{Cache, FrameId, FrameRef};
use pando_fabric::{Endpoint, GlobalAddr, LATER_MAX};
use pando_pool::{Leftovers, Placement, Pool};

use crate::costs::Costs;
use crate::descent::read;
use crate::error::{DexError, Result, Retry};
use crate::layout::{Layout, NodeInit};
use crate::node::NodeMut;
use crate::ownership::range::KeyRange;
use crate::ownership::view::Ownership;
use crate::recovery::{dead_holders, free, room, unfinished};
use crate::tree::left_behind::LeftBehind;
use crate::tree::patience::Patience;
use crate::tree::spreading::Spread;
use crate::tree::start::Start;
use crate::tree::suspects::Suspects;
use crate::tree::{self, Ctx, HOME, SmoCounters, Tree, TreeConfig};

impl<L: Layout> Tree<L> {
    /// Writes an empty index: a root with one empty leaf per partition, or a root that is a leaf if there is
    /// only one partition. Returns the address of the root.
    ///
    /// # Errors
    /// Errors of the pool and the fabric; nothing stays allocated then.
    pub async fn create<E: Endpoint>(
        ep: &E,
        pool: &Pool,
        layout: L,
        index_id: u32,
        boundaries: &[Vec<u8>],
    ) -> Result<GlobalAddr> {
        let mut nodes = Vec::new();
        let created = create_nodes(ep, pool, layout, index_id, boundaries, &mut nodes).await;
        if created.is_err() {
            for node in nodes {
                pool.free(ep, node, layout.node_size() as u64).await?;
            }
        }
        created
    }

    /// Opens an index for the compute server that owns `config.range`, which may be empty. The cache must be
    /// empty.
    ///
    /// # Errors
    /// A root that is not a node of this index and layout; errors of the fabric.
    pub async fn open<E: Endpoint>(
        ctx: Ctx<'_, E>,
        cache: Arc<Cache>,
        pool: Pool,
        layout: L,
        config: TreeConfig,
    ) -> Result<Self> {
        let mut tree = Self {
            layout,
            cache,
            pool,
            root: FrameId(0),
            smo_counters: SmoCounters::default(),
            ownership: Ownership::new(config.range.clone()),
            spread: Spread::default(),
            costs: Costs::new(config.offloading, ctx.ep.regions().len() + LATER_MAX),
            left_behind: LeftBehind::default(),
            start: Start::default(),
            suspects: Suspects::default(),
            unfinished: Leftovers::default(),
            forgotten: AtomicUsize::new(0),
            config,
        };
        tree.cache.set_verbs_take(tree.pool.verbs_take());
        let root = admit_root(&tree, ctx).await?;
        tree.root = root;
        Ok(tree)
    }

    /// Finishes the leftovers of cut-off operations, then writes back every dirty node. Returns the number of
    /// nodes written.
    ///
    /// # Errors
    /// Errors of the fabric.
    pub async fn flush<E: Endpoint>(&self, ctx: Ctx<'_, E>) -> Result<u64> {
        unfinished::finish_all(self, ctx).await?;
        free::free_left_behind(self, ctx).await?;
        room::flush(self, ctx).await
    }
}

/// Writes the nodes of an empty index. `nodes` receives every allocated node, the root first, also on an
/// error.
async fn create_nodes<L: Layout, E: Endpoint>(
    ep: &E,
    pool: &Pool,
    layout: L,
    index_id: u32,
    boundaries: &[Vec<u8>],
    nodes: &mut Vec<GlobalAddr>,
) -> Result<GlobalAddr> {
    let size = layout.node_size();
    // `HOME` is never drained, since a root never moves.
    let root = pool.alloc(ep, Placement::Prefer(HOME), size as u64).await?;
    nodes.push(root);
    let new_page = |addr: GlobalAddr, level, low, high| {
        let page = ep.buffer(size);
        tree::clear(&page);
        layout.init(page.words(), &NodeInit { addr: addr.raw(), index_id, level, low, high });
        page
    };
    let page = new_page(root, u8::from(!boundaries.is_empty()), None, None);
    let top = NodeMut::new(&layout, page.words());
    let ranges = if boundaries.is_empty() { Vec::new() } else { KeyRange::from_boundaries(boundaries) };
    for (i, range) in ranges.iter().enumerate() {
        let leaf = pool.alloc(ep, Placement::Prefer(root.server()), size as u64).await?;
        nodes.push(leaf);
        let leaf_page = new_page(leaf, 0, range.low.as_deref(), range.high.as_deref());
        ep.recycle(ep.write(leaf, leaf_page).await?);
        match (&range.low, i.checked_sub(1)) {
            (Some(boundary), Some(at)) => {
                if !top.inner_insert(at, boundary, leaf.raw()) {
                    return Err(DexError::Layout(format!(
                        "a node of {size} bytes cannot hold the boundaries of {} partitions",
                        boundaries.len() + 1
                    )));
                }
            }
            _ => top.set_child(0, leaf.raw()),
        }
    }
    ep.recycle(ep.write(root, page).await?);
    Ok(root)
}

pub(crate) async fn admit_root<L: Layout, E: Endpoint>(tree: &Tree<L>, ctx: Ctx<'_, E>) -> Result<FrameId> {
    let addr = tree.config.root;
    let patience = Patience::default();
    let page = loop {
        let view = tree.view(ctx);
        let read = match view.is_partitioned() {
            true => read::read_shared(tree, ctx, addr, &view).await,
            false => Ok(read::read_owned(tree, ctx, addr).await?),
        };
        match read {
            Ok(page) => break page,
            Err(Retry::Restart | Retry::Crowded(_)) => {
                dead_holders::settle_locks(tree, ctx).await?;
                patience.wait(tree, ctx, "the root").await?;
            }
            Err(Retry::Failed(error)) => return Err(error),
        }
    };
    if tree.range().is_empty() {
        tree::make_placeholder(tree, tree.node_mut(&page));
    }
    let not_empty = || DexError::Layout("the cache of a new tree is not empty".into());
    let free = tree.cache.take_free(ctx.worker).ok_or_else(not_empty)?;
    let pando_cache::Lookup::Miss(ticket) = tree.cache.table().begin(addr) else {
        return Err(not_empty());
    };
    let id = free.id();
    free.admit(&page, ticket, None::<(FrameRef<'_>, fn() -> Option<usize>)>);
    ctx.ep.recycle(page);
    let frame = tree.cache.frame(id);
    let version = frame.optimistic().map_err(|_| DexError::TimedOut { what: "a new root" })?;
    let pin = frame.pin(version).map_err(|_| DexError::TimedOut { what: "a new root" })?;
    // The root stays in its frame as long as the cache lives.
    std::mem::forget(pin);
    Ok(id)
}
