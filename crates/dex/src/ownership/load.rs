//! Load by key, on which the rebalancer decides.
//!
//! A router samples the key of one operation in [`SAMPLE_EVERY`], with the number of operations that it
//! represents, into a shard of its own. So sampling costs an operation one or two nanoseconds, and no router
//! waits for another. A shard has bounded size: when it is full, every second key is dropped, and the key
//! before it also represents the operations of the dropped one.

use std::sync::{Mutex, PoisonError};

use crate::ownership::range::partition_of;

/// Average number of operations per sampled key.
pub const SAMPLE_EVERY: u64 = 32;

/// Largest number of keys in a shard.
const SHARD_KEYS_MAX: usize = 1024;

/// A key, and the number of operations that it represents.
type Sample = (Box<[u8]>, u64);

/// Samples of one router.
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

/// Load of an interval, by key.
#[derive(Clone, Debug, Default)]
pub struct Load {
    /// In key order.
    samples: Vec<Sample>,
    total: u64,
}

impl Load {
    pub(crate) fn collect(shards: impl Iterator<Item = Vec<Sample>>) -> Self {
        Self::of(shards.flatten().collect())
    }

    /// Load of these samples: keys, and the number of operations that each represents.
    pub fn of(mut samples: Vec<(Box<[u8]>, u64)>) -> Self {
        // A stable sort, which is fast on input that is sorted in parts.
        samples.sort();
        let total = samples.iter().map(|(_, operations)| operations).sum();
        Self { samples, total }
    }

    /// Sum of the loads of several intervals.
    pub fn together<'l>(loads: impl Iterator<Item = &'l Self>) -> Self {
        Self::of(loads.flat_map(|load| load.samples.iter().cloned()).collect())
    }

    /// Total number of operations.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Number of sampled keys.
    pub fn len(&self) -> usize {
        self.samples.len()
    }

    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// Number of operations on the keys of each partition.
    pub fn by_partition(&self, boundaries: &[Vec<u8>]) -> Vec<u64> {
        let mut operations = vec![0; boundaries.len() + 1];
        for (key, weight) in &self.samples {
            operations[partition_of(boundaries, key)] += weight;
        }
        operations
    }

    /// Sum of the squares of the samples' weights.
    pub(crate) fn squares(&self) -> f64 {
        self.samples.iter().map(|&(_, operations)| (operations as f64).powi(2)).sum()
    }

    /// The same load, represented by at most `keys` sampled keys.
    pub(crate) fn thinned(mut self, keys: usize) -> Self {
        while self.samples.len() > keys.max(1) {
            thin(&mut self.samples);
        }
        self
    }

    /// Boundaries, as many as given, that cut the load into parts as equal as possible. They ascend strictly,
    /// and each is a sampled key or an existing boundary. A key with more than an equal part gets a part of
    /// its own as far as possible, and the other parts share the rest.
    pub fn equal_cuts(&self, boundaries: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let places = self.places(boundaries);
        let mut cuts = Vec::with_capacity(boundaries.len());
        let (mut at, mut left) = (0, u128::from(self.total));
        for cut in 0..boundaries.len() {
            let parts = (boundaries.len() + 1 - cut) as u128;
            // Leave places for the cuts above.
            let last = places.len() - (boundaries.len() - cut);
            let mut sum = 0;
            while at < last {
                let weight = u128::from(places[at].1);
                let is_nearer = (2 * sum + weight) * parts < 2 * left;
                if sum > 0 && !is_nearer {
                    break;
                }
                sum += weight;
                at += 1;
            }
            left -= sum;
            cuts.push(places[at].0);
        }
        cuts.into_iter().map(<[u8]>::to_vec).collect()
    }

    /// Possible cuts in strictly ascending order, with the load from each to the next.
    fn places<'l>(&'l self, boundaries: &'l [Vec<u8>]) -> Vec<(&'l [u8], u64)> {
        let noted = self.samples.iter().map(|(key, weight)| (&**key, *weight));
        let mut all: Vec<_> = noted.chain(boundaries.iter().map(|key| (key.as_slice(), 0))).collect();
        all.sort_unstable();
        all.dedup_by(|later, first| {
            let is_same = later.0 == first.0;
            first.1 += if is_same { later.1 } else { 0 };
            is_same
        });
        all
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
    fn a_load_by_fewer_keys_is_the_same_load() {
        let all = load((0..200).map(|key| (key, 3)));
        let some = all.clone().thinned(60);
        assert_eq!((some.len(), some.total()), (50, 600));
        let halves = some.by_partition(&[vec![100]]);
        assert_eq!(halves, [300, 300]);
    }

    #[test]
    fn cuts_make_equal_parts() {
        let even = load((0..100).map(|key| (key, 1)));
        let cuts = [vec![25], vec![50], vec![75]];
        assert_eq!(even.equal_cuts(&[vec![1], vec![2], vec![3]]), cuts);
        assert_eq!(even.by_partition(&cuts), [25, 25, 25, 25]);
        assert_eq!(even.equal_cuts(&[]), Vec::<Vec<u8>>::new());
    }

    #[test]
    fn a_key_that_is_more_than_a_part_is_alone_and_the_others_share_the_rest() {
        let of = |load: &Load, boundaries: &[Vec<u8>]| load.by_partition(&load.equal_cuts(boundaries));
        let hot = load([(1, 10), (5, 100), (6, 10), (7, 10), (8, 10)]);
        assert_eq!(of(&hot, &[vec![100], vec![200]]), [10, 100, 30]);
        assert_eq!(of(&hot, &[vec![100], vec![150], vec![200]]), [10, 100, 10, 20]);
        let first = load([(5, 100), (6, 10), (7, 10)]);
        assert_eq!(of(&first, &[vec![100], vec![200]]), [100, 10, 10]);
    }

    #[test]
    fn with_fewer_keys_than_parts_boundaries_stay_or_have_nothing_between_them() {
        let few = load([(3, 5), (4, 5)]);
        let cuts = few.equal_cuts(&[vec![50], vec![100], vec![150]]);
        assert!(cuts.is_sorted_by(|a, b| a < b), "{cuts:?}");
        let mut parts = few.by_partition(&cuts);
        parts.sort_unstable();
        assert_eq!(parts, [0, 0, 5, 5]);
        assert_eq!(load([]).equal_cuts(&[vec![7]]).len(), 1);
    }
}
