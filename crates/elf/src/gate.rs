//! The gate: walks through the Elf as long as that is expected to cost less than a scan, and scans otherwise.
//!
//! The cost of a scan is estimated in advance, and so is the least that a walk costs: no walk starts whose least is
//! above the scan's. A walk finds rows in preorder, so its position tells which share of its region is behind it.
//! At checkpoints the gate projects the rest of the walk from the work done so far and compares it with the
//! scan. The first checkpoint comes after a small part of that cost: this is all that a wrong start costs. Costs are
//! in nanoseconds of one core; only their ratios matter.

use std::ops::Range;

use crate::defect::{Defect, defect};
use crate::kernel::{Compared, Kernel};
use crate::layout::{ElfLayout, Work};
use crate::parallel::{Crew, ParallelSink};
use crate::predicate::{Filter, Predicate};
use crate::scan::{Reads, expected_reads, sampled_reads, scan, scan_in_parallel};
use crate::search::{Path, Rest, Walk, range};
use crate::sink::Sink;
use crate::table::CodeTable;

/// Blocks of rows whose scan tells what the whole scan will read.
const SAMPLED_BLOCKS: usize = 8;

/// Cost at the next checkpoint, in those at the last one.
const NEXT_CHECKPOINT: f64 = 1.5;
/// The least cost at the second checkpoint, in costs of the scan.
const SECOND_CHECKPOINT: f64 = 0.05;
/// Share of the expected cost of the scan below which the rest of a walk goes on without a sample of the scan.
const CLEAR: f64 = 0.125;
/// What the rest of a walk may cost at the first checkpoint, where little is known, in costs of the scan.
const FIRST_MOST: f64 = 1.5;
/// Cost from which a walk has cost so much that it is dropped only for a scan that is expected to take less than the rest.
const LATE: f64 = 0.25;
/// What a walk may cost in all before that.
const GAIN: f64 = 0.7;

/// Weight of the part of a walk since the last checkpoint, in shares of the whole.
const RECENT: f64 = 1.5;

/// Row ids in a cache line.
const IDS_PER_LINE: f64 = 16.0;
const LINE_BYTES: f64 = 64.0;
/// Share of a cache up to which row ids stay there beside the codes.
const IDS_SHARE: f64 = 1.0 / 3.0;
/// Costs like [`Gate::ids_line_ns`] and [`Gate::next_ids_line_ns`] of row ids that stay there.
const NEAR_LINE_NS: f64 = 2.5;
const NEXT_NEAR_LINE_NS: f64 = 0.5;

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
    /// A step of a walk to another place in memory: in a list, or to a strip.
    pub step_ns: f64,
    /// A piece of a column that is compared.
    pub piece_ns: f64,
    /// A byte of codes that a walk compares.
    pub walk_byte_ns: f64,
    /// A byte of codes that a scan compares.
    pub scan_byte_ns: f64,
    /// A byte of codes that does not stay in a cache of the processor, in addition.
    pub far_byte_ns: f64,
    /// Bytes of codes that stay in a cache of the processor from one query to the next.
    pub cache_bytes: f64,
    /// A branch that the processor does not foresee.
    pub surprise_ns: f64,
    /// A word of codes that is waited for, because those before it were passed over.
    pub wait_ns: f64,
    /// A cache line of row ids that a walk reads for one of few rows that it compared.
    pub ids_line_ns: f64,
    /// A cache line of row ids that a walk reads next after another one.
    pub next_ids_line_ns: f64,
    /// A row that a walk adds to ids.
    pub walk_id_ns: f64,
    /// A row that a walk adds to a bitmap.
    pub walk_bit_ns: f64,
    /// A row that a scan adds to ids.
    pub scan_id_ns: f64,
    /// A row id that a scan of a table with gaps reads for one of few rows that it found.
    pub scan_gap_id_ns: f64,
    /// Share of a scan's cost that a walk may spend before its first checkpoint.
    pub patience: f64,
    /// Least work of a thread that takes part in a search: starting it takes a third of that.
    pub divide_ns: f64,
    /// A row id that goes through the part of a thread: to memory that is new to it, and from there to the result.
    pub join_id_ns: f64,
}

impl Default for Gate {
    fn default() -> Self {
        Self {
            step_ns: 60.0,
            piece_ns: 25.0,
            walk_byte_ns: 0.045,
            scan_byte_ns: 0.025,
            far_byte_ns: 0.07,
            cache_bytes: 24e6,
            surprise_ns: 8.0,
            wait_ns: 110.0,
            ids_line_ns: 18.0,
            next_ids_line_ns: 6.0,
            walk_id_ns: 0.4,
            walk_bit_ns: 1.0,
            scan_id_ns: 0.15,
            scan_gap_id_ns: 50.0,
            patience: 0.0125,
            divide_ns: 100_000.0,
            join_id_ns: 2.0,
        }
    }
}

/// A query as the gate sees it. `filter` is `predicate` in the column order of the Elf.
#[derive(Clone, Copy)]
pub(crate) struct Query<'q> {
    pub(crate) predicate: &'q Predicate,
    pub(crate) filter: &'q Filter,
    /// The table that the Elf was built from, if it may be scanned.
    pub(crate) table: Option<&'q CodeTable>,
    pub(crate) kernel: Kernel,
    pub(crate) output: Output,
}

impl Gate {
    /// Gives `sink` the rows that match, by a walk through `layout` or a scan of the table, in the calling thread.
    pub(crate) fn run<L: ElfLayout, S: Sink>(&self, layout: &L, query: Query<'_>, sink: &mut S) -> Method {
        let Some(table) = query.table else {
            range(layout, query.filter, sink, |_| true);
            return Method::Walk;
        };
        let mut judge = Judge::new(*self, layout, query, 1);
        if !judge.is_hopeless() {
            let (walk, _) = range(layout, query.filter, sink, |work| judge.allows(work));
            if walk == Walk::Complete {
                return Method::Walk;
            }
            if !defect(Defect::KeptResult) {
                sink.restart();
            }
        }
        scan(table, query.predicate, query.kernel, sink).expect(SAME);
        Method::Scan
    }

    /// Does what [`run`](Self::run) does, with up to `threads` threads from the moment when enough is left to do.
    pub(crate) fn run_in_parallel<L: ElfLayout + Sync, S: ParallelSink>(
        &self,
        layout: &L,
        query: Query<'_>,
        threads: usize,
        sink: &mut S,
    ) -> Method {
        let mut judge = Judge::new(*self, layout, query, threads);
        if query.filter.is_empty() {
            return Method::Walk;
        }
        if !judge.is_hopeless() {
            let (mut path, mut work) = (Path::root(layout), Work::default());
            let mut walk = path.walk(layout, query.filter, sink, &mut work, |work| judge.allows(work));
            if walk == Walk::Complete {
                path.finish(layout, query.filter, sink, &mut work);
            } else if let Some(rest_ns) = judge.divided_ns {
                let crew = Crew::for_work(threads, rest_ns, self.divide_ns);
                let places = judge.places();
                let mut allows = |work: &Work| judge.allows(work);
                walk = Rest::new(layout, query.filter, path, work, places, crew.threads, &mut allows)
                    .walk(crew, sink);
            }
            if walk == Walk::Complete {
                return Method::Walk;
            }
            if !defect(Defect::KeptResult) {
                sink.restart();
            }
        }
        let table = query.table.expect("walks without a table are stopped for being divided only");
        judge.sample_found();
        let rest_ns = judge.scan_ns - self.join_ns(judge.reads.found, query.output);
        let crew = Crew::for_work(threads, rest_ns, self.divide_ns);
        match crew.threads {
            1 => scan(table, query.predicate, query.kernel, sink).expect(SAME),
            _ => scan_in_parallel(table, query.predicate, query.kernel, crew, sink).expect(SAME),
        }
        Method::Scan
    }

    /// What it costs that rows are found by several threads.
    fn join_ns(&self, found: f64, output: Output) -> f64 {
        if output == Output::Ids { self.join_id_ns * found } else { 0.0 }
    }

    /// Cost of a scan besides the rows that it finds.
    fn scan_ns(&self, reads: Reads) -> f64 {
        (self.scan_byte_ns + self.far_byte_ns * self.far_share(reads.footprint())) * reads.bytes
            + self.piece_ns * reads.pieces
            + self.surprise_ns * reads.surprises
            + self.wait_ns * reads.waits
    }

    /// Share of `bytes` that does not stay in a cache.
    fn far_share(&self, bytes: f64) -> f64 {
        if bytes > self.cache_bytes { 1.0 - self.cache_bytes / bytes } else { 0.0 }
    }

    /// Cost of a walk in which a share of the codes is far.
    fn walk_ns(&self, work: &Work, far_share: f64, output: Output) -> f64 {
        let Compared { pieces, bytes, surprises, waits } = work.comparisons;
        self.step_ns * work.steps as f64
            + self.piece_ns * pieces as f64
            + (self.walk_byte_ns + self.far_byte_ns * far_share) * bytes as f64
            + self.surprise_ns * surprises as f64
            + self.wait_ns * waits as f64
            + self.walk_found_ns(output) * work.found as f64
            + self.ids_lines_ns(work, output)
    }

    /// Cost of the row ids of compared rows: the lines of few are waited for, those of many are read one after the
    /// other, like codes.
    fn ids_lines_ns(&self, work: &Work, output: Output) -> f64 {
        if output == Output::Count || work.found_by_comparison == 0 {
            return 0.0;
        }
        let lines = work.compared as f64 / IDS_PER_LINE;
        let ids_per_line = work.found_by_comparison as f64 / lines;
        // Share of the lines that have one of the ids: nearly 1 - exp(-ids_per_line), at each step of a walk.
        let read = (ids_per_line / (1.0 + 0.58 * ids_per_line)).min(1.0);
        lines * read * (self.ids_line_ns + (self.next_ids_line_ns - self.ids_line_ns) * read * read)
    }

    /// These costs for an image of `rows` rows, whose ids may stay in a cache of the processor.
    fn among(self, rows: u64) -> Self {
        let bytes = rows as f64 / IDS_PER_LINE * LINE_BYTES;
        let stays = self.cache_bytes * IDS_SHARE;
        let far_share = ((bytes - stays) / (self.cache_bytes - stays)).clamp(0.0, 1.0);
        let between = |near_ns: f64, far_ns: f64| near_ns + far_share * (far_ns - near_ns);
        Self {
            ids_line_ns: between(NEAR_LINE_NS, self.ids_line_ns),
            next_ids_line_ns: between(NEXT_NEAR_LINE_NS, self.next_ids_line_ns),
            ..self
        }
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
        let lines = ids.len() as f64 / IDS_PER_LINE;
        let share = (found / lines.max(1.0)).min(1.0);
        (1.0 - share) * self.scan_gap_id_ns * found + share * self.scan_byte_ns * lines * LINE_BYTES
    }
}

/// Decides at checkpoints whether a walk goes on.
struct Judge<'j, L> {
    gate: Gate,
    layout: &'j L,
    query: Query<'j>,
    /// Threads that may divide the rest of the walk; 1 as soon as they do.
    threads: usize,
    /// What a scan reads as far as that is known; nothing without a table.
    reads: Reads,
    /// Cost of that.
    scan_ns: f64,
    /// The least that the walk costs.
    least_ns: f64,
    checkpoint_ns: f64,
    /// What the walk passes through, from the first checkpoint on.
    extents: Option<Vec<Range<u64>>>,
    /// Whether `reads` comes from a sample.
    is_sampled: bool,
    /// Share of the codes in the region that does not stay in a cache.
    far_share: f64,
    /// Cost at the last checkpoint without the rows that were found, and the share of the region that was behind it.
    last: (f64, f64),
    /// Cost of the rest of a walk that was stopped for being divided.
    divided_ns: Option<f64>,
}

impl<'j, L: ElfLayout> Judge<'j, L> {
    fn new(gate: Gate, layout: &'j L, query: Query<'j>, threads: usize) -> Self {
        let gate = gate.among(layout.header().rows);
        let reads = query.table.map(|table| expected_reads(table, query.predicate).expect(SAME));
        let scan_ns = gate.scan_ns(reads.unwrap_or_default());
        let least_ns = match reads {
            Some(_) => gate.walk_ns(&layout.least_work(query.filter), 0.0, query.output),
            None => 0.0,
        };
        // Without a scan to compare with, checkpoints only ask whether the rest should be divided.
        let checkpoint_ns = if reads.is_some() { scan_ns } else { gate.divide_ns } * gate.patience;
        Self {
            gate,
            layout,
            query,
            threads,
            reads: reads.unwrap_or_default(),
            scan_ns,
            least_ns,
            checkpoint_ns,
            extents: None,
            is_sampled: false,
            far_share: 0.0,
            last: (0.0, 0.0),
            divided_ns: None,
        }
    }

    /// Whether even the least that a walk does costs more than a scan.
    fn is_hopeless(&self) -> bool {
        self.query.table.is_some() && self.least_ns > self.scan_ns
    }

    /// Number of places in preorder that the walk passes through.
    fn places(&self) -> u64 {
        self.extents.iter().flatten().map(|extent| extent.end - extent.start).sum()
    }

    /// Whether a walk that has done `work` goes on.
    #[inline]
    fn allows(&mut self, work: &Work) -> bool {
        let spent_ns = self.gate.walk_ns(work, self.far_share, self.query.output);
        let next_ns = spent_ns + self.gate.walk_found_ns(self.query.output) * work.pending as f64;
        next_ns < self.checkpoint_ns || self.passes_checkpoint(work, spent_ns, next_ns)
    }

    #[cold]
    fn passes_checkpoint(&mut self, work: &Work, spent_ns: f64, next_ns: f64) -> bool {
        if work.position == 0 && next_ns < self.scan_ns * SECOND_CHECKPOINT {
            // Before the first leaf nothing is known about the rest.
            self.checkpoint_ns = next_ns * NEXT_CHECKPOINT;
            return true;
        }
        let is_first = self.extents.is_none();
        if is_first {
            self.extents = Some(self.layout.extents(self.query.filter));
        }
        let behind = share_behind(self.extents.as_deref().unwrap_or_default(), work.position);
        let found_ns = self.gate.walk_found_ns(self.query.output);
        let visit_ns = spent_ns - found_ns * work.found as f64;
        let visits_ns = self.rest_ns(visit_ns, behind);
        // Rows that are found cost a walk more than others. A sample tells how many there will be, wherever they are.
        let rest_ns = |judge: &Self| {
            let found = judge.found(work, behind);
            visits_ns + found_ns * (found - work.found as f64).max(0.0)
        };
        if self.query.table.is_some() && !self.is_sampled && rest_ns(self) >= self.scan_ns * CLEAR {
            self.sample();
        }
        let rest_ns = rest_ns(self);
        self.last = (visit_ns, behind);
        self.checkpoint_ns = next_ns * NEXT_CHECKPOINT;
        if let Some(table) = self.query.table {
            let found = self.found(work, behind);
            let scan_ns = self.scan_ns + self.gate.scan_found_ns(found, table, self.query.output);
            let most_ns = if is_first {
                self.checkpoint_ns = self.checkpoint_ns.max(scan_ns * SECOND_CHECKPOINT);
                scan_ns * FIRST_MOST
            } else if spent_ns < scan_ns * LATE {
                // As long as little is lost by that, a walk that gains little is not risked.
                scan_ns * GAIN - spent_ns
            } else {
                scan_ns
            };
            if rest_ns >= most_ns {
                return false;
            }
        }
        if self.threads > 1 && rest_ns >= self.gate.divide_ns {
            self.sample_found();
        }
        let rest_ns = rest_ns - self.gate.join_ns(self.found(work, behind), self.query.output);
        if self.threads > 1 && rest_ns.is_finite() && rest_ns >= self.gate.divide_ns {
            self.threads = 1;
            self.divided_ns = Some(rest_ns);
            return false;
        }
        true
    }

    /// Rows that will be found in all, as far as that is known.
    fn found(&self, work: &Work, behind: f64) -> f64 {
        if self.is_sampled { self.reads.found } else { (work.found + work.pending) as f64 / behind.max(1e-9) }
    }

    /// Learns how many rows there will be, if their number decides whether threads share them.
    fn sample_found(&mut self) {
        if self.query.output == Output::Ids && self.query.table.is_some() && !self.is_sampled {
            self.sample();
        }
    }

    /// Scans a few blocks, which tell what the whole scan reads and finds.
    fn sample(&mut self) {
        let Query { predicate, table, kernel, .. } = self.query;
        self.is_sampled = true;
        if let Some(table) = table {
            self.reads = sampled_reads(table, predicate, kernel, SAMPLED_BLOCKS).expect(SAME);
            self.scan_ns = self.gate.scan_ns(self.reads);
            let share = self.places() as f64 / self.layout.places().max(1) as f64;
            self.far_share = self.gate.far_share(self.reads.footprint() * share);
        }
    }

    /// Cost of the rest of the walk without the rows that it finds, from that cost so far. The part since the last
    /// checkpoint counts as much as the whole, unless it is a small one: what is left resembles what was visited last.
    fn rest_ns(&self, visit_ns: f64, behind: f64) -> f64 {
        let (last_ns, last_behind) = self.last;
        let average = visit_ns / behind;
        let part = behind - last_behind;
        let weight = (RECENT * part / behind).min(0.5);
        let rate =
            if part > 0.0 { average + weight * ((visit_ns - last_ns) / part - average) } else { average };
        ((1.0 - behind) * rate).max(self.least_ns - visit_ns)
    }
}

/// Share of the extents that lies before `position`.
fn share_behind(extents: &[Range<u64>], position: u64) -> f64 {
    let total: u64 = extents.iter().map(|extent| extent.end - extent.start).sum();
    let behind: u64 =
        extents.iter().map(|extent| position.clamp(extent.start, extent.end) - extent.start).sum();
    if total == 0 { 0.0 } else { behind as f64 / total as f64 }
}
