//! The two byte formats of an Elf, behind one trait.
//!
//! [`Linear`] is the published one (DAPD 2022 §2.2, ICDE 2017): one array of words in preorder. [`Columnar`]
//! keeps each level's values, positions and codes apart and ends in buckets of several rows. Both begin with
//! the same header of 64 bytes and store the same tree, in which level `l` is the `l`-th column of the column
//! order and lists are sorted, so that preorder is the lexicographic order of the rows.
//!
//! An image is verified as a whole when it is opened: afterwards no search reads outside of it.

mod columnar;
mod header;
mod linear;
mod region;
mod verify;

pub use columnar::{Columnar, LevelSections, Sections};
pub(crate) use columnar::{ColumnarPlan, LevelPlan};
pub(crate) use header::is_permutation;
pub use header::{Header, LayoutKind};
pub use linear::{ABSENT, Access, Array, END, Linear, MONO_NARROW, MONO_WIDE, linear_order};
pub(crate) use linear::{LinearPlan, write_list_pointer};
pub use region::Region;

use std::ops::Range;

use crate::kernel::Compared;
use crate::predicate::Filter;
use crate::sink::Sink;

/// One step of a walk through the entries of a list that match.
#[derive(Debug)]
pub enum Step<Cursor, Leaf> {
    /// An entry leads to a list of the next level.
    Down(Cursor),
    /// Entries end the tree here: rows that remain to be checked and taken.
    Take(Leaf),
    /// No further entry of the list matches.
    End,
}

/// A place where an exact match stands.
#[derive(Debug)]
pub enum Found<Cursor, Leaf> {
    List(Cursor),
    Leaf(Leaf),
}

/// What a walk has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Steps through lists, and to the places of values that are compared.
    pub steps: u64,
    /// Rows of leaves that were compared with conditions.
    pub compared: u64,
    /// What these comparisons did.
    pub comparisons: Compared,
    /// Rows that were found.
    pub found: u64,
    /// Those of them that were compared.
    pub found_by_comparison: u64,
    /// Rows of the last leaf, if they are about to be taken without a comparison.
    pub pending: u64,
    /// [`ElfLayout::end`] of the last leaf, 0 before the first one.
    pub position: u64,
}

impl Work {
    /// Adds the work of another thread that was done elsewhere in the tree, whose position does not count.
    pub(crate) fn add(&mut self, other: &Self) {
        self.steps += other.steps;
        self.compared += other.compared;
        self.comparisons.add(other.comparisons);
        self.found += other.found;
        self.found_by_comparison += other.found_by_comparison;
    }
}

/// An Elf in some byte format. Levels count from 0. Each row has a row id of its own; ids may have gaps.
pub trait ElfLayout {
    /// Position within one list.
    type Cursor: Send;
    /// Rows below entries that have no list below them.
    type Leaf: Copy + Send;

    fn header(&self) -> &Header;

    /// Column of the table at each level.
    fn order(&self) -> &[usize];

    /// The image, header included.
    fn bytes(&self) -> &[u8];

    /// All row ids are below this number; 0 without rows.
    fn id_bound(&self) -> u64;

    /// The list of level 0.
    fn root(&self) -> Self::Cursor;

    /// Moves `cursor` past the next entries that match `filter` at its level.
    fn step(&self, cursor: &mut Self::Cursor, filter: &Filter) -> Step<Self::Cursor, Self::Leaf>;

    /// The entry with the value `code` of the list of `cursor`, which has not moved yet.
    fn find(&self, cursor: &Self::Cursor, code: u32) -> Option<Found<Self::Cursor, Self::Leaf>>;

    /// Asks for the memory that [`find`](Self::find) will read, without waiting for it.
    fn fetch_list(&self, _cursor: &Self::Cursor, _code: u32) {}

    /// Asks for the memory that [`narrow`](Self::narrow) and [`take_equal`](Self::take_equal) will read, without waiting
    /// for it.
    fn fetch_equal(&self, _leaf: Self::Leaf, _codes: &[u32]) {}

    /// Narrows `leaf` to a part with all rows whose remaining levels have the values in `codes`, and asks for the
    /// memory that [`take_equal`](Self::take_equal) will read for it. `None` if there are no such rows.
    fn narrow(&self, leaf: Self::Leaf, _codes: &[u32]) -> Option<Self::Leaf> {
        Some(leaf)
    }

    /// Whether [`take`](Self::take) compares the rows of `leaf`.
    fn is_compared(&self, leaf: Self::Leaf, filter: &Filter) -> bool;

    /// Places that [`take`](Self::take) has to go to for the values that it compares.
    fn chain(&self, leaf: Self::Leaf, filter: &Filter) -> u64;

    /// Asks for the memory that [`take`](Self::take) will read for `leaf`, without waiting for it. Row ids that are not
    /// compared are only asked for if the result `reads_ids`.
    fn fetch(&self, _leaf: Self::Leaf, _filter: &Filter, _reads_ids: bool) {}

    /// Rows of `leaf`; in the linear layout 1, without looking at it.
    fn rows(&self, leaf: Self::Leaf) -> u64;

    /// Place behind `leaf` in preorder, in units of the layout; in the linear layout as if it had one row.
    fn end(&self, leaf: Self::Leaf) -> u64;

    /// Number of places in preorder.
    fn places(&self) -> u64;

    /// Place in preorder where the rows below a list begin, and how many there are if that is known without a visit.
    fn span(&self, list: &Self::Cursor) -> (u64, Option<u64>);

    /// The first `rows` rows of `leaf` and the others, if it has more and can be divided.
    fn divide(&self, leaf: Self::Leaf, _rows: u64) -> (Self::Leaf, Option<Self::Leaf>) {
        (leaf, None)
    }

    /// Places in preorder that entries matching the leading conditions of `filter` take, ascending: what a walk
    /// passes through.
    fn extents(&self, filter: &Filter) -> Vec<Range<u64>>;

    /// Work that a walk for `filter` does at least, as far as that is known without one.
    fn least_work(&self, _filter: &Filter) -> Work {
        Work::default()
    }

    /// Gives `sink` the rows of `leaf` that meet the conditions of its remaining levels. Returns what was compared.
    fn take<S: Sink>(&self, leaf: Self::Leaf, filter: &Filter, sink: &mut S) -> Compared;

    /// Gives `sink` the rows of `leaf` whose remaining levels have the values in `codes`, one per level.
    fn take_equal<S: Sink>(&self, leaf: Self::Leaf, codes: &[u32], sink: &mut S);
}
