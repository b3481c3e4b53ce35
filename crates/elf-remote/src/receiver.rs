//! Receivers of the rows that a query finds.
//!
//! A count needs no row ids, so the columnar search asks whether they are wanted before it READs them. Row ids
//! from remote memory are compared with the number of rows before a sink gets them, since bitmaps and callers
//! rely on it.

use pando_elf::{NumberSlice, Sink};

use crate::error::{Attempt, damaged};

/// Receives rows: their ids, or only their number.
pub(crate) struct Receiver<'s, S> {
    sink: Option<&'s mut S>,
    pub found: u64,
}

impl<'s, S: Sink> Receiver<'s, S> {
    /// Passes row ids to `sink`, or only counts rows.
    pub fn new(sink: Option<&'s mut S>) -> Self {
        Self { sink, found: 0 }
    }

    pub fn wants_ids(&self) -> bool {
        self.sink.is_some()
    }

    /// `rows` rows whose ids are not wanted.
    pub fn count(&mut self, rows: u64) {
        self.found += rows;
    }

    /// One row id, which is below the number of rows.
    pub fn tid(&mut self, tid: u64) {
        self.found += 1;
        if let Some(sink) = &mut self.sink {
            sink.tid(tid);
        }
    }

    /// All row ids of a slice.
    pub fn span(&mut self, tids: NumberSlice<'_>) {
        self.found += tids.len() as u64;
        if let Some(sink) = &mut self.sink {
            sink.span(tids);
        }
    }

    /// The row ids of a slice of at most 64 whose bit in `mask` is set.
    pub fn masked(&mut self, tids: NumberSlice<'_>, mask: u64) {
        self.found += u64::from(mask.count_ones());
        if let Some(sink) = &mut self.sink {
            sink.masked(tids, mask);
        }
    }
}

/// Fails if a row id is not below `bound`. `at` is the byte of the image where the ids begin.
pub(crate) fn check_tids(tids: NumberSlice<'_>, bound: u64, at: u64) -> Attempt<()> {
    let is_sound = tids.iter().all(|tid| tid < bound);
    if is_sound { Ok(()) } else { Err(damaged(at, "a row id is not below the bound of its manifest")) }
}
