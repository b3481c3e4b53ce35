//! Tables that change: what brute force over a list of rows gives, whatever is inserted, deleted and merged, by one
//! writer or several at once; every block belongs to the table, and damage is found.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::common::{allocated, offloading, pool};
use pando_elf::{Column, ColumnType, EncodedTable, LayoutKind, Schema, Value};
use pando_elf_remote::{
    Condition, PublishOptions, ReadOptions, RemoteError, TableOptions, TableReader, TableSpec, TableWriter,
    audit_table, table_blocks,
};
use pando_fabric::{DynEndpoint, Endpoint, Fabric, MemoryServerId};
use pando_fabric_local::{LocalConfig, LocalFabric};
use pando_pool::{AttachOptions, Pool, PoolError, PoolOptions, ProcessIdentity};
use pando_rt::block_on;
use pando_sim::{Fault, Model, SimConfig, SimFabric};
use proptest::prelude::*;

/// A row: a small number, a word or NULL, and a day.
type Row = (i64, Option<u8>, i32);

pub fn schema() -> Schema {
    let columns = vec![
        Column::new("n", ColumnType::Integer),
        Column::new("word", ColumnType::String).nullable(),
        Column::new("day", ColumnType::Date),
    ];
    Schema::new(columns).expect("three names")
}

pub fn spec(layout: LayoutKind, bucket_rows: u32) -> TableSpec {
    TableSpec { schema: schema(), order: vec![1, 0, 2], layout, bucket_rows }
}

fn word(number: u8) -> String {
    format!("w{number:02}")
}

fn values((n, text, day): &Row) -> [Value; 3] {
    let text = text.map_or(Value::Null, |number| Value::String(word(number)));
    [Value::Integer(*n), text, Value::Date(*day)]
}

pub fn encoded(rows: &[Row]) -> EncodedTable {
    let column = |column: usize| rows.iter().map(|row| values(row)[column].clone()).collect();
    EncodedTable::encode(schema(), &[column(0), column(1), column(2)]).expect("rows of the schema")
}

/// A condition, in SQL and as a function.
#[derive(Clone, Debug)]
struct Test {
    n: (i64, i64),
    words: (u8, u8),
    with_null: bool,
}

impl Test {
    fn sql(&self) -> Condition {
        let or = if self.with_null { " or word is null" } else { "" };
        let (low, high) = (word(self.words.0), word(self.words.1));
        Condition::sql(format!(
            "n between {} and {} and (word >= '{low}' and word <= '{high}'{or})",
            self.n.0, self.n.1
        ))
    }

    fn is_met(&self, (n, text, _): &Row) -> bool {
        let is_in = text.map_or(self.with_null, |word| (self.words.0..=self.words.1).contains(&word));
        (self.n.0..=self.n.1).contains(n) && is_in
    }
}

fn rows(most: usize) -> impl Strategy<Value = Vec<Row>> {
    let row = (-3..40_i64, prop::option::of(0..12_u8), 8_000..8_020_i32);
    prop::collection::vec(row, 0..most)
}

fn test() -> impl Strategy<Value = Test> {
    let range = (-5..40_i64, 0..30_i64, 0..12_u8, 0..12_u8, any::<bool>());
    range.prop_map(|(low, len, first, last, with_null)| Test {
        n: (low, low + len),
        words: (first, last),
        with_null,
    })
}

#[derive(Clone, Debug)]
enum Change {
    Insert(Vec<Row>),
    Delete(Test),
    Merge(bool),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        4 => rows(30).prop_map(Change::Insert),
        3 => test().prop_map(Change::Delete),
        2 => any::<bool>().prop_map(Change::Merge),
    ]
}

/// Checks all kinds of results.
fn check(ep: &DynEndpoint, reader: &TableReader, test: &Test, model: &[Option<Row>]) {
    let condition = test.sql();
    let found = |row: &Option<Row>| row.as_ref().is_some_and(|row| test.is_met(row));
    let expected: Vec<u64> = (0..).zip(model).filter(|(_, row)| found(row)).map(|(id, _)| id).collect();
    block_on(ep, async {
        assert_eq!(reader.count(ep, &condition).await.expect("no error").value, expected.len() as u64);
        let mut ids = reader.ids(ep, &condition).await.expect("no error").value;
        ids.sort_unstable();
        assert_eq!(ids, expected, "{condition:?}");
        let bitmap = reader.bitmap(ep, &condition).await.expect("no error").value;
        assert!(bitmap.count() == ids.len() as u64 && ids.iter().all(|&id| bitmap.contains(id)));
        let explained = reader.explain(ep, &condition).await.expect("no error").value;
        assert_eq!(explained.parts.iter().map(|part| part.found).sum::<u64>(), expected.len() as u64);
        let parts = reader.rows(ep, &condition, &[2, 0, 1]).await.expect("no error").value;
        let mut all = Vec::new();
        for part in &parts {
            for (row, &id) in part.ids.iter().enumerate() {
                let expected = values(&model[id as usize].expect("a row that is there"));
                for (at, column) in [2, 0, 1].into_iter().enumerate() {
                    assert_eq!(part.value(at, row).as_ref(), Ok(&expected[column]), "row {id}");
                }
                all.push(id);
            }
        }
        assert_eq!(all, expected, "rows ascend");
    });
}

/// Checks that every allocated block is the table's, or one of `others`.
fn account(ep: &DynEndpoint, pool: &Pool, name: &str, others: &BTreeSet<u64>) {
    let record = block_on(ep, pool.open_index(ep, name)).expect("it is there");
    let blocks = block_on(ep, table_blocks(ep, pool, &record)).expect("no error");
    let mut known: BTreeSet<u64> = blocks.iter().map(|(addr, _)| addr.raw()).collect();
    assert_eq!(known.len(), blocks.len(), "no block is used twice");
    known.extend(others);
    assert_eq!(known, allocated(ep, pool));
    let audit = block_on(ep, audit_table(ep, pool, &record)).expect("no error");
    assert!(audit.violations.is_empty(), "{:?}", audit.violations);
}

fn publish() -> PublishOptions {
    PublishOptions { grace_ns: 0, stripe_bytes: 4096, ..PublishOptions::default() }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn a_table_that_changes_is_a_list_of_rows(
        first in rows(60),
        changes in prop::collection::vec((change(), any::<bool>()), 1..10),
        tests in prop::collection::vec(test(), 1..4),
        join_rows in prop_oneof![Just(0_u64), Just(40), Just(1 << 16)],
        cache_bytes in prop_oneof![Just(0_u64), Just(600), Just(1 << 20)],
        bucket_rows in 1..9_u32,
        is_linear in any::<bool>(),
        tree_rows in prop_oneof![Just(1 << 16), 1..30_u64],
        policy in 0..3_u64,
    ) {
        let (ep, pool) = pool(2, 4 << 20);
        let layout = if is_linear { LayoutKind::Linear } else { LayoutKind::Columnar };
        let options = TableOptions { join_rows, fan_in: 2, trees: 3, tree_rows, ..TableOptions::default() };
        let writer = || TableWriter::new(pool.clone(), "t", publish(), options).expect("valid options");
        let writers = [writer(), writer()];
        let reader = TableReader::new(pool.clone(), "t", ReadOptions {
            cache_bytes,
            offloading: offloading(policy),
            ..ReadOptions::default()
        });
        block_on(&ep, writers[0].create(&ep, &spec(layout, bucket_rows), None, false)).expect("room");
        let mut others = allocated(&ep, &pool);
        let record = block_on(&ep, pool.open_index(&ep, "t")).expect("it is there");
        for (addr, _) in block_on(&ep, table_blocks(&ep, &pool, &record)).expect("no error") {
            others.remove(&addr.raw());
        }
        let mut model: Vec<Option<Row>> = Vec::new();
        let all = std::iter::once((Change::Insert(first), false)).chain(changes);
        for (change, second) in all {
            let writer = &writers[usize::from(second)];
            match change {
                Change::Insert(rows) => {
                    let ids = block_on(&ep, writer.insert(&ep, &encoded(&rows))).expect("room");
                    prop_assert_eq!(ids.end - ids.start, rows.len() as u64);
                    prop_assert!(rows.is_empty() || ids.start == model.len() as u64);
                    model.extend(rows.into_iter().map(Some));
                }
                Change::Delete(test) => {
                    let deleted = block_on(&ep, writer.delete(&ep, &reader, &test.sql())).expect("room");
                    let gone: Vec<_> =
                        model.iter_mut().filter(|row| row.is_some_and(|row| test.is_met(&row))).collect();
                    prop_assert_eq!(deleted, gone.len() as u64);
                    gone.into_iter().for_each(|row| *row = None);
                }
                Change::Merge(all) => {
                    let before = block_on(&ep, reader.info(&ep)).expect("no error").value;
                    let merged = block_on(&ep, writer.merge(&ep, all)).expect("room");
                    let after = block_on(&ep, reader.info(&ep)).expect("no error").value;
                    prop_assert_eq!(before.rows, after.rows);
                    prop_assert!(merged.is_some() || before == after);
                    prop_assert!(!all || after.parts.len() <= 1);
                }
            }
            for test in &tests {
                check(&ep, &reader, test, &model);
            }
            for writer in &writers {
                prop_assert_eq!(block_on(&ep, writer.settle(&ep, 1_000_000_000)).expect("no error"), 0);
            }
            account(&ep, &pool, "t", &others);
        }
        prop_assert!(block_on(&ep, writers[1].drop_table(&ep)).expect("no error"));
        prop_assert_eq!(block_on(&ep, writers[1].settle(&ep, 1_000_000_000)).expect("no error"), 0);
        let left = allocated(&ep, &pool);
        prop_assert!(left.is_subset(&others), "a dropped table leaves nothing");
    }
}

fn fabric(servers: usize, bytes: u64) -> (LocalFabric, DynEndpoint, Pool) {
    let config = LocalConfig { server_sizes: vec![bytes; servers], huge_pages: false };
    let fabric = LocalFabric::new(config).expect("memory");
    let ep = DynEndpoint::new(fabric.endpoint(1).expect("an endpoint"));
    let pool = block_on(&ep, Pool::create(&ep, PoolOptions::embedded())).expect("a pool");
    (fabric, ep, pool)
}

#[test]
fn writers_at_the_same_time_lose_nothing() {
    const THREADS: i64 = 4;
    const ROUNDS: i64 = 12;
    let (fabric, ep, pool) = fabric(2, 16 << 20);
    let publish = PublishOptions { attempts_max: 1_000, ..publish() };
    let options = TableOptions { join_rows: 50, fan_in: 2, ..TableOptions::default() };
    let writer = || TableWriter::new(pool.clone(), "t", publish, options).expect("valid options");
    let made = writer();
    block_on(&ep, made.create(&ep, &spec(LayoutKind::Columnar, 8), None, false)).expect("room");
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (fabric, pool) = (&fabric, &pool);
            scope.spawn(move || {
                let ep = &DynEndpoint::new(fabric.endpoint(10 + thread as u64).expect("an endpoint"));
                let writer = TableWriter::new(pool.clone(), "t", publish, options).expect("valid options");
                let options = ReadOptions { restarts_max: 1_000, ..ReadOptions::default() };
                let reader = TableReader::new(pool.clone(), "t", options);
                for round in 0..ROUNDS {
                    let n = thread * ROUNDS + round;
                    let rows: Vec<Row> = (0..5).map(|day| (n, Some(thread as u8), day)).collect();
                    block_on(ep, writer.insert(ep, &encoded(&rows))).expect("room");
                    let condition = Condition::sql(format!("n = {n} and day < date '1970-01-03'"));
                    assert_eq!(block_on(ep, writer.delete(ep, &reader, &condition)).expect("room"), 2);
                    if round % 4 == thread {
                        match block_on(ep, writer.merge(ep, round > 6)) {
                            Ok(_) | Err(RemoteError::MergedByOthers) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                    let condition = Condition::sql(format!("n = {n}"));
                    assert_eq!(block_on(ep, reader.count(ep, &condition)).expect("no error").value, 3);
                }
                assert_eq!(block_on(ep, writer.settle(ep, 5_000_000_000)).expect("no error"), 0);
            });
        }
    });
    let reader = TableReader::new(pool.clone(), "t", ReadOptions::default());
    let all = block_on(&ep, reader.info(&ep)).expect("no error").value;
    assert_eq!((all.rows, all.id_bound), ((THREADS * ROUNDS * 3) as u64, (THREADS * ROUNDS * 5) as u64));
    let ids = block_on(&ep, reader.ids(&ep, &Condition::all())).expect("no error").value;
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len(), "no id is given twice");
    assert!(block_on(&ep, made.drop_table(&ep)).expect("no error"));
    assert_eq!(block_on(&ep, made.settle(&ep, 5_000_000_000)).expect("no error"), 0);
    // The directory of the catalog is all that is left.
    assert!(allocated(&ep, &pool).len() <= 1, "{:x?}", allocated(&ep, &pool));
}

#[test]
fn wrong_requests_change_nothing() {
    let (ep, pool) = pool(1, 2 << 20);
    let writer =
        TableWriter::new(pool.clone(), "t", publish(), TableOptions::default()).expect("valid options");
    block_on(&ep, writer.create(&ep, &spec(LayoutKind::Linear, 1), None, false)).expect("room");
    let rows: Vec<Row> = (0..500).map(|i| (i % 17, Some((i % 5) as u8), i as i32)).collect();
    block_on(&ep, writer.insert(&ep, &encoded(&rows))).expect("room");
    block_on(&ep, writer.settle(&ep, 1_000_000_000)).expect("no error");
    let before = allocated(&ep, &pool);
    let again = block_on(&ep, writer.create(&ep, &spec(LayoutKind::Linear, 1), None, false));
    assert!(matches!(again, Err(RemoteError::Pool(PoolError::IndexExists { .. }))), "{again:?}");
    let other = Schema::new(vec![Column::new("n", ColumnType::Integer)]).expect("one name");
    let other = EncodedTable::encode(other, &[vec![Value::Integer(1)]]).expect("a number");
    let refused = block_on(&ep, writer.insert(&ep, &other));
    assert!(matches!(refused, Err(RemoteError::OtherColumns { .. })), "{refused:?}");
    let many: Vec<Row> = (0..400_000).map(|i| (i, Some((i % 5) as u8), i as i32)).collect();
    let full = block_on(&ep, writer.insert(&ep, &encoded(&many)));
    assert!(matches!(full, Err(RemoteError::Pool(PoolError::PoolFull { .. }))), "{full:?}");
    let reader = TableReader::new(pool.clone(), "t", ReadOptions::default());
    for wrong in ["m = 1", "n = 'x'", "n =", "n = 1 order by n", ""] {
        let failed = block_on(&ep, writer.delete(&ep, &reader, &Condition::sql(wrong)));
        assert!(
            matches!(failed, Err(RemoteError::Elf(pando_elf::Error::BadCondition { .. }))),
            "{wrong}: {failed:?}"
        );
    }
    let beyond = block_on(&ep, reader.rows(&ep, &Condition::all(), &[3]));
    assert!(matches!(beyond, Err(RemoteError::Elf(pando_elf::Error::ColumnOutOfRange { .. }))));
    assert_eq!(allocated(&ep, &pool), before, "nothing is lost");
    assert_eq!(block_on(&ep, reader.count(&ep, &Condition::all())).expect("no error").value, 500);
}

#[test]
fn damage_of_any_block_of_a_table_is_found() {
    for layout in [LayoutKind::Linear, LayoutKind::Columnar] {
        let (ep, pool) = pool(2, 4 << 20);
        let writer = TableWriter::new(pool.clone(), "t", publish(), TableOptions::default()).expect("valid");
        block_on(&ep, writer.create(&ep, &spec(layout, 16), None, false)).expect("room");
        let rows: Vec<Row> =
            (0..3_000).map(|i| (i * 7 % 331, Some((i % 11) as u8), (i % 97) as i32)).collect();
        block_on(&ep, writer.insert(&ep, &encoded(&rows))).expect("room");
        let reader = || TableReader::new(pool.clone(), "t", ReadOptions::default());
        block_on(&ep, writer.delete(&ep, &reader(), &Condition::sql("n < 20"))).expect("room");
        let condition = Condition::sql("word <> 'w03' and day > date '1970-01-20'");
        let expected = block_on(&ep, reader().ids(&ep, &condition)).expect("no error").value.len();
        let record = block_on(&ep, pool.open_index(&ep, "t")).expect("it is there");
        for (addr, size) in block_on(&ep, table_blocks(&ep, &pool, &record)).expect("no error") {
            for at in (0..size / 8 * 8).step_by(1_024).map(|at| addr.add(at)) {
                let before = block_on(&ep, ep.read_word(at)).expect("a word");
                block_on(&ep, ep.write_word(at, !before)).expect("a word");
                let audit = block_on(&ep, audit_table(&ep, &pool, &record)).expect("no unreachable server");
                let is_found = !audit.violations.is_empty();
                if let Ok(rows) = block_on(&ep, reader().rows(&ep, &condition, &[0, 1, 2])) {
                    let found: usize = rows.value.iter().map(|part| part.ids.len()).sum();
                    assert_eq!(found, expected, "a wrong answer: {at}");
                }
                block_on(&ep, ep.write_word(at, before)).expect("a word");
                let is_sound = block_on(&ep, audit_table(&ep, &pool, &record)).expect("no error");
                assert!(is_sound.violations.is_empty(), "{:?}", is_sound.violations);
                // Bytes behind the end of a piece or a value are not part of it.
                assert!(is_found || before == 0, "damage at {at} is not found");
            }
        }
    }
}

#[test]
fn parts_leave_a_memory_server_that_is_drained() {
    let (_fabric, ep, pool) = fabric(3, 4 << 20);
    let options = TableOptions { join_rows: 0, ..TableOptions::default() };
    let writer = TableWriter::new(pool.clone(), "t", publish(), options).expect("valid options");
    block_on(&ep, writer.create(&ep, &spec(LayoutKind::Columnar, 16), None, false)).expect("room");
    for first in 0..3 {
        let rows: Vec<Row> =
            (0..4_000).map(|i| (i * 7 % 331 + first, Some((i % 11) as u8), i as i32)).collect();
        block_on(&ep, writer.insert(&ep, &encoded(&rows))).expect("room");
    }
    let reader = Arc::new(TableReader::new(pool.clone(), "t", ReadOptions::default()));
    block_on(&ep, writer.delete(&ep, &reader, &Condition::sql("n < 20"))).expect("room");
    let before = block_on(&ep, reader.ids(&ep, &Condition::sql("n < 200"))).expect("no error").value;
    let leaving = MemoryServerId(1);
    block_on(&ep, pool.drain_server(&ep, leaving)).expect("it is active");
    assert!(block_on(&ep, writer.leave(&ep, leaving)).expect("room"));
    assert!(!block_on(&ep, writer.leave(&ep, leaving)).expect("no error"));
    block_on(&ep, writer.settle(&ep, 1_000_000_000)).expect("no error");
    block_on(&ep, pool.finish_drain(&ep, leaving)).expect("it is empty");
    let after = block_on(&ep, reader.ids(&ep, &Condition::sql("n < 200"))).expect("no error").value;
    assert_eq!(before, after);
}

/// A reader of another process has a version of the table, but not its bytes, that was on a memory server which has ended since.
#[test]
fn a_reader_finds_the_version_that_left_a_drained_memory_server() {
    let config =
        SimConfig { regions: vec![8 << 20; 2], compute_servers: 1, seed: 1, model: Model::default() };
    let fabric = SimFabric::new(&config).expect("a sound model");
    let ep = DynEndpoint::new(fabric.direct(1));
    let pool = block_on(&ep, Pool::create(&ep, PoolOptions::embedded())).expect("a pool");
    let process = ProcessIdentity { pid: 2, ..ProcessIdentity::default() };
    let options = AttachOptions::new(process, Arc::new(|_| true));
    let other = block_on(&ep, Pool::attach(&ep, options)).expect("attached");
    let leaving = MemoryServerId(1);
    let publish = PublishOptions { home: Some(leaving), ..publish() };
    let writer =
        TableWriter::new(pool.clone(), "t", publish, TableOptions::default()).expect("valid options");
    block_on(&ep, writer.create(&ep, &spec(LayoutKind::Columnar, 16), None, false)).expect("room");
    let rows: Vec<Row> = (0..4_000).map(|i| (i * 7 % 331, Some((i % 11) as u8), i as i32)).collect();
    block_on(&ep, writer.insert(&ep, &encoded(&rows))).expect("room");
    let uncached = ReadOptions { cache_bytes: 0, cache_levels: 0, ..ReadOptions::default() };
    let reader = TableReader::new(other, "t", uncached);
    let ids = || block_on(&ep, reader.ids(&ep, &Condition::sql("n < 200"))).expect("no error").value;
    let before = ids();
    block_on(&ep, pool.drain_server(&ep, leaving)).expect("it is active");
    assert!(block_on(&ep, writer.leave(&ep, leaving)).expect("room"));
    block_on(&ep, writer.settle(&ep, 1_000_000_000)).expect("no error");
    block_on(&ep, pool.finish_drain(&ep, leaving)).expect("it is empty");
    fabric.fail(Fault::Kill { server: leaving });
    assert_eq!(ids(), before);
}
