//! RunSize-tiered policy: which runs to merge next.
//!
//! A run is of tier `t` if it has between `fan_in^t` and `fan_in^(t+1)` times as many rows as a full buffer.
//! As soon as `fan_in` of the newest runs are of one tier, they are merged with the smaller ones among them.
//! So each row is rewritten about once per tier, and there are fewer than `fan_in` runs per tier. Merged runs
//! are neighbours, since parts are in the order of row ids. A run of which more than half is deleted is
//! rewritten.

use std::ops::Range;

/// Size of a run, as the policy sees it.
#[derive(Clone, Copy, Debug)]
pub struct RunSize {
    pub rows: u64,
    pub deleted: u64,
}

/// Which runs to merge next. Sizes are those of all runs, oldest first.
pub fn next_merge(sizes: &[RunSize], buffer_rows: u64, fan_in: u64) -> Option<Range<usize>> {
    let tier = |size: &RunSize| (size.rows / buffer_rows.max(1)).max(1).ilog(fan_in.max(2));
    let highest = sizes.iter().map(tier).max().unwrap_or(0);
    for limit in 0..=highest {
        let first = sizes.iter().rposition(|size| tier(size) > limit).map_or(0, |larger| larger + 1);
        let of_tier = sizes[first..].iter().filter(|size| tier(size) == limit).count();
        if of_tier as u64 >= fan_in.max(2) {
            return Some(first..sizes.len());
        }
    }
    let hollow = sizes.iter().position(|size| size.deleted > size.rows / 2)?;
    Some(hollow..hollow + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_a_tier_are_merged_together() {
        let next = |rows: &[u64]| {
            let sizes: Vec<RunSize> = rows.iter().map(|&rows| RunSize { rows, deleted: 0 }).collect();
            next_merge(&sizes, 10, 4)
        };
        assert_eq!(next(&[]), None);
        assert_eq!(next(&[10, 10, 10]), None);
        assert_eq!(next(&[10, 3, 10, 39]), Some(0..4));
        assert_eq!(next(&[1000, 40, 10, 10, 10]), None);
        assert_eq!(next(&[1000, 40, 10, 10, 10, 10]), Some(2..6));
        assert_eq!(next(&[1000, 40, 40, 40, 40, 10]), Some(1..6));
        let hollow = [(100, 0), (40, 21), (10, 0)].map(|(rows, deleted)| RunSize { rows, deleted });
        assert_eq!(next_merge(&hollow, 10, 4), Some(1..2));
    }
}
