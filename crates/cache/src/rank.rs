//! Rank of a key among the sorted words of a node.
//!
//! A search must not branch on the data, since every second such branch is mispredicted, and its steps should
//! not depend on each other. With AVX-512, 8 instructions compare 64 words. Without it, binary search ends at
//! 64 words; then the last words of 8 blocks are compared, and then the words of one block, each group
//! independently.
//!
//! Words that change concurrently give some rank, at most the number of words; an optimistic reader detects
//! the change afterwards. The vector loads are equivalent to relaxed loads of their words: they are in inline
//! assembly, which the compiler cannot distinguish from such loads, and aligned words are never torn.

use crate::sync::{Ordering, Word};

/// Words compared at once.
const SPAN: usize = 64;
/// Words of a block: one cache line.
const BLOCK: usize = 8;

/// Computes ranks in sorted words by the fastest method of this processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranker {
    vectors: bool,
}

impl Ranker {
    /// Detects the processor's features.
    pub fn new() -> Self {
        Self { vectors: vectors::usable() }
    }

    /// Uses no special instructions.
    pub fn portable() -> Self {
        Self { vectors: false }
    }

    /// Number of words below `key` in the sorted range `words[start..start + count]`.
    #[inline(always)]
    pub fn below(self, words: &[Word], start: usize, count: usize, key: u64) -> usize {
        self.rank::<false>(words, start, count, key)
    }

    /// Number of words below or equal to `key` in the sorted range `words[start..start + count]`.
    #[inline(always)]
    pub fn up_to(self, words: &[Word], start: usize, count: usize, key: u64) -> usize {
        self.rank::<true>(words, start, count, key)
    }

    #[inline(always)]
    fn rank<const OR_EQUAL: bool>(self, words: &[Word], start: usize, count: usize, key: u64) -> usize {
        let Some(words) = words.get(start..) else { return 0 };
        let (mut base, mut count) = (0, count.min(words.len()));
        while count > SPAN {
            let half = count / 2;
            let go_right = counts::<OR_EQUAL>(&words[base + half - 1], key);
            base += half * usize::from(go_right);
            count -= half;
        }
        if self.vectors
            && let Some(span) = words[base..].first_chunk::<SPAN>()
        {
            return base + vectors::rank::<OR_EQUAL>(span, count, key);
        }
        base + rank_of_few::<OR_EQUAL>(&words[base..base + count], key)
    }
}

impl Default for Ranker {
    fn default() -> Self {
        Self::new()
    }
}

#[inline(always)]
fn counts<const OR_EQUAL: bool>(word: &Word, key: u64) -> bool {
    let word = word.load(Ordering::Relaxed);
    if OR_EQUAL { word <= key } else { word < key }
}

/// Rank among at most 64 words.
#[inline]
fn rank_of_few<const OR_EQUAL: bool>(words: &[Word], key: u64) -> usize {
    let Some(last) = words.len().checked_sub(BLOCK) else {
        return words.iter().fold(0, |sum, word| sum + usize::from(counts::<OR_EQUAL>(word, key)));
    };
    let mut start = 0;
    for block in 1..SPAN / BLOCK {
        // Past the end, the last word stands for the rest: if it counts, all words count.
        let word = &words[(block * BLOCK - 1).min(last + BLOCK - 1)];
        start += BLOCK * usize::from(counts::<OR_EQUAL>(word, key));
    }
    // All words before a block count. That stays true if the block is moved back to end with the last word.
    let start = start.min(last);
    words[start..start + BLOCK]
        .iter()
        .fold(start, |sum, word| sum + usize::from(counts::<OR_EQUAL>(word, key)))
}

#[cfg(all(target_arch = "x86_64", not(any(loom, shuttle, miri))))]
mod vectors {
    use super::{SPAN, Word};

    pub fn usable() -> bool {
        is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("popcnt")
    }

    /// Rank among the first `count` words. Call only if [`usable`] returned true.
    #[inline(always)]
    pub fn rank<const OR_EQUAL: bool>(span: &[Word; SPAN], count: usize, key: u64) -> usize {
        let rank: u64;
        // SAFETY: all 64 words are behind the reference and are only read. The instructions exist, since a
        // `Ranker` gets here only after `usable` returned true. Registers from 16 up need no `vzeroupper`.
        unsafe {
            std::arch::asm!(
                "vpbroadcastq zmm16, {key}",
                "vpcmpuq k1, zmm16, zmmword ptr [{at}], {predicate}",
                "vpcmpuq k2, zmm16, zmmword ptr [{at} + 64], {predicate}",
                "vpcmpuq k3, zmm16, zmmword ptr [{at} + 128], {predicate}",
                "vpcmpuq k4, zmm16, zmmword ptr [{at} + 192], {predicate}",
                "kunpckbw k1, k2, k1",
                "kunpckbw k3, k4, k3",
                "vpcmpuq k2, zmm16, zmmword ptr [{at} + 256], {predicate}",
                "vpcmpuq k4, zmm16, zmmword ptr [{at} + 320], {predicate}",
                "vpcmpuq k5, zmm16, zmmword ptr [{at} + 384], {predicate}",
                "vpcmpuq k6, zmm16, zmmword ptr [{at} + 448], {predicate}",
                "kunpckwd k1, k3, k1",
                "kunpckbw k2, k4, k2",
                "kunpckbw k5, k6, k5",
                "kunpckwd k2, k5, k2",
                "kunpckdq k1, k2, k1",
                "kmovq {rank}, k1",
                "bzhi {rank}, {rank}, {count}",
                "popcnt {rank}, {rank}",
                at = in(reg) span.as_ptr(),
                key = in(reg) key,
                count = in(reg) count,
                rank = out(reg) rank,
                // 5: the key is not less than the word. 6: the key is greater than the word.
                predicate = const if OR_EQUAL { 5 } else { 6 },
                out("zmm16") _,
                out("k1") _, out("k2") _, out("k3") _, out("k4") _, out("k5") _, out("k6") _,
                options(readonly, nostack),
            );
        }
        rank as usize
    }
}

#[cfg(not(all(target_arch = "x86_64", not(any(loom, shuttle, miri)))))]
mod vectors {
    use super::{SPAN, Word};

    pub fn usable() -> bool {
        false
    }

    pub fn rank<const OR_EQUAL: bool>(span: &[Word; SPAN], count: usize, key: u64) -> usize {
        super::rank_of_few::<OR_EQUAL>(&span[..count.min(SPAN)], key)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// Sorted words, some of them twice, including the ends of the range, and how many of them count.
    fn pages() -> impl Iterator<Item = (Vec<u64>, usize)> {
        let edge = [0, 1, u64::MAX / 2, u64::MAX / 2 + 1, u64::MAX - 1, u64::MAX];
        (0..300_usize).flat_map(move |count| {
            [0, 3, 70].map(|behind| {
                let mut words: Vec<u64> =
                    (0..count as u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (i % 3)).collect();
                words.extend(edge.iter().take(count / 20));
                words.truncate(count);
                words.sort_unstable();
                // Words behind the sorted ones do not matter.
                words.extend((0..behind).map(|i: u64| i.wrapping_mul(0x1234_5678_9abc_def1)));
                (words, count)
            })
        })
    }

    #[test]
    fn both_ways_count_what_a_loop_counts() {
        for (words, count) in pages() {
            let page: Vec<Word> = [7; 8].into_iter().chain(words.iter().copied()).map(Word::new).collect();
            let keys = words[..count].iter().flat_map(|&w| [w.wrapping_sub(1), w, w.wrapping_add(1)]);
            for key in keys.chain([0, u64::MAX]) {
                let below = words[..count].iter().filter(|&&word| word < key).count();
                let up_to = words[..count].iter().filter(|&&word| word <= key).count();
                for ranker in [Ranker::new(), Ranker::portable()] {
                    assert_eq!(ranker.below(&page, 8, count, key), below, "{key} in {words:?} of {count}");
                    assert_eq!(ranker.up_to(&page, 8, count, key), up_to, "{key} in {words:?} of {count}");
                }
            }
        }
    }

    #[test]
    fn a_count_that_is_no_count_stays_inside_the_page() {
        let page: Vec<Word> = (0..128).map(Word::new).collect();
        for ranker in [Ranker::new(), Ranker::portable()] {
            assert_eq!(ranker.below(&page, 8, usize::MAX, u64::MAX), 120);
            assert_eq!(ranker.below(&page, 128, 5, u64::MAX), 0);
            assert_eq!(ranker.below(&page, 129, 5, u64::MAX), 0);
            assert_eq!(ranker.below(&page, 100, 60, 110), 10);
        }
    }
}
