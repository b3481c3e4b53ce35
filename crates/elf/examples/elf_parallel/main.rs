//! Measures searches by several threads: predicates on an Elf of a table like TPC-H's lineitem, in the order for a mixed
//! workload. `cargo run --release -p pando-elf --example elf_parallel [rows [rounds]]`.
//!
//! Times are medians of rounds in which 1, 2, 4 and 8 threads take turns, in microseconds for count, ids and bitmap.

#[path = "../elf_selectivity/predicates.rs"]
mod predicates;

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use pando_elf::{Advice, Bitmap, BuildOptions, Elf, Interval, LayoutKind, Predicate, for_workload};
use pando_workload::columns::{LINEITEM as NAMES, Random, random_interval};
use predicates::{Q6, mixed_workload, q6, table};

const THREADS: [usize; 4] = [1, 2, 4, 8];

fn main() {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse().expect("a number"));
    let rows = arguments.next().unwrap_or(6_001_215);
    let rounds = arguments.next().unwrap_or(11);
    let table = Arc::new(table(rows));
    let order = for_workload(&table, &mixed_workload(&table), &Advice::default()).expect("known columns");
    let elf = Elf::build(&table, &order, LayoutKind::Columnar, &BuildOptions::default()).expect("it fits");
    let elf = elf.with_table(table.clone()).expect("its table");
    let elves = THREADS.map(|threads| elf.clone().with_threads(threads));
    let mut random = Random(3);
    let mut on = |column: usize, share: f64| {
        let (low, high) = random_interval(&mut random, table.maximum(column), share);
        let wide = Interval::new(low, high);
        (format!("{:.0}% of {}", share * 100.0, NAMES[column]), Predicate::all().and(column, [wide]))
    };
    let walked = (Q6[0], Q6[2]);
    let queries = [
        ("Q6".to_owned(), q6(Q6)),
        on(walked.0, 0.2),
        on(walked.1, 0.1),
        on(walked.1, 0.6),
        on(0, 0.3),
        ("all rows".to_owned(), Predicate::all()),
    ];
    for (name, predicate) in queries {
        let mut times = [const { [const { Vec::new() }; 3] }; THREADS.len()];
        for _ in 0..rounds {
            for (elf, times) in elves.iter().zip(&mut times) {
                measure(elf, &predicate, times);
            }
        }
        let found = elf.select(&predicate).expect("known columns").count();
        println!("{name}: {found} rows");
        for (threads, times) in THREADS.iter().zip(times) {
            let [count, ids, bitmap] = times.map(median);
            println!("  {threads} threads {count:10.1} {ids:10.1} {bitmap:10.1}");
        }
    }
}

/// Times of one count, ids and bitmap, in microseconds.
fn measure(elf: &Elf, predicate: &Predicate, times: &mut [Vec<f64>; 3]) {
    let selection = elf.select(predicate).expect("known columns");
    let mut ids: Vec<u32> = vec![0; elf.header().rows as usize + 128];
    ids.clear();
    let mut bitmap = Bitmap::new(elf.id_bound());
    let mut time = |output: usize, find: &mut dyn FnMut()| {
        let start = Instant::now();
        find();
        times[output].push(start.elapsed().as_secs_f64() * 1e6);
    };
    time(0, &mut || {
        black_box(selection.count());
    });
    time(1, &mut || {
        selection.ids_into(&mut ids).expect("32 bits");
    });
    time(2, &mut || {
        selection.bitmap_into(&mut bitmap).expect("a bitmap of the size");
    });
    black_box((&ids, &bitmap));
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
