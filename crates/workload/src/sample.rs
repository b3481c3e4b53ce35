//! Popularity of a large data set on a small sample of its records.
//!
//! A small data set has hotter keys than a large one: with theta 0.99 the hottest of 2 million keys has 6% of
//! the accesses, that of 200 million 4.6%. If ranks of the large one are drawn, the small one's keys must
//! stand for them. The hundred most popular keys stand for themselves, so that they are as hot as there. The
//! coldest stand for as many neighbouring ranks as there are records to a key, so that the share of the
//! accesses that go to the hottest hundredth of the keys is that of the hottest hundredth there, and caches
//! of the same share of the data are of the same use. Between the two, the number of ranks of a key grows
//! with its rank.

/// Ranks that have a key of their own.
const HEAD: u64 = 100;

/// Map of the ranks of a large data set to those of a small one.
///
/// ```
/// use pando_workload::Sample;
/// let sample = Sample::new(200_000_000, 2_000_000);
/// assert_eq!(sample.of_rank(7), 7);
/// assert_eq!(sample.of_rank(10_000), 1_000);
/// assert_eq!(sample.of_rank(150_000_000), 1_500_000);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    ranks: u64,
    keys: u64,
}

impl Sample {
    /// The map of `ranks` to `keys`; fewer ranks than keys count as as many.
    pub fn new(ranks: u64, keys: u64) -> Sample {
        Sample { ranks: ranks.max(keys), keys }
    }

    /// Largest number of ranks that `keys` can stand for.
    pub fn ranks_max(keys: u64) -> u64 {
        u64::try_from(u128::from(keys) * u128::from(keys) / u128::from(HEAD)).unwrap_or(u64::MAX).max(keys)
    }

    /// Number of ranks.
    pub fn ranks(&self) -> u64 {
        self.ranks
    }

    /// The rank of the key that stands for this rank.
    #[inline]
    pub fn of_rank(&self, rank: u64) -> u64 {
        let Sample { ranks, keys } = *self;
        if rank < HEAD || ranks == keys {
            return rank.min(keys - 1);
        }
        let proportional = (u128::from(rank) * u128::from(keys) / u128::from(ranks)) as u64;
        // Both are HEAD at rank HEAD, and meet where a key stands for `ranks / keys` of them.
        let between = ((rank * HEAD) as f64).sqrt() as u64;
        proportional.max(between.min(HEAD * (ranks / keys))).min(keys - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;
    use crate::zipf::Zipf;

    #[test]
    fn ranks_keep_their_order_and_reach_all_keys() {
        for (ranks, keys) in [(200_000_000, 2_000_000), (1_000_000_000, 2_000_000), (50_000, 20_000), (9, 9)]
        {
            let sample = Sample::new(ranks, keys);
            let mut last = 0;
            let step = (ranks / 1_000_000).max(1);
            for rank in (0..ranks.min(20_000)).chain((0..ranks).step_by(step as usize)) {
                let key = sample.of_rank(rank);
                assert!(key < keys, "rank {rank} of {ranks}");
                assert!(key >= last || rank == 0, "rank {rank} of {ranks}");
                last = key;
            }
            assert_eq!(sample.of_rank(ranks - 1), keys - 1);
        }
    }

    #[test]
    fn the_head_and_the_shares_are_those_of_the_large_data_set() {
        const DRAWS: u64 = 1_000_000;
        let (ranks, keys) = (200_000_000u64, 2_000_000u64);
        let (zipf, sample) = (Zipf::new(ranks, 0.99).expect("valid"), Sample::new(ranks, keys));
        let mut rng = Rng::new(3);
        let (mut hottest, mut here, mut there) = (0, 0, 0);
        for _ in 0..DRAWS {
            let rank = zipf.draw(&mut rng);
            let key = sample.of_rank(rank);
            hottest += u64::from(key == 0);
            here += u64::from(key < keys / 50);
            there += u64::from(rank < ranks / 50);
        }
        let share = hottest as f64 / DRAWS as f64;
        assert!((0.044..0.048).contains(&share), "{share}");
        assert!(here.abs_diff(there) < DRAWS / 500, "{here} and {there}");
    }
}
