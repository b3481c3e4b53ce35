//! Receivers of the rows that a query finds.
//!
//! A count needs no row ids, so the columnar search asks whether they are wanted before it READs them. Row ids
//! from remote memory are compared with the number of rows before a sink gets them, since bitmaps and callers
//! rely on it. A receiver that collects rows also gets where they are, from which the codes of other columns follow.

use pando_elf::{NumberSlice, Sink, bits};

use crate::error::{Attempt, damaged};

/// Rows that a search found, with what their other columns follow from.
#[derive(Debug)]
pub(crate) struct Rows {
    /// Levels whose codes are wanted.
    pub levels: Vec<usize>,
    pub ids: Vec<u64>,
    /// Columnar layout: places of the rows in preorder.
    pub places: Vec<u64>,
    /// Linear layout: codes of the rows on each of the levels.
    pub codes: Vec<Vec<u32>>,
}

/// Rows in the order of their ids, with their codes on the wanted levels.
#[derive(Debug)]
pub(crate) struct FoundRows {
    pub ids: Vec<u64>,
    pub codes: Vec<Vec<u32>>,
}

impl Rows {
    /// No rows yet, of which the codes on `levels` are wanted.
    pub fn of_levels(levels: Vec<usize>) -> Self {
        let codes = vec![Vec::new(); levels.len()];
        Self { levels, ids: Vec::new(), places: Vec::new(), codes }
    }

    fn push(&mut self, place: usize, tids: NumberSlice<'_>, mask: u64) {
        for i in bits(mask) {
            self.ids.push(tids.get(i));
            self.places.push((place + i) as u64);
        }
    }

    /// The rows in the order of their ids; all codes are known.
    pub fn in_order(self) -> FoundRows {
        let levels = self.levels.len();
        FoundRows::in_order(vec![FoundRows { ids: self.ids, codes: self.codes }], levels)
    }
}

impl FoundRows {
    /// The rows of several results, each with the codes of `levels` levels, in the order of their ids.
    pub fn in_order(all: Vec<Self>, levels: usize) -> Self {
        let mut whole = Self { ids: Vec::new(), codes: vec![Vec::new(); levels] };
        for Self { ids, codes } in all {
            whole.ids.extend(ids);
            whole.codes.iter_mut().zip(codes).for_each(|(all, codes)| all.extend(codes));
        }
        if whole.ids.is_sorted() {
            return whole;
        }
        let mut order: Vec<usize> = (0..whole.ids.len()).collect();
        order.sort_unstable_by_key(|&row| whole.ids[row]);
        let sorted = |codes: Vec<u32>| order.iter().map(|&row| codes[row]).collect();
        Self {
            codes: whole.codes.into_iter().map(sorted).collect(),
            ids: order.iter().map(|&row| whole.ids[row]).collect(),
        }
    }

    /// Drops the rows whose ids do not meet `condition`.
    pub fn retain(&mut self, condition: impl Fn(u64) -> bool) {
        let is_kept: Vec<bool> = self.ids.iter().map(|&id| condition(id)).collect();
        let mut keep = is_kept.iter();
        self.ids.retain(|_| keep.next().is_some_and(|keep| *keep));
        for codes in &mut self.codes {
            let mut keep = is_kept.iter();
            codes.retain(|_| keep.next().is_some_and(|keep| *keep));
        }
    }
}

/// What becomes of the rows that are found.
enum Wanted<'s, S> {
    Count,
    Ids(&'s mut S),
    Rows(&'s mut Rows),
}

/// Receives rows: their ids, their places, or only their number.
pub(crate) struct Receiver<'s, S> {
    wanted: Wanted<'s, S>,
    pub found: u64,
}

impl<'s, S: Sink> Receiver<'s, S> {
    /// Passes row ids to `sink`, or only counts rows.
    pub fn new(sink: Option<&'s mut S>) -> Self {
        Self { wanted: sink.map_or(Wanted::Count, Wanted::Ids), found: 0 }
    }

    /// Collects rows.
    pub fn of_rows(rows: &'s mut Rows) -> Self {
        Self { wanted: Wanted::Rows(rows), found: 0 }
    }

    pub fn wants_ids(&self) -> bool {
        !matches!(self.wanted, Wanted::Count)
    }

    /// `rows` rows whose ids are not wanted.
    pub fn count(&mut self, rows: u64) {
        self.found += rows;
    }

    /// One row id, which is below the bound, and the codes of its row by level.
    pub fn tid(&mut self, tid: u64, code: impl Fn(usize) -> u32) {
        self.found += 1;
        match &mut self.wanted {
            Wanted::Count => {}
            Wanted::Ids(sink) => sink.tid(tid),
            Wanted::Rows(rows) => {
                rows.ids.push(tid);
                rows.levels.iter().zip(&mut rows.codes).for_each(|(&level, codes)| codes.push(code(level)));
            }
        }
    }

    /// All row ids of a slice, the first of which is at `place` in preorder.
    pub fn span(&mut self, place: usize, tids: NumberSlice<'_>) {
        self.found += tids.len() as u64;
        match &mut self.wanted {
            Wanted::Count => {}
            Wanted::Ids(sink) => sink.span(tids),
            Wanted::Rows(rows) => {
                rows.ids.extend(tids.iter());
                rows.places.extend((place..place + tids.len()).map(|place| place as u64));
            }
        }
    }

    /// The row ids of a slice of at most 64 whose bit in `mask` is set.
    pub fn masked(&mut self, place: usize, tids: NumberSlice<'_>, mask: u64) {
        self.found += u64::from(mask.count_ones());
        match &mut self.wanted {
            Wanted::Count => {}
            Wanted::Ids(sink) => sink.masked(tids, mask),
            Wanted::Rows(rows) => rows.push(place, tids, mask),
        }
    }
}

/// Fails if a row id is not below `bound`. `at` is the byte of the image where the ids begin.
pub(crate) fn check_tids(tids: NumberSlice<'_>, bound: u64, at: u64) -> Attempt<()> {
    let is_sound = tids.iter().all(|tid| tid < bound);
    if is_sound { Ok(()) } else { Err(damaged(at, "a row id is not below the bound of its manifest")) }
}
