//! Dates and times in UTC, for names and lists of backups.
//!
//! The calendar is the Gregorian one in cycles of 400 years, each of which has 146,097 days. Years begin in March, so
//! that the day that some years lack is the last one of a year.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A time to the second, after 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Utc {
    year: u64,
    month: u64,
    day: u64,
    seconds: u64,
}

impl Utc {
    pub fn of(time: SystemTime) -> Self {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
        // Days since 0000-03-01.
        let days = since / 86_400 + 719_468;
        let (cycle, of_cycle) = (days / 146_097, days % 146_097);
        let year = (of_cycle - of_cycle / 1_460 + of_cycle / 36_524 - of_cycle / 146_096) / 365;
        let of_year = of_cycle - (365 * year + year / 4 - year / 100);
        let from_march = (5 * of_year + 2) / 153;
        let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
        Self {
            year: 400 * cycle + year + u64::from(month <= 2),
            month,
            day: of_year - (153 * from_march + 2) / 5 + 1,
            seconds: since % 86_400,
        }
    }

    fn clock(self) -> [u64; 3] {
        [self.seconds / 3_600, self.seconds / 60 % 60, self.seconds % 60]
    }

    /// As in `20261126T203612Z`.
    pub fn compact(self) -> String {
        let (Self { year, month, day, .. }, [hour, minute, second]) = (self, self.clock());
        format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z")
    }

    /// As in `2026-11-26 20:36:12 UTC`.
    pub fn readable(self) -> String {
        let (Self { year, month, day, .. }, [hour, minute, second]) = (self, self.clock());
        format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_of_all_kinds_of_years_are_known() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_399, "2000-02-28 23:59:59 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (951_868_800, "2000-03-01 00:00:00 UTC"),
            (1_735_689_599, "2024-12-31 23:59:59 UTC"),
            (1_795_725_372, "2026-11-26 20:36:12 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
        ] {
            assert_eq!(Utc::of(UNIX_EPOCH + Duration::from_secs(seconds)).readable(), text);
        }
        assert_eq!(Utc::of(UNIX_EPOCH).compact(), "19700101T000000Z");
    }
}
