//! Deleted rows of one part: a bitmap of row ids in pages that versions share.
//!
//! A snapshot keeps its version while a writer makes the next one, which copies the list of pages and the
//! pages that it changes. Pages without a deleted row do not exist. Results of a search pass through
//! [`Living`], which leaves deleted rows out.

use std::sync::Arc;

use crate::codes::NumberSlice;
use crate::defect::{Defect, defect};
use crate::kernel::WORD;
use crate::sink::{Sink, bits};

/// Ids that one page stands for.
const PAGE_IDS: u64 = 1 << 15;
const PAGE_WORDS: usize = PAGE_IDS as usize / WORD;

pub(crate) type Page = [u64; PAGE_WORDS];

/// A set of row ids.
#[derive(Clone, Debug, Default)]
pub struct Tombstones {
    /// Pages and their numbers, ascending.
    pages: Vec<(u64, Arc<Page>)>,
    count: u64,
}

impl Tombstones {
    pub(crate) const PAGE_WORDS: usize = PAGE_WORDS;

    /// Pages and their numbers, ascending.
    pub(crate) fn pages(&self) -> impl Iterator<Item = (u64, &Page)> {
        self.pages.iter().map(|(number, page)| (*number, &**page))
    }

    /// The set with the given pages; `None` if their numbers do not ascend.
    pub(crate) fn of_pages(pages: impl Iterator<Item = (u64, Page)>) -> Option<Self> {
        let pages: Vec<_> = pages.map(|(number, page)| (number, Arc::new(page))).collect();
        let bits = |page: &Page| page.iter().map(|word| u64::from(word.count_ones())).sum::<u64>();
        let count = pages.iter().map(|(_, page)| bits(page)).sum();
        let is_sound = pages.is_sorted_by(|a, b| a.0 < b.0)
            && pages.last().is_none_or(|(number, _)| *number < u64::MAX / PAGE_IDS);
        is_sound.then_some(Self { pages, count })
    }

    /// The ids, ascending.
    pub fn ids(&self) -> impl Iterator<Item = u64> {
        self.pages.iter().flat_map(|(number, page)| {
            page.iter().enumerate().flat_map(move |(word, mask)| {
                bits(*mask).map(move |bit| number * PAGE_IDS + (word * WORD + bit) as u64)
            })
        })
    }

    /// Number of ids in the set.
    pub fn count(&self) -> u64 {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Place of the page with the given number, or where it would be.
    #[inline]
    fn place(&self, number: u64) -> Result<usize, usize> {
        self.pages.binary_search_by_key(&number, |&(number, _)| number)
    }

    /// The ids `first` to `first + 63` in the set, as a mask; `first` is a multiple of 64.
    #[inline]
    fn word(&self, first: u64) -> u64 {
        let place = self.place(first / PAGE_IDS);
        place.map_or(0, |place| self.pages[place].1[(first % PAGE_IDS) as usize / WORD])
    }

    #[inline]
    pub fn contains(&self, id: u64) -> bool {
        self.word(id) >> (id % 64) & 1 == 1
    }

    /// Adds an id. Returns whether it is new.
    pub fn insert(&mut self, id: u64) -> bool {
        if self.contains(id) {
            return false;
        }
        let number = id / PAGE_IDS;
        let place = self.place(number).unwrap_or_else(|place| {
            self.pages.insert(place, (number, Arc::new([0; PAGE_WORDS])));
            place
        });
        Arc::make_mut(&mut self.pages[place].1)[(id % PAGE_IDS) as usize / WORD] |= 1 << (id % 64);
        self.count += 1;
        true
    }

    /// The ids that `earlier`, a former version of this set, did not have.
    pub fn since(&self, earlier: &Self) -> impl Iterator<Item = u64> {
        let changed = self.pages.iter().filter_map(|(number, page)| {
            let before = earlier.place(*number).ok().map(|place| &earlier.pages[place].1);
            let is_shared = before.is_some_and(|before| Arc::ptr_eq(before, page));
            (!is_shared).then_some((*number, page, before))
        });
        changed.flat_map(|(number, page, before)| {
            page.iter().enumerate().flat_map(move |(word, mask)| {
                let first = number * PAGE_IDS + (word * WORD) as u64;
                bits(mask & !before.map_or(0, |before| before[word])).map(move |bit| first + bit as u64)
            })
        })
    }
}

/// Passes on the rows that are not deleted.
pub(super) struct Living<'a, S> {
    pub(super) sink: &'a mut S,
    pub(super) deleted: &'a Tombstones,
}

impl<S: Sink> Sink for Living<'_, S> {
    #[inline]
    fn tid(&mut self, tid: u64) {
        if !self.deleted.contains(tid) {
            self.sink.tid(tid);
        }
    }

    #[inline]
    fn span(&mut self, tids: NumberSlice<'_>) {
        if defect(Defect::RevivedRows) {
            return self.sink.span(tids);
        }
        for first in (0..tids.len()).step_by(WORD) {
            let piece = tids.slice(first..tids.len().min(first + WORD));
            self.masked(piece, u64::MAX >> (WORD - piece.len()));
        }
    }

    #[inline]
    fn masked(&mut self, tids: NumberSlice<'_>, mask: u64) {
        let is_alive = |&i: &usize| !self.deleted.contains(tids.get(i));
        let living = bits(mask).filter(is_alive).fold(0, |living, i| living | 1 << i);
        if living != 0 {
            self.sink.masked(tids, living);
        }
    }

    #[inline]
    fn rows(&mut self, first: u64, mask: u64) {
        self.sink.rows(first, mask & !self.deleted.word(first));
    }

    fn found(&self) -> u64 {
        self.sink.found()
    }

    fn restart(&mut self) {
        self.sink.restart();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_share_pages_and_tell_what_is_new() {
        let mut set = Tombstones::default();
        let ids = [100_000, 100_001, 131_071, 131_072, 900_000];
        assert!(ids.iter().all(|&id| set.insert(id)) && !set.insert(131_071));
        let earlier = set.clone();
        assert!(set.insert(100_063) && set.insert(131_200) && set.insert(5_000_000));
        assert_eq!(set.since(&earlier).collect::<Vec<_>>(), [100_063, 131_200, 5_000_000]);
        assert_eq!(earlier.since(&Tombstones::default()).collect::<Vec<_>>(), ids);
        assert_eq!((set.count(), earlier.count()), (8, 5));
        assert!(set.contains(5_000_000) && !earlier.contains(5_000_000) && !set.contains(3));
    }
}
