//! Checks the result of a scan against an [`Expectation`]: order, completeness, and each record's value.
//!
//! In a dense key space the keys on the path of a scan are known in advance, so the certain facts about each
//! are recorded before the scan starts, and a missing key is detected. In a random space the next key is not
//! known; there the order is checked, and that each record exists.

use crate::expectation::{Expectation, Floor, Violation};
use crate::keys::{KeyCodec, KeySpace, is_loaded};

/// Checks one scan at a time; reusable, so that its buffer is allocated once per thread.
///
/// ```
/// # use pando_workload::*;
/// let keys = KeyCodec::new(KeySpace::Dense, 8, 1000)?;
/// let expected = Expectation::new(1000, &ValueCodec::new(8))?;
/// let mut check = ScanCheck::new(keys);
/// check.begin(&expected, loaded_key(10), 2);
/// check.record(&expected, loaded_key(10), 0)?;
/// check.record(&expected, loaded_key(11), 0)?;
/// check.end()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ScanCheck {
    keys: KeyCodec,
    /// Certain facts when the scan began, from key number `start` on. Dense spaces only.
    floors: Vec<Floor>,
    start: u64,
    /// The lowest key number (dense space) or integer (random space) that may come next.
    next: u64,
    /// Records still expected.
    left: u32,
}

impl ScanCheck {
    /// Creates a check for scans over the keys of a workload.
    pub fn new(keys: KeyCodec) -> ScanCheck {
        ScanCheck { keys, floors: Vec::new(), start: 0, next: 0, left: 0 }
    }

    /// Records what is certain now. Call it before a scan of `len` records starts at `start_key` (a key
    /// number).
    pub fn begin(&mut self, expected: &Expectation, start_key: u64, len: u32) {
        self.left = len;
        self.start = start_key;
        self.floors.clear();
        match self.keys.space() {
            KeySpace::Dense => {
                self.next = start_key;
                // Loaded keys are always present, so `len` records lie within twice as many key numbers.
                let end = self.keys.key_numbers().min(start_key.saturating_add(2 * u64::from(len)));
                self.floors.extend((start_key..end).map(|key_number| expected.before_read(key_number)));
            }
            KeySpace::Packed | KeySpace::Random64 => self.next = self.keys.integer(start_key),
        }
    }

    /// Checks the next record of the result: its key number and the sequence of its value.
    ///
    /// # Errors
    /// The record cannot come next or cannot have that value, or a key before it is missing.
    pub fn record(&mut self, expected: &Expectation, key_number: u64, found: u32) -> Result<(), Violation> {
        let out_of_order = Violation::OutOfOrder { key_number };
        self.left = self.left.checked_sub(1).ok_or(out_of_order)?;
        if self.keys.space() != KeySpace::Dense {
            let integer = self.keys.integer(key_number);
            if integer < self.next {
                return Err(out_of_order);
            }
            // No key can follow the last integer; a second one there is a repetition.
            self.next = integer.saturating_add(1);
            return expected.check_exists(key_number);
        }
        if key_number < self.next {
            return Err(out_of_order);
        }
        self.check_left_out(self.next..key_number)?;
        self.next = key_number + 1;
        let before = self.floors.get((key_number - self.start) as usize).ok_or(out_of_order)?;
        expected.check_read(key_number, *before, Some(found))
    }

    /// Checks that the result was complete when it ended.
    ///
    /// # Errors
    /// There were fewer records than requested although more exist.
    pub fn end(&self) -> Result<(), Violation> {
        if self.left == 0 || self.keys.space() != KeySpace::Dense {
            return Ok(());
        }
        self.check_left_out(self.next..self.keys.key_numbers())
    }

    /// Checks that none of these key numbers was certainly present when the scan began.
    fn check_left_out(&self, numbers: std::ops::Range<u64>) -> Result<(), Violation> {
        for key_number in numbers {
            let floor = self.floors.get((key_number - self.start) as usize);
            if floor.map_or(is_loaded(key_number), |floor| floor.is_present()) {
                return Err(Violation::Missing { key_number });
            }
        }
        Ok(())
    }
}
