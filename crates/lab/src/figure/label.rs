//! Placement of labels in a panel, so that no line runs through them.
//!
//! The drawn data is a list of [`Obstacle`]s. The label of a reference line tries positions beside its line,
//! from the right end to the left, and takes the first free one. If a label finds none, all labels of the
//! panel move into a key above the axes, where nothing else is drawn.

use super::layout::{Area, SMALL_PX, Spot, width_of};
use super::picture::Point;

/// Distance to keep from text and lines, in pixels.
const CLEARANCE: f64 = 2.0;
/// Offsets of a label's middle from its line in pixels: above (negative) and below.
const OFFSETS: [f64; 4] = [-10.0, 10.0, -18.0, 18.0];
/// Number of steps between the positions that a label tries along its line.
const STEPS: usize = 24;

/// A part of the drawing that labels must not cover.
#[derive(Clone, Copy, Debug)]
pub(super) enum Obstacle {
    Stroke { from: Spot, to: Spot },
    Solid(Area),
}

impl Obstacle {
    pub fn stroke(from: Point, to: Point) -> Obstacle {
        Obstacle::Stroke { from: from.into(), to: to.into() }
    }

    fn hits(&self, area: &Area) -> bool {
        match self {
            Obstacle::Stroke { from, to } => area.is_crossed(*from, *to),
            Obstacle::Solid(solid) => area.overlaps(solid),
        }
    }
}

/// Middles of the labels, each beside the horizontal line at its y and within `frame`; `None` if a label
/// finds no free position.
pub(super) fn beside_lines(labels: &[(&str, f64)], frame: Area, obstacles: &[Obstacle]) -> Option<Vec<Spot>> {
    let mut taken = obstacles.to_vec();
    for &(_, y) in labels {
        taken.push(Obstacle::Stroke { from: Spot { x: frame.left, y }, to: Spot { x: frame.right, y } });
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
fn spots(label: &str, y: f64, frame: Area) -> impl Iterator<Item = Spot> {
    let half = width_of(label, SMALL_PX) / 2.0 + CLEARANCE;
    let (first, last) = (frame.right - half, frame.left + half);
    let steps = (0..=STEPS).map(move |step| first + (last - first) * step as f64 / STEPS as f64);
    steps.flat_map(move |x| OFFSETS.map(|offset| Spot { x, y: y + offset }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME: Area = Area { left: 0.0, top: 0.0, right: 400.0, bottom: 200.0 };

    fn at(x: f64, y: f64) -> Spot {
        Spot { x, y }
    }

    #[test]
    fn a_label_avoids_the_lines_at_its_usual_place() {
        let free = beside_lines(&[("label", 100.0)], FRAME, &[]).expect("all is free")[0];
        assert!(free.x > 350.0 && free.y == 90.0, "{free:?}");
        let lines = [
            Obstacle::Stroke { from: at(300.0, 90.0), to: at(400.0, 90.0) },
            Obstacle::Stroke { from: at(300.0, 110.0), to: at(400.0, 110.0) },
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
