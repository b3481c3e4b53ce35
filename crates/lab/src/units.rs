//! Parses and formats sizes (`256MiB`), counts (`20m`) and times (`50ms`), and formats other figures.
//!
//! Parsing is exact: it uses no floating point, and a fraction must result in a whole number. Units of sizes
//! are binary, except for KB, MB and so on; units of counts are decimal.

use std::time::Duration;

/// Text that is not a size, count or time. The message is a sentence for a command line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    #[error("`{0}` is not a size; sizes are written like 4096, 64KiB, 1.5GiB or 200MB")]
    NotASize(String),
    #[error("`{0}` is not a count; counts are written like 5000, 20m, 1.5k or 2g")]
    NotACount(String),
    #[error("`{0}` is not a time; times are written like 500us, 1.5ms, 2s or 1h")]
    NotATime(String),
    #[error("`{0}` is too large")]
    TooLarge(String),
}

const SIZES: [(&str, u64); 14] = [
    ("", 1),
    ("b", 1),
    ("k", 1 << 10),
    ("m", 1 << 20),
    ("g", 1 << 30),
    ("t", 1 << 40),
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
];
const TIMES: [(&str, u64); 7] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("min", 60_000_000_000),
    ("h", 3_600_000_000_000),
];
const COUNTS: [(&str, u64); 5] =
    [("", 1), ("k", 1_000), ("m", 1_000_000), ("g", 1_000_000_000), ("b", 1_000_000_000)];

/// Parses bytes: a number and `B`, `KiB`, `MiB`, `GiB`, `TiB` (also `K` to `T`) or `KB`, `MB`, `GB`, `TB` in
/// powers of 1000.
///
/// # Errors
/// Text that is not a size, is not a whole number of bytes, or exceeds 64 bits.
pub fn parse_size(text: &str) -> Result<u64, UnitError> {
    scaled(text, &SIZES).ok_or_else(|| UnitError::NotASize(text.to_owned()))?.ok_or_else(|| too_large(text))
}

/// Parses a count: a number and `k`, `m`, or `g` (also `b`) in powers of 1000. Underscores may separate
/// digits.
///
/// # Errors
/// Text that is not a count, is not a whole number, or exceeds 64 bits.
pub fn parse_count(text: &str) -> Result<u64, UnitError> {
    scaled(text, &COUNTS).ok_or_else(|| UnitError::NotACount(text.to_owned()))?.ok_or_else(|| too_large(text))
}

/// Parses nanoseconds: a number and `ns`, `us`, `µs`, `ms`, `s`, `min` or `h`.
///
/// # Errors
/// Text that is not a time, is not a whole number of nanoseconds, or exceeds 64 bits.
pub fn parse_nanos(text: &str) -> Result<u64, UnitError> {
    scaled(text, &TIMES).ok_or_else(|| UnitError::NotATime(text.to_owned()))?.ok_or_else(|| too_large(text))
}

fn too_large(text: &str) -> UnitError {
    UnitError::TooLarge(text.to_owned())
}

/// Parses a number with a unit, exactly. `None`: not such a number. `Some(None)`: it exceeds 64 bits.
fn scaled(text: &str, units: &[(&str, u64)]) -> Option<Option<u64>> {
    let text = text.trim();
    let unit_at = text.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_')).unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let unit = unit.trim_start().to_ascii_lowercase();
    let (_, scale) = units.iter().find(|(name, _)| *name == unit)?;
    let digits = number.replace('_', "");
    let (whole, fraction) = digits.split_once('.').unwrap_or((&digits, ""));
    if whole.is_empty() || fraction.contains('.') || fraction.len() > 18 {
        return None;
    }
    let Ok(whole) = whole.parse::<u64>() else { return Some(None) };
    let mut part = 0;
    if !fraction.is_empty() {
        let tens = 10u128.pow(fraction.len() as u32);
        let scaled = u128::from(fraction.parse::<u64>().ok()?) * u128::from(*scale);
        if !scaled.is_multiple_of(tens) {
            return None;
        }
        part = (scaled / tens) as u64;
    }
    Some(whole.checked_mul(*scale).and_then(|product| product.checked_add(part)))
}

/// Formats bytes with a binary unit: `26.0 MiB`, `512 B`.
pub fn size(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let exponent = (63 - bytes.max(1).leading_zeros()) / 10;
    match exponent {
        0 => format!("{bytes} B"),
        _ => {
            let scaled = bytes as f64 / (1u64 << (10 * exponent)) as f64;
            format!("{scaled:.1} {}", units[exponent as usize - 1])
        }
    }
}

/// Formats a rate or another figure with a decimal unit and about three significant digits: `1.25 M`, `830`.
pub fn figure(number: f64) -> String {
    match number {
        n if n >= 1e9 => format!("{:.2} G", n / 1e9),
        n if n >= 1e6 => format!("{:.2} M", n / 1e6),
        n if n >= 1e4 => format!("{:.1} k", n / 1e3),
        n => format!("{n:.0}"),
    }
}

/// Formats a count with separators: `20,000,000`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a time with a suitable unit: `350 ns`, `2.10 µs`, `15.00 ms`, `3.20 s`.
pub fn nanos(ns: u64) -> String {
    match ns as f64 {
        n if n < 1e3 => format!("{ns} ns"),
        n if n < 1e6 => format!("{:.2} µs", n / 1e3),
        n if n < 1e9 => format!("{:.2} ms", n / 1e6),
        n => format!("{:.2} s", n / 1e9),
    }
}

/// Formats a longer time: `850 ms`, `12.4 s`, `3 min 20 s`.
pub fn duration(time: Duration) -> String {
    match time.as_secs_f64() {
        s if s < 1.0 => format!("{:.0} ms", s * 1e3),
        s if s < 120.0 => format!("{s:.1} s"),
        s => format!("{:.0} min {:.0} s", (s / 60.0).floor(), s % 60.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_read_as_people_write_them() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("512 B", 512),
            ("1KiB", 1024),
            ("26MiB", 26 << 20),
            ("1.5GiB", 3 << 29),
            ("2g", 2 << 30),
            ("200MB", 200_000_000),
            ("16tib", 16 << 40),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn counts_read_as_people_write_them() {
        for (text, count) in
            [("20m", 20_000_000), ("1_000", 1000), ("2.5k", 2500), ("1g", 1_000_000_000), ("7", 7)]
        {
            assert_eq!(parse_count(text), Ok(count), "{text}");
        }
    }

    #[test]
    fn times_read_as_people_write_them() {
        for (text, ns) in [
            ("50ms", 50_000_000),
            ("1.5us", 1_500),
            ("2 s", 2_000_000_000),
            ("7ns", 7),
            ("3µs", 3_000),
            ("1.5min", 90_000_000_000),
            ("2h", 7_200_000_000_000),
        ] {
            assert_eq!(parse_nanos(text), Ok(ns), "{text}");
        }
        for text in ["", "5", "ms", "-1s", "0.5ns", "1day"] {
            assert!(parse_nanos(text).is_err(), "{text}");
        }
    }

    #[test]
    fn other_text_is_refused_with_the_text_in_the_sentence() {
        for text in ["", "MiB", "1.2.3k", "-1", "1e9", "12 apples", "1.00001KiB", "ten"] {
            let error = parse_size(text).expect_err(text).to_string();
            assert!(error.contains(&format!("`{text}`")), "{error}");
        }
        for text in ["", "m", "1MiB", "0.0001k", "-3"] {
            assert!(parse_count(text).is_err(), "{text}");
        }
        assert_eq!(parse_size("99999999tib"), Err(too_large("99999999tib")));
        assert_eq!(parse_count("99999999999999999999"), Err(too_large("99999999999999999999")));
    }

    #[test]
    fn figures_have_units() {
        assert_eq!(
            [size(0), size(1023), size(26 << 20), size(u64::MAX)],
            ["0 B", "1023 B", "26.0 MiB", "16.0 EiB"]
        );
        assert_eq!([count(0), count(999), count(20_000_000)], ["0", "999", "20,000,000"]);
        assert_eq!([nanos(350), nanos(2100), nanos(15_000_000)], ["350 ns", "2.10 µs", "15.00 ms"]);
        assert_eq!([figure(830.4), figure(12_345.0), figure(1_250_000.0)], ["830", "12.3 k", "1.25 M"]);
        assert_eq!(duration(Duration::from_secs(200)), "3 min 20 s");
    }

    proptest! {
        #[test]
        fn whole_numbers_are_exact(number: u64) {
            prop_assert_eq!(parse_size(&number.to_string()), Ok(number));
            prop_assert_eq!(parse_count(&count(number).replace(',', "_")), Ok(number));
        }

        #[test]
        fn no_text_makes_it_panic(text in "[0-9._ kmgbiKMGTB-]{0,24}") {
            let _ = (parse_size(&text), parse_count(&text));
        }
    }
}
