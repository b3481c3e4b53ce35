//! Build of an Elf larger than memory: sorted runs in temporary files, merged and streamed into the image.
//!
//! Preorder of the tree is the lexicographic order of the rows (fact sheet §3), so a merge of sorted runs
//! passes the rows as the image holds them. It runs twice, as in a build in memory: first to count, then to
//! write. The bytes are those that a build in memory gives.

mod budget;
mod columnar;
#[cfg(fuzzing)]
pub mod exercise;
mod linear;
mod merge;
mod pages;
mod run;
mod scratch;

use std::io::{Read, Seek, SeekFrom, Write};
use std::path::PathBuf;

use crate::build::{BuildOptions, columnar::pointer_bytes, linear::check_limits};
use crate::codes::{Code, typed};
use crate::error::{Error, Result};
use crate::layout::{Header, LayoutKind, is_permutation};
use crate::sort::sort;
use crate::table::CodeTable;
use budget::Budget;
use merge::SortedRuns;
use run::{RunWriter, Widths};
use scratch::{Scratch, Target};

/// How an Elf is built outside of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalOptions {
    /// Buckets, widths, and the threads that sort.
    pub build: BuildOptions,
    /// Most bytes of memory that the build allocates; the batches belong to the caller. Default: 1 GiB.
    pub memory_bytes: usize,
    /// Where temporary files are. They have no names. Default: the directory of the system.
    pub directory: PathBuf,
}

impl Default for ExternalOptions {
    fn default() -> Self {
        Self { build: BuildOptions::default(), memory_bytes: 1 << 30, directory: std::env::temp_dir() }
    }
}

/// A build that takes its rows in batches. What it has in temporary files goes away with it.
///
/// ```
/// use pando_elf::{CodeTable, Elf, ExternalBuild, ExternalOptions, LayoutKind, Predicate};
/// let mut build = ExternalBuild::new(&[1, 0], LayoutKind::Columnar, ExternalOptions::default())?;
/// build.push(&CodeTable::new(vec![vec![3, 1], vec![7, 9]])?)?;
/// build.push(&CodeTable::new(vec![vec![2, 1], vec![8, 7]])?)?;
/// let mut image = std::io::Cursor::new(Vec::new());
/// assert_eq!(build.finish(&mut image)?.rows, 4);
/// assert_eq!(Elf::open(image.into_inner())?.select(&Predicate::exact(&[1, 7]))?.sorted_ids::<u32>()?, [3]);
/// # Ok::<(), pando_elf::Error>(())
/// ```
pub struct ExternalBuild {
    order: Vec<usize>,
    layout: LayoutKind,
    options: ExternalOptions,
    budget: Budget,
    sorted: SortedRuns,
    /// Rows since the last run, column by column.
    columns: Vec<Vec<u32>>,
    /// Rows of all batches.
    rows: u64,
    /// Largest code of each column.
    maxima: Vec<u32>,
}

impl ExternalBuild {
    /// A build without rows. Level `l` is column `order[l]`. Fails if `order` does not name each column once,
    /// if a bucket has no rows, if the memory is too small, and if there can be no file in the directory.
    pub fn new(order: &[usize], layout: LayoutKind, options: ExternalOptions) -> Result<Self> {
        let levels = order.len();
        if levels == 0 {
            return Err(Error::NoColumns);
        }
        if levels > usize::from(u16::MAX) {
            return Err(Error::TooManyColumns { columns: levels });
        }
        if !is_permutation(order, levels) {
            return Err(Error::BadOrder { order: order.to_vec(), columns: levels });
        }
        if layout == LayoutKind::Columnar && options.build.bucket_rows == 0 {
            return Err(Error::EmptyBucket);
        }
        let budget = Budget::new(options.memory_bytes, levels, options.build.threads)?;
        let scratch = Scratch::create(&options.directory)?;
        Ok(Self {
            order: order.to_vec(),
            layout,
            options,
            budget,
            sorted: SortedRuns { levels, scratch, runs: Vec::new() },
            columns: vec![Vec::new(); levels],
            rows: 0,
            maxima: vec![0; levels],
        })
    }

    /// Adds the rows of `batch`. Their ids follow those of the rows before, from 0 on; ids that the batch has been
    /// given are not used. Fails if it has more or fewer columns, if the layout cannot hold its codes or so many
    /// rows, and if a temporary file cannot be written. After an error the build can only be dropped.
    pub fn push(&mut self, batch: &CodeTable) -> Result<()> {
        if batch.width() != self.order.len() {
            return Err(Error::WrongArity { values: batch.width(), columns: self.order.len() });
        }
        let rows = self.rows + batch.rows() as u64;
        match self.layout {
            LayoutKind::Linear => check_limits(batch, rows, rows)?,
            LayoutKind::Columnar => drop(pointer_bytes(rows, rows, self.options.build.width)?),
        }
        for (column, maximum) in self.maxima.iter_mut().enumerate() {
            *maximum = batch.maximum(column).max(*maximum);
        }
        self.rows = rows;
        let mut first = 0;
        while first < batch.rows() {
            let collected = self.columns[0].len();
            let end = batch.rows().min(first + self.budget.run_rows - collected);
            for (column, codes) in self.columns.iter_mut().enumerate() {
                if codes.capacity() - collected < end - first {
                    // Doubled, but never above what a run needs.
                    let len = (collected * 2).max(collected + end - first).min(self.budget.run_rows);
                    codes.reserve_exact(len - collected);
                }
                codes.extend(batch.column(column).slice(first..end).iter());
            }
            if collected + end - first == self.budget.run_rows {
                self.write_run()?;
            }
            first = end;
        }
        Ok(())
    }

    /// Sorts the rows that were collected and writes them as a run.
    fn write_run(&mut self) -> Result<()> {
        let levels = self.order.len();
        let columns = std::mem::replace(&mut self.columns, vec![Vec::new(); levels]);
        let table = CodeTable::new(columns)?;
        let first = self.rows_written();
        let sorted = sort(&table, &self.order, self.options.build.threads)?;
        let columns: Vec<_> = self.order.iter().map(|&column| table.column(column)).collect();
        let codes = columns.iter().map(|column| column.code_bytes() as u8).collect();
        let widths = Widths { tid: Widths::of_tids(first + table.rows() as u64), codes };
        let mut run = RunWriter::new(&mut self.sorted.scratch, widths)?;
        for tids in sorted.tids.chunks(self.budget.block_rows) {
            let codes = |level: usize, places: &mut [u32]| {
                typed!(columns[level], codes => places.iter_mut().zip(tids).for_each(|(place, &tid)| {
                    *place = Code::get(codes[tid as usize]);
                }));
            };
            run.block(tids.len(), codes, tids.iter().map(|&tid| first + u64::from(tid)))?;
        }
        self.sorted.runs.push(run.finish());
        Ok(())
    }

    /// Number of rows in runs. Each of them has as many rows as fit, but the last.
    fn rows_written(&self) -> u64 {
        self.sorted.runs.len() as u64 * self.budget.run_rows as u64
    }

    /// Merges the runs and writes the image to `output`, which is empty, from its beginning on. It is
    /// complete when this returns. Fails if `output` is not empty, if files cannot be read or written, if the
    /// image does not fit its pointers, and if the rows of a bucket do not fit into an eighth of the memory.
    pub fn finish<F: Read + Write + Seek>(self, output: F) -> Result<Header> {
        Ok(self.finish_forest(vec![output])?.remove(0))
    }

    /// Number of rows so far.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Does what [`finish`](Self::finish) does for the trees of a [forest](crate::Elf::build_forest), one for each
    /// of `outputs`, of which there is at least one. If there are fewer rows than outputs, the last ones get an Elf
    /// without rows.
    pub fn finish_forest<F: Read + Write + Seek>(mut self, mut outputs: Vec<F>) -> Result<Vec<Header>> {
        for output in &mut outputs {
            let bytes = output.seek(SeekFrom::End(0)).map_err(Target::Output.failed("measure"))?;
            if bytes > 0 {
                return Err(Error::OutputNotEmpty { bytes });
            }
        }
        if !self.columns[0].is_empty() {
            self.write_run()?;
        }
        let Self { order, layout, options, mut budget, sorted, rows, maxima, .. } = self;
        if outputs.len() > 1 {
            // The merge is there twice while rows are counted.
            budget.fan_in = (budget.fan_in / 2).max(2);
        }
        let sorted = sorted.reduce(&budget, &options.directory)?;
        let (build, directory) = (&options.build, options.directory.as_path());
        let mut pieces = sorted.pieces(&budget);
        let trees = (outputs.len() as u64).min(rows).max(1);
        let cut = |tree: u64| (u128::from(rows) * u128::from(tree.min(trees)) / u128::from(trees)) as u64;
        let mut headers = Vec::with_capacity(outputs.len());
        for (tree, output) in (0..).zip(outputs) {
            let piece = cut(tree + 1) - cut(tree);
            headers.push(match layout {
                LayoutKind::Linear => linear::write(&mut pieces, piece, &order, build, directory, output),
                LayoutKind::Columnar => {
                    columnar::write(&mut pieces, piece, rows, &maxima, &order, build, output)
                }
            }?);
        }
        Ok(headers)
    }
}
