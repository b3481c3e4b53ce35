//! Size of a figure and positions of its parts; width of text.
//!
//! Widths of text are estimated from the average character of DejaVu Sans, with a margin. Nothing is
//! measured, so the layout needs no font.

use super::Figure;

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

/// Positions in pixels from the upper left corner.
pub(super) struct Places {
    pub size: (u32, u32),
    pub title: Vec<Line>,
    pub legend: Vec<Line>,
    /// Left, top, width and height of each panel.
    pub panels: Vec<(f64, f64, f64, f64)>,
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
        (MARGIN + column as f64 * panel_width, pen.y + row as f64 * panel_height, panel_width, panel_height)
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
}
