//! Statements of the papers beside the results here, and whether the two agree.
//!
//! A ratio appears as a factor, or as the percentage that it adds. The ratio of a cell that failed is
//! missing. Numbers have as many digits as a reader can compare. Results that differ by more than a quarter
//! or contradict the paper's words are marked in the tables and explained in `docs/lab.md`.

use std::fmt::Display;

use super::Claim;

pub(super) fn claim(
    what: impl Display,
    paper: impl Display,
    ours: Option<String>,
    place: &'static str,
) -> Claim {
    Claim { what: what.to_string(), paper: paper.to_string(), ours, place }
}

/// A ratio as a factor.
pub(super) fn times(ratio: Option<f64>) -> Option<String> {
    ratio.map(|ratio| if ratio < 10.0 { format!("{ratio:.2}x") } else { format!("{ratio:.1}x") })
}

/// A ratio as the percentage that it adds.
pub(super) fn percent(ratio: Option<f64>) -> Option<String> {
    ratio.map(|ratio| format!("{:+.0}%", (ratio - 1.0) * 100.0))
}

/// Two values agree if neither exceeds the other by more than this factor.
const AGREE: f64 = 1.25;
/// Words of the papers, with the least and the greatest ratio that they describe. The first match counts, so
/// longer ones come first.
const WORDS: [(&str, f64, f64); 10] = [
    ("does not scale", 0.0, AGREE),
    ("no gain", 0.0, AGREE),
    ("collapses", 0.0, 0.5),
    ("falls", 0.0, 1.0),
    ("drops", 0.0, 1.0),
    ("scales", AGREE, f64::INFINITY),
    ("grows", 1.0, f64::INFINITY),
    ("helps", 1.0, f64::INFINITY),
    ("outperforms", 1.0, f64::INFINITY),
    ("ahead", 1.0, f64::INFINITY),
];

/// A number in a statement.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Number {
    /// "2.5x" or "+150%".
    Ratio(f64),
    Plain(f64),
}

fn number(token: &str) -> Option<Number> {
    if let Some(factor) = token.strip_suffix('x') {
        return factor.parse().ok().map(Number::Ratio);
    }
    match token.strip_suffix('%') {
        Some(added) => added.parse::<f64>().ok().map(|added| Number::Ratio(1.0 + added / 100.0)),
        None => token.parse().ok().map(Number::Plain),
    }
}

/// Whether the result differs from the paper's by more than a quarter, or contradicts its words. False if the
/// two cannot be compared (different units, or nothing given).
pub(super) fn deviates(paper: &str, ours: &str) -> bool {
    let Some(ours) = number(ours) else { return false };
    let (is_upper, is_lower) = (paper.starts_with("at most"), paper.starts_with("at least"));
    let is_outside = |paper, ours| match () {
        () if is_upper => ours > paper,
        () if is_lower => ours < paper,
        () => differ(paper, ours),
    };
    match (number_in(paper), ours) {
        (Some(Number::Ratio(paper)), Number::Ratio(ours))
        | (Some(Number::Plain(paper)), Number::Plain(ours)) => is_outside(paper, ours),
        (None, Number::Ratio(ours)) => {
            let said = WORDS.iter().find(|(word, ..)| paper.contains(word));
            said.is_some_and(|&(_, least, greatest)| !(least..=greatest).contains(&ours))
        }
        _ => false,
    }
}

/// By how much the result is above or below the paper's, in percent of the paper's. `None` if they cannot be
/// compared.
pub(super) fn deviation(paper: &str, ours: &str) -> Option<String> {
    match (number_in(paper)?, number(ours)?) {
        (Number::Ratio(paper), Number::Ratio(ours)) | (Number::Plain(paper), Number::Plain(ours)) => {
            (paper != 0.0).then(|| format!("{:+.0}%", (ours / paper - 1.0) * 100.0))
        }
        _ => None,
    }
}

/// The first number in a statement of a paper.
fn number_in(paper: &str) -> Option<Number> {
    paper.split_whitespace().find_map(|token| number(token.trim_end_matches([',', ';'])))
}

/// Whether two values differ by more than a quarter. Differences up to 0.001 do not count.
pub(super) fn differ(paper: f64, ours: f64) -> bool {
    let (low, high) = (paper.min(ours), paper.max(ours));
    high - low > 0.001 && low * AGREE < high
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_deviate_by_more_than_a_quarter() {
        for (paper, ours) in [
            ("12.0x", "6.40x"),
            ("+55%", "+130%"),
            ("-56%", "-30%"),
            ("down to -7%", "+22%"),
            ("up to 6.1x (write-intensive)", "2.67x"),
            ("about 45", "66.2"),
            ("0.04", "0.069"),
            ("1.03x", "0.23x"),
            ("at most 1.3", "1.31"),
            ("at least 0.75x", "0.74x"),
        ] {
            assert!(deviates(paper, ours), "{paper}, {ours}");
        }
        for (paper, ours) in [
            ("+25%", "+21%"),
            ("10.0x", "8.1x"),
            ("about 60", "67.0"),
            ("outperforms; 10x in Figure 9", "9.36x"),
            ("within 2 s", "2.58 ms"),
            ("not given", "5.52x"),
            ("-8%", "+0%"),
            ("at most 1.3", "0.40"),
            ("at least 0.75x", "1.10x"),
        ] {
            assert!(!deviates(paper, ours), "{paper}, {ours}");
        }
        assert!(differ(0.0, 0.07) && !differ(0.0, 0.0004) && !differ(0.0, 0.0) && differ(0.0002, 0.07));
    }

    #[test]
    fn words_are_contradicted() {
        for (paper, ours) in [
            ("falls", "1.35x"),
            ("no gain like DEX's", "3.51x"),
            ("does not scale", "3.56x"),
            ("scales", "1.02x"),
            ("helps", "-3%"),
            ("collapses", "0.9x"),
        ] {
            assert!(deviates(paper, ours), "{paper}, {ours}");
        }
        for (paper, ours) in [
            ("falls", "0.9x"),
            ("no gain", "1.00x"),
            ("does not scale", "0.74x"),
            ("scales well", "1.30x"),
            ("helps", "+13%"),
            ("grows with theta", "1.92x"),
        ] {
            assert!(!deviates(paper, ours), "{paper}, {ours}");
        }
    }
}
