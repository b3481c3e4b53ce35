//! Elf tables of the library: builds within a bound on memory, several handles and threads, pools in files, other kinds
//! of indexes beside them, and memory servers that are drained.

use pando::elf::{
    Cell, Column, ColumnType, Elf, ElfBuild, ElfError, ElfOptions, LayoutKind, Order, Schema, Value,
};
use pando::{Cluster, Config, Create, Error, IndexOptions, MemoryServer, MemoryServerConfig};

const ROWS: i64 = 5_000;

fn schema() -> Schema {
    let columns = vec![
        Column::new("number", ColumnType::Integer),
        Column::new("kind", ColumnType::String).nullable(),
        Column::new("price", ColumnType::Decimal { scale: 2 }),
        Column::new("day", ColumnType::Date),
    ];
    Schema::new(columns).expect("four names")
}

/// Cells of row `i`; every seventh has no kind.
fn kind(i: i64) -> Option<String> {
    (i % 7 != 0).then(|| format!("kind {}", i % 5))
}

fn build(options: &ElfOptions) -> ElfBuild {
    let mut build = ElfBuild::new(schema(), options).expect("valid options");
    for i in 0..ROWS {
        let kind = kind(i);
        let kind = kind.as_deref().map_or(Cell::Null, Cell::Text);
        let price = Cell::Number(i128::from(i * 37 % 1_000));
        build
            .push_cells(&[Cell::Number(i.into()), kind, price, Cell::Number((i % 400).into())])
            .expect("valid");
    }
    build
}

const CONDITIONS: [&str; 4] = [
    "kind = 'kind 3' and price < 1.5",
    "day between date '1970-02-01' and date '1970-03-01' or kind is null",
    "number in (1, 17, 4999, 5000) and not price > 9",
    "price >= 0",
];

fn is_met(condition: usize, i: i64) -> bool {
    let (price, day) = (i * 37 % 1_000, i % 400);
    match condition {
        0 => kind(i).as_deref() == Some("kind 3") && price < 150,
        1 => (31..=59).contains(&day) || kind(i).is_none(),
        2 => [1, 17, 4999].contains(&i) && price <= 900,
        _ => true,
    }
}

fn check(elf: &Elf) {
    for (number, condition) in CONDITIONS.into_iter().enumerate() {
        let expected: Vec<u64> = (0..ROWS).filter(|&i| is_met(number, i)).map(|i| i as u64).collect();
        let selection = elf.select(condition).expect("a condition");
        assert_eq!(selection.count().expect("no error"), expected.len() as u64, "{condition}");
        assert_eq!(selection.sorted_ids().expect("no error"), expected, "{condition}");
        assert_eq!(selection.bitmap().expect("no error").count(), expected.len() as u64);
        let rows = selection.rows(&["kind", "number"]).expect("no error");
        assert_eq!(rows.len(), expected.len());
        for (row, &id) in rows.iter().zip(&expected) {
            let kind = kind(id as i64).map_or(Value::Null, Value::String);
            assert_eq!(row.expect("no damage"), (id, vec![kind, Value::Integer(id as i64)]));
        }
    }
}

#[test]
fn builds_give_the_same_table_within_any_bound_on_memory() {
    let cluster = Cluster::open(Config::embedded()).expect("memory");
    let workload = Order::Workload(CONDITIONS.map(str::to_owned).to_vec());
    let orders = [Order::Cardinality, Order::Columns(vec!["day".into(), "kind".into()]), workload];
    for layout in [LayoutKind::Linear, LayoutKind::Columnar] {
        for order in &orders {
            for memory in [None, Some(300 << 10)] {
                let options = ElfOptions::default().layout(layout).order(order.clone()).memory(memory);
                let built = build(&options.bucket_rows(16)).finish().expect("room");
                assert_eq!((built.rows(), built.spec().layout), (ROWS as u64, layout));
                let elf = cluster.replace_elf("t", &built).expect("room");
                check(&elf);
                let report = elf.check().expect("no error");
                assert!(report.violations.is_empty() && report.bytes > built.bytes(), "{report:?}");
            }
        }
    }
    let report = cluster.check().expect("at rest");
    assert!(report.is_clean() && report.elfs.len() == 1, "{report:?}");
    cluster.drop_elf("t").expect("it is there");
    let report = cluster.check().expect("at rest");
    assert!(report.is_clean() && report.elfs.is_empty(), "{report:?}");
}

#[test]
fn a_table_in_a_file_is_read_by_others_while_it_changes() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("p.pando");
    let cluster = Cluster::open(Config::at(&path).memory(64 << 20).create(Create::New)).expect("room");
    let elf = cluster.create_elf("t", &build(&ElfOptions::default()).finish().expect("room")).expect("room");
    cluster.create_index("keys", &IndexOptions::bytes()).expect("room");
    let reading = Cluster::open(Config::at(&path).read_only(true)).expect("it is there");
    let other = reading.open_elf("t").expect("it is there");
    check(&other);
    let row = [vec![Value::Integer(9_999)], vec![Value::Null], vec![Value::Integer(3)], vec![Value::Date(1)]];
    assert_eq!(elf.insert(&row).expect("room"), ROWS as u64..ROWS as u64 + 1);
    assert_eq!(other.select("number = 9999").and_then(|found| found.ids()).expect("no error"), [ROWS as u64]);
    assert_eq!(elf.delete("number = 9999 or number < 10").expect("room"), 11);
    assert_eq!(other.all().count().expect("no error"), ROWS as u64 - 10);
    assert!(matches!(other.delete("number = 1"), Err(Error::ReadOnly)));
    assert!(elf.merge_all().expect("room").is_some());
    assert_eq!(other.info().expect("no error").parts.len(), 1);
    drop((elf, other));
    reading.close().expect("at rest");
    cluster.close().expect("at rest");
    let cluster = Cluster::open(Config::at(&path)).expect("it was closed");
    assert_eq!(cluster.elf_names().expect("no error"), ["t"]);
    assert_eq!(cluster.open_elf("t").and_then(|elf| elf.all().count()).expect("no error"), ROWS as u64 - 10);
    assert!(cluster.check().expect("at rest").is_clean());
}

#[test]
fn wrong_names_and_values_are_ordinary_errors() {
    let cluster = Cluster::open(Config::embedded()).expect("memory");
    cluster.create_index("keys", &IndexOptions::bytes()).expect("room");
    let built = build(&ElfOptions::default()).finish().expect("room");
    let elf = cluster.create_elf("t", &built).expect("room");
    assert!(matches!(cluster.create_elf("t", &built), Err(Error::IndexExists { .. })));
    assert!(matches!(
        cluster.create_elf("keys", &built),
        Err(Error::NotAnElf { .. } | Error::IndexExists { .. })
    ));
    assert!(matches!(cluster.replace_elf("keys", &built), Err(Error::NotAnElf { .. })));
    assert!(matches!(cluster.open_elf("keys"), Err(Error::NotAnElf { .. })));
    assert!(
        matches!(cluster.open_elf("none"), Err(Error::UnknownIndex { existing, .. }) if existing.len() == 2)
    );
    assert!(matches!(cluster.open_index("t"), Err(Error::IsElf { .. })));
    assert!(matches!(cluster.drop_index("t"), Err(Error::IsElf { .. })));
    assert!(matches!(cluster.index_info("t"), Err(Error::IsElf { .. })));
    assert_eq!(cluster.indexes().expect("no error").len(), 1);
    let wrong = elf.select("number = 'x'").expect_err("a text is no number");
    assert!(
        wrong.is_bad_input()
            && matches!(wrong, Error::Elf(error) if matches!(*error, ElfError::BadCondition { .. }))
    );
    let texts = || vec![Value::String("x".into())];
    let refused = elf.insert(&[texts(), texts(), vec![Value::Integer(3)], vec![Value::Date(1)]]);
    assert!(refused.expect_err("a text is no number").is_bad_input());
    assert!(elf.all().rows(&["none"]).expect_err("no such column").is_bad_input());
    let mut rows = ElfBuild::new(schema(), &ElfOptions::default()).expect("valid options");
    assert!(rows.push(&[Value::Null, Value::Null, Value::Null, Value::Null]).is_err());
    assert!(rows.push(&[Value::Integer(1)]).is_err());
    rows.push(&[Value::Integer(1), Value::Null, Value::Integer(2), Value::Date(3)]).expect("valid");
    assert_eq!(rows.finish().expect("room").rows(), 1, "wrong rows are not appended");
    cluster.drop_elf("t").expect("it is there");
    assert!(matches!(elf.all().count(), Err(Error::UnknownIndex { .. })));
    assert!(cluster.check().expect("at rest").is_clean());
}

#[test]
fn threads_query_and_change_one_table() {
    let cluster = Cluster::open(Config::embedded().memory(64 << 20)).expect("memory");
    let elf = cluster.create_elf("t", &build(&ElfOptions::default()).finish().expect("room")).expect("room");
    std::thread::scope(|scope| {
        for thread in 0..3_i64 {
            let elf = &elf;
            scope.spawn(move || {
                for round in 0..5 {
                    let n = 10_000 + thread * 100 + round;
                    let row = [
                        vec![Value::Integer(n); 2],
                        vec![Value::Null; 2],
                        vec![Value::Integer(0); 2],
                        vec![Value::Date(0); 2],
                    ];
                    elf.insert(&row).expect("room");
                    let own = elf.select(&format!("number = {n}")).expect("a condition");
                    assert_eq!(own.count().expect("no error"), 2);
                    assert_eq!(elf.delete(&format!("number = {n}")).expect("room"), 2);
                }
            });
        }
    });
    check(&elf);
    assert!(cluster.check().expect("at rest").is_clean());
}

#[test]
fn a_table_leaves_a_memory_server_that_is_drained() {
    let cluster = Cluster::open(Config::embedded().memory(32 << 20).memory_servers(2)).expect("memory");
    let elf = cluster.create_elf("t", &build(&ElfOptions::default()).finish().expect("room")).expect("room");
    cluster
        .drain_memory_server(pando::MemoryServerId(1), |_| std::ops::ControlFlow::Continue(()))
        .expect("room");
    check(&elf);
    assert!(cluster.check().expect("at rest").is_clean());
}

/// Another process has read a version of the table that was on a memory server which has ended since.
#[test]
fn who_has_read_a_table_reads_on_when_a_drained_memory_server_has_ended() {
    let start =
        |_| MemoryServer::start(&MemoryServerConfig::new("127.0.0.1:0").size(32 << 20)).expect("a port");
    let mut servers: Vec<MemoryServer> = (0..3).map(start).collect();
    let addresses: Vec<String> = servers.iter().map(|server| server.addr().to_string()).collect();
    let open = |create| Cluster::open(Config::tcp(&addresses).create(create)).expect("they answer");
    let cluster = open(Create::New);
    cluster.create_elf("t", &build(&ElfOptions::default()).finish().expect("room")).expect("room");
    let others: Vec<Cluster> = (0..2).map(|_| open(Create::Never)).collect();
    let readers: Vec<Elf> = others.iter().map(|other| other.open_elf("t").expect("there")).collect();
    readers.iter().for_each(check);
    for server in [2, 1] {
        let goes_on = |_| std::ops::ControlFlow::Continue(());
        cluster.drain_memory_server(pando::MemoryServerId(server), goes_on).expect("room");
        drop(servers.pop());
        readers.iter().for_each(check);
    }
}

#[cfg(feature = "arrow")]
#[test]
fn record_batches_have_the_rows() {
    use arrow_array::{Array, Date32Array, Decimal128Array, Int64Array, StringArray};
    let cluster = Cluster::open(Config::embedded()).expect("memory");
    let elf = cluster.create_elf("t", &build(&ElfOptions::default()).finish().expect("room")).expect("room");
    let rows = elf.select("number < 8").and_then(|found| found.rows(&["number", "kind", "price", "day"]));
    let batches = rows.and_then(|rows| rows.record_batches()).expect("no error");
    let [batch] = &batches[..] else { panic!("one part") };
    let column = |at: usize| batch.column(at).as_any();
    let numbers = column(0).downcast_ref::<Int64Array>().expect("integers");
    assert_eq!(numbers.values(), &[0, 1, 2, 3, 4, 5, 6, 7]);
    let kinds = column(1).downcast_ref::<StringArray>().expect("texts");
    assert!(kinds.is_null(0) && kinds.is_null(7) && kinds.value(3) == "kind 3");
    let prices = column(2).downcast_ref::<Decimal128Array>().expect("decimals");
    assert_eq!((prices.value(2), prices.scale()), (74, 2));
    assert_eq!(column(3).downcast_ref::<Date32Array>().expect("days").value(5), 5);
}
