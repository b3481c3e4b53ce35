//! Lines in the format of a scan: a key, TAB, a value, both with `\xNN` for bytes that are not plain text.
//!
//! Output of a scan is read back byte for byte. The columns of a composite key are separated by commas. There
//! are no blank lines or byte order marks: every line is an entry, and every character is part of it.

use std::borrow::Cow;

use super::window::{Cut, Window};
use super::words::cut_line;
use super::{Progress, Reason, Record, Rejected, Source};
use crate::key_layout::{ColumnKind, KeyColumn, KeyLayout, parse_int};
use crate::unescape;

pub(super) struct Text {
    window: Window,
    layout: KeyLayout,
}

impl Text {
    pub fn new(window: Window, layout: KeyLayout) -> Text {
        Text { window, layout }
    }

    fn record(&self, line: &[u8]) -> Result<Record, Reason> {
        let tab = memchr::memchr(b'\t', line).ok_or(Reason::NoTab)?;
        let (key, value) = (&line[..tab], &line[tab + 1..]);
        if memchr::memchr(b'\t', value).is_some() {
            return Err(Reason::FieldCount { expected: 2, found: line.split(|&byte| byte == b'\t').count() });
        }
        Ok(Record { key: self.key(key)?, value: unescape(value) })
    }

    fn key(&self, text: &[u8]) -> Result<Vec<u8>, Reason> {
        let kinds = self.layout.columns();
        let columns: Vec<&[u8]> = match kinds {
            [_] => vec![text],
            _ => text.split(|&byte| byte == b',').collect(),
        };
        if columns.len() != kinds.len() {
            return Err(Reason::KeyColumnCount { expected: kinds.len(), found: columns.len() });
        }
        let mut key = Vec::new();
        for (i, (text, kind)) in columns.into_iter().zip(kinds).enumerate() {
            let text = unescape(text);
            let column = match kind {
                ColumnKind::Str => KeyColumn::Str(Cow::Owned(text)),
                ColumnKind::Int => KeyColumn::Int(parse_int(&text).ok_or_else(|| Reason::NotAnInteger {
                    column: (i + 1).to_string(),
                    text: super::columns::excerpt(&text),
                })?),
            };
            self.layout.push(&column, &mut key);
        }
        Ok(key)
    }
}

impl Source for Text {
    fn next_row(&mut self) -> Option<Result<Record, Rejected>> {
        let (line, row) = self.window.next_row(|window, at_eof| match cut_line(window, at_eof) {
            None => Cut::More,
            Some((row, bytes)) => Cut::Row { row: row.to_vec(), bytes },
        })?;
        let record = row.and_then(|row| self.record(&row));
        Some(record.map_err(|reason| Rejected { line, reason }))
    }

    fn progress(&self) -> Progress {
        self.window.progress()
    }
}
