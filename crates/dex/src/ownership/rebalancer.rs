//! Policy that moves boundaries between compute servers (DEX §4: load imbalance).
//!
//! It is pure: the load of each interval ([`Load`]) goes in, moves of boundaries come out. One plan covers
//! all boundaries, so that the sampled keys cut the load into equal parts, with one move per boundary.
//! Samples have an error, so a large imbalance is acted on after a few intervals, by a coarse plan, and a
//! small one when there are enough keys to be sure. Oscillation is prevented as follows:
//! - One compute server must exceed [`BalancerConfig::threshold`] times the mean in all parts of the examined
//!   time, and significantly in all of it together.
//! - A plan must relieve the busiest server clearly, after allowance for chance. So a single hot key, which
//!   no boundary divides, moves nothing.
//! - A boundary stays if little load lies between its old place and its new one.
//! - After a plan some intervals are ignored, while keys move and caches warm up; then observation starts
//!   anew.
//! - After several plans in a row it observes twice as long, and so sees the mean of a fluctuating load.

use std::collections::VecDeque;

use crate::ownership::load::Load;
use crate::ownership::range::partition_of;

/// Parameters of a [`Balancer`].
#[derive(Clone, Debug)]
pub struct BalancerConfig {
    /// Load of the busiest compute server over the mean, above which a plan is considered. Above 1.
    pub threshold: f64,
    /// Number of standard errors by which the load must exceed the threshold.
    pub confidence: f64,
    /// Smallest number of intervals that a plan examines; if it needs more sampled keys, it examines twice,
    /// four times ... as many.
    pub intervals: usize,
    /// Largest number of intervals that are remembered.
    pub intervals_max: usize,
    /// Number of intervals ignored after a plan, including the one in which boundaries move.
    pub cool_down: u32,
    /// Share of its excess over the mean that the busiest server must lose by a plan.
    pub gain: f64,
    /// A boundary moves only if at least this share of a mean load moves with it.
    pub moved_min: f64,
    /// Number of sampled keys per compute server that a plan needs.
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

/// Sampled keys per compute server that are kept of an interval.
const INTERVAL_KEYS_MAX: usize = 64;

/// Expected excess of the largest of several equal parts of a sample, in standard errors of one part.
const LARGEST: f64 = 1.5;

/// Share of the excess over the mean that every part of the time must show if the excess lasts.
const LASTING: f64 = 0.5;

/// Plans are in a row if fewer than this many times the examined intervals lie between them.
const CALM: usize = 4;

/// Normal number of plans in a row: a coarse one and finer ones.
const ROW: usize = 3;

/// Move of one boundary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundaryMove {
    /// The boundary between partitions `boundary` and `boundary + 1`.
    pub boundary: usize,
    pub to: Vec<u8>,
}

/// Decides from the load of each interval which boundaries move; see the module documentation.
#[derive(Clone, Debug)]
pub struct Balancer {
    config: BalancerConfig,
    /// The boundaries in force when `seen` was counted.
    boundaries: Vec<Vec<u8>>,
    seen: VecDeque<Interval>,
    /// Number of intervals still to be ignored.
    resting: u32,
    /// Smallest number of intervals that a plan examines.
    patience: usize,
    /// Number of intervals without a plan.
    calm: usize,
    /// Number of plans in a row.
    row: usize,
}

impl Balancer {
    pub fn new(config: BalancerConfig) -> Self {
        let patience = config.intervals.max(1);
        Self { config, boundaries: Vec::new(), seen: VecDeque::new(), resting: 0, patience, calm: 0, row: 0 }
    }

    /// Records the load of an interval in which `boundaries` were in force. Returns the moves to make, in an
    /// order in which no boundary passes another.
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
        // Prefer the longest span that shows an imbalance, since it has the most keys. A load that has
        // changed shows only in short spans.
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

    /// Moves according to the intervals from `first` on, if they justify any.
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

    /// Whether a compute server was well above the mean in all parts of the time from `first` on, and in the
    /// last interval.
    fn lasts(&self, first: usize, server: usize, together: f64) -> bool {
        let end = self.seen.len();
        let part = (end - first).div_ceil(self.config.intervals.max(1));
        let parts = (first..end).step_by(part).map(|from| from..(from + part).min(end));
        let least = self.config.threshold.max(1.0 + LASTING * (together - 1.0));
        parts
            .chain(std::iter::once(end - 1..end))
            .all(|part| Evidence::of(self.seen.range(part)).imbalance(server) > least)
    }

    /// Restores boundaries that would move with hardly any load, as long as all boundaries ascend.
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

/// Thinned load of an interval, with the evidence of the full load.
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

/// Evidence about the load of compute servers, from one interval or several.
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

    /// Effective sample size: number of equally weighted keys with the same information (Kish).
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

    /// Standard error of [`Self::imbalance`].
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

/// The largest load over the mean of `servers`; 1 without load.
pub fn busiest_over_mean(loads: &[u64], servers: usize) -> f64 {
    let busiest = loads.iter().max().copied().unwrap_or(0);
    match loads.iter().sum::<u64>() {
        0 => 1.0,
        total => busiest as f64 * servers as f64 / total as f64,
    }
}

/// Moves from one list of boundaries to another. Rising boundaries move from the last to the first, falling
/// ones from the first to the last, so that no boundary passes another.
fn in_order(old: &[Vec<u8>], new: &[Vec<u8>]) -> Vec<BoundaryMove> {
    debug_assert!(new.is_sorted_by(|a, b| a < b));
    let each = |i: usize| BoundaryMove { boundary: i, to: new[i].clone() };
    let up = (0..old.len()).rev().filter(|&i| old[i] < new[i]);
    let down = (0..old.len()).filter(|&i| new[i] < old[i]);
    up.chain(down).map(each).collect()
}

/// The boundaries after a move; `None` if a boundary would pass another.
pub fn apply(boundaries: &[Vec<u8>], step: &BoundaryMove) -> Option<Vec<Vec<u8>>> {
    let mut moved = boundaries.to_vec();
    *moved.get_mut(step.boundary)? = step.to.clone();
    let place = partition_of(boundaries, &step.to);
    let is_near = place == step.boundary || place == step.boundary + 1;
    (is_near && moved.is_sorted_by(|a, b| a < b)).then_some(moved)
}
