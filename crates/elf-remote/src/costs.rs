//! Times of READs and calls: what they are expected to be, and what they turned out to be.
//!
//! A search takes `round trips x a + bytes x b` by READs, and `a' + bytes x b'` by a call. A reader fits both to
//! what it measured, for each memory server: least squares of errors relative to what the model expects, in which older
//! measurements count less and less. The model's figures count as a small part of a measurement, so that there is an
//! answer from the beginning. A small share of the decisions is reversed on purpose, as in DEX (§6.1), so that both
//! fits stay up to date.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use pando_fabric::{Endpoint, MemoryServerId, Nanos, OffloadPolicy};

/// How searches are offloaded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Offloading {
    /// Default: never.
    pub policy: OffloadPolicy,
    /// Time of a round trip of a small READ, in ns. Default: 2,000.
    pub read_ns: f64,
    /// Bytes that a network carries in a nanosecond. Default: 11.0.
    pub bytes_per_ns: f64,
    /// Time between two messages, in ns. Default: 28.6, 35 million a second.
    pub message_ns: f64,
    /// Time of a call without work, in ns. Default: 4,000.
    pub call_ns: f64,
    /// Time for a byte that a memory server looks at, in ns. Default: 0.3.
    pub work_ns: f64,
    /// Number of measurements after which one counts a third of a new one. Default: 50, as in DEX.
    pub samples: f64,
    /// Share of decisions that are reversed where both ways cost the same; fewer are, in proportion, where one costs
    /// more. Default: 0.01, as in DEX.
    pub contrary: f64,
    /// Most bytes that a call may make a memory server look at, by the estimate. Default: 8 MiB.
    pub bytes_max: u64,
}

impl Default for Offloading {
    fn default() -> Self {
        Self {
            policy: OffloadPolicy::Never,
            read_ns: 2_000.0,
            bytes_per_ns: 11.0,
            message_ns: 28.6,
            call_ns: 4_000.0,
            work_ns: 0.3,
            samples: 50.0,
            contrary: 0.01,
            bytes_max: 8 << 20,
        }
    }
}

impl Offloading {
    /// The defaults with `policy`.
    pub fn with_policy(policy: OffloadPolicy) -> Self {
        Self { policy, ..Self::default() }
    }
}

/// What the rest of a search is expected to need.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Estimate {
    /// Round trips of READs.
    pub trips: f64,
    /// Most READs, since neighbours are joined.
    pub reads: f64,
    /// Bytes READ, besides ids of rows that are compared.
    pub bytes: f64,
    /// Entries that were looked at already, which a memory server looks at again.
    pub walked: f64,
    /// Rows that match for certain.
    pub taken: f64,
    /// Rows to be compared.
    pub compared: f64,
}

/// Bytes of an entry with its position.
const ENTRY_BYTES: f64 = 8.0;

/// Bytes of a row id.
const ID_BYTES: f64 = 4.0;

/// Two ways to search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Reads,
    Call,
}

/// What a time is expected to consist of: two quantities, in the times that the model gives them.
type Terms = [f64; 2];

impl Estimate {
    /// Rows that are expected to be found, if `share` of those that are compared are.
    fn found(&self, share: f64) -> f64 {
        self.taken + self.compared * share
    }

    /// Bytes that a memory server would look at.
    fn work(&self, share: f64) -> f64 {
        self.bytes + self.walked * ENTRY_BYTES + self.found(share) * ID_BYTES
    }

    /// Terms of the time by READs and of the time by a call.
    fn terms(&self, way: Way, share: f64, options: &Offloading) -> Terms {
        let ids = self.found(share) * ID_BYTES;
        match way {
            Way::Reads => {
                let bytes = (self.bytes + ids) / options.bytes_per_ns;
                [self.trips * options.read_ns, bytes + self.reads * options.message_ns]
            }
            Way::Call => {
                let work = self.work(share) * options.work_ns + ids / options.bytes_per_ns;
                [options.call_ns, work]
            }
        }
    }
}

/// Factors of two terms, fitted to measured times.
#[derive(Clone, Copy, Debug, Default)]
struct Fit {
    /// Sums of squares, of products, and of products with the measured time, in shares of the time that the model
    /// expects. Shares of the measured time would make the short ones of a busy server count most.
    squares: [f64; 2],
    product: f64,
    sums: [f64; 2],
}

impl Fit {
    /// Weight of the model's factors, which are 1, against that of a measurement. It only has to decide what one
    /// measurement leaves open.
    const PRIOR: f64 = 0.001;
    /// Least factor, since no time is negative. It is so low because an estimate may be far too high: of levels that
    /// are not cached, nothing is known but their size.
    const LEAST: f64 = 0.000_1;

    fn add(&mut self, terms: Terms, measured: Nanos, samples: f64) {
        let keep = 1.0 - 1.0 / samples.max(1.0);
        let expected = (terms[0] + terms[1]).max(1.0);
        let ([x, y], time) = (terms.map(|term| term / expected), measured as f64 / expected);
        self.squares = [self.squares[0] * keep + x * x, self.squares[1] * keep + y * y];
        self.product = self.product * keep + x * y;
        self.sums = [self.sums[0] * keep + x * time, self.sums[1] * keep + y * time];
    }

    fn factors(&self) -> [f64; 2] {
        let [xx, yy] = self.squares.map(|square| square + Self::PRIOR);
        let [x, y] = self.sums.map(|sum| sum + Self::PRIOR);
        let determinant = xx * yy - self.product * self.product;
        let factors = [(x * yy - y * self.product) / determinant, (y * xx - x * self.product) / determinant];
        // Without a term that would be negative, the other one alone is fitted.
        match factors {
            [a, _] if a < Self::LEAST => {
                [Self::LEAST, ((y - Self::LEAST * self.product) / yy).max(Self::LEAST)]
            }
            [_, b] if b < Self::LEAST => {
                [((x - Self::LEAST * self.product) / xx).max(Self::LEAST), Self::LEAST]
            }
            factors => factors,
        }
    }

    fn time(&self, terms: Terms) -> f64 {
        let [a, b] = self.factors();
        a * terms[0] + b * terms[1]
    }
}

/// What was learnt of a memory server.
#[derive(Clone, Copy, Debug)]
struct Learnt {
    reads: Fit,
    call: Fit,
    /// Share of the compared rows that were found.
    share: f64,
}

impl Default for Learnt {
    fn default() -> Self {
        Self { reads: Fit::default(), call: Fit::default(), share: 0.1 }
    }
}

/// Decisions of a reader.
#[derive(Debug)]
pub(crate) struct Offloads {
    options: Offloading,
    learnt: Mutex<BTreeMap<MemoryServerId, Learnt>>,
}

impl Offloads {
    pub fn new(options: Offloading) -> Self {
        Self { options, learnt: Mutex::default() }
    }

    /// Whether nothing is ever offloaded.
    pub fn never(&self) -> bool {
        self.options.policy == OffloadPolicy::Never
    }

    /// Decides how the rest of a search is done on the memory server that has all of it.
    pub fn choose(&self, ep: &impl Endpoint, server: MemoryServerId, estimate: &Estimate) -> Way {
        let Learnt { reads, call, share } = self.learnt(server);
        let is_large = estimate.work(share) > self.options.bytes_max as f64;
        if estimate.trips == 0.0 || is_large {
            return Way::Reads;
        }
        match self.options.policy {
            OffloadPolicy::Never => Way::Reads,
            OffloadPolicy::Always => Way::Call,
            OffloadPolicy::CostAware => {
                let time = |fit: Fit, way| fit.time(estimate.terms(way, share, &self.options));
                let (by_reads, by_call) = (time(reads, Way::Reads), time(call, Way::Call));
                let random = (ep.random() >> 11) as f64 / (1_u64 << 53) as f64;
                // The dearer way costs no larger share of all time than `contrary`.
                let ratio = by_reads.min(by_call) / by_reads.max(by_call);
                let is_contrary = random < self.options.contrary * ratio;
                if (by_call < by_reads) != is_contrary { Way::Call } else { Way::Reads }
            }
        }
    }

    /// Learns from a search.
    pub fn note(&self, server: MemoryServerId, way: Way, estimate: &Estimate, found: u64, took: Nanos) {
        if self.options.policy != OffloadPolicy::CostAware {
            return;
        }
        let mut all = self.learnt.lock().unwrap_or_else(PoisonError::into_inner);
        let learnt = all.entry(server).or_default();
        if estimate.compared >= 1.0 {
            let share = (found as f64 - estimate.taken) / estimate.compared;
            learnt.share += (share.clamp(0.0, 1.0) - learnt.share) / self.options.samples.max(1.0);
        }
        let terms = estimate.terms(way, learnt.share, &self.options);
        let fit = if way == Way::Call { &mut learnt.call } else { &mut learnt.reads };
        fit.add(terms, took, self.options.samples);
    }

    fn learnt(&self, server: MemoryServerId) -> Learnt {
        let all = self.learnt.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(&server).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fit_finds_the_factors_and_forgets_what_is_long_ago() {
        let mut fit = Fit::default();
        assert_eq!(fit.factors(), [1.0, 1.0]);
        let terms = |round: u64| [1_000.0 * (1 + round % 3) as f64, 700.0 * (round % 7) as f64];
        let measured = |[a, b]: [f64; 2], round| {
            let [x, y] = terms(round);
            (a * x + b * y) as Nanos
        };
        for factors in [[3.0, 0.5], [1.5, 4.0]] {
            (0..400).for_each(|round| fit.add(terms(round), measured(factors, round), 50.0));
            let found = fit.factors();
            let is_near = |(found, factor): (&f64, f64)| (found / factor - 1.0).abs() < 0.15;
            assert!(found.iter().zip(factors).all(is_near), "{found:?}");
        }
    }

    #[test]
    fn times_of_a_busy_server_count_by_their_mean() {
        let mut fit = Fit::default();
        (0..400).for_each(|round| fit.add([4_000.0, 600.0], [5_000, 155_000][round % 2], 50.0));
        let found = fit.time([4_000.0, 600.0]);
        assert!((72_000.0..88_000.0).contains(&found), "{found}");
    }

    #[test]
    fn one_measurement_corrects_an_estimate_that_is_far_too_high() {
        let mut fit = Fit::default();
        fit.add([4_000.0, 1_500_000.0], 9_000, 50.0);
        let found = fit.time([4_000.0, 1_500_000.0]);
        assert!((6_000.0..14_000.0).contains(&found), "{found}");
    }

    #[test]
    fn factors_are_never_negative() {
        let mut fit = Fit::default();
        // Times that fall with the second term.
        (1..100).for_each(|round| fit.add([1_000.0, 100.0 * round as f64], 20_000 / round, 50.0));
        let [a, b] = fit.factors();
        assert!(a > 0.0 && b > 0.0, "{a} {b}");
    }
}
