//! Columns of a table, their types, and single values.
//!
//! A decimal is an unscaled integer and a scale, the number of digits behind the point, and is compared by
//! value: 0.05, 0.050 and the same number as an integer condition are one. A date is the number of days since
//! 1970-01-01. NULL is a value of every nullable column, below all others.

use std::cmp::Ordering;
use std::fmt;

use crate::error::{Error, Result};

/// Type of a column's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnType {
    /// 64-bit signed integers.
    Integer,
    /// Fixed-point numbers with `scale` digits behind the point.
    Decimal { scale: u8 },
    /// Days since 1970-01-01.
    Date,
    /// Text, ordered by its UTF-8 bytes.
    String,
}

impl fmt::Display for ColumnType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer => f.write_str("integer"),
            Self::Decimal { scale } => write!(f, "decimal with {scale} digits behind the point"),
            Self::Date => f.write_str("date"),
            Self::String => f.write_str("string"),
        }
    }
}

/// A column of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    pub name: String,
    pub kind: ColumnType,
    /// Whether the column may hold NULL.
    pub is_nullable: bool,
}

impl Column {
    /// A column without NULL.
    pub fn new(name: impl Into<String>, kind: ColumnType) -> Self {
        Self { name: name.into(), kind, is_nullable: false }
    }

    /// The same column, which may hold NULL.
    #[must_use]
    pub fn nullable(mut self) -> Self {
        self.is_nullable = true;
        self
    }

    /// Fails if `value` is not one of this column's type; NULL passes if the column may hold it.
    pub(crate) fn check(&self, value: &Value) -> Result<()> {
        let fits = match value {
            Value::Null if self.is_nullable => true,
            Value::Null => return Err(Error::UnexpectedNull { column: self.name.clone() }),
            _ => self.is_comparable(value),
        };
        if fits { Ok(()) } else { Err(self.wrong_type(value)) }
    }

    /// Whether values of this column can be compared with `value`. All numbers can be compared.
    pub(crate) fn is_comparable(&self, value: &Value) -> bool {
        matches!(
            (self.kind, value),
            (ColumnType::Integer | ColumnType::Decimal { .. }, Value::Integer(_) | Value::Decimal { .. })
                | (ColumnType::Date, Value::Date(_))
                | (ColumnType::String, Value::String(_))
        )
    }

    pub(crate) fn wrong_type(&self, value: &Value) -> Error {
        Error::WrongType {
            column: self.name.clone(),
            expected: self.kind.to_string(),
            found: value.kind().to_owned(),
        }
    }
}

/// The columns of a table. Each has a name of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schema {
    columns: Vec<Column>,
}

impl Schema {
    /// Fails without columns, with more than 65,535, and if a name is empty or given twice.
    pub fn new(columns: Vec<Column>) -> Result<Self> {
        if columns.is_empty() {
            return Err(Error::NoColumns);
        }
        if columns.len() > usize::from(u16::MAX) {
            return Err(Error::TooManyColumns { columns: columns.len() });
        }
        if let Some(number) = columns.iter().position(|column| column.name.is_empty()) {
            return Err(Error::UnnamedColumn { number });
        }
        let mut names: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
        names.sort_unstable();
        match names.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(Error::DuplicateColumn { name: pair[0].to_owned() }),
            None => Ok(Self { columns }),
        }
    }

    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// Number of the column `name`. The error lists the columns that exist.
    pub fn position(&self, name: &str) -> Result<usize> {
        let columns =
            || self.columns.iter().map(|column| column.name.as_str()).collect::<Vec<_>>().join(", ");
        self.columns
            .iter()
            .position(|column| column.name == name)
            .ok_or_else(|| Error::UnknownColumn { name: name.to_owned(), columns: columns() })
    }
}

/// A value of some column, or a bound of a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Null,
    Integer(i64),
    /// `unscaled / 10^scale`.
    Decimal {
        unscaled: i128,
        scale: u8,
    },
    /// Days since 1970-01-01.
    Date(i32),
    String(String),
}

impl Value {
    /// Name of the value's type.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Null => "NULL",
            Self::Integer(_) => "integer",
            Self::Decimal { .. } => "decimal",
            Self::Date(_) => "date",
            Self::String(_) => "string",
        }
    }

    /// The date of a day in the proleptic Gregorian calendar; `None` if there is no such day.
    ///
    /// ```
    /// use pando_elf::Value;
    /// assert_eq!(Value::date(1994, 1, 1), Some(Value::Date(8_766)));
    /// assert_eq!(Value::date(1900, 2, 29), None);
    /// ```
    pub fn date(year: i32, month: u8, day: u8) -> Option<Self> {
        let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let days = match month {
            2 => 28 + u8::from(is_leap),
            4 | 6 | 9 | 11 => 30,
            1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
            _ => return None,
        };
        if !(1..=days).contains(&day) {
            return None;
        }
        // Years that begin in March end with the leap day.
        let year = i64::from(year) - i64::from(month <= 2);
        let day_of_year = (153 * ((i64::from(month) + 9) % 12) + 2) / 5 + i64::from(day) - 1;
        let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
        i32::try_from(year * 365 + leap_days + day_of_year - 719_468).ok().map(Self::Date)
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("NULL"),
            Self::Integer(number) => write!(f, "{number}"),
            Self::Decimal { unscaled, scale: 0 } => write!(f, "{unscaled}"),
            Self::Decimal { unscaled, scale } => {
                let digits = usize::from(*scale);
                let text = format!("{:0>width$}", unscaled.unsigned_abs(), width = digits + 1);
                let (whole, fraction) = text.split_at(text.len() - digits);
                write!(f, "{}{whole}.{fraction}", if *unscaled < 0 { "-" } else { "" })
            }
            Self::Date(days) => write!(f, "day {days} since 1970-01-01"),
            Self::String(text) => write!(f, "'{text}'"),
        }
    }
}

/// Compares `left / 10^left_scale` with `right / 10^right_scale` exactly.
pub(crate) fn compare_decimals(left: i128, left_scale: u8, right: i128, right_scale: u8) -> Ordering {
    match left_scale.cmp(&right_scale) {
        Ordering::Equal => left.cmp(&right),
        Ordering::Greater => compare_decimals(right, right_scale, left, left_scale).reverse(),
        Ordering::Less => match rescale(left, right_scale - left_scale) {
            Some(left) => left.cmp(&right),
            // What does not fit is farther from zero than any number that does.
            None => left.cmp(&0),
        },
    }
}

/// `number * 10^digits`, `None` if it does not fit.
pub(crate) fn rescale(number: i128, digits: u8) -> Option<i128> {
    if number == 0 {
        return Some(0);
    }
    10_i128.checked_pow(digits.into())?.checked_mul(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_identify_columns() {
        let column = |name: &str| Column::new(name, ColumnType::Integer);
        assert_eq!(Schema::new(vec![]), Err(Error::NoColumns));
        assert_eq!(Schema::new(vec![column("a"), column("")]), Err(Error::UnnamedColumn { number: 1 }));
        let twice = Schema::new(vec![column("a"), column("b"), column("a")]);
        assert_eq!(twice, Err(Error::DuplicateColumn { name: "a".into() }));
        let schema = Schema::new(vec![column("a"), column("b")]).expect("two names");
        assert_eq!(schema.position("b"), Ok(1));
        let error = schema.position("c").map_err(|error| error.to_string());
        assert_eq!(error, Err("there is no column `c`; the columns are a, b".into()));
    }

    #[test]
    fn decimals_compare_by_value() {
        assert_eq!(compare_decimals(5, 2, 50, 3), Ordering::Equal);
        assert_eq!(compare_decimals(5, 2, 51, 3), Ordering::Less);
        assert_eq!(compare_decimals(i128::MAX, 0, i128::MAX, 255), Ordering::Greater);
        assert_eq!(compare_decimals(1, 255, i128::MIN, 0), Ordering::Greater);
        assert_eq!(compare_decimals(0, 0, 0, 255), Ordering::Equal);
    }

    #[test]
    fn values_print_as_they_are_written() {
        let decimal = |unscaled, scale| Value::Decimal { unscaled, scale }.to_string();
        assert_eq!([decimal(5, 2), decimal(-1234, 2), decimal(7, 0)], ["0.05", "-12.34", "7"]);
    }

    #[test]
    fn dates_count_days() {
        for (date, days) in
            [((1970, 1, 1), 0), ((1969, 12, 31), -1), ((2000, 2, 29), 11_016), ((2000, 3, 1), 11_017)]
        {
            assert_eq!(Value::date(date.0, date.1, date.2), Some(Value::Date(days)));
        }
        assert_eq!(Value::date(i32::MAX, 1, 1), None);
        assert_eq!(
            [Value::date(2001, 0, 1), Value::date(2001, 4, 31), Value::date(2001, 1, 0)],
            [None, None, None]
        );
    }
}
