//! A picture as PNG.
//!
//! Letters are outlines of DejaVu Sans, which comes with the crate `dejavu`. Fonts of the system are not used,
//! so that every machine renders the same pixels.

use tiny_skia::{Color, FillRule, Paint, Path, PathBuilder, Pixmap, Stroke, StrokeDash, Transform};
use ttf_parser::{Face, OutlineBuilder};

use super::picture::{Anchor, Colour, DASH, Ink, MIDDLE_EM, Mark, Outline, Picture, Text};

/// Pixels of the PNG per pixel of the picture; 2 keeps text readable on fine screens.
const ZOOM: f32 = 2.0;

/// Reason why a picture could not be rendered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RasterError {
    #[error("a picture of {width} x {height} pixels cannot be made")]
    Size { width: u32, height: u32 },
    #[error("the picture cannot be encoded: {0}")]
    Encoding(String),
}

/// Renders the picture on a white background, at twice its size.
pub(super) fn png(picture: &Picture) -> Result<Vec<u8>, RasterError> {
    let [width, height] = [picture.width, picture.height].map(|pixels| (pixels as f32 * ZOOM) as u32);
    let mut pixels = Pixmap::new(width, height).ok_or(RasterError::Size { width, height })?;
    pixels.fill(Color::WHITE);
    let face = Face::parse(dejavu::sans::regular(), 0).expect("the font of the crate is whole");
    let zoom = Transform::from_scale(ZOOM, ZOOM);
    for mark in &picture.marks {
        match mark {
            Mark::Outline(outline, ink, colour) => draw(&mut pixels, &path(outline), *ink, *colour, zoom),
            Mark::Text(text, colour) => {
                let (x, y) = (text.at.0 as f32, text.at.1 as f32);
                let turn = if text.upright { -90.0 } else { 0.0 };
                let place = zoom.pre_translate(x, y).pre_concat(Transform::from_rotate(turn));
                draw(&mut pixels, &letters(&face, text), Ink::Fill { opacity: 1.0 }, *colour, place);
            }
        }
    }
    pixels.encode_png().map_err(|error| RasterError::Encoding(error.to_string()))
}

/// Draws nothing where there is no path, as for a text of blanks.
fn draw(pixels: &mut Pixmap, path: &Option<Path>, ink: Ink, colour: Colour, place: Transform) {
    let Some(path) = path else { return };
    let Colour(red, green, blue) = colour;
    let opacity = if let Ink::Fill { opacity } = ink { opacity } else { 1.0 };
    let mut paint = Paint::default();
    paint.set_color_rgba8(red, green, blue, (opacity * 255.0) as u8);
    let stroke = match ink {
        Ink::Fill { .. } => return pixels.fill_path(path, &paint, FillRule::Winding, place, None),
        Ink::Stroke { width } => Stroke { width, ..Stroke::default() },
        Ink::Dashes { width } => {
            Stroke { width, dash: StrokeDash::new(vec![DASH.0, DASH.1], 0.0), ..Stroke::default() }
        }
    };
    pixels.stroke_path(path, &paint, &stroke, place, None);
}

fn path(outline: &Outline) -> Option<Path> {
    let (points, is_closed) = match outline {
        Outline::Line(points) => (points, false),
        Outline::Polygon(points) => (points, true),
        Outline::Circle { middle: (x, y), radius } => {
            return PathBuilder::from_circle(*x as f32, *y as f32, *radius as f32);
        }
    };
    let mut path = PathBuilder::new();
    for (i, (x, y)) in points.iter().map(|&(x, y)| (x as f32, y as f32)).enumerate() {
        if i == 0 { path.move_to(x, y) } else { path.line_to(x, y) }
    }
    if is_closed {
        path.close();
    }
    path.finish()
}

/// Outlines of the letters around the position of the text.
fn letters(face: &Face<'_>, text: &Text) -> Option<Path> {
    let scale = text.px as f32 / f32::from(face.units_per_em());
    let glyphs: Vec<_> = text.text.chars().filter_map(|letter| face.glyph_index(letter)).collect();
    let advance = |glyph| f32::from(face.glyph_hor_advance(glyph).unwrap_or(0)) * scale;
    let width: f32 = glyphs.iter().map(|&glyph| advance(glyph)).sum();
    let left = match text.anchor {
        Anchor::Left => 0.0,
        Anchor::Middle => -width / 2.0,
        Anchor::Right => -width,
    };
    let mut pen = Pen { path: PathBuilder::new(), scale, x: left, y: text.px as f32 * MIDDLE_EM };
    for glyph in glyphs {
        // Blanks have no outline.
        let _ = face.outline_glyph(glyph, &mut pen);
        pen.x += advance(glyph);
    }
    pen.path.finish()
}

/// Writes the outlines of glyphs, whose y axis points upwards, into a path.
struct Pen {
    path: PathBuilder,
    /// Pixels per unit of the font.
    scale: f32,
    /// Origin of the next glyph.
    x: f32,
    y: f32,
}

impl Pen {
    fn at(&self, x: f32, y: f32) -> (f32, f32) {
        (self.x + x * self.scale, self.y - y * self.scale)
    }
}

impl OutlineBuilder for Pen {
    fn move_to(&mut self, x: f32, y: f32) {
        let (x, y) = self.at(x, y);
        self.path.move_to(x, y);
    }

    fn line_to(&mut self, x: f32, y: f32) {
        let (x, y) = self.at(x, y);
        self.path.line_to(x, y);
    }

    fn quad_to(&mut self, x1: f32, y1: f32, x: f32, y: f32) {
        let ((x1, y1), (x, y)) = (self.at(x1, y1), self.at(x, y));
        self.path.quad_to(x1, y1, x, y);
    }

    fn curve_to(&mut self, x1: f32, y1: f32, x2: f32, y2: f32, x: f32, y: f32) {
        let ((x1, y1), (x2, y2), (x, y)) = (self.at(x1, y1), self.at(x2, y2), self.at(x, y));
        self.path.cubic_to(x1, y1, x2, y2, x, y);
    }

    fn close(&mut self) {
        self.path.close();
    }
}
