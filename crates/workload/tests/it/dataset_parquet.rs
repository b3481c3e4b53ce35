//! Parquet files: types, NULLs, row groups, and invalid files. Also TPC-H lineitem, in CSV.

use pando_workload::dataset::{Column, Format, ReadOptions, Record, Rejected, open};
use parquet::basic::Compression;
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int32Type, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use tempfile::NamedTempFile;
use tpchgen::csv::LineItemCsv;
use tpchgen::generators::LineItemGenerator;

const SCHEMA: &str = "message rows {
    REQUIRED INT32 id; OPTIONAL BYTE_ARRAY name (UTF8); REQUIRED INT32 day (DATE);
    REQUIRED INT64 price (DECIMAL(10,2)); OPTIONAL DOUBLE weight; REQUIRED INT64 big (UINT_64);
}";

fn options(key: &str, value: Option<&str>) -> ReadOptions {
    let columns = |text: &str| text.split(',').map(|column| column.parse().expect("a column")).collect();
    ReadOptions { key: columns(key), value: value.map(columns), ..ReadOptions::default() }
}

/// Groups of rows in which row i (from 0) has NULL in `name` if 3 divides i, and in `weight` if 2 does.
fn write(compression: Compression, group_rows: &[i32]) -> NamedTempFile {
    let file = NamedTempFile::new().expect("a temporary file");
    let schema = Arc::new(parse_message_type(SCHEMA).expect("a schema"));
    let properties = Arc::new(WriterProperties::builder().set_compression(compression).build());
    let handle = file.reopen().expect("a second handle");
    let mut writer = SerializedFileWriter::new(handle, schema, properties).expect("a writer");
    let mut first = 0;
    for &count in group_rows {
        let ids: Vec<i32> = (first..first + count).collect();
        first += count;
        let level = |every: i32| ids.iter().map(|id| i16::from(id % every != 0)).collect::<Vec<i16>>();
        let mut group = writer.next_row_group().expect("a group");
        macro_rules! column {
            ($type:ty, $values:expr, $levels:expr) => {{
                let values: Vec<_> = $values.collect();
                let mut column = group.next_column().expect("a column").expect("not the last");
                column.typed::<$type>().write_batch(&values, $levels, None).expect("written");
                column.close().expect("closed");
            }};
        }
        let named = ids.iter().filter(|id| *id % 3 != 0);
        let names = named.map(|id| ByteArray::from(format!("n{id}").into_bytes()));
        column!(Int32Type, ids.iter().map(|id| id - 5), None);
        column!(ByteArrayType, names, Some(&level(3)[..]));
        column!(Int32Type, ids.iter().copied(), None);
        column!(Int64Type, ids.iter().map(|&id| i64::from(id) * -25), None);
        column!(
            DoubleType,
            ids.iter().filter(|id| *id % 2 != 0).map(|&id| f64::from(id) / 4.0),
            Some(&level(2)[..])
        );
        column!(Int64Type, ids.iter().map(|id| if *id == 1 { -1 } else { 7 }), None);
        group.close().expect("closed");
    }
    writer.close().expect("closed");
    file
}

fn read(path: &Path, options: &ReadOptions) -> Vec<Result<Record, Rejected>> {
    open(path, Format::Parquet, options).expect("a readable file").collect()
}

#[test]
fn all_rows_of_all_groups_are_read() {
    for compression in [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::LZ4_RAW,
        Compression::ZSTD(Default::default()),
    ] {
        let file = write(compression, &[10_000, 1, 5000]);
        let mut records = open(file.path(), Format::Parquet, &options("id", None)).expect("a readable file");
        assert_eq!(records.key_layout().to_string(), "int");
        let layout = records.key_layout().clone();
        for i in 0..15_001 {
            let record = records.next().expect("a row").expect("a valid row");
            assert_eq!(layout.display(&record.key, ',').expect("a key"), (i - 5).to_string());
            let name = if i % 3 == 0 { String::new() } else { format!("n{i}") };
            let weight = if i % 2 == 0 { String::new() } else { (f64::from(i) / 4.0).to_string() };
            let text = String::from_utf8(record.value).expect("text");
            let fields: Vec<&str> = text.split('\t').collect();
            assert_eq!((fields[0], fields[3]), (name.as_str(), weight.as_str()), "row {i}");
        }
        assert!(records.next().is_none());
        assert_eq!(records.progress().done, 15_001);
    }
}

#[test]
fn values_have_readable_forms() {
    let file = write(Compression::SNAPPY, &[40]);
    let rows = read(file.path(), &options("id:str,day", Some("price,big")));
    let record = rows[31].as_ref().expect("a valid row");
    assert_eq!(record.key, b"26\0\x001970-02-01\0\0");
    assert_eq!(record.value, b"-7.75\t7");
    let unsigned = read(file.path(), &options("big", Some("id")));
    let rejected = unsigned[1].as_ref().expect_err("beyond 63 bits").to_string();
    assert_eq!(rejected, "line 2: `18446744073709551615` in key column `big` is not an integer of 64 bits");
    let nulls = read(file.path(), &options("name", Some("id")));
    assert_eq!(nulls.iter().filter(|row| row.is_err()).count(), 14, "NULL is no key");
}

#[test]
fn files_that_are_no_parquet_are_refused() {
    let text = NamedTempFile::new().expect("a temporary file");
    text.as_file().write_all(b"id,name\n1,2\n").expect("space");
    let empty = NamedTempFile::new().expect("a temporary file");
    let whole = write(Compression::SNAPPY, &[1000]);
    let bytes = std::fs::read(whole.path()).expect("readable");
    let cut = NamedTempFile::new().expect("a temporary file");
    cut.as_file().write_all(&bytes[..bytes.len() / 2]).expect("space");
    for file in [&text, &empty, &cut] {
        let error = open(file.path(), Format::Parquet, &ReadOptions::default()).expect_err("no Parquet");
        assert!(error.to_string().contains("not a valid Parquet file"), "{error}");
    }
    let unknown = open(whole.path(), Format::Parquet, &options("nothing", None)).expect_err("no such column");
    assert!(unknown.to_string().contains("the columns are id, name, day"), "{unknown}");
}

#[test]
fn damaged_pages_end_the_reading_with_a_message() {
    let whole = write(Compression::UNCOMPRESSED, &[3000]);
    let mut bytes = std::fs::read(whole.path()).expect("readable");
    bytes[4..400].fill(0xff);
    std::fs::write(whole.path(), bytes).expect("space");
    let rows = read(whole.path(), &options("id", None));
    assert!(rows.last().expect("a row").as_ref().is_err_and(Rejected::is_fatal), "{:?}", rows.last());
}

#[test]
fn nested_columns_are_refused_only_when_needed() {
    let file = NamedTempFile::new().expect("a temporary file");
    let schema = "message m { REQUIRED INT32 id; REQUIRED GROUP place { REQUIRED INT32 x; } }";
    let schema = Arc::new(parse_message_type(schema).expect("a schema"));
    let handle = file.reopen().expect("a second handle");
    let writer = SerializedFileWriter::new(handle, schema, Default::default()).expect("a writer");
    writer.close().expect("closed");
    assert!(read(file.path(), &options("id", Some("id"))).is_empty());
    let error = open(file.path(), Format::Parquet, &options("id", None)).expect_err("nested");
    assert!(error.to_string().contains("place.x"), "{error}");
}

#[test]
fn lineitem_is_read_whole_and_its_keys_order_as_numbers() {
    let mut file = NamedTempFile::new().expect("a temporary file");
    writeln!(file, "{}", LineItemCsv::header()).expect("space");
    let mut expected = Vec::new();
    for row in LineItemGenerator::new(0.002, 1, 1).iter() {
        expected.push((row.l_orderkey, i64::from(row.l_linenumber), row.l_comment.to_owned()));
        writeln!(file, "{}", LineItemCsv::new(row)).expect("space");
    }
    let key: Vec<Column> =
        ["l_orderkey:int", "l_linenumber:int"].map(|text| text.parse().expect("a column")).into();
    let options = ReadOptions { key, ..ReadOptions::default() };
    let mut records: Vec<Record> = open(file.path(), Format::Csv, &options)
        .expect("a readable file")
        .collect::<Result<_, _>>()
        .expect("no row is rejected");
    records.sort_by(|a, b| a.key.cmp(&b.key));
    expected.sort();
    assert_eq!(records.len(), expected.len());
    for (record, (order, line, comment)) in records.iter().zip(&expected) {
        let encode = |int: &i64| (*int as u64 ^ 1 << 63).to_be_bytes();
        assert_eq!(record.key, [encode(order), encode(line)].concat());
        let value = std::str::from_utf8(&record.value).expect("text");
        assert!(value.ends_with(comment.as_str()) && value.split('\t').count() == 14);
    }
}
