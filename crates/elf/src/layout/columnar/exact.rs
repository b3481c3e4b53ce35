//! Exact match in the columnar layout: it asks for memory before it needs it.
//!
//! An exact match goes to a list of each level, and then to a strip of each level below a bucket and to a row id: a
//! dozen places of a large image, nearly all of them in no cache, and on pages whose translation is in none either.
//! Few of them depend on each other. So everything whose place is known or can be guessed is fetched at once: a guess
//! takes the codes of a level to be evenly spaced, and a wrong one costs nothing but a part of the gain.

use std::ops::Range;

use super::{Columnar, ColumnarCursor, LINE_BYTES, Level, Run};
use crate::kernel::prefetch;

/// Rows of a run that is compared row by row: their values of a level are in one or two cache lines.
const NEAR_ROWS: usize = 16;
/// Most cache lines of the strip that is searched first.
const SEARCHED_LINES: usize = 8;

impl<B: AsRef<[u8]>> Columnar<B> {
    /// Number in `numbers`, which are not empty, at which `code` stands if the codes are evenly spaced from 0 to the
    /// largest one of the level.
    #[inline]
    fn estimate(&self, level: usize, numbers: Range<usize>, code: u32) -> usize {
        let largest = self.facts[level].largest;
        let before = (numbers.len() as u64).wrapping_mul(code.min(largest).into()) / (u64::from(largest) + 1);
        numbers.start + (before as usize).min(numbers.len() - 1)
    }

    /// Whether entry `at` of level `number`, which is `opened`, has no list below it.
    #[inline]
    pub(super) fn is_bucket(&self, number: usize, opened: &Level<'_>, at: usize) -> bool {
        // Where the next level has no entries, that is known without a look.
        !self.has_entries(number + 1) || opened.is_bucket(at)
    }

    #[inline]
    fn has_entries(&self, level: usize) -> bool {
        self.sections.levels.get(level).is_some_and(|sections| sections.entries > 0)
    }

    /// Fetches what [`find`](super::ElfLayout::find) reads, as far as it can be guessed.
    #[inline]
    pub(super) fn fetch_entry(&self, cursor: &ColumnarCursor, code: u32) {
        let (level, bytes) = (cursor.level, self.bytes.as_ref());
        if cursor.list.is_empty() {
            return;
        }
        let sections = &self.sections.levels[level];
        let entry = self.estimate(level, cursor.list.clone(), code);
        prefetch(bytes, sections.values.start + entry * sections.code_bytes);
        let width = self.header.pointer_bytes;
        prefetch(bytes, sections.starts.start + entry * width);
        if !sections.strips.is_empty() {
            prefetch(bytes, sections.strips.start + entry * width);
        }
        if self.has_entries(level + 1) {
            prefetch(bytes, sections.children.start + entry * width);
        }
    }

    /// Fetches what a search for `codes` in `run` reads: the whole of a short run. Of a longer one, the strip that is
    /// searched first, and the place in the others where its result is expected.
    #[inline]
    pub(super) fn fetch_bucket(&self, run: Run, codes: &[u32]) {
        let rows = run.first..run.end;
        let (Some(sections), false) = (self.sections.levels.get(run.level), rows.len() <= NEAR_ROWS) else {
            return self.fetch_rows(run);
        };
        let first = run.first - self.covered_before(run.level, run.next_entry);
        let start = sections.codes.start + first * sections.code_bytes;
        let end = start + rows.len() * sections.code_bytes;
        for at in (start..end + LINE_BYTES - 1).step_by(LINE_BYTES).take(SEARCHED_LINES) {
            prefetch(self.bytes.as_ref(), at);
        }
        let expected = self.estimate(run.level, rows, codes[run.level]);
        self.fetch_rows(Run { first: expected, end: expected + 1, ..run });
    }

    /// Fetches the first and the last value of each strip of `run`, and of its row ids.
    #[inline]
    fn fetch_rows(&self, run: Run) {
        let bytes = self.bytes.as_ref();
        let ends = |start: usize, first: usize, width: usize| {
            let first = start + first * width;
            let last = first + (run.end - run.first) * width - 1;
            prefetch(bytes, first);
            if first / LINE_BYTES != last / LINE_BYTES {
                prefetch(bytes, last);
            }
        };
        let mut at = run.next_entry;
        for (number, sections) in self.sections.levels.iter().enumerate().skip(run.level) {
            ends(sections.codes.start, run.first - self.covered_before(number, at), sections.code_bytes);
            at = self.child(number, at);
        }
        ends(self.sections.tids.start, run.first, self.header.pointer_bytes);
    }

    /// Narrows `run` to few rows, by the codes of the levels that this takes, and fetches the rest of them. `None` if no
    /// row has these codes.
    #[inline]
    pub(super) fn narrow_to_few(&self, mut run: Run, codes: &[u32]) -> Option<Run> {
        if run.end - run.first <= NEAR_ROWS {
            return Some(run);
        }
        while run.level < codes.len() && run.end - run.first > NEAR_ROWS {
            if !self.narrow_by(&mut run, codes) {
                return None;
            }
        }
        self.fetch_rows(run);
        Some(run)
    }

    /// Narrows `run`, whose rows are sorted, to those that have its level's value in `codes`, of which there may be
    /// none.
    #[inline]
    pub(super) fn narrow_by(&self, run: &mut Run, codes: &[u32]) -> bool {
        let covered = self.covered_before(run.level, run.next_entry);
        let strip = self.strip_codes(run.level);
        let equal = strip.equal_range(run.first - covered..run.end - covered, codes[run.level]);
        run.next_entry = self.child(run.level, run.next_entry);
        run.level += 1;
        (run.first, run.end) = (equal.start + covered, equal.end + covered);
        run.first < run.end
    }
}
