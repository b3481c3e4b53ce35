//! Selection of the columns that form the key and the value of a row.
//!
//! Columns are named or numbered, and a key column may have a type. The plan is made once, from the header,
//! so that a wrong name is an error before the first row. By default, the value consists of all columns that
//! the key does not use.

use super::{DatasetError, Reason, Record};
use crate::escape::escape_into;
use crate::key_layout::{ColumnKind, KeyColumn, KeyLayout, parse_int};
use std::borrow::Cow;
use std::str::FromStr;

/// A column as named on the command line: `NAME` or `NUMBER` (from 1), optionally with its type in a key,
/// `:int` or `:str`.
///
/// Without a type, a column is a string, except for integer columns of Parquet files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    place: Place,
    kind: Option<ColumnKind>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Name(String),
    /// Counted from 0.
    Index(usize),
}

impl Column {
    /// The column of this name.
    pub fn named(name: impl Into<String>) -> Column {
        Column { place: Place::Name(name.into()), kind: None }
    }
}

impl FromStr for Column {
    type Err = DatasetError;

    fn from_str(text: &str) -> Result<Column, DatasetError> {
        let bad = || DatasetError::BadColumn(text.to_owned());
        let (place, kind) = if let Some(place) = text.strip_suffix(":int") {
            (place, Some(ColumnKind::Int))
        } else if let Some(place) = text.strip_suffix(":str") {
            (place, Some(ColumnKind::Str))
        } else {
            (text, None)
        };
        if place.is_empty() {
            return Err(bad());
        }
        let place = if place.bytes().all(|byte| byte.is_ascii_digit()) {
            let number: usize = place.parse().map_err(|_| bad())?;
            Place::Index(number.checked_sub(1).ok_or_else(bad)?)
        } else {
            Place::Name(place.to_owned())
        };
        Ok(Column { place, kind })
    }
}

/// Name and type of a column of a file.
pub(super) struct ColumnInfo {
    /// Its name, or its number if there are no names.
    pub name: String,
    /// Its type in a key, if the user gives none.
    pub kind: ColumnKind,
    /// What the file says of its values.
    pub content: Content,
}

/// What a file says of the values of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Nothing but their text.
    Text,
    Integer,
    Decimal {
        scale: usize,
    },
    /// Days, written as `1994-01-31`.
    Date,
    /// Floating-point numbers.
    Float,
}

/// The columns of a file.
pub(super) struct Header {
    pub columns: Vec<ColumnInfo>,
    pub has_names: bool,
}

impl Header {
    /// Columns known only by number.
    pub fn unnamed(count: usize) -> Header {
        let column = |i: usize| ColumnInfo {
            name: (i + 1).to_string(),
            kind: ColumnKind::Str,
            content: Content::Text,
        };
        Header { columns: (0..count).map(column).collect(), has_names: false }
    }

    /// String columns with names.
    pub fn named<'a>(names: impl Iterator<Item = &'a [u8]>) -> Header {
        let column = |name| ColumnInfo {
            name: String::from_utf8_lossy(name).into_owned(),
            kind: ColumnKind::Str,
            content: Content::Text,
        };
        Header { columns: names.map(column).collect(), has_names: true }
    }

    /// Number of a column.
    pub fn find(&self, column: &Column) -> Result<usize, DatasetError> {
        let count = self.columns.len();
        let name = match &column.place {
            Place::Index(index) if *index < count => return Ok(*index),
            Place::Index(index) => return Err(DatasetError::NoSuchColumn { number: index + 1, count }),
            Place::Name(name) if !self.has_names => return Err(DatasetError::NoHeader(name.clone())),
            Place::Name(name) => name,
        };
        let mut found = (0..count).filter(|&i| self.columns[i].name == *name);
        match (found.next(), found.next()) {
            (Some(index), None) => Ok(index),
            (Some(_), Some(_)) => Err(DatasetError::AmbiguousColumn(name.clone())),
            (None, _) => {
                let names: Vec<&str> = self.columns.iter().map(|column| column.name.as_str()).collect();
                Err(DatasetError::UnknownColumn { name: name.clone(), columns: names.join(", ") })
            }
        }
    }
}

/// Layout of keys that are plain bytes.
pub(super) fn plain_layout() -> KeyLayout {
    KeyLayout::new(vec![ColumnKind::Str]).expect("one column")
}

/// Layout of the keys of a file without known columns, since it is empty.
pub(super) fn layout_without_columns(key: &[Column]) -> KeyLayout {
    let kinds = key.iter().map(|column| column.kind.unwrap_or(ColumnKind::Str)).collect();
    KeyLayout::new(kinds).unwrap_or_else(|_| plain_layout())
}

/// Columns of keys and values, as found in a file.
pub(super) struct Plan {
    /// Number of columns of a row.
    pub width: usize,
    /// Index and name of each key column.
    pub key: Vec<(usize, String)>,
    pub value: Vec<usize>,
    pub layout: KeyLayout,
}

impl Plan {
    pub fn new(header: &Header, key: &[Column], value: Option<&[Column]>) -> Result<Plan, DatasetError> {
        let first = [Column { place: Place::Index(0), kind: None }];
        let key = if key.is_empty() { &first } else { key };
        let mut kinds = Vec::new();
        let mut found = Vec::new();
        for column in key {
            let index = header.find(column)?;
            kinds.push(column.kind.unwrap_or(header.columns[index].kind));
            found.push((index, header.columns[index].name.clone()));
        }
        let value = match value {
            Some(columns) => columns.iter().map(|column| header.find(column)).collect::<Result<_, _>>()?,
            None => (0..header.columns.len()).filter(|i| found.iter().all(|(key, _)| key != i)).collect(),
        };
        let layout = KeyLayout::new(kinds).expect("a plan has at least one key column");
        Ok(Plan { width: header.columns.len(), key: found, value, layout })
    }

    /// Builds the record of a row, whose fields `field` returns by index.
    pub fn record<'a>(&self, field: impl Fn(usize) -> &'a [u8]) -> Result<Record, Reason> {
        let mut key = Vec::new();
        for ((index, name), kind) in self.key.iter().zip(self.layout.columns()) {
            let text = field(*index);
            let column = match kind {
                ColumnKind::Str => KeyColumn::Str(Cow::Borrowed(text)),
                ColumnKind::Int => KeyColumn::Int(
                    parse_int(text)
                        .ok_or_else(|| Reason::NotAnInteger { column: name.clone(), text: excerpt(text) })?,
                ),
            };
            self.layout.push(&column, &mut key);
        }
        if key.is_empty() {
            return Err(Reason::EmptyKey);
        }
        Ok(Record { key, value: self.value_of(field) })
    }

    fn value_of<'a>(&self, field: impl Fn(usize) -> &'a [u8]) -> Vec<u8> {
        if let [only] = self.value[..] {
            return field(only).to_vec();
        }
        let mut text = String::new();
        for (i, &index) in self.value.iter().enumerate() {
            if i > 0 {
                text.push('\t');
            }
            escape_into(field(index), &mut text);
        }
        text.into_bytes()
    }
}

/// Start of a field, for a message.
pub(super) fn excerpt(text: &[u8]) -> String {
    let escaped = crate::escape(&text[..text.len().min(60)]);
    if text.len() > 60 { escaped + "..." } else { escaped }
}
