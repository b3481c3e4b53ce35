//! Node layouts (DEX §3): what the bytes of a node mean.
//!
//! A node is `node_size` bytes, a header first (see [`header`]). An inner node with `n` separators has `n + 1`
//! children; child `i` holds the keys from separator `i - 1` (inclusive) to separator `i` (exclusive). The fences of
//! a node are the bounds of its keys: low inclusive, high exclusive, either may be infinite.
//!
//! The reading half of [`Layout`] is called on pages that other threads may be changing: whatever the words say, it
//! returns something and stays inside the page; the caller validates the page's version before it believes the
//! answer. The writing half is called on pages that the caller has for itself.

pub(crate) mod digest;
#[cfg(any(test, fuzzing))]
pub mod exercise;
pub mod fixed;
pub mod header;
mod id;
pub mod slotted;
#[cfg(test)]
mod tests;

pub use id::{AnyLayout, LayoutId};
use pando_cache::NodeShape;
use pando_cache::sync::Word;
use pando_pool::ValueRef;

use crate::error::Result;

/// Fewest entries that a node of any layout must have room for, so that it can be split.
const FANOUT_MIN: usize = 3;

/// Which of two neighbours a key on their common fence leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Toward {
    /// The node that holds the key.
    Key,
    /// The node that holds the largest keys below it: descending scans.
    Below,
}

/// Which fence of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Low,
    High,
}

/// A value as a leaf holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored<'v> {
    Inline(&'v [u8]),
    /// Out of line in the pool.
    Long(ValueRef),
}

impl Stored<'_> {
    /// Bytes that the value takes inside a leaf.
    pub fn stored_len(&self) -> usize {
        match self {
            Self::Inline(bytes) => bytes.len(),
            Self::Long(_) => size_of::<ValueRef>(),
        }
    }
}

/// What a new node is to be.
#[derive(Clone, Copy, Debug)]
pub struct NodeInit<'f> {
    pub addr: u64,
    pub index_id: u32,
    pub level: u8,
    /// `None` is infinite.
    pub low: Option<&'f [u8]>,
    pub high: Option<&'f [u8]>,
}

/// Format of a tree's nodes: where keys, values and children stand. One for all nodes of a tree.
pub trait Layout: NodeShape + Copy + Send + Sync + std::fmt::Debug + 'static {
    /// A key prepared for comparisons with those in nodes.
    type Key<'k>: Copy;

    /// # Errors
    /// A key that no node of this layout can hold.
    fn key<'k>(&self, bytes: &'k [u8]) -> Result<Self::Key<'k>>;

    /// The bytes of a prepared key.
    fn key_bytes<'k>(&self, key: Self::Key<'k>) -> &'k [u8];

    /// Whether the value goes into the leaf.
    ///
    /// # Errors
    /// A value that this layout cannot hold at all.
    fn value_is_inline(&self, value: &[u8]) -> Result<bool>;

    fn node_size(&self) -> usize;

    /// From which [`AnyLayout::of`] makes this layout again.
    fn id(&self) -> LayoutId;

    /// A key that a scan from `bound` on may start its descent with, though `bound` may be shorter or longer than
    /// any key, and in which direction. It leads to the leaf that the first entry of the scan is in, or before it.
    fn scan_start(&self, bound: &[u8], toward: Toward) -> (Vec<u8>, Toward);

    /// A key that no key of this layout is below.
    fn lowest_key(&self) -> Vec<u8>;

    /// A key that no key of this layout is above.
    fn highest_key(&self) -> Vec<u8>;

    /// Bytes at the front of a node that a search looks at first, for prefetching.
    fn prefetch_bytes(&self) -> usize;

    // Reading.

    /// Whether `key` lies between the fences.
    fn covers(&self, page: &[Word], key: Self::Key<'_>) -> bool;

    /// The child to descend into for `key`.
    fn child_index(&self, page: &[Word], key: Self::Key<'_>) -> usize;

    /// The child that holds the largest keys below `key`: the way of a descending scan.
    fn child_index_below(&self, page: &[Word], key: Self::Key<'_>) -> usize;

    /// The entry of a leaf with this key, or where it would be.
    fn find(&self, page: &[Word], key: Self::Key<'_>) -> std::result::Result<usize, usize>;

    /// Entries of a leaf or separators of an inner node, at most as many as the page can hold.
    fn count(&self, page: &[Word]) -> usize;

    /// Appends the key of entry or separator `i`.
    fn append_key(&self, page: &[Word], i: usize, out: &mut Vec<u8>);

    /// Appends the value of leaf entry `i` if it is inline, else says where it is.
    fn append_value(&self, page: &[Word], i: usize, out: &mut Vec<u8>) -> Option<ValueRef>;

    /// Asks the processor for the value of entry `i` of a leaf.
    #[inline]
    fn prefetch_value(&self, _page: &[Word], _i: usize) {}

    /// Key and value of leaf entry `i` if both have 8 bytes in every entry: a scan need not copy them to buffers then.
    #[inline]
    fn entry_of_words(&self, page: &[Word], i: usize) -> Option<([u8; 8], [u8; 8])> {
        let _ = (page, i);
        None
    }

    /// Whether values may be out of line.
    fn holds_long_values(&self) -> bool {
        false
    }

    /// Where the value of leaf entry `i` is, if it is out of line.
    fn long_value(&self, page: &[Word], i: usize) -> Option<ValueRef>;

    /// Appends a fence; `false` if it is infinite.
    fn append_fence(&self, page: &[Word], side: Side, out: &mut Vec<u8>) -> bool;

    /// Whether the words are a possible node of this layout; the reason if not.
    fn verify(&self, page: &[Word]) -> std::result::Result<(), &'static str>;

    /// A key above `before` and not above `after`, as short as the layout allows; `before < after`.
    fn separator(&self, before: &[u8], after: &[u8]) -> Vec<u8> {
        let _ = before;
        after.to_vec()
    }

    // Room.

    /// How much of the node's room is used, from 0 to 1.
    fn fullness(&self, page: &[Word]) -> f64;

    /// Whether fences take room from entries.
    fn fences_take_room(&self) -> bool {
        false
    }

    /// Entries that a leaf holds at most, when they are as small as entries can be.
    fn max_entries(&self) -> usize;

    /// Children that an inner node holds at most, when separators are small.
    fn max_children(&self) -> usize;

    /// Whether a leaf of this page could take one more entry, or an inner node one more separator, of this size.
    fn has_room(&self, page: &[Word], key: &[u8], value_len: usize) -> bool;

    /// Whether so little is left in the node that it should be merged with a neighbour.
    fn is_underfull(&self, page: &[Word]) -> bool;

    /// Whether the content of two neighbours fits into one node with room to spare; `separator` stands between them.
    fn can_merge(&self, left: &[Word], right: &[Word], separator: &[u8]) -> bool;

    /// Where to split a node so that an entry (or separator) of this key and size fits into the half it belongs to.
    /// Appends the separator; the answer is the first entry of the right leaf, or the separator that moves up.
    /// `None` if the node has too few entries to be split.
    fn split_point(
        &self,
        page: &[Word],
        key: &[u8],
        value_len: usize,
        separator: &mut Vec<u8>,
    ) -> Option<usize>;

    /// Whether [`Layout::split`] at `at` with this separator leaves two nodes that hold their content.
    fn can_split(&self, page: &[Word], at: usize, separator: &[u8]) -> bool {
        let _ = (page, at, separator);
        true
    }

    /// First entry of a leaf that is not below `separator`, or the index of `separator` among those of an inner node.
    fn position(&self, page: &[Word], separator: &[u8]) -> Option<usize>;

    // Writing.

    fn init(&self, page: &[Word], init: &NodeInit<'_>);

    /// Inserts an entry at `i`; `false` if there is no room, and nothing changed.
    fn leaf_insert(&self, page: &[Word], i: usize, key: Self::Key<'_>, value: Stored<'_>) -> bool;

    /// Replaces the value of entry `i`; `false` if there is no room, and nothing changed.
    fn leaf_replace(&self, page: &[Word], i: usize, value: Stored<'_>) -> bool;

    fn leaf_remove(&self, page: &[Word], i: usize);

    /// Inserts separator `i` with the child right of it; `false` if there is no room, and nothing changed.
    fn inner_insert(&self, page: &[Word], i: usize, separator: &[u8], right_child: u64) -> bool;

    /// Removes separator `i` and the child right of it.
    fn inner_remove(&self, page: &[Word], i: usize);

    /// Moves everything from `at` on to `right`, which [`Layout::init`] prepared with its fences; `page` ends at
    /// `separator` afterwards. Of an inner node, separator `at` itself goes into neither.
    fn split(&self, page: &[Word], right: &[Word], at: usize, separator: &[u8]);

    /// Appends the content of `right` to `left`, whose high fence becomes that of `right`.
    fn merge(&self, left: &[Word], right: &[Word], separator: &[u8]);

    /// Copies the content of `from` (not latch and address) to `to`; for a root that never moves.
    fn copy_content(&self, from: &[Word], to: &[Word]) {
        for (from, to) in from.iter().zip(to).skip(2) {
            to.store(from.load(std::sync::atomic::Ordering::Relaxed), std::sync::atomic::Ordering::Relaxed);
        }
    }

    /// Sets the fences of a node that keeps its content, all of which lies inside; `false` if there is no room.
    fn set_fences(&self, page: &[Word], low: Option<&[u8]>, high: Option<&[u8]>) -> bool;
}
