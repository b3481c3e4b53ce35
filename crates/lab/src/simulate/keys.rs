//! Keys and values of a simulated run.
//!
//! There are few keys, so that operations conflict. They cover the special cases of layouts: words, keys that
//! are prefixes of others, the empty key, long common prefixes, bytes 0x00 and 0xff at the ends. A value
//! names the operation that stored it, so that a reader's answer identifies that operation; only the empty
//! value is stored by many.

use std::collections::{BTreeSet, HashMap};

use pando_fabric::Random;
use serde::Serialize;

use super::linear::Value;

/// Form of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeyStyle {
    /// Numbers that are far apart.
    Words,
    /// Consecutive numbers in the last bytes.
    Dense,
    /// One to four bytes from a small set of bytes.
    Short,
    /// A long common prefix.
    Prefixed,
    /// Each key is a prefix of a later one, starting with the empty key.
    Nested,
    /// Any length up to the longest.
    Ragged,
}

impl KeyStyle {
    pub const ALL: [Self; 6] =
        [Self::Words, Self::Dense, Self::Short, Self::Prefixed, Self::Nested, Self::Ragged];
    /// Styles of keys that all have one size.
    pub const FIXED: [Self; 3] = [Self::Words, Self::Dense, Self::Prefixed];
}

/// Sizes of keys and values, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Sizes {
    /// Size of all keys, or of the longest.
    pub key: usize,
    /// Size of all values, or of the longest.
    pub value: usize,
    /// Whether all keys have one size, and all values.
    pub fixed: bool,
}

/// Draws per wanted key after which a style counts as exhausted.
const MISSES_PER_KEY: usize = 16;

/// Draws `count` keys, ascending.
pub fn draw_keys(random: &Random, style: KeyStyle, sizes: Sizes, count: usize) -> Vec<Vec<u8>> {
    let below = |n: usize| ((random.next() >> 32) as usize) % n;
    let byte = || [0x00, 0x01, b'a', b'b', b'm', 0xfe, 0xff][below(7)];
    let beginning: Vec<u8> = (0..sizes.key.saturating_sub(4)).map(|_| byte()).collect();
    let mut keys = BTreeSet::new();
    for number in 0.. {
        if keys.len() == count {
            break;
        }
        let mut key = match style {
            KeyStyle::Words => random.next().to_be_bytes().to_vec(),
            KeyStyle::Dense => {
                [&vec![0; sizes.key.saturating_sub(2)][..], &(number as u16).to_be_bytes()].concat()
            }
            KeyStyle::Short => (0..1 + below(4)).map(|_| byte()).collect(),
            KeyStyle::Prefixed => [&beginning[..], &(number as u32).to_be_bytes()[2..]].concat(),
            KeyStyle::Nested => vec![if number % 2 == 0 { 0x00 } else { b'n' }; number / 2],
            KeyStyle::Ragged => (0..below(sizes.key + 1)).map(|_| byte()).collect(),
        };
        if key.len() > sizes.key || number > MISSES_PER_KEY * count {
            // The style has no further key, or none that is short enough: draw any bytes.
            key = (0..sizes.key).map(|_| random.next() as u8).collect();
        }
        if sizes.fixed {
            key.resize(sizes.key, 0);
        }
        keys.insert(key);
    }
    keys.into_iter().collect()
}

/// All values that were stored or seen, by number. Number 0 is not used.
#[derive(Default)]
pub struct Values {
    numbers: HashMap<(u32, Vec<u8>), Value>,
    list: Vec<(u32, Vec<u8>)>,
}

impl Values {
    /// Number of `bytes` as a value of `key`.
    pub fn number(&mut self, key: u32, bytes: &[u8]) -> Value {
        let next = self.list.len() as Value + 1;
        let number = *self.numbers.entry((key, bytes.to_vec())).or_insert(next);
        if number == next {
            self.list.push((key, bytes.to_vec()));
        }
        number
    }

    pub fn bytes(&self, value: Value) -> &[u8] {
        &self.list[value as usize - 1].1
    }
}

/// Draws the bytes of the value that an operation stores.
pub fn draw_value(random: &Random, sizes: Sizes, long_share: f64, operation: u64) -> Vec<u8> {
    let drawn = random.next();
    let below = |n: u64| (drawn >> 8) % n;
    let len = match sizes.fixed {
        true => sizes.value,
        false if (drawn >> 40) as f64 / (1u64 << 24) as f64 >= 1.0 - long_share => {
            65 + below(sizes.value as u64 - 64) as usize
        }
        false if drawn.is_multiple_of(32) => return Vec::new(),
        false => 8 + below(57) as usize,
    };
    let filler = Random::new(operation);
    let mut bytes = operation.to_le_bytes().to_vec();
    while bytes.len() < len {
        bytes.extend_from_slice(&filler.next().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_style_gives_as_many_keys_as_are_wanted_in_order() {
        for style in [
            KeyStyle::Words,
            KeyStyle::Dense,
            KeyStyle::Short,
            KeyStyle::Prefixed,
            KeyStyle::Nested,
            KeyStyle::Ragged,
        ] {
            for (key, fixed) in [(8, true), (16, true), (128, false)] {
                let keys = draw_keys(&Random::new(5), style, Sizes { key, value: 8, fixed }, 300);
                assert!(keys.is_sorted() && keys.len() == 300, "{style:?}");
                assert!(keys.iter().all(|k| k.len() <= key && (!fixed || k.len() == key)), "{style:?}");
            }
        }
    }

    #[test]
    fn values_differ_unless_they_are_empty() {
        let random = Random::new(9);
        let sizes = Sizes { key: 8, value: 3_000, fixed: false };
        let drawn: Vec<_> = (0..2_000).map(|n| draw_value(&random, sizes, 0.1, n)).collect();
        let empty = drawn.iter().filter(|bytes| bytes.is_empty()).count();
        let different: BTreeSet<_> = drawn.iter().collect();
        assert!(empty > 10 && different.len() == drawn.len() - empty + 1);
        assert!(drawn.iter().any(|bytes| bytes.len() > 2_000));
    }
}
