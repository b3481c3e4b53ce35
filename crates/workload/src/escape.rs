//! Bytes as text for a terminal: UTF-8 as it is, everything else and control characters as `\xNN`.
//!
//! So what is printed never moves a cursor or ends a line, and nearly all fields need no copy. It is for reading;
//! the raw output exists for programs.

use std::fmt::Write;

/// Appends `bytes` to `text`, escaped.
pub fn escape_into(bytes: &[u8], text: &mut String) {
    // Nearly all fields need no escape; C1 control characters start with C2.
    let is_plain = |byte: &u8| !byte.is_ascii_control() && *byte != 0xc2;
    if bytes.iter().all(is_plain)
        && let Ok(plain) = std::str::from_utf8(bytes)
    {
        return text.push_str(plain);
    }
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            if character.is_control() {
                push_hex(character.encode_utf8(&mut [0; 4]).as_bytes(), text);
            } else {
                text.push(character);
            }
        }
        push_hex(chunk.invalid(), text);
    }
}

/// The same in a string of its own.
pub fn escape(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    escape_into(bytes, &mut text);
    text
}

fn push_hex(bytes: &[u8], text: &mut String) {
    for byte in bytes {
        write!(text, "\\x{byte:02X}").expect("writing to a string does not fail");
    }
}

#[cfg(test)]
mod tests {
    use super::escape;

    #[test]
    fn text_stays_and_the_rest_is_hexadecimal() {
        assert_eq!(escape("Zürich \\ 東京".as_bytes()), "Zürich \\ 東京");
        assert_eq!(escape(b"a\tb\nc\x7f"), "a\\x09b\\x0Ac\\x7F");
        assert_eq!(escape(b"\xff\xfea\xc3"), "\\xFF\\xFEa\\xC3");
        assert_eq!(escape("\u{85}".as_bytes()), "\\xC2\\x85");
        assert_eq!(escape("§".as_bytes()), "§");
    }
}
