//! Entries of an index as a table for other programs: CSV or Parquet, one row per entry.
//!
//! The columns are those of the key (`key`, or `key1`, `key2`, ...) and `value`. Bytes are written as they
//! are, so the reader of [`crate::dataset`] reads the same entries back, except for an empty key, which it
//! rejects.

use std::fmt;
use std::io::{self, Write};

#[cfg(feature = "parquet")]
mod parquet;

use crate::key_layout::{KeyColumn, KeyLayout};

/// Formats of tables, as named on the command line: `csv`, `parquet`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableFormat {
    Csv,
    Parquet,
}

/// Reason why a table cannot be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("the key {key} is not made of the columns {layout}")]
    NotAKey { key: String, layout: String },
    #[error("the Parquet file cannot be written: {0}")]
    Parquet(String),
    #[error("this program was built without support for Parquet; build it with the feature `parquet`")]
    NoParquet,
}

/// Writes a table row by row.
pub struct TableWriter<W: Write + Send> {
    layout: KeyLayout,
    form: Form<W>,
    rows: u64,
}

enum Form<W: Write + Send> {
    Csv(W),
    #[cfg(feature = "parquet")]
    Parquet(Box<parquet::ParquetTable<W>>),
}

impl<W: Write + Send> Form<W> {
    fn end(self) -> Result<W, TableError> {
        match self {
            Self::Csv(out) => Ok(out),
            #[cfg(feature = "parquet")]
            Self::Parquet(table) => table.finish(),
        }
    }
}

impl<W: Write + Send> TableWriter<W> {
    /// # Errors
    /// Errors of `out`; a format without support in this build.
    pub fn begin(out: W, format: TableFormat, layout: &KeyLayout) -> Result<TableWriter<W>, TableError> {
        let names = column_names(layout);
        let form = match format {
            TableFormat::Csv => {
                let mut out = out;
                writeln!(out, "{}", names.join(","))?;
                Form::Csv(out)
            }
            #[cfg(feature = "parquet")]
            TableFormat::Parquet => {
                Form::Parquet(Box::new(parquet::ParquetTable::begin(out, &names, layout)?))
            }
            #[cfg(not(feature = "parquet"))]
            TableFormat::Parquet => return Err(TableError::NoParquet),
        };
        Ok(TableWriter { layout: layout.clone(), form, rows: 0 })
    }

    /// # Errors
    /// [`TableError::NotAKey`]; errors of the output.
    pub fn push(&mut self, key: &[u8], value: &[u8]) -> Result<(), TableError> {
        let columns = self.layout.decode(key).ok_or_else(|| TableError::NotAKey {
            key: crate::escape(key),
            layout: self.layout.to_string(),
        })?;
        match &mut self.form {
            Form::Csv(out) => {
                for column in &columns {
                    match column {
                        KeyColumn::Int(number) => write!(out, "{number}")?,
                        KeyColumn::Str(bytes) => write_field(out, bytes)?,
                    }
                    out.write_all(b",")?;
                }
                write_field(out, value)?;
                out.write_all(b"\n")?;
            }
            #[cfg(feature = "parquet")]
            Form::Parquet(table) => table.push(&columns, value)?,
        }
        self.rows += 1;
        Ok(())
    }

    /// Ends the table; returns the output and the number of rows.
    ///
    /// # Errors
    /// Errors of the output.
    pub fn finish(self) -> Result<(W, u64), TableError> {
        let mut out = self.form.end()?;
        out.flush()?;
        Ok((out, self.rows))
    }
}

impl<W: Write + Send> fmt::Debug for TableWriter<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TableWriter").field("layout", &self.layout).field("rows", &self.rows).finish()
    }
}

fn column_names(layout: &KeyLayout) -> Vec<String> {
    let mut names = match layout.columns().len() {
        1 => vec!["key".to_owned()],
        columns => (1..=columns).map(|column| format!("key{column}")).collect(),
    };
    names.push("value".to_owned());
    names
}

/// Writes a CSV field, quoted if necessary.
fn write_field(out: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    if !bytes.iter().any(|byte| b",\"\r\n".contains(byte)) {
        return out.write_all(bytes);
    }
    out.write_all(b"\"")?;
    for (i, part) in bytes.split(|&byte| byte == b'"').enumerate() {
        if i > 0 {
            out.write_all(b"\"\"")?;
        }
        out.write_all(part)?;
    }
    out.write_all(b"\"")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::{self, Format, ReadOptions, Record};
    use proptest::prelude::*;

    fn came_back(layout: &KeyLayout, format: TableFormat, records: &[Record]) -> Vec<Record> {
        let mut table = TableWriter::begin(Vec::new(), format, layout).expect("memory");
        records.iter().try_for_each(|row| table.push(&row.key, &row.value)).expect("keys of the layout");
        let (bytes, rows) = table.finish().expect("memory");
        assert_eq!(rows, records.len() as u64);
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("table");
        std::fs::write(&path, bytes).expect("room");
        let names = column_names(layout);
        let typed = names.iter().zip(layout.columns()).map(|(name, kind)| match kind {
            crate::ColumnKind::Int => format!("{name}:int"),
            crate::ColumnKind::Str => format!("{name}:str"),
        });
        let key = typed.map(|column| column.parse().expect("a column")).collect();
        let format = match format {
            TableFormat::Csv => Format::Csv,
            TableFormat::Parquet => Format::Parquet,
        };
        let options = ReadOptions { key, ..ReadOptions::default() };
        let read = dataset::open(&path, format, &options).expect("a table");
        read.collect::<Result<_, _>>().expect("valid rows")
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn tables_come_back(
            rows in prop::collection::vec((any::<i64>(), special(), special(), special()), 0..20),
        ) {
            for format in [TableFormat::Csv, TableFormat::Parquet] {
                let plain: KeyLayout = "str".parse().expect("valid");
                let records: Vec<Record> = rows.iter().filter(|row| !row.1.is_empty())
                    .map(|row| Record { key: row.1.clone(), value: row.3.clone() }).collect();
                prop_assert_eq!(came_back(&plain, format, &records), records);
                let two: KeyLayout = "int,str".parse().expect("valid");
                let records: Vec<Record> = rows.iter().map(|(number, text, _, value)| {
                    let key = two.encode(&[KeyColumn::Int(*number), KeyColumn::Str(text.into())]);
                    Record { key, value: value.clone() }
                }).collect();
                prop_assert_eq!(came_back(&two, format, &records), records);
            }
        }
    }

    fn special() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![
            Just(b','),
            Just(b'"'),
            Just(b'\n'),
            Just(b'\r'),
            Just(b'\t'),
            Just(0u8),
            any::<u8>()
        ];
        prop::collection::vec(byte, 0..8)
    }

    #[test]
    fn what_is_no_key_is_refused() {
        let layout: KeyLayout = "int".parse().expect("valid");
        let mut table = TableWriter::begin(Vec::new(), TableFormat::Csv, &layout).expect("memory");
        let error = table.push(b"abc", b"").expect_err("three bytes");
        assert_eq!(error.to_string(), "the key abc is not made of the columns int");
    }
}
