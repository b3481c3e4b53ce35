//! Types of columns: as given on the command line, as found in a file, and the values of fields.
//!
//! The type of a CSV column is what all of its fields are, over the whole file: integers, else decimals with as many
//! digits as any of them has, else dates, else text. Numbers with zeros before them, like postal codes, are text. An
//! empty field is NULL, in every type.

use std::str::FromStr;

use pando::elf::{Cell, ColumnType, Value};
use pando_workload::dataset::{Column, Content, DatasetError};

/// Digits that a decimal may have.
const DIGITS_MAX: usize = 38;

/// A column of a file, and its type if that is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypedColumn {
    pub column: Column,
    pub kind: Option<ColumnType>,
}

impl FromStr for TypedColumn {
    type Err = DatasetError;

    fn from_str(text: &str) -> Result<TypedColumn, DatasetError> {
        if let Some((name, kind)) = text.rsplit_once(':')
            && let Some(kind) = parse_kind(kind)
        {
            return Ok(TypedColumn { column: name.parse()?, kind: Some(kind) });
        }
        Ok(TypedColumn { column: text.parse()?, kind: None })
    }
}

fn parse_kind(text: &str) -> Option<ColumnType> {
    Some(match text {
        "int" => ColumnType::Integer,
        "date" => ColumnType::Date,
        "str" => ColumnType::String,
        _ => {
            let digits = text.strip_prefix("decimal(")?.strip_suffix(')')?;
            let scale = digits.parse().ok().filter(|&scale| usize::from(scale) <= DIGITS_MAX)?;
            ColumnType::Decimal { scale }
        }
    })
}

/// The type as on the command line.
pub fn name_of(kind: ColumnType) -> String {
    match kind {
        ColumnType::Integer => "int".to_owned(),
        ColumnType::Decimal { scale } => format!("decimal({scale})"),
        ColumnType::Date => "date".to_owned(),
        ColumnType::String => "str".to_owned(),
    }
}

/// The type that a file gives a column; `None` if its fields have to be looked at.
pub fn kind_of(content: Content) -> Option<ColumnType> {
    match content {
        Content::Text => None,
        Content::Integer => Some(ColumnType::Integer),
        Content::Decimal { scale } => Some(ColumnType::Decimal { scale: u8::try_from(scale).ok()? }),
        Content::Date => Some(ColumnType::Date),
        // It has no order that text keeps, and not all of them are decimals.
        Content::Float => None,
    }
}

/// What the fields of a column were so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Inferred {
    /// Whether there was a field that is not NULL.
    is_seen: bool,
    is_no_integer: bool,
    is_no_decimal: bool,
    is_no_date: bool,
    /// Most digits behind the point, and before it.
    scale: usize,
    whole: usize,
}

impl Inferred {
    pub fn see(&mut self, field: &[u8]) {
        self.is_seen = true;
        if !self.is_no_decimal {
            match plain_number(field) {
                Some((whole, scale)) => {
                    (self.whole, self.scale) = (self.whole.max(whole), self.scale.max(scale));
                    let is_integer = scale == 0 && number(field, ColumnType::Integer).is_some();
                    self.is_no_integer |= !is_integer;
                }
                None => (self.is_no_integer, self.is_no_decimal) = (true, true),
            }
        }
        self.is_no_date = self.is_no_date || date(field).is_none();
    }

    /// Whether further fields cannot change the type.
    pub fn is_text(&self) -> bool {
        self.is_no_decimal && self.is_no_date
    }

    pub fn kind(&self) -> ColumnType {
        match self {
            Inferred { is_seen: false, .. } => ColumnType::String,
            Inferred { is_no_integer: false, .. } => ColumnType::Integer,
            Inferred { is_no_decimal: false, scale, whole, .. } if scale + whole <= DIGITS_MAX => {
                ColumnType::Decimal { scale: *scale as u8 }
            }
            Inferred { is_no_date: false, .. } => ColumnType::Date,
            _ => ColumnType::String,
        }
    }
}

/// Digits before and behind the point of a number that would be written the same way again, but for zeros at its end.
fn plain_number(field: &[u8]) -> Option<(usize, usize)> {
    let digits = field.strip_prefix(b"-").unwrap_or(field);
    let point = digits.iter().position(|&byte| byte == b'.');
    let (whole, fraction) = match point {
        Some(point) => (&digits[..point], &digits[point + 1..]),
        None => (digits, &[][..]),
    };
    let are_digits = |part: &[u8]| part.iter().all(u8::is_ascii_digit);
    let is_number = !whole.is_empty()
        && (point.is_none() || !fraction.is_empty())
        && are_digits(whole)
        && are_digits(fraction)
        && (whole == b"0" || whole[0] != b'0');
    is_number.then_some((whole.len(), fraction.len()))
}

/// The number of a field, without its point, in the scale of a type; `None` if the type cannot hold it.
fn number(field: &[u8], kind: ColumnType) -> Option<i128> {
    let scale = match kind {
        ColumnType::Decimal { scale } => usize::from(scale),
        _ => 0,
    };
    let (is_negative, digits) = match field {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    let mut parts = digits.splitn(2, |&byte| byte == b'.');
    let (whole, fraction) = (parts.next()?, parts.next().unwrap_or_default());
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    // Zeros at the end do not change the value.
    let end = fraction.iter().rposition(|&byte| byte != b'0').map_or(0, |last| last + 1);
    let fraction = &fraction[..end];
    if fraction.len() > scale {
        return None;
    }
    let zeros = std::iter::repeat_n(&b'0', scale - fraction.len());
    let mut number = 0_i128;
    for &byte in whole.iter().chain(fraction).chain(zeros) {
        let digit = byte.is_ascii_digit().then(|| i128::from(byte - b'0'))?;
        number = number.checked_mul(10)?.checked_add(digit)?;
    }
    let number = if is_negative { -number } else { number };
    let fits = kind != ColumnType::Integer || i64::try_from(number).is_ok();
    fits.then_some(number)
}

/// Days since 1970-01-01 of a date like `1994-01-31`.
fn date(field: &[u8]) -> Option<i128> {
    let text = str::from_utf8(field).ok()?;
    let (year, rest) = text.split_at_checked(text.len().checked_sub(6)?)?;
    let mut parts = rest.strip_prefix('-')?.split('-');
    let (month, day) = (parts.next()?, parts.next()?);
    let are_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    let is_date = year.len() >= 4 && month.len() == 2 && day.len() == 2;
    if !is_date || !are_digits(year) || !are_digits(month) || !are_digits(day) || parts.next().is_some() {
        return None;
    }
    match Value::date(year.parse().ok()?, month.parse().ok()?, day.parse().ok()?)? {
        Value::Date(days) => Some(days.into()),
        _ => None,
    }
}

/// The value of a field as a column of this type has it; `None` if it has none.
pub fn cell(field: Option<&[u8]>, kind: ColumnType) -> Option<Cell<'_>> {
    let Some(field) = field else { return Some(Cell::Null) };
    match kind {
        ColumnType::String => str::from_utf8(field).ok().map(Cell::Text),
        ColumnType::Date => date(field).map(Cell::Number),
        ColumnType::Integer | ColumnType::Decimal { .. } => number(field, kind).map(Cell::Number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inferred(fields: &[&str]) -> String {
        let mut inferred = Inferred::default();
        fields.iter().for_each(|field| inferred.see(field.as_bytes()));
        name_of(inferred.kind())
    }

    #[test]
    fn a_type_is_what_all_fields_are() {
        assert_eq!(inferred(&["1", "-20", "0"]), "int");
        assert_eq!(inferred(&["1", "2.50", "-3.1"]), "decimal(2)");
        assert_eq!(inferred(&["1", "99999999999999999999"]), "decimal(0)");
        assert_eq!(inferred(&["1994-01-31", "2000-02-29"]), "date");
        assert_eq!(inferred(&["1994-01-31", "1900-02-29"]), "str");
        assert_eq!(inferred(&["01234", "2"]), "str");
        assert_eq!(inferred(&["1", "1994-01-31"]), "str");
        assert_eq!(inferred(&["1e5"]), "str");
        assert_eq!(inferred(&[]), "str");
        assert_eq!(inferred(&["0.5", "123456789012345678901234567890123456789"]), "str");
    }

    #[test]
    fn fields_become_values_of_their_type() {
        let decimal = ColumnType::Decimal { scale: 2 };
        let cell = |text: &'static str, kind| cell(Some(text.as_bytes()), kind);
        assert_eq!(cell("-1.5", decimal), Some(Cell::Number(-150)));
        assert_eq!(cell("1.500", decimal), Some(Cell::Number(150)));
        assert_eq!((cell("1.505", decimal), cell("x", decimal), cell(".", decimal)), (None, None, None));
        assert_eq!(cell("7", ColumnType::Integer), Some(Cell::Number(7)));
        assert_eq!(cell("9223372036854775808", ColumnType::Integer), None);
        assert_eq!(cell("1970-01-02", ColumnType::Date), Some(Cell::Number(1)));
        assert_eq!((cell("70-01-02", ColumnType::Date), cell("1970-1-2", ColumnType::Date)), (None, None));
        assert_eq!(cell("x", ColumnType::String), Some(Cell::Text("x")));
        assert_eq!(super::cell(Some(b"\xff"), ColumnType::String), None);
        assert_eq!(super::cell(None, decimal), Some(Cell::Null));
    }

    #[test]
    fn columns_have_types() {
        let parsed = |text: &str| text.parse::<TypedColumn>().map(|column| column.kind);
        assert!(matches!(parsed("a:decimal(2)"), Ok(Some(ColumnType::Decimal { scale: 2 }))));
        assert!(matches!(parsed("a:date"), Ok(Some(ColumnType::Date))));
        assert!(matches!(parsed("a"), Ok(None)));
        assert!(parsed("").is_err());
    }
}
