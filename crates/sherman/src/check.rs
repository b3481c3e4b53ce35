//! Checksums of nodes and entries, and the guarantees they give for a READ.
//!
//! A check covers its words, the address of the node and its version. So it fails for a node that was freed
//! and made again elsewhere, and for a mixture of the states before and after a structure change. In a leaf
//! whose entries are written individually, the header has a check and so has every slot, even an empty one.
//! So
//! - a hit is proved by the header and one slot: both were present, at the same version, during the READ;
//! - a miss is proved by the header and all slots: a key that was present throughout was in the same slot
//!   throughout.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Odd, with bits all over.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
/// A word equal to this one makes a lane forget the words before it, so it must not be a multiplier that
/// programs use to spread keys.
const PAIR: u64 = 0x8f5c_28e3_91b7_4d6b;
const LANES: usize = 4;

/// A 64-bit checksum over words, in order. It detects mixtures of honest words; it does not resist an
/// attacker.
#[derive(Clone, Copy)]
pub(crate) struct Sum(u64);

impl Sum {
    pub fn new(seed: u64) -> Self {
        Self(seed ^ FACTOR)
    }

    #[inline]
    pub fn add(self, word: u64) -> Self {
        Self(mix(self.0 ^ word, FACTOR).rotate_left(23) ^ word)
    }

    /// Adds many words in four parallel lanes, two at a time, so that the processor need not wait for one
    /// product before it starts the next.
    #[inline]
    pub fn add_all(self, words: &[AtomicU64]) -> Self {
        let (mut a, mut b) = (self.0, self.0 ^ FACTOR);
        let (mut c, mut d) = (!self.0, !self.0 ^ FACTOR);
        let chunks = words.chunks_exact(2 * LANES);
        let rest = chunks.remainder();
        for chunk in chunks {
            let word = |i: usize| chunk[i].load(Relaxed);
            a = step(a, word(0), word(1));
            b = step(b, word(2), word(3));
            c = step(c, word(4), word(5));
            d = step(d, word(6), word(7));
        }
        let sum = match words.len() < 2 * LANES {
            true => self,
            false => self.add(a).add(b).add(c).add(d),
        };
        rest.iter().fold(sum, |sum, word| sum.add(word.load(Relaxed)))
    }

    #[inline]
    pub fn end(self) -> u64 {
        mix(self.0, FACTOR)
    }
}

/// Adds two words to a lane.
#[inline]
fn step(lane: u64, first: u64, second: u64) -> u64 {
    mix(lane ^ first, PAIR ^ second).rotate_left(23).wrapping_add(first) ^ second
}

#[inline]
fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// Result of the check of a node or slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Whole,
    /// Words of two states, or of another node.
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

    fn sum(words: &[u64]) -> u64 {
        let words: Vec<_> = words.iter().map(|&word| AtomicU64::new(word)).collect();
        Sum::new(1).add_all(&words).end()
    }

    #[test]
    fn order_and_every_bit_count() {
        // With and without lanes.
        for len in [5, 16, 29] {
            let mut words: Vec<u64> = (0..len).map(|n| n * n * 0x1234_5678_9abc).collect();
            words[3] = u64::MAX;
            words[4] = 1 << 63;
            let whole = sum(&words);
            for i in 0..words.len() {
                for bit in 0..64 {
                    let mut other = words.clone();
                    other[i] ^= 1 << bit;
                    assert_ne!(sum(&other), whole, "bit {bit} of word {i}");
                }
                let mut other = words.clone();
                other.swap(i, (i + 1) % len as usize);
                assert!(sum(&other) != whole || other == words, "words {i} and the next");
            }
            assert_ne!(sum(&words[..words.len() - 1]), whole);
        }
    }

    /// Torn READs: cache lines of one state among those of another.
    #[test]
    fn mixtures_of_two_states_differ_from_both() {
        let states: Vec<Vec<u64>> = (0..2).map(|n| (0..64).map(|word| word / 2 + n).collect()).collect();
        let sums: Vec<u64> = states.iter().map(|words| sum(words)).collect();
        for lines in 1..255u32 {
            let mixture: Vec<u64> =
                (0..64).map(|word| states[(lines >> (word / 8) & 1) as usize][word]).collect();
            assert!(!sums.contains(&sum(&mixture)), "lines {lines:b}");
        }
    }
}
