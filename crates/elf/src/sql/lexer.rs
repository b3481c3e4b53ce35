//! Tokens of a condition, with their places.
//!
//! Whitespace separates tokens and has no other meaning. Keywords are words like column names; the parser
//! tells them apart. A token borrows from the text unless doubled quotes were resolved.

use std::borrow::Cow;
use std::ops::Range;

/// Most digits of a number, so that it fits into 128 bits.
const DIGITS: usize = 38;

/// A number, a word, or a sign.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Token<'a> {
    /// A keyword or a plain column name.
    Word(&'a str),
    /// A column name in double quotes.
    Name(Cow<'a, str>),
    /// A string in single quotes.
    Text(Cow<'a, str>),
    /// `unscaled / 10^scale`.
    Number {
        unscaled: i128,
        scale: u8,
    },
    /// A parenthesis, a comma, or an operator.
    Sign(&'static str),
    End,
}

/// Signs, longer ones before their beginnings.
const SIGNS: [&str; 12] = ["<>", "!=", "<=", ">=", "=", "<", ">", "(", ")", ",", "+", "-"];

/// Characters of comparisons; a longest run of them is one operator.
const OPERATOR: &str = "=<>!~*/%|&^:";

/// What is wrong, and the bytes of the text that are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) what: String,
    pub(super) span: Range<usize>,
}

/// A token and its bytes in the text.
pub(super) type Spanned<'a> = (Token<'a>, Range<usize>);

/// Divides `text` into tokens; the last one is [`Token::End`].
pub(super) fn tokens(text: &str) -> Result<Vec<Spanned<'_>>, Fault> {
    let mut tokens = Vec::new();
    let mut at = 0;
    loop {
        at += text[at..].len() - text[at..].trim_start().len();
        let (token, len) = token(&text[at..]).map_err(|(what, len)| Fault { what, span: at..at + len })?;
        let is_end = token == Token::End;
        tokens.push((token, at..at + len));
        if is_end {
            return Ok(tokens);
        }
        at += len;
    }
}

/// The token at the beginning of `rest`, and its bytes.
fn token(rest: &str) -> Result<(Token<'_>, usize), (String, usize)> {
    let Some(first) = rest.chars().next() else { return Ok((Token::End, 0)) };
    let second_is_digit = rest[first.len_utf8()..].starts_with(|next: char| next.is_ascii_digit());
    match first {
        '\'' => quoted(rest, '\'', "string").map(|(text, len)| (Token::Text(text), len)),
        '"' => quoted(rest, '"', "column name").map(|(name, len)| (Token::Name(name), len)),
        '0'..='9' => number(rest),
        '.' if second_is_digit => number(rest),
        _ if is_word(first) => {
            let len = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            Ok((Token::Word(&rest[..len]), len))
        }
        _ => sign(rest, first),
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '$'
}

fn sign(rest: &str, first: char) -> Result<(Token<'_>, usize), (String, usize)> {
    let run = rest.find(|c| !OPERATOR.contains(c)).unwrap_or(rest.len());
    let len = run.max(first.len_utf8());
    match SIGNS.iter().find(|&&sign| sign == &rest[..len]) {
        Some(sign) => Ok((Token::Sign(sign), len)),
        None if run > 0 => {
            Err((format!("`{}` is no operator: there are = <> != < <= > >= + -", &rest[..run]), run))
        }
        None => Err((format!("the character `{first}` has no meaning here"), len)),
    }
}

/// Text between two `quote`s; a doubled one stands for itself.
fn quoted<'a>(rest: &'a str, quote: char, what: &str) -> Result<(Cow<'a, str>, usize), (String, usize)> {
    let mut end = 1;
    loop {
        match rest[end..].find(quote) {
            None => return Err((format!("the {what} has no closing quote"), rest.len())),
            Some(more) if rest[end + more + 1..].starts_with(quote) => end += more + 2,
            Some(more) => {
                end += more;
                break;
            }
        }
    }
    let inner = &rest[1..end];
    let text = if inner.contains(quote) {
        Cow::Owned(inner.replace(&format!("{quote}{quote}"), &quote.to_string()))
    } else {
        Cow::Borrowed(inner)
    };
    Ok((text, end + 1))
}

/// Digits with at most one point. Zeros at the end of the fraction do not count.
fn number(rest: &str) -> Result<(Token<'_>, usize), (String, usize)> {
    let len = rest.find(|c| !is_word(c) && c != '.').unwrap_or(rest.len());
    let text = &rest[..len];
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if let Some(wrong) = whole.chars().chain(fraction.chars()).find(|c| !c.is_ascii_digit()) {
        return Err((format!("`{text}` is no number: it contains `{wrong}`"), len));
    }
    let fraction = fraction.trim_end_matches('0');
    let digits = [whole, fraction].concat();
    let significant = digits.trim_start_matches('0');
    let unscaled = if significant.is_empty() { Some(0) } else { significant.parse().ok() };
    match (unscaled, u8::try_from(fraction.len())) {
        (Some(unscaled), Ok(scale)) if significant.len() <= DIGITS => {
            Ok((Token::Number { unscaled, scale }, len))
        }
        _ => Err((format!("a number has at most {DIGITS} digits, and 255 behind the point"), len)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Vec<Token<'_>>, Fault> {
        Ok(tokens(text)?.into_iter().map(|(token, _)| token).collect())
    }

    #[test]
    fn a_text_becomes_tokens() {
        let number = |unscaled, scale| Token::Number { unscaled, scale };
        let expected = vec![
            Token::Word("a$1"),
            Token::Sign("<="),
            Token::Sign("-"),
            number(5, 1),
            Token::Name("x\"y".into()),
            Token::Text("it's".into()),
            Token::Sign(")"),
            number(105, 2),
            Token::Text("".into()),
            number(0, 0),
            Token::End,
        ];
        assert_eq!(of(" a$1<=-.5\n\"x\"\"y\" 'it''s')01.0500 '' 0."), Ok(expected));
    }

    #[test]
    fn each_fault_has_its_place() {
        let fault = |text| of(text).map_err(|Fault { what, span }| (what, span));
        let error = |what: &str, span| Err((what.to_owned(), span));
        assert_eq!(fault("a = 'b''"), error("the string has no closing quote", 4..8));
        assert_eq!(fault("a == 1"), error("`==` is no operator: there are = <> != < <= > >= + -", 2..4));
        assert_eq!(fault("1e3"), error("`1e3` is no number: it contains `e`", 0..3));
        assert_eq!(fault("1.2.3"), error("`1.2.3` is no number: it contains `.`", 0..5));
        assert_eq!(fault("a é;"), error("the character `;` has no meaning here", 4..5));
        let long = "9".repeat(39);
        assert_eq!(fault(&long), error("a number has at most 38 digits, and 255 behind the point", 0..39));
        assert!(of(&format!("{}.{}1", "0".repeat(300), "0".repeat(254))).is_ok());
    }
}
