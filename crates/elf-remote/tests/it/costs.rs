//! Verbs of queries, at 200,000 rows.

use crate::common::{build, pool};
use crate::model::brute_force;
use pando_elf::{BuildOptions, CodeTable, Interval, LayoutKind, Predicate};
use pando_elf_remote::{ListCacheOptions, ListPolicy, PublishOptions, Publisher, ReadOptions, Reader};
use pando_fabric::DynEndpoint;
use pando_pool::Pool;
use pando_rt::block_on;

const ROWS: u32 = 200_000;

fn hash(i: u32, salt: u32) -> u32 {
    let x = u64::from(i ^ salt << 20).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (x ^ x >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) as u32 >> 3
}

fn published(table: &CodeTable, order: &[usize], layout: LayoutKind) -> (DynEndpoint, Pool) {
    let (ep, pool) = pool(2, 64 << 20);
    let elf = build(table, order, layout, &BuildOptions::default());
    let opened = Publisher::open(&ep, pool.clone(), "elf", PublishOptions::default());
    let publisher = block_on(&ep, opened).expect("opened");
    block_on(&ep, publisher.publish(&ep, &elf)).expect("room");
    (ep, pool)
}

/// The paper's uniform table (§5), smaller: 10 columns, so many values that two cached levels leave 80 rows.
fn uniform() -> CodeTable {
    let column = |salt: u32| (0..ROWS).map(|i| hash(i, salt) % 50).collect();
    CodeTable::new((0..10).map(column).collect()).expect("even columns")
}

#[test]
fn an_exact_match_below_cached_levels_is_one_read() {
    let table = uniform();
    let order: Vec<usize> = (0..10).collect();
    let (ep, pool) = published(&table, &order, LayoutKind::Linear);
    let options = ReadOptions { cache_levels: 2, check_age_ns: u64::MAX, ..ReadOptions::default() };
    let reader = Reader::new(pool, "elf", options);
    let cached = block_on(&ep, reader.cached(&ep)).expect("no error");
    eprintln!("{:?} by {:?}", cached.value, cached.cost);
    assert_eq!(cached.value.levels, 2);
    let (mut bytes, mut most, mut divided) = (0, 0, 0);
    for row in (0..ROWS as usize).step_by(199) {
        let codes: Vec<u32> = (0..10).map(|column| table.code(column, row)).collect();
        let answer = block_on(&ep, reader.ids::<u32, _>(&ep, &Predicate::exact(&codes))).expect("no error");
        assert!(answer.value.contains(&(row as u32)));
        let cost = answer.cost;
        // A span may lie on two memory servers.
        assert!(cost.reads <= 2 && (cost.round_trips, cost.checks) == (1, 0), "row {row}: {cost:?}");
        divided += u64::from(cost.reads == 2);
        (bytes, most) = (bytes + cost.bytes_read, most.max(cost.bytes_read));
    }
    let matches = u64::from(ROWS.div_ceil(199));
    eprintln!(
        "{} bytes per exact match, {most} at most; {divided} of {matches} took two READs",
        bytes / matches
    );
    assert!(most <= 8 << 10 && divided <= matches / 50);
}

/// Like TPC-H's lineitem for Q6: quantity, discount and shipdate, with four columns that are not asked for.
pub fn lineitem() -> CodeTable {
    let column = |salt: u32, values: u32| (0..ROWS).map(|i| 1 + hash(i, salt) % values).collect();
    let columns = [(1, 11), (2, 50), (3, 2_526), (4, 3), (5, 2), (6, 9), (7, 200_000)];
    CodeTable::new(columns.map(|(salt, values)| column(salt, values)).to_vec()).expect("even columns")
}

pub fn q6() -> Predicate {
    Predicate::all()
        .and(0, [Interval::new(6, 8)])
        .and(1, [Interval::new(1, 23)])
        .and(2, [Interval::new(730, 1_094)])
}

#[test]
fn a_query_like_q6_takes_three_round_trips() {
    let table = lineitem();
    let q6 = q6();
    let expected = brute_force(&table, &q6).len() as u64;
    for order in [[0, 1, 2, 3, 4, 5, 6], [4, 3, 0, 1, 2, 5, 6], [2, 0, 1, 3, 4, 5, 6]] {
        let (ep, pool) = published(&table, &order, LayoutKind::Columnar);
        let reader = Reader::new(pool, "elf", ReadOptions::default());
        let cached = block_on(&ep, reader.cached(&ep)).expect("no error");
        eprintln!("order {order:?}: {:?} by {:?}", cached.value, cached.cost);
        let count = block_on(&ep, reader.count(&ep, &q6)).expect("no error");
        let ids = block_on(&ep, reader.ids::<u32, _>(&ep, &q6)).expect("no error");
        assert_eq!((count.value, ids.value.len() as u64), (expected, expected));
        eprintln!("{expected} rows; count {:?}, ids {:?}", count.cost, ids.cost);
        assert!(ids.cost.round_trips <= 3 && count.cost.round_trips <= 2 && ids.cost.checks == 1);
        assert!(ids.cost.bytes_read < 200_000 * 8, "less than the columns");
    }
}

#[test]
fn a_list_that_is_kept_is_not_read_again() {
    use ListPolicy::{Lfu, Lla, Lru, Naive, TwoQueue};
    let (table, q6) = (lineitem(), q6());
    let order = [4, 3, 0, 1, 2, 5, 6];
    for policy in [Naive, Lru, Lfu, TwoQueue, Lla] {
        let kept = Some(ListCacheOptions { policy, bytes: 4 << 20 });
        let options = ReadOptions { cache_levels: 0, list_cache: kept, ..ReadOptions::default() };
        let (ep, pool) = published(&table, &order, LayoutKind::Columnar);
        let reader = Reader::new(pool, "elf", options);
        // 2Q keeps what is read a second time.
        let [first, _, third] =
            [0, 1, 2].map(|_| block_on(&ep, reader.count(&ep, &q6)).expect("no error").cost.round_trips);
        assert!(third + 4 <= first, "{policy:?}: {first} round trips, then {third}");
        assert!(block_on(&ep, reader.cached(&ep)).expect("no error").value.bytes <= 4 << 20);

        let table = uniform();
        let exact: Vec<u32> = (0..10).map(|column| table.code(column, 17)).collect();
        let (ep, pool) = published(&table, &(0..10).collect::<Vec<_>>(), LayoutKind::Linear);
        let reader = Reader::new(pool, "elf", ReadOptions { cache_levels: 1, ..options });
        block_on(&ep, reader.cached(&ep)).expect("no error");
        let trips = [0, 1, 2].map(|_| {
            let answer = block_on(&ep, reader.ids::<u32, _>(&ep, &Predicate::exact(&exact)));
            answer.expect("no error").cost.round_trips
        });
        assert_eq!((trips[0], trips[2]), (2, 1), "{policy:?}: {trips:?}");
    }
}
