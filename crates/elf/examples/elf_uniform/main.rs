//! Measures build, size and exact match of the paper's uniform table (DAPD 2022 §5.2): 10 columns with 100 values each.
//! `cargo run --release -p pando-elf --example elf_uniform [rows [threads]]`; the paper has 100,000,000 rows.
//!
//! Each exact match asks for a row of the table, drawn uniformly, and must find it.

use std::time::Instant;

use pando_elf::{BuildOptions, CodeTable, Elf, LayoutKind};

const COLUMNS: usize = 10;
const CARDINALITY: u64 = 100;
const QUERIES: usize = 1_000_000;

fn main() {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse().expect("a number"));
    let rows = arguments.next().unwrap_or(10_000_000);
    let threads = arguments.next().unwrap_or(1);
    let mut random = Random(1);
    let column = |_| (0..rows).map(|_| 1 + random.below(CARDINALITY) as u32).collect();
    let table = CodeTable::new((0..COLUMNS).map(column).collect()).expect("columns of one length");
    println!("{rows} rows of {COLUMNS} columns, {} MB of codes", table.bytes() / 1_000_000);
    for layout in [LayoutKind::Columnar, LayoutKind::Linear] {
        let start = Instant::now();
        let order: Vec<usize> = (0..COLUMNS).collect();
        let options = BuildOptions { threads, ..BuildOptions::default() };
        let elf = Elf::build(&table, &order, layout, &options).expect("a table that fits");
        let seconds = start.elapsed().as_secs_f64();
        println!(
            "{layout:?}: {} MB, built in {seconds:.1} s with {threads} threads: {:.1} M rows/s",
            elf.bytes().len() / 1_000_000,
            rows as f64 / seconds / 1e6
        );
        exact(&elf, &table);
    }
}

fn exact(elf: &Elf, table: &CodeTable) {
    let mut random = Random(2);
    let rows: Vec<u32> = (0..QUERIES).map(|_| random.below(table.rows() as u64) as u32).collect();
    let code = |row: u32, column| table.code(column, row as usize);
    let queries: Vec<[u32; COLUMNS]> =
        rows.iter().map(|&row| std::array::from_fn(|column| code(row, column))).collect();
    let mut ids = Vec::<u32>::new();
    let mut missed = 0;
    let start = Instant::now();
    for (codes, row) in queries.iter().zip(&rows) {
        ids.clear();
        elf.exact_into(codes, &mut ids).expect("one code per column");
        missed += usize::from(!ids.contains(row));
    }
    let microseconds = start.elapsed().as_secs_f64() * 1e6 / QUERIES as f64;
    println!("  exact match {microseconds:.2} us, {missed} rows not found");
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((u128::from(mixed ^ mixed >> 31) * u128::from(limit)) >> 64) as u64
    }
}
