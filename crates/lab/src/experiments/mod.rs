//! Experiments that reproduce the tables and figures of the papers, one command each.
//!
//! An [`Experiment`] is a list of [`Cell`]s and the evaluation of their results: a table with the paper's
//! values beside ours, statements of the paper with the results here, a figure. [`run`] measures the cells
//! and writes a JSON file, a Markdown table, an SVG and a PNG.
//! - A [`Scale`] sets all sizes; ratios (cache to data, threads, servers) are the paper's.
//! - Tables contain measured values only: a cell that failed is reported as failed.
//! - Files appear completely or not at all; an interrupted run continues where it stopped.

pub mod cell;
mod claims;
mod cluster;
pub mod dex;
mod document;
mod elf;
mod markdown;
pub mod plot;
mod progress;
mod results;
mod run;
mod scale;
mod sherman;
mod smart;
mod summary;

pub use cell::{Cell, Metric, Work};
pub use cluster::Cluster;
pub use progress::Progress;
pub use results::{Outcome, Position, Results, at};
pub use run::{LabError, RunOptions, Written, run};
pub use scale::{Scale, Setting};
pub use summary::summary;

use crate::figure::Figure;

/// Reproduction of a table or figure of a paper.
#[derive(Clone, Copy, Debug)]
pub struct Experiment {
    /// Name on the command line, and of the files.
    pub name: &'static str,
    pub title: &'static str,
    /// Paper, and table or figure.
    pub source: &'static str,
    /// Purpose of the experiment, in one sentence.
    pub shows: &'static str,
    /// Setting of the paper, and assumptions where it gives none.
    pub setting: &'static str,
    /// The varied quantity with its unit: the heading of a column.
    pub varied: &'static str,
    /// Parameters of the model that affect the results and were fitted to published figures: agreement with
    /// those is no evidence. The cluster's file names these figures ([`pando_sim::Model::fitted`]).
    pub fitted: &'static [&'static str],
    /// Parameters that are estimates, or were measured under other conditions.
    pub estimated: &'static [&'static str],
    /// Where it is run.
    pub place: Place,
    /// The simulated cluster, if it is run on one.
    pub cluster: Option<Cluster>,
    /// Sizes at a scale, for readers.
    pub sizes: fn(&Setting) -> String,
    /// See [`Setting::hundredths`].
    pub hundredths: u64,
    /// Number of records that the paper loads.
    pub records: u64,
    pub metrics: &'static [Metric],
    pub cells: fn(&Setting) -> Vec<Cell>,
    pub claims: fn(&Results<'_>) -> Vec<Claim>,
    pub figure: fn(&Results<'_>) -> Figure,
}

/// Where an experiment is run, in the words of tables and figures.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Beginning of a sentence.
    pub name: &'static str,
    /// Sentence below figures.
    pub note: &'static str,
}

impl Place {
    /// A cluster in virtual time.
    pub const CLUSTER: Place =
        Place { name: "A simulated cluster", note: "Measured on a simulated cluster." };
}

/// Source of experiments that no paper has. Their claims are what this project wants.
pub(crate) const OWN: &str = "no paper";

/// A statement of a paper, and the result here.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Claim {
    pub what: String,
    pub paper: String,
    /// `None` if a cell that it needs failed.
    pub ours: Option<String>,
    /// Place of the statement in the paper.
    pub place: &'static str,
}

/// All experiments, in the order of the papers.
pub fn all() -> impl Iterator<Item = &'static Experiment> {
    dex::EXPERIMENTS.iter().chain(sherman::EXPERIMENTS).chain(smart::EXPERIMENTS).chain(elf::EXPERIMENTS)
}

/// Returns the experiment with this name.
pub fn find(name: &str) -> Option<&'static Experiment> {
    all().find(|experiment| experiment.name == name)
}

#[cfg(test)]
mod tests;
