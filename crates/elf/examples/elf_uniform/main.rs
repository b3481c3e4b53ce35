//! Measures build, size and exact match of the paper's uniform table (DAPD 2022 §5.2): 10 columns with 100 values each.
//! `cargo run --release -p pando-elf --example elf_uniform [rows [threads]]`; the paper has 100,000,000 rows.
//!
//! Each exact match asks for a row of the table, drawn uniformly, and must find it. Times are medians of a thousand groups
//! of a thousand exact matches, one by one and together, so that other work of the machine shows in few of them.

use std::time::Instant;

use pando_elf::{BuildOptions, CodeTable, Elf, LayoutKind};
use rustix::time::{ClockId, clock_gettime};

const COLUMNS: usize = 10;
const CARDINALITY: u64 = 100;
const GROUPS: usize = 1_000;
const GROUP: usize = 1_000;

fn main() {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse().expect("a number"));
    let rows = arguments.next().unwrap_or(10_000_000);
    let threads = arguments.next().unwrap_or(1);
    let mut random = Random(1);
    let column = |_| (0..rows).map(|_| 1 + random.below(CARDINALITY) as u32).collect();
    let table = CodeTable::new((0..COLUMNS).map(column).collect()).expect("columns of one length");
    println!("{rows} rows of {COLUMNS} columns, {} MB of codes", table.bytes() / 1_000_000);
    for layout in [LayoutKind::Columnar, LayoutKind::Linear] {
        let (start, start_processor) = (Instant::now(), processor_seconds());
        let order: Vec<usize> = (0..COLUMNS).collect();
        let options = BuildOptions { threads, ..BuildOptions::default() };
        let elf = Elf::build(&table, &order, layout, &options).expect("a table that fits");
        let seconds = start.elapsed().as_secs_f64();
        let processor = processor_seconds() - start_processor;
        println!(
            "{layout:?}: {} MB, built in {seconds:.1} s with {threads} threads, {processor:.1} s of processor time: \
             {:.1} M rows/s a core",
            elf.bytes().len() / 1_000_000,
            rows as f64 / processor / 1e6
        );
        exact(&elf, &table);
    }
}

/// Time that all threads had a core.
fn processor_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn exact(elf: &Elf, table: &CodeTable) {
    let mut random = Random(2);
    let (mut ids, mut ends) = (Vec::<u32>::new(), Vec::new());
    let (mut singly, mut together) = (Vec::new(), Vec::new());
    let mut missed = 0;
    for group in 0..2 * GROUPS {
        let rows: Vec<u32> = (0..GROUP).map(|_| random.below(table.rows() as u64) as u32).collect();
        let code = |row: u32, column| table.code(column, row as usize);
        let queries: Vec<[u32; COLUMNS]> =
            rows.iter().map(|&row| std::array::from_fn(|column| code(row, column))).collect();
        let start = Instant::now();
        if group % 2 == 0 {
            for (codes, row) in queries.iter().zip(&rows) {
                ids.clear();
                elf.exact_into(codes, &mut ids).expect("one code per column");
                missed += usize::from(!ids.contains(row));
            }
        } else {
            ids.clear();
            ends.clear();
            elf.exact_many_into(&queries, &mut ids, &mut ends).expect("one code per column");
            let begins = std::iter::once(0).chain(ends.iter().copied());
            let found = begins.zip(&ends).map(|(begin, &end)| &ids[begin..end]);
            missed += found.zip(&rows).filter(|(ids, row)| !ids.contains(row)).count();
        }
        let times = if group % 2 == 0 { &mut singly } else { &mut together };
        times.push(start.elapsed().as_secs_f64() * 1e6 / GROUP as f64);
    }
    let median = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    println!(
        "  exact match {:.2} us, {:.2} us together, {missed} rows not found",
        median(singly),
        median(together)
    );
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
