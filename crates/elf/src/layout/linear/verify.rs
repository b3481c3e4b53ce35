//! Verification of a linear image: one pass that no later search can leave.
//!
//! Subtrees follow each other without gaps, so the way through the array is known in advance: each pointer must
//! lead exactly to the next word that was not visited yet.

use zerocopy::little_endian::U32;

use super::array::{Pointer, decode};
use super::{END, Linear};
use crate::error::{Error, Result};
use crate::layout::header::WORD_BYTES;

/// Verifies the array of `linear`, whose header and column order are valid. Returns the bound of the row ids.
pub(super) fn verify<B: AsRef<[u8]>>(linear: &Linear<B>) -> Result<u64> {
    Verifier { linear, words: linear.words(), next: 0, rows: 0, id_bound: 0 }.verify()
}

/// Walks the array in preorder and demands that each pointer leads exactly to the next word.
struct Verifier<'a, B> {
    linear: &'a Linear<B>,
    words: &'a [U32],
    /// First word that was not visited yet.
    next: usize,
    rows: u64,
    id_bound: u64,
}

impl<B: AsRef<[u8]>> Verifier<'_, B> {
    fn verify(mut self) -> Result<u64> {
        let pointer_words = self.linear.pointer_words();
        let first_words = self.linear.header.first_list.checked_mul(pointer_words as u64);
        match first_words.and_then(|words| usize::try_from(words).ok()) {
            Some(words) if words <= self.words.len() => self.next = words,
            _ => return Err(self.damage("the first list is longer than the array")),
        }
        for value in 0..self.linear.first_list() {
            if let Some(pointer) = decode(&self.words[value * pointer_words..], pointer_words) {
                self.verify_subtree(pointer)?;
            }
        }
        if self.next != self.words.len() {
            return Err(self.damage("words follow the last list"));
        }
        if self.rows != self.linear.header.rows {
            return Err(self.damage("the number of rows differs from the header"));
        }
        Ok(self.id_bound)
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
            let pointer = decode(&self.words[self.next + 1..], entry_words - 1);
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
            self.id_bound = self.id_bound.max(u64::from(word & !END) + 1);
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
