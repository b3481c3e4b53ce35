//! Rows of a file that were rejected, for `--max-rejects`.
//!
//! They are counted, and the reasons of the first ones are kept: for the summary, and for the failure if there are
//! more than the user allows.

use pando_lab::units;

use crate::failure::{self, Failure};

/// Number of rejected rows quoted in the summary.
const REJECTED_QUOTED: usize = 20;
/// Number of rejected rows quoted in the failure if there are too many.
const REFUSED_QUOTED: usize = 5;

/// Rejected rows: their number, and the first reasons.
#[derive(Debug, Default)]
pub struct Rejects {
    count: u64,
    first: Vec<String>,
}

impl Rejects {
    pub fn count(&self) -> u64 {
        self.count
    }

    pub fn add(&mut self, reason: impl FnOnce() -> String) {
        self.count += 1;
        if self.first.len() < REJECTED_QUOTED {
            self.first.push(reason());
        }
    }

    /// Whether so many rows are rejected that the failure would not quote further ones.
    pub fn is_hopeless(&self, max: u64) -> bool {
        self.count >= max.saturating_add(REFUSED_QUOTED as u64)
    }

    /// Checks the number of rejected rows.
    ///
    /// # Errors
    /// If there are more than `max`; the error quotes the first ones.
    pub fn check(&self, max: u64) -> Result<(), Failure> {
        if self.count <= max {
            return Ok(());
        }
        let first: Vec<&str> = self.first.iter().take(REFUSED_QUOTED).map(String::as_str).collect();
        Err(Failure::failed(format_args!(
            "more than {} rows are rejected, which is all that --max-rejects allows; the first: {}",
            units::count(max),
            first.join("; ")
        )))
    }

    /// Tells which rows were rejected.
    pub fn tell(&self) {
        if self.count == 0 {
            return;
        }
        failure::tell(format_args!("{} rows were rejected:", units::count(self.count)));
        self.first.iter().for_each(|reason| failure::tell(format_args!("  {reason}")));
        let more = self.count - self.first.len() as u64;
        if more > 0 {
            failure::tell(format_args!("  and {} more", units::count(more)));
        }
    }
}
