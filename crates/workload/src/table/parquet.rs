//! Tables as Parquet files: integers as INT64, strings and values as BYTE_ARRAY, all of them required.
//!
//! Rows are collected into groups, column by column. Nothing is null, so no column has definition levels. The
//! caller names the columns.

use std::io::Write;
use std::sync::Arc;

use parquet::basic::{Repetition, Type as Physical};
use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::Type;

use super::TableError;
use crate::key_layout::{ColumnKind, KeyColumn, KeyLayout};

/// Maximum rows of a group; `GROUP_BYTES` is the maximum of its bytes.
const GROUP_ROWS: usize = 128 << 10;
const GROUP_BYTES: usize = 32 << 20;

enum Column {
    Int(Vec<i64>),
    Bytes(Vec<ByteArray>),
}

pub(super) struct ParquetTable<W: Write + Send> {
    writer: SerializedFileWriter<W>,
    columns: Vec<Column>,
    rows: usize,
    bytes: usize,
}

impl From<ParquetError> for TableError {
    fn from(error: ParquetError) -> Self {
        Self::Parquet(error.to_string())
    }
}

impl<W: Write + Send> ParquetTable<W> {
    pub fn begin(out: W, names: &[String], layout: &KeyLayout) -> Result<Self, TableError> {
        let kinds = layout.columns().iter().copied().chain([ColumnKind::Str]);
        let (mut fields, mut columns) = (Vec::new(), Vec::new());
        for (name, kind) in names.iter().zip(kinds) {
            let (physical, column) = match kind {
                ColumnKind::Int => (Physical::INT64, Column::Int(Vec::new())),
                ColumnKind::Str => (Physical::BYTE_ARRAY, Column::Bytes(Vec::new())),
            };
            let field = Type::primitive_type_builder(name, physical).with_repetition(Repetition::REQUIRED);
            fields.push(Arc::new(field.build()?));
            columns.push(column);
        }
        let schema = Type::group_type_builder("entries").with_fields(fields).build()?;
        let properties = Arc::new(WriterProperties::builder().build());
        let writer = SerializedFileWriter::new(out, Arc::new(schema), properties)?;
        Ok(Self { writer, columns, rows: 0, bytes: 0 })
    }

    pub fn push(&mut self, key: &[KeyColumn<'_>], value: &[u8]) -> Result<(), TableError> {
        let value = KeyColumn::Str(value.into());
        for (column, field) in self.columns.iter_mut().zip(key.iter().chain([&value])) {
            match (column, field) {
                (Column::Int(numbers), KeyColumn::Int(number)) => numbers.push(*number),
                (Column::Bytes(strings), KeyColumn::Str(bytes)) => {
                    self.bytes += bytes.len();
                    strings.push(ByteArray::from(bytes.to_vec()));
                }
                _ => unreachable!("a key that was decoded has the types of its layout"),
            }
        }
        self.rows += 1;
        if self.rows >= GROUP_ROWS || self.bytes >= GROUP_BYTES { self.end_group() } else { Ok(()) }
    }

    fn end_group(&mut self) -> Result<(), TableError> {
        let mut group = self.writer.next_row_group()?;
        for column in &mut self.columns {
            let mut writer = group.next_column()?.expect("the schema has a column for each");
            match column {
                Column::Int(numbers) => {
                    writer.typed::<Int64Type>().write_batch(numbers, None, None)?;
                    numbers.clear();
                }
                Column::Bytes(strings) => {
                    writer.typed::<ByteArrayType>().write_batch(strings, None, None)?;
                    strings.clear();
                }
            }
            writer.close()?;
        }
        group.close()?;
        (self.rows, self.bytes) = (0, 0);
        Ok(())
    }

    pub fn finish(mut self) -> Result<W, TableError> {
        if self.rows > 0 {
            self.end_group()?;
        }
        Ok(self.writer.into_inner()?)
    }
}
