//! Values of Parquet's types as text.
//!
//! Integers and decimals become digits, dates and times ISO 8601 (UTC), without floating point. The form is
//! determined once per column, from its logical type if there is one.

use parquet::basic::{ConvertedType, LogicalType, TimeUnit, Type};
use parquet::schema::types::ColumnDescriptor;
use std::fmt::Display;
use std::io::Write;

const DAY_SECONDS: i64 = 86_400;
/// Day number of 1970-01-01 in the Julian days of INT96 timestamps.
const JULIAN_EPOCH: i64 = 2_440_588;

/// Meaning of a column's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TextForm {
    /// The value as it is.
    Plain,
    /// An unsigned integer of this many bits.
    Unsigned(u32),
    /// An integer whose last `scale` digits are behind the decimal point.
    Decimal {
        scale: usize,
    },
    /// Days since 1970-01-01.
    Date,
    /// Time since midnight, in fractions of a second with this many digits.
    Time {
        digits: u32,
    },
    /// Time since 1970-01-01, in fractions of a second with this many digits.
    Timestamp {
        digits: u32,
    },
    Float16,
    Uuid,
    /// Text bytes or integer as it is; integer columns of this form are integers in a key.
    Integer,
}

/// Whether a value has a text form.
type Outcome = Result<(), &'static str>;

impl TextForm {
    pub fn of(column: &ColumnDescriptor) -> TextForm {
        let is_integer = matches!(column.physical_type(), Type::INT32 | Type::INT64);
        let decimal = || TextForm::Decimal { scale: usize::try_from(column.type_scale()).unwrap_or(0) };
        match column.logical_type_ref() {
            Some(LogicalType::Decimal(_)) => return decimal(),
            Some(LogicalType::Date) => return TextForm::Date,
            Some(LogicalType::Time(time)) => return TextForm::Time { digits: digits(&time.unit) },
            Some(LogicalType::Timestamp(stamp)) => {
                return TextForm::Timestamp { digits: digits(&stamp.unit) };
            }
            Some(LogicalType::Float16) => return TextForm::Float16,
            Some(LogicalType::Uuid) => return TextForm::Uuid,
            _ => {}
        }
        match column.converted_type() {
            ConvertedType::DECIMAL => decimal(),
            ConvertedType::DATE => TextForm::Date,
            ConvertedType::TIME_MILLIS => TextForm::Time { digits: 3 },
            ConvertedType::TIME_MICROS => TextForm::Time { digits: 6 },
            ConvertedType::TIMESTAMP_MILLIS => TextForm::Timestamp { digits: 3 },
            ConvertedType::TIMESTAMP_MICROS => TextForm::Timestamp { digits: 6 },
            ConvertedType::UINT_8 | ConvertedType::UINT_16 | ConvertedType::UINT_32 => TextForm::Unsigned(32),
            ConvertedType::UINT_64 => TextForm::Unsigned(64),
            _ if is_integer => TextForm::Integer,
            _ => TextForm::Plain,
        }
    }

    /// Whether the column has an integer type and means a number.
    pub fn is_integer(self) -> bool {
        matches!(self, TextForm::Integer | TextForm::Unsigned(_))
    }

    pub fn bool(self, value: bool, out: &mut Vec<u8>) -> Outcome {
        show(value, out)
    }

    pub fn float(self, value: impl Display, out: &mut Vec<u8>) -> Outcome {
        show(value, out)
    }

    pub fn integer(self, value: i64, out: &mut Vec<u8>) -> Outcome {
        match self {
            TextForm::Unsigned(32) => show(value as u32, out),
            TextForm::Unsigned(_) => show(value as u64, out),
            TextForm::Decimal { scale } => decimal(value.into(), scale, out),
            TextForm::Date => date(value, out),
            TextForm::Time { digits } => time(value, digits, out),
            TextForm::Timestamp { digits } => timestamp(value, digits, out),
            _ => {
                if value < 0 {
                    out.push(b'-');
                }
                push_digits(value.unsigned_abs(), 1, out);
                Ok(())
            }
        }
    }

    /// An old-style timestamp: two words of nanoseconds in the day, and one with the Julian day.
    pub fn int96(self, words: &[u32], out: &mut Vec<u8>) -> Outcome {
        let &[low, high, day] = words else { return Err("it is not an INT96") };
        date(i64::from(day) - JULIAN_EPOCH, out)?;
        out.push(b' ');
        time((u64::from(high) << 32 | u64::from(low)) as i64, 9, out)
    }

    pub fn bytes(self, value: &[u8], out: &mut Vec<u8>) -> Outcome {
        match self {
            TextForm::Decimal { scale } => decimal(big_endian(value)?, scale, out),
            TextForm::Float16 => {
                let bytes = value.try_into().map_err(|_| "a half float has 2 bytes")?;
                show(half_float(u16::from_le_bytes(bytes)), out)
            }
            TextForm::Uuid => {
                for (i, byte) in value.iter().enumerate() {
                    let hyphen = if matches!(i, 4 | 6 | 8 | 10) { "-" } else { "" };
                    show(format_args!("{hyphen}{byte:02x}"), out)?;
                }
                Ok(())
            }
            _ => {
                out.extend_from_slice(value);
                Ok(())
            }
        }
    }
}

fn digits(unit: &TimeUnit) -> u32 {
    match unit {
        TimeUnit::MILLIS => 3,
        TimeUnit::MICROS => 6,
        TimeUnit::NANOS => 9,
    }
}

fn show(value: impl Display, out: &mut Vec<u8>) -> Outcome {
    write!(out, "{value}").expect("writing to a vector does not fail");
    Ok(())
}

/// Appends a number with at least `width` digits. It formats most cells of a file, so it avoids the general
/// formatting machinery.
fn push_digits(mut number: u64, width: usize, out: &mut Vec<u8>) {
    let mut digits = [b'0'; 20];
    let mut first = digits.len();
    while number > 0 {
        first -= 1;
        digits[first] += (number % 10) as u8;
        number /= 10;
    }
    out.extend_from_slice(&digits[first.min(digits.len() - width)..]);
}

/// A big-endian integer in two's complement.
fn big_endian(bytes: &[u8]) -> Result<i128, &'static str> {
    let is_negative = bytes.first().is_some_and(|byte| byte & 0x80 != 0);
    let sign = if is_negative { 0xff } else { 0 };
    let surplus = bytes.len().saturating_sub(16);
    let low = &bytes[surplus..];
    let fits = bytes[..surplus].iter().all(|&byte| byte == sign)
        && (surplus == 0 || (low[0] & 0x80 != 0) == is_negative);
    if !fits {
        return Err("a decimal of more than 38 digits");
    }
    let mut wide = [sign; 16];
    wide[16 - low.len()..].copy_from_slice(low);
    Ok(i128::from_be_bytes(wide))
}

fn decimal(unscaled: i128, scale: usize, out: &mut Vec<u8>) -> Outcome {
    if let Ok(small) = u64::try_from(unscaled)
        && (1..=18).contains(&scale)
    {
        let unit = 10u64.pow(scale as u32);
        push_digits(small / unit, 1, out);
        out.push(b'.');
        push_digits(small % unit, scale, out);
        return Ok(());
    }
    let sign = if unscaled < 0 { "-" } else { "" };
    // At least one digit before the point.
    let digits = format!("{:0width$}", unscaled.unsigned_abs(), width = scale + 1);
    let (whole, fraction) = digits.split_at(digits.len() - scale);
    let point = if scale > 0 { "." } else { "" };
    show(format_args!("{sign}{whole}{point}{fraction}"), out)
}

/// Date of the Gregorian calendar that is `days` days after 1970-01-01.
fn date(days: i64, out: &mut Vec<u8>) -> Outcome {
    // Years start in March here, so that leap days come last, and form cycles of 400 years.
    const CYCLE: i64 = 146_097;
    const MARCH_0000: i64 = 719_468;
    let days = days.checked_add(MARCH_0000).ok_or("a date out of range")?;
    let (cycle, day) = (days.div_euclid(CYCLE), days.rem_euclid(CYCLE));
    let year_of_cycle = (day - day / 1460 + day / 36_524 - day / (CYCLE - 1)) / 365;
    let day_of_year = day - (365 * year_of_cycle + year_of_cycle / 4 - year_of_cycle / 100);
    // Months from March: five months of 31, 30, 31, 30, 31 days are 153 days.
    let month = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * month + 2) / 5 + 1;
    let is_next_year = month >= 10;
    let month = if is_next_year { month - 9 } else { month + 3 };
    let year = 400 * cycle + year_of_cycle + i64::from(is_next_year);
    let Ok(past_year_zero) = u64::try_from(year) else {
        return show(format_args!("{year:05}-{month:02}-{day_of_month:02}"), out);
    };
    push_digits(past_year_zero, 4, out);
    for two_digits in [month, day_of_month] {
        out.push(b'-');
        push_digits(two_digits as u64, 2, out);
    }
    Ok(())
}

fn time(units: i64, digits: u32, out: &mut Vec<u8>) -> Outcome {
    let per_second = 10i64.pow(digits);
    let (seconds, fraction) = (units.div_euclid(per_second), units.rem_euclid(per_second));
    if !(0..=DAY_SECONDS).contains(&seconds) {
        return Err("a time of day out of range");
    }
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    show(format_args!("{hour:02}:{minute:02}:{second:02}.{fraction:0width$}", width = digits as usize), out)
}

fn timestamp(units: i64, digits: u32, out: &mut Vec<u8>) -> Outcome {
    let per_day = DAY_SECONDS * 10i64.pow(digits);
    date(units.div_euclid(per_day), out)?;
    out.push(b' ');
    time(units.rem_euclid(per_day), digits, out)
}

/// The value of an IEEE 754 half-precision float.
fn half_float(bits: u16) -> f32 {
    let sign = if bits & 0x8000 != 0 { -1.0 } else { 1.0 };
    let (exponent, fraction) = (i32::from(bits >> 10 & 0x1f), f32::from(bits & 0x3ff));
    match exponent {
        0 => sign * fraction * 2f32.powi(-24),
        0x1f if fraction == 0.0 => sign * f32::INFINITY,
        0x1f => f32::NAN,
        _ => sign * (1.0 + fraction / 1024.0) * 2f32.powi(exponent - 15),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(write: impl FnOnce(&mut Vec<u8>) -> Outcome) -> String {
        let mut out = Vec::new();
        write(&mut out).expect("has a text form");
        String::from_utf8(out).expect("ASCII")
    }

    #[test]
    fn dates_of_the_calendar() {
        let known = [
            (0, "1970-01-01"),
            (-1, "1969-12-31"),
            (59, "1970-03-01"),
            (11_016, "2000-02-29"),
            (11_017, "2000-03-01"),
            (10_561, "1998-12-01"),
            (-25_509, "1900-02-28"),
            (-25_508, "1900-03-01"),
            (-719_162, "0001-01-01"),
        ];
        for (days, expected) in known {
            assert_eq!(text(|out| date(days, out)), expected, "{days}");
        }
        assert_eq!(text(|out| date(-719_529, out)), "-0001-12-31");
        assert!(date(i64::MAX, &mut Vec::new()).is_err());
    }

    #[test]
    fn times_and_timestamps() {
        assert_eq!(text(|out| timestamp(-1, 3, out)), "1969-12-31 23:59:59.999");
        assert_eq!(text(|out| timestamp(1_000_000_123, 6, out)), "1970-01-01 00:16:40.000123");
        assert_eq!(text(|out| time(3_723_000, 3, out)), "01:02:03.000");
        assert!(time(-1, 3, &mut Vec::new()).is_err());
        let stamp = [5, 0, 2_440_589];
        assert_eq!(text(|out| TextForm::Plain.int96(&stamp, out)), "1970-01-02 00:00:00.000000005");
    }

    #[test]
    fn decimals_of_all_widths() {
        assert_eq!(text(|out| decimal(-12_345, 2, out)), "-123.45");
        assert_eq!(text(|out| decimal(-5, 3, out)), "-0.005");
        assert_eq!(text(|out| decimal(7, 0, out)), "7");
        assert_eq!(text(|out| decimal(7, 2, out)), "0.07");
        assert_eq!(text(|out| decimal(123_456, 3, out)), "123.456");
        assert_eq!(text(|out| decimal(0, 1, out)), "0.0");
        let form = TextForm::Decimal { scale: 2 };
        assert_eq!(text(|out| form.bytes(&[0xff, 0x01], out)), "-2.55");
        assert_eq!(text(|out| form.bytes(&[], out)), "0.00");
        let mut long = [0xff; 20];
        assert_eq!(text(|out| form.bytes(&long, out)), "-0.01");
        long[4] = 0x7f;
        assert!(form.bytes(&long, &mut Vec::new()).is_err());
    }

    #[test]
    fn small_types() {
        for value in [0, 7, -1, i64::MIN, i64::MAX] {
            assert_eq!(text(|out| TextForm::Integer.integer(value, out)), value.to_string());
        }
        assert_eq!(text(|out| TextForm::Unsigned(32).integer(-1, out)), "4294967295");
        assert_eq!(text(|out| TextForm::Unsigned(64).integer(-1, out)), "18446744073709551615");
        assert_eq!(text(|out| TextForm::Float16.bytes(&0x3e00u16.to_le_bytes(), out)), "1.5");
        let uuid: Vec<u8> = (0..16).collect();
        assert_eq!(text(|out| TextForm::Uuid.bytes(&uuid, out)), "00010203-0405-0607-0809-0a0b0c0d0e0f");
    }
}
