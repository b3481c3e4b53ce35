//! Tables: TPC-H `lineitem` from CSV and Parquet, composite keys, several memory servers, summaries.

use std::fmt::Write;

use crate::common::Place;
use serde_json::Value;
use tpchgen::csv::LineItemCsv;
use tpchgen::generators::LineItemGenerator;

const SCALE: f64 = 0.002;
const POOL: &str = "--pool tpch.pando/ --index lineitem";
const KEY: &str = "--key l_orderkey:int,l_linenumber:int";

/// The table as CSV in reverse order, so that loading has to sort, and its keys in order, as scans print
/// them.
fn lineitem() -> (String, Vec<(i64, i32)>) {
    let generator = LineItemGenerator::new(SCALE, 1, 1);
    let rows: Vec<_> = generator.iter().collect();
    let mut csv = format!("{}\n", LineItemCsv::header());
    for row in rows.iter().rev() {
        writeln!(csv, "{}", LineItemCsv::new(row.clone())).expect("writing to a string does not fail");
    }
    (csv, rows.iter().map(|row| (row.l_orderkey, row.l_linenumber)).collect())
}

fn key_lines(keys: impl IntoIterator<Item = (i64, i32)>) -> String {
    keys.into_iter().map(|(order, line)| format!("{order},{line}\n")).collect()
}

#[test]
fn lineitem_is_keyed_by_order_and_line() {
    let place = Place::new();
    let (csv, keys) = lineitem();
    place.write("lineitem.csv", &csv);
    place.ok(&format!("load lineitem.csv {POOL} {KEY} --memory-servers 2 --sort-memory 128KiB"));
    assert_eq!(place.ok(&format!("scan {POOL} --keys-only")), key_lines(keys.iter().copied()));

    let middle = keys[keys.len() / 2].0;
    let of_order = keys.iter().copied().filter(|key| key.0 == middle);
    assert_eq!(place.ok(&format!("scan {POOL} --keys-only --prefix {middle}")), key_lines(of_order));
    let before = keys.iter().copied().filter(|key| key.0 < middle).rev();
    assert_eq!(place.ok(&format!("scan {POOL} --keys-only --to {middle} --reverse")), key_lines(before));

    let (order, line) = keys[7];
    let row = place.ok(&format!("get {POOL} {order},{line} --output json"));
    let row: Value = serde_json::from_str(&row).expect("valid JSON");
    assert_eq!(row["key"], serde_json::json!([order, line]));
    let value = row["value"].as_str().expect("text");
    assert_eq!(value.split('\t').count(), 14, "all columns that are not in the key: {value}");
    place.ok("check --pool tpch.pando");
    let stats = place.index_stats("tpch.pando");
    assert_eq!(stats["entries"], keys.len());
    assert_eq!(stats["key_columns"], "int,int");
}

/// The half deleted in a cycle of [`half_goes_and_comes_back`].
#[derive(Clone, Copy, Debug)]
enum Half {
    Lower,
    Upper,
    EverySecond,
}

#[test]
fn the_lower_half_goes_and_comes_back_in_the_same_memory() {
    half_goes_and_comes_back(Half::Lower, "");
}

#[test]
fn the_upper_half_goes_and_comes_back_in_the_same_memory() {
    half_goes_and_comes_back(Half::Upper, "");
}

#[test]
fn every_second_row_goes_and_comes_back_in_the_same_memory() {
    half_goes_and_comes_back(Half::EverySecond, "");
}

#[test]
fn so_does_half_of_an_index_of_several_compute_servers() {
    // Order numbers go up to 12,000 at this scale.
    let boundaries = "--boundaries 3000 --boundaries 7000";
    half_goes_and_comes_back(Half::Lower, boundaries);
    half_goes_and_comes_back(Half::EverySecond, boundaries);
}

fn half_goes_and_comes_back(half: Half, made_with: &str) {
    let place = Place::new();
    let (csv, keys) = lineitem();
    place.write("lineitem.csv", &csv);
    place.ok(&format!("load lineitem.csv {POOL} {KEY} {made_with}"));
    let (full, chunks) = (place.allocated("tpch.pando"), place.in_chunks("tpch.pando"));
    let middle = keys.len() / 2;
    let gone: Vec<_> = match half {
        Half::Lower => keys[..middle].to_vec(),
        Half::Upper => keys[middle..].to_vec(),
        Half::EverySecond => keys.iter().copied().step_by(2).collect(),
    };
    // One thread and several: ascending inserts end and begin where their shares meet.
    for threads in [1, 1, 2, 4] {
        let deleted = place.feed(&format!("del {POOL} --stdin"), &key_lines(gone.iter().copied()));
        assert_eq!(deleted.status, 0, "{deleted:?}");
        place.ok("check --pool tpch.pando");
        assert!(place.allocated("tpch.pando") < full, "{half:?}");

        place.ok(&format!("load lineitem.csv {POOL} {KEY} --threads {threads}"));
        place.ok("check --pool tpch.pando");
        assert_eq!(place.ok(&format!("scan {POOL} --keys-only")), key_lines(keys.iter().copied()));
        let again = place.allocated("tpch.pando");
        assert!(again <= full, "{half:?}, {threads} threads: grown from {full} to {again} bytes");
        let again = place.in_chunks("tpch.pando");
        assert!(again <= chunks, "{half:?}, {threads} threads: chunks grown from {chunks} to {again} bytes");
    }
}

#[test]
fn replacing_an_index_takes_the_memory_of_the_old_one() {
    let place = Place::new();
    let (csv, _) = lineitem();
    place.write("lineitem.csv", &csv);
    place.ok(&format!("load lineitem.csv {POOL} {KEY} --value l_comment,l_shipdate"));
    let full = place.allocated("tpch.pando");
    place.ok(&format!("load lineitem.csv {POOL} {KEY} --value l_comment --replace"));
    place.ok("check --pool tpch.pando");
    assert!(place.allocated("tpch.pando") <= full);
}

#[cfg(feature = "parquet")]
#[test]
fn parquet_gives_what_csv_gives() {
    use parquet::data_type::{ByteArray, ByteArrayType, Int32Type, Int64Type};
    use parquet::file::writer::SerializedFileWriter;

    let place = Place::new();
    let rows: Vec<_> = LineItemGenerator::new(SCALE, 1, 1).iter().collect();
    let schema = "message lineitem { REQUIRED INT64 l_orderkey; REQUIRED INT32 l_linenumber; \
                  REQUIRED BYTE_ARRAY l_comment (UTF8); }";
    let schema = parquet::schema::parser::parse_message_type(schema).expect("valid");
    let file = std::fs::File::create(place.path("lineitem.parquet")).expect("it can be made");
    let mut writer = SerializedFileWriter::new(file, schema.into(), Default::default()).expect("a writer");
    let mut group = writer.next_row_group().expect("a group");
    let orders: Vec<i64> = rows.iter().map(|row| row.l_orderkey).collect();
    let lines: Vec<i32> = rows.iter().map(|row| row.l_linenumber).collect();
    let comments: Vec<ByteArray> = rows.iter().map(|row| row.l_comment.as_bytes().to_vec().into()).collect();
    let mut column = group.next_column().expect("it is there").expect("it is there");
    column.typed::<Int64Type>().write_batch(&orders, None, None).expect("written");
    column.close().expect("closed");
    let mut column = group.next_column().expect("it is there").expect("it is there");
    column.typed::<Int32Type>().write_batch(&lines, None, None).expect("written");
    column.close().expect("closed");
    let mut column = group.next_column().expect("it is there").expect("it is there");
    column.typed::<ByteArrayType>().write_batch(&comments, None, None).expect("written");
    column.close().expect("closed");
    group.close().expect("closed");
    writer.close().expect("closed");

    place.write("lineitem.csv", lineitem().0);
    place.ok(&format!("load lineitem.csv --pool csv.pando --index lineitem {KEY} --value l_comment"));
    place.ok("load lineitem.parquet --pool pq.pando --index lineitem --key l_orderkey,l_linenumber");
    let scan = |pool: &str| place.ok(&format!("scan --pool {pool} --index lineitem"));
    assert_eq!(scan("csv.pando"), scan("pq.pando"));
    assert_eq!(scan("csv.pando").lines().count(), rows.len());
}

#[test]
fn the_summary_counts_what_became_of_the_rows() {
    let place = Place::new();
    place.write("t.tsv", "id\tname\n3\tc\n1\ta\nx\tbad\n1\tb\n");
    let load = "load t.tsv --pool t.pando --index t --key id:int --max-rejects 1 --json -";
    let summary = |text: &str| -> Value { serde_json::from_str(text).expect("valid JSON") };
    let first = summary(&place.ok(load));
    for (field, count) in [("rows", 4), ("inserted", 2), ("replaced", 0), ("duplicates", 1), ("rejected", 1)]
    {
        assert_eq!(first[field], count, "{field}");
    }
    let second = summary(&place.ok(load));
    assert_eq!((&second["inserted"], &second["replaced"]), (&0.into(), &2.into()));
    assert_eq!(place.ok("scan --pool t.pando --index t"), "1\tb\n3\tc\n");
    place.write("raw.csv", "7;sieben\n-2;minus zwei\n");
    place.ok("load raw.csv --pool t.pando --index t --key 1:int --no-header --delimiter ;");
    assert_eq!(place.ok("get --pool t.pando --index t -2 7"), "-2\tminus zwei\n7\tsieben\n");
}
