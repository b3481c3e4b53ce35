//! Pools in files: closing and reopening, changes of partitions, bulk loads, damage.

use std::fs::{self, OpenOptions as FileOptions};
use std::path::{Path, PathBuf};

use crate::support::{key, layouts, number, sound};
use pando::{
    BulkOptions, Cluster, Config, Create, Error, Index, IndexLayout, IndexOptions, OpenOptions, SortedSource,
};

fn temporary() -> tempfile::TempDir {
    tempfile::tempdir().expect("temporary directory")
}

fn fresh(path: &Path) -> Config {
    Config::at(path).memory(32 << 20).create(Create::New)
}

fn fill(index: &Index, keys: impl Iterator<Item = u64>) {
    let session = index.session().expect("session");
    keys.for_each(|n| {
        session.put(&key(n), &key(n)).expect("put");
    });
}

fn keys_of(index: &Index) -> Vec<u64> {
    let session = index.session().expect("session");
    session.iter().map(|entry| number(&entry.expect("scan").0)).collect()
}

#[test]
fn a_closed_pool_reopens_with_everything_in_it() {
    let directory = temporary();
    for (at, (shape, options)) in layouts().into_iter().enumerate() {
        let path = directory.path().join(at.to_string());
        let cluster = Cluster::open(fresh(&path).memory_servers(2)).expect("opens");
        let index = cluster.create_index(shape, &options).expect("new");
        fill(&index, 0..2000);
        cluster.close().expect("closes");
        drop((index, cluster));
        // Unwritten parts of a sparse file would be missing now.
        let cluster = Cluster::open(Config::at(&path)).expect("opens");
        let index =
            cluster.open_index_with(shape, &OpenOptions::default().expect(options.layout())).expect("there");
        assert_eq!(keys_of(&index), (0..2000).collect::<Vec<_>>());
        fill(&index, 2000..3000);
        // Dropping the last handle closes the pool, too.
        drop((index, cluster));
        let cluster = Cluster::open(Config::at(&path).create(Create::IfMissing)).expect("opens");
        assert_eq!(cluster.index_names().expect("open"), [shape]);
        assert_eq!(keys_of(&cluster.open_index(shape).expect("there")).len(), 3000);
        sound(&cluster);
    }
}

#[test]
fn an_index_is_divided_anew_by_its_own_keys() {
    let directory = temporary();
    for (at, (_, options)) in layouts().into_iter().enumerate() {
        let path = directory.path().join(at.to_string());
        let cluster = Cluster::open(fresh(&path)).expect("opens");
        // All keys are in the first percent of the key space, where equal ranges would not divide them.
        fill(&cluster.create_index("x", &options).expect("new"), 0..600);
        cluster.close().expect("closes");
        for servers in [4, 4, 7, 1, 2] {
            let cluster = Cluster::open(Config::at(&path).compute_servers(servers)).expect("opens");
            let index = cluster.open_index("x").expect("there");
            assert_eq!(index.compute_servers().expect("open"), servers);
            let boundaries: Vec<Vec<u8>> = index.boundaries().expect("open");
            let part = |n: u64| {
                boundaries.iter().filter(|boundary| boundary.as_slice() <= key(n).as_slice()).count()
            };
            let mut sizes = vec![0; servers];
            (0..600).for_each(|n| sizes[part(n)] += 1);
            assert!(*sizes.iter().min().expect("some") > 600 / servers / 3, "{sizes:?}");
            sound(&cluster);
            fill(&index, 0..600);
            assert_eq!(keys_of(&index), (0..600).collect::<Vec<_>>());
            sound(&cluster);
            cluster.close().expect("closes");
            // Without a number of compute servers, the boundaries stay.
            let cluster = Cluster::open(Config::at(&path)).expect("opens");
            assert_eq!(cluster.open_index("x").expect("there").boundaries().expect("open"), boundaries);
            sound(&cluster);
        }
    }
}

#[test]
fn an_empty_index_is_divided_by_the_key_space() {
    let cluster = Cluster::open(Config::embedded().memory(32 << 20).compute_servers(100)).expect("opens");
    for (name, options) in layouts() {
        let index = cluster.create_index(name, &options).expect("new");
        assert_eq!(index.compute_servers().expect("open"), 100);
        fill(&index, (0..500).map(|n| n * 131));
        assert_eq!(keys_of(&index).len(), 500);
    }
    sound(&cluster);
    let bytes = IndexOptions::bytes().boundaries(vec![b"b".to_vec(), b"a".to_vec()]);
    assert!(cluster.create_index("z", &bytes).is_err_and(|error| error.is_bad_input()));
    let wrong_size = IndexOptions::integers().boundaries(vec![b"b".to_vec()]);
    assert!(cluster.create_index("z", &wrong_size).is_err_and(|error| error.is_bad_input()));
    assert_eq!(cluster.index_names().expect("open").len(), 4);
    // Failed creations left nothing behind.
    sound(&cluster);
}

#[test]
fn a_bulk_load_balances_the_partitions_and_reports_progress() {
    for (servers, threads) in [(1, 1), (3, 2)] {
        for (name, options) in layouts() {
            let config = Config::embedded().memory(64 << 20).memory_servers(2).compute_servers(servers);
            let cluster = Cluster::open(config).expect("opens");
            let index = cluster.create_index(name, &options).expect("new");
            let entries: Vec<_> = (0..20_000_u64).map(|n| (n.to_be_bytes(), n.to_be_bytes())).collect();
            let last = std::sync::atomic::AtomicU64::new(0);
            let progress = |done| last.store(done, std::sync::atomic::Ordering::Relaxed);
            let load = BulkOptions { threads, progress: Some(&progress), ..Default::default() };
            assert_eq!(index.bulk_load(&entries[..], &load).expect("loads"), 20_000);
            assert_eq!(last.load(std::sync::atomic::Ordering::Relaxed), 20_000);
            let sizes = (0..servers).map(|server| {
                let range = index.range_of(server).expect("there");
                entries.iter().filter(|(key, _)| range.contains(key)).count()
            });
            assert!(sizes.into_iter().all(|size| size > 20_000 / servers - 10), "{:?}", index.boundaries());
            sound(&cluster);
            let session = index.session().expect("session");
            for (key, value) in &entries {
                assert_eq!(session.get(key).expect("get").as_deref(), Some(&value[..]));
            }
            drop(session);
            assert!(matches!(index.bulk_load(&entries[..], &load), Err(Error::NotEmpty { .. })));
        }
    }
}

#[test]
fn an_emptied_index_can_be_loaded_again_but_not_under_a_session() {
    let cluster = Cluster::open(Config::embedded().memory(32 << 20).compute_servers(2)).expect("opens");
    for (name, options) in layouts() {
        let index = cluster.create_index(name, &options).expect("new");
        let load = |entries: &[([u8; 8], [u8; 8])]| index.bulk_load(entries, &BulkOptions::default());
        let entries: Vec<_> = (0..5000).map(|n| (key(n), key(n))).collect();
        load(&entries).expect("loads");
        let session = index.session().expect("session");
        for (key, _) in &entries {
            assert!(session.remove(key).expect("remove"));
        }
        assert!(matches!(load(&entries), Err(Error::SessionsOpen { .. })));
        drop(session);
        load(&entries[..4000]).expect("loads");
        assert_eq!(keys_of(&index), (0..4000).collect::<Vec<_>>());
        sound(&cluster);
    }
}

#[test]
fn unsorted_entries_are_sorted_and_the_last_of_each_key_counts() {
    let cluster = Cluster::open(Config::embedded().memory(16 << 20)).expect("opens");
    let index = cluster.create_index("w", &IndexOptions::bytes()).expect("new");
    let entries = vec![("oak", "1"), ("ash", "2"), ("oak", "3"), ("elm", "4"), ("oak", "5")];
    let loaded = index.bulk_load_unsorted(entries, &BulkOptions::default()).expect("loads");
    assert_eq!((loaded.entries, loaded.duplicates), (3, 2));
    let session = index.session().expect("session");
    let found: Vec<_> = session.iter().map(|entry| entry.expect("scan")).collect();
    let text = |key: &str, value: &str| (key.as_bytes().to_vec(), value.as_bytes().to_vec());
    assert_eq!(found, [text("ash", "2"), text("elm", "4"), text("oak", "5")]);
}

#[test]
fn a_load_that_fails_leaves_the_index_empty_and_nothing_behind() {
    for servers in [1, 2] {
        let config = Config::embedded().memory(64 << 20).compute_servers(servers);
        let cluster = Cluster::open(config).expect("opens");
        let tiny = IndexOptions::integers().node_size(256).fanout_limit(4);
        let index = cluster.create_index("x", &tiny).expect("new");
        let mut entries: Vec<_> = (0..20_000_u64).map(|n| (n.to_be_bytes(), n.to_be_bytes())).collect();
        entries.swap(19_000, 19_001);
        let load = BulkOptions { threads: 2, ..Default::default() };
        let error = index.bulk_load(&entries[..], &load).expect_err("not sorted");
        assert!(error.is_bad_input(), "{error}");
        assert!(keys_of(&index).is_empty());
        sound(&cluster);
        entries.swap(19_000, 19_001);
        index.bulk_load(&entries[..], &load).expect("loads");
        sound(&cluster);
    }
}

/// A source with more entries than the pool has room for, generated on demand.
struct Endless;

impl SortedSource for Endless {
    fn len(&self) -> u64 {
        1 << 20
    }

    fn visit(
        &self,
        range: std::ops::Range<u64>,
        each: &mut dyn FnMut(&[u8], &[u8]) -> Result<(), pando::IndexError>,
    ) -> Result<(), pando::IndexError> {
        range.into_iter().try_for_each(|n| each(&n.to_be_bytes(), &n.to_be_bytes()))
    }
}

#[test]
fn a_load_into_a_pool_that_is_too_small_leaves_it_usable() {
    let cluster = Cluster::open(Config::embedded().memory(4 << 20)).expect("opens");
    let index = cluster.create_index("x", &IndexOptions::integers()).expect("new");
    let load = BulkOptions { threads: 2, ..Default::default() };
    let full = index.bulk_load(&Endless, &load).expect_err("full");
    assert!(full.is_full() && !full.is_bad_input(), "{full}");
    sound(&cluster);
    fill(&index, 0..1000);
    assert_eq!(keys_of(&index).len(), 1000);
}

/// The message that a user gets when a pool cannot be opened, and whether it is classified as bad input.
fn refusal(config: Config) -> (String, bool) {
    let error = Cluster::open(config).expect_err("refused");
    let text = error.to_string();
    assert!(!text.contains('\n') && text.len() < 400, "{text}");
    (text, error.is_bad_input())
}

fn pool_at(directory: &Path, name: &str) -> PathBuf {
    let path = directory.join(name);
    Cluster::open(fresh(&path)).expect("opens").close().expect("closes");
    path
}

#[test]
fn bad_pools_are_refused_in_one_sentence_with_their_path() {
    let directory = temporary();
    let directory = directory.path();

    let (text, bad_input) = refusal(Config::at(directory.join("nothing")));
    assert!(text.contains("nothing") && text.contains("there is no pool") && bad_input, "{text}");

    let path = pool_at(directory, "there");
    let (text, bad_input) = refusal(fresh(&path));
    assert!(text.contains("there is a pool already") && bad_input, "{text}");

    let path = pool_at(directory, "cut");
    FileOptions::new().write(true).open(&path).expect("opens").set_len(4 << 20).expect("cut");
    let (text, _) = refusal(Config::at(&path));
    assert!(text.contains(path.to_str().expect("utf-8")) && text.contains("cut short"), "{text}");
    FileOptions::new().write(true).open(&path).expect("opens").set_len(1234).expect("cut");
    assert!(refusal(Config::at(&path)).0.contains("cut short"));

    let path = directory.join("other");
    fs::write(&path, vec![7; 1 << 16]).expect("writes");
    let (text, bad_input) = refusal(Config::at(&path));
    assert!(text.contains("holds no pool") && bad_input, "{text}");
    let (text, _) = refusal(Config::at(&path).create(Create::Replace));
    assert!(text.contains("not replaced") && path.exists(), "{text}");

    let (text, bad_input) = refusal(fresh(&directory.join("small")).memory(4096));
    assert!(text.contains("too small") && bad_input, "{text}");
    assert!(!directory.join("small").exists(), "what was half made is removed");

    let part = pool_at(directory, "parts/");
    fs::remove_file(part.join("server-0.pando")).expect("removes");
    assert!(refusal(Config::at(&part)).0.contains("no pool"));
}

#[test]
fn a_replaced_pool_is_empty_and_one_in_use_is_not_replaced() {
    let directory = temporary();
    let path = directory.path().join("pool");
    let cluster = Cluster::open(fresh(&path)).expect("opens");
    fill(&cluster.create_index("x", &IndexOptions::integers()).expect("new"), 0..100);
    let replace = Config::at(&path).memory(16 << 20).create(Create::Replace);
    let in_use = Cluster::open(replace.clone()).expect_err("in use");
    assert!(in_use.to_string().contains(&format!("process {} is attached", std::process::id())), "{in_use}");
    cluster.close().expect("closes");
    let cluster = Cluster::open(replace).expect("opens");
    assert!(cluster.index_names().expect("open").is_empty());
    assert_eq!(cluster.stats().expect("open").pool[0].bytes_total, 16 << 20);
}

#[test]
fn bad_indexes_keys_and_sizes_are_refused_and_nothing_is_lost() {
    let cluster = Cluster::open(Config::embedded().memory(16 << 20)).expect("opens");
    let index = cluster.create_index("words", &IndexOptions::bytes()).expect("new");
    fill(&index, 0..100);
    let refused = |result: pando::Result<Index>, text: &str| {
        let error = result.expect_err("refused");
        assert!(error.to_string().contains(text) && error.is_bad_input(), "{error}");
    };
    refused(cluster.open_index("word"), "there is no index \"word\"; the pool has \"words\"");
    refused(cluster.create_index("words", &IndexOptions::bytes()), "already");
    let integers = IndexLayout::Fixed { key_size: 8, value_size: 8 };
    refused(
        cluster.open_index_with("words", &OpenOptions::default().expect(integers)),
        "holds byte strings of any length, but keys of 8 bytes with values of 8 bytes were expected",
    );
    refused(cluster.open_or_create_index("words", &IndexOptions::integers()), "were expected");
    refused(index.integers().map(|_| index.clone()), "were expected");
    refused(cluster.create_index("", &IndexOptions::bytes()), "name");
    refused(cluster.create_index("x", &IndexOptions::bytes().node_size(1000)), "node size");
    refused(cluster.create_index("x", &IndexOptions::fixed(65, 8)), "64");
    refused(cluster.create_index("x", &IndexOptions::bytes().fanout_limit(2)), "fanout");

    let session = index.session().expect("session");
    let too_long = session.put(&[1; 257], b"").expect_err("too long");
    assert!(too_long.is_bad_input() && too_long.to_string().contains("256"), "{too_long}");
    let fixed = cluster.create_index("fixed", &IndexOptions::integers()).expect("new");
    let fixed = fixed.session().expect("session");
    assert!(fixed.put(b"seven..", &[0; 8]).expect_err("short").is_bad_input());
    assert!(fixed.put(b"eight...", &[0; 7]).expect_err("short").is_bad_input());
    assert!(fixed.get(b"nine.....").expect_err("long").is_bad_input());
    drop((session, fixed));
    assert_eq!(keys_of(&index), (0..100).collect::<Vec<_>>());
    sound(&cluster);
}

#[test]
fn a_bulk_load_of_the_least_fill_has_few_levels() {
    for (shape, options) in layouts() {
        let cluster = Cluster::open(Config::embedded().memory(32 << 20)).expect("opens");
        let index = cluster.create_index("x", &options).expect("new");
        let load = BulkOptions { leaf_fill: 0.0, inner_fill: 0.0, ..Default::default() };
        let entries: Vec<_> = (0..3000_u64).map(|n| (key(n), key(n))).collect();
        index.bulk_load(entries.as_slice(), &load).expect("loads");
        assert_eq!(keys_of(&index), (0..3000).collect::<Vec<_>>(), "{shape}");
        let height = cluster.check().expect("at rest").indexes[0].height;
        assert!(height <= 13, "{shape}: {height} levels");
        sound(&cluster);
    }
}

#[test]
fn a_cache_below_the_minimum_says_it_and_one_at_the_minimum_works() {
    let directory = temporary();
    let path = directory.path().join("pool");
    let cluster = Cluster::open(fresh(&path).cache(8 * 1024 - 1)).expect("opens");
    let error = cluster.create_index("x", &IndexOptions::bytes()).expect_err("too small");
    assert!(error.is_bad_input() && error.to_string().contains("at least 8192 bytes"), "{error}");
    assert!(cluster.index_names().expect("open").is_empty());
    cluster.close().expect("closes");

    let cluster = Cluster::open(Config::at(&path).cache(8 * 1024)).expect("opens");
    let index = cluster.create_index("x", &IndexOptions::bytes()).expect("new");
    fill(&index, (0..20_000).map(|n| n * 7919 % 20_000));
    assert_eq!(keys_of(&index), (0..20_000).collect::<Vec<_>>());
    sound(&cluster);
    cluster.close().expect("closes");
    let cluster = Cluster::open(Config::at(&path).cache(1)).expect("opens");
    assert!(cluster.open_index("x").expect_err("too small").is_bad_input());
    // The partitions were released.
    assert_eq!(cluster.index_info("x").expect("there").owners, [None]);
}
