//! Real data: records from CSV, TSV and Parquet files and from word lists.
//!
//! [`open`] returns an iterator of records. An unusable row is *rejected* with its line number and the
//! reason, and reading continues. A problem with the whole file (it is missing, it has no such column) is one
//! error from [`open`]. The key of a record is built from the key columns according to [`KeyLayout`]. Its
//! value is the bytes of the one value column, several value columns escaped and joined with TAB, or empty.
//!
//! - CSV is read strictly by RFC 4180: a field that starts with a quote must end with one. A quoting error
//!   rejects one line, and reading resumes on the next.
//! - TSV has no quoting: fields are the bytes between TABs.
//! - Blank lines of CSV and TSV files are skipped, and so is a byte order mark. Fields may be any bytes.
//! - In a word list every line is a key.
//! - Text is the output of `pando scan`: key, TAB, value, with `\xNN` for bytes that are not plain text.
//! - Parquet columns must be flat (neither lists nor structures). NULL reads as an empty field.

mod columns;
mod delimited;
mod fields;
#[cfg(feature = "parquet")]
mod parquet;
#[cfg(feature = "parquet")]
mod parquet_text;
mod text;
mod window;
mod words;

use crate::key_layout::KeyLayout;
pub use columns::{Column, Content};
pub use fields::{FieldColumn, FieldRows, open_fields};
use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// File formats, as named on the command line: `csv`, `tsv`, `parquet`, `text`, `words`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Csv,
    Tsv,
    Parquet,
    Text,
    Words,
}

impl Format {
    /// Format implied by a file's extension: `.csv`, `.tsv` (also `.tab`), `.parquet`; `.txt` or none for
    /// words.
    pub fn of_path(path: &Path) -> Option<Format> {
        let Some(extension) = path.extension() else { return Some(Format::Words) };
        match extension.to_ascii_lowercase().to_str()? {
            "csv" => Some(Format::Csv),
            "tsv" | "tab" => Some(Format::Tsv),
            "parquet" | "pq" => Some(Format::Parquet),
            "txt" | "words" => Some(Format::Words),
            _ => None,
        }
    }
}

impl FromStr for Format {
    type Err = DatasetError;

    fn from_str(text: &str) -> Result<Format, DatasetError> {
        match text {
            "csv" => Ok(Format::Csv),
            "tsv" => Ok(Format::Tsv),
            "parquet" => Ok(Format::Parquet),
            "text" => Ok(Format::Text),
            "words" => Ok(Format::Words),
            _ => Err(DatasetError::UnknownFormat(text.to_owned())),
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Format::Csv => "csv",
            Format::Tsv => "tsv",
            Format::Parquet => "parquet",
            Format::Text => "text",
            Format::Words => "words",
        })
    }
}

/// Value of a word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WordValue {
    /// The number of its line, in decimal digits.
    #[default]
    LineNumber,
    /// Nothing.
    Empty,
}

/// Options for reading a file.
#[derive(Clone, Debug)]
pub struct ReadOptions {
    /// Columns of the key, in order. Empty: the first column.
    pub key: Vec<Column>,
    /// Columns of the value, in order. `None`: all columns that are not part of the key.
    pub value: Option<Vec<Column>>,
    /// Whether the first row of a CSV or TSV file names the columns.
    pub header: bool,
    /// Delimiter of fields, if not the format's own.
    pub delimiter: Option<u8>,
    pub word_value: WordValue,
    /// Layout of keys in text files, unless column types are given.
    pub text_keys: Option<KeyLayout>,
    /// Maximum length of a row of a text file in bytes; a longer one is rejected. Bounds the memory for an
    /// unclosed quote.
    pub row_bytes_max: usize,
}

impl Default for ReadOptions {
    fn default() -> ReadOptions {
        ReadOptions {
            key: Vec::new(),
            value: None,
            header: true,
            delimiter: None,
            word_value: WordValue::default(),
            text_keys: None,
            row_bytes_max: 64 << 20,
        }
    }
}

/// One record of a data set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub key: Vec<u8>,
    pub value: Vec<u8>,
}

/// A row that was rejected.
#[derive(Debug, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct Rejected {
    /// The line on which the row starts, counted from 1; in a Parquet file, the row's number.
    pub line: u64,
    pub reason: Reason,
}

/// Reason for rejecting a row.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    #[error("{found} fields instead of {expected}")]
    FieldCount { expected: usize, found: usize },
    #[error("`{text}` in key column `{column}` is not an integer of 64 bits")]
    NotAnInteger { column: String, text: String },
    #[error("the key is empty")]
    EmptyKey,
    #[error("there is no TAB behind a key")]
    NoTab,
    #[error("the key has {found} columns instead of {expected}")]
    KeyColumnCount { expected: usize, found: usize },
    #[error("text follows a closing quote")]
    TextAfterQuote,
    #[error("a quote is not closed")]
    UnclosedQuote,
    #[error("the row is longer than {max} bytes")]
    TooLong { max: usize },
    #[error("column `{column}` has a value that has no text form: {why}")]
    NoTextForm { column: String, why: &'static str },
    /// The file cannot be read any further; no more records follow.
    #[error("reading failed, the rest of the file is lost: {0}")]
    ReadFailed(String),
}

impl Rejected {
    /// Whether this ended the reading, not just a row.
    pub fn is_fatal(&self) -> bool {
        matches!(self.reason, Reason::ReadFailed(_))
    }
}

/// Reason why a file cannot be read at all.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DatasetError {
    #[error("cannot open {path}: {error}", path = path.display())]
    Open { path: PathBuf, error: io::Error },
    #[error("the format `{0}` is not one of `csv`, `tsv`, `parquet`, `text`, `words`")]
    UnknownFormat(String),
    #[error("there is no column `{name}`; the columns are {columns}")]
    UnknownColumn { name: String, columns: String },
    #[error("there is no column {number}; the file has {count} columns")]
    NoSuchColumn { number: usize, count: usize },
    #[error("several columns are named `{0}`; use the number of the one you mean")]
    AmbiguousColumn(String),
    #[error(
        "column `{0}` cannot be found by name in a file without a header row; use its number, counted from 1"
    )]
    NoHeader(String),
    #[error("the header row is not valid: {0}")]
    BadHeader(Reason),
    #[error("`{0}` is not a column: expected a name or a number from 1, and perhaps `:int` or `:str`")]
    BadColumn(String),
    #[error("column `{0}` is a list or a structure; only flat columns can be read")]
    NestedColumn(String),
    #[error("{path} cannot be read as Parquet, which takes more than one pass; write it to a file first", path = path.display())]
    NotAFile { path: PathBuf },
    #[error("a file in the format {0} has no columns; csv, tsv and parquet have")]
    NoFields(Format),
    #[error("a word list has no columns to choose from")]
    WordsHaveNoColumns,
    #[error("{path} is not a valid Parquet file: {why}", path = path.display())]
    NotParquet { path: PathBuf, why: String },
    #[error(
        "this program was built without support for Parquet; give it CSV, or build it with the feature `parquet`"
    )]
    NoParquet,
}

/// Produces the rows of one open file.
trait Source: Send {
    fn next_row(&mut self) -> Option<Result<Record, Rejected>>;
    fn progress(&self) -> Progress;
}

/// Progress of reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of a text file, rows of a Parquet file.
    pub done: u64,
    pub total: u64,
}

/// Rows of a file: records and rejected rows, in file order.
pub struct Records {
    source: Box<dyn Source>,
    layout: KeyLayout,
    ended: bool,
}

impl Records {
    /// Types of the key's columns.
    pub fn key_layout(&self) -> &KeyLayout {
        &self.layout
    }

    /// Progress of reading.
    pub fn progress(&self) -> Progress {
        self.source.progress()
    }
}

impl Iterator for Records {
    type Item = Result<Record, Rejected>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let row = self.source.next_row();
        self.ended = match &row {
            None => true,
            Some(Err(rejected)) => rejected.is_fatal(),
            Some(Ok(_)) => false,
        };
        row
    }
}

impl fmt::Debug for Records {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Records").field("layout", &self.layout).field("progress", &self.progress()).finish()
    }
}

/// Opens a file for reading.
///
/// # Errors
/// The file cannot be opened, its header is invalid, or it lacks a column named by the options. An empty file
/// is not an error: it has no records.
pub fn open(path: &Path, format: Format, options: &ReadOptions) -> Result<Records, DatasetError> {
    let open_error = |error| DatasetError::Open { path: path.to_owned(), error };
    open_file(File::open(path).map_err(open_error)?, path, format, options)
}

/// The same for a file that is already open, such as standard input; errors call it `path`.
///
/// # Errors
/// As for [`open`]; also Parquet from a pipe.
pub fn open_file(
    file: File,
    path: &Path,
    format: Format,
    options: &ReadOptions,
) -> Result<Records, DatasetError> {
    let open_error = |error| DatasetError::Open { path: path.to_owned(), error };
    let metadata = file.metadata().map_err(open_error)?;
    if metadata.is_dir() {
        return Err(open_error(io::ErrorKind::IsADirectory.into()));
    }
    let (source, layout): (Box<dyn Source>, KeyLayout) = match format {
        Format::Csv | Format::Tsv => {
            let window = window::Window::new(file, metadata.len(), options.row_bytes_max);
            let dialect = delimited::Dialect::of(format, options);
            let (source, layout) = delimited::Delimited::open(window, dialect, options)?;
            (Box::new(source), layout)
        }
        Format::Words => {
            let window = window::Window::new(file, metadata.len(), options.row_bytes_max);
            (Box::new(words::Words::open(window, options)?), columns::plain_layout())
        }
        Format::Text => {
            let window = window::Window::new(file, metadata.len(), options.row_bytes_max);
            let layout = match (&options.key[..], &options.text_keys) {
                ([], Some(layout)) => layout.clone(),
                (columns, _) => columns::layout_without_columns(columns),
            };
            (Box::new(text::Text::new(window, layout.clone())), layout)
        }
        #[cfg(feature = "parquet")]
        Format::Parquet if !metadata.is_file() => {
            return Err(DatasetError::NotAFile { path: path.to_owned() });
        }
        #[cfg(feature = "parquet")]
        Format::Parquet => {
            let (source, layout) = parquet::ParquetSource::open(file, path, options)?;
            (Box::new(source), layout)
        }
        #[cfg(not(feature = "parquet"))]
        Format::Parquet => return Err(DatasetError::NoParquet),
    };
    Ok(Records { source, layout, ended: false })
}
