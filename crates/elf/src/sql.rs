//! Conditions in SQL notation, as predicates over codes.
//!
//! A condition is what stands behind WHERE in a query of one table. It becomes a list of conjunctions whose
//! rows do not overlap, so that counts add up and ids need no deduplication. A condition is met where it is
//! true, not where it is unknown, by the three-valued logic of SQL.
//!
//! ```text
//! condition   conjunction { OR conjunction }
//! conjunction term { AND term }
//! term        NOT term | ( condition ) | operand comparison
//! comparison  = <> != < <= > >= operand | IS [NOT] NULL | [NOT] BETWEEN operand AND operand
//!             | [NOT] IN ( operand, ... ) | [NOT] LIKE 'prefix%'
//! operand     column | "column" | sum of constants: 1.5  'text'  date '1994-01-31'  interval '3' month  NULL
//! ```

mod binder;
mod constant;
mod lexer;
mod names;
mod parser;
mod space;

use crate::dictionary::Dictionary;
use crate::error::{Error, Result};
use crate::predicate::Predicate;
use lexer::Fault;

/// Bounds on a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SqlOptions {
    /// Most predicates of a result, and most conjunctions at any place of the condition. Default: 64.
    pub predicates_max: usize,
    /// Most parentheses within each other; each takes about 1 KB of the stack. Default: 200.
    pub depth_max: usize,
}

impl Default for SqlOptions {
    fn default() -> Self {
        Self { predicates_max: 64, depth_max: 200 }
    }
}

/// Characters of the text that an error shows before and behind the place.
const AROUND: usize = 24;

/// Translates a condition on the columns of `dictionaries`, one each. A row meets it if it meets one of the
/// predicates, and then only one. Fails if the text is no condition on these columns, with the byte at which
/// it is wrong, and if it needs more predicates or parentheses than `options` allow.
///
/// ```
/// use pando_elf::{Column, ColumnType, Dictionary, Interval, Predicate, SqlOptions, Value, parse_condition};
/// let column = Column::new("quantity", ColumnType::Integer);
/// let dictionary = Dictionary::new(&column, [10, 20, 30, 40].map(Value::Integer).iter())?;
/// let dictionaries = [dictionary];
/// let parse = |text| parse_condition(text, &dictionaries, &SqlOptions::default());
/// let expected = Predicate::all().and(0, [Interval::point(1), Interval::new(3, 4)]);
/// assert_eq!(parse("quantity < 15 or not quantity between 20 and 29.5")?, [expected]);
/// let error = parse("quantity < 15 or quantum = 2").map_err(|error| error.to_string());
/// let message = "there is no column `quantum`; the nearest is `quantity`, at byte 17: quantity < 15 or >>quantum<< = 2";
/// assert_eq!(error, Err(message.into()));
/// # Ok::<(), pando_elf::Error>(())
/// ```
pub fn parse_condition(
    text: &str,
    dictionaries: &[Dictionary],
    options: &SqlOptions,
) -> Result<Vec<Predicate>> {
    if dictionaries.is_empty() {
        return Err(Error::NoColumns);
    }
    lexer::tokens(text).and_then(|tokens| parser::Parser::new(tokens, dictionaries, options).parse()).map_err(
        |Fault { what, span }| {
            let around = around(text, span.start, span.end);
            Error::BadCondition { what, at: span.start, around }
        },
    )
}

/// The part of `text` near the bytes from `start` to `end`, which are marked.
fn around(text: &str, start: usize, end: usize) -> String {
    let last = |part: &str| part.char_indices().rev().nth(AROUND - 1).map_or(0, |(at, _)| at);
    let first = |part: &str| part.char_indices().nth(AROUND).map_or(part.len(), |(at, _)| at);
    let cut = |part: &str, shown: &str| if shown.len() < part.len() { "..." } else { "" };
    let (before, marked, behind) = (&text[..start], &text[start..end], &text[end..]);
    let shown = [&before[last(before)..], &marked[..first(marked)], &behind[..first(behind)]];
    let excerpt = format!(
        "{}{}>>{}{}<<{}{}",
        cut(before, shown[0]),
        shown[0],
        shown[1],
        cut(marked, shown[1]),
        shown[2],
        cut(behind, shown[2])
    );
    excerpt.split_whitespace().collect::<Vec<_>>().join(" ")
}
