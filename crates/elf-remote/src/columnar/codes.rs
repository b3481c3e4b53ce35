//! Codes of further columns for rows that were found.
//!
//! A search knows where its rows are in preorder. On each level a row is either below an entry, which is found by
//! the first rows of the entries, or has a strip code. Entries that are not cached are READ as a whole, strip codes
//! batch by batch and only those of the rows.

use std::ops::Range;

use pando_elf::{CodeSlice, Filter, NumberSlice};

use super::{Entries, Trie};
use crate::error::{Attempt, damaged};
use crate::fetch::{Access, Fetch, Parts};
use crate::receiver::{FoundRows, Rows};

/// Rows whose strip codes are READ together.
const BATCH_ROWS: usize = 1 << 16;

impl Trie {
    /// Bytes of the levels down to the last condition of `filter`, as far as they may have to be READ.
    pub fn bytes_of_levels(&self, filter: &Filter) -> u64 {
        let levels = self.sections.levels.iter().enumerate().take(filter.depth());
        let bytes = levels.map(|(number, level)| {
            let entries = if self.is_cached[number] { 0 } else { level.codes.start - level.values.start };
            let codes = if filter.level(number).is_some() { level.codes.len() } else { 0 };
            (entries + codes) as u64
        });
        bytes.sum()
    }

    /// Codes of the wanted levels for the rows of a search, in the order of their ids.
    pub async fn codes<A: Access>(&self, fetch: &mut Fetch<'_, A>, mut rows: Rows) -> Attempt<FoundRows> {
        let mut order: Vec<usize> = (0..rows.places.len()).collect();
        order.sort_unstable_by_key(|&row| rows.places[row]);
        let places: Vec<usize> = order.iter().map(|&row| rows.places[row] as usize).collect();
        for (at, &level) in rows.levels.iter().enumerate() {
            let codes = self.codes_at(fetch, level, &places).await?;
            rows.codes[at].resize(codes.len(), 0);
            order.iter().zip(codes).for_each(|(&row, code)| rows.codes[at][row] = code);
        }
        Ok(rows.in_order())
    }

    /// Codes of a level for rows at ascending places.
    async fn codes_at<A: Access>(
        &self,
        fetch: &mut Fetch<'_, A>,
        level: usize,
        places: &[usize],
    ) -> Attempt<Vec<u32>> {
        let sections = &self.sections.levels[level];
        let all = 0..sections.entries;
        let fetched = match self.is_cached[level] || sections.entries == 0 {
            true => Parts::default(),
            false => fetch.read(self.places(level, &all, true)?.to_vec()).await?,
        };
        let entries = match sections.entries {
            0 => None,
            _ => Some(self.entries(level, &all, true, &fetched)?),
        };
        let mut codes = Vec::with_capacity(places.len());
        let mut behind = 0;
        for places in places.chunks(BATCH_ROWS) {
            // 1. Rows below entries.
            let mut strips = Vec::new();
            for &place in places {
                let found = match &entries {
                    None => Place::Strip(place),
                    Some(entries) => self.place_of(level, entries, &mut behind, place)?,
                };
                match found {
                    Place::Entry(code) => codes.push(code),
                    Place::Strip(strip) => {
                        strips.push((codes.len(), strip));
                        codes.push(0);
                    }
                }
            }
            // 2. The others have strip codes.
            let range = |strip: usize| strip..strip + 1;
            let wanted = strips.iter().map(|&(_, strip)| self.code_place(level, range(strip)));
            let parts = fetch.read(wanted.collect::<Attempt<_>>()?).await?;
            for (row, strip) in strips {
                let place = self.code_place(level, range(strip))?;
                let code = parts.get(&place).and_then(|bytes| CodeSlice::open(bytes, sections.code_bytes));
                let code = code.ok_or_else(|| damaged(place.start, "a code of a strip is missing"))?;
                codes[row] = code.get(0);
            }
        }
        Ok(codes)
    }

    fn code_place(&self, level: usize, strips: Range<usize>) -> Attempt<Range<u64>> {
        let sections = &self.sections.levels[level];
        Self::place(&sections.codes, strips, sections.code_bytes)
    }

    /// Where the code of the row at `place` is. `behind` is the number of entries that begin at or before the row
    /// looked up last, which is not behind this one.
    fn place_of(
        &self,
        level: usize,
        entries: &Entries<'_>,
        behind: &mut usize,
        place: usize,
    ) -> Attempt<Place> {
        let at = self.sections.levels[level].starts.start as u64;
        let wrong = || damaged(at, "the entries of a level do not cover its rows");
        *behind += leading(entries.starts, *behind, self.sections.levels[level].entries, place as u64);
        if let Some(last) = behind.checked_sub(1) {
            let rows = entries.rows(&(last..last + 1)).ok_or_else(wrong)?;
            if rows.contains(&place) {
                return Ok(Place::Entry(entries.values.ok_or_else(wrong)?.get(last)));
            }
        }
        let covered = entries.covered_before(*behind).filter(|&covered| covered <= place);
        Ok(Place::Strip(place - covered.ok_or_else(wrong)?))
    }
}

enum Place {
    /// Below an entry with this value.
    Entry(u32),
    /// In this strip code of the level.
    Strip(usize),
}

/// Number of entries from `from` on, of `entries`, that begin at `place` or before; a search that widens by doubling.
fn leading(starts: NumberSlice<'_>, from: usize, entries: usize, place: u64) -> usize {
    let counts = |i: usize| starts.get(i) <= place;
    let left = entries - from;
    let mut reach = 1;
    while reach <= left && counts(from + reach - 1) {
        reach *= 2;
    }
    let known = reach / 2;
    known + starts.slice(from + known..from + left.min(reach)).partition_point(|start| start <= place)
}
