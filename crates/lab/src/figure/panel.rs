//! One pair of axes and what stands between them.
//!
//! Everything of a panel is at pixels of the whole drawing; [`Frame`] knows where a point of the data belongs.
//! A value that an axis has no place for (zero on a logarithmic one, no number) is left out.

use super::axis::{Axis, short, x_axis, y_axis, y_coordinate};
use super::draw::{Anchor, Canvas, Drawn, INK, Look, PALE_INK, Point};
use super::layout::{PANEL_TITLE_PX, SMALL_PX, TEXT_PX, width_of};
use super::{Figure, Panel, Reference, Series, Shape};
use plotters::style::RGBColor;

const GRID: RGBColor = RGBColor(225, 225, 225);
/// Bars of a panel that have their values written above.
const LABELLED_BARS_MAX: usize = 30;
/// Part of a group's width that its bars fill.
const BARS_SHARE: f64 = 0.8;

/// The rectangle between the axes, and the axes.
struct Frame<'p> {
    panel: &'p Panel,
    left: f64,
    top: f64,
    right: f64,
    bottom: f64,
    x: Axis,
    y: Axis,
}

impl<'p> Frame<'p> {
    fn new(panel: &'p Panel, (left, top, width, height): (f64, f64, f64, f64)) -> Frame<'p> {
        let (x, y) = (x_axis(panel), y_axis(panel));
        let labels = y.ticks.iter().map(|(_, label)| width_of(label, SMALL_PX)).fold(0.0, f64::max);
        let lines = x.ticks.iter().map(|(_, label)| label.lines().count()).max().unwrap_or(1) as f64;
        let below = lines * SMALL_PX * 1.3 + if panel.x.label.is_empty() { 16.0 } else { 40.0 };
        Frame {
            panel,
            left: left + labels + 36.0,
            top: top + 30.0,
            right: left + width - 18.0,
            bottom: top + height - below,
            x,
            y,
        }
    }

    fn x_at(&self, x: f64) -> f64 {
        let (low, high) = self.x.range;
        self.left + (x - low) / (high - low) * (self.right - self.left)
    }

    /// Of a coordinate of the axis.
    fn y_at(&self, y: f64) -> f64 {
        let (low, high) = self.y.range;
        self.bottom - (y.clamp(low, high) - low) / (high - low) * (self.bottom - self.top)
    }

    /// Where a point of the data belongs, if anywhere.
    fn place(&self, (x, y): (f64, f64)) -> Option<Point> {
        let y = y_coordinate(self.panel.y_scale, y)?;
        Some((self.x_at(x) as i32, self.y_at(y) as i32))
    }
}

pub(super) fn draw(
    canvas: &Canvas<'_>,
    figure: &Figure,
    panel: &Panel,
    place: (f64, f64, f64, f64),
) -> Drawn {
    let frame = Frame::new(panel, place);
    let middle = ((frame.left + frame.right) / 2.0) as i32;
    canvas.text(&panel.title, PANEL_TITLE_PX, INK, Anchor::MIDDLE, (middle, place.1 as i32 + 14))?;
    axes(canvas, &frame, place)?;
    for reference in &panel.references {
        draw_reference(canvas, &frame, reference)?;
    }
    match panel.shape {
        Shape::Lines => panel
            .series
            .iter()
            .try_for_each(|series| line(canvas, &frame, series, Look::of(figure, &series.name))),
        Shape::Bars => bars(canvas, figure, &frame),
    }
}

fn axes(canvas: &Canvas<'_>, frame: &Frame<'_>, place: (f64, f64, f64, f64)) -> Drawn {
    let (left, right, bottom) = (frame.left as i32, frame.right as i32, frame.bottom as i32);
    for (y, label) in &frame.y.ticks {
        let y = frame.y_at(*y) as i32;
        canvas.line(&[(left, y), (right, y)], GRID, 1)?;
        canvas.text(label, SMALL_PX, INK, Anchor::RIGHT, (left - 6, y))?;
    }
    let lines = matches!(frame.panel.shape, Shape::Lines);
    for (x, label) in &frame.x.ticks {
        let x = frame.x_at(*x) as i32;
        if lines {
            canvas.line(&[(x, bottom), (x, bottom + 4)], INK, 1)?;
        }
        for (i, part) in label.lines().enumerate() {
            let y = bottom + 14 + (i as f64 * SMALL_PX * 1.3) as i32;
            canvas.text(part, SMALL_PX, INK, Anchor::MIDDLE, (x, y))?;
        }
    }
    canvas.line(&[(left, frame.top as i32), (left, bottom), (right, bottom)], INK, 1)?;
    let (x_middle, y_middle) = ((left + right) / 2, (frame.top as i32 + bottom) / 2);
    canvas.upright(&frame.panel.y_label, TEXT_PX, (place.0 as i32 + 10, y_middle))?;
    let below = (place.1 + place.3) as i32 - 14;
    canvas.text(&frame.panel.x.label, TEXT_PX, INK, Anchor::MIDDLE, (x_middle, below))
}

fn draw_reference(canvas: &Canvas<'_>, frame: &Frame<'_>, reference: &Reference) -> Drawn {
    let Some(y) = y_coordinate(frame.panel.y_scale, reference.y) else { return Ok(()) };
    let y = frame.y_at(y) as i32;
    canvas.dashed(&[(frame.left as i32, y), (frame.right as i32, y)], PALE_INK, 1)?;
    let at = (frame.right as i32 - 4, y - 9);
    canvas.text(&reference.label, SMALL_PX, PALE_INK, Anchor::RIGHT, at)
}

fn line(canvas: &Canvas<'_>, frame: &Frame<'_>, series: &Series, look: Look) -> Drawn {
    let points: Vec<Point> = series.points.iter().filter_map(|&point| frame.place(point)).collect();
    if points.len() > 1 {
        canvas.stroke(&points, look)?;
    }
    // Many points are a curve, and need no markers.
    if points.len() > 40 {
        return Ok(());
    }
    points.into_iter().try_for_each(|point| canvas.marker(point, look))
}

fn bars(canvas: &Canvas<'_>, figure: &Figure, frame: &Frame<'_>) -> Drawn {
    let series = &frame.panel.series;
    let width = BARS_SHARE / series.len().max(1) as f64;
    let count: usize = series.iter().map(|series| series.points.len()).sum();
    for (i, series) in series.iter().enumerate() {
        let look = Look::of(figure, &series.name);
        let offset = (i as f64 - (frame.panel.series.len() as f64 - 1.0) / 2.0) * width;
        for &(x, y) in &series.points {
            let (left, right) = (frame.x_at(x + offset - width / 2.0), frame.x_at(x + offset + width / 2.0));
            let Some((middle, top)) = frame.place((x + offset, y)) else { continue };
            canvas.bar([(left as i32 + 1, top), (right as i32 - 1, frame.bottom as i32)], look)?;
            if count <= LABELLED_BARS_MAX {
                canvas.text(&short(y), SMALL_PX, INK, Anchor::MIDDLE, (middle, top - 8))?;
            }
        }
    }
    Ok(())
}
