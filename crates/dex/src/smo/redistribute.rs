//! Balancing, as in Knuth's B*-tree (The Art of Computer Programming, vol. 3, §6.2.4): a full leaf gives
//! entries to a neighbour with room under the same parent instead of being split. So leaves of a densely
//! loaded tree stay full under inserts in any order, and a leaf that absorbed another one does not become
//! three.
//!
//! Only a hot neighbour takes entries, so balancing costs no verb. Parent and both leaves are latched while
//! entries and separator change, so that an operation that saw one of them before restarts. Leaves under a
//! shared parent take no part, since shared nodes do not swizzle.

use pando_cache::FrameState;
use pando_cache::sync::Word;
use pando_pool::ValueRef;

use crate::error::Attempt;
use crate::layout::{Layout, NodeInit, Side, Stored, header};
use crate::node::Node;
use crate::ownership::view::View;
use crate::smo::cut::Pending;
use crate::smo::merge::Neighbours;
use crate::tree::journal::{self, Room};
use crate::tree::{Ctx, Tree, VersionedNode};

/// Largest average fill of the two leaves. The rest is room for the inserts that amortise the next balancing.
const FILL: f64 = 0.9;

/// Approximate bytes of an entry besides its key and value.
const ENTRY: usize = 16;

/// Entries of two neighbouring leaves.
#[derive(Default)]
struct Entries {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
}

/// One entry: the offsets of its key and its value.
struct Entry {
    key: usize,
    value: usize,
    end: usize,
    long: Option<ValueRef>,
}

impl Entries {
    fn append<L: Layout>(&mut self, leaf: Node<'_, L>) {
        for i in 0..leaf.count() {
            let key = self.bytes.len();
            leaf.append_key(i, &mut self.bytes);
            let value = self.bytes.len();
            let long = leaf.append_value(i, &mut self.bytes);
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

    /// Index of the first entry of the right leaf, so that each leaf gets half of all bytes, the pending
    /// entry included.
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

/// Moves entries of a full leaf to a neighbour, to make room for the pending one; `false` if no neighbour can
/// take any.
pub(crate) fn balance<L: Layout, E>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    leaf: VersionedNode<'_>,
    parent: VersionedNode<'_>,
    pending: Pending<'_>,
    mut room: Room<'_>,
) -> Attempt<bool> {
    let view = tree.view(ctx);
    let index = tree.node(parent).child_index(tree.layout.key(pending.key)?);
    if hot_child(tree, parent, index)?.is_none_or(|child| child.frame.id() != leaf.frame.id()) {
        return Ok(false);
    }
    // Try the right neighbour first: where keys arrive in order, the leaves to the right still wait for
    // theirs.
    if let Some(right) = hot_child(tree, parent, index + 1)?
        && balance_pair(
            tree,
            &Neighbours { parent, left: leaf, right, separator: index },
            &view,
            pending,
            &mut room,
        )?
    {
        return Ok(true);
    }
    let Some(index) = index.checked_sub(1) else { return Ok(false) };
    match hot_child(tree, parent, index)? {
        Some(left) => balance_pair(
            tree,
            &Neighbours { parent, left, right: leaf, separator: index },
            &view,
            pending,
            &mut room,
        ),
        None => Ok(false),
    }
}

/// Child `index` of a node; `None` if there is none, or it is not swizzled and hot.
fn hot_child<'t, L: Layout>(
    tree: &'t Tree<L>,
    parent: VersionedNode<'t>,
    index: usize,
) -> Attempt<Option<VersionedNode<'t>>> {
    let node = tree.node(parent);
    if index > node.count() {
        parent.validate()?;
        return Ok(None);
    }
    let swip = node.child(index);
    let child = swip.frame().and_then(|id| tree.cache.try_frame(id)).and_then(|frame| {
        let version = frame.optimistic().ok()?;
        (version.state() == FrameState::Hot).then_some(VersionedNode { frame, version })
    });
    parent.validate()?;
    Ok(child)
}

fn balance_pair<L: Layout>(
    tree: &Tree<L>,
    pair: &Neighbours<'_>,
    view: &View,
    pending: Pending<'_>,
    room: &mut Room<'_>,
) -> Attempt<bool> {
    let parent = pair.parent;
    // A leaf that crosses a moving boundary has keys that another compute server owned or is about to own.
    let (left, right) = (tree.node(pair.left), tree.node(pair.right));
    if [left, right].into_iter().any(|leaf| view.nodes.is_crossed_by(leaf))
        || left.fullness() + right.fullness() > 2.0 * FILL
    {
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
    let balanced = balance_latched(tree, pair, pending).is_some();
    if balanced {
        let nodes = [parent, pair.left, pair.right].map(|node| node.frame);
        journal::note_nodes(tree, room.take(), &nodes, &[]);
    }
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

/// The latched part of [`balance`]; `None` without a change if the leaves would be too full.
fn balance_latched<L: Layout>(tree: &Tree<L>, pair: &Neighbours<'_>, pending: Pending<'_>) -> Option<()> {
    let (left, right) = (tree.node_mut(pair.left), tree.node_mut(pair.right));
    let (parent, at) = (tree.node_mut(pair.parent), pair.separator);
    let mut entries = Entries::default();
    entries.append(*left);
    entries.append(*right);
    let cut = entries.middle(pending)?;
    let separator = tree.layout.separator(entries.key(cut - 1), entries.key(cut));
    if separator.len() > parent.key_at(at).len() && !parent.has_room(&separator, 0) {
        return None;
    }
    let (low, high) = (left.fence(Side::Low), right.fence(Side::High));
    let (low, middle, high) = (low.as_deref(), Some(separator.as_slice()), high.as_deref());
    let new_left = rebuilt(tree, *left, low, middle, &entries, 0..cut)?;
    let new_right = rebuilt(tree, *right, middle, high, &entries, cut..entries.entries.len())?;
    let (new_left, new_right) = (tree.node(&new_left[..]), tree.node(&new_right[..]));
    // Both leaves need room. If only the leaf of the pending entry had some, an operation that waits for room
    // in the other one would move the entries back before this one reaches its leaf, and so on forever.
    if [new_left, new_right].iter().any(|leaf| !leaf.has_room(pending.key, pending.value_len)) {
        return None;
    }
    left.copy_content(new_left);
    right.copy_content(new_right);
    let child = parent.child(at + 1).raw();
    parent.inner_remove(at);
    let fits = parent.inner_insert(at, &separator, child);
    assert!(fits, "a separator is replaced by one that is no longer, or that would fit beside it");
    Some(())
}

/// New content of the leaf `old`; `None` if the entries do not fit.
fn rebuilt<L: Layout>(
    tree: &Tree<L>,
    old: Node<'_, L>,
    low: Option<&[u8]>,
    high: Option<&[u8]>,
    entries: &Entries,
    range: std::ops::Range<usize>,
) -> Option<Vec<Word>> {
    let page: Vec<Word> = old.words().iter().map(|_| Word::new(0)).collect();
    let leaf = tree.node_mut(&page[..]);
    let (addr, index_id) = (old.raw_addr(), tree.config.index_id);
    leaf.init(&NodeInit { addr, index_id, level: 0, low, high });
    leaf.set_flag(header::WAS_SHARED, old.was_shared());
    for (i, entry) in range.enumerate() {
        let key = tree.layout.key(entries.key(entry)).ok()?;
        if !tree.layout.leaf_insert(leaf.words(), i, key, entries.value(entry)) {
            return None;
        }
    }
    Some(page)
}
