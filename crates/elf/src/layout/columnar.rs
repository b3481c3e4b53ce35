//! Our layout: each level is a set of columns, and the tree ends in buckets.
//!
//! ```text
//! body        directory: 32 bytes per level | row ids in preorder | level 0 | level 1 | ...
//! directory   entries u64 | strip rows u64 | code bytes u32 | column u32 | zero u64
//! level       values | starts | strips | children | strip codes        (each padded to 8 bytes)
//! values      entries x code bytes: ascending within a list
//! starts      (entries + 1) x pointer bytes: first row of the entry in preorder; N at the end
//! strips      (entries + 1) x pointer bytes: strip rows of this level before the entry; absent if there are none
//! children    (entries + 1) x pointer bytes: first entry below on the next level; absent on the last level
//! strip codes strip rows x code bytes
//! ```
//!
//! `child[i] == child[i + 1]` makes entry `i` a *bucket*, a MonoList for at most B rows: their values of the
//! deeper levels are *strips*, parts of those levels' strip codes. Every row is thus either below an entry of a
//! level or in its strip codes. Neighbouring buckets of a list are one piece of every strip (a *run*).

mod exact;

use std::hint::select_unpredictable;
use std::ops::Range;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::header::{self, Header, LayoutKind, WORD_BYTES};
use super::region::Region;
use super::verify::verify;
use super::{ElfLayout, Found, Step, Work};
use crate::codes::{CodeSlice, NumberSlice};
use crate::defect::{Defect, defect};
use crate::error::{Error, Result};
use crate::kernel::{BLOCK_ROWS, Compared, Kernel, SPARSE, WORD, prefetch};
use crate::predicate::{Filter, Interval, contains};
use crate::sink::{Sink, bits};

/// Most buckets that one step passes, so that a walk can be stopped within a long list of them.
const RUN_ENTRIES: usize = 1024;

/// Entries in advance of which the ends of their lists are fetched into the cache.
const ENDS_AHEAD: usize = 12;
/// Entries in advance of which the places are fetched that a search in their lists will visit.
const PLACES_AHEAD: usize = 6;

const LINE_BYTES: usize = 64;
/// Row ids of 4 bytes in a cache line.
const LINE_IDS: usize = LINE_BYTES / 4;
/// Cache lines of row ids that are fetched before they are taken; the processor foresees the further ones.
const FETCHED_LINES: usize = 8;

/// Rows up to which a run is checked row by row.
const SHORT_RUN: usize = 8;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct DirectoryEntry {
    entries: U64,
    strip_rows: U64,
    code_bytes: U32,
    column: U32,
    zero: U64,
}

pub(super) const DIRECTORY_ENTRY: usize = 32;
const _: () = assert!(size_of::<DirectoryEntry>() == DIRECTORY_ENTRY);

/// Sizes of one level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LevelPlan {
    pub(crate) column: usize,
    pub(crate) entries: u64,
    pub(crate) strip_rows: u64,
    pub(crate) code_bytes: usize,
}

/// Sizes of an image, from which the place of every section follows.
#[derive(Clone, Debug)]
pub(crate) struct ColumnarPlan {
    pub(crate) rows: u64,
    pub(crate) bucket_rows: u32,
    pub(crate) pointer_bytes: usize,
    pub(crate) levels: Vec<LevelPlan>,
}

/// Bytes of a columnar image that hold each section of a level, all of them next to each other in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LevelSections {
    pub code_bytes: usize,
    pub entries: usize,
    pub values: Range<usize>,
    pub starts: Range<usize>,
    /// Empty if the level has no strip rows.
    pub strips: Range<usize>,
    /// Empty on the last level.
    pub children: Range<usize>,
    /// Strip codes.
    pub codes: Range<usize>,
}

/// Places of all sections of a columnar image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sections {
    /// Row ids in preorder.
    pub tids: Range<usize>,
    pub levels: Vec<LevelSections>,
    /// Size of the image.
    pub bytes: usize,
}

impl Sections {
    /// Reads the sections and the column order of an image with the given header, of which `bytes` are the
    /// first ones: the directory must be among them.
    pub fn of_head(bytes: &[u8], header: &Header) -> Result<(Self, Vec<usize>)> {
        let (plan, order) = ColumnarPlan::read(bytes, header)?;
        let fills = |sections: &Self| Some(sections.bytes as u64) == header.image_bytes();
        let what = "the sections of the directory do not fill the body";
        let sections = plan.sections().filter(fills);
        Ok((sections.ok_or(Error::Damaged { at: Header::BYTES as u64, what })?, order))
    }
}

/// Allots sections one after the other.
struct Allotter {
    next: u64,
}

impl Allotter {
    /// A section of `count` numbers of `width` bytes; `None` if the image would not fit into memory.
    fn section(&mut self, count: u64, width: usize) -> Option<Range<usize>> {
        let start = self.next;
        let end = start.checked_add(count.checked_mul(width as u64)?)?;
        self.next = end.checked_next_multiple_of(8)?;
        Some(usize::try_from(start).ok()?..usize::try_from(end).ok()?)
    }
}

impl ColumnarPlan {
    /// Places of the sections; `None` if the image would not fit into memory.
    pub(crate) fn sections(&self) -> Option<Sections> {
        let mut allot = Allotter { next: (Header::BYTES + self.levels.len() * DIRECTORY_ENTRY) as u64 };
        let tids = allot.section(self.rows, self.pointer_bytes)?;
        let mut levels = Vec::with_capacity(self.levels.len());
        for (number, level) in self.levels.iter().enumerate() {
            let numbers = level.entries.checked_add(1)?;
            let is_last = number + 1 == self.levels.len();
            levels.push(LevelSections {
                code_bytes: level.code_bytes,
                entries: usize::try_from(level.entries).ok()?,
                values: allot.section(level.entries, level.code_bytes)?,
                starts: allot.section(numbers, self.pointer_bytes)?,
                strips: allot.section(if level.strip_rows > 0 { numbers } else { 0 }, self.pointer_bytes)?,
                children: allot.section(if is_last { 0 } else { numbers }, self.pointer_bytes)?,
                codes: allot.section(level.strip_rows, level.code_bytes)?,
            });
        }
        Some(Sections { tids, levels, bytes: usize::try_from(allot.next).ok()? })
    }

    fn words(sections: &Sections) -> u64 {
        ((sections.bytes - Header::BYTES) / WORD_BYTES) as u64
    }

    /// Allocates the image and writes the directory.
    pub(crate) fn allocate(&self) -> Result<(Vec<u8>, Sections)> {
        let sections = self.sections().ok_or(Error::NoMemory { bytes: u64::MAX })?;
        let mut image = header::allocate(Self::words(&sections))?;
        let directory = &mut image[Header::BYTES..];
        for (bytes, entry) in directory.chunks_exact_mut(DIRECTORY_ENTRY).zip(self.directory()) {
            bytes.copy_from_slice(&entry);
        }
        Ok((image, sections))
    }

    /// The entries of the directory, which begins behind the header.
    pub(crate) fn directory(&self) -> impl Iterator<Item = [u8; DIRECTORY_ENTRY]> {
        self.levels.iter().map(|level| {
            zerocopy::transmute!(DirectoryEntry {
                entries: level.entries.into(),
                strip_rows: level.strip_rows.into(),
                code_bytes: (level.code_bytes as u32).into(),
                column: (level.column as u32).into(),
                zero: 0.into(),
            })
        })
    }

    /// Header of the image.
    pub(crate) fn header(&self, sections: &Sections) -> Header {
        Header {
            layout: LayoutKind::Columnar,
            pointer_bytes: self.pointer_bytes,
            columns: self.levels.len(),
            rows: self.rows,
            first_list: self.levels[0].entries,
            words: Self::words(sections),
            epoch: 0,
            bucket_rows: self.bucket_rows,
        }
    }

    /// Reads the directory of an image whose header was verified.
    fn read(bytes: &[u8], header: &Header) -> Result<(Self, Vec<usize>)> {
        let damaged = |what| Error::Damaged { at: Header::BYTES as u64, what };
        let size = header.columns * DIRECTORY_ENTRY;
        let directory = bytes.get(Header::BYTES..Header::BYTES + size);
        let directory = directory.ok_or(damaged("the body ends within the directory"))?;
        let mut levels = Vec::with_capacity(header.columns);
        for bytes in directory.chunks_exact(DIRECTORY_ENTRY) {
            let entry = DirectoryEntry::read_from_bytes(bytes).expect("the chunk has the size of an entry");
            let code_bytes = entry.code_bytes.get() as usize;
            if !matches!(code_bytes, 1 | 2 | 4) {
                return Err(damaged("codes have 1, 2 or 4 bytes"));
            }
            if entry.strip_rows.get() > header.rows || entry.entries.get() > header.rows {
                return Err(damaged("a level has more entries or strip rows than the table has rows"));
            }
            levels.push(LevelPlan {
                column: entry.column.get() as usize,
                entries: entry.entries.get(),
                strip_rows: entry.strip_rows.get(),
                code_bytes,
            });
        }
        if levels[0].entries != header.first_list || levels[0].strip_rows != 0 {
            return Err(damaged("the first level differs from the header"));
        }
        let order = levels.iter().map(|level| level.column as u32);
        let order = header::order(order, header.columns, Header::BYTES)?;
        let (rows, pointer_bytes) = (header.rows, header.pointer_bytes);
        Ok((Self { rows, bucket_rows: header.bucket_rows, pointer_bytes, levels }, order))
    }
}

/// An Elf in our layout over the bytes `B`, which must not change.
#[derive(Clone, Debug)]
pub struct Columnar<B> {
    bytes: B,
    header: Header,
    order: Vec<usize>,
    sections: Sections,
    facts: Vec<LevelFacts>,
    id_bound: u64,
    kernel: Kernel,
}

/// What is known of a level without being written in the image.
#[derive(Clone, Copy, Debug)]
struct LevelFacts {
    /// Lists below its entries.
    lists: usize,
    /// Largest code of its entries and strips.
    largest: u32,
}

/// The matching entries of a list that were not passed yet.
#[derive(Debug)]
pub struct ColumnarCursor {
    level: usize,
    /// Entries of the list that may still match.
    list: Range<usize>,
    /// Entries that match one interval.
    matching: Range<usize>,
    /// Entries before which the ends of the lists below were fetched, and the places in them that a search visits.
    ends_fetched: usize,
    places_fetched: usize,
}

/// Consecutive rows in preorder that have no entries from `level` on.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// First level whose values are strips.
    level: usize,
    first: usize,
    end: usize,
    /// First entry of `level` behind the run.
    next_entry: usize,
}

/// One level of an image, opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Level<'a> {
    pub(crate) values: CodeSlice<'a>,
    pub(crate) starts: NumberSlice<'a>,
    strips: Option<NumberSlice<'a>>,
    children: Option<NumberSlice<'a>>,
    pub(crate) codes: CodeSlice<'a>,
}

impl Level<'_> {
    /// Number of entries.
    pub(crate) fn entries(&self) -> usize {
        self.values.len()
    }

    /// Strip rows before entry `i`.
    #[inline]
    pub(crate) fn strip(&self, i: usize) -> usize {
        self.strips.map_or(0, |strips| strips.at(i))
    }

    /// First row of entry `i`; the number of rows for the end of the level.
    #[inline]
    pub(crate) fn start(&self, i: usize) -> usize {
        self.starts.at(i)
    }

    /// First row behind entry `i`.
    #[inline]
    pub(crate) fn end(&self, i: usize) -> usize {
        self.start(i + 1) - (self.strip(i + 1) - self.strip(i))
    }

    /// Rows below the entries in `entries`.
    pub(crate) fn covered(&self, entries: Range<usize>) -> usize {
        let covered_before = |i: usize| self.start(i) - self.strip(i);
        covered_before(entries.end) - covered_before(entries.start)
    }

    /// First entry of the next level that is not before entry `i`; 0 on the last level.
    #[inline]
    pub(crate) fn child(&self, i: usize) -> usize {
        self.children.map_or(0, |children| children.at(i))
    }

    /// Entries of `list` whose value is in one of `intervals`, in nonempty ranges.
    fn matching(&self, list: Range<usize>, intervals: Option<&[Interval]>) -> Vec<Range<usize>> {
        let mut rest = list;
        let mut matching = Vec::new();
        for interval in intervals.unwrap_or(&[Interval::ALL]) {
            let first = self.values.lower_bound(rest.clone(), interval.low);
            let end = self.values.upper_bound(first..rest.end, interval.high);
            if first < end {
                matching.push(first..end);
            }
            rest.start = end;
        }
        matching
    }

    /// Whether entry `i` has no list below it.
    #[inline]
    fn is_bucket(&self, i: usize) -> bool {
        self.child(i) == self.child(i + 1)
    }
}

impl<B: AsRef<[u8]>> Columnar<B> {
    /// Opens an image after verifying its header, checksum, and all positions in it.
    pub fn open(bytes: B) -> Result<Self> {
        let header = Header::open(bytes.as_ref(), LayoutKind::Columnar)?;
        let (sections, order) = Sections::of_head(bytes.as_ref(), &header)?;
        let mut columnar = Self::new(bytes, header, order, sections);
        columnar.id_bound = verify(&columnar, columnar.header.rows, columnar.header.columns)?;
        columnar.learn_facts();
        Ok(columnar)
    }

    /// Opens an image that this process has just written.
    pub(crate) fn trusted(
        bytes: B,
        header: Header,
        order: Vec<usize>,
        sections: Sections,
        id_bound: u64,
    ) -> Self {
        let mut columnar = Self { id_bound, ..Self::new(bytes, header, order, sections) };
        columnar.learn_facts();
        columnar
    }

    fn new(bytes: B, header: Header, order: Vec<usize>, sections: Sections) -> Self {
        Self { bytes, header, order, sections, facts: Vec::new(), id_bound: 0, kernel: Kernel::detect() }
    }

    fn learn_facts(&mut self) {
        let facts = |number| {
            let level = self.level(number);
            LevelFacts {
                lists: (0..level.entries()).filter(|&i| !level.is_bucket(i)).count(),
                largest: level.values.largest().max(level.codes.largest()),
            }
        };
        self.facts = (0..self.order.len()).map(facts).collect();
    }

    /// Compares with `kernel` from now on.
    pub fn set_kernel(&mut self, kernel: Kernel) {
        self.kernel = kernel;
    }

    #[inline]
    fn numbers(&self, section: &Range<usize>) -> NumberSlice<'_> {
        let bytes = &self.bytes.as_ref()[section.clone()];
        NumberSlice::open(bytes, self.header.pointer_bytes).expect("sections have whole numbers")
    }

    /// Row ids in preorder.
    #[inline]
    pub(crate) fn tids(&self) -> NumberSlice<'_> {
        self.numbers(&self.sections.tids)
    }

    /// Byte at which the sections of `level` begin.
    pub(super) fn level_at(&self, level: usize) -> u64 {
        self.sections.levels[level].values.start as u64
    }

    /// Opens one level.
    #[inline]
    pub(crate) fn level(&self, level: usize) -> Level<'_> {
        let sections = &self.sections.levels[level];
        let codes = |section: &Range<usize>| {
            let bytes = &self.bytes.as_ref()[section.clone()];
            CodeSlice::open(bytes, sections.code_bytes).expect("sections have whole codes")
        };
        let numbers = |section: &Range<usize>| (!section.is_empty()).then(|| self.numbers(section));
        Level {
            values: codes(&sections.values),
            starts: self.numbers(&sections.starts),
            strips: numbers(&sections.strips),
            children: numbers(&sections.children),
            codes: codes(&sections.codes),
        }
    }

    /// Rows below the entries of `level` before entry `at`.
    #[inline]
    fn covered_before(&self, level: usize, at: usize) -> usize {
        let sections = &self.sections.levels[level];
        if sections.entries == 0 {
            return 0;
        }
        let strip = if sections.strips.is_empty() { 0 } else { self.numbers(&sections.strips).at(at) };
        self.numbers(&sections.starts).at(at) - strip
    }

    /// First entry of the next level that is not before entry `at` of `level`.
    #[inline]
    fn child(&self, level: usize, at: usize) -> usize {
        let sections = &self.sections.levels[level];
        let has_children = sections.entries > 0 && !sections.children.is_empty();
        if has_children { self.numbers(&sections.children).at(at) } else { 0 }
    }

    /// Strip codes of `level`.
    #[inline]
    fn strip_codes(&self, level: usize) -> CodeSlice<'_> {
        let sections = &self.sections.levels[level];
        let bytes = &self.bytes.as_ref()[sections.codes.clone()];
        CodeSlice::open(bytes, sections.code_bytes).expect("sections have whole codes")
    }

    fn list(&self, level: usize, list: Range<usize>) -> ColumnarCursor {
        ColumnarCursor { level, matching: list.start..list.start, list, ends_fetched: 0, places_fetched: 0 }
    }

    /// Descends as long as one list has one matching entry that is not a bucket. Returns the level of the last
    /// list and its matching entries, in nonempty ranges.
    pub(crate) fn leading(&self, filter: &Filter) -> (usize, Vec<Range<usize>>) {
        let (mut number, mut list) = (0, 0..self.sections.levels[0].entries);
        loop {
            let level = self.level(number);
            let matching = level.matching(list, filter.level(number));
            match matching.as_slice() {
                [only] if only.len() == 1 && number + 1 < filter.depth() && !level.is_bucket(only.start) => {
                    list = level.child(only.start)..level.child(only.end);
                    number += 1;
                }
                _ => return (number, matching),
            }
        }
    }

    /// The rows of the neighbouring buckets `entries` of `level`.
    fn run(&self, level: usize, opened: &Level<'_>, entries: Range<usize>) -> Run {
        Run {
            level: level + 1,
            first: opened.start(entries.start),
            end: opened.end(entries.end - 1),
            next_entry: opened.child(entries.start),
        }
    }

    /// Fetches what a walk will need of the lists below the next matching entries, if they are the last ones that it
    /// searches: it spends its time in waiting for them, and they do not depend on each other.
    #[inline]
    fn fetch_below(&self, cursor: &mut ColumnarCursor, opened: &Level<'_>, filter: &Filter) {
        let below = cursor.level + 1;
        if below + 1 != filter.depth() {
            return;
        }
        let bytes = self.bytes.as_ref();
        let sections = &self.sections.levels[below];
        let value_at = |i: usize| sections.values.start + i * sections.code_bytes;
        let Range { start, end } = cursor.matching;
        for entry in cursor.ends_fetched.max(start)..end.min(start + ENDS_AHEAD) {
            prefetch(bytes, value_at(opened.child(entry)));
        }
        for entry in cursor.places_fetched.max(start)..end.min(start + PLACES_AHEAD) {
            let list = opened.child(entry)..opened.child(entry + 1);
            if list.is_empty() {
                continue;
            }
            let values = self.level(below).values;
            for interval in filter.level(below).into_iter().flatten().take(2) {
                for code in [interval.low, interval.high] {
                    let place = values.guess(list.clone(), code);
                    prefetch(bytes, value_at(place));
                    prefetch(bytes, sections.starts.start + place * self.header.pointer_bytes);
                }
            }
        }
        cursor.ends_fetched = start + ENDS_AHEAD;
        cursor.places_fetched = start + PLACES_AHEAD;
    }

    /// Strips of `run`, one for each of `levels`, which ascend and are not above the run's.
    fn strips<'s>(&'s self, run: Run, levels: &'s [usize]) -> impl Iterator<Item = CodeSlice<'s>> {
        let mut at = (run.level, run.next_entry);
        levels.iter().map(move |&level| {
            while at.0 < level {
                at = (at.0 + 1, self.child(at.0, at.1));
            }
            // Rows before the run that are below entries of this level have no strip.
            let mut covered = self.covered_before(level, at.1);
            if defect(Defect::ShiftedStrip) && level > run.level {
                covered = (covered + 1).min(run.first);
            }
            self.strip_codes(level).slice(run.first - covered..run.end - covered)
        })
    }

    /// Passes the rows of a short run one by one.
    fn take_short<S: Sink>(&self, run: Run, filter: &Filter, sink: &mut S) -> Compared {
        let rows = run.end - run.first;
        let mut mask = u64::MAX >> (WORD - rows);
        let levels = filter.constrained_from(run.level);
        // Whether a row matches, and how often loops run.
        let mut done = Compared { surprises: 2, ..Compared::default() };
        for (strip, &level) in self.strips(run, levels).zip(levels) {
            let Some(intervals) = filter.level(level) else { continue };
            for row in bits(mask) {
                mask &= !(u64::from(!contains(intervals, strip.get(row))) << row);
            }
            done.bytes += (rows * strip.code_bytes()) as u64;
            if mask == 0 {
                return done;
            }
        }
        sink.masked(self.tids().slice(run.first..run.end), mask);
        done
    }

    /// Passes at most [`BLOCK_ROWS`] rows.
    fn take_block<S: Sink>(&self, run: Run, filter: &Filter, sink: &mut S) -> Compared {
        let tids = self.tids().slice(run.first..run.end);
        let levels = filter.constrained_from(run.level);
        let conditions = self.strips(run, levels).zip(levels);
        let conditions = conditions.filter_map(|(strip, &level)| Some((strip, filter.level(level)?)));
        let fetch = |row: usize, mask: u64| {
            if S::READS_IDS {
                self.fetch_ids(run.first + row, mask);
            }
        };
        let take = |row: usize, mask| sink.masked(tids.slice(row..tids.len().min(row + WORD)), mask);
        self.kernel.select_ahead(tids.len(), conditions, fetch, take)
    }

    /// Asks for the ids of the rows from `first` on whose bit in `mask` is set, if they are few: the processor does not
    /// foresee which, while it reads on by itself where more are needed.
    #[inline]
    fn fetch_ids(&self, first: usize, mask: u64) {
        if mask.count_ones() > SPARSE {
            return;
        }
        let (bytes, any) = (self.bytes.as_ref(), mask.trailing_zeros() as usize);
        for line in (0..WORD).step_by(LINE_IDS) {
            let is_needed = mask >> line & ((1 << LINE_IDS) - 1) != 0;
            let row = first + select_unpredictable(is_needed, line, any);
            prefetch(bytes, self.sections.tids.start + row * self.header.pointer_bytes);
        }
    }
}

impl<B: AsRef<[u8]>> ElfLayout for Columnar<B> {
    type Cursor = ColumnarCursor;
    type Leaf = Run;

    fn header(&self) -> &Header {
        &self.header
    }

    fn order(&self) -> &[usize] {
        &self.order
    }

    fn bytes(&self) -> &[u8] {
        self.bytes.as_ref()
    }

    fn id_bound(&self) -> u64 {
        self.id_bound
    }

    fn root(&self) -> ColumnarCursor {
        self.list(0, 0..self.sections.levels[0].entries)
    }

    fn step(&self, cursor: &mut ColumnarCursor, filter: &Filter) -> Step<ColumnarCursor, Run> {
        let level = self.level(cursor.level);
        while cursor.matching.is_empty() {
            if cursor.list.is_empty() {
                return Step::End;
            }
            let Some(intervals) = filter.level(cursor.level) else {
                cursor.matching = cursor.list.clone();
                cursor.list.start = cursor.list.end;
                continue;
            };
            let value = level.values.get(cursor.list.start);
            let at = intervals.partition_point(|interval| interval.high < value);
            let Some(interval) = intervals.get(at) else { return Step::End };
            let first = level.values.lower_bound(cursor.list.clone(), interval.low);
            let end = level.values.upper_bound(first..cursor.list.end, interval.high);
            cursor.matching = first..end;
            if defect(Defect::ExclusiveBound) && interval.low < interval.high {
                cursor.matching.end = level.values.lower_bound(first..end, interval.high);
            }
            cursor.list.start = end;
        }
        let first = cursor.matching.start;
        if filter.depth() <= cursor.level + 1 {
            let run = self.run(cursor.level, &level, cursor.matching.clone());
            cursor.matching.start = cursor.matching.end;
            return Step::Take(run);
        }
        let buckets = cursor.matching.clone().take(RUN_ENTRIES).take_while(|&i| level.is_bucket(i)).count();
        if buckets > 0 {
            cursor.matching.start += buckets;
            return Step::Take(self.run(cursor.level, &level, first..first + buckets));
        }
        cursor.matching.start += 1;
        self.fetch_below(cursor, &level, filter);
        Step::Down(self.list(cursor.level + 1, level.child(first)..level.child(first + 1)))
    }

    fn find(&self, cursor: &ColumnarCursor, code: u32) -> Option<Found<ColumnarCursor, Run>> {
        let level = self.level(cursor.level);
        let at = level.values.lower_bound(cursor.list.clone(), code);
        if at == cursor.list.end || level.values.get(at) != code {
            return None;
        }
        if self.is_bucket(cursor.level, &level, at) {
            return Some(Found::Leaf(self.run(cursor.level, &level, at..at + 1)));
        }
        Some(Found::List(self.list(cursor.level + 1, level.child(at)..level.child(at + 1))))
    }

    fn fetch_list(&self, cursor: &ColumnarCursor, code: u32) {
        self.fetch_entry(cursor, code);
    }

    fn fetch_equal(&self, run: Run, codes: &[u32]) {
        self.fetch_bucket(run, codes);
    }

    fn narrow(&self, run: Run, codes: &[u32]) -> Option<Run> {
        self.narrow_to_few(run, codes)
    }

    fn is_compared(&self, run: Run, filter: &Filter) -> bool {
        run.level < filter.depth()
    }

    fn chain(&self, run: Run, filter: &Filter) -> u64 {
        // Each strip is elsewhere in memory, and so is its part of each block.
        let strips = filter.constrained_from(run.level).len() * (1 + (run.end - run.first) / BLOCK_ROWS);
        (filter.depth().saturating_sub(run.level) + strips) as u64
    }

    fn fetch(&self, run: Run, filter: &Filter, reads_ids: bool) {
        let bytes = self.bytes.as_ref();
        if filter.depth() <= run.level {
            if !reads_ids {
                return;
            }
            let at = self.sections.tids.start + run.first * self.header.pointer_bytes;
            (0..FETCHED_LINES).for_each(|line| prefetch(bytes, at + line * LINE_BYTES));
            return;
        }
        let mut at = run.next_entry;
        for level in run.level..filter.depth() {
            if filter.level(level).is_some() {
                let sections = &self.sections.levels[level];
                let row = run.first - self.covered_before(level, at);
                prefetch(bytes, sections.codes.start + row * sections.code_bytes);
            }
            at = self.child(level, at);
        }
    }

    fn rows(&self, run: Run) -> u64 {
        (run.end - run.first) as u64
    }

    fn end(&self, run: Run) -> u64 {
        run.end as u64
    }

    fn places(&self) -> u64 {
        self.header.rows
    }

    fn span(&self, list: &ColumnarCursor) -> (u64, Option<u64>) {
        let (level, entries) = (self.level(list.level), &list.list);
        if entries.is_empty() {
            return (0, Some(0));
        }
        let (first, end) = (level.start(entries.start), level.end(entries.end - 1));
        (first as u64, Some((end - first) as u64))
    }

    fn divide(&self, run: Run, rows: u64) -> (Run, Option<Run>) {
        // Whole words of masks, so that nothing is compared twice.
        let rows = usize::try_from(rows).unwrap_or(usize::MAX).checked_next_multiple_of(BLOCK_ROWS);
        match rows.and_then(|rows| run.first.checked_add(rows)) {
            Some(end) if end < run.end => (Run { end, ..run }, Some(Run { first: end, ..run })),
            _ => (run, None),
        }
    }

    fn extents(&self, filter: &Filter) -> Vec<Range<u64>> {
        let (number, matching) = self.leading(filter);
        Region::below(self, number, &matching, number + 1).extents
    }

    /// Below the matching entries of the leading conditions, nothing is excluded before the next condition: every
    /// list down to its level is visited, and every row that ends above it is compared.
    fn least_work(&self, filter: &Filter) -> Work {
        let mut least = Work::default();
        if filter.is_empty() {
            return least;
        }
        let (leading, matching) = self.leading(filter);
        let Some(&next) = filter.constrained_from(leading + 1).first() else { return least };
        let region = Region::below(self, leading, &matching, next + 1);
        for number in leading..next {
            // The lists are as frequent as on the whole level: counting them would take a visit.
            let entries = self.sections.levels[number].entries.max(1) as u64;
            let lists = self.facts[number].lists as u64 * region.entries[number] / entries;
            // One step down, and one that finds the end of the list.
            least.steps += 2 * lists;
        }
        least.compared = region.strip_rows[next];
        least.comparisons.bytes = least.compared * self.sections.levels[next].code_bytes as u64;
        least
    }

    fn take<S: Sink>(&self, run: Run, filter: &Filter, sink: &mut S) -> Compared {
        let mut done = Compared::default();
        if filter.depth() <= run.level {
            sink.span(self.tids().slice(run.first..run.end));
            return done;
        }
        if run.end - run.first <= SHORT_RUN {
            return self.take_short(run, filter, sink);
        }
        for first in (run.first..run.end).step_by(BLOCK_ROWS) {
            let block = Run { first, end: run.end.min(first + BLOCK_ROWS), ..run };
            done.add(self.take_block(block, filter, sink));
        }
        done
    }

    fn take_equal<S: Sink>(&self, mut run: Run, codes: &[u32], sink: &mut S) {
        while run.level < codes.len() {
            if !self.narrow_by(&mut run, codes) {
                return;
            }
        }
        sink.span(self.tids().slice(run.first..run.end));
    }
}
