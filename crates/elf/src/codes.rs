//! Slices of little-endian numbers inside an image, without copying and at any alignment.
//!
//! [`CodeSlice`] holds the codes of one column in 1, 2 or 4 bytes each, [`NumberSlice`] row ids and positions
//! in 4 or 8 bytes each. Both are opened in one place from bytes whose length was verified.

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

    /// The bytes that are stored.
    fn bytes(&self) -> &[u8];

    /// Offset of the code from `low`, modulo the type's range.
    fn offset(self, low: Self::Native) -> Self::Native;

    /// `code`, which is at most [`MAXIMUM`](Code::MAXIMUM).
    fn native(code: u32) -> Self::Native;
}

macro_rules! code {
    ($stored:ty, $native:ty, $number:ident => $get:expr) => {
        impl Code for $stored {
            type Native = $native;
            const MAXIMUM: u32 = <$native>::MAX as u32;

            #[inline(always)]
            fn get(self) -> u32 {
                let $number = self;
                u32::from($get)
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

code!(u8, u8, code => code);
code!(U16, u16, code => code.get());
code!(U32, u32, code => code.get());

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
        range.start + typed!(self, codes => codes[range].partition_point(|stored| Code::get(*stored) < code))
    }

    /// First position in the sorted codes of `range` whose code is above `code`, or the end of `range`.
    #[inline]
    pub fn upper_bound(self, range: Range<usize>, code: u32) -> usize {
        range.start + typed!(self, codes => codes[range].partition_point(|stored| Code::get(*stored) <= code))
    }
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

    /// The numbers one after the other.
    pub fn iter(self) -> impl Iterator<Item = u64> + 'a {
        (0..self.len()).map(move |i| self.get(i))
    }
}
