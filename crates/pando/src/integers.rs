//! Sessions for integer keys and values.
//!
//! A thin layer over byte strings: `u64` in big-endian order, in which bytes compare as the numbers do. It is
//! offered for indexes whose layout is eight bytes each, so no answer can have another length.

use std::cell::Cell;
use std::ops::{Bound, RangeBounds};

use pando_dex::Swapped;

use crate::error::Result;
use crate::range::Range;
use crate::session::Session;

/// A [`Session`] of an index of `u64` keys and values. Both are kept in big-endian byte order, in which bytes compare
/// as the numbers do.
///
/// ```
/// use pando::{Cluster, Config, IndexOptions};
///
/// let cluster = Cluster::open(Config::embedded())?;
/// let session = cluster.create_index("years", &IndexOptions::integers())?.integers()?;
/// for (year, count) in [(1970, 3), (1984, 7), (2024, 1)] {
///     session.put(year, count)?;
/// }
/// assert_eq!(session.get(1984)?, Some(7));
/// let first = session.range(1980..).next().transpose()?;
/// assert_eq!(first, Some((1984, 7)));
/// # Ok::<(), pando::Error>(())
/// ```
pub struct IntegerSession {
    session: Session,
    value: Cell<Vec<u8>>,
}

/// The integer of bytes that the layout says are eight.
fn integer(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(*bytes.first_chunk().expect("keys and values of the index have 8 bytes"))
}

fn slice(bytes: &Option<[u8; 8]>) -> Option<&[u8]> {
    bytes.as_ref().map(<[u8; 8]>::as_slice)
}

impl IntegerSession {
    pub(crate) fn new(session: Session) -> Self {
        Self { session, value: Cell::new(Vec::with_capacity(8)) }
    }

    /// The same session for byte strings.
    pub fn bytes(&self) -> &Session {
        &self.session
    }

    /// See [`Session::get`].
    ///
    /// # Errors
    /// Those of [`Session::get`].
    #[inline]
    pub fn get(&self, key: u64) -> Result<Option<u64>> {
        let mut value = self.value.take();
        value.clear();
        let found = self.session.get_into(&key.to_be_bytes(), &mut value);
        let answer = found.map(|found| found.then(|| integer(&value)));
        self.value.set(value);
        answer
    }

    /// See [`Session::put`].
    ///
    /// # Errors
    /// Those of [`Session::put`].
    pub fn put(&self, key: u64, value: u64) -> Result<bool> {
        self.session.put(&key.to_be_bytes(), &value.to_be_bytes())
    }

    /// See [`Session::insert`].
    ///
    /// # Errors
    /// Those of [`Session::put`].
    pub fn insert(&self, key: u64, value: u64) -> Result<bool> {
        self.session.insert(&key.to_be_bytes(), &value.to_be_bytes())
    }

    /// See [`Session::update`].
    ///
    /// # Errors
    /// Those of [`Session::put`].
    pub fn update(&self, key: u64, value: u64) -> Result<bool> {
        self.session.update(&key.to_be_bytes(), &value.to_be_bytes())
    }

    /// See [`Session::remove`].
    ///
    /// # Errors
    /// Those of [`Session::get`].
    pub fn remove(&self, key: u64) -> Result<bool> {
        self.session.remove(&key.to_be_bytes())
    }

    /// Stores `new` (removes the key, if that is `None`) if the value is `expected`; what is there instead, if not.
    ///
    /// # Errors
    /// Those of [`Session::put`].
    pub fn compare_and_swap(
        &self,
        key: u64,
        expected: Option<u64>,
        new: Option<u64>,
    ) -> Result<std::result::Result<(), Option<u64>>> {
        let (expected, new) = (expected.map(u64::to_be_bytes), new.map(u64::to_be_bytes));
        let swapped = self.session.compare_and_swap(&key.to_be_bytes(), slice(&expected), slice(&new))?;
        Ok(match swapped {
            Swapped::Done => Ok(()),
            Swapped::Found(found) => Err(found.as_deref().map(integer)),
        })
    }

    /// See [`Session::range`].
    pub fn range(&self, bounds: impl RangeBounds<u64>) -> IntegerRange<'_> {
        let own = |bound: Bound<&u64>| bound.map(|key| key.to_be_bytes().to_vec());
        IntegerRange(Range::new(&self.session, own(bounds.start_bound()), own(bounds.end_bound())))
    }
}

/// Iterator over the entries of a range of integers. An error ends it.
#[must_use = "entries are fetched when the iterator is advanced"]
pub struct IntegerRange<'s>(Range<'s>);

impl IntegerRange<'_> {
    /// See [`Range::reverse`].
    pub fn reverse(self) -> Self {
        Self(self.0.reverse())
    }

    /// See [`Range::limit`].
    pub fn limit(self, entries: usize) -> Self {
        Self(self.0.limit(entries))
    }
}

impl Iterator for IntegerRange<'_> {
    type Item = Result<(u64, u64)>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.0.next()?.map(|(key, value)| (integer(&key), integer(&value))))
    }
}

impl std::iter::FusedIterator for IntegerRange<'_> {}
