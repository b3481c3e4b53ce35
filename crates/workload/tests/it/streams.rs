//! Operation streams: shares, key choice, partitions, determinism.

use pando_workload::*;
use std::collections::{HashMap, HashSet};

fn spec(mix: &str, distribution: &str, space: KeySpace, records: u64) -> WorkloadSpec {
    WorkloadSpec {
        mix: mix.parse().expect("a mix"),
        distribution: distribution.parse().expect("a distribution"),
        scatter: Scatter::Hash,
        ranks: None,
        keys: KeyCodec::new(space, 8, records).expect("a key space"),
    }
}

fn ops(spec: &WorkloadSpec, seed: u64, lane: Lane, count: usize) -> Vec<Op> {
    let mut stream = OpStream::new(spec, seed, lane).expect("a valid stream");
    let done = |_| {
        let op = stream.next_op();
        if op.kind == OpKind::Insert {
            stream.inserted(op.key_number);
        }
        op
    };
    (0..count).map(done).collect()
}

fn share(ops: &[Op], wanted: impl Fn(&Op) -> bool) -> f64 {
    ops.iter().filter(|op| wanted(op)).count() as f64 / ops.len() as f64
}

#[test]
fn streams_are_functions_of_specification_seed_and_lane() {
    let spec = spec("ycsb-a", "zipf:0.99", KeySpace::Dense, 10_000);
    let first = ops(&spec, 1, Lane::new(0, 2), 1000);
    assert_eq!(first, ops(&spec, 1, Lane::new(0, 2), 1000));
    assert_ne!(first, ops(&spec, 2, Lane::new(0, 2), 1000));
    assert_ne!(first, ops(&spec, 1, Lane::new(1, 2), 1000));
    assert!(OpStream::new(&spec, 1, Lane::new(2, 2)).is_err());
}

#[test]
fn kinds_come_in_their_shares() {
    const COUNT: usize = 100_000;
    for name in Mix::names() {
        let spec = spec(name, "uniform", KeySpace::Dense, 1_000_000);
        let drawn = ops(&spec, 5, Lane::new(0, 1), COUNT);
        let mix = spec.mix;
        let expected = [
            (mix.read, share(&drawn, |op| op.kind == OpKind::Read)),
            (mix.update, share(&drawn, |op| op.kind == OpKind::Update)),
            (mix.insert, share(&drawn, |op| op.kind == OpKind::Insert)),
            (mix.scan, share(&drawn, |op| matches!(op.kind, OpKind::Scan { .. }))),
            (mix.read_modify_write, share(&drawn, |op| op.kind == OpKind::ReadModifyWrite)),
        ];
        for (percent, share) in expected {
            // Six standard deviations of the most uncertain share.
            assert!((share - f64::from(percent) / 100.0).abs() < 0.01, "{name}: {share} for {percent}%");
        }
    }
}

#[test]
fn scan_lengths_cover_their_range() {
    let lengths = |name| -> HashSet<u32> {
        let drawn = ops(&spec(name, "uniform", KeySpace::Dense, 1000), 5, Lane::new(0, 1), 20_000);
        drawn
            .iter()
            .filter_map(|op| if let OpKind::Scan { len } = op.kind { Some(len) } else { None })
            .collect()
    };
    assert_eq!(lengths("ycsb-e"), (1..=100).collect());
    assert_eq!(lengths("scan-intensive"), HashSet::from([100]));
}

/// Share of the inserts whose key was neither loaded nor inserted before.
fn truly_new(drawn: &[Op]) -> f64 {
    let mut inserted = HashSet::new();
    let inserts: Vec<Op> = drawn.iter().copied().filter(|op| op.kind == OpKind::Insert).collect();
    let new = inserts.iter().filter(|op| !is_loaded(op.key_number) && inserted.insert(op.key_number)).count();
    new as f64 / inserts.len() as f64
}

#[test]
fn half_of_the_papers_inserts_are_of_keys_that_were_never_there() {
    for (name, count) in
        [("insert-intensive", 100_000), ("read-intensive-2", 1_000_000), ("scan-intensive", 1_000_000)]
    {
        for distribution in ["zipf:0.99", "uniform"] {
            let spec = spec(name, distribution, KeySpace::Dense, 100_000);
            let new = truly_new(&ops(&spec, 9, Lane::new(0, 1), count));
            assert!((new - 0.5).abs() < 0.015, "{name} {distribution}: {new}");
        }
    }
    let mut old = spec("insert-intensive", "zipf:0.99", KeySpace::Dense, 100_000);
    old.mix.insert_keys = InsertKeys::Drawn;
    let new = truly_new(&ops(&old, 9, Lane::new(0, 1), 100_000));
    assert!(new < 0.3, "hot new keys come again: {new}");
}

#[test]
fn inserts_go_on_when_no_key_is_new_any_more() {
    let spec = spec("insert-intensive", "zipf:0.99", KeySpace::Dense, 1000);
    let mut stream = OpStream::new(&spec, 3, Lane::new(0, 1)).expect("valid");
    let drawn: Vec<Op> = (0..10_000).map(|_| stream.next_op()).collect();
    assert!(stream.fresh_keys_exhausted());
    let new: HashSet<u64> =
        drawn.iter().map(|op| op.key_number).filter(|&number| !is_loaded(number)).collect();
    assert_eq!(new.len(), 1000, "every new key was used");
}

#[test]
fn the_latest_keys_are_those_whose_inserts_are_done() {
    let spec = spec("ycsb-d", "latest:0.99", KeySpace::Dense, 10_000);
    let mut stream = OpStream::new(&spec, 3, Lane::new(0, 1)).expect("valid");
    let (mut there, mut asked) = (HashSet::new(), 0);
    let mut under_way = None;
    for _ in 0..50_000 {
        let Op { kind, key_number } = stream.next_op();
        match kind {
            OpKind::Insert => {
                // It is complete when the next one begins.
                if let Some(done) = under_way.replace(key_number) {
                    stream.inserted(done);
                    there.insert(done);
                }
            }
            _ if !is_loaded(key_number) => {
                assert!(there.contains(&key_number), "{key_number} is not there yet");
                asked += 1;
            }
            _ => {}
        }
    }
    assert!(asked > 10_000, "{asked} lookups of new keys");
}

#[test]
fn only_inserts_touch_new_keys_and_half_of_the_drawn_ones_do() {
    let mut spec = spec("insert-intensive", "zipf", KeySpace::Dense, 100_000);
    spec.mix.insert_keys = InsertKeys::Drawn;
    let drawn = ops(&spec, 9, Lane::new(0, 1), 100_000);
    let (inserts, reads): (Vec<Op>, Vec<Op>) = drawn.iter().partition(|op| op.kind == OpKind::Insert);
    assert!(reads.iter().all(|op| is_loaded(op.key_number)));
    let new = share(&inserts, |op| !is_loaded(op.key_number));
    assert!((new - 0.5).abs() < 0.015, "{new}");
    // The hot new keys lie beside the hot loaded ones.
    let hottest = |ops: &[Op]| {
        let mut counts = HashMap::new();
        ops.iter().for_each(|op| *counts.entry(op.key_number / 2).or_insert(0) += 1);
        counts.into_iter().max_by_key(|&(_, count)| count).map(|(record, _)| record)
    };
    assert_eq!(hottest(&inserts), hottest(&reads));
}

#[test]
fn fresh_inserts_of_all_threads_and_partitions_never_repeat_until_none_are_left() {
    for (space, partitions, threads) in
        [(KeySpace::Dense, 3, 2), (KeySpace::Random64, 3, 2), (KeySpace::Dense, 1, 1)]
    {
        let records = 3000;
        let spec = spec("insert-only", "uniform", space, records);
        let mut seen = HashSet::new();
        for (partition, thread) in (0..partitions).flat_map(|p| (0..threads).map(move |t| (p, t))) {
            let owned = spec.keys.partition(partition, partitions);
            let lane = Lane::new(thread, threads).owning(owned);
            let mut stream = OpStream::new(&spec, 3, lane).expect("valid");
            loop {
                let op = stream.next_op();
                assert!(owned.contains(spec.keys.integer(op.key_number)));
                if stream.fresh_keys_exhausted() {
                    break;
                }
                assert!(!is_loaded(op.key_number) && seen.insert(op.key_number), "{op:?} is not new");
            }
        }
        assert_eq!(seen.len() as u64, records, "all new keys of {space} are used");
    }
}

#[test]
fn owned_ranges_keep_the_shape_of_the_global_distribution() {
    for space in [KeySpace::Dense, KeySpace::Random64] {
        let spec = spec("read-only", "zipf:0.99", space, 1000);
        let global = ops(&spec, 1, Lane::new(0, 1), 400_000);
        for partition in 0..4 {
            let owned = spec.keys.partition(partition, 4);
            let inside: Vec<Op> = global
                .iter()
                .copied()
                .filter(|op| owned.contains(spec.keys.integer(op.key_number)))
                .collect();
            let drawn = ops(&spec, 2, Lane::new(0, 1).owning(owned), 50_000);
            assert!(drawn.iter().all(|op| owned.contains(spec.keys.integer(op.key_number))));
            for record in 0..1000 {
                let hits = |op: &Op| op.key_number == loaded_key(record);
                let (expected, found) = (share(&inside, hits), share(&drawn, hits));
                assert!((expected - found).abs() < 0.015, "{space} record {record}: {expected} {found}");
            }
        }
    }
}

#[test]
fn ranges_without_popular_keys_still_make_progress() {
    let steep = spec("read-only", "zipf:30", KeySpace::Dense, 1000);
    let hot = ops(&steep, 1, Lane::new(0, 1), 1)[0].key_number;
    let owned = OwnedRange { first: (hot + 1000) % 1990, last: (hot + 1000) % 1990 + 9 };
    let drawn = ops(&steep, 1, Lane::new(0, 1).owning(owned), 1000);
    let distinct: HashSet<u64> = drawn.iter().map(|op| op.key_number).collect();
    assert_eq!(distinct.len(), 5, "the five loaded keys among ten numbers");
}

#[test]
fn ranges_without_loaded_keys_are_refused() {
    for space in [KeySpace::Dense, KeySpace::Packed, KeySpace::Random64] {
        let spec = spec("read-only", "uniform", space, 1000);
        let nothing = match space {
            KeySpace::Dense => OwnedRange { first: 7, last: 7 },
            KeySpace::Packed => OwnedRange { first: 1000, last: 1999 },
            KeySpace::Random64 => {
                let taken = spec.keys.integer(0);
                OwnedRange { first: taken + 1, last: taken + 1 }
            }
        };
        let outside = OwnedRange { first: 5000, last: 6000 };
        let error = OpStream::new(&spec, 1, Lane::new(0, 1).owning(nothing)).expect_err("no key");
        assert_eq!(error, SpecError::EmptyRange { first: nothing.first, last: nothing.last });
        assert!(OpStream::new(&spec, 1, Lane::new(0, 1).owning(outside)).is_err());
    }
}

#[test]
fn latest_reads_what_was_inserted_last() {
    let spec = spec("ycsb-d", "latest:0.99", KeySpace::Dense, 100_000);
    let drawn = ops(&spec, 4, Lane::new(0, 1), 200_000);
    let mut inserted = Vec::new();
    let (mut reads, mut of_last_hundred) = (0, 0);
    for op in &drawn {
        match op.kind {
            OpKind::Insert => inserted.push(op.key_number),
            _ if inserted.len() > 1000 => {
                reads += 1;
                let recent = &inserted[inserted.len() - 100..];
                of_last_hundred += u32::from(recent.contains(&op.key_number));
                assert!(is_loaded(op.key_number) || inserted.contains(&op.key_number));
            }
            _ => {}
        }
    }
    // H(100) / H(100,000) for theta 0.99 is 0.41.
    let share = f64::from(of_last_hundred) / f64::from(reads);
    assert!((share - 0.41).abs() < 0.02, "{share}");
}

#[test]
fn ranks_of_a_range_have_the_same_shares_in_every_range_and_only_its_keys() {
    let spec = spec("read-only", "zipf:0.99", KeySpace::Packed, 100_000);
    let share_of_hottest = |index: u64, of: u64| {
        let owned = spec.keys.partition(index, of);
        let drawn = ops(&spec, 4, Lane::new(0, 1).owning(owned).with_own_ranks(), 50_000);
        assert!(drawn.iter().all(|op| owned.contains(spec.keys.integer(op.key_number))));
        let mut counts = std::collections::HashMap::<u64, u32>::new();
        drawn.iter().for_each(|op| *counts.entry(op.key_number - 2 * owned.first).or_default() += 1);
        let hottest = counts.into_iter().max_by_key(|(_, count)| *count).expect("there are some");
        (hottest.0, f64::from(hottest.1) / 50_000.0)
    };
    let shares = [0, 7, 99].map(|index| share_of_hottest(index, 100));
    for (place, share) in shares {
        // The harmonic number of 1,000 with this exponent is 7.7.
        assert!((0.12..0.14).contains(&share), "{share} at {place}");
    }
    assert!(shares[0].0 != shares[1].0 && shares[1].0 != shares[2].0, "at different places: {shares:?}");
    let random = OpStream::new(
        &self::spec("read-only", "uniform", KeySpace::Random64, 1_000),
        1,
        Lane::new(0, 1).with_own_ranks(),
    );
    assert!(random.is_err());
}

#[test]
fn new_keys_of_ranges_with_ranks_of_their_own_are_used_once() {
    let spec = spec("insert-only", "uniform", KeySpace::Dense, 3_000);
    let mut seen = std::collections::BTreeSet::new();
    for index in 0..3 {
        let owned = spec.keys.partition(index, 3);
        let lane = Lane::new(0, 1).owning(owned).with_own_ranks();
        for op in ops(&spec, 4, lane, 1_000) {
            assert!(owned.contains(op.key_number) && seen.insert(op.key_number), "{op:?}");
        }
    }
}
