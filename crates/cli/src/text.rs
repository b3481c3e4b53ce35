//! Bytes as text and back: UTF-8 as it is, other bytes and control characters as `\xNN`.
//!
//! A backslash that would begin such an escape is itself escaped (`\x5Cx41`), so that printed bytes can be
//! read back unchanged.

use pando_workload::{escape_into, find_escape};

pub use pando_workload::unescape;

/// Appends `bytes` to `text`, escaped.
pub fn escape_to(bytes: &[u8], text: &mut String) {
    let mut rest = bytes;
    while let Some(at) = find_escape(rest) {
        escape_into(&rest[..at], text);
        text.push_str("\\x5C");
        rest = &rest[at + 1..];
    }
    escape_into(rest, text);
}

/// [`escape_to`] into a new string.
pub fn escape(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    escape_to(bytes, &mut text);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn escapes_are_bytes_and_everything_else_is_itself() {
        assert_eq!(unescape(b"a\\x09b\\xfF"), b"a\tb\xff");
        assert_eq!(
            unescape("Zürich \\ \\n \\x4 \\xg0 \\".as_bytes()),
            "Zürich \\ \\n \\x4 \\xg0 \\".as_bytes()
        );
        assert_eq!(escape(b"tab\there"), "tab\\x09here");
        assert_eq!(escape(b"C:\\x41"), "C:\\x5Cx41");
        assert_eq!(escape(b"C:\\temp"), "C:\\temp");
    }

    proptest! {
        #[test]
        fn what_is_escaped_comes_back(bytes in prop::collection::vec(
            prop_oneof![Just(b'\\'), Just(b'x'), Just(b'4'), Just(b'C'), any::<u8>()], 0..40,
        )) {
            let text = escape(&bytes);
            prop_assert!(!text.chars().any(char::is_control));
            prop_assert_eq!(unescape(text.as_bytes()), bytes);
        }

        #[test]
        fn plain_text_is_as_it_is(text in "[a-zäöü ,.]{0,20}") {
            prop_assert_eq!(escape(text.as_bytes()), text);
        }
    }
}
