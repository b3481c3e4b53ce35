//! Plots that a reader understands without the paper: they show what is compared, the unit, and the paper's
//! statement.
//!
//! A [`Figure`] is data. [`Figure::svg`] and [`Figure::png`] draw it, the latter with an embedded font, so
//! neither depends on the system. Equal figures give equal bytes.
//! - Colours are Okabe and Ito's, which colour-blind readers can distinguish; markers and dashes differ as
//!   well.
//! - A series has one colour in all panels, and one entry in the legend.
//! - The paper's values are dashed or stand below; missing values are not drawn.

mod axis;
mod draw;
mod label;
mod layout;
mod panel;
mod picture;
mod raster;
mod svg;

pub use raster::RasterError;

/// A titled drawing of one or several panels.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    pub title: String,
    pub panels: Vec<Panel>,
    /// Sentences below the panels.
    pub notes: Vec<String>,
}

/// One pair of axes with its data.
#[derive(Clone, Debug, PartialEq)]
pub struct Panel {
    pub title: String,
    pub shape: Shape,
    pub x: XAxis,
    /// The measured quantity, with its unit.
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
    /// The varied quantity, with its unit; empty if the names suffice.
    pub label: String,
    pub ticks: XTicks,
}

#[derive(Clone, Debug, PartialEq)]
pub enum XTicks {
    /// Numeric positions, with ticks at these numbers.
    Numbers(Vec<f64>),
    /// Names at equal distances. The x of a point is the index of its name, from 0.
    Names(Vec<String>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum YScale {
    /// From zero.
    Linear,
    /// Around the data and the reference lines: for ratios, whose distance from zero is irrelevant. The label
    /// of the axis says that it does not begin at zero.
    Near,
    /// By powers of ten.
    Log,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    pub name: String,
    pub points: Vec<(f64, f64)>,
    /// Whether the points are quoted instead of measured: dashed lines, or outlined bars.
    pub quoted: bool,
}

/// A horizontal dashed line with a label.
#[derive(Clone, Debug, PartialEq)]
pub struct Reference {
    pub label: String,
    pub y: f64,
}

impl Figure {
    /// Names of all series in the order of their first occurrence.
    fn series_names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for series in self.panels.iter().flat_map(|panel| &panel.series) {
            if !names.contains(&series.name.as_str()) {
                names.push(&series.name);
            }
        }
        names
    }

    /// Whether the series is drawn as bars in all panels.
    fn is_bars(&self, name: &str) -> bool {
        let mut panels = self.panels.iter().filter(|panel| panel.series.iter().any(|s| s.name == name));
        panels.all(|panel| panel.shape == Shape::Bars)
    }

    /// Whether the series is quoted in all panels.
    fn is_quoted(&self, name: &str) -> bool {
        self.panels.iter().flat_map(|panel| &panel.series).all(|series| series.name != name || series.quoted)
    }

    /// The figure as SVG. Its text requests DejaVu Sans, or any sans-serif font if that is missing.
    pub fn svg(&self) -> String {
        svg::write(&draw::picture(self))
    }

    /// The figure as PNG, at twice the size of the SVG.
    ///
    /// # Errors
    /// A figure that is too large for a picture.
    pub fn png(&self) -> Result<Vec<u8>, RasterError> {
        raster::png(&draw::picture(self))
    }
}

#[cfg(test)]
pub(crate) mod tests;
