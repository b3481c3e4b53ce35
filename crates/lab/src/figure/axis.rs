//! Positions and labels of ticks.
//!
//! Both axes are drawn in plain coordinates: the coordinate on a logarithmic y axis is the logarithm, and
//! that of a name is its number. So the drawing code knows only one kind of axis.

use super::{Panel, Shape, XTicks, YScale};

/// Approximate number of ticks on a linear y axis.
const TICKS: f64 = 5.0;
/// Height of the axis divided by that of the highest point.
const HEADROOM: f64 = 1.08;

/// An axis in coordinates of the drawing.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Axis {
    pub range: (f64, f64),
    pub ticks: Vec<(f64, String)>,
}

pub(super) fn x_axis(panel: &Panel) -> Axis {
    match &panel.x.ticks {
        XTicks::Names(names) => Axis {
            range: (-0.5, names.len() as f64 - 0.5),
            ticks: names.iter().enumerate().map(|(i, name)| (i as f64, name.clone())).collect(),
        },
        XTicks::Numbers(numbers) => {
            let high = numbers.iter().chain(xs(panel)).copied().fold(0.0, f64::max);
            let high = if high > 0.0 { high } else { 1.0 };
            let ticks = apart(numbers, high / 16.0);
            Axis { range: (0.0, high * 1.04), ticks: ticks.into_iter().map(|x| (x, plain(x))).collect() }
        }
    }
}

fn xs(panel: &Panel) -> impl Iterator<Item = &f64> {
    panel.series.iter().flat_map(|series| series.points.iter().map(|(x, _)| x))
}

/// Keeps the last number, and of the others each that is at least `distance` below the next one kept.
fn apart(numbers: &[f64], distance: f64) -> Vec<f64> {
    let mut kept: Vec<f64> = Vec::new();
    for &number in numbers.iter().rev() {
        if kept.last().is_none_or(|last| last - number >= distance) {
            kept.push(number);
        }
    }
    kept.reverse();
    kept
}

/// Coordinate of a value; `None` if the axis cannot show it.
pub(super) fn y_coordinate(scale: YScale, y: f64) -> Option<f64> {
    match scale {
        YScale::Linear | YScale::Near => y.is_finite().then_some(y),
        YScale::Log => (y.is_finite() && y > 0.0).then(|| y.log10()),
    }
}

pub(super) fn y_axis(panel: &Panel) -> Axis {
    let points = panel.series.iter().flat_map(|series| series.points.iter().map(|&(_, y)| y));
    let values: Vec<f64> = points.chain(panel.references.iter().map(|reference| reference.y)).collect();
    let coordinates = values.iter().filter_map(|&y| y_coordinate(panel.y_scale, y));
    match panel.y_scale {
        YScale::Linear => linear(coordinates.fold(0.0, f64::max), panel.shape),
        YScale::Near => match ends(coordinates) {
            Some((low, high)) => near(low, high),
            None => linear(0.0, panel.shape),
        },
        YScale::Log => match ends(coordinates) {
            Some((low, high)) => decades(low, high),
            None => decades(0.0, 1.0),
        },
    }
}

/// Minimum and maximum; `None` without values.
fn ends(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |ends, y| match ends {
        None => Some((y, y)),
        Some((low, high)) => Some((low.min(y), high.max(y))),
    })
}

/// A round step that gives about [`TICKS`] ticks over `range`.
fn round_step(range: f64) -> f64 {
    let rough = range / TICKS;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0].map(|m| m * power).into_iter().find(|step| *step >= rough * 0.999);
    step.unwrap_or(rough)
}

/// Axis from a little below `low` to a little above `high`, with ticks at round numbers.
fn near(low: f64, high: f64) -> Axis {
    // Equal values are drawn in the middle.
    let spread = if high > low { high - low } else { low.abs().max(1.0) * 0.1 };
    let range = (low - spread * 0.1, high + spread * 0.1);
    let step = round_step(range.1 - range.0);
    let numbers = (range.0 / step).ceil() as i64..=(range.1 / step).floor() as i64;
    Axis { range, ticks: numbers.map(|i| i as f64 * step).map(|y| (y, plain(y))).collect() }
}

/// Axis from zero to a little above `highest`, with ticks at round numbers.
fn linear(highest: f64, shape: Shape) -> Axis {
    // Bars have numbers above them.
    let headroom = if shape == Shape::Bars { HEADROOM + 0.06 } else { HEADROOM };
    let high = if highest > 0.0 { highest * headroom } else { 1.0 };
    let step = round_step(high);
    let count = (high / step).floor() as u32;
    let ticks = (0..=count).map(|i| f64::from(i) * step);
    Axis { range: (0.0, high), ticks: ticks.map(|y| (y, plain(y))).collect() }
}

/// Axis over the powers of ten around two logarithms, with ticks at twice and five times these if there are
/// few.
fn decades(low: f64, high: f64) -> Axis {
    let (low, high) = (low.floor(), (high + 0.05).ceil().max(low.floor() + 1.0));
    let decades = low as i32..=high as i32;
    let few = high - low <= 3.0;
    let marks: &[f64] = if few { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let ticks = decades.flat_map(|decade| marks.iter().map(move |mark| mark * 10f64.powi(decade)));
    let ticks = ticks.filter(|y| y.log10() <= high + 1e-9).map(|y| (y.log10(), plain(y)));
    Axis { range: (low, high), ticks: ticks.collect() }
}

/// Formats a number with about three significant digits and without trailing zeros.
pub(super) fn plain(number: f64) -> String {
    with_digits(number, 2.0)
}

/// [`plain`] with two significant digits for numbers below 1: for labels of bars.
pub(super) fn short(number: f64) -> String {
    with_digits(number, if number.abs() < 1.0 { 1.0 } else { 2.0 })
}

/// Formats a number; below 1, with `more` digits after the first significant one.
fn with_digits(number: f64, more: f64) -> String {
    let size = number.abs();
    let digits = match size {
        s if s >= 100.0 || s == 0.0 => 0,
        s if s >= 10.0 => 1,
        s if s >= 1.0 => 2,
        s => (more - s.log10().floor()).min(9.0) as usize,
    };
    let text = format!("{number:.digits$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &Axis) -> Vec<&str> {
        axis.ticks.iter().map(|(_, label)| label.as_str()).collect()
    }

    #[test]
    fn ticks_are_round_and_reach_above_the_data() {
        let axis = linear(57.3, Shape::Lines);
        assert_eq!(labels(&axis), ["0", "20", "40", "60"]);
        assert!(axis.range.1 > 57.3);
        assert_eq!(labels(&linear(0.0031, Shape::Lines)), ["0", "0.001", "0.002", "0.003"]);
        assert_eq!(linear(0.0, Shape::Lines).range, (0.0, 1.0));
    }

    #[test]
    fn an_axis_of_ratios_lies_around_them() {
        let axis = near(0.95, 1.25);
        assert_eq!(labels(&axis), ["1", "1.1", "1.2"]);
        assert!((0.9..0.95).contains(&axis.range.0) && (1.25..1.3).contains(&axis.range.1), "{axis:?}");
        let axis = near(1.0, 1.0);
        assert!(axis.range.0 < 1.0 && axis.range.1 > 1.0 && labels(&axis).contains(&"1"), "{axis:?}");
    }

    #[test]
    fn logarithmic_axes_have_powers_of_ten() {
        let axis = decades(0.03f64.log10(), 14f64.log10());
        assert_eq!(axis.range, (-2.0, 2.0));
        assert_eq!(labels(&axis), ["0.01", "0.1", "1", "10", "100"]);
        assert_eq!(labels(&decades(0.0, 0.5)), ["1", "2", "5", "10"]);
        assert_eq!(y_coordinate(YScale::Log, 0.0), None);
    }

    #[test]
    fn numbers_read_well() {
        assert_eq!(
            [plain(0.0), plain(0.33), plain(144.0), plain(0.0002), plain(12.54), plain(1.10)],
            ["0", "0.33", "144", "0.0002", "12.5", "1.1"]
        );
        assert_eq!([short(0.1849), short(0.0132), short(75.3)], ["0.18", "0.013", "75.3"]);
    }

    #[test]
    fn crowded_ticks_are_left_out() {
        assert_eq!(apart(&[2.0, 4.0, 18.0, 36.0, 144.0], 9.0), [4.0, 18.0, 36.0, 144.0]);
    }
}
