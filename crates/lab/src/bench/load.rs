//! Sorted records for the bulk load.
//!
//! They are computed while they are read, so 200 million of them take no memory. Only random integers are not
//! in the order of the records: they are sorted in advance and take 8 bytes each.

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;

use pando::SortedSource;
use pando_workload::{KeyCodec, KeySpace, ValueCodec, loaded_key};

use super::driver::Shared;
use super::testbed::joined;

/// The loaded records of a workload in the order of their keys.
pub(crate) struct Generated {
    keys: KeyCodec,
    values: ValueCodec,
    /// Random integers of the keys in ascending order, in pieces. Empty for dense keys.
    pieces: Vec<Vec<u64>>,
    /// Number of records to load.
    records: u64,
}

impl Generated {
    /// Records of `keys`; `threads` threads sort them if they need sorting.
    pub fn new(keys: KeyCodec, values: ValueCodec, threads: usize) -> Generated {
        let pieces = match keys.space() {
            KeySpace::Dense | KeySpace::Packed => Vec::new(),
            KeySpace::Random64 => sorted_integers(&keys, threads as u64),
        };
        Generated { keys, values, pieces, records: keys.records() }
    }

    /// The same, for an index that is empty at first.
    pub fn without_records(self) -> Generated {
        Generated { records: 0, ..self }
    }

    /// Passes the key numbers of the records in `range` to `each`, in the order of their keys.
    fn key_numbers<E>(&self, range: Range<u64>, mut each: impl FnMut(u64) -> Result<(), E>) -> Result<(), E> {
        if self.pieces.is_empty() {
            return range.into_iter().try_for_each(|record| each(loaded_key(record)));
        }
        let mut first = 0;
        for piece in &self.pieces {
            let len = piece.len() as u64;
            let within = |position: u64| position.saturating_sub(first).min(len) as usize;
            for &integer in &piece[within(range.start)..within(range.end)] {
                each(self.keys.key_number(integer).expect("the integer was made from a key number"))?;
            }
            first += len;
        }
        Ok(())
    }
}

impl SortedSource for Generated {
    fn len(&self) -> u64 {
        self.records
    }

    fn visit(
        &self,
        range: Range<u64>,
        each: &mut dyn FnMut(&[u8], &[u8]) -> Result<(), pando::IndexError>,
    ) -> Result<(), pando::IndexError> {
        let mut key = vec![0; self.keys.size()];
        let mut value = vec![0; self.values.size()];
        self.key_numbers(range, |key_number| {
            self.keys.encode(key_number, &mut key);
            self.values.write(key_number, 0, &mut value);
            each(&key, &value)
        })
    }
}

/// A source that fails when the run must stop. `shared.done` counts the loaded entries.
pub(crate) struct Interruptible<'s> {
    source: Generated,
    shared: &'s Shared,
}

impl<'s> Interruptible<'s> {
    pub fn new(source: Generated, shared: &'s Shared) -> Self {
        Self { source, shared }
    }
}

impl SortedSource for Interruptible<'_> {
    fn len(&self) -> u64 {
        self.source.len()
    }

    fn visit(
        &self,
        range: Range<u64>,
        each: &mut dyn FnMut(&[u8], &[u8]) -> Result<(), pando::IndexError>,
    ) -> Result<(), pando::IndexError> {
        if self.shared.stop.load(Relaxed) {
            return Err(pando::IndexError::Layout("the load was interrupted".to_owned()));
        }
        let end = range.end;
        self.source.visit(range, each)?;
        self.shared.done.fetch_max(end, Relaxed);
        Ok(())
    }
}

/// Sorts the integers of all loaded records; each thread sorts one part of the key space.
fn sorted_integers(keys: &KeyCodec, threads: u64) -> Vec<Vec<u64>> {
    thread::scope(|scope| {
        let pieces: Vec<_> = (0..threads)
            .map(|part| {
                scope.spawn(move || {
                    let part = keys.partition(part, threads);
                    let all = (0..keys.records()).map(|record| keys.integer(loaded_key(record)));
                    let mut piece: Vec<u64> = all.filter(|&integer| part.contains(integer)).collect();
                    piece.sort_unstable();
                    piece
                })
            })
            .collect();
        pieces.into_iter().map(joined).collect()
    })
}

/// Boundaries of equal partitions: the first keys of compute servers 1, 2, ...
pub(crate) fn boundaries(keys: &KeyCodec, servers: usize) -> Vec<Vec<u8>> {
    let servers = servers as u64;
    (1..servers).map(|server| lowest_key(keys, keys.partition(server, servers).first)).collect()
}

/// Lowest key that begins with `integer`, big-endian: its low bytes if keys are short, else filled up with
/// zeros.
pub(crate) fn lowest_key(keys: &KeyCodec, integer: u64) -> Vec<u8> {
    let bytes = integer.to_be_bytes();
    let mut key = bytes[8 - keys.size().min(8)..].to_vec();
    key.resize(keys.size(), 0);
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collect(source: &Generated, range: Range<u64>) -> Vec<Vec<u8>> {
        let mut keys = Vec::new();
        let mut each = |key: &[u8], _: &[u8]| {
            keys.push(key.to_vec());
            Ok(())
        };
        source.visit(range, &mut each).expect("the visitor does not fail");
        keys
    }

    #[test]
    fn records_come_in_the_order_of_their_keys_from_any_position() {
        for (space, threads) in [(KeySpace::Dense, 1), (KeySpace::Random64, 1), (KeySpace::Random64, 3)] {
            for size in [3, 8, 20] {
                let codec = KeyCodec::new(space, size, 1000).expect("fits");
                let source = Generated::new(codec, ValueCodec::new(8), threads);
                let all = collect(&source, 0..1000);
                assert_eq!(all.len(), 1000);
                assert!(all.is_sorted_by(|a, b| a < b));
                assert_eq!(collect(&source, 300..700), all[300..700]);
            }
        }
    }

    #[test]
    fn boundaries_divide_keys_as_partitions_do() {
        for (space, size) in
            [(KeySpace::Dense, 8), (KeySpace::Random64, 8), (KeySpace::Dense, 16), (KeySpace::Random64, 3)]
        {
            let codec = KeyCodec::new(space, size, 1000).expect("fits");
            let boundaries = boundaries(&codec, 4);
            for number in 0..codec.key_numbers() {
                let key = codec.encode_vec(number);
                let server = boundaries.partition_point(|boundary| *boundary <= key) as u64;
                assert!(
                    codec.partition(server, 4).contains(codec.integer(number)),
                    "{space} {size} {number}"
                );
            }
        }
    }
}
