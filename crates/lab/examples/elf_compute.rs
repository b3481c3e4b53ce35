//! What the search of the published layout computes, with everything in caches: measured on this machine beside the
//! memory model, whose cycles were fitted to it. `cargo run --release -p pando-lab --example elf_compute`.
//!
//! Small tables and few distinct queries keep all reads in the first two caches, so that time is computation. Each line
//! has what was read per query: pieces of lists and their words, pieces of MonoLists and their words.

use pando_lab::elf::{Base, Data, ElfSpec, ElfWork, Kind, QuerySpec, Store, run};
use pando_sim::memory::MemoryModel;
use serde_json::Value;

const ROUNDS: usize = 7;

fn main() {
    println!(
        "{:34} {:>8} {:>9} {:>8} {:>9} {:>8} {:>11} {:>11}",
        "", "lists", "words", "monos", "words", "found", "measured ns", "modelled ns"
    );
    for (rows, cardinality) in [(10_000, 10), (10_000, 20), (20_000, 100), (5_000, 4)] {
        let data = Data::Uniform { rows, columns: 10, cardinality };
        for (kind, percent, queries) in [
            (Kind::Exact, 0, 100_000),
            (Kind::Range, 5, 20_000),
            (Kind::Range, 30, 4_000),
            (Kind::Range, 100, 400),
            (Kind::Partial, 5, 4_000),
            (Kind::Partial, 100, 400),
        ] {
            let store = Store::new(Base::Dram);
            let queries =
                QuerySpec { kind, range_percent: percent, store, warm_up: queries, queries, intervals: 0 };
            let report = |work| {
                run(&ElfSpec::new(data, work, MemoryModel::default(), 7), &()).expect("a valid specification")
            };
            let modelled = report(ElfWork::Queries(queries.clone()));
            let number = |report: &Value, field: &str| report[field].as_f64().unwrap_or(0.0);
            let mut times: Vec<f64> = (0..ROUNDS)
                .map(|_| number(&report(ElfWork::Measured(queries.clone())), "measured_us_per_query") * 1e3)
                .collect();
            times.sort_by(f64::total_cmp);
            // The walker counts the warm-up as well, as far as it is modelled.
            let counted = queries.queries as f64 + number(&modelled, "modelled_warm_up");
            let each = |field| number(&modelled, field) / counted;
            println!(
                "{:34} {:8.2} {:9.2} {:8.2} {:9.2} {:8.2} {:11.0} {:11.0}",
                format!("{rows} rows, {cardinality} values, {kind:?} {percent}%"),
                each("list_reads"),
                each("list_words"),
                each("mono_list_reads"),
                each("mono_list_words"),
                number(&modelled, "found") / queries.queries as f64,
                times[ROUNDS / 2],
                number(&modelled, "us_per_query") * 1e3,
            );
        }
    }
}
