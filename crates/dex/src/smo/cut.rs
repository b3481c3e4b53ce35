//! Choice of the point where a node is split (DEX §7, Insert).
//!
//! A node is split behind a run of rising inserts, so that these leave full leaves anywhere in the tree; else
//! where the layout chooses; or at exactly a given key, so that no leaf spans two partitions.

use crate::layout::Layout;
use crate::node::Node;

/// A separator for which a parent needs room.
#[derive(Clone)]
pub(crate) struct Separator {
    pub key: Vec<u8>,
    /// It ends a run of rising inserts, so that the next separator will follow it directly.
    pub rising: bool,
}

/// Split point of a node.
pub(crate) struct SplitAt {
    /// First entry of the right leaf, or the separator that moves up.
    pub at: usize,
    pub separator: Separator,
}

/// An entry or a separator that does not fit.
#[derive(Clone, Copy)]
pub(crate) struct Pending<'k> {
    pub key: &'k [u8],
    pub value_len: usize,
    /// As [`Separator::rising`], for separators. For entries, the leaf counts the run.
    pub rising: bool,
}

/// The purpose of a split.
#[derive(Clone, Copy)]
pub(crate) enum Cut<'k> {
    /// Make room.
    ForRoom(Pending<'k>),
    /// Begin a leaf at exactly this key.
    At(&'k [u8]),
}

impl Cut<'_> {
    /// Chooses the split point of `node`; `None` if it has too few entries.
    pub fn choose<L: Layout>(self, node: Node<'_, L>) -> Option<SplitAt> {
        let pending = match self {
            Cut::ForRoom(pending) => pending,
            Cut::At(key) => match node.position(key) {
                Some(at) if node.can_split(at, key) => {
                    return Some(SplitAt { at, separator: Separator { key: key.to_vec(), rising: false } });
                }
                // The key may be too long a fence for so full a leaf. Then the leaf is halved first.
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

/// Whether the pending entry of a leaf continues a run of rising inserts that is long enough for a full leaf.
pub(crate) fn continues_long_run<L: Layout>(leaf: Node<'_, L>, pending: Pending<'_>) -> bool {
    let at = leaf.layout().key(pending.key).ok().and_then(|key| leaf.find(key).err());
    at.is_some_and(|at| leaf.continues_long_run(at))
}

/// Split point right of the child that rising inserts have reached, or left of it if it is the last child.
fn behind_child<L: Layout>(node: Node<'_, L>, separator: &[u8]) -> Option<(usize, Vec<u8>)> {
    let count = node.count();
    let at = node.child_index(node.layout().key(separator).ok()?).min(count.checked_sub(1)?);
    let up = node.key_at(at);
    // An inner node with at most two separators is not split here.
    (count > 2 && node.can_split(at, &up)).then_some((at, up))
}

/// Split point behind the last entry of the run of rising inserts that `key` continues.
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
