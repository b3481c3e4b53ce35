//! All stores give the same answers, and a meter sees where they read.

use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use pando_elf::{
    BuildOptions, CacheOptions, CodeTable, ElfLayout, Lfu, Linear, ListId, Lla, Lru, Mapped, MappedFile,
    Meter, Naive, Part, PersistentFile, Policy, Space, Touch, TwoQueue, Width, build_linear,
};
use proptest::prelude::*;

use crate::model::{conditions, order, predicate, search, search_exact, table};

/// Opens an image in a mapped file of its own.
fn mapped(image: &[u8]) -> Linear<Mapped> {
    let mut file = tempfile::tempfile().expect("a temporary file");
    file.write_all(image).expect("room");
    let file = MappedFile::open(file, false).expect("a file of its own");
    Linear::open(file.lend(0..image.len() as u64).expect("all of it")).expect("a whole image")
}

fn policies(weights: pando_elf::Weights) -> Vec<Box<dyn Policy>> {
    vec![
        Box::new(Naive),
        Box::new(Lru::default()),
        Box::new(Lfu::default()),
        Box::new(TwoQueue::new(4)),
        Box::new(Lla::new(Arc::new(weights))),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn all_stores_give_the_same_answers(
        table in table(),
        keys in prop::collection::vec(any::<u32>(), 16),
        wide: bool,
        predicates in prop::collection::vec(conditions(), 1..4),
        rows in prop::collection::vec(any::<usize>(), 1..6),
        (depth, lists, bytes) in (0..6_usize, 0..40_usize, prop::option::of(0..2_000_u64)),
    ) {
        let order = order(&table, &keys);
        prop_assume!(table.maximum(order[0]) < 100_000);
        let width = if wide { Width::Wide } else { Width::Auto };
        let options = BuildOptions { width, ..BuildOptions::default() };
        let plain = build_linear(&table, &order, &options).expect("a small table");
        let image = mapped(plain.bytes());
        let code = |column: usize, row: usize| if table.rows() == 0 { 1 } else { table.code(column, row % table.rows()) };
        let questions = Questions {
            predicates: predicates.iter().map(|conditions| predicate(&table, conditions)).collect(),
            rows: rows.iter().map(|&row| (0..table.width()).map(|column| code(column, row)).collect()).collect(),
        };
        let expected = questions.ask(&plain);
        prop_assert_eq!(&questions.ask(&image), &expected, "mapped");
        prop_assert_eq!(&questions.ask(&image.clone().hybrid().expect("memory")), &expected, "hybrid");
        let meter = Spaces::default();
        let dual = image.clone().dual_access(&meter).expect("memory");
        prop_assert_eq!(&questions.ask(&dual), &expected, "dual access");
        prop_assert!(meter.0.borrow().iter().all(|&(space, part)| (space == Space::Dram) == (part == Part::List)));
        let levels = image.clone().with_levels(depth).expect("memory");
        prop_assert_eq!(&questions.ask(&levels), &expected, "{} levels", depth);
        for (number, policy) in policies(image.weights()).into_iter().enumerate() {
            let options = CacheOptions { bytes, ..CacheOptions::lists(lists) };
            let cached = levels.clone().with_cache(options, policy);
            prop_assert_eq!(&questions.ask(&cached), &expected, "policy {}, {} levels", number, depth);
            prop_assert!(cached.access().cache().len() <= lists);
        }
    }

    #[test]
    fn weights_are_the_rows_below_each_list(table in table(), keys in prop::collection::vec(any::<u32>(), 16)) {
        let order = order(&table, &keys);
        prop_assume!(table.maximum(order[0]) < 100_000);
        let linear = build_linear(&table, &order, &BuildOptions::default()).expect("a small table");
        let prefixes = |level: usize| {
            let mut prefixes = std::collections::HashMap::<Vec<u32>, Vec<Vec<u32>>>::new();
            for row in 0..table.rows() {
                let codes: Vec<u32> = order.iter().map(|&column| table.code(column, row)).collect();
                prefixes.entry(codes[..level].to_vec()).or_default().push(codes);
            }
            prefixes.into_values().collect::<Vec<_>>()
        };
        // A list is a prefix of rows that differ; the list of level 0 is always there.
        let is_list = |level: usize, rows: &[Vec<u32>]| level == 0 || rows.iter().any(|row| *row != rows[0]);
        let heavy = (0..table.width())
            .flat_map(|level| prefixes(level).into_iter().map(move |rows| (level, rows)))
            .filter(|(level, rows)| is_list(*level, rows) && rows.len() as u64 >= pando_elf::Weights::FLOOR)
            .count();
        prop_assert_eq!(linear.weights().lists(), heavy);
    }
}

struct Questions {
    predicates: Vec<pando_elf::Predicate>,
    rows: Vec<Vec<u32>>,
}

impl Questions {
    /// All answers, twice, so that caches are used.
    fn ask(&self, layout: &impl ElfLayout) -> Vec<Vec<u64>> {
        let ask = |_| {
            let found = self.predicates.iter().map(|predicate| search(layout, predicate));
            found.chain(self.rows.iter().map(|codes| search_exact(layout, codes))).collect::<Vec<_>>()
        };
        let [first, second] = [0, 1].map(ask);
        assert_eq!(first, second);
        first
    }
}

/// Where and what was read.
#[derive(Default)]
struct Spaces(RefCell<Vec<(Space, Part)>>);

impl Meter for Spaces {
    fn touch(&self, touch: Touch) {
        assert!(touch.words.start <= touch.words.end);
        self.0.borrow_mut().push((touch.space, touch.part));
    }

    fn probe(&self, _list: ListId, _cached: usize) {}
}

/// Collects touches and probed lists.
#[derive(Default)]
struct Trace(RefCell<Vec<Touch>>, RefCell<Vec<u64>>);

impl Meter for Trace {
    fn touch(&self, touch: Touch) {
        self.0.borrow_mut().push(touch);
    }

    fn probe(&self, list: ListId, _cached: usize) {
        self.1.borrow_mut().push(list.0);
    }
}

impl Trace {
    fn take(&self) -> Vec<(Space, Part, std::ops::Range<u64>)> {
        self.0.take().into_iter().map(|touch| (touch.space, touch.part, touch.words)).collect()
    }
}

/// The example of DAPD 2022, Figure 1; `docs/elf.md` draws its image.
fn example() -> Linear<Vec<u8>> {
    let rows = [[0, 1, 0, 1], [0, 2, 0, 0], [1, 0, 1, 0], [2, 0, 0, 0], [2, 0, 0, 1], [2, 0, 1, 0]];
    let columns = (0..4).map(|column| rows.map(|row| row[column]).to_vec()).collect();
    let table = CodeTable::new(columns).expect("four columns");
    build_linear(&table, &[0, 1, 2, 3], &BuildOptions::default()).expect("a small table")
}

#[test]
fn a_meter_sees_each_word_where_it_was_read() {
    use Part::{List, MonoList};
    use Space::{Cache, Dram, Levels, Persistent};
    let trace = Trace::default();
    let plain = example().metered(Dram, &trace);
    assert_eq!(search_exact(&plain, &[0, 2, 0, 0]), [1]);
    // The first list has no values; the list below 0 is read up to value 2.
    let expected = [(List, 0..1), (List, 3..7), (MonoList, 10..12), (MonoList, 12..13)];
    assert_eq!(trace.take(), expected.map(|(part, words)| (Dram, part, words)));

    // Levels 0 and 1 stand in the copy as first list (0..3), list below 0 (3..7), and list below 2 (7..9).
    let levels = example().with_levels(2).expect("memory").with_meter(&trace);
    assert_eq!((levels.access().levels().lists(), levels.access().levels().bytes()), (3, 36));
    assert_eq!(search_exact(&levels, &[2, 0, 1, 0]), [5]);
    let expected = [(Levels, List, 2..3), (Levels, List, 7..9), (Persistent, List, 19..23)];
    let mono = [(Persistent, MonoList, 29..30), (Persistent, MonoList, 30..31)];
    assert_eq!(trace.take(), [expected.as_slice(), &mono].concat());

    let cached = levels.with_cache(CacheOptions::lists(1), Lru::default());
    assert_eq!(search_exact(&cached, &[2, 0, 1, 0]), [5]);
    assert_eq!(trace.1.take(), [19]);
    let expected = [(Levels, List, 2..3), (Levels, List, 7..9), (Cache, List, 19..23)];
    assert_eq!(trace.take(), [expected.as_slice(), &mono].concat());
    // The list below 2, 0, 0 replaces it.
    assert_eq!(search_exact(&cached, &[2, 0, 0, 1]), [4]);
    assert_eq!(trace.1.take(), [19, 23]);
    assert_eq!(cached.access().cache().lists().collect::<Vec<_>>(), [ListId(23)]);
}

#[test]
fn the_weights_of_the_example_are_the_published_ones() {
    // Lists (1), (2), (5) and (6) of Figure 1 lead to 6, 2, 3 and 3 rows, and the one below (6) to 2. A cache of two
    // lists keeps the first and, of the two with three rows, the one that came first.
    let linear = example();
    let lla = Lla::new(Arc::new(linear.weights()));
    let cached = linear.with_levels(0).expect("memory").with_cache(CacheOptions::lists(2), lla);
    assert_eq!(search_exact(&cached, &[0, 1, 0, 1]), [0]);
    assert_eq!(search_exact(&cached, &[2, 0, 0, 0]), [3]);
    let mut lists: Vec<ListId> = cached.access().cache().lists().collect();
    lists.sort_unstable();
    assert_eq!(lists, [ListId(0), ListId(17)]);
    let counters = cached.access().cache().counters();
    assert_eq!((counters.insertions, counters.evictions, counters.refused), (3, 1, 2));
}

#[test]
fn stores_move_between_threads_and_static_ones_are_shared() {
    fn shared(_: &(impl ElfLayout + Send + Sync)) {}
    fn sent(_: &(impl ElfLayout + Send)) {}
    let levels = mapped(example().bytes()).with_levels(2).expect("memory");
    shared(&levels);
    sent(&levels.with_cache(CacheOptions::lists(3), Lru::default()));
}

#[test]
fn files_are_created_once_and_locked() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("elf");
    let message = |error: Option<pando_elf::Error>| error.map(|error| error.to_string()).unwrap_or_default();
    let mut file = PersistentFile::create(&path).expect("a new file");
    assert_eq!(message(file.image().err()), "the file has no image: none was published yet");
    let in_use = "the file is in use: one process may publish images in it, or several may read it";
    assert_eq!(message(PersistentFile::open(&path).err()), in_use);
    file.publish(example().bytes()).expect("a whole image");
    let image = file.image().expect("an image");
    drop(file);
    // The image holds the lock.
    assert_eq!(message(PersistentFile::open(&path).err()), in_use);
    drop(image);
    assert_eq!(message(PersistentFile::create(&path).err()), "the file exists and is not empty");
    let readers = [(); 2].map(|()| PersistentFile::open_read_only(&path).expect("a file"));
    for mut reader in readers {
        assert_eq!(reader.image().expect("an image").as_ref(), example().bytes());
        assert!(reader.publish(example().bytes()).is_err());
    }
    std::fs::write(&path, b"something else").expect("a file");
    let mark = "this is no file of Elf images: its first eight bytes are not the mark of one";
    assert_eq!(message(PersistentFile::open(&path).err()), mark);
    let missing = message(PersistentFile::open(&folder.path().join("none")).err());
    assert_eq!(missing, "cannot open the file of an Elf: No such file or directory (os error 2)");
}

#[test]
fn damage_in_a_file_is_found() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("elf");
    PersistentFile::create(&path)
        .and_then(|mut file| file.publish(example().bytes()))
        .expect("a whole image");
    let bytes = std::fs::read(&path).expect("a file");
    let open = || PersistentFile::open(&path).and_then(|file| Linear::open(file.image()?).map(|_| ()));
    assert_eq!(open(), Ok(()));
    let used = 4096 + example().bytes().len();
    let raw = OpenOptions::new().write(true).open(&path).expect("a file");
    for at in (0..16).chain(4096..used) {
        raw.write_all_at(&[bytes[at] ^ 0x41], at as u64).expect("a byte of the file");
        assert!(open().is_err(), "byte {at} was changed");
        raw.write_all_at(&bytes[at..=at], at as u64).expect("a byte of the file");
    }
    assert_eq!(open(), Ok(()));
    for len in (0..used).rev().step_by(7) {
        raw.set_len(len as u64).expect("a shorter file");
        assert!(open().is_err(), "cut to {len} bytes");
    }
    File::create(&path).expect("a file");
    assert!(open().is_err() && PersistentFile::create(&path).is_ok());
}
