//! Range queries (Sherman §4.4): leaf by leaf, in key order, with the next leaves READ in parallel.
//!
//! The node above the leaves lists them. Each leaf is verified before its entries are returned, and its high
//! fence tells where the next one must begin. After a concurrent split or merge the next leaf does not match,
//! and the remaining leaves are looked up anew. So a scan returns every key that was present throughout, none
//! that was absent throughout, and each once.

use std::ops::Bound;

use pando_fabric::defect::defect;
use pando_fabric::{Endpoint, GlobalAddr, PageBuf, Work, join_all};

use crate::access::{Belongs, Reader};
use crate::defect::Defect;
use crate::error::{Attempt, Result};
use crate::node::Node;
use crate::shape::Key;
use crate::tree::{NO_LEVEL, Sherman};

/// Range to scan.
#[derive(Clone, Copy, Debug)]
pub struct ScanRange<'k> {
    pub low: Bound<&'k [u8]>,
    pub high: Bound<&'k [u8]>,
    /// Maximum number of entries.
    pub limit: usize,
}

impl ScanRange<'_> {
    pub fn all() -> Self {
        Self { low: Bound::Unbounded, high: Bound::Unbounded, limit: usize::MAX }
    }
}

/// The bounds as words.
struct Bounds {
    low: Bound<Key>,
    high: Bound<Key>,
}

impl Bounds {
    fn has(&self, key: &Key) -> bool {
        std::ops::RangeBounds::contains(&(self.low, self.high), key)
    }

    /// Whether the range ends before this key.
    fn ends_before(&self, key: &Key) -> bool {
        match self.high {
            Bound::Unbounded => false,
            Bound::Included(high) => high < *key,
            Bound::Excluded(high) => high <= *key,
        }
    }
}

/// Progress of a scan through a leaf.
enum Step {
    /// Number of entries visited, and the key to continue from.
    On(usize, Key),
    /// Number of entries visited; the scan ends.
    End(usize),
}

impl Sherman {
    /// Passes the entries of `range` to `visit`, in ascending order, each once, until it returns `false`;
    /// returns how many it was given.
    ///
    /// # Errors
    /// Invalid bounds; corruption; too long a wait; errors of the fabric.
    pub async fn scan<E: Endpoint>(
        &self,
        ep: &E,
        range: &ScanRange<'_>,
        mut visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<usize> {
        let bound = |bound: Bound<&[u8]>| match bound {
            Bound::Unbounded => Ok(Bound::Unbounded),
            Bound::Included(key) => self.shape.key(key).map(Bound::Included),
            Bound::Excluded(key) => self.shape.key(key).map(Bound::Excluded),
        };
        let bounds = Bounds { low: bound(range.low)?, high: bound(range.high)? };
        let mut cursor = match bounds.low {
            Bound::Included(key) | Bound::Excluded(key) => key,
            Bound::Unbounded => self.shape.lowest_key(),
        };
        let mut visited = 0;
        while visited < range.limit && !bounds.ends_before(&cursor) {
            let wanted = self.leaves_wanted(range.limit - visited);
            let leaves =
                self.patiently(ep, "a leaf", async || self.read_leaves(ep, &cursor, &bounds, wanted).await);
            let leaves = leaves.await?;
            ep.renew_time_limit();
            for page in leaves {
                let node = self.node(&page);
                // The leaves behind a concurrently changed one are not the next ones.
                if !node.covers(&cursor) && !defect(Defect::SkipScanCheck) {
                    ep.recycle(page);
                    continue;
                }
                let step = self.visit_leaf(ep, &node, &bounds, cursor, range.limit - visited, &mut visit);
                ep.recycle(page);
                match step {
                    Step::End(count) => return Ok(visited + count),
                    Step::On(count, next) => (visited, cursor) = (visited + count, next),
                }
            }
        }
        Ok(visited)
    }

    /// Number of leaves to READ together for `entries` entries: leaves are usually at least half full.
    fn leaves_wanted(&self, entries: usize) -> usize {
        (entries / self.shape.leaf_max().div_ceil(2)).saturating_add(1).min(self.config.read_ahead.max(1))
    }

    /// READs the leaf of `cursor` and some of those behind it; the first one certainly covers `cursor`.
    async fn read_leaves<E: Endpoint>(
        &self,
        ep: &E,
        cursor: &Key,
        bounds: &Bounds,
        wanted: usize,
    ) -> Attempt<Vec<PageBuf>> {
        let leaves = self.plan(ep, cursor, bounds, wanted).await?;
        let reads = leaves.into_iter().map(|addr| self.read(ep, addr, |node| node.has_whole_slots()));
        let mut pages = join_all(reads).await.into_iter().collect::<Attempt<Vec<_>>>()?;
        let is_first = pages
            .first()
            .is_some_and(|page| self.belongs(&self.node(page), cursor, Some(0)) == Belongs::Here);
        // A node that is not a leaf now was one when the READ was planned.
        pages.retain(|page| self.node(page).level() == 0);
        if !is_first {
            pages.into_iter().for_each(|page| ep.recycle(page));
            pages = vec![self.locate(ep, cursor, 0, Reader::Anyone).await?.1];
        }
        Ok(pages)
    }

    /// Presumed addresses of the leaf of `cursor` and those behind it under the same parent.
    async fn plan<E: Endpoint>(
        &self,
        ep: &E,
        cursor: &Key,
        bounds: &Bounds,
        wanted: usize,
    ) -> Attempt<Vec<GlobalAddr>> {
        let root_level = self.root_level.load(std::sync::atomic::Ordering::Relaxed);
        ep.charge(Work::TableLookup);
        if let Some(copy) = self.cache.as_ref().and_then(|cache| cache.find(&self.shape, 1, cursor)) {
            return Ok(children(&copy.node(&self.shape), cursor, bounds, wanted));
        }
        if root_level == 0 || root_level == NO_LEVEL {
            // A tree of one leaf, or of unknown height; the lookup finds out.
            return Ok(vec![self.find(ep, cursor, 0).await?.addr]);
        }
        let (_, page) = self.locate(ep, cursor, 1, Reader::Anyone).await?;
        let node = self.node(&page);
        self.cache_node(ep, &node);
        let leaves = children(&node, cursor, bounds, wanted);
        ep.recycle(page);
        Ok(leaves)
    }

    /// Visits the entries of a leaf from a key on, up to the limit.
    fn visit_leaf<E: Endpoint>(
        &self,
        ep: &E,
        node: &Node<'_>,
        bounds: &Bounds,
        cursor: Key,
        wanted: usize,
        visit: &mut impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Step {
        let entries = node.occupied().map(|i| (node.leaf_key(i), i));
        let mut entries: Vec<_> = entries.filter(|(key, _)| *key >= cursor && bounds.has(key)).collect();
        if self.shape.is_unsorted() {
            entries.sort_unstable();
        }
        self.charge_slots(ep);
        ep.charge(Work::Entries { count: entries.len().min(wanted) });
        let (mut key_bytes, mut value) = (Vec::new(), Vec::new());
        for (count, (key, i)) in entries.iter().enumerate() {
            key_bytes.clear();
            value.clear();
            self.shape.append_key(key, &mut key_bytes);
            node.append_value(*i, &mut value);
            if !visit(&key_bytes, &value) || count + 1 == wanted {
                return Step::End(count + 1);
            }
        }
        match node.high() {
            Some(high) => Step::On(entries.len(), high),
            None => Step::End(entries.len()),
        }
    }
}

/// Children of a node from that of `cursor` on, up to the limit.
fn children(node: &Node<'_>, cursor: &Key, bounds: &Bounds, wanted: usize) -> Vec<GlobalAddr> {
    let first = node.child_index(cursor);
    let in_range = |&i: &usize| i == first || !bounds.ends_before(&node.separator(i - 1));
    (first..=node.count()).take(wanted).take_while(in_range).filter_map(|i| node.child(i)).collect()
}
