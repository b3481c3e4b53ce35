//! Receivers of matching rows: a search or a scan calls a [`Sink`] for each piece of its result.
//!
//! Pieces are slices of the row ids of an image ([`Sink::span`], [`Sink::masked`]), single row ids, or 64
//! consecutive rows of the table with a mask ([`Sink::rows`]). Bit `i` of a mask stands for element `i`.

use crate::codes::NumberSlice;

/// Receives the rows that match.
pub trait Sink {
    /// Whether the row ids of slices are read.
    const READS_IDS: bool = true;

    /// One row id.
    fn tid(&mut self, tid: u64);

    /// All row ids of a slice.
    fn span(&mut self, tids: NumberSlice<'_>);

    /// The row ids of a slice of at most 64 whose bit in `mask` is set. Bits past its end are zero.
    fn masked(&mut self, tids: NumberSlice<'_>, mask: u64);

    /// The row ids `first + i` for each bit `i` of `mask`. `first` is a multiple of 64.
    fn rows(&mut self, first: u64, mask: u64);

    /// Number of rows received so far.
    fn found(&self) -> u64;

    /// Forgets everything received so far.
    fn restart(&mut self);
}

/// Counts rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count(pub u64);

impl Sink for Count {
    const READS_IDS: bool = false;

    #[inline]
    fn tid(&mut self, _tid: u64) {
        self.0 += 1;
    }

    #[inline]
    fn span(&mut self, tids: NumberSlice<'_>) {
        self.0 += tids.len() as u64;
    }

    #[inline]
    fn masked(&mut self, _tids: NumberSlice<'_>, mask: u64) {
        self.0 += u64::from(mask.count_ones());
    }

    #[inline]
    fn rows(&mut self, _first: u64, mask: u64) {
        self.0 += u64::from(mask.count_ones());
    }

    fn found(&self) -> u64 {
        self.0
    }

    fn restart(&mut self) {
        self.0 = 0;
    }
}

/// Positions of the bits of `mask`, from the lowest.
#[inline]
pub fn bits(mut mask: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        (mask != 0).then(|| {
            let bit = mask.trailing_zeros() as usize;
            mask &= mask - 1;
            bit
        })
    })
}
