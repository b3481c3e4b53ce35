//! Keys as text: byte strings, or composite keys as comma-separated columns.
//!
//! The types of an index's key columns are stored in the catalog as `pando-rows 1 key=int,str`. An index
//! without this description has byte strings as keys.

use pando_workload::{KeyColumn, KeyLayout};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::text;

const DESCRIPTION: &str = "pando-rows 1 key=";
const SEPARATOR: char = ',';

/// Columns of an index's keys, and their text form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeySchema {
    layout: KeyLayout,
}

impl KeySchema {
    pub fn of_layout(layout: &KeyLayout) -> KeySchema {
        KeySchema { layout: layout.clone() }
    }

    /// Parses the description stored with an index.
    pub fn of_description(index: &str, description: &[u8]) -> Result<KeySchema, Failure> {
        let unknown = || {
            Failure::failed(format_args!(
                "index {index:?} is described as {:?}, which this program cannot read",
                text::escape(description)
            ))
        };
        let layout = match description {
            b"" => "str",
            text => {
                let text = std::str::from_utf8(text).map_err(|_| unknown())?;
                text.strip_prefix(DESCRIPTION).ok_or_else(unknown)?
            }
        };
        Ok(KeySchema { layout: layout.parse().map_err(|_| unknown())? })
    }

    /// The description to store with the index.
    pub fn description(&self) -> Vec<u8> {
        format!("{DESCRIPTION}{}", self.layout).into_bytes()
    }

    pub fn layout(&self) -> &KeyLayout {
        &self.layout
    }

    /// Whether keys are byte strings.
    pub fn is_plain(&self) -> bool {
        self.layout.is_plain()
    }

    /// The types of the columns: `int,str`.
    pub fn columns(&self) -> String {
        self.layout.to_string()
    }

    /// Parses a complete key.
    pub fn key(&self, text: &[u8]) -> Result<Vec<u8>, Failure> {
        let columns = self.split(text);
        let expected = self.layout.columns().len();
        if columns.len() != expected {
            return Err(Failure::bad_input(format_args!(
                "the key `{}` has {} columns instead of {expected} ({})",
                text::escape(text),
                columns.len(),
                self.columns()
            )));
        }
        self.encode(&columns)
    }

    /// Parses a prefix of keys: bytes of a byte string, or the first columns of a composite key.
    pub fn prefix(&self, text: &[u8]) -> Result<Vec<u8>, Failure> {
        self.encode(&self.split(text))
    }

    fn split(&self, text: &[u8]) -> Vec<Vec<u8>> {
        if self.layout.columns().len() == 1 {
            return vec![text::unescape(text)];
        }
        text.split(|&byte| byte == SEPARATOR as u8).map(text::unescape).collect()
    }

    fn encode(&self, columns: &[Vec<u8>]) -> Result<Vec<u8>, Failure> {
        self.layout.encode_text(columns).map_err(Failure::bad_input)
    }

    /// Appends a key as text that [`KeySchema::key`] parses. Bytes that are not a key of this schema are
    /// escaped as a byte string.
    pub fn display_to(&self, key: &[u8], text: &mut String) {
        if self.is_plain() {
            return text::escape_to(key, text);
        }
        let Some(columns) = self.layout.decode(key) else { return text::escape_to(key, text) };
        let composite = columns.len() > 1;
        for (i, column) in columns.iter().enumerate() {
            if i > 0 {
                text.push(SEPARATOR);
            }
            match column {
                KeyColumn::Int(number) => text.push_str(&number.to_string()),
                KeyColumn::Str(bytes) if composite && bytes.contains(&(SEPARATOR as u8)) => {
                    text.push_str(&text::escape(bytes).replace(SEPARATOR, "\\x2C"));
                }
                KeyColumn::Str(bytes) => text::escape_to(bytes, text),
            }
        }
    }

    pub fn display(&self, key: &[u8]) -> String {
        let mut text = String::new();
        self.display_to(key, &mut text);
        text
    }

    /// A key as JSON: a string, a number, or an array of these.
    pub fn json(&self, key: &[u8]) -> Value {
        match self.layout.decode(key) {
            None => bytes_json(key),
            Some(columns) => {
                let mut values: Vec<Value> = columns.iter().map(column_json).collect();
                if values.len() == 1 { values.remove(0) } else { Value::Array(values) }
            }
        }
    }
}

fn column_json(column: &KeyColumn<'_>) -> Value {
    match column {
        KeyColumn::Int(number) => json!(number),
        KeyColumn::Str(bytes) => bytes_json(bytes),
    }
}

/// Bytes as JSON: a string if they are UTF-8, otherwise `{"hex": "ff00"}`.
pub fn bytes_json(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => json!(text),
        Err(_) => json!({ "hex": bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn schema(columns: &str) -> KeySchema {
        KeySchema::of_layout(&columns.parse().expect("a valid layout"))
    }

    #[test]
    fn composite_keys_are_columns_with_commas() {
        let lines = schema("int,int");
        let key = lines.key(b"1,-4").expect("a key");
        assert_eq!(key.len(), 16);
        assert_eq!(lines.display(&key), "1,-4");
        assert_eq!(lines.json(&key), json!([1, -4]));
        assert!(key.starts_with(&lines.prefix(b"1").expect("a prefix")));
        for wrong in ["1", "1,2,3", "a,1", "", "1,99999999999999999999"] {
            assert!(matches!(lines.key(wrong.as_bytes()), Err(Failure::BadInput(_))), "{wrong}");
        }
    }

    #[test]
    fn byte_strings_may_contain_anything() {
        let plain = schema("str");
        assert_eq!(plain.key(b"a,b").expect("a key"), b"a,b");
        assert_eq!(plain.key(b"\\x00").expect("a key"), b"\0");
        assert_eq!(plain.json(b"\xff"), json!({ "hex": "ff" }));
    }

    #[test]
    fn the_description_comes_back_and_others_are_refused() {
        for columns in ["str", "int", "int,str,int"] {
            let schema = schema(columns);
            assert_eq!(KeySchema::of_description("x", &schema.description()).expect("readable"), schema);
        }
        assert!(KeySchema::of_description("x", b"").expect("readable").is_plain());
        for other in [&b"pando-rows 2 key=int"[..], b"pando-rows 1 key=float", b"\xff"] {
            assert!(matches!(KeySchema::of_description("x", other), Err(Failure::Failed(_))));
        }
    }

    proptest! {
        #[test]
        fn keys_that_are_printed_can_be_read(
            number: i64, bytes in prop::collection::vec(prop_oneof![Just(b','), Just(b'\\'), any::<u8>()], 0..12),
        ) {
            let schema = schema("str,int");
            let columns = [KeyColumn::Str(bytes.clone().into()), KeyColumn::Int(number)];
            let key = schema.layout.encode(&columns);
            let text = schema.display(&key);
            prop_assert_eq!(schema.key(text.as_bytes()).expect("a key"), key);
        }
    }
}
