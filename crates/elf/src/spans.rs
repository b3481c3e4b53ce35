//! Results as slices of the row ids of an image.
//!
//! Below the last condition the ids that a walk finds lie one after the other in a columnar image. [`IdSpans`] says
//! where, so that many rows are found without reading their ids. Ids of rows that were compared, or found by a
//! scan, are copied.

use std::ops::Range;

use zerocopy::little_endian::U64;

use crate::codes::NumberSlice;
use crate::sink::{Sink, bits};

/// Ids of matching rows in the order in which they were found.
#[derive(Clone, Debug)]
pub struct IdSpans<'i> {
    /// All ids of the image.
    image: NumberSlice<'i>,
    copied: Vec<U64>,
    spans: Vec<Span>,
    found: u64,
}

#[derive(Clone, Debug)]
enum Span {
    Image(Range<usize>),
    Copied(Range<usize>),
}

impl<'i> IdSpans<'i> {
    /// No rows. Slices of `image` that are received are kept as such.
    pub(crate) fn of(image: NumberSlice<'i>) -> Self {
        Self { image, copied: Vec::new(), spans: Vec::new(), found: 0 }
    }

    /// Number of ids.
    pub fn len(&self) -> u64 {
        self.found
    }

    pub fn is_empty(&self) -> bool {
        self.found == 0
    }

    /// The ids, slice by slice.
    pub fn slices(&self) -> impl Iterator<Item = NumberSlice<'_>> {
        self.spans.iter().map(|span| match span {
            Span::Image(range) => self.image.slice(range.clone()),
            Span::Copied(range) => NumberSlice::Wide(&self.copied[range.clone()]),
        })
    }

    /// The ids.
    pub fn iter(&self) -> impl Iterator<Item = u64> {
        self.slices().flat_map(NumberSlice::iter)
    }

    fn copy(&mut self, ids: impl Iterator<Item = u64>) {
        let first = self.copied.len();
        self.copied.extend(ids.map(U64::new));
        let end = self.copied.len();
        self.found += (end - first) as u64;
        match self.spans.last_mut() {
            Some(Span::Copied(last)) => last.end = end,
            _ => self.spans.push(Span::Copied(first..end)),
        }
    }
}

impl Sink for IdSpans<'_> {
    fn tid(&mut self, tid: u64) {
        self.copy(std::iter::once(tid));
    }

    fn span(&mut self, tids: NumberSlice<'_>) {
        let Some(first) = self.image.position_of(tids) else { return self.copy(tids.iter()) };
        let end = first + tids.len();
        self.found += tids.len() as u64;
        match self.spans.last_mut() {
            Some(Span::Image(last)) if last.end == first => last.end = end,
            _ => self.spans.push(Span::Image(first..end)),
        }
    }

    fn masked(&mut self, tids: NumberSlice<'_>, mask: u64) {
        self.copy(bits(mask).map(|i| tids.get(i)));
    }

    fn rows(&mut self, first: u64, mask: u64) {
        self.copy(bits(mask).map(|i| first + i as u64));
    }

    fn found(&self) -> u64 {
        self.found
    }

    fn restart(&mut self) {
        *self = Self::of(self.image);
    }
}
