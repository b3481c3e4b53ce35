//! Reading of arbitrary bytes as a run of an external build, for fuzzing.
//!
//! A run is a temporary file, which a full disk may cut and a broken one may change. Whatever it holds, a reader
//! gives rows or an error, and never panics.

use std::path::Path;

use super::run::{Run, RunReader};
use super::scratch::Scratch;
use crate::error::Result;

/// Reads `bytes` as a run of `rows` rows and `levels` columns in blocks of `block_rows`. Returns the number of rows.
/// Fails if the bytes are none, or if there is no place for a temporary file.
pub fn read_run(bytes: &[u8], rows: u64, levels: usize, block_rows: usize) -> Result<u64> {
    let mut scratch = Scratch::create(Path::new("/dev/shm"))?;
    scratch.append(bytes)?;
    let mut reader = RunReader::open(&scratch, Run { start: 0, rows }, levels, block_rows)?;
    let mut found = 0;
    while reader.advance()? {
        assert_eq!(reader.codes().len(), levels);
        reader.tid();
        found += 1;
    }
    Ok(found)
}
