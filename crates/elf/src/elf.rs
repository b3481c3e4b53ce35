//! An Elf in either layout, with the gate before it.
//!
//! [`Elf::select`] prepares a [`Selection`], which is searched for once for each result that is asked for.
//! Predicates name columns by their number in the table; the Elf knows its column order.

use std::sync::Arc;

use crate::build::{BuildOptions, build_columnar, build_linear, sorted_columnar, sorted_linear, sorted_rows};
use crate::codes::NumberSlice;
use crate::error::{Error, Result};
use crate::gate::{Gate, Method, Output, Query};
use crate::kernel::Kernel;
use crate::layout::{Columnar, ElfLayout, Header, LayoutKind, Linear};
use crate::parallel::ParallelSink;
use crate::predicate::{Filter, Predicate};
use crate::search::{exact, exact_many};
use crate::selection::{Bitmap, Ids, RowId, sort_ids};
use crate::sink::{Count, Sink};
use crate::sort::Sorted;
use crate::spans::IdSpans;
use crate::table::CodeTable;

/// Columns up to which an exact match needs no allocation.
const FEW_COLUMNS: usize = 32;

#[derive(Clone, Debug)]
pub(crate) enum Image<B> {
    Linear(Linear<B>),
    Columnar(Columnar<B>),
}

/// Calls `$body` with `$layout` bound to the layout.
macro_rules! with_layout {
    ($image:expr, $layout:ident => $body:expr) => {
        match $image {
            Image::Linear($layout) => $body,
            Image::Columnar($layout) => $body,
        }
    };
}

/// An Elf over the bytes `B`, and optionally its table for scans.
///
/// ```
/// use pando_elf::{BuildOptions, CodeTable, Elf, Interval, LayoutKind, Predicate};
/// # use std::sync::Arc;
/// let table = Arc::new(CodeTable::new(vec![vec![3, 1, 2, 1], vec![7, 9, 8, 7]])?);
/// let elf = Elf::build(&table, &[0, 1], LayoutKind::Columnar, &BuildOptions::default())?
///     .with_table(table.clone())?;
/// let selection = elf.select(&Predicate::all().and(1, [Interval::new(7, 8)]))?;
/// assert_eq!(selection.count(), 3);
/// assert_eq!(selection.sorted_ids::<u32>()?, [0, 2, 3]);
/// # Ok::<(), pando_elf::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Elf<B = Vec<u8>> {
    image: Image<B>,
    table: Option<Arc<CodeTable>>,
    kernel: Kernel,
    gate: Gate,
    threads: usize,
}

impl Elf {
    /// Builds an Elf whose level `l` is column `order[l]` of `table`. Errors are those of [`build_linear`] and
    /// [`build_columnar`].
    pub fn build(
        table: &CodeTable,
        order: &[usize],
        layout: LayoutKind,
        options: &BuildOptions,
    ) -> Result<Self> {
        Ok(Self::of(match layout {
            LayoutKind::Linear => Image::Linear(build_linear(table, order, options)?),
            LayoutKind::Columnar => Image::Columnar(build_columnar(table, order, options)?),
        }))
    }

    /// Builds a *forest*: up to `trees` Elfs of equally many rows, each of which has the rows of a range in
    /// lexicographic order. So most conditions on the first column concern few of them. Errors are those of
    /// [`build`](Self::build).
    ///
    /// ```
    /// use pando_elf::{BuildOptions, CodeTable, Elf, LayoutKind, Predicate};
    /// let table = CodeTable::new(vec![vec![3, 1, 2, 1], vec![7, 9, 8, 7]])?;
    /// let forest = Elf::build_forest(&table, &[0, 1], LayoutKind::Columnar, &BuildOptions::default(), 2)?;
    /// assert_eq!(forest[0].select(&Predicate::all())?.tree_ids::<u32>()?, [3, 1]);
    /// assert_eq!(forest[1].select(&Predicate::all())?.tree_ids::<u32>()?, [2, 0]);
    /// # Ok::<(), pando_elf::Error>(())
    /// ```
    pub fn build_forest(
        table: &CodeTable,
        order: &[usize],
        layout: LayoutKind,
        options: &BuildOptions,
        trees: usize,
    ) -> Result<Vec<Self>> {
        let sorted = sorted_rows(table, order, layout, options)?;
        let pieces = sorted.divide(trees).into_iter();
        pieces.map(|piece| Self::of_sorted(table, order, &piece, layout, options)).collect()
    }

    /// Does what [`build`](Self::build) does, for rows that are sorted already.
    pub(crate) fn of_sorted(
        table: &CodeTable,
        order: &[usize],
        sorted: &Sorted,
        layout: LayoutKind,
        options: &BuildOptions,
    ) -> Result<Self> {
        Ok(Self::of(match layout {
            LayoutKind::Linear => Image::Linear(sorted_linear(table, order, sorted, options)?),
            LayoutKind::Columnar => Image::Columnar(sorted_columnar(table, order, sorted, options)?),
        }))
    }
}

impl<B: AsRef<[u8]>> Elf<B> {
    fn of(image: Image<B>) -> Self {
        Self { image, table: None, kernel: Kernel::detect(), gate: Gate::default(), threads: 1 }
    }

    /// Opens an image in either layout after verifying it.
    pub fn open(bytes: B) -> Result<Self> {
        Ok(Self::of(match LayoutKind::of(bytes.as_ref())? {
            LayoutKind::Linear => Image::Linear(Linear::open(bytes)?),
            LayoutKind::Columnar => Image::Columnar(Columnar::open(bytes)?),
        }))
    }

    /// Keeps the table that the Elf was built from beside it: the gate scans it for predicates that a walk would
    /// answer more slowly. Fails if it has another number of rows or columns, or ids up to another bound.
    pub fn with_table(mut self, table: Arc<CodeTable>) -> Result<Self> {
        let header = self.header();
        let found = (table.width(), table.rows() as u64, table.id_bound());
        let expected = (header.columns, header.rows, self.id_bound());
        if found != expected {
            let shape = |(columns, rows, bound): (usize, u64, u64)| {
                let ids = if bound == rows { String::new() } else { format!(" with ids below {bound}") };
                format!("{columns} columns of {rows} rows{ids}")
            };
            return Err(Error::ForeignTable { found: shape(found), expected: shape(expected) });
        }
        self.table = Some(table);
        Ok(self)
    }

    /// Uses other costs to choose between a walk and a scan.
    #[must_use]
    pub fn with_gate(mut self, gate: Gate) -> Self {
        self.gate = gate;
        self
    }

    /// Uses the given instructions.
    #[must_use]
    pub fn with_kernel(mut self, kernel: Kernel) -> Self {
        self.kernel = kernel;
        if let Image::Columnar(columnar) = &mut self.image {
            columnar.set_kernel(kernel);
        }
        self
    }

    /// Lets each search have up to `threads` threads, if it is so long that they are worth starting. The results are
    /// the same. Default: 1.
    #[must_use]
    pub fn with_threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    pub fn gate(&self) -> Gate {
        self.gate
    }

    pub fn kernel(&self) -> Kernel {
        self.kernel
    }

    pub fn header(&self) -> &Header {
        with_layout!(&self.image, layout => layout.header())
    }

    /// Column of the table at each level.
    pub fn order(&self) -> &[usize] {
        with_layout!(&self.image, layout => layout.order())
    }

    /// All row ids are below this number; 0 without rows.
    pub fn id_bound(&self) -> u64 {
        with_layout!(&self.image, layout => layout.id_bound())
    }

    /// The table beside the Elf.
    pub fn table(&self) -> Option<&Arc<CodeTable>> {
        self.table.as_ref()
    }

    /// The image.
    pub fn bytes(&self) -> &[u8] {
        with_layout!(&self.image, layout => layout.bytes())
    }

    pub(crate) fn image(&self) -> &Image<B> {
        &self.image
    }

    /// Prepares a selection. Fails if `predicate` names a column that does not exist.
    pub fn select(&self, predicate: &Predicate) -> Result<Selection<'_, B>> {
        let filter = Filter::new(predicate, self.order())?;
        Ok(Selection { elf: self, predicate: predicate.clone(), filter })
    }

    /// Appends the ids of the rows with the given codes, one per column of the table. Fails if there are more or
    /// fewer, or if `T` cannot hold the ids.
    pub fn exact_into<T: RowId>(&self, codes: &[u32], out: &mut Vec<T>) -> Result<()> {
        self.check_arity(codes.len())?;
        let mut ids = self.ids(out)?;
        let order = self.order();
        let (mut few, mut many) = ([0; FEW_COLUMNS], Vec::new());
        let by_level = match few.get_mut(..order.len()) {
            Some(few) => few,
            None => {
                many.resize(order.len(), 0);
                &mut many[..]
            }
        };
        by_level.iter_mut().zip(order).for_each(|(code, &column)| *code = codes[column]);
        with_layout!(&self.image, layout => exact(layout, by_level, &mut ids));
        Ok(())
    }

    /// Does what [`exact_into`](Self::exact_into) does for each of `queries`, and appends the length that `out` has
    /// after each query to `ends`. Many exact matches take much less time together than one by one, since they do not
    /// wait for memory one after the other. Fails if a query has too many or too few codes, or if `T` cannot hold the
    /// ids; then nothing is appended.
    ///
    /// ```
    /// use pando_elf::{BuildOptions, CodeTable, Elf, LayoutKind};
    /// let table = CodeTable::new(vec![vec![3, 1, 3], vec![7, 9, 7]])?;
    /// let elf = Elf::build(&table, &[0, 1], LayoutKind::Columnar, &BuildOptions::default())?;
    /// let (mut ids, mut ends) = (Vec::<u32>::new(), Vec::new());
    /// elf.exact_many_into([[3, 7], [1, 7], [1, 9]], &mut ids, &mut ends)?;
    /// assert_eq!((ids, ends), (vec![0, 2, 1], vec![2, 2, 3]));
    /// # Ok::<(), pando_elf::Error>(())
    /// ```
    pub fn exact_many_into<T: RowId>(
        &self,
        queries: impl IntoIterator<Item = impl AsRef<[u32]>>,
        out: &mut Vec<T>,
        ends: &mut Vec<usize>,
    ) -> Result<()> {
        let order = self.order();
        let mut by_level = Vec::new();
        for query in queries {
            let codes = query.as_ref();
            self.check_arity(codes.len())?;
            by_level.extend(order.iter().map(|&column| codes[column]));
        }
        let before = out.len();
        let mut ids = self.ids(out)?;
        let queries = by_level.chunks_exact(order.len());
        let end = |ids: &mut Ids<'_, T>| ends.push(before + ids.found() as usize);
        with_layout!(&self.image, layout => exact_many(layout, queries, &mut ids, end));
        Ok(())
    }

    fn check_arity(&self, values: usize) -> Result<()> {
        let columns = self.order().len();
        if values == columns { Ok(()) } else { Err(Error::WrongArity { values, columns }) }
    }

    fn ids<'a, T: RowId>(&self, out: &'a mut Vec<T>) -> Result<Ids<'a, T>> {
        Ids::checked(out, self.id_bound(), self.kernel)
    }
}

/// A predicate and the Elf that answers it. Nothing is searched before a result is asked for.
#[derive(Clone, Debug)]
pub struct Selection<'e, B> {
    elf: &'e Elf<B>,
    predicate: Predicate,
    filter: Filter,
}

impl<'e, B: AsRef<[u8]> + Sync> Selection<'e, B> {
    /// Number of matching rows.
    pub fn count(&self) -> u64 {
        let mut count = Count::default();
        self.fill(Output::Count, true, &mut count);
        count.0
    }

    /// Ids of the matching rows, in the order in which they are found: preorder of the Elf after a walk, row order
    /// after a scan. Fails if `T` cannot hold them.
    pub fn ids<T: RowId>(&self) -> Result<Vec<T>> {
        let mut ids = Vec::new();
        self.ids_into(&mut ids)?;
        Ok(ids)
    }

    /// Appends the ids that [`ids`](Self::ids) returns.
    pub fn ids_into<T: RowId>(&self, out: &mut Vec<T>) -> Result<Method> {
        Ok(self.fill(Output::Ids, true, &mut self.elf.ids(out)?))
    }

    /// Does what [`ids`](Self::ids) does without copying the ids of rows that a walk of a columnar image finds without
    /// comparing them. In the calling thread.
    ///
    /// ```
    /// use pando_elf::{BuildOptions, CodeTable, Elf, Interval, LayoutKind, Predicate};
    /// let table = CodeTable::new(vec![vec![3, 1, 2, 1], vec![7, 9, 8, 7]])?;
    /// let elf = Elf::build(&table, &[0, 1], LayoutKind::Columnar, &BuildOptions::default())?;
    /// let spans = elf.select(&Predicate::all().and(0, [Interval::new(1, 2)]))?.spans();
    /// assert_eq!(spans.len(), 3);
    /// assert_eq!(spans.slices().count(), 1);
    /// assert_eq!(spans.iter().collect::<Vec<_>>(), [3, 1, 2]);
    /// # Ok::<(), pando_elf::Error>(())
    /// ```
    pub fn spans(&self) -> IdSpans<'e> {
        let mut spans = IdSpans::of(match &self.elf.image {
            Image::Linear(_) => NumberSlice::Narrow(&[]),
            Image::Columnar(columnar) => columnar.tids(),
        });
        self.run(Output::Ids, &mut spans);
        spans
    }

    /// Ids of the matching rows in preorder of the Elf, without a scan. Fails if `T` cannot hold them.
    pub fn tree_ids<T: RowId>(&self) -> Result<Vec<T>> {
        let mut ids = Vec::new();
        self.fill(Output::Ids, false, &mut self.elf.ids(&mut ids)?);
        Ok(ids)
    }

    /// Ids of the matching rows, ascending. Fails if `T` cannot hold them.
    pub fn sorted_ids<T: RowId>(&self) -> Result<Vec<T>> {
        let mut ids = Vec::new();
        if self.ids_into(&mut ids)? == Method::Walk {
            sort_ids(&mut ids, self.elf.id_bound(), self.elf.kernel);
        }
        Ok(ids)
    }

    /// The matching rows as a bitmap in row order. Fails if it does not fit into memory.
    pub fn bitmap(&self) -> Result<Bitmap> {
        let mut bitmap = Bitmap::of_bound(self.elf.id_bound())?;
        self.fill(Output::Bitmap, true, &mut bitmap);
        Ok(bitmap)
    }

    /// Replaces the contents of a bitmap. Fails if it is shorter than the bound of the ids.
    pub fn bitmap_into(&self, bitmap: &mut Bitmap) -> Result<Method> {
        let bound = self.elf.id_bound();
        if bitmap.len() < bound {
            return Err(Error::BitmapTooShort { found: bitmap.len(), bound });
        }
        bitmap.restart();
        Ok(self.fill(Output::Bitmap, true, bitmap))
    }

    /// Gives `sink` the matching rows, by whatever costs less for that kind of result, in the calling thread.
    pub fn run<S: Sink>(&self, output: Output, sink: &mut S) -> Method {
        self.run_query(self.query(output, true), sink)
    }

    /// Gives `sink` the matching rows in preorder, in the calling thread.
    pub(crate) fn walk<S: Sink>(&self, sink: &mut S) {
        self.run_query(self.query(Output::Ids, false), sink);
    }

    fn run_query<S: Sink>(&self, query: Query<'_>, sink: &mut S) -> Method {
        with_layout!(&self.elf.image, layout => match self.filter.point() {
            Some(codes) => exact_walk(layout, codes, sink),
            None => self.elf.gate.run(layout, query, sink),
        })
    }

    /// Does what [`run`](Self::run) does with the threads of the Elf, and without a scan unless it `may_scan`.
    fn fill<S: ParallelSink>(&self, output: Output, may_scan: bool, sink: &mut S) -> Method {
        let (query, threads) = (self.query(output, may_scan), self.elf.threads);
        if threads <= 1 {
            return self.run_query(query, sink);
        }
        with_layout!(&self.elf.image, layout => match self.filter.point() {
            Some(codes) => exact_walk(layout, codes, sink),
            None => self.elf.gate.run_in_parallel(layout, query, threads, sink),
        })
    }

    fn query(&self, output: Output, may_scan: bool) -> Query<'_> {
        let table = self.elf.table.as_deref().filter(|_| may_scan);
        Query { predicate: &self.predicate, filter: &self.filter, table, kernel: self.elf.kernel, output }
    }
}

fn exact_walk<L: ElfLayout, S: Sink>(layout: &L, codes: &[u32], sink: &mut S) -> Method {
    exact(layout, codes, sink);
    Method::Walk
}
