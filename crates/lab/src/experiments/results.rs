//! What the cells of an experiment gave, for those who make tables and figures of it.
//!
//! Everything is found by panel, series and place on the x axis. What failed or is missing is `None`, and stays that
//! through every calculation.

use serde_json::Value;

use super::cell::{Cell, Metric};
use super::{Experiment, Setting};

/// A cell and how it went.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub cell: Cell,
    /// The report, or why there is none.
    pub report: Result<Value, String>,
    pub wall_seconds: f64,
}

impl Outcome {
    /// What went wrong, if anything did: no report, or operations that failed.
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
    /// Cells that were not asked for.
    pub left_out: usize,
}

impl Results<'_> {
    /// A figure of one cell.
    pub fn value(&self, panel: &str, series: &str, x: f64, metric: &Metric) -> Option<f64> {
        let is_meant = |cell: &Cell| cell.panel == panel && cell.series == series && cell.x == x;
        let outcome = self.outcomes.iter().find(|outcome| is_meant(&outcome.cell))?;
        metric.of(outcome.report.as_ref().ok()?)
    }

    /// One cell's figure over another's: `(series, x)` of both.
    pub fn ratio(&self, panel: &str, over: (&str, f64), under: (&str, f64), metric: &Metric) -> Option<f64> {
        let [over, under] = [over, under].map(|(series, x)| self.value(panel, series, x, metric));
        over.zip(under).filter(|(_, under)| *under > 0.0).map(|(over, under)| over / under)
    }

    /// The points of a series that were measured, by x.
    pub fn points(&self, panel: &str, series: &str, metric: &Metric) -> Vec<(f64, f64)> {
        let of_series = |cell: &Cell| cell.panel == panel && cell.series == series;
        let outcomes = self.outcomes.iter().filter(|outcome| of_series(&outcome.cell));
        let points = outcomes.filter_map(|o| Some((o.cell.x, metric.of(o.report.as_ref().ok()?)?)));
        let mut points: Vec<_> = points.collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        points
    }

    /// What the paper gives for the cells of a series, by x.
    pub fn paper_points(&self, panel: &str, series: &str, metric: &Metric) -> Vec<(f64, f64)> {
        let of_series = |cell: &&Cell| cell.panel == panel && cell.series == series;
        let cells = self.outcomes.iter().map(|outcome| &outcome.cell).filter(of_series);
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

    /// The places on the x axis of a panel with their names, in order.
    pub fn places(&self, panel: &str) -> Vec<(f64, &str)> {
        let cells = self.outcomes.iter().map(|outcome| &outcome.cell).filter(|cell| cell.panel == panel);
        let mut places: Vec<(f64, &str)> = cells.map(|cell| (cell.x, cell.x_name.as_str())).collect();
        places.sort_by(|a, b| a.0.total_cmp(&b.0));
        places.dedup_by(|a, b| a.0 == b.0);
        places
    }

    /// How many cells have trouble.
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
