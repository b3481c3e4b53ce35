//! How much is asked of which keys: what the balancer decides by.
//!
//! Routers note the key of one operation in [`SAMPLE_EVERY`], and how many operations it stands for, each in a shard of
//! its own, so that noting costs an operation a nanosecond or two and nobody waits for anybody. A shard keeps so many
//! keys at most: when it is full, every second one goes and the one before it stands for its operations too.

use std::sync::{Mutex, PoisonError};

use crate::partition::partition_of;

/// Operations per noted key, on the average.
pub const SAMPLE_EVERY: u64 = 32;
/// Keys that a shard keeps.
const SHARD_KEYS_MAX: usize = 1024;

/// A key, and how many operations it stands for.
type Sample = (Box<[u8]>, u64);

/// What one router noted.
#[derive(Debug, Default)]
pub(crate) struct LoadShard(Mutex<Vec<Sample>>);

impl LoadShard {
    pub fn add(&self, key: &[u8], operations: u64) {
        let mut samples = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if samples.len() == SHARD_KEYS_MAX {
            thin(&mut samples);
        }
        samples.push((key.into(), operations));
    }

    pub fn take(&self) -> Vec<Sample> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn thin(samples: &mut Vec<Sample>) {
    for i in 0..samples.len() / 2 {
        let (odd, even) = (samples[2 * i + 1].1, std::mem::take(&mut samples[2 * i]));
        samples[i] = (even.0, even.1 + odd);
    }
    samples.truncate(samples.len() / 2);
}

/// The load of an interval, by keys.
#[derive(Clone, Debug, Default)]
pub struct Load {
    /// In the order of their keys.
    samples: Vec<Sample>,
    total: u64,
}

impl Load {
    pub(crate) fn collect(shards: impl Iterator<Item = Vec<Sample>>) -> Self {
        Self::of(shards.flatten().collect())
    }

    /// What these samples say: keys, and how many operations each stands for.
    pub fn of(mut samples: Vec<(Box<[u8]>, u64)>) -> Self {
        samples.sort_unstable();
        let total = samples.iter().map(|(_, operations)| operations).sum();
        Self { samples, total }
    }

    /// The load of several intervals as that of one.
    pub fn together(loads: &[Self]) -> Self {
        Self::of(loads.iter().flat_map(|load| load.samples.iter().cloned()).collect())
    }

    /// Operations in all.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Keys that were noted.
    pub fn len(&self) -> usize {
        self.samples.len()
    }

    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// Operations on the keys of each partition.
    pub fn by_partition(&self, boundaries: &[Vec<u8>]) -> Vec<u64> {
        let mut operations = vec![0; boundaries.len() + 1];
        for (key, weight) in &self.samples {
            operations[partition_of(boundaries, key)] += weight;
        }
        operations
    }

    /// Noted keys that cut the load into `parts` about equal ones: ascending strictly, the smallest possible apart from
    /// that; `None` if there are too few different keys.
    pub fn quantiles(&self, parts: usize) -> Option<Vec<Vec<u8>>> {
        let mut cuts: Vec<Vec<u8>> = Vec::with_capacity(parts - 1);
        let (mut at, mut below) = (0, 0);
        for part in 1..parts {
            let wanted = u128::from(self.total) * part as u128 / parts as u128;
            while at < self.samples.len() && u128::from(below) < wanted {
                below += self.samples[at].1;
                at += 1;
            }
            let after = |last: &Vec<u8>, key: &[u8]| last.as_slice() < key;
            while at < self.samples.len() && cuts.last().is_some_and(|last| !after(last, &self.samples[at].0))
            {
                below += self.samples[at].1;
                at += 1;
            }
            cuts.push(self.samples.get(at)?.0.to_vec());
        }
        Some(cuts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(keys: impl IntoIterator<Item = (u8, u64)>) -> Load {
        Load::of(keys.into_iter().map(|(key, weight)| (Box::from([key]), weight)).collect())
    }

    #[test]
    fn a_full_shard_keeps_the_load_and_half_of_the_keys() {
        let shard = LoadShard::default();
        for n in 0..3_000u32 {
            shard.add(&n.to_be_bytes(), 10);
        }
        let samples = shard.take();
        assert!(samples.len() <= SHARD_KEYS_MAX);
        assert_eq!(samples.iter().map(|sample| sample.1).sum::<u64>(), 30_000);
        let upper = samples.iter().filter(|(key, _)| **key >= 1_500u32.to_be_bytes()[..]);
        let upper: u64 = upper.map(|sample| sample.1).sum();
        assert!((14_000..16_000).contains(&upper), "{upper}");
    }

    #[test]
    fn quantiles_cut_the_load() {
        let even = load((0..100).map(|key| (key, 1)));
        assert_eq!(even.quantiles(4), Some(vec![vec![25], vec![50], vec![75]]));
        assert_eq!(even.by_partition(&[vec![25], vec![50], vec![75]]), [25, 25, 25, 25]);
        // Half of all on one key: it is alone as far as there are other keys to cut at.
        let hot = load([(1, 10), (5, 100), (6, 10), (7, 10), (8, 10)]);
        assert_eq!(hot.quantiles(3), Some(vec![vec![6], vec![7]]));
        assert_eq!(load([(1, 5), (2, 5)]).quantiles(4), None);
    }
}
