//! When to move boundaries between compute servers, and where to (DEX §4: load imbalance).
//!
//! A pure policy: from the load of each interval ([`Load`]) to moves of boundaries. It acts when the busiest compute server
//! had more than [`BalancerConfig::threshold`] times the mean for several intervals, and then moves boundaries to where the
//! noted keys cut the load into equal parts. What keeps it from moving to and fro:
//! - after it acted it looks on for some intervals, in which caches warm up;
//! - it does nothing unless by the same load the busiest server would get well less to do, so that a single hot
//!   key, which no boundary divides, moves nothing;
//! - a boundary stays where it is if little load lies between its place and the new one;
//! - intervals with too few noted keys count as one until they have enough, and it is not enough that each of them is above the threshold, as some
//!   server is by chance: all together must be.

use crate::load::Load;
use crate::partition::partition_of;

/// How eager a [`Balancer`] is.
#[derive(Clone, Debug)]
pub struct BalancerConfig {
    /// Load of the busiest compute server over the mean from which on something is done. Above 1.
    pub threshold: f64,
    /// Intervals in a row that have to be above it.
    pub intervals: u32,
    /// Intervals after a plan in which there is no other.
    pub cool_down: u32,
    /// Part of its excess over the mean that the busiest server must lose by a plan.
    pub gain: f64,
    /// A boundary moves if so much of a mean load moves with it.
    pub moved_min: f64,
    /// Noted keys per compute server without which an interval is too short to say anything.
    pub keys_min: usize,
}

impl Default for BalancerConfig {
    fn default() -> Self {
        Self { threshold: 1.2, intervals: 3, cool_down: 2, gain: 0.25, moved_min: 0.04, keys_min: 48 }
    }
}

/// A boundary that is to be elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundaryMove {
    /// The one between partitions `boundary` and `boundary + 1`.
    pub boundary: usize,
    pub to: Vec<u8>,
}

/// See the module documentation.
#[derive(Clone, Debug)]
pub struct Balancer {
    config: BalancerConfig,
    /// The last intervals that were above the threshold.
    above: Vec<Load>,
    /// What is too little to say anything yet.
    few: Vec<Load>,
    resting: u32,
}

impl Balancer {
    pub fn new(config: BalancerConfig) -> Self {
        Self { config, above: Vec::new(), few: Vec::new(), resting: 0 }
    }

    /// Takes note of the load of an interval in which `boundaries` were in force; the moves to make, in an order in which
    /// no boundary passes another.
    pub fn observe(&mut self, boundaries: &[Vec<u8>], load: &Load) -> Vec<BoundaryMove> {
        let servers = boundaries.len() + 1;
        if servers == 1 {
            return Vec::new();
        }
        self.few.push(load.clone());
        if self.few.iter().map(Load::len).sum::<usize>() < servers * self.config.keys_min {
            return Vec::new();
        }
        let load = &Load::together(&std::mem::take(&mut self.few));
        if self.resting > 0 {
            self.resting -= 1;
            return Vec::new();
        }
        if imbalance(load, boundaries) <= self.config.threshold {
            self.above.clear();
            return Vec::new();
        }
        self.above.push(load.clone());
        if self.above.len() < self.config.intervals as usize {
            return Vec::new();
        }
        let together = Load::together(&self.above);
        self.above.remove(0);
        let moves = self.plan(boundaries, &together);
        if !moves.is_empty() {
            self.above.clear();
            self.resting = self.config.cool_down;
        }
        moves
    }

    fn plan(&self, boundaries: &[Vec<u8>], load: &Load) -> Vec<BoundaryMove> {
        let now = imbalance(load, boundaries);
        let Some(cuts) = load.quantiles(boundaries.len() + 1).filter(|_| now > self.config.threshold) else {
            return Vec::new();
        };
        let new = self.without_trifles(boundaries, cuts, load);
        let then = imbalance(load, &new);
        match now - then < self.config.gain * (now - 1.0) {
            true => Vec::new(),
            false => in_order(boundaries, &new),
        }
    }

    /// Leaves boundaries where they are if hardly any load would move, as long as they ascend.
    fn without_trifles(&self, boundaries: &[Vec<u8>], cuts: Vec<Vec<u8>>, load: &Load) -> Vec<Vec<u8>> {
        let trifle = self.config.moved_min * load.total() as f64 / (boundaries.len() + 1) as f64;
        let mut new = cuts;
        for (i, old) in boundaries.iter().enumerate() {
            let (low, high) = if *old < new[i] { (old, &new[i]) } else { (&new[i], old) };
            let moved = load.by_partition(&[low.clone(), high.clone()])[1];
            let above_last = i == 0 || new[i - 1] < *old;
            let below_next = new.get(i + 1).is_none_or(|next| old < next);
            if moved as f64 <= trifle && above_last && below_next {
                new[i] = old.clone();
            }
        }
        new
    }
}

/// Load of the busiest compute server over the mean; 1 without load.
pub fn imbalance(load: &Load, boundaries: &[Vec<u8>]) -> f64 {
    let servers = load.by_partition(boundaries);
    let busiest = servers.iter().max().copied().unwrap_or(0);
    match load.total() {
        0 => 1.0,
        total => busiest as f64 * servers.len() as f64 / total as f64,
    }
}

/// Moves from one list of boundaries to another. Boundaries that go up go the last one first, those that go down the first
/// one first, so that each finds its place free.
fn in_order(old: &[Vec<u8>], new: &[Vec<u8>]) -> Vec<BoundaryMove> {
    debug_assert!(new.is_sorted_by(|a, b| a < b));
    let each = |i: usize| BoundaryMove { boundary: i, to: new[i].clone() };
    let up = (0..old.len()).rev().filter(|&i| old[i] < new[i]);
    let down = (0..old.len()).filter(|&i| new[i] < old[i]);
    up.chain(down).map(each).collect()
}

/// The boundaries after a move, if no boundary passes another by it.
pub fn apply(boundaries: &[Vec<u8>], step: &BoundaryMove) -> Option<Vec<Vec<u8>>> {
    let mut moved = boundaries.to_vec();
    *moved.get_mut(step.boundary)? = step.to.clone();
    let place = partition_of(boundaries, &step.to);
    let is_near = place == step.boundary || place == step.boundary + 1;
    (is_near && moved.is_sorted_by(|a, b| a < b)).then_some(moved)
}
