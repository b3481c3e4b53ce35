//! Lexicographic sort of a table's rows in a column order, and the lengths of the prefixes that neighbours share.
//!
//! The codes of as many columns as fit into a key are packed, and rows are divided into parts by the leading bits of
//! the first column. This reads the table in the order of its rows; afterwards the keys stand in for the packed columns,
//! also when the image is written, since a look at a column in sorted order waits for memory. Threads sort the parts
//! independently: (key, row id) pairs by radix, and rows with equal keys by the next columns. The sorted order and the
//! shared prefixes describe the tree completely. Equal rows are in the order of their row ids.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::codes::{Code, CodeSlice, typed};
use crate::defect::{Defect, defect};
use crate::error::{Error, Result};
use crate::memory;
use crate::table::CodeTable;

/// Most parts: one scatter pass reaches that many places efficiently.
const PARTS_BITS: u32 = 11;
/// Rows for each of which there is a part at most, so that the places of parts take little memory beside the rows.
const PART_ROWS: usize = 256;
/// Items up to which a comparison sort is faster than radix passes.
const SMALL: usize = 512;
/// Items from which the histograms of wide digits pay.
const LARGE: usize = 1 << 16;
/// Most bits of a digit.
const DIGIT_BITS: u32 = 11;
/// Passes from the last digit up to which they are faster than one from the first digit with comparison sorts behind it.
const LAST_FIRST_PASSES: u32 = 3;
/// Items with the same first digit that are aimed at.
const FEW: usize = 64;
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
    /// Codes of the rows in that order, as far as they were packed.
    pub(crate) keys: Keys,
}

/// Codes of some levels, packed into one number for each row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Keys {
    packed: Vec<u64>,
    first: usize,
    /// Places of the codes of levels from `first` on.
    fields: Vec<Field>,
}

/// Bits of a key that hold the code of a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Field {
    shift: u32,
    mask: u64,
}

impl Field {
    #[inline(always)]
    pub(crate) fn of(self, key: u64) -> u32 {
        (key >> self.shift & self.mask) as u32
    }
}

impl Keys {
    fn new(packed: Vec<u64>, levels: Range<usize>, widths: &[u32]) -> Self {
        let mut shift: u32 = widths[levels.clone()].iter().sum();
        let field = |&width: &u32| {
            shift -= width;
            // A level without bits may stand behind the last bit.
            Field { shift: shift.min(u64::BITS - 1), mask: (1 << width) - 1 }
        };
        let fields: Vec<Field> = widths[levels.clone()].iter().map(field).collect();
        let packed = if fields.is_empty() { Vec::new() } else { packed };
        Self { packed, first: levels.start, fields }
    }

    /// The keys of these rows.
    fn slice(&self, rows: Range<usize>) -> Self {
        let packed = if self.packed.is_empty() { Vec::new() } else { self.packed[rows].to_vec() };
        Self { packed, first: self.first, fields: self.fields.clone() }
    }

    /// The keys of all rows, and where the codes of `level` are in them; `None` if they are in the table only.
    #[inline]
    pub(crate) fn of_level(&self, level: usize) -> Option<(&[u64], Field)> {
        let field = self.fields.get(level.checked_sub(self.first)?)?;
        Some((&self.packed, *field))
    }
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
        Self { tids, shared, parts, keys: Keys::default() }
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
            let (tids, keys) = (self.tids[start..end].to_vec(), self.keys.slice(start..end));
            Self { tids, shared, parts: parts.collect(), keys }
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
    check_rows(table.rows() as u64)?;
    let columns: Vec<CodeSlice<'_>> = order.iter().map(|&column| table.column(column)).collect();
    let widths: Vec<u32> =
        order.iter().map(|&column| u32::BITS - table.maximum(column).leading_zeros()).collect();
    let parts_bits = (table.rows() / PART_ROWS).max(2).ilog2().min(PARTS_BITS);
    let sorter = Sorter {
        columns: &columns,
        widths: &widths,
        shift: widths[0].saturating_sub(parts_bits),
        buffers: Mutex::default(),
    };
    let Divided { mut tids, mut keys, parts } = sorter.divide(table.rows(), threads);
    let mut shared = memory::defaults(table.rows());
    let slices = split(&mut tids, &parts).into_iter().zip(split(&mut keys, &parts));
    let slices = slices.zip(split(&mut shared, &parts));
    let tasks = slices.map(|((tids, keys), shared)| Part { tids, keys, shared });
    in_parallel(tasks, threads, |part| sorter.sort_part(part));
    let keys = Keys::new(keys, sorter.first_packed(), &widths);
    Ok(Sorted { tids, shared, parts, keys })
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

/// A key and a row id in one number: the key is in the upper bits.
trait Item: Copy + Default + Ord {
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

/// Items in the order of their part, and room for as many while they are sorted.
struct Buffers<I> {
    items: Vec<I>,
    spare: Vec<I>,
    /// Items in use.
    len: usize,
}

impl<I> Default for Buffers<I> {
    fn default() -> Self {
        Self { items: Vec::new(), spare: Vec::new(), len: 0 }
    }
}

impl<I: Item> Buffers<I> {
    /// Room for `len` items.
    fn items(&mut self, len: usize) -> &mut [I] {
        provide(&mut self.items, len);
        self.len = len;
        &mut self.items[..len]
    }

    /// Sorts the items, whose keys differ in the lowest `width` bits only.
    fn sort(&mut self, width: u32) {
        let items = &mut self.items[..self.len];
        if items.len() <= SMALL {
            return items.sort_unstable();
        }
        provide(&mut self.spare, self.len);
        let spare = &mut self.spare[..self.len];
        let is_in_spare = if width.div_ceil(DIGIT_BITS) <= LAST_FIRST_PASSES {
            sort_from_last_digit(items, spare, width)
        } else {
            sort_from_first_digit(items, spare, width)
        };
        if is_in_spare {
            std::mem::swap(&mut self.items, &mut self.spare);
        }
    }

    /// Writes down the order of the items and what neighbours share. Calls `equal` for runs of equal keys.
    fn note(
        &self,
        tids: &mut [u32],
        shared: &mut [u16],
        level_of_bit: &[u16; 64],
        equal: &mut impl FnMut(Range<usize>),
    ) {
        let items = &self.items[..self.len];
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
}

struct Sorter<'a> {
    /// Codes of each level by row id.
    columns: &'a [CodeSlice<'a>],
    /// Buffers that no thread uses now.
    buffers: Mutex<Vec<PartBuffers>>,
    /// Bits of the largest code of each level.
    widths: &'a [u32],
    /// Lowest bits of a code of level 0 that do not decide on its part.
    shift: u32,
}

/// Buffers for keys of up to 32 and up to 64 bits.
#[derive(Default)]
struct PartBuffers {
    narrow: Buffers<u64>,
    wide: Buffers<u128>,
}

/// Rows by parts, within which they are in the order of the table.
struct Divided {
    tids: Vec<u32>,
    keys: Vec<u64>,
    parts: Vec<Range<usize>>,
}

/// Rows with the same leading bits of level 0.
struct Part<'a> {
    tids: &'a mut [u32],
    keys: &'a mut [u64],
    shared: &'a mut [u16],
}

/// Places that one thread fills with rows of a part.
struct Places<'a> {
    tids: &'a mut [u32],
    keys: &'a mut [u64],
    filled: usize,
}

impl Sorter<'_> {
    /// Levels that are packed for all rows. Without a `shift` all rows of a part agree in the first one.
    fn first_packed(&self) -> Range<usize> {
        let level = usize::from(self.shift == 0);
        level..self.packed(level).0
    }

    /// Divides `rows` rows into parts, and packs the first levels.
    fn divide(&self, rows: usize, threads: usize) -> Divided {
        let piece = rows.div_ceil(threads.max(1)).next_multiple_of(PACKED_ROWS).max(PACKED_ROWS);
        let pieces: Vec<Range<usize>> =
            (0..rows).step_by(piece).map(|first| first..rows.min(first + piece)).collect();
        let part_count = 1 << (self.widths[0] - self.shift);
        let mut counts = vec![vec![0_usize; part_count]; pieces.len()];
        in_parallel(pieces.iter().zip(&mut counts), threads, |(rows, counts)| {
            let mut count = |code: u32| counts[(code >> self.shift) as usize] += 1;
            typed!(self.columns[0], codes => codes[rows.clone()].iter().map(|code| Code::get(*code)).for_each(&mut count));
        });
        let (mut parts, mut places) = (Vec::new(), Vec::new());
        let mut end = 0;
        for part in 0..part_count {
            let start = end;
            for counts in &counts {
                places.push(end..end + counts[part]);
                end += counts[part];
            }
            if end > start {
                parts.push(start..end);
            }
        }
        let (mut tids, mut keys) = (memory::defaults(rows), memory::defaults(rows));
        let mut of_pieces: Vec<Vec<Places<'_>>> = pieces.iter().map(|_| Vec::new()).collect();
        let slices = split(&mut tids, &places).into_iter().zip(split(&mut keys, &places));
        for (i, (tids, keys)) in slices.enumerate() {
            of_pieces[i % pieces.len()].push(Places { tids, keys, filled: 0 });
        }
        in_parallel(pieces.into_iter().zip(of_pieces), threads, |(rows, mut places)| {
            for first in rows.clone().step_by(PACKED_ROWS) {
                self.distribute(first..rows.end.min(first + PACKED_ROWS), &mut places);
            }
        });
        Divided { tids, keys, parts }
    }

    /// Packs at most [`PACKED_ROWS`] rows and brings them to the places of their parts.
    fn distribute(&self, rows: Range<usize>, places: &mut [Places<'_>]) {
        let (mut keys, mut codes) = ([0; PACKED_ROWS], [0; PACKED_ROWS]);
        for level in self.first_packed() {
            typed!(self.columns[level], codes => pack(&codes[rows.clone()], self.widths[level], &mut keys));
        }
        typed!(self.columns[0], column => pack(&column[rows.clone()], 0, &mut codes));
        for ((row, key), code) in rows.zip(keys).zip(codes) {
            let Places { tids, keys, filled } = &mut places[(code >> self.shift) as usize];
            (tids[*filled], keys[*filled]) = (row as u32, key);
            *filled += 1;
        }
    }

    fn free_buffers(&self) -> MutexGuard<'_, Vec<PartBuffers>> {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sorts the rows of a part and notes what neighbours share.
    fn sort_part(&self, part: Part<'_>) {
        let Part { tids, keys, shared } = part;
        let levels = self.first_packed();
        if levels.is_empty() {
            return shared[1..].fill(levels.start as u16);
        }
        let mut buffers = self.free_buffers().pop().unwrap_or_default();
        let PartBuffers { narrow, wide } = &mut buffers;
        let mut waiting = Vec::new();
        let width: u32 = self.widths[levels.clone()].iter().sum();
        let mut equal = |run: Range<usize>| waiting.push((run, levels.end));
        if width <= 32 {
            self.sort_keys(tids, keys, shared, narrow, &mut equal);
        } else {
            self.sort_keys(tids, keys, shared, wide, &mut equal);
        }
        while let Some((rows, level)) = waiting.pop() {
            let (tids, shared) = (&mut tids[rows.clone()], &mut shared[rows.clone()]);
            let (end, width) = self.packed(level);
            let mut equal =
                |run: Range<usize>| waiting.push((rows.start + run.start..rows.start + run.end, end));
            if level == self.columns.len() {
                shared[1..].fill(level as u16);
            } else if width <= 32 {
                self.sort_rows(tids, shared, level..end, width, narrow, &mut equal);
            } else {
                self.sort_rows(tids, shared, level..end, width, wide, &mut equal);
            }
        }
        self.free_buffers().push(buffers);
    }

    /// Sorts the rows of a part by their keys. Calls `equal` for runs of equal keys.
    fn sort_keys<I: Item>(
        &self,
        tids: &mut [u32],
        keys: &mut [u64],
        shared: &mut [u16],
        buffers: &mut Buffers<I>,
        equal: &mut impl FnMut(Range<usize>),
    ) {
        let items = buffers.items(tids.len()).iter_mut();
        items.zip(keys.iter().zip(&*tids)).for_each(|(item, (&key, &tid))| *item = I::new(key, tid));
        let levels = self.first_packed();
        let width: u32 = self.widths[levels.clone()].iter().sum();
        // All rows of a part agree in the bits of level 0 that decide on it.
        buffers.sort(if self.shift > 0 { width - (self.widths[0] - self.shift) } else { width });
        buffers.note(tids, shared, &self.level_of_bit(levels), equal);
        keys.iter_mut().zip(&buffers.items).for_each(|(key, item)| *key = item.key());
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
        let items = buffers.items(tids.len());
        for (tids, items) in tids.chunks(PACKED_ROWS).zip(items.chunks_mut(PACKED_ROWS)) {
            let mut keys = [0; PACKED_ROWS];
            for level in levels.clone() {
                typed!(self.columns[level], codes => pack_rows(codes, tids, self.widths[level], &mut keys));
            }
            items
                .iter_mut()
                .zip(tids.iter().zip(keys))
                .for_each(|(item, (&tid, key))| *item = I::new(key, tid));
        }
        buffers.sort(width);
        buffers.note(tids, shared, &self.level_of_bit(levels), equal);
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

/// Appends codes of `width` bits to keys.
#[inline]
fn pack<C: Code>(codes: &[C], width: u32, keys: &mut [u64]) {
    for (code, key) in codes.iter().zip(keys) {
        *key = *key << width | u64::from(code.get());
    }
}

/// Appends the codes of the rows `tids`, which have `width` bits, to their keys.
fn pack_rows<C: Code>(codes: &[C], tids: &[u32], width: u32, keys: &mut [u64]) {
    for (&tid, key) in tids.iter().zip(keys) {
        *key = *key << width | u64::from(codes[tid as usize].get());
    }
}

/// Makes `items` at least `len` long; what is in it may get lost.
fn provide<I: Clone + Default>(items: &mut Vec<I>, len: usize) {
    if items.len() < len {
        *items = Vec::new();
        *items = memory::defaults(len);
    }
}

/// Turns counts into the places at which those that were counted begin.
fn begins(counts: &mut [usize]) {
    let mut end = 0;
    for count in counts {
        let start = end;
        end += std::mem::replace(count, start);
    }
}

/// Sorts items by the lowest `width` bits of their keys, equal ones as they are. Returns whether the result is in
/// `spare`, which has as many items.
fn sort_from_last_digit<'i, I: Item>(mut items: &'i mut [I], mut spare: &'i mut [I], width: u32) -> bool {
    let digit_bits = if items.len() < LARGE { 8 } else { DIGIT_BITS };
    let passes = width.div_ceil(digit_bits);
    if passes == 0 {
        return false;
    }
    let digit_bits = width.div_ceil(passes);
    let digit = |item: I, pass: u32| (item.key() >> (pass * digit_bits)) as usize & ((1 << digit_bits) - 1);
    let mut counts = vec![vec![0_usize; 1 << digit_bits]; passes as usize];
    for &item in items.iter() {
        for (pass, counts) in counts.iter_mut().enumerate() {
            counts[digit(item, pass as u32)] += 1;
        }
    }
    let mut is_in_spare = false;
    for (pass, next) in counts.iter_mut().enumerate() {
        if next[digit(items[0], pass as u32)] == items.len() {
            continue;
        }
        begins(next);
        for &item in items.iter() {
            let at = &mut next[digit(item, pass as u32)];
            spare[*at] = item;
            *at += 1;
        }
        std::mem::swap(&mut items, &mut spare);
        is_in_spare = !is_in_spare;
    }
    is_in_spare
}

/// Sorts items by the lowest `width` bits of their keys, in which alone they differ, and by row id. Returns whether the
/// result is in `spare`, which has as many items.
fn sort_from_first_digit<I: Item>(items: &mut [I], spare: &mut [I], mut width: u32) -> bool {
    loop {
        if items.len() <= SMALL {
            items.sort_unstable();
            return false;
        }
        if width == 0 {
            return false;
        }
        let digit_bits = (items.len() / FEW).ilog2().clamp(1, DIGIT_BITS).min(width);
        width -= digit_bits;
        let digit = |item: I| (item.key() >> width) as usize & ((1 << digit_bits) - 1);
        let mut ends = vec![0_usize; 1 << digit_bits];
        items.iter().for_each(|&item| ends[digit(item)] += 1);
        if ends[digit(items[0])] == items.len() {
            continue;
        }
        begins(&mut ends);
        for &item in items.iter() {
            let at = &mut ends[digit(item)];
            spare[*at] = item;
            *at += 1;
        }
        let mut start = 0;
        for end in ends {
            let (same, room) = (&mut spare[start..end], &mut items[start..end]);
            if sort_from_first_digit(same, room, width) {
                same.copy_from_slice(room);
            }
            start = end;
        }
        return true;
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
        let masks = [
            [3, 1, 0],
            [0, 0, 0],
            [u32::MAX, 0, 0xffff],
            [0xff_ffff; 3],
            [u32::MAX, 7, 3],
            [1, u32::MAX, u32::MAX],
            [0xfff, 3, 1],
        ];
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
            for level in 0..order.len() {
                let Some((keys, field)) = sorted.keys.of_level(level) else { continue };
                let code = |tid: &u32| row(*tid)[level];
                assert!(keys.iter().map(|&key| field.of(key)).eq(expected.iter().map(code)), "level {level}");
            }
            let again = Sorted::of_order(&table, &order, expected);
            assert_eq!(again.shared, sorted.shared);
            assert_eq!(again.parts.iter().map(|part| part.len()).sum::<usize>(), rows);
            assert!(again.parts.iter().all(|part| !part.is_empty() && again.shared[part.start] == 0));
        }
    }
}
