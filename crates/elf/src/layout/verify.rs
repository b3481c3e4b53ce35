//! Verification of a columnar image, so that no search of it leaves a section.
//!
//! Each level must be sorted lists of entries that cover at least one row each; the lists below an entry must
//! cover its rows exactly; and the rows between the entries of a level must be those of its strips. It follows
//! that the strip of every bucket lies within the strip codes of each deeper level. One pass over all levels.

use super::columnar::{Columnar, Level};
use crate::codes::NumberSlice;
use crate::error::{Error, Result};

/// Verifies all positions of `columnar`, whose sections fill the image. Returns the bound of the row ids.
pub(super) fn verify<B: AsRef<[u8]>>(columnar: &Columnar<B>, rows: u64, level_count: usize) -> Result<u64> {
    let damaged = |level: usize, what| Error::Damaged { at: columnar.level_at(level), what };
    let id_bound = id_bound(columnar.tids()).map_err(|what| damaged(0, what))?;
    let mut above: Option<Level<'_>> = None;
    for number in 0..level_count {
        let level = columnar.level(number);
        verify_positions(&level, rows).map_err(|what| damaged(number, what))?;
        match above {
            None => verify_ascent(&level, 0, level.entries()),
            Some(above) => verify_lists(&above, &level),
        }
        .map_err(|what| damaged(number, what))?;
        above = Some(level);
    }
    Ok(id_bound)
}

type Check = Result<(), &'static str>;

fn demand(holds: bool, what: &'static str) -> Check {
    if holds { Ok(()) } else { Err(what) }
}

/// One above the largest row id, which is not the largest number.
fn id_bound(tids: NumberSlice<'_>) -> Result<u64, &'static str> {
    let Some(largest) = tids.iter().max() else { return Ok(0) };
    largest.checked_add(1).ok_or("a row id is 2^64 - 1")
}

/// Entries cover rows in order, and the rows between them are strip rows.
fn verify_positions(level: &Level<'_>, rows: u64) -> Check {
    let entries = level.entries();
    let covered = |i: usize| level.starts.get(i).checked_sub(level.strip(i) as u64);
    demand(covered(0) == Some(0), "rows before the first entry are not strip rows")?;
    demand(level.starts.get(entries) == rows, "the last position is not the number of rows")?;
    demand(level.strip(entries) == level.codes.len(), "the strip rows differ from the directory")?;
    let mut before = Some(0);
    for i in 1..=entries {
        let now = covered(i);
        demand(now > before && now.is_some(), "an entry covers no row")?;
        demand(level.strip(i) >= level.strip(i - 1), "strip rows descend")?;
        before = now;
    }
    Ok(())
}

/// The lists of `level` belong to the entries `above` and cover the same rows.
fn verify_lists(above: &Level<'_>, level: &Level<'_>) -> Check {
    let entries = above.entries();
    demand(above.child(0) == 0, "the first list does not start at the first entry")?;
    demand(above.child(entries) == level.entries(), "the last list does not end at the last entry")?;
    for i in 0..entries {
        let (first, end) = (above.child(i), above.child(i + 1));
        demand(first <= end && end <= level.entries(), "a list has no valid bounds")?;
        if first == end {
            continue;
        }
        demand(level.start(first) == above.start(i), "a list does not start at the row of its entry")?;
        let covered = |level: &Level<'_>, from: usize, to: usize| {
            (level.start(to) - level.strip(to)) - (level.start(from) - level.strip(from))
        };
        demand(
            covered(level, first, end) == covered(above, i, i + 1),
            "a list does not cover its entry's rows",
        )?;
        let strip = level.strip(first);
        demand((first..end).all(|k| level.strip(k) == strip), "strip rows lie within a list")?;
        verify_ascent(level, first, end)?;
    }
    Ok(())
}

fn verify_ascent(level: &Level<'_>, first: usize, end: usize) -> Check {
    let ascends = (first + 1..end).all(|i| level.values.get(i - 1) < level.values.get(i));
    demand(ascends, "the values of a list do not ascend")
}
