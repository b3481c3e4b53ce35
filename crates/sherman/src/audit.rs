//! Checks all invariants of a tree at a quiescent point.
//!
//! Level by level: starting at the leftmost node, right neighbours form a chain whose fences leave no gap,
//! with keys in order and within the fences. The children of the level above appear in the chain in order,
//! each from its separator on. Nodes without a parent were split off but not linked yet. No lock is held, and
//! no node is reached twice.

use std::collections::BTreeSet;

use pando_fabric::{Endpoint, GlobalAddr, PageBuf};
use pando_pool::lock::lock_owner;

use crate::check::Verdict;
use crate::error::Result;
use crate::node::Node;
use crate::shape::Key;
use crate::tree::Sherman;

/// Result of an audit.
#[derive(Clone, Debug, Default)]
pub struct Audit {
    pub violations: Vec<String>,
    pub entries: u64,
    pub leaves: u64,
    pub inner_nodes: u64,
    /// Nodes that no parent links.
    pub unlinked: u64,
    /// Number of levels; 1 if the root is a leaf.
    pub height: u32,
    /// Mean fraction of a leaf's slots in use.
    pub leaf_fullness: f64,
    /// Every block of the index with its size in bytes: anchor, lock tables, nodes, and this compute server's
    /// free nodes.
    pub blocks: Vec<(GlobalAddr, u64)>,
}

/// A child as listed in its parent.
type Child = (GlobalAddr, Option<Key>);

impl Sherman {
    /// Checks every node. Nothing else may use the index meanwhile.
    ///
    /// # Errors
    /// Errors of the fabric; all violations are in the result.
    pub async fn audit<E: Endpoint>(&self, ep: &E) -> Result<Audit> {
        let mut found = Audit::default();
        let mut reached = BTreeSet::new();
        let mut children: Vec<Child> = vec![(self.anchor.root, None)];
        let mut fullness = 0.0;
        while let Some(&(first, _)) = children.first() {
            found.height += 1;
            let mut below = Vec::new();
            let mut chain = Vec::new();
            let (mut next, mut low) = (Some(first), None);
            while let Some(addr) = next {
                if !reached.insert(addr) {
                    found.violations.push(format!("the node at {addr} is reached twice"));
                    break;
                }
                let page = ep.read(addr, ep.buffer(self.shape.node_size())).await?;
                self.audit_lock(ep, addr, &mut found).await?;
                let node = self.node(&page);
                self.audit_node(addr, &page, low, &mut found.violations);
                chain.push((addr, node.low()));
                if node.level() == 0 {
                    found.leaves += 1;
                    found.entries += node.entries() as u64;
                    fullness += node.entries() as f64 / self.shape.leaf_max() as f64;
                } else {
                    found.inner_nodes += 1;
                    let child = |i| node.child(i).map(|child| (child, node.child_fences(i).low));
                    below.extend((0..=node.count()).filter_map(child));
                }
                (next, low) = (node.sibling(), node.high());
            }
            if low.is_some() {
                found.violations.push(format!("the level of {first} ends at {low:?}"));
            }
            audit_links(&children, &chain, &mut found);
            children = below;
        }
        found.leaf_fullness = if found.leaves > 0 { fullness / found.leaves as f64 } else { 0.0 };
        self.list_blocks(reached, &mut found);
        Ok(found)
    }

    fn list_blocks(&self, nodes: BTreeSet<GlobalAddr>, found: &mut Audit) {
        let size = self.shape.node_size() as u64;
        let free = self.free_list();
        for &addr in free.iter().filter(|addr| nodes.contains(addr)) {
            found.violations.push(format!("the node at {addr} is in use and free"));
        }
        found.blocks.push((self.at, self.anchor.bytes()));
        let segments = self.anchor.tables.iter().flatten();
        found.blocks.extend(segments.map(|&segment| (segment, self.anchor.segment_bytes())));
        found.blocks.extend(nodes.into_iter().chain(free).map(|addr| (addr, size)));
    }

    async fn audit_lock<E: Endpoint>(&self, ep: &E, addr: GlobalAddr, found: &mut Audit) -> Result<()> {
        if lock_owner(ep.read_word(self.lock_addr(addr)).await?).is_some() {
            found.violations.push(format!("the lock of the node at {addr} was left"));
        }
        Ok(())
    }

    fn audit_node(&self, addr: GlobalAddr, page: &PageBuf, low: Option<Key>, violations: &mut Vec<String>) {
        let mut complain = |what: &str| violations.push(format!("the node at {addr}: {what}"));
        let node = self.node(page);
        if node.verify(addr, self.index()) != Verdict::Whole || !node.has_whole_slots() {
            complain("its checks do not fit");
        }
        if node.is_gone() {
            complain("it is gone");
        }
        if node.low() != low {
            complain("it does not begin where the one before ends");
        }
        let keys = keys_of(&node);
        if !keys.is_sorted_by(|a, b| a < b) {
            complain("its keys are not in order, or twice there");
        }
        if !keys.iter().all(|key| node.covers(key)) {
            complain("a key lies outside of its fences");
        }
    }
}

/// Keys of a node in order.
fn keys_of(node: &Node<'_>) -> Vec<Key> {
    match node.level() {
        0 => {
            let mut keys: Vec<_> = node.occupied().map(|i| node.leaf_key(i)).collect();
            if node.is_unsorted() {
                keys.sort_unstable();
            }
            keys
        }
        _ => (0..node.count()).map(|i| node.separator(i)).collect(),
    }
}

/// Compares the children of a level with the chain of nodes below.
fn audit_links(children: &[Child], chain: &[Child], found: &mut Audit) {
    let mut chain = chain.iter();
    for child in children {
        loop {
            match chain.next() {
                Some(node) if node == child => break,
                Some(_) => found.unlinked += 1,
                None => {
                    let (addr, low) = child;
                    return found
                        .violations
                        .push(format!("the child at {addr} from {low:?} on is not in its level"));
                }
            }
        }
    }
    found.unlinked += chain.count() as u64;
}
