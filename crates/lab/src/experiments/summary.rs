//! One table over all experiments: what the papers say, what came out here, by how much they differ, and on
//! which parameters of the model that depends.
//!
//! It is made from the JSON files that runs left in a folder, so no figure is copied by hand.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::io;
use std::path::Path;

use serde_json::Value;

use super::claims::{deviates, deviation, differ};
use super::markdown::{escaped, linked};
use super::{Experiment, LabError, OWN, all};
use crate::process::short_commit;

/// A statement of a paper, the result here, and the name of the experiment.
struct Row<'r> {
    experiment: &'r Experiment,
    what: String,
    paper: String,
    ours: String,
    deviates: bool,
}

impl Row<'_> {
    fn is_compared(&self) -> bool {
        self.deviates || deviation(&self.paper, &self.ours).is_some()
    }

    fn render(&self) -> String {
        let name = self.experiment.name;
        let difference = deviation(&self.paper, &self.ours).unwrap_or_else(|| match self.deviates {
            true => "contradicts".to_owned(),
            false => "-".to_owned(),
        });
        let difference = linked(difference, self.deviates, name);
        let [what, paper] = [&self.what, &self.paper].map(|text| escaped(text));
        format!("| [{name}]({name}.md) | {what} | {paper} | {} | {difference} |\n", self.ours)
    }
}

/// A Markdown table of all results in `folder` of experiments that papers have.
///
/// # Errors
/// [`LabError::Read`] if the folder or a file cannot be read, or is not what a run writes, and
/// [`LabError::NoResults`] if there is none.
pub fn summary(folder: &Path) -> Result<String, LabError> {
    let mut runs = BTreeMap::<String, Vec<&str>>::new();
    let (mut tables, mut missing) = (String::new(), Vec::new());
    let (mut all_rows, mut all_compared, mut all_deviating) = (0, 0, 0);
    for experiment in all().filter(|experiment| experiment.source != OWN) {
        let Some(document) = read(folder, experiment.name)? else {
            missing.push(format!("`{}`", experiment.name));
            continue;
        };
        let rows = rows_of(experiment, &document);
        let run = format!(
            "scale `{}`, commit {}",
            text(&document["scale"]),
            short_commit(text(&document["commit"]))
        );
        runs.entry(run).or_default().push(experiment.name);
        all_rows += rows.len();
        all_compared += rows.iter().filter(|row| row.is_compared()).count();
        all_deviating += rows.iter().filter(|row| row.deviates).count();
        let _ = write!(
            tables,
            "\n## {}\n\n{}. Depends on: {}.\n\n| page | what | the paper | here | difference |\n|---|---|---|---|---|\n",
            experiment.source,
            experiment.title,
            parameters(experiment)
        );
        rows.iter().for_each(|row| tables.push_str(&row.render()));
    }
    if runs.is_empty() {
        return Err(LabError::NoResults { folder: folder.to_owned() });
    }
    let mut page = format!(
        "# The papers' figures and ours\n\nMade by `pando lab summary` from the results of runs: {}. {all_compared} of {all_rows} \
         statements can be compared; {all_deviating} of these differ by more than a quarter or contradict the paper's words, and link to \
         what is known of the reasons.\n",
        runs.iter()
            .map(|(run, names)| format!("{run} ({})", names.join(", ")))
            .collect::<Vec<_>>()
            .join("; ")
    );
    if !missing.is_empty() {
        let _ = write!(page, "\nWithout results there: {}.\n", missing.join(", "));
    }
    Ok(page + &tables)
}

/// The parameters of the model that are no measurements.
fn parameters(experiment: &Experiment) -> String {
    let fitted = experiment.fitted.iter().map(|name| format!("`{name}` (fitted)"));
    let estimated = experiment.estimated.iter().map(|name| format!("`{name}`"));
    let names: Vec<String> = fitted.chain(estimated).collect();
    if names.is_empty() { "measured and published parameters only".to_owned() } else { names.join(", ") }
}

/// The results of an experiment, if there are any.
fn read(folder: &Path, name: &str) -> Result<Option<Value>, LabError> {
    let path = folder.join(format!("{name}.json"));
    let failed = |error| LabError::Read { path: path.clone(), error };
    match fs::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|error| failed(error.into())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(error)),
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("?")
}

/// The statements of an experiment, and the values that the paper gives for single cells.
fn rows_of<'e>(experiment: &'e Experiment, document: &Value) -> Vec<Row<'e>> {
    let list = |name: &str| document[name].as_array().into_iter().flatten();
    let claims = list("claims").map(|claim| {
        let (paper, ours) = (text(&claim["paper"]), claim["ours"].as_str().unwrap_or("failed"));
        Row {
            experiment,
            what: text(&claim["what"]).to_owned(),
            paper: paper.to_owned(),
            ours: ours.to_owned(),
            deviates: deviates(paper, ours),
        }
    });
    let cells = list("cells").flat_map(|cell| {
        let parts = ["panel", "series", "x_name"].map(|part| text(&cell[part]));
        let name = parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ");
        let metrics = experiment.metrics.iter().filter_map(move |metric| {
            let paper = cell["paper"].get(metric.name)?.as_f64()?;
            let ours = metric.of(&cell["report"]);
            Some(Row {
                experiment,
                what: format!("{name}: {}", metric.title),
                paper: paper.to_string(),
                ours: ours.map_or_else(|| "failed".to_owned(), |ours| metric.show(ours)),
                deviates: ours.is_some_and(|ours| differ(paper, ours)),
            })
        });
        metrics.collect::<Vec<_>>()
    });
    claims.chain(cells).collect()
}
