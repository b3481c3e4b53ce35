//! Streams sorted rows into the columnar layout in two passes: the first one counts, the second one writes.
//!
//! A row that shares `s` levels with its predecessor begins entries from level `s` on, down to the first one
//! whose group fits into a bucket. So as many rows must be in view as a bucket may have, and one more. All
//! sections are written forwards, in turns.

use std::io::{Read, Seek, Write};
use std::ops::Range;

use super::merge::{Merge, Pieces};
use super::pages::{Cursor, Pages};
use super::scratch::Target;
use crate::build::{BuildOptions, columnar::pointer_bytes};
use crate::codes::code_bytes;
use crate::error::{Error, Result};
use crate::layout::{ColumnarPlan, Header, LevelPlan, LevelSections, Sections};

/// Consecutive sorted rows, of which the first one is next.
struct Window<'m, 'a> {
    merge: &'m mut Merge<'a>,
    levels: usize,
    rows_max: usize,
    first: usize,
    /// Codes row by row, row ids, and shared levels of each row.
    codes: Vec<u32>,
    tids: Vec<u64>,
    shared: Vec<u16>,
    is_at_end: bool,
}

impl<'m, 'a> Window<'m, 'a> {
    fn new(merge: &'m mut Merge<'a>, levels: usize, rows_max: usize) -> Self {
        Self {
            merge,
            levels,
            rows_max,
            first: 0,
            codes: Vec::with_capacity(rows_max * levels),
            tids: Vec::with_capacity(rows_max),
            shared: Vec::with_capacity(rows_max),
            is_at_end: false,
        }
    }

    /// Brings the next row and at least `behind` rows after it into view, if there are so many. Returns
    /// whether there is a row.
    fn fill(&mut self, behind: usize) -> Result<bool> {
        if self.tids.len() - self.first <= behind && !self.is_at_end {
            self.codes.drain(..self.first * self.levels);
            self.tids.drain(..self.first);
            self.shared.drain(..self.first);
            self.first = 0;
            while self.tids.len() < self.rows_max {
                if !self.merge.advance()? {
                    self.is_at_end = true;
                    break;
                }
                self.codes.extend_from_slice(self.merge.codes());
                self.tids.push(self.merge.tid());
                self.shared.push(self.merge.shared() as u16);
            }
        }
        Ok(self.first < self.tids.len())
    }

    /// Number of rows, the next one included, that agree with it down to `level`; `most + 1` if there are
    /// more.
    fn group(&self, level: usize, most: usize) -> usize {
        let behind = &self.shared[self.first + 1..];
        let behind = &behind[..behind.len().min(most)];
        1 + behind.iter().position(|&shared| usize::from(shared) <= level).unwrap_or(behind.len())
    }

    /// Code of the row that is `ahead` rows behind the next one.
    fn code(&self, ahead: usize, level: usize) -> u32 {
        self.codes[(self.first + ahead) * self.levels + level]
    }
}

/// Entries and strip rows of one level, so far.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    entries: u64,
    strip_rows: u64,
}

/// Receives the tree in preorder.
trait Nodes {
    /// An entry of `level` begins at sorted row `row`, with `counts[level].strip_rows` strip rows before it.
    /// The list below it, if any, begins at entry `counts[level + 1].entries`.
    fn entry(&mut self, level: usize, code: u32, row: u64, counts: &[Count]) -> Result<()>;

    /// The next `rows` rows are a bucket, and have strip codes from `level` on.
    fn bucket(&mut self, window: &Window<'_, '_>, level: usize, rows: usize) -> Result<()>;

    /// Row ids of the next rows.
    fn tids(&mut self, tids: &[u64]) -> Result<()>;
}

/// Receives nothing: for counting.
struct Ignore;

impl Nodes for Ignore {
    fn entry(&mut self, _level: usize, _code: u32, _row: u64, _counts: &[Count]) -> Result<()> {
        Ok(())
    }

    fn bucket(&mut self, _window: &Window<'_, '_>, _level: usize, _rows: usize) -> Result<()> {
        Ok(())
    }

    fn tids(&mut self, _tids: &[u64]) -> Result<()> {
        Ok(())
    }
}

/// Gives `out` the tree of the rows that `window` passes; the result is one count per level.
fn traverse(mut window: Window<'_, '_>, bucket_rows: usize, out: &mut impl Nodes) -> Result<Vec<Count>> {
    let levels = window.levels;
    let mut counts = vec![Count::default(); levels];
    let mut row = 0;
    while window.fill(bucket_rows)? {
        let mut rows = 1;
        for level in usize::from(window.shared[window.first])..levels {
            out.entry(level, window.code(0, level), row, &counts)?;
            counts[level].entries += 1;
            let group = window.group(level, bucket_rows);
            if level + 1 < levels && group <= bucket_rows {
                out.bucket(&window, level + 1, group)?;
                counts[level + 1..].iter_mut().for_each(|count| count.strip_rows += group as u64);
                rows = group;
                break;
            }
        }
        out.tids(&window.tids[window.first..window.first + rows])?;
        window.first += rows;
        row += rows as u64;
    }
    Ok(counts)
}

/// Where the sections of a level go on.
struct LevelCursors {
    code_bytes: usize,
    values: Cursor,
    starts: Cursor,
    strips: Option<Cursor>,
    children: Option<Cursor>,
    codes: Cursor,
}

struct Writer<F> {
    pages: Pages<F>,
    pointer_bytes: usize,
    tids: Cursor,
    levels: Vec<LevelCursors>,
    /// Bytes of one column of a bucket, or of row ids.
    bytes: Vec<u8>,
}

impl<F: Read + Write + Seek> Writer<F> {
    fn new(pages: Pages<F>, pointer_bytes: usize, sections: &Sections) -> Self {
        let cursor = |section: &Range<usize>| Cursor::new(section.start as u64);
        let present = |section: &Range<usize>| (!section.is_empty()).then(|| cursor(section));
        let level = |level: &LevelSections| LevelCursors {
            code_bytes: level.code_bytes,
            values: cursor(&level.values),
            starts: cursor(&level.starts),
            strips: present(&level.strips),
            children: present(&level.children),
            codes: cursor(&level.codes),
        };
        let levels = sections.levels.iter().map(level).collect();
        Self { pages, pointer_bytes, tids: cursor(&sections.tids), levels, bytes: Vec::new() }
    }

    /// Writes the positions of an entry of `level`, or those behind the last one.
    fn positions(&mut self, level: usize, row: u64, counts: &[Count]) -> Result<()> {
        let width = self.pointer_bytes;
        let cursors = &mut self.levels[level];
        self.pages.put(&mut cursors.starts, &row.to_le_bytes()[..width])?;
        if let Some(strips) = &mut cursors.strips {
            self.pages.put(strips, &counts[level].strip_rows.to_le_bytes()[..width])?;
        }
        if let Some(children) = &mut cursors.children {
            self.pages.put(children, &counts[level + 1].entries.to_le_bytes()[..width])?;
        }
        Ok(())
    }
}

impl<F: Read + Write + Seek> Nodes for Writer<F> {
    fn entry(&mut self, level: usize, code: u32, row: u64, counts: &[Count]) -> Result<()> {
        let LevelCursors { code_bytes, values, .. } = &mut self.levels[level];
        self.pages.put(values, &code.to_le_bytes()[..*code_bytes])?;
        self.positions(level, row, counts)
    }

    fn bucket(&mut self, window: &Window<'_, '_>, level: usize, rows: usize) -> Result<()> {
        for (number, cursors) in self.levels.iter_mut().enumerate().skip(level) {
            self.bytes.clear();
            for row in 0..rows {
                self.bytes.extend_from_slice(&window.code(row, number).to_le_bytes()[..cursors.code_bytes]);
            }
            self.pages.put(&mut cursors.codes, &self.bytes)?;
        }
        Ok(())
    }

    fn tids(&mut self, tids: &[u64]) -> Result<()> {
        self.bytes.clear();
        for tid in tids {
            self.bytes.extend_from_slice(&tid.to_le_bytes()[..self.pointer_bytes]);
        }
        self.pages.put(&mut self.tids, &self.bytes)
    }
}

/// Writes the image of the next `rows` rows, which have codes up to `maxima` by column and ids below `id_bound`, to
/// the empty `output`.
pub(super) fn write<F: Read + Write + Seek>(
    pieces: &mut Pieces<'_>,
    rows: u64,
    id_bound: u64,
    maxima: &[u32],
    order: &[usize],
    options: &BuildOptions,
    output: F,
) -> Result<Header> {
    let (levels, budget) = (pieces.levels(), pieces.budget());
    let pointer_bytes = pointer_bytes(rows, id_bound, options.width)?;
    let bucket_rows = usize::try_from(rows).unwrap_or(usize::MAX).min(options.bucket_rows as usize);
    let window_rows = budget.window_rows(bucket_rows)?;
    let counts = {
        let mut preview = pieces.preview(rows)?;
        traverse(Window::new(&mut preview, levels, window_rows), bucket_rows, &mut Ignore)?
    };
    let level = |(&column, count): (&usize, &Count)| LevelPlan {
        column,
        entries: count.entries,
        strip_rows: count.strip_rows,
        code_bytes: code_bytes(maxima[column]),
    };
    let levels_plan = order.iter().zip(&counts).map(level).collect();
    let plan = ColumnarPlan { rows, bucket_rows: options.bucket_rows, pointer_bytes, levels: levels_plan };
    let sections = plan.sections().ok_or(Error::NoMemory { bytes: u64::MAX })?;
    let header = plan.header(&sections);
    let pages =
        Pages::new(output, Target::Output, sections.bytes as u64, budget.image_pages(1 + 5 * order.len()));
    let mut writer = Writer::new(pages, pointer_bytes, &sections);
    let mut directory = Cursor::new(Header::BYTES as u64);
    plan.directory().try_for_each(|entry| writer.pages.put(&mut directory, &entry))?;
    traverse(Window::new(pieces.next(rows)?, levels, window_rows), bucket_rows, &mut writer)?;
    (0..order.len()).try_for_each(|level| writer.positions(level, rows, &counts))?;
    writer.pages.seal(&header)?;
    Ok(header)
}
