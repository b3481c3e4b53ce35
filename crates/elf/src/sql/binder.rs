//! Comparisons as rows: operands are bound to columns and their dictionaries.
//!
//! A comparison comes with whether it is negated, and becomes the rows for which it, or its negation, is
//! true. NULL is in neither: a negated comparison has all other codes but that of NULL.

use std::ops::{Bound, Range};

use super::constant;
use super::lexer::Fault;
use super::names;
use super::space::{Disjunction, Space, complement};
use crate::dictionary::Dictionary;
use crate::predicate::{Interval, normalize};
use crate::schema::{ColumnType, Value};

pub(super) type Result<T> = std::result::Result<T, Fault>;

/// What a comparison has on one side.
#[derive(Clone, Debug)]
pub(super) enum Operand {
    Column(usize),
    Value(Value),
}

/// An operand and its bytes in the text.
pub(super) type SpannedOperand = (Operand, Range<usize>);

/// A comparison, by the orders of its operands for which it is true.
#[derive(Clone, Copy, Debug)]
pub(super) struct Comparison {
    less: bool,
    equal: bool,
    greater: bool,
}

impl Comparison {
    pub(super) const EQUAL: Self = Self { less: false, equal: true, greater: false };
    pub(super) const UP_TO: Self = Self { less: true, equal: true, greater: false };
    pub(super) const FROM: Self = Self { less: false, equal: true, greater: true };

    pub(super) fn of(sign: &str) -> Option<Self> {
        let (less, equal, greater) = match sign {
            "=" => (false, true, false),
            "<>" | "!=" => (true, false, true),
            "<" => (true, false, false),
            "<=" => (true, true, false),
            ">" => (false, false, true),
            ">=" => (false, true, true),
            _ => return None,
        };
        Some(Self { less, equal, greater })
    }

    /// The comparison that is true where this one is false.
    fn opposite(self) -> Self {
        Self { less: !self.less, equal: !self.equal, greater: !self.greater }
    }

    /// The same comparison with the operands exchanged.
    fn mirrored(self) -> Self {
        Self { less: self.greater, greater: self.less, ..self }
    }
}

/// The columns of a table.
pub(super) struct Binder<'a> {
    pub(super) dictionaries: &'a [Dictionary],
    pub(super) space: Space,
}

impl<'a> Binder<'a> {
    /// The columns of `dictionaries`, one each. Disjunctions have at most `conjunctions_max` conjunctions.
    pub(super) fn new(dictionaries: &'a [Dictionary], conjunctions_max: usize) -> Self {
        let codes = |dictionary: &Dictionary| {
            let low = if dictionary.column().is_nullable { Dictionary::NULL } else { Dictionary::NULL + 1 };
            Interval::new(low, dictionary.len() as u32)
        };
        let space = Space { codes: dictionaries.iter().map(codes).collect(), conjunctions_max };
        Self { dictionaries, space }
    }

    /// Rows where `operand` is NULL.
    pub(super) fn is_null(&self, operand: &Operand, is_negated: bool) -> Disjunction {
        match operand {
            Operand::Value(value) => self.space.constant((*value == Value::Null) != is_negated),
            &Operand::Column(column) => {
                let dictionary = &self.dictionaries[column];
                let codes = if is_negated { dictionary.not_null() } else { dictionary.null() };
                self.space.column(column, vec![codes])
            }
        }
    }

    /// Rows where `comparison` holds between two operands.
    pub(super) fn compare(
        &self,
        (left, left_span): &SpannedOperand,
        comparison: Comparison,
        (right, right_span): &SpannedOperand,
        is_negated: bool,
    ) -> Result<Disjunction> {
        let comparison = if is_negated { comparison.opposite() } else { comparison };
        match (left, right) {
            (&Operand::Column(column), Operand::Value(value)) => {
                self.compare_column(column, comparison, value, right_span)
            }
            (Operand::Value(value), &Operand::Column(column)) => {
                self.compare_column(column, comparison.mirrored(), value, left_span)
            }
            (Operand::Column(_), Operand::Column(_)) => fault(
                "two columns are compared, which is no condition on the values of one column",
                left_span.start..right_span.end,
            ),
            (Operand::Value(Value::Null), _) | (_, Operand::Value(Value::Null)) => {
                Ok(self.space.constant(false))
            }
            (Operand::Value(left), Operand::Value(right)) => match constant::compare(left, right) {
                Some(order) => {
                    let Comparison { less, equal, greater } = comparison;
                    let is_true =
                        (order.is_lt() && less) || (order.is_eq() && equal) || (order.is_gt() && greater);
                    Ok(self.space.constant(is_true))
                }
                None => {
                    let what = format!("a {} cannot be compared with a {}", left.kind(), right.kind());
                    fault(what, left_span.start..right_span.end)
                }
            },
        }
    }

    fn compare_column(
        &self,
        column: usize,
        comparison: Comparison,
        value: &Value,
        span: &Range<usize>,
    ) -> Result<Disjunction> {
        let dictionary = &self.dictionaries[column];
        let parts = [
            (comparison.less, Bound::Unbounded, Bound::Excluded(value)),
            (comparison.equal, Bound::Included(value), Bound::Included(value)),
            (comparison.greater, Bound::Excluded(value), Bound::Unbounded),
        ];
        let mut intervals = Vec::new();
        for (is_part, low, high) in parts {
            let codes = between(dictionary, low, high, span)?;
            intervals.extend(codes.filter(|_| is_part));
        }
        Ok(self.space.column(column, intervals))
    }

    /// Rows where the column `left` begins with the prefix that `right` gives, or is equal to it without a
    /// `%`.
    pub(super) fn like(
        &self,
        (left, left_span): &SpannedOperand,
        (right, span): &SpannedOperand,
        is_negated: bool,
    ) -> Result<Disjunction> {
        let pattern = match right {
            Operand::Value(Value::String(pattern)) => pattern,
            Operand::Value(Value::Null) => return Ok(self.space.constant(false)),
            _ => return fault("a pattern in single quotes is expected behind `like`", span.clone()),
        };
        let Operand::Column(column) = *left else {
            return fault("`like` needs a column on its left side", left_span.clone());
        };
        let dictionary = &self.dictionaries[column];
        if dictionary.column().kind != ColumnType::String {
            let what =
                format!("column `{}` holds no strings that `like` could compare", dictionary.column().name);
            return fault(what, left_span.clone());
        }
        let prefix = pattern.strip_suffix('%');
        if prefix.unwrap_or(pattern).contains(['%', '_']) {
            return fault(
                "only a pattern with one `%` at its end, 'prefix%', can be an interval of codes",
                span.clone(),
            );
        }
        let first = Value::String(prefix.unwrap_or(pattern).to_owned());
        let behind = prefix.map(|prefix| names::behind_prefix(prefix).map(Value::String));
        let high = match &behind {
            None => Bound::Included(&first),
            Some(None) => Bound::Unbounded,
            Some(Some(behind)) => Bound::Excluded(behind),
        };
        let matching = between(dictionary, Bound::Included(&first), high, span)?;
        Ok(self.column(column, matching.into_iter().collect(), is_negated))
    }

    /// Rows whose code of `column` is in `intervals`, or, negated, is neither in them nor NULL.
    fn column(&self, column: usize, intervals: Vec<Interval>, is_negated: bool) -> Disjunction {
        if !is_negated {
            return self.space.column(column, intervals);
        }
        let null = self.dictionaries[column].null();
        let excluded = normalize(intervals.into_iter().chain([null]).collect());
        self.space.column(column, complement(&excluded))
    }
}

/// Says what is wrong with the bytes of `span`.
pub(super) fn fault<T>(what: impl Into<String>, span: Range<usize>) -> Result<T> {
    Err(Fault { what: what.into(), span })
}

/// Codes between two bounds, of which the constant at `span` is one.
fn between(
    dictionary: &Dictionary,
    low: Bound<&Value>,
    high: Bound<&Value>,
    span: &Range<usize>,
) -> Result<Option<Interval>> {
    dictionary.between(low, high).map_err(|error| Fault { what: error.to_string(), span: span.clone() })
}
