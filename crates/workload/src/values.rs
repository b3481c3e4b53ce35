//! Values that identify themselves, so that a reader can distinguish right answers from wrong ones.
//!
//! A value is a function of its key number and of a *sequence*: the number of the write that produced it. It
//! starts with a little-endian word: the low bits are the sequence (20 bits from 8 bytes on, fewer in shorter
//! values), the rest is a tag derived from the key. The remaining bytes are pseudo-random fill derived from
//! that word. So a value shows whether it belongs to the key, which write produced it, and whether it mixes
//! two writes.

use crate::rng::mix64;

/// Sequence bits of values of 8 bytes and more; the tag has the other 44.
const SEQUENCE_BITS: u32 = 20;
/// Separates tags from the integers of [`crate::KeySpace::Random64`], which are mixed too.
const TAG_SALT: u64 = 0x5061_6e64_6f20_7461;

/// Defect of a value that was read back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ValueError {
    #[error("the value has {found} bytes instead of {expected}")]
    WrongLength { expected: usize, found: usize },
    #[error("the value belongs to another key")]
    WrongKey,
    #[error("the value is damaged at byte {offset}")]
    Damaged { offset: usize },
}

/// Writes and checks values of one size.
///
/// ```
/// use pando_workload::ValueCodec;
/// let codec = ValueCodec::new(100);
/// let mut value = vec![0; 100];
/// codec.write(7, 3, &mut value);
/// assert_eq!(codec.check(7, &value), Ok(3));
/// assert!(codec.check(8, &value).is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueCodec {
    size: usize,
    sequence_bits: u32,
}

impl ValueCodec {
    /// Values of `size` bytes. Short ones hold little: 1 byte holds a tag of 6 bits and a sequence of 2, no
    /// bytes hold nothing.
    pub const fn new(size: usize) -> ValueCodec {
        let sequence_bits = if size >= 8 { SEQUENCE_BITS } else { size as u32 * SEQUENCE_BITS / 8 };
        ValueCodec { size, sequence_bits }
    }

    /// Size of a value in bytes.
    pub const fn size(&self) -> usize {
        self.size
    }

    /// Number of sequence bits in a value; higher bits are lost.
    pub const fn sequence_bits(&self) -> u32 {
        self.sequence_bits
    }

    /// Writes the value of `key_number` and `sequence`; `value` must be exactly [`size`](Self::size) bytes
    /// long.
    #[inline]
    pub fn write(&self, key_number: u64, sequence: u32, value: &mut [u8]) {
        assert_eq!(value.len(), self.size, "the buffer of a value has the size of the value");
        let head = self.head(key_number, sequence);
        match value.split_first_chunk_mut::<8>() {
            Some((first, rest)) => {
                *first = head.to_le_bytes();
                for (i, chunk) in rest.chunks_mut(8).enumerate() {
                    chunk.copy_from_slice(&fill(head, i)[..chunk.len()]);
                }
            }
            None => value.copy_from_slice(&head.to_le_bytes()[..self.size]),
        }
    }

    /// The value in a new vector.
    pub fn write_vec(&self, key_number: u64, sequence: u32) -> Vec<u8> {
        let mut value = vec![0; self.size];
        self.write(key_number, sequence, &mut value);
        value
    }

    /// Checks a value that was read under `key_number`; returns its sequence.
    ///
    /// # Errors
    /// The bytes are not a value of that key.
    #[inline]
    pub fn check(&self, key_number: u64, value: &[u8]) -> Result<u32, ValueError> {
        if value.len() != self.size {
            return Err(ValueError::WrongLength { expected: self.size, found: value.len() });
        }
        let (first, rest) = value.split_at(self.size.min(8));
        let mut bytes = [0; 8];
        bytes[..first.len()].copy_from_slice(first);
        let head = u64::from_le_bytes(bytes);
        let sequence = (head & ((1 << self.sequence_bits) - 1)) as u32;
        if head != self.head(key_number, sequence) {
            return Err(ValueError::WrongKey);
        }
        for (i, chunk) in rest.chunks(8).enumerate() {
            let expected = fill(head, i);
            if let Some(at) = (0..chunk.len()).find(|&at| chunk[at] != expected[at]) {
                return Err(ValueError::Damaged { offset: 8 + 8 * i + at });
            }
        }
        Ok(sequence)
    }

    /// First word of a value, as an integer: the whole value if it has 8 bytes.
    #[inline]
    pub fn head(&self, key_number: u64, sequence: u32) -> u64 {
        if self.size == 0 {
            return 0;
        }
        let tag = mix64(key_number ^ TAG_SALT);
        let sequence = u64::from(sequence) & ((1 << self.sequence_bits) - 1);
        ((tag << self.sequence_bits) | sequence) & (u64::MAX >> (64 - 8 * self.size.min(8)))
    }
}

/// Word `i` of the fill that follows the head.
#[inline]
fn fill(head: u64, i: usize) -> [u8; 8] {
    mix64(head.wrapping_add((i as u64) << 48 | i as u64)).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sequence_bits_fit_the_value() {
        let bits: Vec<u32> = (0..10).map(|size| ValueCodec::new(size).sequence_bits()).collect();
        assert_eq!(bits, [0, 2, 5, 7, 10, 12, 15, 17, 20, 20]);
    }

    #[test]
    fn largest_values_are_checked_to_the_last_byte() {
        let codec = ValueCodec::new(16 << 20);
        let mut value = codec.write_vec(5, 6);
        assert_eq!(codec.check(5, &value), Ok(6));
        let last = value.len() - 1;
        value[last] ^= 1;
        assert_eq!(codec.check(5, &value), Err(ValueError::Damaged { offset: last }));
    }

    #[test]
    fn empty_values_hold_nothing() {
        let codec = ValueCodec::new(0);
        assert_eq!(codec.check(1, &codec.write_vec(1, 99)), Ok(0));
        assert!(codec.check(1, b"x").is_err());
    }

    proptest! {
        #[test]
        fn values_come_back(size in 0usize..300, key: u64, sequence: u32) {
            let codec = ValueCodec::new(size);
            let found = codec.check(key, &codec.write_vec(key, sequence));
            prop_assert_eq!(found, Ok(sequence & ((1 << codec.sequence_bits()) - 1)));
        }

        #[test]
        fn other_keys_and_flipped_bits_are_noticed(
            size in 8usize..200, key: u64, other: u64, flip: prop::sample::Index,
        ) {
            prop_assume!(key != other);
            let codec = ValueCodec::new(size);
            let mut value = codec.write_vec(key, 1);
            prop_assert!(codec.check(other, &value).is_err());
            let bit = flip.index(8 * size);
            value[bit / 8] ^= 1 << (bit % 8);
            // A flipped bit of the sequence of an 8-byte value is another legal sequence.
            prop_assert_ne!(codec.check(key, &value), Ok(1));
            prop_assert!(size == 8 || codec.check(key, &value).is_err());
        }

        #[test]
        fn a_mixture_of_two_writes_is_noticed(words in 2usize..40, cut: prop::sample::Index, key: u64) {
            let codec = ValueCodec::new(8 * words);
            let (mut old, new) = (codec.write_vec(key, 1), codec.write_vec(key, 2));
            let cut = 8 * (1 + cut.index(words - 1));
            old[..cut].copy_from_slice(&new[..cut]);
            prop_assert!(codec.check(key, &old).is_err());
        }
    }
}
