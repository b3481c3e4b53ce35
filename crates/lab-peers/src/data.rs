//! Keys, values and expected answers.
//!
//! A value is a tag of 44 bits, computed from the key, above 8 clear bits and a *sequence* of 12 bits, which
//! identifies the update that wrote it. The sequences of up to 256 values sum up to less than 2^20, so the
//! bits of a scan's sum from bit 20 on are known in advance: one comparison checks a whole scan.

use anyhow::ensure;
use pando_workload::{Distribution, KeySpace, Permutation, Rng, Scatter, Zipf, mix64};

/// Bits of a value that hold the sequence.
const SEQUENCE_BITS: u32 = 12;
/// Low bits of a sum of values that the sequences may reach. They limit a scan to 2^8 records.
const SUM_SLACK_BITS: u32 = 20;
/// Longest scan that can be checked.
pub const SCAN_LEN_MAX: usize = 1 << (SUM_SLACK_BITS - SEQUENCE_BITS);

/// Value of a key after update `sequence` (0: as loaded). Only the low 12 bits of the sequence are kept.
#[inline]
pub fn value_of(key: u64, sequence: u64) -> u64 {
    tag_of(key) | (sequence & ((1 << SEQUENCE_BITS) - 1))
}

/// Whether a value belongs to the key, with any sequence.
#[inline]
pub fn belongs(key: u64, value: u64) -> bool {
    (tag_of(key) ^ value) >> SEQUENCE_BITS == 0
}

#[inline]
fn tag_of(key: u64) -> u64 {
    // The bits between the sequence and the tag stay clear, so that no carry of a sum reaches the tag.
    mix64(!key) >> SUM_SLACK_BITS << SUM_SLACK_BITS
}

/// One operation of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Draw {
    pub key: u64,
    /// For scans: the expected sum of the values, without the bits that sequences reach.
    pub sum: u64,
}

impl Draw {
    /// Whether a scan's sum is the expected one.
    #[inline]
    pub fn is_sum(&self, sum: u64) -> bool {
        sum >> SUM_SLACK_BITS == self.sum
    }
}

/// The pairs of a key space, ascending.
#[derive(Debug)]
pub struct DataSet {
    pub space: KeySpace,
    pub pairs: Vec<(u64, u64)>,
}

impl DataSet {
    /// Makes `count` keys: 0, 1, 2... or a pseudo-random integer for each of these.
    pub fn new(space: KeySpace, count: u64) -> DataSet {
        let mut pairs: Vec<(u64, u64)> = (0..count).map(|record| key_of(space, record)).map(pair).collect();
        if space == KeySpace::Random64 {
            pairs.sort_unstable();
        }
        DataSet { space, pairs }
    }

    /// The same pairs in a pseudo-random order.
    pub fn shuffled(&self) -> Vec<(u64, u64)> {
        let order = Permutation::new(self.pairs.len() as u64);
        (0..self.pairs.len() as u64).map(|i| self.pairs[order.apply(i) as usize]).collect()
    }

    /// Draws `count` keys from `distribution`, each with the expected sum of a scan of `scan_len` records if
    /// `scan_len` is not 0.
    ///
    /// # Errors
    /// If the distribution is not valid here, or the scan is too long to be checked.
    pub fn draws(
        &self,
        distribution: Distribution,
        count: usize,
        scan_len: usize,
        seed: u64,
    ) -> anyhow::Result<Vec<Draw>> {
        ensure!(scan_len <= SCAN_LEN_MAX, "scans of more than {SCAN_LEN_MAX} records cannot be checked");
        let records = self.pairs.len() as u64;
        let zipf = match distribution {
            Distribution::Uniform => None,
            Distribution::Zipf { theta } => Some(Zipf::new(records, theta)?),
            Distribution::HotSpot(_) => anyhow::bail!("there are no hot spots here"),
            Distribution::Latest { .. } => anyhow::bail!("`latest` needs inserts, and there are none here"),
        };
        let scatter = Scatter::Hash.over(records);
        let mut rng = Rng::new(seed);
        let mut draw = || match &zipf {
            None => rng.below(records),
            Some(zipf) => scatter.position(zipf.draw(&mut rng)),
        };
        let make = |_| {
            let key = key_of(self.space, draw());
            Draw { key, sum: self.sum_from(key, scan_len) >> SUM_SLACK_BITS }
        };
        Ok((0..count).map(make).collect())
    }

    /// Number of records that a scan of `len` from `key` on reads.
    pub fn records_from(&self, key: u64, len: usize) -> usize {
        (self.pairs.len() - self.position(key)).min(len)
    }

    fn sum_from(&self, key: u64, len: usize) -> u64 {
        if len == 0 {
            return 0;
        }
        let from = &self.pairs[self.position(key)..];
        from.iter().take(len).fold(0, |sum, (_, value)| sum.wrapping_add(*value))
    }

    fn position(&self, key: u64) -> usize {
        self.pairs.partition_point(|pair| pair.0 < key)
    }
}

fn key_of(space: KeySpace, record: u64) -> u64 {
    match space {
        KeySpace::Dense | KeySpace::Packed => record,
        KeySpace::Random64 => mix64(record),
    }
}

fn pair(key: u64) -> (u64, u64) {
    (key, value_of(key, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_tell_right_from_wrong_whatever_the_sequences() {
        let data = DataSet::new(KeySpace::Random64, 1000);
        assert!(data.pairs.is_sorted());
        let draws = data.draws(Distribution::Uniform, 100, 100, 1).expect("valid");
        for (i, draw) in draws.iter().enumerate() {
            let at = data.position(draw.key);
            let len = data.records_from(draw.key, 100);
            let values = data.pairs[at..at + len].iter().map(|(key, _)| value_of(*key, 4095 - i as u64));
            let sum = values.fold(0u64, u64::wrapping_add);
            assert!(draw.is_sum(sum));
            assert!(!draw.is_sum(sum.wrapping_sub(data.pairs[at].1)), "one record is missing");
        }
        assert!(data.draws(Distribution::Uniform, 1, SCAN_LEN_MAX + 1, 1).is_err());
    }

    #[test]
    fn values_belong_to_their_key() {
        assert!(belongs(7, value_of(7, 4095)) && belongs(7, value_of(7, 0)));
        assert!(!belongs(8, value_of(7, 0)));
    }
}
