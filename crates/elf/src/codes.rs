//! Slices of little-endian numbers inside an image, without copying and at any alignment.
//!
//! [`CodeSlice`] holds the codes of one column in 1, 2 or 4 bytes each, [`NumberSlice`] row ids and positions
//! in 4 or 8 bytes each. Both are opened in one place from bytes whose length was verified.

use std::hint::select_unpredictable;
use std::ops::Range;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

/// Bytes per code that the codes up to `maximum` need: 1, 2 or 4.
pub fn code_bytes(maximum: u32) -> usize {
    match maximum {
        0..=0xff => 1,
        0x100..=0xffff => 2,
        _ => 4,
    }
}

/// Codes of one column, all in the same number of bytes.
#[derive(Clone, Copy, Debug)]
pub enum CodeSlice<'a> {
    One(&'a [u8]),
    Two(&'a [U16]),
    Four(&'a [U32]),
}

/// Calls `$body` with `$codes` bound to the typed slice.
macro_rules! typed {
    ($slice:expr, $codes:ident => $body:expr) => {
        match $slice {
            $crate::codes::CodeSlice::One($codes) => $body,
            $crate::codes::CodeSlice::Two($codes) => $body,
            $crate::codes::CodeSlice::Four($codes) => $body,
        }
    };
}
pub(crate) use typed;

/// A stored code.
pub(crate) trait Code: Copy {
    /// The number that instructions compare.
    type Native: Copy + Ord;

    /// Largest code that this type can hold.
    const MAXIMUM: u32;

    fn get(self) -> u32;

    /// Stores `code`, which is at most [`MAXIMUM`](Code::MAXIMUM).
    fn stored(code: u32) -> Self;

    /// The bytes that are stored.
    fn bytes(&self) -> &[u8];

    /// Offset of the code from `low`, modulo the type's range.
    fn offset(self, low: Self::Native) -> Self::Native;

    /// `code`, which is at most [`MAXIMUM`](Code::MAXIMUM).
    fn native(code: u32) -> Self::Native;
}

macro_rules! code {
    ($stored:ty, $native:ty, $number:ident => $get:expr, $store:expr) => {
        impl Code for $stored {
            type Native = $native;
            const MAXIMUM: u32 = <$native>::MAX as u32;

            #[inline(always)]
            fn get(self) -> u32 {
                let $number = self;
                u32::from($get)
            }

            #[inline(always)]
            fn stored(code: u32) -> Self {
                $store(code as $native)
            }

            #[inline(always)]
            fn bytes(&self) -> &[u8] {
                self.as_bytes()
            }

            #[inline(always)]
            fn offset(self, low: $native) -> $native {
                let $number = self;
                $get.wrapping_sub(low)
            }

            #[inline(always)]
            fn native(code: u32) -> $native {
                code as $native
            }
        }
    };
}

code!(u8, u8, code => code, u8::from);
code!(U16, u16, code => code.get(), U16::new);
code!(U32, u32, code => code.get(), U32::new);

impl<'a> CodeSlice<'a> {
    /// Opens `bytes` as codes of `width` bytes each; `None` if the width or the length does not fit.
    #[inline]
    pub fn open(bytes: &'a [u8], width: usize) -> Option<Self> {
        match width {
            1 => Some(Self::One(bytes)),
            2 => Some(Self::Two(<[U16]>::ref_from_bytes(bytes).ok()?)),
            4 => Some(Self::Four(<[U32]>::ref_from_bytes(bytes).ok()?)),
            _ => None,
        }
    }

    /// Bytes of each code.
    pub fn code_bytes(self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Two(_) => 2,
            Self::Four(_) => 4,
        }
    }

    /// Number of codes.
    #[inline]
    pub fn len(self) -> usize {
        typed!(self, codes => codes.len())
    }

    #[inline]
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Code number `i`.
    #[inline]
    pub fn get(self, i: usize) -> u32 {
        typed!(self, codes => Code::get(codes[i]))
    }

    /// The codes one after the other.
    pub fn iter(self) -> impl Iterator<Item = u32> + 'a {
        (0..self.len()).map(move |i| self.get(i))
    }

    /// The largest code, 0 if there are none.
    pub(crate) fn largest(self) -> u32 {
        typed!(self, codes => codes.iter().map(|code| Code::get(*code)).max().unwrap_or(0))
    }

    /// The codes in `range`.
    #[inline]
    pub fn slice(self, range: Range<usize>) -> Self {
        match self {
            Self::One(codes) => Self::One(&codes[range]),
            Self::Two(codes) => Self::Two(&codes[range]),
            Self::Four(codes) => Self::Four(&codes[range]),
        }
    }

    /// First position in the sorted codes of `range` whose code is at least `code`, or the end of `range`.
    #[inline]
    pub fn lower_bound(self, range: Range<usize>, code: u32) -> usize {
        range.start + typed!(self, codes => rank(&codes[range], code, |stored| stored < code))
    }

    /// Positions in the sorted codes of `range` with the given code.
    #[inline]
    pub(crate) fn equal_range(self, range: Range<usize>, code: u32) -> Range<usize> {
        let equal = typed!(self, codes => equal_range(&codes[range.clone()], code));
        range.start + equal.start..range.start + equal.end
    }

    /// Position within the sorted codes of `range` near which a search for `code` starts.
    #[inline]
    pub(crate) fn guess(self, range: Range<usize>, code: u32) -> usize {
        range.start + typed!(self, codes => guess(&codes[range], code))
    }

    /// First position in the sorted codes of `range` whose code is above `code`, or the end of `range`.
    #[inline]
    pub fn upper_bound(self, range: Range<usize>, code: u32) -> usize {
        range.start + typed!(self, codes => rank(&codes[range], code, |stored| stored <= code))
    }
}

/// Codes from which a search starts at a guess.
const GUESSED_LEN: usize = 64;
/// First distance from a guess that is tried: about a cache line.
const FIRST_STRIDE: usize = 16;

/// Place of `code` if the codes, of which there are some, are evenly spaced.
#[inline]
fn guess<C: Code>(codes: &[C], code: u32) -> usize {
    place_between(codes[0].get(), codes[codes.len() - 1].get(), codes.len(), code)
}

/// Place of `code` among `len` codes from `first` to `last` if they are evenly spaced.
#[inline]
fn place_between(first: u32, last: u32, len: usize, code: u32) -> usize {
    let width = u64::from(last.saturating_sub(first)).max(1);
    let distance = u64::from(code.clamp(first, last.max(first)) - first);
    (distance * (len as u64 - 1) / width) as usize
}

/// Number of leading codes for which `counts` holds, which are those below or up to `code`; the codes ascend.
#[inline]
fn rank<C: Code>(codes: &[C], code: u32, counts: impl Fn(u32) -> bool) -> usize {
    rank_by(codes.len(), code, |i| codes[i].get(), counts)
}

/// Does what `rank` does for `len` codes, of which `at` gives each.
///
/// Codes of a dictionary are dense and lists of many values have small gaps, so that the place of a code is
/// nearly proportional to it. A search from there touches few cache lines; it widens by doubling.
#[inline]
pub(crate) fn rank_by(
    len: usize,
    code: u32,
    at: impl Fn(usize) -> u32,
    counts: impl Fn(u32) -> bool,
) -> usize {
    let counts_at = |i: usize| counts(at(i));
    if len < GUESSED_LEN {
        return partition_point(0..len, counts_at);
    }
    let (first, last) = (at(0), at(len - 1));
    if !counts(first) {
        return 0;
    }
    if counts(last) {
        return len;
    }
    // Codes before `low` count, and the one at `high` does not.
    let (mut low, mut high) = (1, len - 1);
    let mut stride = FIRST_STRIDE;
    let mut at = place_between(first, last, len, code).clamp(low, high);
    if counts_at(at) {
        while at < high && counts_at(at) {
            (low, at, stride) = (at + 1, (at + stride).min(high), stride * 2);
        }
        high = at;
    } else {
        while at > low && !counts_at(at) {
            (high, at, stride) = (at, at.saturating_sub(stride).max(low), stride * 2);
        }
        low = at;
    }
    partition_point(low..high, counts_at)
}

/// First number of `range` for which `counts` does not hold, or its end. It holds for none behind that.
#[inline]
fn partition_point(range: Range<usize>, counts: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut len) = (range.start, range.len());
    if len == 0 {
        return low;
    }
    while len > 1 {
        // No branch, since half of them would be foreseen wrongly.
        low = select_unpredictable(counts(low + len / 2), low + len / 2, low);
        len -= len / 2;
    }
    low + usize::from(counts(low))
}

/// Equal codes that are passed one by one: mostly there are few.
const FEW_EQUAL: usize = 8;

/// Places of the codes that are `code`; the codes ascend.
#[inline]
fn equal_range<C: Code>(codes: &[C], code: u32) -> Range<usize> {
    let is_equal = |stored: &C| stored.get() == code;
    let first = match codes {
        // The processor foresees this branch, and need not wait for the code.
        [only] => usize::from(!is_equal(only)),
        _ => rank(codes, code, |stored| stored < code),
    };
    let rest = &codes[first..];
    let few = rest.iter().take(FEW_EQUAL).take_while(|stored| is_equal(stored)).count();
    let equal = if few < FEW_EQUAL { few } else { few + rest[few..].partition_point(is_equal) };
    first..first + equal
}

/// Row ids or positions, all in the same number of bytes.
#[derive(Clone, Copy, Debug)]
pub enum NumberSlice<'a> {
    Narrow(&'a [U32]),
    Wide(&'a [U64]),
}

impl<'a> NumberSlice<'a> {
    /// Opens `bytes` as numbers of `width` bytes each; `None` if the width or the length does not fit.
    #[inline]
    pub fn open(bytes: &'a [u8], width: usize) -> Option<Self> {
        match width {
            4 => Some(Self::Narrow(<[U32]>::ref_from_bytes(bytes).ok()?)),
            8 => Some(Self::Wide(<[U64]>::ref_from_bytes(bytes).ok()?)),
            _ => None,
        }
    }

    /// Number of numbers.
    #[inline]
    pub fn len(self) -> usize {
        match self {
            Self::Narrow(numbers) => numbers.len(),
            Self::Wide(numbers) => numbers.len(),
        }
    }

    #[inline]
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Number `i`.
    #[inline]
    pub fn get(self, i: usize) -> u64 {
        match self {
            Self::Narrow(numbers) => numbers[i].get().into(),
            Self::Wide(numbers) => numbers[i].get(),
        }
    }

    /// Number `i` as a position in memory.
    #[inline]
    pub fn at(self, i: usize) -> usize {
        self.get(i) as usize
    }

    /// The numbers in `range`.
    #[inline]
    pub fn slice(self, range: Range<usize>) -> Self {
        match self {
            Self::Narrow(numbers) => Self::Narrow(&numbers[range]),
            Self::Wide(numbers) => Self::Wide(&numbers[range]),
        }
    }

    /// Number of leading numbers that meet `condition`, which none behind them does.
    pub fn partition_point(self, condition: impl Fn(u64) -> bool) -> usize {
        match self {
            Self::Narrow(numbers) => numbers.partition_point(|number| condition(number.get().into())),
            Self::Wide(numbers) => numbers.partition_point(|number| condition(number.get())),
        }
    }

    /// The numbers one after the other.
    pub fn iter(self) -> impl Iterator<Item = u64> + 'a {
        (0..self.len()).map(move |i| self.get(i))
    }

    /// Place of the first number of `part` if all its numbers stand in the memory of this slice.
    pub(crate) fn position_of(self, part: Self) -> Option<usize> {
        match (self, part) {
            (Self::Narrow(whole), Self::Narrow(part)) => position_of(whole, part),
            (Self::Wide(whole), Self::Wide(part)) => position_of(whole, part),
            _ => None,
        }
    }
}

fn position_of<T>(whole: &[T], part: &[T]) -> Option<usize> {
    let bytes = part.as_ptr().addr().checked_sub(whole.as_ptr().addr())?;
    let first = bytes / size_of::<T>();
    (bytes % size_of::<T>() == 0 && first + part.len() <= whole.len()).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_those_of_a_loop() {
        let lists: [Vec<u16>; 5] = [
            (0..500).collect(),
            (0..300_u32).map(|i| (i * i / 2) as u16).collect(),
            (0..200).map(|i| if i < 100 { i } else { 60_000 + i }).collect(),
            vec![7; 100],
            (0..70).map(|i| 65_535 - 69 + i).collect(),
        ];
        for list in &lists {
            let bytes: Vec<u8> = list.iter().flat_map(|code| code.to_le_bytes()).collect();
            let codes = CodeSlice::open(&bytes, 2).expect("whole codes");
            for range in [0..list.len(), 3..list.len(), 5..70, 9..9] {
                for code in (0..66_000).step_by(7).chain([65_535, 65_536, u32::MAX]) {
                    let within = &list[range.clone()];
                    let below = within.iter().filter(|&&other| u32::from(other) < code).count();
                    let up_to = within.iter().filter(|&&other| u32::from(other) <= code).count();
                    assert_eq!(codes.lower_bound(range.clone(), code), range.start + below);
                    assert_eq!(codes.upper_bound(range.clone(), code), range.start + up_to);
                    let equal = codes.equal_range(range.clone(), code);
                    assert_eq!(equal, range.start + below..range.start + up_to);
                }
            }
        }
    }
}
