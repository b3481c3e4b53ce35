//! Size of a figure and positions of its parts; width of text.
//!
//! Widths of text are estimated from the average character of DejaVu Sans, with a margin. Nothing is
//! measured, so the layout needs no font.

use super::Figure;
use super::picture::Point;

/// Sizes of text in pixels.
pub(super) const TITLE_PX: f64 = 20.0;
pub(super) const PANEL_TITLE_PX: f64 = 15.0;
pub(super) const TEXT_PX: f64 = 13.0;
pub(super) const SMALL_PX: f64 = 11.0;

const MARGIN: f64 = 16.0;
const LINE: f64 = 1.45;
/// Length of a legend's stroke with the gap on its right, and the gap between two entries.
pub(super) const LEGEND_STROKE: f64 = 34.0;
const LEGEND_GAP: f64 = 22.0;

/// A position in pixels from the upper left corner.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spot {
    pub x: f64,
    pub y: f64,
}

impl From<Point> for Spot {
    fn from((x, y): Point) -> Self {
        Spot { x: x.into(), y: y.into() }
    }
}

/// A rectangle in pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Area {
    pub left: f64,
    pub top: f64,
    pub right: f64,
    pub bottom: f64,
}

impl Area {
    /// Area of a line of small text with this middle.
    pub fn of_text(text: &str, Spot { x, y }: Spot) -> Area {
        let (width, height) = (width_of(text, SMALL_PX), SMALL_PX * 1.2);
        Area {
            left: x - width / 2.0,
            top: y - height / 2.0,
            right: x + width / 2.0,
            bottom: y + height / 2.0,
        }
    }

    /// The area enlarged by this many pixels on each side.
    pub fn grown(self, by: f64) -> Area {
        Area { left: self.left - by, top: self.top - by, right: self.right + by, bottom: self.bottom + by }
    }

    pub fn overlaps(&self, other: &Area) -> bool {
        self.left < other.right
            && other.left < self.right
            && self.top < other.bottom
            && other.top < self.bottom
    }

    pub fn contains(&self, other: &Area) -> bool {
        self.left <= other.left
            && other.right <= self.right
            && self.top <= other.top
            && other.bottom <= self.bottom
    }

    /// Whether a part of the stroke lies inside the area.
    pub fn is_crossed(&self, from: Spot, to: Spot) -> bool {
        let (mut enters, mut leaves) = (0.0, 1.0);
        let sides =
            [(from.x, to.x - from.x, self.left, self.right), (from.y, to.y - from.y, self.top, self.bottom)];
        for (start, way, low, high) in sides {
            if way == 0.0 {
                if start <= low || start >= high {
                    return false;
                }
                continue;
            }
            let (a, b) = ((low - start) / way, (high - start) / way);
            (enters, leaves) = (f64::max(enters, a.min(b)), f64::min(leaves, a.max(b)));
        }
        enters < leaves
    }
}

/// Positions in pixels from the upper left corner.
pub(super) struct Places {
    pub size: (u32, u32),
    pub title: Vec<Line>,
    pub legend: Vec<Line>,
    pub panels: Vec<Area>,
    pub notes: Vec<Line>,
}

/// A line of text, or an entry of the legend, which begins with its stroke.
pub(super) struct Line {
    pub text: String,
    pub x: f64,
    /// The line's middle.
    pub y: f64,
}

/// Estimated width of the text in pixels.
pub(super) fn width_of(text: &str, px: f64) -> f64 {
    text.chars().count() as f64 * px * 0.58
}

/// Breaks text into lines of at most this width.
pub(super) fn wrapped(text: &str, px: f64, width: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if width_of(line, px) + width_of(word, px) + px < width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

pub(super) fn columns(panels: usize) -> usize {
    match panels {
        0 | 1 => 1,
        2 | 4 => 2,
        _ => 3,
    }
}

/// The current height of a layout from top to bottom.
struct Pen {
    y: f64,
}

impl Pen {
    fn lines(&mut self, texts: &[String], px: f64) -> Vec<Line> {
        texts
            .iter()
            .map(|text| {
                self.y += px * LINE;
                Line { text: text.clone(), x: MARGIN, y: self.y - px * LINE / 2.0 }
            })
            .collect()
    }

    fn legend(&mut self, names: &[&str], width: f64) -> Vec<Line> {
        let mut x = MARGIN;
        let mut entries = Vec::new();
        self.y += TEXT_PX * LINE;
        for name in names {
            let length = LEGEND_STROKE + width_of(name, TEXT_PX) + LEGEND_GAP;
            if x > MARGIN && x + length > width {
                x = MARGIN;
                self.y += TEXT_PX * LINE;
            }
            entries.push(Line { text: (*name).to_owned(), x, y: self.y - TEXT_PX * LINE / 2.0 });
            x += length;
        }
        entries
    }
}

pub(super) fn place(figure: &Figure) -> Places {
    let columns = columns(figure.panels.len());
    let (panel_width, panel_height) = match columns {
        1 => (820.0, 440.0),
        2 => (500.0, 380.0),
        _ => (400.0, 330.0),
    };
    let width = columns as f64 * panel_width + 2.0 * MARGIN;
    let text_width = width - 2.0 * MARGIN;
    let mut pen = Pen { y: MARGIN };
    let title = pen.lines(&wrapped(&figure.title, TITLE_PX, text_width), TITLE_PX);
    pen.y += 6.0;
    let names = figure.series_names();
    let legend = if names.len() > 1 { pen.legend(&names, width - MARGIN) } else { Vec::new() };
    pen.y += 8.0;
    let panels = (0..figure.panels.len()).map(|i| {
        let (column, row) = (i % columns, i / columns);
        let (left, top) = (MARGIN + column as f64 * panel_width, pen.y + row as f64 * panel_height);
        Area { left, top, right: left + panel_width, bottom: top + panel_height }
    });
    let panels: Vec<_> = panels.collect();
    pen.y += figure.panels.len().div_ceil(columns) as f64 * panel_height + 6.0;
    let notes = figure.notes.iter().flat_map(|note| wrapped(note, TEXT_PX, text_width));
    let notes = pen.lines(&notes.collect::<Vec<_>>(), TEXT_PX);
    Places { size: (width as u32, (pen.y + MARGIN) as u32), title, legend, panels, notes }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_wrapped_and_none_is_lost() {
        let text = "caching improves throughput by an order of magnitude under skew, and by less without";
        let lines = wrapped(text, 13.0, 200.0);
        assert!(lines.len() > 2 && lines.iter().all(|line| width_of(line, 13.0) < 200.0), "{lines:?}");
        assert_eq!(lines.join(" "), text);
    }

    #[test]
    fn a_legend_that_is_too_wide_goes_on_below() {
        let mut pen = Pen { y: 0.0 };
        let entries = pen.legend(&["a short name", "another name", "and the third of them"], 300.0);
        assert!(entries[0].y < entries[2].y && entries[2].x == entries[0].x);
    }

    #[test]
    fn strokes_cross_what_they_run_through() {
        let at = |x, y| Spot { x, y };
        let area = Area { left: 10.0, top: 10.0, right: 20.0, bottom: 20.0 };
        assert!(area.is_crossed(at(0.0, 0.0), at(30.0, 30.0)));
        assert!(area.is_crossed(at(15.0, 15.0), at(16.0, 15.0)), "all of it is inside");
        assert!(area.is_crossed(at(0.0, 15.0), at(30.0, 15.0)));
        assert!(!area.is_crossed(at(0.0, 25.0), at(30.0, 25.0)));
        assert!(!area.is_crossed(at(0.0, 12.0), at(12.0, 0.0)), "it passes the corner");
        assert!(!area.is_crossed(at(15.0, 0.0), at(15.0, 9.0)), "it ends before");
    }
}
