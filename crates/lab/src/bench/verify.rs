//! Final scan: compares the whole index with the expected entries; each thread scans a part of the keys.
//!
//! Order, keys, values and their sequences are checked entry by entry. In a dense key space a lost key is
//! noticed where it is missing; in a random one only the number of keys shows that some are lost.

use std::ops::{Bound, RangeInclusive};
use std::sync::atomic::Ordering::Relaxed;

use pando::{KeyRange, ScanRange};
use pando_workload::{Expectation, KeyCodec, KeySpace, ValueCodec, Violation};

use super::BenchError;
use super::driver::{Shared, Tally};
use super::load::lowest_key;
use super::testbed::{Stage, Testbed};
use crate::under_test::{Client, Port, SystemUnderTest};

/// Entries between two updates of the progress.
const STRIDE: u64 = 4096;

/// Result of the final scan.
#[derive(Clone, Debug, Default)]
pub(crate) struct Verified {
    pub entries: u64,
    /// Wrong entries and lost keys.
    pub tally: Tally,
}

/// Scans the whole index. No operation may be in flight.
pub(crate) fn whole_index(
    testbed: &impl Testbed,
    stage: &Stage<'_>,
    expected: &Expectation,
) -> Result<Verified, BenchError> {
    let Shared { keys, values, .. } = *stage.shared;
    let of = stage.spec.total_threads() as u64;
    let scans = (0..of).map(|part| {
        let owned = keys.partition(part, of);
        let low = Some(lowest_key(&keys, owned.first));
        let high = (part + 1 < of).then(|| lowest_key(&keys, owned.last + 1));
        // The last part also contains the integers beyond all key numbers.
        let end = if part + 1 < of { owned.last } else { u64::MAX };
        FinalScan::new(keys, values, expected, owned.first..=end, KeyRange { low, high })
    });
    let mut verified = Verified::default();
    let mut present = 0;
    for scan in testbed.final_scans(stage, scans.collect())? {
        let (entries, surely_present, tally) = scan.finish();
        verified.entries += entries;
        present += surely_present;
        verified.tally.add(&tally);
    }
    let lost = expected.present_count().saturating_sub(present);
    let noticed = verified.tally.wrong;
    if lost > noticed {
        verified.tally.wrong(format_args!("{lost} keys that must be there were not found by the final scan"));
        verified.tally.wrong = lost;
    }
    Ok(verified)
}

/// Scans the part of the index that `scan` covers.
pub(crate) async fn perform<S: SystemUnderTest<P>, P: Port>(
    client: Client<'_, S, P>,
    shared: &Shared,
    scan: &mut FinalScan<'_>,
) -> Result<(), BenchError> {
    let KeyRange { low, high } = scan.range.clone();
    let range = ScanRange {
        low: low.as_deref().map_or(Bound::Unbounded, Bound::Included),
        high: high.as_deref().map_or(Bound::Unbounded, Bound::Excluded),
        ..ScanRange::all()
    };
    let scanned = client.scan(&range, |key, value| {
        scan.entry(key, value);
        if scan.entries.is_multiple_of(STRIDE) {
            shared.done.fetch_add(STRIDE, Relaxed);
            return !shared.stop.load(Relaxed);
        }
        true
    });
    scanned.await.map(drop).map_err(BenchError::index)
}

/// Checks the entries of one part in the order of the scan.
pub(crate) struct FinalScan<'a> {
    /// Keys to scan.
    range: KeyRange,
    keys: KeyCodec,
    values: ValueCodec,
    expected: &'a Expectation,
    previous: Option<Vec<u8>>,
    /// For a dense space: the first key number not passed yet, and the last one of this part.
    next: u64,
    last: u64,
    entries: u64,
    surely_present: u64,
    tally: Tally,
}

impl<'a> FinalScan<'a> {
    /// A scan of `range`, in which the keys with these numbers lie.
    fn new(
        keys: KeyCodec,
        values: ValueCodec,
        expected: &'a Expectation,
        numbers: RangeInclusive<u64>,
        range: KeyRange,
    ) -> Self {
        let last = (*numbers.end()).min(keys.key_numbers() - 1);
        let tally = Tally::default();
        Self {
            range,
            keys,
            values,
            expected,
            previous: None,
            next: *numbers.start(),
            last,
            entries: 0,
            surely_present: 0,
            tally,
        }
    }

    fn entry(&mut self, key: &[u8], value: &[u8]) {
        self.entries += 1;
        if self.previous.as_deref().is_some_and(|previous| previous >= key) {
            self.tally.wrong("the final scan gave keys out of order");
        }
        let previous = self.previous.get_or_insert_default();
        previous.clear();
        previous.extend_from_slice(key);
        let Some(number) = self.keys.decode(key) else {
            return self.tally.wrong("the final scan found a key that was never loaded or inserted");
        };
        if self.keys.space() == KeySpace::Dense {
            self.left_out(number);
            self.next = self.next.max(number + 1);
        }
        self.surely_present += u64::from(self.expected.surely_present(number));
        let floor = self.expected.before_read(number);
        match self.values.check(number, value) {
            Err(error) => self.tally.wrong(format_args!("key number {number}: {error}")),
            Ok(sequence) => {
                if let Err(violation) = self.expected.check_read(number, floor, Some(sequence)) {
                    self.tally.wrong(violation);
                }
            }
        }
    }

    /// Counts keys from `next` to before `end` as lost if they must be present.
    fn left_out(&mut self, end: u64) {
        for key_number in self.next..end {
            if self.expected.surely_present(key_number) {
                self.tally.wrong(Violation::Missing { key_number });
            }
        }
    }

    fn finish(mut self) -> (u64, u64, Tally) {
        if self.keys.space() == KeySpace::Dense {
            self.left_out(self.last + 1);
        }
        (self.entries, self.surely_present, self.tally)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan_of(numbers: &[u64], damage: Option<u64>) -> (u64, u64, Tally) {
        let (keys, values) = (KeyCodec::new(KeySpace::Dense, 8, 10).expect("fits"), ValueCodec::new(8));
        let expected = Expectation::new(10, &values).expect("memory");
        let sequence = expected.issue(3);
        expected.ack(3, sequence);
        let mut scan = FinalScan::new(keys, values, &expected, 0..=u64::MAX, KeyRange::all());
        for &number in numbers {
            let of = if damage == Some(number) { number + 2 } else { number };
            scan.entry(&keys.encode_vec(number), &values.write_vec(of, u32::from(number == 3)));
        }
        scan.finish()
    }

    #[test]
    fn a_right_index_passes_and_every_kind_of_wrong_one_is_noticed() {
        let right = [0, 2, 3, 4, 6, 8, 10, 12, 14, 16, 18];
        let (entries, present, tally) = scan_of(&right, None);
        assert_eq!((entries, present, tally.wrong), (11, 11, 0), "{:?}", tally.complaints);
        assert_eq!(scan_of(&right[..10], None).2.wrong, 1, "the last key is lost");
        assert_eq!(
            scan_of(&[0, 2, 4, 6, 8, 10, 12, 14, 16, 18], None).2.wrong,
            1,
            "the inserted key is lost"
        );
        assert_eq!(scan_of(&[0, 2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 18], None).2.wrong, 1, "a key too many");
        assert!(scan_of(&[0, 3, 2, 4, 6, 8, 10, 12, 14, 16, 18], None).2.wrong > 0, "out of order");
        assert_eq!(scan_of(&right, Some(12)).2.wrong, 1, "the value of another key");
    }
}
