//! How a build divides the memory that it was given.
//!
//! While rows come in, all of it serves to collect and sort a run. Afterwards one half goes to the runs that
//! are merged, a quarter to pages of the image, and the rest to rows in view, lists and columns. Costs are
//! upper bounds for what the code of the other files allocates; a test counts.

use crate::error::{Error, Result};

const KIB: usize = 1 << 10;
/// Bytes per row that a sort takes besides the codes: ids, prefixes, keys with their copies, and pending
/// ranges.
const SORT_ROW: usize = 184;
/// Bytes that a sort takes in any case, and per thread: histograms.
const SORT_FIXED: usize = 48 * KIB;
const SORT_THREAD: usize = 24 * KIB;
/// Bytes per column for descriptions of columns, levels and places.
const COLUMN: usize = 512;
/// Sizes of pages, as powers of two.
const PAGE_BITS: std::ops::RangeInclusive<u32> = 12..=16;
/// Bytes per page or run besides the contents.
const DESCRIPTION: usize = 256;

#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    bytes: usize,
    levels: usize,
    /// Rows of the runs that are sorted in memory.
    pub(super) run_rows: usize,
    /// Rows of a run that are read or written at once.
    pub(super) block_rows: usize,
    /// Runs that are merged at once, at least 2.
    pub(super) fan_in: usize,
}

/// Pages of a file that is written out of order.
#[derive(Clone, Copy, Debug)]
pub(super) struct PageBudget {
    pub(super) page_bits: u32,
    pub(super) pages: usize,
}

impl Budget {
    /// Divides `bytes` for a table of `levels` columns. Fails if they are too few.
    pub(super) fn new(bytes: usize, levels: usize, threads: usize) -> Result<Self> {
        let columns = levels * COLUMN;
        let threads = threads.max(1).saturating_mul(SORT_THREAD);
        let sort = (SORT_FIXED + columns).saturating_add(threads);
        let needed = sort.saturating_add(64 * KIB).saturating_add(columns);
        if bytes < needed {
            return Err(Error::MemoryTooSmall { bytes, needed });
        }
        // Blocks of a run are made while its table is still there; they are an eighth of it.
        let run_rows = ((bytes - sort) / (5 * levels + SORT_ROW)).clamp(1, u32::MAX as usize);
        let block_rows = (bytes / 64 / block_row(levels)).min(run_rows / 8).clamp(1, 8 * KIB);
        let run = block_rows * block_row(levels) + levels + DESCRIPTION;
        // One more block is written.
        let fan_in = (bytes / 2 / run).saturating_sub(1).max(2);
        Ok(Self { bytes, levels, run_rows, block_rows, fan_in })
    }

    /// Pages of the image, for that many places that are written in turns.
    pub(super) fn image_pages(&self, places: usize) -> PageBudget {
        let share = self.bytes / 4;
        let fits = |bits: &u32| share >> bits >= places.saturating_mul(2);
        let page_bits = PAGE_BITS.rev().find(fits).unwrap_or(*PAGE_BITS.start());
        PageBudget { page_bits, pages: (share / ((1 << page_bits) + DESCRIPTION)).max(1) }
    }

    /// Pages of the list lengths, and bytes of each buffer of a sequence beside them.
    pub(super) fn list_pages(&self) -> (PageBudget, usize) {
        let page_bits = *PAGE_BITS.start();
        let pages = (self.bytes / 16 / ((1 << page_bits) + DESCRIPTION)).max(1);
        (PageBudget { page_bits, pages }, (self.bytes / 64).min(64 * KIB))
    }

    /// Rows in view for buckets of up to `bucket_rows` rows: twice as many, so that few are moved. Fails if
    /// they do not fit.
    pub(super) fn window_rows(&self, bucket_rows: usize) -> Result<usize> {
        let row = 4 * self.levels + 16;
        let rows = bucket_rows.saturating_add(1).saturating_mul(2);
        let bytes = rows.saturating_mul(row);
        if bytes > self.bytes / 8 {
            return Err(Error::MemoryTooSmall { bytes: self.bytes, needed: bytes.saturating_mul(8) });
        }
        Ok(rows)
    }
}

/// Bytes per row of a block: decoded, encoded, and one column between.
fn block_row(levels: usize) -> usize {
    2 * (4 * levels + 8) + 4
}
