//! Rows of a table as fields, column by column, for structures that have columns of their own.
//!
//! An empty field of a CSV or TSV file is NULL; a Parquet file says which values are. Numbers and dates of Parquet
//! have the text that CSV would have. Rows are rejected as for records.

use super::columns::{Column, Content, Header};
use super::{DatasetError, Format, Progress, ReadOptions, Rejected};
use std::fs::File;
use std::io;
use std::path::Path;

/// Produces the rows of one open file.
pub(super) trait FieldSource {
    /// The columns of the file; `None` if it has no row.
    fn header(&self) -> Option<&Header>;

    /// Moves to the next row; returns its line, or in a Parquet file its number.
    fn next_row(&mut self) -> Option<Result<u64, Rejected>>;

    /// A field of the row; `None` is NULL.
    fn field(&self, column: usize) -> Option<&[u8]>;

    fn progress(&self) -> Progress;
}

/// A column of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldColumn {
    /// Its name, or its number from 1 if the file has no names.
    pub name: String,
    pub content: Content,
}

/// Rows of a file and the selected columns.
pub struct FieldRows {
    source: Box<dyn FieldSource>,
    columns: Vec<FieldColumn>,
    /// Place of each selected column in the file.
    places: Vec<usize>,
    ended: bool,
}

/// Opens a file whose rows have fields: CSV, TSV or Parquet. Errors call it `path`. Without `columns`, all are
/// selected. Of `options`, only those about headers and delimiters count.
///
/// # Errors
/// As for [`super::open`]; also a format without fields.
pub fn open_fields(
    file: File,
    path: &Path,
    format: Format,
    columns: &[Column],
    options: &ReadOptions,
) -> Result<FieldRows, DatasetError> {
    let open_error = |error| DatasetError::Open { path: path.to_owned(), error };
    let metadata = file.metadata().map_err(open_error)?;
    if metadata.is_dir() {
        return Err(open_error(io::ErrorKind::IsADirectory.into()));
    }
    let value = if columns.is_empty() { None } else { Some(Vec::new()) };
    let options = ReadOptions { key: columns.to_vec(), value, ..options.clone() };
    let source: Box<dyn FieldSource> = match format {
        Format::Csv | Format::Tsv => {
            let window = super::window::Window::new(file, metadata.len(), options.row_bytes_max);
            let dialect = super::delimited::Dialect::of(format, &options);
            Box::new(super::delimited::Delimited::open(window, dialect, &options)?.0)
        }
        #[cfg(feature = "parquet")]
        Format::Parquet if !metadata.is_file() => {
            return Err(DatasetError::NotAFile { path: path.to_owned() });
        }
        #[cfg(feature = "parquet")]
        Format::Parquet => Box::new(super::parquet::ParquetSource::open(file, path, &options)?.0),
        #[cfg(not(feature = "parquet"))]
        Format::Parquet => return Err(DatasetError::NoParquet),
        Format::Text | Format::Words => return Err(DatasetError::NoFields(format)),
    };
    let Some(header) = source.header() else {
        return Ok(FieldRows { source, columns: Vec::new(), places: Vec::new(), ended: false });
    };
    let places: Vec<usize> = match columns {
        [] => (0..header.columns.len()).collect(),
        columns => columns.iter().map(|column| header.find(column)).collect::<Result<_, _>>()?,
    };
    let column = |&place: &usize| {
        let info = &header.columns[place];
        FieldColumn { name: info.name.clone(), content: info.content }
    };
    let columns = places.iter().map(column).collect();
    Ok(FieldRows { source, columns, places, ended: false })
}

impl FieldRows {
    /// The selected columns; none if the file is empty.
    pub fn columns(&self) -> &[FieldColumn] {
        &self.columns
    }

    /// Moves to the next row; returns its line, or in a Parquet file its number. `None` at the end.
    pub fn next_row(&mut self) -> Option<Result<u64, Rejected>> {
        if self.ended {
            return None;
        }
        let row = self.source.next_row();
        self.ended = row.as_ref().is_none_or(|row| row.as_ref().is_err_and(Rejected::is_fatal));
        row
    }

    /// A field of the row, by the number of the selected column; `None` is NULL.
    pub fn field(&self, column: usize) -> Option<&[u8]> {
        self.source.field(self.places[column])
    }

    /// Progress of reading.
    pub fn progress(&self) -> Progress {
        self.source.progress()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(text: &str, columns: &[&str], header: bool) -> Vec<Result<Vec<Option<String>>, String>> {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("t.csv");
        std::fs::write(&path, text).expect("room");
        let columns: Vec<Column> = columns.iter().map(|column| column.parse().expect("a column")).collect();
        let options = ReadOptions { header, ..ReadOptions::default() };
        let file = File::open(&path).expect("it is there");
        let mut rows = open_fields(file, &path, Format::Csv, &columns, &options).expect("a table");
        let mut all = Vec::new();
        while let Some(row) = rows.next_row() {
            let text = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
            let fields = |_| (0..rows.columns().len()).map(|i| rows.field(i).map(text)).collect();
            all.push(row.map(fields).map_err(|rejected| rejected.to_string()));
        }
        all
    }

    #[test]
    fn columns_are_selected_and_empty_fields_are_null() {
        let text = "a,b,c\n1,,\"x,y\"\n2\n3,4,5\n";
        let some = |text: &str| Some(text.to_owned());
        let short = Err("line 3: 1 fields instead of 3".to_owned());
        let all = [
            Ok(vec![some("1"), None, some("x,y")]),
            short.clone(),
            Ok(vec![some("3"), some("4"), some("5")]),
        ];
        assert_eq!(rows(text, &[], true), all);
        let two = [Ok(vec![some("x,y"), some("1")]), short, Ok(vec![some("5"), some("3")])];
        assert_eq!(rows(text, &["c", "1"], true), two);
        assert_eq!(rows("7,8\n", &[], false), [Ok(vec![some("7"), some("8")])]);
        assert!(rows("", &[], true).is_empty());
    }
}
