//! Bytes as text for a terminal: UTF-8 stays as it is, all other bytes and control characters become `\xNN`.
//!
//! So output never moves a cursor or ends a line, and nearly all fields need no copy. It is meant for people;
//! programs should use the raw output.

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

/// Escapes `bytes` into a new string.
pub fn escape(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    escape_into(bytes, &mut text);
    text
}

/// Bytes of a text with escapes. A backslash that does not start an escape stands for itself.
pub fn unescape(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = find_escape(rest) {
        bytes.extend_from_slice(&rest[..at]);
        let digit =
            |byte: u8| (byte as char).to_digit(16).expect("an escape has two hexadecimal digits") as u8;
        bytes.push(digit(rest[at + 2]) << 4 | digit(rest[at + 3]));
        rest = &rest[at + 4..];
    }
    bytes.extend_from_slice(rest);
    bytes
}

/// Offset of the first `\xNN`.
pub fn find_escape(text: &[u8]) -> Option<usize> {
    let is_escape = |four: &[u8]| four.starts_with(b"\\x") && four[2..].iter().all(u8::is_ascii_hexdigit);
    let first = memchr::memchr(b'\\', text)?;
    text[first..].windows(4).position(is_escape).map(|at| first + at)
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
