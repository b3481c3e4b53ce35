//! The published layout (DAPD 2022 §2.2): one array of 32-bit words in preorder.
//!
//! ```text
//! body          column order: a word per level | array
//! array         first list | subtree of its first entry | subtree of the second | ...
//! first list    a pointer per value 0..=maximum, ABSENT for values that do not occur
//! DimensionList entries [value | pointer], END on the last value
//! MonoList      values of the remaining levels | row ids, END on the last one
//! ```
//!
//! A pointer is a word offset in the array, in one word or (wide) in two; its top bit, MONO, says that it leads
//! to a MonoList. Subtrees follow each other without gaps, so the way through the array is known in advance
//! and is verified when an image is opened. Differences from the published layout: absent values are explicit,
//! and all rows that are equal in every column share one MonoList at the first level where no others join.

use std::ops::Range;

use zerocopy::FromBytes;
use zerocopy::little_endian::U32;

use super::header::{self, Header, LayoutKind, WORD_BYTES};
use super::{ElfLayout, Found, Step};
use crate::error::{Error, Result};
use crate::predicate::{Filter, Interval, contains};
use crate::sink::Sink;

/// Marks the last value of a list and the last row id of a run.
pub(crate) const END: u32 = 1 << 31;
/// Marks pointers to a MonoList.
pub(crate) const MONO_NARROW: u32 = 1 << 31;
pub(crate) const MONO_WIDE: u64 = 1 << 63;
/// Pointer of values that do not occur; each of its words.
pub(crate) const ABSENT: u32 = u32::MAX;

/// An Elf in the published layout over the bytes `B`, which must not change.
#[derive(Clone, Debug)]
pub struct Linear<B> {
    bytes: B,
    header: Header,
    order: Vec<usize>,
    /// Bytes of the array within the image.
    array: Range<usize>,
}

/// A decoded pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pointer {
    is_mono: bool,
    at: usize,
}

/// Position of the next entry of a list: a word offset, or on level 0 the next value.
#[derive(Debug)]
pub struct LinearCursor {
    level: usize,
    at: usize,
    /// First interval of the level's condition that may contain further values.
    interval: usize,
    at_end: bool,
}

/// A MonoList: its values from `level` on stand at word `at`.
#[derive(Clone, Copy, Debug)]
pub struct MonoList {
    level: usize,
    at: usize,
}

/// Sizes of an image before it is written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinearPlan {
    pub(crate) pointer_bytes: usize,
    pub(crate) first_list: u64,
    /// Words of the array, first list included.
    pub(crate) array_words: u64,
    pub(crate) rows: u64,
}

impl LinearPlan {
    /// Allocates the image and writes the column order. Returns the image and the first byte of the array.
    pub(crate) fn allocate(&self, order: &[usize]) -> Result<(Vec<u8>, usize)> {
        let mut image = header::allocate(self.array_words.saturating_add(order.len() as u64))?;
        let array_at = Header::BYTES + order.len() * WORD_BYTES;
        for (bytes, &column) in image[Header::BYTES..array_at].chunks_exact_mut(WORD_BYTES).zip(order) {
            bytes.copy_from_slice(&(column as u32).to_le_bytes());
        }
        Ok((image, array_at))
    }

    /// Header of the image.
    pub(crate) fn header(&self, columns: usize) -> Header {
        Header {
            layout: LayoutKind::Linear,
            pointer_bytes: self.pointer_bytes,
            columns,
            rows: self.rows,
            first_list: self.first_list,
            words: self.array_words + columns as u64,
            epoch: 0,
            bucket_rows: 1,
        }
    }
}

impl<B: AsRef<[u8]>> Linear<B> {
    /// Most rows, and largest code: their top bits are marks.
    pub const LIMIT: u32 = END - 1;

    /// Opens an image after verifying its header, checksum, and every list and pointer.
    pub fn open(bytes: B) -> Result<Self> {
        let header = Header::open(bytes.as_ref(), LayoutKind::Linear)?;
        let array_at = Header::BYTES + header.columns * WORD_BYTES;
        let array = array_at..bytes.as_ref().len();
        let short =
            Error::Damaged { at: Header::BYTES as u64, what: "the body ends within the column order" };
        let order = bytes.as_ref().get(Header::BYTES..array_at).ok_or(short)?;
        let order = words_of(order).iter().map(|word| word.get());
        let order = header::order(order, header.columns, Header::BYTES)?;
        let linear = Self { header, order, array, bytes };
        Verifier { linear: &linear, words: linear.words(), next: 0, rows: 0 }.verify()?;
        Ok(linear)
    }

    /// Opens an image that this process has just written.
    pub(crate) fn trusted(bytes: B, header: Header, order: Vec<usize>) -> Self {
        let array = Header::BYTES + header.columns * WORD_BYTES..bytes.as_ref().len();
        Self { bytes, header, order, array }
    }

    #[inline]
    fn words(&self) -> &[U32] {
        words_of(&self.bytes.as_ref()[self.array.clone()])
    }

    #[inline]
    fn is_wide(&self) -> bool {
        self.header.pointer_bytes == 8
    }

    #[inline]
    fn pointer_words(&self) -> usize {
        self.header.pointer_bytes / WORD_BYTES
    }

    /// The pointer at word `at`, `None` if it is absent.
    #[inline]
    fn pointer(&self, words: &[U32], at: usize) -> Option<Pointer> {
        let low = words[at].get();
        if !self.is_wide() {
            let pointer = Pointer { is_mono: low & MONO_NARROW != 0, at: (low & !MONO_NARROW) as usize };
            return (low != ABSENT).then_some(pointer);
        }
        let both = u64::from(words[at + 1].get()) << 32 | u64::from(low);
        let pointer = Pointer { is_mono: both & MONO_WIDE != 0, at: (both & !MONO_WIDE) as usize };
        (both != u64::MAX).then_some(pointer)
    }

    fn first_list(&self) -> usize {
        self.header.first_list as usize
    }

    fn follow(&self, pointer: Pointer, level: usize) -> Found<LinearCursor, MonoList> {
        if pointer.is_mono {
            Found::Leaf(MonoList { level, at: pointer.at })
        } else {
            Found::List(LinearCursor { level, at: pointer.at, interval: 0, at_end: false })
        }
    }

    /// Word at which the subtree of the first value from `value` on begins; the end if there is none.
    fn first_at(&self, value: usize) -> usize {
        let words = self.words();
        let mut pointers =
            (value..self.first_list()).map(|value| self.pointer(words, value * self.pointer_words()));
        pointers.find_map(|pointer| pointer).map_or(words.len(), |pointer| pointer.at)
    }

    fn step_first(&self, cursor: &mut LinearCursor, filter: &Filter) -> Step<LinearCursor, MonoList> {
        let words = self.words();
        let intervals = filter.level(0).unwrap_or(&[Interval::ALL]);
        while let Some(interval) = intervals.get(cursor.interval) {
            cursor.at = cursor.at.max(interval.low as usize);
            let end = self.first_list().min((interval.high as usize).saturating_add(1));
            while cursor.at < end {
                cursor.at += 1;
                if let Some(pointer) = self.pointer(words, (cursor.at - 1) * self.pointer_words()) {
                    return step_of(self.follow(pointer, 1));
                }
            }
            cursor.interval += 1;
        }
        Step::End
    }

    /// Gives `sink` the run of row ids that starts at word `at`.
    fn take_run<S: Sink>(&self, mut at: usize, sink: &mut S) {
        let words = self.words();
        loop {
            let word = words[at].get();
            sink.tid((word & !END).into());
            if word & END != 0 {
                return;
            }
            at += 1;
        }
    }
}

fn words_of(bytes: &[u8]) -> &[U32] {
    <[U32]>::ref_from_bytes(bytes).expect("bodies consist of whole words")
}

fn step_of(found: Found<LinearCursor, MonoList>) -> Step<LinearCursor, MonoList> {
    match found {
        Found::List(cursor) => Step::Down(cursor),
        Found::Leaf(leaf) => Step::Take(leaf),
    }
}

impl<B: AsRef<[u8]>> ElfLayout for Linear<B> {
    type Cursor = LinearCursor;
    type Leaf = MonoList;

    fn header(&self) -> &Header {
        &self.header
    }

    fn order(&self) -> &[usize] {
        &self.order
    }

    fn bytes(&self) -> &[u8] {
        self.bytes.as_ref()
    }

    fn root(&self) -> LinearCursor {
        LinearCursor { level: 0, at: 0, interval: 0, at_end: false }
    }

    fn step(&self, cursor: &mut LinearCursor, filter: &Filter) -> Step<LinearCursor, MonoList> {
        if cursor.level == 0 {
            return self.step_first(cursor, filter);
        }
        let words = self.words();
        while !cursor.at_end {
            let word = words[cursor.at].get();
            let value = word & !END;
            let pointer_at = cursor.at + 1;
            cursor.at_end = word & END != 0;
            cursor.at = pointer_at + self.pointer_words();
            if let Some(intervals) = filter.level(cursor.level) {
                while intervals.get(cursor.interval).is_some_and(|interval| interval.high < value) {
                    cursor.interval += 1;
                }
                // Values ascend: past the last interval nothing matches.
                let Some(interval) = intervals.get(cursor.interval) else { break };
                if value < interval.low {
                    continue;
                }
            }
            if let Some(pointer) = self.pointer(words, pointer_at) {
                return step_of(self.follow(pointer, cursor.level + 1));
            }
        }
        Step::End
    }

    fn find(&self, cursor: &LinearCursor, code: u32) -> Option<Found<LinearCursor, MonoList>> {
        let words = self.words();
        if cursor.level == 0 {
            let at = usize::try_from(code).ok().filter(|&code| code < self.first_list())?;
            return Some(self.follow(self.pointer(words, at * self.pointer_words())?, 1));
        }
        let mut at = cursor.at;
        loop {
            let word = words[at].get();
            let value = word & !END;
            if value == code {
                return Some(self.follow(self.pointer(words, at + 1)?, cursor.level + 1));
            }
            if value > code || word & END != 0 {
                return None;
            }
            at += 1 + self.pointer_words();
        }
    }

    fn compared(&self, leaf: MonoList, filter: &Filter) -> u64 {
        (filter.constrained_from(leaf.level).len() * WORD_BYTES) as u64
    }

    fn chain(&self, _leaf: MonoList, _filter: &Filter) -> u64 {
        1
    }

    fn rows(&self, _leaf: MonoList) -> u64 {
        1
    }

    fn end(&self, leaf: MonoList) -> u64 {
        (leaf.at + self.header.columns - leaf.level + 1) as u64
    }

    fn extents(&self, filter: &Filter) -> Vec<Range<u64>> {
        let intervals = filter.level(0).unwrap_or(&[Interval::ALL]).iter();
        let extent = |interval: &Interval| {
            let end = self.first_at((interval.high as usize).saturating_add(1));
            self.first_at(interval.low as usize) as u64..end as u64
        };
        intervals.map(extent).filter(|extent| !extent.is_empty()).collect()
    }

    fn take<S: Sink>(&self, leaf: MonoList, filter: &Filter, sink: &mut S) {
        let words = self.words();
        let matches = |&level: &usize| {
            let value = words[leaf.at + level - leaf.level].get();
            filter.level(level).is_none_or(|intervals| contains(intervals, value))
        };
        if filter.constrained_from(leaf.level).iter().all(matches) {
            self.take_run(leaf.at + self.header.columns - leaf.level, sink);
        }
    }

    fn take_equal<S: Sink>(&self, leaf: MonoList, codes: &[u32], sink: &mut S) {
        let remaining = &codes[leaf.level..];
        let values = &self.words()[leaf.at..leaf.at + remaining.len()];
        if values.iter().zip(remaining).all(|(value, &code)| value.get() == code) {
            self.take_run(leaf.at + remaining.len(), sink);
        }
    }
}

/// Walks the array in preorder and demands that each pointer leads exactly to the next word.
struct Verifier<'a, B> {
    linear: &'a Linear<B>,
    words: &'a [U32],
    /// First word that was not visited yet.
    next: usize,
    rows: u64,
}

impl<B: AsRef<[u8]>> Verifier<'_, B> {
    fn verify(mut self) -> Result<()> {
        let pointer_words = self.linear.pointer_words();
        let first_words = self.linear.header.first_list.checked_mul(pointer_words as u64);
        match first_words.and_then(|words| usize::try_from(words).ok()) {
            Some(words) if words <= self.words.len() => self.next = words,
            _ => return Err(self.damage("the first list is longer than the array")),
        }
        for value in 0..self.linear.first_list() {
            if let Some(pointer) = self.linear.pointer(self.words, value * pointer_words) {
                self.verify_subtree(pointer)?;
            }
        }
        if self.next != self.words.len() {
            return Err(self.damage("words follow the last list"));
        }
        if self.rows != self.linear.header.rows {
            return Err(self.damage("the number of rows differs from the header"));
        }
        Ok(())
    }

    fn verify_subtree(&mut self, pointer: Pointer) -> Result<()> {
        let mut waiting = vec![(pointer, 1)];
        while let Some((pointer, level)) = waiting.pop() {
            if pointer.at != self.next {
                return Err(self.damage("a pointer does not lead to the next list"));
            }
            if pointer.is_mono {
                self.verify_mono_list(level)?;
            } else {
                let first = waiting.len();
                self.verify_list(level, &mut waiting)?;
                waiting[first..].reverse();
            }
        }
        Ok(())
    }

    /// Passes one list and pushes its pointers.
    fn verify_list(&mut self, level: usize, pointers: &mut Vec<(Pointer, usize)>) -> Result<()> {
        if level >= self.linear.header.columns {
            return Err(self.damage("a list lies below the last level"));
        }
        let entry_words = 1 + self.linear.pointer_words();
        let mut last = None;
        loop {
            if self.words.len() - self.next < entry_words {
                return Err(self.damage("a list has no end"));
            }
            let word = self.words[self.next].get();
            let pointer = self.linear.pointer(self.words, self.next + 1);
            if last.is_some_and(|last| last >= word & !END) {
                return Err(self.damage("the values of a list do not ascend"));
            }
            last = Some(word & !END);
            pointers.push((pointer.ok_or_else(|| self.damage("an entry has no pointer"))?, level + 1));
            self.next += entry_words;
            if word & END != 0 {
                return Ok(());
            }
        }
    }

    fn verify_mono_list(&mut self, level: usize) -> Result<()> {
        let values = self.linear.header.columns.saturating_sub(level);
        if self.words.len() - self.next < values {
            return Err(self.damage("a MonoList has no end"));
        }
        self.next += values;
        loop {
            let Some(word) = self.words.get(self.next) else {
                return Err(self.damage("a run of row ids has no end"));
            };
            let word = word.get();
            if u64::from(word & !END) >= self.linear.header.rows {
                return Err(self.damage("a row id is not below the number of rows"));
            }
            self.next += 1;
            self.rows += 1;
            if word & END != 0 {
                return Ok(());
            }
        }
    }

    fn damage(&self, what: &'static str) -> Error {
        Error::Damaged { at: (self.linear.array.start + self.next * WORD_BYTES) as u64, what }
    }
}
