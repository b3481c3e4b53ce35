//! One compute server's view of an index: its cache, its key range, and the operations on it.
//!
//! Made empty, opened, flushed and waited with here; the operations are in the sibling modules. The root never
//! moves and stays in its frame as long as the cache lives, so every descent can begin there without looking
//! anything up.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use pando_cache::sync::Word;
use pando_cache::{Cache, CacheWorker, Conflict, FrameId, FrameRef, FrameState, Version};
use pando_fabric::{Endpoint, GlobalAddr, LATER_MAX, MemoryServerId, Nanos, PageBuf, Patience, Work};
use pando_pool::lock::{self, Seen};
use pando_pool::{Leftovers, Placement, Pool};

use crate::drain::LeftBehind;
use crate::error::{Attempt, DexError, Result, Retry};
use crate::layout::{Layout, NodeInit, header};
use crate::node::{HasWords, Node, NodeMut};
use crate::offload::{Costs, Offloading};
use crate::orphaned::{Suspects, own_copy};
use crate::ownership::{Ownership, View};
use crate::partition::KeyRange;
use crate::spread::Spread;
use crate::unfinished::Unfinished;

/// Where roots stand, unless it is full.
pub(crate) const HOME: MemoryServerId = MemoryServerId(0);

/// READs of a node that was torn each time, after which it counts as corrupt.
const TORN_READS: u32 = 16;

/// What is fixed about an index when it is opened.
#[derive(Clone, Debug)]
pub struct TreeConfig {
    /// Number of the index in its pool; every node carries it.
    pub index_id: u32,
    /// Where the root is; it never moves.
    pub root: GlobalAddr,
    /// M: a subtree rooted at this level stands on one memory server (DEX §3). 3 in the paper.
    pub subtree_level: u8,
    /// The keys that this compute server owns at first; [`Tree::range`] says which it owns now.
    pub range: KeyRange,
    /// How long an operation waits for others before it fails, in nanoseconds.
    pub patience_ns: Nanos,
    /// Leaves that a scan READs together at most; 1 is one after the other. A quarter of the cache's frames is the
    /// most in any case.
    pub read_ahead: usize,
    /// When what is below a missing node is left to its memory server.
    pub offloading: Offloading,
    /// Bytes on a memory server above which the index is spread evenly over all of them.
    pub spread_above: u64,
}

impl TreeConfig {
    /// Defaults: the whole key space, M = 3, 10 s of patience, 8 leaves at a time, nothing offloaded, spread
    /// above 1 MiB.
    pub fn new(index_id: u32, root: GlobalAddr) -> Self {
        Self {
            index_id,
            root,
            subtree_level: 3,
            range: KeyRange::all(),
            patience_ns: 10_000_000_000,
            read_ahead: 8,
            offloading: Offloading::default(),
            spread_above: 1 << 20,
        }
    }
}

/// What a worker brings to every operation: its endpoint, and its share of the compute server's cache.
pub struct Ctx<'w, E> {
    pub ep: &'w E,
    pub worker: &'w CacheWorker,
}

impl<E> Clone for Ctx<'_, E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<E> Copy for Ctx<'_, E> {}

/// A node that an operation has seen in its frame at a version.
#[derive(Clone, Copy)]
pub(crate) struct Hop<'c> {
    pub frame: FrameRef<'c>,
    pub version: Version,
}

impl<'c> HasWords<'c> for Hop<'c> {
    #[inline(always)]
    fn words_of(self) -> &'c [Word] {
        self.frame.words()
    }
}

impl Hop<'_> {
    #[inline]
    pub fn validate(&self) -> std::result::Result<(), Conflict> {
        self.frame.validate(self.version)
    }
}

/// What structure changes this compute server made.
#[derive(Debug, Default)]
pub struct SmoCounters {
    pub splits: AtomicU64,
    pub merges: AtomicU64,
    pub root_changes: AtomicU64,
    pub shared_changes: AtomicU64,
    pub refreshes: AtomicU64,
    pub relocations: AtomicU64,
}

/// A B+-tree on disaggregated memory, as one compute server uses it. Shared by the workers of that server.
pub struct Tree<L> {
    pub(crate) layout: L,
    pub(crate) cache: Arc<Cache>,
    pub(crate) pool: Pool,
    pub(crate) config: TreeConfig,
    pub(crate) root: FrameId,
    pub(crate) smo_counters: SmoCounters,
    pub(crate) ownership: Ownership,
    pub(crate) costs: Costs,
    pub(crate) spread: Spread,
    pub(crate) left_behind: LeftBehind,
    pub(crate) suspects: Suspects,
    pub(crate) unfinished: Leftovers<Unfinished>,
}

impl<L: Layout> Tree<L> {
    /// Writes an empty index: a root with one empty leaf per partition, or a root that is a leaf if there is only
    /// one. Gives back the address of the root.
    ///
    /// # Errors
    /// Those of the pool and the fabric; nothing stays allocated then.
    pub async fn create<E: Endpoint>(
        ep: &E,
        pool: &Pool,
        layout: L,
        index_id: u32,
        boundaries: &[Vec<u8>],
    ) -> Result<GlobalAddr> {
        let mut nodes = Vec::new();
        let created = Self::create_nodes(ep, pool, layout, index_id, boundaries, &mut nodes).await;
        if created.is_err() {
            for node in nodes {
                pool.free(ep, node, layout.node_size() as u64).await?;
            }
        }
        created
    }

    /// Every allocated node is in `nodes` whatever happens, the root first.
    async fn create_nodes<E: Endpoint>(
        ep: &E,
        pool: &Pool,
        layout: L,
        index_id: u32,
        boundaries: &[Vec<u8>],
        nodes: &mut Vec<GlobalAddr>,
    ) -> Result<GlobalAddr> {
        let size = layout.node_size();
        // The one memory server that is never drained, since a root never moves.
        let root = pool.alloc(ep, Placement::Prefer(HOME), size as u64).await?;
        nodes.push(root);
        let new_page = |addr: GlobalAddr, level, low, high| {
            let page = ep.buffer(size);
            clear(&page);
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

    /// Opens an index for the compute server that owns `config.range`, which may be empty. The cache must be empty.
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
            suspects: Suspects::default(),
            unfinished: Leftovers::default(),
            config,
        };
        tree.cache.set_verbs_take(tree.pool.verbs_take());
        let root = tree.admit_root(ctx).await?;
        tree.root = root;
        Ok(tree)
    }

    async fn admit_root<E: Endpoint>(&self, ctx: Ctx<'_, E>) -> Result<FrameId> {
        let addr = self.config.root;
        let patience = Patience::new(self.config.patience_ns);
        let page = loop {
            let page = ctx.ep.buffer(self.layout.node_size());
            let view = self.view(ctx);
            match self.read_node(ctx, addr, page, &view, view.is_partitioned()).await {
                Ok(page) => break page,
                Err(Retry::Restart | Retry::Crowded(_)) => {
                    self.settle_locks(ctx).await?;
                    patience.wait(ctx.ep, "the root").await?;
                }
                Err(Retry::Failed(error)) => return Err(error),
            }
        };
        if self.range().is_empty() {
            self.make_placeholder(self.node_mut(&page));
        }
        let not_empty = || DexError::Layout("the cache of a new tree is not empty".into());
        let free = self.cache.take_free(ctx.worker).ok_or_else(not_empty)?;
        let pando_cache::Lookup::Miss(ticket) = self.cache.table().begin(addr) else {
            return Err(not_empty());
        };
        let id = free.id();
        free.admit(&page, ticket, None::<(FrameRef<'_>, fn() -> Option<usize>)>);
        ctx.ep.recycle(page);
        let frame = self.cache.frame(id);
        let version = frame.optimistic().map_err(|_| DexError::TimedOut { what: "a new root" })?;
        let pin = frame.pin(version).map_err(|_| DexError::TimedOut { what: "a new root" })?;
        // The root stays in its frame as long as the cache lives.
        std::mem::forget(pin);
        Ok(id)
    }

    pub fn cache(&self) -> &Arc<Cache> {
        &self.cache
    }

    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    pub fn layout(&self) -> L {
        self.layout
    }

    pub fn config(&self) -> &TreeConfig {
        &self.config
    }

    /// Structure changes so far: splits, merges, changes of the root's level, changes of shared nodes, refreshes.
    pub fn smo_counts(&self) -> [u64; 5] {
        let counters = &self.smo_counters;
        [
            &counters.splits,
            &counters.merges,
            &counters.root_changes,
            &counters.shared_changes,
            &counters.refreshes,
        ]
        .map(|counter| counter.load(Relaxed))
    }

    /// Nodes that moved to another memory server.
    pub fn relocations(&self) -> u64 {
        self.smo_counters.relocations.load(Relaxed)
    }

    /// Writes every dirty node back, once what operations left that were cut off is finished.
    ///
    /// # Errors
    /// Those of the fabric.
    pub async fn flush<E: Endpoint>(&self, ctx: Ctx<'_, E>) -> Result<u64> {
        self.finish_all(ctx).await?;
        self.free_left_behind(ctx).await?;
        Ok(self.cache.flush(ctx.worker, ctx.ep, self.layout).await?)
    }

    /// Bytes of a node, as the pool counts them.
    pub(crate) fn node_bytes(&self) -> u64 {
        self.layout.node_size() as u64
    }

    /// Levels of the tree: 1 if the root is a leaf.
    pub fn height(&self) -> u32 {
        u32::from(self.node(self.cache.frame(self.root)).level()) + 1
    }

    #[inline]
    pub(crate) fn root_hop(&self) -> std::result::Result<Hop<'_>, Conflict> {
        let frame = self.cache.frame(self.root);
        Ok(Hop { frame, version: frame.optimistic()? })
    }

    /// A node by its words, for reading.
    #[inline(always)]
    pub(crate) fn node<'p>(&'p self, words: impl HasWords<'p>) -> Node<'p, L> {
        Node::new(&self.layout, words.words_of())
    }

    /// A node that the caller has for itself.
    pub(crate) fn node_mut<'p>(&'p self, words: impl HasWords<'p>) -> NodeMut<'p, L> {
        NodeMut::new(&self.layout, words.words_of())
    }

    /// Whether children of the node are swizzled.
    #[inline]
    pub(crate) fn swizzles(&self, node: Node<'_, L>) -> bool {
        self.cache.swizzles() && self.layout.swizzles(node.words())
    }

    /// Makes the words the root as somebody has it in a frame who owns no key: nothing can be found there.
    pub(crate) fn make_placeholder(&self, node: NodeMut<'_, L>) {
        let init = NodeInit {
            addr: self.config.root.raw(),
            index_id: self.config.index_id,
            level: 1,
            low: None,
            high: None,
        };
        node.init(&init);
        node.set_child(0, 0);
        node.set_flag(header::SHARED, true);
    }

    /// READs the node at `addr` into `page` and checks that it is a node of this index. A shared node is read with
    /// the optimistic protocol (DEX Algorithm 1); its remote version is kept in the page. The caller looked at the view
    /// before.
    pub(crate) async fn read_node<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        addr: GlobalAddr,
        page: PageBuf,
        view: &View,
        shared: bool,
    ) -> Attempt<PageBuf> {
        if !shared {
            return Ok(self.read_checked(ctx, addr, page).await?);
        }
        let mut torn = 0;
        let mut page = page;
        loop {
            let (version, read) = match lock::read_optimistic(ctx.ep, addr, page).await? {
                Seen::Whole { version, page } => (version, page),
                Seen::Locked { holder } => {
                    self.suspects.note(addr, holder, self.pool.slot(), ctx.ep.now());
                    return Err(Retry::Restart);
                }
                Seen::Changed => return Err(Retry::Restart),
            };
            ctx.ep.charge(Work::PageCheck);
            match self.check_node(addr, &read) {
                Ok(()) => {
                    read.set(header::REMOTE_VERSION, version);
                    self.mark_shared(view, &read);
                    return Ok(read);
                }
                Err(error) if torn == TORN_READS => return Err(error.into()),
                Err(_) => torn += 1,
            }
            ctx.ep.yield_now().await;
            page = read;
        }
    }

    /// READs the node at `addr` as this compute server's own and checks it. A node that was shared may be another server's own
    /// by now, which writes it back without its lock, so that bytes may be torn: they are read again a few times
    /// before they count as corrupt.
    pub(crate) async fn read_checked<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        addr: GlobalAddr,
        page: PageBuf,
    ) -> Result<PageBuf> {
        let page = self.read_verified(ctx, addr, page).await?;
        own_copy(page.words());
        Ok(page)
    }

    /// The same, as it is in remote memory.
    pub(crate) async fn read_verified<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        addr: GlobalAddr,
        page: PageBuf,
    ) -> Result<PageBuf> {
        let mut torn = if self.view(ctx).is_partitioned() { 0 } else { TORN_READS };
        let mut page = ctx.ep.read(addr, page).await?;
        ctx.ep.charge(Work::PageCheck);
        while let Err(error) = self.check_node(addr, &page) {
            if torn == TORN_READS {
                return Err(error);
            }
            torn += 1;
            ctx.ep.yield_now().await;
            page = ctx.ep.read(addr, page).await?;
        }
        Ok(page)
    }

    /// Checks bytes that came from remote memory before anything believes them.
    pub(crate) fn check_node(&self, addr: GlobalAddr, page: &PageBuf) -> Result<()> {
        let content = self.node(page);
        let corrupt = |reason| Err(DexError::Corrupt { addr, reason });
        if let Err(reason) = self.layout.verify(content.words()) {
            return corrupt(reason);
        }
        if !content.is_at(addr) {
            return corrupt("a node that belongs elsewhere");
        }
        if content.index_id() != self.config.index_id {
            return corrupt("a node of another index");
        }
        Ok(())
    }

    /// Sets the flag that says whether the node is shared by a view.
    pub(crate) fn mark_shared(&self, view: &View, page: &PageBuf) {
        let shared = view.is_shared(self.node(page));
        self.node_mut(page).set_flag(header::SHARED, shared);
        if shared {
            self.node_mut(page).set_flag(header::WAS_SHARED, true);
        }
    }

    /// Checks the cache's invariants at a quiescent point, and that it has own nodes of own keys only.
    pub fn audit_cache(&self) -> Vec<String> {
        let mut wrong = self.cache.audit(self.layout);
        let view = self.present_view();
        if view.nodes != view.keys {
            return wrong;
        }
        for frame in (0..self.cache.frames() as u32).map(FrameId).filter(|&id| id != self.root) {
            let frame = self.cache.frame(frame);
            let is_held = frame.optimistic().is_ok_and(|version| version.state() != FrameState::Free);
            let is_own = is_held && !self.node(frame).is_shared();
            if is_own && view.nodes.is_crossed_by(self.node(frame)) {
                let level = self.node(frame).level();
                wrong.push(format!("frame {} has a node of level {level} with keys of others", frame.id().0));
            }
        }
        wrong
    }

    /// Whether a frame holds the node `addr` now, hot or cooling.
    pub(crate) fn holds(&self, frame: FrameRef<'_>, version: Version, addr: GlobalAddr) -> bool {
        version.state() != FrameState::Free && frame.addr() == addr.raw()
    }
}

/// Sets all words to 0; buffers come back with what was in them.
pub(crate) fn clear(page: &PageBuf) {
    page.words().iter().for_each(|word| word.store(0, Relaxed));
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

#[cfg(test)]
mod tests;
