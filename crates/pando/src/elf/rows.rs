//! Rows of a result with the values of some columns.
//!
//! Rows are kept as codes, and values are looked up in the dictionaries of the table's parts when they are asked
//! for.

use pando_elf::{Column, Value};
use pando_elf_remote::PartRows;

use crate::error::{Error, Result};

/// Rows of a table, ascending by id, with the selected columns.
#[derive(Clone, Debug)]
pub struct Rows {
    table: String,
    columns: Vec<Column>,
    pub(crate) parts: Vec<PartRows>,
}

impl Rows {
    pub(super) fn new(table: &str, columns: Vec<Column>, parts: Vec<PartRows>) -> Self {
        Self { table: table.to_owned(), columns, parts }
    }

    #[cfg(feature = "arrow")]
    pub(super) fn table(&self) -> &str {
        &self.table
    }

    /// The selected columns.
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.parts.iter().map(|part| part.ids.len()).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// The rows one after the other: their ids and their values. A damaged table gives [`Error::BadIndex`].
    pub fn iter(&self) -> impl Iterator<Item = Result<(u64, Vec<Value>)>> {
        self.parts.iter().flat_map(move |part| {
            part.ids.iter().enumerate().map(move |(row, &id)| {
                let value = |column| part.value(column, row);
                let values = (0..self.columns.len()).map(value).collect::<pando_elf::Result<_>>();
                Ok((id, values.map_err(|error| Error::of_elf(&self.table, error))?))
            })
        })
    }
}
