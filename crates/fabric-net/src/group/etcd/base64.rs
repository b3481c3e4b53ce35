//! Base64 with padding (RFC 4648, section 4), in which etcd's JSON has keys and values.
//!
//! Decoding accepts exactly what encoding produces: no blanks, no missing padding, no bits beyond the last byte. So each
//! value has one text, and damage is noticed.

const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

pub(super) fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let bits =
            group.iter().enumerate().fold(0, |bits, (i, byte)| bits | u32::from(*byte) << (16 - 8 * i));
        for letter in 0..4 {
            let letter_bits = bits >> (18 - 6 * letter) & 63;
            text.push(if letter <= group.len() { char::from(LETTERS[letter_bits as usize]) } else { '=' });
        }
    }
    text
}

/// The bytes that `text` encodes; `None` if it is not Base64.
pub(super) fn decode(text: &str) -> Option<Vec<u8>> {
    let (groups, rest) = text.as_bytes().as_chunks::<4>();
    let mut bytes = Vec::with_capacity(groups.len() * 3);
    for (i, group) in groups.iter().enumerate() {
        let padding = group.iter().rev().take_while(|letter| **letter == b'=').count();
        if padding > 2 || (padding > 0 && i + 1 < groups.len()) {
            return None;
        }
        let mut bits = 0;
        for letter in &group[..4 - padding] {
            bits = bits << 6 | LETTERS.iter().position(|of| of == letter)? as u32;
        }
        bits <<= 6 * padding;
        let [_, decoded @ ..] = bits.to_be_bytes();
        let (kept, beyond) = decoded.split_at(3 - padding);
        if beyond.iter().any(|byte| *byte != 0) {
            return None;
        }
        bytes.extend_from_slice(kept);
    }
    rest.is_empty().then_some(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_examples_of_the_standard() {
        let examples = [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ];
        for (bytes, text) in examples {
            assert_eq!(encode(bytes.as_bytes()), text);
            assert_eq!(decode(text).as_deref(), Some(bytes.as_bytes()));
        }
        for wrong in ["Z", "Zg", "Zg=", "Zh==", "Zm9=", "====", "Z===", "Zg==Zg==", "Zm 8", "Zm9v\n", "Zm-_"]
        {
            assert_eq!(decode(wrong), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn what_was_encoded_comes_back(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            prop_assert_eq!(decode(&encode(&bytes)), Some(bytes));
        }

        #[test]
        fn what_is_decoded_encodes_to_the_same(text in "[A-Za-z0-9+/=]{0,24}") {
            if let Some(bytes) = decode(&text) {
                prop_assert_eq!(encode(&bytes), text);
            }
        }
    }
}
