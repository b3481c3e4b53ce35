//! Checks the answer of a scan against an [`Expectation`]: order, completeness, and each record's value.
//!
//! In a dense key space the keys that a scan must pass are known beforehand, so what is certain about each is
//! noted before the scan starts, and a key left out is noticed. In a random space the next key is anybody's
//! guess; there the order is checked, and that each record is one that exists.

use crate::expectation::{Expectation, Floor, Violation};
use crate::keys::{KeyCodec, KeySpace, is_loaded};

/// The check of one scan at a time; reusable, so that its buffer is allocated once per thread.
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
    /// What was certain when the scan began, from key number `start` on. Dense spaces only.
    floors: Vec<Floor>,
    start: u64,
    /// In a dense space the lowest key number, in a random space the lowest integer, that may come next.
    next: u64,
    /// Records still to come.
    left: u32,
}

impl ScanCheck {
    /// A check for scans over the keys of a workload.
    pub fn new(keys: KeyCodec) -> ScanCheck {
        ScanCheck { keys, floors: Vec::new(), start: 0, next: 0, left: 0 }
    }

    /// Notes what is certain now. Call it before a scan of `len` records from `start_key` (a key number) on
    /// starts.
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
            KeySpace::Random64 => self.next = self.keys.integer(start_key),
        }
    }

    /// Checks the next record of the answer: its key number and the sequence of its value.
    ///
    /// # Errors
    /// When the record cannot come next or cannot have that value, or a key before it was left out.
    pub fn record(&mut self, expected: &Expectation, key_number: u64, found: u32) -> Result<(), Violation> {
        let out_of_order = Violation::OutOfOrder { key_number };
        self.left = self.left.checked_sub(1).ok_or(out_of_order)?;
        if self.keys.space() == KeySpace::Random64 {
            let integer = self.keys.integer(key_number);
            if integer < self.next {
                return Err(out_of_order);
            }
            // Past the last integer no key can come; a second one there is a repetition.
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

    /// Checks that the answer was complete when it ended.
    ///
    /// # Errors
    /// When fewer records came than were asked for and more were there.
    pub fn end(&self) -> Result<(), Violation> {
        if self.left == 0 || self.keys.space() == KeySpace::Random64 {
            return Ok(());
        }
        self.check_left_out(self.next..self.keys.key_numbers())
    }

    /// None of these key numbers was certainly present when the scan began.
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
