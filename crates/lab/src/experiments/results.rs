//! Results of the cells of an experiment, as input of tables and figures.
//!
//! A value is found by panel, series and position on the x axis. A failed or missing value is `None`, and so
//! is every value computed from it.

use serde_json::Value;

use super::cell::{Cell, Metric};
use super::{Experiment, Setting};

/// A cell and its result.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub cell: Cell,
    /// The report, or the reason why there is none.
    pub report: Result<Value, String>,
    pub wall_seconds: f64,
}

impl Outcome {
    /// Description of the first problem: no report, failed operations, wrong answers or violations.
    pub fn trouble(&self) -> Option<String> {
        let report = match &self.report {
            Ok(report) => report,
            Err(error) => return Some(error.clone()),
        };
        let count = |field: &str| report.get(field).and_then(Value::as_u64).unwrap_or(0);
        let first = || report.pointer("/complaints/0").and_then(Value::as_str).unwrap_or("no reason given");
        for (field, what) in [
            ("failed_ops", "operations failed"),
            ("verify_errors", "answers were wrong"),
            ("audit_violations", "violations were found"),
        ] {
            if count(field) > 0 {
                return Some(format!("{} {what}: {}", count(field), first()));
            }
        }
        None
    }
}

/// All outcomes of a run.
#[derive(Clone, Debug)]
pub struct Results<'e> {
    pub experiment: &'e Experiment,
    pub setting: Setting,
    /// In the order of the cells.
    pub outcomes: Vec<Outcome>,
    /// Number of cells that were not selected.
    pub left_out: usize,
}

/// Position of a cell in its panel.
#[derive(Clone, Copy, Debug)]
pub struct Position<'s> {
    pub series: &'s str,
    pub x: f64,
}

/// The position at `x` in a series.
pub fn at(series: &str, x: f64) -> Position<'_> {
    Position { series, x }
}

impl Results<'_> {
    fn of_series(&self, panel: &str, series: &str) -> impl Iterator<Item = &Outcome> {
        self.outcomes.iter().filter(move |Outcome { cell, .. }| cell.panel == panel && cell.series == series)
    }

    /// A metric of one cell.
    pub fn value(&self, panel: &str, series: &str, x: f64, metric: &Metric) -> Option<f64> {
        let outcome = self.of_series(panel, series).find(|outcome| outcome.cell.x == x)?;
        metric.of(outcome.report.as_ref().ok()?)
    }

    /// The metric of one cell of a panel divided by that of another.
    pub fn ratio(
        &self,
        panel: &str,
        over: Position<'_>,
        under: Position<'_>,
        metric: &Metric,
    ) -> Option<f64> {
        let [over, under] = [over, under].map(|at| self.value(panel, at.series, at.x, metric));
        over.zip(under).filter(|(_, under)| *under > 0.0).map(|(over, under)| over / under)
    }

    /// The measured points of a series, by x.
    pub fn points(&self, panel: &str, series: &str, metric: &Metric) -> Vec<(f64, f64)> {
        let outcomes = self.of_series(panel, series);
        let points = outcomes.filter_map(|o| Some((o.cell.x, metric.of(o.report.as_ref().ok()?)?)));
        let mut points: Vec<_> = points.collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        points
    }

    /// The paper's values for the cells of a series.
    pub fn paper_points(&self, panel: &str, series: &str, metric: &Metric) -> Vec<(f64, f64)> {
        let cells = self.of_series(panel, series).map(|outcome| &outcome.cell);
        let value = |cell: &Cell| cell.paper.iter().find(|(name, _)| *name == metric.name).map(|(_, v)| *v);
        cells.filter_map(|cell| Some((cell.x, value(cell)?))).collect()
    }

    /// The panels in the order of their cells.
    pub fn panels(&self) -> Vec<&str> {
        distinct(self.outcomes.iter().map(|outcome| outcome.cell.panel.as_str()))
    }

    /// The series of a panel in the order of their cells.
    pub fn series(&self, panel: &str) -> Vec<&str> {
        let cells = self.outcomes.iter().map(|outcome| &outcome.cell).filter(|cell| cell.panel == panel);
        distinct(cells.map(|cell| cell.series.as_str()))
    }

    /// The positions on the x axis of a panel with their labels, in ascending order.
    pub fn places(&self, panel: &str) -> Vec<(f64, &str)> {
        let cells = self.outcomes.iter().map(|outcome| &outcome.cell).filter(|cell| cell.panel == panel);
        let mut places: Vec<(f64, &str)> = cells.map(|cell| (cell.x, cell.x_name.as_str())).collect();
        places.sort_by(|a, b| a.0.total_cmp(&b.0));
        places.dedup_by(|a, b| a.0 == b.0);
        places
    }

    /// Number of cells with a problem.
    pub fn trouble_count(&self) -> usize {
        self.outcomes.iter().filter(|outcome| outcome.trouble().is_some()).count()
    }
}

fn distinct<'t>(texts: impl Iterator<Item = &'t str>) -> Vec<&'t str> {
    let mut found: Vec<&str> = Vec::new();
    for text in texts {
        if !found.contains(&text) {
            found.push(text);
        }
    }
    found
}
