//! Positions of popular keys: the map from the rank of a key to its position among the loaded keys.
//!
//! Without scattering, the hot keys of a Zipf distribution would share a few leaves, and any page cache would
//! look excellent. The field scatters by hashing ([`Scatter::Hash`]), which is not a permutation: only 1 -
//! 1/e, about 63%, of the keys can be drawn, and several ranks may share a key.
//!
//! The map does not depend on the seed of a run, so a warm-up and a measured phase share the hot keys.

use crate::error::SpecError;
use crate::rng::{BitMixer, mix64, reduce};
use std::fmt;
use std::str::FromStr;

/// Map of ranks to positions, as named on the command line: `hash`, `permutation`, `none`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scatter {
    /// A hash of the rank, reduced to the number of keys, as in YCSB's scrambled Zipfian.
    #[default]
    Hash,
    /// A pseudo-random bijection.
    Permutation,
    /// Rank r is position r: hot keys are neighbours.
    None,
}

impl Scatter {
    /// The map of ranks `0..n` to positions `0..n`. `n` must not be 0.
    pub fn over(self, n: u64) -> Scatterer {
        match self {
            Scatter::Hash => Scatterer(Map::Hash { n }),
            Scatter::Permutation => Scatterer(Map::Permutation(Permutation::new(n))),
            Scatter::None => Scatterer(Map::Identity),
        }
    }
}

impl FromStr for Scatter {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Scatter, SpecError> {
        match text {
            "hash" => Ok(Scatter::Hash),
            "permutation" => Ok(Scatter::Permutation),
            "none" => Ok(Scatter::None),
            _ => Err(SpecError::UnknownScatter(text.to_owned())),
        }
    }
}

impl fmt::Display for Scatter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Scatter::Hash => "hash",
            Scatter::Permutation => "permutation",
            Scatter::None => "none",
        })
    }
}

/// A [`Scatter`] for a given number of keys.
#[derive(Clone, Debug)]
pub struct Scatterer(Map);

#[derive(Clone, Debug)]
enum Map {
    Hash { n: u64 },
    Permutation(Permutation),
    Identity,
}

impl Scatterer {
    /// The position of the key with this rank.
    #[inline]
    pub fn position(&self, rank: u64) -> u64 {
        match &self.0 {
            Map::Hash { n } => reduce(mix64(rank), *n),
            Map::Permutation(permutation) => permutation.apply(rank),
            Map::Identity => rank,
        }
    }
}

/// A pseudo-random bijection of `0..n` in constant memory: a bijection of the next power of two, applied
/// again while the result is outside (cycle walking; at most twice on average).
#[derive(Clone, Debug)]
pub struct Permutation {
    n: u64,
    mixer: BitMixer,
}

impl Permutation {
    /// A bijection of `0..n`. `n` must not be 0.
    pub fn new(n: u64) -> Permutation {
        assert!(n > 0, "an empty range has no permutation to apply");
        let bits = (64 - (n - 1).leading_zeros()).max(1);
        Permutation { n, mixer: BitMixer::new(bits) }
    }

    /// The image of `x`, which must be below n.
    #[inline]
    pub fn apply(&self, x: u64) -> u64 {
        debug_assert!(x < self.n, "{x} is outside of 0..{}", self.n);
        let mut y = self.mixer.mix(x);
        while y >= self.n {
            y = self.mixer.mix(y);
        }
        y
    }

    /// The number whose image is `y`, which must be below n.
    #[inline]
    pub fn invert(&self, y: u64) -> u64 {
        debug_assert!(y < self.n, "{y} is outside of 0..{}", self.n);
        let mut x = self.mixer.unmix(y);
        while x >= self.n {
            x = self.mixer.unmix(x);
        }
        x
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permutation_hits_every_position_once() {
        for n in (1..70).chain([1000, 1023, 1024, 1025, 100_000]) {
            let scatterer = Scatter::Permutation.over(n);
            let mut hit = vec![false; n as usize];
            for rank in 0..n {
                let position = scatterer.position(rank) as usize;
                assert!(!std::mem::replace(&mut hit[position], true), "{position} of {n} twice");
                assert_eq!(Permutation::new(n).invert(position as u64), rank);
            }
        }
    }

    #[test]
    fn hashing_reaches_about_63_percent_of_the_keys() {
        let n = 200_000;
        let scatterer = Scatter::Hash.over(n);
        let mut hit = vec![false; n as usize];
        (0..n).for_each(|rank| hit[scatterer.position(rank) as usize] = true);
        let share = hit.iter().filter(|hit| **hit).count() as f64 / n as f64;
        assert!((share - 0.632).abs() < 0.005, "{share}");
    }

    #[test]
    fn hot_ranks_fall_evenly_over_the_key_space() {
        let n = 20_000_000;
        for scatter in [Scatter::Hash, Scatter::Permutation] {
            let scatterer = scatter.over(n);
            let mut tenths = [0u32; 10];
            for rank in 0..10_000 {
                tenths[(scatterer.position(rank) * 10 / n) as usize] += 1;
            }
            // Six standard deviations of a binomial with p = 1/10.
            assert!(tenths.iter().all(|count| count.abs_diff(1000) < 180), "{scatter}: {tenths:?}");
            let neighbours = (0..10_000u64)
                .filter(|&rank| scatterer.position(rank).abs_diff(scatterer.position(rank + 1)) < n / 1000)
                .count();
            assert!(neighbours < 60, "{scatter}: {neighbours} neighbouring ranks are neighbouring keys");
        }
    }

    #[test]
    fn names_read_as_they_print() {
        for scatter in [Scatter::Hash, Scatter::Permutation, Scatter::None] {
            assert_eq!(scatter.to_string().parse::<Scatter>().expect("valid"), scatter);
        }
        assert!("feistel".parse::<Scatter>().is_err());
    }
}
