//! Properties of both layouts: random operations against a model, garbage and torn words, and the cost of a
//! search.
//!
//! Each test runs a random sequence of operations on one node or a few, and compares with a model after every
//! step. Pages of garbage must be refused or be harmless: no accessor may leave the page, whatever the bytes
//! are.

mod forest;

use std::sync::atomic::Ordering::Relaxed;

use pando_cache::sync::Word;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::RngSeed;

use self::forest::{Forest, Value};
use super::exercise::{CHILD, Subject, blank, change_everything, copy_of, long_value, read_everything};
use super::fixed::FixedLayout;
use super::slotted::SlottedLayout;
use super::{Layout, NodeInit, Side, Stored, header};
use crate::error::DexError;

/// The same cases in every run, unless `PROPTEST_CASES` is set.
fn config(cases: u32) -> ProptestConfig {
    if std::env::var_os("PROPTEST_CASES").is_some() {
        return ProptestConfig::default();
    }
    ProptestConfig { cases, rng_seed: RngSeed::Fixed(20), ..ProptestConfig::default() }
}

#[derive(Clone, Debug)]
enum Op {
    Put { key: Vec<u8>, value_len: usize, long: bool },
    Remove(usize),
    Refence(usize),
    Probe(Vec<u8>),
    Cut(Vec<u8>),
    MergeAll,
}

/// Bytes that give neighbouring keys long common parts.
fn byte() -> impl Strategy<Value = u8> {
    select(vec![0, 1, b'a', b'b', 0xff])
}

/// Adversarial keys of up to `max` bytes.
fn keys(max: usize) -> impl Strategy<Value = Vec<u8>> {
    let short = prop::collection::vec(byte(), 0..7.min(max + 1));
    let run = (select(vec![0, b'a', 0xff]), 0..=max).prop_map(|(byte, len)| vec![byte; len]);
    let at_depth = |depth: std::ops::RangeInclusive<usize>| {
        (select(vec![0, b'a', 0xff]), depth, prop::collection::vec(byte(), 0..10)).prop_map(
            move |(filler, depth, tail)| {
                let mut key = vec![filler; depth];
                key.extend(tail);
                key.truncate(max);
                key
            },
        )
    };
    let random = prop::collection::vec(any::<u8>(), 0..40.min(max + 1));
    let longest = (any::<[u8; 2]>(), byte(), any::<u8>()).prop_map(move |(front, filler, last)| {
        let mut key = front.to_vec();
        key.resize(max.max(1) - 1, filler);
        key.push(last);
        key
    });
    let (deep, anywhere) = (at_depth(max.saturating_sub(9)..=max), at_depth(0..=max));
    prop_oneof![2 => short, 1 => run, 2 => deep, 2 => anywhere, 2 => random, 1 => longest]
}

fn ops(max_key: usize, max_value: usize, count: usize) -> impl Strategy<Value = Vec<Op>> {
    let value_len = prop_oneof![Just(0), Just(8), 0..=max_value.min(24), 0..=max_value, Just(max_value)];
    let op = prop_oneof![
        12 => (keys(max_key), value_len, prop::bool::weighted(0.1))
            .prop_map(|(key, value_len, long)| Op::Put { key, value_len, long }),
        6 => any::<usize>().prop_map(Op::Remove),
        1 => any::<usize>().prop_map(Op::Refence),
        2 => keys(max_key).prop_map(Op::Probe),
        1 => keys(max_key).prop_map(Op::Cut),
        1 => Just(Op::MergeAll),
    ];
    prop::collection::vec(op, 1..count)
}

/// Runs operations on a forest, compares it with the model, and returns it.
fn run<L: Subject>(layout: L, level: u8, ops: &[Op]) -> Forest<L> {
    let mut forest = Forest::new(layout, level);
    for (n, op) in ops.iter().enumerate() {
        match op {
            Op::Put { key, value_len, long } => {
                let value = match (level, *long && Subject::has_long_values(&layout)) {
                    (0, true) => Value::Long(long_value(n as u64)),
                    (0, false) => Value::Inline(layout.legal_value(*value_len)),
                    _ => Value::Child(CHILD + 64 * n as u64),
                };
                forest.put(&layout.legal_key(key), value);
            }
            Op::Remove(n) => forest.remove_nth(*n),
            Op::Refence(n) => forest.refence_nth(*n),
            Op::Probe(key) => forest.probe(&layout.legal_key(key)),
            Op::Cut(key) => forest.cut(&layout.legal_key(key)),
            Op::MergeAll => forest.merge_all(),
        }
        if n % 32 == 0 {
            forest.check();
        }
    }
    forest.check();
    forest
}

fn slotted() -> impl Strategy<Value = SlottedLayout> {
    let limits = select(vec![None, None, None, Some(3), Some(4), Some(10)]);
    (9..=13_u32, limits).prop_map(|(bits, limit)| {
        let layout = SlottedLayout::new(1 << bits).expect("a legal size");
        limit.map_or(layout, |limit| layout.with_fanout_limit(limit))
    })
}

fn fixed_with_keys(lens: Vec<usize>) -> impl Strategy<Value = FixedLayout> {
    let limits = select(vec![None, Some(3), Some(4), Some(10)]);
    (9..=13_u32, select(lens), 0..=30_usize, limits).prop_map(|(bits, key, value, limit)| {
        let layout = FixedLayout::new(1 << bits, key, value).expect("a legal size");
        limit.map_or(layout, |limit| layout.with_fanout_limit(limit))
    })
}

fn fixed() -> impl Strategy<Value = FixedLayout> {
    fixed_with_keys((1..=30).collect())
}

fn slotted_and_ops(count: usize) -> impl Strategy<Value = (SlottedLayout, Vec<Op>)> {
    slotted().prop_flat_map(move |layout| {
        (Just(layout), ops(layout.max_key(), layout.max_inline(), count * layout.node_size() / 512))
    })
}

fn fixed_and_ops(
    layouts: impl Strategy<Value = FixedLayout>,
    count: usize,
) -> impl Strategy<Value = (FixedLayout, Vec<Op>)> {
    layouts.prop_flat_map(move |layout| (Just(layout), ops(layout.key_len(), layout.value_len(), count)))
}

/// A page from each of two forests: one ran the first half of the operations, the other one the second half.
fn versions<L: Subject>(layout: L, level: u8, ops: &[Op], pick: usize) -> (Vec<Word>, Vec<Word>) {
    let (first, last) = ops.split_at(ops.len() / 2);
    let page_of = |ops: &[Op]| {
        let forest = run(layout, level, ops);
        copy_of(&forest.pages[pick % forest.pages.len()])
    };
    (page_of(first), page_of(last))
}

/// Mixes two pages word by word, and sets some words to garbage.
fn tear(a: &[Word], b: &[Word], mask: &[bool], garbage: &[(usize, u64)]) -> Vec<Word> {
    let choose = |i: usize| if mask[i % mask.len()] { &a[i] } else { &b[i] };
    let torn: Vec<Word> = (0..a.len()).map(|i| Word::new(choose(i).load(Relaxed))).collect();
    for (i, word) in garbage {
        torn[i % a.len()].store(*word, Relaxed);
    }
    torn
}

fn check_torn<L: Subject>(layout: L, page: &[Word], probes: &[Vec<u8>]) {
    read_everything(&layout, page, probes);
    for probe in probes {
        change_everything(&layout, &copy_of(page), probe, probe.len());
    }
}

/// A few damaged words, about what a stray WRITE would cause.
fn garbage() -> impl Strategy<Value = Vec<(usize, u64)>> {
    let word = prop_oneof![any::<u64>(), Just(0), Just(u64::MAX), 0..8192_u64];
    prop::collection::vec((any::<usize>(), word), 0..3)
}

/// Arbitrary words behind a header with the right magic, format and level.
fn random_page(layout: &impl Layout, level: u8, words: &[u64]) -> Vec<Word> {
    let page = blank(layout);
    layout.init(&page, &NodeInit { addr: CHILD, index_id: 7, level, low: None, high: None });
    let kind = header::get(&page, header::KIND) & !(0xffff_ffff << 16);
    for (i, word) in page.iter().enumerate() {
        word.store(words[i % words.len()].rotate_left(i as u32), Relaxed);
    }
    header::set(&page, header::KIND, kind | (words[0] & 0x0fff) << 32 | (words[0] >> 32 & 0xf) << 16);
    page
}

proptest! {
    #![proptest_config(config(100))]

    #[test]
    fn slotted_leaves_match_the_model((layout, ops) in slotted_and_ops(150)) {
        run(layout, 0, &ops);
    }

    #[test]
    fn slotted_inner_nodes_match_the_model((layout, ops) in slotted_and_ops(150)) {
        run(layout, 1, &ops);
    }

    #[test]
    fn fixed_leaves_match_the_model((layout, ops) in fixed_and_ops(fixed(), 300)) {
        prop_assert!(run(layout, 0, &ops).most_splits <= 1);
    }

    #[test]
    fn fixed_inner_nodes_match_the_model((layout, ops) in fixed_and_ops(fixed(), 300)) {
        prop_assert!(run(layout, 1, &ops).most_splits <= 1);
    }

    #[test]
    fn one_split_is_enough_for_keys_below_three_sixteenths(
        (layout, ops) in slotted().prop_flat_map(|layout| {
            let max_key = layout.node_size() * 3 / 16 - 20;
            (Just(layout), ops(max_key, layout.max_inline(), 300))
        }),
        level in 0..2_u8,
    ) {
        prop_assert!(run(layout, level, &ops).most_splits <= 1);
    }

    #[test]
    fn torn_slotted_pages_do_no_harm(
        (layout, ops) in slotted_and_ops(60),
        level in 0..2_u8,
        pick in any::<usize>(),
        mask in prop::collection::vec(any::<bool>(), 1..40),
        garbage in garbage(),
        probes in prop::collection::vec(keys(512), 1..4),
    ) {
        let (a, b) = versions(layout, level, &ops, pick);
        check_torn(layout, &tear(&a, &b, &mask, &garbage), &probes);
        check_torn(layout, &tear(&a, &a, &mask, &garbage), &probes);
    }

    #[test]
    fn torn_fixed_pages_do_no_harm(
        (layout, ops) in fixed_and_ops(fixed(), 120),
        level in 0..2_u8,
        pick in any::<usize>(),
        mask in prop::collection::vec(any::<bool>(), 1..40),
        garbage in garbage(),
        probes in prop::collection::vec(keys(64), 1..4),
    ) {
        let (a, b) = versions(layout, level, &ops, pick);
        check_torn(layout, &tear(&a, &b, &mask, &garbage), &probes);
        check_torn(layout, &tear(&a, &a, &mask, &garbage), &probes);
    }

    #[test]
    fn garbage_does_no_harm(
        (slotted, fixed) in (slotted(), fixed()),
        level in 0..2_u8,
        words in prop::collection::vec(any::<u64>(), 1..300),
        probes in prop::collection::vec(keys(512), 1..4),
    ) {
        check_torn(slotted, &random_page(&slotted, level, &words), &probes);
        check_torn(fixed, &random_page(&fixed, level, &words), &probes);
    }
}

fn leaf(layout: &SlottedLayout, low: Option<&[u8]>, high: Option<&[u8]>) -> Vec<Word> {
    let page = blank(layout);
    layout.init(&page, &NodeInit { addr: CHILD, index_id: 7, level: 0, low, high });
    page
}

fn insert(layout: &SlottedLayout, page: &[Word], key: &[u8], value: &[u8]) -> bool {
    let i = layout.find(page, key).expect_err("a new key");
    layout.leaf_insert(page, i, key, Stored::Inline(value))
}

#[test]
fn the_longest_entry_fits_beside_the_longest_fences() {
    for bits in 9..=13 {
        let layout = SlottedLayout::new(1 << bits).expect("a legal size");
        let max = layout.max_key();
        let (low, key, high) = (vec![0; max], vec![1; max], vec![2; max]);
        let page = leaf(&layout, Some(&low), Some(&high));
        assert!(insert(&layout, &page, &key, &vec![3; layout.max_inline()]));
        assert!(layout.leaf_replace(&page, 0, Stored::Long(long_value(1))));
        assert!(layout.leaf_replace(&page, 0, Stored::Inline(&vec![3; layout.max_inline()])));
        assert_eq!(layout.verify(&page), Ok(()));
        assert!(!layout.value_is_inline(&vec![3; layout.max_inline() + 1]).expect("a legal value"));
        assert!(matches!(layout.key(&[0; 4097][..max + 1]), Err(DexError::KeyTooLong { .. })));
    }
    let layout = SlottedLayout::new(1024).expect("a legal size");
    assert!(!layout.value_is_inline(&vec![0; 16 << 20]).expect("a legal value"));
    assert!(matches!(layout.value_is_inline(&vec![0; (16 << 20) + 1]), Err(DexError::ValueTooLong { .. })));
    assert!([0, 256, 1000, 16384].iter().all(|&size| SlottedLayout::new(size).is_err()));
}

/// One split may leave no half with room for an entry with the longest key; then a second split makes room.
#[test]
fn long_similar_keys_need_a_second_split() {
    let layout = SlottedLayout::new(1024).expect("a legal size");
    let mut forest = Forest::new(layout, 0);
    let key = |last: u8, len: usize| [vec![b'k'; 205], vec![last], vec![b'z'; len - 206]].concat();
    for last in [1, 2, 4, 5] {
        forest.put(&key(last, 206), Value::Inline(vec![0; 26]));
    }
    assert_eq!(forest.pages.len(), 1);
    forest.put(&key(3, 256), Value::Inline(vec![0; layout.max_inline()]));
    assert_eq!(forest.most_splits, 2);
    forest.check();
}

#[test]
fn rising_inserts_leave_full_leaves_behind() {
    let layout = SlottedLayout::new(1024).expect("a legal size");
    let mut forest = Forest::new(layout, 0);
    for n in 0..2000_u64 {
        forest.put(&n.to_be_bytes(), Value::Inline(vec![0; 8]));
    }
    // A leaf between two fences has (1024 - 64 - fences) / 24 entries.
    let per_leaf = 2000 / forest.pages.len();
    assert!((32..=39).contains(&per_leaf), "{per_leaf} entries in a leaf");
}

/// Number of children of an inner node after `separator` has filled it.
fn children_of_a_full_node<L: Layout>(layout: &L, separator: impl Fn(u16) -> Vec<u8>) -> usize {
    let page = blank(layout);
    layout.init(&page, &NodeInit { addr: 0, index_id: 1, level: 1, low: None, high: None });
    let fits = |&i: &u16| layout.inner_insert(&page, i.into(), &separator(i), CHILD);
    (0..1000).take_while(fits).count() + 1
}

#[test]
fn an_inner_node_holds_as_many_children_as_the_layout_says() {
    let short = |i: u16| i.to_be_bytes().to_vec();
    let long = |i: u16| u64::from(i).to_be_bytes().to_vec();
    let (fixed, slotted) = (FixedLayout::new(512, 8, 8).unwrap(), SlottedLayout::new(512).unwrap());
    for limit in [3, 4, 7] {
        let (fixed, slotted) = (fixed.with_fanout_limit(limit), slotted.with_fanout_limit(limit));
        assert_eq!(children_of_a_full_node(&fixed, long), fixed.max_children());
        assert_eq!(children_of_a_full_node(&slotted, short), slotted.max_children());
    }
    assert_eq!(children_of_a_full_node(&fixed, long), fixed.max_children());
    // The limit of the layout assumes the smallest separators.
    assert!((10..=slotted.max_children()).contains(&children_of_a_full_node(&slotted, short)));
}

#[test]
fn separators_and_prefixes_are_short() {
    let layout = SlottedLayout::new(512).expect("a legal size");
    let mut forest = Forest::new(layout, 0);
    for n in 0..500_u32 {
        forest.put(format!("user:{n:05}:profile:name").as_bytes(), Value::Inline(vec![0; 4]));
    }
    forest.check();
    for page in &forest.pages {
        let mut high = Vec::new();
        if layout.append_fence(page, Side::High, &mut high) {
            assert!(high.len() <= "user:00000".len(), "{high:?}");
        }
    }
    // At least "user:0" is truncated, so that more entries fit than with 16 + 23 + 4 bytes each.
    assert!(forest.pages.len() < 500 * 43 / 448);
}

#[test]
fn garbage_comes_back() {
    let layout = SlottedLayout::new(512).expect("a legal size");
    let page = leaf(&layout, None, None);
    let mut n = 0_u32;
    while insert(&layout, &page, format!("a key of {n:06}").as_bytes(), &[7; 20]) {
        n += 1;
    }
    for round in 0..100_usize {
        let i = round * 7 % n as usize;
        let key = super::exercise::key_at(&layout, &page, i);
        layout.leaf_remove(&page, i);
        assert!(layout.has_room(&page, &key, 20));
        assert!(insert(&layout, &page, &key, &[7; 20]), "round {round}");
        assert!(layout.leaf_replace(&page, i, Stored::Inline(&[8; 11])));
        assert!(layout.leaf_replace(&page, i, Stored::Inline(&[9; 20])));
        assert_eq!(layout.verify(&page), Ok(()));
    }
}

/// `verify` notices each kind of damage.
#[test]
fn damage_is_noticed() {
    let layout = SlottedLayout::new(512).expect("a legal size");
    let page = leaf(&layout, Some(b"commonA-low"), Some(b"commonZ-high"));
    for key in [&b"commonB"[..], b"commonC-long-tail", b"commonC-long-tale"] {
        assert!(insert(&layout, &page, key, b"value"));
    }
    assert_eq!(layout.verify(&page), Ok(()));
    let damaged = |word: usize, change: &dyn Fn(u64) -> u64| {
        let copy = copy_of(&page);
        header::set(&copy, word, change(header::get(&copy, word)));
        assert!(layout.verify(&copy).is_err(), "a change to word {word} went unnoticed");
    };
    for (word, bit) in [(3, 32), (3, 48), (4, 0), (4, 16), (4, 32), (4, 48), (5, 3), (5, 40)] {
        damaged(word, &|value| value ^ 1 << bit);
    }
    for slot in 0..3 {
        for bit in [0, 16] {
            damaged(8 + 2 * slot, &|value| value ^ 1 << bit);
        }
        for bit in [32, 47, 48] {
            damaged(9 + 2 * slot, &|value| value ^ 1 << bit);
        }
    }
    damaged(8, &|value| value | 0xff << 56);
    damaged(8, &|value| value & !(0xff << 56));
    damaged(12, &|value| value ^ 1 << 42);
    damaged(2, &|value| value ^ 1 << 32);
    damaged(2, &|value| value ^ 1 << 48);
    damaged(2, &|value| value ^ 1 << 8);
    damaged(2, &|value| value | 1);
    assert!(layout.verify(&page[..63]).is_err());
}

/// Prints the nanoseconds of a search in a full leaf of 1 KiB with random keys of 16 bytes.
#[test]
#[ignore = "a measurement: run it with --release --nocapture"]
fn measure_find() {
    let layout = SlottedLayout::new(1024).expect("a legal size");
    let mut state = 1_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let page = leaf(&layout, None, None);
    let mut keys: Vec<[u8; 16]> = Vec::new();
    loop {
        let mut key = [0; 16];
        key[..8].copy_from_slice(&random().to_be_bytes());
        key[8..].copy_from_slice(&random().to_be_bytes());
        if !insert(&layout, &page, &key, &[0; 8]) {
            break;
        }
        keys.push(key);
    }
    let rounds = 20_000_000_usize;
    let order: Vec<usize> = (0..4096).map(|_| random() as usize % keys.len()).collect();
    let start = std::time::Instant::now();
    let mut found = 0;
    for round in 0..rounds {
        found += usize::from(layout.find(&page, &keys[order[round % 4096]]).is_ok());
    }
    let find = start.elapsed().as_nanos() as f64 / rounds as f64;
    assert_eq!(found, rounds);
    let start = std::time::Instant::now();
    let mut value = Vec::with_capacity(8);
    for round in 0..rounds {
        let key = &keys[order[round % 4096]][..];
        value.clear();
        if let (true, Ok(i)) = (layout.covers(&page, key), layout.find(&page, key)) {
            layout.append_value(&page, i, &mut value);
        }
        found += value.len();
    }
    let lookup = start.elapsed().as_nanos() as f64 / rounds as f64;
    println!("{} keys: find {find:.1} ns, with fences and value {lookup:.1} ns ({found})", keys.len());
}
