//! Numbers that distinguish the locks of one process.
//!
//! After a lost answer to a lock or an unlock, an operation checks whether the word is its own. So no other
//! thread of its process may hold or try the same lock with the same word. A random 16-bit number would
//! collide often enough to lose changes. A number is therefore reserved while its word may still be checked.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Numbers have this many bits of a lock word.
const BITS: u32 = 16;
const WORDS: usize = (1 << BITS) / u64::BITS as usize;

/// Set of the numbers in use.
#[derive(Debug)]
pub(crate) struct Nonces {
    taken: Box<[AtomicU64]>,
}

/// A number, in use until it is dropped.
#[derive(Debug)]
pub(crate) struct Nonce {
    of: Arc<Nonces>,
    number: u16,
}

impl Nonces {
    pub fn new() -> Arc<Self> {
        Arc::new(Self { taken: (0..WORDS).map(|_| AtomicU64::new(0)).collect() })
    }

    /// Takes an unused number near a random one; `None` if all are in use.
    pub fn take(self: &Arc<Self>, random: u64) -> Option<Nonce> {
        let near = (random >> (u64::BITS - BITS)) as usize;
        let (first, turn) = (near % WORDS, (near / WORDS) as u32);
        (0..WORDS).map(|i| (first + i) % WORDS).find_map(|word| {
            let bit = self.take_bit(word, turn)?;
            Some(Nonce { of: Arc::clone(self), number: (word as u32 * u64::BITS + bit) as u16 })
        })
    }

    fn take_bit(&self, word: usize, turn: u32) -> Option<u32> {
        let taken = &self.taken[word];
        let mut seen = taken.load(Ordering::Relaxed);
        loop {
            // The first free bit from `turn` on.
            let free = (!seen).rotate_right(turn);
            if free == 0 {
                return None;
            }
            let bit = (free.trailing_zeros() + turn) % u64::BITS;
            // Pairs with the release by the previous user: its checks are done.
            match taken.compare_exchange_weak(seen, seen | 1 << bit, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(bit),
                Err(now) => seen = now,
            }
        }
    }
}

impl Nonce {
    pub fn number(&self) -> u16 {
        self.number
    }
}

impl Drop for Nonce {
    fn drop(&mut self) {
        let (word, bit) = (self.number as usize / 64, self.number % 64);
        self.of.taken[word].fetch_and(!(1 << bit), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_have_the_same_number_and_all_are_given_out() {
        let nonces = Nonces::new();
        let mut all: Vec<_> = (0..1 << BITS).map(|_| nonces.take(77 << 40).expect("one is left")).collect();
        assert!(nonces.take(3).is_none());
        let back = all.swap_remove(12_345).number();
        assert_eq!(nonces.take(u64::MAX).map(|nonce| nonce.number()), Some(back));
        let mut numbers: Vec<_> = all.iter().map(Nonce::number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), (1 << BITS) - 1);
    }

    #[test]
    fn threads_take_different_ones() {
        let nonces = Nonces::new();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for i in 0..10_000 {
                        let pair = [nonces.take(i << 48), nonces.take(i << 48)]
                            .map(|nonce| nonce.expect("few are taken"));
                        assert_ne!(pair[0].number(), pair[1].number());
                    }
                });
            }
        });
        assert!(nonces.taken.iter().all(|word| word.load(Ordering::Relaxed) == 0));
    }
}
