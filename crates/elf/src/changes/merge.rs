//! Merge of consecutive parts into one, without their deleted rows.
//!
//! 1. The living rows of all parts are put together in the order of their ids. Their codes change to those of
//!    dictionaries that have exactly the values of these rows; every such change keeps the order.
//! 2. Preorder of an Elf is the lexicographic order of its rows. So the row ids of each part, as its Elf lists
//!    them, are a sorted list, and merging the lists gives the order of all rows without a sort.
//! 3. The image is written from that order like that of any build, so it has the same bytes.
//!
//! Beside parts and result, a merge takes 16 bytes per living row, 24 at most if ids are far apart, and about
//! 45 per distinct value of the column in work.

use std::sync::Arc;

use super::options::Config;
use super::part::{Form, Part, Rows};
use crate::build::sorted_rows;
use crate::codes::{Code, CodeSlice, NumberSlice, typed};
use crate::defect::{Defect, defect};
use crate::dictionary::Dictionary;
use crate::elf::Elf;
use crate::error::Result;
use crate::kernel::WORD;
use crate::predicate::Predicate;
use crate::schema::Schema;
use crate::sink::{Sink, bits};
use crate::sort::{Sorted, check_rows};
use crate::table::CodeTable;

/// Puts the living rows of consecutive parts together, as [`Form::Chunk`]; `None` if there are none.
pub(super) fn gather(parts: &[Part], schema: Option<&Schema>) -> Result<Option<Rows>> {
    let rows: u64 = parts.iter().map(Part::living).sum();
    check_rows(rows)?;
    if rows == 0 {
        return Ok(None);
    }
    let living: Vec<Vec<u32>> = parts.iter().map(living_rows).collect();
    let ids: Vec<u64> = parts
        .iter()
        .zip(&living)
        .flat_map(|(part, living)| living.iter().map(|&row| part.table().id(row as usize)))
        .collect();
    let (dictionaries, recodings) = match schema {
        Some(schema) => unite(parts, &living, schema)?,
        None => (Vec::new(), Vec::new()),
    };
    let column = |number: usize| {
        let mut codes = Vec::with_capacity(ids.len());
        for (at, (part, living)) in parts.iter().zip(&living).enumerate() {
            let recoding = recodings.get(number).map(|of_parts| of_parts[at].as_slice());
            typed!(part.table().column(number), stored => append(stored, living, recoding, &mut codes));
        }
        codes
    };
    let table = CodeTable::of_columns((0..parts[0].table().width()).map(column), ids.len());
    let table = Arc::new(table.with_ids(&ids)?);
    Ok(Some(Rows { table, dictionaries, form: Form::Chunk }))
}

/// For each column, the new code of each old one in each part.
type Recodings = Vec<Vec<Vec<u32>>>;

/// The dictionaries that have exactly the values of the living rows.
fn unite(parts: &[Part], living: &[Vec<u32>], schema: &Schema) -> Result<(Vec<Dictionary>, Recodings)> {
    let unite_column = |(number, column)| {
        let used = parts.iter().zip(living).map(|(part, living)| used_codes(part, living, number));
        let used: Vec<Vec<bool>> = used.collect();
        let old = parts.iter().zip(&used).map(|(part, used)| (&part.rows.dictionaries[number], &used[..]));
        Dictionary::union(column, &old.collect::<Vec<_>>())
    };
    let united: Vec<_> = schema.columns().iter().enumerate().map(unite_column).collect::<Result<_>>()?;
    Ok(united.into_iter().unzip())
}

/// Rows of the part's table that are not deleted.
fn living_rows(part: &Part) -> Vec<u32> {
    let table = part.table();
    let rows = 0..table.rows() as u32;
    if part.deleted.is_empty() {
        return rows.collect();
    }
    rows.filter(|&row| !part.deleted.contains(table.id(row as usize))).collect()
}

/// Which codes of a column the given rows of a part have.
fn used_codes(part: &Part, rows: &[u32], column: usize) -> Vec<bool> {
    let mut used = vec![false; part.rows.dictionaries[column].len() + 1];
    let codes = part.table().column(column);
    typed!(codes, codes => rows.iter().for_each(|&row| used[codes[row as usize].get() as usize] = true));
    used
}

/// Appends the codes of the given rows, changed by `recoding` if there is one.
fn append<C: Code>(stored: &[C], rows: &[u32], recoding: Option<&[u32]>, codes: &mut Vec<u32>) {
    let stored = rows.iter().map(|&row| stored[row as usize].get());
    match recoding {
        Some(recoding) if !defect(Defect::StaleCodes) => {
            codes.extend(stored.map(|code| recoding[code as usize]))
        }
        _ => codes.extend(stored),
    }
}

/// Puts the living rows of consecutive parts together and in order; `None` if there are none.
pub(super) fn gather_sorted(parts: &[Part], config: &Config) -> Result<Option<(Rows, Sorted)>> {
    let Some(rows) = gather(parts, config.schema.as_ref())? else { return Ok(None) };
    let Config { order, layout, options, .. } = config;
    let table = &rows.table;
    let runs: Option<Vec<&Elf>> = parts.iter().map(Part::elf).collect();
    let sorted = match runs {
        Some(runs) => Sorted::of_order(table, order, merged_order(&runs, table, order)?),
        // The row buffer is not sorted.
        None => sorted_rows(table, order, *layout, &options.build)?,
    };
    Ok(Some((rows, sorted)))
}

/// Merges consecutive parts into a run; `None` if no row of them is left.
pub(super) fn merge(parts: &[Part], config: &Config) -> Result<Option<Rows>> {
    let Some((rows, sorted)) = gather_sorted(parts, config)? else { return Ok(None) };
    let Config { order, layout, options, .. } = config;
    let table = &rows.table;
    let elf = Elf::of_sorted(table, order, &sorted, *layout, &options.build)?;
    let elf = elf.with_gate(config.gate).with_kernel(config.kernel).with_table(table.clone())?;
    Ok(Some(Rows { form: Form::Run(Box::new(elf)), ..rows }))
}

/// Rows of `table`, which has the living rows of `runs`, in lexicographic order.
fn merged_order(runs: &[&Elf], table: &CodeTable, order: &[usize]) -> Result<Vec<u32>> {
    let places = Places::of(table);
    let mut lists = Vec::with_capacity(runs.len());
    for run in runs {
        let mut list = Listing { places: &places, rows: Vec::new() };
        run.select(&Predicate::all())?.walk(&mut list);
        lists.push(list.rows);
    }
    let columns: Vec<CodeSlice<'_>> = order.iter().map(|&column| table.column(column)).collect();
    // Equal rows are in the order of their ids, which is that of the rows.
    let is_less = |a: u32, b: u32| {
        let codes = |row: u32| columns.iter().map(move |column| column.get(row as usize));
        codes(a).cmp(codes(b)).then(a.cmp(&b)).is_lt()
    };
    // Small lists first, so that few rows are moved often.
    lists.sort_by_key(Vec::len);
    Ok(lists.into_iter().reduce(|merged, list| merge_two(&merged, &list, is_less)).unwrap_or_default())
}

/// Merges two sorted lists, which have no row in common. A short list costs a search of the long one per row.
fn merge_two<'l>(mut a: &'l [u32], mut b: &'l [u32], is_less: impl Fn(u32, u32) -> bool) -> Vec<u32> {
    let mut merged = Vec::with_capacity(a.len() + b.len());
    while let (false, Some(&next)) = (a.is_empty(), b.first()) {
        let before = leading(a, |row| is_less(row, next));
        merged.extend_from_slice(&a[..before]);
        (a, b) = (b, &a[before..]);
    }
    merged.extend_from_slice(a);
    merged.extend_from_slice(b);
    merged
}

/// Number of leading rows that meet `condition`, which none behind them does; a search that widens by
/// doubling.
fn leading(rows: &[u32], condition: impl Fn(u32) -> bool) -> usize {
    let mut reach = 1;
    while reach <= rows.len() && condition(rows[reach - 1]) {
        reach *= 2;
    }
    let known = reach / 2;
    known + rows[known..rows.len().min(reach)].partition_point(|&row| condition(row))
}

/// Row of a table for each row id: a bitmap of the ids, and the number of rows before each of its words.
struct Places<'t> {
    table: &'t CodeTable,
    first: u64,
    /// At most one word per row. If ids are farther apart, they are searched for in the table instead.
    words: Vec<(u64, u32)>,
}

impl<'t> Places<'t> {
    fn of(table: &'t CodeTable) -> Self {
        let first = table.id(0) / WORD as u64 * WORD as u64;
        let count = (table.id_bound() - first).div_ceil(WORD as u64);
        let mut words = Vec::new();
        if count <= table.rows() as u64 {
            words.resize(count as usize, (0, 0));
            for row in 0..table.rows() {
                let at = table.id(row) - first;
                words[at as usize / WORD].0 |= 1_u64 << (at % 64);
            }
        }
        let mut before = 0;
        for (mask, rows) in &mut words {
            *rows = before;
            before += mask.count_ones();
        }
        Self { table, first, words }
    }

    /// Row of `id`, `None` if the table does not have it.
    #[inline]
    fn row(&self, id: u64) -> Option<u32> {
        if self.words.is_empty() {
            return self.table.row_of(id).map(|row| row as u32);
        }
        let at = id.checked_sub(self.first)?;
        let &(mask, before) = self.words.get((at / 64) as usize)?;
        let is_there = mask >> (at % 64) & 1 == 1;
        is_there.then(|| before + (mask & ((1 << (at % 64)) - 1)).count_ones())
    }
}

/// Collects the rows of a table whose ids it receives.
struct Listing<'a> {
    places: &'a Places<'a>,
    rows: Vec<u32>,
}

impl Sink for Listing<'_> {
    #[inline]
    fn tid(&mut self, tid: u64) {
        self.rows.extend(self.places.row(tid));
    }

    #[inline]
    fn span(&mut self, tids: NumberSlice<'_>) {
        self.rows.extend(tids.iter().filter_map(|tid| self.places.row(tid)));
    }

    fn masked(&mut self, tids: NumberSlice<'_>, mask: u64) {
        bits(mask).for_each(|i| self.tid(tids.get(i)));
    }

    fn rows(&mut self, first: u64, mask: u64) {
        bits(mask).for_each(|i| self.tid(first + i as u64));
    }

    fn found(&self) -> u64 {
        self.rows.len() as u64
    }

    fn restart(&mut self) {
        self.rows.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merged_lists_are_sorted() {
        let list =
            |(factor, rows): (u32, u32), odd| (0..rows).map(|i| i * 2 * factor + odd).collect::<Vec<_>>();
        for (a, b) in [((2, 50), (3, 40)), ((1, 0), (5, 3)), ((1000, 3), (1, 2500)), ((7, 9), (1, 0))] {
            let (a, b) = (list(a, 0), list(b, 1));
            let mut expected = [a.clone(), b.clone()].concat();
            expected.sort_unstable();
            assert_eq!(merge_two(&a, &b, |x, y| x < y), expected);
        }
    }
}
