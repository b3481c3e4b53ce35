//! Scan of a table: the answer to a predicate without an Elf.
//!
//! The gate chooses it for predicates that a walk is no help for, and measurements compare with it. Conditions
//! are evaluated for blocks of rows, the most selective first; words without a candidate are skipped. Threads take
//! blocks by a counter.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::{Error, Result};
use crate::kernel::{BLOCK_ROWS, Compared, Kernel, WORD, words_waited_for};
use crate::parallel::{Crew, Filled, ParallelSink};
use crate::predicate::{Interval, Predicate};
use crate::sink::{Sink, bits};
use crate::table::CodeTable;

/// Rows that a thread scans at once.
const TASK_ROWS: usize = 16 * BLOCK_ROWS;

/// Rows of 64 up to which their ids are read one by one.
const FEW: u32 = 4;

/// A condition of a scan.
struct Condition<'p> {
    column: usize,
    intervals: &'p [Interval],
    /// Share of the column's possible codes that meet it.
    share: f64,
}

/// Conditions of `predicate` that not every code of their column meets, the most selective first. Fails if a
/// column does not exist.
fn conditions<'p>(table: &CodeTable, predicate: &'p Predicate) -> Result<Vec<Condition<'p>>> {
    let mut conditions = Vec::new();
    for (column, intervals) in predicate.conditions() {
        if column >= table.width() {
            return Err(Error::ColumnOutOfRange { column, columns: table.width() });
        }
        let maximum = table.maximum(column);
        let is_met = matches!(intervals, [all] if all.low == 0 && all.high >= maximum);
        if !is_met {
            conditions.push(Condition { column, intervals, share: share(maximum, intervals) });
        }
    }
    conditions.sort_by(|a, b| a.share.total_cmp(&b.share));
    Ok(conditions)
}

/// Share of the possible codes of a column with the largest code `maximum` that is in `intervals`.
fn share(maximum: u32, intervals: &[Interval]) -> f64 {
    let count = |interval: &Interval| f64::from(interval.high.min(maximum)) + 1.0 - f64::from(interval.low);
    intervals.iter().map(|interval| count(interval).max(0.0)).sum::<f64>() / (f64::from(maximum) + 1.0)
}

/// What a scan does.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Reads {
    /// Bytes of codes.
    pub(crate) bytes: f64,
    /// Pieces of columns, one per block of rows and condition.
    pub(crate) pieces: f64,
    /// Words of masks whose branch the processor does not foresee.
    pub(crate) surprises: f64,
    /// Words whose codes are waited for.
    pub(crate) waits: f64,
    /// Bytes of the columns with a condition.
    pub(crate) columns: f64,
    /// Rows that are found.
    pub(crate) found: f64,
}

impl Reads {
    /// Bytes of memory that are read or lie between what is read, about.
    pub(crate) fn footprint(&self) -> f64 {
        self.columns.min(2.0 * self.bytes)
    }
}

/// Bytes of all columns with a condition.
fn column_bytes(table: &CodeTable, conditions: &[Condition<'_>]) -> f64 {
    conditions.iter().map(|condition| (table.code_bytes(condition.column) * table.rows()) as f64).sum()
}

/// What a scan of `table` for `predicate` is expected to read if the possible codes of a column are equally frequent
/// and columns independent. Fails if a column does not exist.
pub(crate) fn expected_reads(table: &CodeTable, predicate: &Predicate) -> Result<Reads> {
    let conditions = conditions(table, predicate)?;
    let (mut reads, mut candidates) = (Reads::default(), 1.0);
    let (rows, blocks) = (table.rows() as f64, table.rows().div_ceil(BLOCK_ROWS) as f64);
    let all_words = rows / WORD as f64;
    for condition in &conditions {
        let words = words_with(candidates);
        // Words without a candidate are passed over if they are the majority.
        let skips = words < 0.5;
        let share = if skips { words } else { 1.0 };
        reads.bytes += share * rows * table.code_bytes(condition.column) as f64;
        reads.pieces += blocks;
        reads.waits += if skips { words_waited_for(words, all_words) } else { 0.0 };
        candidates *= condition.share;
    }
    let words = words_with(candidates);
    reads.surprises += words.min(1.0 - words) * all_words;
    reads.columns = column_bytes(table, &conditions);
    reads.found = candidates * rows;
    Ok(reads)
}

/// Share of words in which a row is left if a share of the rows is.
fn words_with(rows: f64) -> f64 {
    1.0 - f64::powi(1.0 - rows, WORD as i32)
}

/// What a scan of `table` for `predicate` reads, projected from `sample` blocks of rows that are scanned. Fails if a
/// column does not exist.
pub(crate) fn sampled_reads(
    table: &CodeTable,
    predicate: &Predicate,
    kernel: Kernel,
    sample: usize,
) -> Result<Reads> {
    let conditions = conditions(table, predicate)?;
    let blocks = table.rows() / BLOCK_ROWS;
    let sample = sample.min(blocks);
    if sample == 0 {
        return expected_reads(table, predicate);
    }
    let (mut done, mut found) = (Compared::default(), 0);
    for number in 0..sample {
        let first = (2 * number + 1) * blocks / (2 * sample) * BLOCK_ROWS;
        let codes = |column| table.column(column).slice(first..first + BLOCK_ROWS);
        let conditions = conditions.iter().map(|condition| (codes(condition.column), condition.intervals));
        done.add(kernel.select(BLOCK_ROWS, conditions, |_, mask| found += mask.count_ones()));
    }
    let scale = table.rows() as f64 / (sample * BLOCK_ROWS) as f64;
    Ok(Reads {
        bytes: done.bytes as f64 * scale,
        pieces: done.pieces as f64 * scale,
        surprises: done.surprises as f64 * scale,
        waits: done.waits as f64 * scale,
        columns: column_bytes(table, &conditions),
        found: f64::from(found) * scale,
    })
}

/// Gives `sink` the rows that meet `predicate`, in row order. Fails if it names a column that does not exist.
pub fn scan<S: Sink>(table: &CodeTable, predicate: &Predicate, kernel: Kernel, sink: &mut S) -> Result<()> {
    scan_rows(table, &conditions(table, predicate)?, kernel, 0..table.rows(), sink);
    Ok(())
}

/// Does what [`scan`] does, with the threads of `crew`.
pub(crate) fn scan_in_parallel<S: ParallelSink>(
    table: &CodeTable,
    predicate: &Predicate,
    kernel: Kernel,
    crew: Crew,
    sink: &mut S,
) -> Result<()> {
    let conditions = conditions(table, predicate)?;
    let next = AtomicUsize::new(0);
    let take_rows = || {
        let task = next.fetch_add(1, Ordering::Relaxed);
        let first = task.checked_mul(TASK_ROWS).filter(|&first| first < table.rows())?;
        Some((task, first..table.rows().min(first + TASK_ROWS)))
    };
    crew.fill(sink, |mut part| {
        let mut ends = Vec::new();
        while let Some((task, rows)) = take_rows() {
            scan_rows(table, &conditions, kernel, rows, &mut part);
            ends.push((task, part.found()));
        }
        Filled { part, ends }
    });
    Ok(())
}

/// Scans the rows of `range`, which begins with a block.
fn scan_rows<S: Sink>(
    table: &CodeTable,
    conditions: &[Condition<'_>],
    kernel: Kernel,
    range: Range<usize>,
    sink: &mut S,
) {
    for first in range.clone().step_by(BLOCK_ROWS) {
        let rows = BLOCK_ROWS.min(range.end - first);
        let codes = |column| table.column(column).slice(first..first + rows);
        let conditions = conditions.iter().map(|condition| (codes(condition.column), condition.intervals));
        kernel.select(rows, conditions, |row, mask| match table.ids() {
            None => sink.rows((first + row) as u64, mask),
            // Ids take much more memory than codes: few of them are read one by one.
            Some(ids) if mask.count_ones() <= FEW => {
                bits(mask).for_each(|i| sink.tid(ids.get(first + row + i)));
            }
            Some(ids) => sink.masked(ids.slice(first + row..table.rows().min(first + row + WORD)), mask),
        });
    }
}
