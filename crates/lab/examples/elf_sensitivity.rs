//! What single parameters of the memory model do to the figures of Elf on persistent memory:
//! `cargo run --release -p pando-lab --example elf_sensitivity [fraction of the paper's rows]`, by default 0.1.
//!
//! Each line changes one thing in the model. Its columns are the overheads of persistent memory over DRAM for exact
//! match, range 2% and partial match 2% (the paper: 223, 210, 236%), and for these three the best number of
//! static levels, 2 to 6, with its gain (the paper: 4 levels, 30, 50, 40%): found by pointers, as here, and by a
//! hash table, as in the paper.

use pando_lab::elf::{Base, Data, ElfSpec, ElfWork, Kind, QuerySpec, SearchCosts, Store, run};
use pando_sim::memory::MemoryModel;

/// What is changed.
struct Changed {
    model: MemoryModel,
    walk_costs: SearchCosts,
}

/// Name, and the change.
type Variant = (&'static str, fn(&mut Changed));

const HUGE: u64 = 2 << 20;
const VARIANTS: [Variant; 17] = [
    ("as it is", |_| ()),
    ("huge pages for both", |changed| {
        changed.model.dram.page_bytes = HUGE;
        changed.model.persistent.page_bytes = HUGE;
    }),
    ("huge pages for DRAM only", |changed| changed.model.dram.page_bytes = HUGE),
    ("nothing overlaps", |changed| changed.model.processor.overlapping = 1),
    ("ten MonoLists overlap", |changed| changed.model.processor.overlapping = 10),
    ("lists are read line by line", |changed| changed.model.processor.run_ahead_lines = 1),
    ("no prefetching", |changed| {
        changed.model.processor.prefetch_lines = 0;
        changed.model.processor.prefetch_pairs = false;
    }),
    ("nothing overlaps, no prefetching, line by line", |changed| {
        changed.model.processor.overlapping = 1;
        changed.model.processor.run_ahead_lines = 1;
        changed.model.processor.prefetch_lines = 0;
        changed.model.processor.prefetch_pairs = false;
    }),
    ("persistent memory answers in 400 ns", |changed| changed.model.persistent.random_ns = 400.0),
    ("persistent memory answers in 500 ns", |changed| changed.model.persistent.random_ns = 500.0),
    ("persistent memory answers in 550 ns", |changed| changed.model.persistent.random_ns = 550.0),
    ("walks compute as little as an exact match", |changed| changed.walk_costs = SearchCosts::EXACT),
    ("the same, and 500 ns", |changed| {
        changed.walk_costs = SearchCosts::EXACT;
        changed.model.persistent.random_ns = 500.0;
    }),
    ("the processor computes in no time", |changed| {
        changed.model.processor.cycle_ns /= 1_000.0;
    }),
    ("the processor is half as fast", |changed| changed.model.processor.cycle_ns *= 2.0),
    ("a quarter of the last cache", |changed| {
        changed.model.processor.l3_alone_bytes /= 4;
    }),
    ("no buffer in the DIMMs", |changed| changed.model.persistent.buffer_blocks = 0),
];

fn qps(data: Data, changed: &Changed, kind: Kind, store: Store) -> f64 {
    let (warm_up, queries) = match kind {
        Kind::Exact => (300_000, 100_000),
        Kind::Range => (3_000, 1_000),
        Kind::Partial => (40, 40),
    };
    let queries = QuerySpec { kind, range_percent: 2, store, warm_up, queries, intervals: 0 };
    let spec = ElfSpec {
        walk_costs: changed.walk_costs,
        ..ElfSpec::new(data, ElfWork::Queries(queries), changed.model.clone(), 42)
    };
    let report = run(&spec, &()).expect("a valid specification");
    report["qps"].as_f64().expect("a number")
}

fn main() {
    let fraction: f64 = std::env::args().nth(1).map_or(0.1, |text| text.parse().expect("a fraction"));
    let cardinality = (100.0 * fraction.powf(0.25)).round() as u32;
    let data = Data::Uniform { rows: (1e8 * fraction) as usize, columns: 10, cardinality };
    println!("{:48} {:>21}   best static levels, gain: by pointers, looked up", "", "overhead over DRAM, %");
    for (name, change) in VARIANTS {
        let mut changed = Changed { model: MemoryModel::default(), walk_costs: SearchCosts::WALK };
        change(&mut changed);
        if fraction < 1.0 {
            changed.model = changed.model.scaled(fraction);
        }
        let mut overheads = String::new();
        let mut gains = String::new();
        for kind in [Kind::Exact, Kind::Range, Kind::Partial] {
            let of = |store| qps(data, &changed, kind, store);
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
