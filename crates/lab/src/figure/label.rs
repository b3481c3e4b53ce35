//! Placement of labels in a panel, so that no line runs through them.
//!
//! The drawn data is a list of [`Obstacle`]s. The label of a reference line tries positions beside its line,
//! from the right end to the left, and takes the first free one. If a label finds none, all labels of the
//! panel move into a key above the axes, where nothing else is drawn.

use super::layout::{SMALL_PX, width_of};
use super::picture::Point;

/// Distance to keep from text and lines, in pixels.
const CLEARANCE: f64 = 2.0;
/// Offsets of a label's middle from its line in pixels: above (negative) and below.
const OFFSETS: [f64; 4] = [-10.0, 10.0, -18.0, 18.0];
/// Number of steps between the positions that a label tries along its line.
const STEPS: usize = 24;

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
    pub fn of_text(text: &str, (x, y): (f64, f64)) -> Area {
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

    fn contains(&self, other: &Area) -> bool {
        self.left <= other.left
            && other.right <= self.right
            && self.top <= other.top
            && other.bottom <= self.bottom
    }

    /// Whether a part of the stroke lies inside the area.
    pub fn is_crossed(&self, (from, to): ((f64, f64), (f64, f64))) -> bool {
        let (mut enters, mut leaves) = (0.0, 1.0);
        let sides =
            [(from.0, to.0 - from.0, self.left, self.right), (from.1, to.1 - from.1, self.top, self.bottom)];
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

/// A part of the drawing that labels must not cover.
#[derive(Clone, Copy, Debug)]
pub(super) enum Obstacle {
    Stroke((f64, f64), (f64, f64)),
    Solid(Area),
}

impl Obstacle {
    pub fn stroke(from: Point, to: Point) -> Obstacle {
        Obstacle::Stroke((f64::from(from.0), f64::from(from.1)), (f64::from(to.0), f64::from(to.1)))
    }

    fn hits(&self, area: &Area) -> bool {
        match self {
            Obstacle::Stroke(from, to) => area.is_crossed((*from, *to)),
            Obstacle::Solid(solid) => area.overlaps(solid),
        }
    }
}

/// Middles of the labels, each beside the horizontal line at its y and within `frame`; `None` if a label
/// finds no free position.
pub(super) fn beside_lines(
    labels: &[(&str, f64)],
    frame: Area,
    obstacles: &[Obstacle],
) -> Option<Vec<(f64, f64)>> {
    let mut taken = obstacles.to_vec();
    for &(_, y) in labels {
        taken.push(Obstacle::Stroke((frame.left, y), (frame.right, y)));
    }
    let mut found = Vec::new();
    for &(label, y) in labels {
        let spot = spots(label, y, frame).find(|&spot| {
            let area = Area::of_text(label, spot);
            let wide = area.grown(CLEARANCE);
            frame.contains(&area) && !taken.iter().any(|obstacle| obstacle.hits(&wide))
        })?;
        taken.push(Obstacle::Solid(Area::of_text(label, spot)));
        found.push(spot);
    }
    Some(found)
}

/// Positions to try, those at the right end first.
fn spots(label: &str, y: f64, frame: Area) -> impl Iterator<Item = (f64, f64)> {
    let half = width_of(label, SMALL_PX) / 2.0 + CLEARANCE;
    let (first, last) = (frame.right - half, frame.left + half);
    let steps = (0..=STEPS).map(move |step| first + (last - first) * step as f64 / STEPS as f64);
    steps.flat_map(move |x| OFFSETS.map(|offset| (x, y + offset)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME: Area = Area { left: 0.0, top: 0.0, right: 400.0, bottom: 200.0 };

    #[test]
    fn strokes_cross_what_they_run_through() {
        let area = Area { left: 10.0, top: 10.0, right: 20.0, bottom: 20.0 };
        assert!(area.is_crossed(((0.0, 0.0), (30.0, 30.0))));
        assert!(area.is_crossed(((15.0, 15.0), (16.0, 15.0))), "all of it is inside");
        assert!(area.is_crossed(((0.0, 15.0), (30.0, 15.0))));
        assert!(!area.is_crossed(((0.0, 25.0), (30.0, 25.0))));
        assert!(!area.is_crossed(((0.0, 12.0), (12.0, 0.0))), "it passes the corner");
        assert!(!area.is_crossed(((15.0, 0.0), (15.0, 9.0))), "it ends before");
    }

    #[test]
    fn a_label_avoids_the_lines_at_its_usual_place() {
        let free = beside_lines(&[("label", 100.0)], FRAME, &[]).expect("all is free")[0];
        assert!(free.0 > 350.0 && free.1 == 90.0, "{free:?}");
        let lines = [
            Obstacle::Stroke((300.0, 90.0), (400.0, 90.0)),
            Obstacle::Stroke((300.0, 110.0), (400.0, 110.0)),
        ];
        let moved = beside_lines(&[("label", 100.0)], FRAME, &lines).expect("there is room")[0];
        let area = Area::of_text("label", moved);
        assert!(area.right < 300.0 || area.top > 110.0 || area.bottom < 90.0, "{area:?}");
    }

    #[test]
    fn labels_avoid_each_other_and_give_up_where_there_is_no_room() {
        let two =
            beside_lines(&[("one label", 100.0), ("another", 104.0)], FRAME, &[]).expect("room for both");
        let [one, other] = [Area::of_text("one label", two[0]), Area::of_text("another", two[1])];
        assert!(!one.overlaps(&other));
        let full = [Obstacle::Solid(FRAME)];
        assert_eq!(beside_lines(&[("label", 100.0)], FRAME, &full), None);
    }
}
