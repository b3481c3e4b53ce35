//! Bytes of dictionaries and of deleted rows, for tables that are kept outside of this process.
//!
//! ```text
//! dictionary     count | 4, 8 or 16 | numbers of as many bytes
//!                count | 0 | length and bytes of each string
//! deleted rows   for each page: number u64 | 512 words of bits
//! ```
//! Counts and lengths are variable-length integers of seven bits a byte, the lowest first; everything else is
//! little-endian. Whatever the bytes are, reading them gives a dictionary whose values ascend, or an error.

use crate::changes::Tombstones;
use crate::dictionary::{Dictionary, Distinct};
use crate::error::{Error, Result};
use crate::schema::{Column, ColumnType};

const DICTIONARY: &str = "dictionary";

fn damaged(what: &'static str, reason: &'static str) -> Error {
    Error::DamagedTable { what, reason }
}

fn put_count(mut count: u64, out: &mut Vec<u8>) {
    while count >= 0x80 {
        out.push(count as u8 | 0x80);
        count >>= 7;
    }
    out.push(count as u8);
}

/// Reads a count at the beginning of `bytes`, which then begin behind it.
fn take_count(bytes: &mut &[u8]) -> Option<u64> {
    let mut count = 0_u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        count |= u64::from(byte & 0x7f).checked_shl(shift)?;
        if byte & 0x80 == 0 {
            return Some(count);
        }
    }
    None
}

/// Bytes that each of the numbers needs.
fn width_of(numbers: &[i128]) -> usize {
    let fits = |low: i128, high: i128| {
        numbers.first().is_none_or(|first| low <= *first) && numbers.last().is_none_or(|last| *last <= high)
    };
    match () {
        () if fits(i32::MIN.into(), i32::MAX.into()) => 4,
        () if fits(i64::MIN.into(), i64::MAX.into()) => 8,
        () => 16,
    }
}

fn number(bytes: &[u8]) -> i128 {
    match *bytes {
        [a, b, c, d] => i32::from_le_bytes([a, b, c, d]).into(),
        [a, b, c, d, e, f, g, h] => i64::from_le_bytes([a, b, c, d, e, f, g, h]).into(),
        _ => i128::from_le_bytes(bytes.try_into().expect("numbers have 4, 8 or 16 bytes")),
    }
}

impl Dictionary {
    /// The values as bytes; the column is not among them.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_count(self.len() as u64, &mut out);
        match self.distinct() {
            Distinct::Numbers(numbers) => {
                let width = width_of(numbers);
                out.push(width as u8);
                numbers.iter().for_each(|number| out.extend_from_slice(&number.to_le_bytes()[..width]));
            }
            Distinct::Strings(strings) => {
                out.push(0);
                for string in strings {
                    put_count(string.len() as u64, &mut out);
                    out.extend_from_slice(string.as_bytes());
                }
            }
        }
        out
    }

    /// The dictionary of `column` with the values in `bytes`. Fails if they are no values of the column that
    /// ascend.
    pub fn of_bytes(column: &Column, bytes: &[u8]) -> Result<Self> {
        let ends = || damaged(DICTIONARY, "it ends too early");
        let mut rest = bytes;
        let count = take_count(&mut rest).ok_or_else(ends)?;
        let (&width, rest) = rest.split_first().ok_or_else(ends)?;
        let distinct = match (column.kind, width) {
            (ColumnType::String, 0) => Distinct::Strings(strings(count, rest)?),
            (ColumnType::String, _) | (_, 0) => {
                return Err(damaged(DICTIONARY, "its values are not of the column's type"));
            }
            (_, 4 | 8 | 16) => Distinct::Numbers(numbers(column, count, usize::from(width), rest)?),
            _ => return Err(damaged(DICTIONARY, "its numbers have an impossible width")),
        };
        Ok(Self::of(column.clone(), distinct))
    }
}

fn numbers(column: &Column, count: u64, width: usize, bytes: &[u8]) -> Result<Vec<i128>> {
    if u32::try_from(count).is_err() || bytes.len() as u64 != count * width as u64 {
        return Err(damaged(DICTIONARY, "it has another length than it says"));
    }
    let numbers: Vec<i128> = bytes.chunks_exact(width).map(number).collect();
    let is_of_type = |number: &i128| match column.kind {
        ColumnType::Integer => i64::try_from(*number).is_ok(),
        ColumnType::Date => i32::try_from(*number).is_ok(),
        ColumnType::Decimal { .. } | ColumnType::String => true,
    };
    match numbers.is_sorted_by(|a, b| a < b) && numbers.iter().all(is_of_type) {
        true => Ok(numbers),
        false => Err(damaged(DICTIONARY, "its numbers do not ascend, or are too large for the column")),
    }
}

fn strings(count: u64, mut bytes: &[u8]) -> Result<Vec<Box<str>>> {
    let ends = || damaged(DICTIONARY, "it has another length than it says");
    // Each string takes a byte at least.
    if u32::try_from(count).is_err() || count > bytes.len() as u64 {
        return Err(ends());
    }
    let mut strings: Vec<Box<str>> = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let len = take_count(&mut bytes).and_then(|len| usize::try_from(len).ok());
        let (string, rest) = len.and_then(|len| bytes.split_at_checked(len)).ok_or_else(ends)?;
        let string = str::from_utf8(string).map_err(|_| damaged(DICTIONARY, "a string is not UTF-8"))?;
        if strings.last().is_some_and(|last| **last >= *string) {
            return Err(damaged(DICTIONARY, "its strings do not ascend"));
        }
        strings.push(string.into());
        bytes = rest;
    }
    if bytes.is_empty() { Ok(strings) } else { Err(ends()) }
}

impl Tombstones {
    /// The set as bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for (number, words) in self.pages() {
            out.extend_from_slice(&number.to_le_bytes());
            words.iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
        }
        out
    }

    /// The set in `bytes`. Fails if they are not pages that ascend.
    pub fn of_bytes(bytes: &[u8]) -> Result<Self> {
        let what = "set of deleted rows";
        let (words, rest) = bytes.as_chunks::<8>();
        let words: Vec<u64> = words.iter().map(|&word| u64::from_le_bytes(word)).collect();
        if !rest.is_empty() || !words.len().is_multiple_of(1 + Self::PAGE_WORDS) {
            return Err(damaged(what, "it does not have whole pages"));
        }
        let pages = words.chunks_exact(1 + Self::PAGE_WORDS);
        let pages = pages.map(|page| (page[0], page[1..].try_into().expect("the chunk has a page's words")));
        Self::of_pages(pages).ok_or_else(|| damaged(what, "its pages do not ascend"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::Value;
    use proptest::prelude::*;

    fn columns() -> [Column; 4] {
        let kinds =
            [ColumnType::Integer, ColumnType::Decimal { scale: 2 }, ColumnType::Date, ColumnType::String];
        kinds.map(|kind| Column::new("c", kind).nullable())
    }

    fn value(kind: ColumnType, number: i128) -> Value {
        match kind {
            ColumnType::Integer => Value::Integer(number as i64),
            ColumnType::Decimal { scale } => Value::Decimal { unscaled: number, scale },
            ColumnType::Date => Value::Date(number as i32),
            ColumnType::String => Value::String(format!("{number:x}\0ä")),
        }
    }

    proptest! {
        #[test]
        fn dictionaries_come_back(
            numbers in prop::collection::vec(any::<i128>(), 0..40),
            shift in 0..127_u32,
        ) {
            for column in columns() {
                let values: Vec<Value> = numbers.iter().map(|n| value(column.kind, n >> shift)).collect();
                let dictionary = Dictionary::new(&column, values.iter()).expect("values of the type");
                prop_assert_eq!(Dictionary::of_bytes(&column, &dictionary.to_bytes()), Ok(dictionary));
            }
        }

        #[test]
        fn wrong_bytes_are_an_error_or_a_dictionary(bytes in prop::collection::vec(0..40_u8, 0..60)) {
            for column in columns() {
                if let Ok(dictionary) = Dictionary::of_bytes(&column, &bytes) {
                    let all = (1..=dictionary.len() as u32).map(|code| dictionary.value(code).expect("a code"));
                    let again = Dictionary::new(&column, all.collect::<Vec<_>>().iter());
                    prop_assert_eq!(again, Ok(dictionary));
                }
            }
        }

        #[test]
        fn deleted_rows_come_back(ids in prop::collection::btree_set(0..1_u64 << 20, 0..50)) {
            let mut deleted = Tombstones::default();
            ids.iter().for_each(|&id| assert!(deleted.insert(id)));
            let back = Tombstones::of_bytes(&deleted.to_bytes()).expect("whole pages");
            prop_assert_eq!(back.ids().collect::<Vec<_>>(), ids.iter().copied().collect::<Vec<_>>());
            prop_assert_eq!(back.count(), ids.len() as u64);
            let bytes = deleted.to_bytes();
            prop_assert!(bytes.is_empty() || Tombstones::of_bytes(&bytes[1..]).is_err());
        }
    }
}
