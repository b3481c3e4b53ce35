//! Merge of sorted runs: the rows of a table in lexicographic order, as often as they are needed.
//!
//! At most `fan_in` runs are merged at once. While there are more, groups of them are merged to longer runs
//! in a new file, and the old file is dropped.

use std::cmp::Ordering;
use std::path::Path;

use super::budget::Budget;
use super::run::{Run, RunReader, RunWriter, Widths};
use super::scratch::Scratch;
use crate::defect::{Defect, defect};
use crate::error::Result;

/// A table as sorted runs.
pub(super) struct SortedRuns {
    pub(super) levels: usize,
    pub(super) scratch: Scratch,
    pub(super) runs: Vec<Run>,
}

impl SortedRuns {
    /// Merges runs until the rest can be merged at once.
    pub(super) fn reduce(mut self, budget: &Budget, directory: &Path) -> Result<Self> {
        while self.runs.len() > budget.fan_in {
            let mut scratch = Scratch::create(directory)?;
            let mut runs = Vec::with_capacity(self.runs.len().div_ceil(budget.fan_in));
            for group in self.runs.chunks(budget.fan_in) {
                runs.push(self.merge(group, budget)?.write(&mut scratch, budget.block_rows)?);
            }
            (self.scratch, self.runs) = (scratch, runs);
        }
        Ok(self)
    }

    /// The rows of all runs in order, to be passed piece by piece. There are at most `fan_in` runs.
    pub(super) fn pieces<'a>(&'a self, budget: &'a Budget) -> Pieces<'a> {
        Pieces { sorted: self, budget, merge: None }
    }

    fn merge(&self, runs: &[Run], budget: &Budget) -> Result<Merge<'_>> {
        let open = |run: &Run| RunReader::open(&self.scratch, *run, self.levels, budget.block_rows);
        Merge::new(runs.iter().map(open).collect::<Result<_>>()?)
    }
}

/// The rows of all runs, which are passed in pieces, each of them twice.
pub(super) struct Pieces<'a> {
    sorted: &'a SortedRuns,
    budget: &'a Budget,
    /// At the end of the last piece; `None` before the first one.
    merge: Option<Merge<'a>>,
}

impl<'a> Pieces<'a> {
    pub(super) fn levels(&self) -> usize {
        self.sorted.levels
    }

    pub(super) fn budget(&self) -> &'a Budget {
        self.budget
    }

    fn open(&self) -> Result<Merge<'a>> {
        self.sorted.merge(&self.sorted.runs, self.budget)
    }

    /// The next `rows` rows, which stay the next ones.
    pub(super) fn preview(&self, rows: u64) -> Result<Merge<'a>> {
        let merge = self.merge.as_ref().map_or_else(|| self.open(), |merge| Ok(merge.clone()));
        merge.map(|merge| merge.begin(rows))
    }

    /// The next `rows` rows, all of which the caller passes.
    pub(super) fn next(&mut self, rows: u64) -> Result<&mut Merge<'a>> {
        let merge = self.merge.take().map_or_else(|| self.open(), Ok)?;
        Ok(self.merge.insert(merge.begin(rows)))
    }
}

/// The rows of several runs in order: by codes, then by row id.
#[derive(Clone)]
pub(super) struct Merge<'a> {
    /// Runs with rows left, as a heap: the current row of a parent is before those of its children.
    heap: Vec<RunReader<'a>>,
    /// Codes of the row before the current one, none before the second row.
    last: Vec<u32>,
    shared: usize,
    is_started: bool,
    /// Rows of the piece that were not passed yet.
    left: u64,
    is_first: bool,
}

impl<'a> Merge<'a> {
    fn new(runs: Vec<RunReader<'a>>) -> Result<Self> {
        let mut heap = Vec::with_capacity(runs.len());
        for mut run in runs {
            if run.advance()? {
                heap.push(run);
            }
        }
        let (left, is_first) = (u64::MAX, true);
        let mut merge = Self { heap, last: Vec::new(), shared: 0, is_started: false, left, is_first };
        (0..merge.heap.len() / 2).rev().for_each(|parent| merge.sift_down(parent));
        Ok(merge)
    }

    /// Lets the next `rows` rows be a piece of their own.
    fn begin(mut self, rows: u64) -> Self {
        (self.left, self.is_first) = (rows, true);
        self
    }

    /// Goes to the next row of the piece, the first one in the beginning. Returns whether there is one.
    pub(super) fn advance(&mut self) -> Result<bool> {
        let Some(left) = self.left.checked_sub(1) else { return Ok(false) };
        self.left = left;
        let is_there = self.step()?;
        if std::mem::take(&mut self.is_first) {
            self.shared = 0;
        }
        Ok(is_there)
    }

    fn step(&mut self) -> Result<bool> {
        if !self.is_started {
            self.is_started = true;
            return Ok(!self.heap.is_empty());
        }
        let Some(first) = self.heap.first_mut() else { return Ok(false) };
        self.last.clear();
        self.last.extend_from_slice(first.codes());
        if !first.advance()? {
            self.heap.swap_remove(0);
        }
        self.sift_down(0);
        let Some(first) = self.heap.first() else { return Ok(false) };
        self.shared = self.last.iter().zip(first.codes()).take_while(|(a, b)| a == b).count();
        Ok(true)
    }

    /// Codes of the current row by level.
    #[inline]
    pub(super) fn codes(&self) -> &[u32] {
        self.heap[0].codes()
    }

    #[inline]
    pub(super) fn tid(&self) -> u64 {
        self.heap[0].tid()
    }

    /// Number of leading levels in which the current row equals its predecessor, 0 for the first one of a piece.
    #[inline]
    pub(super) fn shared(&self) -> usize {
        self.shared
    }

    fn sift_down(&mut self, mut parent: usize) {
        let compare = |a: &RunReader<'_>, b: &RunReader<'_>| {
            let by_codes = a.codes().cmp(b.codes());
            if defect(Defect::UnorderedIds) { by_codes } else { by_codes.then_with(|| a.tid().cmp(&b.tid())) }
        };
        loop {
            let left = 2 * parent + 1;
            let mut first = parent;
            for child in left..(left + 2).min(self.heap.len()) {
                if compare(&self.heap[child], &self.heap[first]) == Ordering::Less {
                    first = child;
                }
            }
            if first == parent {
                return;
            }
            self.heap.swap(parent, first);
            parent = first;
        }
    }

    /// Writes all rows as one run.
    fn write(mut self, scratch: &mut Scratch, block_rows: usize) -> Result<Run> {
        let levels = self.heap.first().map_or(0, |run| run.widths().codes.len());
        let mut widths = Widths { tid: 0, codes: vec![0; levels] };
        for run in &self.heap {
            widths.tid = widths.tid.max(run.widths().tid);
            widths
                .codes
                .iter_mut()
                .zip(&run.widths().codes)
                .for_each(|(most, &width)| *most = width.max(*most));
        }
        let mut writer = RunWriter::new(scratch, widths)?;
        let mut codes = Vec::with_capacity(block_rows * levels);
        let mut tids = Vec::with_capacity(block_rows);
        let mut has_more = self.advance()?;
        while has_more {
            codes.extend_from_slice(self.codes());
            tids.push(self.tid());
            has_more = self.advance()?;
            if tids.len() == block_rows || !has_more {
                let column = |level: usize, places: &mut [u32]| {
                    let codes = codes[level..].iter().step_by(levels);
                    places.iter_mut().zip(codes).for_each(|(place, code)| *place = *code);
                };
                writer.block(tids.len(), column, tids.drain(..))?;
                codes.clear();
            }
        }
        Ok(writer.finish())
    }
}
