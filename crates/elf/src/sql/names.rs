//! Names of columns in a condition, and the ends of string prefixes.
//!
//! A plain name means the column of that name, or the only one that differs in upper and lower case. A quoted
//! name is exact. An unknown name is answered with the nearest one.

use crate::dictionary::Dictionary;

/// Number of the column with the given name, or what is wrong with the name.
pub(super) fn column(dictionaries: &[Dictionary], name: &str, is_quoted: bool) -> Result<usize, String> {
    let names = || dictionaries.iter().map(|dictionary| dictionary.column().name.as_str());
    if let Some(column) = names().position(|other| other == name) {
        return Ok(column);
    }
    let lower = name.to_lowercase();
    let mut alike = names().enumerate().filter(|(_, other)| other.to_lowercase() == lower);
    match (alike.next().filter(|_| !is_quoted), alike.next()) {
        (Some((column, _)), None) => Ok(column),
        (Some((_, one)), Some((_, other))) => {
            Err(format!("`{name}` may be `{one}` or `{other}`: quote it as \"{one}\""))
        }
        (None, _) => {
            let distance = |other: &&str| distance(&lower, &other.to_lowercase());
            let nearest = names().min_by_key(distance).unwrap_or_default();
            Err(format!("there is no column `{name}`; the nearest is `{nearest}`"))
        }
    }
}

/// Insertions, deletions and replacements of characters that turn `from` into `to`.
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, c) in from.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, other) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(c != *other);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[to.len()]
}

/// The first string behind all that begin with `prefix`; `None` if there is none.
pub(super) fn behind_prefix(prefix: &str) -> Option<String> {
    let mut chars: Vec<char> = prefix.chars().collect();
    while let Some(last) = chars.pop() {
        // The range leaves out the surrogates, as the order of UTF-8 bytes does.
        if let Some(next) = (last..=char::MAX).nth(1) {
            chars.push(next);
            return Some(chars.into_iter().collect());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_count_edits() {
        let pairs = [("", "abc"), ("kitten", "sitting"), ("tax", "tax"), ("l_tx", "l_tax")];
        assert_eq!(pairs.map(|(from, to)| distance(from, to)), [3, 3, 0, 1]);
    }

    #[test]
    fn prefixes_end_before_the_next_character() {
        let behind = |prefix| behind_prefix(prefix);
        assert_eq!(behind("ab"), Some("ac".into()));
        assert_eq!(behind("a\u{d7ff}"), Some("a\u{e000}".into()));
        assert_eq!(behind("a\u{10ffff}\u{10ffff}"), Some("b".into()));
        assert_eq!([behind(""), behind("\u{10ffff}")], [None, None]);
    }
}
