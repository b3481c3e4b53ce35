//! Bulk load: sorted entries into an empty index, with nodes filled to a given fraction (Sherman §5.1: 80%).
//!
//! There is one open node per level. A full node is written once its right neighbour has an address, and its
//! separator goes to the level above. The last node of the top level becomes the content of the root, which
//! is written last: until then the index is empty.

use pando_fabric::{Endpoint, GlobalAddr, PageBuf};

use crate::error::{Result, Retry, ShermanError};
use crate::node::Init;
use crate::shape::{Key, WORD};
use crate::tree::Sherman;

/// Default fill of nodes after a bulk load (§5.1).
pub const FILL: f64 = 0.8;

/// Fill of leaves and inner nodes after a bulk load, as fractions of their room.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fill {
    pub leaf: f64,
    pub inner: f64,
}

/// The same fill for all nodes.
impl From<f64> for Fill {
    fn from(fill: f64) -> Self {
        Self { leaf: fill, inner: fill }
    }
}

/// A node that is being filled.
struct Open {
    addr: GlobalAddr,
    page: PageBuf,
    count: usize,
}

struct Loader<'t, 'e, E> {
    tree: &'t Sherman,
    ep: &'e E,
    /// From the leaves up.
    levels: Vec<Open>,
    nodes: Vec<GlobalAddr>,
    fill: Fill,
}

impl Sherman {
    /// Stores sorted entries in an empty index, which nothing else may use meanwhile, with nodes filled to
    /// `fill`; returns their number.
    ///
    /// # Errors
    /// [`ShermanError::NotEmpty`], [`ShermanError::NotSorted`], keys or values of another length, a full
    /// pool, errors of the fabric. The index is then empty.
    pub async fn load<E: Endpoint, K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        ep: &E,
        fill: impl Into<Fill>,
        entries: impl IntoIterator<Item = (K, V)>,
    ) -> Result<u64> {
        let root = match self.read_locked(ep, self.anchor.root).await {
            Ok(page) => page,
            Err(Retry::Failed(error)) => return Err(error),
            Err(Retry::Restart) => return Err(ShermanError::NotEmpty),
        };
        if self.node(&root).level() > 0 || self.node(&root).entries() > 0 {
            return Err(ShermanError::NotEmpty);
        }
        let mut loader = Loader { tree: self, ep, levels: Vec::new(), nodes: Vec::new(), fill: fill.into() };
        let loaded = loader.load(entries, root).await;
        if loaded.as_ref().is_err_and(|error| !error.may_have_taken_effect()) {
            for addr in loader.nodes {
                self.pool.free(ep, addr, self.shape.node_size() as u64).await?;
            }
        }
        loaded
    }
}

impl<E: Endpoint> Loader<'_, '_, E> {
    async fn load<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &mut self,
        entries: impl IntoIterator<Item = (K, V)>,
        root: PageBuf,
    ) -> Result<u64> {
        let (mut position, mut before) = (0, None);
        for (key, value) in entries {
            let key = self.tree.shape.key(key.as_ref())?;
            self.tree.shape.check_value(value.as_ref())?;
            if before.replace(key).is_some_and(|before| before >= key) {
                return Err(ShermanError::NotSorted { position });
            }
            self.add_entry(&key, value.as_ref()).await?;
            position += 1;
        }
        self.finish(root).await?;
        Ok(position)
    }

    async fn open(&mut self, level: u8, low: Option<Key>) -> Result<Open> {
        let addr = self.tree.alloc(self.ep).await?;
        self.nodes.push(addr);
        let page = self.ep.buffer(self.tree.shape.node_size());
        let index = self.tree.index();
        let init = Init { addr, index, level, low, high: None, sibling: None, version: 0 };
        self.tree.node(&page).init(&init);
        Ok(Open { addr, page, count: 0 })
    }

    fn room(&self, level: usize) -> usize {
        let Fill { leaf, inner } = self.fill;
        let (max, fill) = match level {
            0 => (self.tree.shape.leaf_max(), leaf),
            _ => (self.tree.shape.inner_max(), inner),
        };
        ((max as f64 * fill) as usize).clamp(1, max)
    }

    async fn add_entry(&mut self, key: &Key, value: &[u8]) -> Result<()> {
        if self.levels.is_empty() {
            let leaf = self.open(0, None).await?;
            self.levels.push(leaf);
        }
        if self.levels[0].count == self.room(0) {
            let next = self.open(0, Some(*key)).await?;
            let (child, first) = (next.addr, self.write_full(0, key, next).await?);
            self.add_child(key, child, first).await?;
        }
        let leaf = &mut self.levels[0];
        let node = self.tree.node(&leaf.page);
        let slot = node.make_slot(key).expect("it is not full");
        node.store(slot, key, value);
        leaf.count += 1;
        Ok(())
    }

    /// Writes the full node of a level and replaces it by `next`; returns its address.
    async fn write_full(&mut self, level: usize, separator: &Key, next: Open) -> Result<GlobalAddr> {
        let next_addr = next.addr;
        let Open { addr, page, .. } = std::mem::replace(&mut self.levels[level], next);
        let node = self.tree.node(&page);
        node.end_at(separator, next_addr);
        node.seal();
        self.ep.recycle(self.ep.write(addr, page).await?);
        Ok(addr)
    }

    /// Adds a child to the nodes above; `first` is the child before it. Opens a node on each level whose node
    /// is full.
    async fn add_child(&mut self, separator: &Key, child: GlobalAddr, first: GlobalAddr) -> Result<()> {
        let (mut level, mut child, mut first) = (1, child, first);
        loop {
            if level == self.levels.len() {
                let above = self.open(level as u8, None).await?;
                self.tree.node(&above.page).set_leftmost(first);
                self.levels.push(above);
            }
            let room = self.room(level);
            let open = &mut self.levels[level];
            if open.count < room {
                open.count += 1;
                let is_added = self.tree.node(&open.page).insert_child(separator, child);
                assert!(is_added, "it is not full");
                return Ok(());
            }
            let next = self.open(level as u8, Some(*separator)).await?;
            self.tree.node(&next.page).set_leftmost(child);
            (child, first) = (next.addr, self.write_full(level, separator, next).await?);
            level += 1;
        }
    }

    /// Writes the last node of every level; that of the top level becomes the root.
    async fn finish(&mut self, root: PageBuf) -> Result<()> {
        let Some(top) = self.levels.pop() else { return Ok(()) };
        for Open { addr, page, .. } in std::mem::take(&mut self.levels) {
            self.tree.node(&page).seal();
            self.ep.recycle(self.ep.write(addr, page).await?);
        }
        let (tree, at) = (self.tree, self.tree.anchor.root);
        let node = tree.node(&root);
        node.copy_content(&tree.node(&top.page), at, node.version());
        node.seal();
        tree.note_root(&node, at);
        let root = root.with_window(WORD..tree.shape.node_size());
        self.ep.recycle(self.ep.write(at.add(WORD as u64), root).await?);
        self.nodes.retain(|&addr| addr != top.addr);
        tree.pool.free(self.ep, top.addr, tree.shape.node_size() as u64).await?;
        Ok(())
    }
}
