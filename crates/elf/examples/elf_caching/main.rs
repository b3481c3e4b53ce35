//! Runs the paper's uniform set (DAPD 2022 §5.2) through all stores and caching policies: 10 columns of cardinality
//! 100. `cargo run --release -p pando-elf --example elf_caching [rows [cached lists in percent [folder]]]`.
//!
//! The image is a mapped file in `folder`, which may be on a DAX file system. Queries are made from rows that a Zipf
//! distribution with theta 0.5 chooses. Each cache is warmed up with queries of the kind that is measured.

mod queries;

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use pando_elf::{
    BuildOptions, CacheCounters, CacheOptions, Cached, CodeTable, Count, ElfLayout, Lfu, Linear, Lla, Lru,
    Mapped, Naive, PersistentFile, Policy, TwoQueue, build_linear, exact, range,
};
use queries::{CARDINALITY, COLUMNS, Kind, Queries, Query, uniform};

type Image = Linear<Mapped>;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: f64| {
        arguments.get(at).map_or(default, |argument| argument.parse().expect("a number"))
    };
    let rows = number(0, 1e6) as usize;
    let share = number(1, 3.8) / 100.0;
    let folder =
        tempfile::tempdir_in(arguments.get(2).map_or(std::env::temp_dir(), Into::into)).expect("a folder");

    let table = uniform(rows);
    let image = publish(&table, &folder.path().join("elf"));
    let queries = Queries::new(&table);
    let all = image.clone().with_levels(COLUMNS).expect("memory");
    let (lists, list_bytes) = (all.access().levels().lists(), all.access().levels().bytes());
    drop(all);
    let capacity = (lists as f64 * share) as usize;
    println!(
        "{rows} rows: image {:.1} MB, of which {lists} lists with {:.1} MB; dynamic caches of {capacity} lists\n\n\
         Queries per second with the image in the page cache, that is in DRAM: speeds show the costs of the stores, not\n\
         persistent memory. Lists and bytes are what a cache holds after exact matches, hits a share of its look-ups.\n",
        megabytes(image.bytes().len() as u64),
        megabytes(list_bytes),
    );
    println!(
        "{:22} {:>9} {:>8} {:>11} {:>6} {:>11} {:>6} {:>11} {:>6}",
        "store", "lists", "MB", "exact", "hits", "range 2%", "hits", "partial 2%", "hits"
    );
    let bytes = image.bytes().len() as u64;
    let heap = Linear::open(image.bytes().to_vec()).expect("a whole image");
    fixed("heap", &heap, Held { lists: 0, bytes }, &queries);
    drop(heap);
    fixed("mapped", &image, Held::default(), &queries);
    fixed("hybrid", &image.clone().hybrid().expect("memory"), Held { lists: 0, bytes }, &queries);
    fixed(
        "dual access",
        &image.clone().dual_access(pando_elf::NoMeter).expect("memory"),
        Held { lists, bytes },
        &queries,
    );
    for depth in 1..=6 {
        let levels = image.clone().with_levels(depth).expect("memory");
        let statics = levels.access().levels();
        let held = Held { lists: statics.lists(), bytes: statics.bytes() };
        fixed(&format!("static {depth}"), &levels, held, &queries);
    }
    let options = CacheOptions::lists(capacity);
    let start = Instant::now();
    let weights = Arc::new(image.weights());
    let weighing = start.elapsed().as_secs_f64();
    // The deepest level above which every possible prefix occurs; 4 at the paper's 10^8 rows.
    let full = (rows as f64).log(f64::from(CARDINALITY)) as usize;
    for depth in [0, full] {
        let levels = image.clone().with_levels(depth).expect("memory");
        let name =
            |policy: &str| if depth == 0 { policy.to_owned() } else { format!("static {depth} + {policy}") };
        dynamic(&name("naive"), &levels, options, || Naive, &queries);
        dynamic(&name("LRU"), &levels, options, Lru::default, &queries);
        dynamic(&name("LFU"), &levels, options, Lfu::default, &queries);
        dynamic(&name("2Q"), &levels, options, || TwoQueue::new(capacity), &queries);
        dynamic(&name("LLA"), &levels, options, || Lla::new(weights.clone()), &queries);
    }
    println!(
        "\nweights of LLA: {} heavy lists, {:.1} MB, collected in {weighing:.2} s",
        weights.lists(),
        megabytes(weights.bytes())
    );
}

fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

/// Builds the Elf, publishes it, and opens it as after a restart.
fn publish(table: &CodeTable, path: &Path) -> Image {
    let seconds = |start: Instant| start.elapsed().as_secs_f64();
    let order: Vec<usize> = (0..COLUMNS).collect();
    let start = Instant::now();
    let built = build_linear(table, &order, &BuildOptions::default()).expect("a table that fits");
    let building = seconds(start);
    let start = Instant::now();
    let mut file = PersistentFile::create(path).expect("a new file");
    file.publish(built.bytes()).expect("room for the image");
    let publication = seconds(start);
    drop((built, file));
    let start = Instant::now();
    let file = PersistentFile::open(path).expect("a file of images");
    let image = Linear::open(file.image().expect("an image")).expect("a whole image");
    println!("build {building:.2} s, publication {publication:.2} s, recovery {:.2} s", seconds(start));
    image
}

/// Answers queries and returns the number of rows found.
fn answer<L: ElfLayout>(layout: &L, queries: &[Query]) -> u64 {
    let mut found = Count::default();
    for query in queries {
        match query {
            Query::Exact(codes) => exact(layout, codes, &mut found),
            Query::Range(filter) => {
                range(layout, filter, &mut found, |_| true);
            }
        }
    }
    found.0
}

/// What a store holds in DRAM.
#[derive(Clone, Copy, Default)]
struct Held {
    lists: usize,
    bytes: u64,
}

/// Queries per second and hit rate.
type Cell = (f64, Option<f64>);

fn measure<L: ElfLayout>(
    layout: &L,
    queries: &Queries,
    kind: Kind,
    counters: impl Fn() -> CacheCounters,
) -> Cell {
    answer(layout, queries.warm_up(kind));
    let measured = queries.measured(kind);
    let (before, start) = (counters(), Instant::now());
    let found = answer(layout, measured);
    let rate = measured.len() as f64 / start.elapsed().as_secs_f64();
    assert!(found >= measured.len() as u64, "each query finds the row it was made from");
    let (hits, misses) = (counters().hits - before.hits, counters().misses - before.misses);
    (rate, (hits + misses > 0).then(|| hits as f64 / (hits + misses) as f64))
}

fn print(name: &str, held: Held, cells: [Cell; 3]) {
    print!("{name:22} {:9} {:8.2}", held.lists, megabytes(held.bytes));
    for (rate, hits) in cells {
        let hits = hits.map(|hits| format!("{:.1}%", hits * 100.0)).unwrap_or_default();
        print!(" {rate:11.0} {hits:>6}");
    }
    println!();
}

/// A store whose contents do not change.
fn fixed<L: ElfLayout>(name: &str, layout: &L, held: Held, queries: &Queries) {
    print(name, held, Kind::ALL.map(|kind| measure(layout, queries, kind, CacheCounters::default)));
}

/// A dynamic cache below `levels`, empty before each kind of query.
fn dynamic<P: Policy>(
    name: &str,
    levels: &Linear<Cached<Mapped>>,
    options: CacheOptions,
    policy: impl Fn() -> P,
    queries: &Queries,
) {
    let statics = levels.access().levels();
    let mut held = None;
    let cells = Kind::ALL.map(|kind| {
        let cached = levels.clone().with_cache(options, policy());
        let cell = measure(&cached, queries, kind, || cached.access().cache().counters());
        let cache = cached.access().cache();
        held.get_or_insert(Held {
            lists: statics.lists() + cache.len(),
            bytes: statics.bytes() + cache.bytes(),
        });
        cell
    });
    print(name, held.unwrap_or_default(), cells);
}
