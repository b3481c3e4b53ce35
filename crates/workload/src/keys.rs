//! The keys of a workload, and their encoding.
//!
//! A workload over n loaded records has 2n *key numbers*:
//! - record i is loaded under key number 2i,
//! - 2i + 1 is a *new* key, absent until an operation inserts it.
//!
//! So new keys fall between loaded ones, and the key space can be split into ranges of equal width before
//! anything is inserted. A [`KeySpace`] maps a key number to an integer, and a [`KeyCodec`] maps that integer
//! to bytes with the same order:
//! - [`KeySpace::Dense`]: the integer is the key number.
//! - [`KeySpace::Packed`]: loaded records are consecutive integers, and new keys follow all of them. For
//!   workloads without new keys.
//! - [`KeySpace::Random64`]: a bijective mix of it, so records are spread over all integers in a different
//!   order.

use crate::error::SpecError;
use crate::rng::{BitMixer, mix64, unmix64};
use crate::scatter::Permutation;
use std::fmt;
use std::str::FromStr;

/// Largest number of loaded records: key numbers must fit 63 bits.
pub(crate) const MAX_KEYS: u64 = 1 << 62;

/// The key number under which record `record` is loaded.
#[inline]
pub const fn loaded_key(record: u64) -> u64 {
    2 * record
}

/// The key number of the new key that follows record `record`.
#[inline]
pub const fn new_key(record: u64) -> u64 {
    2 * record + 1
}

/// Whether the key number belongs to a loaded record.
#[inline]
pub const fn is_loaded(key_number: u64) -> bool {
    key_number.is_multiple_of(2)
}

/// The pseudo-random order in which workloads insert new keys.
#[derive(Clone, Debug)]
pub(crate) struct NewKeyOrder(Permutation);

impl NewKeyOrder {
    pub fn new(records: u64) -> Self {
        Self(Permutation::new(records))
    }

    /// The new key at position `place` of the order.
    #[inline]
    pub fn key_number(&self, place: u64) -> u64 {
        new_key(self.0.apply(place))
    }

    /// Position of a new key in the order.
    #[inline]
    pub fn place(&self, key_number: u64) -> u64 {
        self.0.invert(key_number / 2)
    }
}

/// Mapping of key numbers to integers, as named on the command line: `dense`, `packed`, `random64`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeySpace {
    /// Key number i is the integer i.
    #[default]
    Dense,
    /// Record i is the integer i, and the new key that follows record i is as far behind all records.
    Packed,
    /// Key number i is a pseudo-random integer; different numbers have different integers.
    Random64,
}

impl FromStr for KeySpace {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<KeySpace, SpecError> {
        match text {
            "dense" => Ok(KeySpace::Dense),
            "packed" => Ok(KeySpace::Packed),
            "random64" => Ok(KeySpace::Random64),
            _ => Err(SpecError::UnknownKeySpace(text.to_owned())),
        }
    }
}

impl fmt::Display for KeySpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KeySpace::Dense => "dense",
            KeySpace::Packed => "packed",
            KeySpace::Random64 => "random64",
        })
    }
}

/// A range of integers, both ends included, that belongs to one compute server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnedRange {
    pub first: u64,
    pub last: u64,
}

impl OwnedRange {
    /// All integers.
    pub const ALL: OwnedRange = OwnedRange { first: 0, last: u64::MAX };

    /// Whether the integer lies in the range.
    #[inline]
    pub const fn contains(&self, integer: u64) -> bool {
        self.first <= integer && integer <= self.last
    }
}

/// Converts key numbers to integers and bytes, and back.
///
/// Keys of 8 bytes are big-endian integers. Shorter ones omit leading zero bytes (and mix within their
/// width), longer ones append padding that is determined by the integer.
///
/// ```
/// use pando_workload::{KeyCodec, KeySpace, loaded_key};
/// let codec = KeyCodec::new(KeySpace::Dense, 16, 1000)?;
/// let mut key = [0; 16];
/// codec.encode(loaded_key(3), &mut key);
/// assert_eq!(key[..8], 6u64.to_be_bytes());
/// assert_eq!(codec.decode(&key), Some(loaded_key(3)));
/// # Ok::<(), pando_workload::SpecError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyCodec {
    space: KeySpace,
    size: usize,
    records: u64,
    /// Mixes the integers of keys shorter than 8 bytes.
    narrow: Option<BitMixer>,
}

impl KeyCodec {
    /// Keys of `size` bytes for `records` loaded records and as many new ones.
    ///
    /// # Errors
    /// There are no records, or too many for keys of this size.
    pub fn new(space: KeySpace, size: usize, records: u64) -> Result<KeyCodec, SpecError> {
        if !(1..=MAX_KEYS).contains(&records) {
            return Err(SpecError::BadKeyCount { keys: records, max: MAX_KEYS });
        }
        let largest = new_key(records - 1);
        let needed = (64 - largest.leading_zeros()).div_ceil(8) as usize;
        if size < needed {
            return Err(SpecError::KeySizeTooSmall { size, keys: records, needed });
        }
        let narrow = (size < 8).then(|| BitMixer::new(8 * size as u32));
        Ok(KeyCodec { space, size, records, narrow })
    }

    /// Size of a key in bytes.
    pub const fn size(&self) -> usize {
        self.size
    }

    /// Number of loaded records.
    pub const fn records(&self) -> u64 {
        self.records
    }

    /// Number of key numbers: loaded and new keys together.
    pub const fn key_numbers(&self) -> u64 {
        2 * self.records
    }

    /// The key space.
    pub const fn space(&self) -> KeySpace {
        self.space
    }

    /// The integer of a key number.
    #[inline]
    pub fn integer(&self, key_number: u64) -> u64 {
        match (self.space, self.narrow) {
            (KeySpace::Dense, _) => key_number,
            (KeySpace::Packed, _) => key_number / 2 + (key_number % 2) * self.records,
            (KeySpace::Random64, None) => mix64(key_number),
            (KeySpace::Random64, Some(mixer)) => mixer.mix(key_number),
        }
    }

    /// Key number of an integer, if it has one.
    #[inline]
    pub fn key_number(&self, integer: u64) -> Option<u64> {
        let key_number = match (self.space, self.narrow) {
            (KeySpace::Dense, _) => integer,
            (KeySpace::Packed, _) if integer < self.records => loaded_key(integer),
            (KeySpace::Packed, _) => {
                integer.checked_sub(self.records).filter(|&new| new < self.records).map(new_key)?
            }
            (KeySpace::Random64, None) => unmix64(integer),
            (KeySpace::Random64, Some(mixer)) => mixer.unmix(integer),
        };
        (key_number < self.key_numbers()).then_some(key_number)
    }

    /// Writes the key of `key_number` into `key`, which must be exactly [`size`](Self::size) bytes long.
    #[inline]
    pub fn encode(&self, key_number: u64, key: &mut [u8]) {
        assert_eq!(key.len(), self.size, "the buffer of a key has the size of the key");
        let integer = self.integer(key_number);
        match key.first_chunk_mut::<8>() {
            Some(head) => {
                *head = integer.to_be_bytes();
                pad(integer, &mut key[8..]);
            }
            None => key.copy_from_slice(&integer.to_be_bytes()[8 - self.size..]),
        }
    }

    /// The key of `key_number` in a new vector.
    pub fn encode_vec(&self, key_number: u64) -> Vec<u8> {
        let mut key = vec![0; self.size];
        self.encode(key_number, &mut key);
        key
    }

    /// Key number of a key. `None` for bytes that [`encode`](Self::encode) cannot have written.
    pub fn decode(&self, key: &[u8]) -> Option<u64> {
        if key.len() != self.size {
            return None;
        }
        let (head, padding) = key.split_at(self.size.min(8));
        let mut bytes = [0; 8];
        bytes[8 - head.len()..].copy_from_slice(head);
        let integer = u64::from_be_bytes(bytes);
        let mut expected = vec![0; padding.len()];
        pad(integer, &mut expected);
        (padding == expected).then(|| self.key_number(integer)).flatten()
    }

    /// The integers of partition `index` of `of`: ranges of equal width over the key space that together
    /// cover all integers. In a dense space partition p has `p * 2n / of .. (p + 1) * 2n / of`.
    pub fn partition(&self, index: u64, of: u64) -> OwnedRange {
        assert!(index < of, "partition {index} of {of} does not exist");
        let width = self.width();
        let boundary = |p: u64| width * u128::from(p) / u128::from(of);
        let last = if index + 1 == of { u128::from(u64::MAX) } else { boundary(index + 1).saturating_sub(1) };
        OwnedRange { first: boundary(index) as u64, last: last as u64 }
    }
}

impl KeyCodec {
    /// Number of integers over which loaded keys are spread.
    pub(crate) fn width(&self) -> u128 {
        match self.space {
            KeySpace::Dense => u128::from(self.key_numbers()),
            KeySpace::Packed => u128::from(self.records),
            KeySpace::Random64 => 1 << (8 * self.size.min(8)),
        }
    }
}

/// Fills the bytes of a key after the first 8 with a function of the key's integer.
fn pad(integer: u64, padding: &mut [u8]) {
    for (i, chunk) in padding.chunks_mut(8).enumerate() {
        let word = mix64(integer.wrapping_add(i as u64).rotate_left(32));
        chunk.copy_from_slice(&word.to_be_bytes()[..chunk.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn spaces() -> impl Strategy<Value = KeySpace> {
        prop_oneof![Just(KeySpace::Dense), Just(KeySpace::Packed), Just(KeySpace::Random64)]
    }

    #[test]
    fn the_smallest_key_size_is_the_one_that_fits() {
        for (records, needed) in [(1, 1), (128, 1), (129, 2), (1 << 15, 2), (20_000_000, 4), (1 << 40, 6)] {
            assert!(KeyCodec::new(KeySpace::Dense, needed, records).is_ok(), "{records} in {needed}");
            let error = KeyCodec::new(KeySpace::Random64, needed - 1, records).expect_err("too small");
            assert_eq!(error, SpecError::KeySizeTooSmall { size: needed - 1, keys: records, needed });
        }
        assert!(KeyCodec::new(KeySpace::Dense, 8, 0).is_err());
        assert!(KeyCodec::new(KeySpace::Dense, 8, u64::MAX).is_err());
    }

    #[test]
    fn all_keys_of_a_short_random_space_differ() {
        let codec = KeyCodec::new(KeySpace::Random64, 2, 1 << 15).expect("fits");
        let mut integers: Vec<u64> = (0..1 << 16).map(|number| codec.integer(number)).collect();
        integers.sort_unstable();
        assert_eq!(integers, (0..1 << 16).collect::<Vec<u64>>());
    }

    #[test]
    fn partitions_are_equally_wide_and_cover_everything() {
        for space in [KeySpace::Dense, KeySpace::Packed, KeySpace::Random64] {
            for of in [1, 2, 3, 4, 7] {
                let codec = KeyCodec::new(space, 8, 1000).expect("fits");
                let parts: Vec<OwnedRange> = (0..of).map(|p| codec.partition(p, of)).collect();
                assert_eq!(parts[0].first, 0);
                assert_eq!(parts[parts.len() - 1].last, u64::MAX);
                assert!(parts.windows(2).all(|pair| pair[0].last + 1 == pair[1].first));
            }
        }
        let dense = KeyCodec::new(KeySpace::Dense, 8, 10).expect("fits");
        assert_eq!(dense.partition(1, 4), OwnedRange { first: 5, last: 9 });
    }

    proptest! {
        #[test]
        fn keys_come_back_and_keep_the_order_of_integers(
            space in spaces(), size in 3usize..40, a in 0u64..2_000_000, b in 0u64..2_000_000,
        ) {
            let codec = KeyCodec::new(space, size, 1_000_000).expect("fits");
            let (key_a, key_b) = (codec.encode_vec(a), codec.encode_vec(b));
            prop_assert_eq!(codec.decode(&key_a), Some(a));
            prop_assert_eq!(codec.key_number(codec.integer(b)), Some(b));
            prop_assert_eq!(key_a.cmp(&key_b), codec.integer(a).cmp(&codec.integer(b)));
        }

        #[test]
        fn foreign_bytes_are_no_key(space in spaces(), key in prop::collection::vec(any::<u8>(), 0..24)) {
            let codec = KeyCodec::new(space, 12, 1000).expect("fits");
            if let Some(number) = codec.decode(&key) {
                prop_assert_eq!(codec.encode_vec(number), key);
            }
        }
    }
}
