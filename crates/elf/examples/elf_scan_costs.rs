//! Measures two costs of a scan that the gate knows: a word of 64 rows whose branch the processor does not foresee, and a
//! word whose codes are waited for, because the words before were passed over.
//! `cargo run --release -p pando-elf --example elf_scan_costs [rows [rounds]]`.
//!
//! The columns are uniform, so that words are left at random. Times are lower quartiles, which other work of the machine
//! changes little: of scans that find a share of the rows, less those of scans that find none.

use std::hint::black_box;
use std::time::Instant;

use pando_elf::{Bitmap, CodeTable, Count, Ids, Interval, Kernel, Output, Predicate, Sink, scan};
use pando_workload::columns::Random;

const CODES: u32 = 10_000;
const OUTPUTS: [Output; 3] = [Output::Count, Output::Ids, Output::Bitmap];
/// Rows of a word.
const WORD: i32 = 64;

fn main() {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse().expect("a number"));
    let rows = arguments.next().unwrap_or(6_000_000);
    let rounds = arguments.next().unwrap_or(15);
    let mut random = Random(1);
    let mut column = || (0..rows).map(|_| random.below(CODES)).collect();
    let table = CodeTable::new(vec![column(), column()]).expect("columns of one length");
    let words = rows as f64 / f64::from(WORD);
    let first = |codes: u32| Predicate::all().and(0, [Interval::new(CODES - codes, CODES - 1)]);
    let none = Predicate::all().and(0, [Interval::new(CODES, CODES + 1)]);
    let both = |first: Predicate| first.and(1, [Interval::new(0, CODES * 9 / 10)]);
    let scans = |predicate: &Predicate| times(&table, predicate, rounds);
    let (none_by_one, none_by_both) = (scans(&none), scans(&both(none.clone())));
    println!("{rows} rows; nanoseconds for count, ids, bitmap");
    for codes in [10, 30, 60, 100] {
        let left = 1.0 - (1.0 - f64::from(codes) / f64::from(CODES)).powi(WORD);
        let (one, two) = (scans(&first(codes)), scans(&both(first(codes))));
        let costs = [0, 1, 2].map(|output| {
            let taken = one[output] - none_by_one[output];
            let compared = two[output] - none_by_both[output] - taken;
            (taken / (left.min(1.0 - left) * words), compared / (left * words))
        });
        println!(
            "{:3.0}% of the words left: taken or not {}, compared behind others {}",
            left * 100.0,
            costs.map(|(taken, _)| format!("{taken:.0}")).join(" "),
            costs.map(|(_, compared)| format!("{compared:.0}")).join(" "),
        );
    }
}

/// Times of scans for `predicate` in nanoseconds, for each kind of result.
fn times(table: &CodeTable, predicate: &Predicate, rounds: usize) -> [f64; 3] {
    let kernel = Kernel::detect();
    let mut ids: Vec<u32> = Vec::with_capacity(table.rows() + 128);
    let mut bitmap = Bitmap::new(table.rows() as u64);
    let mut run = |output| {
        ids.clear();
        bitmap.restart();
        let start = Instant::now();
        let mut count = Count::default();
        let done = match output {
            Output::Count => scan(table, predicate, kernel, &mut count),
            Output::Ids => scan(table, predicate, kernel, &mut Ids::new(&mut ids, kernel)),
            Output::Bitmap => scan(table, predicate, kernel, &mut bitmap),
        };
        done.expect("known columns");
        black_box(count.0);
        start.elapsed().as_secs_f64() * 1e9
    };
    OUTPUTS.map(|output| {
        let mut times: Vec<f64> = (0..rounds).map(|_| run(output)).collect();
        times.sort_by(f64::total_cmp);
        times[times.len() / 4]
    })
}
