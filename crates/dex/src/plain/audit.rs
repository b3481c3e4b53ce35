//! Checks of all invariants of a plain tree at a quiescent point.
//!
//! The fences of children partition the fences of their parent, levels decrease by one, keys are in order and
//! within the fences of their leaf, no lock is left, and no node is reached twice.

use std::collections::BTreeSet;

use pando_fabric::{Endpoint, GlobalAddr};
use pando_pool::lock::unlocked_version;

use crate::error::Result;
use crate::layout::{Layout, Side, header};
use crate::plain::PlainTree;

/// Result of an audit.
#[derive(Clone, Debug, Default)]
pub struct PlainAudit {
    pub violations: Vec<String>,
    pub entries: u64,
    pub leaves: u64,
    pub inner_nodes: u64,
    /// Number of levels; 1 if the root is a leaf.
    pub height: u32,
    /// Mean used share of a leaf's room.
    pub leaf_fullness: f64,
}

/// A node to be visited, with the properties that its parent promises.
struct Promise {
    addr: GlobalAddr,
    level: Option<u8>,
    low: Option<Vec<u8>>,
    high: Option<Vec<u8>>,
}

impl<L: Layout> PlainTree<L> {
    /// Checks every node. No operation may use the index meanwhile.
    ///
    /// # Errors
    /// Errors of the fabric; everything else that is wrong is in the result.
    pub async fn audit<E: Endpoint>(&self, ep: &E) -> Result<PlainAudit> {
        let mut found = PlainAudit::default();
        let mut reached = BTreeSet::new();
        let mut fullness = 0.0;
        let mut open = vec![Promise { addr: self.config.root, level: None, low: None, high: None }];
        while let Some(promise) = open.pop() {
            let page = ep.read(promise.addr, ep.buffer(self.layout.node_size())).await?;
            if let Err(error) = self.check(ep, promise.addr, &page) {
                found.violations.push(error.to_string());
                continue;
            }
            if !reached.insert(promise.addr.raw()) {
                found.violations.push(format!("the node at {} is reached twice", promise.addr));
                continue;
            }
            let words = page.words();
            self.audit_node(words, &promise, &mut found.violations);
            if header::level(words) == 0 {
                found.leaves += 1;
                found.entries += self.layout.count(words) as u64;
                fullness += self.layout.fullness(words);
            } else {
                found.inner_nodes += 1;
                self.promise_children(words, &promise, &mut open);
            }
            if promise.level.is_none() {
                found.height = u32::from(header::level(words)) + 1;
            }
            ep.recycle(page);
        }
        found.leaf_fullness = if found.leaves > 0 { fullness / found.leaves as f64 } else { 0.0 };
        Ok(found)
    }

    fn audit_node(&self, words: &[pando_cache::sync::Word], promise: &Promise, violations: &mut Vec<String>) {
        let mut complain = |what: &str| violations.push(format!("the node at {}: {what}", promise.addr));
        if unlocked_version(header::get(words, header::LOCK)).is_none() {
            complain("its lock was left");
        }
        if promise.level.is_some_and(|level| header::level(words) != level) {
            complain("it is not one level below its parent");
        }
        let fence = |side| {
            let mut key = Vec::new();
            self.layout.append_fence(words, side, &mut key).then_some(key)
        };
        if fence(Side::Low) != promise.low || fence(Side::High) != promise.high {
            complain("its fences are not what its parent says");
        }
        let mut before: Option<Vec<u8>> = None;
        for i in 0..self.layout.count(words) {
            let mut key = Vec::new();
            self.layout.append_key(words, i, &mut key);
            if before.as_ref().is_some_and(|before| *before >= key) {
                complain("its keys are not in order");
            }
            if !self.layout.key(&key).is_ok_and(|key| self.layout.covers(words, key)) {
                complain("a key lies outside of its fences");
            }
            before = Some(key);
        }
    }

    fn promise_children(&self, words: &[pando_cache::sync::Word], of: &Promise, open: &mut Vec<Promise>) {
        let count = self.layout.count(words);
        let separator = |i: usize| {
            let mut key = Vec::new();
            self.layout.append_key(words, i, &mut key);
            key
        };
        for i in 0..=count {
            let raw = header::get(words, self.layout.child_word(words, i));
            let Some(addr) = GlobalAddr::from_raw(raw) else { continue };
            let low = i.checked_sub(1).map_or_else(|| of.low.clone(), |before| Some(separator(before)));
            let high = if i < count { Some(separator(i)) } else { of.high.clone() };
            open.push(Promise { addr, level: Some(header::level(words).wrapping_sub(1)), low, high });
        }
    }
}
