//! Makes panels of results, for the common kinds of figures.
//!
//! Positions on the x axis keep their distances if they are comparable numbers (threads). Otherwise, such as
//! for powers of two, they are names at equal distances.

use super::cell::{Cell, Metric, THROUGHPUT, Work};
use super::results::Results;
use crate::figure::{Figure, Panel, Series, Shape, XAxis, XTicks, YScale};

pub(super) const MOPS: &str = "throughput (million operations/s)";

/// Positions on the x axis.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Spacing {
    Numbers,
    Names,
}

/// Makes a figure of the panels, with the experiment's title and notes.
pub fn figure(results: &Results<'_>, panels: Vec<Panel>, paper_says: &str) -> Figure {
    let failed = match results.trouble_count() {
        0 => None,
        count => Some(format!("{count} of {} cells failed and are not shown.", results.outcomes.len())),
    };
    let fitted = results.experiment.fitted.join(", ");
    let fitted = (!fitted.is_empty()).then(|| {
        format!("Rests on parameters that were fitted to published figures: {fitted} (docs/sim.md).")
    });
    let notes = [
        (!paper_says.is_empty()).then(|| format!("The paper ({}): {paper_says}", results.experiment.source)),
        Some(format!("{} {}", results.experiment.place.note, (results.experiment.sizes)(&results.setting))),
        fitted,
        failed,
    ];
    Figure {
        title: results.experiment.title.to_owned(),
        panels,
        notes: notes.into_iter().flatten().collect(),
    }
}

/// Throughput of all series as lines, a panel for each panel of the results.
pub fn throughput_lines(results: &Results<'_>, spacing: Spacing) -> Vec<Panel> {
    results.panels().into_iter().map(|panel| lines(results, panel, spacing, &THROUGHPUT, MOPS)).collect()
}

/// A metric of all series of a panel as lines.
pub(super) fn lines(
    results: &Results<'_>,
    panel: &str,
    spacing: Spacing,
    metric: &Metric,
    y_label: &str,
) -> Panel {
    shaped(results, panel, Shape::Lines, spacing, metric, y_label)
}

/// A metric of all series of a panel as groups of bars. The paper's values, if any, are bars of their own.
pub(super) fn bars(results: &Results<'_>, panel: &str, metric: &Metric, y_label: &str) -> Panel {
    shaped(results, panel, Shape::Bars, Spacing::Names, metric, y_label)
}

fn shaped(
    results: &Results<'_>,
    panel: &str,
    shape: Shape,
    spacing: Spacing,
    metric: &Metric,
    y_label: &str,
) -> Panel {
    let places = results.places(panel);
    let place_of = |x: f64| match spacing {
        Spacing::Numbers => x,
        Spacing::Names => places.iter().position(|place| place.0 == x).unwrap_or(0) as f64,
    };
    let placed = |points: Vec<(f64, f64)>| points.into_iter().map(|(x, y)| (place_of(x), y)).collect();
    let mut series = Vec::new();
    for name in results.series(panel) {
        let measured = placed(results.points(panel, name, metric));
        series.push(Series { name: name.to_owned(), points: measured, quoted: false });
        let paper: Vec<(f64, f64)> = placed(results.paper_points(panel, name, metric));
        if !paper.is_empty() {
            series.push(Series { name: format!("{name}, the paper"), points: paper, quoted: true });
        }
    }
    let ticks = match spacing {
        Spacing::Numbers => XTicks::Numbers(places.iter().map(|place| place.0).collect()),
        Spacing::Names => XTicks::Names(places.iter().map(|place| place.1.to_owned()).collect()),
    };
    Panel {
        title: panel.to_owned(),
        shape,
        x: XAxis { label: results.experiment.varied.to_owned(), ticks },
        y_label: y_label.to_owned(),
        y_scale: YScale::Linear,
        series,
        references: Vec::new(),
    }
}

/// A cell without a value of the paper.
pub fn cell(panel: &str, series: &str, x: f64, x_name: impl ToString, work: impl Into<Work>) -> Cell {
    Cell {
        panel: panel.to_owned(),
        series: series.to_owned(),
        x,
        x_name: x_name.to_string(),
        work: work.into(),
        paper: Vec::new(),
    }
}
