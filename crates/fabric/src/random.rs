//! The worker's own random numbers: a Weyl sequence through a 64-bit mixer.
//!
//! Any seed is a good one, and neighbouring seeds give unrelated sequences. Everything random above the fabric
//! comes from here, so a run with one worker repeats itself under the same seed. Not for secrets.

use std::cell::Cell;

/// The golden ratio in 64 bits, odd: its multiples visit every u64.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The random numbers of one worker.
pub struct Random(Cell<u64>);

impl Random {
    pub fn new(seed: u64) -> Self {
        // Mixed, so that endpoints seeded 0, 1, 2, ... do not walk in step.
        Self(Cell::new(mix(seed)))
    }

    /// Any 64 bits.
    #[inline]
    #[allow(clippy::should_implement_trait, reason = "it takes no `mut`, and never ends")]
    pub fn next(&self) -> u64 {
        let state = self.0.get().wrapping_add(STEP);
        self.0.set(state);
        mix(state)
    }
}

/// A bijection in which every bit of the input changes about half of the output.
#[inline]
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_balanced_from_any_seed() {
        for seed in [0, 1, u64::MAX] {
            let random = Random::new(seed);
            let mut ones = [0u32; 64];
            for _ in 0..4096 {
                let value = random.next();
                for (bit, ones) in ones.iter_mut().enumerate() {
                    *ones += (value >> bit) as u32 & 1;
                }
            }
            // 2048 expected with a standard deviation of 32: eight of them.
            assert!(ones.iter().all(|ones| ones.abs_diff(2048) < 256), "seed {seed}: {ones:?}");
        }
    }
}
