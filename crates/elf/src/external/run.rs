//! Sorted runs in a temporary file: blocks of rows, within a block column by column.
//!
//! ```text
//! run     bytes per row id u8 | bytes per code u8 of each level | block | block | ...
//! block   codes of level 0 | codes of level 1 | ... | row ids
//! ```
//!
//! All blocks of a build have the same number of rows, except for the last one of a run. Columns are apart, so that
//! each is written and read by one copy.

use zerocopy::little_endian::{U32, U64};

use super::scratch::Scratch;
use crate::codes::{Code, CodeSlice, NumberSlice, typed};
use crate::error::Result;

/// Target of a run in its file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) start: u64,
    pub(super) rows: u64,
}

/// Bytes per row id and per code of each level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Widths {
    pub(super) tid: usize,
    pub(super) codes: Vec<u8>,
}

impl Widths {
    /// Bytes that row ids below `rows` need.
    pub(super) fn of_tids(rows: u64) -> usize {
        if rows <= 1 << u32::BITS { size_of::<U32>() } else { size_of::<U64>() }
    }

    /// Whether row ids and codes can have these widths.
    fn are_possible(&self) -> bool {
        matches!(self.tid, 4 | 8) && self.codes.iter().all(|width| matches!(width, 1 | 2 | 4))
    }

    /// Bytes per row.
    fn row(&self) -> usize {
        self.tid + self.codes.iter().map(|&width| usize::from(width)).sum::<usize>()
    }
}

/// Writes one run to the end of a file.
pub(super) struct RunWriter<'a> {
    scratch: &'a mut Scratch,
    widths: Widths,
    run: Run,
    block: Vec<u8>,
    /// Codes of one level of the block.
    codes: Vec<u32>,
}

impl<'a> RunWriter<'a> {
    pub(super) fn new(scratch: &'a mut Scratch, widths: Widths) -> Result<Self> {
        let run = Run { start: scratch.len(), rows: 0 };
        scratch.append(&[widths.tid as u8])?;
        scratch.append(&widths.codes)?;
        Ok(Self { scratch, widths, run, block: Vec::new(), codes: Vec::new() })
    }

    /// Appends a block of `rows` rows. `codes` is called to write their codes of a level; `tids` are their ids.
    pub(super) fn block(
        &mut self,
        rows: usize,
        codes: impl Fn(usize, &mut [u32]),
        tids: impl Iterator<Item = u64>,
    ) -> Result<()> {
        self.block.clear();
        self.block.reserve_exact(rows * self.widths.row());
        self.codes.resize(rows, 0);
        for (level, &width) in self.widths.codes.iter().enumerate() {
            codes(level, &mut self.codes);
            let codes = self.codes.iter();
            match width {
                1 => self.block.extend(codes.map(|&code| code as u8)),
                2 => self.block.extend(codes.flat_map(|&code| (code as u16).to_le_bytes())),
                _ => self.block.extend(codes.flat_map(|code| code.to_le_bytes())),
            }
        }
        for tid in tids {
            self.block.extend_from_slice(&tid.to_le_bytes()[..self.widths.tid]);
        }
        self.run.rows += rows as u64;
        self.scratch.append(&self.block)
    }

    pub(super) fn finish(self) -> Run {
        self.run
    }
}

/// Reads the rows of one run in order.
#[derive(Clone)]
pub(super) struct RunReader<'a> {
    scratch: &'a Scratch,
    widths: Widths,
    block_rows: usize,
    /// First byte of the block after the current one, and rows from there on.
    next: u64,
    rows_left: u64,
    /// The current block: codes row by row, and row ids.
    codes: Vec<u32>,
    tids: Vec<u64>,
    bytes: Vec<u8>,
    at: usize,
}

impl<'a> RunReader<'a> {
    /// Opens `run` of `levels` columns before its first row.
    pub(super) fn open(scratch: &'a Scratch, run: Run, levels: usize, block_rows: usize) -> Result<Self> {
        let mut tid = [0];
        scratch.read(run.start, &mut tid)?;
        let mut widths = Widths { tid: tid[0].into(), codes: vec![0; levels] };
        scratch.read(run.start + 1, &mut widths.codes)?;
        if !widths.are_possible() {
            return Err(scratch.damaged());
        }
        let next = run.start + 1 + levels as u64;
        let (codes, tids, bytes) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self { scratch, widths, block_rows, next, rows_left: run.rows, codes, tids, bytes, at: 0 })
    }

    pub(super) fn widths(&self) -> &Widths {
        &self.widths
    }

    /// Goes to the next row, the first one in the beginning. Returns whether there is one.
    pub(super) fn advance(&mut self) -> Result<bool> {
        self.at += 1;
        if self.at < self.tids.len() {
            return Ok(true);
        }
        let rows = self.rows_left.min(self.block_rows as u64) as usize;
        self.read_block(rows)?;
        self.at = 0;
        Ok(rows > 0)
    }

    /// Codes of the current row by level.
    #[inline]
    pub(super) fn codes(&self) -> &[u32] {
        let levels = self.widths.codes.len();
        &self.codes[self.at * levels..][..levels]
    }

    /// Row id of the current row.
    #[inline]
    pub(super) fn tid(&self) -> u64 {
        self.tids[self.at]
    }

    fn read_block(&mut self, rows: usize) -> Result<()> {
        let levels = self.widths.codes.len();
        resize(&mut self.bytes, rows * self.widths.row());
        resize(&mut self.codes, rows * levels);
        resize(&mut self.tids, rows);
        self.scratch.read(self.next, &mut self.bytes)?;
        let mut rest = self.bytes.as_slice();
        for (level, &width) in self.widths.codes.iter().enumerate() {
            let (bytes, more) = rest.split_at(rows * usize::from(width));
            let codes = CodeSlice::open(bytes, width.into()).expect("the block has whole codes");
            let places = self.codes[level.min(rows * levels)..].iter_mut().step_by(levels);
            typed!(codes, codes => places.zip(codes).for_each(|(place, code)| *place = Code::get(*code)));
            rest = more;
        }
        let tids = NumberSlice::open(rest, self.widths.tid).expect("the block has whole row ids");
        self.tids.iter_mut().zip(tids.iter()).for_each(|(place, tid)| *place = tid);
        self.next += self.bytes.len() as u64;
        self.rows_left -= rows as u64;
        Ok(())
    }
}

/// Changes the length without spare capacity.
fn resize<T: Clone + Default>(buffer: &mut Vec<T>, len: usize) {
    buffer.reserve_exact(len.saturating_sub(buffer.len()));
    buffer.resize(len, T::default());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_was_cut_is_an_error() {
        let mut scratch = Scratch::create(&std::env::temp_dir()).expect("a temporary file");
        let widths = Widths { tid: 4, codes: vec![1, 2] };
        let mut writer = RunWriter::new(&mut scratch, widths).expect("room");
        for rows in [3, 1] {
            let codes = |level: usize, codes: &mut [u32]| {
                (0..).zip(codes).for_each(|(row, code)| *code = level as u32 * 300 + row);
            };
            writer.block(rows, codes, 0..rows as u64).expect("room");
        }
        let run = writer.finish();
        let rows = |scratch: &Scratch| -> Result<Vec<(Vec<u32>, u64)>> {
            let mut reader = RunReader::open(scratch, run, 2, 3)?;
            let mut rows = Vec::new();
            while reader.advance()? {
                rows.push((reader.codes().to_vec(), reader.tid()));
            }
            Ok(rows)
        };
        let row = |row: u32| (vec![row, 300 + row], u64::from(row));
        assert_eq!(rows(&scratch), Ok(vec![row(0), row(1), row(2), row(0)]));
        for len in (0..scratch.len()).rev() {
            scratch.cut(len);
            let message = rows(&scratch).map_err(|error| error.to_string()).expect_err("bytes are missing");
            assert!(message.ends_with("it is shorter than what was written to it"), "{message}");
        }
    }

    #[test]
    fn a_run_whose_widths_were_changed_is_an_error() {
        for widths in [[3, 1, 2], [4, 0, 2], [4, 1, 8]] {
            let mut scratch = Scratch::create(&std::env::temp_dir()).expect("a temporary file");
            scratch.append(&widths).expect("room");
            scratch.append(&[0; 64]).expect("room");
            let opened = RunReader::open(&scratch, Run { start: 0, rows: 2 }, 2, 3).map(|_| ());
            let message = opened.map_err(|error| error.to_string()).expect_err("no such widths");
            assert!(message.ends_with("it was changed by another program"), "{message}");
        }
    }
}
