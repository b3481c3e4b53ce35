//! How long operations took, in buckets whose width grows with what they hold.
//!
//! A bucket is a quarter of a power of two wide, so a quantile is at most a quarter too long, at 152 counters for each kind.
//! Threads add without locks; a snapshot that is taken meanwhile may lack the last few.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Buckets per power of two.
const STEPS: u64 = 4;
const STEP_BITS: u32 = STEPS.trailing_zeros();
/// Longer ones, of more than two minutes, are counted with these.
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

/// The longest time that is counted in a bucket.
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

/// A moment of how long the operations of one kind took, from when they were whole until their answers were.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Latencies {
    counts: Vec<u64>,
    sum_ns: u64,
}

impl Latencies {
    /// How many operations there were.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// How long all of them took together.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum_ns)
    }

    /// Times, in ns, that grow, and how many operations took no longer: as a page of metrics has it. Times at which nothing is
    /// new are left out.
    pub fn cumulative(&self) -> impl Iterator<Item = (u64, u64)> {
        let mut total = 0;
        self.counts.iter().enumerate().filter(|(_, count)| **count > 0).map(move |(bucket, count)| {
            total += count;
            (longest_of(bucket), total)
        })
    }

    /// A time that the share `q` of the operations, 0 to 1, did not exceed, and at most a quarter more than the shortest such;
    /// `None` if there were none.
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
