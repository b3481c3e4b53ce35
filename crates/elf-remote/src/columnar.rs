//! Breadth-first search of a columnar image, most of which is in remote memory.
//!
//! Level by level, all lists that may match are known before the level is looked at, so that one round trip
//! gets what is not cached of it. What remains are *runs*: rows that follow each other in preorder and have no
//! entries on the deeper levels. Their strips on all levels with a condition are READ together and compared;
//! then the ids of the rows that match are READ. With a cached trie a query takes two round trips.

mod codes;
mod take;

use std::ops::Range;

use pando_elf::{BLOCK_ROWS, CodeSlice, Filter, Interval, Kernel, NumberSlice, Sections, Sink};
use pando_fabric::Endpoint;

use crate::error::{Attempt, damaged};
use crate::fetch::{Fetch, Parts};
use crate::receiver::Receiver;
use take::Segment;

/// What is known of an image without READs.
#[derive(Debug)]
pub(crate) struct Trie {
    pub sections: Sections,
    pub rows: u64,
    pub id_bound: u64,
    pub number_bytes: usize,
    /// Levels whose entries are cached.
    pub is_cached: Vec<bool>,
    /// Entries of the cached levels.
    pub cached: Parts,
    pub kernel: Kernel,
}

/// Consecutive rows in preorder without entries on deeper levels.
#[derive(Clone, Debug)]
struct Run {
    rows: Range<usize>,
    /// First entry behind the run, on the level that the walk has reached.
    next_entry: usize,
}

/// Result of a walk through the entries.
#[derive(Debug, Default)]
struct Runs {
    /// In the order of the levels at whose entries they begin.
    runs: Vec<Run>,
    /// For each level with a condition, from the top: how many rows before each run above have no strip there.
    covered: Vec<Vec<usize>>,
}

/// Entries of a level that are at hand.
struct Entries<'a> {
    /// Number of the first one.
    first: usize,
    values: Option<CodeSlice<'a>>,
    starts: NumberSlice<'a>,
    strips: Option<NumberSlice<'a>>,
    children: Option<NumberSlice<'a>>,
}

impl Entries<'_> {
    fn start(&self, i: usize) -> usize {
        self.starts.at(i - self.first)
    }

    fn strip(&self, i: usize) -> usize {
        self.strips.map_or(0, |strips| strips.at(i - self.first))
    }

    fn child(&self, i: usize) -> usize {
        self.children.map_or(0, |children| children.at(i - self.first))
    }

    /// Rows below the entries before entry `i`; `None` if positions are damaged.
    fn covered_before(&self, i: usize) -> Option<usize> {
        self.start(i).checked_sub(self.strip(i))
    }

    /// Rows from entry `entries.start` to the last of `entries`.
    fn rows(&self, entries: &Range<usize>) -> Option<Range<usize>> {
        let strips = self.strip(entries.end).checked_sub(self.strip(entries.end - 1))?;
        Some(self.start(entries.start)..self.start(entries.end).checked_sub(strips)?)
    }

    /// Entries of `list` that meet the condition, in nonempty ranges.
    fn matching(&self, list: &Range<usize>, condition: Option<&[Interval]>) -> Vec<Range<usize>> {
        let (Some(intervals), Some(values)) = (condition, self.values) else { return vec![list.clone()] };
        let mut rest = list.start - self.first..list.end - self.first;
        let mut matching = Vec::new();
        for interval in intervals {
            let first = values.lower_bound(rest.clone(), interval.low);
            let end = values.upper_bound(first..rest.end, interval.high);
            if first < end {
                matching.push(first + self.first..end + self.first);
            }
            rest.start = end;
        }
        matching
    }
}

impl Trie {
    /// Bytes of the numbers `range` of a section whose numbers have `width` bytes.
    fn place(section: &Range<usize>, range: Range<usize>, width: usize) -> Attempt<Range<u64>> {
        let bytes = section.len() / width;
        if range.start > range.end || range.end > bytes {
            return Err(damaged(section.start as u64, "it leads to entries behind the end of a level"));
        }
        let at = |i: usize| (section.start + i * width) as u64;
        Ok(at(range.start)..at(range.end))
    }

    /// Bytes of the image with `entries` of a level: values, starts, strips and children. An empty range is one
    /// position.
    fn places(&self, level: usize, entries: &Range<usize>, with_values: bool) -> Attempt<[Range<u64>; 4]> {
        let sections = &self.sections.levels[level];
        let values = if with_values { entries.clone() } else { 0..0 };
        let numbers = |section: &Range<usize>| match section.is_empty() {
            true => Ok(0..0),
            false => Self::place(section, entries.start..entries.end + 1, self.number_bytes),
        };
        let values = Self::place(&sections.values, values, sections.code_bytes)?;
        Ok([values, numbers(&sections.starts)?, numbers(&sections.strips)?, numbers(&sections.children)?])
    }

    /// Opens `entries` of a level, which are cached or in `fetched`.
    fn entries<'a>(
        &'a self,
        level: usize,
        entries: &Range<usize>,
        with_values: bool,
        fetched: &'a Parts,
    ) -> Attempt<Entries<'a>> {
        let parts = if self.is_cached[level] { &self.cached } else { fetched };
        let [values, starts, strips, children] = self.places(level, entries, with_values)?;
        let missing = || damaged(starts.start, "a level has not the entries that lead to it");
        let bytes = |place: &Range<u64>| parts.get(place).ok_or_else(missing);
        let numbers = |place: &Range<u64>| -> Attempt<Option<NumberSlice<'a>>> {
            match place.is_empty() {
                true => Ok(None),
                false => Ok(NumberSlice::open(bytes(place)?, self.number_bytes)),
            }
        };
        Ok(Entries {
            first: entries.start,
            values: match with_values {
                true => CodeSlice::open(bytes(&values)?, self.sections.levels[level].code_bytes),
                false => None,
            },
            starts: numbers(&starts)?.ok_or_else(missing)?,
            strips: numbers(&strips)?,
            children: numbers(&children)?,
        })
    }

    /// READs what is not cached of a level: `lists`, and the positions behind `runs`.
    async fn fetch_level<E: Endpoint>(
        &self,
        fetch: &mut Fetch<'_, E>,
        level: usize,
        lists: &[Range<usize>],
        runs: &[Run],
        with_values: bool,
    ) -> Attempt<Parts> {
        if self.is_cached[level] || self.sections.levels[level].entries == 0 {
            return Ok(Parts::default());
        }
        let mut wanted = Vec::new();
        for list in lists {
            wanted.extend(self.places(level, list, with_values)?);
        }
        for run in runs {
            wanted.extend(self.places(level, &(run.next_entry..run.next_entry), false)?);
        }
        fetch.read(wanted).await
    }

    /// Walks through the entries down to the last level with a condition.
    async fn walk<E: Endpoint>(&self, fetch: &mut Fetch<'_, E>, filter: &Filter) -> Attempt<Runs> {
        let mut found = Runs::default();
        if filter.depth() == 0 {
            found.runs.push(Run { rows: 0..self.rows as usize, next_entry: 0 });
            return Ok(found);
        }
        let root = 0..self.sections.levels[0].entries;
        let mut lists = vec![root];
        for level in 0..filter.depth() {
            lists.retain(|list| !list.is_empty());
            let condition = filter.level(level);
            let fetched = self.fetch_level(fetch, level, &lists, &found.runs, condition.is_some()).await?;
            self.pass_runs(level, condition.is_some(), &fetched, &mut found)?;
            let mut below = Vec::new();
            for list in &lists {
                let entries = self.entries(level, list, condition.is_some(), &fetched)?;
                for matching in entries.matching(list, condition) {
                    let is_last = level + 1 == filter.depth();
                    self.split(&entries, matching, is_last, &mut found.runs, &mut below)?;
                }
            }
            lists = below;
        }
        Ok(found)
    }

    /// Leads the runs from above through `level`.
    fn pass_runs(&self, level: usize, has_condition: bool, fetched: &Parts, found: &mut Runs) -> Attempt<()> {
        let at = self.sections.levels[level].starts.start as u64;
        let mut covered = Vec::new();
        for run in &mut found.runs {
            let mut before = 0;
            if self.sections.levels[level].entries > 0 {
                let entries = self.entries(level, &(run.next_entry..run.next_entry), false, fetched)?;
                let found = entries.covered_before(run.next_entry).filter(|&before| before <= run.rows.start);
                before = found.ok_or_else(|| damaged(at, "an entry covers rows of a bucket"))?;
                run.next_entry = entries.child(run.next_entry);
            } else {
                run.next_entry = 0;
            }
            if has_condition {
                covered.push(before);
            }
        }
        if has_condition {
            found.covered.push(covered);
        }
        Ok(())
    }

    /// Divides matching neighbours of a list into runs and lists of the next level.
    fn split(
        &self,
        entries: &Entries<'_>,
        matching: Range<usize>,
        is_last: bool,
        runs: &mut Vec<Run>,
        lists: &mut Vec<Range<usize>>,
    ) -> Attempt<()> {
        let mut i = matching.start;
        while i < matching.end {
            let is_bucket = |i: usize| is_last || entries.child(i) == entries.child(i + 1);
            let buckets = (i..matching.end).take_while(|&i| is_bucket(i)).count();
            if buckets > 0 {
                let rows = entries.rows(&(i..i + buckets)).filter(|rows| rows.start <= rows.end);
                let rows = rows.filter(|rows| rows.end as u64 <= self.rows);
                let rows = rows.ok_or_else(|| damaged(0, "an entry covers rows that do not exist"))?;
                runs.push(Run { rows, next_entry: entries.child(i) });
                i += buckets;
            } else {
                lists.push(entries.child(i)..entries.child(i + 1));
                i += 1;
            }
        }
        Ok(())
    }

    /// Gives `out` the rows that match `filter`.
    pub async fn search<E: Endpoint, S: Sink>(
        &self,
        fetch: &mut Fetch<'_, E>,
        filter: &Filter,
        out: &mut Receiver<'_, S>,
    ) -> Attempt<()> {
        if filter.is_empty() || self.rows == 0 {
            return Ok(());
        }
        let found = self.walk(fetch, filter).await?;
        let mut batch = Vec::new();
        let mut bytes = 0;
        for (number, run) in found.runs.iter().enumerate() {
            let strips = self.strips(&found, number, filter);
            let rows = run.rows.len() as u64;
            match strips.is_empty() {
                true => fetch.cost.rows_taken += rows,
                false => fetch.cost.rows_compared += rows,
            }
            if strips.is_empty() && !out.wants_ids() {
                out.count(rows);
                continue;
            }
            let row_bytes = strips.iter().map(|strip| strip.code_bytes).sum::<usize>() + self.number_bytes;
            let most = fetch.options.batch_bytes as usize / row_bytes / BLOCK_ROWS * BLOCK_ROWS;
            for first in run.rows.clone().step_by(most.max(BLOCK_ROWS)) {
                let rows = first..run.rows.end.min(first + most.max(BLOCK_ROWS));
                bytes += (rows.len() * row_bytes) as u64;
                batch.push(Segment { rows, strips: strips.clone() });
                if bytes >= fetch.options.batch_bytes {
                    self.take(fetch, &std::mem::take(&mut batch), filter, out).await?;
                    bytes = 0;
                }
            }
        }
        self.take(fetch, &batch, filter, out).await
    }
}
