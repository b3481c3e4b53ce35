//! Report of a run: throughput over time by compute server, and the moves.
//!
//! Times are virtual, in nanoseconds from the start of the run. An operation counts in the interval in which
//! it ended. Derived figures are computed after the run.

use pando_dex::balancer::busiest_over_mean;
use serde::Serialize;

/// A move of keys; times are from the start of the run.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct MoveFigures {
    pub from: usize,
    pub to: usize,
    pub began_ns: u64,
    /// Time at which all dirty nodes were written back.
    pub written_ns: u64,
    pub ended_ns: u64,
    pub nodes_written: u64,
    pub bytes_written: u64,
}

/// The report of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ElasticReport {
    pub ops: u64,
    pub failed_ops: u64,
    pub complaints: Vec<String>,
    pub throughput_ops: f64,
    pub virtual_seconds: f64,
    pub interval_ns: u64,
    /// Operations by compute server and interval.
    pub series: Vec<Vec<u64>>,
    pub moves: Vec<MoveFigures>,
    pub move_count: u64,
    /// From the start of the first move to the end of the last one.
    pub moving_ns: Option<u64>,
    pub bytes_written: u64,
    /// Throughput of the compute servers that take part in no move, while keys moved, divided by their
    /// throughput in equally many intervals before.
    pub others_ratio: Option<f64>,
    /// Load of the busiest compute server divided by the mean, by interval.
    pub imbalance: Vec<f64>,
    /// Imbalance over the last quarter of the time that a hot spot stays at a place; the maximum over all
    /// places.
    pub settled_imbalance: Option<f64>,
    /// Moves that began in these quarters; 0 is expected, as the loads should be even by then.
    pub late_moves: u64,
    pub audit_violations: u64,
}

impl ElasticReport {
    /// Computes the derived figures from the series and the moves. A hot spot stays at each of `places`
    /// places for an equal time.
    pub(super) fn conclude(&mut self, servers: usize, places: usize) {
        let longest = self.series.iter().map(Vec::len).max().unwrap_or(0);
        self.series.iter_mut().for_each(|counts| counts.resize(longest, 0));
        self.imbalance = (0..longest).map(|at| self.imbalance_of(at..at + 1, servers)).collect();
        let place = longest / places.max(1);
        let settled = (1..=places).map(|n| self.imbalance_of(n * place - place / 4..n * place, servers));
        self.settled_imbalance = settled.reduce(f64::max).filter(|_| place >= 4);
        let is_late = |began_ns: u64| {
            let at = (began_ns / self.interval_ns) as usize;
            at < places * place && at % place >= place - place / 4
        };
        self.late_moves =
            self.moves.iter().filter(|step| place >= 4 && is_late(step.began_ns)).count() as u64;
        self.move_count = self.moves.len() as u64;
        self.bytes_written = self.moves.iter().map(|step| step.bytes_written).sum();
        if let (Some(first), Some(last)) = (self.moves.first(), self.moves.last()) {
            self.moving_ns = Some(last.ended_ns - first.began_ns);
            self.others_ratio = self.others(first.began_ns, last.ended_ns);
        }
    }

    fn imbalance_of(&self, intervals: std::ops::Range<usize>, servers: usize) -> f64 {
        let loads: Vec<u64> =
            self.series.iter().map(|counts| counts[intervals.clone()].iter().sum()).collect();
        busiest_over_mean(&loads, servers)
    }

    fn others(&self, began: u64, ended: u64) -> Option<f64> {
        let takes_part = |server: usize| self.moves.iter().any(|step| [step.from, step.to].contains(&server));
        let (from, to) = ((began / self.interval_ns) as usize, (ended / self.interval_ns) as usize + 1);
        let before = from.checked_sub(to - from)?;
        let sum = |range: std::ops::Range<usize>| {
            let others = self.series.iter().enumerate().filter(|(server, _)| !takes_part(*server));
            others
                .map(|(_, counts)| counts.get(range.clone()).map_or(0, |some| some.iter().sum()))
                .sum::<u64>()
        };
        let (during, before) = (sum(from..to), sum(before..from));
        (before > 0).then(|| during as f64 / before as f64)
    }
}
