//! The row buffer: rows that were inserted last, in chunks that never change and are scanned.
//!
//! Each batch of inserts is a chunk with its own dictionaries, so a batch is visible as a whole or not at all, a
//! snapshot keeps chunks without a copy, and a new value costs nothing elsewhere. A chunk that is no larger than
//! the one behind it is joined with it. So N rows are in log2(N) + 1 chunks at most, and each of them is copied
//! that many times at most before the buffer becomes a run. A buffer that grows in place would make one copy,
//! but a new value would change the codes of all of its rows under its readers.

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

/// Joins the last chunks as long as the older one of two is not larger.
pub(super) fn join(parts: &mut Vec<Part>, schema: Option<&Schema>) -> Result<()> {
    while let [.., older, newer] = parts.as_slice() {
        if !older.is_chunk() || older.table().rows() > newer.table().rows() {
            break;
        }
        let first = parts.len() - 2;
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
