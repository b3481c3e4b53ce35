//! Changes of one leaf entry, and their outcomes.
//!
//! The code is the same wherever the change is made: in a frame under its latch, in a private copy that is
//! written back at once, or in a memory server's own memory (DEX §6). A long value is put into the pool
//! before the change, and an unlinked one is freed after it.

use std::ops::Range;

use pando_fabric::Work;
use pando_pool::ValueRef;

use crate::layout::{Layout, Stored};
use crate::node::{Node, NodeMut};

/// Change of the entry of a key.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change<'v> {
    /// Store the value whether or not the key is present.
    Upsert(Stored<'v>),
    /// Store the value if the key is absent.
    Insert(Stored<'v>),
    /// Store the value if the key is present.
    Update(Stored<'v>),
    Remove,
    /// Store `new` (remove the key if it is `None`) if the current value is the expected one.
    Swap {
        expected: Expected<'v>,
        new: Option<Stored<'v>>,
    },
}

impl<'v> Change<'v> {
    /// The value that it stores if it is made; `None` if it removes the key.
    pub fn stored(&self) -> Option<Stored<'v>> {
        match *self {
            Self::Upsert(value) | Self::Insert(value) | Self::Update(value) => Some(value),
            Self::Remove => None,
            Self::Swap { new, .. } => new,
        }
    }

    /// The same change, if it is one that stores a value, with another value.
    pub fn storing(self, value: Stored<'v>) -> Self {
        match self {
            Self::Upsert(_) => Self::Upsert(value),
            Self::Insert(_) => Self::Insert(value),
            Self::Update(_) => Self::Update(value),
            Self::Remove => Self::Remove,
            Self::Swap { expected, new } => Self::Swap { expected, new: new.map(|_| value) },
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Expected<'v> {
    Absent,
    Bytes(&'v [u8]),
    /// A long value that was READ and compared before.
    Exactly(ValueRef),
}

/// Outcome of a change.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// The key was present before.
    pub existed: bool,
    /// The change was made.
    pub changed: bool,
    /// A long value that no entry refers to any more.
    pub unlinked: Option<ValueRef>,
    /// The leaf should be merged with a neighbour.
    pub underfull: bool,
    /// The words of a value that was replaced in its place; no others of the leaf changed.
    pub in_place: Option<Range<usize>>,
    /// Number of the last record of the log about what this has seen; 0 without a log.
    pub seen: u64,
}

/// Reason why a change could not be applied to a leaf.
pub(crate) enum Blocked {
    NoRoom,
    /// The current value is long and must be READ and compared first.
    Compare(ValueRef),
}

/// Makes the change in a leaf to which the caller has exclusive access.
#[inline]
pub(crate) fn apply<L: Layout>(
    leaf: NodeMut<'_, L>,
    key: L::Key<'_>,
    change: &Change<'_>,
) -> std::result::Result<Outcome, Blocked> {
    let position = leaf.find(key);
    let existed = position.is_ok();
    let stored = match *change {
        Change::Upsert(value) => Some(value),
        Change::Insert(value) if !existed => Some(value),
        Change::Update(value) if existed => Some(value),
        Change::Remove if existed => None,
        Change::Swap { expected, new } if is_expected(*leaf, position, expected)? => new,
        _ => return Ok(Outcome { existed, ..Outcome::default() }),
    };
    let mut outcome = Outcome { existed, changed: true, ..Outcome::default() };
    let Some(value) = stored else {
        let Ok(i) = position else { return Ok(Outcome::default()) };
        outcome.unlinked = leaf.long_value(i);
        leaf.remove(i);
        outcome.underfull = leaf.is_underfull();
        return Ok(outcome);
    };
    let fits = match position {
        Ok(i) => {
            outcome.unlinked = leaf.long_value(i);
            outcome.in_place = leaf.place_of(i, value);
            leaf.replace(i, value)
        }
        Err(i) => leaf.insert(i, key, value),
    };
    if fits { Ok(outcome) } else { Err(Blocked::NoRoom) }
}

fn is_expected<L: Layout>(
    leaf: Node<'_, L>,
    position: std::result::Result<usize, usize>,
    expected: Expected<'_>,
) -> std::result::Result<bool, Blocked> {
    let Ok(i) = position else { return Ok(matches!(expected, Expected::Absent)) };
    match (expected, leaf.long_value(i)) {
        (Expected::Absent, _) | (Expected::Exactly(_), None) => Ok(false),
        (Expected::Exactly(wanted), Some(found)) => Ok(wanted == found),
        (Expected::Bytes(_), Some(found)) => Err(Blocked::Compare(found)),
        (Expected::Bytes(wanted), None) => {
            let mut bytes = Vec::with_capacity(wanted.len());
            leaf.append_value(i, &mut bytes);
            Ok(bytes == wanted)
        }
    }
}

/// Work of a change: the bytes of a replaced value, or half a leaf if entries were moved.
#[inline]
pub(crate) fn work_of<L: Layout>(
    layout: L,
    change: &Change<'_>,
    result: &std::result::Result<Outcome, Blocked>,
) -> Work {
    let bytes = match result {
        Ok(outcome) if outcome.changed => match outcome.existed && stored_len(change) > 0 {
            true => stored_len(change),
            false => layout.node_size() / 2,
        },
        _ => 0,
    };
    Work::Copy { bytes }
}

/// Bytes that the new value takes inside a leaf.
pub(crate) fn stored_len(change: &Change<'_>) -> usize {
    change.stored().map_or(0, |value| value.stored_len())
}
