//! Where a node is split (DEX §7, Insert).
//!
//! Behind the last of rising inserts, so that these leave full leaves behind wherever in the tree they go; where the layout says
//! otherwise; or at exactly a given key, so that no leaf spans two partitions.

use crate::layout::Layout;
use crate::node::Node;

/// A separator that a parent needs room for.
#[derive(Clone)]
pub(crate) struct Separator {
    pub key: Vec<u8>,
    /// It stands behind rising inserts, so that the next one will come right behind it.
    pub rising: bool,
}

/// Where a node is to be split.
pub(crate) struct SplitAt {
    /// The first entry of the right leaf, or the separator that moves up.
    pub at: usize,
    pub separator: Separator,
}

/// An entry or a separator that does not fit.
#[derive(Clone, Copy)]
pub(crate) struct Pending<'k> {
    pub key: &'k [u8],
    pub value_len: usize,
    /// See [`Separator::rising`]. Of entries, the leaf knows.
    pub rising: bool,
}

/// The purpose of a split.
#[derive(Clone, Copy)]
pub(crate) enum Cut<'k> {
    /// To make room.
    ForRoom(Pending<'k>),
    /// To begin a leaf at exactly this key.
    At(&'k [u8]),
}

impl Cut<'_> {
    /// Where to split `node`; `None` if it has too few entries.
    pub fn choose<L: Layout>(self, node: Node<'_, L>) -> Option<SplitAt> {
        let pending = match self {
            Cut::ForRoom(pending) => pending,
            Cut::At(key) => match node.position(key) {
                Some(at) if node.can_split(at, key) => {
                    return Some(SplitAt { at, separator: Separator { key: key.to_vec(), rising: false } });
                }
                // The key may be too long a fence for so full a leaf, which is halved first then.
                _ => Pending { key, value_len: 0, rising: false },
            },
        };
        let is_leaf = node.level() == 0;
        let rising = if is_leaf { continues_long_run(node, pending) } else { pending.rising };
        let behind_run = match is_leaf {
            true => behind_run(node, pending.key),
            false if rising => behind_child(node, pending.key),
            false => None,
        };
        let (at, key) = match behind_run {
            Some(found) => found,
            None => {
                let mut key = Vec::new();
                (node.split_point(pending.key, pending.value_len, &mut key)?, key)
            }
        };
        Some(SplitAt { at, separator: Separator { key, rising } })
    }
}

/// Whether the pending entry of a leaf goes on with rising inserts that are to fill a leaf of their own.
pub(crate) fn continues_long_run<L: Layout>(leaf: Node<'_, L>, pending: Pending<'_>) -> bool {
    let at = leaf.layout().key(pending.key).ok().and_then(|key| leaf.find(key).err());
    at.is_some_and(|at| leaf.continues_long_run(at))
}

/// Right of the child of an inner node that rising inserts have reached, or before its last child if that is the one.
fn behind_child<L: Layout>(node: Node<'_, L>, separator: &[u8]) -> Option<(usize, Vec<u8>)> {
    let count = node.count();
    let at = node.child_index(node.layout().key(separator).ok()?).min(count.checked_sub(1)?);
    let up = node.key_at(at);
    // A node of two children is not made smaller.
    (count > 2 && node.can_split(at, &up)).then_some((at, up))
}

/// Behind the last entry of a run of rising inserts that `key` goes on with.
fn behind_run<L: Layout>(leaf: Node<'_, L>, key: &[u8]) -> Option<(usize, Vec<u8>)> {
    let at = leaf.find(leaf.layout().key(key).ok()?).err()?;
    if at == 0 || !leaf.continues_run(at) {
        return None;
    }
    let separator = match at < leaf.count() {
        true => leaf.layout().separator(key, &leaf.key_at(at)),
        false => leaf.layout().separator(&leaf.key_at(at - 1), key),
    };
    leaf.can_split(at, &separator).then_some((at, separator))
}
