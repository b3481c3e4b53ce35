//! A file seen through a growing window: rows are cut from its start, and more is read only when a row needs it.
//!
//! So a file of any size, or a pipe, is read in little memory. A row longer than the bound is rejected with
//! its line number, and reading continues behind it.

use super::{Progress, Reason};
use std::fs::File;
use std::io::Read;

const READ_BYTES: usize = 256 << 10;

/// Result of parsing the start of the window.
pub(super) enum Cut<T> {
    /// A row, and its length in bytes.
    Row { row: T, bytes: usize },
    /// No row ends in the window, and the file continues.
    More,
    /// The row is invalid. Reading resumes after its first line.
    Invalid(Reason),
}

pub(super) struct Window<R = File> {
    input: R,
    total: u64,
    /// Maximum length of a row.
    row_bytes_max: usize,
    buffer: Vec<u8>,
    start: usize,
    /// Offset of `start` in the file.
    done: u64,
    at_eof: bool,
    /// Line number of the row at `start`, from 1.
    line: u64,
    /// Set after a line that is too long, whose remainder is skipped before the next row.
    in_long_line: bool,
}

impl<R: Read> Window<R> {
    /// `total` is the length of the input, as far as it is known.
    pub fn new(input: R, total: u64, row_bytes_max: usize) -> Window<R> {
        let buffer = Vec::with_capacity(2 * READ_BYTES);
        let (start, done, at_eof, line, in_long_line) = (0, 0, false, 1, false);
        Window { input, total, row_bytes_max, buffer, start, done, at_eof, line, in_long_line }
    }

    pub fn progress(&self) -> Progress {
        Progress { done: self.done, total: self.total.max(self.done) }
    }

    /// Skips a UTF-8 byte order mark at the start of the file.
    pub fn skip_byte_order_mark(&mut self) -> Result<(), Reason> {
        while self.buffer.len() < 3 && !self.at_eof {
            self.read_more()?;
        }
        if self.buffer.starts_with(b"\xef\xbb\xbf") {
            self.advance(3);
        }
        Ok(())
    }

    /// Parses the next row with `parse`, whose arguments are the window, which is never empty, and whether
    /// the file ends with it. Returns the line on which the row starts; `None` at the end of the file.
    pub fn next_row<T>(
        &mut self,
        mut parse: impl FnMut(&[u8], bool) -> Cut<T>,
    ) -> Option<(u64, Result<T, Reason>)> {
        if let Err(reason) = self.leave_long_line() {
            return Some((self.line, Err(reason)));
        }
        loop {
            let line = self.line;
            let window = &self.buffer[self.start..];
            let cut = if window.is_empty() { Cut::More } else { parse(window, self.at_eof) };
            match cut {
                Cut::Row { row, bytes } => {
                    self.line += memchr::memchr_iter(b'\n', &window[..bytes]).count() as u64;
                    self.advance(bytes);
                    return Some((line, Ok(row)));
                }
                Cut::Invalid(reason) => {
                    self.skip_line();
                    return Some((line, Err(reason)));
                }
                Cut::More if self.at_eof => return None,
                Cut::More if window.len() > self.row_bytes_max => {
                    self.skip_line();
                    return Some((line, Err(Reason::TooLong { max: self.row_bytes_max })));
                }
                Cut::More => {
                    if let Err(reason) = self.read_more() {
                        return Some((line, Err(reason)));
                    }
                }
            }
        }
    }

    fn advance(&mut self, bytes: usize) {
        self.start += bytes;
        self.done += bytes as u64;
    }

    /// Moves to the line after the one at `start`.
    fn skip_line(&mut self) {
        let window = &self.buffer[self.start..];
        let end = memchr::memchr(b'\n', window);
        self.in_long_line = end.is_none();
        self.line += u64::from(end.is_some());
        self.advance(end.map_or(window.len(), |newline| newline + 1));
    }

    fn leave_long_line(&mut self) -> Result<(), Reason> {
        while self.in_long_line {
            if self.start == self.buffer.len() {
                if self.at_eof {
                    break;
                }
                self.read_more()?;
            }
            self.skip_line();
        }
        Ok(())
    }

    /// Reads more input. The amount grows with the current row, so that a long row is parsed only a few
    /// times.
    fn read_more(&mut self) -> Result<(), Reason> {
        self.buffer.drain(..self.start);
        self.start = 0;
        let old = self.buffer.len();
        self.buffer.resize(old + READ_BYTES.max(old), 0);
        let read = loop {
            match self.input.read(&mut self.buffer[old..]) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                result => break result,
            }
        };
        self.buffer.truncate(old + *read.as_ref().unwrap_or(&0));
        match read {
            Ok(bytes) => self.at_eof = bytes == 0,
            Err(error) => return Err(Reason::ReadFailed(error.to_string())),
        }
        Ok(())
    }
}
