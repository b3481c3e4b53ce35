//! A figure as SVG: title, legend, notes, and the primitives of all drawing.
//!
//! `plotters` draws into a string, which cannot fail. All positions are pixels that `layout.rs` computes;
//! panels are drawn by `panel.rs`.

use plotters::coord::Shift;
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::layout::{self, LEGEND_STROKE, Line, Places, TEXT_PX, TITLE_PX};
use super::{Figure, panel};

/// Okabe and Ito's colours, in order of their contrast with white.
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
];
pub(super) const INK: RGBColor = RGBColor(34, 34, 34);
pub(super) const PALE_INK: RGBColor = RGBColor(85, 85, 85);
const FONT: &str = "DejaVu Sans, sans-serif";
/// `plotters` writes a smaller font size into the SVG than it is given; this factor corrects that.
const SVG_LETTERS: f64 = 1.24;
/// Half the width of a marker, in pixels.
pub(super) const MARKER: i32 = 5;

pub(super) type Point = (i32, i32);
pub(super) type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;

pub(super) fn svg(figure: &Figure) -> String {
    let places = layout::place(figure);
    let mut text = String::new();
    {
        let canvas = Canvas(SVGBackend::with_string(&mut text, places.size).into_drawing_area());
        draw(&canvas, figure, &places)
            .and_then(|()| canvas.0.present())
            .expect("writing into a string does not fail");
    }
    text
}

fn draw(canvas: &Canvas<'_>, figure: &Figure, places: &Places) -> Drawn {
    canvas.0.fill(&WHITE)?;
    for (lines, px, colour) in [(&places.title, TITLE_PX, INK), (&places.notes, TEXT_PX, PALE_INK)] {
        for line in lines {
            canvas.text(&line.text, px, colour, Anchor::LEFT, at(line))?;
        }
    }
    for entry in &places.legend {
        let (look, (x, y)) = (Look::of(figure, &entry.text), at(entry));
        match figure.is_bars(&entry.text) {
            true => canvas.bar([(x + 4, y - 7), (x + 24, y + 7)], look)?,
            false => {
                canvas.stroke(&[(x, y), (x + 26, y)], look)?;
                canvas.marker((x + 13, y), look)?;
            }
        }
        canvas.text(&entry.text, TEXT_PX, INK, Anchor::LEFT, (x + LEGEND_STROKE as i32, y))?;
    }
    for (panel, &place) in figure.panels.iter().zip(&places.panels) {
        panel::draw(canvas, figure, panel, place)?;
    }
    Ok(())
}

fn at(line: &Line) -> Point {
    (line.x as i32, line.y as i32)
}

/// Appearance of a series, the same in all panels.
#[derive(Clone, Copy)]
pub(super) struct Look {
    pub colour: RGBColor,
    marker: usize,
    pub quoted: bool,
}

impl Look {
    pub fn of(figure: &Figure, name: &str) -> Look {
        let at = figure.series_names().iter().position(|known| *known == name).unwrap_or(0);
        Look { colour: COLOURS[at % COLOURS.len()], marker: at, quoted: figure.is_quoted(name) }
    }
}

/// The point of a text that lies at the given position.
#[derive(Clone, Copy)]
pub(super) struct Anchor(HPos, VPos);

impl Anchor {
    pub const LEFT: Anchor = Anchor(HPos::Left, VPos::Center);
    pub const RIGHT: Anchor = Anchor(HPos::Right, VPos::Center);
    pub const MIDDLE: Anchor = Anchor(HPos::Center, VPos::Center);
}

/// Drawing area of a figure.
pub(super) struct Canvas<'a>(DrawingArea<SVGBackend<'a>, Shift>);

impl Canvas<'_> {
    pub fn text(&self, text: &str, px: f64, colour: RGBColor, anchor: Anchor, at: Point) -> Drawn {
        let style = (FONT, px * SVG_LETTERS).into_font().color(&colour);
        self.0.draw_text(text, &style.pos(Pos { h_pos: anchor.0, v_pos: anchor.1 }), at)
    }

    /// Text that reads upwards, centred at `at`.
    pub fn upright(&self, text: &str, px: f64, at: Point) -> Drawn {
        let font = (FONT, px * SVG_LETTERS).into_font().transform(FontTransform::Rotate270);
        let middle = Pos { h_pos: HPos::Center, v_pos: VPos::Center };
        self.0.draw_text(text, &font.color(&INK).pos(middle), at)
    }

    pub fn line(&self, points: &[Point], colour: RGBColor, width: u32) -> Drawn {
        self.0.draw(&PathElement::new(points.to_vec(), colour.stroke_width(width)))
    }

    pub fn dashed(&self, points: &[Point], colour: RGBColor, width: u32) -> Drawn {
        let style = colour.stroke_width(width);
        self.0.draw(&DashedPathElement::new(points.iter().copied(), 6, 4, style))
    }

    /// The line of a series.
    pub fn stroke(&self, points: &[Point], look: Look) -> Drawn {
        match look.quoted {
            true => self.dashed(points, look.colour, 2),
            false => self.line(points, look.colour, 2),
        }
    }

    pub fn bar(&self, corners: [Point; 2], look: Look) -> Drawn {
        if !look.quoted {
            return self.0.draw(&Rectangle::new(corners, look.colour.filled()));
        }
        let [(left, top), (right, bottom)] = corners;
        self.0.draw(&Rectangle::new(corners, look.colour.mix(0.15).filled()))?;
        let outline = [(left, bottom), (left, top), (right, top), (right, bottom)];
        self.dashed(&outline, look.colour, 1)
    }

    /// A point of a series. Markers differ in shape, so that a reader need not tell colours apart.
    pub fn marker(&self, (x, y): Point, look: Look) -> Drawn {
        let style = if look.quoted { look.colour.stroke_width(2) } else { look.colour.filled() };
        let m = MARKER;
        let corners = match look.marker % 5 {
            0 => return self.0.draw(&Circle::new((x, y), m, style)),
            1 => vec![(x - m, y - m), (x + m, y - m), (x + m, y + m), (x - m, y + m)],
            2 => vec![(x, y - m - 1), (x + m + 1, y + m), (x - m - 1, y + m)],
            3 => vec![(x, y - m - 2), (x + m + 2, y), (x, y + m + 2), (x - m - 2, y)],
            _ => vec![(x, y + m + 1), (x + m + 1, y - m), (x - m - 1, y - m)],
        };
        self.0.draw(&Polygon::new(corners, style))
    }
}
