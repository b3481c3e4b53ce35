//! Bulk build of an Elf: one lexicographic sort and one top-down pass (fact sheet §3).
//!
//! Sizes are counted before, so that the image is allocated once at its exact size and threads write their parts of
//! it in place. A part is a range of values of the first column; the bytes do not depend
//! on the number of threads.

pub(crate) mod columnar;
pub(crate) mod linear;
mod tree;

use crate::error::{Error, Result};
use crate::layout::{Columnar, LayoutKind, Linear, is_permutation};
use crate::sort::{Sorted, sort};
use crate::table::CodeTable;
use tree::Tree;

/// Bytes of pointers, positions and row ids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Width {
    /// 4 bytes if they suffice, otherwise 8.
    #[default]
    Auto,
    /// 4 bytes, or an error.
    Narrow,
    /// 8 bytes.
    Wide,
}

/// How an Elf is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BuildOptions {
    /// Most rows of a bucket in the columnar layout, at least 1. Larger ones make the tree smaller, and an
    /// exact match or a small result a little slower. Default: 256.
    pub bucket_rows: u32,
    /// Default: [`Width::Auto`].
    pub width: Width,
    /// Threads that sort and write. Default: 1.
    pub threads: usize,
}

impl Default for BuildOptions {
    fn default() -> Self {
        Self { bucket_rows: 256, width: Width::Auto, threads: 1 }
    }
}

fn check_order(table: &CodeTable, order: &[usize]) -> Result<()> {
    if is_permutation(order, table.width()) {
        return Ok(());
    }
    Err(Error::BadOrder { order: order.to_vec(), columns: table.width() })
}

/// Fails if an image cannot hold the codes and row ids of `table`.
pub(crate) fn check_limits(table: &CodeTable, layout: LayoutKind, width: Width) -> Result<()> {
    let (rows, id_bound) = (table.rows() as u64, table.id_bound());
    match layout {
        LayoutKind::Linear => linear::check_limits(table, rows, id_bound),
        LayoutKind::Columnar => columnar::pointer_bytes(rows, id_bound, width).map(drop),
    }
}

/// Builds an Elf in the published layout. Level `l` is column `order[l]`. Fails if `order` does not name each
/// column once, if rows or codes exceed [`Linear::LIMIT`], and if the image does not fit its pointers or memory.
pub fn build_linear(table: &CodeTable, order: &[usize], options: &BuildOptions) -> Result<Linear<Vec<u8>>> {
    let sorted = sorted_rows(table, order, LayoutKind::Linear, options)?;
    linear::write(&Tree::new(table, order, &sorted), order, options)
}

/// Builds an Elf in the columnar layout. Level `l` is column `order[l]`. Fails if `order` does not name each
/// column once, if a bucket has no rows, and if the image does not fit into memory.
pub fn build_columnar(
    table: &CodeTable,
    order: &[usize],
    options: &BuildOptions,
) -> Result<Columnar<Vec<u8>>> {
    let sorted = sorted_rows(table, order, LayoutKind::Columnar, options)?;
    columnar::write(&Tree::new(table, order, &sorted), order, options)
}

/// Sorts the rows of `table` for a build in `layout`. Fails like the build.
pub(crate) fn sorted_rows(
    table: &CodeTable,
    order: &[usize],
    layout: LayoutKind,
    options: &BuildOptions,
) -> Result<Sorted> {
    check_order(table, order)?;
    if layout == LayoutKind::Columnar && options.bucket_rows == 0 {
        return Err(Error::EmptyBucket);
    }
    check_limits(table, layout, options.width)?;
    sort(table, order, options.threads)
}

/// Does what [`build_linear`] does, for rows that are sorted already.
pub(crate) fn sorted_linear(
    table: &CodeTable,
    order: &[usize],
    sorted: &Sorted,
    options: &BuildOptions,
) -> Result<Linear<Vec<u8>>> {
    check_limits(table, LayoutKind::Linear, options.width)?;
    linear::write(&Tree::new(table, order, sorted), order, options)
}

/// Does what [`build_columnar`] does, for rows that are sorted already.
pub(crate) fn sorted_columnar(
    table: &CodeTable,
    order: &[usize],
    sorted: &Sorted,
    options: &BuildOptions,
) -> Result<Columnar<Vec<u8>>> {
    columnar::write(&Tree::new(table, order, sorted), order, options)
}
