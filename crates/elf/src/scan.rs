//! The columns of a table in as few bytes per code as they need, in row order: what scans read.
//!
//! They are kept beside an Elf, which stores codes in its own order, so that predicates for which a walk is no
//! help cost as much as a scan. Conditions are evaluated for blocks of rows, the most selective first.

use crate::codes::{CodeSlice, code_bytes};
use crate::error::{Error, Result};
use crate::kernel::{Combine, Kernel, WORD};
use crate::predicate::{Interval, Predicate};
use crate::sink::Sink;
use crate::table::CodeTable;

/// Rows whose masks are computed together.
const BLOCK_ROWS: usize = 4096;

#[derive(Clone, Debug, PartialEq, Eq)]
struct ScanColumn {
    bytes: Vec<u8>,
    code_bytes: usize,
    maximum: u32,
}

impl ScanColumn {
    fn new(codes: &[u32], maximum: u32) -> Self {
        let code_bytes = code_bytes(maximum);
        let bytes = match code_bytes {
            1 => codes.iter().map(|&code| code as u8).collect(),
            2 => codes.iter().flat_map(|&code| (code as u16).to_le_bytes()).collect(),
            _ => codes.iter().flat_map(|code| code.to_le_bytes()).collect(),
        };
        Self { bytes, code_bytes, maximum }
    }

    fn codes(&self) -> CodeSlice<'_> {
        CodeSlice::open(&self.bytes, self.code_bytes).expect("the column has whole codes")
    }

    /// Whether every code that the column has is in `intervals`.
    fn is_covered(&self, intervals: &[Interval]) -> bool {
        matches!(intervals, [all] if all.low == 0 && all.high >= self.maximum)
    }

    /// Share of the possible codes that are in `intervals`.
    fn share(&self, intervals: &[Interval]) -> f64 {
        let count =
            |interval: &Interval| f64::from(interval.high.min(self.maximum)) + 1.0 - f64::from(interval.low);
        intervals.iter().map(|interval| count(interval).max(0.0)).sum::<f64>()
            / (f64::from(self.maximum) + 1.0)
    }
}

/// All columns of a table for scans.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanColumns {
    columns: Vec<ScanColumn>,
    rows: usize,
}

impl ScanColumns {
    /// Copies the columns of `table`.
    pub fn new(table: &CodeTable) -> Self {
        let column = |column| ScanColumn::new(table.column(column), table.maximum(column));
        Self { columns: (0..table.width()).map(column).collect(), rows: table.rows() }
    }

    /// Number of columns.
    pub fn width(&self) -> usize {
        self.columns.len()
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Largest code of column `column`; 0 if there is no such column.
    pub fn maximum(&self, column: usize) -> u32 {
        self.columns.get(column).map_or(0, |column| column.maximum)
    }

    /// Size of all columns in bytes.
    pub fn bytes(&self) -> usize {
        self.columns.iter().map(|column| column.bytes.len()).sum()
    }

    /// Bytes per row of the columns that `predicate` has conditions on.
    pub fn bytes_per_row(&self, predicate: &Predicate) -> usize {
        let conditions = predicate.conditions();
        let columns = conditions.filter_map(|(number, intervals)| {
            self.columns.get(number).filter(|column| !column.is_covered(intervals))
        });
        columns.map(|column| column.code_bytes).sum()
    }

    /// Gives `sink` the rows that meet `predicate`, in row order. Fails if it names a column that does not exist.
    pub fn scan<S: Sink>(&self, predicate: &Predicate, kernel: Kernel, sink: &mut S) -> Result<()> {
        let mut conditions = Vec::new();
        for (column, intervals) in predicate.conditions() {
            let found = self.columns.get(column);
            let found = found.ok_or(Error::ColumnOutOfRange { column, columns: self.columns.len() })?;
            if !found.is_covered(intervals) {
                conditions.push((found, intervals));
            }
        }
        conditions.sort_by(|(a, left), (b, right)| a.share(left).total_cmp(&b.share(right)));
        let mut masks = [0; BLOCK_ROWS / WORD];
        for first in (0..self.rows).step_by(BLOCK_ROWS) {
            let rows = BLOCK_ROWS.min(self.rows - first);
            let masks = &mut masks[..rows.div_ceil(WORD)];
            masks.fill(u64::MAX);
            if !rows.is_multiple_of(WORD) {
                masks[rows / WORD] = u64::MAX >> (WORD - rows % WORD);
            }
            let mut combine = Combine::Replace;
            for (column, intervals) in &conditions {
                kernel.compare(column.codes().slice(first..first + rows), intervals, masks, combine);
                combine = Combine::And;
            }
            for (word, &mask) in masks.iter().enumerate().filter(|(_, mask)| **mask != 0) {
                sink.rows((first + word * WORD) as u64, mask);
            }
        }
        Ok(())
    }
}
