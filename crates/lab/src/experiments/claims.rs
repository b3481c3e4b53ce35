//! Statements of papers with what came out here.
//!
//! A ratio is a factor or what it adds; that of a cell which failed stays missing.
//! Digits are as many as a reader can compare.

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

/// A ratio as what it adds.
pub(super) fn percent(ratio: Option<f64>) -> Option<String> {
    ratio.map(|ratio| format!("{:+.0}%", (ratio - 1.0) * 100.0))
}
