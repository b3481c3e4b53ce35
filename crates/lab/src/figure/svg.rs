//! A picture as SVG.
//!
//! The text requests DejaVu Sans, or any sans-serif font if that is missing. Equal pictures give equal bytes:
//! nothing depends on the system, the time or the order of a hash table.

use std::fmt::Write;

use super::picture::{Anchor, Colour, DASH, Ink, MIDDLE_EM, Mark, Outline, Picture, Point, Text};

pub(super) fn write(picture: &Picture) -> String {
    let (width, height) = (picture.width, picture.height);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" font-family=\"DejaVu Sans, sans-serif\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"#FFFFFF\"/>\n"
    );
    for mark in &picture.marks {
        let line = match mark {
            Mark::Outline(outline, ink, colour) => format!("<{} {}/>", shape(outline), paint(*ink, *colour)),
            Mark::Text(text, colour) => written(text, *colour),
        };
        let _ = writeln!(svg, "{line}");
    }
    svg + "</svg>\n"
}

fn shape(outline: &Outline) -> String {
    let listed = |points: &[Point]| {
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{x},{y}")).collect();
        points.join(" ")
    };
    match outline {
        Outline::Line(points) => format!("polyline points=\"{}\"", listed(points)),
        Outline::Polygon(points) => format!("polygon points=\"{}\"", listed(points)),
        Outline::Circle { middle: (x, y), radius } => format!("circle cx=\"{x}\" cy=\"{y}\" r=\"{radius}\""),
    }
}

fn paint(ink: Ink, colour: Colour) -> String {
    let colour = hex(colour);
    match ink {
        Ink::Fill { opacity } if opacity < 1.0 => format!("fill=\"{colour}\" fill-opacity=\"{opacity}\""),
        Ink::Fill { .. } => format!("fill=\"{colour}\""),
        Ink::Stroke { width } => format!("fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\""),
        Ink::Dashes { width } => format!(
            "fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\" stroke-dasharray=\"{} {}\"",
            DASH.0, DASH.1
        ),
    }
}

fn written(text: &Text, colour: Colour) -> String {
    let (x, y) = text.at;
    let anchor = match text.anchor {
        Anchor::Left => "start",
        Anchor::Middle => "middle",
        Anchor::Right => "end",
    };
    let turned = if text.upright { format!(" transform=\"rotate(-90 {x} {y})\"") } else { String::new() };
    format!(
        "<text x=\"{x}\" y=\"{y}\" dy=\"{MIDDLE_EM}em\" font-size=\"{}\" text-anchor=\"{anchor}\" \
         fill=\"{}\"{turned}>{}</text>",
        text.px,
        hex(colour),
        escaped(&text.text)
    )
}

fn hex(Colour(red, green, blue): Colour) -> String {
    format!("#{red:02X}{green:02X}{blue:02X}")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
