//! Dictionaries that keep the order of values: a smaller value has a smaller code.
//!
//! Code 0 is NULL, in every column. The distinct values of a column have the codes from 1 on. A bound that does
//! not occur is rounded inwards, to the next value that does, so that a condition on values is a condition on
//! codes. Comparisons with NULL are never true, as in SQL: only [`Dictionary::null`] matches it.

use std::cmp::Ordering;
use std::ops::Bound;

use crate::error::{Error, Result};
use crate::predicate::Interval;
use crate::schema::{Column, ColumnType, Value, compare_decimals, rescale};

/// The distinct values of one column, ascending, without NULL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Distinct {
    /// Integers, unscaled decimals of the column's scale, or days.
    Numbers(Vec<i128>),
    Strings(Vec<Box<str>>),
}

impl Distinct {
    fn numbers(&self) -> &[i128] {
        match self {
            Self::Numbers(numbers) => numbers,
            Self::Strings(_) => &[],
        }
    }

    fn strings(&self) -> &[Box<str>] {
        match self {
            Self::Strings(strings) => strings,
            Self::Numbers(_) => &[],
        }
    }
}

/// The codes of one column's values.
///
/// ```
/// use std::ops::Bound;
/// use pando_elf::{Column, ColumnType, Dictionary, Interval, Value};
/// let column = Column::new("discount", ColumnType::Decimal { scale: 2 });
/// let of = |unscaled| Value::Decimal { unscaled, scale: 2 };
/// let dictionary = Dictionary::new(&column, [of(7), of(3), of(5)].iter())?;
/// assert_eq!(dictionary.code(&of(5))?, Some(2));
/// let narrowed = dictionary.between(Bound::Included(&of(4)), Bound::Unbounded)?;
/// assert_eq!(narrowed, Some(Interval::new(2, 3)));
/// # Ok::<(), pando_elf::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dictionary {
    column: Column,
    distinct: Distinct,
}

impl Dictionary {
    /// Code of NULL.
    pub const NULL: u32 = 0;

    /// Collects the distinct ones of `values`. Fails if one is not of the column's type, is NULL in a column
    /// without NULL, or cannot be written in the column's scale, and if 32 bits cannot count them.
    pub fn new<'v>(column: &Column, values: impl Iterator<Item = &'v Value>) -> Result<Self> {
        let mut distinct = match column.kind {
            ColumnType::String => Distinct::Strings(Vec::new()),
            _ => Distinct::Numbers(Vec::new()),
        };
        for value in values {
            column.check(value)?;
            match (&mut distinct, value) {
                (_, Value::Null) => {}
                (Distinct::Strings(strings), Value::String(string)) => strings.push(string.as_str().into()),
                (Distinct::Numbers(numbers), _) => numbers.push(stored(column, value)?),
                (Distinct::Strings(_), _) => return Err(column.wrong_type(value)),
            }
        }
        match &mut distinct {
            Distinct::Numbers(numbers) => sort_distinct(numbers),
            Distinct::Strings(strings) => sort_distinct(strings),
        }
        Self { column: column.clone(), distinct }.counted()
    }

    /// The dictionary of those values of several dictionaries of one column whose code is used, and for each of
    /// the dictionaries the new code of each used one. `used` is indexed by code. Since all of them keep the
    /// order of values, so does each change of codes. Fails if 32 bits cannot count the values.
    pub(crate) fn union(column: &Column, dictionaries: &[(&Self, &[bool])]) -> Result<(Self, Vec<Vec<u32>>)> {
        let lists = dictionaries.iter().map(|&(other, used)| (&other.distinct, used));
        let (distinct, codes) = if column.kind == ColumnType::String {
            let (strings, codes) = united(lists.map(|(distinct, used)| (distinct.strings(), used)));
            (Distinct::Strings(strings), codes)
        } else {
            let (numbers, codes) = united(lists.map(|(distinct, used)| (distinct.numbers(), used)));
            (Distinct::Numbers(numbers), codes)
        };
        Ok((Self { column: column.clone(), distinct }.counted()?, codes))
    }

    /// Fails if 32 bits cannot count the values.
    fn counted(self) -> Result<Self> {
        match u32::try_from(self.len()) {
            Ok(_) => Ok(self),
            Err(_) => Err(Error::TooManyValues { column: self.column.name }),
        }
    }

    /// The dictionary of distinct values of the column's type, which ascend.
    pub(crate) fn of(column: Column, distinct: Distinct) -> Self {
        Self { column, distinct }
    }

    pub fn column(&self) -> &Column {
        &self.column
    }

    pub(crate) fn distinct(&self) -> &Distinct {
        &self.distinct
    }

    /// Number of distinct values without NULL, which is the largest code.
    pub fn len(&self) -> usize {
        match &self.distinct {
            Distinct::Numbers(numbers) => numbers.len(),
            Distinct::Strings(strings) => strings.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Code of `value`, `None` if it does not occur. Fails if it is not of the column's type.
    pub fn code(&self, value: &Value) -> Result<Option<u32>> {
        if *value == Value::Null {
            return Ok(Some(Self::NULL));
        }
        let below = self.below(value, false)?;
        Ok((self.below(value, true)? > below).then_some(below + 1))
    }

    /// The value of a code. Fails if there is none.
    pub fn value(&self, code: u32) -> Result<Value> {
        let Some(at) = (code as usize).checked_sub(1) else { return Ok(Value::Null) };
        let found = match &self.distinct {
            Distinct::Strings(strings) => strings.get(at).map(|string| Value::String(string.to_string())),
            Distinct::Numbers(numbers) => numbers.get(at).map(|&number| match self.column.kind {
                ColumnType::Decimal { scale } => Value::Decimal { unscaled: number, scale },
                ColumnType::Date => Value::Date(number as i32),
                ColumnType::Integer | ColumnType::String => Value::Integer(number as i64),
            }),
        };
        let column = || self.column.name.clone();
        found.ok_or_else(|| Error::UnknownCode { column: column(), code, values: self.len() })
    }

    /// Codes of the values between two bounds, `None` if there are none. NULL is never between bounds. Fails
    /// if a bound cannot be compared with the column's values.
    pub fn between(&self, low: Bound<&Value>, high: Bound<&Value>) -> Result<Option<Interval>> {
        // A bound that is NULL is unknown, and so is every comparison with it.
        if [low, high]
            .iter()
            .any(|bound| matches!(bound, Bound::Included(Value::Null) | Bound::Excluded(Value::Null)))
        {
            return Ok(None);
        }
        let below = match low {
            Bound::Unbounded => 0,
            Bound::Included(value) => self.below(value, false)?,
            Bound::Excluded(value) => self.below(value, true)?,
        };
        let up_to = match high {
            Bound::Unbounded => self.len() as u32,
            Bound::Included(value) => self.below(value, true)?,
            Bound::Excluded(value) => self.below(value, false)?,
        };
        Ok((below < up_to).then(|| Interval::new(below + 1, up_to)))
    }

    /// Codes of NULL.
    pub fn null(&self) -> Interval {
        Interval::point(Self::NULL)
    }

    /// Codes of all values but NULL.
    pub fn not_null(&self) -> Interval {
        Interval::new(Self::NULL + 1, u32::MAX)
    }

    /// Number of values below `value`, or up to it with `or_equal`.
    fn below(&self, value: &Value, or_equal: bool) -> Result<u32> {
        if !self.column.is_comparable(value) {
            return Err(self.column.wrong_type(value));
        }
        let counts = |order: Ordering| order == Ordering::Less || (or_equal && order == Ordering::Equal);
        let scale = match self.column.kind {
            ColumnType::Decimal { scale } => scale,
            _ => 0,
        };
        let below = match (&self.distinct, value) {
            (Distinct::Strings(strings), Value::String(bound)) => {
                strings.partition_point(|string| counts((**string).cmp(bound)))
            }
            (Distinct::Numbers(numbers), _) => {
                let Some((bound, bound_scale)) = number(value) else {
                    return Err(self.column.wrong_type(value));
                };
                numbers.partition_point(|&number| counts(compare_decimals(number, scale, bound, bound_scale)))
            }
            (Distinct::Strings(_), _) => return Err(self.column.wrong_type(value)),
        };
        Ok(below as u32)
    }
}

/// The distinct ones of the used values of several ascending lists, and the new code of each old one.
fn united<'l, T: Ord + Clone + 'l>(
    lists: impl Iterator<Item = (&'l [T], &'l [bool])>,
) -> (Vec<T>, Vec<Vec<u32>>) {
    let (mut all, mut codes) = (Vec::new(), Vec::new());
    for (list, (values, used)) in lists.enumerate() {
        all.extend(
            (1..).zip(values).filter(|&(code, _)| used[code]).map(|(code, value)| (value, list, code)),
        );
        codes.push(vec![Dictionary::NULL; values.len() + 1]);
    }
    // The lists ascend, which a stable sort makes use of.
    all.sort();
    let mut distinct: Vec<T> = Vec::new();
    for (value, list, code) in all {
        if distinct.last() != Some(value) {
            distinct.push(value.clone());
        }
        codes[list][code] = distinct.len() as u32;
    }
    (distinct, codes)
}

fn sort_distinct<T: Ord>(values: &mut Vec<T>) {
    values.sort_unstable();
    values.dedup();
    values.shrink_to_fit();
}

/// A number and its scale, `None` for values that are no numbers.
fn number(value: &Value) -> Option<(i128, u8)> {
    match value {
        Value::Integer(number) => Some(((*number).into(), 0)),
        Value::Decimal { unscaled, scale } => Some((*unscaled, *scale)),
        Value::Date(days) => Some(((*days).into(), 0)),
        Value::Null | Value::String(_) => None,
    }
}

/// A number in the scale of `column`. Fails if that would change its value.
pub(crate) fn stored(column: &Column, value: &Value) -> Result<i128> {
    let column_scale = match column.kind {
        ColumnType::Decimal { scale } => scale,
        _ => 0,
    };
    let exact = number(value).and_then(|(number, scale)| match scale.checked_sub(column_scale) {
        None => rescale(number, column_scale - scale),
        Some(digits) => {
            let divisor = rescale(1, digits)?;
            (number % divisor == 0).then_some(number / divisor)
        }
    });
    let exact = exact.filter(|&number| column.kind != ColumnType::Integer || i64::try_from(number).is_ok());
    exact.ok_or_else(|| column.wrong_type(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::String(text.into())
    }

    #[test]
    fn codes_keep_the_order_and_null_is_zero() {
        let column = Column::new("mode", ColumnType::String).nullable();
        let values = [text("RAIL"), Value::Null, text("AIR"), text("RAIL"), text("MAIL")];
        let dictionary = Dictionary::new(&column, values.iter()).expect("texts");
        let codes = values.each_ref().map(|value| dictionary.code(value));
        assert_eq!(codes, [Ok(Some(3)), Ok(Some(0)), Ok(Some(1)), Ok(Some(3)), Ok(Some(2))]);
        assert_eq!(
            (0..4).map(|code| dictionary.value(code)).collect::<Result<Vec<_>>>(),
            Ok(vec![Value::Null, text("AIR"), text("MAIL"), text("RAIL")])
        );
        assert!(dictionary.value(4).is_err());
        assert_eq!(dictionary.code(&text("SHIP")), Ok(None));
    }

    #[test]
    fn bounds_are_rounded_inwards() {
        let column = Column::new("n", ColumnType::Integer);
        let values = [10, 20, 30].map(Value::Integer);
        let dictionary = Dictionary::new(&column, values.iter()).expect("numbers");
        let tenths = |unscaled| Value::Decimal { unscaled, scale: 1 };
        use Bound::{Excluded, Included, Unbounded};
        let some = |low, high| Ok(Some(Interval::new(low, high)));
        assert_eq!(dictionary.between(Included(&tenths(101)), Unbounded), some(2, 3));
        assert_eq!(dictionary.between(Included(&tenths(100)), Excluded(&tenths(300))), some(1, 2));
        assert_eq!(
            dictionary.between(Excluded(&Value::Integer(10)), Included(&Value::Integer(29))),
            some(2, 2)
        );
        assert_eq!(
            dictionary.between(Included(&Value::Integer(11)), Included(&Value::Integer(19))),
            Ok(None)
        );
        assert_eq!(
            dictionary.between(Included(&Value::Integer(30)), Included(&Value::Integer(10))),
            Ok(None)
        );
        assert_eq!(dictionary.between(Unbounded, Included(&Value::Null)), Ok(None));
        assert_eq!(dictionary.between(Unbounded, Unbounded), some(1, 3));
    }

    #[test]
    fn wrong_values_are_refused() {
        let decimal = Column::new("price", ColumnType::Decimal { scale: 2 });
        let message = |column: &Column, value: Value| {
            Dictionary::new(column, [value].iter()).err().map(|error| error.to_string()).unwrap_or_default()
        };
        assert_eq!(message(&decimal, Value::Null), "column `price` is not nullable, but NULL was found");
        let expected = "column `price` holds values of type decimal with 2 digits behind the point, not ";
        assert_eq!(message(&decimal, text("x")), format!("{expected}string"));
        assert_eq!(message(&decimal, Value::Decimal { unscaled: 5, scale: 3 }), format!("{expected}decimal"));
        assert_eq!(message(&decimal, Value::Decimal { unscaled: 50, scale: 3 }), "");
        let dictionary = Dictionary::new(&decimal, [].iter()).expect("no values");
        assert!(dictionary.code(&Value::Date(1)).is_err() && dictionary.is_empty());
    }

    #[test]
    fn a_union_keeps_the_order_and_drops_what_is_not_used() {
        let column = Column::new("n", ColumnType::Integer).nullable();
        let of = |values: &[i64]| {
            let values: Vec<Value> = values.iter().copied().map(Value::Integer).collect();
            Dictionary::new(&column, values.iter()).expect("numbers")
        };
        let (old, new) = (of(&[10, 20, 30]), of(&[5, 20, 25]));
        let used = [[true, true, false, true], [false, true, true, true]];
        let parts = [(&old, used[0].as_slice()), (&new, used[1].as_slice())];
        let (union, codes) = Dictionary::union(&column, &parts).expect("few values");
        assert_eq!(union, of(&[5, 10, 20, 25, 30]));
        assert_eq!(codes, [[0, 2, 0, 5], [0, 1, 3, 4]]);
    }
}
