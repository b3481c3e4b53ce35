//! The tree that a sorted table describes, before it is written in some layout.
//!
//! A group is a range of sorted rows that agree in the levels above some level. Its children, one per value of
//! that level, begin at its first row and wherever a row shares no more than the levels above with its
//! predecessor.

use std::ops::Range;

use crate::codes::{Code, CodeSlice};
use crate::sort::Sorted;
use crate::table::CodeTable;

/// A sorted table.
pub(super) struct Tree<'a> {
    pub(super) table: &'a CodeTable,
    /// Codes of each level by row of the table.
    pub(super) columns: Vec<CodeSlice<'a>>,
    pub(super) sorted: &'a Sorted,
}

impl<'a> Tree<'a> {
    pub(super) fn new(table: &'a CodeTable, order: &[usize], sorted: &'a Sorted) -> Self {
        Self { table, columns: order.iter().map(|&column| table.column(column)).collect(), sorted }
    }

    /// Number of levels.
    pub(super) fn levels(&self) -> usize {
        self.columns.len()
    }

    pub(super) fn rows(&self) -> usize {
        self.sorted.tids.len()
    }

    /// Id of the sorted row `row`.
    #[inline]
    pub(super) fn id(&self, row: usize) -> u64 {
        self.table.id(self.sorted.tids[row] as usize)
    }

    /// Code of the sorted row `row` at `level`.
    #[inline]
    pub(super) fn code(&self, row: usize, level: usize) -> u32 {
        match self.sorted.keys.of_level(level) {
            Some((keys, field)) => field.of(keys[row]),
            None => self.columns[level].get(self.sorted.tids[row] as usize),
        }
    }

    /// Codes of the sorted `rows` at `level`, whose codes in the table are `column`.
    #[inline]
    pub(super) fn codes<C: Code>(
        &self,
        level: usize,
        column: &[C],
        rows: Range<usize>,
        mut take: impl FnMut(C),
    ) {
        match self.sorted.keys.of_level(level) {
            Some((keys, field)) => keys[rows].iter().for_each(|&key| take(C::stored(field.of(key)))),
            None => self.sorted.tids[rows].iter().for_each(|&tid| take(column[tid as usize])),
        }
    }

    /// Groups of the rows of a group that have equal values at `level`.
    pub(super) fn children(
        &self,
        mut rows: Range<usize>,
        level: usize,
    ) -> impl Iterator<Item = Range<usize>> {
        let shared = &self.sorted.shared;
        std::iter::from_fn(move || {
            let first = rows.next()?;
            let end = shared[rows.clone()].iter().position(|&shared| usize::from(shared) <= level);
            let end = end.map_or(rows.end, |more| rows.start + more);
            rows.start = end;
            Some(first..end)
        })
    }

    /// Whether all rows of a group are equal.
    pub(super) fn is_uniform(&self, rows: &Range<usize>) -> bool {
        self.sorted.shared[rows.start + 1..rows.end]
            .iter()
            .all(|&shared| usize::from(shared) == self.levels())
    }
}
