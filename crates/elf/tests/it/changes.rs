//! Tables that change: random inserts, deletes, flushes and merges against a map, and with several threads.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use pando_elf::{
    BuildOptions, CodeTable, Column, ColumnType, Dictionary, Elf, EncodedTable, Error, Gate, Interval,
    Kernel, LayoutKind, LiveElf, LiveOptions, LiveSelection, Predicate, Result, Schema, Snapshot, Value,
    Width,
};
use proptest::prelude::*;

const COLUMNS: usize = 4;
const ORDER: [usize; COLUMNS] = [2, 0, 3, 1];

/// What a column holds: NULL, or the `k`-th value of its type.
pub type Cell = Option<i32>;
pub type Row = [Cell; COLUMNS];
/// The rows by their ids.
pub type Model = BTreeMap<u64, Row>;
/// Per column the least and the largest `k`, if there is a condition; NULL meets none.
pub type Ranges = [Option<(i32, i32)>; COLUMNS];

#[derive(Clone, Debug)]
pub enum Change {
    Insert(Vec<Row>),
    /// By places among the ids that were given so far.
    Delete(Vec<prop::sample::Index>),
    DeleteWhere(Ranges),
    Flush,
    Merge,
    MergeAll,
    /// Keeps a snapshot, which is compared again at the end.
    Keep,
}

pub fn row() -> impl Strategy<Value = Row> {
    let cell = |maximum| prop_oneof![1 => Just(None), 9 => (0..maximum).prop_map(Some)];
    [cell(4), cell(400), cell(3), cell(40)]
}

pub fn ranges() -> impl Strategy<Value = Ranges> {
    let range = |maximum| {
        let bounds = (-1..maximum, -1..maximum).prop_map(|(a, b): (i32, i32)| Some((a.min(b), a.max(b))));
        prop_oneof![1 => Just(None), 1 => bounds]
    };
    [range(5), range(401), range(4), range(41)]
}

pub fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        8 => prop::collection::vec(row(), 0..20).prop_map(Change::Insert),
        4 => prop::collection::vec(any::<prop::sample::Index>(), 0..12).prop_map(Change::Delete),
        1 => ranges().prop_map(Change::DeleteWhere),
        2 => Just(Change::Flush),
        3 => Just(Change::Merge),
        1 => Just(Change::MergeAll),
        1 => Just(Change::Keep),
    ]
}

pub fn options() -> impl Strategy<Value = LiveOptions> {
    (1..60_u64, 2..4_u64, 1..30_u32, any::<bool>()).prop_map(|(buffer_rows, fan_in, bucket_rows, wide)| {
        let width = if wide { Width::Wide } else { Width::Auto };
        LiveOptions { buffer_rows, fan_in, build: BuildOptions { bucket_rows, width, threads: 1 } }
    })
}

/// Gates that walk always, scan always, or decide.
pub fn gate() -> impl Strategy<Value = Gate> {
    let usual = Gate::default();
    let scan_byte_ns = prop_oneof![Just(usual.scan_byte_ns), Just(1e9), Just(0.0), Just(2.0)];
    scan_byte_ns.prop_map(move |scan_byte_ns| Gate { scan_byte_ns, patience: 0.01, ..usual })
}

fn matches(row: &Row, ranges: &Ranges) -> bool {
    row.iter().zip(ranges).all(|(cell, range)| match (cell, range) {
        (_, None) => true,
        (Some(k), Some((low, high))) => (low..=high).contains(&k),
        (None, Some(_)) => false,
    })
}

/// How a test stores cells: as codes, or as values of four types.
pub trait Contents {
    fn start(rows: &[Row], layout: LayoutKind, options: LiveOptions, gate: Gate) -> LiveElf;
    fn insert(live: &LiveElf, rows: &[Row]) -> Result<std::ops::Range<u64>>;
    fn select<'s>(snapshot: &'s Snapshot, ranges: &Ranges) -> LiveSelection<'s>;
    fn delete_where(live: &LiveElf, ranges: &Ranges) -> u64;
    /// The table that has exactly the rows of the model.
    fn table(model: &Model) -> CodeTable;
    fn check_row(snapshot: &Snapshot, id: u64, row: Option<&Row>);
}

fn columns<T>(rows: &[Row], of: impl Fn(usize, Cell) -> T) -> Vec<Vec<T>> {
    (0..COLUMNS).map(|column| rows.iter().map(|row| of(column, row[column])).collect()).collect()
}

fn base(table: CodeTable, layout: LayoutKind, options: LiveOptions, gate: Gate) -> Elf {
    let table = Arc::new(table);
    let elf = Elf::build(&table, &ORDER, layout, &options.build).expect("a small table");
    elf.with_table(table).expect("its table").with_gate(gate)
}

pub struct Codes;

impl Codes {
    fn code(cell: Cell) -> u32 {
        cell.map_or(0, |k| k as u32 + 1)
    }

    fn predicate(ranges: &Ranges) -> Predicate {
        let mut predicate = Predicate::all();
        for (column, range) in ranges.iter().enumerate() {
            if let Some((low, high)) = range {
                let low = (low + 1).max(1) as u32;
                predicate = predicate.and(column, [Interval::new(low, (high + 1) as u32)]);
            }
        }
        predicate
    }

    fn encode(rows: &[Row]) -> CodeTable {
        CodeTable::new(columns(rows, |_, cell| Self::code(cell))).expect("four columns")
    }
}

impl Contents for Codes {
    fn start(rows: &[Row], layout: LayoutKind, options: LiveOptions, gate: Gate) -> LiveElf {
        LiveElf::new(base(Self::encode(rows), layout, options, gate), options).expect("a table")
    }

    fn insert(live: &LiveElf, rows: &[Row]) -> Result<std::ops::Range<u64>> {
        live.insert(Self::encode(rows))
    }

    fn select<'s>(snapshot: &'s Snapshot, ranges: &Ranges) -> LiveSelection<'s> {
        snapshot.select(&Self::predicate(ranges)).expect("the columns exist")
    }

    fn delete_where(live: &LiveElf, ranges: &Ranges) -> u64 {
        live.delete_where(&Self::predicate(ranges)).expect("the columns exist")
    }

    fn table(model: &Model) -> CodeTable {
        Self::encode(&model.values().copied().collect::<Vec<_>>())
    }

    fn check_row(snapshot: &Snapshot, id: u64, row: Option<&Row>) {
        assert_eq!(snapshot.codes(id), row.map(|row| row.map(Self::code).to_vec()));
    }
}

pub struct Values;

impl Values {
    fn schema() -> Schema {
        let types =
            [ColumnType::Integer, ColumnType::Decimal { scale: 2 }, ColumnType::Date, ColumnType::String];
        let column = |(name, kind): (&str, ColumnType)| Column::new(name, kind).nullable();
        Schema::new(["i", "d", "t", "s"].into_iter().zip(types).map(column).collect()).expect("four names")
    }

    fn value(column: usize, cell: Cell) -> Value {
        let Some(k) = cell else { return Value::Null };
        match column {
            0 => Value::Integer(i64::from(k) * 1_000_000 - 5),
            1 => Value::Decimal { unscaled: i128::from(k) * 3 - 30, scale: 2 },
            2 => Value::Date(k - 1),
            _ => Value::String(format!("{:03}", k + 1)),
        }
    }

    fn encode(rows: &[Row]) -> EncodedTable {
        EncodedTable::encode(Self::schema(), &columns(rows, Self::value)).expect("values of the schema")
    }

    /// Divides the interval of the last condition, so that there are two predicates where one would do.
    fn predicates(dictionaries: &[Dictionary], ranges: &Ranges) -> Result<Vec<Predicate>> {
        let mut predicate = Predicate::all();
        let mut last = None;
        for (column, range) in ranges.iter().enumerate() {
            if let &Some((low, high)) = range {
                let [low, high] = [low, high].map(|k| Self::value(column, Some(k)));
                let interval = dictionaries[column].between(Bound::Included(&low), Bound::Included(&high))?;
                predicate = predicate.and(column, interval);
                last = interval.map(|interval| (column, interval));
            }
        }
        let Some((column, Interval { low, high })) = last else { return Ok(vec![predicate]) };
        let middle = low + (high - low) / 2;
        let halves = [Interval::new(low, middle), Interval::new(middle + 1, high)];
        Ok(halves.map(|half| predicate.clone().and(column, [half])).to_vec())
    }
}

impl Contents for Values {
    fn start(rows: &[Row], layout: LayoutKind, options: LiveOptions, gate: Gate) -> LiveElf {
        let EncodedTable { schema, dictionaries, codes } = Self::encode(rows);
        let base = base(codes, layout, options, gate);
        LiveElf::with_values(base, schema, dictionaries, options).expect("a table")
    }

    fn insert(live: &LiveElf, rows: &[Row]) -> Result<std::ops::Range<u64>> {
        live.insert_values(&columns(rows, Self::value))
    }

    fn select<'s>(snapshot: &'s Snapshot, ranges: &Ranges) -> LiveSelection<'s> {
        snapshot
            .select_values(|dictionaries| Self::predicates(dictionaries, ranges))
            .expect("the columns exist")
    }

    fn delete_where(live: &LiveElf, ranges: &Ranges) -> u64 {
        live.delete_values_where(|dictionaries| Self::predicates(dictionaries, ranges))
            .expect("the columns exist")
    }

    fn table(model: &Model) -> CodeTable {
        Self::encode(&model.values().copied().collect::<Vec<_>>()).codes
    }

    fn check_row(snapshot: &Snapshot, id: u64, row: Option<&Row>) {
        let values = row.map(|row| (0..COLUMNS).map(|column| Self::value(column, row[column])).collect());
        assert_eq!(snapshot.values(id), values);
    }
}

fn check<C: Contents>(snapshot: &Snapshot, model: &Model, ranges: &[Ranges]) {
    assert_eq!(snapshot.rows(), model.len() as u64);
    for ranges in ranges {
        let expected: Vec<u64> =
            model.iter().filter(|(_, row)| matches(row, ranges)).map(|(&id, _)| id).collect();
        let selection = C::select(snapshot, ranges);
        assert_eq!(selection.count(), expected.len() as u64);
        assert_eq!(selection.sorted_ids::<u64>(), Ok(expected.clone()));
        let mut ids = vec![7_u32];
        selection.ids_into(&mut ids).expect("few rows");
        ids[1..].sort_unstable();
        assert!(ids[1..].iter().map(|&id| u64::from(id)).eq(expected.iter().copied()));
        let bitmap = selection.bitmap().expect("few rows");
        let mut members = Vec::<u64>::new();
        bitmap.append_to(Kernel::portable(), &mut members);
        assert_eq!((bitmap.count(), bitmap.len()), (expected.len() as u64, snapshot.id_bound()));
        assert_eq!(members, expected);
    }
}

/// After a merge of everything, the image is the one that a build of the remaining rows makes.
fn check_merged<C: Contents>(snapshot: &Snapshot, model: &Model, layout: LayoutKind, options: &LiveOptions) {
    let ids: Vec<u64> = model.keys().copied().collect();
    let table = C::table(model).with_ids(&ids).expect("ascending ids");
    let built = Elf::build(&table, &ORDER, layout, &options.build).expect("a small table");
    let runs: Vec<&Elf> = snapshot.runs().collect();
    match runs.as_slice() {
        [] => assert!(model.is_empty()),
        [run] => {
            assert!(run.bytes() == built.bytes(), "the images differ");
            assert_eq!(run.table().map(|table| &**table), Some(&table));
            let opened = Elf::open(run.bytes().to_vec()).expect("a whole image");
            assert_eq!(opened.id_bound(), table.id_bound());
        }
        _ => panic!("{} runs after a merge of all", runs.len()),
    }
}

pub fn run<C: Contents>(
    first: &[Row],
    changes: Vec<Change>,
    layout: LayoutKind,
    options: LiveOptions,
    gate: Gate,
    ranges: &[Ranges],
) {
    let live = C::start(first, layout, options, gate);
    let mut model: Model = (0..).zip(first.iter().copied()).collect();
    let mut next = first.len() as u64;
    let mut kept = Vec::new();
    for change in changes {
        match change {
            Change::Insert(rows) => {
                let ids = C::insert(&live, &rows).expect("rows that fit");
                assert_eq!(ids, next..next + rows.len() as u64);
                next = ids.end;
                model.extend(ids.zip(rows));
            }
            Change::Delete(places) if next > 0 => {
                let ids: Vec<u64> = places.iter().map(|place| place.index(next as usize) as u64).collect();
                let before = model.len();
                model.retain(|id, _| !ids.contains(id));
                assert_eq!(live.delete(&ids), Ok((before - model.len()) as u64));
            }
            Change::Delete(_) => {}
            Change::DeleteWhere(ranges) => {
                let before = model.len();
                model.retain(|_, row| !matches(row, &ranges));
                assert_eq!(C::delete_where(&live, &ranges), (before - model.len()) as u64);
            }
            Change::Flush => {
                live.flush().expect("little memory");
                assert_eq!(live.snapshot().buffered_rows(), 0);
            }
            Change::Merge => {
                live.merge().expect("little memory");
            }
            Change::MergeAll => {
                live.merge_all().expect("little memory");
                check_merged::<C>(&live.snapshot(), &model, layout, &options);
            }
            Change::Keep => kept.push((live.snapshot(), model.clone())),
        }
        check::<C>(&live.snapshot(), &model, &ranges[..1]);
    }
    let snapshot = live.snapshot();
    (0..next).for_each(|id| C::check_row(&snapshot, id, model.get(&id)));
    kept.push((snapshot, model));
    live.merge_all().expect("little memory");
    kept.iter().for_each(|(snapshot, model)| check::<C>(snapshot, model, ranges));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn a_table_of_codes_is_what_a_map_is(
        first in prop::collection::vec(row(), 0..100),
        changes in prop::collection::vec(change(), 0..40),
        (linear, options, gate) in (any::<bool>(), options(), gate()),
        ranges in prop::collection::vec(ranges(), 1..5),
    ) {
        let layout = if linear { LayoutKind::Linear } else { LayoutKind::Columnar };
        run::<Codes>(&first, changes, layout, options, gate, &ranges);
    }

    #[test]
    fn a_table_of_values_is_what_a_map_is(
        first in prop::collection::vec(row(), 0..100),
        changes in prop::collection::vec(change(), 0..40),
        (linear, options, gate) in (any::<bool>(), options(), gate()),
        ranges in prop::collection::vec(ranges(), 1..5),
    ) {
        let layout = if linear { LayoutKind::Linear } else { LayoutKind::Columnar };
        run::<Values>(&first, changes, layout, options, gate, &ranges);
    }
}

/// A table of two columns of codes without rows.
fn empty(layout: LayoutKind, options: LiveOptions) -> LiveElf {
    let table = Arc::new(CodeTable::new(vec![vec![], vec![]]).expect("two columns"));
    let base = Elf::build(&table, &[0, 1], layout, &options.build).expect("no rows");
    LiveElf::new(base.with_table(table).expect("its table"), options).expect("a table")
}

fn marked(mark: u32) -> Predicate {
    Predicate::all().and(0, [Interval::point(mark)])
}

const WRITERS: u32 = 3;
const BATCHES: u32 = 60;
const BATCH_ROWS: u32 = 17;

/// Inserts batches of rows with a mark each, and deletes every other one.
fn write_batches(live: &LiveElf, writer: u32) {
    for batch in 0..BATCHES {
        let mark = writer * BATCHES + batch;
        let rows = vec![vec![mark; BATCH_ROWS as usize], (0..BATCH_ROWS).collect()];
        let ids = live.insert(CodeTable::new(rows).expect("two columns")).expect("rows that fit");
        if batch % 4 == 1 {
            assert_eq!(live.delete(&ids.collect::<Vec<_>>()), Ok(BATCH_ROWS.into()));
        } else if batch % 4 == 3 {
            assert_eq!(live.delete_where(&marked(mark)), Ok(BATCH_ROWS.into()));
        }
    }
}

#[test]
fn readers_see_whole_batches_while_runs_are_merged() {
    for layout in [LayoutKind::Linear, LayoutKind::Columnar] {
        let live = empty(layout, LiveOptions { buffer_rows: 100, fan_in: 3, ..LiveOptions::default() });
        let is_done = AtomicBool::new(false);
        let merges = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !is_done.load(Ordering::Relaxed) {
                        let snapshot = live.snapshot();
                        let all = snapshot.rows();
                        assert_eq!(all % u64::from(BATCH_ROWS), 0);
                        let count = |mark| snapshot.select(&marked(mark)).expect("column 0").count();
                        let counts: Vec<u64> = (0..WRITERS * BATCHES).map(count).collect();
                        assert!(counts.iter().all(|&count| count == 0 || count == BATCH_ROWS.into()));
                        assert_eq!(counts.iter().sum::<u64>(), all);
                    }
                });
            }
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    let was_merged = live.merge().expect("little memory");
                    merges.fetch_add(was_merged.into(), Ordering::Relaxed);
                    std::thread::yield_now();
                }
            });
            let writers: Vec<_> = (0..WRITERS)
                .map(|writer| {
                    let live = &live;
                    scope.spawn(move || write_batches(live, writer))
                })
                .collect();
            let results: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
            is_done.store(true, Ordering::Relaxed);
            assert!(results.iter().all(|result| result.is_ok()));
        });
        while live.merge().expect("little memory") {
            merges.fetch_add(1, Ordering::Relaxed);
        }
        assert!(merges.load(Ordering::Relaxed) > 0);
        assert_eq!(live.snapshot().rows(), u64::from(WRITERS * BATCHES / 2 * BATCH_ROWS));
    }
}

#[test]
fn a_snapshot_answers_the_same_during_and_after_merges() {
    let live = empty(LayoutKind::Columnar, LiveOptions { buffer_rows: 50, ..LiveOptions::default() });
    for batch in 0..40_u32 {
        let rows = vec![(0..30).map(|row| row % 7).collect(), vec![batch; 30]];
        live.insert(CodeTable::new(rows).expect("two columns")).expect("rows that fit");
    }
    live.delete_where(&Predicate::all().and(1, [Interval::new(3, 5)])).expect("column 1");
    let snapshot = live.snapshot();
    let answer = || snapshot.select(&marked(3)).expect("column 0").sorted_ids::<u64>().expect("64 bits");
    let before = answer();
    assert_eq!(before.len(), 37 * 4);
    std::thread::scope(|scope| {
        let merger = scope.spawn(|| {
            live.delete_where(&marked(3)).expect("column 0");
            live.merge_all().expect("little memory");
        });
        while !merger.is_finished() {
            assert_eq!(answer(), before);
        }
    });
    assert_eq!(answer(), before);
    assert_eq!(live.snapshot().select(&marked(3)).expect("column 0").count(), 0);
}

#[test]
fn the_policy_keeps_runs_few() {
    let options = LiveOptions { buffer_rows: 10, fan_in: 3, ..LiveOptions::default() };
    let live = empty(LayoutKind::Columnar, options);
    for round in 1..=1000_u64 {
        live.insert(CodeTable::new(vec![vec![1], vec![2]]).expect("two columns")).expect("a row");
        while live.merge().expect("little memory") {}
        assert!(live.snapshot().buffered_rows() <= 10);
        assert!(live.snapshot().runs().count() as u32 <= 2 * ((round / 10).max(1).ilog(3) + 1));
    }
    let third: Vec<u64> = (0..1000).filter(|id| id % 3 == 0).collect();
    live.delete(&third).expect("ids of rows");
    assert_eq!(live.merge_all(), Ok(true));
    assert_eq!(live.merge_all(), Ok(false));
    let rows = |live: &LiveElf| live.snapshot().runs().map(|run| run.header().rows).collect::<Vec<_>>();
    assert_eq!(rows(&live), [666]);
    // A run with more dead than living rows is rewritten.
    live.delete(&(0..600).collect::<Vec<_>>()).expect("ids of rows");
    assert_eq!((live.merge(), rows(&live)), (Ok(true), vec![266]));
    live.delete(&(0..1000).collect::<Vec<_>>()).expect("ids of rows");
    assert_eq!((live.merge(), live.merge(), rows(&live)), (Ok(true), Ok(false), vec![]));
    assert_eq!(live.insert(CodeTable::new(vec![vec![1], vec![2]]).expect("two columns")), Ok(1000..1001));
}

fn message<T>(result: Result<T>) -> String {
    result.err().map(|error| error.to_string()).unwrap_or_default()
}

#[test]
fn what_does_not_fit_is_refused_and_changes_nothing() {
    let live = empty(LayoutKind::Linear, LiveOptions::default());
    let codes = |first: u32| CodeTable::new(vec![vec![first], vec![2]]).expect("two columns");
    assert_eq!(message(live.delete(&[0])), "there is no row 0: row ids are below 0");
    assert_eq!(live.insert(codes(9)), Ok(0..1));
    assert_eq!(live.delete(&[0, 1]), Err(Error::UnknownRow { id: 1, bound: 1 }));
    let large = message(live.insert(codes(1 << 31)));
    assert_eq!(large, "column 0 has the code 2147483648; the linear layout holds codes up to 2147483647");
    let narrow = CodeTable::new(vec![vec![1]]).expect("one column");
    assert_eq!(live.insert(narrow), Err(Error::WrongArity { values: 1, columns: 2 }));
    assert_eq!(message(live.insert_values(&[])), "the table holds codes, but values were given");
    let unknown = live.snapshot().select(&Predicate::all().and(2, [])).map(|_| ());
    assert_eq!(unknown, Err(Error::ColumnOutOfRange { column: 2, columns: 2 }));
    assert_eq!((live.snapshot().rows(), live.snapshot().id_bound()), (1, 1));
    let bare = Elf::build(&codes(1), &[0, 1], LayoutKind::Linear, &BuildOptions::default()).expect("a row");
    assert_eq!(LiveElf::new(bare, LiveOptions::default()).map(|_| ()), Err(Error::NoTable));
}

#[test]
fn ids_end_where_the_layout_ends() {
    let start = |layout, last: u64, width| {
        let table = CodeTable::new(vec![vec![4, 5]]).and_then(|table| table.with_ids(&[1, last]));
        let table = Arc::new(table.expect("ascending ids"));
        let build = BuildOptions { width, ..BuildOptions::default() };
        let base = Elf::build(&table, &[0], layout, &build)?.with_table(table)?;
        LiveElf::new(base, LiveOptions { build, ..LiveOptions::default() })
    };
    let row = || CodeTable::new(vec![vec![3]]).expect("one column");
    let linear = start(LayoutKind::Linear, (1 << 31) - 2, Width::Auto).expect("ids below 2^31");
    assert_eq!(linear.insert(row()), Ok((1 << 31) - 1..1 << 31));
    let expected = "the row id 2147483648 is too large: the linear layout holds ids up to 2147483647";
    assert_eq!(message(linear.insert(row())), expected);
    assert_eq!(message(start(LayoutKind::Linear, 1 << 31, Width::Auto)), expected);
    let narrow = start(LayoutKind::Columnar, u32::MAX.into(), Width::Narrow).expect("ids below 2^32");
    let expected =
        "the row id 4294967296 is too large: an image with ids of 4 bytes holds ids up to 4294967295";
    assert_eq!(message(narrow.insert(row())), expected);
    let wide = start(LayoutKind::Columnar, u32::MAX.into(), Width::Auto).expect("8 bytes suffice");
    assert_eq!(wide.insert(row()), Ok(1 << 32..(1 << 32) + 1));
    wide.merge_all().expect("little memory");
    let snapshot = wide.snapshot();
    let selection = snapshot.select(&Predicate::all().and(0, [Interval::new(3, 4)])).expect("column 0");
    assert_eq!(selection.sorted_ids::<u64>(), Ok(vec![1, 1 << 32]));
    assert_eq!(selection.sorted_ids::<u32>(), Err(Error::IdsTooNarrow { bound: (1 << 32) + 1 }));
    let end = start(LayoutKind::Columnar, u64::MAX - 1, Width::Auto).expect("8 bytes suffice");
    assert!(matches!(end.insert(row()), Err(Error::IdTooLarge { id: u64::MAX, .. })));
    assert!(matches!(
        end.snapshot().select(&Predicate::all()).expect("no columns").bitmap(),
        Err(Error::NoMemory { .. })
    ));
}
