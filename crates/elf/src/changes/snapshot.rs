//! A table that changes, as it was at one moment, and selections from it.
//!
//! A snapshot is a list of parts that nothing changes any more. It keeps its answers while inserts, deletes
//! and merges go on, and keeps the memory of its parts. A selection searches the parts one after the other;
//! since their row ids ascend from part to part, results in row order need no merge.

use std::sync::Arc;

use super::buffer::buffered_rows;
use super::options::Config;
use super::part::{Part, PartSelection};
use crate::codes::NumberSlice;
use crate::dictionary::Dictionary;
use crate::elf::Elf;
use crate::error::Result;
use crate::gate::Output;
use crate::kernel::Kernel;
use crate::predicate::{Filter, Predicate};
use crate::schema::Value;
use crate::selection::{Bitmap, Ids, RowId, sort_ids};
use crate::sink::{Count, Sink};

/// One version of a table that changes.
#[derive(Clone, Debug)]
pub(super) struct State {
    pub(super) config: Arc<Config>,
    /// Parts in the order of their row ids.
    pub(super) parts: Vec<Part>,
    /// The id of the next row.
    pub(super) id_bound: u64,
}

impl State {
    /// The part in which the row `id` is or was, and the row's number in its table.
    pub(super) fn find(&self, id: u64) -> Option<(usize, usize)> {
        let at = self.parts.partition_point(|part| part.table().id_bound() <= id);
        Some((at, self.parts.get(at)?.table().row_of(id)?))
    }
}

/// A table as it was when the snapshot was taken.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub(super) state: Arc<State>,
}

impl Snapshot {
    /// Number of rows.
    pub fn rows(&self) -> u64 {
        self.state.parts.iter().map(Part::living).sum()
    }

    /// All row ids are below this number, which is the id of the next row.
    pub fn id_bound(&self) -> u64 {
        self.state.id_bound
    }

    /// The runs, oldest first, with the rows that were deleted since they were built.
    pub fn runs(&self) -> impl Iterator<Item = &Elf> {
        self.state.parts.iter().filter_map(Part::elf)
    }

    /// Rows in the row buffer, deleted ones included.
    pub fn buffered_rows(&self) -> u64 {
        buffered_rows(&self.state.parts)
    }

    /// Prepares a selection by codes. Fails if the table holds values, and if `predicate` names a column that
    /// does not exist.
    pub fn select(&self, predicate: &Predicate) -> Result<LiveSelection<'_>> {
        self.state.config.demand_codes()?;
        Filter::new(predicate, &self.state.config.order)?;
        self.select_encoded(|_| Ok([predicate.clone()]))
    }

    /// Prepares a selection by values. `encode` is called for each part with the part's dictionaries, one per
    /// column, and gives the predicates over their codes of which a row has to meet one. No row may meet two.
    /// Fails if the table holds codes, if `encode` does, and if a predicate names a column that does not
    /// exist.
    pub fn select_values<P: IntoIterator<Item = Predicate>>(
        &self,
        encode: impl Fn(&[Dictionary]) -> Result<P>,
    ) -> Result<LiveSelection<'_>> {
        self.state.config.demand_values()?;
        self.select_encoded(encode)
    }

    fn select_encoded<P: IntoIterator<Item = Predicate>>(
        &self,
        encode: impl Fn(&[Dictionary]) -> Result<P>,
    ) -> Result<LiveSelection<'_>> {
        let select = |part| self.select_part(part, &encode);
        let parts = self.state.parts.iter().map(select).collect::<Result<_>>()?;
        Ok(LiveSelection { snapshot: self, parts })
    }

    fn select_part<'s, P: IntoIterator<Item = Predicate>>(
        &self,
        part: &'s Part,
        encode: impl Fn(&[Dictionary]) -> Result<P>,
    ) -> Result<PartSelection<'s>> {
        part.select(encode(&part.rows.dictionaries)?, self.state.config.kernel)
    }

    /// Adds the ids of matching rows that are in parts with ids from `from` on, perhaps with older ones.
    pub(super) fn ids_since<P: IntoIterator<Item = Predicate>>(
        &self,
        from: u64,
        encode: impl Fn(&[Dictionary]) -> Result<P>,
        ids: &mut Vec<u64>,
    ) -> Result<()> {
        for part in self.state.parts.iter().filter(|part| part.table().id_bound() > from) {
            let parts = vec![self.select_part(part, &encode)?];
            LiveSelection { snapshot: self, parts }.ids_into(ids)?;
        }
        Ok(())
    }

    /// Codes of a row, one per column; `None` if there is no such row. In a table of values each part has its
    /// own codes.
    pub fn codes(&self, id: u64) -> Option<Vec<u32>> {
        let (part, row) = self.living(id)?;
        Some((0..part.table().width()).map(|column| part.table().code(column, row)).collect())
    }

    /// Values of a row, one per column; `None` if there is no such row, or if the table holds codes.
    pub fn values(&self, id: u64) -> Option<Vec<Value>> {
        let (part, row) = self.living(id)?;
        let value = |(column, dictionary): (usize, &Dictionary)| {
            dictionary.value(part.table().code(column, row)).expect("codes of a part are in its dictionaries")
        };
        let dictionaries = &part.rows.dictionaries;
        (!dictionaries.is_empty()).then(|| dictionaries.iter().enumerate().map(value).collect())
    }

    fn living(&self, id: u64) -> Option<(&Part, usize)> {
        let (at, row) = self.state.find(id)?;
        let part = &self.state.parts[at];
        (!part.deleted.contains(id)).then_some((part, row))
    }
}

/// A predicate and the snapshot that answers it. Nothing is searched before a result is asked for.
#[derive(Debug)]
pub struct LiveSelection<'s> {
    snapshot: &'s Snapshot,
    parts: Vec<PartSelection<'s>>,
}

impl LiveSelection<'_> {
    fn kernel(&self) -> Kernel {
        self.snapshot.state.config.kernel
    }

    /// Number of matching rows.
    pub fn count(&self) -> u64 {
        let mut sum = 0;
        for part in &self.parts {
            for search in &part.searches {
                let mut count = Count::default();
                part.run(search, Output::Count, &mut count);
                sum += count.0;
            }
        }
        sum
    }

    /// Ids of the matching rows, part by part, within each in the order in which they are found. Fails if `T`
    /// cannot hold them.
    pub fn ids<T: RowId>(&self) -> Result<Vec<T>> {
        let mut ids = Vec::new();
        self.ids_into(&mut ids)?;
        Ok(ids)
    }

    /// Appends the ids that [`ids`](Self::ids) returns.
    pub fn ids_into<T: RowId>(&self, out: &mut Vec<T>) -> Result<()> {
        self.parts.iter().try_for_each(|part| self.part_ids(part, out))
    }

    fn part_ids<T: RowId>(&self, part: &PartSelection<'_>, out: &mut Vec<T>) -> Result<()> {
        for search in &part.searches {
            let mut ids = Ids::checked(out, self.snapshot.id_bound(), self.kernel())?;
            part.run(search, Output::Ids, &mut ids);
        }
        Ok(())
    }

    /// Ids of the matching rows, ascending. Fails if `T` cannot hold them.
    pub fn sorted_ids<T: RowId>(&self) -> Result<Vec<T>> {
        let mut ids = Vec::new();
        for part in &self.parts {
            let first = ids.len();
            self.part_ids(part, &mut ids)?;
            // A scan has found them in this order.
            if !ids[first..].is_sorted() {
                sort_ids(&mut ids[first..], self.snapshot.id_bound(), self.kernel());
            }
        }
        Ok(ids)
    }

    /// The matching rows as a bitmap of row ids. Fails if it does not fit into memory.
    pub fn bitmap(&self) -> Result<Bitmap> {
        let mut bitmap = Bitmap::of_bound(self.snapshot.id_bound())?;
        for part in &self.parts {
            for search in &part.searches {
                let before = bitmap.count();
                part.run(search, Output::Bitmap, &mut Union { bitmap: &mut bitmap, before });
            }
        }
        bitmap.recount();
        Ok(bitmap)
    }
}

/// Adds the rows of one search to a bitmap that has those of others.
struct Union<'b> {
    bitmap: &'b mut Bitmap,
    /// Count of the bitmap at the beginning of the search.
    before: u64,
}

impl Sink for Union<'_> {
    #[inline]
    fn tid(&mut self, tid: u64) {
        self.bitmap.tid(tid);
    }

    #[inline]
    fn span(&mut self, tids: NumberSlice<'_>) {
        self.bitmap.span(tids);
    }

    #[inline]
    fn masked(&mut self, tids: NumberSlice<'_>, mask: u64) {
        self.bitmap.masked(tids, mask);
    }

    #[inline]
    fn rows(&mut self, first: u64, mask: u64) {
        self.bitmap.rows(first, mask);
    }

    fn found(&self) -> u64 {
        self.bitmap.count() - self.before
    }

    /// A search that restarts finds the same rows again, so they may stay.
    fn restart(&mut self) {
        self.before = self.bitmap.count();
    }
}
