//! Queries on the fabric of this process give what brute force gives, whatever is cached and however it is read.

use crate::common::{account, allocated, build, check, list_cache, offloading, pool};
use crate::model::{brute_force, conditions, order, predicate, table};
use pando_elf::{BuildOptions, CodeTable, Interval, LayoutKind, Predicate, Width};
use pando_elf_remote::{PublishOptions, Publisher, ReadOptions, Reader, RemoteError};
use pando_fabric::MemoryServerId;
use pando_pool::PoolError;
use pando_rt::block_on;
use proptest::prelude::*;

fn publish_options() -> impl Strategy<Value = PublishOptions> {
    let pieces = prop_oneof![Just(64), Just(256), Just(1024)];
    let home = prop::option::of((0..2_u16).prop_map(MemoryServerId));
    (pieces, 0..20_000_u64, home).prop_map(|(piece_bytes, stripe_bytes, home)| PublishOptions {
        piece_bytes,
        stripe_bytes,
        home,
        grace_ns: 0,
        ..PublishOptions::default()
    })
}

fn read_options() -> impl Strategy<Value = ReadOptions> {
    let few = || prop_oneof![Just(0), Just(700), Just(1 << 20)];
    let levels = prop_oneof![Just(usize::MAX), 0..4_usize];
    (few(), levels, few(), few(), few(), 0..3_u64, 0..10_u64).prop_map(|drawn| {
        let (cache_bytes, cache_levels, gap_bytes, trip, batch, policy, lists) = drawn;
        let (round_trip_bytes, batch_bytes) = (trip, batch);
        ReadOptions {
            cache_bytes,
            cache_levels,
            gap_bytes,
            round_trip_bytes,
            batch_bytes,
            offloading: offloading(policy),
            list_cache: list_cache(lists),
            ..ReadOptions::default()
        }
    })
}

fn build_options() -> impl Strategy<Value = BuildOptions> {
    let bucket = prop_oneof![Just(1), Just(2), Just(7), Just(64), Just(256)];
    (bucket, any::<bool>()).prop_map(|(bucket_rows, wide)| BuildOptions {
        bucket_rows,
        width: if wide { Width::Wide } else { Width::Auto },
        threads: 1,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn both_layouts_find_what_brute_force_finds(
        table in table(),
        keys in prop::collection::vec(any::<u32>(), 16),
        options in build_options(),
        publish in publish_options(),
        read in prop::collection::vec(read_options(), 2),
        predicates in prop::collection::vec(conditions(), 1..4),
        rows in prop::collection::vec(any::<usize>(), 1..4),
    ) {
        let order = order(&table, &keys);
        let (ep, pool) = pool(2, 4 << 20);
        for (layout, name) in [(LayoutKind::Linear, "linear"), (LayoutKind::Columnar, "columnar")] {
            if layout == LayoutKind::Linear && table.maximum(order[0]) >= 100_000 {
                continue;
            }
            let elf = build(&table, &order, layout, &options);
            let opened = Publisher::open(&ep, pool.clone(), name, publish);
            let publisher = block_on(&ep, opened).expect("opened");
            block_on(&ep, publisher.publish(&ep, &elf)).expect("room");
            for &read in &read {
                let reader = Reader::new(pool.clone(), name, read);
                for conditions in &predicates {
                    let predicate = predicate(&table, conditions);
                    check(&ep, &reader, &predicate, &brute_force(&table, &predicate));
                }
                for row in rows.iter().filter(|_| table.rows() > 0).map(|row| row % table.rows()) {
                    let codes: Vec<u32> = (0..table.width()).map(|column| table.code(column, row)).collect();
                    let predicate = Predicate::exact(&codes);
                    check(&ep, &reader, &predicate, &brute_force(&table, &predicate));
                }
            }
        }
    }
}

fn small_table(seed: u32) -> CodeTable {
    let column = |factor: u32, values: u32| (0..3_000_u32).map(|i| (i * factor + seed) % values).collect();
    CodeTable::new(vec![column(7, 5), column(31, 40), column(977, 700)]).expect("even columns")
}

#[test]
fn a_replaced_image_is_freed_and_readers_see_the_new_one() {
    for layout in [LayoutKind::Linear, LayoutKind::Columnar] {
        let (ep, pool) = pool(3, 4 << 20);
        let options = PublishOptions { grace_ns: 0, stripe_bytes: 4096, ..PublishOptions::default() };
        let opened = |name| block_on(&ep, Publisher::open(&ep, pool.clone(), name, options)).expect("opened");
        let publishers = [opened("elf"), opened("elf")];
        let others = allocated(&ep, &pool);
        let reader = Reader::new(pool.clone(), "elf", ReadOptions::default());
        let predicate = Predicate::all().and(1, [Interval::new(3, 8)]).and(2, [Interval::new(100, 400)]);
        let early = block_on(&ep, reader.count(&ep, &predicate));
        assert!(matches!(early, Err(RemoteError::NoImage { .. })), "{early:?}");
        for round in 0..6 {
            let table = small_table(round);
            let elf = build(&table, &[0, 1, 2], layout, &BuildOptions::default());
            let publisher = &publishers[round as usize % 2];
            let published = block_on(&ep, publisher.publish(&ep, &elf)).expect("room");
            check(&ep, &reader, &predicate, &brute_force(&table, &predicate));
            let answer = block_on(&ep, reader.count(&ep, &predicate)).expect("no error");
            assert_eq!(answer.version, published.version);
            assert_eq!(block_on(&ep, publisher.settle(&ep, 1_000_000_000)).expect("no error"), 0);
            account(&ep, &pool, &[publisher], &others);
        }
    }
}

#[test]
fn a_full_pool_and_wrong_names_are_ordinary_errors() {
    let (ep, pool) = pool(1, 1 << 20);
    let open = |name: &str, options| block_on(&ep, Publisher::open(&ep, pool.clone(), name, options));
    let publisher = open("elf", PublishOptions::default()).expect("opened");
    let small = build(&small_table(0), &[0, 1, 2], LayoutKind::Columnar, &BuildOptions::default());
    block_on(&ep, publisher.publish(&ep, &small)).expect("room");
    let before = allocated(&ep, &pool);
    let column = || (0..200_000_u32).map(|i| i.wrapping_mul(2_654_435_761) >> 4).collect::<Vec<_>>();
    let large = CodeTable::new(vec![column(), column()]).expect("even columns");
    let large = build(&large, &[0, 1], LayoutKind::Columnar, &BuildOptions::default());
    let full = block_on(&ep, publisher.publish(&ep, &large));
    assert!(matches!(full, Err(RemoteError::Pool(PoolError::PoolFull { .. }))), "{full:?}");
    assert_eq!(allocated(&ep, &pool), before, "nothing is lost");
    let reader = Reader::new(pool.clone(), "elf", ReadOptions::default());
    assert_eq!(block_on(&ep, reader.count(&ep, &Predicate::all())).expect("no error").value, 3_000);
    let beyond = block_on(&ep, reader.count(&ep, &Predicate::all().and(3, [Interval::point(1)])));
    assert!(matches!(beyond, Err(RemoteError::Elf(pando_elf::Error::ColumnOutOfRange { .. }))), "{beyond:?}");
    let reader = Reader::new(pool.clone(), "other", ReadOptions::default());
    let unknown = block_on(&ep, reader.count(&ep, &Predicate::all()));
    assert!(matches!(unknown, Err(RemoteError::Pool(PoolError::UnknownIndex { .. }))), "{unknown:?}");
    for piece_bytes in [0, 8, 100, 1 << 20] {
        let refused = open("third", PublishOptions { piece_bytes, ..PublishOptions::default() });
        assert!(matches!(refused, Err(RemoteError::Options(_))));
    }
}

#[test]
pub fn damage_of_any_block_is_found() {
    use pando_fabric::Endpoint;
    for layout in [LayoutKind::Linear, LayoutKind::Columnar] {
        let (ep, pool) = pool(2, 4 << 20);
        let opened = Publisher::open(&ep, pool.clone(), "elf", PublishOptions::default());
        let publisher = block_on(&ep, opened).expect("opened");
        let table = small_table(1);
        let elf = build(&table, &[0, 1, 2], layout, &BuildOptions::default());
        block_on(&ep, publisher.publish(&ep, &elf)).expect("room");
        let expected = brute_force(&table, &Predicate::all()).len() as u64;
        for (addr, size) in block_on(&ep, publisher.blocks(&ep)).expect("no error") {
            for at in (0..size).step_by(1_000).map(|at| addr.add(at / 8 * 8)) {
                let before = block_on(&ep, ep.read_word(at)).expect("a word");
                block_on(&ep, ep.write_word(at, !before)).expect("a word");
                let reader = Reader::new(pool.clone(), "elf", ReadOptions::default());
                match block_on(
                    &ep,
                    reader.ids::<u32, _>(&ep, &Predicate::all().and(2, [Interval::new(0, 900)])),
                ) {
                    Ok(answer) => assert_eq!(answer.value.len() as u64, expected, "not all bytes are read"),
                    Err(RemoteError::BadPiece { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
                block_on(&ep, ep.write_word(at, before)).expect("a word");
            }
        }
    }
}

#[test]
fn row_ids_may_have_gaps() {
    let ids = [5, 9, 100, 1_000_000];
    let table = CodeTable::new(vec![vec![3, 1, 2, 1], vec![7, 9, 8, 7]]).expect("two columns");
    let table = table.with_ids(&ids).expect("they ascend");
    let (ep, pool) = pool(2, 4 << 20);
    for (layout, name) in [(LayoutKind::Linear, "linear"), (LayoutKind::Columnar, "columnar")] {
        let elf = build(&table, &[0, 1], layout, &BuildOptions::default());
        let opened = Publisher::open(&ep, pool.clone(), name, PublishOptions::default());
        let publisher = block_on(&ep, opened).expect("opened");
        block_on(&ep, publisher.publish(&ep, &elf)).expect("room");
        let reader = Reader::new(pool.clone(), name, ReadOptions::default());
        check(&ep, &reader, &Predicate::all(), &ids);
        check(&ep, &reader, &Predicate::all().and(1, [Interval::new(7, 8)]), &[5, 100, 1_000_000]);
    }
}
