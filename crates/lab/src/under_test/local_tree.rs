//! A B+-tree in the memory of one machine: the baseline for DEX with a cache that holds everything (DEX §8.3,
//! Figure 11).
//!
//! Nodes have DEX's layout, so both search, copy and split with the same code; children are numbers of nodes.
//! Nodes are never merged. Simulated threads run one after the other and no operation waits in here, so one
//! lock around all nodes replaces the optimistic lock coupling of a real tree. Its cost is charged: a search
//! for each level, and the leaf's latch for a change.

use pando::ScanRange;
use pando_cache::sync::Word;
use pando_dex::layout::{Layout, NodeInit, Side, Stored, header};
use pando_dex::{DexError, Result, SortedSource, Toward};
use pando_fabric::{Resource, Work};

use super::Audited;

/// Number of a node. Its child word is one more, since 0 is no child word.
type NodeId = u32;

pub(crate) struct LocalTree<L> {
    layout: L,
    nodes: Vec<Box<[Word]>>,
    root: NodeId,
    pub splits: u64,
}

/// Keys that a write applies to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Write {
    /// Any key.
    Put,
    /// A key that is present.
    Update,
}

/// Number of nodes of a loaded tree with this fill of leaves and inner nodes.
pub(crate) fn node_count(layout: impl Layout, records: u64, fill: f64, inner_fill: f64) -> u64 {
    let mut level = records.div_ceil(per_node(layout.max_entries(), fill)).max(1);
    let mut count = level;
    while level > 1 {
        level = level.div_ceil(per_node(layout.max_children(), inner_fill));
        count += level;
    }
    count
}

fn per_node(most: usize, fill: f64) -> u64 {
    ((most as f64 * fill) as u64).max(2)
}

fn child_word_of(node: NodeId) -> u64 {
    u64::from(node) + 1
}

fn long_value() -> DexError {
    DexError::Layout("a tree in local memory keeps values inside of its leaves".into())
}

fn no_room() -> DexError {
    DexError::Layout("a node is too small for two entries of this size".into())
}

impl<L: Layout> LocalTree<L> {
    /// Makes a tree of sorted entries, with this fill of leaves and inner nodes.
    ///
    /// # Errors
    /// Keys and values that the layout cannot store in leaves; errors of the source.
    pub fn load(layout: L, source: &dyn SortedSource, fill: f64, inner_fill: f64) -> Result<Self> {
        let mut tree = Self { layout, nodes: Vec::new(), root: 0, splits: 0 };
        let leaf_most = per_node(layout.max_entries(), fill) as usize;
        let mut level: Vec<(Vec<u8>, NodeId)> = vec![(Vec::new(), tree.new_node(0, None, None))];
        source.visit(0..source.len(), &mut |key, value| {
            let last = level.last().map_or(0, |(_, id)| *id);
            let count = layout.count(tree.page(last));
            let leaf = match count < leaf_most {
                true => last,
                false => {
                    tree.end_at(last, key)?;
                    let leaf = tree.new_node(0, Some(key), None);
                    level.push((key.to_vec(), leaf));
                    leaf
                }
            };
            if !layout.value_is_inline(value)? {
                return Err(long_value());
            }
            let at = layout.count(tree.page(leaf));
            match layout.leaf_insert(tree.page(leaf), at, layout.key(key)?, Stored::Inline(value)) {
                true => Ok(()),
                false => Err(no_room()),
            }
        })?;
        let most = per_node(layout.max_children(), inner_fill) as usize;
        for height in 1..=u8::MAX {
            let [(_, root)] = level[..] else {
                level = tree.build_level(height, &level, most)?;
                continue;
            };
            tree.root = root;
            break;
        }
        Ok(tree)
    }

    /// Makes the inner nodes above a level of nodes, each given with its low fence.
    fn build_level(
        &mut self,
        height: u8,
        below: &[(Vec<u8>, NodeId)],
        most: usize,
    ) -> Result<Vec<(Vec<u8>, NodeId)>> {
        let mut level = Vec::new();
        for (number, group) in below.chunks(most).enumerate() {
            let (low, first) = &group[0];
            let high = below.get((number + 1) * most).map(|(low, _)| low.as_slice());
            let node = self.new_node(height, (number > 0).then_some(low), high);
            let page = self.page(node);
            header::set(page, self.layout.child_word(page, 0), child_word_of(*first));
            for (i, (separator, child)) in group[1..].iter().enumerate() {
                if !self.layout.inner_insert(page, i, separator, child_word_of(*child)) {
                    return Err(no_room());
                }
            }
            level.push((low.clone(), node));
        }
        Ok(level)
    }

    fn page(&self, id: NodeId) -> &[Word] {
        &self.nodes[id as usize]
    }

    fn child(&self, page: &[Word], index: usize) -> NodeId {
        (header::get(page, self.layout.child_word(page, index)) - 1) as NodeId
    }

    fn new_node(&mut self, level: u8, low: Option<&[u8]>, high: Option<&[u8]>) -> NodeId {
        let page: Box<[Word]> =
            (0..self.layout.node_size() / size_of::<u64>()).map(|_| Word::new(0)).collect();
        let id = self.nodes.len() as NodeId;
        self.layout.init(&page, &NodeInit { addr: u64::from(id), index_id: 0, level, low, high });
        self.nodes.push(page);
        id
    }

    fn fence(&self, id: NodeId, side: Side) -> Option<Vec<u8>> {
        let mut key = Vec::new();
        self.layout.append_fence(self.page(id), side, &mut key).then_some(key)
    }

    /// Sets the high fence of a node.
    fn end_at(&self, id: NodeId, high: &[u8]) -> Result<()> {
        let low = self.fence(id, Side::Low);
        match self.layout.set_fences(self.page(id), low.as_deref(), Some(high)) {
            true => Ok(()),
            false => Err(no_room()),
        }
    }

    /// Returns the leaf of a key. Calls `path` for each node of the descent, the leaf last.
    fn descend(&self, key: L::Key<'_>, charge: impl Fn(Work), mut path: impl FnMut(NodeId)) -> NodeId {
        let mut node = self.root;
        loop {
            charge(Work::NodeSearch);
            charge(Work::Observe(Resource::Frame(node)));
            path(node);
            let page = self.page(node);
            if header::level(page) == 0 {
                return node;
            }
            let index = self.layout.child_index(page, key);
            node = self.child(page, index);
        }
    }

    /// Appends the value of a key; `false` if it is absent.
    ///
    /// # Errors
    /// A key that the layout cannot store.
    pub fn get(&self, key: &[u8], out: &mut Vec<u8>, charge: impl Fn(Work)) -> Result<bool> {
        let key = self.layout.key(key)?;
        let start = out.len();
        let page = self.page(self.descend(key, &charge, |_| {}));
        let found = match self.layout.find(page, key) {
            Ok(i) => self.layout.append_value(page, i, out).is_none(),
            Err(_) => false,
        };
        charge(Work::Copy { bytes: out.len() - start });
        Ok(found)
    }

    /// Stores a value; returns whether the key was present.
    ///
    /// # Errors
    /// Keys and values that the layout cannot store in leaves.
    pub fn write(&mut self, key: &[u8], value: &[u8], write: Write, charge: impl Fn(Work)) -> Result<bool> {
        let prepared = self.layout.key(key)?;
        if !self.layout.value_is_inline(value)? {
            return Err(long_value());
        }
        let mut path = Vec::new();
        loop {
            path.clear();
            let leaf = self.descend(prepared, &charge, |node| path.push(node));
            charge(Work::Hold(Resource::Frame(leaf)));
            let position = self.layout.find(self.page(leaf), prepared);
            let existed = position.is_ok();
            if write == Write::Update && !existed {
                return Ok(false);
            }
            let (page, stored) = (self.page(leaf), Stored::Inline(value));
            let (fits, bytes) = match position {
                Ok(i) => (self.layout.leaf_replace(page, i, stored), value.len()),
                Err(i) => (self.layout.leaf_insert(page, i, prepared, stored), self.layout.node_size() / 2),
            };
            if fits {
                charge(Work::Copy { bytes });
                return Ok(existed);
            }
            self.split(&path, key, value.len(), &charge)?;
        }
    }

    /// Makes room for an entry or a separator in the last node of `path`, or in a node above it that must be
    /// split first.
    fn split(&mut self, path: &[NodeId], key: &[u8], value_len: usize, charge: &impl Fn(Work)) -> Result<()> {
        let Some((&node, above)) = path.split_last() else { return Err(no_room()) };
        let mut separator = Vec::new();
        let at = self.layout.split_point(self.page(node), key, value_len, &mut separator);
        let at = at.ok_or_else(no_room)?;
        let Some(&parent) = above.last() else {
            let root = self.new_node(header::level(self.page(node)) + 1, None, None);
            let page = self.page(root);
            header::set(page, self.layout.child_word(page, 0), child_word_of(node));
            self.root = root;
            return Ok(());
        };
        if !self.layout.has_room(self.page(parent), &separator, 0) {
            return self.split(above, &separator, 0, charge);
        }
        charge(Work::Hold(Resource::Frame(parent)));
        charge(Work::Copy { bytes: 2 * self.layout.node_size() });
        let (level, high) = (header::level(self.page(node)), self.fence(node, Side::High));
        let right = self.new_node(level, Some(&separator), high.as_deref());
        self.layout.split(self.page(node), self.page(right), at, &separator);
        let index = self.layout.child_index(self.page(parent), self.layout.key(&separator)?);
        let inserted = self.layout.inner_insert(self.page(parent), index, &separator, child_word_of(right));
        debug_assert!(inserted, "the parent has room");
        self.splits += 1;
        Ok(())
    }

    /// Passes the entries of a range to `visit`, in ascending order, until it returns `false`; returns their
    /// number.
    ///
    /// # Errors
    /// Descending ranges.
    pub fn scan(
        &self,
        range: &ScanRange<'_>,
        mut visit: impl FnMut(&[u8], &[u8]) -> bool,
        charge: impl Fn(Work),
    ) -> Result<usize> {
        if range.reverse {
            return Err(DexError::Layout("a tree in local memory is scanned in ascending order only".into()));
        }
        use std::ops::Bound;
        let low = match range.low {
            Bound::Unbounded => &[][..],
            Bound::Included(low) | Bound::Excluded(low) => low,
        };
        let mut cursor = self.layout.scan_start(low, Toward::Key).0;
        let (mut key, mut value, mut entries) = (Vec::new(), Vec::new(), 0);
        while entries < range.limit {
            let leaf = self.descend(self.layout.key(&cursor)?, &charge, |_| {});
            let page = self.page(leaf);
            charge(Work::Copy { bytes: self.layout.node_size() });
            let before = entries;
            let mut goes_on = true;
            for i in 0..self.layout.count(page) {
                key.clear();
                self.layout.append_key(page, i, &mut key);
                if !range.above_low(&key) {
                    continue;
                }
                goes_on = range.below_high(&key) && entries < range.limit;
                if goes_on {
                    value.clear();
                    self.layout.append_value(page, i, &mut value);
                    entries += 1;
                    goes_on = visit(&key, &value);
                }
                if !goes_on {
                    break;
                }
            }
            charge(Work::Entries { count: entries - before });
            cursor.clear();
            let has_next = self.layout.append_fence(page, Side::High, &mut cursor);
            if !goes_on || !has_next || !range.below_high(&cursor) {
                break;
            }
        }
        Ok(entries)
    }

    /// Number of levels; 1 if the root is a leaf.
    pub fn height(&self) -> u32 {
        u32::from(header::level(self.page(self.root))) + 1
    }

    /// Checks each node: fences, order, levels.
    pub fn audit(&self) -> Audited {
        let mut found = Audited { height: self.height(), ..Audited::default() };
        self.audit_node(self.root, None, None, &mut found);
        found.leaf_fullness /= found.leaves.max(1) as f64;
        if found.leaves + found.inner_nodes != self.nodes.len() as u64 {
            let reached = found.leaves + found.inner_nodes;
            found.violations.push(format!("{reached} of {} nodes are reached", self.nodes.len()));
        }
        found.violation_count = found.violations.len() as u64;
        found
    }

    /// Checks a node and all below it; its parent says that its fences are `low` and `high`.
    fn audit_node(&self, id: NodeId, low: Option<&[u8]>, high: Option<&[u8]>, found: &mut Audited) {
        let (page, layout) = (self.page(id), self.layout);
        if let Err(reason) = layout.verify(page) {
            found.violations.push(format!("node {id}: {reason}"));
            return;
        }
        if self.fence(id, Side::Low).as_deref() != low || self.fence(id, Side::High).as_deref() != high {
            found.violations.push(format!("node {id}: its fences are not what its parent says"));
        }
        let keys: Vec<Vec<u8>> = (0..layout.count(page))
            .map(|i| {
                let mut key = Vec::new();
                layout.append_key(page, i, &mut key);
                key
            })
            .collect();
        let inside = |key: &Vec<u8>| {
            low.is_none_or(|low| low <= key.as_slice()) && high.is_none_or(|high| key.as_slice() < high)
        };
        if !keys.is_sorted_by(|a, b| a < b) || !keys.iter().all(inside) {
            found.violations.push(format!("node {id}: its keys are out of order"));
        }
        if header::level(page) == 0 {
            found.leaves += 1;
            found.entries += keys.len() as u64;
            found.leaf_fullness += layout.fullness(page);
            return;
        }
        found.inner_nodes += 1;
        for i in 0..=keys.len() {
            let child = self.child(page, i);
            if header::level(self.page(child)) + 1 != header::level(page) {
                found.violations.push(format!("node {child}: its level is not one below its parent's"));
                continue;
            }
            let low = if i == 0 { low } else { Some(keys[i - 1].as_slice()) };
            let high = keys.get(i).map_or(high, |key| Some(key.as_slice()));
            self.audit_node(child, low, high, found);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::ops::Range;

    use pando_dex::layout::fixed::FixedLayout;

    use super::*;

    /// Records with even numbers as keys.
    struct Even(u64);

    impl SortedSource for Even {
        fn len(&self) -> u64 {
            self.0
        }

        fn visit(&self, range: Range<u64>, each: &mut dyn FnMut(&[u8], &[u8]) -> Result<()>) -> Result<()> {
            range.into_iter().try_for_each(|i| each(&key(2 * i), &i.to_le_bytes()))
        }
    }

    fn key(number: u64) -> [u8; 8] {
        number.to_be_bytes()
    }

    fn loaded(records: u64) -> LocalTree<FixedLayout> {
        let layout = FixedLayout::new(512, 8, 8).expect("possible nodes");
        LocalTree::load(layout, &Even(records), 0.5, 0.9).expect("sorted")
    }

    #[test]
    fn a_loaded_tree_has_as_many_nodes_as_foretold() {
        for records in [0, 1, 14, 1_000, 20_000] {
            let tree = loaded(records);
            let found = tree.audit();
            assert!(found.violations.is_empty(), "{records}: {:?}", found.violations);
            assert_eq!(found.entries, records);
            let foretold = node_count(tree.layout, records, 0.5, 0.9);
            assert_eq!(found.leaves + found.inner_nodes, foretold, "{records}");
        }
    }

    #[test]
    fn changes_are_found_again_and_charged() {
        let (mut tree, searches) = (loaded(1_000), Cell::new(0));
        let height = tree.height();
        let charge = |work| searches.set(searches.get() + u32::from(work == Work::NodeSearch));
        for number in 0..3_000 {
            let existed = number % 2 == 0 && number < 2_000;
            for write in [Write::Update, Write::Put] {
                let found = tree.write(&key(number), &key(number), write, charge).expect("room");
                assert_eq!(found, existed);
            }
        }
        assert!(tree.splits > 0 && searches.get() >= 3_000 * height);
        let mut out = Vec::new();
        for number in 0..3_001 {
            out.clear();
            let found = tree.get(&key(number), &mut out, charge).expect("a possible key");
            assert_eq!(found.then_some(out.as_slice()), (number < 3_000).then_some(&key(number)[..]));
        }
        assert!(tree.audit().violations.is_empty());
    }

    #[test]
    fn an_audit_sees_entries_out_of_place() {
        let mut tree = loaded(1_000);
        tree.nodes.swap(3, 4);
        assert!(!tree.audit().violations.is_empty());
    }
}
