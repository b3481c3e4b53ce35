//! Measures an Elf that changes, on a table like TPC-H's lineitem: inserts, the predicate of Q6 on several
//! runs and with deleted rows, and a merge. `cargo run --release -p pando-elf --example elf_changes [rows
//! [rounds]]`.
//!
//! The base has 90% of the rows; the rest is inserted. Times are medians of rounds, on one core.

use std::hint::black_box;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use pando_elf::{
    BuildOptions, CodeTable, Elf, Interval, LayoutKind, LiveElf, LiveOptions, Predicate, by_cardinality,
};
use pando_workload::columns::{LINEITEM as NAMES, Random, YEAR_1994, YEAR_1995, lineitem};

/// Discount, quantity and date of shipment: the columns of Q6.
const Q6: [usize; 3] = [6, 4, 10];
const BATCH_ROWS: usize = 1000;
const SINGLE_ROWS: usize = 10_000;

fn main() {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse().expect("a number"));
    let rows: usize = arguments.next().unwrap_or(6_001_215);
    let rounds: usize = arguments.next().unwrap_or(21);
    let all = CodeTable::new(lineitem(rows)).expect("columns of equal length");
    let base_rows = rows / 10 * 9;
    let mut order = by_cardinality(&all);
    order.sort_by_key(|column| Q6.iter().position(|used| used == column).unwrap_or(Q6.len()));
    println!("{rows} rows of {} columns, medians of {rounds} rounds", NAMES.len());
    for layout in [LayoutKind::Linear, LayoutKind::Columnar] {
        println!("\n{}", layout.name());
        let base = Arc::new(part(&all, 0..base_rows));
        let options = LiveOptions::default();
        let elf = Elf::build(&base, &order, layout, &options.build).expect("a table that fits");
        let live = LiveElf::new(elf.with_table(base).expect("its table"), options).expect("a table");
        measure(&live, "base only", rounds);
        insert(&live, &all, base_rows..rows - SINGLE_ROWS, BATCH_ROWS);
        insert(&live, &all, rows - SINGLE_ROWS..rows, 1);
        measure(&live, "with runs and buffer", rounds);
        let mut random = Random(9);
        let victims: Vec<u64> = (0..rows / 100).map(|_| random.below(rows as u32).into()).collect();
        let start = Instant::now();
        let deleted = live.delete(&victims).expect("ids of rows");
        println!("  delete of {deleted} rows: {:.1} ms", start.elapsed().as_secs_f64() * 1e3);
        measure(&live, "and 1% deleted", rounds);
        let start = Instant::now();
        live.merge_all().expect("a table that fits");
        let seconds = start.elapsed().as_secs_f64();
        println!("  merge of all: {seconds:.2} s, {:.1} M rows/s", rows as f64 / seconds / 1e6);
        measure(&live, "merged", rounds);
        rebuild(&live, &order, layout);
    }
}

fn part(all: &CodeTable, rows: Range<usize>) -> CodeTable {
    let column = |column| all.column(column).slice(rows.clone()).iter().collect();
    CodeTable::new((0..all.width()).map(column).collect()).expect("columns of equal length")
}

fn insert(live: &LiveElf, all: &CodeTable, rows: Range<usize>, batch: usize) {
    let batches: Vec<CodeTable> =
        rows.clone().step_by(batch).map(|first| part(all, first..rows.end.min(first + batch))).collect();
    let start = Instant::now();
    for batch in batches {
        live.insert(batch).expect("rows that fit");
    }
    let seconds = start.elapsed().as_secs_f64();
    println!("  inserts, {batch} rows each: {:.0} rows/s", rows.len() as f64 / seconds);
}

fn measure(live: &LiveElf, name: &str, rounds: usize) {
    let [discount, quantity, shipdate] = Q6;
    let predicate = |year| {
        Predicate::all()
            .and(discount, [Interval::new(6, 8)])
            .and(quantity, [Interval::new(1, 23)])
            .and(shipdate, [Interval::new(year, year + YEAR_1995 - YEAR_1994 - 1)])
    };
    let snapshot = live.snapshot();
    let selection = snapshot.select(&predicate(YEAR_1994)).expect("known columns");
    let mut ids = Vec::<u32>::new();
    let count = median(rounds, || selection.count());
    let found = median(rounds, || {
        ids.clear();
        selection.ids_into(&mut ids)
    });
    let bitmap = median(rounds, || selection.bitmap());
    let (runs, buffered) = (snapshot.runs().count(), snapshot.buffered_rows());
    println!("  {name}: {runs} runs, {buffered} rows in the buffer");
    let rows = ids.len();
    println!("    Q6, {rows} rows: count {count:.0} us, ids {found:.0} us, bitmap {bitmap:.0} us");
    let selection = snapshot.select(&predicate(YEAR_1994 + 5000)).expect("known columns");
    println!("    no row: {:.2} us", median(rounds, || selection.count()));
}

/// Median time of `work` in microseconds.
fn median<R>(rounds: usize, mut work: impl FnMut() -> R) -> f64 {
    let mut times: Vec<f64> = (0..rounds.max(1))
        .map(|_| {
            let start = Instant::now();
            black_box(work());
            start.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Builds the merged table once more, for comparison.
fn rebuild(live: &LiveElf, order: &[usize], layout: LayoutKind) {
    let snapshot = live.snapshot();
    for run in snapshot.runs() {
        let table = run.table().expect("runs have tables");
        let start = Instant::now();
        let built = Elf::build(table, order, layout, &BuildOptions::default()).expect("a table that fits");
        assert!(built.bytes() == run.bytes(), "the merged image differs from the built one");
        let seconds = start.elapsed().as_secs_f64();
        println!("  build of the same: {seconds:.2} s, {:.1} M rows/s", table.rows() as f64 / seconds / 1e6);
    }
}
