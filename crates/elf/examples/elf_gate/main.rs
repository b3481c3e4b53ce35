//! Measures the gate: times of random predicates on 1 to 15 columns by an Elf with its gate, divided by those of the scan.
//! `cargo run --release -p pando-elf --example elf_gate [rows [rounds [seed ...]]]`.
//!
//! The table is like TPC-H's lineitem, the column order that for a mixed workload. Times are medians of the processor times of rounds in which
//! both take turns, on one core. Predicates for which the Elf took much longer are measured again in more rounds, since
//! a machine that other work shares shows any factor now and then.

#[path = "../elf_selectivity/methods.rs"]
mod methods;
#[path = "../elf_selectivity/predicates.rs"]
mod predicates;

use std::sync::Arc;

use methods::{Buffers, OUTPUTS, Scan, Select, medians};
use pando_elf::{
    Advice, BuildOptions, CodeTable, Count, Elf, Ids, Interval, Kernel, LayoutKind, Output, Predicate,
    for_workload,
};
use pando_workload::columns::{LINEITEM as NAMES, Random, random_interval};
use predicates::{Q6, mixed_workload, q6, table};

const PREDICATES: usize = 1_000;
/// Factor from which a predicate is measured again, in as many times more rounds.
const SUSPICIOUS: f64 = 1.15;
const MORE_ROUNDS: usize = 5;
/// Factor that no predicate should exceed.
const MOST: f64 = 1.3;

fn main() {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse().expect("a number"));
    let rows = arguments.next().unwrap_or(6_001_215);
    let rounds = arguments.next().unwrap_or(7);
    let mut seeds: Vec<usize> = arguments.collect();
    if seeds.is_empty() {
        seeds = vec![11, 12, 13];
    }
    let table = Arc::new(table(rows));
    let order = for_workload(&table, &mixed_workload(&table), &Advice::default()).expect("known columns");
    let elf = Elf::build(&table, &order, LayoutKind::Columnar, &BuildOptions::default()).expect("it fits");
    let elf = elf.with_table(table.clone()).expect("its table");
    let names: Vec<&str> = order.iter().map(|&column| NAMES[column]).collect();
    println!("{rows} rows, kernel {}, levels: {}", Kernel::detect().name(), names.join(" "));
    let q6_rows = elf.select(&q6(Q6)).expect("known columns").count();
    println!("{PREDICATES} predicates per seed, medians of {rounds} rounds (Q6: {q6_rows} rows)");
    for seed in seeds {
        measure(&elf, &table, seed, rounds);
    }
}

/// A predicate on `width` columns that about any share of the rows meets.
fn random_predicate(random: &mut Random, table: &CodeTable, width: usize) -> Predicate {
    let share = 10_f64.powf(-5.0 * (f64::from(random.below(1_000)) / 1_000.0)).powf(1.0 / width as f64);
    let mut chosen: Vec<usize> = (0..NAMES.len()).collect();
    (0..NAMES.len()).for_each(|at| chosen.swap(at, random.below(NAMES.len() as u32) as usize));
    chosen[..width].iter().fold(Predicate::all(), |all, &column| {
        let (low, high) = random_interval(random, table.maximum(column), share);
        all.and(column, [Interval::new(low, high)])
    })
}

/// Times of the scan and the Elf for one kind of result.
struct Times {
    factor: f64,
    scan_ns: f64,
    predicate: Predicate,
}

fn measure(elf: &Elf, table: &CodeTable, seed: usize, rounds: usize) {
    let mut random = Random(seed as u64);
    let mut buffers = Buffers::new(table.rows());
    let mut measured = [const { Vec::new() }; 3];
    for i in 0..PREDICATES {
        let predicate = random_predicate(&mut random, table, 1 + i % NAMES.len());
        let (scan, select) = (Scan(table, &predicate, Kernel::detect()), Select(elf, &predicate));
        let mut times = medians(&[&scan, &select], &mut buffers, rounds);
        if (0..OUTPUTS.len()).any(|output| times[1][output] > SUSPICIOUS * times[0][output]) {
            times = medians(&[&scan, &select], &mut buffers, rounds * MORE_ROUNDS);
        }
        for (output, measured) in measured.iter_mut().enumerate() {
            let factor = times[1][output] / times[0][output];
            measured.push(Times { factor, scan_ns: times[0][output], predicate: predicate.clone() });
        }
    }
    println!("\nseed {seed}: time of the Elf with gate / time of the scan");
    for (output, measured) in OUTPUTS.into_iter().zip(measured) {
        report(elf, table, output, measured);
    }
}

fn report(elf: &Elf, table: &CodeTable, output: Output, mut measured: Vec<Times>) {
    measured.sort_by(|a, b| a.factor.total_cmp(&b.factor));
    let at = |share: f64| measured[((measured.len() - 1) as f64 * share) as usize].factor;
    println!(
        "{:8} min {:.3}, 10% {:.3}, median {:.3}, 90% {:.3}, 99% {:.3}, max {:.3}; {} above {MOST}",
        format!("{output:?}"),
        at(0.0),
        at(0.1),
        at(0.5),
        at(0.9),
        at(0.99),
        at(1.0),
        measured.iter().filter(|times| times.factor > MOST).count(),
    );
    for Times { factor, scan_ns, predicate } in measured.iter().rev().take(5) {
        let conditions: Vec<String> = predicate
            .conditions()
            .map(|(column, intervals)| {
                format!("{} {}-{}", NAMES[column], intervals[0].low, intervals[0].high)
            })
            .collect();
        let select = Select(elf, predicate);
        let method = match output {
            Output::Count => select.run(output, &mut Count::default()),
            Output::Ids => select.run(output, &mut Ids::<u32>::new(&mut Vec::new(), Kernel::detect())),
            Output::Bitmap => select.run(output, &mut pando_elf::Bitmap::new(table.rows() as u64)),
        };
        let found = elf.select(predicate).expect("known columns").count();
        println!(
            "  {factor:.2} times {:.0} us, {method:?}, {found} rows: {}",
            scan_ns / 1e3,
            conditions.join(", ")
        );
    }
}
