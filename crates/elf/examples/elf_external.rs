//! Measures builds outside of memory in both layouts: rows per second, and the most memory that they allocate.
//! `cargo run --release -p pando-elf --example elf_external [rows [MiB [threads [values of each column]]]]`.
//!
//! Codes are uniform. Without arguments the columns have the numbers of values of TPC-H's lineitem at scale
//! factor 1, by cardinality.

use std::time::Instant;

use pando_elf::{BuildOptions, CodeTable, ExternalBuild, ExternalOptions, LayoutKind};
use peak_alloc::PeakAlloc;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

const LINEITEM: [usize; 15] =
    [2, 3, 4, 7, 7, 9, 11, 50, 2_466, 2_526, 2_554, 10_000, 200_000, 933_900, 1_500_000];
const BATCH_ROWS: usize = 10_000;

/// Rows `first` and following: codes from 1 on, by a hash of row and column.
fn batch(first: usize, rows: usize, values: &[usize]) -> CodeTable {
    let code = |row: usize, column: usize, values: usize| {
        let mut z = ((row * 64 + column) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        1 + ((u128::from(z ^ (z >> 31)) * values as u128) >> 64) as u32
    };
    let column = |(column, &values)| (first..first + rows).map(|row| code(row, column, values)).collect();
    CodeTable::new(values.iter().enumerate().map(column).collect()).expect("columns of equal length")
}

fn main() {
    let arguments: Vec<usize> =
        std::env::args().skip(1).map(|argument| argument.parse().expect("a number")).collect();
    let argument = |at: usize, default| arguments.get(at).copied().unwrap_or(default);
    let (rows, memory, threads) = (argument(0, 6_001_215), argument(1, 256) << 20, argument(2, 1));
    let values = arguments.get(3..).filter(|values| !values.is_empty()).unwrap_or(&LINEITEM);
    println!("{rows} rows, {} columns, {} MiB of memory, {threads} threads", values.len(), memory >> 20);
    let order: Vec<usize> = (0..values.len()).collect();
    for kind in [LayoutKind::Linear, LayoutKind::Columnar] {
        let build = BuildOptions { threads, ..BuildOptions::default() };
        let options = ExternalOptions { build, memory_bytes: memory, ..ExternalOptions::default() };
        let image = tempfile::tempfile_in(&options.directory).expect("room for the image");
        MEMORY.reset_peak_usage();
        let (mut pushing, mut batches) = (0.0, 0);
        let mut build = ExternalBuild::new(&order, kind, options).expect("a build");
        for first in (0..rows).step_by(BATCH_ROWS) {
            let batch = batch(first, BATCH_ROWS.min(rows - first), values);
            batches = batches.max(batch.bytes());
            let start = Instant::now();
            build.push(&batch).expect("a batch of the table");
            pushing += start.elapsed().as_secs_f64();
        }
        let start = Instant::now();
        let header = build.finish(image).expect("an image");
        let finishing = start.elapsed().as_secs_f64();
        println!(
            "{:>8}: runs {pushing:.2} s, merge and image {finishing:.2} s, {:.2} M rows/s, image {} MB, peak {:.1} MiB",
            kind.name(),
            rows as f64 / (pushing + finishing) / 1e6,
            header.words * 4 / 1_000_000,
            // A batch is the caller's.
            (MEMORY.peak_usage() - batches) as f64 / f64::from(1 << 20),
        );
    }
}
