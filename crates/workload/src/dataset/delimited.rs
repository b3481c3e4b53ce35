//! CSV and TSV: rows of fields between delimiters.
//!
//! The parser is strict where guessing would lose data. A parser that is lenient about quotes takes
//! everything from a stray quote to the next one, or to the end of the file, for one field; this one rejects
//! the line.

use super::columns::{Header, Plan, layout_without_columns};
use super::fields::FieldSource;
use super::window::{Cut, Window};
use super::words::cut_line;
use super::{DatasetError, Format, Progress, ReadOptions, Reason, Record, Rejected, Source};
use crate::key_layout::KeyLayout;
use std::collections::VecDeque;

/// The delimiter, and whether fields may be quoted.
#[derive(Clone, Copy)]
pub(super) struct Dialect {
    delimiter: u8,
    quoting: bool,
}

impl Dialect {
    pub fn of(format: Format, options: &ReadOptions) -> Dialect {
        let is_tsv = format == Format::Tsv;
        let own = if is_tsv { b'\t' } else { b',' };
        Dialect { delimiter: options.delimiter.unwrap_or(own), quoting: !is_tsv }
    }
}

/// Fields of a row, concatenated.
#[derive(Default)]
struct Fields {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Fields {
    fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    fn push(&mut self, field: &[u8]) {
        self.bytes.extend_from_slice(field);
        self.end_field();
    }

    fn end_field(&mut self) {
        self.ends.push(self.bytes.len());
    }

    fn len(&self) -> usize {
        self.ends.len()
    }

    fn get(&self, index: usize) -> &[u8] {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.bytes[start..self.ends[index]]
    }
}

pub(super) struct Delimited {
    window: Window,
    dialect: Dialect,
    /// `None` for a file without rows.
    plan: Option<Plan>,
    /// The columns of the file.
    header: Option<Header>,
    fields: Fields,
    /// Without a header row, the first row is read early to count its fields; it and the lines rejected
    /// before it are returned first.
    early: VecDeque<Rejected>,
    first_row: Option<u64>,
}

impl Delimited {
    pub fn open(
        mut window: Window,
        dialect: Dialect,
        options: &ReadOptions,
    ) -> Result<(Delimited, KeyLayout), DatasetError> {
        window.skip_byte_order_mark().map_err(DatasetError::BadHeader)?;
        let (fields, early) = (Fields::default(), VecDeque::new());
        let (plan, header, first_row) = (None, None, None);
        let mut source = Delimited { window, dialect, plan, header, fields, early, first_row };
        if let Some(header) = source.read_header(options.header)? {
            source.plan = Some(Plan::new(&header, &options.key, options.value.as_deref())?);
            source.header = Some(header);
        }
        let layout = match &source.plan {
            Some(plan) => plan.layout.clone(),
            None => layout_without_columns(&options.key),
        };
        Ok((source, layout))
    }

    /// Columns from the header row, or from the width of the first valid row. `None` if there is no such row.
    fn read_header(&mut self, has_names: bool) -> Result<Option<Header>, DatasetError> {
        while let Some((line, row)) = self.read_fields() {
            match row {
                Ok(()) if has_names => {
                    return Ok(Some(Header::named((0..self.fields.len()).map(|i| self.fields.get(i)))));
                }
                Ok(()) => {
                    self.first_row = Some(line);
                    return Ok(Some(Header::unnamed(self.fields.len())));
                }
                Err(reason) if has_names => return Err(DatasetError::BadHeader(reason)),
                Err(reason) => {
                    let rejected = Rejected { line, reason };
                    let is_fatal = rejected.is_fatal();
                    self.early.push_back(rejected);
                    if is_fatal {
                        break;
                    }
                }
            }
        }
        Ok(None)
    }

    /// Reads the next row that is not blank into `fields`.
    fn read_fields(&mut self) -> Option<(u64, Result<(), Reason>)> {
        loop {
            let (fields, dialect) = (&mut self.fields, self.dialect);
            let (line, row) =
                self.window.next_row(|window, at_eof| parse_row(window, at_eof, dialect, fields))?;
            match row {
                Ok(Line::Blank) => {}
                Ok(Line::Fields) => return Some((line, Ok(()))),
                Err(reason) => return Some((line, Err(reason))),
            }
        }
    }

    fn plan(&self) -> &Plan {
        self.plan.as_ref().expect("a file with a row has columns")
    }

    /// Moves to the next row; returns its line.
    fn next_fields(&mut self) -> Option<Result<u64, Rejected>> {
        if let Some(rejected) = self.early.pop_front() {
            return Some(Err(rejected));
        }
        let (line, row) = match self.first_row.take() {
            Some(line) => (line, Ok(())),
            None => self.read_fields()?,
        };
        // A file of which no row could be read has no columns.
        let row = row.and_then(|()| match (self.plan().width, self.fields.len()) {
            (expected, found) if found == expected => Ok(line),
            (expected, found) => Err(Reason::FieldCount { expected, found }),
        });
        Some(row.map_err(|reason| Rejected { line, reason }))
    }
}

impl FieldSource for Delimited {
    fn header(&self) -> Option<&Header> {
        self.header.as_ref()
    }

    fn next_row(&mut self) -> Option<Result<u64, Rejected>> {
        self.next_fields()
    }

    /// An empty field is NULL.
    fn field(&self, column: usize) -> Option<&[u8]> {
        Some(self.fields.get(column)).filter(|field| !field.is_empty())
    }

    fn progress(&self) -> Progress {
        self.window.progress()
    }
}

impl Source for Delimited {
    fn next_row(&mut self) -> Option<Result<Record, Rejected>> {
        let row = self.next_fields()?;
        Some(row.and_then(|line| {
            let record = self.plan().record(|index| self.fields.get(index));
            record.map_err(|reason| Rejected { line, reason })
        }))
    }

    fn progress(&self) -> Progress {
        self.window.progress()
    }
}

#[derive(Debug, PartialEq)]
enum Line {
    Blank,
    Fields,
}

/// Splits the first row of the window into fields.
fn parse_row(window: &[u8], at_eof: bool, dialect: Dialect, fields: &mut Fields) -> Cut<Line> {
    fields.clear();
    let Some((line, bytes)) = cut_line(window, at_eof) else { return Cut::More };
    if line.is_empty() {
        return Cut::Row { row: Line::Blank, bytes };
    }
    if !dialect.quoting || memchr::memchr(b'"', line).is_none() {
        let mut start = 0;
        for end in memchr::memchr_iter(dialect.delimiter, line).chain([line.len()]) {
            fields.push(&line[start..end]);
            start = end + 1;
        }
        return Cut::Row { row: Line::Fields, bytes };
    }
    parse_quoted_row(window, at_eof, dialect.delimiter, fields)
}

/// The same for a row with quotes, whose fields may contain line ends.
fn parse_quoted_row(window: &[u8], at_eof: bool, delimiter: u8, fields: &mut Fields) -> Cut<Line> {
    let mut at = 0;
    loop {
        if window.get(at) == Some(&b'"') {
            match unquote(&window[at + 1..], at_eof, &mut fields.bytes) {
                Unquoted::Closed { bytes } => at += 1 + bytes,
                Unquoted::More => return Cut::More,
                Unquoted::Unclosed => return Cut::Invalid(Reason::UnclosedQuote),
            }
        } else {
            let end = memchr::memchr2(delimiter, b'\n', &window[at..]).map_or(window.len(), |end| at + end);
            if end == window.len() && !at_eof {
                return Cut::More;
            }
            let is_last = window.get(end) != Some(&delimiter);
            let field = &window[at..end];
            let field = if is_last { field.strip_suffix(b"\r").unwrap_or(field) } else { field };
            fields.bytes.extend_from_slice(field);
            at = end;
        }
        match &window[at..] {
            [] | [b'\r'] | [b'\r', b'\n', ..] | [b'\n', ..] if !at_eof && window.len() - at < 2 => {
                return Cut::More;
            }
            [] => return end_row(at, fields),
            [b'\n', ..] | [b'\r'] => return end_row(at + 1, fields),
            [b'\r', b'\n', ..] => return end_row(at + 2, fields),
            [byte, ..] if *byte == delimiter => fields.end_field(),
            _ => return Cut::Invalid(Reason::TextAfterQuote),
        }
        at += 1;
    }
}

fn end_row(bytes: usize, fields: &mut Fields) -> Cut<Line> {
    fields.end_field();
    Cut::Row { row: Line::Fields, bytes }
}

enum Unquoted {
    /// `bytes` were consumed, including the closing quote.
    Closed { bytes: usize },
    /// No closing quote in the window, and the file continues.
    More,
    /// No closing quote in the file.
    Unclosed,
}

/// Appends the text before the closing quote to `field`; two quotes stand for one.
fn unquote(text: &[u8], at_eof: bool, field: &mut Vec<u8>) -> Unquoted {
    let mut at = 0;
    loop {
        let Some(quote) = memchr::memchr(b'"', &text[at..]) else {
            return if at_eof { Unquoted::Unclosed } else { Unquoted::More };
        };
        field.extend_from_slice(&text[at..at + quote]);
        at += quote + 1;
        match text.get(at) {
            Some(b'"') => {
                field.push(b'"');
                at += 1;
            }
            None if !at_eof => return Unquoted::More,
            _ => return Unquoted::Closed { bytes: at },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Read;

    /// Returns one byte per read, so that the window ends once at every position of the input.
    struct ByteByByte<'a>(&'a [u8]);

    impl Read for ByteByByte<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            self.0.read(&mut buffer[..1])
        }
    }

    /// A line number, and the fields or the reason for rejection.
    type Row = (u64, Result<Vec<Vec<u8>>, String>);

    fn rows(input: impl Read, dialect: Dialect) -> Vec<Row> {
        let mut window = Window::new(input, 0, 1 << 20);
        let mut fields = Fields::default();
        let mut found = Vec::new();
        while let Some((line, row)) =
            window.next_row(|window, at_eof| parse_row(window, at_eof, dialect, &mut fields))
        {
            let all = |_| (0..fields.len()).map(|i| fields.get(i).to_vec()).collect();
            found.push((line, row.map(all).map_err(|reason| reason.to_string())));
        }
        found
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        #[test]
        fn rows_do_not_depend_on_where_the_window_ends(
            content in prop::collection::vec(prop::sample::select(b"aaa,,\"\"\"\"\n\n\r".to_vec()), 0..40),
        ) {
            for quoting in [false, true] {
                let dialect = Dialect { delimiter: b',', quoting };
                prop_assert_eq!(rows(ByteByByte(&content), dialect), rows(&content[..], dialect));
            }
        }
    }
}
