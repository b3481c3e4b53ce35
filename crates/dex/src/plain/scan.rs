//! Ascending scans: leaf by leaf, by the children of the last inner node and by fence keys.
//!
//! Each leaf is READ so that all its bytes are from one moment; only then are its entries handed out. The
//! next leaf begins at the high fence of this one. If the next child of the inner node does not cover that
//! key, the leaf was split, and the key is found from the root.

use std::ops::Bound;

use pando_fabric::{Endpoint, Work};

use super::Seen;
use crate::error::{DexError, Result, Retry};
use crate::layout::{Layout, Side, Toward};
use crate::ownership::scan_range::ScanRange;
use crate::plain::{PlainTree, long_value};

impl<L: Layout> PlainTree<L> {
    /// Calls `visit` for the entries of `range`, in ascending order, each once, until it returns `false`.
    /// Returns the number of entries visited.
    ///
    /// # Errors
    /// Descending ranges; values that are not stored in leaves; corruption; too long a wait; errors of the
    /// fabric.
    pub async fn scan<E: Endpoint>(
        &self,
        ep: &E,
        range: &ScanRange<'_>,
        mut visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<usize> {
        if range.reverse {
            return Err(DexError::Layout("a tree without a cache is scanned in ascending order only".into()));
        }
        let low = match range.low {
            Bound::Unbounded => &[][..],
            Bound::Included(low) | Bound::Excluded(low) => low,
        };
        let mut cursor = self.layout.scan_start(low, Toward::Key).0;
        let (mut entries, mut above) = (0, None);
        if range.limit == 0 {
            return Ok(0);
        }
        loop {
            let leaf = self.leaf_from(ep, &cursor, &mut above).await?;
            let (visited, more) = self.visit_leaf(&leaf, range, range.limit - entries, &mut visit)?;
            ep.charge(Work::Entries { count: visited });
            entries += visited;
            cursor.clear();
            let goes_on = self.layout.append_fence(leaf.words(), Side::High, &mut cursor);
            ep.recycle(leaf.page);
            if !more || !goes_on || !range.below_high(&cursor) {
                if let Some(above) = above {
                    ep.recycle(above.page);
                }
                return Ok(entries);
            }
        }
    }

    /// Leaf of `cursor`: the child of the last inner node, if that still covers the key.
    async fn leaf_from<E: Endpoint>(&self, ep: &E, cursor: &[u8], above: &mut Option<Seen>) -> Result<Seen> {
        let key = self.layout.key(cursor)?;
        if let Some(inner) = above
            && self.layout.covers(inner.words(), key)
        {
            let index = self.layout.child_index(inner.words(), key);
            let leaf = match self.child_at(inner, index) {
                Ok((addr, inside)) => self.read(ep, addr, inside).await,
                Err(retry) => Err(retry),
            };
            match leaf {
                Ok(leaf) if leaf.level() == 0 && self.layout.covers(leaf.words(), key) => return Ok(leaf),
                Ok(leaf) => ep.recycle(leaf.page),
                Err(Retry::Failed(error)) => return Err(error),
                Err(_) => {}
            }
        }
        let (leaf, parent) = self.find_node(ep, key, 0).await?;
        if let Some(before) = std::mem::replace(above, parent) {
            ep.recycle(before.page);
        }
        Ok(leaf)
    }

    /// Visits the entries of a leaf. Returns their number and whether the scan goes on.
    fn visit_leaf(
        &self,
        leaf: &Seen,
        range: &ScanRange<'_>,
        wanted: usize,
        visit: &mut impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(usize, bool)> {
        let words = leaf.words();
        let (mut key, mut value, mut visited) = (Vec::new(), Vec::new(), 0);
        for i in 0..self.layout.count(words) {
            key.clear();
            self.layout.append_key(words, i, &mut key);
            if !range.above_low(&key) {
                continue;
            }
            if !range.below_high(&key) {
                return Ok((visited, false));
            }
            value.clear();
            if self.layout.append_value(words, i, &mut value).is_some() {
                return Err(long_value());
            }
            visited += 1;
            if !visit(&key, &value) || visited == wanted {
                return Ok((visited, false));
            }
        }
        Ok((visited, true))
    }
}
