//! Streams sorted rows into the published layout in two passes: the first one measures, the second one writes.
//!
//! A list stands before the subtrees of its entries, so its length must be known when its first row comes;
//! and a row must know where its MonoList begins. The first pass writes both to temporary files in preorder:
//! the length of each list, and the level at which each distinct row leaves the tree.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Seek, Write};
use std::path::Path;

use super::budget::Budget;
use super::merge::{Merge, Pieces};
use super::pages::{Cursor, Pages};
use super::scratch::{self, Target};
use crate::build::{BuildOptions, Width, linear::pointer, linear::pointer_words};
use crate::error::Result;
use crate::layout::{ABSENT, END, Header, LinearPlan};

const WORD_BYTES: usize = size_of::<u32>();

/// Sizes of the array.
#[derive(Clone, Copy, Debug, Default)]
struct Sizes {
    first_list: u64,
    /// Entries of all lists below the first one.
    entries: u64,
    /// Words of all MonoLists.
    mono_words: u64,
}

impl Sizes {
    fn words(&self, pointer_words: usize) -> u64 {
        let pointer_words = pointer_words as u64;
        self.first_list * pointer_words + self.entries * (1 + pointer_words) + self.mono_words
    }
}

/// A list that may get further entries.
#[derive(Clone, Copy, Debug)]
struct OpenList {
    /// Where its length goes.
    length: Cursor,
    entries: u32,
}

/// The first pass.
struct Measure {
    levels: usize,
    sizes: Sizes,
    /// Open lists from level 1 on.
    open: Vec<OpenList>,
    /// Number of lists so far.
    lists: u64,
    lengths: Pages<File>,
    ends: BufWriter<File>,
    target: Target,
}

/// What the first pass found, with the lengths of lists and the last levels of rows in preorder.
struct Measured {
    sizes: Sizes,
    lengths: BufReader<File>,
    ends: BufReader<File>,
    target: Target,
}

impl Measure {
    fn new(levels: usize, budget: &Budget, directory: &Path) -> Result<Self> {
        let (pages, buffer) = budget.list_pages();
        let (lengths, target) = scratch::create(directory)?;
        let lengths = Pages::new(lengths, target.clone(), u64::MAX, pages);
        let ends = BufWriter::with_capacity(buffer, scratch::create(directory)?.0);
        let (sizes, open) = (Sizes::default(), Vec::with_capacity(levels));
        Ok(Self { levels, sizes, open, lists: 0, lengths, ends, target })
    }

    fn run(mut self, mut rows: Merge<'_>, buffer: usize) -> Result<Measured> {
        // Levels that the last distinct row shares with its predecessor.
        let mut before = None;
        while rows.advance()? {
            self.sizes.mono_words += 1;
            if let Some(shared) = before {
                if rows.shared() == self.levels {
                    continue;
                }
                self.distinct(shared, rows.shared())?;
            }
            before = Some(rows.shared());
            self.sizes.first_list = u64::from(rows.codes()[0]) + 1;
        }
        if let Some(shared) = before {
            self.distinct(shared, 0)?;
        }
        self.close(0)?;
        let rewind = |mut file: File| file.rewind().map(|()| BufReader::with_capacity(buffer, file));
        let lengths = rewind(self.lengths.flush()?).map_err(self.target.failed("read"))?;
        let ends = self.ends.into_inner().map_err(|error| self.target.failed("write")(error.into_error()))?;
        let ends = rewind(ends).map_err(self.target.failed("read"))?;
        Ok(Measured { sizes: self.sizes, lengths, ends, target: self.target })
    }

    /// Counts a distinct row that shares so many levels with its neighbours. It leaves the tree at the first
    /// level whose value it has alone.
    fn distinct(&mut self, before: usize, after: usize) -> Result<()> {
        let end = before.max(after);
        self.ends.write_all(&(end as u16).to_le_bytes()).map_err(self.target.failed("write"))?;
        self.sizes.mono_words += (self.levels - 1 - end) as u64;
        self.sizes.entries += (end + 1).saturating_sub(before.max(1)) as u64;
        self.close(before)?;
        if let Some(list) = before.checked_sub(1).map(|open| &mut self.open[open]) {
            list.entries += 1;
        }
        for _ in before..end {
            let length = Cursor::new(self.lists * WORD_BYTES as u64);
            self.open.push(OpenList { length, entries: 1 });
            self.lists += 1;
        }
        Ok(())
    }

    /// Writes the lengths of the lists below `level`.
    fn close(&mut self, level: usize) -> Result<()> {
        for mut list in self.open.drain(level..).rev() {
            self.lengths.put(&mut list.length, &list.entries.to_le_bytes())?;
        }
        Ok(())
    }
}

impl Measured {
    /// Length of the next list in preorder.
    fn length(&mut self) -> Result<u32> {
        let mut bytes = [0; size_of::<u32>()];
        self.lengths.read_exact(&mut bytes).map_err(self.target.failed("read"))?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// Last level of the next distinct row.
    fn end(&mut self) -> Result<usize> {
        let mut bytes = [0; size_of::<u16>()];
        self.ends.read_exact(&mut bytes).map_err(self.target.failed("read"))?;
        Ok(u16::from_le_bytes(bytes).into())
    }
}

/// A list whose remaining entries are to be written.
#[derive(Clone, Copy, Debug)]
struct List {
    next: Cursor,
    entries_left: u32,
}

/// The second pass.
struct Writer<F> {
    pages: Pages<F>,
    pointer_words: usize,
    /// First byte of the array.
    array_at: u64,
    /// The first list, and the value that is next there.
    first_list: Cursor,
    next_value: u32,
    /// Lists from level 1 on.
    lists: Vec<List>,
    /// End of what was written or reserved.
    end: Cursor,
    /// Last row id of the current MonoList.
    tid: Option<u32>,
}

impl<F: Read + Write + Seek> Writer<F> {
    fn run(mut self, rows: &mut Merge<'_>, levels: usize, mut measured: Measured) -> Result<Pages<F>> {
        while rows.advance()? {
            let (codes, shared) = (rows.codes(), rows.shared());
            if shared < levels {
                self.put_tid(END)?;
                let end = measured.end()?;
                self.entry(shared, codes[shared], shared == end)?;
                for (level, &code) in (shared + 1..).zip(&codes[shared + 1..=end]) {
                    self.list(level, measured.length()?);
                    self.entry(level, code, level == end)?;
                }
                codes[end + 1..]
                    .iter()
                    .try_for_each(|&code| self.pages.put(&mut self.end, &code.to_le_bytes()))?;
            } else {
                self.put_tid(0)?;
            }
            self.tid = Some(rows.tid() as u32);
        }
        self.put_tid(END)?;
        Ok(self.pages)
    }

    /// Writes the row id that is held back, with its mark.
    fn put_tid(&mut self, mark: u32) -> Result<()> {
        match self.tid {
            Some(tid) => self.pages.put(&mut self.end, &(tid | mark).to_le_bytes()),
            None => Ok(()),
        }
    }

    /// Reserves a list of `entries` entries at `level`.
    fn list(&mut self, level: usize, entries: u32) {
        self.lists.truncate(level - 1);
        self.lists.push(List { next: self.end, entries_left: entries });
        self.end.at += u64::from(entries) * ((1 + self.pointer_words) * WORD_BYTES) as u64;
    }

    /// Writes the next entry of the list at `level`. What it leads to begins at the end, or behind the list
    /// that begins there.
    fn entry(&mut self, level: usize, code: u32, is_mono: bool) -> Result<()> {
        let at = (self.end.at - self.array_at) / WORD_BYTES as u64;
        let target = pointer(at, is_mono, self.pointer_words);
        let Some(above) = level.checked_sub(1) else {
            for _ in self.next_value..code {
                self.put_first(&[ABSENT; 2])?;
            }
            self.next_value = code + 1;
            return self.put_first(&target);
        };
        let list = &mut self.lists[above];
        list.entries_left -= 1;
        let end = if list.entries_left == 0 { END } else { 0 };
        self.pages.put(&mut list.next, &(code | end).to_le_bytes())?;
        put_words(&mut self.pages, &mut list.next, &target[..self.pointer_words])
    }

    fn put_first(&mut self, pointer: &[u32; 2]) -> Result<()> {
        put_words(&mut self.pages, &mut self.first_list, &pointer[..self.pointer_words])
    }
}

fn put_words<F: Read + Write + Seek>(pages: &mut Pages<F>, cursor: &mut Cursor, words: &[u32]) -> Result<()> {
    words.iter().try_for_each(|word| pages.put(cursor, &word.to_le_bytes()))
}

/// Writes the image of the next `rows` rows to the empty `output`.
pub(super) fn write<F: Read + Write + Seek>(
    pieces: &mut Pieces<'_>,
    rows: u64,
    order: &[usize],
    options: &BuildOptions,
    directory: &Path,
    output: F,
) -> Result<Header> {
    let (levels, budget) = (pieces.levels(), pieces.budget());
    let buffer = budget.list_pages().1;
    let measured = Measure::new(levels, budget, directory)?.run(pieces.preview(rows)?, buffer)?;
    let sizes = measured.sizes;
    let narrow_words = if options.width == Width::Wide { u64::MAX } else { sizes.words(1) };
    let pointer_words = pointer_words(narrow_words, options.width)?;
    let array_words = sizes.words(pointer_words);
    let plan = LinearPlan {
        pointer_bytes: pointer_words * WORD_BYTES,
        first_list: sizes.first_list,
        array_words,
        rows,
    };
    let array_at = (Header::BYTES + levels * WORD_BYTES) as u64;
    let len = array_at + array_words * WORD_BYTES as u64;
    let mut pages = Pages::new(output, Target::Output, len, budget.image_pages(levels + 2));
    let mut column_order = Cursor::new(Header::BYTES as u64);
    order.iter().try_for_each(|&column| pages.put(&mut column_order, &(column as u32).to_le_bytes()))?;
    let subtrees_at = array_at + sizes.first_list * plan.pointer_bytes as u64;
    let writer = Writer {
        pages,
        pointer_words,
        array_at,
        first_list: Cursor::new(array_at),
        next_value: 0,
        lists: Vec::with_capacity(levels),
        end: Cursor::new(subtrees_at),
        tid: None,
    };
    let header = plan.header(levels);
    writer.run(pieces.next(rows)?, levels, measured)?.seal(&header)?;
    Ok(header)
}
