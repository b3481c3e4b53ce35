//! Markdown report of an experiment: the measured values beside the paper's.
//!
//! It has two tables: the paper's statements with the results here, and all cells. A metric has a column for
//! the paper's values only if there are any. A result that deviates is a link to the explanation in
//! `docs/lab.md`, under a heading with the experiment's name. Links are relative to `docs/lab`, the directory
//! in which `ci/lab.sh` stores the tables.

use std::fmt::Write;

use super::cell::Metric;
use super::claims::{deviates, differ};
use super::results::{Outcome, Results};
use super::{Claim, Cluster, Experiment, OWN, Setting};
use crate::process::{commit, short_commit};

pub(super) fn render(results: &Results<'_>, claims: &[Claim]) -> String {
    let experiment = results.experiment;
    let Setting { scale, seed, .. } = results.setting;
    let mut text = String::new();
    let mut line = |sentence: &str| {
        let _ = writeln!(text, "{sentence}");
    };
    line(&format!("# {}: {}\n", experiment.name, experiment.title));
    line(&format!("{} From {}.\n", experiment.shows, experiment.source));
    let whose = if experiment.source == OWN { "Setting" } else { "The paper's setting" };
    line(&format!("*{whose}.* {}\n", experiment.setting));
    line(&format!(
        "*Here.* {}{}, scale `{scale}`, seed {seed}, commit {}. {}\n",
        experiment.place.name,
        experiment.cluster.map_or_else(String::new, |Cluster { name, .. }| {
            format!(" with the numbers of [{name}.toml]({CLUSTERS}/{name}.toml)")
        }),
        short_commit(commit()),
        (experiment.sizes)(&results.setting)
    ));
    if results.left_out > 0 {
        let all = results.outcomes.len() + results.left_out;
        line(&format!("Only {} of its {all} cells were run.\n", results.outcomes.len()));
    }
    line(&format!("![{}]({}.svg)\n", experiment.title, experiment.name));
    if !claims.is_empty() {
        line(match experiment.source {
            OWN => "| what is wanted | wanted | here | place |\n|---|---|---|---|",
            _ => "| what the paper says | the paper | here | place |\n|---|---|---|---|",
        });
        for Claim { what, paper, ours, place } in claims {
            let ours = ours.as_deref().unwrap_or("failed");
            let shown = linked(escaped(ours), deviates(paper, ours), experiment.name);
            line(&format!("| {} | {} | {shown} | {place} |", escaped(what), escaped(paper)));
        }
        line("");
    }
    line(&format!(
        "A value that is a link differs from the paper's by more than a quarter, or contradicts it. What is known of the \
         reasons: [lab.md]({}).\n",
        explanation(experiment.name)
    ));
    line(&format!("{}\n", footing(experiment)));
    text.push_str(&cells(results));
    text.push_str(&troubles(results));
    text
}

/// The files of the clusters.
const CLUSTERS: &str = "../../crates/lab/clusters";
/// The table of parameters that are not measurements.
const FITTED: &str = "../sim.md#fitted-or-estimated-parameters";

/// Lists the parameters of the model that decide the results and are not measurements.
fn footing(experiment: &Experiment) -> String {
    let fitted_to = experiment.cluster.map(|cluster| cluster.model().fitted).unwrap_or_default();
    let fitted = experiment.fitted.iter().map(|name| match fitted_to.get(*name) {
        Some(figure) => format!("`{name}` (to {figure})"),
        None => format!("`{name}`"),
    });
    let fitted = fitted.collect::<Vec<_>>().join(", ");
    let estimated = experiment.estimated.iter().map(|name| format!("`{name}`"));
    let estimated = estimated.collect::<Vec<_>>().join(", ");
    let mut sentences = Vec::new();
    if !fitted.is_empty() {
        sentences.push(format!(
            "Rests on parameters that were *fitted* to published figures, so that agreement with these is no evidence: {fitted}."
        ));
    }
    if !estimated.is_empty() {
        sentences.push(format!("Rests on *estimates*: {estimated}."));
    }
    sentences.push(format!("[All parameters that are no measurements]({FITTED})."));
    sentences.join(" ")
}

/// Link to the explanation of the experiment's deviations from the paper.
fn explanation(name: &str) -> String {
    format!("../lab.md#{name}")
}

/// The text, as a link to the explanation if it deviates.
pub(super) fn linked(text: String, deviates: bool, name: &str) -> String {
    if deviates { format!("[{text}]({})", explanation(name)) } else { text }
}

/// Escapes characters that would end a field of a table.
pub(super) fn escaped(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

/// Table of all cells with their metrics.
fn cells(results: &Results<'_>) -> String {
    let experiment = results.experiment;
    let with_panels = results.panels().iter().any(|panel| !panel.is_empty());
    let quoted = |metric: &Metric| {
        let all = results.outcomes.iter().flat_map(|outcome| &outcome.cell.paper);
        all.into_iter().any(|(name, _)| *name == metric.name)
    };
    let mut heads = vec!["series".to_owned()];
    if with_panels {
        heads.insert(0, "part".to_owned());
    }
    if !experiment.varied.is_empty() {
        heads.push(experiment.varied.to_owned());
    }
    let text_columns = heads.len();
    for metric in experiment.metrics {
        heads.push(metric.title.to_owned());
        if quoted(metric) {
            heads.push("the paper".to_owned());
        }
    }
    let number_columns = text_columns..heads.len();
    let with_limits = results.outcomes.iter().any(|outcome| limit(outcome).is_some());
    if with_limits {
        heads.push("limited by".to_owned());
    }
    let rule = (0..heads.len()).map(|i| if number_columns.contains(&i) { "---:" } else { "---" });
    let mut text = format!("| {} |\n|{}|\n", heads.join(" | "), rule.collect::<Vec<_>>().join("|"));
    for outcome in &results.outcomes {
        let cell = &outcome.cell;
        let mut fields = vec![escaped(&cell.series)];
        if with_panels {
            fields.insert(0, escaped(&cell.panel));
        }
        if !experiment.varied.is_empty() {
            fields.push(escaped(&cell.x_name));
        }
        for metric in experiment.metrics {
            let paper = cell.paper.iter().find(|(name, _)| *name == metric.name).map(|(_, value)| *value);
            let ours = outcome.report.as_ref().ok().and_then(|report| metric.of(report));
            let off = paper.zip(ours).is_some_and(|(paper, ours)| differ(paper, ours));
            fields.push(linked(measured(outcome, metric), off, experiment.name));
            if quoted(metric) {
                fields.push(paper.map_or_else(String::new, |value| value.to_string()));
            }
        }
        if with_limits {
            fields.push(limit(outcome).unwrap_or("-").to_owned());
        }
        let _ = writeln!(text, "| {} |", fields.join(" | "));
    }
    text
}

/// Resource that limited throughput, by the simulator's accounting.
fn limit(outcome: &Outcome) -> Option<&str> {
    outcome.report.as_ref().ok()?.pointer("/resources/limit")?.as_str()
}

fn measured(outcome: &Outcome, metric: &Metric) -> String {
    match &outcome.report {
        Ok(report) => metric.of(report).map_or_else(|| "-".to_owned(), |value| metric.show(value)),
        Err(_) => "failed".to_owned(),
    }
}

fn troubles(results: &Results<'_>) -> String {
    let mut text = String::new();
    for outcome in &results.outcomes {
        if let Some(trouble) = outcome.trouble() {
            if text.is_empty() {
                text.push_str("\nWhat went wrong:\n\n");
            }
            let _ = writeln!(text, "- {}: {}", outcome.cell.name(), trouble.replace('\n', " "));
        }
    }
    text
}
