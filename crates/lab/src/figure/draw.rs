//! A figure as a picture: title, legend, notes, and how a series looks.
//!
//! All positions are pixels that `layout.rs` computes; panels are drawn by `panel.rs`. The look of a
//! series depends on its name's place among all series, so it is the same in all panels.

use super::layout::{self, LEGEND_STROKE, Line, TEXT_PX, TITLE_PX};
use super::picture::{Anchor, Colour, Ink, Outline, Picture, Point};
use super::{Figure, panel};

/// Okabe and Ito's colours, in order of their contrast with white.
const COLOURS: [Colour; 7] = [
    Colour(0, 114, 178),
    Colour(213, 94, 0),
    Colour(0, 158, 115),
    Colour(204, 121, 167),
    Colour(230, 159, 0),
    Colour(86, 180, 233),
    Colour(0, 0, 0),
];
pub(super) const INK: Colour = Colour(34, 34, 34);
pub(super) const PALE_INK: Colour = Colour(85, 85, 85);
/// Half the width of a marker, in pixels.
pub(super) const MARKER: i32 = 5;

pub(super) fn picture(figure: &Figure) -> Picture {
    let places = layout::place(figure);
    let mut picture = Picture { width: places.size.0, height: places.size.1, marks: Vec::new() };
    for (lines, px, colour) in [(&places.title, TITLE_PX, INK), (&places.notes, TEXT_PX, PALE_INK)] {
        lines.iter().for_each(|line| picture.text(&line.text, px, colour, Anchor::Left, at(line)));
    }
    for entry in &places.legend {
        let (look, (x, y)) = (Look::of(figure, &entry.text), at(entry));
        match figure.is_bars(&entry.text) {
            true => look.bar(&mut picture, [(x + 4, y - 7), (x + 24, y + 7)]),
            false => {
                look.stroke(&mut picture, &[(x, y), (x + 26, y)]);
                look.marker(&mut picture, (x + 13, y));
            }
        }
        picture.text(&entry.text, TEXT_PX, INK, Anchor::Left, (x + LEGEND_STROKE as i32, y));
    }
    for (panel, &place) in figure.panels.iter().zip(&places.panels) {
        panel::draw(&mut picture, figure, panel, place);
    }
    picture
}

fn at(line: &Line) -> Point {
    (line.x as i32, line.y as i32)
}

/// Appearance of a series, the same in all panels.
#[derive(Clone, Copy)]
pub(super) struct Look {
    colour: Colour,
    marker: usize,
    quoted: bool,
}

impl Look {
    pub fn of(figure: &Figure, name: &str) -> Look {
        let at = figure.series_names().iter().position(|known| *known == name).unwrap_or(0);
        Look { colour: COLOURS[at % COLOURS.len()], marker: at, quoted: figure.is_quoted(name) }
    }

    /// The line of a series.
    pub fn stroke(self, picture: &mut Picture, points: &[Point]) {
        match self.quoted {
            true => picture.dashed(points, self.colour, 2.0),
            false => picture.line(points, self.colour, 2.0),
        }
    }

    pub fn bar(self, picture: &mut Picture, corners: [Point; 2]) {
        let [(left, top), (right, bottom)] = corners;
        let outline = [(left, bottom), (left, top), (right, top), (right, bottom)];
        let opacity = if self.quoted { 0.15 } else { 1.0 };
        picture.draw(Outline::Polygon(outline.to_vec()), Ink::Fill { opacity }, self.colour);
        if self.quoted {
            picture.dashed(&outline, self.colour, 1.0);
        }
    }

    /// A point of a series. Markers differ in shape, so that a reader need not tell colours apart.
    pub fn marker(self, picture: &mut Picture, (x, y): Point) {
        let ink = if self.quoted { Ink::Stroke { width: 2.0 } } else { Ink::Fill { opacity: 1.0 } };
        let m = MARKER;
        let outline = match self.marker % 5 {
            0 => Outline::Circle { middle: (x, y), radius: m },
            1 => Outline::Polygon(vec![(x - m, y - m), (x + m, y - m), (x + m, y + m), (x - m, y + m)]),
            2 => Outline::Polygon(vec![(x, y - m - 1), (x + m + 1, y + m), (x - m - 1, y + m)]),
            3 => Outline::Polygon(vec![(x, y - m - 2), (x + m + 2, y), (x, y + m + 2), (x - m - 2, y)]),
            _ => Outline::Polygon(vec![(x, y + m + 1), (x + m + 1, y - m), (x - m - 1, y - m)]),
        };
        picture.draw(outline, ink, self.colour);
    }
}
