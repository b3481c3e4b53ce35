//! Popularity of keys: the distribution over *ranks*, with rank 0 for the most popular key.
//!
//! [`Zipf`] draws rank r with probability proportional to 1 / (r + 1)^theta by rejection-inversion (Hörmann
//! and Derflinger, "Rejection-inversion to generate variates from monotone discrete distributions", 1996):
//! the exact distribution, in constant time and memory, for any theta and any number of keys. YCSB's
//! approximation first sums n terms and is undefined at theta = 1.
//!
//! [`crate::Scatter`] maps ranks to positions in the key space.

use crate::error::SpecError;
use crate::hot_spot::HotSpot;
use crate::rng::Rng;
use std::fmt;
use std::str::FromStr;

/// Maximum number of keys: a double distinguishes this many ranks.
const MAX_KEYS: u64 = 1 << 52;

/// If |1 - theta| is above this, the fast logarithm is accurate enough: at rank 2^40 the error is a 64th of a
/// rank.
const LN_IS_ENOUGH: f64 = 1.0 / 128.0;

/// Popularity of keys, as named on the command line: `uniform`, `zipf:0.99`, `latest:0.99`,
/// `hotspot:0.9:0.1`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distribution {
    /// All keys are equally likely.
    Uniform,
    /// Rank r has probability proportional to 1 / (r + 1)^theta.
    Zipf { theta: f64 },
    /// Zipf over the age of keys: the newest key is the most popular one (YCSB's workload D).
    Latest { theta: f64 },
    /// A stretch of neighbouring keys gets most of the operations.
    HotSpot(HotSpot),
}

/// The exponent used by YCSB and the papers.
pub const DEFAULT_THETA: f64 = 0.99;

impl FromStr for Distribution {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Distribution, SpecError> {
        let unknown = || SpecError::UnknownDistribution(text.to_owned());
        if let Some(parts) = text.strip_prefix("hotspot:") {
            return HotSpot::of_parts(parts).ok_or_else(unknown)?.map(Distribution::HotSpot);
        }
        let (name, theta) = match text.split_once(':') {
            None => (text, DEFAULT_THETA),
            Some((name, theta)) => (name, theta.parse().map_err(|_| unknown())?),
        };
        if !(theta.is_finite() && theta >= 0.0) {
            return Err(SpecError::BadTheta(theta));
        }
        match name {
            "uniform" if !text.contains(':') => Ok(Distribution::Uniform),
            "zipf" => Ok(Distribution::Zipf { theta }),
            "latest" => Ok(Distribution::Latest { theta }),
            _ => Err(unknown()),
        }
    }
}

impl fmt::Display for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Distribution::Uniform => f.write_str("uniform"),
            Distribution::Zipf { theta } => write!(f, "zipf:{theta}"),
            Distribution::Latest { theta } => write!(f, "latest:{theta}"),
            Distribution::HotSpot(hot_spot) => hot_spot.fmt(f),
        }
    }
}

/// Draws ranks in `0..n` with exact Zipfian probabilities.
///
/// ```
/// use pando_workload::{Rng, Zipf};
/// let zipf = Zipf::new(1_000_000, 0.99)?;
/// let mut rng = Rng::new(1);
/// assert!(zipf.draw(&mut rng) < 1_000_000);
/// # Ok::<(), pando_workload::SpecError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Zipf {
    ranks: u64,
    /// 1 - theta, and its reciprocal when theta is not 1.
    power: f64,
    power_inverse: f64,
    theta: f64,
    /// Bounds of the area under the hat function, from which points are drawn uniformly.
    area_low: f64,
    area_high: f64,
    /// A point this close below its rank is accepted without further checks.
    sure: f64,
}

impl Zipf {
    /// A distribution over `n` ranks.
    ///
    /// # Errors
    /// `n` is 0 or above 2^52, or `theta` is negative or not a number.
    pub fn new(n: u64, theta: f64) -> Result<Zipf, SpecError> {
        if !(1..=MAX_KEYS).contains(&n) {
            return Err(SpecError::BadKeyCount { keys: n, max: MAX_KEYS });
        }
        if !(theta.is_finite() && theta >= 0.0) {
            return Err(SpecError::BadTheta(theta));
        }
        let power = 1.0 - theta;
        let mut zipf = Zipf {
            ranks: n,
            power,
            power_inverse: if power == 0.0 { 0.0 } else { 1.0 / power },
            theta,
            area_low: 0.0,
            area_high: 0.0,
            sure: 0.0,
        };
        zipf.area_low = zipf.area(1.5) - 1.0;
        zipf.area_high = zipf.area(n as f64 + 0.5);
        zipf.sure = 2.0 - zipf.area_inverse(zipf.area(2.5) - zipf.density(2.0));
        Ok(zipf)
    }

    /// Draws a rank; 0 is the most popular.
    #[inline]
    pub fn draw(&self, rng: &mut Rng) -> u64 {
        loop {
            let point = self.area_high + rng.unit() * (self.area_low - self.area_high);
            let x = self.area_inverse(point);
            // One-based rank. Rounding may step slightly outside at both ends.
            let rank = ((x + 0.5) as u64).clamp(1, self.ranks);
            let k = rank as f64;
            if k - x <= self.sure || point >= self.area(k + 0.5) - self.density(k) {
                return rank - 1;
            }
        }
    }

    /// x^-theta: the continuous version of the weight of (one-based) rank x.
    fn density(&self, x: f64) -> f64 {
        (-self.theta * x.ln()).exp()
    }

    /// Antiderivative of the density, 0 at x = 1. Uses expm1, so that theta near 1 loses no digits.
    fn area(&self, x: f64) -> f64 {
        if self.power == 0.0 { x.ln() } else { (self.power * x.ln()).exp_m1() * self.power_inverse }
    }

    #[inline]
    fn area_inverse(&self, area: f64) -> f64 {
        // x^power, minus 1.
        let raised = (area * self.power).max(-1.0);
        if self.power.abs() > LN_IS_ENOUGH {
            ((1.0 + raised).ln() * self.power_inverse).exp()
        } else if self.power == 0.0 {
            area.exp()
        } else {
            (raised.ln_1p() * self.power_inverse).exp()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand_distr::Distribution as _;

    /// Sum of k^-theta over k = 1..=n: the first terms individually, the rest by Euler and Maclaurin.
    fn harmonic(n: u64, theta: f64) -> f64 {
        let head = n.min(10_000);
        let mut sum: f64 = (1..=head).rev().map(|k| (k as f64).powf(-theta)).sum();
        if n > head {
            let (a, b) = (head as f64, n as f64);
            let integral = if theta == 1.0 {
                (b / a).ln()
            } else {
                (b.powf(1.0 - theta) - a.powf(1.0 - theta)) / (1.0 - theta)
            };
            let ends = (b.powf(-theta) - a.powf(-theta)) / 2.0;
            let slopes = theta * (a.powf(-theta - 1.0) - b.powf(-theta - 1.0)) / 12.0;
            sum += integral + ends + slopes;
        }
        sum
    }

    /// One cell for each rank in 0..head, then cells that grow by a factor of 4, the last one up to n.
    fn cells(n: u64, head: u64) -> Vec<u64> {
        let mut ends: Vec<u64> = (1..=head.min(n)).collect();
        let mut end = head.max(1);
        while end < n {
            end = (end * 4).min(n);
            ends.push(end);
        }
        ends
    }

    fn cell_of(ends: &[u64], rank: u64) -> usize {
        ends.partition_point(|&end| end <= rank)
    }

    /// Normalised chi-square: near 0 with standard deviation 1 if the counts follow the probabilities.
    fn chi_square_score(counts: &[u64], expected: &[f64]) -> f64 {
        // Cells with a small expectation are pooled: chi-square needs about ten in each.
        let (mut chi, mut cells, mut pool) = (0.0, 0.0, (0.0, 0.0));
        for (&count, &expectation) in counts.iter().zip(expected) {
            pool = (pool.0 + count as f64, pool.1 + expectation);
            if pool.1 >= 10.0 {
                chi += (pool.0 - pool.1).powi(2) / pool.1;
                cells += 1.0;
                pool = (0.0, 0.0);
            }
        }
        let freedom: f64 = cells - 1.0;
        (chi - freedom) / (2.0 * freedom).sqrt().max(1.0)
    }

    #[test]
    fn probabilities_are_exact_for_every_theta_and_size() {
        const DRAWS: u64 = 400_000;
        for theta in [0.0, 0.2, 0.5, 0.99, 0.999_999_9, 1.0, 1.000_000_1, 1.3, 2.5] {
            for n in [1, 2, 3, 10, 1000, 20_000_000, 1 << 40] {
                let zipf = Zipf::new(n, theta).expect("valid");
                let ends = cells(n, 64);
                let mut counts = vec![0; ends.len()];
                let mut rng = Rng::new(n ^ theta.to_bits());
                for _ in 0..DRAWS {
                    let rank = zipf.draw(&mut rng);
                    assert!(rank < n);
                    counts[cell_of(&ends, rank)] += 1;
                }
                let total = harmonic(n, theta);
                let cumulative: Vec<f64> = ends.iter().map(|&end| harmonic(end, theta) / total).collect();
                let expected: Vec<f64> = (0..ends.len())
                    .map(|i| (cumulative[i] - if i > 0 { cumulative[i - 1] } else { 0.0 }) * DRAWS as f64)
                    .collect();
                let score = chi_square_score(&counts, &expected);
                assert!(score < 6.0, "theta {theta}, {n} keys: chi-square score {score}");
            }
        }
    }

    #[test]
    fn agrees_with_an_independent_implementation() {
        const DRAWS: usize = 1_000_000;
        for (n, theta) in [(20_000_000u64, 0.99), (1000, 1.0), (1 << 30, 0.6), (5000, 1.7)] {
            let ends = cells(n, 64);
            let (mut ours, mut theirs) = (vec![0u64; ends.len()], vec![0u64; ends.len()]);
            let zipf = Zipf::new(n, theta).expect("valid");
            let mut rng = Rng::new(17);
            let other = rand_distr::Zipf::new(n as f64, theta).expect("valid");
            let mut other_rng = rand::rngs::StdRng::seed_from_u64(18);
            for _ in 0..DRAWS {
                ours[cell_of(&ends, zipf.draw(&mut rng))] += 1;
                theirs[cell_of(&ends, other.sample(&mut other_rng) as u64 - 1)] += 1;
            }
            // Two samples of equal size: each cell's difference has variance a + b.
            let chi: f64 = ours
                .iter()
                .zip(&theirs)
                .filter(|(a, b)| *a + *b > 20)
                .map(|(&a, &b)| (a as f64 - b as f64).powi(2) / (a + b) as f64)
                .sum();
            let freedom = ends.len() as f64;
            let score = (chi - freedom) / (2.0 * freedom).sqrt();
            assert!(score < 6.0, "theta {theta}, {n} keys: chi-square score {score}");
        }
    }

    #[test]
    fn extreme_theta_draws_only_the_first_ranks() {
        for theta in [50.0, 1000.0] {
            let zipf = Zipf::new(1 << 40, theta).expect("valid");
            let mut rng = Rng::new(1);
            assert!((0..10_000).all(|_| zipf.draw(&mut rng) == 0));
        }
    }

    #[test]
    fn bad_parameters_are_refused() {
        assert!(Zipf::new(0, 0.99).is_err());
        assert!(Zipf::new(u64::MAX, 0.99).is_err());
        assert!(Zipf::new(10, -0.1).is_err());
        assert!(Zipf::new(10, f64::NAN).is_err());
        assert!(Zipf::new(10, f64::INFINITY).is_err());
    }

    #[test]
    fn distributions_read_as_they_print() {
        for text in ["uniform", "zipf:0.99", "zipf:0", "zipf:1", "latest:0.5"] {
            assert_eq!(text.parse::<Distribution>().expect("valid").to_string(), text);
        }
        assert_eq!("zipf".parse::<Distribution>().expect("valid"), Distribution::Zipf { theta: 0.99 });
        for text in ["", "zip", "zipf:", "zipf:x", "zipf:-1", "zipf:nan", "zipf:inf", "uniform:1"] {
            assert!(text.parse::<Distribution>().is_err(), "{text}");
        }
    }
}
