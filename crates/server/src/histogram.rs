//! Histograms of latencies, with buckets whose width grows with the latency.
//!
//! A power of two has four buckets, so a quantile is at most a quarter too high, with 152 counters for each
//! kind. Threads add without locks; a concurrent snapshot may lack the most recent additions.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Buckets per power of two.
const STEPS: u64 = 4;
const STEP_BITS: u32 = STEPS.trailing_zeros();
/// The last bucket also counts all latencies above two minutes.
const BUCKETS: usize = 152;

#[derive(Debug)]
pub(crate) struct Histogram {
    counts: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: std::array::from_fn(|_| AtomicU64::new(0)), sum_ns: AtomicU64::new(0) }
    }
}

fn bucket_of(ns: u64) -> usize {
    if ns < STEPS {
        return ns as usize;
    }
    let shift = ns.ilog2() - STEP_BITS;
    let bucket = u64::from(shift) * STEPS + (ns >> shift);
    (bucket as usize).min(BUCKETS - 1)
}

/// Longest latency counted in a bucket, in ns.
fn longest_of(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < STEPS {
        return bucket;
    }
    let shift = bucket / STEPS - 1;
    ((STEPS + bucket % STEPS + 1) << shift) - 1
}

impl Histogram {
    pub fn add(&self, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.counts[bucket_of(ns)].fetch_add(1, Relaxed);
        self.sum_ns.fetch_add(ns, Relaxed);
    }

    pub fn snapshot(&self) -> Latencies {
        let counts: Vec<u64> = self.counts.iter().map(|count| count.load(Relaxed)).collect();
        Latencies { counts, sum_ns: self.sum_ns.load(Relaxed) }
    }
}

/// Snapshot of the latencies of one kind of operation, from the arrival of the complete request to the
/// complete answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Latencies {
    counts: Vec<u64>,
    sum_ns: u64,
}

impl Latencies {
    /// Number of operations.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Sum of all latencies.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum_ns)
    }

    /// Pairs of a latency in ns and the number of operations that took at most that, in ascending order, as
    /// metrics need them. Empty buckets are omitted.
    pub fn cumulative(&self) -> impl Iterator<Item = (u64, u64)> {
        let mut total = 0;
        self.counts.iter().enumerate().filter(|(_, count)| **count > 0).map(move |(bucket, count)| {
            total += count;
            (longest_of(bucket), total)
        })
    }

    /// Latency that the share `q` (0 to 1) of the operations did not exceed, at most a quarter too high;
    /// `None` without operations.
    pub fn quantile(&self, q: f64) -> Option<Duration> {
        let rank = (q.clamp(0.0, 1.0) * self.count() as f64).ceil().max(1.0) as u64;
        self.cumulative().find(|(_, total)| *total >= rank).map(|(ns, _)| Duration::from_nanos(ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_time_lies_in_its_bucket_which_is_narrow() {
        let mut before = None;
        for exponent in 0..37 {
            for ns in [(1u64 << exponent) - 1, 1 << exponent, (1 << exponent) + (1 << exponent) / 3] {
                let bucket = bucket_of(ns);
                let longest = longest_of(bucket);
                assert!(ns <= longest && longest <= ns + ns / 4, "{ns}: {bucket} to {longest}");
                assert!(bucket == 0 || longest_of(bucket - 1) < ns, "{ns}");
                assert!(before <= Some(bucket), "{ns}");
                before = Some(bucket);
            }
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_are_those_of_what_was_added() {
        let histogram = Histogram::default();
        assert_eq!(histogram.snapshot().quantile(0.5), None);
        (1..=1000).for_each(|micros| histogram.add(Duration::from_micros(micros)));
        let snapshot = histogram.snapshot();
        assert_eq!((snapshot.count(), snapshot.sum()), (1000, Duration::from_micros(500_500)));
        for (q, exact) in [(0.0, 1), (0.5, 500), (0.99, 990), (1.0, 1000)] {
            let found = snapshot.quantile(q).expect("there were some").as_nanos() as u64;
            assert!((exact * 1000..=exact * 1250).contains(&found), "{q}: {found}");
        }
    }
}
