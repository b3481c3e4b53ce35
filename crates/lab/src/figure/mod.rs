//! Plots that a reader understands without the paper: what is compared, in which unit, and what the paper says of it.
//!
//! A [`Figure`] is data; [`Figure::svg`] draws it with `plotters`, [`png`] renders the drawing with `resvg` and a font
//! that the program carries, so that neither needs anything of the system. The same figure is the same bytes.
//! - Colours are those of Okabe and Ito, which colour-blind people tell apart; markers and dashes differ as well.
//! - A series has one colour in all panels, and stands once in the legend.
//! - What the paper says is drawn dashed or written below; what is missing is not drawn, never made up.

mod axis;
mod draw;
mod label;
mod layout;
mod panel;
mod raster;

pub use raster::{RasterError, png};

/// A titled drawing of one or several panels.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    pub title: String,
    pub panels: Vec<Panel>,
    /// Sentences below the panels.
    pub notes: Vec<String>,
}

/// One pair of axes.
#[derive(Clone, Debug, PartialEq)]
pub struct Panel {
    pub title: String,
    pub shape: Shape,
    pub x: XAxis,
    /// What is measured, with its unit.
    pub y_label: String,
    pub y_scale: YScale,
    pub series: Vec<Series>,
    pub references: Vec<Reference>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Points with lines between them.
    Lines,
    /// A group of bars for each name of the x axis.
    Bars,
}

#[derive(Clone, Debug, PartialEq)]
pub struct XAxis {
    /// What is varied, with its unit; empty if the names say it.
    pub label: String,
    pub ticks: XTicks,
}

#[derive(Clone, Debug, PartialEq)]
pub enum XTicks {
    /// Numbers where they belong; ticks at these.
    Numbers(Vec<f64>),
    /// Names at equal distances; the x of a point is the number of its name, from 0.
    Names(Vec<String>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum YScale {
    /// From zero.
    Linear,
    /// Around the data and the reference lines: for ratios to one of the points, whose zero says nothing. The label of the
    /// axis says that it does not begin at zero.
    Near,
    /// By powers of ten.
    Log,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    pub name: String,
    pub points: Vec<(f64, f64)>,
    /// Whether these are somebody else's figures rather than measured ones: dashed, or bars that are only outlined.
    pub quoted: bool,
}

/// A horizontal dashed line with what it stands for.
#[derive(Clone, Debug, PartialEq)]
pub struct Reference {
    pub label: String,
    pub y: f64,
}

impl Figure {
    /// Names of all series in the order in which they come first.
    fn series_names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for series in self.panels.iter().flat_map(|panel| &panel.series) {
            if !names.contains(&series.name.as_str()) {
                names.push(&series.name);
            }
        }
        names
    }

    /// Whether the series is drawn as bars wherever it occurs.
    fn is_bars(&self, name: &str) -> bool {
        let mut panels = self.panels.iter().filter(|panel| panel.series.iter().any(|s| s.name == name));
        panels.all(|panel| panel.shape == Shape::Bars)
    }

    /// Whether the series is quoted wherever it occurs.
    fn is_quoted(&self, name: &str) -> bool {
        self.panels.iter().flat_map(|panel| &panel.series).all(|series| series.name != name || series.quoted)
    }

    /// The figure as SVG. Its text asks for DejaVu Sans, and makes do with any sans serif font.
    pub fn svg(&self) -> String {
        draw::svg(self)
    }
}

#[cfg(test)]
pub(crate) mod tests;
