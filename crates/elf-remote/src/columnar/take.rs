//! The rows of runs: their strips are READ and compared, then the ids of those that match are READ.
//!
//! A count needs no ids. Ids are READ together with the strips if there are so few that another round trip would
//! cost more.

use std::ops::Range;

use pando_elf::{BLOCK_ROWS, CodeSlice, Filter, Interval, NumberSlice, Sink};

use super::{Runs, Trie};
use crate::error::{Attempt, damaged};
use crate::fetch::{Access, Fetch, Parts};
use crate::receiver::{Receiver, check_tids};

/// Rows whose matches are one mask.
const WORD: usize = 64;

/// Codes of a run's rows on one level.
#[derive(Clone, Copy, Debug)]
pub(super) struct Strip {
    level: usize,
    pub code_bytes: usize,
    /// Rows before the run that have no code there.
    covered: usize,
}

/// Rows of a run that are taken together.
#[derive(Debug)]
pub(super) struct Segment {
    pub rows: Range<usize>,
    pub strips: Vec<Strip>,
}

impl Trie {
    /// Strips of a run on the levels with a condition on which it has no entries.
    pub(super) fn strips(&self, found: &Runs, run: usize, filter: &Filter) -> Vec<Strip> {
        let strip = |(&level, covered): (&usize, &Vec<usize>)| {
            let code_bytes = self.sections.levels[level].code_bytes;
            Some(Strip { level, code_bytes, covered: *covered.get(run)? })
        };
        filter.constrained().iter().zip(&found.covered).filter_map(strip).collect()
    }

    fn strip_place(&self, strip: &Strip, rows: &Range<usize>) -> Attempt<Range<u64>> {
        let codes = &self.sections.levels[strip.level].codes;
        Self::place(codes, rows.start - strip.covered..rows.end - strip.covered, strip.code_bytes)
    }

    fn tids_place(&self, rows: Range<usize>) -> Attempt<Range<u64>> {
        Self::place(&self.sections.tids, rows, self.number_bytes)
    }

    fn tids<'a>(&self, rows: Range<usize>, parts: &'a Parts) -> Attempt<NumberSlice<'a>> {
        let place = self.tids_place(rows)?;
        let tids = parts.get(&place).and_then(|bytes| NumberSlice::open(bytes, self.number_bytes));
        let tids = tids.ok_or_else(|| damaged(place.start, "row ids are missing"))?;
        check_tids(tids, self.id_bound, place.start)?;
        Ok(tids)
    }

    /// READs strips and compares them, then READs the ids of the rows that match.
    pub(super) async fn take<A: Access, S: Sink>(
        &self,
        fetch: &mut Fetch<'_, A>,
        batch: &[Segment],
        filter: &Filter,
        out: &mut Receiver<'_, S>,
    ) -> Attempt<()> {
        let compared = batch.iter().filter(|segment| !segment.strips.is_empty());
        let tid_bytes = compared.map(|segment| segment.rows.len() * self.number_bytes).sum::<usize>() as u64;
        // Ids that may not be needed cost less than another round trip if they are few.
        let takes_all = out.wants_ids() && tid_bytes <= fetch.options.round_trip_bytes;
        let mut wanted = Vec::new();
        for segment in batch {
            for strip in &segment.strips {
                wanted.push(self.strip_place(strip, &segment.rows)?);
            }
            if takes_all || segment.strips.is_empty() {
                wanted.push(self.tids_place(segment.rows.clone())?);
            }
        }
        let parts = fetch.read(wanted).await?;
        let mut matching = Vec::new();
        for segment in batch {
            match segment.strips.is_empty() {
                true => out.span(segment.rows.start, self.tids(segment.rows.clone(), &parts)?),
                false => self.compare(segment, &parts, filter, &mut matching)?,
            }
        }
        if !out.wants_ids() {
            out.count(matching.iter().map(|(_, mask)| u64::from(mask.count_ones())).sum());
            return Ok(());
        }
        let fetched = if takes_all { None } else { Some(self.fetch_tids(fetch, &matching).await?) };
        for (row, mask) in matching {
            let (rows, mask) = trim(row, mask);
            let place = rows.start;
            out.masked(place, self.tids(rows, fetched.as_ref().unwrap_or(&parts))?, mask);
        }
        Ok(())
    }

    async fn fetch_tids<A: Access>(
        &self,
        fetch: &mut Fetch<'_, A>,
        matching: &[(usize, u64)],
    ) -> Attempt<Parts> {
        let places = matching.iter().map(|&(row, mask)| self.tids_place(trim(row, mask).0));
        fetch.read(places.collect::<Attempt<_>>()?).await
    }

    /// Appends the masks of rows of `segment` that meet all conditions, each with its first row.
    fn compare(
        &self,
        segment: &Segment,
        parts: &Parts,
        filter: &Filter,
        matching: &mut Vec<(usize, u64)>,
    ) -> Attempt<()> {
        for first in segment.rows.clone().step_by(BLOCK_ROWS) {
            let rows = first..segment.rows.end.min(first + BLOCK_ROWS);
            let mut conditions = Vec::with_capacity(segment.strips.len());
            for strip in &segment.strips {
                let place = self.strip_place(strip, &rows)?;
                let codes = parts.get(&place).and_then(|bytes| CodeSlice::open(bytes, strip.code_bytes));
                let codes = codes.ok_or_else(|| damaged(place.start, "codes of a strip are missing"))?;
                conditions.push((codes, filter.level(strip.level).unwrap_or(&[Interval::ALL])));
            }
            let take = |row, mask| matching.push((first + row, mask));
            self.kernel.select(rows.len(), conditions.into_iter(), take);
        }
        Ok(())
    }
}

/// The rows from the first to the last in `mask`, which begins at `row`, and their mask.
fn trim(row: usize, mask: u64) -> (Range<usize>, u64) {
    let (low, high) = (mask.trailing_zeros() as usize, WORD - mask.leading_zeros() as usize);
    (row + low..row + high, mask >> low)
}
