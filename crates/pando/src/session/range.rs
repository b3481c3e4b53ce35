//! Iteration over a range of keys.
//!
//! Entries are fetched in batches that grow, up to a limit in bytes. Each batch is a scan of its own, which
//! continues after the last key. So between two entries an iterator holds no latch and no position in the
//! tree, and changes may occur.

use std::ops::Bound;

use pando_dex::ScanRange;

use super::Session;
use crate::error::{Error, Result};

const BATCH_MIN: usize = 16;
const BATCH_MAX: usize = 1024;
/// Bytes after which a batch takes no further entry, because values may be long.
const BATCH_BYTES: usize = 1 << 20;

/// A session whose entries can be iterated over.
pub trait Scan {
    /// Passes the entries of `range` to `visit`, in order, until it returns `false`. Returns the number of
    /// entries visited.
    ///
    /// # Errors
    /// As for [`Session::get`].
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

/// Bounds of the keys that begin with `prefix`.
pub(crate) fn of_prefix(prefix: &[u8]) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    let low = prefix.to_vec();
    // The upper bound is the first key after them: trailing 0xff bytes removed, then the last byte
    // incremented.
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
pub(super) type Entry = (Vec<u8>, Vec<u8>);

/// Iterator over the entries of a range, in ascending order unless [`Range::reverse`]d. It ends after an
/// error.
#[must_use = "entries are fetched when the iterator is advanced"]
pub struct Range<'s, S: Scan = Session> {
    session: &'s S,
    low: Bound<Vec<u8>>,
    high: Bound<Vec<u8>>,
    reverse: bool,
    /// Largest number of entries still to be fetched.
    left: usize,
    /// Entries of the next batch.
    batch: usize,
    fetched: std::vec::IntoIter<Entry>,
    /// Error that ends the iteration once the fetched entries are consumed.
    error: Option<Error>,
    /// No entries are left to fetch.
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

    /// Reverses the direction: from the high end down. Call it before the iterator is advanced.
    pub fn reverse(mut self) -> Self {
        self.reverse = !self.reverse;
        self
    }

    /// Limits the iteration to `entries` entries, and does not read beyond them. Call it before the iterator
    /// is advanced.
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
