//! One compute server's view of an index: a handle on its cache, its pool and its root, with the state of
//! each concern.
//!
//! The operations are functions of the modules above this one. The root never moves and stays in its frame as
//! long as the cache lives, so every descent can begin there without a lookup; most [begin below it](start).

pub(crate) mod gate;
pub(crate) mod journal;
pub(crate) mod left_behind;
pub(crate) mod leftovers;
pub(crate) mod new_node;
pub(crate) mod patience;
pub(crate) mod spreading;
pub(crate) mod start;
pub(crate) mod suspects;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use pando_cache::sync::Word;
use pando_cache::{Cache, CacheWorker, Conflict, FrameId, FrameRef, FrameState, Version};
use pando_fabric::{GlobalAddr, MemoryServerId, Nanos, PageBuf};
use pando_log::Log;
use pando_pool::{Leftovers, Pool};

use crate::costs::{Costs, Offloading};
use crate::layout::{Layout, NodeInit, header};
use crate::node::{HasWords, Node, NodeMut};
use crate::ownership::range::KeyRange;
use crate::ownership::view::Ownership;
use crate::tree::left_behind::LeftBehind;
use crate::tree::leftovers::Unfinished;
use crate::tree::spreading::Spread;
use crate::tree::start::Start;
use crate::tree::suspects::Suspects;

/// Memory server of roots, unless it is full.
pub(crate) const HOME: MemoryServerId = MemoryServerId(0);

/// Parameters of an open index.
#[derive(Clone, Debug)]
pub struct TreeConfig {
    /// Number of the index in its pool; every node carries it.
    pub index_id: u32,
    /// Address of the root, which never moves.
    pub root: GlobalAddr,
    /// M: the nodes of a subtree rooted at this level lie on one memory server (DEX §3). 3 in the paper.
    pub subtree_level: u8,
    /// Keys that this compute server owns at first; [`Tree::range`] returns those that it owns now.
    pub range: KeyRange,
    /// Longest time that an operation waits for other operations before it fails, in nanoseconds.
    pub patience_ns: Nanos,
    /// Largest number of leaves that a scan READs together, also bounded by a quarter of the cache's frames;
    /// 1 reads them one by one.
    pub read_ahead: usize,
    /// Whether a changed leaf without a frame is written as a whole, as in the paper, and not only the words that changed.
    pub whole_leaves: bool,
    /// When operations below a missing node are offloaded.
    pub offloading: Offloading,
    /// Bytes on a memory server above which the index is spread evenly over all of them.
    pub spread_above: u64,
    /// Log of this compute server. It owns all keys then, nothing is offloaded, and no keys or nodes move.
    pub log: Option<Arc<Log>>,
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
            whole_leaves: false,
            offloading: Offloading::default(),
            spread_above: 1 << 20,
            log: None,
        }
    }
}

/// Context of a worker's operations: its endpoint, and its part of the compute server's cache.
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

/// A node in its frame at the version that an operation has seen.
#[derive(Clone, Copy)]
pub(crate) struct VersionedNode<'c> {
    pub frame: FrameRef<'c>,
    pub version: Version,
}

impl<'c> HasWords<'c> for VersionedNode<'c> {
    #[inline(always)]
    fn words_of(self) -> &'c [Word] {
        self.frame.words()
    }
}

impl VersionedNode<'_> {
    #[inline]
    pub fn validate(&self) -> std::result::Result<(), Conflict> {
        self.frame.validate(self.version)
    }
}

/// Counts of structure changes by this compute server.
#[derive(Debug, Default)]
pub struct SmoCounters {
    pub splits: AtomicU64,
    pub merges: AtomicU64,
    pub root_changes: AtomicU64,
    pub shared_changes: AtomicU64,
    pub refreshes: AtomicU64,
    pub relocations: AtomicU64,
}

/// A B+-tree on disaggregated memory, as one compute server uses it. The workers of that server share it.
pub struct Tree<L> {
    pub(crate) layout: L,
    pub(crate) cache: Arc<Cache>,
    pub(crate) pool: Pool,
    pub(crate) config: TreeConfig,
    pub(crate) root: FrameId,
    pub(crate) start: Start,
    pub(crate) smo_counters: SmoCounters,
    pub(crate) ownership: Ownership,
    pub(crate) costs: Costs,
    pub(crate) spread: Spread,
    pub(crate) left_behind: LeftBehind,
    pub(crate) suspects: Suspects,
    pub(crate) unfinished: Leftovers<Unfinished>,
    /// Number of drained memory servers to which nothing leads that is in the cache.
    pub(crate) forgotten: AtomicUsize,
}

impl<L: Layout> Tree<L> {
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

    /// Number of splits, merges, changes of the root's level, changes of shared nodes, and refreshes so far.
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

    /// Number of nodes that moved to another memory server.
    pub fn relocations(&self) -> u64 {
        self.smo_counters.relocations.load(Relaxed)
    }

    /// Size of a node's block in bytes.
    pub(crate) fn node_bytes(&self) -> u64 {
        self.layout.node_size() as u64
    }

    /// Number of levels: 1 if the root is a leaf.
    #[inline]
    pub fn height(&self) -> u32 {
        u32::from(self.node(self.cache.frame(self.root)).level()) + 1
    }

    #[inline]
    pub(crate) fn root_node(&self) -> std::result::Result<VersionedNode<'_>, Conflict> {
        let frame = self.cache.frame(self.root);
        Ok(VersionedNode { frame, version: frame.optimistic()? })
    }

    /// Read access to a node by its words.
    #[inline(always)]
    pub(crate) fn node<'p>(&'p self, words: impl HasWords<'p>) -> Node<'p, L> {
        Node::new(&self.layout, words.words_of())
    }

    /// Write access to a node to which the caller has exclusive access.
    pub(crate) fn node_mut<'p>(&'p self, words: impl HasWords<'p>) -> NodeMut<'p, L> {
        NodeMut::new(&self.layout, words.words_of())
    }

    /// Whether the children of the node may be swizzled.
    #[inline]
    pub(crate) fn swizzles(&self, node: Node<'_, L>) -> bool {
        self.cache.swizzles() && self.layout.swizzles(node.words())
    }

    /// Whether a frame holds the node at `addr`, hot or cooling.
    pub(crate) fn holds(&self, frame: FrameRef<'_>, version: Version, addr: GlobalAddr) -> bool {
        version.state() != FrameState::Free && frame.addr() == addr.raw()
    }
}

/// Fills the words with the root of a compute server that owns no key: a descent finds nothing there.
pub(crate) fn make_placeholder<L: Layout>(tree: &Tree<L>, node: NodeMut<'_, L>) {
    let init = NodeInit {
        addr: tree.config.root.raw(),
        index_id: tree.config.index_id,
        level: 1,
        low: None,
        high: None,
    };
    node.init(&init);
    node.set_child(0, 0);
    node.set_flag(header::SHARED, true);
}

/// Sets all words to 0, since a buffer keeps its old content.
pub(crate) fn clear(page: &PageBuf) {
    page.words().iter().for_each(|word| word.store(0, Relaxed));
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

#[cfg(test)]
mod tests;
