//! The writer's side of a table that changes: inserts, deletes, and merges.
//!
//! The current version is one pointer. A change makes the next version beside it, under a lock that only
//! writers take, and then replaces the pointer: so a batch takes effect as a whole, and readers wait for no
//! more than the exchange of the pointer. Building runs and merging takes no lock. Its result replaces its
//! inputs only if they are still parts of the current version; rows of them that were deleted meanwhile are
//! deleted in the result.

use std::ops::Range;
use std::sync::Arc;

use super::buffer::{join, seal};
use super::merge::merge;
use super::options::{Config, LiveOptions};
use super::part::{Form, Part, Rows};
use super::policy::{RunSize, next_merge};
use super::snapshot::{Snapshot, State};
use super::sync::{Mutex, RwLock, lock, read, write};
use super::tombstones::Tombstones;
use crate::build::check_limits;
use crate::defect::{Defect, defect};
use crate::dictionary::Dictionary;
use crate::elf::Elf;
use crate::encoder::EncodedTable;
use crate::error::{Error, Result};
use crate::predicate::{Filter, Predicate};
use crate::schema::{Schema, Value};
use crate::sort::check_rows;
use crate::table::CodeTable;

/// A table that changes while it is searched: Elf runs and a row buffer.
///
/// A row keeps its id for good, and ids of deleted rows are not used again.
///
/// ```
/// use pando_elf::{BuildOptions, CodeTable, Elf, Interval, LayoutKind, LiveElf, LiveOptions, Predicate};
/// # use std::sync::Arc;
/// let table = Arc::new(CodeTable::new(vec![vec![3, 1, 2], vec![7, 9, 8]])?);
/// let base = Elf::build(&table, &[0, 1], LayoutKind::Columnar, &BuildOptions::default())?.with_table(table)?;
/// let live = LiveElf::new(base, LiveOptions::default())?;
/// let before = live.snapshot();
/// assert_eq!(live.insert(CodeTable::new(vec![vec![2, 5], vec![7, 7]])?)?, 3..5);
/// assert_eq!(live.delete(&[0])?, 1);
/// live.merge_all()?;
/// let sevens = Predicate::all().and(1, [Interval::point(7)]);
/// assert_eq!(live.snapshot().select(&sevens)?.sorted_ids::<u64>()?, [3, 4]);
/// assert_eq!(before.select(&sevens)?.sorted_ids::<u64>()?, [0]);
/// # Ok::<(), pando_elf::Error>(())
/// ```
#[derive(Debug)]
pub struct LiveElf {
    config: Arc<Config>,
    current: RwLock<Arc<State>>,
    /// Held while the next version is made.
    writing: Mutex<()>,
    /// Held while the row buffer becomes a run, so that each row does so once.
    flushing: Mutex<()>,
}

impl LiveElf {
    /// A table of codes that starts with the rows of `base`. Fails if `base` has no table beside it, and if a
    /// bucket of a columnar Elf would have no rows.
    pub fn new(base: Elf, options: LiveOptions) -> Result<Self> {
        Self::start(base, None, Vec::new(), options)
    }

    /// A table of values that starts with the rows of `base`, whose codes are those of `dictionaries`. Fails
    /// like [`new`](Self::new), if there is not one dictionary of the right column per column, and if a code
    /// is not in its dictionary.
    pub fn with_values(
        base: Elf,
        schema: Schema,
        dictionaries: Vec<Dictionary>,
        options: LiveOptions,
    ) -> Result<Self> {
        let columns = base.header().columns;
        for values in [schema.columns().len(), dictionaries.len()] {
            if values != columns {
                return Err(Error::WrongArity { values, columns });
            }
        }
        let table = base.table().ok_or(Error::NoTable)?;
        for (number, (column, dictionary)) in schema.columns().iter().zip(&dictionaries).enumerate() {
            let (name, code, values) = (&column.name, table.maximum(number), dictionary.len());
            if dictionary.column() != column {
                let found = dictionary.column().name.clone();
                return Err(Error::ForeignDictionary { column: name.clone(), found });
            }
            if code as usize > values {
                return Err(Error::UnknownCode { column: name.clone(), code, values });
            }
        }
        Self::start(base, Some(schema), dictionaries, options)
    }

    fn start(
        base: Elf,
        schema: Option<Schema>,
        dictionaries: Vec<Dictionary>,
        options: LiveOptions,
    ) -> Result<Self> {
        if options.build.bucket_rows == 0 {
            return Err(Error::EmptyBucket);
        }
        let table = base.table().ok_or(Error::NoTable)?.clone();
        let config = Arc::new(Config {
            order: base.order().to_vec(),
            layout: base.header().layout,
            gate: base.gate(),
            kernel: base.kernel(),
            schema,
            options,
        });
        let id_bound = table.id_bound();
        let base = Part::new(Rows { table, dictionaries, form: Form::Run(Box::new(base)) });
        let parts = if id_bound == 0 { Vec::new() } else { vec![base] };
        let state = State { config: config.clone(), parts, id_bound };
        Ok(Self {
            config,
            current: RwLock::new(Arc::new(state)),
            writing: Mutex::new(()),
            flushing: Mutex::new(()),
        })
    }

    /// The table as it is now.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot { state: read(&self.current).clone() }
    }

    /// Makes the next version, or leaves the current one if `change` fails.
    fn update<R>(&self, change: impl FnOnce(&mut State) -> Result<R>) -> Result<R> {
        let _writing = lock(&self.writing);
        let mut next = State::clone(&self.snapshot().state);
        let result = change(&mut next)?;
        let former = std::mem::replace(&mut *write(&self.current), Arc::new(next));
        // Its memory is freed when no reader waits for the lock of the pointer.
        drop(former);
        Ok(result)
    }

    /// Inserts a batch of rows, as a whole, and returns their ids. A row buffer that is full becomes a run
    /// before. Fails if the table holds values, if the batch has more or fewer columns, if the layout cannot
    /// hold the codes or ids, and if that run cannot be built; then no row is inserted.
    pub fn insert(&self, codes: CodeTable) -> Result<Range<u64>> {
        self.config.demand_codes()?;
        let columns = self.config.order.len();
        if codes.width() != columns {
            return Err(Error::WrongArity { values: codes.width(), columns });
        }
        self.append(codes, Vec::new())
    }

    /// Inserts a batch of rows with the values `columns[c][row]`, as a whole, and returns their ids. A row
    /// buffer that is full becomes a run before. Fails if the table holds codes, if the values do not fit the
    /// schema, if columns differ in length, if the layout cannot hold the ids, and if that run cannot be built;
    /// then no row is inserted.
    pub fn insert_values(&self, columns: &[Vec<Value>]) -> Result<Range<u64>> {
        let schema = self.config.demand_values()?;
        let EncodedTable { codes, dictionaries, .. } = EncodedTable::encode(schema.clone(), columns)?;
        self.append(codes, dictionaries)
    }

    fn append(&self, codes: CodeTable, dictionaries: Vec<Dictionary>) -> Result<Range<u64>> {
        let full = self.config.options.buffer_rows.max(1);
        if self.snapshot().buffered_rows() >= full {
            self.flush_from(full)?;
        }
        let rows = codes.rows() as u64;
        check_rows(rows)?;
        self.update(|state| {
            let first = state.id_bound;
            let too_large = Error::IdTooLarge { id: u64::MAX, layout: "a table", limit: u64::MAX - 1 };
            let end = first.checked_add(rows).ok_or(too_large)?;
            if rows > 0 {
                let table = Arc::new(codes.with_ids(&(first..end).collect::<Vec<_>>())?);
                check_limits(&table, self.config.layout, self.config.options.build.width)?;
                state.parts.push(Part::new(Rows { table, dictionaries, form: Form::Chunk }));
                state.id_bound = end;
                join(&mut state.parts, self.config.schema.as_ref())?;
            }
            Ok(first..end)
        })
    }

    /// Deletes rows, all at once, and returns how many of them there were. Rows that were deleted before do
    /// not count. Fails if an id was never given to a row; then no row is deleted.
    pub fn delete(&self, ids: &[u64]) -> Result<u64> {
        self.update(|state| match ids.iter().find(|&&id| id >= state.id_bound) {
            Some(&id) => Err(Error::UnknownRow { id, bound: state.id_bound }),
            None => Ok(mark_deleted(state, ids)),
        })
    }

    /// Deletes all rows that meet a predicate over codes, at once, and returns their number. Fails if the
    /// table holds values, and if `predicate` names a column that does not exist; then no row is deleted.
    pub fn delete_where(&self, predicate: &Predicate) -> Result<u64> {
        self.config.demand_codes()?;
        Filter::new(predicate, &self.config.order)?;
        self.delete_encoded(|_| Ok([predicate.clone()]))
    }

    /// Deletes all rows that meet one of the predicates that `encode` makes for the dictionaries of a part,
    /// at once, and returns their number. Fails if the table holds codes, if `encode` does, and if a
    /// predicate names a column that does not exist; then no row is deleted. `encode` runs under the lock of
    /// writers, so it must not change the table.
    pub fn delete_values_where<P: IntoIterator<Item = Predicate>>(
        &self,
        encode: impl Fn(&[Dictionary]) -> Result<P>,
    ) -> Result<u64> {
        self.config.demand_values()?;
        self.delete_encoded(encode)
    }

    fn delete_encoded<P: IntoIterator<Item = Predicate>>(
        &self,
        encode: impl Fn(&[Dictionary]) -> Result<P>,
    ) -> Result<u64> {
        let snapshot = self.snapshot();
        let mut ids = Vec::new();
        snapshot.ids_since(0, &encode, &mut ids)?;
        self.update(|state| {
            // Rows of the snapshot have kept their ids and values. Only new ones are left to be looked at.
            let current = Snapshot { state: Arc::new(state.clone()) };
            current.ids_since(snapshot.id_bound(), &encode, &mut ids)?;
            Ok(mark_deleted(state, &ids))
        })
    }

    /// Makes a run of the row buffer. Fails if that needs more memory than there is; the rows stay in the
    /// buffer then. Inserts, deletes and searches go on meanwhile.
    pub fn flush(&self) -> Result<()> {
        self.flush_from(1)
    }

    /// Makes a run of a buffer that has at least `rows` rows when no other flush is going on.
    fn flush_from(&self, rows: u64) -> Result<()> {
        let _flushing = lock(&self.flushing);
        if self.snapshot().buffered_rows() >= rows {
            self.update(|state| seal(&mut state.parts, self.config.schema.as_ref()))?;
        }
        // A flush that failed has left others.
        let snapshot = self.snapshot();
        let is_sealed = |part: &&Part| matches!(part.rows.form, Form::Sealed);
        for part in snapshot.state.parts.iter().filter(is_sealed) {
            self.rewrite(std::slice::from_ref(part))?;
        }
        Ok(())
    }

    /// Merges the runs that are due by the size-tiered policy: the newest ones as soon as there are
    /// [`fan_in`](LiveOptions::fan_in) of one tier, or one of which more than half is deleted. Returns
    /// whether parts have changed; the caller goes on until nothing does. Inserts, deletes and searches go on
    /// meanwhile. Of two merges of the same runs, the second one is dropped.
    pub fn merge(&self) -> Result<bool> {
        let snapshot = self.snapshot();
        let runs = runs(&snapshot.state.parts);
        let size = |run: &Part| RunSize { rows: run.table().rows() as u64, deleted: run.deleted.count() };
        let sizes: Vec<RunSize> = runs.iter().map(size).collect();
        let LiveOptions { buffer_rows, fan_in, .. } = self.config.options;
        match next_merge(&sizes, buffer_rows, fan_in) {
            Some(due) => self.rewrite(&runs[due]),
            None => Ok(false),
        }
    }

    /// Makes one Elf of the row buffer and all runs, without deleted rows. Returns whether runs were merged:
    /// not if there was nothing to do, or if another merge of the same runs was faster.
    pub fn merge_all(&self) -> Result<bool> {
        self.flush()?;
        let snapshot = self.snapshot();
        let runs = runs(&snapshot.state.parts);
        let is_clean = runs.iter().all(|run| run.deleted.is_empty());
        if runs.len() <= 1 && is_clean { Ok(false) } else { self.rewrite(runs) }
    }

    /// Merges consecutive parts and puts the result into their place. Returns whether they were still there.
    fn rewrite(&self, inputs: &[Part]) -> Result<bool> {
        let merged = merge(inputs, &self.config)?;
        self.update(|state| Ok(replace(state, inputs, merged)))
    }
}

/// The runs at the beginning: behind them, a buffer may be on its way to become one.
fn runs(parts: &[Part]) -> &[Part] {
    let end = parts.iter().position(|part| part.elf().is_none());
    &parts[..end.unwrap_or(parts.len())]
}

/// Marks rows as deleted. Returns the number of those that were not.
fn mark_deleted(state: &mut State, ids: &[u64]) -> u64 {
    let is_new = |&&id: &&u64| {
        let found = state.find(id);
        found.is_some_and(|(at, _)| Arc::make_mut(&mut state.parts[at].deleted).insert(id))
    };
    ids.iter().filter(is_new).count() as u64
}

/// Puts `merged` into the place of `inputs`, with the rows deleted that were deleted since the merge began.
/// Does nothing if a part of them has been replaced.
fn replace(state: &mut State, inputs: &[Part], merged: Option<Rows>) -> bool {
    let is_same = |(part, input): (&Part, &Part)| Arc::ptr_eq(&part.rows, &input.rows);
    let mut places = state.parts.windows(inputs.len());
    let Some(at) = places.position(|parts| parts.iter().zip(inputs).all(is_same)) else { return false };
    let output = merged.map(|rows| {
        let mut deleted = Tombstones::default();
        for (part, input) in state.parts[at..].iter().zip(inputs) {
            let forgets = defect(Defect::ForgottenDeletes);
            part.deleted.since(&input.deleted).filter(|_| !forgets).for_each(|id| {
                deleted.insert(id);
            });
        }
        Part { rows: Arc::new(rows), deleted: Arc::new(deleted) }
    });
    state.parts.splice(at..at + inputs.len(), output);
    true
}
