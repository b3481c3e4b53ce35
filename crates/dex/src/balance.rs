//! Balancing, as in Knuth's B*-tree (The Art of Computer Programming, vol. 3, §6.2.4): a full leaf whose neighbour under
//! the same parent has room gives it entries and is not split. So leaves stay full where entries come in any order
//! into a tree that was loaded densely, and a leaf that took in another one does not become three.
//!
//! Only a neighbour that is hot takes entries: balancing costs no verb. Parent and both leaves are latched while
//! entries and separator change, so that whoever saw one of them before starts again. Nodes that other compute servers
//! use take no part: their parents are not swizzled.

use pando_cache::sync::Word;
use pando_cache::{FrameState, Swip};
use pando_pool::ValueRef;

use crate::error::Attempt;
use crate::layout::{Layout, NodeInit, Side, Stored, header};
use crate::merge::Neighbours;
use crate::ownership::View;
use crate::partition::fence;
use crate::smo::Pending;
use crate::tree::{Ctx, Hop, Tree};

/// How full two leaves may be on average. What is left is room for the inserts that pay for the next time.
const FILL: f64 = 0.9;
/// Bytes that an entry costs besides its key and value, about.
const ENTRY: usize = 16;

/// The entries of two neighbouring leaves.
#[derive(Default)]
struct Entries {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
}

/// One entry: where its key and its value begin and end.
struct Entry {
    key: usize,
    value: usize,
    end: usize,
    long: Option<ValueRef>,
}

impl Entries {
    fn append(&mut self, layout: &impl Layout, page: &[Word]) {
        for i in 0..layout.count(page) {
            let key = self.bytes.len();
            layout.append_key(page, i, &mut self.bytes);
            let value = self.bytes.len();
            let long = layout.append_value(page, i, &mut self.bytes);
            self.entries.push(Entry { key, value, end: self.bytes.len(), long });
        }
    }

    fn key(&self, i: usize) -> &[u8] {
        &self.bytes[self.entries[i].key..self.entries[i].value]
    }

    fn value(&self, i: usize) -> Stored<'_> {
        let entry = &self.entries[i];
        entry.long.map_or(Stored::Inline(&self.bytes[entry.value..entry.end]), Stored::Long)
    }

    /// The first entry of the right leaf if both are to get half of all bytes, those of the pending entry too.
    fn middle(&self, pending: Pending<'_>) -> Option<usize> {
        let count = self.entries.len();
        let at = (0..count).position(|i| self.key(i) >= pending.key).unwrap_or(count);
        let size = |i: usize| ENTRY + self.key(i).len() + self.value(i).stored_len();
        let more = ENTRY + pending.key.len() + pending.value_len;
        let total: usize = (0..count).map(size).sum::<usize>() + more;
        let mut before = 0;
        (1..count).min_by_key(|&cut| {
            before += size(cut - 1);
            let left = before + if at < cut { more } else { 0 };
            (2 * left).abs_diff(total)
        })
    }
}

impl<L: Layout> Tree<L> {
    /// Moves entries of a full leaf to a neighbour, so that the pending one finds room; `false` if none can take any.
    pub(crate) fn balance<E>(
        &self,
        ctx: Ctx<'_, E>,
        leaf: Hop<'_>,
        parent: Hop<'_>,
        pending: Pending<'_>,
    ) -> Attempt<bool> {
        let view = self.view(ctx);
        let words = parent.frame.words();
        let index = self.layout.child_index(words, self.layout.key(pending.key)?);
        if self.hot_child(parent, index)?.is_none_or(|child| child.frame.id() != leaf.frame.id()) {
            return Ok(false);
        }
        // Where keys come in order, the leaves to the right are those that wait for theirs.
        if let Some(right) = self.hot_child(parent, index + 1)?
            && self.balance_pair(
                &Neighbours { parent, left: leaf, right, separator: index },
                &view,
                pending,
            )?
        {
            return Ok(true);
        }
        let Some(index) = index.checked_sub(1) else { return Ok(false) };
        match self.hot_child(parent, index)? {
            Some(left) => {
                self.balance_pair(&Neighbours { parent, left, right: leaf, separator: index }, &view, pending)
            }
            None => Ok(false),
        }
    }

    /// Child `index` of a node, if there is one that is swizzled.
    fn hot_child<'t>(&'t self, parent: Hop<'t>, index: usize) -> Attempt<Option<Hop<'t>>> {
        let words = parent.frame.words();
        if index > self.layout.count(words) {
            parent.validate()?;
            return Ok(None);
        }
        let swip = Swip::from_raw(header::get(words, self.layout.child_word(words, index)));
        let child = swip.frame().and_then(|id| self.cache.try_frame(id)).and_then(|frame| {
            let version = frame.optimistic().ok()?;
            (version.state() == FrameState::Hot).then_some(Hop { frame, version })
        });
        parent.validate()?;
        Ok(child)
    }

    fn balance_pair(&self, pair: &Neighbours<'_>, view: &View, pending: Pending<'_>) -> Attempt<bool> {
        let parent = pair.parent;
        // Keys beyond a boundary that is moving here are another compute server's soon, or were.
        if [pair.left, pair.right]
            .iter()
            .any(|leaf| view.nodes.is_crossed_by(self.layout, leaf.frame.words()))
        {
            return Ok(false);
        }
        let fullness = |hop: Hop<'_>| self.layout.fullness(hop.frame.words());
        if fullness(pair.left) + fullness(pair.right) > 2.0 * FILL {
            return Ok(false);
        }
        let mut parent_guard = parent.frame.upgrade(parent.version)?;
        let Ok(mut left_guard) = pair.left.frame.upgrade(pair.left.version) else {
            parent_guard.release_unchanged();
            return Ok(false);
        };
        let Ok(mut right_guard) = pair.right.frame.upgrade(pair.right.version) else {
            left_guard.release_unchanged();
            parent_guard.release_unchanged();
            return Ok(false);
        };
        let balanced = self.balance_latched(pair, parent.frame.words(), pending).is_some();
        for guard in [&mut parent_guard, &mut left_guard, &mut right_guard] {
            if balanced {
                guard.mark_dirty();
            }
        }
        if !balanced {
            right_guard.release_unchanged();
            left_guard.release_unchanged();
            parent_guard.release_unchanged();
        }
        Ok(balanced)
    }

    /// The latched part of [`Tree::balance`]; `None` if the leaves would be too full, and nothing changed.
    fn balance_latched(&self, pair: &Neighbours<'_>, parent: &[Word], pending: Pending<'_>) -> Option<()> {
        let layout = &self.layout;
        let (left, right) = (pair.left.frame.words(), pair.right.frame.words());
        let mut entries = Entries::default();
        entries.append(layout, left);
        entries.append(layout, right);
        let cut = entries.middle(pending)?;
        let separator = layout.separator(entries.key(cut - 1), entries.key(cut));
        let mut old = Vec::new();
        layout.append_key(parent, pair.separator, &mut old);
        if separator.len() > old.len() && !layout.has_room(parent, &separator, 0) {
            return None;
        }
        let (low, high) = (fence(self.layout, left, Side::Low), fence(self.layout, right, Side::High));
        let (low, middle, high) = (low.as_deref(), Some(separator.as_slice()), high.as_deref());
        let new_left = self.rebuilt(left, low, middle, &entries, 0..cut)?;
        let new_right = self.rebuilt(right, middle, high, &entries, cut..entries.entries.len())?;
        // Room in both: if only the pending entry's leaf had some, an operation that waits for room in the other one would
        // move the entries back before this one comes to its leaf, and so on for ever.
        if [&new_left, &new_right].iter().any(|page| !layout.has_room(page, pending.key, pending.value_len)) {
            return None;
        }
        layout.copy_content(&new_left, left);
        layout.copy_content(&new_right, right);
        let child = header::get(parent, layout.child_word(parent, pair.separator + 1));
        layout.inner_remove(parent, pair.separator);
        let fits = layout.inner_insert(parent, pair.separator, &separator, child);
        assert!(fits, "a separator is replaced by one that is no longer, or that would fit beside it");
        Some(())
    }

    /// What the leaf `old` is to become; `None` if the entries do not fit.
    fn rebuilt(
        &self,
        old: &[Word],
        low: Option<&[u8]>,
        high: Option<&[u8]>,
        entries: &Entries,
        range: std::ops::Range<usize>,
    ) -> Option<Vec<Word>> {
        let page: Vec<Word> = old.iter().map(|_| Word::new(0)).collect();
        let (addr, index_id) = (header::addr(old), self.config.index_id);
        self.layout.init(&page, &NodeInit { addr, index_id, level: 0, low, high });
        header::set_flag(&page, header::WAS_SHARED, header::has(old, header::WAS_SHARED));
        for (i, entry) in range.enumerate() {
            let key = self.layout.key(entries.key(entry)).ok()?;
            if !self.layout.leaf_insert(&page, i, key, entries.value(entry)) {
                return None;
            }
        }
        Some(page)
    }
}
