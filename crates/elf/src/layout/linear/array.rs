//! The array of a linear image: decoding of pointers, and passes over whole lists and subtrees.
//!
//! Everything here takes lists at their place in the image, which was verified when it was opened. Searches read
//! lists through an [`Access`](super::Access) instead, which may have copies of them.

use zerocopy::little_endian::U32;

use super::{ABSENT, END, MONO_NARROW, MONO_WIDE};
use crate::layout::header::{Header, WORD_BYTES};

/// A decoded pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pointer {
    pub(crate) is_mono: bool,
    pub(crate) at: usize,
}

/// The words of the array and what is needed to read them.
#[derive(Clone, Copy, Debug)]
pub struct Array<'a> {
    pub(crate) words: &'a [U32],
    pub(crate) pointer_words: usize,
    /// Entries of the list of level 0.
    first_list: usize,
    columns: usize,
}

impl<'a> Array<'a> {
    #[inline]
    pub(super) fn new(words: &'a [U32], header: &Header) -> Self {
        Self {
            words,
            pointer_words: header.pointer_bytes / WORD_BYTES,
            first_list: header.first_list as usize,
            columns: header.columns,
        }
    }

    /// The entries of the list of `level` at word `at`: the word of each pointer, and the pointer.
    pub(crate) fn entries(self, level: usize, at: usize) -> Entries<'a> {
        Entries { array: self, is_first: level == 0, next: at, at_end: false }
    }

    /// The words of the list of `level` at word `at`.
    pub(crate) fn list(self, level: usize, at: usize) -> &'a [U32] {
        if level == 0 {
            return &self.words[..self.first_list * self.pointer_words];
        }
        let mut entries = self.entries(level, at);
        while entries.next().is_some() {}
        &self.words[at..entries.next]
    }

    /// Counts the rows below the list of `level` at word `at`. Reports this list and all lists below it, with the
    /// rows below each, after those below them.
    pub(crate) fn rows_below(self, level: usize, at: usize, mut report: impl FnMut(usize, u64)) -> u64 {
        let mut open = vec![(at, self.entries(level, at), 0)];
        let mut total = 0;
        loop {
            let below = level + open.len();
            let Some((at, entries, rows)) = open.last_mut() else { return total };
            match entries.next() {
                Some((_, pointer)) if pointer.is_mono => {
                    *rows += self.run_rows(pointer.at + self.columns - below);
                }
                Some((_, pointer)) => open.push((pointer.at, self.entries(below, pointer.at), 0)),
                None => {
                    total = *rows;
                    report(*at, total);
                    open.pop();
                    if let Some((_, _, above)) = open.last_mut() {
                        *above += total;
                    }
                }
            }
        }
    }

    /// Length of the run of row ids at word `at`.
    fn run_rows(self, at: usize) -> u64 {
        1 + self.words[at..].iter().take_while(|word| word.get() & END == 0).count() as u64
    }
}

/// The pointer in the first words of `words`, `None` if it is absent.
#[inline]
pub(super) fn decode(words: &[U32], pointer_words: usize) -> Option<Pointer> {
    let low = words[0].get();
    if pointer_words == 1 {
        let pointer = Pointer { is_mono: low & MONO_NARROW != 0, at: (low & !MONO_NARROW) as usize };
        return (low != ABSENT).then_some(pointer);
    }
    let both = u64::from(words[1].get()) << 32 | u64::from(low);
    let pointer = Pointer { is_mono: both & MONO_WIDE != 0, at: (both & !MONO_WIDE) as usize };
    (both != u64::MAX).then_some(pointer)
}

/// Writes a pointer to a list to the first words of `words`.
pub(crate) fn write_list_pointer(words: &mut [U32], at: usize) {
    for (i, word) in words.iter_mut().enumerate() {
        *word = ((at as u64 >> (32 * i)) as u32).into();
    }
}

/// Passes the entries of one list.
#[derive(Debug)]
pub(crate) struct Entries<'a> {
    array: Array<'a>,
    is_first: bool,
    /// Word of the next entry.
    next: usize,
    at_end: bool,
}

impl Iterator for Entries<'_> {
    type Item = (usize, Pointer);

    fn next(&mut self) -> Option<(usize, Pointer)> {
        let Array { words, pointer_words, .. } = self.array;
        while self.is_first && self.next < self.array.first_list * pointer_words {
            let at = self.next;
            self.next += pointer_words;
            if let Some(pointer) = decode(&words[at..], pointer_words) {
                return Some((at, pointer));
            }
        }
        if self.is_first || self.at_end {
            return None;
        }
        let at = self.next + 1;
        self.at_end = words[self.next].get() & END != 0;
        self.next = at + pointer_words;
        decode(&words[at..], pointer_words).map(|pointer| (at, pointer))
    }
}
