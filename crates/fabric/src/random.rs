//! Random numbers of a worker: a Weyl sequence through a 64-bit mixer.
//!
//! Every seed is suitable, and neighbouring seeds give unrelated sequences. All random numbers above the
//! fabric come from here, so a run with one worker repeats under the same seed. Not for cryptography.

use std::cell::Cell;

/// The golden ratio in 64 bits, odd: its multiples visit every `u64`.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Random numbers of one worker.
pub struct Random(Cell<u64>);

impl Random {
    /// Creates the generator for `seed`.
    pub fn new(seed: u64) -> Self {
        // Mix the seed: the states of seeds 0, 1, 2, ... would otherwise stay neighbours.
        Self(Cell::new(mix(seed)))
    }

    /// Next number: 64 random bits.
    #[inline]
    #[allow(clippy::should_implement_trait, reason = "it takes no `mut`, and never ends")]
    pub fn next(&self) -> u64 {
        let state = self.0.get().wrapping_add(STEP);
        self.0.set(state);
        mix(state)
    }
}

/// A bijection: flipping any input bit changes about half of the output bits.
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
            // 2048 is expected with a standard deviation of 32; the bound is eight of them.
            assert!(ones.iter().all(|ones| ones.abs_diff(2048) < 256), "seed {seed}: {ones:?}");
        }
    }
}
