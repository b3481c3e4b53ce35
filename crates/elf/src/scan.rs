//! Scan of a table: the answer to a predicate without an Elf.
//!
//! The gate chooses it for predicates that a walk is no help for, and measurements compare with it. Conditions
//! are evaluated for blocks of rows, the most selective first; words without a candidate are skipped.

use crate::error::{Error, Result};
use crate::kernel::{BLOCK_ROWS, Kernel};
use crate::predicate::{Interval, Predicate};
use crate::sink::Sink;
use crate::table::CodeTable;

/// Conditions of `predicate` that not every code of their column meets. Fails if a column does not exist.
fn conditions<'p>(table: &CodeTable, predicate: &'p Predicate) -> Result<Vec<(usize, &'p [Interval])>> {
    let mut conditions = Vec::new();
    for (column, intervals) in predicate.conditions() {
        if column >= table.width() {
            return Err(Error::ColumnOutOfRange { column, columns: table.width() });
        }
        let is_met = matches!(intervals, [all] if all.low == 0 && all.high >= table.maximum(column));
        if !is_met {
            conditions.push((column, intervals));
        }
    }
    Ok(conditions)
}

/// Share of the possible codes of a column with the largest code `maximum` that is in `intervals`.
fn share(maximum: u32, intervals: &[Interval]) -> f64 {
    let count = |interval: &Interval| f64::from(interval.high.min(maximum)) + 1.0 - f64::from(interval.low);
    intervals.iter().map(|interval| count(interval).max(0.0)).sum::<f64>() / (f64::from(maximum) + 1.0)
}

/// Bytes per row that a scan of `table` for `predicate` reads. Fails if a column does not exist.
pub fn scanned_bytes(table: &CodeTable, predicate: &Predicate) -> Result<usize> {
    Ok(conditions(table, predicate)?.iter().map(|&(column, _)| table.code_bytes(column)).sum())
}

/// Gives `sink` the rows that meet `predicate`, in row order. Fails if it names a column that does not exist.
pub fn scan<S: Sink>(table: &CodeTable, predicate: &Predicate, kernel: Kernel, sink: &mut S) -> Result<()> {
    let mut conditions = conditions(table, predicate)?;
    conditions.sort_by(|(a, left), (b, right)| {
        share(table.maximum(*a), left).total_cmp(&share(table.maximum(*b), right))
    });
    for first in (0..table.rows()).step_by(BLOCK_ROWS) {
        let rows = BLOCK_ROWS.min(table.rows() - first);
        let codes = |column| table.column(column).slice(first..first + rows);
        let conditions = conditions.iter().map(|&(column, intervals)| (codes(column), intervals));
        kernel.select(rows, conditions, |row, mask| sink.rows((first + row) as u64, mask));
    }
    Ok(())
}
