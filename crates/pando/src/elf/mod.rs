//! Elf: tables for conditions on several columns at once.
//!
//! A table has columns of integers, decimals, dates and strings. It is built from rows, and then answers conditions in
//! SQL notation on any of its columns: how many rows meet one, which, and with which values. Rows can be inserted and
//! deleted; each change takes effect as a whole, and a query sees the table before or after it. Every process that is
//! attached to the pool sees the same table. The structure is that of *The Elf Approach* (ICDE 2017); the page is
//! `docs/elf.md`.
//!
//! ```
//! use pando::elf::{Column, ColumnType, ElfBuild, ElfOptions, Schema, Value};
//! use pando::{Cluster, Config};
//!
//! let cluster = Cluster::open(Config::embedded())?;
//! let columns = vec![
//!     Column::new("tree", ColumnType::String),
//!     Column::new("height", ColumnType::Decimal { scale: 1 }).nullable(),
//!     Column::new("planted", ColumnType::Date),
//! ];
//! let mut build = ElfBuild::new(Schema::new(columns)?, &ElfOptions::default())?;
//! for (tree, height, year) in [("aspen", 215, 1961), ("oak", 274, 1904), ("birch", 168, 1988)] {
//!     let height = Value::Decimal { unscaled: height, scale: 1 };
//!     let planted = Value::date(year, 4, 1).expect("a day");
//!     build.push(&[Value::String(tree.into()), height, planted])?;
//! }
//! let trees = cluster.create_elf("trees", &build.finish()?)?;
//!
//! let old = trees.select("planted < date '1970-01-01' and height between 20 and 25.5")?;
//! assert_eq!((old.count()?, old.sorted_ids()?), (1, vec![0]));
//! trees.insert(&[vec![Value::String("rowan".into())], vec![Value::Null], vec![Value::Date(12_000)]])?;
//! assert_eq!(trees.delete("tree in ('oak', 'beech')")?, 1);
//! let rows = trees.select("height is null or height < 20")?.rows(&["tree", "planted"])?;
//! let first: Vec<String> = rows.iter().map(|row| Ok(row?.1[0].to_string())).collect::<pando::Result<_>>()?;
//! assert_eq!(first, ["'birch'", "'rowan'"]);
//! cluster.drop_elf("trees")?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[cfg(feature = "arrow")]
mod arrow;
mod build;
mod rows;
mod spill;

use std::ops::Range;
use std::sync::Arc;

pub use build::{BuiltElf, Cell, ElfBuild, ElfOptions, Order};
pub use pando_elf::{
    Bitmap, Column, ColumnType, EncodedTable, Error as ElfError, LayoutKind, Schema, TableEncoder, Trees,
    Value,
};
pub use pando_elf_remote::{
    Answer, Cost, Explained, MergedParts, PartExplained, PartInfo, TableInfo, TableSpec,
};
pub use rows::Rows;

use pando_elf_remote::{Condition, RemoteError, audit_table, is_elf};
use pando_rt::block_on;

use crate::cluster::Cluster;
use crate::error::{Error, Result};
use crate::index::Registry;
use crate::place::AnyEndpoint;
use crate::shared::Shared;
use crate::table::TableData;

/// Times that a table is checked while others change it.
const CHECKS_MAX: u32 = 8;

/// An Elf table. Clones are the same table; any number of threads may use them.
#[derive(Clone)]
pub struct Elf {
    pub(crate) shared: Arc<Shared>,
    /// Closes the pool with the last handle.
    _registry: Arc<Registry>,
    data: Arc<TableData>,
}

/// Result of [`Elf::check`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ElfReport {
    pub name: String,
    /// `None` if the description of the table is damaged.
    pub info: Option<TableInfo>,
    /// Bytes of its blocks, as far as they were found.
    pub bytes: u64,
    /// One sentence for each violation.
    pub violations: Vec<String>,
}

impl Cluster {
    /// Puts a table that was built into the pool.
    ///
    /// # Errors
    /// [`Error::IndexExists`]; a full pool. Nothing is changed then.
    pub fn create_elf(&self, name: &str, built: &BuiltElf) -> Result<Elf> {
        self.put_elf(name, built, false)
    }

    /// Puts a table that was built into the pool, in the place of an Elf of that name if there is one.
    ///
    /// # Errors
    /// [`Error::NotAnElf`] if it is another kind of index; a full pool. Nothing is changed then.
    pub fn replace_elf(&self, name: &str, built: &BuiltElf) -> Result<Elf> {
        self.put_elf(name, built, true)
    }

    fn put_elf(&self, name: &str, built: &BuiltElf, replace: bool) -> Result<Elf> {
        self.shared.writable()?;
        let elf = self.elf(name)?;
        let trees = built.new_trees();
        let part = Some(built.part(&trees));
        elf.with(async |ep| elf.data.writer.create(ep, built.spec(), part, replace).await)?;
        Ok(elf)
    }

    /// Opens an Elf table.
    ///
    /// # Errors
    /// [`Error::UnknownIndex`] with the names that exist; [`Error::NotAnElf`].
    pub fn open_elf(&self, name: &str) -> Result<Elf> {
        self.shared.check_open()?;
        let record = self.shared.with_endpoint(|ep| self.shared.record(ep, name))?;
        match is_elf(&record) {
            true => self.elf(name),
            false => Err(Error::NotAnElf { name: name.to_owned() }),
        }
    }

    /// Removes an Elf table from the pool and frees all its blocks, some of them when the cluster is closed. Queries
    /// that run meanwhile fail or see the table as it was.
    ///
    /// # Errors
    /// [`Error::UnknownIndex`]; [`Error::NotAnElf`]; [`Error::BadIndex`] if the table was damaged, so that not all of
    /// its blocks could be found: it is removed all the same.
    pub fn drop_elf(&self, name: &str) -> Result<()> {
        self.shared.writable()?;
        let elf = self.open_elf(name)?;
        let is_freed = elf.with(async |ep| elf.data.writer.drop_table(ep).await)?;
        match is_freed {
            true => Ok(()),
            false => {
                let reason = "it was damaged and is dropped, but its memory stays allocated".to_owned();
                Err(Error::BadIndex { name: name.to_owned(), reason })
            }
        }
    }

    /// Names of the Elf tables, in ascending order.
    ///
    /// # Errors
    /// A damaged catalog.
    pub fn elf_names(&self) -> Result<Vec<String>> {
        self.shared.check_open()?;
        self.shared.with_endpoint(|ep| {
            let records = block_on(ep, self.shared.pool.list_indexes(ep))?;
            let elfs = records.into_iter().filter(is_elf);
            let mut names: Vec<String> = elfs.map(|record| record.name).collect();
            names.sort();
            Ok(names)
        })
    }

    fn elf(&self, name: &str) -> Result<Elf> {
        let data = self.registry.tables.get(&self.shared, name)?;
        Ok(Elf { shared: Arc::clone(&self.shared), _registry: Arc::clone(&self.registry), data })
    }
}

impl Elf {
    /// Name of the table.
    pub fn name(&self) -> &str {
        self.data.writer.name()
    }

    /// Columns, layout and parts of the table as it is now.
    ///
    /// # Errors
    /// [`Error::UnknownIndex`] if it was dropped; errors of the fabric.
    pub fn info(&self) -> Result<TableInfo> {
        self.with(async |ep| self.data.reader.description(ep).await)
    }

    /// The columns, from what this process has loaded of the table if that is still current.
    fn schema(&self) -> Result<Schema> {
        Ok(self.with(async |ep| self.data.reader.info(ep).await)?.value.spec.schema)
    }

    /// Prepares a selection of the rows that meet a condition: what stands behind WHERE in SQL.
    ///
    /// # Errors
    /// [`Error::Elf`] with the byte at which the condition is wrong.
    pub fn select(&self, condition: &str) -> Result<Selection> {
        let condition = Condition::sql(condition);
        condition.check(&self.schema()?).map_err(|error| Error::of_elf(self.name(), error))?;
        Ok(Selection { elf: self.clone(), condition })
    }

    /// Prepares a selection of all rows.
    pub fn all(&self) -> Selection {
        Selection { elf: self.clone(), condition: Condition::all() }
    }

    /// Inserts rows with the values `columns[c][row]`, as a whole, and returns their ids.
    ///
    /// # Errors
    /// [`Error::Elf`] for values that do not fit the columns; a full pool. Nothing is changed then.
    pub fn insert(&self, columns: &[Vec<Value>]) -> Result<Range<u64>> {
        let schema = self.schema()?;
        let rows =
            EncodedTable::encode(schema, columns).map_err(|error| Error::of_elf(self.name(), error))?;
        self.insert_encoded(&rows)
    }

    /// Inserts rows that were encoded with the columns of the table, as a whole, and returns their ids.
    ///
    /// # Errors
    /// As for [`Elf::insert`].
    pub fn insert_encoded(&self, rows: &EncodedTable) -> Result<Range<u64>> {
        self.shared.writable()?;
        self.with(async |ep| self.data.writer.insert(ep, rows).await)
    }

    /// Deletes all rows, and returns their number.
    ///
    /// # Errors
    /// As for [`Elf::delete`].
    pub fn delete_all(&self) -> Result<u64> {
        self.delete_where(&Condition::all())
    }

    /// Deletes the rows that meet a condition, all at once, and returns their number.
    ///
    /// # Errors
    /// [`Error::Elf`] with the byte at which the condition is wrong; a full pool. Nothing is changed then.
    pub fn delete(&self, condition: &str) -> Result<u64> {
        self.delete_where(&Condition::sql(condition))
    }

    fn delete_where(&self, condition: &Condition) -> Result<u64> {
        self.shared.writable()?;
        self.with(async |ep| self.data.writer.delete(ep, &self.data.reader, condition).await)
    }

    /// Merges the parts of the table that are due: several of one size, or one of which more than half is deleted.
    /// `None` if there is nothing to do, so the caller goes on until then. Queries and changes go on meanwhile.
    ///
    /// # Errors
    /// A full pool; no memory; [`RemoteError::MergedByOthers`] in [`Error::ElfTable`].
    pub fn merge(&self) -> Result<Option<MergedParts>> {
        self.shared.writable()?;
        self.with(async |ep| self.data.writer.merge(ep, false).await)
    }

    /// Makes one part of all, without deleted rows; `None` if there is nothing to do.
    ///
    /// # Errors
    /// As for [`Elf::merge`].
    pub fn merge_all(&self) -> Result<Option<MergedParts>> {
        self.shared.writable()?;
        self.with(async |ep| self.data.writer.merge(ep, true).await)
    }

    /// Reads all of the table and checks whether everything fits together; again if the table changes meanwhile.
    ///
    /// # Errors
    /// [`Error::UnknownIndex`]; [`RemoteError::KeptChanging`] in [`Error::ElfTable`]; errors of the fabric. Violations
    /// are in the report.
    pub fn check(&self) -> Result<ElfReport> {
        let (shared, name) = (&self.shared, self.name());
        shared.check_open()?;
        shared.with_endpoint(|ep| {
            for _ in 0..CHECKS_MAX {
                let before = shared.record(ep, name)?.version;
                let (report, _) = check(shared, ep, name)?;
                // Bytes of a version that was replaced may be other ones by now.
                if report.violations.is_empty() || shared.record(ep, name)?.version == before {
                    return Ok(report);
                }
            }
            let name = name.to_owned();
            Err(Error::ElfTable(Box::new(RemoteError::KeptChanging { name, times: CHECKS_MAX })))
        })
    }

    /// Runs asynchronous work on an endpoint of its own.
    fn with<T>(&self, work: impl AsyncFnOnce(&AnyEndpoint) -> Result<T, RemoteError>) -> Result<T> {
        self.data.with_endpoint(&self.shared, |ep| match block_on(ep, work(ep)) {
            Ok(value) => Ok(value),
            Err(error) => Err(match Error::of_elf(self.name(), error) {
                Error::UnknownIndex { name, .. } => {
                    Error::UnknownIndex { name, existing: self.shared.names(ep)? }
                }
                error => error,
            }),
        })
    }
}

impl std::fmt::Debug for Elf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Elf").field("name", &self.name()).finish_non_exhaustive()
    }
}

/// Blocks of an index, with their sizes.
pub(crate) type Blocks = Vec<(pando_fabric::GlobalAddr, u64)>;

/// Audits the Elf `name`; returns its blocks, too.
pub(crate) fn check(shared: &Shared, ep: &AnyEndpoint, name: &str) -> Result<(ElfReport, Blocks)> {
    let record = shared.record(ep, name)?;
    if !is_elf(&record) {
        return Err(Error::NotAnElf { name: name.to_owned() });
    }
    let audit = block_on(ep, audit_table(ep, &shared.pool, &record));
    let audit = audit.map_err(|error| Error::of_elf(name, error))?;
    let bytes = audit.blocks.iter().map(|(_, size)| size).sum();
    let report = ElfReport { name: name.to_owned(), info: audit.info, bytes, violations: audit.violations };
    Ok((report, audit.blocks))
}

/// A condition and the table that answers it. Each result is asked for anew, from the table as it is then.
#[derive(Clone, Debug)]
pub struct Selection {
    elf: Elf,
    condition: Condition,
}

impl Selection {
    /// Number of rows.
    ///
    /// # Errors
    /// [`Error::UnknownIndex`] if the table was dropped; [`Error::BadIndex`] if it is damaged; errors of the fabric.
    pub fn count(&self) -> Result<u64> {
        let data = &self.elf.data;
        Ok(self.elf.with(async |ep| data.reader.count(ep, &self.condition).await)?.value)
    }

    /// Ids of the rows, in the order in which they are found.
    ///
    /// # Errors
    /// As for [`Selection::count`].
    pub fn ids(&self) -> Result<Vec<u64>> {
        let data = &self.elf.data;
        Ok(self.elf.with(async |ep| data.reader.ids(ep, &self.condition).await)?.value)
    }

    /// Ids of the rows, ascending.
    ///
    /// # Errors
    /// As for [`Selection::count`].
    pub fn sorted_ids(&self) -> Result<Vec<u64>> {
        let mut ids = self.ids()?;
        ids.sort_unstable();
        Ok(ids)
    }

    /// The rows as a bitmap of row ids.
    ///
    /// # Errors
    /// As for [`Selection::count`].
    pub fn bitmap(&self) -> Result<Bitmap> {
        let data = &self.elf.data;
        Ok(self.elf.with(async |ep| data.reader.bitmap(ep, &self.condition).await)?.value)
    }

    /// The rows with the columns of these names, ascending by id. They are collected in memory: 8 bytes per row, and
    /// 4 for each column of it.
    ///
    /// # Errors
    /// [`Error::Elf`] for a column that the table does not have; otherwise as for [`Selection::count`].
    pub fn rows<S: AsRef<str>>(&self, columns: &[S]) -> Result<Rows> {
        let columns: Vec<&str> = columns.iter().map(AsRef::as_ref).collect();
        self.rows_of(&columns)
    }

    fn rows_of(&self, columns: &[&str]) -> Result<Rows> {
        let schema = self.elf.schema()?;
        let position = |name: &&str| schema.position(name);
        let places: pando_elf::Result<Vec<usize>> = columns.iter().map(position).collect();
        let places = places.map_err(|error| Error::of_elf(self.elf.name(), error))?;
        let data = &self.elf.data;
        let found = self.elf.with(async |ep| data.reader.rows(ep, &self.condition, &places).await)?;
        let columns = places.iter().map(|&column| schema.columns()[column].clone()).collect();
        Ok(Rows::new(self.elf.name(), columns, found.value))
    }

    /// Counts the rows and tells how they were found.
    ///
    /// # Errors
    /// As for [`Selection::count`].
    pub fn explain(&self) -> Result<Answer<Explained>> {
        let data = &self.elf.data;
        self.elf.with(async |ep| data.reader.explain(ep, &self.condition).await)
    }
}
