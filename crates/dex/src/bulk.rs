//! Bulk load: builds an index from sorted entries, bottom up, without descents or splits.
//!
//! The input is cut into slices that threads load in parallel. A slice builds whole subtrees up to level M
//! (or a lower level, in an index with too few subtrees of level M for all memory servers), each on the next
//! memory server (DEX §3, §8.1). [`BulkLoad::finish`] builds the few levels above them. A small input is one
//! slice. Leaves end at partition boundaries, so that each belongs to one compute server.

use std::ops::Range;

use pando_fabric::defect::defect;
use pando_fabric::{Endpoint, GlobalAddr, MemoryServerId, PageBuf, outlined};
use pando_pool::defect::Defect;
use pando_pool::{Placement, Pool, Run, ValueRef};

use crate::error::{DexError, Result};
use crate::layout::{Layout, NodeInit, Stored, header};
use crate::tree::clear;

/// Sorted entries that several threads may read at the same time.
#[allow(clippy::type_complexity, reason = "an alias would tie the two lifetimes of the callback together")]
pub trait SortedSource: Sync {
    /// Number of entries.
    fn len(&self) -> u64;

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Calls `each` for the entries of `range`, in order, until it fails.
    ///
    /// # Errors
    /// The error of `each`.
    fn visit(&self, range: Range<u64>, each: &mut dyn FnMut(&[u8], &[u8]) -> Result<()>) -> Result<()>;
}

impl<K: AsRef<[u8]> + Sync, V: AsRef<[u8]> + Sync> SortedSource for [(K, V)] {
    fn len(&self) -> u64 {
        self.len() as u64
    }

    fn visit(&self, range: Range<u64>, each: &mut dyn FnMut(&[u8], &[u8]) -> Result<()>) -> Result<()> {
        self[range.start as usize..range.end as usize]
            .iter()
            .try_for_each(|(key, value)| each(key.as_ref(), value.as_ref()))
    }
}

impl<S: SortedSource + ?Sized> SortedSource for &S {
    fn len(&self) -> u64 {
        (**self).len()
    }

    fn visit(&self, range: Range<u64>, each: &mut dyn FnMut(&[u8], &[u8]) -> Result<()>) -> Result<()> {
        (**self).visit(range, each)
    }
}

/// Number of subtrees per memory server that suffices for all servers to get about the same amount.
const SUBTREES_PER_SERVER: usize = 2;

/// Largest number of blocks that are leased at once.
const RUN_MAX: u32 = 1024;

/// A finished node without a parent.
#[derive(Clone, Debug)]
struct Orphan {
    addr: GlobalAddr,
    level: u8,
    low: Option<Vec<u8>>,
    high: Option<Vec<u8>>,
}

/// Nodes that were written, as runs of adjacent blocks: the first block and their number. Even a load of many
/// millions has few runs.
#[derive(Debug, Default)]
struct Written(Vec<(GlobalAddr, u64)>);

impl Written {
    fn push(&mut self, addr: GlobalAddr, node_size: u64) {
        match self.0.last_mut() {
            Some((first, nodes)) if first.add(*nodes * node_size) == addr => *nodes += 1,
            _ => self.0.push((addr, 1)),
        }
    }

    fn nodes(&self, node_size: u64) -> impl Iterator<Item = GlobalAddr> {
        self.0.iter().flat_map(move |&(first, nodes)| (0..nodes).map(move |i| first.add(i * node_size)))
    }
}

/// Nodes built from one slice of the input.
#[derive(Debug)]
pub struct Slice {
    roots: Vec<Orphan>,
    entries: u64,
    reserve: usize,
    /// Blocks of the slice, to be freed if another slice fails.
    written: Written,
    values: Vec<ValueRef>,
}

/// Parameters of a load.
#[derive(Clone)]
pub struct BulkLoad<L> {
    layout: L,
    pool: Pool,
    index_id: u32,
    subtree_level: u8,
    /// Fill of leaves, up to 1.
    leaf_fill: f64,
    /// Fill of inner nodes, up to 1.
    inner_fill: f64,
    boundaries: Vec<Vec<u8>>,
}

impl<L: Layout> BulkLoad<L> {
    /// A load into the index `index_id`, whose leaves must not cross any of `boundaries` (ascending).
    pub fn new(layout: L, pool: Pool, index_id: u32, subtree_level: u8, boundaries: &[Vec<u8>]) -> Self {
        let boundaries = boundaries.to_vec();
        Self { layout, pool, index_id, subtree_level, leaf_fill: 0.9, inner_fill: 0.9, boundaries }
    }

    /// Sets the fill of the leaves, from 0 to 1; the default is 0.9, the papers' is 0.5. Each leaf gets at
    /// least one entry.
    pub fn leaf_fill(mut self, fill: f64) -> Self {
        self.leaf_fill = fill.clamp(0.0, 1.0);
        self
    }

    /// Sets the fill of the inner nodes, from 0 to 1; the default is 0.9. Each gets at least two children.
    pub fn inner_fill(mut self, fill: f64) -> Self {
        self.inner_fill = fill.clamp(0.0, 1.0);
        self
    }

    /// Slices of `source` that are worth loading in parallel, at most `threads`.
    ///
    /// # Errors
    /// Entries that the layout cannot hold.
    pub fn plan(&self, source: &dyn SortedSource, threads: usize) -> Result<Vec<Range<u64>>> {
        let len = source.len();
        let per_leaf = self.sample_entries_per_leaf(source)?;
        let fanout = (self.layout.max_children() as f64 * self.inner_fill).max(2.0);
        let per_subtree = per_leaf * fanout.powi(i32::from(self.subtree_level));
        let slices = ((len as f64 / (2.0 * per_subtree)) as u64).clamp(1, threads.max(1) as u64);
        Ok((0..slices).map(|i| len * i / slices..len * (i + 1) / slices).collect())
    }

    /// Level up to which (M at most) the nodes of a subtree lie on one memory server, low enough for a
    /// sufficient number of subtrees; and the approximate number of nodes of a subtree. The level is not
    /// below that of the subtrees that [`spread`](crate::placement::spread) moves later, which are numerous
    /// enough.
    fn placement(&self, source: &dyn SortedSource) -> Result<(u8, u32)> {
        let servers = self.pool.active_servers().len();
        let leaves = source.len() as f64 / self.sample_entries_per_leaf(source)?;
        let fanout = (self.layout.max_children() as f64 * self.inner_fill).max(2.0);
        let subtrees = |level: u8| leaves / fanout.powi(i32::from(level));
        let root = (0..u8::MAX).find(|&level| subtrees(level) <= 1.0).unwrap_or(u8::MAX);
        let lowest = crate::placement::spread::placement_level(self.subtree_level, root);
        let enough = |&level: &u8| servers < 2 || subtrees(level) >= (SUBTREES_PER_SERVER * servers) as f64;
        let level = (lowest..=self.subtree_level).rev().find(enough).unwrap_or(lowest);
        Ok((level, (2.0 * fanout.powi(i32::from(level))).clamp(1.0, f64::from(RUN_MAX)) as u32))
    }

    fn sample_entries_per_leaf(&self, source: &dyn SortedSource) -> Result<f64> {
        let page = PageBuf::zeroed(self.layout.node_size());
        self.layout.init(page.words(), &NodeInit { addr: 0, index_id: 0, level: 0, low: None, high: None });
        let mut entries = 0;
        source.visit(0..source.len().min(1024), &mut |key, value| {
            let stored = match self.layout.value_is_inline(value)? {
                true => Stored::Inline(value),
                false => Stored::Long(pando_pool::ValueRef { addr: GlobalAddr::NULL, len: 0, hash: 0 }),
            };
            let key = self.layout.key(key)?;
            if self.layout.fullness(page.words()) < self.leaf_fill
                && self.layout.leaf_insert(page.words(), entries, key, stored)
            {
                entries += 1;
            }
            Ok(())
        })?;
        Ok(entries.max(1) as f64)
    }

    /// Loads one slice of [`BulkLoad::plan`]; `slices` is their number.
    ///
    /// # Errors
    /// Entries that are out of order or that the layout cannot hold; a full pool; errors of the fabric. All
    /// blocks written so far are freed then.
    pub async fn load_slice<E: Endpoint>(
        &self,
        ep: &E,
        source: &dyn SortedSource,
        range: Range<u64>,
        slices: usize,
        number: usize,
    ) -> Result<Slice> {
        let cap = if slices > 1 { self.subtree_level } else { u8::MAX };
        let first_server = self.pool.least_loaded().0 as usize + number;
        let mut builder = Builder::new(self, ep, cap, first_server);
        builder.reserve = self.fence_reserve(source, &range)?;
        (builder.subtree_level, builder.run_len) = self.placement(source)?;
        match self.fill(&mut builder, source, range).await {
            Ok(entries) => {
                let Builder { roots, reserve, written, values, .. } = builder;
                Ok(Slice { roots, entries, reserve, written, values })
            }
            Err(error) => {
                builder.free_all().await;
                Err(error)
            }
        }
    }

    /// Bytes kept free in each node for a fence that is not known yet: the length of the longest key.
    fn fence_reserve(&self, source: &dyn SortedSource, range: &Range<u64>) -> Result<usize> {
        let mut longest = self.boundaries.iter().map(Vec::len).max().unwrap_or(0);
        if !self.layout.fences_take_room() {
            return Ok(0);
        }
        let with_next = range.start..(range.end + 1).min(source.len());
        source.visit(with_next, &mut |key, _| {
            longest = longest.max(key.len());
            Ok(())
        })?;
        Ok(longest)
    }

    async fn fill<E: Endpoint>(
        &self,
        builder: &mut Builder<'_, L, E>,
        source: &dyn SortedSource,
        range: Range<u64>,
    ) -> Result<u64> {
        let before = self.key_at(source, range.start.checked_sub(1))?;
        let first = self.key_at(source, Some(range.start).filter(|&first| first < source.len()))?;
        let low = before.as_ref().zip(first.as_ref()).map(|(before, first)| self.cut(before, first));
        builder.start(low);
        // `visit` is synchronous, but writing nodes is not, so the entries pass through a batch.
        let mut at = range.start;
        let mut batch = Batch::default();
        let mut last = before;
        while at < range.end {
            let end = (at + 4096).min(range.end);
            batch.clear();
            source.visit(at..end, &mut |key, value| {
                batch.push(key, value);
                Ok(())
            })?;
            for (i, (key, value)) in batch.iter().enumerate() {
                if last.as_deref().is_some_and(|last| last >= key) {
                    return Err(DexError::NotSorted { position: at + i as u64 });
                }
                builder.push(last.as_deref(), key, value).await?;
                let last = last.get_or_insert_default();
                last.clear();
                last.extend_from_slice(key);
            }
            at = end;
        }
        let after = self.key_at(source, Some(range.end).filter(|&after| after < source.len()))?;
        let high = last.as_ref().zip(after.as_ref()).map(|(last, after)| self.cut(last, after));
        builder.end(high).await?;
        Ok(range.end - range.start)
    }

    fn key_at(&self, source: &dyn SortedSource, position: Option<u64>) -> Result<Option<Vec<u8>>> {
        let mut found = None;
        if let Some(at) = position {
            source.visit(at..at + 1, &mut |key, _| {
                found = Some(key.to_vec());
                Ok(())
            })?;
        }
        Ok(found)
    }

    /// Fence between two neighbouring keys: the first boundary there, or the shortest separator.
    fn cut(&self, before: &[u8], after: &[u8]) -> Vec<u8> {
        let next = self.boundaries.partition_point(|boundary| boundary.as_slice() <= before);
        match self.boundaries.get(next).filter(|boundary| boundary.as_slice() <= after) {
            Some(boundary) => boundary.clone(),
            None => self.layout.separator(before, after),
        }
    }

    /// Builds the levels above the slices, given in the order of the plan, into the empty root of the index.
    /// Returns the number of entries.
    ///
    /// # Errors
    /// [`DexError::NotEmpty`]; a full pool; errors of the fabric. The nodes of the slices are freed then,
    /// unless the error [may have taken effect](DexError::may_have_taken_effect): nodes to which the root may
    /// lead stay allocated.
    pub async fn finish<E: Endpoint>(&self, ep: &E, slices: Vec<Slice>, root: GlobalAddr) -> Result<u64> {
        let entries = slices.iter().map(|slice| slice.entries).sum();
        let mut builder = Builder::new(self, ep, u8::MAX, 0);
        builder.reserve = slices.iter().map(|slice| slice.reserve).max().unwrap_or(0);
        let roots = builder.adopt(slices);
        match self.build_top(&mut builder, roots, root).await {
            Ok(()) => Ok(entries),
            Err(error) => {
                builder.free_all().await;
                Err(error)
            }
        }
    }

    /// Frees all blocks of the slices, after another slice failed.
    pub async fn discard<E: Endpoint>(&self, ep: &E, slices: Vec<Slice>) {
        let mut builder = Builder::new(self, ep, u8::MAX, 0);
        builder.adopt(slices);
        builder.free_all().await;
    }

    async fn build_top<E: Endpoint>(
        &self,
        builder: &mut Builder<'_, L, E>,
        mut roots: Vec<Orphan>,
        root: GlobalAddr,
    ) -> Result<()> {
        let ep = builder.ep;
        let old = ep.read(root, ep.buffer(self.layout.node_size())).await?;
        let stale: Vec<GlobalAddr> = self.empty_children(ep, &old).await?.ok_or(DexError::NotEmpty)?;
        while roots.len() > 1 {
            builder.levels.clear();
            for child in roots.drain(..) {
                builder.push_child(child).await?;
            }
            builder.close_levels().await?;
            roots = std::mem::take(&mut builder.roots);
        }
        let Some(top) = roots.pop() else { return Ok(()) };
        let page = ep.read(top.addr, old).await?;
        header::set(page.words(), header::ADDR, root.raw());
        self.replace_root(builder, page, root).await?;
        // The new root is in force. A block that cannot be freed from here on has leaked, and an audit
        // reports it.
        for addr in stale.into_iter().chain([top.addr]) {
            let _ = self.pool.free(ep, addr, self.layout.node_size() as u64).await;
        }
        Ok(())
    }

    /// Makes `page` the root. If the answer is lost, a READ of the root decides. If that fails too, the
    /// builder forgets its nodes, so that no node is freed that may be linked.
    async fn replace_root<E: Endpoint>(
        &self,
        builder: &mut Builder<'_, L, E>,
        page: PageBuf,
        root: GlobalAddr,
    ) -> Result<()> {
        let ep = builder.ep;
        // All words except the lock word, which other operations may be changing.
        let words = |page: &PageBuf| -> Vec<u64> {
            (header::ADDR..page.words().len()).map(|word| header::get(page.words(), word)).collect()
        };
        let new = words(&page);
        let error = match ep.write(root, page).await {
            Ok(page) => {
                ep.recycle(page);
                builder.forget();
                return Ok(());
            }
            Err(error) if defect(Defect::FreeLoaded) => return Err(error.into()),
            Err(error) => error,
        };
        match ep.read(root, ep.buffer(self.layout.node_size())).await {
            Ok(page) if words(&page) == new => {
                builder.forget();
                Ok(())
            }
            // No other operation writes the root of an index that is being loaded, so this is the old root.
            Ok(_) => Err(error.into()),
            Err(_) => {
                builder.forget();
                Err(error.into())
            }
        }
    }

    /// Leaves of a root without entries, to be freed; `None` if it has entries.
    async fn empty_children<E: Endpoint>(&self, ep: &E, root: &PageBuf) -> Result<Option<Vec<GlobalAddr>>> {
        let words = root.words();
        let mut leaves = Vec::new();
        for i in 0..self.layout.child_count(words) {
            let raw = header::get(words, self.layout.child_word(words, i));
            let Some(addr) = GlobalAddr::from_raw(raw) else { return Ok(None) };
            let leaf = ep.read(addr, ep.buffer(self.layout.node_size())).await?;
            let empty = header::level(leaf.words()) == 0 && self.layout.count(leaf.words()) == 0;
            ep.recycle(leaf);
            if !empty {
                return Ok(None);
            }
            leaves.push(addr);
        }
        let empty = header::level(words) > 0 || self.layout.count(words) == 0;
        Ok(empty.then_some(leaves))
    }
}

/// Buffer of entries between the source and the builder.
#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    ends: Vec<(usize, usize)>,
}

impl Batch {
    fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    fn push(&mut self, key: &[u8], value: &[u8]) {
        self.bytes.extend_from_slice(key);
        let key_end = self.bytes.len();
        self.bytes.extend_from_slice(value);
        self.ends.push((key_end, self.bytes.len()));
    }

    fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let mut start = 0;
        self.ends.iter().map(move |&(key_end, end)| {
            let entry = (&self.bytes[start..key_end], &self.bytes[key_end..end]);
            start = end;
            entry
        })
    }
}

/// A node to which entries or children are still added.
struct Open {
    page: PageBuf,
    low: Option<Vec<u8>>,
    entries: usize,
}

/// The first memory server that takes new blocks, from number `server` on, cyclically.
fn active_from(pool: &Pool, server: usize) -> usize {
    let servers = pool.servers();
    let is_active = |number: &usize| pool.is_active(MemoryServerId(*number as u16));
    (server..server + servers).map(|number| number % servers).find(is_active).unwrap_or(0)
}

/// Builds nodes bottom up, from left to right.
struct Builder<'b, L, E> {
    load: &'b BulkLoad<L>,
    ep: &'b E,
    /// Nodes of this level get no parent in this builder.
    cap: u8,
    /// Nodes up to this level lie on the memory server of their subtree.
    subtree_level: u8,
    /// Number of blocks to lease for a run.
    run_len: u32,
    server: usize,
    run: Option<Run>,
    /// Bytes that a node must keep free for its high fence.
    reserve: usize,
    leaf: Option<Open>,
    /// `levels[l - 1]` is the open node of level `l`.
    levels: Vec<Option<Open>>,
    roots: Vec<Orphan>,
    /// All allocated nodes, to be freed if the load fails.
    written: Written,
    values: Vec<ValueRef>,
}

impl<'b, L: Layout, E: Endpoint> Builder<'b, L, E> {
    fn new(load: &'b BulkLoad<L>, ep: &'b E, cap: u8, server: usize) -> Self {
        Self {
            load,
            ep,
            cap,
            subtree_level: load.subtree_level,
            run_len: RUN_MAX,
            server: active_from(&load.pool, server),
            run: None,
            reserve: 0,
            leaf: None,
            levels: Vec::new(),
            roots: Vec::new(),
            written: Written::default(),
            values: Vec::new(),
        }
    }

    /// Takes over the blocks of slices; returns their roots.
    fn adopt(&mut self, slices: Vec<Slice>) -> Vec<Orphan> {
        let mut roots = Vec::new();
        for mut slice in slices {
            self.written.0.append(&mut slice.written.0);
            self.values.append(&mut slice.values);
            roots.append(&mut slice.roots);
        }
        roots
    }

    fn open(&self, low: Option<Vec<u8>>, level: u8) -> Open {
        let page = self.ep.buffer(self.load.layout.node_size());
        clear(&page);
        let index_id = self.load.index_id;
        let init = NodeInit { addr: 0, index_id, level, low: low.as_deref(), high: None };
        self.load.layout.init(page.words(), &init);
        Open { page, low, entries: 0 }
    }

    fn start(&mut self, low: Option<Vec<u8>>) {
        self.leaf = Some(self.open(low, 0));
    }

    /// Adds the next entry; `last` is the key before it.
    async fn push(&mut self, last: Option<&[u8]>, key: &[u8], value: &[u8]) -> Result<()> {
        self.cross_boundaries(Some(key)).await?;
        let layout = self.load.layout;
        let prepared = layout.key(key)?;
        let stored = match layout.value_is_inline(value)? {
            true => Stored::Inline(value),
            false => {
                let near = Placement::Prefer(MemoryServerId(self.server as u16));
                let value = self.load.pool.put_value(self.ep, near, value).await?;
                self.values.push(value);
                Stored::Long(value)
            }
        };
        let leaf = self.leaf.as_mut().expect("opened by `start`");
        let words = leaf.page.words();
        let wanted = layout.fullness(words) < self.load.leaf_fill
            && layout.has_room(words, key, stored.stored_len() + self.reserve);
        if (leaf.entries == 0 || wanted) && layout.leaf_insert(words, leaf.entries, prepared, stored) {
            leaf.entries += 1;
            return Ok(());
        }
        let last = last.expect("a leaf that is full has entries");
        self.close_leaf(Some(layout.separator(last, key))).await?;
        let leaf = self.leaf.as_mut().expect("opened again");
        if !layout.leaf_insert(leaf.page.words(), 0, prepared, stored) {
            return Err(DexError::Layout("a node is too small for an entry of this size".into()));
        }
        leaf.entries = 1;
        Ok(())
    }

    /// Ends leaves at the boundaries between the open leaf and `key` (at all further ones if `None`).
    async fn cross_boundaries(&mut self, key: Option<&[u8]>) -> Result<()> {
        if self.load.boundaries.is_empty() {
            return Ok(());
        }
        loop {
            let low = self.leaf.as_ref().and_then(|leaf| leaf.low.as_deref());
            let boundaries = &self.load.boundaries;
            let next = low.map_or(0, |low| boundaries.partition_point(|boundary| boundary.as_slice() <= low));
            let Some(boundary) = boundaries.get(next).filter(|b| key.is_none_or(|key| b.as_slice() <= key))
            else {
                return Ok(());
            };
            self.close_leaf(Some(boundary.clone())).await?;
        }
    }

    /// Writes the open leaf and opens the next one at `high`.
    async fn close_leaf(&mut self, high: Option<Vec<u8>>) -> Result<()> {
        let leaf = self.leaf.take().expect("opened by `start`");
        let reopen = high.clone();
        self.close(leaf, 0, high).await?;
        if reopen.is_some() {
            self.start(reopen);
        }
        Ok(())
    }

    /// Writes a complete node and adds it to the level above.
    async fn close(&mut self, node: Open, level: u8, high: Option<Vec<u8>>) -> Result<()> {
        let addr = self.address(level).await?;
        self.written.push(addr, self.load.layout.node_size() as u64);
        let words = node.page.words();
        header::set(words, header::ADDR, addr.raw());
        if !self.load.layout.set_fences(words, node.low.as_deref(), high.as_deref()) {
            return Err(DexError::Layout("a node is too small for its fences".into()));
        }
        let page = self.ep.write(addr, node.page).await?;
        self.ep.recycle(page);
        let orphan = Orphan { addr, level, low: node.low, high };
        if level == self.subtree_level {
            // The next subtree goes to the next memory server.
            self.change_server().await?;
        }
        if level >= self.cap {
            self.roots.push(orphan);
            return Ok(());
        }
        outlined(Box::pin(self.push_child(orphan))).await
    }

    async fn push_child(&mut self, child: Orphan) -> Result<()> {
        let layout = self.load.layout;
        let level = child.level + 1;
        let slot = usize::from(child.level);
        while self.levels.len() <= slot {
            self.levels.push(None);
        }
        if let Some(node) = &mut self.levels[slot] {
            let separator = child.low.as_deref().expect("only the first child has no low fence");
            let words = node.page.words();
            let i = node.entries - 1;
            if layout.inner_insert(words, i, separator, child.addr.raw()) {
                node.entries += 1;
            } else {
                let node = self.levels[slot].take().expect("matched above");
                self.close(node, level, child.low.clone()).await?;
            }
        }
        if self.levels[slot].is_none() {
            let mut node = self.open(child.low.clone(), level);
            let words = node.page.words();
            header::set(words, layout.child_word(words, 0), child.addr.raw());
            node.entries = 1;
            self.levels[slot] = Some(node);
        }
        // Keep room for one more separator and the fence.
        let room = 1.0 - (3 * self.reserve) as f64 / layout.node_size() as f64;
        let fill = self.load.inner_fill.min(room);
        // A node needs two children: with a single one, the levels would never converge to a root.
        let full = self.levels[slot]
            .as_ref()
            .is_some_and(|node| node.entries > 1 && layout.fullness(node.page.words()) >= fill);
        if full && child.high.is_some() {
            let node = self.levels[slot].take().expect("just found full");
            self.close(node, level, child.high).await?;
        }
        Ok(())
    }

    /// Ends the slice: the open leaf and the open nodes above it get `high` as their high fence.
    async fn end(&mut self, high: Option<Vec<u8>>) -> Result<()> {
        if high.is_none() {
            self.cross_boundaries(None).await?;
        }
        let leaf = self.leaf.take().expect("opened by `start`");
        self.close(leaf, 0, high.clone()).await?;
        self.close_to_top(high).await?;
        self.drop_run().await
    }

    /// Closes the open nodes, bottom up, until a single node is left, or the nodes of level `cap`.
    async fn close_to_top(&mut self, high: Option<Vec<u8>>) -> Result<()> {
        let mut slot = 0;
        while slot < self.levels.len() {
            if let Some(node) = self.levels[slot].take() {
                let above = self.levels[slot + 1..].iter().any(Option::is_some);
                if !above && node.entries == 1 && self.cap == u8::MAX {
                    // A single child needs no parent: it is the top.
                    let words = node.page.words();
                    let raw = header::get(words, self.load.layout.child_word(words, 0));
                    let addr = GlobalAddr::from_raw(raw).expect("stored by `push_child`");
                    self.roots.push(Orphan { addr, level: slot as u8, low: node.low, high: high.clone() });
                    return Ok(());
                }
                self.close(node, slot as u8 + 1, high.clone()).await?;
            }
            slot += 1;
        }
        Ok(())
    }

    /// Ends all open nodes at the right end of the key space, for the levels above the slices.
    async fn close_levels(&mut self) -> Result<()> {
        self.close_to_top(None).await?;
        self.drop_run().await
    }

    async fn address(&mut self, level: u8) -> Result<GlobalAddr> {
        let size = self.load.layout.node_size() as u64;
        if level > self.subtree_level {
            return Ok(self.load.pool.alloc(self.ep, Placement::LeastLoaded, size).await?);
        }
        if let Some(addr) = self.run.as_mut().and_then(Iterator::next) {
            return Ok(addr);
        }
        let server = MemoryServerId(self.server as u16);
        match self.load.pool.lease_run(self.ep, server, size, self.run_len).await {
            Ok(mut run) => {
                let addr = run.next().expect("a run is not empty");
                self.run = Some(run);
                Ok(addr)
            }
            Err(error) if error.is_full() => {
                Ok(self.load.pool.alloc(self.ep, Placement::Prefer(server), size).await?)
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn change_server(&mut self) -> Result<()> {
        self.drop_run().await?;
        self.server = active_from(&self.load.pool, self.server + 1);
        Ok(())
    }

    async fn drop_run(&mut self) -> Result<()> {
        if let Some(run) = self.run.take() {
            self.load.pool.return_run(self.ep, run).await?;
        }
        Ok(())
    }

    /// Forgets all blocks, because they belong to the index, or may.
    fn forget(&mut self) {
        self.written.0.clear();
        self.values.clear();
    }

    /// Frees all blocks after a failure. A block that cannot be freed has leaked, and an audit reports it.
    async fn free_all(&mut self) {
        let size = self.load.layout.node_size() as u64;
        let _ = self.drop_run().await;
        for addr in std::mem::take(&mut self.written).nodes(size) {
            let _ = self.load.pool.free(self.ep, addr, size).await;
        }
        for value in std::mem::take(&mut self.values) {
            let _ = self.load.pool.free_value(self.ep, value).await;
        }
    }
}
