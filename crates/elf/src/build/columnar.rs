//! Writes the columnar layout: one traversal in preorder that counts first and writes then, and one pass over
//! the gaps of each level for its strip codes.
//!
//! Threads write the parts of all sections in place: the positions of a part follow from the counts of those
//! before it.

use std::ops::Range;

use super::tree::Tree;
use super::{BuildOptions, Width};
use crate::codes::{Code, typed};
use crate::error::{Error, Result};
use crate::layout::{Columnar, ColumnarPlan, LevelPlan, Sections};
use crate::sort::{in_parallel, split};

/// Entries and strip rows per level.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Counts {
    entries: Vec<usize>,
    strip_rows: Vec<usize>,
}

impl Counts {
    fn zero(levels: usize) -> Self {
        Self { entries: vec![0; levels], strip_rows: vec![0; levels] }
    }

    fn add(&mut self, other: &Self) {
        self.entries.iter_mut().zip(&other.entries).for_each(|(sum, more)| *sum += more);
        self.strip_rows.iter_mut().zip(&other.strip_rows).for_each(|(sum, more)| *sum += more);
    }
}

/// Receives the entries of a part in preorder, numbered within the part for each level.
trait Entries {
    /// Entry `number` of `level` begins at the sorted row `row`, with `strip` strip rows of the part before it.
    fn entry(&mut self, level: usize, number: usize, row: usize, strip: usize);

    /// The list below entry `number` of `level` begins, or would begin, at entry `below` of the next level.
    fn child(&mut self, level: usize, number: usize, below: usize);
}

/// Receives nothing: for counting.
struct Ignore;

impl Entries for Ignore {
    fn entry(&mut self, _level: usize, _number: usize, _row: usize, _strip: usize) {}
    fn child(&mut self, _level: usize, _number: usize, _below: usize) {}
}

/// An entry whose list or bucket is not written yet.
struct Pending {
    level: usize,
    number: usize,
    rows: Range<usize>,
}

/// Walks through the tree of a part in preorder.
fn traverse(tree: &Tree<'_>, part: Range<usize>, bucket_rows: usize, out: &mut impl Entries) -> Counts {
    let mut counts = Counts::zero(tree.levels());
    let mut pending = Vec::new();
    traverse_list(tree, part, 0, &mut counts, &mut pending, out);
    while let Some(Pending { level, number, rows }) = pending.pop() {
        out.child(level, number, counts.entries[level + 1]);
        if rows.len() <= bucket_rows {
            counts.strip_rows[level + 1..].iter_mut().for_each(|strip| *strip += rows.len());
        } else {
            traverse_list(tree, rows, level + 1, &mut counts, &mut pending, out);
        }
    }
    counts
}

/// Passes the entries of one list, and pushes them so that the first one is popped first.
fn traverse_list(
    tree: &Tree<'_>,
    rows: Range<usize>,
    level: usize,
    counts: &mut Counts,
    pending: &mut Vec<Pending>,
    out: &mut impl Entries,
) {
    let first = pending.len();
    let is_last = level + 1 == tree.levels();
    for child in tree.children(rows, level) {
        let number = counts.entries[level];
        counts.entries[level] += 1;
        out.entry(level, number, child.start, counts.strip_rows[level]);
        if !is_last {
            pending.push(Pending { level, number, rows: child });
        }
    }
    pending[first..].reverse();
}

/// Writes number `i` of a section of numbers with `width` bytes.
#[inline]
fn put(section: &mut [u8], i: usize, width: usize, number: u64) {
    section[i * width..][..width].copy_from_slice(&number.to_le_bytes()[..width]);
}

/// Reads number `i` of a section of numbers with `width` bytes.
#[inline]
fn get(section: &[u8], i: usize, width: usize) -> usize {
    let mut bytes = [0; size_of::<u64>()];
    bytes[..width].copy_from_slice(&section[i * width..][..width]);
    u64::from_le_bytes(bytes) as usize
}

/// One part of the sections of a level.
struct LevelPart<'a> {
    code_bytes: usize,
    values: &'a mut [u8],
    starts: &'a mut [u8],
    strips: &'a mut [u8],
    children: &'a mut [u8],
    codes: &'a mut [u8],
}

/// One part of the image.
struct Part<'a> {
    tree: &'a Tree<'a>,
    rows: Range<usize>,
    pointer_bytes: usize,
    /// Entries and strip rows of all parts before.
    base: &'a Counts,
    tids: &'a mut [u8],
    levels: Vec<LevelPart<'a>>,
}

impl Entries for Part<'_> {
    #[inline]
    fn entry(&mut self, level: usize, number: usize, row: usize, strip: usize) {
        let value = self.tree.code(row, level);
        let (width, base) = (self.pointer_bytes, self.base.strip_rows[level]);
        let level = &mut self.levels[level];
        put(level.values, number, level.code_bytes, value.into());
        put(level.starts, number, width, row as u64);
        if !level.strips.is_empty() {
            put(level.strips, number, width, (base + strip) as u64);
        }
    }

    #[inline]
    fn child(&mut self, level: usize, number: usize, below: usize) {
        let below = self.base.entries[level + 1] + below;
        put(self.levels[level].children, number, self.pointer_bytes, below as u64);
    }
}

impl Part<'_> {
    fn write(mut self, bucket_rows: usize) {
        let tree = self.tree;
        traverse(tree, self.rows.clone(), bucket_rows, &mut self);
        for (i, row) in self.rows.clone().enumerate() {
            put(self.tids, i, self.pointer_bytes, tree.id(row));
        }
        for level in 0..self.levels.len() {
            self.write_strip_codes(level);
        }
    }

    /// Writes the codes of the rows between the entries of a level, which are written.
    fn write_strip_codes(&mut self, number: usize) {
        let base = self.base.strip_rows[number];
        let level = &mut self.levels[number];
        let (width, column) = (level.code_bytes, self.tree.columns[number]);
        let mut codes = level.codes.chunks_exact_mut(width);
        let strip_rows = codes.len();
        if strip_rows == 0 {
            return;
        }
        let entries = level.values.len() / width;
        let mut done = 0;
        for i in 0..=entries {
            // Behind the last entry, strip rows go on to the end of the part.
            let (end, strip) = if i < entries {
                let strip = get(level.strips, i, self.pointer_bytes) - base;
                (get(level.starts, i, self.pointer_bytes), strip)
            } else {
                (self.rows.end, strip_rows)
            };
            let rows = end - (strip - done)..end;
            typed!(column, column => self.tree.codes(number, column, rows, |code| {
                codes.next().expect("a place for each code").copy_from_slice(code.bytes());
            }));
            done = strip;
        }
    }
}

fn counts_of_parts(tree: &Tree<'_>, options: &BuildOptions) -> Vec<Counts> {
    let parts = &tree.sorted.parts;
    let mut counts = vec![Counts::default(); parts.len()];
    in_parallel(parts.iter().zip(&mut counts), options.threads, |(part, counts)| {
        *counts = traverse(tree, part.clone(), options.bucket_rows as usize, &mut Ignore);
    });
    counts
}

/// Bytes of row ids and positions that `width` allows for a table of `rows` rows with ids below `id_bound`.
pub(crate) fn pointer_bytes(rows: u64, id_bound: u64, width: Width) -> Result<usize> {
    let limit = u32::MAX.into();
    // The number of rows is a position, too.
    let fits = rows <= limit && id_bound <= limit + 1;
    match (width, fits) {
        (Width::Wide, _) | (Width::Auto, false) => Ok(8),
        (_, true) => Ok(4),
        (Width::Narrow, false) if rows > limit => {
            Err(Error::TooManyRows { rows, layout: "an image with ids of 4 bytes", limit })
        }
        (Width::Narrow, false) => {
            Err(Error::IdTooLarge { id: id_bound - 1, layout: "an image with ids of 4 bytes", limit })
        }
    }
}

fn plan(tree: &Tree<'_>, order: &[usize], total: &Counts, options: &BuildOptions) -> Result<ColumnarPlan> {
    let rows = tree.rows() as u64;
    let pointer_bytes = pointer_bytes(rows, tree.table.id_bound(), options.width)?;
    let level = |level: usize| LevelPlan {
        column: order[level],
        entries: total.entries[level] as u64,
        strip_rows: total.strip_rows[level] as u64,
        code_bytes: tree.columns[level].code_bytes(),
    };
    let levels = (0..tree.levels()).map(level).collect();
    Ok(ColumnarPlan { rows, bucket_rows: options.bucket_rows, pointer_bytes, levels })
}

/// Divides the sections of an image among the parts.
struct Division<'a> {
    /// Bytes of the image that were not passed yet, which begin at byte `at`.
    rest: &'a mut [u8],
    at: usize,
}

impl<'a> Division<'a> {
    /// The part of `section` for each of `counts` numbers of `width` bytes. What remains is left out.
    fn divide(&mut self, section: &Range<usize>, counts: &[usize], width: usize) -> Vec<&'a mut [u8]> {
        let rest = std::mem::take(&mut self.rest);
        let (bytes, rest) = rest.split_at_mut(section.end - self.at);
        let bytes = &mut bytes[section.start - self.at..];
        (self.rest, self.at) = (rest, section.end);
        let mut end = 0;
        let ranges: Vec<_> = counts
            .iter()
            .map(|count| {
                let start = end;
                // A section that is absent has empty parts.
                end = if bytes.is_empty() { 0 } else { start + count * width };
                start..end
            })
            .collect();
        split(bytes, &ranges)
    }
}

/// Divides an image into the parts that threads write.
fn divide<'a>(
    tree: &'a Tree<'a>,
    image: &'a mut [u8],
    sections: &Sections,
    counts: &[Counts],
    bases: &'a [Counts],
    pointer_bytes: usize,
) -> Vec<Part<'a>> {
    let rows: Vec<usize> = tree.sorted.parts.iter().map(Range::len).collect();
    let mut division = Division { rest: image, at: 0 };
    let tids = division.divide(&sections.tids, &rows, pointer_bytes);
    let mut parts: Vec<Part<'a>> = tree
        .sorted
        .parts
        .iter()
        .zip(bases)
        .zip(tids)
        .map(|((rows, base), tids)| Part {
            tree,
            rows: rows.clone(),
            pointer_bytes,
            base,
            tids,
            levels: Vec::new(),
        })
        .collect();
    for (number, level) in sections.levels.iter().enumerate() {
        let entries: Vec<usize> = counts.iter().map(|counts| counts.entries[number]).collect();
        let strip_rows: Vec<usize> = counts.iter().map(|counts| counts.strip_rows[number]).collect();
        let code_bytes = level.code_bytes;
        let values = division.divide(&level.values, &entries, code_bytes);
        let starts = division.divide(&level.starts, &entries, pointer_bytes);
        let strips = division.divide(&level.strips, &entries, pointer_bytes);
        let children = division.divide(&level.children, &entries, pointer_bytes);
        let codes = division.divide(&level.codes, &strip_rows, code_bytes);
        let sections = values.into_iter().zip(starts).zip(strips).zip(children).zip(codes);
        for (part, ((((values, starts), strips), children), codes)) in parts.iter_mut().zip(sections) {
            part.levels.push(LevelPart { code_bytes, values, starts, strips, children, codes });
        }
    }
    parts
}

/// Writes the last number of each section of positions.
fn write_ends(image: &mut [u8], plan: &ColumnarPlan, sections: &Sections) {
    let width = plan.pointer_bytes;
    for (number, (level, section)) in plan.levels.iter().zip(&sections.levels).enumerate() {
        let end = section.entries;
        put(&mut image[section.starts.clone()], end, width, plan.rows);
        if !section.strips.is_empty() {
            put(&mut image[section.strips.clone()], end, width, level.strip_rows);
        }
        if let Some(below) = plan.levels.get(number + 1) {
            put(&mut image[section.children.clone()], end, width, below.entries);
        }
    }
}

/// Writes the image of `tree`.
pub(super) fn write(tree: &Tree<'_>, order: &[usize], options: &BuildOptions) -> Result<Columnar<Vec<u8>>> {
    let counts = counts_of_parts(tree, options);
    let mut total = Counts::zero(tree.levels());
    let mut bases = Vec::with_capacity(counts.len());
    for part in &counts {
        bases.push(total.clone());
        total.add(part);
    }
    let plan = plan(tree, order, &total, options)?;
    let (mut image, sections) = plan.allocate()?;
    let parts = divide(tree, &mut image, &sections, &counts, &bases, plan.pointer_bytes);
    in_parallel(parts.into_iter(), options.threads, |part| part.write(options.bucket_rows as usize));
    write_ends(&mut image, &plan, &sections);
    let header = plan.header(&sections);
    header.seal(&mut image);
    Ok(Columnar::trusted(image, header, order.to_vec(), sections, tree.table.id_bound()))
}
