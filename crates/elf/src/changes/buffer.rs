//! The row buffer: rows that were inserted last, in chunks that never change and are scanned.
//!
//! Each batch of inserts is a chunk with its own dictionaries, so a batch is visible as a whole or not at
//! all, a snapshot keeps chunks without a copy, and a new value costs nothing elsewhere. A chunk with
//! less than twice the rows of those behind it is joined with them. So N rows are in log2(N) + 1 chunks at most,
//! and each join makes the chunk of an older row at least 1.5 times as large. A buffer that grows in place would
//! copy less, but a new value would change the codes of all of its rows under its readers.

use super::merge::gather;
use super::part::{Form, Part, Rows};
use crate::error::Result;
use crate::schema::Schema;

/// Number of the parts that are no chunks of the buffer.
fn sealed(parts: &[Part]) -> usize {
    parts.iter().rposition(|part| !part.is_chunk()).map_or(0, |last| last + 1)
}

/// Rows in the buffer, deleted ones included.
pub(super) fn buffered_rows(parts: &[Part]) -> u64 {
    parts[sealed(parts)..].iter().map(|chunk| chunk.table().rows() as u64).sum()
}

/// Joins the last chunk with those before it, until each one has at least twice as many rows as the next.
pub(super) fn join(parts: &mut Vec<Part>, schema: Option<&Schema>) -> Result<()> {
    let oldest = sealed(parts);
    let mut first = parts.len().saturating_sub(1).max(oldest);
    let rows = |part: &Part| part.table().rows();
    let mut joined_rows: usize = parts[first..].iter().map(rows).sum();
    while first > oldest && rows(&parts[first - 1]) < 2 * joined_rows {
        first -= 1;
        joined_rows += rows(&parts[first]);
    }
    if parts.len() - first > 1 {
        let joined = gather(&parts[first..], schema)?;
        parts.truncate(first);
        parts.extend(joined.map(Part::new));
    }
    Ok(())
}

/// Makes one sealed part of all chunks.
pub(super) fn seal(parts: &mut Vec<Part>, schema: Option<&Schema>) -> Result<()> {
    let first = sealed(parts);
    let rows = gather(&parts[first..], schema)?;
    parts.truncate(first);
    parts.extend(rows.map(|rows| Part::new(Rows { form: Form::Sealed, ..rows })));
    Ok(())
}
