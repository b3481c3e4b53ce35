//! A hash table from lists to numbers, divided into several smaller tables by key (DAPD 2022 §5.4).
//!
//! The paper found the look-up in one large table to be a bottleneck and divided it. Its tables use robin-hood
//! hashing; the parts here are tables of the standard library with a multiplicative hash.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::ListId;

/// Multiplies by the golden ratio and folds the halves of the product. The offsets of lists are distinct and not
/// chosen by an adversary.
#[derive(Clone, Copy, Debug, Default)]
struct Multiply(u64);

impl Hasher for Multiply {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }

    #[inline]
    fn write_u64(&mut self, key: u64) {
        let product = u128::from(self.0 ^ key) * 0x9e37_79b9_7f4a_7c15;
        self.0 = product as u64 ^ (product >> 64) as u64;
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

/// Numbers of lists.
#[derive(Clone, Debug)]
pub(super) struct Table {
    parts: Vec<HashMap<ListId, u32, BuildHasherDefault<Multiply>>>,
}

impl Table {
    /// An empty table in `parts` parts, which are brought between 1 and 65,536.
    pub(super) fn new(parts: usize) -> Self {
        Self { parts: vec![HashMap::default(); parts.clamp(1, 1 << 16)] }
    }

    /// Another multiplier than the hash's, so that the keys of a part differ in all bits of their hashes.
    #[inline]
    fn part(&self, list: ListId) -> usize {
        let high = list.0.wrapping_mul(0xd6e8_feb8_6659_fd93) >> 32;
        ((high * self.parts.len() as u64) >> 32) as usize
    }

    #[inline]
    pub(super) fn get(&self, list: ListId) -> Option<u32> {
        self.parts[self.part(list)].get(&list).copied()
    }

    pub(super) fn insert(&mut self, list: ListId, number: u32) {
        let part = self.part(list);
        self.parts[part].insert(list, number);
    }

    pub(super) fn remove(&mut self, list: ListId) -> Option<u32> {
        let part = self.part(list);
        self.parts[part].remove(&list)
    }

    pub(super) fn len(&self) -> usize {
        self.parts.iter().map(HashMap::len).sum()
    }

    /// Memory of all parts in bytes: an entry and a byte of control for each place, of which 7 in 8 can be used.
    pub(super) fn bytes(&self) -> u64 {
        let usable: usize = self.parts.iter().map(HashMap::capacity).sum();
        (usable * 8 / 7 * (size_of::<(ListId, u32)>() + 1)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_in_parts_is_a_map() {
        for parts in [0, 1, 3, 64] {
            let mut table = Table::new(parts);
            (0..1_000).for_each(|i| table.insert(ListId(i * 30), i as u32));
            assert_eq!(table.len(), 1_000);
            assert!((0..1_000).all(|i| table.get(ListId(i * 30)) == Some(i as u32)));
            assert_eq!((table.get(ListId(7)), table.remove(ListId(7))), (None, None));
            assert_eq!((table.remove(ListId(60)), table.get(ListId(60))), (Some(2), None));
            let sizes: Vec<usize> = table.parts.iter().map(HashMap::len).collect();
            assert!(sizes.iter().all(|&size| size > 500 / sizes.len()), "{sizes:?}");
        }
    }
}
