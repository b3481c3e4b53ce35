//! The auditor: walks a whole index at a quiescent point and checks the invariants of the crate
//! documentation.
//!
//! It sees the index as the compute servers do: the content of an owned node is taken from its owner's cache
//! if it is there, that of any other node from remote memory.

use std::sync::atomic::Ordering::Relaxed;

use pando_cache::{FrameId, FrameState};
use pando_fabric::{Endpoint, GlobalAddr, MemoryServerId, PageBuf};
use pando_pool::Pool;

use crate::descent::read;
use crate::error::Result;
use crate::layout::{Layout, Side, header};
use crate::node::Node;
use crate::tree::{Tree, gate};

/// Checks the cache's invariants at a quiescent point, and that its owned nodes have owned keys only.
pub fn audit_cache<L: Layout>(tree: &Tree<L>) -> Vec<String> {
    let mut wrong = tree.cache.audit(tree.layout);
    let view = gate::present_view(tree);
    if view.nodes != view.keys {
        return wrong;
    }
    for frame in (0..tree.cache.frames() as u32).map(FrameId).filter(|&id| id != tree.root) {
        let frame = tree.cache.frame(frame);
        let is_held = frame.optimistic().is_ok_and(|version| version.state() != FrameState::Free);
        let is_own = is_held && !tree.node(frame).is_shared();
        if is_own && view.nodes.is_crossed_by(tree.node(frame)) {
            let level = tree.node(frame).level();
            wrong.push(format!("frame {} has a node of level {level} with keys of others", frame.id().0));
        }
    }
    wrong
}

/// Largest number of violations that are listed; further ones are only counted.
const LISTED: usize = 20;

/// Result of an audit.
#[derive(Debug, Default)]
pub struct Report {
    /// The first violations, one sentence each.
    pub violations: Vec<String>,
    /// Number of all violations.
    pub violation_count: u64,
    pub entries: u64,
    pub leaves: u64,
    pub inner_nodes: u64,
    /// Number of levels; 1 if the root is a leaf.
    pub height: u32,
    /// Bytes of keys and of values, including long values.
    pub key_bytes: u64,
    pub value_bytes: u64,
    /// Number of nodes below level M that lie on another memory server than the root of their subtree,
    /// because that was full.
    pub strays: u64,
    /// Number of nodes on each memory server.
    pub nodes_per_server: Vec<u64>,
    /// Blocks that the index uses.
    pub blocks: Blocks,
    /// Sum, over all leaves, of the used share of their room.
    fullness_sum: f64,
}

/// Blocks of an index: its nodes, and those of its long values. There may be many millions.
#[derive(Debug, Default)]
pub struct Blocks {
    node_size: u64,
    nodes: Vec<GlobalAddr>,
    of_values: Vec<(GlobalAddr, u64)>,
}

impl Blocks {
    /// Address and requested size in bytes of each block.
    pub fn iter(&self) -> impl Iterator<Item = (GlobalAddr, u64)> {
        self.nodes.iter().map(|&node| (node, self.node_size)).chain(self.of_values.iter().copied())
    }

    /// Sum of the requested sizes in bytes.
    pub fn bytes(&self) -> u64 {
        self.iter().map(|(_, bytes)| bytes).sum()
    }
}

impl Report {
    /// Whether there is no violation.
    pub fn is_clean(&self) -> bool {
        self.violation_count == 0
    }

    /// Mean used share of a leaf's room.
    pub fn leaf_fullness(&self) -> f64 {
        if self.leaves == 0 { 0.0 } else { self.fullness_sum / self.leaves as f64 }
    }

    pub fn violation(&mut self, text: String) {
        self.violation_count += 1;
        if self.violations.len() < LISTED {
            self.violations.push(text);
        }
    }
}

/// A node still to be visited, with the properties that its parent promises.
struct Expected {
    addr: GlobalAddr,
    level: Option<u8>,
    low: Option<Vec<u8>>,
    high: Option<Vec<u8>>,
    /// Memory server of the level-M subtree to which it belongs.
    subtree: Option<MemoryServerId>,
}

/// Checks one index through all compute servers that this process runs for it (at least one). No operation
/// may use the index meanwhile.
///
/// # Errors
/// Errors of the fabric; everything else that is wrong is in the report.
pub async fn audit<L: Layout, E: Endpoint>(ep: &E, trees: &[&Tree<L>]) -> Result<Report> {
    let first = trees.first().expect("an index is audited through at least one compute server");
    let blocks = Blocks { node_size: first.layout.node_size() as u64, ..Blocks::default() };
    let mut auditor = Auditor { ep, trees, report: Report { blocks, ..Report::default() } };
    for tree in trees {
        for wrong in audit_cache(tree) {
            auditor.report.violation(wrong);
        }
    }
    let root = Expected { addr: first.config.root, level: None, low: None, high: None, subtree: None };
    let mut stack = vec![root];
    while let Some(expected) = stack.pop() {
        auditor.visit(expected, &mut stack).await?;
    }
    auditor.compare_clean_frames().await?;
    Ok(auditor.report)
}

struct Auditor<'a, L, E> {
    ep: &'a E,
    trees: &'a [&'a Tree<L>],
    report: Report,
}

impl<L: Layout, E: Endpoint> Auditor<'_, L, E> {
    fn layout(&self) -> L {
        self.trees[0].layout
    }

    /// Content of the node as its owner sees it.
    async fn page_of(&mut self, addr: GlobalAddr) -> Result<PageBuf> {
        let page = self.ep.buffer(self.layout().node_size());
        for tree in self.trees {
            let Some(id) = tree.cache.table().frame_of(addr) else { continue };
            let frame = tree.cache.frame(id);
            if header::has(frame.words(), header::SHARED) {
                continue;
            }
            if frame.copy_out(self.layout(), &page).is_ok() {
                return Ok(page);
            }
        }
        Ok(self.ep.read(addr, page).await?)
    }

    async fn visit(&mut self, expected: Expected, stack: &mut Vec<Expected>) -> Result<()> {
        let page = self.page_of(expected.addr).await?;
        let layout = self.layout();
        let words = page.words();
        let addr = expected.addr;
        if let Err(error) = read::check_node(self.trees[0], addr, &page) {
            self.report.violation(error.to_string());
            self.ep.recycle(page);
            return Ok(());
        }
        let level = header::level(words);
        if expected.level.is_some_and(|expected| expected != level) {
            self.report
                .violation(format!("the node at {addr} is of level {level}, not one below its parent"));
        }
        for (side, wanted) in [(Side::Low, &expected.low), (Side::High, &expected.high)] {
            let mut fence = Vec::new();
            let fence = layout.append_fence(words, side, &mut fence).then_some(fence);
            if fence != *wanted {
                self.report.violation(format!(
                    "the {side:?} fence of the node at {addr} is not its parent's separator"
                ));
            }
        }
        self.report.blocks.nodes.push(addr);
        self.count_server(addr);
        self.check_subtree(&expected, level);
        if level == 0 {
            self.visit_leaf(&expected, &page).await?;
        } else {
            self.report.inner_nodes += 1;
            self.report.height = self.report.height.max(u32::from(level) + 1);
            self.push_children(&expected, &page, stack);
        }
        self.ep.recycle(page);
        Ok(())
    }

    /// Level of the subtrees that should each lie on one memory server.
    fn placement_level(&self) -> u8 {
        crate::placement::spread::spread_level(self.trees[0], self.trees[0].height())
    }

    fn count_server(&mut self, addr: GlobalAddr) {
        let server = usize::from(addr.server().0);
        if self.report.nodes_per_server.len() <= server {
            self.report.nodes_per_server.resize(server + 1, 0);
        }
        self.report.nodes_per_server[server] += 1;
    }

    fn check_subtree(&mut self, expected: &Expected, level: u8) {
        let below = level < self.placement_level();
        if below && expected.subtree.is_some_and(|server| server != expected.addr.server()) {
            self.report.strays += 1;
        }
    }

    async fn visit_leaf(&mut self, expected: &Expected, page: &PageBuf) -> Result<()> {
        let layout = self.layout();
        let words = page.words();
        let count = layout.count(words);
        self.report.leaves += 1;
        self.report.height = self.report.height.max(1);
        self.report.entries += count as u64;
        self.report.fullness_sum += layout.fullness(words);
        let partitioned = self.trees.iter().any(|tree| !tree.range().is_all());
        let owners =
            self.trees.iter().filter(|tree| !tree.range().is_crossed_by(Node::new(&layout, words))).count();
        if partitioned && self.trees.len() > 1 && owners != 1 {
            self.report
                .violation(format!("the leaf at {} belongs to {owners} compute servers", expected.addr));
        }
        let mut bytes = Vec::new();
        for i in 0..count {
            bytes.clear();
            layout.append_key(words, i, &mut bytes);
            self.report.key_bytes += bytes.len() as u64;
            bytes.clear();
            match layout.append_value(words, i, &mut bytes) {
                None => self.report.value_bytes += bytes.len() as u64,
                Some(long) => {
                    self.report.value_bytes += long.len;
                    let blocks = &mut self.report.blocks.of_values;
                    let pool = &self.trees[0].pool;
                    let walked =
                        pool.visit_value_blocks(self.ep, long, |addr, size| blocks.push((addr, size))).await;
                    let read = pool.get_value(self.ep, long, &mut bytes).await;
                    if let Err(error) = walked.and(read) {
                        self.report
                            .violation(format!("a long value of the leaf at {}: {error}", expected.addr));
                    }
                }
            }
        }
        Ok(())
    }

    fn push_children(&mut self, expected: &Expected, page: &PageBuf, stack: &mut Vec<Expected>) {
        let layout = self.layout();
        let words = page.words();
        let level = header::level(words);
        let is_root = expected.level.is_none();
        let subtree = match level {
            // The root counts as no subtree: it is always cached, so nothing is offloaded at it.
            _ if is_root || level > self.placement_level() => None,
            _ => expected.subtree.or(Some(expected.addr.server())),
        };
        let mut low = expected.low.clone();
        for i in 0..layout.child_count(words) {
            let raw = header::get(words, layout.child_word(words, i));
            let Some(addr) = GlobalAddr::from_raw(raw) else {
                self.report.violation(format!("a swizzled pointer in remote memory at {}", expected.addr));
                continue;
            };
            let high = if i < layout.count(words) {
                let mut key = Vec::new();
                layout.append_key(words, i, &mut key);
                Some(key)
            } else {
                expected.high.clone()
            };
            stack.push(Expected { addr, level: Some(level - 1), low, high: high.clone(), subtree });
            low = high;
        }
    }

    /// Checks that each clean frame of an owned node equals its remote copy.
    async fn compare_clean_frames(&mut self) -> Result<()> {
        let layout = self.layout();
        for tree in self.trees {
            let mut frames = Vec::new();
            tree.cache.table().for_each(|addr, frame| frames.extend(frame.map(|frame| (addr, frame))));
            for (addr, id) in frames {
                let frame = tree.cache.frame(id);
                let shared = header::has(frame.words(), header::SHARED);
                let dirty = frame.optimistic().is_ok_and(|version| version.is_dirty());
                let cached = self.ep.buffer(layout.node_size());
                if shared || dirty || frame.copy_out(layout, &cached).is_err() {
                    continue;
                }
                let remote = self.ep.read(addr, self.ep.buffer(layout.node_size())).await?;
                // Flags, lock and version in the header may differ between the two.
                let own = |word: usize| {
                    word == header::LOCK || word == header::KIND || word == header::REMOTE_VERSION
                };
                let differs = (0..cached.words().len())
                    .any(|i| !own(i) && cached.words()[i].load(Relaxed) != remote.words()[i].load(Relaxed));
                if differs {
                    self.report
                        .violation(format!("the clean cached copy of the node at {addr} differs from it"));
                }
                self.ep.recycle(cached);
                self.ep.recycle(remote);
            }
        }
        Ok(())
    }
}

/// Compares the blocks that all indexes of a pool and `others` (the catalog, for example) use with those that
/// are allocated: each allocated block must be used exactly once, and each used block allocated.
///
/// # Errors
/// Errors of the fabric.
pub async fn check_blocks<E: Endpoint>(
    ep: &E,
    pool: &Pool,
    reports: &mut [Report],
    others: &[(GlobalAddr, u64)],
) -> Result<Vec<String>> {
    let mut leaked = Vec::new();
    let mut wrong = compare_blocks(ep, pool, reports, others, &mut leaked).await?;
    wrong.extend(tell_leaks(&leaked));
    Ok(wrong)
}

/// The sentence about allocated blocks that belong to nothing.
pub fn tell_leaks(leaked: &[(GlobalAddr, u64)]) -> Option<String> {
    let &(addr, size) = leaked.first()?;
    let count = leaked.len();
    Some(format!("{count} allocated blocks belong to nothing, the first of {size} bytes at {addr}"))
}

/// [`check_blocks`] with address and size of each allocated block that belongs to nothing apart.
///
/// # Errors
/// Errors of the fabric.
pub async fn compare_blocks<E: Endpoint>(
    ep: &E,
    pool: &Pool,
    reports: &mut [Report],
    others: &[(GlobalAddr, u64)],
    leaked: &mut Vec<(GlobalAddr, u64)>,
) -> Result<Vec<String>> {
    let mut used = Vec::new();
    for report in reports {
        let blocks = std::mem::take(&mut report.blocks);
        match used.is_empty() {
            true => used = blocks.nodes,
            false => used.extend(blocks.nodes),
        }
        used.extend(blocks.of_values.iter().map(|&(addr, _)| addr));
    }
    used.extend(others.iter().map(|&(addr, _)| addr));
    used.sort_unstable();
    let mut wrong = Vec::new();
    for pair in used.windows(2).filter(|pair| pair[0] == pair[1]) {
        wrong.push(format!("the block at {} is used twice", pair[0]));
    }
    let mut seen = vec![false; used.len()];
    pool.visit_allocated(ep, |addr, size| match used.binary_search(&addr) {
        Ok(i) => seen[i] = true,
        Err(_) => leaked.push((addr, size)),
    })
    .await?;
    for (addr, _) in used.iter().zip(&seen).filter(|(_, seen)| !**seen).take(LISTED) {
        wrong.push(format!("the block at {addr} is used but not allocated"));
    }
    Ok(wrong)
}
