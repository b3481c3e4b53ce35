//! Node layouts (DEX §3): the meaning of the bytes of a node.
//!
//! A node has `node_size` bytes and begins with a header (see [`header`]). An inner node with `n` separators
//! has `n + 1` children; child `i` covers the keys from separator `i - 1` (inclusive) to separator `i`
//! (exclusive). The fences of a node are the bounds of its keys: low inclusive, high exclusive; either may be
//! infinite.
//!
//! The reading half of [`Layout`] is called on pages that other threads may be changing. Whatever the words
//! are, it returns something and stays inside the page; the caller validates the page's version before it
//! uses the answer. The writing half requires exclusive access to the page.

pub(crate) mod digest;
#[cfg(any(test, fuzzing))]
pub mod exercise;
pub mod fixed;
pub mod header;
mod id;
pub mod slotted;
#[cfg(test)]
mod tests;

use std::ops::Range;

pub use id::{AnyLayout, LayoutId};
use pando_cache::NodeShape;
use pando_cache::sync::Word;
use pando_pool::ValueRef;

use crate::error::Result;

/// Smallest capacity of a node in any layout, in entries, so that it can be split.
const FANOUT_MIN: usize = 3;

/// The node, of two neighbours, to which a key on their common fence leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Toward {
    /// The node that covers the key.
    Key,
    /// The node that covers the largest keys below it, for descending scans.
    Below,
}

/// One of the two fences of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Low,
    High,
}

/// A value as stored in a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored<'v> {
    Inline(&'v [u8]),
    /// Out of line in the pool.
    Long(ValueRef),
    /// The same, and its bytes are at hand: it was put into the pool for this change.
    New(&'v NewValue<'v>),
}

/// A long value that is being put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewValue<'v> {
    pub reference: ValueRef,
    pub bytes: &'v [u8],
}

impl Stored<'_> {
    /// Bytes that the value takes inside a leaf.
    pub fn stored_len(&self) -> usize {
        match self {
            Self::Inline(bytes) => bytes.len(),
            Self::Long(_) | Self::New(_) => size_of::<ValueRef>(),
        }
    }
}

/// Parameters of a new node.
#[derive(Clone, Copy, Debug)]
pub struct NodeInit<'f> {
    pub addr: u64,
    pub index_id: u32,
    pub level: u8,
    /// `None` is infinite.
    pub low: Option<&'f [u8]>,
    pub high: Option<&'f [u8]>,
}

/// Format of a tree's nodes: the places of keys, values and children. All nodes of a tree have the same.
pub trait Layout: NodeShape + Copy + Send + Sync + std::fmt::Debug + 'static {
    /// A key prepared for comparisons with those in nodes.
    type Key<'k>: Copy;

    /// # Errors
    /// A key that no node of this layout can hold.
    fn key<'k>(&self, bytes: &'k [u8]) -> Result<Self::Key<'k>>;

    /// Bytes of a prepared key.
    fn key_bytes<'k>(&self, key: Self::Key<'k>) -> &'k [u8];

    /// Whether the value is stored in the leaf.
    ///
    /// # Errors
    /// A value that this layout cannot hold at all.
    fn value_is_inline(&self, value: &[u8]) -> Result<bool>;

    fn node_size(&self) -> usize;

    /// Numbers from which [`AnyLayout::of`] reconstructs this layout.
    fn id(&self) -> LayoutId;

    /// Key and direction with which a scan from `bound` starts its descent; `bound` may be shorter or longer
    /// than any key. They lead to the leaf of the scan's first entry, or to one before it.
    fn scan_start(&self, bound: &[u8], toward: Toward) -> (Vec<u8>, Toward);

    /// A key such that no key of this layout is below it.
    fn lowest_key(&self) -> Vec<u8>;

    /// A key such that no key of this layout is above it.
    fn highest_key(&self) -> Vec<u8>;

    /// Number of bytes at the front of a node that a search reads first, for prefetching.
    fn prefetch_bytes(&self) -> usize;

    // Reading.

    /// Whether `key` lies between the fences.
    fn covers(&self, page: &[Word], key: Self::Key<'_>) -> bool;

    /// Index of the child to descend into for `key`.
    fn child_index(&self, page: &[Word], key: Self::Key<'_>) -> usize;

    /// Index of the child that covers the largest keys below `key`, for descending scans.
    fn child_index_below(&self, page: &[Word], key: Self::Key<'_>) -> usize;

    /// Index of the leaf entry with this key, or the index where it would be inserted.
    fn find(&self, page: &[Word], key: Self::Key<'_>) -> std::result::Result<usize, usize>;

    /// Number of entries of a leaf or of separators of an inner node, bounded by the capacity of the page.
    fn count(&self, page: &[Word]) -> usize;

    /// Appends the key of entry or separator `i`.
    fn append_key(&self, page: &[Word], i: usize, out: &mut Vec<u8>);

    /// Appends the value of leaf entry `i` if it is inline, else returns the reference to it.
    fn append_value(&self, page: &[Word], i: usize, out: &mut Vec<u8>) -> Option<ValueRef>;

    /// Prefetches the value of leaf entry `i`.
    #[inline]
    fn prefetch_value(&self, _page: &[Word], _i: usize) {}

    /// Key and value of leaf entry `i`, if both have 8 bytes in every entry. A scan need not copy them to
    /// buffers then.
    #[inline]
    fn entry_of_words(&self, page: &[Word], i: usize) -> Option<([u8; 8], [u8; 8])> {
        let _ = (page, i);
        None
    }

    /// The words of the value of leaf entry `i`, if replacing it by this one would change no others.
    fn place_of(&self, page: &[Word], i: usize, value: Stored<'_>) -> Option<Range<usize>>;

    /// Whether values may be out of line.
    fn holds_long_values(&self) -> bool {
        false
    }

    /// Reference to the value of leaf entry `i`, if it is out of line.
    fn long_value(&self, page: &[Word], i: usize) -> Option<ValueRef>;

    /// Appends a fence; `false` if it is infinite.
    fn append_fence(&self, page: &[Word], side: Side, out: &mut Vec<u8>) -> bool;

    /// Checks that the words are a possible node of this layout; returns the reason if not.
    fn verify(&self, page: &[Word]) -> std::result::Result<(), &'static str>;

    /// A key above `before` and at most `after`, as short as the layout allows; `before < after`.
    fn separator(&self, before: &[u8], after: &[u8]) -> Vec<u8> {
        let _ = before;
        after.to_vec()
    }

    // Room.

    /// Used share of the node's room, from 0 to 1.
    fn fullness(&self, page: &[Word]) -> f64;

    /// Whether fences take room from entries.
    fn fences_take_room(&self) -> bool {
        false
    }

    /// Largest number of entries of a leaf, reached with the smallest entries.
    fn max_entries(&self) -> usize;

    /// Largest number of children of an inner node, reached with small separators.
    fn max_children(&self) -> usize;

    /// Whether a leaf has room for one more entry, or an inner node for one more separator, of this size.
    fn has_room(&self, page: &[Word], key: &[u8], value_len: usize) -> bool;

    /// Whether the node is so empty that it should be merged with a neighbour.
    fn is_underfull(&self, page: &[Word]) -> bool;

    /// Whether the content of two neighbours fits into one node with room to spare; `separator` is the key
    /// between them.
    fn can_merge(&self, left: &[Word], right: &[Word], separator: &[u8]) -> bool;

    /// Chooses where to split a node so that an entry or separator of this key and size fits into its half.
    /// Appends the separator; returns the first entry of the right leaf, or the separator that moves up.
    /// `None` if the node has too few entries to be split.
    fn split_point(
        &self,
        page: &[Word],
        key: &[u8],
        value_len: usize,
        separator: &mut Vec<u8>,
    ) -> Option<usize>;

    /// Whether [`Layout::split`] at `at` with this separator leaves two nodes that can hold their content.
    fn can_split(&self, page: &[Word], at: usize, separator: &[u8]) -> bool {
        let _ = (page, at, separator);
        true
    }

    /// First leaf entry at or above `separator`, or the index of `separator` in an inner node.
    fn position(&self, page: &[Word], separator: &[u8]) -> Option<usize>;

    // Writing.

    fn init(&self, page: &[Word], init: &NodeInit<'_>);

    /// Inserts an entry at `i`; `false` without a change if there is no room.
    fn leaf_insert(&self, page: &[Word], i: usize, key: Self::Key<'_>, value: Stored<'_>) -> bool;

    /// Replaces the value of entry `i`; `false` without a change if there is no room.
    fn leaf_replace(&self, page: &[Word], i: usize, value: Stored<'_>) -> bool;

    fn leaf_remove(&self, page: &[Word], i: usize);

    /// Inserts separator `i` with the child right of it; `false` without a change if there is no room.
    fn inner_insert(&self, page: &[Word], i: usize, separator: &[u8], right_child: u64) -> bool;

    /// Removes separator `i` and the child right of it.
    fn inner_remove(&self, page: &[Word], i: usize);

    /// Moves everything from `at` on to `right`, which [`Layout::init`] prepared with its fences; `page` then
    /// ends at `separator`. In an inner node, separator `at` itself goes into neither half.
    fn split(&self, page: &[Word], right: &[Word], at: usize, separator: &[u8]);

    /// Appends the content of `right` to `left`, which takes over the high fence of `right`.
    fn merge(&self, left: &[Word], right: &[Word], separator: &[u8]);

    /// Copies the content of `from`, except latch and address, to `to`.
    fn copy_content(&self, from: &[Word], to: &[Word]) {
        for (from, to) in from.iter().zip(to).skip(2) {
            to.store(from.load(std::sync::atomic::Ordering::Relaxed), std::sync::atomic::Ordering::Relaxed);
        }
    }

    /// Sets the fences of a node around its unchanged content; `false` if there is no room.
    fn set_fences(&self, page: &[Word], low: Option<&[u8]>, high: Option<&[u8]>) -> bool;
}
