//! Measures an Elf of a table like TPC-H's lineitem: build, size, the predicate of Q6, a sweep of selectivities,
//! random predicates, and exact match. `cargo run --release -p pando-elf --example elf_selectivity [rows [rounds]]`.
//!
//! Times are medians of rounds in which all methods take turns, on one core. Buffers of results are reused.

mod lineitem;

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use lineitem::{NAMES, Random, YEAR_1994, YEAR_1995, table};
use pando_elf::{
    Advice, Bitmap, BuildOptions, CodeTable, Count, Elf, Ids, Interval, Kernel, LayoutKind, Method, Output,
    Predicate, Sink, by_cardinality, for_workload, scan,
};

const QUANTITY: usize = 4;
const DISCOUNT: usize = 6;
const SHIPDATE: usize = 10;
/// Columns of Q6 in the order of their cardinality.
const Q6: [usize; 3] = [DISCOUNT, QUANTITY, SHIPDATE];

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
    let advised = advised.with_table(table.clone()).expect("its table");
    random_predicates(&advised, &table, 1_000, rounds.min(7));
    exact(&[("linear", &published), ("columnar", &advised)], &table);
}

/// The predicate of Q6 on the given columns.
fn q6([discount, quantity, shipdate]: [usize; 3]) -> Predicate {
    // Discounts are coded from 0.00 = 1, quantities from 1, and dates in days.
    Predicate::all()
        .and(discount, [Interval::new(6, 8)])
        .and(quantity, [Interval::new(1, 23)])
        .and(shipdate, [Interval::new(YEAR_1994, YEAR_1995 - 1)])
}

/// Predicates on one to four columns that queries of TPC-H use.
fn mixed_workload(table: &CodeTable) -> Vec<Predicate> {
    let mut random = Random(7);
    let used = [QUANTITY, DISCOUNT, SHIPDATE, 12, 14, 8];
    let any = |random: &mut Random| {
        let width = 1 + random.below(4) as usize;
        (0..width).fold(Predicate::all(), |all, _| {
            let column = used[random.below(used.len() as u32) as usize];
            all.and(column, [interval(random, table.maximum(column), 0.2)])
        })
    };
    (0..20).map(|_| any(&mut random)).chain([q6(Q6)]).collect()
}

/// An interval with a random place and the given share of the codes, at least one code.
fn interval(random: &mut Random, maximum: u32, share: f64) -> Interval {
    let width = ((f64::from(maximum) * share) as u32).max(1);
    let low = 1 + random.below(maximum - width.min(maximum) + 1);
    Interval::new(low, low + width - 1)
}

fn build(name: &str, table: &CodeTable, order: &[usize], layout: LayoutKind) -> Elf {
    let mut seconds = Vec::new();
    let mut built = None;
    for threads in [1, 2, 1, 2] {
        let options = BuildOptions { threads, ..BuildOptions::default() };
        drop(built.take());
        let start = Instant::now();
        built = Some(Elf::build(table, order, layout, &options).expect("a table that fits"));
        seconds.push(start.elapsed().as_secs_f64());
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

/// Buffers that are reused, so that no method pays for fresh memory.
struct Buffers {
    ids: Vec<u32>,
    bitmap: Bitmap,
}

impl Buffers {
    fn new(rows: usize) -> Self {
        Self { ids: Vec::with_capacity(rows + 128), bitmap: Bitmap::new(rows as u64) }
    }

    /// Time in nanoseconds of one result of `find`.
    fn time(&mut self, output: Output, find: &dyn Find) -> f64 {
        self.ids.clear();
        let start = Instant::now();
        match output {
            Output::Count => {
                let mut count = Count::default();
                find.count(&mut count);
                black_box(count.0);
            }
            Output::Ids => find.ids(&mut Ids::new(&mut self.ids, Kernel::detect())),
            Output::Bitmap => {
                self.bitmap.restart();
                find.bitmap(&mut self.bitmap);
            }
        }
        black_box((&self.ids, &self.bitmap));
        start.elapsed().as_secs_f64() * 1e9
    }
}

/// A method that finds rows.
trait Find {
    fn count(&self, sink: &mut Count);
    fn ids(&self, sink: &mut Ids<'_, u32>);
    fn bitmap(&self, sink: &mut Bitmap);
}

struct Select<'a>(&'a Elf, &'a Predicate);

impl Select<'_> {
    fn run(&self, output: Output, sink: &mut impl Sink) -> Method {
        self.0.select(self.1).expect("known columns").run(output, sink)
    }
}

impl Find for Select<'_> {
    fn count(&self, sink: &mut Count) {
        self.run(Output::Count, sink);
    }

    fn ids(&self, sink: &mut Ids<'_, u32>) {
        self.run(Output::Ids, sink);
    }

    fn bitmap(&self, sink: &mut Bitmap) {
        self.run(Output::Bitmap, sink);
    }
}

struct Scan<'a>(&'a CodeTable, &'a Predicate, Kernel);

impl Scan<'_> {
    fn run(&self, sink: &mut impl Sink) {
        scan(self.0, self.1, self.2, sink).expect("known columns");
    }
}

impl Find for Scan<'_> {
    fn count(&self, sink: &mut Count) {
        self.run(sink);
    }

    fn ids(&self, sink: &mut Ids<'_, u32>) {
        self.run(sink);
    }

    fn bitmap(&self, sink: &mut Bitmap) {
        self.run(sink);
    }
}

const OUTPUTS: [Output; 3] = [Output::Count, Output::Ids, Output::Bitmap];

/// Median times of methods in nanoseconds, for each output.
fn medians(methods: &[&dyn Find], buffers: &mut Buffers, rounds: usize) -> Vec<[f64; 3]> {
    let mut times = vec![[const { Vec::new() }; 3]; methods.len()];
    for _ in 0..rounds {
        for (method, times) in methods.iter().zip(&mut times) {
            for (output, times) in OUTPUTS.into_iter().zip(times) {
                times.push(buffers.time(output, *method));
            }
        }
    }
    let median = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    times.into_iter().map(|times| times.map(median)).collect()
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

/// Ratio of the gate's time to the scan's for random predicates on 1 to 15 columns.
fn random_predicates(elf: &Elf, table: &CodeTable, number: usize, rounds: usize) {
    let mut random = Random(11);
    let mut buffers = Buffers::new(table.rows());
    let mut factors = [const { Vec::new() }; 3];
    for i in 0..number {
        let width = 1 + i % NAMES.len();
        let share = 10_f64.powf(-5.0 * (random.below(1_000) as f64 / 1_000.0)).powf(1.0 / width as f64);
        let mut chosen: Vec<usize> = (0..NAMES.len()).collect();
        (0..NAMES.len()).for_each(|at| chosen.swap(at, random.below(NAMES.len() as u32) as usize));
        let predicate = chosen[..width].iter().fold(Predicate::all(), |all, &column| {
            all.and(column, [interval(&mut random, table.maximum(column), share)])
        });
        let (scan, select) = (Scan(table, &predicate, Kernel::detect()), Select(elf, &predicate));
        let times = medians(&[&scan, &select], &mut buffers, rounds);
        for (output, factors) in factors.iter_mut().enumerate() {
            factors.push((times[1][output] / times[0][output], times[0][output], predicate.clone()));
        }
    }
    println!("\n{number} random predicates on 1 to 15 columns: time of the Elf with gate / time of the scan");
    for (output, mut factors) in OUTPUTS.into_iter().zip(factors) {
        factors.sort_by(|(a, ..), (b, ..)| a.total_cmp(b));
        let at = |share: f64| factors[((factors.len() - 1) as f64 * share) as usize].0;
        println!(
            "{:8} min {:.3}, 10% {:.3}, median {:.3}, 90% {:.3}, 99% {:.3}, max {:.3}",
            format!("{output:?}"),
            at(0.0),
            at(0.1),
            at(0.5),
            at(0.9),
            at(0.99),
            at(1.0),
        );
        for (factor, scan_ns, predicate) in factors.iter().rev().take(3) {
            let conditions: Vec<String> = predicate
                .conditions()
                .map(|(column, intervals)| {
                    format!("{} {}-{}", NAMES[column], intervals[0].low, intervals[0].high)
                })
                .collect();
            println!("  {factor:.2} times {:.0} us: {}", scan_ns / 1e3, conditions.join(", "));
        }
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
        let start = Instant::now();
        for codes in &rows {
            ids.clear();
            elf.exact_into(codes, &mut ids).expect("one code per column");
            black_box(&ids);
        }
        println!(
            "\nexact match, 15 columns, {name}: {:.2} us",
            start.elapsed().as_secs_f64() * 1e6 / rows.len() as f64
        );
    }
}
