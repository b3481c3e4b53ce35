//! Word lists: every line is a key.
//!
//! The value is the line number, or empty. Lines end in LF or CRLF; an empty line is rejected, since an empty
//! word is more likely a mistake than a key.

use super::window::{Cut, Window};
use super::{DatasetError, Progress, ReadOptions, Reason, Record, Rejected, Source, WordValue};

pub(super) struct Words {
    window: Window,
    value: WordValue,
}

impl Words {
    pub fn open(mut window: Window, options: &ReadOptions) -> Result<Words, DatasetError> {
        if !options.key.is_empty() || options.value.is_some() {
            return Err(DatasetError::WordsHaveNoColumns);
        }
        window.skip_byte_order_mark().map_err(DatasetError::BadHeader)?;
        Ok(Words { window, value: options.word_value })
    }
}

impl Source for Words {
    fn next_row(&mut self) -> Option<Result<Record, Rejected>> {
        let (line, word) = self.window.next_row(|window, at_eof| match cut_line(window, at_eof) {
            None => Cut::More,
            Some((word, bytes)) => Cut::Row { row: word.to_vec(), bytes },
        })?;
        let key = word.and_then(|word| if word.is_empty() { Err(Reason::EmptyKey) } else { Ok(word) });
        let value = match self.value {
            WordValue::LineNumber => line.to_string().into_bytes(),
            WordValue::Empty => Vec::new(),
        };
        Some(key.map(|key| Record { key, value }).map_err(|reason| Rejected { line, reason }))
    }

    fn progress(&self) -> Progress {
        self.window.progress()
    }
}

/// The first line without its end, and its length including the end. `None` if it does not end in the window.
pub(super) fn cut_line(window: &[u8], at_eof: bool) -> Option<(&[u8], usize)> {
    let (line, bytes) = match memchr::memchr(b'\n', window) {
        Some(newline) => (&window[..newline], newline + 1),
        None if at_eof => (window, window.len()),
        None => return None,
    };
    Some((line.strip_suffix(b"\r").unwrap_or(line), bytes))
}
