//! Recursive descent over the tokens of a condition; each part gives the rows for which it is true.
//!
//! `not` is pushed down to the comparisons: it turns `and` into `or`, and a comparison into its opposite. In
//! the three-valued logic of SQL this is exact: neither a comparison with NULL nor its opposite is true.

use std::ops::Range;

use super::SqlOptions;
use super::binder::{Binder, Comparison, Operand, Result, SpannedOperand, fault};
use super::constant::{self, Constant};
use super::lexer::{Fault, Spanned, Token};
use super::names;
use super::space::Disjunction;
use crate::dictionary::Dictionary;
use crate::predicate::Predicate;
use crate::schema::Value;

pub(super) struct Parser<'a> {
    tokens: Vec<Spanned<'a>>,
    next: usize,
    binder: Binder<'a>,
    /// Parentheses that may still be opened within each other.
    depth: usize,
    options: &'a SqlOptions,
}

impl<'a> Parser<'a> {
    /// A parser for `tokens`, which end with [`Token::End`].
    pub(super) fn new(
        tokens: Vec<Spanned<'a>>,
        dictionaries: &'a [Dictionary],
        options: &'a SqlOptions,
    ) -> Self {
        let binder = Binder::new(dictionaries, options.predicates_max);
        Self { tokens, next: 0, binder, depth: options.depth_max, options }
    }

    /// Reads all tokens as one condition.
    pub(super) fn parse(mut self) -> Result<Vec<Predicate>> {
        let rows = self.condition(false)?;
        match self.peek() {
            Token::End => {}
            Token::Sign(")") => return self.fail("this `)` has no `(` before it"),
            _ => return self.fail("the condition is complete here, but text follows"),
        }
        let whole = 0..self.tokens[self.next].1.end;
        self.binder.space.disjoint(rows).ok_or_else(|| self.too_many(whole))
    }

    /// Terms with `or` between them.
    fn condition(&mut self, is_negated: bool) -> Result<Disjunction> {
        let first = self.next;
        let mut terms = vec![self.conjunction(is_negated)?];
        while self.take_word("or") {
            terms.push(self.conjunction(is_negated)?);
        }
        self.join(terms, is_negated, first)
    }

    /// Terms with `and` between them.
    fn conjunction(&mut self, is_negated: bool) -> Result<Disjunction> {
        let first = self.next;
        let mut terms = vec![self.term(is_negated)?];
        while self.take_word("and") {
            terms.push(self.term(is_negated)?);
        }
        self.join(terms, !is_negated, first)
    }

    /// Rows of all `terms` or of any, which begin at token `first`.
    fn join(&self, mut terms: Vec<Disjunction>, all: bool, first: usize) -> Result<Disjunction> {
        if terms.len() == 1 {
            return Ok(terms.swap_remove(0));
        }
        let joined = if all { self.binder.space.intersection(terms) } else { self.binder.space.union(terms) };
        joined.ok_or_else(|| self.too_many(self.span_from(first)))
    }

    /// A comparison or a condition in parentheses, behind any number of `not`.
    fn term(&mut self, mut is_negated: bool) -> Result<Disjunction> {
        while self.take_word("not") {
            is_negated = !is_negated;
        }
        let opened = self.tokens[self.next].1.start;
        if !self.take_sign("(") {
            return self.comparison(is_negated);
        }
        let Some(depth) = self.depth.checked_sub(1) else {
            self.next -= 1;
            return self
                .fail(format!("more than {} parentheses lie within each other", self.options.depth_max));
        };
        self.depth = depth;
        let rows = self.condition(is_negated)?;
        self.depth += 1;
        self.expect_sign(")", || format!("the `(` at byte {opened} needs a `)`"))?;
        Ok(rows)
    }

    fn comparison(&mut self, is_negated: bool) -> Result<Disjunction> {
        let first = self.next;
        let left = self.operand()?;
        if let &Token::Sign(sign) = self.peek()
            && let Some(comparison) = Comparison::of(sign)
        {
            self.next += 1;
            let right = self.operand()?;
            return self.binder.compare(&left, comparison, &right, is_negated);
        }
        if self.take_word("is") {
            let is_negated = is_negated ^ self.take_word("not");
            if !self.take_word("null") {
                return self.fail("`null` or `not null` is expected behind `is`");
            }
            return Ok(self.binder.is_null(&left.0, is_negated));
        }
        let has_not = self.take_word("not");
        let is_negated = is_negated ^ has_not;
        if self.take_word("between") {
            let low = self.operand()?;
            if !self.take_word("and") {
                return self.fail("`and` is expected between the bounds of `between`");
            }
            let high = self.operand()?;
            let terms = vec![
                self.binder.compare(&left, Comparison::FROM, &low, is_negated)?,
                self.binder.compare(&left, Comparison::UP_TO, &high, is_negated)?,
            ];
            return self.join(terms, !is_negated, first);
        }
        if self.take_word("in") {
            return self.membership(&left, is_negated, first);
        }
        if self.take_word("like") {
            return self.like(&left, is_negated);
        }
        self.fail(match (has_not, left.0) {
            (true, _) => "`between`, `in` or `like` is expected behind `not`",
            (false, Operand::Column(_)) => "a comparison of the column is expected here",
            (false, Operand::Value(_)) => "a comparison of the value is expected here",
        })
    }

    /// The list behind `in`.
    fn membership(&mut self, left: &SpannedOperand, is_negated: bool, first: usize) -> Result<Disjunction> {
        self.expect_sign("(", || "a list in parentheses is expected behind `in`".into())?;
        let mut terms = Vec::new();
        loop {
            let right = self.operand()?;
            terms.push(self.binder.compare(left, Comparison::EQUAL, &right, is_negated)?);
            if !self.take_sign(",") {
                break;
            }
        }
        self.expect_sign(")", || "`,` or `)` is expected behind a value of a list".into())?;
        self.join(terms, is_negated, first)
    }

    /// The pattern behind `like`.
    fn like(&mut self, left: &SpannedOperand, is_negated: bool) -> Result<Disjunction> {
        let pattern = self.operand()?;
        self.binder.like(left, &pattern, is_negated)
    }

    /// A column, or a sum of constants.
    fn operand(&mut self) -> Result<SpannedOperand> {
        let first = self.next;
        if let Some(column) = self.named_column()? {
            if let Token::Sign("+" | "-") = self.peek() {
                return self.fail("a column stands alone in a comparison; only constants can be added");
            }
            if let Token::Sign("(") = self.peek() {
                return self.fail("there are no functions in conditions");
            }
            return Ok((Operand::Column(column), self.span_from(first)));
        }
        let mut sum = self.constant()?;
        loop {
            let is_minus = match self.peek() {
                Token::Sign("+") => false,
                Token::Sign("-") => true,
                _ => break,
            };
            self.next += 1;
            let more = self.signed(is_minus)?;
            let what = format!(
                "this {} and this {} have no sum, or one that is out of range",
                sum.kind(),
                more.kind()
            );
            sum = sum.plus(more).ok_or_else(|| Fault { what, span: self.span_from(first) })?;
        }
        let span = self.span_from(first);
        match sum {
            Constant::Value(value) => Ok((Operand::Value(value), span)),
            Constant::Time { .. } => {
                fault("an interval can only be added to a date or subtracted from one", span)
            }
        }
    }

    /// A constant, negated if `is_minus`.
    fn signed(&mut self, is_minus: bool) -> Result<Constant> {
        let first = self.next;
        let constant = self.constant()?;
        if !is_minus {
            return Ok(constant);
        }
        let what = format!("a {} has no negative", constant.kind());
        constant.negated().ok_or_else(|| Fault { what, span: self.span_from(first) })
    }

    fn constant(&mut self) -> Result<Constant> {
        let mut is_minus = false;
        while let Token::Sign(sign @ ("+" | "-")) = self.peek() {
            is_minus ^= *sign == "-";
            self.next += 1;
        }
        if is_minus {
            return self.signed(true);
        }
        let value = match self.peek().clone() {
            Token::Number { unscaled, scale } => Value::Decimal { unscaled, scale },
            Token::Text(text) => Value::String(text.into_owned()),
            Token::Word(word) if word.eq_ignore_ascii_case("null") => Value::Null,
            Token::Word(word) if word.eq_ignore_ascii_case("date") => {
                self.next += 1;
                return self.date();
            }
            Token::Word(word) if word.eq_ignore_ascii_case("interval") => {
                self.next += 1;
                return self.time();
            }
            _ => return self.fail("a column or a value is expected here"),
        };
        self.next += 1;
        Ok(Constant::Value(value))
    }

    /// The text behind `date`.
    fn date(&mut self) -> Result<Constant> {
        let date = match self.peek() {
            Token::Text(text) => constant::date(text),
            _ => None,
        };
        let Some(date) = date else { return self.fail("this is no date: write date '1994-01-31'") };
        self.next += 1;
        Ok(Constant::Value(date))
    }

    /// The number and the unit behind `interval`. A precision in parentheses has no meaning for days.
    fn time(&mut self) -> Result<Constant> {
        let count = match self.peek() {
            Token::Text(text) => text.trim().parse().ok(),
            Token::Number { unscaled, scale: 0 } => i64::try_from(*unscaled).ok(),
            _ => None,
        };
        let example = "this is no interval: write interval '3' year, month or day";
        let Some(count) = count else { return self.fail(example) };
        self.next += 1;
        let time = match self.peek() {
            Token::Word(unit) => Constant::time(count, unit),
            _ => None,
        };
        let Some(time) = time else { return self.fail(example) };
        self.next += 1;
        if self.take_sign("(") {
            if !matches!(self.peek(), Token::Number { scale: 0, .. }) {
                return self.fail("the precision of an interval is a number");
            }
            self.next += 1;
            self.expect_sign(")", || "`)` is expected behind the precision of an interval".into())?;
        }
        Ok(time)
    }

    /// The column that the next token names, if it is a name.
    fn named_column(&mut self) -> Result<Option<usize>> {
        let (name, is_quoted) = match self.peek() {
            Token::Name(name) => (name.as_ref(), true),
            Token::Word(word) if !self.is_keyword(word) => (*word, false),
            _ => return Ok(None),
        };
        let column = names::column(self.binder.dictionaries, name, is_quoted);
        let column = column.map_err(|what| Fault { what, span: self.tokens[self.next].1.clone() })?;
        self.next += 1;
        Ok(Some(column))
    }

    /// Whether a word at the next token cannot be a column's name. `date` and `interval` are names unless a
    /// value follows.
    fn is_keyword(&self, word: &str) -> bool {
        let is = |keyword: &&str| word.eq_ignore_ascii_case(keyword);
        let follows = self.tokens.get(self.next + 1).map(|(token, _)| token);
        ["and", "or", "not", "between", "in", "is", "null", "like"].iter().any(is)
            || (is(&"date") && matches!(follows, Some(Token::Text(_))))
            || (is(&"interval") && matches!(follows, Some(Token::Text(_) | Token::Number { .. })))
    }

    fn peek(&self) -> &Token<'a> {
        &self.tokens[self.next].0
    }

    fn take_word(&mut self, keyword: &str) -> bool {
        let is_next = matches!(self.peek(), Token::Word(word) if word.eq_ignore_ascii_case(keyword));
        self.next += usize::from(is_next);
        is_next
    }

    fn take_sign(&mut self, sign: &str) -> bool {
        let is_next = matches!(self.peek(), Token::Sign(next) if *next == sign);
        self.next += usize::from(is_next);
        is_next
    }

    fn expect_sign(&mut self, sign: &str, what: impl Fn() -> String) -> Result<()> {
        if self.take_sign(sign) { Ok(()) } else { self.fail(what()) }
    }

    /// Bytes from token `first` to the last one that was taken.
    fn span_from(&self, first: usize) -> Range<usize> {
        self.tokens[first].1.start..self.tokens[self.next - 1].1.end
    }

    /// Says what is wrong with the next token.
    fn fail<T>(&self, what: impl Into<String>) -> Result<T> {
        fault(what, self.tokens[self.next].1.clone())
    }

    fn too_many(&self, span: Range<usize>) -> Fault {
        let limit = self.options.predicates_max;
        Fault { what: format!("this needs more than {limit} predicates that do not overlap"), span }
    }
}
