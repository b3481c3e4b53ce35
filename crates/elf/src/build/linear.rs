//! Writes the published layout (fact sheet §3): lists before the subtrees of their entries, pointers last.
//!
//! One traversal serves both passes: its words go to a counter or into the image.
//! Threads write the subtrees of different values of the first column.

use std::ops::Range;
use std::sync::OnceLock;

use super::tree::Tree;
use super::{BuildOptions, Width};
use crate::codes::{Code, typed};
use crate::error::{Error, Result};
use crate::layout::{ABSENT, END, Linear, LinearPlan, MONO_NARROW, MONO_WIDE};
use crate::sort::{in_parallel, split};
use crate::table::CodeTable;

/// Largest code and largest number of rows.
const LIMIT: u32 = END - 1;
const WORD_BYTES: usize = size_of::<u32>();

/// Fails if a code of `table` or a row id below `id_bound` does not leave room for its mark, or if `rows` rows are too
/// many.
pub(crate) fn check_limits(table: &CodeTable, rows: u64, id_bound: u64) -> Result<()> {
    if rows > LIMIT.into() {
        return Err(Error::TooManyRows { rows, layout: "the linear layout", limit: LIMIT.into() });
    }
    if id_bound > u64::from(LIMIT) + 1 {
        let (id, limit) = (id_bound - 1, LIMIT.into());
        return Err(Error::IdTooLarge { id, layout: "the linear layout", limit });
    }
    match (0..table.width()).map(|column| (column, table.maximum(column))).find(|(_, code)| *code > LIMIT) {
        Some((column, code)) => Err(Error::CodeTooLarge { column, code, limit: LIMIT }),
        None => Ok(()),
    }
}

/// Receives the words of a part in order; pointers are written when their target is known.
trait Words {
    fn len(&self) -> usize;
    fn push(&mut self, word: u32);
    fn set(&mut self, at: usize, word: u32);

    /// The codes of the sorted row `row` from `level` on. Rows come in ascending order.
    fn push_codes(&mut self, tree: &Tree<'_>, row: usize, level: usize);
}

struct Counter(usize);

impl Words for Counter {
    fn len(&self) -> usize {
        self.0
    }

    fn push(&mut self, _word: u32) {
        self.0 += 1;
    }

    fn set(&mut self, _at: usize, _word: u32) {}

    fn push_codes(&mut self, tree: &Tree<'_>, _row: usize, level: usize) {
        self.0 += tree.levels() - level;
    }
}

/// A part of the image.
struct Writer<'a> {
    bytes: &'a mut [u8],
    len: usize,
    window: Window,
}

impl<'a> Writer<'a> {
    fn new(bytes: &'a mut [u8]) -> Self {
        Self { bytes, len: 0, window: Window { first: 0, rows: 0, codes: Vec::new() } }
    }
}

/// Rows that are decoded at once: column by column, so that many cache misses overlap.
const WINDOW_ROWS: usize = 512;

/// Codes of consecutive sorted rows, row by row.
struct Window {
    first: usize,
    rows: usize,
    codes: Vec<u32>,
}

impl Window {
    /// Codes of a row, which is not before those of the last call.
    fn row(&mut self, tree: &Tree<'_>, row: usize) -> &[u32] {
        let levels = tree.levels();
        if row >= self.first + self.rows {
            (self.first, self.rows) = (row, WINDOW_ROWS.min(tree.rows() - row));
            self.codes.resize(self.rows * levels, 0);
            let tids = &tree.sorted.tids[row..row + self.rows];
            for (level, &column) in tree.columns.iter().enumerate() {
                typed!(column, column => gather(column, tids, &mut self.codes[level..], levels));
            }
        }
        &self.codes[(row - self.first) * levels..][..levels]
    }
}

/// Writes the codes of the rows `tids` to every `stride`-th place.
fn gather<C: Code>(column: &[C], tids: &[u32], places: &mut [u32], stride: usize) {
    for (&tid, place) in tids.iter().zip(places.iter_mut().step_by(stride)) {
        *place = column[tid as usize].get();
    }
}

impl Words for Writer<'_> {
    fn len(&self) -> usize {
        self.len
    }

    fn push(&mut self, word: u32) {
        self.set(self.len, word);
        self.len += 1;
    }

    #[inline]
    fn set(&mut self, at: usize, word: u32) {
        self.bytes[at * WORD_BYTES..][..WORD_BYTES].copy_from_slice(&word.to_le_bytes());
    }

    fn push_codes(&mut self, tree: &Tree<'_>, row: usize, level: usize) {
        let codes = &self.window.row(tree, row)[level..];
        let words = self.bytes[self.len * WORD_BYTES..].as_chunks_mut::<WORD_BYTES>().0;
        words.iter_mut().zip(codes).for_each(|(word, code)| *word = code.to_le_bytes());
        self.len += codes.len();
    }
}

/// A subtree that is not written yet.
struct Subtree {
    rows: Range<usize>,
    level: usize,
    /// Word of the part where its pointer belongs.
    hole: usize,
}

/// An entry of the first list.
struct Root {
    value: u32,
    at: usize,
    is_mono: bool,
}

/// The words of a pointer, of which `words` are stored.
pub(crate) fn pointer(at: u64, is_mono: bool, words: usize) -> [u32; 2] {
    if words == 1 {
        return [at as u32 | if is_mono { MONO_NARROW } else { 0 }, 0];
    }
    let both = at | if is_mono { MONO_WIDE } else { 0 };
    [both as u32, (both >> 32) as u32]
}

struct PartWriter<'a> {
    tree: &'a Tree<'a>,
    pointer_words: usize,
}

impl PartWriter<'_> {
    /// Writes the subtrees of all first values of a part, which begins at word `base` of the array.
    fn write(&self, part: Range<usize>, base: usize, words: &mut impl Words) -> Vec<Root> {
        let mut roots = Vec::new();
        for rows in self.tree.children(part, 0) {
            let (value, at) = (self.tree.code(rows.start, 0), base + words.len());
            roots.push(Root { value, at, is_mono: self.tree.is_uniform(&rows) });
            self.write_subtree(rows, base, words);
        }
        roots
    }

    fn write_subtree(&self, rows: Range<usize>, base: usize, words: &mut impl Words) {
        let mut waiting = Vec::new();
        self.write_node(rows, 1, words, &mut waiting);
        while let Some(Subtree { rows, level, hole }) = waiting.pop() {
            let target =
                pointer((base + words.len()) as u64, self.tree.is_uniform(&rows), self.pointer_words);
            target[..self.pointer_words].iter().enumerate().for_each(|(i, &word)| words.set(hole + i, word));
            self.write_node(rows, level, words, &mut waiting);
        }
    }

    /// Writes the list of a group, and pushes its subtrees so that the first one is popped first.
    fn write_node(
        &self,
        rows: Range<usize>,
        level: usize,
        words: &mut impl Words,
        waiting: &mut Vec<Subtree>,
    ) {
        if self.tree.is_uniform(&rows) {
            words.push_codes(self.tree, rows.start, level);
            for row in rows.clone() {
                let end = if row + 1 == rows.end { END } else { 0 };
                words.push(self.tree.id(row) as u32 | end);
            }
            return;
        }
        let first = waiting.len();
        for child in self.tree.children(rows.clone(), level) {
            let end = if child.end == rows.end { END } else { 0 };
            words.push(self.tree.code(child.start, level) | end);
            waiting.push(Subtree { rows: child, level: level + 1, hole: words.len() });
            (0..self.pointer_words).for_each(|_| words.push(0));
        }
        waiting[first..].reverse();
    }
}

/// Words of each part's subtrees.
fn count(tree: &Tree<'_>, pointer_words: usize, threads: usize) -> Vec<usize> {
    let parts = &tree.sorted.parts;
    let mut sizes = vec![0; parts.len()];
    let writer = PartWriter { tree, pointer_words };
    in_parallel(parts.iter().zip(&mut sizes), threads, |(part, size)| {
        let mut counter = Counter(0);
        writer.write(part.clone(), 0, &mut counter);
        *size = counter.0;
    });
    sizes
}

/// Words of a pointer that `width` allows for an array that has `narrow_words` words with pointers of one.
pub(crate) fn pointer_words(narrow_words: u64, width: Width) -> Result<usize> {
    // The last pointer must differ from the mark of absent values.
    match (width, narrow_words <= LIMIT.into()) {
        (Width::Wide, _) | (Width::Auto, false) => Ok(2),
        (_, true) => Ok(1),
        (Width::Narrow, false) => {
            Err(Error::PointersTooNarrow { words: narrow_words, pointer_bytes: WORD_BYTES })
        }
    }
}

/// Sizes of the image and of its parts with the narrowest pointers that `width` allows.
fn plan(tree: &Tree<'_>, options: &BuildOptions) -> Result<(LinearPlan, Vec<usize>)> {
    let last_row = tree.rows().checked_sub(1);
    let first_list = last_row.map_or(0, |row| u64::from(tree.code(row, 0)) + 1);
    let sized = |pointer_words: usize| {
        let sizes = count(tree, pointer_words, options.threads);
        let array_words =
            first_list * pointer_words as u64 + sizes.iter().map(|&size| size as u64).sum::<u64>();
        let pointer_bytes = pointer_words * WORD_BYTES;
        (LinearPlan { pointer_bytes, first_list, array_words, rows: tree.rows() as u64 }, sizes)
    };
    if options.width == Width::Wide {
        return Ok(sized(2));
    }
    let narrow = sized(1);
    Ok(if pointer_words(narrow.0.array_words, options.width)? == 1 { narrow } else { sized(2) })
}

/// Writes the image of `tree`.
pub(super) fn write(tree: &Tree<'_>, order: &[usize], options: &BuildOptions) -> Result<Linear<Vec<u8>>> {
    let (plan, sizes) = plan(tree, options)?;
    let pointer_words = plan.pointer_bytes / WORD_BYTES;
    let (mut image, array_at) = plan.allocate(order)?;
    let first_words = plan.first_list as usize * pointer_words;
    let (first_list, body) = image[array_at..].split_at_mut(first_words * WORD_BYTES);
    let mut bases = Vec::with_capacity(sizes.len());
    let mut next = 0;
    for size in &sizes {
        bases.push(next * WORD_BYTES..(next + size) * WORD_BYTES);
        next += size;
    }
    let roots: Vec<OnceLock<Vec<Root>>> = sizes.iter().map(|_| OnceLock::new()).collect();
    let writer = PartWriter { tree, pointer_words };
    let tasks = tree.sorted.parts.iter().zip(&bases).zip(split(body, &bases)).zip(&roots);
    in_parallel(tasks, options.threads, |(((part, base), bytes), roots)| {
        let base = first_words + base.start / WORD_BYTES;
        let written = writer.write(part.clone(), base, &mut Writer::new(bytes));
        roots.get_or_init(|| written);
    });
    let mut first_list = Writer::new(first_list);
    (0..first_words).for_each(|_| first_list.push(ABSENT));
    for root in roots.iter().filter_map(OnceLock::get).flatten() {
        let target = pointer(root.at as u64, root.is_mono, pointer_words);
        for (i, &word) in target[..pointer_words].iter().enumerate() {
            first_list.set(root.value as usize * pointer_words + i, word);
        }
    }
    let header = plan.header(order.len());
    header.seal(&mut image);
    Ok(Linear::trusted(image, header, order.to_vec(), tree.table.id_bound()))
}
