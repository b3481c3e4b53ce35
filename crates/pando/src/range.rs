//! Iteration over a range of keys.
//!
//! Entries are fetched in batches that grow, up to a bound in bytes, and each batch is a scan of its own that goes
//! on behind the last key. So an iterator holds no latch and no place in the tree between two entries, and changes
//! may come in between.

use std::ops::Bound;

use pando_dex::ScanRange;

use crate::error::{Error, Result};
use crate::session::Session;

const BATCH_MIN: usize = 16;
const BATCH_MAX: usize = 1024;
/// Bytes of a batch after which it gets no further entry: values may be long.
const BATCH_BYTES: usize = 1 << 20;

/// What has entries to iterate over.
pub trait Scan {
    /// Hands the entries of `range` to `visit`, in order, until it returns `false`; how many it was given.
    ///
    /// # Errors
    /// As for every operation.
    fn scan_entries(
        &self,
        range: &ScanRange<'_>,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<usize>;
}

impl Scan for Session {
    fn scan_entries(
        &self,
        range: &ScanRange<'_>,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<usize> {
        self.scan(range, visit)
    }
}

/// The bounds of the keys that begin with `prefix`.
pub(crate) fn of_prefix(prefix: &[u8]) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    let low = prefix.to_vec();
    // The first key behind all of those: without the trailing 0xff, one more in the last place.
    let mut high = low.clone();
    while high.pop_if(|last| *last == u8::MAX).is_some() {}
    let high = match high.last_mut() {
        Some(last) => {
            *last += 1;
            Bound::Excluded(high)
        }
        None => Bound::Unbounded,
    };
    (Bound::Included(low), high)
}

/// A key and its value.
pub(crate) type Entry = (Vec<u8>, Vec<u8>);

/// Iterator over the entries of a range, in ascending order unless [`Range::reverse`]d. An error ends it.
#[must_use = "entries are fetched when the iterator is advanced"]
pub struct Range<'s, S: Scan = Session> {
    session: &'s S,
    low: Bound<Vec<u8>>,
    high: Bound<Vec<u8>>,
    reverse: bool,
    /// Entries still to be fetched at most.
    left: usize,
    /// Entries of the next batch.
    batch: usize,
    fetched: std::vec::IntoIter<Entry>,
    /// What ends the iteration once the fetched entries are handed out.
    error: Option<Error>,
    /// Nothing is left to be fetched.
    ended: bool,
}

impl<'s, S: Scan> Range<'s, S> {
    pub(crate) fn new(session: &'s S, low: Bound<Vec<u8>>, high: Bound<Vec<u8>>) -> Self {
        Self {
            session,
            low,
            high,
            reverse: false,
            left: usize::MAX,
            batch: BATCH_MIN,
            fetched: Vec::new().into_iter(),
            error: None,
            ended: false,
        }
    }

    /// From the high end down. For an iterator that was not advanced yet.
    pub fn reverse(mut self) -> Self {
        self.reverse = !self.reverse;
        self
    }

    /// At most `entries`, which are then not read ahead of. For an iterator that was not advanced yet.
    pub fn limit(mut self, entries: usize) -> Self {
        self.left = entries;
        self
    }

    fn fetch(&mut self) {
        let limit = self.batch.min(self.left);
        let mut entries: Vec<Entry> = Vec::with_capacity(limit);
        let mut bytes = 0;
        let range = ScanRange {
            low: self.low.as_ref().map(Vec::as_slice),
            high: self.high.as_ref().map(Vec::as_slice),
            limit,
            reverse: self.reverse,
        };
        let scanned = self.session.scan_entries(&range, &mut |key, value| {
            bytes += key.len() + value.len();
            entries.push((key.to_vec(), value.to_vec()));
            bytes < BATCH_BYTES
        });
        self.error = scanned.err();
        self.left -= entries.len();
        let all = self.left == 0 || (entries.len() < limit && bytes < BATCH_BYTES);
        self.ended = all || self.error.is_some();
        if let Some((last, _)) = entries.last() {
            let next = Bound::Excluded(last.clone());
            *(if self.reverse { &mut self.high } else { &mut self.low }) = next;
        }
        self.batch = (2 * self.batch).min(BATCH_MAX);
        self.fetched = entries.into_iter();
    }
}

impl<S: Scan> std::fmt::Debug for Range<'_, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Range")
            .field("low", &self.low)
            .field("high", &self.high)
            .field("reverse", &self.reverse)
            .finish_non_exhaustive()
    }
}

impl<S: Scan> Iterator for Range<'_, S> {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.fetched.len() == 0 && !self.ended && self.left > 0 {
            self.fetch();
        }
        self.fetched.next().map(Ok).or_else(|| self.error.take().map(Err))
    }
}

impl<S: Scan> std::iter::FusedIterator for Range<'_, S> {}
