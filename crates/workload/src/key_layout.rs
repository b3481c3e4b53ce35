//! Keys made of columns: byte strings whose memcmp order is the order of the columns.
//!
//! - A key of a single string column is the string's bytes, unchanged.
//! - Otherwise an integer is 8 bytes big-endian with the sign bit flipped, and a string is its bytes with 00
//!   written as 00 FF, followed by 00 00. Each column is then prefix-free, so columns can be concatenated,
//!   and the encoding of the first columns is a prefix of the key: a prefix scan finds all rows that agree on
//!   them.

use crate::escape::escape_into;
use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

const SIGN: u64 = 1 << 63;
const TERMINATOR: [u8; 2] = [0, 0];
const ESCAPED_ZERO: [u8; 2] = [0, 0xff];

/// Type of a key column: `int` or `str` in text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnKind {
    /// A signed integer of 64 bits.
    Int,
    /// A string of any bytes.
    Str,
}

/// The value of a key column.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum KeyColumn<'a> {
    Int(i64),
    Str(Cow<'a, [u8]>),
}

/// Reason why a text is not a key of a layout.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyLayoutError {
    #[error("the key column type `{0}` is not one of `int`, `str`")]
    UnknownKind(String),
    #[error("a key needs at least one column")]
    NoColumns,
    #[error("the key has {found} columns where at most {expected} belong")]
    TooManyColumns { expected: usize, found: usize },
    #[error("key column {column} must be an integer of 64 bits, not `{text}`")]
    NotAnInteger { column: usize, text: String },
}

/// Types of a key's columns. In text: `int,str`.
///
/// ```
/// use pando_workload::KeyLayout;
/// let layout: KeyLayout = "int,int".parse()?;
/// let key = layout.encode_text(&["7", "-1"])?;
/// assert_eq!(key.len(), 16);
/// assert_eq!(layout.display(&key, ',').as_deref(), Some("7,-1"));
/// # Ok::<(), pando_workload::KeyLayoutError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyLayout {
    columns: Vec<ColumnKind>,
}

impl KeyLayout {
    /// # Errors
    /// There are no columns.
    pub fn new(columns: Vec<ColumnKind>) -> Result<KeyLayout, KeyLayoutError> {
        if columns.is_empty() { Err(KeyLayoutError::NoColumns) } else { Ok(KeyLayout { columns }) }
    }

    /// The types, in order.
    pub fn columns(&self) -> &[ColumnKind] {
        &self.columns
    }

    /// Whether keys are the bytes of a single string column.
    pub fn is_plain(&self) -> bool {
        self.columns == [ColumnKind::Str]
    }

    /// Appends a column to a key. `value` must have the column's type in the layout.
    pub fn push(&self, value: &KeyColumn<'_>, key: &mut Vec<u8>) {
        match value {
            KeyColumn::Str(bytes) if self.is_plain() => key.extend_from_slice(bytes),
            KeyColumn::Str(bytes) => push_terminated(bytes, key),
            KeyColumn::Int(int) => key.extend_from_slice(&(*int as u64 ^ SIGN).to_be_bytes()),
        }
    }

    /// Encodes a key, or the prefix of a key if there are fewer columns than in the layout.
    pub fn encode(&self, columns: &[KeyColumn<'_>]) -> Vec<u8> {
        let mut key = Vec::new();
        columns.iter().for_each(|column| self.push(column, &mut key));
        key
    }

    /// The same from text, one string per column.
    ///
    /// # Errors
    /// There are too many columns, or an integer column is not an integer.
    pub fn encode_text<T: AsRef<[u8]>>(&self, columns: &[T]) -> Result<Vec<u8>, KeyLayoutError> {
        if columns.len() > self.columns.len() {
            return Err(KeyLayoutError::TooManyColumns {
                expected: self.columns.len(),
                found: columns.len(),
            });
        }
        let mut key = Vec::new();
        for (i, (text, kind)) in columns.iter().zip(&self.columns).enumerate() {
            let text = text.as_ref();
            let value = match kind {
                ColumnKind::Str => KeyColumn::Str(Cow::Borrowed(text)),
                ColumnKind::Int => {
                    KeyColumn::Int(parse_int(text).ok_or_else(|| KeyLayoutError::NotAnInteger {
                        column: i + 1,
                        text: String::from_utf8_lossy(text).into_owned(),
                    })?)
                }
            };
            self.push(&value, &mut key);
        }
        Ok(key)
    }

    /// Columns of a key. `None` if the bytes are not a key of this layout.
    pub fn decode<'a>(&self, key: &'a [u8]) -> Option<Vec<KeyColumn<'a>>> {
        if self.is_plain() {
            return Some(vec![KeyColumn::Str(Cow::Borrowed(key))]);
        }
        let mut rest = key;
        let mut columns = Vec::with_capacity(self.columns.len());
        for kind in &self.columns {
            columns.push(match kind {
                ColumnKind::Int => {
                    let (head, tail) = rest.split_first_chunk::<8>()?;
                    rest = tail;
                    KeyColumn::Int((u64::from_be_bytes(*head) ^ SIGN) as i64)
                }
                ColumnKind::Str => {
                    let (bytes, tail) = split_terminated(rest)?;
                    rest = tail;
                    KeyColumn::Str(bytes)
                }
            });
        }
        rest.is_empty().then_some(columns)
    }

    /// A key as text for people: its columns, escaped and separated. `None` if the bytes are not a key of
    /// this layout.
    pub fn display(&self, key: &[u8], separator: char) -> Option<String> {
        let mut text = String::new();
        for (i, column) in self.decode(key)?.iter().enumerate() {
            if i > 0 {
                text.push(separator);
            }
            match column {
                KeyColumn::Int(int) => text.push_str(&int.to_string()),
                KeyColumn::Str(bytes) => escape_into(bytes, &mut text),
            }
        }
        Some(text)
    }
}

impl FromStr for KeyLayout {
    type Err = KeyLayoutError;

    fn from_str(text: &str) -> Result<KeyLayout, KeyLayoutError> {
        let kind = |name: &str| match name.trim() {
            "int" => Ok(ColumnKind::Int),
            "str" => Ok(ColumnKind::Str),
            other => Err(KeyLayoutError::UnknownKind(other.to_owned())),
        };
        KeyLayout::new(text.split(',').map(kind).collect::<Result<_, _>>()?)
    }
}

impl fmt::Display for KeyLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, column) in self.columns.iter().enumerate() {
            let name = match column {
                ColumnKind::Int => "int",
                ColumnKind::Str => "str",
            };
            write!(f, "{}{name}", if i > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

/// Parses an integer as data sets write it: digits with an optional sign, surrounding blanks allowed.
pub(crate) fn parse_int(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text).ok()?.trim().parse().ok()
}

fn push_terminated(bytes: &[u8], key: &mut Vec<u8>) {
    let mut rest = bytes;
    while let Some(zero) = memchr::memchr(0, rest) {
        key.extend_from_slice(&rest[..zero]);
        key.extend_from_slice(&ESCAPED_ZERO);
        rest = &rest[zero + 1..];
    }
    key.extend_from_slice(rest);
    key.extend_from_slice(&TERMINATOR);
}

/// Splits off one terminated string. `None` if it is not terminated or has an unknown escape.
fn split_terminated(bytes: &[u8]) -> Option<(Cow<'_, [u8]>, &[u8])> {
    let mut decoded = Cow::Borrowed(&bytes[..0]);
    let mut rest = bytes;
    loop {
        let zero = memchr::memchr(0, rest)?;
        let (text, tail) = (&rest[..zero], rest.get(zero + 1..)?);
        match &mut decoded {
            Cow::Borrowed([]) => decoded = Cow::Borrowed(text),
            _ => decoded.to_mut().extend_from_slice(text),
        }
        rest = &tail[1.min(tail.len())..];
        match tail.first()? {
            0 => return Some((decoded, rest)),
            0xff => decoded.to_mut().push(0),
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn kinds() -> impl Strategy<Value = Vec<ColumnKind>> {
        prop::collection::vec(prop_oneof![Just(ColumnKind::Int), Just(ColumnKind::Str)], 1..5)
    }

    /// Values that are often equal, prefixes of one another, or full of the bytes that need escaping.
    fn value(kind: ColumnKind) -> BoxedStrategy<KeyColumn<'static>> {
        let byte = prop_oneof![Just(0u8), Just(1), Just(0xff), any::<u8>()];
        match kind {
            ColumnKind::Int => prop_oneof![-2i64..3, Just(i64::MIN), Just(i64::MAX), any::<i64>()]
                .prop_map(KeyColumn::Int)
                .boxed(),
            ColumnKind::Str => {
                prop::collection::vec(byte, 0..5).prop_map(|bytes| KeyColumn::Str(Cow::Owned(bytes))).boxed()
            }
        }
    }

    fn row(kinds: &[ColumnKind]) -> Vec<BoxedStrategy<KeyColumn<'static>>> {
        kinds.iter().map(|&kind| value(kind)).collect()
    }

    fn layout_and_rows()
    -> impl Strategy<Value = (KeyLayout, Vec<KeyColumn<'static>>, Vec<KeyColumn<'static>>)> {
        kinds().prop_flat_map(|kinds| {
            let layout = KeyLayout::new(kinds.clone()).expect("not empty");
            (Just(layout), row(&kinds), row(&kinds))
        })
    }

    #[test]
    fn a_single_string_is_its_bytes() {
        let layout: KeyLayout = "str".parse().expect("valid");
        assert_eq!(layout.encode_text(&["abc"]).expect("valid"), b"abc");
        assert_eq!(layout.encode_text(&[b"a\0\xff"]).expect("valid"), b"a\0\xff");
    }

    #[test]
    fn layouts_read_as_they_print() {
        for text in ["int", "str", "int,str,int"] {
            assert_eq!(text.parse::<KeyLayout>().expect("valid").to_string(), text);
        }
        assert!("".parse::<KeyLayout>().is_err());
        assert!("int,float".parse::<KeyLayout>().is_err());
    }

    #[test]
    fn text_that_is_no_key_is_refused() {
        let layout: KeyLayout = "int,str".parse().expect("valid");
        assert!(layout.encode_text(&["x", "y"]).is_err());
        assert!(layout.encode_text(&["9223372036854775808"]).is_err());
        assert!(layout.encode_text(&["1", "2", "3"]).is_err());
    }

    proptest! {
        #[test]
        fn keys_order_as_their_columns((layout, a, b) in layout_and_rows()) {
            let (key_a, key_b) = (layout.encode(&a), layout.encode(&b));
            prop_assert_eq!(key_a.cmp(&key_b), a.cmp(&b));
        }

        #[test]
        fn no_composite_key_is_a_prefix_of_another((layout, a, b) in layout_and_rows()) {
            prop_assume!(!layout.is_plain() && a != b);
            prop_assert!(!layout.encode(&b).starts_with(&layout.encode(&a)));
        }

        #[test]
        fn leading_columns_are_a_prefix((layout, a, _) in layout_and_rows(), cut: prop::sample::Index) {
            let some = &a[..cut.index(a.len() + 1)];
            prop_assert!(layout.encode(&a).starts_with(&layout.encode(some)));
        }

        #[test]
        fn keys_come_back((layout, a, _) in layout_and_rows()) {
            let key = layout.encode(&a);
            prop_assert_eq!(layout.decode(&key), Some(a));
        }

        #[test]
        fn foreign_bytes_never_pass_for_another_key(
            kinds in kinds(),
            bytes in prop::collection::vec(prop_oneof![Just(0u8), Just(0xff), any::<u8>()], 0..30),
        ) {
            let layout = KeyLayout::new(kinds).expect("not empty");
            if let Some(columns) = layout.decode(&bytes) {
                prop_assert_eq!(layout.encode(&columns), bytes);
            }
        }
    }
}
