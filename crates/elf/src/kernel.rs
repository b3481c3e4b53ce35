//! Comparison of many codes with the intervals of a condition, and selection of row ids by a mask.
//!
//! A mask has one bit per code. A test `low <= code <= high` is one subtraction and one unsigned comparison in
//! the width of the codes: with AVX-512, one instruction each for 64, 32 or 16 codes, and row ids are selected
//! by a compression of registers. AVX2 needs a few more. The portable code has loops that compilers turn into
//! vector instructions. The unsafe blocks call code for instructions that were detected, or prefetch.
#![allow(unsafe_code)]

use zerocopy::little_endian::U32;

use crate::codes::{Code, CodeSlice, typed};
use crate::predicate::{Interval, contains};
use crate::sink::bits;

/// Codes that one word of a mask stands for.
pub const WORD: usize = 64;

/// Bits of a word up to which single ids are appended: a compression handles 16 positions however few are set.
pub const SPARSE: u32 = 12;

/// Rows whose masks are computed together.
pub const BLOCK_ROWS: usize = 4096;

/// Intervals up to which every code is compared with each of them; above, they are searched for each code.
const COMPARED_INTERVALS: usize = 8;

/// What comparisons have done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compared {
    /// Pieces of columns that were looked at, one per condition and block of rows.
    pub pieces: u64,
    /// Bytes of codes that were compared.
    pub bytes: u64,
    /// Words of masks whose branch the processor could not foresee, about.
    pub surprises: u64,
    /// Words that were compared behind others that were passed over, so that their codes had to be waited for, about.
    pub waits: u64,
}

impl Compared {
    pub(crate) fn add(&mut self, other: Self) {
        self.pieces += other.pieces;
        self.bytes += other.bytes;
        self.surprises += other.surprises;
        self.waits += other.waits;
    }
}

/// Whether a comparison replaces a mask or narrows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Combine {
    Replace,
    And,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Instructions {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

/// The instructions that comparisons use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel {
    instructions: Instructions,
}

impl Kernel {
    /// Chooses the fastest instructions of this processor.
    pub fn detect() -> Self {
        Self::all().last().copied().unwrap_or(Self::portable())
    }

    /// Uses no special instructions.
    pub fn portable() -> Self {
        Self { instructions: Instructions::Portable }
    }

    /// The kernels that this processor can run, the fastest one last.
    pub fn all() -> Vec<Self> {
        let mut all = vec![Instructions::Portable];
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            if is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("bmi1")
                && is_x86_feature_detected!("bmi2")
            {
                all.push(Instructions::Avx2);
            }
            if is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("bmi1")
                && is_x86_feature_detected!("popcnt")
            {
                all.push(Instructions::Avx512);
            }
        }
        all.into_iter().map(|instructions| Self { instructions }).collect()
    }

    /// Name for reports.
    pub fn name(self) -> &'static str {
        match self.instructions {
            Instructions::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2 => "AVX2",
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512 => "AVX-512",
        }
    }

    /// Sets bit `i % 64` of `masks[i / 64]` if code `i` is in one of the sorted, disjoint `intervals`; with
    /// [`Combine::And`] only if it was set. Unused bits of the last word become zero. Words without codes, and
    /// codes without a word, are left alone.
    pub fn compare(
        self,
        codes: CodeSlice<'_>,
        intervals: &[Interval],
        masks: &mut [u64],
        combine: Combine,
    ) -> Compared {
        let words = masks.len().min(codes.len().div_ceil(WORD));
        let masks = &mut masks[..words];
        if combine == Combine::Replace {
            masks.fill(u64::MAX);
        }
        // Where few words are left, the others are passed over. Else that would be one unforeseeable branch per word.
        let left = masks.iter().filter(|mask| **mask != 0).count();
        let skips = left * 2 < words;
        self.narrow(codes, intervals, masks, skips);
        let compared = if skips { left } else { words };
        Compared {
            pieces: 1,
            bytes: (compared * WORD * codes.code_bytes()) as u64,
            surprises: 0,
            waits: if skips {
                words_waited_for(left as f64 / words as f64, words as f64).round() as u64
            } else {
                0
            },
        }
    }

    /// Narrows the masks of `codes`. If it `skips`, words without a candidate are passed over.
    fn narrow(self, codes: CodeSlice<'_>, intervals: &[Interval], masks: &mut [u64], skips: bool) {
        match self.instructions {
            Instructions::Portable => typed!(codes, codes => portable(codes, intervals, masks, skips)),
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2 => {
                // SAFETY: AVX2, BMI1 and BMI2 were detected.
                typed!(codes, codes => unsafe { x86::compare_avx2(codes, intervals, masks, skips) })
            }
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512 => {
                // SAFETY: AVX-512 F and BW, BMI1 and POPCNT were detected.
                typed!(codes, codes => unsafe { x86::compare(codes, intervals, masks, skips) })
            }
        }
    }

    /// Calls `take` for each 64 of at most [`BLOCK_ROWS`] rows of which some meet all conditions, with the first
    /// of the 64 rows and their mask. A condition is the codes of the rows and its intervals.
    ///
    /// # Panics
    /// If there are more rows.
    pub fn select<'c>(
        self,
        rows: usize,
        conditions: impl Iterator<Item = (CodeSlice<'c>, &'c [Interval])>,
        take: impl FnMut(usize, u64),
    ) -> Compared {
        self.select_ahead(rows, conditions, |_, _| (), take)
    }

    /// Does what [`select`](Self::select) does, and calls `fetch` with all that `take` will be called with before.
    pub fn select_ahead<'c>(
        self,
        rows: usize,
        conditions: impl Iterator<Item = (CodeSlice<'c>, &'c [Interval])>,
        fetch: impl Fn(usize, u64),
        mut take: impl FnMut(usize, u64),
    ) -> Compared {
        let mut masks = [u64::MAX; BLOCK_ROWS / WORD];
        let masks = &mut masks[..rows.div_ceil(WORD)];
        if !rows.is_multiple_of(WORD) {
            masks[rows / WORD] = u64::MAX >> (WORD - rows % WORD);
        }
        let mut done = Compared::default();
        for (codes, intervals) in conditions {
            done.add(self.compare(codes, intervals, masks, Combine::And));
        }
        let mut taken = 0;
        for (word, &mask) in masks.iter().enumerate().filter(|(_, mask)| **mask != 0) {
            fetch(word * WORD, mask);
        }
        for (word, &mask) in masks.iter().enumerate().filter(|(_, mask)| **mask != 0) {
            take(word * WORD, mask);
            taken += 1;
        }
        done.surprises += taken.min(masks.len() - taken) as u64;
        done
    }

    /// Appends the ids of at most 64 whose bit in `mask` is set.
    #[inline]
    pub fn append(self, ids: &[U32], mask: u64, out: &mut Vec<u32>) {
        #[cfg(target_arch = "x86_64")]
        if self.instructions == Instructions::Avx512
            && let Some(ids) = ids.as_array::<WORD>()
        {
            // SAFETY: AVX-512 F and BW, BMI1 and POPCNT were detected.
            return unsafe { x86::append(ids, mask, out) };
        }
        out.extend(bits(mask).map_while(|i| ids.get(i)).map(|id| id.get()));
    }

    /// Appends `first + i` for each bit `i` of `mask`.
    #[inline]
    pub fn append_rows(self, first: u32, mask: u64, out: &mut Vec<u32>) {
        #[cfg(target_arch = "x86_64")]
        if self.instructions == Instructions::Avx512 {
            // SAFETY: AVX-512 F and BW, BMI1 and POPCNT were detected.
            return unsafe { x86::append_rows(first, mask, out) };
        }
        out.extend(bits(mask).map(|i| first.wrapping_add(i as u32)));
    }
}

/// Words whose codes are waited for if of `words` words a share is compared, about: none that follows closely on another
/// one, since the processor reads on by itself where few are passed over.
pub(crate) fn words_waited_for(share: f64, words: f64) -> f64 {
    share * (1.0 - share) * (1.0 - share) * words
}

/// Asks for the cache line with byte `at`, without waiting for it.
#[inline]
pub(crate) fn prefetch(bytes: &[u8], at: usize) {
    fetch_into::<FIRST_CACHE, _>(bytes, at);
}

/// Does what [`prefetch`] does for the line of a word that is needed so much later that the first cache may have lost
/// it by then: it comes into the second one only.
#[inline]
pub(crate) fn prefetch_early(words: &[u64], at: usize) {
    fetch_into::<SECOND_CACHE, _>(words, at);
}

/// `_MM_HINT_T0` and `_MM_HINT_T1`.
const FIRST_CACHE: i32 = 3;
const SECOND_CACHE: i32 = 2;

#[inline]
fn fetch_into<const CACHE: i32, T>(items: &[T], at: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if let Some(item) = items.get(at) {
        // SAFETY: the item exists, and a prefetch has no effect that a program can see.
        unsafe { std::arch::x86_64::_mm_prefetch::<CACHE>(std::ptr::from_ref(item).cast()) };
    }
}

/// Compares chunks of 64 codes. With `skips`, those without a candidate are passed over.
#[inline(always)]
fn portable<C: Code>(codes: &[C], intervals: &[Interval], masks: &mut [u64], skips: bool) {
    for (chunk, mask) in codes.chunks(WORD).zip(masks) {
        if !skips || *mask != 0 {
            *mask &= mask_of_chunk(chunk, intervals);
        }
    }
}

/// Mask of at most 64 codes.
#[inline(always)]
fn mask_of_chunk<C: Code>(chunk: &[C], intervals: &[Interval]) -> u64 {
    if intervals.len() > COMPARED_INTERVALS {
        let bit = |code: C| u64::from(contains(intervals, code.get()));
        return chunk.iter().enumerate().fold(0, |mask, (i, &code)| mask | bit(code) << i);
    }
    intervals.iter().fold(0, |mask, &interval| mask | mask_of_interval(chunk, interval))
}

#[inline(always)]
fn mask_of_interval<C: Code>(chunk: &[C], interval: Interval) -> u64 {
    let Some((low, span)) = bounds::<C>(interval) else { return 0 };
    let mut hits = [0_u8; WORD];
    let hit = |(hit, code): (&mut u8, &C)| *hit = u8::from(code.offset(low) <= span);
    match chunk.as_array::<WORD>() {
        // The fixed length lets the compiler use vector instructions.
        Some(chunk) => hits.iter_mut().zip(chunk).for_each(hit),
        None => hits.iter_mut().zip(chunk).for_each(hit),
    }
    pack(&hits)
}

/// Lower bound and width of an interval in the range of the codes' type; `None` if it lies above that.
#[inline(always)]
fn bounds<C: Code>(interval: Interval) -> Option<(C::Native, C::Native)> {
    let high = interval.high.min(C::MAXIMUM);
    let span = high.checked_sub(interval.low)?;
    Some((C::native(interval.low), C::native(span)))
}

/// Bit `i` of the result is byte `i`, each of which is 0 or 1.
#[inline(always)]
fn pack(hits: &[u8; WORD]) -> u64 {
    // The product moves the lowest bit of byte i to bit 56 + i, and no two terms meet.
    const GATHER: u64 = 0x0102_0408_1020_4080;
    hits.as_chunks::<8>()
        .0
        .iter()
        .enumerate()
        .fold(0, |mask, (i, &eight)| mask | (u64::from_le_bytes(eight).wrapping_mul(GATHER) >> 56) << (8 * i))
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;
    use std::hint::select_unpredictable;

    use zerocopy::little_endian::U32;

    use super::{COMPARED_INTERVALS, Code, Interval, SPARSE, WORD, portable};

    /// Lanes of 32 bits.
    const LANES: usize = 16;

    /// Adds the codes of one register that pass the test as bits of the result, which has one per byte.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn bytes_that_pass<C: Code>(at: &[C], low: __m256i, span: __m256i) -> u32 {
        debug_assert_eq!(size_of_val(at), size_of::<__m256i>());
        // SAFETY: the slice has as many bytes as a register, and any bytes are valid integers.
        let codes = unsafe { _mm256_loadu_si256(at.as_ptr().cast()) };
        // An unsigned `offset <= span` is `min(offset, span) == offset`.
        let hits = match size_of::<C>() {
            1 => {
                let offset = _mm256_sub_epi8(codes, low);
                _mm256_cmpeq_epi8(_mm256_min_epu8(offset, span), offset)
            }
            2 => {
                let offset = _mm256_sub_epi16(codes, low);
                _mm256_cmpeq_epi16(_mm256_min_epu16(offset, span), offset)
            }
            _ => {
                let offset = _mm256_sub_epi32(codes, low);
                _mm256_cmpeq_epi32(_mm256_min_epu32(offset, span), offset)
            }
        };
        _mm256_movemask_epi8(hits) as u32
    }

    #[target_feature(enable = "avx2,bmi1,bmi2")]
    fn mask_of_word_avx2<C: Code>(chunk: &[C; WORD], intervals: &[Interval]) -> u64 {
        let lanes = size_of::<__m256i>() / size_of::<C>();
        // One bit of the mask of bytes for each code.
        let lowest = u32::MAX / ((1 << size_of::<C>()) - 1);
        let mut mask = 0;
        for &interval in intervals {
            let Some(span) = interval.high.min(C::MAXIMUM).checked_sub(interval.low) else { continue };
            let fill = |number: u32| match size_of::<C>() {
                1 => _mm256_set1_epi8(number as i8),
                2 => _mm256_set1_epi16(number as i16),
                _ => _mm256_set1_epi32(number as i32),
            };
            let (low, span) = (fill(interval.low), fill(span));
            for (register, codes) in chunk.chunks_exact(lanes).enumerate() {
                let hits = _pext_u32(bytes_that_pass(codes, low, span), lowest);
                mask |= u64::from(hits) << (register * lanes);
            }
        }
        mask
    }

    #[target_feature(enable = "avx2,bmi1,bmi2")]
    pub fn compare_avx2<C: Code>(codes: &[C], intervals: &[Interval], masks: &mut [u64], skips: bool) {
        if intervals.len() > COMPARED_INTERVALS {
            return portable(codes, intervals, masks, skips);
        }
        let (words, rest) = codes.as_chunks::<WORD>();
        for (chunk, mask) in words.iter().zip(&mut *masks) {
            if !skips || *mask != 0 {
                *mask &= mask_of_word_avx2(chunk, intervals);
            }
        }
        if let Some(masks) = masks.get_mut(words.len()..) {
            portable(rest, intervals, masks, skips);
        }
    }

    /// A test of 64 codes, prepared for their width.
    #[derive(Clone, Copy)]
    struct Test {
        low: __m512i,
        span: __m512i,
    }

    #[target_feature(enable = "avx512f,avx512bw")]
    fn prepare<C: Code>(interval: Interval) -> Option<Test> {
        let span = interval.high.min(C::MAXIMUM).checked_sub(interval.low)?;
        let fill = |number: u32| match size_of::<C>() {
            1 => _mm512_set1_epi8(number as i8),
            2 => _mm512_set1_epi16(number as i16),
            _ => _mm512_set1_epi32(number as i32),
        };
        Some(Test { low: fill(interval.low), span: fill(span) })
    }

    /// Codes in one register.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn mask_of_register<C: Code>(codes: __m512i, test: Test) -> u64 {
        match size_of::<C>() {
            1 => _mm512_cmple_epu8_mask(_mm512_sub_epi8(codes, test.low), test.span),
            2 => _mm512_cmple_epu16_mask(_mm512_sub_epi16(codes, test.low), test.span).into(),
            _ => _mm512_cmple_epu32_mask(_mm512_sub_epi32(codes, test.low), test.span).into(),
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn mask_of_word<C: Code>(chunk: &[C; WORD], tests: &[Test]) -> u64 {
        let lanes = size_of::<__m512i>() / size_of::<C>();
        let mut mask = 0;
        for register in 0..WORD / lanes {
            let at = chunk[register * lanes..][..lanes].as_ptr();
            // SAFETY: the slice has as many bytes as a register, and any bytes are valid integers.
            let codes = unsafe { _mm512_loadu_si512(at.cast()) };
            let hits = tests.iter().fold(0, |hits, &test| hits | mask_of_register::<C>(codes, test));
            mask |= hits << (register * lanes);
        }
        mask
    }

    #[target_feature(enable = "avx512f,avx512bw")]
    pub fn compare<C: Code>(codes: &[C], intervals: &[Interval], masks: &mut [u64], skips: bool) {
        if intervals.len() > COMPARED_INTERVALS {
            return portable(codes, intervals, masks, skips);
        }
        let mut tests =
            [Test { low: _mm512_setzero_si512(), span: _mm512_setzero_si512() }; COMPARED_INTERVALS];
        let mut count = 0;
        for test in intervals.iter().filter_map(|&interval| prepare::<C>(interval)) {
            tests[count] = test;
            count += 1;
        }
        let tests = &tests[..count];
        let (words, rest) = codes.as_chunks::<WORD>();
        for (chunk, mask) in words.iter().zip(&mut *masks) {
            if !skips || *mask != 0 {
                *mask &= mask_of_word(chunk, tests);
            }
        }
        if let Some(masks) = masks.get_mut(words.len()..) {
            portable(rest, intervals, masks, skips);
        }
    }

    /// Appends the lanes of `ids` whose bit is set. `out` has room for a register.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,bmi1,popcnt")]
    fn append_register(ids: __m512i, mask: u16, out: &mut Vec<u32>) {
        debug_assert!(out.capacity() - out.len() >= LANES);
        let selected = _mm512_maskz_compress_epi32(mask, ids);
        let len = out.len() + mask.count_ones() as usize;
        // SAFETY: both callers reserve room for the register, whose first lanes become elements.
        unsafe {
            _mm512_storeu_si512(out.as_mut_ptr().add(out.len()).cast(), selected);
            out.set_len(len);
        }
    }

    /// Elements written at once, whether needed or not, so that no branch depends on a single bit.
    const STRIDE: usize = 4;

    /// Appends `id(i)` for each of the at most [`SPARSE`] bits `i` of `mask`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,bmi1,popcnt")]
    fn append_sparse(mut mask: u64, out: &mut Vec<u32>, id: impl Fn(usize) -> u32) {
        out.reserve(WORD);
        let len = out.len() + mask.count_ones() as usize;
        let room = out.spare_capacity_mut();
        let (mut at, mut bit) = (0, 0);
        while mask != 0 {
            for place in &mut room[at..at + STRIDE] {
                // Behind the last bit its id is written again: another one may be far away in memory.
                bit = select_unpredictable(mask != 0, mask.trailing_zeros() as usize, bit);
                place.write(id(bit % WORD));
                mask &= mask.wrapping_sub(1);
            }
            at += STRIDE;
        }
        // SAFETY: the loop wrote one element per bit of the mask, and up to three more.
        unsafe { out.set_len(len) };
    }

    #[target_feature(enable = "avx512f,avx512bw,bmi1,popcnt")]
    pub fn append(ids: &[U32; WORD], mask: u64, out: &mut Vec<u32>) {
        if mask.count_ones() <= SPARSE {
            return append_sparse(mask, out, |i| ids[i].get());
        }
        out.reserve(WORD + LANES);
        for part in 0..WORD / LANES {
            let at = ids[part * LANES..][..LANES].as_ptr();
            // SAFETY: the slice has as many bytes as a register, and any bytes are valid integers.
            let ids = unsafe { _mm512_loadu_si512(at.cast()) };
            append_register(ids, (mask >> (part * LANES)) as u16, out);
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,bmi1,popcnt")]
    pub fn append_rows(first: u32, mask: u64, out: &mut Vec<u32>) {
        if mask.count_ones() <= SPARSE {
            return append_sparse(mask, out, |i| first.wrapping_add(i as u32));
        }
        out.reserve(WORD + LANES);
        let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        for part in 0..WORD / LANES {
            let start = _mm512_set1_epi32(first.wrapping_add((part * LANES) as u32) as i32);
            append_register(_mm512_add_epi32(start, lanes), (mask >> (part * LANES)) as u16, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Codes of `width` bytes, some of them at the ends of their range.
    fn codes(width: usize, count: usize) -> Vec<u8> {
        let byte = |i: usize| (i.wrapping_mul(0x9e37_79b9) >> 7) as u8;
        let ends = |i: usize| [0, 0xff, byte(i)][(i / width) % 3];
        (0..count * width).map(|i| if i % (11 * width) < width { ends(i) } else { byte(i) }).collect()
    }

    #[test]
    fn all_kernels_compare_like_a_loop() {
        let few = [(0, 0), (3, 90), (200, 255), (250, 40_000), (65_535, 70_000), (1 << 20, u32::MAX)];
        let many: Vec<Interval> = (0..20).map(|i| Interval::new(i * 10, i * 10 + 4)).collect();
        let mut sets: Vec<Vec<Interval>> =
            few.iter().map(|&(low, high)| vec![Interval::new(low, high)]).collect();
        sets.extend([
            vec![],
            vec![Interval::new(1, 9), Interval::new(100, 300)],
            many,
            vec![Interval::new(0, u32::MAX)],
        ]);
        for (width, count) in
            [1, 2, 4].into_iter().flat_map(|width| [0, 1, 63, 64, 65, 500].map(|n| (width, n)))
        {
            let bytes = codes(width, count);
            let slice = CodeSlice::open(&bytes, width).expect("whole codes");
            for (intervals, kernel) in
                sets.iter().flat_map(|set| Kernel::all().into_iter().map(move |k| (set, k)))
            {
                let mut masks = vec![0; count.div_ceil(WORD)];
                kernel.compare(slice, intervals, &mut masks, Combine::Replace);
                let mut narrowed = vec![0x5555_5555_5555_5555; masks.len()];
                kernel.compare(slice, intervals, &mut narrowed, Combine::And);
                for i in 0..masks.len() * WORD {
                    let expected = i < count && contains(intervals, slice.get(i));
                    assert_eq!(
                        masks[i / WORD] >> (i % WORD) & 1 == 1,
                        expected,
                        "{kernel:?} {width} {count} {i}"
                    );
                    assert_eq!(narrowed[i / WORD] >> (i % WORD) & 1 == 1, expected && i % 2 == 0);
                }
            }
        }
    }

    #[test]
    fn all_kernels_append_like_a_loop() {
        let ids: Vec<U32> = (0..WORD as u32).map(|i| U32::new(i * i)).collect();
        for kernel in Kernel::all() {
            let (mut found, mut rows) = (vec![7], vec![7]);
            for mask in [0, 1, u64::MAX, 0x8000_0000_0000_0001, 0xffff, 0x00ff_0000_1234_0000] {
                kernel.append(&ids, mask, &mut found);
                kernel.append(&ids[..5], mask & 31, &mut found);
                kernel.append_rows(u32::MAX - 63, mask, &mut rows);
            }
            let (mut expected, mut expected_rows) = (vec![7], vec![7]);
            for mask in [0, 1, u64::MAX, 0x8000_0000_0000_0001, 0xffff, 0x00ff_0000_1234_0000] {
                expected.extend(bits(mask).map(|i| ids[i].get()));
                expected.extend(bits(mask & 31).map(|i| ids[i].get()));
                expected_rows.extend(bits(mask).map(|i| u32::MAX - 63 + i as u32));
            }
            assert_eq!((found, rows), (expected, expected_rows), "{kernel:?}");
        }
    }
}
