//! Lazy admission of leaves (DEX §5.4).
//!
//! Most leaves read from remote memory are used once and not admitted, so that they do not evict leaves that
//! are read often. Inner nodes are always admitted and do not pass through this policy.

/// Probability that a leaf read from remote memory is admitted once the cache is full. Inner nodes are always
/// admitted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Admission {
    threshold: u64,
}

impl Admission {
    /// `probability` is clamped to 0..=1; the paper's value is 0.1.
    pub fn lazy(probability: f64) -> Self {
        let clamped = probability.clamp(0.0, 1.0);
        Self { threshold: if clamped >= 1.0 { u64::MAX } else { (clamped * u64::MAX as f64) as u64 } }
    }

    /// Admits every page: the policy of earlier systems.
    pub fn eager() -> Self {
        Self { threshold: u64::MAX }
    }

    /// Fraction of pages that are admitted.
    pub fn share(self) -> f64 {
        self.threshold as f64 / u64::MAX as f64
    }

    /// Decides by a uniformly distributed random number.
    #[inline]
    pub fn admits(self, random: u64) -> bool {
        random <= self.threshold && self.threshold > 0
    }
}

impl Default for Admission {
    fn default() -> Self {
        Self::lazy(0.1)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn the_ends_of_the_range_are_exact() {
        assert!(!Admission::lazy(0.0).admits(0));
        assert!(Admission::lazy(1.0).admits(u64::MAX) && Admission::eager().admits(u64::MAX));
        assert!(Admission::lazy(0.1).admits(u64::MAX / 11) && !Admission::lazy(0.1).admits(u64::MAX / 9));
    }
}
