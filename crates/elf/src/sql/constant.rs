//! Constants of a condition: numbers, dates, lengths of time, and their sums.
//!
//! Sums are exact, or an error. Adding months keeps the day of the month, or takes the last day of a shorter
//! month, as SQL systems do. A sum with NULL is NULL.

use std::cmp::Ordering;

use crate::schema::{Value, compare_decimals, rescale};

/// A value, or a length of time, which can be added to a date.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Constant {
    Value(Value),
    Time { months: i64, days: i64 },
}

impl Constant {
    /// `count` years, months or days; `None` for another `unit`, and if there are too many.
    pub(super) fn time(count: i64, unit: &str) -> Option<Self> {
        let (months, days) = match unit.to_ascii_lowercase().as_str() {
            "year" | "years" => (count.checked_mul(12)?, 0),
            "month" | "months" => (count, 0),
            "day" | "days" => (0, count),
            _ => return None,
        };
        Some(Self::Time { months, days })
    }

    /// Name of the constant's type.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Value(value) => value.kind(),
            Self::Time { .. } => "interval",
        }
    }

    /// `-self`, `None` if that has no meaning.
    pub(super) fn negated(self) -> Option<Self> {
        match self {
            Self::Value(Value::Null) => Some(self),
            Self::Value(Value::Decimal { unscaled, scale }) => {
                Some(Self::Value(Value::Decimal { unscaled: unscaled.checked_neg()?, scale }))
            }
            Self::Value(_) => None,
            Self::Time { months, days } => {
                Some(Self::Time { months: months.checked_neg()?, days: days.checked_neg()? })
            }
        }
    }

    /// `self + other`, `None` if that has no meaning or is out of range.
    pub(super) fn plus(self, other: Self) -> Option<Self> {
        let sum = match (self, other) {
            (Self::Value(Value::Null), _) | (_, Self::Value(Value::Null)) => Value::Null,
            (Self::Value(Value::Date(date)), Self::Time { months, days })
            | (Self::Time { months, days }, Self::Value(Value::Date(date))) => later(date, months, days)?,
            (
                Self::Value(Value::Decimal { unscaled: left, scale: left_scale }),
                Self::Value(Value::Decimal { unscaled: right, scale: right_scale }),
            ) => {
                let scale = left_scale.max(right_scale);
                let (left, right) =
                    (rescale(left, scale - left_scale)?, rescale(right, scale - right_scale)?);
                Value::Decimal { unscaled: left.checked_add(right)?, scale }
            }
            _ => return None,
        };
        Some(Self::Value(sum))
    }
}

/// Order of two values but NULL; `None` if their types cannot be compared.
pub(super) fn compare(left: &Value, right: &Value) -> Option<Ordering> {
    match (left, right) {
        (Value::Date(left), Value::Date(right)) => Some(left.cmp(right)),
        (Value::String(left), Value::String(right)) => Some(left.cmp(right)),
        (
            Value::Decimal { unscaled: left, scale: left_scale },
            Value::Decimal { unscaled: right, scale: right_scale },
        ) => Some(compare_decimals(*left, *left_scale, *right, *right_scale)),
        _ => None,
    }
}

/// The date that `text` gives as year, month and day with hyphens between them.
pub(super) fn date(text: &str) -> Option<Value> {
    let mut parts = text.trim().splitn(3, '-');
    let mut part = || parts.next().filter(|part| part.bytes().all(|byte| byte.is_ascii_digit()));
    let (year, month, day) = (part()?, part()?, part()?);
    Value::date(year.parse().ok()?, month.parse().ok()?, day.parse().ok()?)
}

/// The date that is so many months and then days after `date`.
fn later(date: i32, months: i64, days: i64) -> Option<Value> {
    let (year, month, day) = calendar(date);
    let months = (year * 12 + i64::from(month) - 1).checked_add(months)?;
    let (year, month) = (i32::try_from(months.div_euclid(12)).ok()?, months.rem_euclid(12) as u8 + 1);
    match (1..=day).rev().find_map(|day| Value::date(year, month, day))? {
        Value::Date(date) => i32::try_from(i64::from(date).checked_add(days)?).ok().map(Value::Date),
        _ => None,
    }
}

/// Year, month and day of a date in the proleptic Gregorian calendar.
fn calendar(date: i32) -> (i64, u8, u8) {
    // Eras of 400 years that begin on a first of March, so that leap days are at the ends of years.
    let days = i64::from(date) + 719_468;
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day_of_month = day - (153 * month + 2) / 5 + 1;
    let month_of_year = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + i64::from(month_of_year <= 2), month_of_year as u8, day_of_month as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_calendar_is_the_inverse_of_dates() {
        for days in (-1_000_000..1_000_000).step_by(97).chain([i32::MIN, -1, 0, 59, 60, i32::MAX]) {
            let (year, month, day) = calendar(days);
            assert_eq!(Value::date(year as i32, month, day), Some(Value::Date(days)), "day {days}");
        }
    }

    #[test]
    fn months_keep_the_day_where_they_can() {
        let later = |from, count, unit| {
            let time = Constant::time(count, unit).expect("a unit");
            date(from).and_then(|from| Constant::Value(from).plus(time))
        };
        let on = |text| date(text).map(Constant::Value);
        assert_eq!(later("1994-01-01", 1, "year"), on("1995-01-01"));
        assert_eq!(later("1996-02-29", 1, "YEAR"), on("1997-02-28"));
        assert_eq!(later("1995-01-31", 1, "month"), on("1995-02-28"));
        assert_eq!(later("1995-01-31", -13, "months"), on("1993-12-31"));
        assert_eq!(later("1998-12-01", -90, "day"), on("1998-09-02"));
        assert_eq!(later("1998-12-01", i64::MAX, "day"), None);
        assert_eq!(later("1998-12-01", i64::MAX, "month"), None);
        assert_eq!(["1994-02-29", "1994-1", "1994-01-01-", "94-+1-01", ""].map(date), [const { None }; 5]);
    }

    #[test]
    fn sums_of_numbers_are_exact() {
        let decimal = |unscaled, scale| Constant::Value(Value::Decimal { unscaled, scale });
        assert_eq!(decimal(6, 2).plus(decimal(1, 0)), Some(decimal(106, 2)));
        assert_eq!(decimal(i128::MAX, 0).plus(decimal(1, 0)), None);
        assert_eq!(decimal(1, 0).plus(Constant::Value(Value::Null)), Some(Constant::Value(Value::Null)));
        assert_eq!(decimal(1, 0).plus(Constant::Value(Value::Date(1))), None);
    }
}
