//! Lexicographic sort of a table's rows in a column order, and the lengths of the prefixes that neighbours share.
//!
//! Rows are first divided into parts by the leading bits of the first column, which threads then sort
//! independently. Within a part the codes of as many columns as fit into a key are packed, and (key, row id)
//! pairs are sorted by radix; rows with equal keys are sorted by the next columns. The sorted order and the
//! shared prefixes describe the tree completely. Equal rows are in the order of their row ids.

use std::ops::Range;
use std::sync::Mutex;

use crate::codes::{Code, CodeSlice, typed};
use crate::defect::{Defect, defect};
use crate::error::{Error, Result};
use crate::table::CodeTable;

/// Most parts: one scatter pass reaches that many places efficiently.
const PARTS_BITS: u32 = 11;
/// Items up to which a comparison sort is faster than radix passes.
const SMALL: usize = 512;
/// Items from which the histograms of wide digits pay.
const LARGE: usize = 1 << 16;
/// Rows whose keys are packed together, column by column.
const PACKED_ROWS: usize = 512;
/// Bits of the row id in an item.
const TID_BITS: u32 = 32;

/// The rows of a table in lexicographic order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sorted {
    /// Numbers of the rows in that order.
    pub(crate) tids: Vec<u32>,
    /// Number of leading levels in which a row equals its predecessor, 0 for the first one.
    pub(crate) shared: Vec<u16>,
    /// Ranges of rows that have no value of level 0 in common.
    pub(crate) parts: Vec<Range<usize>>,
}

impl Sorted {
    /// Takes the rows of `table` in lexicographic order and counts what neighbours share.
    pub(crate) fn of_order(table: &CodeTable, order: &[usize], tids: Vec<u32>) -> Self {
        let rows = tids.len();
        let mut shared = vec![order.len() as u16; rows];
        shared[..rows.min(1)].fill(0);
        let mut undecided: Vec<u32> = (1..rows as u32).collect();
        for (level, &column) in order.iter().enumerate() {
            // Place and code of the row before, if that was undecided, too.
            let mut last = (u32::MAX, 0);
            typed!(table.column(column), codes => undecided.retain(|&i| {
                let code = |i: u32| Code::get(codes[tids[i as usize] as usize]);
                let before = if last.0 == i - 1 { last.1 } else { code(i - 1) };
                last = (i, code(i));
                let is_equal = last.1 == before;
                if !is_equal {
                    shared[i as usize] = level as u16;
                }
                is_equal
            }));
        }
        let least = rows >> PARTS_BITS;
        let mut parts = Vec::new();
        let mut start = 0;
        for end in (1..rows).filter(|&i| shared[i] == 0).chain((rows > 0).then_some(rows)) {
            if end - start > least || end == rows {
                parts.push(start..end);
                start = end;
            }
        }
        Self { tids, shared, parts }
    }

    /// Cuts the rows into `pieces` of equal size, as far as there are that many rows.
    pub(crate) fn divide(self, pieces: usize) -> Vec<Self> {
        let rows = self.tids.len();
        let pieces = pieces.clamp(1, rows.max(1));
        if pieces == 1 {
            return vec![self];
        }
        let cut = |piece: usize| (rows as u128 * piece as u128 / pieces as u128) as usize;
        let piece = |number: usize| {
            let (start, end) = (cut(number), cut(number + 1));
            let mut shared = self.shared[start..end].to_vec();
            shared[0] = 0;
            let within =
                |part: &Range<usize>| part.start.max(start) - start..part.end.clamp(start, end) - start;
            let parts = self.parts.iter().filter(|part| part.start < end && part.end > start).map(within);
            Self { tids: self.tids[start..end].to_vec(), shared, parts: parts.collect() }
        };
        (0..pieces).map(piece).collect()
    }
}

/// Fails if a table has too many rows to number them in 32 bits.
pub(crate) fn check_rows(rows: u64) -> Result<()> {
    let limit = u32::MAX.into();
    if rows > limit { Err(Error::TooManyRows { rows, layout: "a table in memory", limit }) } else { Ok(()) }
}

/// Sorts the rows of `table`, comparing columns in the given order, with up to `threads` threads.
pub(crate) fn sort(table: &CodeTable, order: &[usize], threads: usize) -> Result<Sorted> {
    let rows = table.rows();
    check_rows(rows as u64)?;
    let columns: Vec<CodeSlice<'_>> = order.iter().map(|&column| table.column(column)).collect();
    let widths: Vec<u32> =
        order.iter().map(|&column| u32::BITS - table.maximum(column).leading_zeros()).collect();
    let shift = widths[0].saturating_sub(PARTS_BITS);
    let (mut tids, parts) = typed!(columns[0], codes => divide(codes, shift));
    let mut shared = vec![0; rows];
    let sorter = Sorter { columns: &columns, widths: &widths };
    // With a shift of 0 all rows of a part agree in the first column.
    let level = usize::from(shift == 0);
    let tasks = split(&mut tids, &parts).into_iter().zip(split(&mut shared, &parts));
    in_parallel(tasks, threads, |(tids, shared)| sorter.sort_part(tids, shared, level));
    Ok(Sorted { tids, shared, parts })
}

/// Runs `work` for each task with up to `threads` threads, which take the next task when they are done.
pub(crate) fn in_parallel<T: Send>(
    tasks: impl Iterator<Item = T> + Send,
    threads: usize,
    work: impl Fn(T) + Sync,
) {
    if threads <= 1 {
        return tasks.for_each(work);
    }
    let tasks = Mutex::new(tasks);
    let next = || match tasks.lock() {
        Ok(mut tasks) => tasks.next(),
        Err(poisoned) => poisoned.into_inner().next(),
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(task) = next() {
                    work(task);
                }
            });
        }
    });
}

/// Divides `whole` into the given ranges, which follow each other.
pub(crate) fn split<'a, T>(mut whole: &'a mut [T], parts: &[Range<usize>]) -> Vec<&'a mut [T]> {
    let mut slices = Vec::with_capacity(parts.len());
    for part in parts {
        let (slice, rest) = whole.split_at_mut(part.len());
        slices.push(slice);
        whole = rest;
    }
    slices
}

/// Row ids in the order of their codes without the lowest `shift` bits, and the ranges of equal ones.
fn divide<C: Code>(codes: &[C], shift: u32) -> (Vec<u32>, Vec<Range<usize>>) {
    let mut next = vec![0_usize; 1 << PARTS_BITS];
    codes.iter().for_each(|code| next[(code.get() >> shift) as usize] += 1);
    let mut parts = Vec::new();
    let mut end = 0;
    for count in &mut next {
        let start = end;
        end += std::mem::replace(count, start);
        if end > start {
            parts.push(start..end);
        }
    }
    let mut tids = vec![0; codes.len()];
    for (tid, code) in codes.iter().enumerate() {
        let at = &mut next[(code.get() >> shift) as usize];
        tids[*at] = tid as u32;
        *at += 1;
    }
    (tids, parts)
}

/// A key and a row id in one number: the key is in the upper bits.
trait Item: Copy + Ord {
    fn new(key: u64, tid: u32) -> Self;
    fn key(self) -> u64;
    fn tid(self) -> u32;
}

/// Keys of at most 32 bits.
impl Item for u64 {
    #[inline(always)]
    fn new(key: u64, tid: u32) -> Self {
        key << TID_BITS | u64::from(tid)
    }

    #[inline(always)]
    fn key(self) -> u64 {
        self >> TID_BITS
    }

    #[inline(always)]
    fn tid(self) -> u32 {
        self as u32
    }
}

/// Keys of at most 64 bits.
impl Item for u128 {
    #[inline(always)]
    fn new(key: u64, tid: u32) -> Self {
        u128::from(key) << TID_BITS | u128::from(tid)
    }

    #[inline(always)]
    fn key(self) -> u64 {
        (self >> TID_BITS) as u64
    }

    #[inline(always)]
    fn tid(self) -> u32 {
        self as u32
    }
}

/// Buffers of one thread.
struct Buffers<I> {
    items: Vec<I>,
    spare: Vec<I>,
}

impl<I> Default for Buffers<I> {
    fn default() -> Self {
        Self { items: Vec::new(), spare: Vec::new() }
    }
}

struct Sorter<'a> {
    /// Codes of each level by row id.
    columns: &'a [CodeSlice<'a>],
    /// Bits of the largest code of each level.
    widths: &'a [u32],
}

impl Sorter<'_> {
    /// Sorts the rows `tids`, which agree in the levels above `level`, and notes what neighbours share.
    fn sort_part(&self, tids: &mut [u32], shared: &mut [u16], level: usize) {
        let (mut narrow, mut wide) = (Buffers::<u64>::default(), Buffers::<u128>::default());
        let mut waiting = vec![(0..tids.len(), level)];
        while let Some((rows, level)) = waiting.pop() {
            let (tids, shared) = (&mut tids[rows.clone()], &mut shared[rows.clone()]);
            let (end, width) = self.packed(level);
            let mut equal =
                |run: Range<usize>| waiting.push((rows.start + run.start..rows.start + run.end, end));
            if level == self.columns.len() {
                shared[1..].fill(level as u16);
            } else if width <= 32 {
                self.sort_rows(tids, shared, level..end, width, &mut narrow, &mut equal);
            } else {
                self.sort_rows(tids, shared, level..end, width, &mut wide, &mut equal);
            }
        }
    }

    /// End of the levels from `level` on that fit into one key, and their bits.
    fn packed(&self, level: usize) -> (usize, u32) {
        let (mut end, mut width) = (level, 0);
        while let Some(next) = self.widths.get(end).filter(|&&next| width + next <= u64::BITS) {
            width += next;
            end += 1;
        }
        (end, width)
    }

    /// Sorts rows by the codes of `levels`, which have `width` bits. Calls `equal` for runs of equal rows.
    fn sort_rows<I: Item>(
        &self,
        tids: &mut [u32],
        shared: &mut [u16],
        levels: Range<usize>,
        width: u32,
        buffers: &mut Buffers<I>,
        equal: &mut impl FnMut(Range<usize>),
    ) {
        let Buffers { items, spare } = buffers;
        items.clear();
        for tids in tids.chunks(PACKED_ROWS) {
            let mut keys = [0; PACKED_ROWS];
            for level in levels.clone() {
                typed!(self.columns[level], codes => pack(codes, tids, self.widths[level], &mut keys));
            }
            items.extend(tids.iter().zip(keys).map(|(&tid, key)| I::new(key, tid)));
        }
        if items.len() <= SMALL {
            items.sort_unstable();
        } else {
            sort_by_radix(items, spare, width);
        }
        let level_of_bit = self.level_of_bit(levels.clone());
        tids[0] = items[0].tid();
        let mut run = 0;
        for i in 1..items.len() {
            tids[i] = items[i].tid();
            let differ = items[i].key() ^ items[i - 1].key();
            let differ = if defect(Defect::SharedTooMuch) && differ == 1 { 0 } else { differ };
            if differ != 0 {
                shared[i] = level_of_bit[differ.ilog2() as usize];
                if i - run > 1 {
                    equal(run..i);
                }
                run = i;
            }
        }
        if items.len() - run > 1 {
            equal(run..items.len());
        }
    }

    /// Level to which each bit of a key of `levels` belongs.
    fn level_of_bit(&self, levels: Range<usize>) -> [u16; 64] {
        let mut level_of_bit = [0; 64];
        let mut bit = 0;
        for level in levels.rev() {
            let width = self.widths[level] as usize;
            level_of_bit[bit..bit + width].fill(level as u16);
            bit += width;
        }
        level_of_bit
    }
}

/// Appends the codes of the rows `tids`, which have `width` bits, to their keys.
fn pack<C: Code>(codes: &[C], tids: &[u32], width: u32, keys: &mut [u64]) {
    for (&tid, key) in tids.iter().zip(keys) {
        *key = *key << width | u64::from(codes[tid as usize].get());
    }
}

/// Sorts items by their keys of `width` bits, equal ones as they are.
fn sort_by_radix<I: Item>(items: &mut Vec<I>, spare: &mut Vec<I>, width: u32) {
    let digit_bits = if items.len() < LARGE { 8 } else { 11 };
    let passes = width.div_ceil(digit_bits);
    if passes == 0 {
        return;
    }
    let digit_bits = width.div_ceil(passes);
    let digit = |item: I, pass: u32| (item.key() >> (pass * digit_bits)) as usize & ((1 << digit_bits) - 1);
    let mut counts = vec![vec![0_usize; 1 << digit_bits]; passes as usize];
    for &item in items.iter() {
        for (pass, counts) in counts.iter_mut().enumerate() {
            counts[digit(item, pass as u32)] += 1;
        }
    }
    spare.clear();
    spare.resize(items.len(), items[0]);
    for (pass, next) in counts.iter_mut().enumerate() {
        if next[digit(items[0], pass as u32)] == items.len() {
            continue;
        }
        let mut end = 0;
        for count in next.iter_mut() {
            let start = end;
            end += std::mem::replace(count, start);
        }
        for &item in items.iter() {
            let at = &mut next[digit(item, pass as u32)];
            spare[*at] = item;
            *at += 1;
        }
        std::mem::swap(items, spare);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of small numbers in some columns and of large ones in others, from a linear congruence.
    fn table(rows: usize, masks: &[u32]) -> CodeTable {
        let mut state = 1_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 32) as u32
        };
        CodeTable::new(masks.iter().map(|mask| (0..rows).map(|_| next() & mask).collect()).collect())
            .expect("columns of equal length")
    }

    #[test]
    fn rows_are_sorted_and_shared_prefixes_counted() {
        let masks = [[3, 1, 0], [0, 0, 0], [u32::MAX, 7, 3], [1, u32::MAX, u32::MAX], [0xfff, 3, 1]];
        for (rows, masks) in
            [0, 1, 2, 600, 70_000].into_iter().flat_map(|rows| masks.map(|masks| (rows, masks)))
        {
            let table = table(rows, &masks);
            let order = [2, 0, 1];
            let row = |tid: u32| order.map(|column| table.code(column, tid as usize));
            let sorted = sort(&table, &order, 2).expect("few rows");
            let mut expected: Vec<u32> = (0..rows as u32).collect();
            expected.sort_by_key(|&tid| row(tid));
            assert_eq!(sorted.tids, expected);
            for i in 1..rows {
                let (a, b) = (row(expected[i - 1]), row(expected[i]));
                let shared = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
                assert_eq!(usize::from(sorted.shared[i]), shared, "row {i} of {rows}");
            }
            assert!(sorted.parts.iter().all(|part| !part.is_empty() && sorted.shared[part.start] == 0));
            let again = Sorted::of_order(&table, &order, expected);
            assert_eq!(again.shared, sorted.shared);
            assert_eq!(again.parts.iter().map(|part| part.len()).sum::<usize>(), rows);
            assert!(again.parts.iter().all(|part| !part.is_empty() && again.shared[part.start] == 0));
        }
    }
}
