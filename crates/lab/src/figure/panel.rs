//! One pair of axes and the data between them.
//!
//! All positions are pixels of the whole drawing; [`Frame`] maps points of the data to them. Values that an
//! axis cannot show (zero on a logarithmic axis, not a number) are left out.

use super::axis::{Axis, short, x_axis, y_axis, y_coordinate};
use super::draw::{INK, Look, MARKER, PALE_INK};
use super::label::{Obstacle, beside_lines};
use super::layout::{Area, PANEL_TITLE_PX, SMALL_PX, Spot, TEXT_PX, width_of, wrapped};
use super::picture::{Anchor, Colour, Picture, Point};
use super::{Figure, Panel, Series, Shape, XTicks, YScale};

const GRID: Colour = Colour(225, 225, 225);
/// Most bars of a panel that get their values as labels.
const LABELLED_BARS_MAX: usize = 30;
/// Fraction of a group's width that its bars fill.
const BARS_SHARE: f64 = 0.8;
/// Added to the label of a y axis that does not begin at zero.
const NOT_FROM_ZERO: &str = " (axis not from 0)";
/// Most points of a line that get markers; a longer line is drawn as a curve.
const MARKED_POINTS_MAX: usize = 40;
/// Height of the key above the axes, and length of a stroke in it with the gap on its right.
const KEY_PX: f64 = 18.0;
const KEY_STROKE: f64 = 32.0;

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
    /// The frame of a panel that fills `place`, with `key` pixels above it for a key.
    fn new(panel: &'p Panel, place: Area, key: f64) -> Frame<'p> {
        let (mut x, y) = (x_axis(panel), y_axis(panel));
        let labels = y.ticks.iter().map(|(_, label)| width_of(label, SMALL_PX)).fold(0.0, f64::max);
        let (inner_left, inner_right) = (place.left + labels + 36.0, place.right - 18.0);
        if let XTicks::Names(names) = &panel.x.ticks {
            let room = (inner_right - inner_left) / names.len().max(1) as f64;
            x.ticks.iter_mut().for_each(|(_, label)| *label = in_lines(label, room));
        }
        let lines = x.ticks.iter().map(|(_, label)| label.lines().count()).max().unwrap_or(1) as f64;
        let below = lines * SMALL_PX * 1.3 + if panel.x.label.is_empty() { 16.0 } else { 40.0 };
        Frame {
            panel,
            left: inner_left,
            top: place.top + 30.0 + key,
            right: inner_right,
            bottom: place.bottom - below,
            x,
            y,
        }
    }

    fn x_at(&self, x: f64) -> f64 {
        let (low, high) = self.x.range;
        self.left + (x - low) / (high - low) * (self.right - self.left)
    }

    /// Pixel of a coordinate of the y axis.
    fn y_at(&self, y: f64) -> f64 {
        let (low, high) = self.y.range;
        self.bottom - (y.clamp(low, high) - low) / (high - low) * (self.bottom - self.top)
    }

    /// Pixel of a point of the data; `None` if the y axis cannot show it.
    fn place(&self, x: f64, y: f64) -> Option<Point> {
        let y = y_coordinate(self.panel.y_scale, y)?;
        Some((self.x_at(x) as i32, self.y_at(y) as i32))
    }

    fn points(&self, series: &Series) -> Vec<Point> {
        series.points.iter().filter_map(|&(x, y)| self.place(x, y)).collect()
    }

    fn area(&self) -> Area {
        Area { left: self.left, top: self.top, right: self.right, bottom: self.bottom }
    }

    /// Reference lines that the y axis can show: label and y.
    fn references(&self) -> Vec<(&'p str, f64)> {
        let references = self.panel.references.iter();
        let placed = references.filter_map(|reference| {
            let y = y_coordinate(self.panel.y_scale, reference.y)?;
            Some((reference.label.as_str(), self.y_at(y).trunc()))
        });
        placed.collect()
    }

    /// The drawn data, as obstacles for labels.
    fn obstacles(&self) -> Vec<Obstacle> {
        if self.panel.shape == Shape::Bars {
            return bars_of(self).into_iter().flat_map(Bar::obstacles).collect();
        }
        let mut obstacles = Vec::new();
        for series in &self.panel.series {
            let points = self.points(series);
            obstacles.extend(points.windows(2).map(|pair| Obstacle::stroke(pair[0], pair[1])));
            if points.len() <= MARKED_POINTS_MAX {
                obstacles.extend(points.iter().map(|&point| Obstacle::Solid(marker_area(point))));
            }
        }
        obstacles
    }
}

/// Breaks a name into lines of at most this width.
fn in_lines(name: &str, width: f64) -> String {
    let lines = name.lines().flat_map(|line| wrapped(line, SMALL_PX, width));
    lines.collect::<Vec<_>>().join("\n")
}

fn marker_area((x, y): Point) -> Area {
    let (x, y) = (f64::from(x), f64::from(y));
    Area { left: x, top: y, right: x, bottom: y }.grown(f64::from(MARKER) + 2.0)
}

pub(super) fn draw(picture: &mut Picture, figure: &Figure, panel: &Panel, place: Area) {
    let mut frame = Frame::new(panel, place, 0.0);
    let spots = beside_lines(&frame.references(), frame.area(), &frame.obstacles());
    if spots.is_none() {
        frame = Frame::new(panel, place, KEY_PX);
    }
    let middle = ((frame.left + frame.right) / 2.0) as i32;
    picture.text(&panel.title, PANEL_TITLE_PX, INK, Anchor::Middle, (middle, place.top as i32 + 14));
    axes(picture, &frame, place);
    references(picture, &frame, spots);
    match panel.shape {
        Shape::Lines => panel
            .series
            .iter()
            .for_each(|series| line(picture, &frame, series, Look::of(figure, &series.name))),
        Shape::Bars => bars(picture, figure, &frame),
    }
}

fn axes(picture: &mut Picture, frame: &Frame<'_>, place: Area) {
    let (left, right, bottom) = (frame.left as i32, frame.right as i32, frame.bottom as i32);
    for (y, label) in &frame.y.ticks {
        let y = frame.y_at(*y) as i32;
        picture.line(&[(left, y), (right, y)], GRID, 1.0);
        picture.text(label, SMALL_PX, INK, Anchor::Right, (left - 6, y));
    }
    let lines = matches!(frame.panel.shape, Shape::Lines);
    for (x, label) in &frame.x.ticks {
        let x = frame.x_at(*x) as i32;
        if lines {
            picture.line(&[(x, bottom), (x, bottom + 4)], INK, 1.0);
        }
        for (i, part) in label.lines().enumerate() {
            let y = bottom + 14 + (i as f64 * SMALL_PX * 1.3) as i32;
            picture.text(part, SMALL_PX, INK, Anchor::Middle, (x, y));
        }
    }
    picture.line(&[(left, frame.top as i32), (left, bottom), (right, bottom)], INK, 1.0);
    let (x_middle, y_middle) = ((left + right) / 2, (frame.top as i32 + bottom) / 2);
    let not_from_zero = if frame.panel.y_scale == YScale::Near { NOT_FROM_ZERO } else { "" };
    let label = format!("{}{not_from_zero}", frame.panel.y_label);
    picture.upright(&label, TEXT_PX, INK, (place.left as i32 + 10, y_middle));
    if frame.panel.x.label.is_empty() {
        return;
    }
    let below = place.bottom as i32 - 14;
    picture.text(&frame.panel.x.label, TEXT_PX, INK, Anchor::Middle, (x_middle, below));
}

/// Draws reference lines with their labels at `spots`, or in a key above the axes.
fn references(picture: &mut Picture, frame: &Frame<'_>, spots: Option<Vec<Spot>>) {
    let lines = frame.references();
    for &(_, y) in &lines {
        let y = y as i32;
        picture.dashed(&[(frame.left as i32, y), (frame.right as i32, y)], PALE_INK, 1.0);
    }
    let labels = lines.iter().map(|&(label, _)| label);
    let Some(spots) = spots else { return key(picture, frame, labels) };
    for (label, spot) in labels.zip(spots) {
        picture.text(label, SMALL_PX, PALE_INK, Anchor::Middle, (spot.x as i32, spot.y as i32));
    }
}

fn key<'l>(picture: &mut Picture, frame: &Frame<'_>, labels: impl Iterator<Item = &'l str>) {
    let y = (frame.top - KEY_PX / 2.0) as i32;
    let mut x = frame.left;
    for label in labels {
        picture.dashed(&[(x as i32, y), ((x + KEY_STROKE - 8.0) as i32, y)], PALE_INK, 1.0);
        picture.text(label, SMALL_PX, PALE_INK, Anchor::Left, ((x + KEY_STROKE) as i32, y));
        x += KEY_STROKE + width_of(label, SMALL_PX) + 16.0;
    }
}

fn line(picture: &mut Picture, frame: &Frame<'_>, series: &Series, look: Look) {
    let points = frame.points(series);
    if points.len() > 1 {
        look.stroke(picture, &points);
    }
    if points.len() > MARKED_POINTS_MAX {
        return;
    }
    points.into_iter().for_each(|point| look.marker(picture, point));
}

/// A bar, with its value if there is room for it.
struct Bar<'p> {
    series: &'p str,
    corners: [Point; 2],
    label: Option<(String, Point)>,
}

impl Bar<'_> {
    fn area(&self) -> Area {
        let [(left, top), (right, bottom)] = self.corners;
        Area { left: left.into(), top: top.into(), right: right.into(), bottom: bottom.into() }
    }

    fn obstacles(self) -> impl Iterator<Item = Obstacle> {
        let label = self.label.as_ref().map(|(text, at)| label_area(text, *at));
        [Some(self.area()), label].into_iter().flatten().map(Obstacle::Solid)
    }
}

fn label_area(text: &str, middle: Point) -> Area {
    Area::of_text(text, middle.into())
}

/// All bars of a panel. A value that would cover another bar or value is left out; the table has all of them.
fn bars_of<'p>(frame: &Frame<'p>) -> Vec<Bar<'p>> {
    let series = &frame.panel.series;
    let width = BARS_SHARE / series.len().max(1) as f64;
    let mut bars = Vec::new();
    for (i, series) in series.iter().enumerate() {
        let offset = (i as f64 - (frame.panel.series.len() as f64 - 1.0) / 2.0) * width;
        for &(x, y) in &series.points {
            let (left, right) = (frame.x_at(x + offset - width / 2.0), frame.x_at(x + offset + width / 2.0));
            let Some((middle, top)) = frame.place(x + offset, y) else { continue };
            let corners = [(left as i32 + 1, top), (right as i32 - 1, frame.bottom as i32)];
            bars.push(Bar { series: &series.name, corners, label: Some((short(y), (middle, top - 8))) });
        }
    }
    let too_many = bars.len() > LABELLED_BARS_MAX;
    // In reverse order, so that of two colliding values the first one stays, which is the measured one.
    for i in (0..bars.len()).rev() {
        let Some((text, at)) = &bars[i].label else { continue };
        let area = label_area(text, *at);
        let covers = |other: &Bar<'_>| {
            let label = other.label.as_ref().map(|(text, at)| label_area(text, *at));
            area.overlaps(&other.area()) || label.is_some_and(|label| area.overlaps(&label))
        };
        if too_many || bars.iter().enumerate().any(|(j, other)| j != i && covers(other)) {
            bars[i].label = None;
        }
    }
    bars
}

fn bars(picture: &mut Picture, figure: &Figure, frame: &Frame<'_>) {
    for bar in bars_of(frame) {
        Look::of(figure, bar.series).bar(picture, bar.corners);
        if let Some((text, at)) = &bar.label {
            picture.text(text, SMALL_PX, INK, Anchor::Middle, *at);
        }
    }
}
