//! Breadth-first search of a columnar image, most of which is in remote memory.
//!
//! Level by level, all lists that may match are known before the level is looked at, so that one round trip
//! gets what is not cached of it. What remains are *runs*: rows that follow each other in preorder and have no
//! entries on the deeper levels. Their strips on all levels with a condition are READ together and compared;
//! then the ids of the rows that match are READ. With a cached trie a query takes two round trips.
//!
//! What the cached levels tell is known before the first READ ([`Walk`]), so what the rest will cost can be
//! estimated.

mod codes;
mod take;

use std::ops::Range;

use pando_elf::{BLOCK_ROWS, CodeSlice, Filter, Interval, Kernel, NumberSlice, Sections, Sink};
use pando_fabric::Work;

use crate::costs::Estimate;
use crate::error::{Attempt, damaged};
use crate::fetch::{Access, Fetch, ListPart, Parts};
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

/// Entries that a search in a list looks at, about.
const SEARCH_STEPS: usize = 16;

/// Consecutive rows in preorder without entries on deeper levels.
#[derive(Clone, Debug)]
struct Run {
    rows: Range<usize>,
    /// First entry behind the run, on the level that the walk has reached.
    next_entry: usize,
}

/// A walk through the entries, as far as it has come.
#[derive(Debug)]
pub(crate) struct Walk {
    /// The next level.
    level: usize,
    /// What may match there, in nonempty ranges.
    lists: Vec<Below>,
    /// Rows below the entries of `lists`.
    rows: u64,
    /// Entries of the lists that were searched.
    entries: u64,
    /// What that took: lists that were searched, and entries that were found.
    steps: usize,
    found: Runs,
}

/// Result of a walk through the entries.
#[derive(Debug, Default)]
struct Runs {
    /// In the order of the levels at whose entries they begin.
    runs: Vec<Run>,
    /// For each level with a condition, from the top: how many rows before each run above have no strip there.
    covered: Vec<Vec<usize>>,
}

/// A list of the next level, and the rows below it.
#[derive(Debug)]
struct Below {
    list: Range<usize>,
    rows: u64,
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
    async fn fetch_level<A: Access>(
        &self,
        fetch: &mut Fetch<'_, A>,
        level: usize,
        lists: &[Below],
        runs: &[Run],
        with_values: bool,
    ) -> Attempt<Parts> {
        if self.is_at_hand(level) {
            return Ok(Parts::default());
        }
        let mut wanted = Vec::new();
        for Below { list, rows } in lists {
            let part = |bytes| ListPart { bytes, rows: *rows };
            wanted.extend(self.places(level, list, with_values)?.map(part));
        }
        for run in runs {
            let part = |bytes| ListPart { bytes, rows: run.rows.len() as u64 };
            let positions = self.places(level, &(run.next_entry..run.next_entry), false)?;
            wanted.extend(positions.map(part));
        }
        fetch.read_lists(wanted).await
    }

    /// Begins a walk with what is cached.
    pub fn begin(&self, filter: &Filter) -> Attempt<Walk> {
        let root = 0..self.sections.levels[0].entries;
        let (rows, found) = (self.rows, Runs::default());
        let mut walk =
            Walk { level: 0, lists: vec![Below { list: root, rows }], rows, entries: 0, steps: 0, found };
        if filter.depth() == 0 {
            walk.found.runs.push(Run { rows: 0..rows as usize, next_entry: 0 });
            (walk.lists, walk.rows) = (Vec::new(), 0);
        }
        while walk.level < filter.depth() && self.is_at_hand(walk.level) {
            self.step(&mut walk, &Parts::default(), filter)?;
        }
        Ok(walk)
    }

    /// Whether a level needs no READ.
    fn is_at_hand(&self, level: usize) -> bool {
        self.is_cached[level] || self.sections.levels[level].entries == 0
    }

    /// Takes a walk through its next level, whose entries are cached or in `fetched`.
    fn step(&self, walk: &mut Walk, fetched: &Parts, filter: &Filter) -> Attempt<()> {
        let (level, condition) = (walk.level, filter.level(walk.level));
        self.pass_runs(level, condition.is_some(), fetched, &mut walk.found)?;
        let mut below: Vec<Below> = Vec::new();
        for Below { list, .. } in std::mem::take(&mut walk.lists) {
            let entries = self.entries(level, &list, condition.is_some(), fetched)?;
            walk.entries += list.len() as u64;
            walk.steps += SEARCH_STEPS;
            for matching in entries.matching(&list, condition) {
                walk.steps += matching.len();
                let is_last = level + 1 == filter.depth();
                self.split(&entries, matching, is_last, &mut walk.found.runs, &mut below)?;
            }
        }
        below.retain(|below| !below.list.is_empty());
        walk.rows = below.iter().map(|below| below.rows).sum();
        (walk.level, walk.lists) = (level + 1, below);
        Ok(())
    }

    /// Walks through the rest of the entries down to the last level with a condition.
    async fn finish_walk<A: Access>(
        &self,
        fetch: &mut Fetch<'_, A>,
        filter: &Filter,
        walk: &mut Walk,
    ) -> Attempt<()> {
        while walk.level < filter.depth() {
            let (level, has_condition) = (walk.level, filter.level(walk.level).is_some());
            let fetched =
                self.fetch_level(fetch, level, &walk.lists, &walk.found.runs, has_condition).await?;
            self.step(walk, &fetched, filter)?;
        }
        Ok(())
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
        below: &mut Vec<Below>,
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
                let rows = entries.rows(&(i..i + 1)).map_or(0, |rows| rows.len() as u64);
                below.push(Below { list: entries.child(i)..entries.child(i + 1), rows });
                i += 1;
            }
        }
        Ok(())
    }

    /// Share of the entries of a level's lists that are expected to match, as if values were evenly spaced.
    fn share(&self, level: usize, filter: &Filter) -> f64 {
        let Some(intervals) = filter.level(level) else { return 1.0 };
        let width = |interval: &Interval| f64::from(interval.high - interval.low) + 1.0;
        let entries = self.sections.levels[level].entries as f64;
        let lists = level.checked_sub(1).map_or(1, |above| self.sections.levels[above].entries);
        let len = entries / lists.max(1) as f64;
        (intervals.iter().map(width).sum::<f64>() / len.max(1.0)).min(1.0)
    }

    /// What the rest of a search is expected to need.
    pub fn estimate(&self, filter: &Filter, walk: &Walk, wants_ids: bool) -> Estimate {
        let levels = &self.sections.levels;
        let mut all = Estimate { walked: walk.entries as f64, ..Estimate::default() };
        if walk.lists.is_empty() && walk.found.runs.is_empty() {
            return all;
        }
        // 1. Below the lists: what is left at each level of what the conditions above leave.
        let mut share = walk.rows as f64 / self.rows.max(1) as f64;
        let mut lists = walk.lists.len() as f64;
        for (level, sections) in levels.iter().enumerate().take(filter.depth()).skip(walk.level) {
            if !self.is_at_hand(level) {
                all.bytes += (sections.codes.start - sections.values.start) as f64 * share;
                all.reads += 4.0 * lists;
                all.trips += 1.0;
            }
            if filter.level(level).is_some() {
                all.bytes += sections.codes.len() as f64 * share;
            }
            share *= self.share(level, filter);
            lists = (lists * 2.0).min(sections.entries as f64 * share).max(1.0);
        }
        let mut compared = share * self.rows as f64;
        // 2. The runs, which are known.
        for (number, run) in walk.found.runs.iter().enumerate() {
            let rows = run.rows.len() as f64;
            let above = self.strips(&walk.found, number, filter).into_iter().map(|strip| strip.code_bytes);
            let below = filter.constrained_from(walk.level).iter().map(|&level| levels[level].code_bytes);
            let strips: Vec<usize> = above.chain(below).collect();
            all.bytes += rows * strips.iter().sum::<usize>() as f64;
            all.reads += strips.len() as f64;
            if strips.is_empty() { all.taken += rows } else { compared += rows }
        }
        all.compared = compared;
        all.trips += f64::from(u8::from(compared > 0.0));
        if wants_ids {
            // Ids of rows that are taken come with the strips.
            all.trips += f64::from(u8::from(compared > 0.0 || all.taken > 0.0 && all.trips == 0.0));
            all.bytes += all.taken * self.number_bytes as f64;
            all.reads += walk.found.runs.len() as f64;
        }
        all
    }

    /// Gives `out` the rows that match `filter`.
    pub async fn finish<A: Access, S: Sink>(
        &self,
        fetch: &mut Fetch<'_, A>,
        filter: &Filter,
        mut walk: Walk,
        out: &mut Receiver<'_, S>,
    ) -> Attempt<()> {
        self.finish_walk(fetch, filter, &mut walk).await?;
        fetch.charge(Work::Entries { count: walk.steps });
        let found = walk.found;
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
