//! When to move boundaries between compute servers, and where to (DEX §4: load imbalance).
//!
//! A pure policy: from the load of each interval ([`Load`]) to moves of boundaries. One plan is made of all boundaries at once: to
//! where the noted keys cut the load into equal parts, each boundary in one move. Noted keys are a sample, so every decision counts
//! with its error: a great imbalance is acted on after a few intervals, by a coarse plan that a finer one may follow, a small
//! one when there are keys enough to be sure. What keeps boundaries from moving to and fro:
//! - one and the same compute server has more than [`BalancerConfig::threshold`] times the mean in all parts of the time that is
//!   looked at, and by more than chance in all of it together;
//! - there is a plan only if by the same load the busiest server would get well less to do, less what chance may add, so that a
//!   single hot key, which no boundary divides, moves nothing;
//! - a boundary stays where it is if little load lies between its place and the new one;
//! - after a plan it looks away for some intervals, in which keys move and caches warm up, and then begins to look anew;
//! - after several plans in a row it looks twice as long before the next one, so that of a load that comes and goes it sees the mean.

use std::collections::VecDeque;

use crate::ownership::load::Load;
use crate::ownership::range::partition_of;

/// How eager a [`Balancer`] is.
#[derive(Clone, Debug)]
pub struct BalancerConfig {
    /// Load of the busiest compute server over the mean from which on something is done. Above 1.
    pub threshold: f64,
    /// Standard errors by which it has to be above.
    pub confidence: f64,
    /// Intervals that are looked at, at least; a plan that needs more noted keys looks at twice, four times ... as many.
    pub intervals: usize,
    /// Intervals that are remembered.
    pub intervals_max: usize,
    /// Intervals after a plan that are not looked at, the one in which boundaries move included.
    pub cool_down: u32,
    /// Part of its excess over the mean that the busiest server must lose by a plan.
    pub gain: f64,
    /// A boundary moves if so much of a mean load moves with it.
    pub moved_min: f64,
    /// Noted keys per compute server that a plan needs.
    pub keys_min: usize,
}

impl Default for BalancerConfig {
    fn default() -> Self {
        Self {
            threshold: 1.1,
            confidence: 4.0,
            intervals: 3,
            intervals_max: 24,
            cool_down: 2,
            gain: 0.4,
            moved_min: 0.04,
            keys_min: 24,
        }
    }
}

/// Noted keys per compute server that are remembered of an interval.
const INTERVAL_KEYS_MAX: usize = 64;

/// What equal parts of a sample differ by in truth: so many standard errors of one is the largest of them above the mean.
const LARGEST: f64 = 1.5;

/// Part of the excess over the mean that shows at any time if it lasts.
const LASTING: f64 = 0.5;

/// Plans in a row are those with fewer intervals in between than so many times those that are looked at.
const CALM: usize = 4;

/// Plans in a row that are in order: a coarse one, and finer ones.
const ROW: usize = 3;

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
    /// The boundaries by which `seen` was counted.
    boundaries: Vec<Vec<u8>>,
    seen: VecDeque<Interval>,
    /// Intervals that are not looked at any more.
    resting: u32,
    /// Intervals that are looked at, at least.
    patience: usize,
    /// Intervals without a plan.
    calm: usize,
    /// Plans in a row.
    row: usize,
}

impl Balancer {
    pub fn new(config: BalancerConfig) -> Self {
        let patience = config.intervals.max(1);
        Self { config, boundaries: Vec::new(), seen: VecDeque::new(), resting: 0, patience, calm: 0, row: 0 }
    }

    /// Takes note of the load of an interval in which `boundaries` were in force; the moves to make, in an order in which
    /// no boundary passes another.
    pub fn observe(&mut self, boundaries: &[Vec<u8>], load: &Load) -> Vec<BoundaryMove> {
        if self.boundaries != boundaries {
            self.boundaries = boundaries.to_vec();
            self.seen.clear();
        }
        if boundaries.is_empty() || load.is_empty() {
            return Vec::new();
        }
        self.count_calm();
        if self.resting > 0 {
            self.resting -= 1;
            return Vec::new();
        }
        if self.seen.len() >= self.config.intervals_max.max(self.patience) {
            self.seen.pop_front();
        }
        self.seen.push_back(Interval::new(load, boundaries));
        let fits = |span: &usize| Some(*span).filter(|&span| span <= self.seen.len());
        let spans = std::iter::successors(fits(&self.patience), |span| fits(&(span * 2)));
        // The longest that shows it: the most keys. A load that changed shows in short ones only.
        let spans: Vec<usize> = spans.collect();
        let moves = spans.iter().rev().find_map(|span| self.plan(self.seen.len() - span));
        if moves.is_some() {
            self.rest();
        }
        moves.unwrap_or_default()
    }

    fn count_calm(&mut self) {
        self.calm += 1;
        if self.calm >= CALM * self.patience {
            self.row = 0;
            if self.patience > self.config.intervals {
                self.patience /= 2;
                self.calm = 0;
            }
        }
    }

    fn rest(&mut self) {
        self.row += 1;
        if self.row > ROW && self.patience * 2 <= self.config.intervals_max {
            self.patience *= 2;
        }
        self.calm = 0;
        self.resting = self.config.cool_down;
        self.seen.clear();
    }

    /// Moves by what was seen from an interval on, if there should be any.
    fn plan(&self, first: usize) -> Option<Vec<BoundaryMove>> {
        let config = &self.config;
        let all = Evidence::of(self.seen.range(first..));
        let servers = self.boundaries.len() + 1;
        let (busiest, now) = all.busiest();
        let is_sure = now - config.confidence * all.error(busiest) > config.threshold;
        if !is_sure || all.keys < servers * config.keys_min {
            return None;
        }
        if !self.lasts(first, busiest, now) {
            return None;
        }
        let load = Load::together(self.seen.range(first..).map(|interval| &interval.load));
        let new = self.without_trifles(load.equal_cuts(&self.boundaries), &load);
        let chance = LARGEST * (servers as f64 / all.size()).sqrt();
        let then = imbalance(&load, &new) + chance;
        let moves = in_order(&self.boundaries, &new);
        (now - then >= config.gain * (now - 1.0) && !moves.is_empty()).then_some(moves)
    }

    /// Whether a compute server was well above the mean in all parts of the time from an interval on, and in the last interval.
    fn lasts(&self, first: usize, server: usize, together: f64) -> bool {
        let end = self.seen.len();
        let part = (end - first).div_ceil(self.config.intervals.max(1));
        let parts = (first..end).step_by(part).map(|from| from..(from + part).min(end));
        let least = self.config.threshold.max(1.0 + LASTING * (together - 1.0));
        parts
            .chain(std::iter::once(end - 1..end))
            .all(|part| Evidence::of(self.seen.range(part)).imbalance(server) > least)
    }

    /// Leaves boundaries where they are if hardly any load would move, as long as they ascend.
    fn without_trifles(&self, cuts: Vec<Vec<u8>>, load: &Load) -> Vec<Vec<u8>> {
        let trifle = self.config.moved_min * load.total() as f64 / (cuts.len() + 1) as f64;
        let mut new = cuts;
        for (i, old) in self.boundaries.iter().enumerate() {
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

/// The load of an interval, thinned, and what all of it said.
#[derive(Clone, Debug)]
struct Interval {
    load: Load,
    evidence: Evidence,
}

impl Interval {
    fn new(load: &Load, boundaries: &[Vec<u8>]) -> Self {
        let by_server = load.by_partition(boundaries);
        let thinned = load.clone().thinned(INTERVAL_KEYS_MAX * by_server.len());
        let total = load.total() as f64;
        Self {
            load: thinned,
            evidence: Evidence { by_server, total, keys: load.len(), squares: load.squares() },
        }
    }
}

/// What an interval, or some together, say of compute servers.
#[derive(Clone, Debug, Default)]
struct Evidence {
    by_server: Vec<u64>,
    total: f64,
    keys: usize,
    squares: f64,
}

impl Evidence {
    fn of<'i>(intervals: impl Iterator<Item = &'i Interval>) -> Self {
        let mut all = Self::default();
        for Interval { evidence, .. } in intervals {
            all.by_server.resize(evidence.by_server.len(), 0);
            all.by_server.iter_mut().zip(&evidence.by_server).for_each(|(sum, one)| *sum += one);
            all.total += evidence.total;
            all.keys += evidence.keys;
            all.squares += evidence.squares;
        }
        all
    }

    /// Keys with the same weight that would say as much (Kish).
    fn size(&self) -> f64 {
        self.total * self.total / self.squares
    }

    fn share(&self, server: usize) -> f64 {
        self.by_server[server] as f64 / self.total
    }

    /// Load of a compute server over the mean.
    fn imbalance(&self, server: usize) -> f64 {
        self.share(server) * self.by_server.len() as f64
    }

    /// The standard error of [`Self::imbalance`].
    fn error(&self, server: usize) -> f64 {
        let share = self.share(server);
        (share * (1.0 - share) / self.size()).sqrt() * self.by_server.len() as f64
    }

    fn busiest(&self) -> (usize, f64) {
        let servers = 0..self.by_server.len();
        let busiest = servers.max_by_key(|&server| self.by_server[server]).expect("intervals have servers");
        (busiest, self.imbalance(busiest))
    }
}

/// Load of the busiest compute server over the mean; 1 without load.
pub fn imbalance(load: &Load, boundaries: &[Vec<u8>]) -> f64 {
    let servers = load.by_partition(boundaries);
    busiest_over_mean(&servers, servers.len())
}

/// The largest of some loads over their mean, if `servers` share them; 1 without load.
pub fn busiest_over_mean(loads: &[u64], servers: usize) -> f64 {
    let busiest = loads.iter().max().copied().unwrap_or(0);
    match loads.iter().sum::<u64>() {
        0 => 1.0,
        total => busiest as f64 * servers as f64 / total as f64,
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
