//! Experiments that reproduce the tables and figures of the papers, one command each.
//!
//! An [`Experiment`] is a list of [`Cell`]s and what to make of their results: a table with the paper's values beside
//! ours, statements of the paper with what came out here, a figure. [`run`] performs the cells and writes a JSON file, a
//! Markdown table, an SVG and a PNG.
//! - A [`Scale`] says how large everything is; ratios (cache to data, threads, servers) stay the paper's.
//! - Nothing stands in a table that was not measured: a cell that failed is reported as such.
//! - Files appear whole or not at all; a run that was interrupted goes on where it was.

mod cell;
mod claims;
pub mod dex;
mod document;
mod markdown;
mod plot;
mod progress;
mod results;
mod run;
mod scale;
mod sherman;
mod smart;

pub use cell::{Cell, Metric, Work};
pub use progress::Progress;
pub use results::{Outcome, Results};
pub use run::{LabError, Written, run};
pub use scale::{Scale, Setting};

use crate::figure::Figure;

/// A table or figure of a paper that can be made anew.
#[derive(Clone, Copy, Debug)]
pub struct Experiment {
    /// What it is called on the command line, and its files.
    pub name: &'static str,
    pub title: &'static str,
    /// Where it comes from.
    pub source: &'static str,
    /// What it shows, in a sentence.
    pub shows: &'static str,
    /// What the paper measured it with, and what is assumed where it does not say.
    pub setting: &'static str,
    /// What is varied, with its unit: the heading of a column.
    pub varied: &'static str,
    /// Parameters of the model that decide results here and were fitted to published figures: what they reproduce is no
    /// evidence. `docs/sim.md` has all of them.
    pub fitted: &'static [&'static str],
    /// Those that are estimates, or were measured under other conditions.
    pub estimated: &'static [&'static str],
    /// See [`Setting::hundredths`].
    pub hundredths: u64,
    /// Records that the paper loads.
    pub records: u64,
    pub metrics: &'static [Metric],
    pub cells: fn(&Setting) -> Vec<Cell>,
    pub claims: fn(&Results<'_>) -> Vec<Claim>,
    pub figure: fn(&Results<'_>) -> Figure,
}

/// What a paper says, and what came out here.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Claim {
    pub what: String,
    pub paper: String,
    /// `None`: a cell that it needs has failed.
    pub ours: Option<String>,
    /// Where the paper says so.
    pub place: &'static str,
}

/// All experiments, in the order of the papers.
pub fn all() -> impl Iterator<Item = &'static Experiment> {
    dex::EXPERIMENTS.iter().chain(sherman::EXPERIMENTS).chain(smart::EXPERIMENTS)
}

/// The experiment of that name.
pub fn find(name: &str) -> Option<&'static Experiment> {
    all().find(|experiment| experiment.name == name)
}

#[cfg(test)]
mod tests;
