//! Measures an Elf of a table like TPC-H's lineitem: build, size, the predicate of Q6, a sweep of selectivities,
//! and exact match. `cargo run --release -p pando-elf --example elf_selectivity [rows [rounds]]`.
//!
//! Times are medians of the processor times of rounds in which all methods take turns, on one core; so is the time of a
//! build with one thread, and that with two is the time that passed. Buffers of results are reused.

mod methods;
mod predicates;

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use methods::{Buffers, Find, Scan, Select, medians, processor_ns};
use pando_elf::{
    Advice, Bitmap, BuildOptions, CodeTable, Elf, Ids, Interval, Kernel, LayoutKind, Output, Predicate,
    by_cardinality, for_workload,
};
use pando_workload::columns::{LINEITEM as NAMES, Random};
use predicates::{Q6, mixed_workload, q6, table};

fn main() {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse().expect("a number"));
    let rows = arguments.next().unwrap_or(6_001_215);
    let rounds = arguments.next().unwrap_or(21);
    let table = Arc::new(table(rows));
    let three = Arc::new(table.project(&Q6).expect("columns of the table"));
    println!("{rows} rows, kernel {}, medians of {rounds} rounds", Kernel::detect().name());
    let raw = rows * NAMES.len() * 4;
    println!("15 columns: raw u32 {} MB, narrow {} MB", raw / 1_000_000, table.bytes() / 1_000_000);
    let cardinality = by_cardinality(&table);
    let workload = for_workload(&table, &mixed_workload(&table), &Advice::default()).expect("known columns");
    let names = |order: &[usize]| order.iter().map(|&column| NAMES[column]).collect::<Vec<_>>().join(" ");
    println!("by cardinality: {}\nfor the workload: {}\n", names(&cardinality), names(&workload));

    let linear = build("3 columns, linear", &three, &[0, 1, 2], LayoutKind::Linear);
    let small = build("3 columns, columnar", &three, &[0, 1, 2], LayoutKind::Columnar);
    let published = build("15 columns, linear, by cardinality", &table, &cardinality, LayoutKind::Linear);
    let ascending = build("15 columns, columnar, by cardinality", &table, &cardinality, LayoutKind::Columnar);
    let advised = build("15 columns, columnar, for the workload", &table, &workload, LayoutKind::Columnar);

    let in_three = q6([0, 1, 2]);
    let in_all = q6(Q6);
    println!("\nQ6: {} rows; microseconds for count, ids, bitmap", count(&small, &in_three));
    let walks = [
        ("linear, 3 columns", &linear, &in_three),
        ("linear, 15 columns, by cardinality", &published, &in_all),
        ("columnar, 3 columns", &small, &in_three),
        ("columnar, 15 columns, by cardinality", &ascending, &in_all),
        ("columnar, 15 columns, for the workload", &advised, &in_all),
    ];
    measure_q6(&table, &in_all, &walks, rounds);
    let small = small.with_table(three.clone()).expect("its table");
    sweep(&small, &three, rounds);
    exact(&[("linear", &published), ("columnar", &advised)], &table);
}

fn build(name: &str, table: &CodeTable, order: &[usize], layout: LayoutKind) -> Elf {
    let mut seconds = Vec::new();
    let mut built = None;
    for threads in [1, 2, 1, 2] {
        let options = BuildOptions { threads, ..BuildOptions::default() };
        drop(built.take());
        let (start, start_ns) = (Instant::now(), processor_ns());
        built = Some(Elf::build(table, order, layout, &options).expect("a table that fits"));
        let processor_seconds = (processor_ns() - start_ns) / 1e9;
        seconds.push(if threads == 1 { processor_seconds } else { start.elapsed().as_secs_f64() });
    }
    let rate = |seconds: f64| table.rows() as f64 / seconds / 1e6;
    let elf = built.expect("built in each round");
    println!(
        "{name}: {} MB, {:.2} s, {:.1} M rows/s with one thread, {:.1} with two",
        elf.bytes().len() / 1_000_000,
        seconds[0].min(seconds[2]),
        rate(seconds[0].min(seconds[2])),
        rate(seconds[1].min(seconds[3])),
    );
    elf
}

fn count(elf: &Elf, predicate: &Predicate) -> u64 {
    elf.select(predicate).expect("known columns").count()
}

fn measure_q6(table: &CodeTable, predicate: &Predicate, walks: &[(&str, &Elf, &Predicate)], rounds: usize) {
    let mut buffers = Buffers::new(table.rows());
    let selects: Vec<Select<'_>> = walks.iter().map(|&(_, elf, predicate)| Select(elf, predicate)).collect();
    let scans: Vec<Scan<'_>> =
        Kernel::all().into_iter().map(|kernel| Scan(table, predicate, kernel)).collect();
    let mut methods: Vec<&dyn Find> = scans.iter().map(|scan| scan as &dyn Find).collect();
    methods.extend(selects.iter().map(|select| select as &dyn Find));
    let names = scans.iter().map(|scan| format!("scan, {}", scan.2.name()));
    let names = names.chain(walks.iter().map(|(name, ..)| (*name).to_owned()));
    for (name, times) in names.zip(medians(&methods, &mut buffers, rounds)) {
        println!("{name:40} {:9.1} {:9.1} {:9.1}", times[0] / 1e3, times[1] / 1e3, times[2] / 1e3);
    }
}

/// Conditions on the three columns of Q6 whose width is varied.
fn sweep(elf: &Elf, table: &CodeTable, rounds: usize) {
    println!("\nselectivity of 3 columns; microseconds for ids and bitmap: scan, Elf with gate, method");
    let mut buffers = Buffers::new(table.rows());
    for (discounts, quantities, days) in [
        (1, 1, 1),
        (1, 2, 10),
        (1, 5, 60),
        (2, 10, 200),
        (3, 23, 365),
        (5, 30, 800),
        (8, 40, 1_500),
        (11, 50, 1_800),
        (11, 50, 2_600),
    ] {
        let predicate = Predicate::all()
            .and(0, [Interval::new(1, discounts)])
            .and(1, [Interval::new(1, quantities)])
            .and(2, [Interval::new(60, 60 + days - 1)]);
        let (scan, select) = (Scan(table, &predicate, Kernel::detect()), Select(elf, &predicate));
        let times = medians(&[&scan, &select], &mut buffers, rounds);
        let method = |output| match output {
            Output::Bitmap => select.run(output, &mut Bitmap::new(table.rows() as u64)),
            _ => select.run(output, &mut Ids::<u32>::new(&mut Vec::new(), Kernel::detect())),
        };
        let share = count(elf, &predicate) as f64 / table.rows() as f64;
        println!(
            "{:9.4}% {:9.1} {:9.1} {:5} {:9.1} {:9.1} {:5}",
            share * 100.0,
            times[0][1] / 1e3,
            times[1][1] / 1e3,
            format!("{:?}", method(Output::Ids)),
            times[0][2] / 1e3,
            times[1][2] / 1e3,
            format!("{:?}", method(Output::Bitmap)),
        );
    }
}

/// Exact match of rows of the table.
fn exact(elves: &[(&str, &Elf)], table: &CodeTable) {
    let mut random = Random(5);
    let rows: Vec<Vec<u32>> = (0..100_000)
        .map(|_| random.below(table.rows() as u32) as usize)
        .map(|row| (0..table.width()).map(|column| table.code(column, row)).collect())
        .collect();
    let mut ids = Vec::<u32>::new();
    for (name, elf) in elves {
        let start = processor_ns();
        for codes in &rows {
            ids.clear();
            elf.exact_into(codes, &mut ids).expect("one code per column");
            black_box(&ids);
        }
        println!(
            "\nexact match, 15 columns, {name}: {:.2} us",
            (processor_ns() - start) / 1e3 / rows.len() as f64
        );
    }
}
