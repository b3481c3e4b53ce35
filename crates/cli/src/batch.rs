//! Rows gathered in memory and sorted: input of a bulk load, or of inserts in key order, so that neighbours
//! go into the same cached leaf.
//!
//! All bytes are in one buffer. A row is 24 bytes: its position and the first 8 bytes of its key, which
//! decide nearly all comparisons.

use std::ops::Range;

use pando::SortedSource;

/// Position of a row in the buffer.
#[derive(Clone, Copy, Debug)]
struct Row {
    /// The first 8 bytes of the key, padded with zeros, as a big-endian integer.
    head: u64,
    /// Offset of the key; the value follows.
    at: usize,
    key_len: u32,
    value_len: u32,
}

/// Gathered rows.
#[derive(Debug, Default)]
pub struct Batch {
    bytes: Vec<u8>,
    rows: Vec<Row>,
}

impl Batch {
    /// Adds a row. Keys and values must be shorter than 4 GiB; the index refuses longer ones before.
    pub fn push(&mut self, key: &[u8], value: &[u8]) {
        let mut head = [0; 8];
        let len = key.len().min(8);
        head[..len].copy_from_slice(&key[..len]);
        self.rows.push(Row {
            head: u64::from_be_bytes(head),
            at: self.bytes.len(),
            key_len: key.len() as u32,
            value_len: value.len() as u32,
        });
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
    }

    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Memory of the rows in bytes.
    pub fn memory(&self) -> u64 {
        (self.bytes.len() + self.rows.len() * size_of::<Row>()) as u64
    }

    /// Sorts the rows by key. Of rows with equal keys only the last one stays; returns the number of removed
    /// rows.
    pub fn sort(&mut self) -> u64 {
        let Batch { bytes, rows } = self;
        let key = |row: &Row| &bytes[row.at..row.at + row.key_len as usize];
        rows.sort_unstable_by(|a, b| {
            a.head.cmp(&b.head).then_with(|| key(a).cmp(key(b))).then(a.at.cmp(&b.at))
        });
        let before = rows.len();
        // `dedup_by` keeps the first of two equal rows, so copy the later row over it.
        rows.dedup_by(|later, kept| {
            let same = later.head == kept.head && key(later) == key(kept);
            if same {
                *kept = *later;
            }
            same
        });
        (before - rows.len()) as u64
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
        self.rows.clear();
    }

    /// Key and value of a row.
    pub fn row(&self, number: usize) -> (&[u8], &[u8]) {
        let row = self.rows[number];
        let value_at = row.at + row.key_len as usize;
        (&self.bytes[row.at..value_at], &self.bytes[value_at..value_at + row.value_len as usize])
    }
}

impl SortedSource for Batch {
    fn len(&self) -> u64 {
        self.rows.len() as u64
    }

    fn visit(
        &self,
        range: Range<u64>,
        each: &mut dyn FnMut(&[u8], &[u8]) -> Result<(), pando::IndexError>,
    ) -> Result<(), pando::IndexError> {
        (range.start as usize..range.end as usize).try_for_each(|number| {
            let (key, value) = self.row(number);
            each(key, value)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn sorted_rows_are_those_of_a_map(
            rows in prop::collection::vec(
                (prop::collection::vec(prop_oneof![Just(0u8), Just(1), any::<u8>()], 0..12), any::<u16>()), 0..200,
            ),
        ) {
            let mut batch = Batch::default();
            let mut map = BTreeMap::new();
            for (key, value) in &rows {
                batch.push(key, &value.to_le_bytes());
                map.insert(key.clone(), value.to_le_bytes().to_vec());
            }
            prop_assert_eq!(batch.sort(), (rows.len() - map.len()) as u64);
            let sorted: Vec<_> = (0..batch.len()).map(|i| batch.row(i)).map(|(k, v)| (k.to_vec(), v.to_vec())).collect();
            prop_assert_eq!(sorted, map.into_iter().collect::<Vec<_>>());
        }
    }
}
