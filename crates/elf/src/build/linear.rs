//! Writes the published layout (fact sheet §3): lists before the subtrees of their entries, pointers last.
//!
//! Sizes follow from what neighbouring rows share; a traversal writes the words.
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

/// Words of the subtrees of a part.
#[derive(Clone, Copy, Debug, Default)]
struct Size {
    /// Entries of lists below level 0.
    entries: usize,
    /// Words of MonoLists.
    mono: usize,
}

impl Size {
    /// Counts the subtrees of a part: each distinct row stands in the entries that it does not share with the row before,
    /// down to the level at which it differs from both neighbours, and in the MonoList below.
    fn of_part(tree: &Tree<'_>, part: Range<usize>) -> Self {
        let (shared, levels) = (&tree.sorted.shared, tree.levels());
        let mut size = Self { entries: 0, mono: part.len() };
        let next = shared[part.start + 1..part.end].iter().map(|&shared| usize::from(shared)).chain([0]);
        let mut before = 0;
        // Equal rows share all levels.
        for after in next.filter(|&after| after < levels) {
            let last = before.max(after);
            size.entries += (last + 1).saturating_sub(before.max(1));
            size.mono += levels - (last + 1);
            before = after;
        }
        size
    }

    fn words(self, pointer_words: usize) -> usize {
        self.entries * (1 + pointer_words) + self.mono
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
            for (level, &column) in tree.columns.iter().enumerate() {
                let mut places = self.codes[level..].iter_mut().step_by(levels);
                typed!(column, column => tree.codes(level, column, row..row + self.rows, |code| {
                    *places.next().expect("a place for each code") = Code::get(code);
                }));
            }
        }
        &self.codes[(row - self.first) * levels..][..levels]
    }
}

impl Writer<'_> {
    fn push(&mut self, word: u32) {
        self.set(self.len, word);
        self.len += 1;
    }

    #[inline]
    fn set(&mut self, at: usize, word: u32) {
        self.bytes[at * WORD_BYTES..][..WORD_BYTES].copy_from_slice(&word.to_le_bytes());
    }

    /// The codes of the sorted row `row` from `level` on. Rows come in ascending order.
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
    fn write(&self, part: Range<usize>, base: usize, words: &mut Writer<'_>) -> Vec<Root> {
        let mut roots = Vec::new();
        for rows in self.tree.children(part, 0) {
            let (value, at) = (self.tree.code(rows.start, 0), base + words.len);
            roots.push(Root { value, at, is_mono: self.tree.is_uniform(&rows) });
            self.write_subtree(rows, base, words);
        }
        roots
    }

    fn write_subtree(&self, rows: Range<usize>, base: usize, words: &mut Writer<'_>) {
        let mut waiting = Vec::new();
        self.write_node(rows, 1, words, &mut waiting);
        while let Some(Subtree { rows, level, hole }) = waiting.pop() {
            let target = pointer((base + words.len) as u64, self.tree.is_uniform(&rows), self.pointer_words);
            target[..self.pointer_words].iter().enumerate().for_each(|(i, &word)| words.set(hole + i, word));
            self.write_node(rows, level, words, &mut waiting);
        }
    }

    /// Writes the list of a group, and pushes its subtrees so that the first one is popped first.
    fn write_node(
        &self,
        rows: Range<usize>,
        level: usize,
        words: &mut Writer<'_>,
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
            waiting.push(Subtree { rows: child, level: level + 1, hole: words.len });
            (0..self.pointer_words).for_each(|_| words.push(0));
        }
        waiting[first..].reverse();
    }
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
    let parts = &tree.sorted.parts;
    let mut sizes = vec![Size::default(); parts.len()];
    in_parallel(parts.iter().zip(&mut sizes), options.threads, |(part, size)| {
        *size = Size::of_part(tree, part.clone());
    });
    let array_words = |pointer_words: usize| {
        let words = sizes.iter().map(|size| size.words(pointer_words) as u64);
        first_list * pointer_words as u64 + words.sum::<u64>()
    };
    let pointer_words = pointer_words(array_words(1), options.width)?;
    let plan = LinearPlan {
        pointer_bytes: pointer_words * WORD_BYTES,
        first_list,
        array_words: array_words(pointer_words),
        rows: tree.rows() as u64,
    };
    Ok((plan, sizes.iter().map(|size| size.words(pointer_words)).collect()))
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
