//! Checksums of nodes and entries, and what a READ proves by them.
//!
//! A check covers what it checks, the address of the node and its version: a node that was freed and made again elsewhere, and
//! a mixture of what was there before and after a structure change, do not pass. In a leaf whose entries are written by
//! themselves the header has one check and every slot another, also an empty one. So
//! - a hit is proved by the header and one slot: both were there, at the same version, while the READ went on;
//! - a miss by the header and all slots: a key that was there all the time stood in the same slot all the time.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Odd, with bits all over.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// A checksum of 64 bits over words, in order. It is to tell mixtures of honest words, not to withstand an enemy.
#[derive(Clone, Copy)]
pub(crate) struct Sum(u64);

impl Sum {
    pub fn new(seed: u64) -> Self {
        Self(seed ^ FACTOR)
    }

    #[inline]
    pub fn add(self, word: u64) -> Self {
        let product = u128::from(self.0 ^ word) * u128::from(FACTOR);
        Self((product as u64 ^ (product >> 64) as u64).rotate_left(23) ^ word)
    }

    #[inline]
    pub fn add_all(self, words: &[AtomicU64]) -> Self {
        words.iter().fold(self, |sum, word| sum.add(word.load(Relaxed)))
    }

    #[inline]
    pub fn end(self) -> u64 {
        let product = u128::from(self.0) * u128::from(FACTOR);
        product as u64 ^ (product >> 64) as u64
    }
}

/// What the words of a node or slot are, as its check says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Whole,
    /// Of two moments, or of another node.
    Torn,
}

impl Verdict {
    pub fn of(is_whole: bool) -> Self {
        if is_whole { Self::Whole } else { Self::Torn }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_and_every_bit_count() {
        let sum = |words: &[u64]| words.iter().fold(Sum::new(1), |sum, &word| sum.add(word)).end();
        let words = [0, 0, 7, u64::MAX, 1 << 63];
        let whole = sum(&words);
        for i in 0..words.len() {
            for bit in 0..64 {
                let mut other = words;
                other[i] ^= 1 << bit;
                assert_ne!(sum(&other), whole, "bit {bit} of word {i}");
            }
        }
        assert_ne!(sum(&[0, 7, 0, u64::MAX, 1 << 63]), whole);
        assert_ne!(sum(&[0, 0, 7, u64::MAX]), whole);
    }
}
