//! The region of a predicate: the part of a columnar Elf below the entries that its leading conditions leave.
//!
//! The leading conditions are those down to the first level at which more than one entry matches. Everything
//! below is known exactly without a visit, since the entries of a level below a range of entries are a range
//! again: D steps and a few binary searches. A walk visits the whole region if conditions further down exclude
//! nothing, and never more.

use std::ops::Range;

use super::{Columnar, ElfLayout};
use crate::predicate::Filter;

/// Number of rows, entries and strip rows that a walk may visit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Region {
    /// Rows below the matching entries of the leading conditions, as ranges in preorder.
    pub extents: Vec<Range<u64>>,
    /// Entries of each level within the extents; above the last leading level only those on the way.
    pub entries: Vec<u64>,
    /// Rows within the extents that have strip codes on each level.
    pub strip_rows: Vec<u64>,
}

impl Region {
    /// Computes the region of `filter` down to its last condition.
    pub fn of<B: AsRef<[u8]>>(columnar: &Columnar<B>, filter: &Filter) -> Self {
        let levels = columnar.order().len();
        if filter.is_empty() {
            return Self { extents: Vec::new(), entries: vec![0; levels], strip_rows: vec![0; levels] };
        }
        let (leading, matching) = columnar.leading(filter);
        Self::below(columnar, leading, &matching, filter.depth())
    }

    /// Computes the region below the `matching` entries of the `leading` level, down to the level before `end`.
    pub(super) fn below<B: AsRef<[u8]>>(
        columnar: &Columnar<B>,
        leading: usize,
        matching: &[Range<usize>],
        end: usize,
    ) -> Self {
        let levels = columnar.order().len();
        let mut region = Self { extents: Vec::new(), entries: vec![0; levels], strip_rows: vec![0; levels] };
        region.entries[..leading].fill(1);
        for mut entries in matching.iter().cloned() {
            let level = columnar.level(leading);
            let rows = level.start(entries.start) as u64..level.end(entries.end - 1) as u64;
            for number in leading..end.max(leading + 1) {
                let level = columnar.level(number);
                region.entries[number] += entries.len() as u64;
                // Rows of the extent without an entry on this level have a strip code.
                let covered = level.covered(entries.clone()) as u64;
                region.strip_rows[number] += rows.end - rows.start - covered;
                entries = level.child(entries.start)..level.child(entries.end);
            }
            region.extents.push(rows);
        }
        region
    }

    /// Number of rows in the extents.
    pub fn rows(&self) -> u64 {
        self.extents.iter().map(|extent| extent.end - extent.start).sum()
    }
}
