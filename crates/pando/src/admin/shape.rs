//! The shape of indexes in use, as far as it can be read without owning them.
//!
//! The auditor of [`Cluster::check`] needs the pool alone. This walk takes no lock: it READs the nodes on the
//! memory servers, level by level, and trusts none of them. A node that differs from its parent's description
//! (freed, reused, torn by a concurrent WRITE) is READ again, and is then left out and counted. Dirty nodes
//! in caches of this process are written back first; those of other owners are not seen. So the figures are
//! approximate and prove nothing about the invariants.

use pando_dex::layout::{Layout, Side, header};
use pando_dex::partition_of;
use pando_fabric::{Endpoint, GlobalAddr, MemoryServerId, PageBuf};
use pando_pool::IndexRecord;
use pando_rt::block_on;

use super::IndexReport;
use crate::cluster::Cluster;
use crate::error::{Error, Result};
use crate::index::write_back;
use crate::layout::with_layout;
use crate::options::Descriptor;
use crate::place::AnyEndpoint;
use crate::shared::{Shared, lock};

/// READs of a node before it is left out.
const READS_MAX: usize = 3;

impl Cluster {
    /// Shape of each index on the memory servers, in the order of their names, while this and other processes
    /// may use them. Indexes that cannot be read at all are missing. This process's changes are written back
    /// first; for partitions of other processes, the figures are those of their last write-back.
    /// [`IndexReport::unreadable`] counts nodes that changed too fast to be read.
    ///
    /// # Errors
    /// Errors of the fabric; a damaged catalog.
    pub fn shapes(&self) -> Result<Vec<IndexReport>> {
        let shared = &self.shared;
        shared.check_open()?;
        shared.with_endpoint(|ep| {
            if !shared.read_only() {
                shared.losing_on_error(|| write_back(ep, &lock(&self.registry.open)))?;
            }
            let mut reports = Vec::new();
            for name in shared.names(ep)? {
                match shared.record(ep, &name).and_then(|record| shape_of(ep, shared, &record)) {
                    Ok(report) => reports.extend(report),
                    Err(error @ Error::Fabric(_)) => return Err(error),
                    // Dropped meanwhile, or of a kind that this program does not know.
                    Err(_) => {}
                }
            }
            Ok(reports)
        })
    }
}

fn shape_of(ep: &AnyEndpoint, shared: &Shared, record: &IndexRecord) -> Result<Option<IndexReport>> {
    if record.root.is_null() {
        return Ok(None);
    }
    let layout = Descriptor::of_record(record)?.node_layout(record.node_size as usize)?;
    let servers = shared.pool.servers();
    with_layout!(layout, |layout| Shape::new(ep, layout, record, servers).walk().map(Some))
}

/// A node to read: its address, and the memory server of the level-M subtree that it belongs to.
type Node = (GlobalAddr, Option<MemoryServerId>);

struct Shape<'a, L> {
    ep: &'a AnyEndpoint,
    layout: L,
    record: &'a IndexRecord,
    report: IndexReport,
    fullness_sum: f64,
    /// Buffer for a key or a value.
    bytes: Vec<u8>,
}

impl<'a, L: Layout> Shape<'a, L> {
    fn new(ep: &'a AnyEndpoint, layout: L, record: &'a IndexRecord, servers: usize) -> Self {
        let report = IndexReport {
            name: record.name.clone(),
            nodes_per_server: vec![0; servers],
            partition_entries: vec![0; record.boundaries.len() + 1],
            ..IndexReport::default()
        };
        Self { ep, layout, record, report, fullness_sum: 0.0, bytes: Vec::new() }
    }

    fn walk(mut self) -> Result<IndexReport> {
        let mut level: Vec<Node> = vec![(self.record.root, None)];
        let mut height = None;
        while !level.is_empty() {
            let mut below = Vec::new();
            for node in level {
                self.visit(node, &mut height, &mut below)?;
            }
            // Parents READ at different times may name the same child.
            below.sort_unstable_by_key(|&(addr, _)| addr);
            below.dedup_by_key(|&mut (addr, _)| addr);
            level = below;
            height = match height {
                Some(height) if height > 0 => Some(height - 1),
                _ => break,
            };
        }
        if self.report.leaves > 0 {
            self.report.leaf_fullness = self.fullness_sum / self.report.leaves as f64;
        }
        Ok(self.report)
    }

    /// Counts a node and appends its children to `below`. `level` is the level of the node; unknown for the
    /// root.
    fn visit(&mut self, node: Node, level: &mut Option<u8>, below: &mut Vec<Node>) -> Result<()> {
        let Some(page) = self.read(node.0, *level)? else {
            self.report.unreadable += 1;
            return Ok(());
        };
        let found = header::level(page.words());
        if level.is_none() {
            *level = Some(found);
            self.report.height = u32::from(found) + 1;
        }
        self.report.bytes += self.layout.node_size() as u64;
        if let Some(nodes) = self.report.nodes_per_server.get_mut(usize::from(node.0.server().0)) {
            *nodes += 1;
        }
        let root = self.report.height.saturating_sub(1) as u8;
        let subtree_level = pando_dex::placement_level(self.record.subtree_level, root);
        if found < subtree_level && node.1.is_some_and(|server| server != node.0.server()) {
            self.report.strays += 1;
        }
        if found == 0 {
            self.count_entries(&page);
        } else {
            self.report.inner_nodes += 1;
            let is_root = node.0 == self.record.root;
            let subtree = match is_root || found > subtree_level {
                true => None,
                false => node.1.or(Some(node.0.server())),
            };
            self.push_children(&page, subtree, below);
        }
        self.ep.recycle(page);
        Ok(())
    }

    /// The node at `addr`, if it belongs to this index and has the given level.
    fn read(&self, addr: GlobalAddr, level: Option<u8>) -> Result<Option<PageBuf>> {
        let mut page = self.ep.buffer(self.layout.node_size());
        for _ in 0..READS_MAX {
            page = block_on(self.ep, self.ep.read(addr, page))?;
            let words = page.words();
            let ours = header::addr(words) == addr.raw()
                && header::index_id(words) == self.record.id
                && level.is_none_or(|level| header::level(words) == level);
            if ours && self.layout.verify(words).is_ok() {
                return Ok(Some(page));
            }
            std::thread::yield_now();
        }
        self.ep.recycle(page);
        Ok(None)
    }

    fn count_entries(&mut self, page: &PageBuf) {
        let words = page.words();
        let count = self.layout.count(words);
        self.report.leaves += 1;
        self.report.entries += count as u64;
        // A leaf belongs to one partition, since leaves end at boundaries.
        self.bytes.clear();
        let has_low = self.layout.append_fence(words, Side::Low, &mut self.bytes);
        let partition = if has_low { partition_of(&self.record.boundaries, &self.bytes) } else { 0 };
        self.report.partition_entries[partition] += count as u64;
        self.fullness_sum += self.layout.fullness(words);
        for i in 0..count {
            self.bytes.clear();
            self.layout.append_key(words, i, &mut self.bytes);
            self.report.key_bytes += self.bytes.len() as u64;
            self.bytes.clear();
            match self.layout.append_value(words, i, &mut self.bytes) {
                None => self.report.value_bytes += self.bytes.len() as u64,
                Some(long) => {
                    self.report.value_bytes += long.len;
                    self.report.bytes += long.len;
                }
            }
        }
    }

    fn push_children(&mut self, page: &PageBuf, subtree: Option<MemoryServerId>, below: &mut Vec<Node>) {
        let words = page.words();
        for i in 0..self.layout.child_count(words) {
            let raw = header::get(words, self.layout.child_word(words, i));
            // A torn inner node may contain any word.
            match GlobalAddr::from_raw(raw) {
                Some(addr) if self.is_in_a_region(addr) => below.push((addr, subtree)),
                _ => self.report.unreadable += 1,
            }
        }
    }

    fn is_in_a_region(&self, addr: GlobalAddr) -> bool {
        let size = self.layout.node_size() as u64;
        let region = self.ep.regions().get(usize::from(addr.server().0));
        region.is_some_and(|region| addr.offset().is_multiple_of(8) && addr.offset() + size <= region.len)
    }
}
