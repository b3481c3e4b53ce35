//! Random numbers: a small fast generator, and mixing functions used by everything else.
//!
//! [`Rng`] is xoshiro256++ (Blackman and Vigna), seeded through splitmix64. It is for workloads, not for
//! secrets. The same seed gives the same stream on every machine, so a benchmark run is repeatable.

/// Weyl increment of splitmix64: 2^64 divided by the golden ratio, made odd.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
const MIX_1: u64 = 0xbf58_476d_1ce4_e5b9;
const MIX_2: u64 = 0x94d0_49bb_1331_11eb;
const UNMIX_1: u64 = inverse(MIX_1);
const UNMIX_2: u64 = inverse(MIX_2);

/// Inverse of an odd number modulo 2^64. Each Newton step doubles the number of correct low bits; `odd`
/// itself has three.
const fn inverse(odd: u64) -> u64 {
    let mut x = odd;
    let mut correct_bits = 3;
    while correct_bits < 64 {
        x = x.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(x)));
        correct_bits *= 2;
    }
    x
}

/// A bijection of the 64-bit integers that looks random: one step of splitmix64. Its inverse is [`unmix64`].
#[inline]
pub const fn mix64(x: u64) -> u64 {
    let mut z = x.wrapping_add(GOLDEN);
    z = (z ^ (z >> 30)).wrapping_mul(MIX_1);
    z = (z ^ (z >> 27)).wrapping_mul(MIX_2);
    z ^ (z >> 31)
}

/// The inverse of [`mix64`].
#[inline]
pub const fn unmix64(y: u64) -> u64 {
    let mut z = y ^ (y >> 31) ^ (y >> 62);
    z = z.wrapping_mul(UNMIX_2);
    z = z ^ (z >> 27) ^ (z >> 54);
    z = z.wrapping_mul(UNMIX_1);
    z = z ^ (z >> 30) ^ (z >> 60);
    z.wrapping_sub(GOLDEN)
}

/// Maps a 64-bit hash to `0..n` by the high half of a product: a multiplication instead of a division.
#[inline]
pub(crate) const fn reduce(hash: u64, n: u64) -> u64 {
    ((hash as u128 * n as u128) >> 64) as u64
}

/// A bijection of the integers of `bits` bits that looks random: three rounds of multiply and fold.
///
/// The fold shifts by at least half the width, so it is its own inverse for any width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BitMixer {
    mask: u64,
    shift: u32,
}

impl BitMixer {
    /// `bits` is from 1 to 64.
    pub(crate) const fn new(bits: u32) -> BitMixer {
        assert!(bits >= 1 && bits <= 64);
        BitMixer { mask: u64::MAX >> (64 - bits), shift: bits.div_ceil(2) }
    }

    #[inline]
    pub(crate) const fn mix(self, x: u64) -> u64 {
        let x = self.round(x, MIX_1);
        let x = self.round(x, MIX_2);
        self.round(x, MIX_1)
    }

    #[inline]
    pub(crate) const fn unmix(self, y: u64) -> u64 {
        let y = self.unround(y, UNMIX_1);
        let y = self.unround(y, UNMIX_2);
        self.unround(y, UNMIX_1)
    }

    #[inline]
    const fn round(self, x: u64, odd: u64) -> u64 {
        let x = x.wrapping_add(GOLDEN).wrapping_mul(odd) & self.mask;
        x ^ (x >> self.shift)
    }

    #[inline]
    const fn unround(self, y: u64, inverse_of_odd: u64) -> u64 {
        let x = y ^ (y >> self.shift);
        x.wrapping_mul(inverse_of_odd).wrapping_sub(GOLDEN) & self.mask
    }
}

/// A xoshiro256++ generator.
///
/// ```
/// use pando_workload::Rng;
/// let mut rng = Rng::new(1);
/// assert!(rng.below(6) < 6);
/// assert_eq!(Rng::new(7).next_u64(), Rng::new(7).next_u64());
/// ```
#[derive(Clone, Debug)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// A generator whose whole stream is a function of `seed`.
    pub fn new(seed: u64) -> Rng {
        let word = |i: u64| mix64(seed.wrapping_add(GOLDEN.wrapping_mul(i)));
        Rng { state: [word(0), word(1), word(2), word(3)] }
    }

    /// The next 64 random bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let shifted = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= shifted;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// A uniform number in `0..n` (Lemire's method). `n` must not be 0.
    #[inline]
    pub fn below(&mut self, n: u64) -> u64 {
        debug_assert!(n > 0, "an empty range has no number to draw");
        let mut product = u128::from(self.next_u64()) * u128::from(n);
        if (product as u64) < n {
            let threshold = n.wrapping_neg() % n;
            while (product as u64) < threshold {
                product = u128::from(self.next_u64()) * u128::from(n);
            }
        }
        (product >> 64) as u64
    }

    /// A number in `0.0..1.0`, a multiple of 2^-53.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::{BitMixer, Rng, mix64, unmix64};
    use proptest::prelude::{prop_assert_eq, proptest};
    use std::collections::HashSet;

    #[test]
    fn known_answers_of_the_published_generators() {
        // splitmix64 seeded with 0, and xoshiro256++ from state 1, 2, 3, 4.
        assert_eq!(mix64(0), 0xe220_a839_7b1d_cdaf);
        let mut rng = Rng { state: [1, 2, 3, 4] };
        let first: Vec<u64> = (0..4).map(|_| rng.next_u64()).collect();
        assert_eq!(first, [41943041, 58720359, 3588806011781223, 3591011842654386]);
    }

    #[test]
    fn below_is_uniform_over_a_small_range() {
        let mut rng = Rng::new(3);
        let mut counts = [0u32; 7];
        for _ in 0..700_000 {
            counts[rng.below(7) as usize] += 1;
        }
        // Six standard deviations of a binomial with p = 1/7.
        for count in counts {
            assert!(count.abs_diff(100_000) < 1800, "{counts:?}");
        }
    }

    #[test]
    fn bit_mixer_is_a_bijection_of_small_widths() {
        for bits in 1..=12 {
            let mixer = BitMixer::new(bits);
            let image: HashSet<u64> = (0..1u64 << bits).map(|x| mixer.mix(x)).collect();
            assert_eq!(image.len(), 1 << bits);
            assert!(image.iter().all(|&y| y < 1 << bits));
        }
    }

    proptest! {
        #[test]
        fn unmix_undoes_mix(x: u64) {
            prop_assert_eq!(unmix64(mix64(x)), x);
        }

        #[test]
        fn bit_mixer_unmixes(x: u64, bits in 1u32..=64) {
            let mixer = BitMixer::new(bits);
            let x = x & mixer.mask;
            prop_assert_eq!(mixer.unmix(mixer.mix(x)), x);
        }
    }
}
