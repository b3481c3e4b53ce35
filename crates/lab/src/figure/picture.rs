//! A drawing as a list of marks, from the lowest to the topmost.
//!
//! All positions are pixels from the upper left corner. [`svg`](super::svg) writes the list as text,
//! [`raster`](super::raster) renders it; both show the same.

pub(super) type Point = (i32, i32);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Colour(pub u8, pub u8, pub u8);

/// The point of a text that lies at its position; vertically, that is the middle of the letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Anchor {
    Left,
    Middle,
    Right,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Outline {
    Line(Vec<Point>),
    Polygon(Vec<Point>),
    Circle { middle: Point, radius: i32 },
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Ink {
    Fill { opacity: f32 },
    Stroke { width: f32 },
    Dashes { width: f32 },
}

/// Lengths of a dash and of the gap after it, in pixels.
pub(super) const DASH: (f32, f32) = (6.0, 4.0);

/// Distance of the middle of the letters from the line on which they stand, in units of the font size.
pub(super) const MIDDLE_EM: f32 = 0.35;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Text {
    pub text: String,
    pub px: f64,
    pub anchor: Anchor,
    pub at: Point,
    /// Whether the text reads upwards.
    pub upright: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Mark {
    Outline(Outline, Ink, Colour),
    Text(Text, Colour),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Picture {
    pub width: u32,
    pub height: u32,
    pub marks: Vec<Mark>,
}

impl Picture {
    pub fn text(&mut self, text: &str, px: f64, colour: Colour, anchor: Anchor, at: Point) {
        let text = Text { text: text.to_owned(), px, anchor, at, upright: false };
        self.marks.push(Mark::Text(text, colour));
    }

    /// Text that reads upwards, centred at `at`.
    pub fn upright(&mut self, text: &str, px: f64, colour: Colour, at: Point) {
        let text = Text { text: text.to_owned(), px, anchor: Anchor::Middle, at, upright: true };
        self.marks.push(Mark::Text(text, colour));
    }

    pub fn line(&mut self, points: &[Point], colour: Colour, width: f32) {
        self.draw(Outline::Line(points.to_vec()), Ink::Stroke { width }, colour);
    }

    pub fn dashed(&mut self, points: &[Point], colour: Colour, width: f32) {
        self.draw(Outline::Line(points.to_vec()), Ink::Dashes { width }, colour);
    }

    pub fn draw(&mut self, outline: Outline, ink: Ink, colour: Colour) {
        self.marks.push(Mark::Outline(outline, ink, colour));
    }
}
