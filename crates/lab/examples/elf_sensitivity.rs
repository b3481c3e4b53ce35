//! What single parameters of the memory model do to the figures of Elf on persistent memory:
//! `cargo run --release -p pando-lab --example elf_sensitivity [fraction of the paper's rows]`, by default 0.1.
//!
//! Each line changes one thing in the model. Its columns are the overheads of persistent memory over DRAM for exact
//! match, range 2% and partial match 2% (the paper: 223, 210, 236%), and for these three the best number of
//! static levels, 2 to 6, with its gain (the paper: 4 levels, 30, 50, 40%): found by pointers, as here, and by a
//! hash table, as in the paper.

use pando_lab::elf::{Base, Data, ElfSpec, ElfWork, Kind, QuerySpec, Store, run};
use pando_sim::memory::MemoryModel;

/// Name, and the change to the model.
type Variant = (&'static str, fn(&mut MemoryModel));

const HUGE: u64 = 2 << 20;
const VARIANTS: [Variant; 15] = [
    ("as it is", |_| ()),
    ("huge pages for both", |model| {
        model.dram.page_bytes = HUGE;
        model.persistent.page_bytes = HUGE;
    }),
    ("huge pages for DRAM only", |model| model.dram.page_bytes = HUGE),
    ("nothing overlaps", |model| model.processor.overlapping = 1),
    ("ten MonoLists overlap", |model| model.processor.overlapping = 10),
    ("lists are read line by line", |model| model.processor.run_ahead_lines = 1),
    ("no prefetching", |model| {
        model.processor.prefetch_lines = 0;
        model.processor.prefetch_pairs = false;
    }),
    ("nothing overlaps, no prefetching, line by line", |model| {
        model.processor.overlapping = 1;
        model.processor.run_ahead_lines = 1;
        model.processor.prefetch_lines = 0;
        model.processor.prefetch_pairs = false;
    }),
    ("persistent memory answers in 400 ns", |model| model.persistent.random_ns = 400.0),
    ("persistent memory answers in 500 ns", |model| model.persistent.random_ns = 500.0),
    ("persistent memory answers in 550 ns", |model| model.persistent.random_ns = 550.0),
    ("the processor computes in no time", |model| {
        model.processor.cycle_ns /= 1_000.0;
    }),
    ("the processor is half as fast", |model| model.processor.cycle_ns *= 2.0),
    ("a quarter of the last cache", |model| {
        model.processor.l3_alone_bytes /= 4;
    }),
    ("no buffer in the DIMMs", |model| model.persistent.buffer_blocks = 0),
];

fn qps(data: Data, model: &MemoryModel, kind: Kind, store: Store) -> f64 {
    let (warm_up, queries) = match kind {
        Kind::Exact => (300_000, 100_000),
        Kind::Range => (3_000, 1_000),
        Kind::Partial => (40, 40),
    };
    let queries = QuerySpec { kind, range_percent: 2, store, warm_up, queries, intervals: 0 };
    let spec = ElfSpec { data, work: ElfWork::Queries(queries), model: model.clone(), seed: 42 };
    let report = run(&spec, &()).expect("a valid specification");
    report["qps"].as_f64().expect("a number")
}

fn main() {
    let fraction: f64 = std::env::args().nth(1).map_or(0.1, |text| text.parse().expect("a fraction"));
    let cardinality = (100.0 * fraction.powf(0.25)).round() as u32;
    let data = Data::Uniform { rows: (1e8 * fraction) as usize, columns: 10, cardinality };
    println!("{:48} {:>21}   best static levels, gain: by pointers, looked up", "", "overhead over DRAM, %");
    for (name, change) in VARIANTS {
        let mut model = MemoryModel::default();
        change(&mut model);
        let model = if fraction < 1.0 { model.scaled(fraction) } else { model };
        let mut overheads = String::new();
        let mut gains = String::new();
        for kind in [Kind::Exact, Kind::Range, Kind::Partial] {
            let of = |store| qps(data, &model, kind, store);
            let persistent = of(Store::new(Base::Persistent));
            overheads += &format!(" {:6.0}", (of(Store::new(Base::Dram)) / persistent - 1.0) * 100.0);
            for store in [Store::levels, Store::hashed] {
                let best = (2..=6).map(|depth| (depth, of(store(depth))));
                let best = best.max_by(|a, b| a.1.total_cmp(&b.1)).expect("several depths");
                gains += &format!("  {}: {:+4.0}%", best.0, (best.1 / persistent - 1.0) * 100.0);
            }
        }
        println!("{name:48} {overheads}  {gains}");
    }
}
