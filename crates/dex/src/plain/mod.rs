//! The baseline of DEX's ablation (§2.2, §8.3): a B+-tree over one-sided verbs, without a cache.
//!
//! Nodes, fences and bulk load are those of [`Tree`](crate::Tree). Every access to a node is a READ and every
//! change a WRITE of the whole node, by any compute server.
//! - A node is *remote* or *local*. A remote one is read optimistically (version, node, version) and changed
//!   under the lock in its first word. A local one belongs to one compute server, whose threads synchronise
//!   among themselves (`LocalLocks`); it costs one READ, and one WRITE to change.
//! - Without partitions every node is remote. With them a node is local if its fences lie in one partition,
//!   unless it once crossed a boundary: it keeps its address in a split, and others may reach it through an
//!   old parent. `WAS_SHARED` in its header says so and is permanent.
//! - A child that crosses a boundary according to its parent is remote; for any other the header decides.
//!   Ranges only shrink, so a local node is never taken for a remote one.
//! - Locks are taken from the top down. Nothing is merged or freed; the root never moves.

mod audit;
mod change;
mod hold;
mod local_locks;
mod scan;

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use local_locks::LocalLocks;
use pando_cache::sync::Word;
use pando_fabric::{Endpoint, GlobalAddr, Nanos, PageBuf, Patience, Work};
use pando_pool::{Pool, lock};

use crate::error::{Attempt, DexError, Result, Retry};
use crate::layout::{Layout, header};
use crate::node::Node;
use crate::ownership::range::KeyRange;

/// Configuration of a plain tree on one compute server.
#[derive(Clone, Debug)]
pub struct PlainConfig {
    pub index_id: u32,
    pub root: GlobalAddr,
    /// Keys of this compute server; used only if `partitioned`.
    pub range: KeyRange,
    /// Whether nodes that one compute server owns need no remote synchronisation.
    pub partitioned: bool,
    /// Nodes of this level and below stay on the memory server of the node that they were split from.
    pub subtree_level: u8,
    /// Longest time that an operation waits in total, in ns. Hot leaves have long queues.
    pub patience_ns: Nanos,
}

impl PlainConfig {
    /// Configuration of a compute server without partitions, with the papers' subtrees.
    pub fn new(index_id: u32, root: GlobalAddr) -> Self {
        let range = KeyRange::all();
        Self { index_id, root, range, partitioned: false, subtree_level: 3, patience_ns: 10_000_000_000 }
    }
}

/// A plain tree, shared by the threads of one compute server.
pub struct PlainTree<L> {
    layout: L,
    pool: Pool,
    config: PlainConfig,
    locks: LocalLocks,
    splits: AtomicU64,
}

/// A node that was READ, with the version that shows whether it has changed.
struct Seen {
    addr: GlobalAddr,
    page: PageBuf,
    /// Whether all its keys belong to this compute server, according to its parent.
    inside: bool,
    version: SeenVersion,
}

#[derive(Clone, Copy)]
enum SeenVersion {
    Remote(u64),
    Local(u64),
}

impl Seen {
    fn words(&self) -> &[Word] {
        self.page.words()
    }

    fn level(&self) -> u8 {
        header::level(self.words())
    }
}

/// Attempts at one node before a descent restarts from the root.
const NODE_ATTEMPTS: u32 = 256;

impl<L: Layout> PlainTree<L> {
    /// Opens an index that [`Tree::create`](crate::Tree::create) or a bulk load made.
    pub fn new(pool: Pool, layout: L, config: PlainConfig) -> Self {
        Self { layout, pool, config, locks: LocalLocks::default(), splits: AtomicU64::new(0) }
    }

    pub fn config(&self) -> &PlainConfig {
        &self.config
    }

    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Number of splits by this compute server so far.
    pub fn splits(&self) -> u64 {
        self.splits.load(Relaxed)
    }

    /// Appends the value of `key` to `out`; `false` if the key is absent.
    ///
    /// # Errors
    /// Keys that the layout cannot hold; corruption; too long a wait; errors of the fabric.
    pub async fn get<E: Endpoint>(&self, ep: &E, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        let key = self.layout.key(key)?;
        let leaf = self.find_node(ep, key, 0).await?.0;
        let found = match self.layout.find(leaf.words(), key) {
            Ok(i) => match self.layout.append_value(leaf.words(), i, out) {
                None => true,
                Some(_) => return Err(long_value()),
            },
            Err(_) => false,
        };
        ep.recycle(leaf.page);
        Ok(found)
    }

    /// The node of `level` on the path to `key`, and its parent. Restarts until it succeeds.
    async fn find_node<E: Endpoint>(
        &self,
        ep: &E,
        key: L::Key<'_>,
        level: u8,
    ) -> Result<(Seen, Option<Seen>)> {
        let patience = Patience::new(self.config.patience_ns);
        loop {
            match self.descend(ep, key, level).await {
                Ok(found) => return Ok(found),
                Err(Retry::Failed(error)) => return Err(error),
                Err(_) => patience.wait(ep, "a node on the way to a key").await?,
            }
        }
    }

    async fn descend<E: Endpoint>(
        &self,
        ep: &E,
        key: L::Key<'_>,
        level: u8,
    ) -> Attempt<(Seen, Option<Seen>)> {
        let inside = self.config.partitioned && self.config.range.is_all();
        let mut node = self.read(ep, self.config.root, inside).await?;
        let mut parent: Option<Seen> = None;
        while node.level() > level {
            let (addr, inside) = self.child_of(&node, key)?;
            let child = self.read(ep, addr, inside).await?;
            // If the node was split meanwhile, the key is found from the root.
            if !self.layout.covers(child.words(), key) || child.level() + 1 != node.level() {
                return Err(Retry::Restart);
            }
            if let Some(before) = parent.replace(node) {
                ep.recycle(before.page);
            }
            node = child;
        }
        if node.level() < level { Err(Retry::Restart) } else { Ok((node, parent)) }
    }

    /// Child on the path to `key`, and whether it belongs to this compute server according to the keys in its
    /// parent.
    fn child_of(&self, node: &Seen, key: L::Key<'_>) -> Attempt<(GlobalAddr, bool)> {
        self.child_at(node, self.layout.child_index(node.words(), key))
    }

    fn child_at(&self, node: &Seen, index: usize) -> Attempt<(GlobalAddr, bool)> {
        let words = node.words();
        let raw = header::get(words, self.layout.child_word(words, index));
        let addr = GlobalAddr::from_raw(raw).filter(|addr| !addr.is_null());
        let addr = addr.ok_or(DexError::Corrupt { addr: node.addr, reason: "a child without an address" })?;
        Ok((addr, node.inside || self.config.partitioned && self.is_own_child(words, index)))
    }

    fn is_own_child(&self, words: &[Word], index: usize) -> bool {
        self.config.range.contains_bounds(&Node::new(&self.layout, words).bounds_of_child(index))
    }

    /// READs a node so that all its bytes are from one moment.
    async fn read<E: Endpoint>(&self, ep: &E, addr: GlobalAddr, inside: bool) -> Attempt<Seen> {
        for _ in 0..NODE_ATTEMPTS {
            let local = if inside { self.try_read_local(ep, addr).await? } else { Local::IsRemote };
            let seen = match local {
                Local::Seen(seen) => Some(seen),
                Local::Changed => None,
                Local::IsRemote => self.try_read_remote(ep, addr, inside).await?,
            };
            if let Some(seen) = seen {
                ep.charge(Work::NodeSearch);
                return Ok(seen);
            }
            ep.yield_now().await;
        }
        Err(Retry::Restart)
    }

    async fn try_read_remote<E: Endpoint>(
        &self,
        ep: &E,
        addr: GlobalAddr,
        inside: bool,
    ) -> Result<Option<Seen>> {
        let page = ep.buffer(self.layout.node_size());
        let lock::Seen::Whole { version, page } = lock::read_optimistic(ep, addr, page).await? else {
            return Ok(None);
        };
        self.check(ep, addr, &page)?;
        Ok(Some(Seen { addr, page, inside, version: SeenVersion::Remote(version) }))
    }

    async fn try_read_local<E: Endpoint>(&self, ep: &E, addr: GlobalAddr) -> Result<Local> {
        let Some(version) = self.locks.version(addr) else { return Ok(Local::Changed) };
        let page = ep.read(addr, ep.buffer(self.layout.node_size())).await?;
        // Test the flag first: a remote node may be torn here, but not within its first cache line, which has
        // the flag.
        let outcome = if header::has(page.words(), header::WAS_SHARED) {
            Local::IsRemote
        } else if self.locks.version(addr) != Some(version) {
            Local::Changed
        } else {
            self.check(ep, addr, &page)?;
            return Ok(Local::Seen(Seen { addr, page, inside: true, version: SeenVersion::Local(version) }));
        };
        ep.recycle(page);
        Ok(outcome)
    }

    /// Checks bytes that came from remote memory.
    fn check<E: Endpoint>(&self, ep: &E, addr: GlobalAddr, page: &PageBuf) -> Result<()> {
        ep.charge(Work::PageCheck);
        let words = page.words();
        let reason = match self.layout.verify(words) {
            Err(reason) => reason,
            Ok(()) if header::addr(words) != addr.raw() => "a node that belongs elsewhere",
            Ok(()) if header::index_id(words) != self.config.index_id => "a node of another index",
            Ok(()) => return Ok(()),
        };
        Err(DexError::Corrupt { addr, reason })
    }
}

/// Result of a READ of a node that may be local.
enum Local {
    Seen(Seen),
    /// A thread of this compute server is changing the node.
    Changed,
    IsRemote,
}

fn long_value() -> DexError {
    DexError::Layout(
        "a tree without a cache keeps its values inside of leaves; this one is too long".to_owned(),
    )
}

#[cfg(test)]
mod tests;
