//! Sessions for integer keys and values.
//!
//! A thin layer over byte strings: a `u64` is stored in big-endian order, in which bytes compare like
//! numbers. It is available for indexes with keys and values of 8 bytes, so every answer has this length. It
//! has all operations of a [`Session`] by the same names; the futures are in `integers_async.rs`.

use std::cell::Cell;
use std::ops::{Bound, RangeBounds};

use pando_dex::{ScanRange, Swapped};
use pando_fabric::VerbCounts;

use super::{Answer, Answers, AsyncIntegerSession, Batch, Range, Session};
use crate::error::Result;
use crate::index::Index;

/// A [`Session`] of an index of `u64` keys and values. Both are stored in big-endian byte order, in which
/// bytes compare like numbers.
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
/// let last = session.range(..2000).reverse().next().transpose()?;
/// assert_eq!(last, Some((1984, 7)));
/// let mut counts = Vec::new();
/// session.multi_get(&[2024, 2025], &mut counts)?;
/// assert_eq!(counts, [Some(1), None]);
/// # Ok::<(), pando::Error>(())
/// ```
pub struct IntegerSession {
    session: Session,
    value: Cell<Vec<u8>>,
    /// Taken by a `multi_get` while it runs.
    pub(super) many: Cell<Many>,
}

/// Buffers of a `multi_get`: keys and answers.
#[derive(Default)]
pub(super) struct Many {
    pub keys: Vec<[u8; 8]>,
    pub answers: Answers,
}

impl Many {
    pub fn ask(&mut self, keys: &[u64]) {
        self.keys.clear();
        self.keys.extend(keys.iter().map(|key| key.to_be_bytes()));
    }

    /// Replaces the contents of `values` by the answers, or by nothing if the lookups failed.
    pub fn answer(&self, is_done: bool, values: &mut Vec<Option<u64>>) {
        values.clear();
        if is_done {
            values.extend(self.answers.iter().map(|value| value.map(integer)));
        }
    }
}

/// Result of a compare-and-swap of integers; the error is the value found instead, `None` if the key is
/// absent.
pub type IntegerSwapped = std::result::Result<(), Option<u64>>;

/// Decodes an integer; the layout guarantees 8 bytes.
#[inline]
pub(super) fn integer(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(*bytes.first_chunk().expect("keys and values of the index have 8 bytes"))
}

pub(super) fn slice(bytes: &Option<[u8; 8]>) -> Option<&[u8]> {
    bytes.as_ref().map(<[u8; 8]>::as_slice)
}

pub(super) fn swapped(swapped: Swapped) -> IntegerSwapped {
    match swapped {
        Swapped::Done => Ok(()),
        Swapped::Found(found) => Err(found.as_deref().map(integer)),
    }
}

/// Encodes the bounds of a range.
pub(super) fn bounds(bounds: &impl RangeBounds<u64>) -> [Bound<[u8; 8]>; 2] {
    [bounds.start_bound(), bounds.end_bound()].map(|bound| bound.map(|key| key.to_be_bytes()))
}

/// The range between encoded bounds, without a limit.
pub(super) fn scan_range([low, high]: &[Bound<[u8; 8]>; 2]) -> ScanRange<'_> {
    let [low, high] = [low, high].map(|bound| bound.as_ref().map(<[u8; 8]>::as_slice));
    ScanRange { low, high, limit: usize::MAX, reverse: false }
}

impl IntegerSession {
    pub(super) fn new(session: Session) -> Self {
        Self { session, value: Cell::new(Vec::with_capacity(8)), many: Cell::default() }
    }

    /// The underlying session for byte strings.
    pub fn bytes(&self) -> &Session {
        &self.session
    }

    /// The index of this session.
    pub fn index(&self) -> &Index {
        self.session.index()
    }

    /// See [`Session::publish`].
    pub fn publish(&self) {
        self.session.publish();
    }

    /// See [`Session::verbs`].
    pub fn verbs(&self) -> VerbCounts {
        self.session.verbs()
    }

    /// See [`Session::get`].
    ///
    /// # Errors
    /// Errors of [`Session::get`].
    #[inline]
    pub fn get(&self, key: u64) -> Result<Option<u64>> {
        let mut value = self.value.take();
        value.clear();
        let found = self.session.get_into(&key.to_be_bytes(), &mut value);
        let answer = found.map(|found| found.then(|| integer(&value)));
        self.value.set(value);
        answer
    }

    /// See [`Session::contains`].
    ///
    /// # Errors
    /// Errors of [`Session::get`].
    #[inline]
    pub fn contains(&self, key: u64) -> Result<bool> {
        Ok(self.get(key)?.is_some())
    }

    /// See [`Session::put`].
    ///
    /// # Errors
    /// Errors of [`Session::put`].
    #[inline]
    pub fn put(&self, key: u64, value: u64) -> Result<bool> {
        self.session.put(&key.to_be_bytes(), &value.to_be_bytes())
    }

    /// See [`Session::insert`].
    ///
    /// # Errors
    /// Errors of [`Session::put`].
    #[inline]
    pub fn insert(&self, key: u64, value: u64) -> Result<bool> {
        self.session.insert(&key.to_be_bytes(), &value.to_be_bytes())
    }

    /// See [`Session::update`].
    ///
    /// # Errors
    /// Errors of [`Session::put`].
    #[inline]
    pub fn update(&self, key: u64, value: u64) -> Result<bool> {
        self.session.update(&key.to_be_bytes(), &value.to_be_bytes())
    }

    /// See [`Session::remove`].
    ///
    /// # Errors
    /// Errors of [`Session::get`].
    #[inline]
    pub fn remove(&self, key: u64) -> Result<bool> {
        self.session.remove(&key.to_be_bytes())
    }

    /// Replaces the value of `key` by `new` if it is `expected`; see [`Session::compare_and_swap`]. Otherwise
    /// returns the value found.
    ///
    /// # Errors
    /// Errors of [`Session::put`].
    pub fn compare_and_swap(
        &self,
        key: u64,
        expected: Option<u64>,
        new: Option<u64>,
    ) -> Result<IntegerSwapped> {
        let (expected, new) = (expected.map(u64::to_be_bytes), new.map(u64::to_be_bytes));
        Ok(swapped(self.session.compare_and_swap(&key.to_be_bytes(), slice(&expected), slice(&new))?))
    }

    /// Looks up all of `keys` concurrently, which overlaps the latencies of memory. Replaces the contents of
    /// `values` by the answers, in the order of the keys.
    ///
    /// # Errors
    /// Errors of [`Session::get`].
    pub fn multi_get(&self, keys: &[u64], values: &mut Vec<Option<u64>>) -> Result<()> {
        let mut many = self.many.take();
        many.ask(keys);
        let done = self.session.multi_get(&many.keys, &mut many.answers);
        many.answer(done.is_ok(), values);
        self.many.set(many);
        done
    }

    /// Passes the entries of a range to `visit`, in ascending order, until it returns `false`. Returns the
    /// number of entries visited. [`IntegerSession::range`] can iterate in descending order.
    ///
    /// # Errors
    /// Errors of [`Session::scan`].
    pub fn scan(
        &self,
        range: impl RangeBounds<u64>,
        mut visit: impl FnMut(u64, u64) -> bool,
    ) -> Result<usize> {
        let visit = |key: &[u8], value: &[u8]| visit(integer(key), integer(value));
        self.session.scan(&scan_range(&bounds(&range)), visit)
    }

    /// See [`Session::range`].
    pub fn range(&self, bounds: impl RangeBounds<u64>) -> IntegerRange<'_> {
        let [low, high] = self::bounds(&bounds).map(|bound| bound.map(|key| key.to_vec()));
        IntegerRange(Range::new(&self.session, low, high))
    }

    /// Iterator over all entries; see [`Session::range`].
    pub fn iter(&self) -> IntegerRange<'_> {
        self.range(..)
    }

    /// Iterator over the entries whose keys have the same highest `bits` bits as `key`: all entries for 0
    /// bits, at most one for 64 or more. So a key can consist of two numbers, and a scan can select those
    /// with a given first number.
    ///
    /// ```
    /// use pando::{Cluster, Config, IndexOptions};
    ///
    /// let cluster = Cluster::open(Config::embedded())?;
    /// let session = cluster.create_index("orders", &IndexOptions::integers())?.integers()?;
    /// let order = |customer: u32, number: u32| u64::from(customer) << 32 | u64::from(number);
    /// for (customer, number) in [(7, 1), (7, 2), (8, 1)] {
    ///     session.put(order(customer, number), 0)?;
    /// }
    /// assert_eq!(session.prefix(order(7, 0), 32).count(), 2);
    /// # Ok::<(), pando::Error>(())
    /// ```
    pub fn prefix(&self, key: u64, bits: u32) -> IntegerRange<'_> {
        let others = u64::MAX.checked_shr(bits).unwrap_or(0);
        self.range(key & !others..=key | others)
    }

    /// A batch of operations; see [`Session::batch`].
    pub fn batch(&self) -> IntegerBatch<'_> {
        IntegerBatch(self.session.batch())
    }

    /// The operations as futures; see [`Session::futures`].
    pub fn futures(&self) -> AsyncIntegerSession<'_> {
        AsyncIntegerSession { session: self }
    }

    /// Runs the futures of `slots` slots concurrently on this thread; see [`Session::in_flight`].
    ///
    /// ```
    /// use pando::{Cluster, Config, IndexOptions};
    ///
    /// let cluster = Cluster::open(Config::embedded())?;
    /// let session = cluster.create_index("n", &IndexOptions::integers())?.integers()?;
    /// let done = session.in_flight(16, |slot, session| async move {
    ///     for n in (u64::from(slot)..1600).step_by(16) {
    ///         session.put(n, n * n).await?;
    ///     }
    ///     Ok::<_, pando::Error>(())
    /// })?;
    /// assert!(done.into_iter().all(|slot| slot.is_ok()));
    /// assert_eq!(session.get(1599)?, Some(1599 * 1599));
    /// # Ok::<(), pando::Error>(())
    /// ```
    ///
    /// # Errors
    /// Errors of [`Session::in_flight`].
    pub fn in_flight<'s, F: Future>(
        &'s self,
        slots: usize,
        mut make: impl FnMut(u32, AsyncIntegerSession<'s>) -> F,
    ) -> Result<Vec<F::Output>> {
        self.session.in_flight(slots, |slot, _| make(slot, self.futures()))
    }
}

impl std::fmt::Debug for IntegerSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IntegerSession").field("index", &self.index().name()).finish_non_exhaustive()
    }
}

/// Answer to an operation of an [`IntegerBatch`]; the variants are those of [`Answer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntegerAnswer {
    Value(Option<u64>),
    Was(bool),
    Swapped(IntegerSwapped),
}

impl From<Answer> for IntegerAnswer {
    fn from(answer: Answer) -> Self {
        match answer {
            Answer::Value(value) => Self::Value(value.as_deref().map(integer)),
            Answer::Was(was) => Self::Was(was),
            Answer::Swapped(done) => Self::Swapped(swapped(done)),
        }
    }
}

/// A [`Batch`] of operations on integers.
#[derive(Debug)]
pub struct IntegerBatch<'s>(Batch<'s>);

impl IntegerBatch<'_> {
    /// See [`Session::get`].
    pub fn get(&mut self, key: u64) -> &mut Self {
        self.0.get(&key.to_be_bytes());
        self
    }

    /// See [`Session::put`].
    pub fn put(&mut self, key: u64, value: u64) -> &mut Self {
        self.0.put(&key.to_be_bytes(), &value.to_be_bytes());
        self
    }

    /// See [`Session::insert`].
    pub fn insert(&mut self, key: u64, value: u64) -> &mut Self {
        self.0.insert(&key.to_be_bytes(), &value.to_be_bytes());
        self
    }

    /// See [`Session::update`].
    pub fn update(&mut self, key: u64, value: u64) -> &mut Self {
        self.0.update(&key.to_be_bytes(), &value.to_be_bytes());
        self
    }

    /// See [`Session::remove`].
    pub fn remove(&mut self, key: u64) -> &mut Self {
        self.0.remove(&key.to_be_bytes());
        self
    }

    /// See [`Session::compare_and_swap`].
    pub fn compare_and_swap(&mut self, key: u64, expected: Option<u64>, new: Option<u64>) -> &mut Self {
        let (expected, new) = (expected.map(u64::to_be_bytes), new.map(u64::to_be_bytes));
        self.0.compare_and_swap(&key.to_be_bytes(), slice(&expected), slice(&new));
        self
    }

    /// Operations added since the last run.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// See [`Batch::run`].
    pub fn run(&mut self) -> Vec<Result<IntegerAnswer>> {
        self.0.run().into_iter().map(|answer| answer.map(IntegerAnswer::from)).collect()
    }
}

/// Iterator over the entries of a range of integers. It ends after an error.
#[derive(Debug)]
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
