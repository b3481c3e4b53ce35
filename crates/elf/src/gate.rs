//! The gate: walks through the Elf as long as that is expected to cost less than a scan, and scans otherwise.
//!
//! The cost of a scan is estimated in advance, and so is the least that a walk costs: no walk starts whose least is
//! above the scan's. A walk finds rows in preorder, so its position tells which share of its region is behind it.
//! At checkpoints the gate projects the rest of the walk from the work done so far and compares it with the
//! scan. The first checkpoint comes after a small part of that cost: this is all that a wrong start costs. Costs are
//! in nanoseconds of one core; only their ratios matter.

use crate::kernel::Kernel;
use crate::layout::{ElfLayout, Work};
use crate::predicate::{Filter, Predicate};
use crate::scan::{Reads, expected_reads, sampled_reads, scan};
use crate::search::{Walk, range};
use crate::sink::Sink;
use crate::table::CodeTable;

/// Blocks of rows whose scan tells what the whole scan will read.
const SAMPLED_BLOCKS: usize = 8;

/// Row ids in a cache line.
const IDS_PER_LINE: u64 = 16;
const LINE_BYTES: f64 = 64.0;

const SAME: &str = "the table has as many columns as the filter was made for";

/// What a result consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    Count,
    Ids,
    /// A bitmap in row order, which a walk has to fill row by row.
    Bitmap,
}

/// How a result was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Walk,
    Scan,
}

/// Costs of the parts of a walk and of a scan, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gate {
    /// A step to another place in memory: in a list, to a strip, or to a scan's next piece of a column.
    pub step_ns: f64,
    /// A row of a leaf that is compared with conditions, besides the bytes of its codes, which cost what they cost a
    /// scan.
    pub compared_ns: f64,
    /// A cache line of row ids that a walk reads for rows that it compared.
    pub ids_line_ns: f64,
    /// A row that a walk adds to ids.
    pub walk_id_ns: f64,
    /// A row that a walk adds to a bitmap.
    pub walk_bit_ns: f64,
    /// A byte that a scan reads.
    pub scan_byte_ns: f64,
    /// A row that a scan adds to ids.
    pub scan_id_ns: f64,
    /// A row id that a scan of a table with gaps reads for one of few rows that it found.
    pub scan_gap_id_ns: f64,
    /// Share of a scan's cost that a walk may spend before its first checkpoint.
    pub patience: f64,
}

impl Default for Gate {
    fn default() -> Self {
        Self {
            step_ns: 70.0,
            compared_ns: 0.03,
            ids_line_ns: 25.0,
            walk_id_ns: 0.3,
            walk_bit_ns: 0.9,
            scan_byte_ns: 0.037,
            scan_id_ns: 0.15,
            scan_gap_id_ns: 50.0,
            patience: 0.05,
        }
    }
}

impl Gate {
    /// Gives `sink` the rows that match, by a walk through `layout` or a scan of `table`. `filter` is
    /// `predicate` in the layout's column order, and the table is the one that the Elf was built from.
    pub(crate) fn run<L: ElfLayout, S: Sink>(
        &self,
        layout: &L,
        (predicate, filter): (&Predicate, &Filter),
        table: &CodeTable,
        kernel: Kernel,
        output: Output,
        sink: &mut S,
    ) -> Method {
        let mut scan_ns = self.scan_ns(expected_reads(table, predicate).expect(SAME));
        let mut checkpoint_ns = scan_ns * self.patience;
        let mut extents = None;
        let is_hopeless = self.walk_ns(&layout.least_work(filter), output) > scan_ns;
        let (walk, _) = range(layout, filter, sink, |work| {
            if is_hopeless {
                return false;
            }
            let spent_ns = self.walk_ns(work, output);
            let next_ns = spent_ns + self.walk_found_ns(output) * work.pending as f64;
            if next_ns < checkpoint_ns {
                return true;
            }
            let extents = extents.get_or_insert_with(|| {
                let reads = sampled_reads(table, predicate, kernel, SAMPLED_BLOCKS);
                scan_ns = self.scan_ns(reads.expect(SAME));
                layout.extents(filter)
            });
            let behind = share_behind(extents, work.position);
            checkpoint_ns = next_ns * 1.5;
            // The position is already behind a leaf that is about to be taken.
            let rest_ns = next_ns / behind - spent_ns;
            let found = (work.found + work.pending) as f64 / behind.max(1e-9);
            rest_ns < scan_ns + self.scan_found_ns(found, table, output)
        });
        if walk == Walk::Complete {
            return Method::Walk;
        }
        sink.restart();
        scan(table, predicate, kernel, sink).expect(SAME);
        Method::Scan
    }

    fn scan_ns(&self, reads: Reads) -> f64 {
        self.scan_byte_ns * reads.bytes + self.step_ns * reads.pieces
    }

    fn walk_ns(&self, work: &Work, output: Output) -> f64 {
        self.step_ns * work.steps as f64
            + self.compared_ns * work.compared as f64
            + self.scan_byte_ns * work.compared_bytes as f64
            + self.walk_found_ns(output) * work.found as f64
            + self.ids_lines_ns(work, output)
    }

    /// Cost of the row ids of compared rows, which are scattered if few of them match.
    fn ids_lines_ns(&self, work: &Work, output: Output) -> f64 {
        let lines = work.found_by_comparison.min(work.compared / IDS_PER_LINE);
        if output == Output::Count { 0.0 } else { self.ids_line_ns * lines as f64 }
    }

    fn walk_found_ns(&self, output: Output) -> f64 {
        match output {
            Output::Count => 0.0,
            Output::Ids => self.walk_id_ns,
            Output::Bitmap => self.walk_bit_ns,
        }
    }

    fn scan_found_ns(&self, found: f64, table: &CodeTable, output: Output) -> f64 {
        match output {
            Output::Count => 0.0,
            Output::Ids => self.scan_id_ns * found + self.gap_ids_ns(found, table),
            Output::Bitmap => self.gap_ids_ns(found, table),
        }
    }

    /// Cost of the row ids of `found` rows of a table with gaps. Few of them wait for memory one by one; the lines of
    /// many are read one after the other, like codes.
    fn gap_ids_ns(&self, found: f64, table: &CodeTable) -> f64 {
        let Some(ids) = table.ids() else { return 0.0 };
        let lines = ids.len() as f64 / IDS_PER_LINE as f64;
        let share = (found / lines.max(1.0)).min(1.0);
        (1.0 - share) * self.scan_gap_id_ns * found + share * self.scan_byte_ns * lines * LINE_BYTES
    }
}

/// Share of the extents that lies before `position`.
fn share_behind(extents: &[std::ops::Range<u64>], position: u64) -> f64 {
    let total: u64 = extents.iter().map(|extent| extent.end - extent.start).sum();
    let behind: u64 =
        extents.iter().map(|extent| position.clamp(extent.start, extent.end) - extent.start).sum();
    if total == 0 { 0.0 } else { behind as f64 / total as f64 }
}
