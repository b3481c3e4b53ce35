//! One compute server's view of an index: its state, creation and opening, and its free nodes.
//!
//! Operations are in the sibling modules. The root never moves: when it is split, its content goes to two new
//! nodes. So every compute server always knows its address.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pando_fabric::{Endpoint, GlobalAddr, MemoryServerId, Nanos, PageBuf};
use pando_pool::{Leftovers, Placement, Pool, PoolError};

use crate::anchor::Anchor;
use crate::error::{Result, ShermanError};
use crate::index_cache::IndexCache;
use crate::lock::{Nonces, Queues, Unfinished};
use crate::node::{Fences, Init, Node};
use crate::options::{LockPlace, Options, ReadCheck};
use crate::own::{Own, OwnKeys};
use crate::shape::{Key, Shape, WORD};

/// Settings of one compute server for an index.
#[derive(Clone, Debug)]
pub struct Config {
    /// Number of the index in its pool; every node carries its low 16 bits.
    pub index_id: u32,
    pub options: Options,
    /// Under logical partitioning, the keys of this compute server. Needs [`ReadCheck::Checksum`].
    pub own: Option<OwnKeys>,
    /// Longest wait of an operation for others, in ns.
    pub patience_ns: Nanos,
    /// Maximum number of leaves that a scan READs together; 32 as in the paper's code.
    pub read_ahead: usize,
}

impl Config {
    /// Defaults: no partitions, waits of at most 10 s, 32 leaves at a time.
    pub fn new(index_id: u32, options: Options) -> Self {
        Self { index_id, options, own: None, patience_ns: 10_000_000_000, read_ahead: 32 }
    }
}

/// Structure changes and repairs by this compute server.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub splits: AtomicU64,
    pub merges: AtomicU64,
    pub repairs: AtomicU64,
}

/// Result of [`Sherman::counts`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub splits: u64,
    pub merges: u64,
    /// Number of locks taken over from dead processes.
    pub repairs: u64,
    /// Number of cached nodes just above the leaves.
    pub cached: u64,
}

/// One compute server's view of a B-link tree on disaggregated memory, shared by its threads.
pub struct Sherman {
    pub(crate) shape: Shape,
    pub(crate) options: Options,
    pub(crate) config: Config,
    pub(crate) pool: Pool,
    pub(crate) at: GlobalAddr,
    pub(crate) anchor: Anchor,
    pub(crate) own: Option<Own>,
    pub(crate) cache: Option<IndexCache>,
    pub(crate) queues: Queues,
    pub(crate) nonces: Arc<Nonces>,
    pub(crate) unfinished: Leftovers<Unfinished>,
    /// Nodes that are gone, for reuse by this compute server.
    free: Mutex<VecDeque<GlobalAddr>>,
    /// Level of the root as last seen; [`NO_LEVEL`] if never.
    pub(crate) root_level: AtomicU8,
    pub(crate) counters: Counters,
}

/// Stands for an unknown level of the root.
pub(crate) const NO_LEVEL: u8 = u8::MAX;

impl Sherman {
    /// Writes an empty index; returns the address of its anchor, by which it is opened.
    ///
    /// # Errors
    /// Errors of the pool and the fabric; nothing stays allocated then.
    pub async fn create<E: Endpoint>(
        ep: &E,
        pool: &Pool,
        shape: &Shape,
        config: &Config,
    ) -> Result<GlobalAddr> {
        let mut blocks = Vec::new();
        let created = Self::create_blocks(ep, pool, shape, config, &mut blocks).await;
        if created.is_err() {
            for (at, bytes) in blocks {
                pool.free(ep, at, bytes).await?;
            }
        }
        created
    }

    /// Every allocated block is in `blocks`, even after an error.
    async fn create_blocks<E: Endpoint>(
        ep: &E,
        pool: &Pool,
        shape: &Shape,
        config: &Config,
        blocks: &mut Vec<(GlobalAddr, u64)>,
    ) -> Result<GlobalAddr> {
        let (tables, locks) = Anchor::make_tables(ep, pool, &config.options, blocks).await?;
        let size = shape.node_size();
        let root = pool.alloc(ep, Placement::Prefer(MemoryServerId(0)), size as u64).await?;
        blocks.push((root, size as u64));
        let page = ep.buffer(size);
        let node = Node::new(shape, page.words());
        let index = config.index_id as u16;
        node.init(&Init { addr: root, index, level: 0, low: None, high: None, sibling: None, version: 0 });
        node.seal();
        ep.recycle(ep.write(root, page).await?);
        let anchor = Anchor { root, tables, locks };
        let at = pool.alloc(ep, Placement::Prefer(MemoryServerId(0)), anchor.bytes()).await?;
        blocks.push((at, anchor.bytes()));
        anchor.write(ep, at, shape, config.index_id).await?;
        Ok(at)
    }

    /// Opens the index whose anchor is at `at`, for one compute server.
    ///
    /// # Errors
    /// [`ShermanError::Anchor`] if there is no index of this shape; [`ShermanError::Shape`] for incompatible
    /// options; errors of the fabric.
    pub async fn open<E: Endpoint>(
        ep: &E,
        pool: Pool,
        at: GlobalAddr,
        shape: Shape,
        config: Config,
    ) -> Result<Self> {
        let options = config.options;
        if config.own.is_some() && options.check != ReadCheck::Checksum {
            return Err(ShermanError::Shape("partitions need nodes with checksums".into()));
        }
        let own = config.own.as_ref().map(|keys| Own::new(keys, &shape)).transpose()?;
        let anchor = Anchor::read(ep, at, &shape, config.index_id, &options).await?;
        let tree = Self {
            shape,
            options,
            pool,
            at,
            anchor,
            own,
            cache: options.index_cache.map(|bytes| IndexCache::new(bytes, &shape)),
            queues: Queues::new(options.hand_over.unwrap_or(0)),
            nonces: Nonces::new(),
            unfinished: Leftovers::default(),
            free: Mutex::default(),
            root_level: AtomicU8::new(NO_LEVEL),
            counters: Counters::default(),
            config,
        };
        tree.take_free_list(ep).await?;
        Ok(tree)
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Address of the index, as returned by [`Sherman::create`].
    pub fn anchor(&self) -> GlobalAddr {
        self.at
    }

    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    pub fn counts(&self) -> Counts {
        Counts {
            splits: self.counters.splits.load(Relaxed),
            merges: self.counters.merges.load(Relaxed),
            repairs: self.counters.repairs.load(Relaxed),
            cached: self.cache.as_ref().map_or(0, |cache| cache.len() as u64),
        }
    }

    /// Lock tables to place in NIC memory, with their sizes in bytes. Empty if locks are in nodes, or in
    /// tables in DRAM.
    pub fn lock_tables(&self) -> impl Iterator<Item = (GlobalAddr, u64)> {
        let bytes = self.anchor.segment_bytes();
        let is_on_chip = matches!(self.options.locks, LockPlace::Table { on_chip: true, .. });
        let tables = if is_on_chip { &self.anchor.tables[..] } else { &[] };
        tables.iter().flatten().map(move |&segment| (segment, bytes))
    }

    pub(crate) fn node<'p>(&'p self, page: &'p PageBuf) -> Node<'p> {
        Node::new(&self.shape, page.words())
    }

    pub(crate) fn index(&self) -> u16 {
        self.config.index_id as u16
    }

    /// Deadline for a wait that starts now.
    pub(crate) fn deadline<E: Endpoint>(&self, ep: &E) -> Nanos {
        ep.wait_until(ep.now(), self.config.patience_ns)
    }

    /// Whether readers check lock words.
    pub(crate) fn is_versioned(&self) -> bool {
        self.options.check == ReadCheck::VersionReads
    }

    /// Remote lock of a node.
    pub(crate) fn lock_addr(&self, node: GlobalAddr) -> GlobalAddr {
        match self.options.locks {
            LockPlace::Node => node,
            LockPlace::Table { .. } => {
                self.anchor.lock_addr(node, self.shape.node_size()).expect("nodes are where tables are")
            }
        }
    }

    /// Queue in front of the lock of a node, if there is one.
    pub(crate) fn queue_key(&self, node: GlobalAddr, is_own: bool) -> Option<GlobalAddr> {
        match is_own {
            true => Some(node),
            false => self.options.hand_over.map(|_| self.lock_addr(node)),
        }
    }

    /// Whether a node with these fences belongs to this compute server alone.
    pub(crate) fn is_own(&self, fences: Fences) -> bool {
        self.own.as_ref().is_some_and(|own| own.has_all(fences.low, fences.high))
    }

    /// Whether this compute server may change a node with these fences.
    pub(crate) fn may_change(&self, fences: Fences) -> bool {
        self.own.as_ref().is_none_or(|own| own.has_any(fences.low, fences.high))
    }

    /// Rejects keys of other compute servers.
    pub(crate) fn check_own(&self, key: &Key) -> Result<()> {
        match self.own.as_ref().is_none_or(|own| own.has_key(key)) {
            true => Ok(()),
            false => Err(ShermanError::NotOwned),
        }
    }

    fn free(&self) -> MutexGuard<'_, VecDeque<GlobalAddr>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nodes that are gone, which this compute server may reuse.
    pub fn free_list(&self) -> Vec<GlobalAddr> {
        self.free().iter().copied().collect()
    }

    /// Number of nodes that this compute server may reuse.
    pub fn free_nodes(&self) -> usize {
        self.free().len()
    }

    /// Adds a node that is gone to the free nodes.
    pub(crate) fn put_free(&self, addr: GlobalAddr) {
        self.free().push_back(addr);
    }

    pub(crate) fn pop_free(&self) -> Option<GlobalAddr> {
        self.free().pop_front()
    }

    /// Allocates a block for a node, on a random memory server.
    pub(crate) async fn alloc<E: Endpoint>(&self, ep: &E) -> Result<GlobalAddr> {
        let size = self.shape.node_size() as u64;
        let mut servers = self.pool.active_servers();
        if !self.anchor.tables.is_empty() {
            // Servers that joined later have no lock tables.
            servers.retain(|server| usize::from(server.0) < self.anchor.tables.len());
        }
        let mut first = (ep.random() >> 32) as usize % servers.len().max(1);
        let mut failed = PoolError::UnknownServer { server: MemoryServerId(0), servers: self.pool.servers() };
        for _ in 0..servers.len() {
            match self.pool.alloc(ep, Placement::Server(servers[first]), size).await {
                Ok(addr) => return Ok(addr),
                Err(error) if error.is_full() => failed = error,
                Err(error) => return Err(error.into()),
            }
            first = (first + 1) % servers.len();
        }
        Err(failed.into())
    }

    /// Takes all free nodes that others left.
    async fn take_free_list<E: Endpoint>(&self, ep: &E) -> Result<()> {
        if self.pool.slot().is_none() {
            return Ok(());
        }
        let head = Anchor::free_list(self.at);
        let mut first = ep.read_word(head).await?;
        while first != 0 {
            let before = ep.compare_swap(head, first, 0).await?;
            if before == first {
                break;
            }
            first = before;
        }
        let mut next = GlobalAddr::from_raw(first).filter(|addr| !addr.is_null());
        while let Some(addr) = next {
            let page = ep.read(addr, ep.buffer(self.shape.node_size())).await?;
            let node = self.node(&page);
            if !node.is_gone() || node.addr() != addr.raw() {
                return Err(ShermanError::Corrupt {
                    addr,
                    reason: "the free list leads to what is no free node",
                });
            }
            next = node.next_free();
            self.put_free(addr);
            ep.recycle(page);
        }
        Ok(())
    }

    /// Leaves all free nodes to others.
    pub(crate) async fn leave_free_list<E: Endpoint>(&self, ep: &E) -> Result<()> {
        let head = Anchor::free_list(self.at);
        while let Some(addr) = self.pop_free() {
            if let Err(error) = self.leave_free(ep, head, addr).await {
                self.put_free(addr);
                return Err(error);
            }
        }
        Ok(())
    }

    async fn leave_free<E: Endpoint>(&self, ep: &E, head: GlobalAddr, addr: GlobalAddr) -> Result<()> {
        let page = ep.read(addr, ep.buffer(self.shape.node_size())).await?;
        let mut first = ep.read_word(head).await?;
        loop {
            let node = self.node(&page);
            node.set_next_free(first);
            node.seal();
            let copy = ep.buffer(page.len()).with_window(WORD..page.len());
            node.words()
                .iter()
                .zip(copy.words())
                .for_each(|(from, to)| to.store(from.load(Relaxed), Relaxed));
            ep.recycle(ep.write(addr.add(WORD as u64), copy).await?);
            let before = ep.compare_swap(head, first, addr.raw()).await?;
            if before == first {
                ep.recycle(page);
                return Ok(());
            }
            first = before;
        }
    }
}
