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
/// A word like this one makes a lane forget what came before it, so it is none that programs spread keys by.
const PAIR: u64 = 0x8f5c_28e3_91b7_4d6b;
const LANES: usize = 4;

/// A checksum of 64 bits over words, in order. It is to tell mixtures of honest words, not to withstand an enemy.
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

    /// Many words go in four lanes side by side, two at a time: a processor does not wait for one product to begin the next.
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

/// Two words more in a lane.
#[inline]
fn step(lane: u64, first: u64, second: u64) -> u64 {
    mix(lane ^ first, PAIR ^ second).rotate_left(23).wrapping_add(first) ^ second
}

#[inline]
fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
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

    /// What torn READs are: lines of one state among those of another.
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
