//! Search of a linear image, most of which is in remote memory.
//!
//! Every subtree is contiguous, and the pointer behind an entry's own tells where its subtree ends: this is the
//! entry's *span*, the unit of READs. A short span is READ as a whole, whatever of it is needed, which saves
//! round trips. Of a longer one the list is READ: the pointer of its first entry tells how long it is, since the
//! subtrees follow the list. Spans that are known at the same time are READ together.
//!
//! Upper levels are cached as their lists. Below them, an exact match is one READ.

use std::mem::replace;
use std::ops::Range;

use pando_elf::linear::{ABSENT, END, MONO_NARROW, MONO_WIDE};
use pando_elf::{Count, Filter, Interval, Sink};
use pando_fabric::Work;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, IntoBytes};

use crate::costs::Estimate;
use crate::error::{Attempt, damaged};
use crate::fetch::{Access, Fetch, PART_BYTES, Parts};
use crate::receiver::Receiver;

const WORD_BYTES: u64 = 4;
/// Words of a long span that are READ first: most lists and all but the longest runs of row ids end there.
const FRONT_WORDS: u64 = 256;

/// What is known of an image without READs.
#[derive(Debug)]
pub(crate) struct Spans {
    /// First byte of the array within the image.
    pub array_at: u64,
    pub array_words: u64,
    pub first_list: u64,
    pub pointer_words: usize,
    pub columns: usize,
    pub rows: u64,
    pub id_bound: u64,
    pub cached_levels: usize,
    /// Lists of the cached levels.
    pub cached: Parts,
}

/// A part of the array: a list and its subtrees, or a MonoList.
#[derive(Clone, Copy, Debug)]
struct Span {
    level: usize,
    is_mono: bool,
    /// First word.
    at: u64,
    /// No word of the subtree is at or behind it.
    end: u64,
    /// Words up to which it was asked for, once that was done.
    asked: u64,
    /// The value that leads here, in the [`Paths`] of the search.
    path: usize,
}

impl Span {
    /// Whether it is a list that is READ without its subtrees.
    fn is_kept(&self) -> bool {
        !self.is_mono && self.asked < self.end
    }
}

/// Values that lead to spans, each with the one above it; nothing if they are not wanted.
#[derive(Debug, Default)]
struct Paths {
    is_wanted: bool,
    values: Vec<(usize, u32)>,
}

impl Paths {
    /// The path that extends `above` by `value`.
    fn extend(&mut self, above: usize, value: u32) -> usize {
        if self.is_wanted {
            self.values.push((above, value));
        }
        self.values.len()
    }

    /// The values of a path of `len` values, from the top.
    fn values(&self, mut path: usize, len: usize) -> Vec<u32> {
        let mut values = vec![0; if self.is_wanted { len } else { 0 }];
        for place in values.iter_mut().rev() {
            let Some(&(above, value)) = path.checked_sub(1).and_then(|at| self.values.get(at)) else { break };
            (*place, path) = (value, above);
        }
        values
    }
}

/// A search, as far as it has come.
#[derive(Debug)]
pub(crate) struct Search {
    /// Whether the first list was looked at.
    is_begun: bool,
    /// Spans that are needed up to a word.
    missing: Vec<(Span, u64)>,
    paths: Paths,
}

/// Result of looking at a span.
enum Seen {
    Done,
    /// The span is needed up to this word.
    Needs(u64),
}

/// A decoded pointer.
#[derive(Clone, Copy)]
struct Pointer {
    is_mono: bool,
    at: u64,
}

impl Spans {
    fn pointer(&self, words: &[U32]) -> Option<Pointer> {
        match *words {
            [low] => {
                let low = low.get();
                let at = u64::from(low & !MONO_NARROW);
                (low != ABSENT).then_some(Pointer { is_mono: low & MONO_NARROW != 0, at })
            }
            [low, high] => {
                let both = u64::from(high.get()) << 32 | u64::from(low.get());
                let pointer = Pointer { is_mono: both & MONO_WIDE != 0, at: both & !MONO_WIDE };
                (both != u64::MAX).then_some(pointer)
            }
            _ => None,
        }
    }

    fn byte(&self, word: u64) -> u64 {
        self.array_at + word * WORD_BYTES
    }

    fn damage(&self, word: u64, what: &'static str) -> crate::error::Retry {
        damaged(self.byte(word), what)
    }

    /// Words from word `at` on, as far as they are at hand.
    fn words<'a>(&'a self, at: u64, fetched: &'a Parts) -> &'a [U32] {
        let bytes = match self.cached.from(self.byte(at)) {
            [] => fetched.from(self.byte(at)),
            cached => cached,
        };
        let whole = bytes.len() / WORD_BYTES as usize * WORD_BYTES as usize;
        <[U32]>::ref_from_bytes(&bytes[..whole]).unwrap_or_default()
    }

    fn child(&self, parent: &Span, pointer: Pointer, end: u64) -> Attempt<Span> {
        if pointer.at <= parent.at || pointer.at >= end || end > parent.end {
            return Err(self.damage(parent.at, "an entry leads out of its subtree"));
        }
        let (is_mono, at) = (pointer.is_mono, pointer.at);
        Ok(Span { level: parent.level + 1, is_mono, at, end, asked: at, path: parent.path })
    }

    /// Appends the spans below matching entries of a list whose words from the first on are `words`.
    fn open_list(
        &self,
        span: &Span,
        words: &[U32],
        filter: &Filter,
        below: &mut Vec<Span>,
        paths: &mut Paths,
    ) -> Attempt<Seen> {
        let entry_words = 1 + self.pointer_words;
        if span.level >= self.columns {
            return Err(self.damage(span.at, "a list lies below the last level"));
        }
        let words = &words[..words.len().min((span.end - span.at) as usize)];
        let found = below.len();
        let mut entries = words.chunks_exact(entry_words).peekable();
        while let Some(entry) = entries.next() {
            let value = entry[0].get() & !END;
            let is_last = entry[0].get() & END != 0;
            let absent = || self.damage(span.at, "an entry has no pointer");
            let pointer = self.pointer(&entry[1..]).ok_or_else(absent)?;
            // Values ascend: past the last interval nothing matches.
            if filter.level(span.level).is_some_and(|all| all.last().is_none_or(|last| last.high < value)) {
                return Ok(Seen::Done);
            }
            let end = match entries.peek() {
                _ if is_last => span.end,
                Some(next) => self.pointer(&next[1..]).ok_or_else(absent)?.at,
                None => break,
            };
            if filter.admits(span.level, value) {
                let path = paths.extend(span.path, value);
                below.push(Span { path, ..self.child(span, pointer, end)? });
            }
            if is_last {
                return Ok(Seen::Done);
            }
        }
        below.truncate(found);
        // The subtree of the first entry follows the list.
        let list_end = words.get(1..entry_words).and_then(|pointer| self.pointer(pointer));
        Ok(Seen::Needs(list_end.map_or(span.at + FRONT_WORDS, |pointer| pointer.at)))
    }

    /// Gives `out` the row ids of a MonoList if its values match.
    fn open_mono<S: Sink>(
        &self,
        span: &Span,
        words: &[U32],
        filter: &Filter,
        out: &mut Receiver<'_, S>,
        paths: &Paths,
    ) -> Attempt<Seen> {
        let words = &words[..words.len().min((span.end - span.at) as usize)];
        let values = self.columns.saturating_sub(span.level);
        let mut levels = words.iter().take(values).zip(span.level..);
        if !levels.all(|(value, level)| filter.admits(level, value.get())) {
            return Ok(Seen::Done);
        }
        let tids = words.get(values..).unwrap_or_default();
        let Some(last) = tids.iter().position(|tid| tid.get() & END != 0) else {
            let front = span.at + values as u64 + FRONT_WORDS;
            return Ok(Seen::Needs(if words.is_empty() { front } else { span.end }));
        };
        let above = paths.values(span.path, span.level);
        let code = |level: usize| match above.get(level) {
            Some(&code) => code,
            None => words.get(level - above.len()).map_or(0, |value| value.get()),
        };
        for tid in &tids[..=last] {
            let tid = u64::from(tid.get() & !END);
            if tid >= self.id_bound {
                return Err(self.damage(span.at, "a row id is not below the bound of its manifest"));
            }
            out.tid(tid, code);
        }
        Ok(Seen::Done)
    }

    /// The array as the span of the first list.
    fn root(&self) -> Span {
        Span { level: 0, is_mono: false, at: 0, end: self.array_words, asked: 0, path: 0 }
    }

    /// Places of the matching values in the first list, each with the end of the pointers that are needed.
    fn first_ranges(&self, filter: &Filter) -> Vec<(Range<u64>, u64)> {
        let mut ranges = Vec::new();
        for interval in filter.level(0).unwrap_or(&[Interval::ALL]) {
            let end = self.first_list.min(u64::from(interval.high) + 1);
            if u64::from(interval.low) < end {
                // The next pointer behind the last value tells where its subtree ends.
                let known =
                    if self.cached_levels > 0 { self.first_list } else { self.first_list.min(end + 1) };
                ranges.push((u64::from(interval.low)..end, known));
            }
        }
        ranges
    }

    /// Bytes of pointers of the first list.
    fn pointers(&self, range: Range<u64>) -> Range<u64> {
        let width = self.pointer_words as u64;
        self.byte(range.start * width)..self.byte(range.end * width)
    }

    /// READs the pointers of the matching values in the first list.
    async fn fetch_first<A: Access>(&self, fetch: &mut Fetch<'_, A>, filter: &Filter) -> Attempt<Parts> {
        let ranges = self.first_ranges(filter).into_iter();
        fetch.read(ranges.map(|(values, known)| self.pointers(values.start..known)).collect()).await
    }

    /// Spans below the matching values of the first list, whose pointers are in `parts`.
    fn open_first(&self, parts: &Parts, filter: &Filter, paths: &mut Paths) -> Attempt<Vec<Span>> {
        let ranges = self.first_ranges(filter);
        let mut spans: Vec<Span> = Vec::new();
        for (values, known) in ranges {
            let words = parts.get(&self.pointers(values.start..known));
            let words = words.and_then(|bytes| <[U32]>::ref_from_bytes(bytes).ok());
            let words = words.ok_or_else(|| self.damage(0, "the first list is too short"))?;
            let pointers = words.chunks_exact(self.pointer_words).zip(values.start..);
            let mut open: Option<(Pointer, usize)> = None;
            for (pointer, value) in pointers {
                if open.is_none() && value >= values.end {
                    break;
                }
                let Some(pointer) = self.pointer(pointer) else { continue };
                if let Some((before, path)) = open.take() {
                    spans.push(Span { path, ..self.child(&self.root(), before, pointer.at)? });
                }
                open = (value < values.end).then(|| (pointer, paths.extend(0, value as u32)));
            }
            if let Some((last, path)) = open {
                spans.push(Span { path, ..self.child(&self.root(), last, self.array_words)? });
            }
        }
        spans.reverse();
        Ok(spans)
    }

    /// Begins a search with what is cached.
    pub fn begin(&self, filter: &Filter, wants_rows: bool) -> Attempt<Search> {
        let paths = Paths { is_wanted: wants_rows, values: Vec::new() };
        let mut search = Search { is_begun: self.cached_levels > 0, missing: Vec::new(), paths };
        if search.is_begun {
            let spans = self.open_first(&self.cached, filter, &mut search.paths)?;
            // MonoLists are not cached, so nothing is found yet.
            let mut out = Receiver::<Count>::new(None);
            self.look(spans, &Parts::default(), filter, &mut search, &mut out)?;
        }
        Ok(search)
    }

    /// Looks at everything that is at hand, depth first. Returns the number of MonoLists.
    fn look<S: Sink>(
        &self,
        mut spans: Vec<Span>,
        fetched: &Parts,
        filter: &Filter,
        search: &mut Search,
        out: &mut Receiver<'_, S>,
    ) -> Attempt<u64> {
        let mut compared = 0;
        while let Some(span) = spans.pop() {
            let words = self.words(span.at, fetched);
            let from = spans.len();
            let seen = match span.is_mono {
                true => self.open_mono(&span, words, filter, out, &search.paths)?,
                false => self.open_list(&span, words, filter, &mut spans, &mut search.paths)?,
            };
            spans[from..].reverse();
            compared += u64::from(span.is_mono && matches!(seen, Seen::Done));
            if let Seen::Needs(end) = seen {
                search.missing.push((span, end));
            }
        }
        Ok(compared)
    }

    /// What the rest of a search is expected to need.
    pub fn estimate(&self, filter: &Filter, search: &Search, round_trip_bytes: u64) -> Estimate {
        let values = |(values, _): (Range<u64>, u64)| values.end - values.start;
        let first = self.first_ranges(filter).into_iter().map(values).sum::<u64>();
        let end =
            (u128::from(self.array_words) * u128::from(first) / u128::from(self.first_list.max(1))) as u64;
        let unknown = [(Span { end, ..self.root() }, 0)];
        let missing = if search.is_begun { &search.missing[..] } else { &unknown };
        let levels = (self.columns - self.cached_levels.min(self.columns)) as u32;
        let (mut bytes, mut trips) = (0.0, 0.0_f64);
        for (span, _) in missing {
            let whole = (span.end - span.at) * WORD_BYTES;
            bytes += whole as f64;
            trips = trips.max(if whole <= round_trip_bytes { 1.0 } else { f64::from(levels.min(3)) });
        }
        // Each condition leaves a part of what is below it, which is learnt as a share of all.
        let rows = bytes / (self.array_words.max(1) * WORD_BYTES) as f64 * self.rows as f64;
        let (taken, compared) = if filter.depth() == 0 { (rows, 0.0) } else { (0.0, rows) };
        Estimate { trips, reads: missing.len() as f64, bytes, walked: 0.0, taken, compared }
    }

    /// Gives `out` the rows that match `filter`.
    pub async fn finish<A: Access, S: Sink>(
        &self,
        fetch: &mut Fetch<'_, A>,
        filter: &Filter,
        mut search: Search,
        out: &mut Receiver<'_, S>,
    ) -> Attempt<()> {
        if !search.is_begun {
            let first = self.fetch_first(fetch, filter).await?;
            let spans = self.open_first(&first, filter, &mut search.paths)?;
            fetch.cost.rows_compared += self.look(spans, &Parts::default(), filter, &mut search, out)?;
        }
        let mut missing: Vec<Span> = Vec::new();
        loop {
            // 1. What was found to be missing, and is not among the lists that are kept.
            let (mut kept, mut copies) = (Vec::new(), Parts::default());
            for (span, end) in search.missing.drain(..) {
                let asked = self.ask(fetch, span, end)?;
                let copy =
                    fetch.lists.filter(|_| asked.is_kept()).and_then(|lists| lists.from(self.byte(span.at)));
                match copy {
                    Some(copy) => {
                        copies.push(self.byte(span.at), copy);
                        kept.push(asked);
                    }
                    None => missing.push(asked),
                }
            }
            if !kept.is_empty() {
                copies.sort();
                kept.reverse();
                fetch.cost.rows_compared += self.look(kept, &copies, filter, &mut search, out)?;
                continue;
            }
            if missing.is_empty() {
                return Ok(());
            }
            // 2. As many of the others as fit into a batch.
            let mut bytes = 0;
            let fits = |span: &&Span| {
                let fits = bytes < fetch.options.batch_bytes.max(1);
                bytes += (span.asked - span.at) * WORD_BYTES;
                fits
            };
            let batch = missing.iter().take_while(fits).count();
            let rest = missing.split_off(batch);
            let mut spans = replace(&mut missing, rest);
            let wanted = spans.iter().map(|span| self.byte(span.at)..self.byte(span.asked));
            let fetched = fetch.read(wanted.collect()).await?;
            self.offer(fetch, &spans, &fetched);
            spans.reverse();
            // 3. All that can be done with them.
            let compared = self.look(spans, &fetched, filter, &mut search, out)?;
            fetch.charge(Work::Entries { count: compared as usize });
            fetch.cost.rows_compared += compared;
        }
    }

    /// Offers the lists among `spans`, as far as they were READ whole, to those that are kept.
    fn offer<A>(&self, fetch: &Fetch<'_, A>, spans: &[Span], fetched: &Parts) {
        let Some(lists) = fetch.lists else { return };
        for span in spans.iter().filter(|span| span.is_kept()) {
            let words = self.words(span.at, fetched);
            let end = words.get(1..1 + self.pointer_words).and_then(|pointer| self.pointer(pointer));
            let len = end.and_then(|end| end.at.checked_sub(span.at)).unwrap_or(u64::MAX);
            if let Some(list) = usize::try_from(len).ok().and_then(|len| words.get(..len)) {
                // Rows below a list take space in proportion to their number.
                lists.offer(self.byte(span.at), list.as_bytes(), span.end - span.at);
            }
        }
    }

    /// `span`, to be READ up to word `end`, or as a whole if that saves a round trip.
    fn ask<A>(&self, fetch: &Fetch<'_, A>, span: Span, end: u64) -> Attempt<Span> {
        let is_short = (span.end - span.at) * WORD_BYTES <= fetch.options.round_trip_bytes;
        let end = if is_short { span.end } else { end.min(span.end) };
        if end <= span.asked {
            return Err(self.damage(span.at, "a list or a run of row ids has no end"));
        }
        Ok(Span { asked: end, ..span })
    }

    /// Caches the lists of the upper levels, as many levels as the options allow.
    pub async fn fill<A: Access>(&mut self, fetch: &mut Fetch<'_, A>) -> Attempt<()> {
        let (budget, levels) = (fetch.options.cache_bytes, fetch.options.cache_levels.min(self.columns));
        let first_bytes = self.byte(self.first_list * self.pointer_words as u64) - self.array_at;
        if levels == 0 || self.rows == 0 || first_bytes > budget {
            return Ok(());
        }
        let place = self.array_at..self.array_at + first_bytes;
        let fetched = fetch.read(vec![place.clone()]).await?;
        let missing = || damaged(place.start, "the first list is too short");
        self.cached.push(place.start, fetched.get(&place).ok_or_else(missing)?.to_vec());
        self.cached_levels = 1;
        let all = Filter::new(&pando_elf::Predicate::all(), &(0..self.columns).collect::<Vec<_>>())?;
        let mut spans = self.open_first(&self.cached, &all, &mut Paths::default())?;
        while self.cached_levels < levels {
            spans.retain(|span| !span.is_mono);
            let Some(below) = self.fill_level(fetch, &spans, &all, budget).await? else { return Ok(()) };
            spans = below;
            self.cached_levels += 1;
        }
        Ok(())
    }

    /// Caches the lists at `spans`, which are all of one level; returns the spans below, or `None` if they exceed
    /// the budget.
    async fn fill_level<A: Access>(
        &mut self,
        fetch: &mut Fetch<'_, A>,
        spans: &[Span],
        all: &Filter,
        budget: u64,
    ) -> Attempt<Option<Vec<Span>>> {
        let entry_words = 1 + self.pointer_words as u64;
        if (spans.len() as u64) * (PART_BYTES + entry_words * WORD_BYTES) > budget {
            return Ok(None);
        }
        let firsts = spans.iter().map(|span| self.byte(span.at)..self.byte(span.at + entry_words));
        let fetched = fetch.read(firsts.collect()).await?;
        let mut places = Vec::with_capacity(spans.len());
        let mut bytes = self.cached.bytes();
        for span in spans {
            let entry = self.words(span.at, &fetched).get(1..entry_words as usize);
            let pointer = entry.and_then(|entry| self.pointer(entry)).filter(|pointer| pointer.at > span.at);
            let end = pointer.ok_or_else(|| self.damage(span.at, "an entry has no pointer"))?.at;
            places.push(self.byte(span.at)..self.byte(end.min(span.end)));
            bytes += (end - span.at) * WORD_BYTES + PART_BYTES;
        }
        if bytes > budget {
            return Ok(None);
        }
        let fetched = fetch.read(places.clone()).await?;
        let mut below = Vec::new();
        for span in spans {
            let seen =
                self.open_list(span, self.words(span.at, &fetched), all, &mut below, &mut Paths::default())?;
            if let Seen::Needs(_) = seen {
                return Err(self.damage(span.at, "a list has no end"));
            }
        }
        for place in places {
            self.cached.push(place.start, fetched.get(&place).unwrap_or_default().to_vec());
        }
        self.cached.sort();
        Ok(Some(below))
    }
}
