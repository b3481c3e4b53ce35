//! Results: the number of matching rows, their ids, or a bitmap of rows.
//!
//! [`Ids`] and [`Bitmap`] are sinks like [`Count`](crate::Count). Ids come in the order in which a search or a
//! scan finds them, a bitmap is in row order.

use crate::codes::NumberSlice;
use crate::defect::{Defect, defect};
use crate::error::{Error, Result};
use crate::kernel::{Kernel, WORD, prefetch_early};
use crate::memory::{defaults, try_defaults};
use crate::parallel::{Filled, ParallelSink};
use crate::sink::{Count, Sink, bits};

/// A row id in a result: `u32` or `u64`.
pub trait RowId: Copy + Ord + Send + Sync + private::Append {}

impl RowId for u32 {}
impl RowId for u64 {}

mod private {
    use super::{Kernel, NumberSlice, bits};

    /// How ids of a type are appended.
    pub trait Append: Sized {
        /// Bound below which the type can hold all ids.
        const ROWS: u64;

        fn from_tid(tid: u64) -> Self;
        fn tid(self) -> u64;
        fn span(tids: NumberSlice<'_>, out: &mut Vec<Self>);
        fn masked(kernel: Kernel, tids: NumberSlice<'_>, mask: u64, out: &mut Vec<Self>);
        fn rows(kernel: Kernel, first: u64, mask: u64, out: &mut Vec<Self>);
    }

    impl Append for u32 {
        const ROWS: u64 = 1 << 32;

        #[inline]
        fn from_tid(tid: u64) -> Self {
            tid as Self
        }

        #[inline]
        fn tid(self) -> u64 {
            self.into()
        }

        #[inline]
        fn span(tids: NumberSlice<'_>, out: &mut Vec<Self>) {
            match tids {
                NumberSlice::Narrow(tids) => out.extend(tids.iter().map(|tid| tid.get())),
                NumberSlice::Wide(tids) => out.extend(tids.iter().map(|tid| tid.get() as Self)),
            }
        }

        #[inline]
        fn masked(kernel: Kernel, tids: NumberSlice<'_>, mask: u64, out: &mut Vec<Self>) {
            match tids {
                NumberSlice::Narrow(tids) => kernel.append(tids, mask, out),
                NumberSlice::Wide(tids) => out.extend(bits(mask).map(|i| tids[i].get() as Self)),
            }
        }

        #[inline]
        fn rows(kernel: Kernel, first: u64, mask: u64, out: &mut Vec<Self>) {
            kernel.append_rows(first as Self, mask, out);
        }
    }

    impl Append for u64 {
        const ROWS: u64 = Self::MAX;

        #[inline]
        fn from_tid(tid: u64) -> Self {
            tid
        }

        #[inline]
        fn tid(self) -> u64 {
            self
        }

        #[inline]
        fn span(tids: NumberSlice<'_>, out: &mut Vec<Self>) {
            out.extend(tids.iter());
        }

        #[inline]
        fn masked(_kernel: Kernel, tids: NumberSlice<'_>, mask: u64, out: &mut Vec<Self>) {
            out.extend(bits(mask).map(|i| tids.get(i)));
        }

        #[inline]
        fn rows(_kernel: Kernel, first: u64, mask: u64, out: &mut Vec<Self>) {
            out.extend(bits(mask).map(|i| first + i as Self));
        }
    }
}

/// Appends row ids to a vector. The ids of the table fit into `T`.
#[derive(Debug)]
pub struct Ids<'a, T> {
    out: &'a mut Vec<T>,
    /// Length of `out` at the beginning.
    from: usize,
    kernel: Kernel,
}

impl<'a, T: RowId> Ids<'a, T> {
    /// Bound below which all ids fit into `T`.
    pub const ROWS: u64 = T::ROWS;

    pub fn new(out: &'a mut Vec<T>, kernel: Kernel) -> Self {
        Self { from: out.len(), out, kernel }
    }

    /// Fails if `T` cannot hold all ids below `bound`.
    pub fn checked(out: &'a mut Vec<T>, bound: u64, kernel: Kernel) -> Result<Self> {
        if bound > Self::ROWS { Err(Error::IdsTooNarrow { bound }) } else { Ok(Self::new(out, kernel)) }
    }
}

impl<T: RowId> Sink for Ids<'_, T> {
    #[inline]
    fn tid(&mut self, tid: u64) {
        self.out.push(T::from_tid(tid));
    }

    #[inline]
    fn span(&mut self, tids: NumberSlice<'_>) {
        T::span(tids, self.out);
    }

    #[inline]
    fn masked(&mut self, tids: NumberSlice<'_>, mask: u64) {
        T::masked(self.kernel, tids, mask, self.out);
    }

    #[inline]
    fn rows(&mut self, first: u64, mask: u64) {
        T::rows(self.kernel, first, mask, self.out);
    }

    fn found(&self) -> u64 {
        (self.out.len() - self.from) as u64
    }

    fn restart(&mut self) {
        self.out.truncate(self.from);
    }
}

/// Ids that one thread has found.
#[derive(Debug)]
pub(crate) struct IdsPart<T> {
    ids: Vec<T>,
    kernel: Kernel,
}

impl<T: RowId> Sink for IdsPart<T> {
    #[inline]
    fn tid(&mut self, tid: u64) {
        self.ids.push(T::from_tid(tid));
    }

    #[inline]
    fn span(&mut self, tids: NumberSlice<'_>) {
        T::span(tids, &mut self.ids);
    }

    #[inline]
    fn masked(&mut self, tids: NumberSlice<'_>, mask: u64) {
        T::masked(self.kernel, tids, mask, &mut self.ids);
    }

    #[inline]
    fn rows(&mut self, first: u64, mask: u64) {
        T::rows(self.kernel, first, mask, &mut self.ids);
    }

    fn found(&self) -> u64 {
        self.ids.len() as u64
    }

    fn restart(&mut self) {
        self.ids.clear();
    }
}

impl<T: RowId> ParallelSink for Ids<'_, T> {
    type Part = IdsPart<T>;

    fn lend(&mut self) -> IdsPart<T> {
        IdsPart { ids: Vec::new(), kernel: self.kernel }
    }

    fn part(&self) -> Option<IdsPart<T>> {
        Some(IdsPart { ids: Vec::new(), kernel: self.kernel })
    }

    fn join(&mut self, filled: Vec<Filled<IdsPart<T>>>) {
        let mut tasks = Vec::new();
        for Filled { part, ends } in &filled {
            let mut start = 0;
            for &(task, end) in ends {
                tasks.push((task, &part.ids[start..end as usize]));
                start = end as usize;
            }
        }
        if !defect(Defect::ThreadOrder) {
            tasks.sort_unstable_by_key(|(task, _)| *task);
        }
        self.out.reserve(tasks.iter().map(|(_, ids)| ids.len()).sum());
        tasks.iter().for_each(|(_, ids)| self.out.extend_from_slice(ids));
    }
}

impl ParallelSink for Count {
    type Part = Self;

    fn lend(&mut self) -> Self {
        Self::default()
    }

    fn part(&self) -> Option<Self> {
        Some(Self::default())
    }

    fn join(&mut self, filled: Vec<Filled<Self>>) {
        self.0 += filled.iter().map(|filled| filled.part.0).sum::<u64>();
    }
}

/// A set of row ids: bit `id % 64` of word `id / 64`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bitmap {
    words: Vec<u64>,
    rows: u64,
    count: u64,
}

impl Bitmap {
    /// The empty set of ids below `rows`.
    pub fn new(rows: u64) -> Self {
        Self { words: defaults(rows.div_ceil(WORD as u64) as usize), rows, count: 0 }
    }

    /// The empty set of ids below `bound`, which an image states. Fails if it does not fit into memory.
    pub fn of_bound(bound: u64) -> Result<Self> {
        let count = bound.div_ceil(WORD as u64);
        let no_memory = Error::NoMemory { bytes: count.saturating_mul(8) };
        let words = try_defaults(usize::try_from(count).unwrap_or(usize::MAX)).map_err(|_| no_memory)?;
        Ok(Self { words, rows: bound, count: 0 })
    }

    /// The words; bits from [`len`](Self::len) on are zero.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// Bound of the ids.
    pub fn len(&self) -> u64 {
        self.rows
    }

    /// Whether no row is in the set.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Number of rows in the set.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Counts the rows of the set, some of which were received more than once.
    pub(crate) fn recount(&mut self) {
        self.count = self.words.iter().map(|word| u64::from(word.count_ones())).sum();
    }

    /// Whether `row` is in the set.
    pub fn contains(&self, row: u64) -> bool {
        self.words.get((row / 64) as usize).is_some_and(|word| word >> (row % 64) & 1 == 1)
    }

    /// Appends the ids of the set, ascending.
    pub fn append_to<T: RowId>(&self, kernel: Kernel, out: &mut Vec<T>) {
        out.reserve(self.count as usize);
        for (word, &mask) in self.words.iter().enumerate().filter(|(_, mask)| **mask != 0) {
            T::rows(kernel, (word * WORD) as u64, mask, out);
        }
    }

    /// Adds `len` rows, of which `tid` gives each. A bitmap that the second cache does not hold is fetched ahead.
    #[inline]
    fn set_all(&mut self, len: usize, tid: impl Fn(usize) -> u64) {
        let words = self.words.as_mut_slice();
        let ahead = if words.len() > NEAR_WORDS { len.saturating_sub(IDS_AHEAD) } else { 0 };
        for i in 0..ahead {
            prefetch_early(words, (tid(i + IDS_AHEAD) / 64) as usize);
            set(words, tid(i));
        }
        for i in ahead..len {
            set(words, tid(i));
        }
        self.count += len as u64;
    }
}

#[inline]
fn set(words: &mut [u64], tid: u64) {
    words[(tid / 64) as usize] |= 1 << (tid % 64);
}

/// Words of a bitmap that stays in the second cache.
const NEAR_WORDS: usize = 1 << 17;
/// Rows between the one whose word is fetched and the one that is added: what the third cache takes to answer, which
/// is less than a slice of ids mostly has.
const IDS_AHEAD: usize = 128;

/// Each row is received once.
impl Sink for Bitmap {
    #[inline]
    fn tid(&mut self, tid: u64) {
        set(&mut self.words, tid);
        self.count += 1;
    }

    #[inline]
    fn span(&mut self, tids: NumberSlice<'_>) {
        match tids {
            NumberSlice::Narrow(tids) => self.set_all(tids.len(), |i| tids[i].get().into()),
            NumberSlice::Wide(tids) => self.set_all(tids.len(), |i| tids[i].get()),
        }
    }

    #[inline]
    fn masked(&mut self, tids: NumberSlice<'_>, mask: u64) {
        bits(mask).for_each(|i| set(&mut self.words, tids.get(i)));
        self.count += u64::from(mask.count_ones());
    }

    #[inline]
    fn rows(&mut self, first: u64, mask: u64) {
        self.words[(first / 64) as usize] |= mask;
        self.count += u64::from(mask.count_ones());
    }

    fn found(&self) -> u64 {
        self.count
    }

    fn restart(&mut self) {
        // Most walks that a scan replaces have found nothing yet, and a bitmap is large.
        if self.count > 0 {
            self.words.fill(0);
        }
        self.count = 0;
    }
}

impl ParallelSink for Bitmap {
    type Part = Self;

    fn lend(&mut self) -> Self {
        std::mem::replace(self, Self::new(0))
    }

    fn part(&self) -> Option<Self> {
        Self::of_bound(self.rows).ok()
    }

    fn join(&mut self, filled: Vec<Filled<Self>>) {
        let mut parts = filled.into_iter().map(|filled| filled.part);
        let Some(own) = parts.next() else { return };
        *self = own;
        for part in parts {
            self.words.iter_mut().zip(&part.words).for_each(|(word, more)| *word |= more);
            self.count += part.count;
        }
    }
}

/// Share of the possible ids from which a bitmap sorts ids faster than comparisons do.
const BITMAP_SHARE: u64 = 512;

/// Sorts ids below `bound`, each of which occurs once.
pub(crate) fn sort_ids<T: RowId>(ids: &mut [T], bound: u64, kernel: Kernel) {
    if (ids.len() as u64) < bound / BITMAP_SHARE {
        return ids.sort_unstable();
    }
    let mut bitmap = Bitmap::new(bound);
    ids.iter().for_each(|id| bitmap.tid(id.tid()));
    let mut sorted = Vec::new();
    bitmap.append_to(kernel, &mut sorted);
    // The image may be from elsewhere and name a row twice; then the bitmap has fewer rows.
    if sorted.len() == ids.len() { ids.copy_from_slice(&sorted) } else { ids.sort_unstable() }
}
