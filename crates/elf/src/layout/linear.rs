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

mod access;
mod array;
mod verify;

use std::ops::Range;

use zerocopy::FromBytes;
use zerocopy::little_endian::U32;

use super::header::{self, Header, LayoutKind, WORD_BYTES};
use super::{ElfLayout, Found, Step};
use crate::codes::rank_by;
use crate::defect::{Defect, defect};
use crate::error::{Error, Result};
use crate::kernel::{Compared, prefetch};
use crate::predicate::{Filter, Interval};
use crate::sink::Sink;

pub use access::Access;
pub use array::Array;
use array::decode;
pub(crate) use array::{Pointer, write_list_pointer};

/// Marks the last value of a list and the last row id of a run.
pub const END: u32 = 1 << 31;
/// Marks pointers to a MonoList.
pub const MONO_NARROW: u32 = 1 << 31;
pub const MONO_WIDE: u64 = 1 << 63;
/// Pointer of values that do not occur; each of its words.
pub const ABSENT: u32 = u32::MAX;

const LINE_BYTES: usize = 64;
/// Most cache lines of a list or MonoList that are fetched before they are read. The processor foresees the others.
const FETCHED_LINES: usize = 8;
const FETCHED_WORDS: usize = FETCHED_LINES * LINE_BYTES / WORD_BYTES;

/// Entries of a list that an exact match reads one after the other, as published. It searches the rest of a longer one.
const READ_ENTRIES: usize = 128;

/// An Elf in the published layout over the image of `A`, which must not change: bytes, or a store that reads some
/// lists elsewhere.
#[derive(Clone, Debug)]
pub struct Linear<A> {
    access: A,
    header: Header,
    order: Vec<usize>,
    /// Bytes of the array within the image.
    array: Range<usize>,
    id_bound: u64,
}

/// Position of the next entry of a list: a word offset, or on level 0 the next value.
#[derive(Debug)]
pub struct LinearCursor<P = ()> {
    level: usize,
    place: P,
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
        let order = linear_order(bytes.as_ref(), &header)?;
        let array = Header::BYTES + header.columns * WORD_BYTES..bytes.as_ref().len();
        let mut linear = Self { header, order, array, access: bytes, id_bound: 0 };
        linear.id_bound = verify::verify(&linear)?;
        Ok(linear)
    }

    /// Opens an image that this process has just written.
    pub(crate) fn trusted(bytes: B, header: Header, order: Vec<usize>, id_bound: u64) -> Self {
        let array = Header::BYTES + header.columns * WORD_BYTES..bytes.as_ref().len();
        Self { access: bytes, header, order, array, id_bound }
    }
}

impl<A: Access> Linear<A> {
    /// Reads the same image through another access.
    pub(crate) fn through<T: Access>(self, access: impl FnOnce(A) -> T) -> Linear<T> {
        let Self { access: former, header, order, array, id_bound } = self;
        Linear { access: access(former), header, order, array, id_bound }
    }

    /// How the words of the image are read.
    pub fn access(&self) -> &A {
        &self.access
    }

    /// Gives up the Elf and returns how its words are read.
    pub fn into_access(self) -> A {
        self.access
    }

    #[inline]
    fn words(&self) -> &[U32] {
        words_of(&self.access.image()[self.array.clone()])
    }

    #[inline]
    pub(crate) fn array(&self) -> Array<'_> {
        Array::new(self.words(), &self.header)
    }

    #[inline]
    fn pointer_words(&self) -> usize {
        self.header.pointer_bytes / WORD_BYTES
    }

    fn first_list(&self) -> usize {
        self.header.first_list as usize
    }

    fn enter(&self, level: usize, at: usize) -> LinearCursor<A::Place> {
        let place = self.access.enter(self.array(), level, at);
        LinearCursor { level, place, at, interval: 0, at_end: false }
    }

    fn follow(&self, pointer: Pointer, level: usize) -> Found<LinearCursor<A::Place>, MonoList> {
        if pointer.is_mono {
            Found::Leaf(MonoList { level, at: pointer.at })
        } else {
            Found::List(self.enter(level, pointer.at))
        }
    }

    /// Word at which the subtree of the first value from `value` on begins; the end if there is none.
    fn first_at(&self, value: usize) -> usize {
        let (words, pointer_words) = (self.words(), self.pointer_words());
        let mut pointers =
            (value..self.first_list()).map(|value| decode(&words[value * pointer_words..], pointer_words));
        pointers.find_map(|pointer| pointer).map_or(words.len(), |pointer| pointer.at)
    }

    /// Pointer of the next value of level 0 that matches.
    fn next_first(&self, cursor: &mut LinearCursor<A::Place>, filter: &Filter) -> Option<Pointer> {
        let words = self.access.list(self.array(), cursor.place, 0);
        let words: &[U32] = &words;
        let pointer_words = self.pointer_words();
        let intervals = filter.level(0).unwrap_or(&[Interval::ALL]);
        while let Some(interval) = intervals.get(cursor.interval) {
            cursor.at = cursor.at.max(interval.low as usize);
            let end = self.first_list().min((interval.high as usize).saturating_add(1));
            let from = cursor.at * pointer_words;
            while cursor.at < end {
                cursor.at += 1;
                if let Some(pointer) = decode(&words[(cursor.at - 1) * pointer_words..], pointer_words) {
                    self.access.touched_list(cursor.place, from..cursor.at * pointer_words);
                    return Some(pointer);
                }
            }
            self.access.touched_list(cursor.place, from..cursor.at * pointer_words);
            cursor.interval += 1;
        }
        None
    }

    /// Pointer of the next entry of a list below level 0 that matches.
    fn next_entry(&self, cursor: &mut LinearCursor<A::Place>, filter: &Filter) -> Option<Pointer> {
        if cursor.at_end {
            return None;
        }
        let from = cursor.at;
        let words = self.access.list(self.array(), cursor.place, from);
        let words: &[U32] = &words;
        let pointer_words = self.pointer_words();
        let mut found = None;
        let mut next = 0;
        while !cursor.at_end && found.is_none() {
            let word = words[next].get();
            let value = word & !END;
            let pointer_at = next + 1;
            cursor.at_end = word & END != 0;
            next = pointer_at + pointer_words;
            if let Some(intervals) = filter.level(cursor.level) {
                while intervals.get(cursor.interval).is_some_and(|interval| interval.high < value) {
                    cursor.interval += if defect(Defect::FirstInterval) { intervals.len() } else { 1 };
                }
                // Values ascend: past the last interval nothing matches.
                let Some(interval) = intervals.get(cursor.interval) else {
                    cursor.at_end = true;
                    break;
                };
                if value < interval.low {
                    continue;
                }
            }
            found = decode(&words[pointer_at..], pointer_words);
        }
        cursor.at += next;
        self.access.touched_list(cursor.place, from..cursor.at);
        found
    }

    /// Pointer of the entry with the value `code` of the list of `cursor`.
    fn find_pointer(&self, cursor: &LinearCursor<A::Place>, code: u32) -> Option<Pointer> {
        let words = self.access.list(self.array(), cursor.place, cursor.at);
        let words: &[U32] = &words;
        let pointer_words = self.pointer_words();
        if cursor.level == 0 {
            let value = usize::try_from(code).ok().filter(|&code| code < self.first_list())?;
            let at = value * pointer_words;
            self.access.touched_list(cursor.place, at..at + pointer_words);
            return decode(&words[at..], pointer_words);
        }
        let entry_words = 1 + pointer_words;
        let mut at = 0;
        let found = loop {
            let word = words[at].get();
            let value = word & !END;
            if value >= code || word & END != 0 {
                break value == code;
            }
            at += entry_words;
            if A::IS_IN_PLACE && at == READ_ENTRIES * entry_words {
                let (entry, found) = self.find_further(words, cursor.at, code);
                at = entry * entry_words;
                break found;
            }
        };
        self.access.touched_list(cursor.place, cursor.at..cursor.at + at + entry_words);
        found.then(|| decode(&words[at + 1..], pointer_words)).flatten()
    }

    /// Searches the list at word `at` of the image, which `words` begin with, behind the entries that were read. Returns
    /// the first entry whose value is not below `code`, or the last one, and whether its value is `code`.
    #[cold]
    fn find_further(&self, words: &[U32], at: usize, code: u32) -> (usize, bool) {
        let (pointer_words, entry_words) = (self.pointer_words(), 1 + self.pointer_words());
        // The list ends where the subtree of its first entry begins.
        let below = decode(&words[1..], pointer_words).map_or(at, |pointer| pointer.at);
        let entries = (below - at) / entry_words;
        let value = |i: usize| words[i * entry_words].get() & !END;
        let rest = entries.saturating_sub(READ_ENTRIES);
        let before = rank_by(rest, code, |i| value(READ_ENTRIES + i), |value| value < code);
        let entry = (READ_ENTRIES + before).min(entries - 1);
        (entry, value(entry) == code)
    }

    /// Fetches the cache lines with the given words of the array, but not more than a few.
    #[inline]
    fn fetch_words(&self, words: Range<usize>) {
        let at = |word: usize| self.array.start + word * WORD_BYTES;
        for at in (at(words.start)..at(words.end) + LINE_BYTES - 1).step_by(LINE_BYTES).take(FETCHED_LINES) {
            prefetch(self.access.image(), at);
        }
    }

    /// Gives `sink` the run of row ids that starts at word `at`.
    fn take_run<S: Sink>(&self, mut at: usize, sink: &mut S) {
        let words = self.words();
        let from = at;
        loop {
            let word = words[at].get();
            sink.tid((word & !END).into());
            at += 1;
            if word & END != 0 || defect(Defect::FirstDuplicate) {
                return self.access.touched_mono_list(from..at);
            }
        }
    }
}

/// Reads the column order of a linear image with the given header, of which `bytes` are the first ones.
pub fn linear_order(bytes: &[u8], header: &Header) -> Result<Vec<usize>> {
    let order = bytes.get(Header::BYTES..Header::BYTES + header.columns * WORD_BYTES);
    let short = Error::Damaged { at: Header::BYTES as u64, what: "the body ends within the column order" };
    header::order(words_of(order.ok_or(short)?).iter().map(|word| word.get()), header.columns, Header::BYTES)
}

fn words_of(bytes: &[u8]) -> &[U32] {
    <[U32]>::ref_from_bytes(bytes).expect("bodies consist of whole words")
}

impl<A: Access> ElfLayout for Linear<A> {
    type Cursor = LinearCursor<A::Place>;
    type Leaf = MonoList;

    fn header(&self) -> &Header {
        &self.header
    }

    fn order(&self) -> &[usize] {
        &self.order
    }

    fn bytes(&self) -> &[u8] {
        self.access.image()
    }

    fn id_bound(&self) -> u64 {
        self.id_bound
    }

    fn root(&self) -> Self::Cursor {
        self.enter(0, 0)
    }

    fn step(&self, cursor: &mut Self::Cursor, filter: &Filter) -> Step<Self::Cursor, MonoList> {
        let is_first = cursor.level == 0;
        let next = if is_first { self.next_first(cursor, filter) } else { self.next_entry(cursor, filter) };
        match next.map(|pointer| self.follow(pointer, cursor.level + 1)) {
            Some(Found::List(below)) => Step::Down(below),
            Some(Found::Leaf(leaf)) => Step::Take(leaf),
            None => Step::End,
        }
    }

    fn find(&self, cursor: &Self::Cursor, code: u32) -> Option<Found<Self::Cursor, MonoList>> {
        Some(self.follow(self.find_pointer(cursor, code)?, cursor.level + 1))
    }

    fn fetch_list(&self, cursor: &Self::Cursor, code: u32) {
        if !A::IS_IN_PLACE {
            return;
        }
        let (code, pointer_words) = (code as usize, self.pointer_words());
        if cursor.level == 0 {
            let word = code.min(self.first_list()) * pointer_words;
            return self.fetch_words(word..word + 1);
        }
        // Values differ, so that there are at most `code` entries before the one with that value.
        let words = code.saturating_add(1).saturating_mul(1 + pointer_words).min(FETCHED_WORDS);
        self.fetch_words(cursor.at..cursor.at + words);
    }

    fn fetch_equal(&self, leaf: MonoList, codes: &[u32]) {
        if A::IS_IN_PLACE {
            self.fetch_words(leaf.at..leaf.at + codes.len() - leaf.level + 1);
        }
    }

    fn is_compared(&self, leaf: MonoList, filter: &Filter) -> bool {
        leaf.level < filter.depth()
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

    fn places(&self) -> u64 {
        self.header.words
    }

    fn span(&self, list: &Self::Cursor) -> (u64, Option<u64>) {
        (list.at as u64, None)
    }

    fn extents(&self, filter: &Filter) -> Vec<Range<u64>> {
        let intervals = filter.level(0).unwrap_or(&[Interval::ALL]).iter();
        let extent = |interval: &Interval| {
            let end = self.first_at((interval.high as usize).saturating_add(1));
            self.first_at(interval.low as usize) as u64..end as u64
        };
        intervals.map(extent).filter(|extent| !extent.is_empty()).collect()
    }

    fn take<S: Sink>(&self, leaf: MonoList, filter: &Filter, sink: &mut S) -> Compared {
        let words = self.words();
        let levels = filter.constrained_from(leaf.level);
        let place = |level: usize| leaf.at + level - leaf.level;
        let fails = |&&level: &&usize| !filter.admits(level, words[place(level)].get());
        let failed = levels.iter().position(|level| fails(&level));
        let compared = failed.map_or(levels.len(), |at| at + 1);
        let failed = failed.map(|at| &levels[at]);
        if let (Some(&first), Some(&last)) = (levels.first(), failed.or(levels.last())) {
            self.access.touched_mono_list(place(first)..place(last) + 1);
        }
        if failed.is_none() {
            self.take_run(place(self.header.columns), sink);
        }
        Compared { bytes: (compared * WORD_BYTES) as u64, ..Compared::default() }
    }

    fn take_equal<S: Sink>(&self, leaf: MonoList, codes: &[u32], sink: &mut S) {
        let remaining = &codes[leaf.level..];
        let values = &self.words()[leaf.at..leaf.at + remaining.len()];
        let equal = values.iter().zip(remaining).take_while(|(value, code)| value.get() == **code).count();
        self.access.touched_mono_list(leaf.at..leaf.at + (equal + 1).min(remaining.len()));
        if equal == remaining.len() {
            self.take_run(leaf.at + remaining.len(), sink);
        }
    }
}
